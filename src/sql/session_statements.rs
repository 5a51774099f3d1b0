//! Statements about the session itself: transaction blocks, prepared statements, cursors, COPY,
//! DISCARD. sqlparser knows them in part and in other systems' forms too, so they are read word by word.

use sqlparser::ast;
use sqlparser::tokenizer::Token;

use super::parser;
use super::query_checks;
use super::reader::Reader;
use super::statement::{
    Copy, CopyDirection, CopyFormat, CopyOptions, CopySubject, CursorStatement, CursorSubject, Discard, Fetch,
    PreparedStatement, StatementKind, Transaction, TransactionModes,
};
use super::subscribe;
use super::types::stored;
use crate::types::{Error, Result, SqlState};

/// Reads a statement that begins with one of the words of this module; `None` for other words.
///
/// # Errors
/// 42601, 0A000.
pub(crate) fn read(reader: &mut Reader<'_>, verb: &str, text: &str) -> Result<Option<StatementKind>> {
    Ok(Some(match verb {
        "BEGIN" | "START" => {
            if verb == "START" {
                reader.expect(&["START", "TRANSACTION"])?;
            } else {
                reader.expect(&["BEGIN"])?;
                noise(reader);
            }
            StatementKind::Transaction(Transaction::Begin(modes(reader)?))
        }
        "COMMIT" | "END" => {
            reader.parser.advance_token();
            noise(reader);
            refuse_prepared(reader)?;
            StatementKind::Transaction(Transaction::Commit { chain: chain(reader)? })
        }
        "ROLLBACK" | "ABORT" => {
            reader.parser.advance_token();
            noise(reader);
            refuse_prepared(reader)?;
            if reader.eat(&["TO"]) {
                let _ = reader.eat(&["SAVEPOINT"]);
                let name = reader.identifier()?;
                return Ok(Some(StatementKind::Transaction(Transaction::RollbackTo(name))));
            }
            StatementKind::Transaction(Transaction::Rollback { chain: chain(reader)? })
        }
        "SAVEPOINT" => {
            reader.parser.advance_token();
            StatementKind::Transaction(Transaction::Savepoint(reader.identifier()?))
        }
        "RELEASE" => {
            reader.parser.advance_token();
            let _ = reader.eat(&["SAVEPOINT"]);
            StatementKind::Transaction(Transaction::Release(reader.identifier()?))
        }
        "PREPARE" => prepare(reader, text)?,
        "EXECUTE" => execute(reader)?,
        "DEALLOCATE" => {
            reader.parser.advance_token();
            let _ = reader.eat(&["PREPARE"]);
            let name = if reader.eat(&["ALL"]) { None } else { Some(reader.identifier()?) };
            StatementKind::Prepared(PreparedStatement::Deallocate(name))
        }
        "DISCARD" => discard(reader)?,
        "UNLISTEN" => {
            reader.parser.advance_token();
            if !reader.eat_token(&Token::Mul) {
                let _ = reader.identifier()?;
            }
            StatementKind::Discard(Discard::Listens)
        }
        "DECLARE" => declare(reader)?,
        "FETCH" | "MOVE" => fetch(reader)?,
        "CLOSE" => {
            reader.parser.advance_token();
            let name = if reader.eat(&["ALL"]) { None } else { Some(reader.identifier()?) };
            StatementKind::Cursor(CursorStatement::Close(name))
        }
        "COPY" => StatementKind::Copy(Box::new(copy(reader)?)),
        _ => return Ok(None),
    }))
}

fn noise(reader: &mut Reader<'_>) {
    let _ = reader.eat(&["WORK"]) || reader.eat(&["TRANSACTION"]);
}

fn refuse_prepared(reader: &Reader<'_>) -> Result<()> {
    if reader.at(&["PREPARED"]) {
        return Err(Error::unsupported("two-phase commit is not supported")
            .hint("Commit in one step: COMMIT.")
            .position(reader.here()));
    }
    Ok(())
}

/// `AND [NO] CHAIN`.
fn chain(reader: &mut Reader<'_>) -> Result<bool> {
    if !reader.eat(&["AND"]) {
        return Ok(false);
    }
    let no = reader.eat(&["NO"]);
    reader.expect(&["CHAIN"])?;
    Ok(!no)
}

