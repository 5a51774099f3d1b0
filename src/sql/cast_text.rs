//! Values as PostgreSQL writes and reads them as text.

use arrow::datatypes::{DataType, IntervalMonthDayNano, i256};
use chrono::{DateTime, Datelike, Timelike};

use super::arithmetic::divide_rounded;
use super::types::{NUMERIC_DEFAULT, sql_name};
use crate::types::{Error, SqlState};

/// A double in the fewest digits that give it back.
pub(crate) fn double_to_text(value: f64) -> String {
    float_text(value.is_nan(), value.is_infinite(), value < 0.0, &format!("{value:e}"), 15)
}

/// A real in the fewest digits that give it back.
pub(crate) fn real_to_text(value: f32) -> String {
    float_text(value.is_nan(), value.is_infinite(), value < 0.0, &format!("{value:e}"), 6)
}

/// `scientific` is the number as `d.ddde±x`; an exponent below -4 or from `digits` on is kept.
fn float_text(nan: bool, infinite: bool, negative: bool, scientific: &str, digits: i32) -> String {
    if nan {
        return "NaN".into();
    }
    if infinite {
        return if negative { "-Infinity".into() } else { "Infinity".into() };
    }
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific.to_owned();
    };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if exponent < -4 || exponent >= digits {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let all: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    if exponent < 0 {
        let zeros = "0".repeat(usize::try_from(-exponent - 1).unwrap_or_default());
        return format!("{sign}0.{zeros}{all}");
    }
    let whole = usize::try_from(exponent).unwrap_or_default() + 1;
    if all.len() <= whole {
        return format!("{sign}{all}{}", "0".repeat(whole - all.len()));
    }
    let (before, after) = all.split_at(whole);
    format!("{sign}{before}.{after}")
}

/// A numeric with all digits of its scale; bare `numeric` without trailing zeros.
pub(crate) fn numeric_to_text(value: i128, data_type: &DataType) -> String {
    let (precision, scale) = match data_type {
        DataType::Decimal128(precision, scale) => (*precision, *scale),
        _ => (38, 0),
    };
    let digits = usize::from(scale.unsigned_abs());
    let all = format!("{:0>width$}", value.unsigned_abs(), width = digits + 1);
    let (whole, fraction) = all.split_at(all.len() - digits);
    let fraction = if (precision, scale) == NUMERIC_DEFAULT { fraction.trim_end_matches('0') } else { fraction };
    let sign = if value < 0 { "-" } else { "" };
    if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
}

/// Reads a numeric, rounded to the scale with halves away from zero.
///
/// # Errors
/// 22P02 for what is no number, 22003 for one that does not fit.
pub(crate) fn numeric_from_text(text: &str, precision: u8, scale: i8) -> Result<i128, Error> {
    let data_type = DataType::Decimal128(precision, scale);
    let invalid = || {
        Error::new(
            SqlState::InvalidText,
            format!("invalid input syntax for type {}: \"{text}\"", base_name(&data_type)),
        )
    };
    let overflow = || {
        Error::new(SqlState::NumericOutOfRange, "numeric field overflow").detail(format!(
            "A field with precision {precision}, scale {scale} must round to an absolute value less than 10^{}.",
            i16::from(precision) - i16::from(scale)
        ))
    };
    let trimmed = text.trim();
    let (negative, unsigned) = match trimmed.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, trimmed.strip_prefix('+').unwrap_or(trimmed)),
    };
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().map_err(|_| invalid())?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = || whole.bytes().chain(fraction.bytes());
    if digits().next().is_none() || !digits().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid());
    }
    let places = i64::try_from(fraction.len()).map_err(|_| overflow())?;
    // The number is digits * 10^(exponent - places); what is wanted is that times 10^scale.
    let shift = i64::from(exponent) - places + i64::from(scale);
    let mut value = i256::ZERO;
    let ten = i256::from_i128(10);
    // Digits far behind the last one kept cannot matter but for the first of them, by rounding.
    let total = i64::try_from(whole.len()).map_err(|_| overflow())? + places;
    let kept = if shift < 0 { (total + shift + 1).max(0) } else { total };
    let mut dropped = 0;
    for (at, digit) in digits().enumerate() {
        if i64::try_from(at).unwrap_or(i64::MAX) < kept {
            let digit = i256::from_i128(i128::from(digit - b'0'));
            value = value.checked_mul(ten).and_then(|value| value.checked_add(digit)).ok_or_else(overflow)?;
        } else {
            dropped += 1;
        }
    }
    let rest = shift + dropped;
    let value = if rest >= 0 {
        if value == i256::ZERO {
            value
        } else {
            let factor = u32::try_from(rest).ok().filter(|rest| *rest <= 76).and_then(|rest| ten.checked_pow(rest));
            factor.and_then(|factor| value.checked_mul(factor)).ok_or_else(overflow)?
        }
    } else {
        match u32::try_from(-rest).ok().filter(|rest| *rest <= 76).and_then(|rest| ten.checked_pow(rest)) {
            Some(divisor) => divide_rounded(value, divisor).ok_or_else(overflow)?,
            None => i256::ZERO,
        }
    };
    let value = value
        .to_i128()
        .filter(|value| value.unsigned_abs() < 10_u128.pow(u32::from(precision)))
        .ok_or_else(overflow)?;
    Ok(if negative { -value } else { value })
}

