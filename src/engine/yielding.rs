//! Lets long computations of a SELECT be interrupted.
//!
//! DataFusion's joins can compute for minutes inside one poll: their inputs are read, so nothing below
//! them waits. A task that never waits cannot be ended, and keeps a thread of the runtime from everything
//! else. So joins and leaves are wrapped: after [`SLICE`] of computing, the wrapper waits once, which
//! reaches the task's top, where it is ended when its statement was cancelled.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{Stream, StreamExt};

/// How long a stream may compute between two waits.
const SLICE: Duration = Duration::from_millis(5);

/// The plan, with joins and leaves that let others have a turn.
///
/// # Errors
/// When the plan cannot be put together again.
pub(crate) fn yielding(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        if node.children().is_empty() || node.name().contains("Join") {
            return Ok(Transformed::yes(Arc::new(Yielding::new(node)) as Arc<dyn ExecutionPlan>));
        }
        Ok(Transformed::no(node))
    })
    .map(|transformed| transformed.data)
}

/// The wrapper's name.
pub(crate) const NAME: &str = "YieldingExec";

#[derive(Debug)]
struct Yielding {
    input: Arc<dyn ExecutionPlan>,
    /// Of what comes through it.
    metrics: ExecutionPlanMetricsSet,
}

impl Yielding {
    fn new(input: Arc<dyn ExecutionPlan>) -> Yielding {
        Yielding { input, metrics: ExecutionPlanMetricsSet::new() }
    }
}

impl DisplayAs for Yielding {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExecutionPlan for Yielding {
    fn name(&self) -> &str {
        NAME
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match children.pop() {
            Some(input) if children.is_empty() => Ok(Arc::new(Yielding::new(input))),
            _ => Err(DataFusionError::Internal("YieldingExec has one input".to_owned())),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, context)?;
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        Ok(Box::pin(Turns { input, computed: Duration::ZERO, metrics }))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// A stream that waits once after each [`SLICE`] of computing.
struct Turns {
    input: SendableRecordBatchStream,
    computed: Duration,
    metrics: BaselineMetrics,
}

impl Stream for Turns {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.computed >= SLICE {
            self.computed = Duration::ZERO;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let start = Instant::now();
        let batch = self.input.poll_next_unpin(cx);
        if batch.is_pending() {
            self.computed = Duration::ZERO;
        } else {
            let elapsed = start.elapsed();
            self.computed += elapsed;
            self.metrics.elapsed_compute().add_duration(elapsed);
        }
        if let Poll::Ready(Some(Ok(batch))) = &batch {
            self.metrics.record_output(batch.num_rows());
        }
        batch
    }
}

impl RecordBatchStream for Turns {
    fn schema(&self) -> SchemaRef {
        self.input.schema()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    #[tokio::test]
    async fn a_join_that_never_ends_by_itself_can_be_left() {
        let context = SessionContext::new();
        let query = "SELECT count(*) FROM generate_series(1, 1000000) AS a(x), generate_series(1, 1000000) AS b(y) \
                     WHERE (x + y) % 7 = 3";
        let frame = context.sql(query).await.expect("plans");
        let plan = yielding(frame.create_physical_plan().await.expect("plans")).expect("wraps");
        let rows = datafusion::physical_plan::collect(plan, context.task_ctx());
        // On the test's one thread: the time limit is only seen when the query gives it a turn.
        assert!(tokio::time::timeout(Duration::from_millis(200), rows).await.is_err());
    }

    #[tokio::test]
    async fn rows_are_those_of_the_plan() {
        let context = SessionContext::new();
        let query =
            "SELECT count(*) FROM generate_series(1, 3000) AS a(x) JOIN generate_series(1, 4000) AS b(y) ON x = y";
        let frame = context.sql(query).await.expect("plans");
        let plan = yielding(frame.create_physical_plan().await.expect("plans")).expect("wraps");
        let batches = datafusion::physical_plan::collect(plan, context.task_ctx()).await.expect("runs");
        let count = arrow::compute::concat_batches(&batches[0].schema(), &batches).expect("one schema");
        let count = arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(count.column(0)).value(0);
        assert_eq!(count, 3_000);
    }
}
