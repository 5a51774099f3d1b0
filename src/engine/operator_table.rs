//! Operators of jobs as relations of a SELECT: `"job/operator"`, and `"job/operator:part"` where its state has parts.
//!
//! Each scan is a read of its own, begun before the query runs: those of one query, and its pin, are of one time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::{TableType, source_as_provider};
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};

use crate::sql;
use crate::types::{Error, Result};

use super::coordinator::{Inside, OperatorRead};
use super::operators::{FoundPart, worker_rows};
use super::relations::Relations;

/// A part of an operator's state.
#[derive(Debug)]
pub(crate) struct OperatorTable {
    found: FoundPart,
    relations: Relations,
}

impl OperatorTable {
    pub(crate) fn new(found: FoundPart, relations: Relations) -> OperatorTable {
        OperatorTable { found, relations }
    }
}

/// The parts of operators that a plan reads, subqueries included, one for each scan.
///
/// # Errors
/// None but a fault of the program.
pub(crate) fn inside_of(plan: &LogicalPlan) -> Result<Vec<Inside>> {
    let mut found = Vec::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Ok(provider) = source_as_provider(&scan.source)
            && let Some(table) = provider.downcast_ref::<OperatorTable>()
        {
            found.push(table.found.inside.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map_err(crate::engine::error_of)?;
    Ok(found)
}

#[async_trait]
impl TableProvider for OperatorTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.found.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        self.relations.refuse_own_changes(&format!("operator \"{}\"", self.found.inside.operator))?;
        let Some(read) = self.relations.take_read(&self.found.inside) else {
            return Err(sql::to_datafusion(read_once()));
        };
        let columns = projection.cloned().unwrap_or_else(|| (0..self.found.schema.fields().len()).collect());
        let schema: SchemaRef = Arc::new(self.found.schema.project(&columns)?);
        let read = Arc::new(read);
        let part = |worker| -> Arc<dyn PartitionStream> {
            let (read, schema, columns) = (Arc::clone(&read), Arc::clone(&schema), columns.clone());
            Arc::new(WorkerPart { read, worker, schema, columns, begun: AtomicBool::new(false) })
        };
        let parts = (0..read.workers()).map(part).collect();
        Ok(Arc::new(StreamingTableExec::try_new(Arc::clone(&schema), parts, None, [], false, limit)?))
    }
}

fn read_once() -> Error {
    Error::unsupported("a query that goes through an operator's rows more than once is not supported")
        .hint("INSERT INTO a table SELECT its rows, and query that.")
}

/// What one worker has.
struct WorkerPart {
    read: Arc<OperatorRead>,
    worker: usize,
    schema: SchemaRef,
    columns: Vec<usize>,
    begun: AtomicBool,
}

impl fmt::Debug for WorkerPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerPart").field("read", &self.read).field("worker", &self.worker).finish_non_exhaustive()
    }
}

impl PartitionStream for WorkerPart {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        if self.begun.swap(true, Ordering::AcqRel) {
            let error = futures::stream::iter([Err(sql::to_datafusion(read_once()))]);
            return Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), error));
        }
        worker_rows(Arc::clone(&self.read), self.worker, Arc::clone(&self.schema), self.columns.clone())
    }
}
