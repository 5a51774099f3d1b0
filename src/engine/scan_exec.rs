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

use crate::catalog::errors_schema;
use crate::connectors::{OnError, SourceTable};
use crate::exec::arrangement::Narrow;
use crate::exec::source::{Offset, Read, ReadRequest, Split};
use crate::sql::to_datafusion;
use crate::types::{CHUNK_ROWS_MAX, Error, RelationId, Result};

use super::bad_rows;
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
    /// Only rows that an index finds, besides; the predicate says it too.
    pub(crate) narrow: Option<Arc<Narrow>>,
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
    let request = PageRequest {
        relation: kept.relation,
        projection,
        predicate: kept.predicate,
        rows_max: page_rows,
        narrow: kept.narrow,
    };
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

/// A scan of a connector's rows, or with `errors` of those that cannot be read, from start to end.
///
/// # Errors
/// 0A000 when the source has no end.
pub(crate) fn external(
    source: SourceTable,
    errors: bool,
    columns: Vec<usize>,
    limit: Option<usize>,
) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
    if !source.source.ends() {
        let error =
            Error::unsupported(format!("a SELECT over a source of connector \"{}\" has no end", source.connector));
        return Err(to_datafusion(error.hint("Make a materialized view over it and SELECT from that.")));
    }
    let all = if errors { errors_schema() } else { source.source.schema() };
    let schema: SchemaRef = Arc::new(all.project(&columns)?);
    let part = Arc::new(ExternalPart { source, errors, columns, schema: Arc::clone(&schema) });
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
                    Part::Keys(keys) => (pin.lookup(&request, &keys, None).await.map_err(to_datafusion)?, Next::End),
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
    source: SourceTable,
    errors: bool,
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
        let (source, errors, columns, schema) =
            (self.source.clone(), self.errors, self.columns.clone(), Arc::clone(&self.schema));
        builder.spawn_blocking(move || {
            let read = |rows: RecordBatch| sender.blocking_send(with_schema(&rows, &schema)).is_ok();
            read_outside(&source, errors, &columns, read).map_err(to_datafusion)
        });
        builder.build()
    }
}

/// Reads all that is there now; `give` says whether more is wanted.
fn read_outside(
    table: &SourceTable,
    errors: bool,
    columns: &[usize],
    mut give: impl FnMut(RecordBatch) -> bool,
) -> Result<()> {
    let wanted: Arc<[usize]> = if errors { Arc::from([]) } else { Arc::from(columns) };
    for Split { id, .. } in table.source.splits(&[])?.found {
        let columns_wanted = Arc::clone(&wanted);
        let request = ReadRequest {
            split: id.clone(),
            from: Offset::default(),
            until: None,
            columns: columns_wanted,
            offsets: false,
        };
        let mut reader = table.source.open(&request)?;
        while let Read::Rows { rows, bad, .. } = reader.read(CHUNK_ROWS_MAX)? {
            if table.on_error == OnError::Fail
                && let Some(first) = bad.first()
            {
                return Err(first.to_error(&id));
            }
            let rows =
                if errors { bad_rows::batch(bad.iter().map(|row| (None, &id, row)))?.project(columns)? } else { rows };
            // The reader of the rows is gone: the statement is over.
            if rows.num_rows() > 0 && !give(rows) {
                return Ok(());
            }
        }
    }
    Ok(())
}
