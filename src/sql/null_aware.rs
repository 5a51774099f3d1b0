//! Where NOT IN over a subquery may stand, and what it says in a view.
//!
//! `x NOT IN (SELECT …)` is not true when the subquery has a NULL. DataFusion keeps to that where the test
//! stands by itself in WHERE, over a column, with a subquery that stands by itself; elsewhere its plan
//! forgets the NULL and answers wrongly. Those places are refused.

use std::ops::ControlFlow;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, LogicalPlan};
use sqlparser::ast::{self, VisitMut, VisitorMut};

use super::errors::{from_datafusion, to_datafusion};
use super::parser::parse_expression_of_program;
use crate::types::{Error, Result};

/// Says the NOT INs over subqueries of a standing query in words that are kept current: no row of the subquery is equal,
/// and it has no row at all, or neither side has a NULL.
///
/// # Errors
/// None but a fault of the program.
pub(crate) fn rewrite(query: &mut ast::Query) -> Result<()> {
    match query.visit(&mut NotIn) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct NotIn;

impl VisitorMut for NotIn {
    type Break = Error;

    fn post_visit_expr(&mut self, expression: &mut ast::Expr) -> ControlFlow<Error> {
        let denied = match expression {
            ast::Expr::InSubquery { expr, subquery, negated: true } => Some((&*expr, &*subquery)),
            ast::Expr::UnaryOp { op: ast::UnaryOperator::Not, expr } => match bare(expr) {
                ast::Expr::InSubquery { expr, subquery, negated: false } => Some((expr, subquery)),
                _ => None,
            },
            _ => None,
        };
        let Some((value, subquery)) = denied else { return ControlFlow::Continue(()) };
        let rows = format!("({subquery}) AS clink_not_in (clink_value)");
        let text = format!(
            "(NOT EXISTS (SELECT 1 FROM {rows} WHERE clink_value = ({value})) \
             AND ((SELECT count(*) FROM {rows}) = 0 \
             OR ((SELECT count(*) FROM {rows} WHERE clink_value IS NULL) = 0 AND ({value}) IS NOT NULL)))"
        );
        match parse_expression_of_program(&text) {
            Ok(said) => {
                *expression = said;
                ControlFlow::Continue(())
            }
            Err(error) => ControlFlow::Break(error),
        }
    }
}

fn bare(expression: &ast::Expr) -> &ast::Expr {
    match expression {
        ast::Expr::Nested(inner) => bare(inner),
        other => other,
    }
}

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
