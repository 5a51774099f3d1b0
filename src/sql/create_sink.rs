//! `CREATE SINK`, and the statements about jobs.

use std::collections::BTreeMap;

use sqlparser::ast;
use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::Token;

use super::create::{query_of, with_options};
use super::event_clauses;
use super::names::quoted;
use super::parser;
use super::reader::Reader;
use super::statement::{CreateSink, Emit, JobAction, JobCommand, Name, OptionValue, Standing, StatementKind};
use super::tokens::position;
use crate::types::{Error, Result, SqlState};

/// Reads what follows `CREATE SINK`.
pub(super) fn sink(reader: &mut Reader<'_>, text: &str) -> Result<CreateSink> {
    let if_not_exists = reader.eat(&["IF", "NOT", "EXISTS"]);
    let name = reader.name()?;
    let mut options = reader.at(&["WITH"]).then(|| with_options(reader)).transpose()?;
    let into = if reader.eat(&["INTO"]) { Some(reader.name()?) } else { None };
    let mut from = None;
    let (query, query_text) = if reader.eat(&["FROM"]) {
        let relation = reader.name()?;
        let read = whole(&relation)?;
        from = Some(relation);
        read
    } else if reader.at(&["AS"]) {
        query_before_options(reader, text)?
    } else {
        return Err(reader.unexpected("FROM and a view, or AS and a query"));
    };
    if options.is_none() && reader.at(&["WITH"]) {
        options = Some(with_options(reader)?);
    }
    reader.finish()?;
    match (&into, &options) {
        (Some(into), Some(_)) => {
            return Err(Error::new(SqlState::SyntaxError, "a sink has a target table or options, not both")
                .hint("Write CREATE SINK s INTO t AS SELECT …, or CREATE SINK s FROM v WITH (connector = …).")
                .position(into.position));
        }
        (None, None) => {
            return Err(Error::new(SqlState::SyntaxError, "the sink has no target")
                .hint("Write CREATE SINK s INTO t AS SELECT …, or CREATE SINK s FROM v WITH (connector = …).")
                .position(name.position));
        }
        _ => {}
    }
    let mut options = options.unwrap_or_default();
    let state_ttl = options.remove("state_ttl");
    Standing::new(Emit::Changes, state_ttl.as_ref())?;
    let emit = Emit::Changes;
    Ok(CreateSink { name, if_not_exists, into, from, options, state_ttl, query, query_text, emit })
}

/// Reads `AS query` up to the options behind it, which sqlparser would take for hints of the query's last table.
fn query_before_options(reader: &mut Reader<'_>, text: &str) -> Result<(Box<ast::Query>, String)> {
    let Some(length) = tokens_before_options(reader) else { return query_of(reader, text) };
    let ahead = |nth: usize| reader.parser.peek_nth_token_ref(nth);
    let end = position(ahead(length).span).unwrap_or(1);
    let text: String = text.chars().take(end - 1).collect();
    let mut of_query = Reader::new((0..length).map(|nth| ahead(nth).clone()).collect(), &text);
    let read = query_of(&mut of_query, &text)?;
    of_query.finish()?;
    (0..length).for_each(|_| reader.parser.advance_token());
    Ok(read)
}

/// How many tokens stand before the last `WITH (` that is in no parentheses.
fn tokens_before_options(reader: &Reader<'_>) -> Option<usize> {
    let (mut found, mut depth) = (None, 0);
    for nth in 0.. {
        match &reader.parser.peek_nth_token_ref(nth).token {
            Token::EOF => break,
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            Token::Word(word) if depth == 0 && word.keyword == Keyword::WITH => {
                let open = reader.parser.peek_nth_token_ref(nth + 1).token == Token::LParen;
                found = open.then_some(nth).or(found);
            }
            _ => {}
        }
    }
    found
}

/// All of a relation as a query.
fn whole(relation: &Name) -> Result<(Box<ast::Query>, String)> {
    let text = format!("SELECT * FROM {}", relation.to_sql());
    Ok((query(&text)?, text))
}

