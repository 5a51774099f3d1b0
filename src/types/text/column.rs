//! An Arrow column made ready for printing: its type is looked at once a batch, not once a value.

use std::io::Write as _;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DurationMicrosecondArray,
    FixedSizeBinaryArray, Float32Array, Float64Array, Int16Array, Int32Array, Int64Array, IntervalMonthDayNanoArray,
    LargeStringArray, StringArray, Time64MicrosecondArray, TimestampMicrosecondArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, IntervalUnit, TimeUnit};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::datetime::{write_date, write_interval, write_time, write_timestamp};
use super::number::{write_decimal, write_double, write_real};
use crate::types::{Result, TimeZone, is_bare_numeric};

/// A column whose values can be printed.
pub struct Column {
    array: ArrayRef,
    pub(super) kind: Kind,
    /// The text is that of a numeric too wide for the other kinds.
    pub(super) numeric_text: bool,
}

/// The values, by how they are printed.
pub(super) enum Kind {
    Null,
    Boolean(BooleanArray),
    Int16(Int16Array),
    Int32(Int32Array),
    Int64(Int64Array),
    Real(Float32Array),
    Double(Float64Array),
    Decimal { values: Decimal128Array, scale: i8, trim: bool },
    Text(StringArray),
    Json(LargeStringArray),
    Bytes(BinaryArray),
    Uuid(FixedSizeBinaryArray),
    FixedBytes(FixedSizeBinaryArray),
    Date(Date32Array),
    Time(Time64MicrosecondArray),
    Timestamp { values: TimestampMicrosecondArray, zone: Option<TimeZone> },
    Interval(IntervalMonthDayNanoArray),
    Duration(DurationMicrosecondArray),
    List { offsets: Vec<usize>, values: Box<Column> },
    Struct(Vec<(String, Column)>),
    Map { offsets: Vec<usize>, keys: Box<Column>, values: Box<Column> },
}

/// The type of the few that are printed to which a type is cast first, without loss.
fn printed_type(data_type: &DataType) -> Option<DataType> {
    Some(match data_type {
        DataType::Int8 | DataType::UInt8 => DataType::Int16,
        DataType::UInt16 => DataType::Int32,
        DataType::UInt32 => DataType::Int64,
        DataType::UInt64 => DataType::Decimal128(20, 0),
        DataType::Float16 => DataType::Float32,
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => {
            DataType::Decimal128(*precision, *scale)
        }
        DataType::Utf8View | DataType::Decimal256(..) => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
        DataType::Date64 => DataType::Date32,
        DataType::Time32(_) | DataType::Time64(TimeUnit::Nanosecond) => DataType::Time64(TimeUnit::Microsecond),
        DataType::Timestamp(unit, zone) if *unit != TimeUnit::Microsecond => {
            DataType::Timestamp(TimeUnit::Microsecond, zone.clone())
        }
        DataType::Duration(unit) if *unit != TimeUnit::Microsecond => DataType::Duration(TimeUnit::Microsecond),
        DataType::Interval(IntervalUnit::YearMonth | IntervalUnit::DayTime) => {
            DataType::Interval(IntervalUnit::MonthDayNano)
        }
        DataType::Dictionary(_, value) => printed_type(value).unwrap_or_else(|| value.as_ref().clone()),
        _ => return None,
    })
}

impl Column {
    /// Makes a column ready; times are shown in UTC.
    ///
    /// # Errors
    /// 0A000 for a type that has no text form.
    pub fn new(array: &ArrayRef) -> Result<Column> {
        Column::in_zone(array, &TimeZone::utc())
    }

