//! Text to statements.

use arrow::datatypes::DataType;
use sqlparser::ast;
use sqlparser::tokenizer::Token;

use super::alter;
use super::create;
use super::create_function;
use super::create_sink;
use super::errors;
use super::event_clauses;
use super::index;
use super::patterns;
use super::query_checks;
use super::reader::{Reader, object_name};
use super::refusals;
use super::session_statements;
use super::statement::{
    Describe, Drop, Explain, JobAction, ObjectKind, SetVariable, Show, Statement, StatementKind, Transaction,
};
use super::subscribe;
use super::temporal_join;
use super::tokens::{self, Piece, position};
use super::windows;
use crate::types::{Error, Limits, Result, SqlState};

/// Splits a text into statements and parses each. Pieces without anything but space and comments
/// give no statement.
///
/// # Errors
/// 42601 and others of class 42, 0A000 for what is not offered, 54000 and 54001 for texts that are
/// too long or too deep. The position counts in the whole text.
pub fn parse(sql: &str) -> Result<Vec<Statement>> {
    parse_within(sql, &Limits::default())
}

/// The same within a server's limits.
///
/// # Errors
/// As [`parse`].
pub fn parse_within(sql: &str, limits: &Limits) -> Result<Vec<Statement>> {
    let mut statements = Vec::new();
    for Piece { text, offset } in tokens::split(sql, limits)? {
        let kind = tokens::with_stack(|| parse_one(&text, limits)).map_err(|error| {
            let at = error.position_at().unwrap_or(1);
            error.position(at + offset)
        })?;
        statements.push(Statement { text, offset, kind });
    }
    Ok(statements)
}

fn parse_one(text: &str, limits: &Limits) -> Result<StatementKind> {
    let tokens = tokens::tokenize(text, limits)?;
    tokens::check_depth(&tokens, limits)?;
    let mut tokens = tokens;
    let emit = event_clauses::take_emit(&mut tokens);
    let tokens = temporal_join::plain_versions(tokens);
    refusals::check(&tokens)?;
    let tokens = tokens::without_table_commands(windows::plain_calls(patterns::plain_patterns(tokens)?));
    let before: String = match emit {
        Some((_, at)) => text.chars().take(at - 1).collect(),
        None => text.to_owned(),
    };
    let text = before.as_str();
    let mut reader = Reader::new(tokens, text);
    let mut kind = statement(&mut reader, text)?;
    reader.finish()?;
    if let Some((emit, at)) = emit {
        event_clauses::set_emit(&mut kind, emit, at)?;
    }
    Ok(kind)
}

/// Parses a query that the program wrote.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_query(text: &str) -> Result<Box<ast::Query>> {
    let tokens = tokens::tokenize(text, &Limits::default())?;
    let mut reader = Reader::new(tokens, text);
    let query = reader.query()?;
    reader.finish()?;
    Ok(query)
}

/// Parses an expression that the program wrote.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_expression_of_program(text: &str) -> Result<ast::Expr> {
    let mut reader = Reader::new(tokens::tokenize(text, &Limits::default())?, text);
    reader.expression()
}

/// Parses an expression that stands alone, such as a predicate.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_expression(text: &str) -> Result<ast::Expr> {
    tokens::with_stack(|| {
        let limits = Limits::default();
        let tokens = tokens::tokenize(text, &limits)?;
        tokens::check_depth(&tokens, &limits)?;
        refusals::check(&tokens)?;
        let mut reader = Reader::new(tokens, text);
        let expression = reader.expression()?;
        reader.finish()?;
        query_checks::check(&expression)?;
        Ok(expression)
    })
}

const VERBS: &[&str] = &[
    "ALTER",
    "BEGIN",
    "CANCEL",
    "CHECKPOINT",
    "CLOSE",
    "COMMIT",
    "COPY",
    "CREATE",
    "DEALLOCATE",
    "DECLARE",
    "DELETE",
    "DESCRIBE",
    "DISCARD",
    "DROP",
    "EXECUTE",
    "EXPLAIN",
    "FETCH",
    "FLUSH",
    "INSERT",
    "PAUSE",
    "PREPARE",
    "RELEASE",
    "RESET",
    "RESUME",
    "ROLLBACK",
    "SAVEPOINT",
    "SELECT",
    "SET",
    "SHOW",
    "START",
    "STOP",
    "SUBSCRIBE",
    "TABLE",
    "TRUNCATE",
    "UPDATE",
    "VALUES",
    "WAIT",
    "WITH",
];

