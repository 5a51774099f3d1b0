//! Values in PostgreSQL's binary format.

use super::column::{Column, Kind};
use crate::types::{Error, Result};

/// Days from 1970 to 2000, PostgreSQL's epoch.
const EPOCH_DAYS: i32 = 10_957;
const EPOCH_MICROS: i64 = 946_684_800_000_000;

impl Column {
    /// Writes a value that is not NULL as PostgreSQL's binary output does.
    ///
    /// # Errors
    /// 0A000 for arrays and records, which are sent as text only.
    pub(crate) fn write_binary(&self, row: usize, out: &mut Vec<u8>) -> Result<()> {
        match &self.kind {
            Kind::Null => {}
            Kind::Boolean(values) => out.push(u8::from(values.value(row))),
            Kind::Int16(values) => out.extend_from_slice(&values.value(row).to_be_bytes()),
            Kind::Int32(values) => out.extend_from_slice(&values.value(row).to_be_bytes()),
            Kind::Int64(values) => out.extend_from_slice(&values.value(row).to_be_bytes()),
            Kind::Real(values) => out.extend_from_slice(&values.value(row).to_be_bytes()),
            Kind::Double(values) => out.extend_from_slice(&values.value(row).to_be_bytes()),
            Kind::Text(_) if !self.numeric_text => self.write_text(row, out),
            Kind::Decimal { .. } | Kind::Text(_) => {
                let mut text = Vec::new();
                self.write_text(row, &mut text);
                write_numeric(&text, out);
            }
            Kind::Bytes(values) => out.extend_from_slice(values.value(row)),
            Kind::Uuid(values) | Kind::FixedBytes(values) => out.extend_from_slice(values.value(row)),
            Kind::Date(values) => {
                out.extend_from_slice(&values.value(row).saturating_sub(EPOCH_DAYS).to_be_bytes());
            }
            Kind::Time(values) => out.extend_from_slice(&values.value(row).to_be_bytes()),
            Kind::Timestamp { values, .. } => {
                out.extend_from_slice(&values.value(row).saturating_sub(EPOCH_MICROS).to_be_bytes());
            }
            Kind::Interval(values) => {
                let value = values.value(row);
                out.extend_from_slice(&(value.nanoseconds / 1000).to_be_bytes());
                out.extend_from_slice(&value.days.to_be_bytes());
                out.extend_from_slice(&value.months.to_be_bytes());
            }
            Kind::Duration(values) => {
                out.extend_from_slice(&values.value(row).to_be_bytes());
                out.extend_from_slice(&[0; 8]);
            }
            // jsonb: a version, then the text.
            Kind::Map { .. } => {
                out.push(1);
                self.write_text(row, out);
            }
            Kind::List { .. } | Kind::Struct(_) => {
                return Err(Error::unsupported("arrays and records in binary format are not supported yet")
                    .hint("Ask for results in text format, or cast the column to text."));
            }
        }
        Ok(())
    }
}

/// PostgreSQL's numeric: groups of four decimal digits.
fn write_numeric(text: &[u8], out: &mut Vec<u8>) {
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = match digits.iter().position(|b| *b == b'.') {
        Some(at) => (digits.get(..at).unwrap_or_default(), digits.get(at + 1..).unwrap_or_default()),
        None => (digits, &b""[..]),
    };
    // Whole groups on both sides of the point.
    let mut padded = vec![b'0'; (4 - whole.len() % 4) % 4];
    padded.extend_from_slice(whole);
    let whole_groups = padded.len() / 4;
    padded.extend_from_slice(fraction);
    padded.resize(padded.len().next_multiple_of(4), b'0');
    let groups: Vec<i16> =
        padded.chunks(4).map(|group| group.iter().fold(0, |value, b| value * 10 + i16::from(b - b'0'))).collect();
    let leading = groups.iter().take_while(|group| **group == 0).count();
    let kept = groups.get(leading..).unwrap_or_default();
    let trailing = kept.iter().rev().take_while(|group| **group == 0).count();
    let kept = kept.get(..kept.len() - trailing).unwrap_or_default();
    // At most 38 digits: every count below fits.
    let small = |count: usize| i16::try_from(count).unwrap_or(i16::MAX);
    let weight = if kept.is_empty() { 0 } else { small(whole_groups) - 1 - small(leading) };
    out.extend_from_slice(&small(kept.len()).to_be_bytes());
    out.extend_from_slice(&weight.to_be_bytes());
    out.extend_from_slice(&(if negative { 0x4000u16 } else { 0 }).to_be_bytes());
    out.extend_from_slice(&small(fraction.len()).to_be_bytes());
    for group in kept {
        out.extend_from_slice(&group.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numeric(text: &str) -> Vec<i16> {
        let mut out = Vec::new();
        write_numeric(text.as_bytes(), &mut out);
        out.chunks(2).map(|pair| i16::from_be_bytes([pair[0], pair[1]])).collect()
    }

    #[test]
    fn numerics_as_postgresql_sends_them() {
        // PostgreSQL 16: numeric_send; count of groups, weight, sign, scale, groups.
        assert_eq!(numeric("12345.67"), [3, 1, 0, 2, 1, 2345, 6700]);
        assert_eq!(numeric("-0.0001"), [1, -1, 0x4000, 4, 1]);
        assert_eq!(numeric("0.00"), [0, 0, 0, 2]);
        assert_eq!(numeric("10000"), [1, 1, 0, 0, 1]);
    }
}