    /// Makes a column ready; times are shown in a zone.
    ///
    /// # Errors
    /// 0A000 for a type that has no text form.
    pub(crate) fn in_zone(array: &ArrayRef, zone: &TimeZone) -> Result<Column> {
        let numeric_text = matches!(array.data_type(), DataType::Decimal256(..));
        let array = match printed_type(array.data_type()) {
            Some(data_type) => cast(array, &data_type)?,
            None => Arc::clone(array),
        };
        let kind = match array.data_type() {
            DataType::Null => Kind::Null,
            DataType::Boolean => Kind::Boolean(array.as_boolean().clone()),
            DataType::Int16 => Kind::Int16(array.as_primitive().clone()),
            DataType::Int32 => Kind::Int32(array.as_primitive().clone()),
            DataType::Int64 => Kind::Int64(array.as_primitive().clone()),
            DataType::Float32 => Kind::Real(array.as_primitive().clone()),
            DataType::Float64 => Kind::Double(array.as_primitive().clone()),
            DataType::Decimal128(precision, scale) => Kind::Decimal {
                values: array.as_primitive().clone(),
                scale: *scale,
                trim: is_bare_numeric(*precision, *scale),
            },
            DataType::Utf8 => Kind::Text(array.as_string().clone()),
            DataType::LargeUtf8 => Kind::Json(array.as_string().clone()),
            DataType::Binary => Kind::Bytes(array.as_binary().clone()),
            DataType::FixedSizeBinary(16) => Kind::Uuid(array.as_fixed_size_binary().clone()),
            DataType::FixedSizeBinary(_) => Kind::FixedBytes(array.as_fixed_size_binary().clone()),
            DataType::Date32 => Kind::Date(array.as_primitive().clone()),
            DataType::Time64(TimeUnit::Microsecond) => Kind::Time(array.as_primitive().clone()),
            DataType::Timestamp(TimeUnit::Microsecond, zoned) => {
                Kind::Timestamp { values: array.as_primitive().clone(), zone: zoned.is_some().then(|| zone.clone()) }
            }
            DataType::Interval(IntervalUnit::MonthDayNano) => Kind::Interval(array.as_primitive().clone()),
            DataType::Duration(TimeUnit::Microsecond) => Kind::Duration(array.as_primitive().clone()),
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                Kind::List {
                    offsets: list.value_offsets().iter().map(|o| usize::try_from(*o).unwrap_or(0)).collect(),
                    values: Box::new(Column::in_zone(list.values(), zone)?),
                }
            }
            DataType::LargeList(_) => {
                let list = array.as_list::<i64>();
                Kind::List {
                    offsets: list.value_offsets().iter().map(|o| usize::try_from(*o).unwrap_or(0)).collect(),
                    values: Box::new(Column::in_zone(list.values(), zone)?),
                }
            }
            DataType::FixedSizeList(_, size) => {
                let size = usize::try_from(*size).unwrap_or(0);
                let list = array.as_fixed_size_list();
                Kind::List {
                    offsets: (0..=list.len()).map(|row| row * size).collect(),
                    values: Box::new(Column::in_zone(list.values(), zone)?),
                }
            }
            DataType::Struct(fields) => {
                let columns = array.as_struct().columns();
                Kind::Struct(
                    fields
                        .iter()
                        .zip(columns)
                        .map(|(field, column)| Ok((field.name().clone(), Column::in_zone(column, zone)?)))
                        .collect::<Result<_>>()?,
                )
            }
            DataType::Map(..) => {
                let map = array.as_map();
                Kind::Map {
                    offsets: map.value_offsets().iter().map(|o| usize::try_from(*o).unwrap_or(0)).collect(),
                    keys: Box::new(Column::in_zone(map.keys(), zone)?),
                    values: Box::new(Column::in_zone(map.values(), zone)?),
                }
            }
            other => {
                return Err(crate::types::Error::unsupported(format!("values of type {other} cannot be printed"))
                    .hint("Cast the column to text."));
            }
        };
        Ok(Column { array, kind, numeric_text })
    }

    /// The type that is printed.
    pub(crate) fn data_type(&self) -> &DataType {
        if self.numeric_text { &DataType::Decimal128(38, 10) } else { self.array.data_type() }
    }

    /// True when the row has NULL here.
    pub fn is_null(&self, row: usize) -> bool {
        matches!(self.kind, Kind::Null) || self.array.is_null(row)
    }

    /// Prints a value that is not NULL as PostgreSQL's text output does.
    pub fn write_text(&self, row: usize, out: &mut Vec<u8>) {
        // Writing to a vector cannot fail.
        match &self.kind {
            Kind::Null => {}
            Kind::Boolean(values) => out.push(if values.value(row) { b't' } else { b'f' }),
            Kind::Int16(values) => {
                let _ = write!(out, "{}", values.value(row));
            }
            Kind::Int32(values) => {
                let _ = write!(out, "{}", values.value(row));
            }
            Kind::Int64(values) => {
                let _ = write!(out, "{}", values.value(row));
            }
            Kind::Real(values) => write_real(out, values.value(row)),
            Kind::Double(values) => write_double(out, values.value(row)),
            Kind::Decimal { values, scale, trim } => write_decimal(out, values.value(row), *scale, *trim),
            Kind::Text(values) => out.extend_from_slice(values.value(row).as_bytes()),
            Kind::Json(values) => out.extend_from_slice(values.value(row).as_bytes()),
            Kind::Bytes(values) => write_hex(out, values.value(row)),
            Kind::FixedBytes(values) => write_hex(out, values.value(row)),
            Kind::Uuid(values) => write_uuid(out, values.value(row)),
            Kind::Date(values) => write_date(out, i64::from(values.value(row))),
            Kind::Time(values) => write_time(out, values.value(row)),
            Kind::Timestamp { values, zone: None } => write_timestamp(out, values.value(row), b' ', ""),
            Kind::Timestamp { values, zone: Some(zone) } if zone.is_utc() => {
                write_timestamp(out, values.value(row), b' ', "+00");
            }
            Kind::Timestamp { values, zone: Some(zone) } => {
                let micros = values.value(row);
                let mut offset = String::new();
                zone.write_offset_at(micros, &mut offset);
                write_timestamp(out, zone.local(micros), b' ', &offset);
            }
            Kind::Interval(values) => {
                let value = values.value(row);
                write_interval(out, value.months, value.days, value.nanoseconds / 1000);
            }
            Kind::Duration(values) => write_interval(out, 0, 0, values.value(row)),
            Kind::List { offsets, values } => {
                out.push(b'{');
                for (index, item) in range(offsets, row).enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    values.write_element(item, out);
                }
                out.push(b'}');
            }
            Kind::Struct(fields) => {
                out.push(b'(');
                for (index, (_, field)) in fields.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    if !field.is_null(row) {
                        let start = out.len();
                        field.write_text(row, out);
                        quote_from(
                            out,
                            start,
                            |text| {
                                text.is_empty()
                                    || text.iter().any(|b| {
                                        matches!(b, b'(' | b')' | b',' | b'"' | b'\\')
                                            || b.is_ascii_whitespace()
                                            || *b == 0x0b
                                    })
                            },
                            true,
                        );
                    }
                }
                out.push(b')');
            }
            Kind::Map { .. } => self.write_json(row, out, true),
        }
    }

    /// An element of an array's text form.
    fn write_element(&self, row: usize, out: &mut Vec<u8>) {
        if self.is_null(row) {
            out.extend_from_slice(b"NULL");
            return;
        }
        let start = out.len();
        self.write_text(row, out);
        if !matches!(self.kind, Kind::List { .. }) {
            quote_from(
                out,
                start,
                |text| {
                    text.is_empty()
                        || text.eq_ignore_ascii_case(b"null")
                        || text.iter().any(|b| {
                            matches!(b, b'{' | b'}' | b',' | b'"' | b'\\') || b.is_ascii_whitespace() || *b == 0x0b
                        })
                },
                false,
            );
        }
    }

    /// Prints a value as JSON; `spaced` as `jsonb` does, with a space behind colons and commas.
    pub fn write_json(&self, row: usize, out: &mut Vec<u8>, spaced: bool) {
        if self.is_null(row) {
            out.extend_from_slice(b"null");
            return;
        }
        let comma: &[u8] = if spaced { b", " } else { b"," };
        let colon: &[u8] = if spaced { b": " } else { b":" };
        match &self.kind {
            Kind::Null => out.extend_from_slice(b"null"),
            Kind::Boolean(values) => out.extend_from_slice(if values.value(row) { b"true" } else { b"false" }),
            Kind::Int16(_) | Kind::Int32(_) | Kind::Int64(_) | Kind::Decimal { .. } => self.write_text(row, out),
            Kind::Real(values) if values.value(row).is_finite() => self.write_text(row, out),
            Kind::Double(values) if values.value(row).is_finite() => self.write_text(row, out),
            Kind::Text(values) => write_json_string(out, values.value(row)),
            Kind::Json(_) => self.write_text(row, out),
            Kind::Bytes(values) => write_base64(out, values.value(row)),
            Kind::FixedBytes(values) => write_base64(out, values.value(row)),
            Kind::Timestamp { values, zone } => {
                out.push(b'"');
                write_timestamp(out, values.value(row), b'T', if zone.is_some() { "Z" } else { "" });
                out.push(b'"');
            }
            // None of these has a character that JSON escapes.
            Kind::Real(_)
            | Kind::Double(_)
            | Kind::Uuid(_)
            | Kind::Date(_)
            | Kind::Time(_)
            | Kind::Interval(_)
            | Kind::Duration(_) => {
                out.push(b'"');
                self.write_text(row, out);
                out.push(b'"');
            }
            Kind::List { offsets, values } => {
                out.push(b'[');
                for (index, item) in range(offsets, row).enumerate() {
                    if index > 0 {
                        out.extend_from_slice(comma);
                    }
                    values.write_json(item, out, spaced);
                }
                out.push(b']');
            }
            Kind::Struct(fields) => {
                out.push(b'{');
                for (index, (name, field)) in fields.iter().enumerate() {
                    if index > 0 {
                        out.extend_from_slice(comma);
                    }
                    write_json_string(out, name);
                    out.extend_from_slice(colon);
                    field.write_json(row, out, spaced);
                }
                out.push(b'}');
            }
            Kind::Map { offsets, keys, values } => {
                out.push(b'{');
                for (index, item) in range(offsets, row).enumerate() {
                    if index > 0 {
                        out.extend_from_slice(comma);
                    }
                    let mut key = Vec::new();
                    keys.write_text(item, &mut key);
                    write_json_string(out, &String::from_utf8_lossy(&key));
                    out.extend_from_slice(colon);
                    values.write_json(item, out, spaced);
                }
                out.push(b'}');
            }
        }
    }
}