/// Reads one statement.
///
/// # Errors
/// As [`parse`].
pub(crate) fn statement(reader: &mut Reader<'_>, text: &str) -> Result<StatementKind> {
    if reader.parser.peek_token_ref().token == Token::LParen {
        return query(reader);
    }
    let Some(verb) = reader.peek() else {
        return Err(reader.unexpected("a statement"));
    };
    match verb.as_str() {
        "SELECT" | "WITH" | "VALUES" | "TABLE" => query(reader),
        "INSERT" | "UPDATE" | "DELETE" => dml(reader),
        "TRUNCATE" => truncate(reader),
        "CREATE" if reader.at(&["CREATE", "INDEX"]) => index::create(reader),
        "CREATE" => create::create(reader, text),
        "DROP" if reader.at(&["DROP", "INDEX"]) => index::drop(reader),
        "DROP" => drop(reader),
        "EXPLAIN" => explain(reader, text),
        "SHOW" => show(reader),
        "DESCRIBE" | "DESC" => {
            reader.parser.advance_token();
            let _ = reader.eat(&["TABLE"]);
            Ok(StatementKind::Describe(Describe { name: reader.name()? }))
        }
        "SET" => set(reader),
        "RESET" => {
            reader.parser.advance_token();
            let position = reader.here();
            let name = if reader.eat(&["TIME", "ZONE"]) { "timezone".into() } else { setting(reader)?.0 };
            Ok(StatementKind::Set(SetVariable { name, value: None, position, local: false }))
        }
        "SUBSCRIBE" => Ok(StatementKind::Subscribe(subscribe::subscribe(reader)?)),
        "PAUSE" => create_sink::job(reader, JobAction::Pause),
        "RESUME" => create_sink::job(reader, JobAction::Resume),
        "CANCEL" => create_sink::job(reader, JobAction::Cancel),
        "STOP" => create_sink::job(reader, JobAction::Stop),
        "ALTER" => alter::alter(reader),
        "FLUSH" | "WAIT" => {
            reader.parser.advance_token();
            Ok(StatementKind::Flush)
        }
        "CHECKPOINT" => {
            reader.parser.advance_token();
            Ok(StatementKind::Checkpoint)
        }
        _ => {
            if let Some(kind) = session_statements::read(reader, &verb, text)? {
                return Ok(kind);
            }
            let error = reader.unexpected("a statement");
            Err(match errors::near_miss(&verb, VERBS.iter().copied()) {
                Some(near) => error.hint(format!("Perhaps you meant {near}.")),
                None => error.hint("A statement starts with a word such as SELECT, INSERT, CREATE or SHOW."),
            })
        }
    }
}

fn query(reader: &mut Reader<'_>) -> Result<StatementKind> {
    let query = reader.query()?;
    query_checks::check(&query)?;
    Ok(StatementKind::Query(query))
}

fn dml(reader: &mut Reader<'_>) -> Result<StatementKind> {
    let at = reader.here();
    let next = position(reader.parser.peek_nth_token_ref(1).span).unwrap_or(at);
    let statement = reader.run(|parser| parser.parse_statement())?;
    query_checks::check(&statement)?;
    match statement {
        ast::Statement::Insert(insert) if !insert.into => {
            Err(Error::new(SqlState::SyntaxError, format!("syntax error at or near \"{}\"", insert.table))
                .hint("Write INSERT INTO.")
                .position(next))
        }
        ast::Statement::Insert(insert) => Ok(StatementKind::Insert(Box::new(insert))),
        ast::Statement::Update(_) => Ok(StatementKind::Update(Box::new(statement))),
        ast::Statement::Delete(delete) => Ok(StatementKind::Delete(Box::new(delete))),
        _ => Err(Error::unsupported("this form of the statement is not supported")
            .hint("Write INSERT INTO t …, UPDATE t SET … or DELETE FROM t ….")
            .position(at)),
    }
}

