//! Values in PostgreSQL's binary format as text, so that one reader of texts serves both formats.

use std::io::Write as _;

use pgwire::api::Type;

use super::pg_types::element_type;
use crate::types::text::{write_date, write_double, write_interval, write_real, write_time, write_timestamp};
use crate::types::{Error, Result, SqlState};

/// Days from 1970 to 2000, PostgreSQL's epoch.
const EPOCH_DAYS: i64 = 10_957;
const EPOCH_MICROS: i64 = 946_684_800_000_000;
/// PostgreSQL's bound on dimensions.
const DIMENSIONS_MAX: i32 = 6;

/// The text of a binary value.
///
/// # Errors
/// 22P03 for bytes that are no value of the type, 0A000 for types that are not offered.
pub(crate) fn text_of_binary(kind: &Type, bytes: &[u8]) -> Result<String> {
    let mut out = Vec::with_capacity(bytes.len() + 8);
    let mut input = Input(bytes);
    write(kind, &mut input, &mut out)?;
    input.end(kind)?;
    String::from_utf8(out).map_err(|_| invalid(kind))
}

fn invalid(kind: &Type) -> Error {
    Error::new(SqlState::InvalidBinary, format!("incorrect binary data format for a value of type {}", kind.name()))
        .hint("Send the value in text format, or as the type says.")
}

/// Bytes that are read from the front.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize, kind: &Type) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| invalid(kind))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, kind: &Type) -> Result<[u8; N]> {
        self.take(N, kind)?.try_into().map_err(|_| invalid(kind))
    }

    fn i16(&mut self, kind: &Type) -> Result<i16> {
        Ok(i16::from_be_bytes(self.array(kind)?))
    }

    fn i32(&mut self, kind: &Type) -> Result<i32> {
        Ok(i32::from_be_bytes(self.array(kind)?))
    }

    fn i64(&mut self, kind: &Type) -> Result<i64> {
        Ok(i64::from_be_bytes(self.array(kind)?))
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn end(&self, kind: &Type) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(invalid(kind)) }
    }
}

fn write(kind: &Type, input: &mut Input<'_>, out: &mut Vec<u8>) -> Result<()> {
    // Writing to a vector cannot fail.
    match *kind {
        Type::BOOL => out.push(if input.array::<1>(kind)? == [0] { b'f' } else { b't' }),
        Type::INT2 => {
            let _ = write!(out, "{}", input.i16(kind)?);
        }
        Type::INT4 => {
            let _ = write!(out, "{}", input.i32(kind)?);
        }
        Type::OID => {
            let _ = write!(out, "{}", u32::from_be_bytes(input.array(kind)?));
        }
        Type::INT8 => {
            let _ = write!(out, "{}", input.i64(kind)?);
        }
        Type::FLOAT4 => write_real(out, f32::from_be_bytes(input.array(kind)?)),
        Type::FLOAT8 => write_double(out, f64::from_be_bytes(input.array(kind)?)),
        Type::NUMERIC => write_numeric(kind, input, out)?,
        Type::BYTEA => {
            out.extend_from_slice(b"\\x");
            for byte in input.rest() {
                let _ = write!(out, "{byte:02x}");
            }
        }
        Type::UUID => {
            for (index, byte) in input.array::<16>(kind)?.iter().enumerate() {
                if matches!(index, 4 | 6 | 8 | 10) {
                    out.push(b'-');
                }
                let _ = write!(out, "{byte:02x}");
            }
        }
        Type::DATE => match input.i32(kind)? {
            i32::MAX => out.extend_from_slice(b"infinity"),
            i32::MIN => out.extend_from_slice(b"-infinity"),
            days => write_date(out, i64::from(days) + EPOCH_DAYS),
        },
        Type::TIME => {
            let micros = input.i64(kind)?;
            if !(0..=86_400_000_000).contains(&micros) {
                return Err(invalid(kind));
            }
            write_time(out, micros);
        }
        Type::TIMESTAMP | Type::TIMESTAMPTZ => match input.i64(kind)? {
            i64::MAX => out.extend_from_slice(b"infinity"),
            i64::MIN => out.extend_from_slice(b"-infinity"),
            micros => {
                let micros = micros.checked_add(EPOCH_MICROS).ok_or_else(|| invalid(kind))?;
                write_timestamp(out, micros, b' ', if *kind == Type::TIMESTAMPTZ { "+00" } else { "" });
            }
        },
        Type::INTERVAL => {
            let (micros, days, months) = (input.i64(kind)?, input.i32(kind)?, input.i32(kind)?);
            write_interval(out, months, days, micros);
        }
        Type::JSONB => {
            if input.array::<1>(kind)? != [1] {
                return Err(invalid(kind));
            }
            out.extend_from_slice(input.rest());
        }
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::CHAR | Type::JSON | Type::UNKNOWN => {
            out.extend_from_slice(input.rest());
        }
        _ => match element_type(kind) {
            Some(item) => write_array(kind, &item, input, out)?,
            None => {
                return Err(Error::unsupported(format!("binary values of type {} are not supported", kind.name()))
                    .hint("Send the value in text format."));
            }
        },
    }
    Ok(())
}

fn write_array(kind: &Type, item: &Type, input: &mut Input<'_>, out: &mut Vec<u8>) -> Result<()> {
    let (dimensions, _nulls, _element) = (input.i32(kind)?, input.i32(kind)?, input.i32(kind)?);
    if dimensions == 0 {
        out.extend_from_slice(b"{}");
        return Ok(());
    }
    if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
        return Err(invalid(kind));
    }
    let mut lengths = Vec::new();
    for _ in 0..dimensions {
        let length = usize::try_from(input.i32(kind)?).map_err(|_| invalid(kind))?;
        let _first_index = input.i32(kind)?;
        lengths.push(length);
    }
    // Every element has at least its length, so the numbers cannot be made up.
    let elements = lengths.iter().try_fold(1_usize, |product, length| product.checked_mul(*length));
    if elements.is_none_or(|elements| elements.saturating_mul(4) > input.0.len()) {
        return Err(invalid(kind));
    }
    write_dimension(kind, item, &lengths, input, out)
}

