//! Keeps the rows for which a predicate is true.

use arrow::array::{AsArray, Int64Array};
use arrow::compute::{filter as filter_column, filter_record_batch};
use arrow::datatypes::Int64Type;
use datafusion::physical_expr::PhysicalExpr;

use crate::exec::relation::from_datafusion;
use crate::types::{Chunk, Error, Result};

/// The changes of the rows for which `predicate` is true, not false or NULL, with some of their columns; `None` without any.
///
/// # Errors
/// What the predicate fails with on a row.
pub(crate) fn filter(predicate: &dyn PhysicalExpr, columns: &[usize], chunk: &Chunk) -> Result<Option<Chunk>> {
    let mask =
        predicate.evaluate(chunk.batch()).and_then(|value| value.into_array(chunk.rows())).map_err(from_datafusion)?;
    let mask = mask.as_boolean_opt().ok_or_else(|| Error::internal("a predicate is not boolean"))?;
    let rows = chunk.batch().project(columns)?;
    if mask.true_count() == chunk.rows() {
        return Ok(Some(chunk.with_batch(rows)));
    }
    let rows = filter_record_batch(&rows, mask)?;
    let kept = match chunk.diffs() {
        None => Chunk::inserts(&rows),
        Some(diffs) => {
            let diffs = filter_column(diffs, mask)?;
            let diffs: &Int64Array = diffs.as_primitive::<Int64Type>();
            Chunk::changes(&rows, diffs)
        }
    };
    // One chunk in, at most one out: filtering makes no rows.
    Ok(kept.into_iter().next())
}
