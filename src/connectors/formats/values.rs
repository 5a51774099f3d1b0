//! Text to values, by PostgreSQL's input rules; shared by all formats.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::decimal::{self, Scaled};
use crate::types::SqlState;

/// Why a text is no value of a column's type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueError {
    /// The SQLSTATE.
    pub(crate) code: SqlState,
    /// The reason, in PostgreSQL's words.
    pub(crate) reason: String,
}

impl ValueError {
    /// The text is not of the type.
    pub(crate) fn syntax(type_name: &str, text: &str) -> ValueError {
        ValueError {
            code: SqlState::InvalidText,
            reason: format!("invalid input syntax for type {type_name}: \"{}\"", excerpt(text)),
        }
    }

    /// The number does not fit the type.
    pub(crate) fn range(type_name: &str, text: &str) -> ValueError {
        ValueError {
            code: SqlState::NumericOutOfRange,
            reason: format!("value \"{}\" is out of range for type {type_name}", excerpt(text)),
        }
    }

    /// Another fault.
    pub(crate) fn new(code: SqlState, reason: impl Into<String>) -> ValueError {
        ValueError { code, reason: reason.into() }
    }
}

/// The beginning of a text that may be as long as a row.
pub(crate) fn excerpt(text: &str) -> String {
    const CHARACTERS_MAX: usize = 60;
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// How to read a number where a timestamp is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimestampUnit {
    /// Seconds since 1970, also with a fraction.
    Seconds,
    /// Milliseconds.
    Millis,
    /// Microseconds.
    Micros,
    /// Nanoseconds; what is below a microsecond is cut off.
    Nanos,
}

impl TimestampUnit {
    /// Microseconds since 1970 of a number in this unit.
    pub(crate) fn micros(self, number: &str) -> Option<i64> {
        let scale = match self {
            TimestampUnit::Seconds => 6,
            TimestampUnit::Millis => 3,
            TimestampUnit::Micros | TimestampUnit::Nanos => 0,
        };
        let Scaled::Value { unscaled, .. } = decimal::parse(number, scale) else {
            return None;
        };
        let micros = if self == TimestampUnit::Nanos { unscaled.div_euclid(1000) } else { unscaled };
        i64::try_from(micros).ok()
    }
}

/// An integer in PostgreSQL's text form: digits with a sign, nothing else.
pub(crate) fn integer(text: &str, type_name: &str) -> Result<i64, ValueError> {
    let trimmed = text.trim();
    match trimmed.parse::<i64>() {
        Ok(value) => Ok(value),
        Err(_) => {
            let digits = trimmed.strip_prefix(['-', '+']).unwrap_or(trimmed);
            if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
                Err(ValueError::range(type_name, text))
            } else {
                Err(ValueError::syntax(type_name, text))
            }
        }
    }
}

/// An integer as JSON writes numbers: any number whose value is integral.
pub(crate) fn integral_number(number: &str, type_name: &str) -> Result<i64, ValueError> {
    if let Ok(value) = number.parse::<i64>() {
        return Ok(value);
    }
    match decimal::parse(number, 0) {
        Scaled::Value { unscaled, exact: true } => {
            i64::try_from(unscaled).map_err(|_| ValueError::range(type_name, number))
        }
        Scaled::Overflow => Err(ValueError::range(type_name, number)),
        Scaled::Value { exact: false, .. } | Scaled::Invalid => Err(ValueError::syntax(type_name, number)),
    }
}

/// A double. A zero has no sign: what is equal has to be one group and one key.
pub(crate) fn double(text: &str) -> Result<f64, ValueError> {
    const NAME: &str = "double precision";
    let trimmed = text.trim();
    let value: f64 = trimmed.parse().map_err(|_| ValueError::syntax(NAME, text))?;
    if lost(trimmed, value.is_infinite(), value == 0.0) { Err(ValueError::range(NAME, text)) } else { Ok(value + 0.0) }
}

/// A real; a zero has no sign.
pub(crate) fn real(text: &str) -> Result<f32, ValueError> {
    let trimmed = text.trim();
    let value: f32 = trimmed.parse().map_err(|_| ValueError::syntax("real", text))?;
    if lost(trimmed, value.is_infinite(), value == 0.0) {
        Err(ValueError::range("real", text))
    } else {
        Ok(value + 0.0)
    }
}

/// True when a number became infinite or zero that was written as neither.
fn lost(text: &str, infinite: bool, zero: bool) -> bool {
    let mantissa = || text.bytes().take_while(|b| !matches!(b, b'e' | b'E'));
    (infinite && text.bytes().any(|b| b.is_ascii_digit())) || (zero && mantissa().any(|b| (b'1'..=b'9').contains(&b)))
}

/// A numeric as a scaled integer; digits beyond the scale are rounded.
pub(crate) fn numeric(text: &str, precision: u8, scale: i8) -> Result<i128, ValueError> {
    let trimmed = text.trim();
    let overflow = || {
        ValueError::new(
            SqlState::NumericOutOfRange,
            format!(
                "numeric field overflow: \"{}\" has more than {} digits before the decimal point",
                excerpt(text),
                i32::from(precision) - i32::from(scale)
            ),
        )
    };
    match decimal::parse(trimmed, i32::from(scale)) {
        Scaled::Value { unscaled, .. } if unscaled.abs() < decimal::limit(precision) => Ok(unscaled),
        Scaled::Value { .. } | Scaled::Overflow => Err(overflow()),
        Scaled::Invalid => match trimmed.to_ascii_lowercase().as_str() {
            "nan" | "infinity" | "-infinity" | "inf" | "-inf" => {
                Err(ValueError::new(SqlState::NumericOutOfRange, format!("numeric cannot hold \"{trimmed}\" here")))
            }
            _ => Err(ValueError::syntax("numeric", text)),
        },
    }
}