fn write_dimension(
    kind: &Type,
    item: &Type,
    lengths: &[usize],
    input: &mut Input<'_>,
    out: &mut Vec<u8>,
) -> Result<()> {
    let Some((length, inner)) = lengths.split_first() else {
        let size = input.i32(kind)?;
        if size == -1 {
            out.extend_from_slice(b"NULL");
            return Ok(());
        }
        let size = usize::try_from(size).map_err(|_| invalid(kind))?;
        let mut value = Input(input.take(size, kind)?);
        let mut text = Vec::new();
        write(item, &mut value, &mut text)?;
        value.end(item)?;
        out.push(b'"');
        for byte in text {
            if matches!(byte, b'"' | b'\\') {
                out.push(b'\\');
            }
            out.push(byte);
        }
        out.push(b'"');
        return Ok(());
    };
    out.push(b'{');
    for index in 0..*length {
        if index > 0 {
            out.push(b',');
        }
        write_dimension(kind, item, inner, input, out)?;
    }
    out.push(b'}');
    Ok(())
}

/// Groups of four decimal digits, as `numeric_recv` reads them.
fn write_numeric(kind: &Type, input: &mut Input<'_>, out: &mut Vec<u8>) -> Result<()> {
    let (count, weight) = (input.i16(kind)?, input.i16(kind)?);
    let sign = u16::from_be_bytes(input.array(kind)?);
    let scale = usize::try_from(input.i16(kind)?).map_err(|_| invalid(kind))?;
    let special = match sign {
        0x0000 | 0x4000 => None,
        0xC000 => Some("NaN"),
        0xD000 => Some("Infinity"),
        0xF000 => Some("-Infinity"),
        _ => return Err(invalid(kind)),
    };
    if let Some(special) = special {
        out.extend_from_slice(special.as_bytes());
        return Ok(());
    }
    let count = usize::try_from(count).map_err(|_| invalid(kind))?;
    let mut groups = Vec::with_capacity(count.min(input.0.len() / 2));
    for _ in 0..count {
        let group = input.i16(kind)?;
        if !(0..10_000).contains(&group) {
            return Err(invalid(kind));
        }
        groups.push(group);
    }
    if sign == 0x4000 {
        out.push(b'-');
    }
    let start = out.len();
    let group_at = |place: i32| usize::try_from(i32::from(weight) - place).ok().and_then(|at| groups.get(at).copied());
    for place in (0..=i32::from(weight.max(0))).rev() {
        let _ = write!(out, "{:04}", group_at(place).unwrap_or(0));
    }
    let zeros = out.get(start..).unwrap_or_default().iter().take_while(|digit| **digit == b'0').count();
    let zeros = zeros.min(out.len() - start - 1);
    out.drain(start..start + zeros);
    if scale > 0 {
        out.push(b'.');
        let point = out.len();
        for place in 1..=scale.div_ceil(4) {
            let place = i32::try_from(place).map_err(|_| invalid(kind))?;
            let _ = write!(out, "{:04}", group_at(-place).unwrap_or(0));
        }
        out.truncate(point + scale);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[i16]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn numerics_as_postgresql_sends_them() {
        for (groups, text) in [
            (vec![3, 1, 0, 2, 1, 2345, 6700], "12345.67"),
            (vec![1, -1, 0x4000, 4, 1], "-0.0001"),
            (vec![0, 0, 0, 2], "0.00"),
            (vec![1, 1, 0, 0, 1], "10000"),
            (vec![0, 0, 0xC000_u16 as i16, 0], "NaN"),
        ] {
            assert_eq!(text_of_binary(&Type::NUMERIC, &words(&groups)).expect(text), text);
        }
        assert!(text_of_binary(&Type::NUMERIC, &words(&[2, 0, 0, 0, 1])).is_err());
    }

    #[test]
    fn values_and_arrays() {
        assert_eq!(text_of_binary(&Type::BOOL, &[1]).expect("bool"), "t");
        assert_eq!(text_of_binary(&Type::DATE, &(-1_i32).to_be_bytes()).expect("date"), "1999-12-31");
        assert_eq!(
            text_of_binary(&Type::TIMESTAMPTZ, &500_000_i64.to_be_bytes()).expect("time"),
            "2000-01-01 00:00:00.5+00"
        );
        assert_eq!(text_of_binary(&Type::BYTEA, &[0, 255]).expect("bytes"), "\\x00ff");
        let array: Vec<u8> = [1, 1, 25, 2, 1, 2].iter().flat_map(|n: &i32| n.to_be_bytes()).collect();
        let array = [array, b"a\"".to_vec(), (-1_i32).to_be_bytes().to_vec()].concat();
        assert_eq!(text_of_binary(&Type::TEXT_ARRAY, &array).expect("array"), r#"{"a\"",NULL}"#);
        // Lengths that are made up.
        let huge: Vec<u8> = [2, 0, 23, i32::MAX, 1, i32::MAX, 1].iter().flat_map(|n: &i32| n.to_be_bytes()).collect();
        assert!(text_of_binary(&Type::INT4_ARRAY, &huge).is_err());
        assert!(text_of_binary(&Type::INT4, &[0, 0, 1]).is_err());
        assert!(text_of_binary(&Type::TEXT, &[0xff]).is_err());
    }
}
