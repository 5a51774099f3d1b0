//! Dates and times as text: ISO 8601 as RFC 3339 and PostgreSQL spell it.
//!
//! Days and years go by the proleptic Gregorian calendar; the arithmetic is Howard Hinnant's
//! (<https://howardhinnant.github.io/date_algorithms.html>).

const MICROS_PER_SECOND: i64 = 1_000_000;
const MICROS_PER_DAY: i64 = 86_400 * MICROS_PER_SECOND;
/// PostgreSQL's last year of a timestamp; also keeps the microseconds within an `i64`.
const YEAR_MAX: i64 = 294_276;

/// Days since 1970 of a date `YYYY-MM-DD`.
pub(crate) fn parse_date(text: &str) -> Option<i32> {
    let mut scanner = Scanner { bytes: text.trim().as_bytes() };
    let days = scanner.date()?;
    scanner.end()?;
    i32::try_from(days).ok()
}

/// Microseconds since midnight of a time `HH:MM[:SS[.ffffff]]`.
pub(crate) fn parse_time(text: &str) -> Option<i64> {
    let mut scanner = Scanner { bytes: text.trim().as_bytes() };
    let micros = scanner.time()?;
    scanner.end()?;
    (micros <= MICROS_PER_DAY).then_some(micros)
}

/// Microseconds since 1970 of a timestamp: `YYYY-MM-DD[(T| )time][ ]zone`.
///
/// Without a zone it is UTC. With `zoned` false a zone is read and left out of account, as
/// PostgreSQL does for `timestamp`.
pub(crate) fn parse_timestamp(text: &str, zoned: bool) -> Option<i64> {
    let mut scanner = Scanner { bytes: text.trim().as_bytes() };
    let days = scanner.date()?;
    let mut micros = 0;
    let mut offset_seconds = 0;
    if scanner.skip_any(b"Tt ") {
        while scanner.skip_any(b" ") {}
        micros = scanner.time()?;
        offset_seconds = scanner.zone()?;
    }
    scanner.end()?;
    let local = days.checked_mul(MICROS_PER_DAY)?.checked_add(micros)?;
    if zoned { local.checked_sub(offset_seconds * MICROS_PER_SECOND) } else { Some(local) }
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    // The year begins in March, so the leap day comes last.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

struct Scanner<'a> {
    bytes: &'a [u8],
}

