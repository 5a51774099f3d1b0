//! `CREATE INDEX` and `DROP INDEX`.

use sqlparser::tokenizer::Token;

use super::reader::{Reader, duplicate_column};
use super::statement::{Alter, CreateIndex, StatementKind};
use crate::types::{Error, Result};

/// Reads `CREATE INDEX [[IF NOT EXISTS] name] ON v (column, …)`.
///
/// # Errors
/// 42601; 0A000 for what an index does not do here.
pub(super) fn create(reader: &mut Reader<'_>) -> Result<StatementKind> {
    reader.expect(&["CREATE", "INDEX"])?;
    refuse(reader, &["CONCURRENTLY"], "CREATE INDEX CONCURRENTLY", "Leave it out: no index holds up a writer.")?;
    let if_not_exists = reader.eat(&["IF", "NOT", "EXISTS"]);
    let name = if reader.at(&["ON"]) { None } else { Some(reader.name()?) };
    reader.expect(&["ON"])?;
    let _ = reader.eat(&["ONLY"]);
    let on = reader.name()?;
    let at = reader.here();
    if reader.eat(&["USING"]) && !reader.eat(&["BTREE"]) && !reader.eat(&["HASH"]) {
        return Err(unsupported("this access method", "Leave USING out: an index finds rows by equality.", at));
    }
    reader.expect_token(&Token::LParen)?;
    let mut columns: Vec<(String, usize)> = Vec::new();
    loop {
        let at = reader.here();
        let expression = "Make a materialized view that has it as a column, and an index on that.";
        if !matches!(reader.parser.peek_token_ref().token, Token::Word(_)) {
            return Err(unsupported("an index on an expression", expression, at));
        }
        let column = reader.identifier()?;
        if matches!(reader.parser.peek_token_ref().token, Token::LParen | Token::Period) {
            return Err(unsupported("an index on an expression", expression, at));
        }
        let at_order = reader.here();
        let ordered = reader.eat(&["DESC"]) || reader.eat(&["COLLATE"]) || reader.eat(&["NULLS"]);
        if ordered {
            let hint = "Name the column alone: an index finds rows by equality and has no order.";
            return Err(unsupported("an order of an index", hint, at_order));
        }
        let _ = reader.eat(&["ASC"]);
        if columns.iter().any(|(other, _)| *other == column) {
            return Err(duplicate_column(&column).position(at));
        }
        columns.push((column, at));
        if !reader.eat_token(&Token::Comma) {
            break;
        }
    }
    reader.expect_token(&Token::RParen)?;
    let whole = "Leave it out; or make a materialized view of the rows wanted, and an index on that.";
    refuse(reader, &["INCLUDE"], "INCLUDE", "Leave it out: an index leads to whole rows.")?;
    refuse(reader, &["NULLS"], "NULLS [NOT] DISTINCT", "Leave it out: no index is unique.")?;
    refuse(reader, &["WITH"], "WITH", "Leave it out: an index has no options.")?;
    refuse(reader, &["TABLESPACE"], "TABLESPACE", "Leave it out: an index is kept with its rows.")?;
    refuse(reader, &["WHERE"], "a partial index", whole)?;
    Ok(StatementKind::Alter(Alter::CreateIndex(CreateIndex { name, if_not_exists, on, columns })))
}

/// Reads `DROP INDEX [IF EXISTS] name, … [RESTRICT]`.
///
/// # Errors
/// 42601; 0A000.
pub(super) fn drop(reader: &mut Reader<'_>) -> Result<StatementKind> {
    reader.expect(&["DROP", "INDEX"])?;
    refuse(reader, &["CONCURRENTLY"], "DROP INDEX CONCURRENTLY", "Leave it out: no index holds up a writer.")?;
    let if_exists = reader.eat(&["IF", "EXISTS"]);
    let mut names = vec![reader.name()?];
    while reader.eat_token(&Token::Comma) {
        names.push(reader.name()?);
    }
    // Nothing stands on an index.
    let _ = reader.eat(&["CASCADE"]) || reader.eat(&["RESTRICT"]);
    Ok(StatementKind::Alter(Alter::DropIndex { names, if_exists }))
}

fn refuse(reader: &mut Reader<'_>, words: &[&str], what: &str, hint: &str) -> Result<()> {
    let at = reader.here();
    if reader.at(words) { Err(unsupported(what, hint, at)) } else { Ok(()) }
}

fn unsupported(what: &str, hint: &str, at: usize) -> Error {
    Error::unsupported(format!("{what} is not supported")).hint(hint).position(at)
}
