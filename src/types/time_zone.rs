//! The time zone of a session.

use std::fmt;
use std::str::FromStr as _;
use std::sync::Arc;

use arrow::array::timezone::Tz;
use chrono::{DateTime, MappedLocalTime, Offset as _, TimeZone as _};

/// A time zone by name, such as `Europe/Berlin`, or an offset from UTC.
#[derive(Clone)]
pub struct TimeZone {
    name: Arc<str>,
    /// `None` is UTC.
    zone: Option<Tz>,
}

impl TimeZone {
    /// UTC.
    pub fn utc() -> TimeZone {
        TimeZone { name: Arc::from("UTC"), zone: None }
    }

    /// A zone as `SET TIME ZONE` takes it: a name in any case, hours east of Greenwich, or POSIX's
    /// `GMT-3`, which is three hours east.
    pub fn parse(text: &str) -> Option<TimeZone> {
        let text = text.trim();
        let lower = text.to_ascii_lowercase();
        if matches!(lower.as_str(), "utc" | "etc/utc" | "gmt" | "etc/gmt" | "z" | "zulu" | "uct" | "etc/uct") {
            return Some(TimeZone::utc());
        }
        let posix = ["gmt", "utc"].iter().find_map(|prefix| lower.strip_prefix(prefix));
        if let Some(offset) = posix.and_then(hours) {
            return TimeZone::of_offset(-offset);
        }
        if let Some(offset) = hours(&lower) {
            return TimeZone::of_offset(offset);
        }
        let named = |name: &str| {
            // Offsets were read before; what is left has to be a name.
            let zone = name.contains(|c: char| c.is_ascii_alphabetic()).then(|| Tz::from_str(name).ok()).flatten()?;
            Some(TimeZone { name: Arc::from(name), zone: Some(zone) })
        };
        named(text).or_else(|| named(&capitalised(&lower))).or_else(|| named(&lower.to_ascii_uppercase()))
    }

    fn of_offset(seconds: i32) -> Option<TimeZone> {
        if seconds == 0 {
            return Some(TimeZone::utc());
        }
        let mut offset = String::new();
        write_offset(&mut offset, seconds, true);
        let zone = Tz::from_str(&offset).ok()?;
        Some(TimeZone { name: Arc::from(offset), zone: Some(zone) })
    }

    /// The name as it is shown.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True for UTC.
    pub fn is_utc(&self) -> bool {
        self.zone.is_none()
    }

    /// Seconds east of Greenwich at a time: microseconds since 1970.
    pub fn offset_seconds(&self, micros: i64) -> i32 {
        let (Some(zone), Some(moment)) = (&self.zone, DateTime::from_timestamp_micros(micros)) else { return 0 };
        zone.offset_from_utc_datetime(&moment.naive_utc()).fix().local_minus_utc()
    }

    /// What a clock in the zone shows at a time, as microseconds since its 1970.
    pub fn local(&self, micros: i64) -> i64 {
        micros.saturating_add(i64::from(self.offset_seconds(micros)) * 1_000_000)
    }

    /// The time at which a clock in the zone shows `local`. As in PostgreSQL, a time that is skipped
    /// counts from before the change, and one that comes twice is the second one.
    pub fn utc_of_local(&self, local: i64) -> i64 {
        const DAY_MICROS: i64 = 86_400_000_000;
        let (Some(zone), Some(moment)) = (&self.zone, DateTime::from_timestamp_micros(local)) else { return local };
        let offset = match zone.offset_from_local_datetime(&moment.naive_utc()) {
            MappedLocalTime::Single(offset) | MappedLocalTime::Ambiguous(_, offset) => offset.fix().local_minus_utc(),
            MappedLocalTime::None => self.offset_seconds(local.saturating_sub(DAY_MICROS)),
        };
        local.saturating_sub(i64::from(offset) * 1_000_000)
    }

    /// The zone behind a printed time, such as `+02` or `-03:30`.
    pub fn write_offset_at(&self, micros: i64, out: &mut String) {
        write_offset(out, self.offset_seconds(micros), false);
    }
}

impl PartialEq for TimeZone {
    fn eq(&self, other: &TimeZone) -> bool {
        self.name == other.name
    }
}

impl Eq for TimeZone {}

impl fmt::Debug for TimeZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// `5`, `+5`, `-3:30`, `05.5` as seconds.
fn hours(text: &str) -> Option<i32> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let (hours, minutes) = match digits.split_once(':') {
        Some((hours, minutes)) => (hours, minutes.parse::<i32>().ok().filter(|minutes| (0..60).contains(minutes))?),
        None => match digits.split_once('.') {
            Some((hours, fraction)) => {
                let fraction: f64 = format!("0.{fraction}").parse().ok()?;
                (hours, (fraction * 60.0).round() as i32)
            }
            None => (digits, 0),
        },
    };
    if hours.is_empty() || !hours.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let hours: i32 = hours.parse().ok().filter(|hours| (0..=15).contains(hours))?;
    Some(sign * (hours * 3600 + minutes * 60))
}

fn write_offset(out: &mut String, seconds: i32, long: bool) {
    use fmt::Write as _;
    let magnitude = seconds.unsigned_abs();
    // Writing to a string cannot fail.
    let _ = write!(out, "{}{:02}", if seconds < 0 { '-' } else { '+' }, magnitude / 3600);
    if long || !magnitude.is_multiple_of(3600) {
        let _ = write!(out, ":{:02}", magnitude / 60 % 60);
    }
    if !magnitude.is_multiple_of(60) {
        let _ = write!(out, ":{:02}", magnitude % 60);
    }
}

/// `america/new_york` as `America/New_York`.
fn capitalised(lower: &str) -> String {
    let mut out = String::with_capacity(lower.len());
    let mut start = true;
    for character in lower.chars() {
        if start {
            out.extend(character.to_uppercase())
        } else {
            out.push(character)
        }
        start = matches!(character, '/' | '_' | '-');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_offsets() {
        let shown = |text: &str| TimeZone::parse(text).map(|zone| zone.name().to_owned());
        assert_eq!(shown("europe/berlin").as_deref(), Some("Europe/Berlin"));
        assert_eq!(shown("America/new_york").as_deref(), Some("America/New_York"));
        assert_eq!(shown("Etc/UTC").as_deref(), Some("UTC"));
        assert_eq!(shown("-3:30").as_deref(), Some("-03:30"));
        assert_eq!(shown("GMT-3").as_deref(), Some("+03:00"));
        assert_eq!(shown("5.5").as_deref(), Some("+05:30"));
        for wrong in ["Nowhere/City", "99", "", "+", "Europe"] {
            assert_eq!(shown(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_hour_that_is_skipped_and_the_one_that_comes_twice() {
        // PostgreSQL 16, Europe/Berlin: 2023-03-26 02:30 is 01:30 UTC; 2023-10-29 02:30 is 01:30 UTC.
        let zone = TimeZone::parse("Europe/Berlin").expect("a zone");
        let (spring, autumn) = (1_679_797_800_000_000, 1_698_546_600_000_000);
        assert_eq!(zone.utc_of_local(spring), spring - 3_600_000_000);
        assert_eq!(zone.utc_of_local(autumn), autumn - 3_600_000_000);
        assert_eq!(zone.local(zone.utc_of_local(0)), 0);
        let mut offset = String::new();
        TimeZone::parse("-3:30").expect("a zone").write_offset_at(0, &mut offset);
        assert_eq!(offset, "-03:30");
    }
}
