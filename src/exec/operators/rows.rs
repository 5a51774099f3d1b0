//! What operators that keep rows by key have in common.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array};
use arrow::buffer::NullBuffer;
use arrow::compute::take;
use arrow::datatypes::SchemaRef;

use crate::state::RowCodec;
use crate::types::{Chunk, Result};

/// Bytes of a time in front of an entry.
pub(super) const TIME_BYTES: usize = 8;

/// A time so that greater times have greater bytes.
pub(super) fn encoded_time(at: i64) -> [u8; TIME_BYTES] {
    (at ^ i64::MIN).to_be_bytes()
}

/// The time at the start of an entry, which is at least so long.
pub(super) fn time_of(entry: &[u8]) -> i64 {
    let time = entry.first_chunk::<TIME_BYTES>().expect("an entry begins with its time");
    i64::from_be_bytes(*time) ^ i64::MIN
}

/// Columns with a diff a row as chunks.
pub(super) fn to_chunks(schema: &SchemaRef, columns: Vec<ArrayRef>, diffs: Vec<i64>) -> Result<Vec<Chunk>> {
    let options = RecordBatchOptions::new().with_row_count(Some(diffs.len()));
    let batch = RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?;
    Ok(Chunk::changes(&batch, &Int64Array::from(diffs)))
}

/// Where any column of a key is NULL.
pub(super) fn null_keys(keys: &[ArrayRef]) -> Option<NullBuffer> {
    keys.iter().fold(None, |nulls, key| NullBuffer::union(nulls.as_ref(), key.logical_nulls().as_ref()))
}

/// Encoded rows as columns, NULLs where there is none. The schema's columns are the last that the rows are made of.
pub(super) fn decoded_or_null(schema: &SchemaRef, codec: &RowCodec, rows: &[Option<&[u8]>]) -> Result<Vec<ArrayRef>> {
    let found: Vec<&[u8]> = rows.iter().flatten().copied().collect();
    let fields = schema.fields();
    if found.is_empty() {
        return Ok(fields.iter().map(|field| new_null_array(field.data_type(), rows.len())).collect());
    }
    let mut columns = codec.decode(found.iter().copied())?;
    let columns = columns.split_off(columns.len().saturating_sub(fields.len()));
    if found.len() == rows.len() {
        return Ok(columns);
    }
    let mut next = 0..;
    let places: UInt32Array = rows.iter().map(|row| row.and_then(|_| next.next())).collect();
    Ok(columns.iter().map(|column| take(column, &places, None)).collect::<std::result::Result<_, _>>()?)
}