/// The modes of BEGIN and SET TRANSACTION.
///
/// # Errors
/// 0A000 for SERIALIZABLE.
pub(crate) fn modes(reader: &mut Reader<'_>) -> Result<TransactionModes> {
    let mut modes = TransactionModes::default();
    loop {
        let at = reader.here();
        if reader.eat(&["ISOLATION", "LEVEL"]) {
            if reader.at(&["SERIALIZABLE"]) {
                return Err(Error::unsupported("isolation level SERIALIZABLE is not supported")
                    .hint("Write REPEATABLE READ: a block reads one time, and fails when a table that it read and changes was changed meanwhile.")
                    .position(at));
            }
            let weaker = reader.eat(&["REPEATABLE", "READ"])
                || reader.eat(&["READ", "COMMITTED"])
                || reader.eat(&["READ", "UNCOMMITTED"]);
            if !weaker {
                return Err(reader.unexpected("REPEATABLE READ, READ COMMITTED or READ UNCOMMITTED"));
            }
        } else if reader.eat(&["READ", "ONLY"]) {
            modes.read_only = Some(true);
        } else if reader.eat(&["READ", "WRITE"]) {
            modes.read_only = Some(false);
        } else if !(reader.eat(&["NOT", "DEFERRABLE"]) || reader.eat(&["DEFERRABLE"])) {
            return Ok(modes);
        }
        let _ = reader.eat_token(&Token::Comma);
    }
}

fn prepare(reader: &mut Reader<'_>, text: &str) -> Result<StatementKind> {
    reader.expect(&["PREPARE"])?;
    let name = reader.identifier()?;
    let mut types = Vec::new();
    if reader.eat_token(&Token::LParen) {
        loop {
            let at = reader.here();
            let data_type = reader.run(|parser| parser.parse_data_type())?;
            types.push(stored(&data_type).map_err(|error| error.position_or(Some(at)))?.data_type);
            if !reader.eat_token(&Token::Comma) {
                break;
            }
        }
        reader.expect_token(&Token::RParen)?;
    }
    reader.expect(&["AS"])?;
    let at = reader.here();
    let statement = parser::statement(reader, text)?;
    let preparable = matches!(
        statement,
        StatementKind::Query(_) | StatementKind::Insert(_) | StatementKind::Update(_) | StatementKind::Delete(_)
    );
    if !preparable {
        return Err(Error::new(SqlState::SyntaxError, "this statement cannot be prepared")
            .hint("PREPARE takes SELECT, VALUES, INSERT, UPDATE and DELETE.")
            .position(at));
    }
    Ok(StatementKind::Prepared(PreparedStatement::Prepare { name, types, statement: Box::new(statement) }))
}

fn execute(reader: &mut Reader<'_>) -> Result<StatementKind> {
    reader.expect(&["EXECUTE"])?;
    let name = reader.identifier()?;
    let mut arguments = Vec::new();
    if reader.eat_token(&Token::LParen) && !reader.eat_token(&Token::RParen) {
        loop {
            let argument = reader.expression()?;
            query_checks::check(&argument)?;
            arguments.push(argument);
            if !reader.eat_token(&Token::Comma) {
                break;
            }
        }
        reader.expect_token(&Token::RParen)?;
    }
    Ok(StatementKind::Prepared(PreparedStatement::Execute { name, arguments }))
}

fn discard(reader: &mut Reader<'_>) -> Result<StatementKind> {
    reader.expect(&["DISCARD"])?;
    let what = if reader.eat(&["ALL"]) {
        Discard::All
    } else if reader.eat(&["PLANS"]) {
        Discard::Plans
    } else if reader.eat(&["SEQUENCES"]) || reader.eat(&["TEMPORARY"]) || reader.eat(&["TEMP"]) {
        Discard::Nothing
    } else {
        return Err(reader.unexpected("ALL, PLANS, SEQUENCES or TEMPORARY"));
    };
    Ok(StatementKind::Discard(what))
}

fn declare(reader: &mut Reader<'_>) -> Result<StatementKind> {
    reader.expect(&["DECLARE"])?;
    let name = reader.identifier()?;
    loop {
        let at = reader.here();
        if reader.eat(&["BINARY"]) {
            return Err(Error::unsupported("binary cursors are not supported")
                .hint("Leave BINARY out; the extended query protocol gives results in binary format.")
                .position(at));
        } else if reader.eat(&["SCROLL"]) {
            return Err(Error::unsupported("scrollable cursors are not supported")
                .hint("Leave SCROLL out: a cursor goes forward.")
                .position(at));
        } else if !(reader.eat(&["NO", "SCROLL"]) || reader.eat(&["INSENSITIVE"]) || reader.eat(&["ASENSITIVE"])) {
            break;
        }
    }
    reader.expect(&["CURSOR"])?;
    let hold = reader.eat(&["WITH", "HOLD"]);
    if !hold {
        let _ = reader.eat(&["WITHOUT", "HOLD"]);
    }
    reader.expect(&["FOR"])?;
    let of = if reader.at(&["SUBSCRIBE"]) {
        CursorSubject::Subscribe(subscribe::subscribe(reader)?)
    } else {
        let query = reader.query()?;
        query_checks::check(&query)?;
        CursorSubject::Query(query)
    };
    Ok(StatementKind::Cursor(CursorStatement::Declare { name, hold, of }))
}

