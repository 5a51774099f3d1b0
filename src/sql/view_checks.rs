//! What a SELECT can do and a materialized view cannot (yet), refused with its place in the query.

use std::ops::ControlFlow;

use sqlparser::ast::{
    Distinct, Expr, Function, GroupByExpr, Query, Select, SetExpr, SetOperator, SetQuantifier, Spanned, TableFactor,
    Visit, Visitor,
};
use sqlparser::tokenizer::Span;

use super::reader::fold;
use super::tokens::position;
use crate::types::{Error, Result};

/// Checks a view's own query; the plain views in it are checked when the plan is lowered.
pub(crate) fn check(query: &Query) -> Result<()> {
    match query.visit(&mut Checks) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// The error for something that a view cannot keep current.
pub(crate) fn refuse(what: &str, hint: &str) -> Error {
    Error::unsupported(format!("{what} in a materialized view is not supported")).hint(hint)
}

pub(crate) const JOIN_HINT: &str = "Make a materialized view of each side and join them in a SELECT.";
pub(crate) const SUBQUERY_HINT: &str = "Make a materialized view of the subquery and combine the two in a SELECT.";
pub(crate) const WINDOW_HINT: &str = "Aggregate with GROUP BY, or use the window function in a SELECT over the view.";
pub(crate) const LIMIT_HINT: &str = "Leave LIMIT out and write it in the SELECT that reads the view.";
pub(crate) const TIME_HINT: &str =
    "Store the time in a column, or compare with now() in the SELECT that reads the view.";
pub(crate) const VOLATILE_HINT: &str = "Store the value in a column of the table.";
pub(crate) const GROUPING_HINT: &str = "Make one view for each grouping, or UNION ALL of several GROUP BY.";

/// Functions whose value is the time of the statement.
pub(crate) const TIME_FUNCTIONS: &[&str] = &[
    "now",
    "current_timestamp",
    "current_date",
    "current_time",
    "localtimestamp",
    "localtime",
    "today",
    "statement_timestamp",
    "transaction_timestamp",
    "clock_timestamp",
];

struct Checks;

fn stop(error: Error, span: Span) -> ControlFlow<Error> {
    ControlFlow::Break(error.position_or(position(span)))
}

impl Visitor for Checks {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Error> {
        if let Some(limit) = &query.limit_clause {
            return stop(refuse("LIMIT or OFFSET", LIMIT_HINT), limit.span());
        }
        if let Some(fetch) = &query.fetch {
            let span = fetch.quantity.as_ref().map_or_else(|| query.span(), Spanned::span);
            return stop(refuse("FETCH", LIMIT_HINT), span);
        }
        if query.with.as_ref().is_some_and(|with| with.recursive) {
            return stop(refuse("WITH RECURSIVE", "Recurse in a SELECT over materialized views."), query.span());
        }
        check_set(&query.body)
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<Error> {
        if let Some(second) = select.from.get(1) {
            return stop(refuse("a join", JOIN_HINT), second.span());
        }
        if let Some(join) = select.from.iter().find_map(|table| table.joins.first()) {
            return stop(refuse("a join", JOIN_HINT), join.relation.span());
        }
        if let Some(Distinct::On(expressions)) = &select.distinct {
            let span = expressions.first().map_or(select.select_token.0.span, Spanned::span);
            return stop(refuse("DISTINCT ON", "Aggregate with GROUP BY and min() or max()."), span);
        }
        if let GroupByExpr::Expressions(expressions, modifiers) = &select.group_by {
            let nested = expressions
                .iter()
                .find(|expression| matches!(expression, Expr::GroupingSets(_) | Expr::Cube(_) | Expr::Rollup(_)));
            if let Some(expression) = nested {
                return stop(refuse("GROUPING SETS, ROLLUP or CUBE", GROUPING_HINT), expression.span());
            }
            if !modifiers.is_empty() {
                return stop(refuse("GROUPING SETS, ROLLUP or CUBE", GROUPING_HINT), select.group_by.span());
            }
        }
        if let Some(expression) = &select.qualify {
            return stop(refuse("QUALIFY", WINDOW_HINT), expression.span());
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<Error> {
        match factor {
            TableFactor::Table { args: None, .. } => ControlFlow::Continue(()),
            TableFactor::Derived { lateral: false, .. } => ControlFlow::Continue(()),
            TableFactor::NestedJoin { table_with_joins, .. } if table_with_joins.joins.is_empty() => {
                ControlFlow::Continue(())
            }
            TableFactor::NestedJoin { .. } => stop(refuse("a join", JOIN_HINT), factor.span()),
            TableFactor::UNNEST { .. } => {
                stop(refuse("UNNEST", "Unnest in the SELECT that reads the view."), factor.span())
            }
            _ => stop(refuse("a table function or LATERAL", "Name a table or a view in FROM."), factor.span()),
        }
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<Error> {
        match expression {
            Expr::InSubquery { .. } => stop(refuse("IN (SELECT …)", SUBQUERY_HINT), expression.span()),
            Expr::Exists { subquery, .. } => stop(refuse("EXISTS", SUBQUERY_HINT), subquery.span()),
            Expr::Subquery(query) => stop(refuse("a scalar subquery", SUBQUERY_HINT), query.span()),
            Expr::Function(function) => check_function(function),
            _ => ControlFlow::Continue(()),
        }
    }
}

fn check_set(body: &SetExpr) -> ControlFlow<Error> {
    if let SetExpr::SetOperation { op, set_quantifier, left, right } = body {
        match op {
            SetOperator::Union => {}
            SetOperator::Intersect => {
                return stop(
                    refuse("INTERSECT", "Combine materialized views with INTERSECT in a SELECT."),
                    right.span(),
                );
            }
            SetOperator::Except | SetOperator::Minus => {
                return stop(refuse("EXCEPT", "Combine materialized views with EXCEPT in a SELECT."), right.span());
            }
        }
        if matches!(set_quantifier, SetQuantifier::ByName | SetQuantifier::AllByName | SetQuantifier::DistinctByName) {
            return stop(refuse("UNION BY NAME", "List the columns in the same order on both sides."), right.span());
        }
        check_set(left)?;
        check_set(right)?;
    }
    ControlFlow::Continue(())
}

fn check_function(function: &Function) -> ControlFlow<Error> {
    if function.over.is_some() {
        return stop(refuse("a window function", WINDOW_HINT), function.name.span());
    }
    let name = function.name.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default();
    if TIME_FUNCTIONS.contains(&name.as_str()) {
        return stop(refuse(&format!("{name}()"), TIME_HINT), function.name.span());
    }
    ControlFlow::Continue(())
}
