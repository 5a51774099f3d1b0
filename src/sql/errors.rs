//! Errors of DataFusion in PostgreSQL's terms: code, message, position, and a hint with the way out.

use arrow::error::ArrowError;
use datafusion::common::{Column, SchemaError};
use datafusion::error::DataFusionError;

use super::wording::reworded;
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
        SqlState::FeatureNotSupported => {
            "Leave that part out or write it in another way; docs/sql.md lists what is supported."
        }
        _ => "Write that part in another way; EXPLAIN shows whether a query is understood without running it.",
    };
    error.hint(hint)
}

fn convert(error: &DataFusionError) -> Error {
    match error {
        DataFusionError::External(source) => match source.downcast_ref::<Error>() {
            Some(error) => error.clone(),
            None => match source.downcast_ref::<DataFusionError>() {
                Some(error) => convert(error),
                None => unforeseen(&source.to_string()),
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
        DataFusionError::NotImplemented(text) => {
            let text = reworded(text);
            known(&text).unwrap_or_else(|| Error::unsupported(first_line(&text)))
        }
        DataFusionError::Plan(text) => from_plan(&reworded(text)),
        DataFusionError::Execution(text) => from_execution(&reworded(text)),
        DataFusionError::ResourcesExhausted(text) => Error::new(SqlState::OutOfMemory, first_line(text))
            .hint("Ask for fewer rows, or give the server more with --memory."),
        DataFusionError::Configuration(text) => Error::new(SqlState::InvalidParameterValue, first_line(text)),
        DataFusionError::IoError(error) => Error::new(SqlState::IoError, error.to_string()),
        other => unforeseen(&other.to_string()),
    }
}

/// An error that only tells what it is by its text; a fault of the program unless it is known.
fn unforeseen(text: &str) -> Error {
    let text = reworded(text);
    known(&text).unwrap_or_else(|| Error::internal(text))
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
            let text = reworded(text);
            known(&text).unwrap_or_else(|| Error::new(SqlState::InvalidText, first_line(&text)))
        }
        // Sums of times and intervals beyond what a timestamp holds.
        ArrowError::ComputeError(text) if text == "Timestamp out of range" => {
            Error::new(SqlState::DatetimeOverflow, "timestamp out of range")
        }
        ArrowError::ExternalError(source) => match source.downcast_ref::<Error>() {
            Some(error) => error.clone(),
            None => match source.downcast_ref::<DataFusionError>() {
                Some(error) => convert(error),
                None => unforeseen(&source.to_string()),
            },
        },
        other => unforeseen(&other.to_string()),
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
            let mut names: Vec<&str> = Vec::new();
            for name in valid {
                if names.len() < 20 && !names.contains(&name) {
                    names.push(name);
                }
            }
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
pub(super) fn between<'a>(text: &'a str, left: &str, right: &str) -> Option<&'a str> {
    text.split_once(left)?.1.split_once(right).map(|(found, _)| found)
}

