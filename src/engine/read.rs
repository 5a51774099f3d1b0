//! Queries that answer once: plan, choose the time, run.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::{StreamExt, TryStreamExt};
use sqlparser::ast;

use crate::sql;
use crate::types::{Error, RelationId, Result};

use super::coordinator::{Pin, ReadBound};
use super::database::Engine;
use super::operator_table::inside_of;
use super::relations::{Relations, kept_relations};
use super::scan_exec::with_schema;
use super::yielding::yielding;

/// An open query.
pub(crate) struct Opened {
    /// Columns.
    pub(crate) schema: SchemaRef,
    /// The rows.
    pub(crate) rows: SendableRecordBatchStream,
    /// What gives them.
    pub(crate) plan: Arc<dyn ExecutionPlan>,
    /// The pinned time; `None` when the query reads no kept relation.
    pub(crate) pin: Option<Arc<Pin>>,
}

/// A finished query.
pub(crate) struct Collected {
    /// Columns.
    pub(crate) schema: SchemaRef,
    /// The rows.
    pub(crate) batches: Vec<RecordBatch>,
}

impl Collected {
    /// All rows as one batch.
    ///
    /// # Errors
    /// When a column outgrows its offsets.
    pub(crate) fn concat(&self) -> Result<RecordBatch> {
        Ok(arrow::compute::concat_batches(&self.schema, &self.batches)?)
    }
}

/// Plans a query and opens it at one time.
///
/// # Errors
/// Those of planning; those of [`super::coordinator::Coordinator::pin`].
pub(crate) async fn open(
    engine: Arc<Engine>,
    relations: Relations,
    query: Box<ast::Query>,
    bound: ReadBound,
) -> Result<Opened> {
    let state = relations.state();
    let plan = sql::plan_query(&state, &query).await?;
    let (reads, inside) = (kept_relations(&plan)?, inside_of(&plan)?);
    if !reads.is_empty() || !inside.is_empty() {
        let bound = after_sources(&engine, &reads, bound).await?;
        // Operators have no past: what they hold now is read, and all else at the same time.
        let bound = match bound {
            _ if inside.is_empty() => bound,
            ReadBound::At(_) => return Err(no_past()),
            ReadBound::Latest { .. } | ReadBound::Strict | ReadBound::Available => {
                let (time, begun) = engine.coordinator().inspect(&inside).await?;
                relations.set_reads(begun);
                ReadBound::At(time)
            }
        };
        relations.set_pin(Arc::new(engine.coordinator().pin(&reads, bound).await?));
    }
    let physical = state.create_physical_plan(&plan).await.and_then(yielding).map_err(crate::engine::error_of)?;
    let schema = shown_schema(&physical.schema());
    let rows = execute_stream(Arc::clone(&physical), state.task_ctx()).map_err(crate::engine::error_of)?;
    let shown = Arc::clone(&schema);
    let rows = rows.map(move |batch| with_schema(&batch?, &shown));
    let rows = Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&schema), rows));
    Ok(Opened { schema, rows, plan: physical, pin: relations.pin().cloned() })
}

/// A table over a source has what is there now, as if the source were read by this query: the time to read at, then.
///
/// # Errors
/// When a source cannot be read.
pub(crate) async fn after_sources(engine: &Engine, reads: &[RelationId], bound: ReadBound) -> Result<ReadBound> {
    let read = match bound {
        ReadBound::Latest { .. } | ReadBound::Strict => engine.coordinator().sources_read(reads).await?,
        ReadBound::At(_) | ReadBound::Available => None,
    };
    Ok(match (bound, read) {
        (ReadBound::Latest { at_least }, Some(read)) => ReadBound::Latest { at_least: at_least.max(read) },
        (bound, _) => bound,
    })
}

fn no_past() -> Error {
    Error::unsupported("a read of an operator at a time that was chosen before is not supported")
        .hint("Read it first in the transaction block, or outside of one.")
}

/// Columns under the names that the user sees: while planning, no two have one name.
pub(crate) fn shown_schema(schema: &Schema) -> SchemaRef {
    let fields: Vec<Field> =
        schema.fields().iter().map(|field| field.as_ref().clone().with_name(sql::shown_name(field.name()))).collect();
    Arc::new(Schema::new(fields))
}

/// Runs a query to its end.
///
/// # Errors
/// As [`open`], and those of running it.
pub(crate) async fn collect(
    engine: Arc<Engine>,
    relations: Relations,
    query: Box<ast::Query>,
    bound: ReadBound,
) -> Result<Collected> {
    let opened = open(engine, relations, query, bound).await?;
    let batches = opened.rows.try_collect().await.map_err(crate::engine::error_of)?;
    Ok(Collected { schema: opened.schema, batches })
}