/// A boolean: PostgreSQL's words and their beginnings.
pub(crate) fn boolean(text: &str) -> Result<bool, ValueError> {
    let word = text.trim().to_ascii_lowercase();
    let begins = |whole: &str, least: usize| word.len() >= least && whole.starts_with(word.as_str());
    if word == "1" || begins("true", 1) || begins("yes", 1) || word == "on" {
        Ok(true)
    } else if word == "0" || begins("false", 1) || begins("no", 1) || begins("off", 2) {
        Ok(false)
    } else {
        Err(ValueError::syntax("boolean", text))
    }
}

/// A uuid: 32 hex digits, with or without hyphens after each four, with or without braces.
pub(crate) fn uuid(text: &str) -> Result<[u8; 16], ValueError> {
    let error = || ValueError::syntax("uuid", text);
    let trimmed = text.trim();
    let inner = match trimmed.strip_prefix('{') {
        Some(rest) => rest.strip_suffix('}').ok_or_else(error)?,
        None => trimmed,
    };
    let mut value = [0u8; 16];
    let mut digits = 0usize;
    let mut after_hyphen = true;
    for byte in inner.bytes() {
        if byte == b'-' {
            if after_hyphen || !digits.is_multiple_of(4) {
                return Err(error());
            }
            after_hyphen = true;
            continue;
        }
        after_hyphen = false;
        let digit = hex_digit(byte).ok_or_else(error)?;
        let slot = value.get_mut(digits / 2).ok_or_else(error)?;
        *slot = *slot << 4 | digit;
        digits += 1;
    }
    if digits == 32 && !after_hyphen { Ok(value) } else { Err(error()) }
}

/// Bytes: `\x` and hex digits, or base64.
pub(crate) fn bytes(text: &str, out: &mut Vec<u8>) -> Result<(), ValueError> {
    out.clear();
    let error = || ValueError::syntax("bytea", text);
    if let Some(hex) = text.strip_prefix("\\x") {
        let mut digits = hex.bytes().filter(|b| !b.is_ascii_whitespace());
        while let Some(high) = digits.next() {
            let low = digits.next().ok_or_else(error)?;
            match (hex_digit(high), hex_digit(low)) {
                (Some(high), Some(low)) => out.push(high << 4 | low),
                _ => return Err(error()),
            }
        }
        Ok(())
    } else {
        BASE64.decode_vec(text.trim(), out).map_err(|_| error())
    }
}

fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers() {
        assert_eq!(integer(" +42 ", "integer"), Ok(42));
        assert_eq!(integer("1.0", "integer").expect_err("no fraction").code, SqlState::InvalidText);
        assert_eq!(integer("NA", "integer").expect_err("no number").code, SqlState::InvalidText);
        assert_eq!(integer("9223372036854775808", "bigint").expect_err("big").code, SqlState::NumericOutOfRange);
        assert_eq!(integral_number("1.0", "integer"), Ok(1));
        assert_eq!(integral_number("1e3", "integer"), Ok(1000));
        assert_eq!(integral_number("9007199254740993", "bigint"), Ok(9_007_199_254_740_993));
        assert_eq!(integral_number("1.5", "integer").expect_err("half").code, SqlState::InvalidText);
    }

    #[test]
    fn floats() {
        assert_eq!(double("1e308"), Ok(1e308));
        assert_eq!(double("1e400").expect_err("big").code, SqlState::NumericOutOfRange);
        assert_eq!(double("1e-400").expect_err("small").code, SqlState::NumericOutOfRange);
        assert_eq!(double("0e5"), Ok(0.0));
        assert_eq!(double("-Infinity"), Ok(f64::NEG_INFINITY));
        assert!(double("nan").expect("not a number").is_nan());
        assert_eq!(real("0.1"), Ok(0.1f32));
    }

    #[test]
    fn numerics_keep_every_digit() {
        assert_eq!(numeric("123456789012345678.12", 20, 2), Ok(12_345_678_901_234_567_812));
        assert_eq!(numeric("99.999", 4, 2).expect_err("rounds to 100.00").code, SqlState::NumericOutOfRange);
        assert_eq!(numeric("99.994", 4, 2), Ok(9999));
    }

    #[test]
    fn booleans_uuids_bytes() {
        assert_eq!(boolean("T"), Ok(true));
        assert_eq!(boolean("of"), Ok(false));
        assert!(boolean("o").is_err());
        assert!(boolean("").is_err());
        let expected = [0xa0, 0xee, 0xbc, 0x99, 0x9c, 0x0b, 0x4e, 0xf8, 0xbb, 0x6d, 0x6b, 0xb9, 0xbd, 0x38, 0x0a, 0x11];
        assert_eq!(uuid("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"), Ok(expected));
        assert_eq!(uuid("{A0EEBC999C0B4EF8BB6D6BB9BD380A11}"), Ok(expected));
        assert!(uuid("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1").is_err());
        let mut out = Vec::new();
        bytes("\\xDEAD", &mut out).expect("hex");
        assert_eq!(out, [0xde, 0xad]);
        bytes("aGk=", &mut out).expect("base64");
        assert_eq!(out, b"hi");
    }

    #[test]
    fn epochs_by_unit() {
        assert_eq!(TimestampUnit::Seconds.micros("1.5"), Some(1_500_000));
        assert_eq!(TimestampUnit::Millis.micros("1357016400000"), Some(1_357_016_400_000_000));
        assert_eq!(TimestampUnit::Nanos.micros("-1"), Some(-1));
    }
}
