//! Where NOT IN over a subquery may stand.
//!
//! `x NOT IN (SELECT …)` is not true when the subquery has a NULL. DataFusion keeps to that where the test
//! stands by itself in WHERE, over a column, with a subquery that stands by itself; elsewhere its plan
//! forgets the NULL and answers wrongly. Those places are refused.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, LogicalPlan};

use super::errors::{from_datafusion, to_datafusion};
use crate::types::{Error, Result};

/// Looks through a plan that was not optimised yet, subqueries included.
///
/// # Errors
/// 0A000 for a NOT IN that would be answered wrongly.
pub(crate) fn check(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        let tests: Vec<Expr> = match node {
            LogicalPlan::Filter(filter) => split_conjunction(&filter.predicate).into_iter().cloned().collect(),
            other => other.expressions(),
        };
        let in_filter = matches!(node, LogicalPlan::Filter(_));
        for test in &tests {
            if !(in_filter && stands_by_itself(test)) && denies_in(test)? {
                return Err(to_datafusion(
                    Error::unsupported("NOT IN (SELECT …) is not supported in this place").hint(
                        "Let it stand by itself in WHERE over a column, or write NOT EXISTS (SELECT 1 FROM … WHERE …).",
                    ),
                ));
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map(|_| ())
    .map_err(|error| from_datafusion(&error))
}

fn stands_by_itself(test: &Expr) -> bool {
    let Expr::InSubquery(test) = test else { return false };
    test.negated && test.expr.any_column_refs() && test.subquery.outer_ref_columns.is_empty()
}

/// True when a NOT IN is somewhere in the expression.
fn denies_in(test: &Expr) -> Result<bool, DataFusionError> {
    test.exists(|part| match part {
        Expr::InSubquery(test) => Ok(test.negated),
        Expr::Not(inner) => inner.exists(|part| Ok(matches!(part, Expr::InSubquery(_)))),
        _ => Ok(false),
    })
}