pub(super) fn range(offsets: &[usize], row: usize) -> std::ops::Range<usize> {
    let start = offsets.get(row).copied().unwrap_or(0);
    start..offsets.get(row + 1).copied().unwrap_or(start)
}

/// Puts quotes round what was written from `start` on, if it needs them. Quotes and backslashes
/// inside are doubled (records) or escaped with a backslash (arrays).
fn quote_from(out: &mut Vec<u8>, start: usize, needed: impl Fn(&[u8]) -> bool, doubled: bool) {
    let text = out.get(start..).unwrap_or_default();
    if !needed(text) {
        return;
    }
    let text = text.to_vec();
    out.truncate(start);
    out.push(b'"');
    for byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.push(if doubled { byte } else { b'\\' });
        }
        out.push(byte);
    }
    out.push(b'"');
}

const HEX: [u8; 16] = *b"0123456789abcdef";

fn push_hex(out: &mut Vec<u8>, byte: u8) {
    // A half byte is below 16.
    out.push(HEX.get(usize::from(byte >> 4)).copied().unwrap_or(b'0'));
    out.push(HEX.get(usize::from(byte & 15)).copied().unwrap_or(b'0'));
}

fn write_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(b"\\x");
    for byte in bytes {
        push_hex(out, *byte);
    }
}

