//! Rows for DataFusion: pages of a pinned relation, one part a worker; a connector's rows from start
//! to end.

use std::fmt;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::{RecordBatchReceiverStream, RecordBatchStreamAdapter};
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};

use crate::exec::source::{Offset, Read, Source};
use crate::sql::to_datafusion;
use crate::types::{CHUNK_ROWS_MAX, RelationId, Result};

use super::coordinator::{PageRequest, Pin};

/// Batches that a connector's thread reads ahead.
const BATCHES_AHEAD_MAX: usize = 2;

/// What to read of a pinned relation.
pub(crate) struct Kept {
    /// The time.
    pub(crate) pin: Arc<Pin>,
    /// Number of workers.
    pub(crate) workers: usize,
    /// The relation.
    pub(crate) relation: RelationId,
    /// Its columns.
    pub(crate) schema: SchemaRef,
    /// Which of them.
    pub(crate) columns: Vec<usize>,
    /// Over its columns.
    pub(crate) predicate: Option<Arc<dyn PhysicalExpr>>,
    /// Only rows with these keys.
    pub(crate) keys: Option<RecordBatch>,
    /// At most so many rows are needed.
    pub(crate) limit: Option<usize>,
}

/// A scan of a relation whose rows the workers keep.
///
/// # Errors
/// None but a fault of the program.
pub(crate) fn kept(kept: Kept) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
    let schema: SchemaRef = Arc::new(kept.schema.project(&kept.columns)?);
    // The workers always give a column, so that a batch says how many rows it has.
    let projection = if kept.columns.is_empty() { vec![0] } else { kept.columns };
    let page_rows = match kept.limit {
        Some(limit) if kept.predicate.is_none() => limit.clamp(1, CHUNK_ROWS_MAX),
        _ => CHUNK_ROWS_MAX,
    };
    let request = PageRequest { relation: kept.relation, projection, predicate: kept.predicate, rows_max: page_rows };
    let part = |of: Part| -> Arc<dyn PartitionStream> {
        Arc::new(KeptPart { pin: Arc::clone(&kept.pin), schema: Arc::clone(&schema), request: request.clone(), of })
    };
    let parts = match kept.keys {
        Some(keys) => vec![part(Part::Keys(keys))],
        None => (0..kept.workers).map(|worker| part(Part::Worker(worker))).collect(),
    };
    let plan = StreamingTableExec::try_new(Arc::clone(&schema), parts, None, [], false, kept.limit)?;
    Ok(Arc::new(plan))
}

/// A scan of a connector's rows, from start to end.
///
/// # Errors
/// None but a fault of the program.
pub(crate) fn external(
    source: Arc<dyn Source>,
    columns: Vec<usize>,
    limit: Option<usize>,
) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
    let schema: SchemaRef = Arc::new(source.schema().project(&columns)?);
    let part = Arc::new(ExternalPart { source, columns, schema: Arc::clone(&schema) });
    Ok(Arc::new(StreamingTableExec::try_new(schema, vec![part], None, [], false, limit)?))
}

#[derive(Clone)]
enum Part {
    Worker(usize),
    Keys(RecordBatch),
}

struct KeptPart {
    pin: Arc<Pin>,
    schema: SchemaRef,
    request: PageRequest,
    of: Part,
}

impl fmt::Debug for KeptPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptPart").field("relation", &self.request.relation).finish_non_exhaustive()
    }
}

/// Where a part's stream stands.
enum Next {
    Page(Option<Vec<u8>>),
    End,
}

impl PartitionStream for KeptPart {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (pin, request, schema, of) =
            (Arc::clone(&self.pin), self.request.clone(), Arc::clone(&self.schema), self.of.clone());
        let pages = futures::stream::try_unfold(Next::Page(None), move |next| {
            let (pin, request, schema, of) = (Arc::clone(&pin), request.clone(), Arc::clone(&schema), of.clone());
            async move {
                let Next::Page(start) = next else {
                    return Ok(None);
                };
                let (rows, next) = match of {
                    Part::Worker(worker) => {
                        let page = pin.page(&request, worker, start).await.map_err(to_datafusion)?;
                        let next = page.next.map_or(Next::End, |next| Next::Page(Some(next)));
                        (page.rows, next)
                    }
                    Part::Keys(keys) if keys.num_rows() == 0 => return Ok(None),
                    Part::Keys(keys) => (pin.lookup(&request, &keys).await.map_err(to_datafusion)?, Next::End),
                };
                Ok(Some((with_schema(&rows, &schema)?, next)))
            }
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), pages))
    }
}

/// The first columns of a batch under the schema that the plan promised.
pub(crate) fn with_schema(rows: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, DataFusionError> {
    let columns = rows.columns().iter().take(schema.fields().len()).cloned().collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

struct ExternalPart {
    source: Arc<dyn Source>,
    columns: Vec<usize>,
    schema: SchemaRef,
}

impl fmt::Debug for ExternalPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalPart").finish_non_exhaustive()
    }
}

impl PartitionStream for ExternalPart {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut builder = RecordBatchReceiverStream::builder(Arc::clone(&self.schema), BATCHES_AHEAD_MAX);
        let sender = builder.tx();
        let (source, columns) = (Arc::clone(&self.source), self.columns.clone());
        builder.spawn_blocking(move || {
            let mut reader = source.open(Offset::default(), None).map_err(to_datafusion)?;
            loop {
                match reader.read(CHUNK_ROWS_MAX).map_err(to_datafusion)? {
                    Read::End => return Ok(()),
                    Read::Rows { rows, end: _ } => {
                        // The reader of the rows is gone: the statement is over.
                        if sender.blocking_send(Ok(rows.project(&columns)?)).is_err() {
                            return Ok(());
                        }
                    }
                }
            }
        });
        builder.build()
    }
}
