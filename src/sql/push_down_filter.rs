//! DataFusion's push-down of filters, but for one case.
//!
//! An aggregate over no keys has a row over no rows too. A condition that names no column, such as the one that is left of
//! `t = 'x'` where t is a constant, would be pushed below it and no longer take that row away.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan};
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

/// The rule.
#[derive(Debug, Default)]
pub(crate) struct CarefulPushDownFilter {
    inner: PushDownFilter,
}

impl OptimizerRule for CarefulPushDownFilter {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.inner.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        match &plan {
            LogicalPlan::Filter(filter) if has_own_row(&filter.input) => Ok(Transformed::no(plan)),
            _ => self.inner.rewrite(plan, config),
        }
    }
}

/// True for an aggregate that has a row over no rows.
fn has_own_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(Aggregate { group_expr, .. }) => {
            group_expr.is_empty() || group_expr.iter().any(|key| matches!(key, Expr::GroupingSet(_)))
        }
        _ => false,
    }
}

/// Puts this rule in the place of DataFusion's.
pub(crate) fn replace(rules: &mut [Arc<dyn OptimizerRule + Send + Sync>]) {
    let careful: Arc<dyn OptimizerRule + Send + Sync> = Arc::new(CarefulPushDownFilter::default());
    for rule in rules.iter_mut().filter(|rule| rule.name() == careful.name()) {
        *rule = Arc::clone(&careful);
    }
}
