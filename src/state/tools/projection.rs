//! Views of the entries for people and programs: rows, Parquet, a table to query.

use std::io::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryBuilder, Int64Builder, RecordBatch, StringBuilder, UInt8Builder, UInt64Builder};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

use super::super::snapshot::SnapshotReader;
use crate::types::{Error, OperatorId, Result};

/// What stands for the slot of a key that names none.
const RAW_SLOT: &str = "<raw>";
const ROWS_AT_ONCE: usize = 65_536;

/// An entry taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRow {
    /// The operator.
    pub operator: OperatorId,
    /// The key's first byte: its key group, or 255 for operator state.
    pub key_group: u8,
    /// The slot with its form, or `<raw>` when the key names none.
    pub slot: String,
    /// What follows the slot.
    pub user_key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

impl StateRow {
    fn new(operator: OperatorId, key: &[u8], value: &[u8]) -> StateRow {
        let key_group = key.first().copied().unwrap_or(u8::MAX);
        let rest = key.get(1..).unwrap_or_default();
        let split = rest.iter().position(|byte| *byte == b'|');
        let named = split.and_then(|at| Some((std::str::from_utf8(&rest[..at]).ok()?, &rest[at + 1..])));
        let (slot, user_key) = named.unwrap_or((RAW_SLOT, rest));
        StateRow { operator, key_group, slot: slot.to_owned(), user_key: user_key.to_vec(), value: value.to_vec() }
    }

    /// The key as text.
    pub fn key_text(&self) -> String {
        text(&self.user_key)
    }

    /// The value as text.
    pub fn value_text(&self) -> String {
        text(&self.value)
    }
}

/// Bytes as they are when all are printable ASCII, else in hexadecimal digits.
fn text(bytes: &[u8]) -> String {
    if bytes.iter().all(|byte| (0x20..0x7F).contains(byte)) {
        bytes.iter().map(|byte| char::from(*byte)).collect()
    } else {
        bytes.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}"))
    }
}

fn number(bytes: &[u8]) -> Option<i64> {
    bytes.try_into().ok().map(i64::from_le_bytes)
}

/// The first `max` entries of a canonical stream, and how many there are.
///
/// # Errors
/// XX001 when the stream is damaged.
pub fn rows(stream: &[u8], max: usize) -> Result<(Vec<StateRow>, usize)> {
    let (mut rows, mut count) = (Vec::new(), 0);
    SnapshotReader::new(stream)?.visit(&mut |operator, key, value| {
        if count < max {
            rows.push(StateRow::new(operator, key, value));
        }
        count += 1;
        Ok(())
    })?;
    Ok((rows, count))
}

/// Writes the entries as Parquet: `op_id, key_group, slot, user_key, value_bytes`, stamps in the file's metadata.
///
/// # Errors
/// XX001 when the stream is damaged; when `out` cannot be written.
pub fn export_parquet(stream: &[u8], out: impl Write + Send) -> Result<usize> {
    let failed = |error: parquet::errors::ParquetError| Error::internal(format!("Parquet: {error}"));
    let reader = SnapshotReader::new(stream)?;
    let schema = Arc::new(Schema::new(vec![
        Field::new("op_id", DataType::UInt64, false),
        Field::new("key_group", DataType::UInt8, false),
        Field::new("slot", DataType::Utf8, false),
        Field::new("user_key", DataType::Binary, false),
        Field::new("value_bytes", DataType::Binary, false),
    ]));
    let mut metadata = vec![KeyValue::new("clink.format_version".to_owned(), "1".to_owned())];
    if !reader.versions().is_empty() {
        metadata.push(KeyValue::new("clink.state_versions".to_owned(), reader.versions().pack()));
    }
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_key_value_metadata(Some(metadata))
        .build();
    let mut writer = ArrowWriter::try_new(out, Arc::clone(&schema), Some(properties)).map_err(failed)?;
    let (mut columns, mut count) = (ParquetColumns::default(), 0);
    reader.visit(&mut |operator, key, value| {
        columns.push(&StateRow::new(operator, key, value));
        count += 1;
        if count % ROWS_AT_ONCE == 0 { writer.write(&columns.finish(&schema)?).map_err(failed) } else { Ok(()) }
    })?;
    writer.write(&columns.finish(&schema)?).map_err(failed)?;
    writer.close().map_err(failed)?;
    Ok(count)
}

#[derive(Default)]
struct ParquetColumns {
    operators: UInt64Builder,
    groups: UInt8Builder,
    slots: StringBuilder,
    keys: BinaryBuilder,
    values: BinaryBuilder,
}

impl ParquetColumns {
    fn push(&mut self, row: &StateRow) {
        self.operators.append_value(row.operator.as_u64());
        self.groups.append_value(row.key_group);
        self.slots.append_value(&row.slot);
        self.keys.append_value(&row.user_key);
        self.values.append_value(&row.value);
    }

    fn finish(&mut self, schema: &SchemaRef) -> Result<RecordBatch> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.operators.finish()),
            Arc::new(self.groups.finish()),
            Arc::new(self.slots.finish()),
            Arc::new(self.keys.finish()),
            Arc::new(self.values.finish()),
        ];
        Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
    }
}

/// The table `state` for queries: `op_id, key_group, slot, user_key, key_int, value, value_int`; the texts are as people
/// read them, the numbers those of keys and values with 8 bytes.
///
/// # Errors
/// XX001 when the stream is damaged.
pub fn query_batch(stream: &[u8]) -> Result<RecordBatch> {
    let schema = Arc::new(Schema::new(vec![
        Field::new("op_id", DataType::UInt64, false),
        Field::new("key_group", DataType::UInt8, false),
        Field::new("slot", DataType::Utf8, false),
        Field::new("user_key", DataType::Utf8, false),
        Field::new("key_int", DataType::Int64, true),
        Field::new("value", DataType::Utf8, false),
        Field::new("value_int", DataType::Int64, true),
    ]));
    let (mut operators, mut groups) = (UInt64Builder::new(), UInt8Builder::new());
    let (mut slots, mut keys, mut values) = (StringBuilder::new(), StringBuilder::new(), StringBuilder::new());
    let (mut key_ints, mut value_ints) = (Int64Builder::new(), Int64Builder::new());
    SnapshotReader::new(stream)?.visit(&mut |operator, key, value| {
        let row = StateRow::new(operator, key, value);
        operators.append_value(operator.as_u64());
        groups.append_value(row.key_group);
        keys.append_value(row.key_text());
        values.append_value(row.value_text());
        key_ints.append_option(number(&row.user_key));
        value_ints.append_option(number(&row.value));
        slots.append_value(row.slot);
        Ok(())
    })?;
    let columns: Vec<ArrayRef> = vec![
        Arc::new(operators.finish()),
        Arc::new(groups.finish()),
        Arc::new(slots.finish()),
        Arc::new(keys.finish()),
        Arc::new(key_ints.finish()),
        Arc::new(values.finish()),
        Arc::new(value_ints.finish()),
    ];
    Ok(RecordBatch::try_new(schema, columns)?)
}