/// Errors whose texts tell what PostgreSQL would say; the text names types as PostgreSQL does.
fn known(text: &str) -> Option<Error> {
    /// What follows, to the end of the line.
    fn after<'a>(text: &'a str, words: &str) -> Option<&'a str> {
        let rest = text.split_once(words)?.1;
        Some(rest.lines().next().unwrap_or(rest).trim_end_matches('.'))
    }
    let operands = between(text, "annot coerce arithmetic expression ", " to valid types")
        .or_else(|| after(text, "nfer common argument type for comparison operation "))
        .or_else(|| after(text, "nfer common string type for string concat operation "))
        .map(str::to_owned)
        .or_else(|| {
            let (left, right) = between(text, "common type to coerce ", " in ")?.split_once(" and ")?;
            Some(format!("{left} {} {right}", if text.contains("ILIKE") { "~~*" } else { "~~" }))
        });
    if let Some(operands) = operands {
        let hint = "No operator matches the given name and argument types. You might need to add explicit type casts.";
        return Some(
            Error::new(SqlState::UndefinedFunction, format!("operator does not exist: {operands}")).hint(hint),
        );
    }
    let boolean = |of: &str, found: &str| {
        let message = format!("argument of {of} must be type boolean, not type {found}");
        Some(Error::new(SqlState::DatatypeMismatch, message).hint("Compare the value, such as a <> 0."))
    };
    if let Some(operands) = after(text, "nfer common argument type for logical boolean operation ") {
        let (operator, (left, right)) = match operands.split_once(" AND ") {
            Some(both) => ("AND", both),
            None => ("OR", operands.split_once(" OR ")?),
        };
        return boolean(operator, if left == "boolean" { right } else { left });
    }
    if let Some(found) = after(text, "operator 'NOT' requires a boolean expression, got ") {
        return boolean("NOT", found);
    }
    if text.contains("reate filter with non-boolean predicate") {
        return boolean("WHERE", after(text, "' returning ")?);
    }
    if let Some(types) = after(text, "nsupported CAST from ") {
        let (from, to) = types.split_once(" to ")?;
        let message = format!("cannot cast type {from} to {to}");
        return Some(Error::new(SqlState::CannotCoerce, message).hint("Cast to text first, or use CASE."));
    }
    if let Some(types) = between(text, "across values list", "\n").or_else(|| after(text, "across values list")) {
        let (from, to) = types.split_once("Was ")?.1.split_once(" but found ")?;
        let message = format!("VALUES types {from} and {} cannot be matched", to.trim_end_matches('.'));
        return Some(Error::new(SqlState::DatatypeMismatch, message).hint("Cast one of the values, such as 1::text."));
    }
    let (code, message, hint) = if text.contains("LIMIT must be >= 0") {
        (SqlState::InvalidLimit, "LIMIT must not be negative".to_owned(), "Give a number from 0, or leave LIMIT out.")
    } else if text.contains("OFFSET must be >=") {
        (SqlState::InvalidOffset, "OFFSET must not be negative".into(), "Give a number from 0, or leave OFFSET out.")
    } else if text.contains("For SELECT DISTINCT, ORDER BY expressions") {
        let message = "for SELECT DISTINCT, ORDER BY expressions must appear in select list";
        (SqlState::InvalidColumnReference, message.into(), "Add the expression to the SELECT, or leave DISTINCT out.")
    } else if text.contains("SELECT DISTINCT ON expressions must match") {
        let message = "SELECT DISTINCT ON expressions must match initial ORDER BY expressions";
        (SqlState::InvalidColumnReference, message.into(), "Begin ORDER BY with the expressions of DISTINCT ON.")
    } else if let Some(window) = between(text, "The window ", " is not defined") {
        let hint = "Define it: … FROM t WINDOW w AS (PARTITION BY … ORDER BY …).";
        (SqlState::UndefinedObject, format!("window \"{window}\" does not exist"), hint)
    } else if let Some(table) = after(text, "Invalid qualifier ") {
        let hint = "Add the table to FROM, or write its alias before the star.";
        (SqlState::UndefinedTable, format!("missing FROM-clause entry for table \"{table}\""), hint)
    } else if text.contains("subquery should only return one column") {
        (SqlState::SyntaxError, "subquery has too many columns".into(), "Select one column in the subquery.")
    } else if text.contains("regex parse error") {
        let reason = after(text, "error: ").unwrap_or("it cannot be read");
        let hint = "Write a backslash before a parenthesis or bracket that stands for itself.";
        (SqlState::InvalidRegex, format!("invalid regular expression: {reason}"), hint)
    } else if text.contains("overflow on abs") {
        let width = if text.contains("Int16") || text.contains("smallint") {
            "smallint"
        } else if text.contains("Int64") || text.contains("bigint") {
            "bigint"
        } else {
            "integer"
        };
        (SqlState::NumericOutOfRange, format!("{width} out of range"), "Cast the value to a wider type first.")
    } else if text.contains("square root of a negative number") {
        let message = "cannot take square root of a negative number";
        (SqlState::InvalidPower, message.into(), "Leave such rows out with WHERE, or test the value with CASE.")
    } else if text.contains("zero raised to a negative power") {
        let message = "zero raised to a negative power is undefined";
        (SqlState::InvalidPower, message.into(), "Leave such rows out with WHERE, or test the value with CASE.")
    } else if text.contains("annot cast to numeric") && text.contains("Overflowing on") {
        let number = after(text, "Overflowing on ")?;
        let message = format!("value \"{number}\" overflows numeric format");
        (SqlState::NumericOutOfRange, message, "A numeric has at most 38 digits; write 1e50 for a double.")
    } else if ["month value", "day value", "year value"].iter().any(|part| text.to_lowercase().contains(part)) {
        (SqlState::DatetimeOverflow, first_line(text), "Give a date that there is, such as 2024-02-29.")
    } else {
        return None;
    };
    Some(Error::new(code, message).hint(hint))
}

fn from_plan(text: &str) -> Error {
    if let Some(error) = known(text) {
        return error;
    }
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
    if let Some(number) = between(text, "Cannot find column with position ", " in SELECT clause") {
        return Error::new(
            SqlState::InvalidColumnReference,
            format!("GROUP BY position {number} is not in select list"),
        )
        .hint("A number in GROUP BY counts the SELECT's columns from 1.");
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
    if let Some(error) = known(text) {
        return error;
    }
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
