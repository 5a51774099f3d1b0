//! Durations as flags have them.

use std::time::Duration;

/// How often; `None` is never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval(pub(super) Option<Duration>);

/// Reads a duration such as `10s`, `500ms`, `2m` or `1h`, or `off`.
pub(super) fn parse(text: &str) -> Result<Interval, String> {
    if text == "off" {
        return Ok(Interval(None));
    }
    let invalid = || format!("'{text}' is no duration: use for example 10s, 500ms, 2m or 1h, or off");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| invalid())?;
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(invalid()),
    };
    match number.checked_mul(millis) {
        Some(0) | None => Err(invalid()),
        Some(millis) => Ok(Interval(Some(Duration::from_millis(millis)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_strictly() {
        assert_eq!(parse("10s"), Ok(Interval(Some(Duration::from_secs(10)))));
        assert_eq!(parse("250ms"), Ok(Interval(Some(Duration::from_millis(250)))));
        assert_eq!(parse("2m"), Ok(Interval(Some(Duration::from_secs(120)))));
        assert_eq!(parse("off"), Ok(Interval(None)));
        for text in ["", "10", "s", "0s", "-1s", "1.5s", "10 s", "99999999999999999999h", "18446744073709551615h"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