fn base_name(data_type: &DataType) -> String {
    sql_name(data_type).split('(').next().unwrap_or_default().to_owned()
}

/// A timestamp as PostgreSQL prints it with DateStyle ISO, in UTC.
///
/// # Errors
/// 22008 when it is beyond the calendar's range.
pub(crate) fn timestamp_to_text(micros: i64, zoned: bool) -> Result<String, Error> {
    let Some(moment) = DateTime::from_timestamp_micros(micros) else {
        return Err(Error::new(SqlState::DatetimeOverflow, "timestamp out of range"));
    };
    let zone = if zoned { "+00" } else { "" };
    let (year, era) = if moment.year() > 0 { (moment.year(), "") } else { (1 - moment.year(), " BC") };
    let time = time_parts(moment.hour(), moment.minute(), moment.second(), moment.nanosecond() / 1000);
    Ok(format!("{year:04}-{:02}-{:02} {time}{zone}{era}", moment.month(), moment.day()))
}

/// A time of day.
pub(crate) fn time_to_text(micros: i64) -> String {
    let part = |divisor: i64, modulus: i64| u32::try_from(micros / divisor % modulus).unwrap_or_default();
    time_parts(part(3_600_000_000, 25), part(60_000_000, 60), part(1_000_000, 60), part(1, 1_000_000))
}

fn time_parts(hour: u32, minute: u32, second: u32, micros: u32) -> String {
    let whole = format!("{hour:02}:{minute:02}:{second:02}");
    if micros == 0 {
        return whole;
    }
    let fraction = format!("{micros:06}");
    format!("{whole}.{}", fraction.trim_end_matches('0'))
}

/// An interval in PostgreSQL's own style, such as `1 mon 2 days 03:00:00`.
pub(crate) fn interval_to_text(value: IntervalMonthDayNano) -> String {
    let mut parts = Vec::new();
    let mut unit = |number: i32, singular: &str, plural: &str| {
        if number != 0 {
            parts.push(format!("{number} {}", if number == 1 { singular } else { plural }));
        }
    };
    unit(value.months / 12, "year", "years");
    unit(value.months % 12, "mon", "mons");
    unit(value.days, "day", "days");
    let micros = value.nanoseconds / 1000;
    if micros != 0 || parts.is_empty() {
        let size = micros.unsigned_abs();
        let sign = if micros < 0 { "-" } else { "" };
        let (hours, rest) = (size / 3_600_000_000, size % 3_600_000_000);
        let mut text = format!("{sign}{hours:02}:{:02}:{:02}", rest / 60_000_000, rest / 1_000_000 % 60);
        let fraction = rest % 1_000_000;
        if fraction != 0 {
            text.push('.');
            text.push_str(format!("{fraction:06}").trim_end_matches('0'));
        }
        parts.push(text);
    }
    parts.join(" ")
}

/// Reads an interval in the form that [`interval_to_text`] writes: numbers with units, and a time of
/// day. `None` for other forms.
pub(crate) fn interval_from_text(text: &str) -> Option<IntervalMonthDayNano> {
    let (mut months, mut days, mut nanos) = (0_i32, 0_i32, 0_i64);
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        if word.contains(':') {
            nanos = nanos.checked_add(time_of_interval(word)?)?;
            continue;
        }
        let number: i32 = word.parse().ok()?;
        match words.next()?.to_lowercase().as_str() {
            "year" | "years" => months = months.checked_add(number.checked_mul(12)?)?,
            "mon" | "mons" | "month" | "months" => months = months.checked_add(number)?,
            "day" | "days" => days = days.checked_add(number)?,
            _ => return None,
        }
    }
    Some(IntervalMonthDayNano::new(months, days, nanos))
}

