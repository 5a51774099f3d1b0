//! `SUBSCRIBE`, and what `FETCH` says of a cursor over one.

use std::time::Duration;

use sqlparser::tokenizer::Token;

use super::create::with_options;
use super::parser::value_text;
use super::reader::Reader;
use super::statement::{OptionValue, Subscribe};
use crate::types::{Error, Result, SqlState};

/// Reads `SUBSCRIBE [TO] v [WITH (SNAPSHOT, PROGRESS)] [AS OF 'token'] [UP TO 'token']`, the last three in any order.
///
/// # Errors
/// 42601; 22023 for options.
pub(crate) fn subscribe(reader: &mut Reader<'_>) -> Result<Subscribe> {
    reader.expect(&["SUBSCRIBE"])?;
    let _ = reader.eat(&["TO"]);
    if reader.parser.peek_token_ref().token == Token::LParen {
        return Err(Error::unsupported("SUBSCRIBE to a query is not supported")
            .hint("CREATE MATERIALIZED VIEW v AS the query, then SUBSCRIBE v.")
            .position(reader.here()));
    }
    let mut subscribe = Subscribe { name: reader.name()?, snapshot: None, progress: false, as_of: None, up_to: None };
    loop {
        let at = reader.here();
        let twice = |clause: &str| {
            Err(Error::new(SqlState::SyntaxError, format!("{clause} is given twice"))
                .hint("Give it once.")
                .position(at))
        };
        if reader.at(&["WITH"]) {
            if subscribe.snapshot.is_some() || subscribe.progress {
                return twice("WITH");
            }
            options(reader, &mut subscribe)?;
        } else if reader.eat(&["AS", "OF"]) {
            if subscribe.as_of.is_some() {
                return twice("AS OF");
            }
            subscribe.as_of = Some(token(reader)?);
        } else if reader.eat(&["UP", "TO"]) {
            if subscribe.up_to.is_some() {
                return twice("UP TO");
            }
            subscribe.up_to = Some(token(reader)?);
        } else {
            return Ok(subscribe);
        }
    }
}

fn token(reader: &mut Reader<'_>) -> Result<OptionValue> {
    let position = reader.here();
    Ok(OptionValue { text: value_text(reader)?, position, number: false })
}

/// Reads `WITH (SNAPSHOT [= true|false], PROGRESS [= true|false])`.
fn options(reader: &mut Reader<'_>, subscribe: &mut Subscribe) -> Result<()> {
    reader.expect(&["WITH"])?;
    reader.expect_token(&Token::LParen)?;
    let (mut snapshot, mut progress) = (None, None);
    loop {
        let position = reader.here();
        let name = reader.identifier()?;
        let on = if reader.eat_token(&Token::Eq) {
            let position = reader.here();
            let value = OptionValue { text: value_text(reader)?, position, number: false };
            value
                .choose(&name, &[("true", true), ("on", true), ("false", false), ("off", false)])
                .map_err(|error| error.position_or(Some(position)))?
        } else {
            true
        };
        let place = match name.as_str() {
            "snapshot" => &mut snapshot,
            "progress" => &mut progress,
            _ => {
                return Err(Error::new(SqlState::InvalidParameterValue, format!("unrecognized option \"{name}\""))
                    .hint("The options of SUBSCRIBE are SNAPSHOT and PROGRESS.")
                    .position(position));
            }
        };
        if place.replace(on).is_some() {
            return Err(Error::new(SqlState::SyntaxError, format!("option \"{name}\" is given more than once"))
                .hint("Give each option once.")
                .position(position));
        }
        if !reader.eat_token(&Token::Comma) {
            break;
        }
    }
    reader.expect_token(&Token::RParen)?;
    (subscribe.snapshot, subscribe.progress) = (snapshot, progress.unwrap_or(false));
    Ok(())
}

/// Reads `WITH (timeout = '1s')`.
///
/// # Errors
/// 42601; 22023 for another option and a value that is no duration.
pub(crate) fn fetch_timeout(reader: &mut Reader<'_>) -> Result<Option<Duration>> {
    let mut timeout = None;
    for (key, value) in with_options(reader)? {
        if key != "timeout" {
            return Err(Error::new(SqlState::InvalidParameterValue, format!("unrecognized option \"{key}\""))
                .hint("The option of FETCH is timeout.")
                .position(value.position));
        }
        timeout = Some(value.duration(&key).map_err(|error| error.position_or(Some(value.position)))?);
    }
    Ok(timeout)
}