fn truncate(reader: &mut Reader<'_>) -> Result<StatementKind> {
    let at = reader.here();
    match reader.run(|parser| parser.parse_statement())? {
        ast::Statement::Truncate(truncate) => {
            let plain = truncate.partitions.is_none()
                && !truncate.if_exists
                && truncate.on_cluster.is_none()
                && truncate.cascade.is_none()
                && truncate.identity.is_none();
            if !plain {
                return Err(Error::unsupported("TRUNCATE with further clauses is not supported")
                    .hint("Write TRUNCATE t, u.")
                    .position(at));
            }
            let names = truncate.table_names.iter().map(|target| object_name(&target.name));
            Ok(StatementKind::Truncate(names.collect::<Result<_>>()?))
        }
        _ => Err(Error::new(SqlState::SyntaxError, "syntax error in TRUNCATE").hint("Write TRUNCATE t.").position(at)),
    }
}

fn drop(reader: &mut Reader<'_>) -> Result<StatementKind> {
    reader.expect(&["DROP"])?;
    let at = reader.here();
    let source = reader.at(&["SOURCE"]);
    let kind = if reader.eat(&["SOURCE"]) { Some(ObjectKind::Table) } else { object_kind(reader) };
    let kind = kind.ok_or_else(|| match reader.peek() {
        Some(word)
            if matches!(
                word.as_str(),
                "PROCEDURE"
                    | "AGGREGATE"
                    | "SEQUENCE"
                    | "TYPE"
                    | "DOMAIN"
                    | "TRIGGER"
                    | "DATABASE"
                    | "ROLE"
                    | "USER"
                    | "EXTENSION"
                    | "JOB"
                    | "CONNECTION"
                    | "SECRET"
                    | "STREAM"
                    | "OWNED"
            ) =>
        {
            Error::unsupported(format!("DROP {word} is not supported"))
                .hint("Write DROP TABLE, DROP VIEW, DROP MATERIALIZED VIEW, DROP SINK, DROP FUNCTION or DROP SCHEMA.")
                .position(at)
        }
        _ => reader.unexpected("TABLE, VIEW, MATERIALIZED VIEW, SINK, FUNCTION or SCHEMA"),
    })?;
    let if_exists = reader.eat(&["IF", "EXISTS"]);
    let (mut names, mut arguments) = (Vec::new(), Vec::new());
    loop {
        names.push(reader.name()?);
        if kind == ObjectKind::Function {
            arguments.push(argument_types(reader)?);
        }
        if !reader.eat_token(&Token::Comma) {
            break;
        }
    }
    let cascade = reader.eat(&["CASCADE"]);
    if !cascade {
        let _ = reader.eat(&["RESTRICT"]);
    }
    Ok(StatementKind::Drop(Drop { kind, source, names, arguments, if_exists, cascade }))
}

/// Reads the types of a function's arguments, if they are there.
fn argument_types(reader: &mut Reader<'_>) -> Result<Option<Vec<DataType>>> {
    if !reader.eat_token(&Token::LParen) {
        return Ok(None);
    }
    let mut types = Vec::new();
    while !reader.eat_token(&Token::RParen) {
        if !types.is_empty() {
            reader.expect_token(&Token::Comma)?;
        }
        types.push(create_function::type_of(reader)?);
    }
    Ok(Some(types))
}

/// Reads an object's kind if one is next.
fn object_kind(reader: &mut Reader<'_>) -> Option<ObjectKind> {
    if reader.eat(&["TABLE"]) {
        Some(ObjectKind::Table)
    } else if reader.eat(&["VIEW"]) {
        Some(ObjectKind::View)
    } else if reader.eat(&["MATERIALIZED", "VIEW"]) {
        Some(ObjectKind::MaterializedView)
    } else if reader.eat(&["SINK"]) {
        Some(ObjectKind::Sink)
    } else if reader.eat(&["SCHEMA"]) {
        Some(ObjectKind::Schema)
    } else if reader.eat(&["FUNCTION"]) {
        Some(ObjectKind::Function)
    } else {
        None
    }
}

const EXPLAIN_HINT: &str =
    "Write EXPLAIN [ANALYZE] SELECT …, EXPLAIN [ANALYZE] v, or EXPLAIN CREATE MATERIALIZED VIEW v AS SELECT ….";