/// A query from a text of our own.
///
/// # Errors
/// When it is none.
pub fn query(text: &str) -> Result<Box<ast::Query>> {
    match parser::parse(text)?.pop().map(|statement| statement.kind) {
        Some(StatementKind::Query(query)) => Ok(query),
        _ => Err(Error::internal(format!("not a query: {text}"))),
    }
}

/// The query whose columns, in their order, are assigned to columns with these names and types.
///
/// # Errors
/// When a type cannot be written.
pub fn assigned(of: &ast::Query, columns: &[(String, String)]) -> Result<Box<ast::Query>> {
    let names: Vec<String> = (0..columns.len()).map(|index| format!("c{index}")).collect();
    let items: Vec<String> = columns
        .iter()
        .zip(&names)
        .map(|((name, sql_type), column)| format!("CAST({column} AS {sql_type}) AS {}", quoted(name)))
        .collect();
    let mut whole = query(&format!("SELECT {} FROM (SELECT 1) AS q({})", items.join(", "), names.join(", ")))?;
    if let ast::SetExpr::Select(select) = whole.body.as_mut()
        && let Some(from) = select.from.first_mut()
        && let ast::TableFactor::Derived { subquery, .. } = &mut from.relation
    {
        **subquery = of.clone();
    }
    Ok(whole)
}

/// Reads `PAUSE|RESUME|CANCEL JOB name` or `STOP JOB name [WITH SAVEPOINT 'uri']`.
pub(super) fn job(reader: &mut Reader<'_>, action: JobAction) -> Result<StatementKind> {
    reader.parser.advance_token();
    reader.expect(&["JOB"])?;
    let name = reader.name()?;
    let mut savepoint = None;
    if action == JobAction::Stop && reader.eat(&["WITH", "SAVEPOINT"]) {
        let position = reader.here();
        savepoint = Some(OptionValue { text: parser::value_text(reader)?, position, number: false });
    }
    Ok(StatementKind::Job(JobCommand { action, name, savepoint }))
}

/// The text of `CREATE SINK`.
pub fn show_create(sink: &CreateSink) -> String {
    let mut text = format!("CREATE SINK {}", sink.name.to_sql());
    if let Some(into) = &sink.into {
        text.push_str(&format!(" INTO {}", into.to_sql()));
    }
    let mut given = sink.options.clone();
    given.extend(sink.state_ttl.iter().map(|ttl| ("state_ttl".to_owned(), ttl.clone())));
    if !given.is_empty() && sink.from.is_none() {
        text.push_str(&options(&given));
    }
    match &sink.from {
        Some(from) => text.push_str(&format!(" FROM {}", from.to_sql())),
        None => text.push_str(&format!(" AS\n{}", sink.query_text)),
    }
    if sink.from.is_some() && !given.is_empty() {
        text.push_str(&options(&given));
    }
    text.push_str(event_clauses::show_emit(sink.emit));
    text
}

fn options(options: &BTreeMap<String, super::statement::OptionValue>) -> String {
    let literal = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let options: Vec<String> =
        options.iter().map(|(key, value)| format!("{} = {}", literal(key), literal(&value.text))).collect();
    format!(" WITH (\n    {}\n)", options.join(",\n    "))
}

#[cfg(test)]
mod tests {
    use crate::sql::{StatementKind, parse};

    fn shown(text: &str) -> String {
        match &parse(text).expect(text).first().expect("a statement").kind {
            StatementKind::CreateSink(sink) => super::show_create(sink),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_shown_means_the_same_again() {
        for (text, expected) in [
            (
                "create sink s from V with (connector = print)",
                "CREATE SINK s FROM v WITH (\n    'connector' = 'print'\n)",
            ),
            ("create sink a.s into t as select 1 as x", "CREATE SINK a.s INTO t AS\nselect 1 as x"),
            (
                "create sink s as select a from t where b with (connector = 'file', path = '/x')",
                "CREATE SINK s WITH (\n    'connector' = 'file',\n    'path' = '/x'\n) AS\nselect a from t where b",
            ),
        ] {
            assert_eq!(shown(text), expected);
            assert_eq!(shown(expected), expected);
        }
    }
}
