//! `EXCEPT ALL` and `INTERSECT ALL`: how often a row comes.
//!
//! Of a row that the left side has m times and the right side n times, EXCEPT ALL gives max(m - n, 0) and INTERSECT ALL
//! min(m, n). Equal rows of each side are numbered from one: then the numbered rows of the left that the right has not, or
//! has, are the answer, and each of them is there once. DataFusion plans both as a join that does not count.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, JoinType, NullEquality};
use datafusion::error::Result as DataFusionResult;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::{Distinct, Expr, ExprFunctionExt, Join, LogicalPlan, Projection, Window, try_cast};
use sqlparser::ast::{self, SetExpr, SetOperator, SetQuantifier, Visit, Visitor};

/// The name of the column of numbers, which no user can type.
const NUMBER: &str = "number\u{1}of_equals";

/// Puts counting into the plan of a query, which has not been optimised.
pub(crate) fn counted(query: &ast::Query, plan: LogicalPlan) -> DataFusionResult<LogicalPlan> {
    // Plain views in it have it already.
    if query.visit(&mut Counts).is_continue() {
        return Ok(plan);
    }
    let counted = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Join(join) if is_counting(&join) => Ok(Transformed::yes(numbered(join)?)),
        other => Ok(Transformed::no(other)),
    })?;
    Ok(counted.data)
}

/// Looks for an operation that counts.
struct Counts;

impl Visitor for Counts {
    type Break = ();

    fn pre_visit_query(&mut self, query: &ast::Query) -> ControlFlow<()> {
        fn counts(body: &SetExpr) -> bool {
            match body {
                SetExpr::SetOperation { op, set_quantifier, left, right } => {
                    let all = *set_quantifier == SetQuantifier::All && *op != SetOperator::Union;
                    all || counts(left) || counts(right)
                }
                // Those in parentheses are queries of their own.
                _ => false,
            }
        }
        if counts(&query.body) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Before a plan is optimised only set operations join like this, and those that do not count take the distinct rows
/// of the left.
fn is_counting(join: &Join) -> bool {
    matches!(join.join_type, JoinType::LeftAnti | JoinType::LeftSemi)
        && join.null_equality == NullEquality::NullEqualsNull
        && !matches!(join.left.as_ref(), LogicalPlan::Distinct(Distinct::All(_)))
        && !join.on.iter().any(|(left, _)| matches!(left, Expr::Column(column) if column.name == NUMBER))
}

fn numbered(join: Join) -> DataFusionResult<LogicalPlan> {
    let columns: Vec<Expr> = join.left.schema().iter().map(Expr::from).collect();
    let (left_keys, right_keys): (Vec<Expr>, Vec<Expr>) = join.on.iter().cloned().unzip();
    let left = with_numbers(join.left, left_keys)?;
    let right = with_numbers(join.right, right_keys)?;
    let number = || Expr::Column(Column::new_unqualified(NUMBER));
    let mut on = join.on;
    on.push((number(), number()));
    let joined = Join::try_new(
        Arc::new(left),
        Arc::new(right),
        on,
        join.filter,
        join.join_type,
        join.join_constraint,
        join.null_equality,
        join.null_aware,
    )?;
    Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(LogicalPlan::Join(joined)))?))
}

/// The rows of a plan, those with equal keys numbered in a last column.
fn with_numbers(plan: Arc<LogicalPlan>, keys: Vec<Expr>) -> DataFusionResult<LogicalPlan> {
    let mut columns: Vec<Expr> = plan.schema().iter().map(Expr::from).collect();
    let number = row_number().partition_by(keys).build()?;
    let window = Window::try_new(vec![number], plan)?;
    let (qualifier, field) = window.schema.qualified_field(columns.len());
    let number = Expr::from((qualifier, field));
    // Not the cast that a user writes, which may fail.
    columns.push(try_cast(number, DataType::Int64).alias(NUMBER));
    Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(LogicalPlan::Window(window)))?))
}
