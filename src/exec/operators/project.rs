//! Computes columns.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use datafusion::physical_expr::PhysicalExpr;

use crate::exec::relation::from_datafusion;
use crate::types::{Chunk, Result};

/// The changes with the columns that the expressions give.
///
/// # Errors
/// What an expression fails with on a row.
pub(crate) fn project(expressions: &[Arc<dyn PhysicalExpr>], schema: &SchemaRef, chunk: &Chunk) -> Result<Chunk> {
    let columns = expressions
        .iter()
        .map(|expression| {
            expression.evaluate(chunk.batch()).and_then(|value| value.into_array(chunk.rows())).map_err(from_datafusion)
        })
        .collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(chunk.rows()));
    Ok(chunk.with_batch(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?))
}