impl Scanner<'_> {
    fn end(&self) -> Option<()> {
        self.bytes.is_empty().then_some(())
    }

    fn skip_any(&mut self, any: &[u8]) -> bool {
        match self.bytes {
            [first, rest @ ..] if any.contains(first) => {
                self.bytes = rest;
                true
            }
            _ => false,
        }
    }

    fn skip(&mut self, byte: u8) -> Option<()> {
        self.skip_any(&[byte]).then_some(())
    }

    /// A number of `least` to `most` digits.
    fn number(&mut self, least: usize, most: usize) -> Option<i64> {
        let digits = self.bytes.iter().take(most).take_while(|b| b.is_ascii_digit()).count();
        if digits < least {
            return None;
        }
        let (number, rest) = self.bytes.split_at(digits);
        self.bytes = rest;
        Some(number.iter().fold(0, |value, b| value * 10 + i64::from(b - b'0')))
    }

    fn date(&mut self) -> Option<i64> {
        let year = self.number(4, 6)?;
        self.skip(b'-')?;
        let month = self.number(1, 2)?;
        self.skip(b'-')?;
        let day = self.number(1, 2)?;
        let valid = (1..=YEAR_MAX).contains(&year)
            && (1..=12).contains(&month)
            && (1..=days_in_month(year, month)).contains(&day);
        valid.then(|| days_from_civil(year, month, day))
    }

    fn time(&mut self) -> Option<i64> {
        let hour = self.number(1, 2)?;
        self.skip(b':')?;
        let minute = self.number(2, 2)?;
        let mut second = 0;
        let mut micros = 0;
        if self.skip_any(b":") {
            second = self.number(2, 2)?;
            if self.skip_any(b".,") {
                micros = self.fraction()?;
            }
        }
        // PostgreSQL takes 24:00:00 and the leap second.
        let valid = minute < 60 && second <= 60 && (hour < 24 || (hour == 24 && minute + second + micros == 0));
        valid.then_some(((hour * 60 + minute) * 60 + second) * MICROS_PER_SECOND + micros)
    }

    /// A fraction of a second in microseconds, rounded.
    fn fraction(&mut self) -> Option<i64> {
        let digits = self.bytes.iter().take_while(|b| b.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        let (fraction, rest) = self.bytes.split_at(digits);
        self.bytes = rest;
        let mut micros = 0;
        for place in 0..6 {
            micros = micros * 10 + fraction.get(place).map_or(0, |b| i64::from(b - b'0'));
        }
        Some(micros + i64::from(fraction.get(6).is_some_and(|b| *b >= b'5')))
    }

    /// Seconds east of UTC; zero at the end of the text.
    fn zone(&mut self) -> Option<i64> {
        while self.skip_any(b" ") {}
        match self.bytes {
            [] => Some(0),
            [b'Z' | b'z'] => {
                self.bytes = &[];
                Some(0)
            }
            name if name.eq_ignore_ascii_case(b"utc") || name.eq_ignore_ascii_case(b"gmt") => {
                self.bytes = &[];
                Some(0)
            }
            [sign @ (b'+' | b'-'), rest @ ..] => {
                let negative = *sign == b'-';
                self.bytes = rest;
                let hours = self.number(1, 2)?;
                let mut seconds = 0;
                let mut minutes = 0;
                if self.skip_any(b":") {
                    minutes = self.number(2, 2)?;
                    if self.skip_any(b":") {
                        seconds = self.number(2, 2)?;
                    }
                } else if !self.bytes.is_empty() {
                    minutes = self.number(2, 2)?;
                }
                // PostgreSQL's bound on displacements.
                if hours > 15 || minutes > 59 || seconds > 59 {
                    return None;
                }
                let offset = (hours * 60 + minutes) * 60 + seconds;
                Some(if negative { -offset } else { offset })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // 2013-01-01 05:00:00 UTC in seconds since 1970.
    const BASE: i64 = 1_357_016_400 * MICROS_PER_SECOND;

    #[test]
    fn timestamps_of_both_spellings() {
        for text in [
            "2013-01-01T05:00:00Z",
            "2013-01-01 05:00:00+00",
            "2013-01-01 05:00",
            "2013-01-01 07:30:00+02:30",
            "2013-01-01 07:30:00 +0230",
            "2012-12-31T23:00:00-06:00",
            "2013-01-01 05:00:00 UTC",
        ] {
            assert_eq!(parse_timestamp(text, true), Some(BASE), "{text}");
        }
        assert_eq!(parse_timestamp("2013-01-01T05:00:00.1234565Z", true), Some(BASE + 123_457));
        assert_eq!(parse_timestamp("2013-01-01T05:00:00+09:00", false), Some(BASE));
        assert_eq!(parse_timestamp("2013-01-02", true), Some(BASE + 19 * 3600 * MICROS_PER_SECOND));
        assert_eq!(parse_timestamp("1969-12-31 23:59:59.999999", false), Some(-1));
    }

    #[test]
    fn what_is_no_time() {
        for text in ["", "2013-02-29", "2013-13-01", "2013-01-01T", "2013-01-01T25:00", "2013-01-01T05:00Zx", "now"] {
            assert_eq!(parse_timestamp(text, true), None, "{text}");
        }
        assert_eq!(parse_time("24:00:01"), None);
        assert_eq!(parse_date("2013-01-01 05:00"), None);
    }

    #[test]
    fn dates_and_times() {
        assert_eq!(parse_date("1970-01-01"), Some(0));
        assert_eq!(parse_date("2000-02-29"), Some(11_016));
        assert_eq!(parse_date("0001-01-01"), Some(-719_162));
        assert_eq!(parse_time("04:05:06.789"), Some(14_706_789_000));
    }
}