/// `[-]hours:minutes[:seconds[.fraction]]` in nanoseconds.
fn time_of_interval(word: &str) -> Option<i64> {
    let (sign, size) = match word.strip_prefix('-') {
        Some(size) => (-1, size),
        None => (1, word.strip_prefix('+').unwrap_or(word)),
    };
    let whole = |digits: &str| -> Option<i64> {
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
    };
    let mut parts = size.split(':');
    let (hours, minutes) = (whole(parts.next()?)?, whole(parts.next()?)?);
    let (seconds, fraction) = match parts.next() {
        Some(seconds) => seconds.split_once('.').unwrap_or((seconds, "0")),
        None => ("0", "0"),
    };
    let seconds = whole(seconds)?;
    if parts.next().is_some() || minutes > 59 || seconds > 59 || fraction.len() > 6 {
        return None;
    }
    let micros = whole(&format!("{fraction:0<6}"))?;
    let total = hours.checked_mul(3600)?.checked_add(minutes * 60 + seconds)?;
    total.checked_mul(1_000_000)?.checked_add(micros)?.checked_mul(1000)?.checked_mul(sign)
}

/// An array's elements between braces, quoted where they would be read otherwise; `nested` ones are
/// arrays themselves.
pub(crate) fn array_to_text<'a>(elements: impl Iterator<Item = Option<&'a str>>, nested: bool) -> String {
    let mut text = String::from("{");
    for (at, element) in elements.enumerate() {
        if at > 0 {
            text.push(',');
        }
        let special = |character: char| matches!(character, '{' | '}' | ',' | '"' | '\\') || character.is_whitespace();
        match element {
            None => text.push_str("NULL"),
            Some(element)
                if nested
                    || !element.is_empty() && !element.eq_ignore_ascii_case("null") && !element.contains(special) =>
            {
                text.push_str(element);
            }
            Some(element) => {
                text.push('"');
                for character in element.chars() {
                    if matches!(character, '"' | '\\') {
                        text.push('\\');
                    }
                    text.push(character);
                }
                text.push('"');
            }
        }
    }
    text.push('}');
    text
}

/// Reads the elements of an array; those of a `nested` one are arrays as text.
pub(crate) fn array_from_text(text: &str, nested: bool) -> Option<Vec<Option<String>>> {
    let inside = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let mut elements = Vec::new();
    let mut characters = inside.chars().peekable();
    let space = |characters: &mut std::iter::Peekable<std::str::Chars<'_>>| {
        while characters.next_if(|character| character.is_whitespace()).is_some() {}
    };
    space(&mut characters);
    if characters.peek().is_none() {
        return Some(elements);
    }
    loop {
        space(&mut characters);
        let mut element = String::new();
        match characters.peek()? {
            '{' if nested => {
                let (mut depth, mut quoted) = (0_usize, false);
                loop {
                    let character = characters.next()?;
                    element.push(character);
                    match character {
                        '\\' => element.push(characters.next()?),
                        '"' => quoted = !quoted,
                        '{' if !quoted => depth += 1,
                        '}' if !quoted => depth -= 1,
                        _ => {}
                    }
                    if depth == 0 {
                        break;
                    }
                }
                elements.push(Some(element));
            }
            '"' if !nested => {
                let _ = characters.next();
                loop {
                    match characters.next()? {
                        '"' => break,
                        '\\' => element.push(characters.next()?),
                        character => element.push(character),
                    }
                }
                elements.push(Some(element));
            }
            _ => {
                let mut escaped = false;
                let mut kept = 0;
                while let Some(character) = characters.next_if(|character| *character != ',') {
                    match character {
                        '{' | '}' | '"' => return None,
                        '\\' => {
                            escaped = true;
                            element.push(characters.next()?);
                            kept = element.len();
                        }
                        character => {
                            element.push(character);
                            if !character.is_whitespace() {
                                kept = element.len();
                            }
                        }
                    }
                }
                element.truncate(kept);
                let null = !escaped && element.eq_ignore_ascii_case("null");
                if element.is_empty() || nested && !null {
                    return None;
                }
                elements.push((!null).then_some(element));
            }
        }
        space(&mut characters);
        match characters.next() {
            None => return Some(elements),
            Some(',') => {}
            Some(_) => return None,
        }
    }
}