fn write_uuid(out: &mut Vec<u8>, bytes: &[u8]) {
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        push_hex(out, *byte);
    }
}

fn write_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    out.extend_from_slice(BASE64.encode(bytes).as_bytes());
    out.push(b'"');
}

/// A JSON string with its quotes.
pub(crate) fn write_json_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|b| matches!(b, b'"' | b'\\') || *b < 0x20) {
        let (plain, escaped) = rest.split_at(at);
        out.extend_from_slice(plain);
        match escaped.first() {
            Some(b'"') => out.extend_from_slice(b"\\\""),
            Some(b'\\') => out.extend_from_slice(b"\\\\"),
            Some(b'\n') => out.extend_from_slice(b"\\n"),
            Some(b'\r') => out.extend_from_slice(b"\\r"),
            Some(b'\t') => out.extend_from_slice(b"\\t"),
            Some(control) => {
                out.extend_from_slice(b"\\u00");
                push_hex(out, *control);
            }
            None => {}
        }
        rest = escaped.get(1..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int32Builder, ListBuilder, MapBuilder, StringBuilder, StructArray, UInt64Array};
    use arrow::datatypes::Field;

    use super::*;

    fn text(array: ArrayRef, row: usize) -> String {
        let mut out = Vec::new();
        Column::new(&array).expect("printable").write_text(row, &mut out);
        String::from_utf8(out).expect("text")
    }

    fn json(array: ArrayRef, row: usize) -> String {
        let mut out = Vec::new();
        Column::new(&array).expect("printable").write_json(row, &mut out, false);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn arrays_quote_what_would_be_misread() {
        let mut builder = ListBuilder::new(StringBuilder::new());
        for value in [Some("1"), None, Some("a b"), Some(""), Some("null"), Some("q\"\\"), Some("é")] {
            builder.values().append_option(value);
        }
        builder.append(true);
        builder.append(true);
        let array: ArrayRef = Arc::new(builder.finish());
        assert_eq!(text(Arc::clone(&array), 0), r#"{1,NULL,"a b","","null","q\"\\",é}"#);
        assert_eq!(text(Arc::clone(&array), 1), "{}");
        assert_eq!(json(array, 0), r#"["1",null,"a b","","null","q\"\\","é"]"#);
    }

    #[test]
    fn records_double_their_quotes() {
        let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a,\"b"), None, Some("")]));
        let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
        let record: ArrayRef = Arc::new(StructArray::from(vec![
            (Arc::new(Field::new("n", DataType::Int32, true)), numbers),
            (Arc::new(Field::new("s", DataType::Utf8, true)), names),
        ]));
        assert_eq!(text(Arc::clone(&record), 0), r#"(1,"a,""b")"#);
        assert_eq!(text(Arc::clone(&record), 1), "(2,)");
        assert_eq!(text(Arc::clone(&record), 2), r#"(3,"")"#);
        assert_eq!(json(record, 0), r#"{"n":1,"s":"a,\"b"}"#);
    }

    #[test]
    fn maps_are_json() {
        let mut builder = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
        builder.keys().append_value("a");
        builder.values().append_value(1);
        builder.keys().append_value("b");
        builder.values().append_null();
        builder.append(true).expect("balanced");
        let array: ArrayRef = Arc::new(builder.finish());
        assert_eq!(text(Arc::clone(&array), 0), r#"{"a": 1, "b": null}"#);
        assert_eq!(json(array, 0), r#"{"a":1,"b":null}"#);
    }

    #[test]
    fn scalars_on_both_wires() {
        let at = 1_357_016_400_500_000;
        let zoned: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![at]).with_timezone("UTC"));
        assert_eq!(text(Arc::clone(&zoned), 0), "2013-01-01 05:00:00.5+00");
        assert_eq!(json(zoned, 0), "\"2013-01-01T05:00:00.5Z\"");
        let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![&b"hi"[..]]));
        assert_eq!(text(Arc::clone(&bytes), 0), "\\x6869");
        assert_eq!(json(bytes, 0), "\"aGk=\"");
        let big: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX]));
        assert_eq!(text(big, 0), "18446744073709551615");
        let doubles: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN, f64::INFINITY, 1e20]));
        assert_eq!(json(Arc::clone(&doubles), 0), "\"NaN\"");
        assert_eq!(json(Arc::clone(&doubles), 1), "\"Infinity\"");
        assert_eq!(json(doubles, 2), "1e+20");
        let bare: ArrayRef =
            Arc::new(Decimal128Array::from(vec![15_000_000_000]).with_precision_and_scale(38, 10).expect("fits"));
        assert_eq!(text(bare, 0), "1.5");
        let control: ArrayRef = Arc::new(StringArray::from(vec!["a\u{1}\n\"\\"]));
        assert_eq!(json(control, 0), r#""a\u0001\n\"\\""#);
    }
}