fn fetch(reader: &mut Reader<'_>) -> Result<StatementKind> {
    let is_move = reader.at(&["MOVE"]);
    reader.parser.advance_token();
    let at = reader.here();
    let backwards = |at| {
        Err(Error::unsupported("cursors go forward only")
            .hint(
                "Write FETCH n FROM c, FETCH NEXT FROM c or FETCH ALL FROM c; declare the cursor again to start over.",
            )
            .position(at))
    };
    let mut rows = Some(1);
    if reader.eat(&["NEXT"]) {
    } else if reader.eat(&["ALL"]) {
        rows = None;
    } else if reader.eat(&["FORWARD"]) {
        if reader.eat(&["ALL"]) {
            rows = None;
        } else if let Some(count) = number(reader)? {
            rows = Some(count);
        }
    } else if reader.at(&["PRIOR"])
        || reader.at(&["FIRST"])
        || reader.at(&["LAST"])
        || reader.at(&["ABSOLUTE"])
        || reader.at(&["RELATIVE"])
        || reader.at(&["BACKWARD"])
        || reader.parser.peek_token_ref().token == Token::Minus
    {
        return backwards(at);
    } else if let Some(count) = number(reader)? {
        rows = Some(count);
    }
    let _ = reader.eat(&["FROM"]) || reader.eat(&["IN"]);
    let name = reader.identifier()?;
    let timeout = if reader.at(&["WITH"]) { subscribe::fetch_timeout(reader)? } else { None };
    Ok(StatementKind::Cursor(CursorStatement::Fetch(Fetch { name, rows, is_move, timeout })))
}

fn number(reader: &mut Reader<'_>) -> Result<Option<u64>> {
    let Token::Number(digits, _) = &reader.parser.peek_token_ref().token else { return Ok(None) };
    let Ok(number) = digits.parse() else { return Err(reader.unexpected("a whole number")) };
    reader.parser.advance_token();
    Ok(Some(number))
}

fn copy(reader: &mut Reader<'_>) -> Result<Copy> {
    reader.expect(&["COPY"])?;
    let mut options = CopyOptions::default();
    if reader.eat(&["BINARY"]) {
        options.format = CopyFormat::Binary;
    }
    let subject = if reader.eat_token(&Token::LParen) {
        let subject = if reader.at(&["SUBSCRIBE"]) {
            CopySubject::Subscribe(subscribe::subscribe(reader)?)
        } else {
            let query = reader.query()?;
            query_checks::check(&query)?;
            CopySubject::Query(query)
        };
        reader.expect_token(&Token::RParen)?;
        subject
    } else {
        let name = reader.name()?;
        let columns = reader.names_in_parentheses()?;
        CopySubject::Table { name, columns }
    };
    let direction = if reader.eat(&["FROM"]) {
        if !matches!(subject, CopySubject::Table { .. }) {
            return Err(reader.unexpected("TO STDOUT"));
        }
        CopyDirection::In
    } else {
        reader.expect(&["TO"])?;
        CopyDirection::Out
    };
    let at = reader.here();
    let stream = match direction {
        CopyDirection::In => "STDIN",
        CopyDirection::Out => "STDOUT",
    };
    if !reader.eat(&[stream]) {
        let file = reader.at(&["PROGRAM"])
            || matches!(
                reader.parser.peek_token_ref().token,
                Token::SingleQuotedString(_) | Token::EscapedStringLiteral(_) | Token::DollarQuotedString(_)
            );
        return Err(if file {
            Error::unsupported("COPY with files and programs of the server is not supported")
                .hint(format!("Write {stream}; psql's \\copy reads and writes files of the client."))
                .position(at)
        } else {
            reader.unexpected(stream)
        });
    }
    let with = reader.eat(&["WITH"]);
    if reader.eat_token(&Token::LParen) {
        loop {
            listed_option(reader, &mut options, direction)?;
            if !reader.eat_token(&Token::Comma) {
                break;
            }
        }
        reader.expect_token(&Token::RParen)?;
    } else {
        let mut any = false;
        while old_option(reader, &mut options, direction)? {
            any = true;
        }
        if with && !any {
            return Err(reader.unexpected("options of COPY"));
        }
    }
    if reader.at(&["WHERE"]) {
        return Err(Error::unsupported("COPY with WHERE is not supported")
            .hint("Copy into a table of its own, then INSERT INTO … SELECT … WHERE ….")
            .position(reader.here()));
    }
    check_options(&options, direction).map_err(|error| error.position_or(Some(at)))?;
    Ok(Copy { subject, direction, options })
}