fn explain(reader: &mut Reader<'_>, text: &str) -> Result<StatementKind> {
    reader.expect(&["EXPLAIN"])?;
    let at = reader.here();
    let analyze = explain_options(reader)?;
    let kind = reader.eat(&["MATERIALIZED", "VIEW"]) || reader.eat(&["SINK"]);
    if kind || names_an_object(reader) {
        return Ok(StatementKind::Explain(Box::new(Explain::Job { name: reader.name()?, analyze })));
    }
    let explained = match (statement(reader, text)?, analyze) {
        (StatementKind::Query(query), false) => Explain::Query(query),
        (StatementKind::Query(query), true) => Explain::Analyze(query),
        (StatementKind::CreateMaterializedView(view), false) => Explain::View(view),
        (StatementKind::CreateMaterializedView(view), true) => {
            let hint = format!("Create it first, then write EXPLAIN ANALYZE {}.", view.name.to_sql());
            return Err(Error::unsupported("EXPLAIN ANALYZE of a view that is not there yet is not supported")
                .hint(hint)
                .position(at));
        }
        _ => {
            return Err(Error::unsupported("EXPLAIN of this statement is not supported")
                .hint(EXPLAIN_HINT)
                .position(at));
        }
    };
    Ok(StatementKind::Explain(Box::new(explained)))
}

/// Reads `ANALYZE` or `(ANALYZE [true|false])`: whether it is said.
fn explain_options(reader: &mut Reader<'_>) -> Result<bool> {
    let at = reader.here();
    let refuse =
        |what: &str| Err(Error::unsupported(format!("{what} is not supported")).hint(EXPLAIN_HINT).position(at));
    let analyze = reader.eat(&["ANALYZE"]);
    if reader.at(&["VERBOSE"]) {
        return refuse("EXPLAIN VERBOSE");
    }
    if analyze || reader.parser.peek_token_ref().token != Token::LParen {
        return Ok(analyze);
    }
    match tokens::word(reader.parser.peek_nth_token_ref(1)).as_deref() {
        // `EXPLAIN (SELECT …)` is a query in parentheses.
        None | Some("SELECT" | "WITH" | "VALUES" | "TABLE") => return Ok(false),
        Some("ANALYZE") => {}
        Some(_) => return refuse("EXPLAIN with this option"),
    }
    reader.expect_token(&Token::LParen)?;
    reader.expect(&["ANALYZE"])?;
    let off = reader.eat(&["FALSE"]) || reader.eat(&["OFF"]);
    if !off {
        let _ = reader.eat(&["TRUE"]) || reader.eat(&["ON"]);
    }
    if !reader.eat_token(&Token::RParen) {
        return refuse("EXPLAIN with more options than ANALYZE");
    }
    Ok(!off)
}

/// True when a name is all that is left.
fn names_an_object(reader: &Reader<'_>) -> bool {
    let name = matches!(reader.parser.peek_token_ref().token, Token::Word(_))
        && reader.peek().is_none_or(|word| !VERBS.contains(&word.as_str()));
    name && matches!(reader.parser.peek_nth_token_ref(1).token, Token::Period | Token::EOF)
}

fn show(reader: &mut Reader<'_>) -> Result<StatementKind> {
    reader.expect(&["SHOW"])?;
    let show = if reader.eat(&["TABLES"]) {
        Show::Tables
    } else if reader.eat(&["MATERIALIZED", "VIEWS"]) {
        Show::MaterializedViews
    } else if reader.eat(&["VIEWS"]) {
        Show::Views
    } else if reader.eat(&["SINKS"]) {
        Show::Sinks
    } else if reader.eat(&["JOBS"]) {
        Show::Jobs
    } else if reader.eat(&["SOURCES"]) {
        Show::Sources
    } else if reader.eat(&["FUNCTIONS"]) {
        Show::Functions
    } else if reader.eat(&["CHECKPOINTS"]) {
        Show::Checkpoints
    } else if reader.eat(&["WATERMARKS"]) {
        Show::Watermarks
    } else if reader.eat(&["CREATE"]) {
        match object_kind(reader) {
            Some(kind) if kind != ObjectKind::Schema => Show::Create(kind, reader.name()?),
            _ => return Err(reader.unexpected("TABLE, VIEW, MATERIALIZED VIEW, SINK or FUNCTION and a name")),
        }
    } else if reader.eat(&["TIME", "ZONE"]) {
        Show::Variable("timezone".into())
    } else if reader.eat(&["TRANSACTION", "ISOLATION", "LEVEL"]) {
        Show::Variable("transaction_isolation".into())
    } else {
        let (name, _) = setting(reader)?;
        Show::Variable(name)
    };
    Ok(StatementKind::Show(show))
}

