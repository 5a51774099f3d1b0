//! What a SELECT can do and a materialized view cannot (yet), refused with its place in the query.

use std::ops::ControlFlow;

use sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArguments, GroupByExpr, ObjectName, ObjectNamePart, Query, Select, SetExpr,
    SetQuantifier, Spanned, TableFactor, Visit, Visitor,
};
use sqlparser::tokenizer::Span;

use super::reader::fold;
use super::set_functions::is_set;
use super::temporal_join;
use super::tokens::position;
use super::windows;
use crate::types::{Error, Result};

/// Checks a view's own query; the plain views in it are checked when the plan is lowered.
pub(crate) fn check(query: &Query) -> Result<()> {
    match query.visit(&mut Checks::default()) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// The error for something that a view cannot keep current.
pub(crate) fn refuse(what: &str, hint: &str) -> Error {
    Error::unsupported(format!("{what} in a materialized view is not supported")).hint(hint)
}

pub(crate) const SUBQUERY_HINT: &str = "Make a materialized view of the subquery and combine the two in a SELECT.";
pub(crate) const NOT_IN_HINT: &str = "Write NOT EXISTS (SELECT 1 FROM … WHERE …), and say there what a NULL means.";
pub(crate) const ENDING_HINT: &str = "Make a materialized view of that part of the job's query, and let the others stand on it; a SELECT reads the \
     operator as it is.";
pub(crate) const MOMENT_HINT: &str = "A row is joined at its own moment: let the view stand on the job's result.";
pub(crate) const WINDOW_HINT: &str = "Put each window into a subquery of its own.";
pub(crate) const LIMIT_HINT: &str = "Write the number of rows itself.";
pub(crate) const TIME_HINT: &str = "Compare a column with it in WHERE, as in ts > now() - INTERVAL '5 minutes': rows then come and go. Or store the time \
     in a column.";
pub(crate) const VOLATILE_HINT: &str = "Store the value in a column of the table.";
const GROUPING_HINT: &str = "Write GROUP BY ROLLUP (a, b), CUBE (a, b) or GROUPING SETS ((a), (b), ()).";

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

/// The functions that a view may compare columns with.
const CLOCK: &[&str] = &["now", "current_timestamp"];

#[derive(Default)]
struct Checks {
    /// Where the clock is called in a condition that rows come and go by.
    of_filters: Vec<Span>,
}

impl Checks {
    /// Lets the clock be on a side of the comparisons that are joined by AND. Whether they are of a form that can be
    /// followed is seen when the plan is lowered.
    fn allow(&mut self, condition: &Expr) {
        match condition {
            Expr::Nested(inner) => self.allow(inner),
            Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
                self.allow(left);
                self.allow(right);
            }
            Expr::BinaryOp {
                left,
                op: BinaryOperator::Lt | BinaryOperator::LtEq | BinaryOperator::Gt | BinaryOperator::GtEq,
                right,
            } => [left, right].into_iter().for_each(|side| self.allow_side(side)),
            Expr::Between { expr, negated: false, low, high } => {
                [expr, low, high].into_iter().for_each(|side| self.allow_side(side));
            }
            _ => {}
        }
    }

    fn allow_side(&mut self, side: &Expr) {
        match side {
            Expr::Nested(inner) | Expr::Cast { expr: inner, .. } => self.allow_side(inner),
            Expr::BinaryOp { left, op: BinaryOperator::Plus | BinaryOperator::Minus, right } => {
                self.allow_side(left);
                self.allow_side(right);
            }
            Expr::Function(function) if CLOCK.contains(&called(function).as_str()) => {
                self.of_filters.push(function.name.span());
            }
            _ => {}
        }
    }
}

fn stop(error: Error, span: Span) -> ControlFlow<Error> {
    ControlFlow::Break(error.position_or(position(span)))
}

impl Visitor for Checks {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Error> {
        if query.with.as_ref().is_some_and(|with| with.recursive) {
            return stop(refuse("WITH RECURSIVE", "Recurse in a SELECT over materialized views."), query.span());
        }
        check_set(&query.body)
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<Error> {
        select.selection.iter().chain(&select.having).for_each(|condition| self.allow(condition));
        if let GroupByExpr::Expressions(_, modifiers) = &select.group_by
            && !modifiers.is_empty()
        {
            return stop(refuse("WITH ROLLUP, CUBE or TOTALS", GROUPING_HINT), select.group_by.span());
        }
        if let Some(expression) = &select.qualify {
            return stop(
                refuse("QUALIFY", "Put the window function into a subquery and filter around it."),
                expression.span(),
            );
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<Error> {
        match factor {
            TableFactor::Table { args: None, .. } => ControlFlow::Continue(()),
            factor if temporal_join::takes_latest(factor).is_some() => ControlFlow::Continue(()),
            TableFactor::Table { name, args: Some(_), .. } if names_window(name) || is_set(name) => {
                ControlFlow::Continue(())
            }
            TableFactor::Function { name, .. } if is_set(name) => ControlFlow::Continue(()),
            TableFactor::TableFunction { expr: Expr::Function(call), .. } if names_window(&call.name) => {
                ControlFlow::Continue(())
            }
            TableFactor::Derived { lateral: false, .. } => ControlFlow::Continue(()),
            TableFactor::NestedJoin { .. } => ControlFlow::Continue(()),
            TableFactor::UNNEST { .. } | TableFactor::MatchRecognize { .. } => ControlFlow::Continue(()),
            _ => stop(refuse("a table function or LATERAL", "Name a table or a view in FROM."), factor.span()),
        }
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<Error> {
        match expression {
            Expr::Function(function) if self.of_filters.contains(&function.name.span()) => ControlFlow::Continue(()),
            Expr::Function(function) => check_function(function),
            _ => ControlFlow::Continue(()),
        }
    }
}

fn names_window(name: &ObjectName) -> bool {
    matches!(name.0.as_slice(), [ObjectNamePart::Identifier(name)] if windows::is_window(&fold(name)))
}

fn check_set(body: &SetExpr) -> ControlFlow<Error> {
    if let SetExpr::SetOperation { set_quantifier, left, right, .. } = body {
        if matches!(set_quantifier, SetQuantifier::ByName | SetQuantifier::AllByName | SetQuantifier::DistinctByName) {
            return stop(refuse("UNION BY NAME", "List the columns in the same order on both sides."), right.span());
        }
        check_set(left)?;
        check_set(right)?;
    }
    ControlFlow::Continue(())
}

/// A function's name without its schema.
fn called(function: &Function) -> String {
    function.name.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default()
}

fn check_function(function: &Function) -> ControlFlow<Error> {
    let name = called(function);
    if TIME_FUNCTIONS.contains(&name.as_str()) {
        return stop(refuse(&format!("{name}()"), TIME_HINT), function.name.span());
    }
    if name == "age"
        && let FunctionArguments::List(list) = &function.args
        && list.args.len() == 1
    {
        return stop(refuse("age() of one time", TIME_HINT), function.name.span());
    }
    ControlFlow::Continue(())
}
