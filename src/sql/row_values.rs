//! `(a, b) IN (SELECT …)`: the planner knows one column on each side.
//!
//! As a condition of WHERE or HAVING it says that there is an equal row, NULL and false being the same there. In other
//! places the difference shows, and they are refused.

use std::ops::ControlFlow;

use sqlparser::ast::{BinaryOperator, Expr, Ident, Query, Select, SetExpr, Spanned, TableFactor, VisitMut, VisitorMut};

use super::parser::parse_expression_of_program;
use super::tokens::position;
use crate::types::{Error, Result};

/// Puts what they mean in the place of such tests.
///
/// # Errors
/// 0A000 for those in other places.
pub(crate) fn rewrite(query: &mut Query) -> Result<()> {
    match query.visit(&mut Rows) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Rows;

impl VisitorMut for Rows {
    type Break = Error;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        for condition in select.selection.iter_mut().chain(&mut select.having) {
            if let Err(error) = condition_with_rows(condition) {
                return ControlFlow::Break(error);
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<Error> {
        if let Expr::InSubquery { expr, .. } = &*expression
            && matches!(bare(expr), Expr::Tuple(_))
        {
            let error = Error::unsupported("a row of values with IN (SELECT …) is not supported in this place").hint(
                "Let it stand by itself in WHERE without NOT, or write [NOT] EXISTS (SELECT 1 FROM … WHERE x = a AND y = b).",
            );
            return ControlFlow::Break(error.position_or(position(expr.span())));
        }
        ControlFlow::Continue(())
    }
}

fn bare(expression: &Expr) -> &Expr {
    match expression {
        Expr::Nested(inner) => bare(inner),
        other => other,
    }
}

fn condition_with_rows(condition: &mut Expr) -> Result<()> {
    match condition {
        Expr::Nested(inner) => condition_with_rows(inner),
        Expr::BinaryOp { left, op: BinaryOperator::And | BinaryOperator::Or, right } => {
            condition_with_rows(left)?;
            condition_with_rows(right)
        }
        Expr::InSubquery { expr, subquery, negated: false } => {
            let Expr::Tuple(values) = bare(expr) else { return Ok(()) };
            let exists = exists(values, subquery)?;
            *condition = exists;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A subquery's row that equals the values exists.
fn exists(values: &[Expr], rows: &Query) -> Result<Expr> {
    let names: Vec<String> = (1..=values.len()).map(|column| format!("clink_column_{column}")).collect();
    let text = format!("EXISTS (SELECT 1 FROM (SELECT 1) AS clink_rows ({}))", names.join(", "));
    let mut exists = parse_expression_of_program(&text)?;
    let lost = || Error::internal("a test for a row is lost");
    let Expr::Exists { subquery, .. } = &mut exists else { return Err(lost()) };
    let SetExpr::Select(select) = subquery.body.as_mut() else { return Err(lost()) };
    if let Some(TableFactor::Derived { subquery, .. }) = select.from.first_mut().map(|from| &mut from.relation) {
        **subquery = rows.clone();
    }
    let equal = values.iter().zip(names).map(|(value, name)| Expr::BinaryOp {
        left: Box::new(Expr::Identifier(Ident::new(name))),
        op: BinaryOperator::Eq,
        right: Box::new(Expr::Nested(Box::new(value.clone()))),
    });
    select.selection = equal.reduce(|left, right| Expr::BinaryOp {
        left: Box::new(left),
        op: BinaryOperator::And,
        right: Box::new(right),
    });
    Ok(exists)
}
