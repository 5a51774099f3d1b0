//! Errors of DataFusion in PostgreSQL's terms: code, message, position, and a hint with the way out.

use std::ops::ControlFlow;

use arrow::error::ArrowError;
use datafusion::common::{Column, SchemaError};
use datafusion::error::DataFusionError;
use sqlparser::ast::{Expr, Ident, ObjectName, OrderByKind, Query, Spanned, Value, ValueWithSpan, Visit, Visitor};

use super::reader::fold;
use super::tokens::position;
use crate::types::{Error, SqlState};

/// Our error on its way through DataFusion; [`from_datafusion`] gets it out again.
pub fn to_datafusion(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// Our error on its way through a kernel.
pub(crate) fn to_arrow(error: Error) -> ArrowError {
    ArrowError::ExternalError(Box::new(error))
}

/// DataFusion's error as ours. Errors of class 42 and 0A always carry a hint.
pub fn from_datafusion(error: &DataFusionError) -> Error {
    with_hint(convert(error))
}

fn with_hint(error: Error) -> Error {
    let class = error.code().code();
    if error.hint_text().is_some() || !(class.starts_with("42") || class.starts_with("0A")) {
        return error;
    }
    let hint = match error.code() {
        SqlState::UndefinedColumn => "Write DESCRIBE t to see a table's columns.",
        SqlState::UndefinedTable => "Write SHOW TABLES or SHOW VIEWS to see what there is.",
        SqlState::UndefinedFunction => "Check the name and the argument types; a cast may be missing.",
        SqlState::GroupingError => "Add the column to GROUP BY, or aggregate it: min(column).",
        SqlState::AmbiguousColumn => "Write the table before the column: t.column.",
        SqlState::DuplicateColumn => "Give each column a name of its own with AS.",
        SqlState::DatatypeMismatch => "Cast one side: column::text.",
        SqlState::FeatureNotSupported => "The documentation of the SQL dialect lists what is supported.",
        _ => "See the documentation of the SQL dialect.",
    };
    error.hint(hint)
}

fn convert(error: &DataFusionError) -> Error {
    match error {
        DataFusionError::External(source) => match source.downcast_ref::<Error>() {
            Some(error) => error.clone(),
            None => match source.downcast_ref::<DataFusionError>() {
                Some(error) => convert(error),
                None => Error::internal(source.to_string()),
            },
        },
        DataFusionError::ArrowError(error, _) => from_arrow(error),
        DataFusionError::Context(_, inner) => convert(inner),
        DataFusionError::Shared(inner) => convert(inner),
        DataFusionError::Diagnostic(diagnostic, inner) => {
            let at = diagnostic.span.map(|span| usize::try_from(span.start.column).unwrap_or(1));
            convert(inner).position_or(at)
        }
        DataFusionError::Collection(errors) => {
            errors.first().map_or_else(|| Error::internal("an error without a cause"), convert)
        }
        DataFusionError::SchemaError(error, _) => from_schema(error),
        DataFusionError::SQL(error, _) => super::reader::parser_error((**error).clone(), 1),
        DataFusionError::NotImplemented(text) => Error::unsupported(first_line(text)),
        DataFusionError::Plan(text) => from_plan(text),
        DataFusionError::Execution(text) => from_execution(text),
        DataFusionError::ResourcesExhausted(text) => Error::new(SqlState::OutOfMemory, first_line(text))
            .hint("Ask for fewer rows, or give the server more with --memory."),
        DataFusionError::Configuration(text) => Error::new(SqlState::InvalidParameterValue, first_line(text)),
        DataFusionError::IoError(error) => Error::new(SqlState::IoError, error.to_string()),
        other => Error::internal(other.to_string()),
    }
}

/// Arrow's error as ours.
pub(crate) fn from_arrow(error: &ArrowError) -> Error {
    match error {
        ArrowError::DivideByZero => Error::new(SqlState::DivisionByZero, "division by zero"),
        ArrowError::ArithmeticOverflow(_) => Error::new(SqlState::NumericOutOfRange, "value out of range"),
        // Arrow words a number that does not fit as a failed cast of a value.
        ArrowError::CastError(text) if text.contains("Can't cast value") => {
            Error::new(SqlState::NumericOutOfRange, "value out of range")
        }
        ArrowError::InvalidArgumentError(text)
            if text.contains("is too large to store") || text.contains("too small to store") =>
        {
            Error::new(SqlState::NumericOutOfRange, "numeric field overflow")
        }
        ArrowError::CastError(text) | ArrowError::ParseError(text) => {
            Error::new(SqlState::InvalidText, first_line(text))
        }
        // Sums of times and intervals beyond what a timestamp holds.
        ArrowError::ComputeError(text) if text == "Timestamp out of range" => {
            Error::new(SqlState::DatetimeOverflow, "timestamp out of range")
        }
        ArrowError::ExternalError(source) => match source.downcast_ref::<Error>() {
            Some(error) => error.clone(),
            None => match source.downcast_ref::<DataFusionError>() {
                Some(error) => convert(error),
                None => Error::internal(source.to_string()),
            },
        },
        other => Error::internal(other.to_string()),
    }
}

fn from_schema(error: &SchemaError) -> Error {
    match error {
        SchemaError::AmbiguousReference { field } => {
            Error::new(SqlState::AmbiguousColumn, format!("column reference \"{}\" is ambiguous", field.name))
        }
        SchemaError::DuplicateQualifiedField { name, .. } | SchemaError::DuplicateUnqualifiedField { name } => {
            Error::new(SqlState::DuplicateColumn, format!("column \"{name}\" specified more than once"))
        }
        SchemaError::FieldNotFound { field, valid_fields } => {
            let shown = spelled(field);
            // A wrong table before the column is what PostgreSQL complains of first.
            if let Some(relation) = &field.relation
                && !valid_fields.is_empty()
                && !valid_fields
                    .iter()
                    .any(|valid| valid.relation.as_ref().is_some_and(|valid| valid.table() == relation.table()))
            {
                return Error::new(
                    SqlState::UndefinedTable,
                    format!("missing FROM-clause entry for table \"{}\"", relation.table()),
                )
                .hint("Add the table to FROM, or write its alias before the column.");
            }
            undefined_column(&shown, valid_fields.iter().map(|field| field.name.as_str()))
        }
    }
}

fn spelled(column: &Column) -> String {
    match &column.relation {
        Some(relation) => format!("{}.{}", relation.table(), column.name),
        None => column.name.clone(),
    }
}

/// 42703, with the near miss or all names that there are.
pub(crate) fn undefined_column<'a>(name: &str, valid: impl Iterator<Item = &'a str> + Clone) -> Error {
    let bare = name.rsplit_once('.').map_or(name, |(_, bare)| bare);
    let error = Error::new(
        SqlState::UndefinedColumn,
        if name == bare {
            format!("column \"{name}\" does not exist")
        } else {
            format!("column {name} does not exist")
        },
    );
    match near_miss(bare, valid.clone()) {
        Some(near) => error.hint(format!("Perhaps you meant to reference the column \"{near}\".")),
        None => {
            let names: Vec<&str> = valid.take(20).collect();
            if names.is_empty() {
                error.hint("There is no table in FROM that could have it.")
            } else {
                error.hint(format!("The columns are {}.", names.join(", ")))
            }
        }
    }
}

