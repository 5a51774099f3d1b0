//! `ALTER`.

use sqlparser::tokenizer::Token;

use super::parser::value_text;
use super::reader::Reader;
use super::statement::{Alter, OptionValue, StatementKind};
use crate::types::{Error, Result, SqlState};

const WORKERS: &str = "workers";
const STATE_BACKEND: &str = "state_backend";

/// Reads `ALTER SYSTEM SET workers = n` or `ALTER MATERIALIZED VIEW v SET (state_backend = 'uri')`.
///
/// # Errors
/// 42601; 0A000 for other objects; 22023 for other settings.
pub(super) fn alter(reader: &mut Reader<'_>) -> Result<StatementKind> {
    let at = reader.here();
    reader.expect(&["ALTER"])?;
    if reader.eat(&["SYSTEM"]) {
        reader.expect(&["SET"])?;
        setting(reader, WORKERS, "ALTER SYSTEM SET workers = 4 is what there is.")?;
        if !reader.eat_token(&Token::Eq) && !reader.eat(&["TO"]) {
            return Err(reader.unexpected("= or TO and a number"));
        }
        return Ok(StatementKind::Alter(Alter::Workers(value(reader)?)));
    }
    if reader.eat(&["MATERIALIZED", "VIEW"]) {
        let name = reader.name()?;
        if reader.eat(&["SET"]) {
            reader.expect_token(&Token::LParen)?;
            setting(reader, STATE_BACKEND, "ALTER MATERIALIZED VIEW v SET (state_backend = 'uri') is what there is.")?;
            reader.expect_token(&Token::Eq)?;
            let uri = value(reader)?;
            reader.expect_token(&Token::RParen)?;
            return Ok(StatementKind::Alter(Alter::StateBackend { name, uri }));
        }
    }
    Err(Error::unsupported("ALTER is not supported").hint("Drop the object and create it anew.").position(at))
}

fn setting(reader: &mut Reader<'_>, known: &str, hint: &str) -> Result<()> {
    let position = reader.here();
    let name = reader.identifier()?;
    if name == known {
        return Ok(());
    }
    Err(Error::new(SqlState::InvalidParameterValue, format!("there is no setting \"{name}\" to alter"))
        .hint(hint)
        .position(position))
}

fn value(reader: &mut Reader<'_>) -> Result<OptionValue> {
    let position = reader.here();
    Ok(OptionValue { text: value_text(reader)?, position, number: false })
}
