//! Dates, times and intervals as PostgreSQL prints them (`DateStyle` ISO, `IntervalStyle`
//! postgres).

use std::io::Write as _;

const MICROS_PER_DAY: i64 = 86_400_000_000;

/// Year (astronomical: 0 is 1 BC), month and day of a number of days since 1970; the arithmetic is
/// Howard Hinnant's (<https://howardhinnant.github.io/date_algorithms.html>).
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// `YYYY-MM-DD`; true when ` BC` has to follow.
fn write_civil(out: &mut Vec<u8>, days: i64) -> bool {
    let (year, month, day) = civil_from_days(days);
    let before_christ = year <= 0;
    let year = if before_christ { 1 - year } else { year };
    // Writing to a vector cannot fail.
    let _ = write!(out, "{year:04}-{month:02}-{day:02}");
    before_christ
}

/// A date from days since 1970.
pub(crate) fn write_date(out: &mut Vec<u8>, days: i64) {
    if write_civil(out, days) {
        out.extend_from_slice(b" BC");
    }
}

/// A time from microseconds since midnight.
pub(crate) fn write_time(out: &mut Vec<u8>, micros: i64) {
    let seconds = micros.div_euclid(1_000_000);
    let _ = write!(out, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    write_fraction(out, micros.rem_euclid(1_000_000));
}

fn write_fraction(out: &mut Vec<u8>, micros: i64) {
    if micros != 0 {
        let _ = write!(out, ".{micros:06}");
        while out.last() == Some(&b'0') {
            out.pop();
        }
    }
}

/// A timestamp from microseconds since 1970, `separator` between date and time, `zone` behind.
pub(crate) fn write_timestamp(out: &mut Vec<u8>, micros: i64, separator: u8, zone: &str) {
    let before_christ = write_civil(out, micros.div_euclid(MICROS_PER_DAY));
    out.push(separator);
    write_time(out, micros.rem_euclid(MICROS_PER_DAY));
    out.extend_from_slice(zone.as_bytes());
    if before_christ {
        out.extend_from_slice(b" BC");
    }
}

/// An interval.
pub(crate) fn write_interval(out: &mut Vec<u8>, months: i32, days: i32, micros: i64) {
    let mut empty = true;
    // A part behind a negative one shows its plus.
    let mut before = false;
    for (value, unit) in [(months / 12, "year"), (months % 12, "mon"), (days, "day")] {
        if value != 0 {
            let space = if empty { "" } else { " " };
            let plus = if before && value > 0 { "+" } else { "" };
            let _ = write!(out, "{space}{plus}{value} {unit}{}", if value == 1 { "" } else { "s" });
            before = value < 0;
            empty = false;
        }
    }
    if empty || micros != 0 {
        let space = if empty { "" } else { " " };
        let sign = match (micros < 0, before) {
            (true, _) => "-",
            (false, true) => "+",
            (false, false) => "",
        };
        let magnitude = micros.unsigned_abs();
        let seconds = magnitude / 1_000_000;
        let _ = write!(out, "{space}{sign}{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
        write_fraction(out, i64::try_from(magnitude % 1_000_000).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn timestamps() {
        let base = 1_357_016_400_000_000;
        assert_eq!(text(|out| write_timestamp(out, base, b' ', "+00")), "2013-01-01 05:00:00+00");
        assert_eq!(text(|out| write_timestamp(out, base + 120_000, b'T', "Z")), "2013-01-01T05:00:00.12Z");
        assert_eq!(text(|out| write_timestamp(out, -1, b' ', "")), "1969-12-31 23:59:59.999999");
        assert_eq!(text(|out| write_date(out, 11_016)), "2000-02-29");
        assert_eq!(text(|out| write_date(out, -719_163)), "0001-12-31 BC");
    }

    #[test]
    fn intervals_as_postgresql_prints_them() {
        let hms = ((4 * 60 + 5) * 60 + 6) * 1_000_000 + 789_000;
        assert_eq!(text(|out| write_interval(out, 14, 3, hms)), "1 year 2 mons 3 days 04:05:06.789");
        assert_eq!(text(|out| write_interval(out, -14, 3, -hms)), "-1 years -2 mons +3 days -04:05:06.789");
        assert_eq!(text(|out| write_interval(out, 0, 0, 0)), "00:00:00");
        assert_eq!(text(|out| write_interval(out, 0, -1, hms)), "-1 days +04:05:06.789");
        assert_eq!(text(|out| write_interval(out, 0, 1, 0)), "1 day");
    }
}
