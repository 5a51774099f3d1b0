//! Values in PostgreSQL's binary format.

use super::column::{Column, Kind, range};
use crate::types::{Error, Result, SqlState, type_oid};

/// Days from 1970 to 2000, PostgreSQL's epoch.
const EPOCH_DAYS: i32 = 10_957;
const EPOCH_MICROS: i64 = 946_684_800_000_000;

impl Column {
    /// Writes a value that is not NULL as PostgreSQL's binary output does.
    ///
    /// # Errors
    /// 22P02 for arrays whose parts differ in length, 54000 for values beyond 2 GiB.
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
            Kind::Map { .. } | Kind::Json(_) => {
                out.push(1);
                self.write_text(row, out);
            }
            Kind::List { .. } => self.write_array(row, out)?,
            Kind::Struct(fields) => {
                out.extend_from_slice(&count(fields.len())?.to_be_bytes());
                for (_, field) in fields {
                    out.extend_from_slice(&type_oid(field.data_type()).to_be_bytes());
                    field.write_sized(row, out)?;
                }
            }
        }
        Ok(())
    }

    /// A value behind its length, or -1 for NULL.
    pub(crate) fn write_sized(&self, row: usize, out: &mut Vec<u8>) -> Result<()> {
        if self.is_null(row) {
            out.extend_from_slice(&(-1_i32).to_be_bytes());
            return Ok(());
        }
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        self.write_binary(row, out)?;
        let length = count(out.len() - start - 4)?;
        if let Some(place) = out.get_mut(start..start + 4) {
            place.copy_from_slice(&length.to_be_bytes());
        }
        Ok(())
    }

    /// Dimensions, then the elements in order.
    fn write_array(&self, row: usize, out: &mut Vec<u8>) -> Result<()> {
        let mut lengths = Vec::new();
        // The rows of the innermost column.
        let (mut column, mut rows) = (self, vec![row]);
        while let Kind::List { offsets, values } = &column.kind {
            let mut length = None;
            let mut inner = Vec::new();
            for row in rows {
                // A NULL among arrays has no length.
                let items = if column.is_null(row) { 0..0 } else { range(offsets, row) };
                if *length.get_or_insert(items.len()) != items.len() {
                    return Err(Error::new(
                        SqlState::InvalidText,
                        "multidimensional arrays must have sub-arrays with matching dimensions",
                    )
                    .hint("Ask for the result in text format, or cast the array to text."));
                }
                inner.extend(items);
            }
            lengths.push(length.unwrap_or(0));
            (column, rows) = (values, inner);
        }
        if rows.is_empty() {
            lengths.clear();
        }
        let nulls = rows.iter().any(|row| column.is_null(*row));
        out.extend_from_slice(&count(lengths.len())?.to_be_bytes());
        out.extend_from_slice(&i32::from(nulls).to_be_bytes());
        out.extend_from_slice(&type_oid(column.data_type()).to_be_bytes());
        for length in lengths {
            out.extend_from_slice(&count(length)?.to_be_bytes());
            out.extend_from_slice(&1_i32.to_be_bytes());
        }
        for row in rows {
            column.write_sized(row, out)?;
        }
        Ok(())
    }
}

fn count(of: usize) -> Result<i32> {
    i32::try_from(of).map_err(|_| Error::new(SqlState::ProgramLimitExceeded, "a value is longer than 2 GiB"))
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
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int32Builder, ListBuilder};

    use super::*;

    fn binary(array: ArrayRef, row: usize) -> Vec<i32> {
        let mut out = Vec::new();
        Column::new(&array).expect("prints").write_binary(row, &mut out).expect("fits");
        out.chunks(4).map(|part| i32::from_be_bytes([part[0], part[1], part[2], part[3]])).collect()
    }

    #[test]
    fn arrays_as_postgresql_sends_them() {
        let mut builder = ListBuilder::new(Int32Builder::new());
        builder.append_value([Some(1), None, Some(3)]);
        builder.append_value([]);
        let array: ArrayRef = Arc::new(builder.finish());
        // Dimensions, has NULL, int4, length, first index; then each element behind its length.
        assert_eq!(binary(Arc::clone(&array), 0), [1, 1, 23, 3, 1, 4, 1, -1, 4, 3]);
        assert_eq!(binary(array, 1), [0, 0, 23]);
        let mut builder = ListBuilder::new(ListBuilder::new(Int32Builder::new()));
        builder.append_value([Some(vec![Some(1), Some(2)]), Some(vec![Some(3), Some(4)])]);
        let nested: ArrayRef = Arc::new(builder.finish());
        assert_eq!(binary(nested, 0), [2, 0, 23, 2, 1, 2, 1, 4, 1, 4, 2, 4, 3, 4, 4]);
    }

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
