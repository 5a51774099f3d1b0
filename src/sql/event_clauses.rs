//! The clauses of event time: `WATERMARK FOR` and the options beside it, and `EMIT` behind a standing query.

use std::collections::BTreeMap;

use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::names::quoted;
use super::parser::parse_expression_of_program;
use super::query_checks;
use super::reader::Reader;
use super::statement::{Emit, Explain, OptionValue, StatementKind, WatermarkClause};
use super::tokens::{is_space, position, word};
use crate::types::{Error, Result, SqlState};

/// The options of tables that are about event time.
const OPTIONS: [&str; 4] = ["allowed_lateness", "idle_timeout", "max_drift", "watermark_max_ahead"];
/// What others call them, in milliseconds.
const MILLISECONDS: [(&str, &str); 2] =
    [("allowed_lateness_ms", "allowed_lateness"), ("idle_timeout_ms", "idle_timeout")];

/// Reads `WATERMARK FOR column AS expression` if it is next.
pub(super) fn watermark(reader: &mut Reader<'_>, known: &mut Option<WatermarkClause>) -> Result<bool> {
    let at = reader.here();
    if !reader.eat(&["WATERMARK", "FOR"]) {
        return Ok(false);
    }
    if known.is_some() {
        return Err(Error::new(SqlState::SyntaxError, "more than one WATERMARK FOR in a table")
            .hint("Write it once: a table has one event time.")
            .position(at));
    }
    let at = reader.here();
    let column = reader.identifier()?;
    if !reader.eat(&["AS"]) {
        return Err(reader.unexpected("AS and an expression, such as ts - INTERVAL '5 seconds'"));
    }
    let expression = Box::new(reader.expression()?);
    query_checks::check(expression.as_ref())?;
    *known = Some(WatermarkClause { column, expression, position: at });
    Ok(true)
}

/// Takes the options of event time out of those of a table; other systems' spellings become the clause and options here.
pub(super) fn take_options(
    options: &mut BTreeMap<String, OptionValue>,
    watermark: &mut Option<WatermarkClause>,
) -> Result<BTreeMap<String, OptionValue>> {
    let mut taken = BTreeMap::new();
    if let Some(column) = options.remove("event_time_column") {
        if watermark.is_some() {
            return Err(Error::new(SqlState::SyntaxError, "event_time_column beside WATERMARK FOR")
                .hint("Say it once, with WATERMARK FOR.")
                .position(column.position));
        }
        let lag = match options.remove("watermark_lag_ms") {
            Some(lag) => milliseconds("watermark_lag_ms", &lag)?,
            None => 0,
        };
        let name = quoted(&column.text);
        let expression = format!("{name} - INTERVAL '{lag} milliseconds'");
        let expression = Box::new(parse_expression_of_program(&expression)?);
        *watermark = Some(WatermarkClause { column: column.text, expression, position: column.position });
    }
    if let Some(lag) = options.get("watermark_lag_ms") {
        return Err(Error::new(SqlState::InvalidParameterValue, "watermark_lag_ms without event_time_column")
            .hint("Write WATERMARK FOR ts AS ts - INTERVAL '5 seconds' among the columns.")
            .position(lag.position));
    }
    if let Some(late) = options.remove("late_records_to_dlq")
        && !matches!(late.text.to_ascii_lowercase().as_str(), "true" | "on")
    {
        return Err(Error::unsupported("late_records_to_dlq = 'false' is not supported")
            .hint("Leave it out: late rows are kept in <view>_late.")
            .position(late.position));
    }
    for (theirs, ours) in MILLISECONDS {
        if let Some(value) = options.remove(theirs) {
            let millis = milliseconds(theirs, &value)?;
            let value = OptionValue { text: format!("{millis} ms"), position: value.position, number: false };
            taken.insert(ours.to_owned(), value);
        }
    }
    for name in OPTIONS {
        if let Some(value) = options.remove(name) {
            taken.insert(name.to_owned(), value);
        }
    }
    match (taken.iter().next(), &watermark) {
        (Some((name, value)), None) => Err(Error::new(
            SqlState::InvalidParameterValue,
            format!("option \"{name}\" is about event time, and the table has none"),
        )
        .hint("Add WATERMARK FOR ts AS ts - INTERVAL '5 seconds' to its columns.")
        .position(value.position)),
        _ => Ok(taken),
    }
}

fn milliseconds(name: &str, value: &OptionValue) -> Result<u64> {
    value.text.parse().map_err(|_| {
        Error::new(SqlState::InvalidParameterValue, format!("invalid value for option \"{name}\": \"{}\"", value.text))
            .hint("It is a number of milliseconds.")
            .position(value.position)
    })
}

/// The text of the clause.
pub(super) fn show_watermark(clause: &WatermarkClause) -> String {
    format!("WATERMARK FOR {} AS {}", quoted(&clause.column), clause.expression)
}

/// Takes `EMIT …` off a statement's end; gives it with its position.
pub(super) fn take_emit(tokens: &mut Vec<TokenWithSpan>) -> Option<(Emit, usize)> {
    const CLAUSES: [(&[&str], Emit); 3] = [
        (&["EMIT", "ON", "WINDOW", "CLOSE"], Emit::OnWindowClose),
        (&["EMIT", "FINAL"], Emit::OnWindowClose),
        (&["EMIT", "CHANGES"], Emit::Changes),
    ];
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !is_space(&tokens[*at].token) && tokens[*at].token != Token::EOF).collect();
    for (clause, emit) in CLAUSES {
        let Some(first) = solid.len().checked_sub(clause.len()).filter(|first| *first > 0) else { continue };
        let there = clause
            .iter()
            .zip(&solid[first..])
            .all(|(wanted, at)| word(&tokens[*at]).is_some_and(|word| word == *wanted));
        if there {
            let at = position(tokens[solid[first]].span).unwrap_or(1);
            tokens.truncate(solid[first]);
            return Some((emit, at));
        }
    }
    None
}

/// Gives a statement the clause that was taken off its end.
pub(super) fn set_emit(kind: &mut StatementKind, emit: Emit, at: usize) -> Result<()> {
    match kind {
        StatementKind::CreateMaterializedView(view) => view.emit = emit,
        StatementKind::CreateSink(sink) => sink.emit = emit,
        StatementKind::Explain(explain) => match explain.as_mut() {
            Explain::View(view) => view.emit = emit,
            Explain::Query(_) | Explain::Analyze(_) | Explain::Job { .. } => return Err(misplaced(at)),
        },
        _ => return Err(misplaced(at)),
    }
    Ok(())
}

fn misplaced(at: usize) -> Error {
    Error::unsupported("EMIT is of materialized views and sinks")
        .hint("Leave it out of a SELECT, which gives the rows as they are; write CREATE SINK in place of INSERT.")
        .position(at)
}

/// The text of the clause, for a standing query's end.
pub(super) fn show_emit(emit: Emit) -> &'static str {
    match emit {
        Emit::Changes => "",
        Emit::OnWindowClose => "\nEMIT ON WINDOW CLOSE",
    }
}

/// Checks that a clause names a column of the table, and gives its place.
pub(super) fn column_of(clause: &WatermarkClause, names: &[&str]) -> Result<usize> {
    names
        .iter()
        .position(|name| *name == clause.column)
        .ok_or_else(|| super::errors::undefined_column(&clause.column, names.iter().copied()).position(clause.position))
}