/// 42P01, with the near miss.
pub(crate) fn undefined_table<'a>(name: &str, valid: impl Iterator<Item = &'a str>) -> Error {
    let error = Error::new(SqlState::UndefinedTable, format!("relation \"{name}\" does not exist"));
    let bare = name.rsplit_once('.').map_or(name, |(_, bare)| bare);
    match near_miss(bare, valid) {
        Some(near) => error.hint(format!("Perhaps you meant \"{near}\".")),
        None => error.hint("Write SHOW TABLES or SHOW VIEWS to see what there is."),
    }
}

/// The table that DataFusion did not find, when that is what the error says.
pub(crate) fn missing_table(error: &DataFusionError) -> Option<String> {
    let text = match error {
        DataFusionError::Plan(text) => text,
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => {
            return missing_table(inner);
        }
        DataFusionError::Shared(inner) => return missing_table(inner),
        DataFusionError::Collection(errors) => return errors.first().and_then(missing_table),
        _ => return None,
    };
    let name = text.strip_prefix("table '")?.split_once("' not found")?.0;
    let parts: Vec<&str> = name.split('.').collect();
    Some(match parts.as_slice() {
        [.., "public", table] => (*table).to_owned(),
        [.., schema, table] => format!("{schema}.{table}"),
        _ => name.to_owned(),
    })
}

fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().trim_end_matches('.');
    let mut characters = line.chars();
    match (characters.next(), characters.next()) {
        // Leave abbreviations such as SQL alone.
        (Some(first), Some(second)) if second.is_lowercase() || second == ' ' => {
            first.to_lowercase().chain(line.chars().skip(1)).collect()
        }
        _ => line.to_owned(),
    }
}

/// The text between the first `left` and the next `right` after it.
fn between<'a>(text: &'a str, left: &str, right: &str) -> Option<&'a str> {
    text.split_once(left)?.1.split_once(right).map(|(found, _)| found)
}

fn from_plan(text: &str) -> Error {
    if let Some(name) = between(text, "table '", "' not found") {
        return Error::new(SqlState::UndefinedTable, format!("relation \"{name}\" does not exist"));
    }
    if let Some(name) = between(text, "Invalid function '", "'") {
        let error = Error::new(SqlState::UndefinedFunction, format!("function {name}(...) does not exist"));
        return match between(text, "Did you mean '", "'") {
            Some(near) => error.hint(format!("Perhaps you meant {near}.")),
            None => error,
        };
    }
    if let Some(call) = between(text, "No function matches the given name and argument types '", "'") {
        return Error::new(SqlState::UndefinedFunction, format!("function {call} does not exist"))
            .hint("No function matches the given name and argument types. You might need to add explicit type casts.");
    }
    if text.contains("must appear in the GROUP BY clause") {
        let column = between(text, "column \"", "\"").or_else(|| between(text, "expression \"", "\"")).unwrap_or("?");
        return Error::new(
            SqlState::GroupingError,
            format!("column \"{column}\" must appear in the GROUP BY clause or be used in an aggregate function"),
        );
    }
    if let Some(expression) = between(text, "require unique expression names but the expression \"", "\"") {
        let name = expression.rsplit(['.', ' ']).next().unwrap_or(expression);
        return Error::new(SqlState::DuplicateColumn, format!("column \"{name}\" specified more than once"));
    }
    if text.contains("different number of columns") {
        return Error::new(SqlState::SyntaxError, "each set operation's query must have the same number of columns")
            .hint("Give both sides the same number of columns.");
    }
    if text.contains("Inconsistent data length across values list") {
        return Error::new(SqlState::SyntaxError, "VALUES lists must all be the same length")
            .hint("Give each row the same number of values.");
    }
    if let Some(number) = between(text, "Order by column out of bounds, specified: ", ",") {
        return Error::new(
            SqlState::InvalidColumnReference,
            format!("ORDER BY position {number} is not in select list"),
        )
        .hint("A number in ORDER BY counts the SELECT's columns from 1.");
    }
    if text.contains("Cannot find column with position") || text.contains("position") && text.contains("ORDER BY") {
        return Error::new(SqlState::InvalidColumnReference, first_line(text))
            .hint("A number in ORDER BY or GROUP BY counts the SELECT's columns from 1.");
    }
    if text.contains("ggregate function") && text.contains("not allowed") {
        return Error::new(SqlState::GroupingError, first_line(text)).hint("Aggregate in a subquery, or use HAVING.");
    }
    let typing = ["coerce", "common argument type", "type_coercion", "Unsupported", "boolean", "Boolean"];
    if typing.iter().any(|word| text.contains(word)) {
        return Error::new(SqlState::DatatypeMismatch, first_line(text))
            .hint("The types do not fit together. You might need to add explicit type casts, such as column::text.");
    }
    if text.contains("cannot be nested") {
        return Error::new(SqlState::GroupingError, first_line(text))
            .hint("Aggregate in a subquery first: SELECT sum(x) FROM (SELECT sum(y) AS x FROM t GROUP BY z) q.");
    }
    Error::new(SqlState::SyntaxError, first_line(text))
}

