//! What the grammar of queries takes and the planner would pass over in silence: refused by name.

use std::ops::ControlFlow;

use sqlparser::ast::{
    Expr, Function, Query, Select, SetExpr, SetOperator, SetQuantifier, Spanned, TableFactor, Visit, Visitor,
};

use super::form_checks;
use super::reader::fold;
use super::tokens::position;
use crate::types::{Error, Result, SqlState};

struct Checks;

impl Visitor for Checks {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Error> {
        let at = position(query.span());
        let refuse = |what: &str, hint: &str| {
            ControlFlow::Break(Error::unsupported(format!("{what} is not supported")).hint(hint).position_or(at))
        };
        if !query.locks.is_empty() {
            return refuse("FOR UPDATE or FOR SHARE", "Leave it out: a SELECT reads one consistent time.");
        }
        if let Some(fetch) = &query.fetch
            && (fetch.percent || fetch.with_ties)
        {
            return refuse("FETCH with PERCENT or WITH TIES", "Write LIMIT n.");
        }
        if query.for_clause.is_some() || query.settings.is_some() || query.format_clause.is_some() {
            return refuse("a FOR, SETTINGS or FORMAT clause", "Leave it out.");
        }
        if let SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) = query.body.as_ref() {
            return refuse("a data-modifying statement inside a query", "Send the statements one after another.");
        }
        check_set(&query.body)
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<Error> {
        match expression {
            Expr::Function(function) => check_function(function),
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<Error> {
        let at = position(select.select_token.0.span);
        if select.into.is_some() {
            let error = Error::unsupported("SELECT INTO is not supported")
                .hint("Write CREATE TABLE t (…); INSERT INTO t SELECT ….");
            return ControlFlow::Break(error.position_or(at));
        }
        if select.projection.is_empty() {
            let error = Error::new(SqlState::SyntaxError, "a SELECT without columns is not allowed")
                .hint("Name columns, or write SELECT *.");
            return ControlFlow::Break(error.position_or(at));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<Error> {
        let at = position(factor.span());
        if let TableFactor::Table { with_ordinality, sample, with_hints, partitions, .. } = factor
            && (*with_ordinality || sample.is_some() || !with_hints.is_empty() || !partitions.is_empty())
        {
            let error =
                Error::unsupported("this form of a table in FROM is not supported").hint("Write FROM t [AS alias].");
            return ControlFlow::Break(error.position_or(at));
        }
        ControlFlow::Continue(())
    }
}

/// The planner matches the columns of EXCEPT and INTERSECT by place alone.
fn check_set(body: &SetExpr) -> ControlFlow<Error> {
    let SetExpr::SetOperation { op, set_quantifier, left, right } = body else {
        return ControlFlow::Continue(());
    };
    let what = match op {
        SetOperator::Union => None,
        SetOperator::Intersect => Some("INTERSECT BY NAME"),
        SetOperator::Except | SetOperator::Minus => Some("EXCEPT BY NAME"),
    };
    if let Some(what) = what
        && matches!(set_quantifier, SetQuantifier::ByName | SetQuantifier::AllByName | SetQuantifier::DistinctByName)
    {
        let error = Error::unsupported(format!("{what} is not supported"))
            .hint("List the columns in the same order on both sides.");
        return ControlFlow::Break(error.position_or(position(right.span())));
    }
    check_set(left)?;
    check_set(right)
}

/// Functions that DataFusion answers otherwise than PostgreSQL.
fn check_function(function: &Function) -> ControlFlow<Error> {
    let name = function.name.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default();
    let (what, hint) = match name.as_str() {
        "generate_series" => {
            ("generate_series() outside FROM", "Write SELECT g FROM generate_series(first, last) AS g.")
        }
        "date_format" => ("date_format()", "Write to_char(value, 'YYYY-MM-DD')."),
        _ => return ControlFlow::Continue(()),
    };
    let error = Error::unsupported(format!("{what} is not supported")).hint(hint);
    ControlFlow::Break(error.position_or(position(function.name.span())))
}

/// Checks a query or a statement with queries in it.
///
/// # Errors
/// 0A000 and 42601, with position and hint.
pub(crate) fn check<T: Visit>(statement: &T) -> Result<()> {
    match statement.visit(&mut Checks) {
        ControlFlow::Continue(()) => super::scope_checks::check(statement).and_then(|()| form_checks::check(statement)),
        ControlFlow::Break(error) => Err(error),
    }
}
