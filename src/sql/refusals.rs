//! What other systems' users type and clink does not take (yet): refused by name, with the way out.

use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::tokens::{is_space, position, word};
use crate::types::{Error, Result, SqlState};

/// Statements that are refused by their first words: words, what it is called, hint. The longest
/// match comes first.
const STATEMENTS: &[(&[&str], &str, &str)] = &[
    (
        &["CREATE", "STREAM"],
        "CREATE STREAM",
        "Write CREATE TABLE t (…) WITH (connector = …), or CREATE MATERIALIZED VIEW v AS SELECT ….",
    ),
    (&["CREATE", "CONNECTION"], "CREATE CONNECTION", "Give the connector's options in CREATE TABLE t (…) WITH (…)."),
    (&["CREATE", "SECRET"], "CREATE SECRET", "Give the connector's options in CREATE TABLE t (…) WITH (…)."),
    (&["CREATE", "OR", "REPLACE"], "CREATE OR REPLACE", "Drop the object first: DROP … ; CREATE …."),
    (&["CREATE", "TEMPORARY"], "temporary objects", "Make an ordinary table or view, and drop it when done."),
    (&["CREATE", "TEMP"], "temporary objects", "Make an ordinary table or view, and drop it when done."),
    (&["CREATE", "UNLOGGED"], "unlogged tables", "Write CREATE TABLE."),
    (
        &["CREATE", "EXTERNAL"],
        "CREATE EXTERNAL TABLE",
        "Write CREATE TABLE t (…) WITH (connector = 'file', path = …, format = …).",
    ),
    (&["CREATE", "PROCEDURE"], "CREATE PROCEDURE", "Send the statements one after another."),
    (&["CREATE", "AGGREGATE"], "CREATE AGGREGATE", "Use the built-in aggregates."),
    (
        &["CREATE", "UNIQUE", "INDEX"],
        "CREATE UNIQUE INDEX",
        "Give the table a PRIMARY KEY, or leave UNIQUE out: CREATE INDEX ON t (a).",
    ),
    (&["CREATE", "SEQUENCE"], "CREATE SEQUENCE", "Give the values in INSERT."),
    (&["CREATE", "TYPE"], "CREATE TYPE", "Write the type out in the column."),
    (&["CREATE", "DOMAIN"], "CREATE DOMAIN", "Write the type out in the column."),
    (&["CREATE", "TRIGGER"], "CREATE TRIGGER", "Make a materialized view: it follows every change."),
    (&["CREATE", "RULE"], "CREATE RULE", "Make a view."),
    (&["CREATE", "EXTENSION"], "CREATE EXTENSION", "Leave it out: there are no extensions."),
    (
        &["CREATE", "DATABASE"],
        "CREATE DATABASE",
        "There is one database, clink: make schemas in it with CREATE SCHEMA.",
    ),
    (&["CREATE", "ROLE"], "CREATE ROLE", "Any user name is accepted; leave it out."),
    (&["CREATE", "USER"], "CREATE USER", "Any user name is accepted; leave it out."),
    (&["CREATE", "RECURSIVE"], "recursive views", "Write WITH RECURSIVE in a SELECT."),
    (&["TAIL"], "TAIL", "Write SUBSCRIBE v."),
    (&["GRANT"], "GRANT", "Leave it out: every user may do everything."),
    (&["REVOKE"], "REVOKE", "Leave it out: every user may do everything."),
    (&["COMMENT"], "COMMENT ON", "Keep notes in SQL comments."),
    (&["VACUUM"], "VACUUM", "Leave it out: space is reclaimed without it."),
    (&["ANALYZE"], "ANALYZE", "Leave it out: there are no statistics to gather."),
    (&["REINDEX"], "REINDEX", "Leave it out: indexes are always current."),
    (&["CLUSTER"], "CLUSTER", "Leave it out: rows are kept in key order."),
    (&["REFRESH"], "REFRESH MATERIALIZED VIEW", "Leave it out: a materialized view is always current."),
    (&["MERGE"], "MERGE", "Write INSERT INTO … ON CONFLICT (…) DO UPDATE SET …."),
    (&["LOCK"], "LOCK", "Leave it out: statements on one table run one after another."),
    (&["LISTEN"], "LISTEN", "Write SUBSCRIBE v."),
    (&["NOTIFY"], "NOTIFY", "Insert a row into a table."),
    (&["CALL"], "CALL", "Send the statements one after another."),
    (&["DO"], "DO", "Send the statements one after another."),
    (&["LOAD"], "LOAD", "Use a table WITH (connector = 'file', …)."),
    (&["USE"], "USE", "There is one database; write schema.name."),
    (&["SHOW", "COLUMNS"], "SHOW COLUMNS", "Write DESCRIBE t."),
    (&["SHOW", "DATABASES"], "SHOW DATABASES", "There is one database, clink."),
    (&["SHOW", "CREATE", "SOURCE"], "SHOW CREATE SOURCE", "Write SHOW CREATE TABLE t."),
    (&["SET", "ROLE"], "SET ROLE", "Leave it out: every user may do everything."),
    (&["SET", "CONSTRAINTS"], "SET CONSTRAINTS", "Leave it out: constraints are checked at once."),
];

