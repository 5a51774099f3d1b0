//! What the grammar takes and PostgreSQL does not: calls and lists of the wrong length, joins without a condition, parts of
//! times that there are none of. Each error has its place.

use std::ops::ControlFlow;

use sqlparser::ast::{
    Cte, DateTimeField, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, JoinConstraint, JoinOperator,
    ObjectName, Query, Select, SelectItem, SetExpr, Spanned, TableAlias, TableFactor, Value, Visit, Visitor,
};

use super::reader::fold;
use super::scope_checks::is_aggregate;
use super::set_functions::is_set;
use super::temporal_join::VERSIONS;
use super::tokens::position;
use super::windows::is_window;
use crate::types::{Error, Result, SqlState};

/// Checks a statement or a query.
///
/// # Errors
/// Of class 42, and 22023 for parts of times.
pub(crate) fn check<T: Visit>(statement: &T) -> Result<()> {
    match statement.visit(&mut Checks) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Checks;

fn stop(code: SqlState, message: String, hint: &str, at: Option<usize>) -> ControlFlow<Error> {
    ControlFlow::Break(Error::new(code, message).hint(hint).position_or(at))
}

impl Visitor for Checks {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Error> {
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            check_cte(cte)?;
        }
        if let SetExpr::Values(values) = query.body.as_ref() {
            let width = values.rows.first().map_or(0, |row| row.content.len());
            if let Some(row) = values.rows.iter().find(|row| row.content.len() != width) {
                let at = row.content.first().and_then(|value| position(value.span()));
                let message = "VALUES lists must all be the same length".to_owned();
                return stop(SqlState::SyntaxError, message, "Give each row the same number of values.", at);
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<Error> {
        for join in select.from.iter().flat_map(|from| &from.joins) {
            if let JoinOperator::Join(JoinConstraint::None)
            | JoinOperator::Inner(JoinConstraint::None)
            | JoinOperator::Left(JoinConstraint::None)
            | JoinOperator::LeftOuter(JoinConstraint::None)
            | JoinOperator::Right(JoinConstraint::None)
            | JoinOperator::RightOuter(JoinConstraint::None)
            | JoinOperator::FullOuter(JoinConstraint::None) = &join.join_operator
            {
                let at = position(join.relation.span());
                let message = "syntax error: a JOIN without ON or USING".to_owned();
                return stop(SqlState::SyntaxError, message, "Add ON condition, or write CROSS JOIN.", at);
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<Error> {
        match factor {
            TableFactor::Table { name, args: Some(call), .. } => check_table_function(name, call.args.len()),
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<Error> {
        match expression {
            Expr::Function(function) => check_call(function),
            Expr::Extract { field: DateTimeField::Custom(part), .. } if !is_part(&part.value) => {
                unknown_unit(&part.value, position(part.span))
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

fn check_cte(cte: &Cte) -> ControlFlow<Error> {
    check_columns(&cte.alias, &cte.query)
}

/// How many columns a query has, where its text alone tells.
fn width(query: &Query) -> Option<usize> {
    match query.body.as_ref() {
        SetExpr::Values(values) => values.rows.first().map(|row| row.content.len()),
        SetExpr::Select(select) => {
            let plain =
                |item: &SelectItem| matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. });
            select.projection.iter().all(plain).then_some(select.projection.len())
        }
        _ => None,
    }
}

fn check_columns(alias: &TableAlias, query: &Query) -> ControlFlow<Error> {
    let named = alias.columns.len();
    match width(query) {
        Some(width) if named > width => {
            let name = fold(&alias.name);
            let message = format!("WITH query \"{name}\" has {width} columns available but {named} columns specified");
            let hint = "Name as many columns as the query has.";
            stop(SqlState::InvalidColumnReference, message, hint, position(alias.name.span))
        }
        _ => ControlFlow::Continue(()),
    }
}

fn check_table_function(name: &ObjectName, arguments: usize) -> ControlFlow<Error> {
    // Names in several parts are those of the catalog.
    let [part] = name.0.as_slice() else { return ControlFlow::Continue(()) };
    let called = part.as_ident().map(fold).unwrap_or_default();
    let known = match called.as_str() {
        "generate_series" => matches!(arguments, 2 | 3),
        "range" | "unnest" | VERSIONS => true,
        called => is_window(called) || is_set(name) || called.starts_with("pg_") || called.starts_with("_pg_"),
    };
    if known {
        return ControlFlow::Continue(());
    }
    let hint = match called.as_str() {
        "generate_series" => "Write generate_series(first, last) or generate_series(first, last, step).",
        _ => "The functions in FROM are generate_series(), unnest(), jsonb_array_elements() and those of windows.",
    };
    let message = format!("function {called}() of {arguments} arguments does not exist in FROM");
    stop(SqlState::UndefinedFunction, message, hint, position(name.span()))
}

fn check_call(function: &Function) -> ControlFlow<Error> {
    let FunctionArguments::List(list) = &function.args else { return ControlFlow::Continue(()) };
    let name = function.name.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default();
    let at = || position(function.name.span());
    let wildcard = |argument: &FunctionArg| {
        matches!(argument, FunctionArg::Unnamed(FunctionArgExpr::Wildcard | FunctionArgExpr::QualifiedWildcard(_)))
    };
    if is_aggregate(function) {
        let wild = list.args.iter().any(wildcard);
        let (code, message) = match (name.as_str(), list.args.len()) {
            ("count", 0) => (
                SqlState::WrongObjectType,
                "count(*) must be used to call a parameterless aggregate function".to_owned(),
            ),
            ("count", 1) => return ControlFlow::Continue(()),
            (_, _) if wild => (SqlState::UndefinedFunction, format!("function {name}(*) does not exist")),
            _ => return ControlFlow::Continue(()),
        };
        return stop(code, message, "Write count(*) to count rows, or name a column.", at());
    }
    if matches!(name.as_str(), "date_trunc" | "date_part")
        && let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(unit)))) = list.args.first()
        && let Value::SingleQuotedString(text) = &unit.value
        && !is_part(text)
    {
        return unknown_unit(text, position(unit.span));
    }
    ControlFlow::Continue(())
}

/// True for the name of a part of a time.
fn is_part(name: &str) -> bool {
    const PARTS: &[&str] = &[
        "c",
        "cent",
        "century",
        "centuries",
        "d",
        "day",
        "days",
        "dec",
        "decade",
        "decades",
        "decs",
        "dow",
        "doy",
        "epoch",
        "h",
        "hour",
        "hours",
        "hr",
        "hrs",
        "isodow",
        "isoyear",
        "julian",
        "m",
        "microsecond",
        "microseconds",
        "mil",
        "millennia",
        "millennium",
        "millisecond",
        "milliseconds",
        "mils",
        "min",
        "mins",
        "minute",
        "minutes",
        "mon",
        "mons",
        "month",
        "months",
        "ms",
        "msec",
        "msecond",
        "mseconds",
        "msecs",
        "nanosecond",
        "nanoseconds",
        "qtr",
        "quarter",
        "quarters",
        "s",
        "sec",
        "second",
        "seconds",
        "secs",
        "timezone",
        "timezone_hour",
        "timezone_minute",
        "us",
        "usec",
        "usecond",
        "useconds",
        "usecs",
        "w",
        "week",
        "weeks",
        "y",
        "year",
        "years",
        "yr",
        "yrs",
    ];
    PARTS.contains(&name.trim().to_lowercase().as_str())
}

fn unknown_unit(name: &str, at: Option<usize>) -> ControlFlow<Error> {
    let message = format!("unit \"{name}\" not recognized");
    let hint = "The units are microseconds, milliseconds, second, minute, hour, day, week, month, quarter, year, decade, century, millennium; extract() has dow, doy, isodow, isoyear, julian and epoch too.";
    stop(SqlState::InvalidParameterValue, message, hint, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::parser::parse_query;

    #[test]
    fn errors_have_their_places() {
        for (text, code, word) in [
            ("SELECT sum(*) FROM t", SqlState::UndefinedFunction, "sum"),
            ("SELECT count() FROM t", SqlState::WrongObjectType, "count"),
            ("SELECT count(*, 1) FROM t", SqlState::UndefinedFunction, "count"),
            ("SELECT * FROM t JOIN u", SqlState::SyntaxError, "u"),
            ("SELECT * FROM generate_series(1)", SqlState::UndefinedFunction, "generate_series"),
            ("SELECT * FROM nosuch(1)", SqlState::UndefinedFunction, "nosuch"),
            ("SELECT extract(nosuch FROM at) FROM t", SqlState::InvalidParameterValue, "nosuch"),
            ("SELECT date_trunc('nosuch', at) FROM t", SqlState::InvalidParameterValue, "'nosuch'"),
            ("WITH x (a, b) AS (SELECT 1) SELECT * FROM x", SqlState::InvalidColumnReference, "x (a"),
            ("VALUES (1), (2, 3)", SqlState::SyntaxError, "2, 3"),
        ] {
            let error = check(parse_query(text).expect(text).as_ref()).expect_err(text);
            assert_eq!(error.code(), code, "{text}");
            let at = error.position_at().expect(text);
            assert!(text.chars().skip(at - 1).collect::<String>().starts_with(word), "{text}: {at}");
        }
        for text in ["SELECT count(*), count(t.*) FROM t CROSS JOIN u", "SELECT * FROM generate_series(1, 2) AS g(n)"] {
            check(parse_query(text).expect(text).as_ref()).expect(text);
        }
    }
}