/// Reads a setting's name, dotted or not, in lower case.
fn setting(reader: &mut Reader<'_>) -> Result<(String, usize)> {
    let at = reader.here();
    let mut name = reader.identifier()?.to_lowercase();
    while reader.eat_token(&Token::Period) {
        name.push('.');
        name.push_str(&reader.identifier()?.to_lowercase());
    }
    Ok((name, at))
}

fn set(reader: &mut Reader<'_>) -> Result<StatementKind> {
    reader.expect(&["SET"])?;
    let at = reader.here();
    if reader.eat(&["TRANSACTION"]) {
        if reader.at(&["SNAPSHOT"]) {
            return Err(Error::unsupported("SET TRANSACTION SNAPSHOT is not supported")
                .hint("Read all that belongs together in one block.")
                .position(at));
        }
        return Ok(StatementKind::Transaction(Transaction::Set(session_statements::modes(reader)?)));
    }
    let local = reader.eat(&["LOCAL"]);
    if !local && reader.eat(&["SESSION"]) {
        if reader.eat(&["CHARACTERISTICS", "AS", "TRANSACTION"]) {
            return Ok(StatementKind::Transaction(Transaction::SetDefault(session_statements::modes(reader)?)));
        }
        if reader.at(&["AUTHORIZATION"]) {
            return Err(Error::unsupported("SET SESSION AUTHORIZATION is not supported")
                .hint("Leave it out: every user may do everything.")
                .position(at));
        }
    }
    if reader.eat(&["TIME", "ZONE"]) {
        let value = if reader.eat(&["LOCAL"]) { None } else { setting_value(reader)? };
        return Ok(StatementKind::Set(SetVariable { name: "timezone".into(), value, position: at, local }));
    }
    if reader.eat(&["NAMES"]) {
        let value = setting_value(reader)?;
        return Ok(StatementKind::Set(SetVariable { name: "client_encoding".into(), value, position: at, local }));
    }
    let (name, position) = setting(reader)?;
    if !reader.eat_token(&Token::Eq) && !reader.eat(&["TO"]) {
        return Err(reader.unexpected("= or TO and a value"));
    }
    Ok(StatementKind::Set(SetVariable { name, value: setting_value(reader)?, position, local }))
}

/// Reads a setting's value or a list of them; `None` for DEFAULT.
fn setting_value(reader: &mut Reader<'_>) -> Result<Option<String>> {
    if reader.eat(&["DEFAULT"]) {
        return Ok(None);
    }
    let mut value = value_text(reader)?;
    while reader.eat_token(&Token::Comma) {
        value.push_str(", ");
        value.push_str(&value_text(reader)?);
    }
    Ok(Some(value))
}

/// Reads one value as text without quotes: a string, a number, or a word.
pub(crate) fn value_text(reader: &mut Reader<'_>) -> Result<String> {
    let minus = reader.eat_token(&Token::Minus);
    let plus = !minus && reader.eat_token(&Token::Plus);
    let text = match &reader.parser.peek_token_ref().token {
        Token::Number(digits, _) => {
            if minus {
                format!("-{digits}")
            } else {
                digits.clone()
            }
        }
        Token::SingleQuotedString(text) | Token::EscapedStringLiteral(text) if !minus && !plus => text.clone(),
        Token::DollarQuotedString(text) if !minus && !plus => text.value.clone(),
        Token::Word(word) if !minus && !plus => word.value.clone(),
        _ => {
            return Err(reader.unexpected("a value: a string in single quotes, a number, true or false"));
        }
    };
    reader.parser.advance_token();
    Ok(text)
}
