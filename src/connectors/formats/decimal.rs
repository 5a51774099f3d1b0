//! Decimal text to scaled integers, digit by digit: no detour over floating point.

/// What a decimal text comes to at some scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scaled {
    /// The value times 10^scale, rounded half away from zero; `exact` when nothing was cut off.
    Value {
        /// The scaled integer.
        unscaled: i128,
        /// True when no digit was lost.
        exact: bool,
    },
    /// More digits than 38.
    Overflow,
    /// Not a decimal number.
    Invalid,
}

/// Reads `[+-]digits[.digits][e[+-]digits]` at a scale.
pub(crate) fn parse(text: &str, scale: i32) -> Scaled {
    let bytes = text.as_bytes();
    let (negative, bytes) = match bytes {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let (mantissa, exponent) = match bytes.iter().position(|b| matches!(b, b'e' | b'E')) {
        Some(at) => match parse_exponent(&bytes[at + 1..]) {
            Some(exponent) => (&bytes[..at], exponent),
            None => return Scaled::Invalid,
        },
        None => (bytes, 0),
    };
    let (whole, fraction) = match mantissa.iter().position(|b| *b == b'.') {
        Some(at) => (&mantissa[..at], &mantissa[at + 1..]),
        None => (mantissa, &mantissa[..0]),
    };
    if whole.len() + fraction.len() == 0 || !whole.iter().chain(fraction).all(u8::is_ascii_digit) {
        return Scaled::Invalid;
    }
    // The first `kept` digits make the integer at this scale; the one after them rounds.
    let kept = i64::try_from(whole.len()).unwrap_or(i64::MAX).saturating_add(exponent).saturating_add(i64::from(scale));
    let mut unscaled: i128 = 0;
    let mut exact = true;
    let mut round_up = false;
    let mut index: i64 = 0;
    for digit in whole.iter().chain(fraction).map(|b| b - b'0') {
        if index < kept {
            unscaled = match unscaled.checked_mul(10).and_then(|v| v.checked_add(i128::from(digit))) {
                Some(value) => value,
                None => return Scaled::Overflow,
            };
        } else {
            if index == kept && digit >= 5 {
                round_up = true;
            }
            exact &= digit == 0;
        }
        index += 1;
    }
    if unscaled != 0 {
        while index < kept {
            unscaled = match unscaled.checked_mul(10) {
                Some(value) => value,
                None => return Scaled::Overflow,
            };
            index += 1;
        }
    }
    // Below 10^38 after the check of the caller's precision, so adding one cannot overflow.
    let unscaled = unscaled.saturating_add(i128::from(round_up));
    Scaled::Value { unscaled: if negative { -unscaled } else { unscaled }, exact }
}

fn parse_exponent(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // Beyond a million the value is zero or too big, whatever the exponent.
    let value = digits.iter().fold(0i64, |value, b| (value * 10 + i64::from(b - b'0')).min(1_000_000));
    Some(if negative { -value } else { value })
}

/// The least magnitude that does not fit `precision` digits.
pub(crate) fn limit(precision: u8) -> i128 {
    // 10^38 is below the greatest i128.
    10i128.pow(u32::from(precision.min(38)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(unscaled: i128) -> Scaled {
        Scaled::Value { unscaled, exact: true }
    }

    #[test]
    fn reads_every_spelling() {
        assert_eq!(parse("12.345", 3), exact(12345));
        assert_eq!(parse("-0.5", 2), exact(-50));
        assert_eq!(parse("1e3", 0), exact(1000));
        assert_eq!(parse("1.0", 0), exact(1));
        assert_eq!(parse("1.5E-2", 4), exact(150));
        assert_eq!(parse("0e999999999999", 2), exact(0));
        assert_eq!(parse(".5", 1), exact(5));
        assert_eq!(parse("5.", 1), exact(50));
        assert_eq!(
            parse("12345678901234567890123456.0123456789", 10),
            exact(123_456_789_012_345_678_901_234_560_123_456_789)
        );
    }

    #[test]
    fn rounds_half_away_from_zero() {
        assert_eq!(parse("2.345", 2), Scaled::Value { unscaled: 235, exact: false });
        assert_eq!(parse("-2.345", 2), Scaled::Value { unscaled: -235, exact: false });
        assert_eq!(parse("0.004", 2), Scaled::Value { unscaled: 0, exact: false });
        assert_eq!(parse("0.5", 0), Scaled::Value { unscaled: 1, exact: false });
        assert_eq!(parse("0.05", 0), Scaled::Value { unscaled: 0, exact: false });
    }

    #[test]
    fn refuses_what_is_no_number() {
        for text in ["", "-", ".", "1e", "1e+", "abc", "1.2.3", "0x10", "1_000"] {
            assert_eq!(parse(text, 0), Scaled::Invalid, "{text}");
        }
        assert_eq!(parse("1e40", 0), Scaled::Overflow);
    }
}