/// Phrases that are refused wherever they stand: words (a parenthesis is a word too), name, hint.
const PHRASES: &[(&[&str], &str, &str)] = &[
    (
        &["EMIT", "ON", "WINDOW", "CLOSE"],
        "EMIT in this place",
        "Write it once, at the end of CREATE MATERIALIZED VIEW or CREATE SINK.",
    ),
    (&["EMIT", "FINAL"], "EMIT in this place", "Write it once, at the end of CREATE MATERIALIZED VIEW or CREATE SINK."),
    (
        &["EMIT", "CHANGES"],
        "EMIT in this place",
        "Write it once, at the end of CREATE MATERIALIZED VIEW or CREATE SINK.",
    ),
    (
        &["EMIT", "WITHIN"],
        "EMIT WITHIN",
        "Write EMIT ON WINDOW CLOSE, with allowed_lateness as an option of the table.",
    ),
    (&["ALLOW", "UNBOUNDED", "STATE"], "ALLOW UNBOUNDED STATE", "Leave it out: it silences a notice only."),
    (
        &["FOR", "SYSTEM_TIME"],
        "this form of FOR SYSTEM_TIME",
        "Write FROM o [LEFT] JOIN versions FOR SYSTEM_TIME AS OF o.ts AS r ON o.k = r.k.",
    ),
    (&["ASOF", "JOIN"], "ASOF JOIN", "Write JOIN versions FOR SYSTEM_TIME AS OF o.ts AS r ON o.k = r.k."),
    (&["WINDOW", "TUMBLING"], "WINDOW TUMBLING", "Write FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1 minute')."),
    (&["WINDOW", "HOPPING"], "WINDOW HOPPING", "Write FROM HOP(TABLE t, DESCRIPTOR(ts), slide, size)."),
    (&["WINDOW", "SESSION"], "WINDOW SESSION", "Write FROM SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), gap)."),
    (&["MZ_NOW", "("], "mz_now()", "Filter by now() in a SELECT over the view."),
    (&["PROCTIME", "("], "PROCTIME()", "Store the time in a column: INSERT … now()."),
    (&["TABLESAMPLE"], "TABLESAMPLE", "Use LIMIT, or WHERE with a hash of the key."),
    (&["GENERATED", "BY"], "identity columns", "Give the value in INSERT."),
];

/// The tokens' unquoted words in upper case, with other tokens as they are written.
fn words(tokens: &[TokenWithSpan]) -> Vec<(String, Option<usize>)> {
    tokens
        .iter()
        .filter(|token| !is_space(&token.token) && token.token != Token::EOF)
        .map(|token| {
            let text = match (&token.token, word(token)) {
                (_, Some(word)) => word,
                (Token::LParen, None) => "(".to_owned(),
                // Anything that cannot be part of a phrase.
                _ => String::new(),
            };
            (text, position(token.span))
        })
        .collect()
}

/// Refuses statements and phrases that are known and not offered.
///
/// # Errors
/// 0A000 with position and hint.
pub(crate) fn check(tokens: &[TokenWithSpan]) -> Result<()> {
    if let Some(token) = tokens.iter().find(|token| token.token == Token::Char('`')) {
        return Err(Error::unsupported("backticks are not supported")
            .hint("Quote names with double quotes: \"name\".")
            .position_or(position(token.span)));
    }
    if let Some(token) = tokens.iter().find(|token| token.token == Token::DoubleEq) {
        return Err(Error::new(SqlState::UndefinedFunction, "operator does not exist: ==")
            .hint("Write = to compare.")
            .position_or(position(token.span)));
    }
    let words = words(tokens);
    let starts = |at: usize, phrase: &[&str]| {
        phrase.iter().enumerate().all(|(nth, wanted)| words.get(at + nth).is_some_and(|(word, _)| word == wanted))
    };
    for (phrase, name, hint) in STATEMENTS {
        // Of all objects a function can be replaced.
        if starts(0, phrase) && !starts(0, &["CREATE", "OR", "REPLACE", "FUNCTION"]) {
            // `CREATE OR REPLACE` and the like are refused at the word that makes the difference.
            let at = words.get(phrase.len() - 1).and_then(|(_, at)| *at);
            return Err(refusal(name, hint).position_or(at));
        }
    }
    for at in 0..words.len() {
        for (phrase, name, hint) in PHRASES {
            if starts(at, phrase) && !names_a_column(&words, at, phrase) {
                return Err(refusal(name, hint).position_or(words.get(at).and_then(|(_, at)| *at)));
            }
        }
    }
    Ok(())
}

/// A table called `session` in `INSERT INTO session (a)` or `CREATE TABLE session (…)` is none of
/// the functions.
fn names_a_column(words: &[(String, Option<usize>)], at: usize, phrase: &[&str]) -> bool {
    let calls = phrase.len() == 2 && phrase.get(1) == Some(&"(");
    calls
        && at
            .checked_sub(1)
            .and_then(|before| words.get(before))
            .is_some_and(|(word, _)| matches!(word.as_str(), "INTO" | "EXISTS" | "TABLE" | "VIEW" | "AS"))
        && words.get(at.saturating_sub(2)).is_none_or(|(word, _)| word != "FROM")
        && words.first().is_some_and(|(word, _)| matches!(word.as_str(), "INSERT" | "CREATE" | "WITH" | "SELECT"))
}

fn refusal(name: &str, hint: &str) -> Error {
    let verb = if name.ends_with('s') && name.chars().next().is_some_and(char::is_lowercase) { "are" } else { "is" };
    Error::unsupported(format!("{name} {verb} not supported")).hint(hint)
}