fn from_execution(text: &str) -> Error {
    let lower = text.to_lowercase();
    if lower.contains("subquery returned more than one row") {
        return Error::new(
            SqlState::CardinalityViolation,
            "more than one row returned by a subquery used as an expression",
        )
        .hint("Aggregate in the subquery, or give it LIMIT 1.");
    }
    if lower.contains("divide by zero") || lower.contains("division by zero") {
        Error::new(SqlState::DivisionByZero, "division by zero")
    } else if lower.contains("overflow") || lower.contains("out of range") {
        Error::new(SqlState::NumericOutOfRange, first_line(text))
    } else if lower.contains("coercion failed") || lower.contains("signature") || lower.contains("expects") {
        Error::new(SqlState::UndefinedFunction, first_line(text))
    } else {
        Error::new(SqlState::InvalidParameterValue, first_line(text))
    }
}

/// The candidate that is most like `word`, if one is near enough to be a slip of the hand.
pub(crate) fn near_miss<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let bound = (lower.chars().count() / 3).clamp(1, 3);
    candidates
        .map(|candidate| (distance(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= bound)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (line, a) in left.chars().enumerate() {
        let mut diagonal = line;
        let mut last = line + 1;
        let mut next = vec![last];
        for (b, above) in right.iter().zip(row.iter().skip(1)) {
            let replaced = diagonal + usize::from(a != *b);
            last = replaced.min(above + 1).min(last + 1);
            diagonal = *above;
            next.push(last);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

/// Adds the place in the query where the name stands that the message quotes, when it has none.
pub(crate) fn locate<T: Visit>(error: Error, query: &T) -> Error {
    if error.position_at().is_some() {
        return error;
    }
    let message = error.message().to_owned();
    if let Some(number) = between(&message, "ORDER BY position ", " is not") {
        let mut search = OrderSearch { number: number.to_owned(), found: None };
        let _ = query.visit(&mut search);
        return error.position_or(search.found);
    }
    let quoted = between(&message, "\"", "\"")
        .or_else(|| between(&message, "column ", " does not exist"))
        .or_else(|| between(&message, "function ", "("))
        .or_else(|| between(&message, "aggregate ", " in a materialized view"));
    let Some(name) = quoted.map(|name| name.rsplit('.').next().unwrap_or(name).to_owned()) else {
        return error;
    };
    let mut search = Search { name, found: None };
    let _ = query.visit(&mut search);
    error.position_or(search.found)
}

struct Search {
    name: String,
    found: Option<usize>,
}

impl Search {
    fn look(&mut self, identifiers: &[&Ident], at: Option<usize>) -> ControlFlow<()> {
        if identifiers.last().is_some_and(|identifier| fold(identifier) == self.name) {
            self.found = at;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// Looks for a number in an ORDER BY.
struct OrderSearch {
    number: String,
    found: Option<usize>,
}

impl Visitor for OrderSearch {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let Some(OrderByKind::Expressions(expressions)) = query.order_by.as_ref().map(|order| &order.kind) else {
            return ControlFlow::Continue(());
        };
        for key in expressions {
            if let Expr::Value(ValueWithSpan { value: Value::Number(text, _), span }) = &key.expr
                && *text == self.number
            {
                self.found = position(*span);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

impl Visitor for Search {
    type Break = ();

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        let parts: Vec<&Ident> = relation.0.iter().filter_map(|part| part.as_ident()).collect();
        self.look(&parts, position(relation.span()))
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
        match expression {
            Expr::Identifier(identifier) => self.look(&[identifier], position(identifier.span)),
            Expr::CompoundIdentifier(parts) => {
                let at = parts.first().and_then(|part| position(part.span));
                self.look(&parts.iter().collect::<Vec<_>>(), at)
            }
            Expr::Function(function) => {
                let parts: Vec<&Ident> = function.name.0.iter().filter_map(|part| part.as_ident()).collect();
                self.look(&parts, position(function.name.span()))
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_miss_is_a_slip_and_no_more() {
        let names = ["orders", "customers", "id"];
        assert_eq!(near_miss("ordrs", names.into_iter()), Some("orders"));
        assert_eq!(near_miss("ORDERS", names.into_iter()), Some("orders"));
        assert_eq!(near_miss("payments", names.into_iter()), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn our_errors_come_back_out_of_datafusion() {
        let ours = Error::new(SqlState::DivisionByZero, "division by zero");
        let wrapped = DataFusionError::Context("while".into(), Box::new(to_datafusion(ours.clone())));
        assert_eq!(from_datafusion(&wrapped), ours);
        let arrow = DataFusionError::ArrowError(Box::new(to_arrow(ours.clone())), None);
        assert_eq!(from_datafusion(&arrow), ours);
    }
}
