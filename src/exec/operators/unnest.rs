//! One row for each element of a row's lists.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, ListArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::SchemaRef;

use crate::exec::plan::UnnestSpec;
use crate::types::{CHUNK_ROWS_MAX, Chunk, Error, Result};

/// Parts of a chunk that each give at most a chunk of rows, or consist of one row.
///
/// # Errors
/// When a column that is taken apart is not a list.
pub(crate) fn steps(spec: &UnnestSpec, chunk: &Chunk) -> Result<Vec<Chunk>> {
    let lists = lists(spec, chunk)?;
    let (mut parts, mut start, mut rows) = (Vec::new(), 0, 0);
    for row in 0..chunk.rows() {
        let length = length(spec, &lists, row);
        if row > start && rows + length > CHUNK_ROWS_MAX {
            parts.push(chunk.slice(start, row - start));
            (start, rows) = (row, 0);
        }
        rows += length;
    }
    parts.push(chunk.slice(start, chunk.rows() - start));
    Ok(parts)
}

/// The rows of a chunk, each as often as its longest list has elements; shorter lists end with NULLs.
///
/// # Errors
/// When a column that is taken apart is not a list.
pub(crate) fn unnest(spec: &UnnestSpec, schema: &SchemaRef, chunk: &Chunk) -> Result<Vec<Chunk>> {
    let lists = lists(spec, chunk)?;
    let mut rows: Vec<u32> = Vec::new();
    let mut elements: Vec<Vec<Option<u32>>> = vec![Vec::new(); lists.len()];
    for row in 0..chunk.rows() {
        let length = length(spec, &lists, row);
        rows.extend(std::iter::repeat_n(row as u32, length));
        for (list, elements) in lists.iter().zip(&mut elements) {
            let start = list.value_offsets()[row] as u32;
            let present = if list.is_null(row) { 0 } else { list.value_length(row) as u32 };
            elements.extend((0..length as u32).map(|nth| (nth < present).then_some(start + nth)));
        }
    }
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let diffs = Int64Array::from_iter_values(rows.iter().map(|row| chunk.diff(*row as usize)));
    let rows = UInt32Array::from(rows);
    let elements: Vec<UInt32Array> = elements.into_iter().map(UInt32Array::from).collect();
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(spec.columns.len());
    for column in &spec.columns {
        columns.push(match spec.lists.iter().position(|list| list == column) {
            Some(at) => take(lists[at].values(), &elements[at], None)?,
            None => take(chunk.column(*column), &rows, None)?,
        });
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    let batch = RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?;
    Ok(Chunk::changes(&batch, &diffs))
}

fn lists<'a>(spec: &UnnestSpec, chunk: &'a Chunk) -> Result<Vec<&'a ListArray>> {
    let list = |column: &usize| {
        chunk.column(*column).as_list_opt::<i32>().ok_or_else(|| Error::internal("what is unnested is not a list"))
    };
    spec.lists.iter().map(list).collect()
}

fn length(spec: &UnnestSpec, lists: &[&ListArray], row: usize) -> usize {
    let null = usize::from(spec.keep_nulls);
    lists.iter().map(|list| if list.is_null(row) { null } else { list.value_length(row) as usize }).max().unwrap_or(0)
}
