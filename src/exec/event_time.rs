//! Event time in rows: what is late, and how it is told.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, StringBuilder, TimestampMicrosecondArray,
};
use arrow::compute::{filter, filter_record_batch, not};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};

use super::plan::{Closing, late_rows_schema};
use crate::types::text::JsonObjects;
use crate::types::{Chunk, Error, Result, Watermark};

/// A column of event time.
///
/// # Errors
/// None but a fault of the planner.
pub(crate) fn values(column: &ArrayRef) -> Result<&TimestampMicrosecondArray> {
    column
        .as_primitive_opt::<TimestampMicrosecondType>()
        .ok_or_else(|| Error::internal("a column of event time is no timestamp"))
}

/// The changes whose event time is not past, and those that are late. A change without one is never late.
///
/// # Errors
/// None but a fault of the planner.
pub(crate) fn divide(chunk: Chunk, column: usize, before: Watermark) -> Result<(Option<Chunk>, Option<Chunk>)> {
    if before == Watermark::NONE {
        return Ok((Some(chunk), None));
    }
    let times = values(chunk.column(column))?;
    let late: BooleanArray = times.iter().map(|time| Some(time.is_some_and(|time| before.is_past(time)))).collect();
    divide_by(chunk, &late)
}

/// The changes of a chunk that are not late, and those that are; `late` says it of each.
///
/// # Errors
/// None but a fault of the caller.
pub(crate) fn divide_by(chunk: Chunk, late: &BooleanArray) -> Result<(Option<Chunk>, Option<Chunk>)> {
    match late.true_count() {
        0 => Ok((Some(chunk), None)),
        all if all == chunk.rows() => Ok((None, Some(chunk))),
        _ => Ok((pick(&chunk, &not(late)?)?, pick(&chunk, late)?)),
    }
}

fn pick(chunk: &Chunk, wanted: &BooleanArray) -> Result<Option<Chunk>> {
    let rows = filter_record_batch(chunk.batch(), wanted)?;
    let parts = match chunk.diffs() {
        None => Chunk::inserts(&rows),
        Some(diffs) => Chunk::changes(&rows, filter(diffs, wanted)?.as_primitive::<Int64Type>()),
    };
    Ok(parts.into_iter().next())
}

/// Late changes as rows of a job's relation of them.
///
/// # Errors
/// When a value cannot be printed.
pub(crate) fn late_rows(operator: &str, closing: &Closing, late: &Chunk, before: Watermark) -> Result<Chunk> {
    let time = &closing.time;
    let times = values(late.column(closing.column))?;
    let ends: Vec<Option<i64>> = times.iter().map(|value| value.map(|value| value.saturating_add(time.end))).collect();
    let starts = ends.iter().map(|end| Some(end.as_ref()?.saturating_sub(time.size.filter(|size| *size > 0)?)));
    // As the end of the last window that was over.
    let before = Some(before).filter(|before| *before != Watermark::END).map(Watermark::as_micros);
    let before = before.map(|before| before.saturating_add(time.end));
    let zoned = |times: TimestampMicrosecondArray| -> ArrayRef { Arc::new(times.with_timezone("UTC")) };
    let (objects, values) = (JsonObjects::new(&late.schema()), JsonObjects::columns(late.batch())?);
    let (mut operators, mut rows, mut text) = (StringBuilder::new(), StringBuilder::new(), Vec::new());
    for row in 0..late.rows() {
        text.clear();
        objects.print(&values, row, &mut text);
        operators.append_value(operator);
        rows.append_value(String::from_utf8_lossy(&text));
    }
    let columns: Vec<ArrayRef> = vec![
        Arc::new(operators.finish()),
        zoned(starts.collect()),
        zoned(ends.iter().copied().collect()),
        zoned(std::iter::repeat_n(before, late.rows()).collect()),
        Arc::new(Int64Array::from_iter_values((0..late.rows()).map(|row| late.diff(row)))),
        Arc::new(rows.finish()),
    ];
    let batch = RecordBatch::try_new(late_rows_schema(), columns)?;
    Chunk::inserts(&batch).into_iter().next().ok_or_else(|| Error::internal("rows are late, and there are none"))
}