/// An option of `WITH (…)`.
fn listed_option(reader: &mut Reader<'_>, options: &mut CopyOptions, direction: CopyDirection) -> Result<()> {
    let at = reader.here();
    let name = reader.identifier()?;
    match name.as_str() {
        "format" => {
            let format = parser::value_text(reader)?;
            options.format = match format.to_ascii_lowercase().as_str() {
                "text" => CopyFormat::Text,
                "csv" => CopyFormat::Csv,
                "binary" => CopyFormat::Binary,
                _ => {
                    return Err(Error::new(
                        SqlState::InvalidParameterValue,
                        format!("COPY format \"{format}\" not recognized"),
                    )
                    .hint("The formats are text, csv and binary.")
                    .position(at));
                }
            };
        }
        "delimiter" => options.delimiter = Some(one_byte(reader, "delimiter")?),
        "null" => options.null = Some(parser::value_text(reader)?),
        "header" => header(reader, options, true)?,
        "quote" => options.quote = Some(one_byte(reader, "quote")?),
        "escape" => options.escape = Some(one_byte(reader, "escape")?),
        "encoding" => encoding(reader)?,
        "force_quote" if direction == CopyDirection::Out => {
            options.force_quote = if reader.eat_token(&Token::Mul) { Some(Vec::new()) } else { Some(names(reader)?) };
        }
        "force_null" if direction == CopyDirection::In => options.force_null = names(reader)?,
        "force_not_null" if direction == CopyDirection::In => options.force_not_null = names(reader)?,
        "freeze" | "default" | "on_error" | "log_verbosity" | "reject_limit" | "oids" => {
            return Err(Error::unsupported(format!("COPY option \"{name}\" is not supported"))
                .hint("Leave it out.")
                .position(at));
        }
        _ => {
            return Err(Error::new(SqlState::SyntaxError, format!("option \"{name}\" not recognized"))
                .hint(COPY_OPTIONS)
                .position(at));
        }
    }
    Ok(())
}

const COPY_OPTIONS: &str = "The options are FORMAT, DELIMITER, NULL, HEADER, QUOTE, ESCAPE, ENCODING, FORCE_QUOTE (TO), \
                            FORCE_NULL and FORCE_NOT_NULL (FROM).";

/// An option in the form that PostgreSQL had before 9.0; false when none follows.
fn old_option(reader: &mut Reader<'_>, options: &mut CopyOptions, direction: CopyDirection) -> Result<bool> {
    if reader.eat(&["BINARY"]) {
        options.format = CopyFormat::Binary;
    } else if reader.eat(&["CSV"]) {
        options.format = CopyFormat::Csv;
    } else if reader.eat(&["HEADER"]) {
        header(reader, options, false)?;
    } else if reader.eat(&["DELIMITER"]) || reader.eat(&["DELIMITERS"]) {
        let _ = reader.eat(&["AS"]);
        options.delimiter = Some(one_byte(reader, "delimiter")?);
    } else if reader.eat(&["NULL"]) {
        let _ = reader.eat(&["AS"]);
        options.null = Some(parser::value_text(reader)?);
    } else if reader.eat(&["QUOTE"]) {
        let _ = reader.eat(&["AS"]);
        options.quote = Some(one_byte(reader, "quote")?);
    } else if reader.eat(&["ESCAPE"]) {
        let _ = reader.eat(&["AS"]);
        options.escape = Some(one_byte(reader, "escape")?);
    } else if reader.eat(&["ENCODING"]) {
        encoding(reader)?;
    } else if direction == CopyDirection::Out && reader.eat(&["FORCE", "QUOTE"]) {
        options.force_quote = if reader.eat_token(&Token::Mul) { Some(Vec::new()) } else { Some(bare_names(reader)?) };
    } else if direction == CopyDirection::In && reader.eat(&["FORCE", "NOT", "NULL"]) {
        options.force_not_null = bare_names(reader)?;
    } else if direction == CopyDirection::In && reader.eat(&["FORCE", "NULL"]) {
        options.force_null = bare_names(reader)?;
    } else {
        return Ok(false);
    }
    Ok(true)
}

fn names(reader: &mut Reader<'_>) -> Result<Vec<String>> {
    match reader.names_in_parentheses()? {
        Some(names) => Ok(names.into_iter().map(|(name, _)| name).collect()),
        None => Err(reader.unexpected("column names in parentheses")),
    }
}