/// `\x` and hexadecimal digits.
pub(crate) fn bytes_to_text(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 + bytes.len() * 2);
    text.push_str("\\x");
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Reads `\x…`, or text with `\\` and `\ooo` in it.
pub(crate) fn bytes_from_text(text: &str) -> Option<Vec<u8>> {
    if let Some(digits) = text.strip_prefix("\\x") {
        return hexadecimal(digits);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'\\' {
            bytes.push(*first);
        } else if let Some(after) = rest.strip_prefix(b"\\") {
            bytes.push(b'\\');
            rest = after;
        } else {
            let (octal, after) = rest.split_at_checked(3)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(octal).ok()?, 8).ok()?);
            rest = after;
        }
    }
    Some(bytes)
}

fn hexadecimal(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits
        .chunks(2)
        .map(|pair| {
            let pair =
                std::str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
            u8::from_str_radix(pair, 16).ok()
        })
        .collect()
}

/// The usual form of a uuid.
pub(crate) fn uuid_to_text(bytes: &[u8]) -> String {
    let text = bytes_to_text(bytes);
    let mut out = String::with_capacity(36);
    for (at, digit) in text.chars().skip(2).enumerate() {
        if matches!(at, 8 | 12 | 16 | 20) {
            out.push('-');
        }
        out.push(digit);
    }
    out
}

/// Reads a uuid with or without hyphens and braces.
pub(crate) fn uuid_from_text(text: &str) -> Option<[u8; 16]> {
    let text = text.trim();
    let text = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
    let digits: String = text.chars().filter(|character| *character != '-').collect();
    hexadecimal(&digits)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_printed_as_postgresql_prints_them() {
        for (value, text) in [
            (0.1, "0.1"),
            (1.0, "1"),
            (-0.0, "-0"),
            (1e15, "1e+15"),
            (123_456_789_012_345.0, "123456789012345"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1.5e300, "1.5e+300"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(double_to_text(value), text);
        }
        assert_eq!(real_to_text(0.1), "0.1");
        assert_eq!(real_to_text(1e6), "1e+06");
        assert_eq!(numeric_to_text(150, &DataType::Decimal128(10, 2)), "1.50");
        assert_eq!(numeric_to_text(-5, &DataType::Decimal128(10, 2)), "-0.05");
        assert_eq!(numeric_to_text(25_000_000_000, &DataType::Decimal128(38, 10)), "2.5");
        assert_eq!(timestamp_to_text(1_704_067_200_500_000, true).expect("a time"), "2024-01-01 00:00:00.5+00");
        assert_eq!(timestamp_to_text(-1, false).expect("a time"), "1969-12-31 23:59:59.999999");
        let interval = IntervalMonthDayNano::new(14, 3, 3_600_000_000_000);
        assert_eq!(interval_to_text(interval), "1 year 2 mons 3 days 01:00:00");
        for text in ["1 year 2 mons 3 days 04:05:06.5", "-1 days 02:00:00", "-00:00:01", "100:00:00", "00:00:00.000001"]
        {
            assert_eq!(interval_from_text(text).map(interval_to_text).as_deref(), Some(text), "{text}");
        }
        assert_eq!(interval_from_text("1 week 00:99"), None);
        assert_eq!(bytes_to_text(&[1, 255]), "\\x01ff");
    }

    #[test]
    fn numerics_round_at_their_last_digit() {
        assert_eq!(numeric_from_text("0.005", 10, 2).expect("a number"), 1);
        assert_eq!(
            numeric_from_text(
                "0.00499999999999999999999999999999999999999999999999999999999999999999999999999999",
                10,
                2
            )
            .expect("a number"),
            0
        );
        assert_eq!(numeric_from_text(".5", 10, 0).expect("a number"), 1);
        assert_eq!(numeric_from_text("1e-3", 10, 3).expect("a number"), 1);
        assert_eq!(numeric_from_text("1e99", 38, 0).expect_err("too large").code(), SqlState::NumericOutOfRange);
        assert_eq!(numeric_from_text("1.2.3", 10, 0).expect_err("no number").code(), SqlState::InvalidText);
        assert_eq!(numeric_from_text("", 10, 0).expect_err("no number").code(), SqlState::InvalidText);
    }

    #[test]
    fn bytes_and_uuids_come_back() {
        assert_eq!(bytes_from_text("\\x01ff"), Some(vec![1, 255]));
        assert_eq!(bytes_from_text("a\\\\b\\101"), Some(b"a\\bA".to_vec()));
        assert_eq!(bytes_from_text("\\x1"), None);
        let text = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
        assert_eq!(uuid_to_text(&uuid_from_text(text).expect("a uuid")), text);
        assert_eq!(uuid_from_text("nonsense"), None);
    }
}
