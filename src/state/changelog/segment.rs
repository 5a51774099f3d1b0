//! A segment of the log as bytes: the changelog variant of the snapshot format without a base, and with the sequence
//! number of each change in a last column `sqn uint64`.

use std::io::Cursor;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BinaryBuilder, RecordBatch, UInt8Builder, UInt64Builder};
use arrow::datatypes::{DataType, Field, Schema, UInt8Type, UInt64Type};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;

use super::super::snapshot::{StateVersions, metadata, read_metadata};
use crate::types::{Error, OperatorId, Result, SqlState};

const PUT: u8 = 1;
const ERASE: u8 = 2;
const BATCH_ROWS_MAX: usize = 8192;

/// A change of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::state) struct Change {
    pub(in crate::state) sqn: u64,
    pub(in crate::state) operator: OperatorId,
    pub(in crate::state) key: Vec<u8>,
    pub(in crate::state) value: Option<Vec<u8>>,
}

fn schema(versions: &StateVersions) -> Schema {
    let fields = vec![
        Field::new("row_kind", DataType::UInt8, false),
        Field::new("op_id", DataType::UInt64, false),
        Field::new("key_bytes", DataType::Binary, false),
        Field::new("value_bytes", DataType::Binary, false),
        Field::new("sqn", DataType::UInt64, false),
    ];
    Schema::new_with_metadata(fields, metadata(versions))
}

/// The stream of some changes, with the stamps that are in force behind them.
pub(in crate::state) fn encode(changes: &[Change], versions: &StateVersions) -> Result<Vec<u8>> {
    let schema = Arc::new(schema(versions));
    let mut stream = StreamWriter::try_new(Vec::new(), &schema)?;
    for changes in changes.chunks(BATCH_ROWS_MAX) {
        let (mut kinds, mut operators, mut sqns) = (UInt8Builder::new(), UInt64Builder::new(), UInt64Builder::new());
        let (mut keys, mut values) = (BinaryBuilder::new(), BinaryBuilder::new());
        for change in changes {
            kinds.append_value(if change.value.is_some() { PUT } else { ERASE });
            operators.append_value(change.operator.as_u64());
            keys.append_value(&change.key);
            values.append_value(change.value.as_deref().unwrap_or_default());
            sqns.append_value(change.sqn);
        }
        let columns: Vec<ArrayRef> = vec![
            Arc::new(kinds.finish()),
            Arc::new(operators.finish()),
            Arc::new(keys.finish()),
            Arc::new(values.finish()),
            Arc::new(sqns.finish()),
        ];
        stream.write(&RecordBatch::try_new(Arc::clone(&schema), columns)?)?;
    }
    Ok(stream.into_inner()?)
}

/// What is told of each change: operator, key, and the value unless it erases.
pub(in crate::state) type VisitChange<'a> = dyn FnMut(OperatorId, &[u8], Option<&[u8]>) -> Result<()> + 'a;

/// Visits the changes with sequence numbers in a range, in order; gives the stamps.
pub(in crate::state) fn replay(
    bytes: &[u8],
    range: std::ops::Range<u64>,
    visit: &mut VisitChange<'_>,
) -> Result<StateVersions> {
    let damaged =
        |what: String| Error::new(SqlState::DataCorrupted, format!("a segment of the changelog is damaged: {what}"));
    let stream = StreamReader::try_new(Cursor::new(bytes), None).map_err(|error| damaged(error.to_string()))?;
    if stream.schema().fields() != schema(&StateVersions::default()).fields() {
        return Err(damaged("its columns are others".to_owned()));
    }
    let versions = read_metadata(&stream.schema())?;
    for batch in stream {
        let batch = batch.map_err(|error| damaged(error.to_string()))?;
        let kinds = batch.column(0).as_primitive::<UInt8Type>();
        let operators = batch.column(1).as_primitive::<UInt64Type>();
        let (keys, values) = (batch.column(2).as_binary::<i32>(), batch.column(3).as_binary::<i32>());
        let sqns = batch.column(4).as_primitive::<UInt64Type>();
        for row in (0..batch.num_rows()).filter(|row| range.contains(&sqns.value(*row))) {
            let value = match kinds.value(row) {
                PUT => Some(values.value(row)),
                ERASE => None,
                kind => return Err(damaged(format!("a row has kind {kind}"))),
            };
            visit(OperatorId::from_u64(operators.value(row)), keys.value(row), value)?;
        }
    }
    Ok(versions)
}