fn bare_names(reader: &mut Reader<'_>) -> Result<Vec<String>> {
    let mut names = vec![reader.identifier()?];
    while reader.eat_token(&Token::Comma) {
        names.push(reader.identifier()?);
    }
    Ok(names)
}

fn header(reader: &mut Reader<'_>, options: &mut CopyOptions, valued: bool) -> Result<()> {
    let at = reader.here();
    let bare = !valued || matches!(reader.parser.peek_token_ref().token, Token::Comma | Token::RParen);
    (options.header, options.header_match) = if bare {
        (true, false)
    } else {
        match parser::value_text(reader)?.to_ascii_lowercase().as_str() {
            "true" | "on" | "1" => (true, false),
            "false" | "off" | "0" => (false, false),
            "match" => (true, true),
            _ => {
                return Err(Error::new(SqlState::SyntaxError, "header requires a Boolean value or \"match\"")
                    .hint("Write HEADER, HEADER false or HEADER match.")
                    .position(at));
            }
        }
    };
    Ok(())
}

fn one_byte(reader: &mut Reader<'_>, what: &str) -> Result<u8> {
    let at = reader.here();
    let text = parser::value_text(reader)?;
    match text.as_bytes() {
        [byte] if !matches!(byte, b'\n' | b'\r') => Ok(*byte),
        _ => Err(Error::new(SqlState::FeatureNotSupported, format!("COPY {what} must be a single one-byte character"))
            .hint("Give one ASCII character, such as ',' or E'\\t'.")
            .position(at)),
    }
}

fn encoding(reader: &mut Reader<'_>) -> Result<()> {
    let at = reader.here();
    let text = parser::value_text(reader)?;
    if matches!(text.to_ascii_uppercase().replace(['-', '_'], "").as_str(), "UTF8" | "UNICODE") {
        return Ok(());
    }
    Err(Error::unsupported(format!("COPY in encoding \"{text}\" is not supported"))
        .hint("Text is UTF-8 throughout.")
        .position(at))
}

fn check_options(options: &CopyOptions, direction: CopyDirection) -> Result<()> {
    let csv = options.format == CopyFormat::Csv;
    let wrong = |message: &str, hint: &str| Err(Error::new(SqlState::FeatureNotSupported, message).hint(hint));
    if options.format == CopyFormat::Binary && (options.delimiter.is_some() || options.null.is_some() || options.header)
    {
        return wrong("cannot specify DELIMITER, NULL or HEADER in BINARY mode", "Leave them out.");
    }
    if !csv
        && (options.quote.is_some()
            || options.escape.is_some()
            || options.force_quote.is_some()
            || !options.force_null.is_empty()
            || !options.force_not_null.is_empty())
    {
        return wrong("COPY quoting options are available only in CSV mode", "Write FORMAT csv.");
    }
    if options.header_match && direction == CopyDirection::Out {
        return wrong("cannot use \"match\" with HEADER in COPY TO", "Write HEADER.");
    }
    if csv && options.delimiter() == options.quote() {
        return wrong("COPY delimiter and quote must be different", "Choose another DELIMITER or QUOTE.");
    }
    let letter = |byte: u8| byte == b'\\' || byte == b'.' || byte.is_ascii_alphanumeric() && !byte.is_ascii_uppercase();
    if options.format == CopyFormat::Text && letter(options.delimiter()) {
        return wrong("COPY delimiter must not be a letter, a digit, a backslash or a point", "Use a tab or a comma.");
    }
    let null = options.null();
    if null.contains(['\n', '\r']) || null.bytes().any(|byte| byte == options.delimiter()) {
        return wrong(
            "COPY null representation cannot contain the delimiter or an end of line",
            "Choose another NULL.",
        );
    }
    if csv && null.bytes().any(|byte| byte == options.quote()) {
        return wrong("CSV quote character must not appear in the NULL specification", "Choose another NULL.");
    }
    Ok(())
}

/// The query that COPY of a table stands for.
pub(crate) fn table_query(name: &super::Name, columns: Option<&Vec<(String, usize)>>) -> Result<Box<ast::Query>> {
    let quoted = super::names::quoted;
    let table = match &name.schema {
        Some(schema) => format!("{}.{}", quoted(schema), quoted(&name.name)),
        None => quoted(&name.name),
    };
    let columns = match columns {
        Some(columns) => columns.iter().map(|(name, _)| quoted(name)).collect::<Vec<_>>().join(", "),
        None => "*".to_owned(),
    };
    parser::parse_query(&format!("SELECT {columns} FROM {table}"))
}
