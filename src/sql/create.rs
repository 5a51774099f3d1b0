//! `CREATE TABLE`, `CREATE VIEW`, `CREATE MATERIALIZED VIEW`, `CREATE SCHEMA`, and the way to the others.

use std::collections::BTreeMap;

use arrow::datatypes::DataType;
use sqlparser::dialect::{Dialect, Precedence};
use sqlparser::tokenizer::Token;

use super::create_function;
use super::create_sink;
use super::dialect::ClinkDialect;
use super::errors;
use super::event_clauses;
use super::parser::value_text;
use super::query_checks;
use super::reader::{Reader, duplicate_column};
use super::statement::{
    ColumnDefinition, CreateMaterializedView, CreateTable, CreateView, Emit, OptionValue, Standing, StatementKind,
    WatermarkClause,
};
use super::types::{StoredType, stored};
use crate::types::{Error, Result, SqlState};

/// Reads a statement that begins with CREATE.
pub(crate) fn create(reader: &mut Reader<'_>, text: &str) -> Result<StatementKind> {
    reader.expect(&["CREATE"])?;
    if reader.eat(&["TABLE"]) {
        table(reader, false).map(StatementKind::CreateTable)
    } else if reader.eat(&["SOURCE"]) {
        table(reader, true).map(StatementKind::CreateTable)
    } else if reader.eat(&["VIEW"]) {
        view(reader, text).map(StatementKind::CreateView)
    } else if reader.eat(&["MATERIALIZED", "VIEW"]) {
        materialized_view(reader, text).map(StatementKind::CreateMaterializedView)
    } else if reader.eat(&["SINK"]) {
        create_sink::sink(reader, text).map(StatementKind::CreateSink)
    } else if reader.eat(&["FUNCTION"]) {
        create_function::function(reader, false).map(Box::new).map(StatementKind::CreateFunction)
    } else if reader.eat(&["OR", "REPLACE", "FUNCTION"]) {
        create_function::function(reader, true).map(Box::new).map(StatementKind::CreateFunction)
    } else if reader.eat(&["SCHEMA"]) {
        let if_not_exists = reader.eat(&["IF", "NOT", "EXISTS"]);
        let name = reader.name()?;
        if reader.at(&["AUTHORIZATION"]) {
            return Err(refuse(reader, "AUTHORIZATION", "Leave it out: every user may do everything."));
        }
        if name.schema.is_some() {
            return Err(Error::new(SqlState::SyntaxError, "a schema's name has one part")
                .hint("Write CREATE SCHEMA s.")
                .position(name.position));
        }
        if name.name.starts_with("pg_") {
            let message = format!("unacceptable schema name \"{}\"", name.name);
            return Err(Error::new(SqlState::ReservedName, message)
                .detail("The prefix \"pg_\" is reserved for system schemas.")
                .hint("Choose a name that begins otherwise.")
                .position(name.position));
        }
        Ok(StatementKind::CreateSchema { name, if_not_exists })
    } else if reader.eat(&["SAVEPOINT"]) {
        let position = reader.here();
        let text = value_text(reader)?;
        Ok(StatementKind::CreateSavepoint(OptionValue { text, position, number: false }))
    } else {
        Err(reader.unexpected("TABLE, SOURCE, VIEW, MATERIALIZED VIEW, SINK, FUNCTION, SCHEMA or SAVEPOINT"))
    }
}

/// The error for a clause that is known and not offered, at the next token.
fn refuse(reader: &Reader<'_>, what: &str, hint: &str) -> Error {
    Error::unsupported(format!("{what} is not supported")).hint(hint).position(reader.here())
}

/// Columns as they are read.
#[derive(Default)]
struct Columns {
    columns: Vec<ColumnDefinition>,
    /// Names and positions; resolved when all columns are known.
    primary_key: Option<Vec<(String, usize)>>,
    watermark: Option<WatermarkClause>,
}

impl Columns {
    fn set_primary_key(&mut self, table: &str, names: Vec<(String, usize)>, at: usize) -> Result<()> {
        if self.primary_key.is_some() {
            return Err(Error::new(
                SqlState::InvalidTableDefinition,
                format!("multiple primary keys for table \"{table}\" are not allowed"),
            )
            .hint("Write one PRIMARY KEY (a, b) over all its columns.")
            .position(at));
        }
        self.primary_key = Some(names);
        Ok(())
    }

    fn key_indexes(&mut self) -> Result<Vec<usize>> {
        let mut indexes = Vec::new();
        for (name, at) in self.primary_key.take().unwrap_or_default() {
            let Some(index) = self.columns.iter().position(|column| column.name == name) else {
                let names = self.columns.iter().map(|column| column.name.as_str());
                return Err(errors::undefined_column(&name, names).position(at));
            };
            if let Some(column) = self.columns.get_mut(index) {
                column.nullable = false;
            }
            indexes.push(index);
        }
        Ok(indexes)
    }
}

fn table(reader: &mut Reader<'_>, source: bool) -> Result<CreateTable> {
    let if_not_exists = reader.eat(&["IF", "NOT", "EXISTS"]);
    let name = reader.name()?;
    if reader.at(&["AS"]) || reader.at(&["WITH"]) {
        return Err(refuse(
            reader,
            "CREATE TABLE without a list of columns",
            "List the columns: CREATE TABLE t (a bigint, b text); then INSERT INTO t SELECT ….",
        ));
    }
    reader.expect_token(&Token::LParen)?;
    let mut columns = Columns::default();
    if !reader.eat_token(&Token::RParen) {
        loop {
            if !table_constraint(reader, &name.name, &mut columns)? {
                column(reader, &name.name, &mut columns)?;
            }
            if !reader.eat_token(&Token::Comma) {
                break;
            }
        }
        reader.expect_token(&Token::RParen)?;
    }
    let mut append_only = false;
    let mut options = None;
    loop {
        let at = reader.here();
        if reader.eat(&["APPEND", "ONLY"]) && !append_only {
            append_only = true;
        } else if options.is_none() && reader.at(&["WITH"]) {
            options = Some(with_options(reader)?);
        } else if source && options.is_some() && reader.at(&["FORMAT"]) {
            let options = options.get_or_insert_default();
            encoding(reader, options)?;
        } else if let Some(word) = reader.peek().filter(|word| {
            matches!(
                word.as_str(),
                "AS" | "PARTITION"
                    | "PARTITIONED"
                    | "INHERITS"
                    | "TABLESPACE"
                    | "ON"
                    | "USING"
                    | "WITHOUT"
                    | "SETTINGS"
                    | "ENGINE"
                    | "COMMENT"
                    | "FORMAT"
                    | "DISTRIBUTED"
                    | "LIKE"
            )
        }) {
            return Err(refuse(
                reader,
                &format!("{word} in CREATE TABLE"),
                "Write CREATE TABLE t (…) [APPEND ONLY] [WITH (…)].",
            ));
        } else if reader.is_done() {
            break;
        } else {
            return Err(reader.unexpected("APPEND ONLY, WITH or the end of the statement").position(at));
        }
    }
    if source
        && options.as_ref().is_none_or(|options: &BTreeMap<String, OptionValue>| !options.contains_key("connector"))
    {
        return Err(Error::new(SqlState::SyntaxError, format!("source \"{}\" has no connector", name.name))
            .hint("Add WITH (connector = 'file', …), or write CREATE TABLE for a table of rows that are inserted.")
            .position(name.position));
    }
    let primary_key = columns.key_indexes()?;
    let mut options = options.unwrap_or_default();
    let time_options = event_clauses::take_options(&mut options, &mut columns.watermark)?;
    if let Some(clause) = &columns.watermark {
        let names: Vec<&str> = columns.columns.iter().map(|column| column.name.as_str()).collect();
        event_clauses::column_of(clause, &names)?;
    }
    Ok(CreateTable {
        name,
        if_not_exists,
        columns: columns.columns,
        primary_key,
        append_only,
        source,
        options,
        watermark: columns.watermark,
        time_options,
    })
}

/// Reads `FORMAT PLAIN ENCODE JSON`, another spelling of the option `format`.
fn encoding(reader: &mut Reader<'_>, options: &mut BTreeMap<String, OptionValue>) -> Result<()> {
    reader.expect(&["FORMAT"])?;
    if !reader.eat(&["PLAIN"]) {
        return Err(refuse(
            reader,
            "FORMAT other than PLAIN",
            "Write FORMAT PLAIN ENCODE JSON, or format = 'json' in WITH.",
        ));
    }
    reader.expect(&["ENCODE"])?;
    let position = reader.here();
    let text = reader.identifier()?.to_lowercase();
    match options.get("format") {
        Some(given) if given.text.to_lowercase() != text => Err(Error::new(
            SqlState::InvalidParameterValue,
            format!("ENCODE {text} contradicts format = '{}'", given.text),
        )
        .hint("Say it once.")
        .position(position)),
        _ => {
            options.insert("format".to_owned(), OptionValue { text, position, number: false });
            Ok(())
        }
    }
}

/// Reads a table constraint if one is next.
fn table_constraint(reader: &mut Reader<'_>, table: &str, columns: &mut Columns) -> Result<bool> {
    let named = reader.at(&["CONSTRAINT"]);
    if named {
        reader.parser.advance_token();
        reader.identifier()?;
    }
    let at = reader.here();
    if reader.eat(&["PRIMARY", "KEY"]) {
        let names =
            reader.names_in_parentheses()?.ok_or_else(|| reader.unexpected("the key's columns in parentheses"))?;
        columns.set_primary_key(table, names, at)?;
        not_enforced(reader)?;
        return Ok(true);
    }
    if event_clauses::watermark(reader, &mut columns.watermark)? {
        return Ok(true);
    }
    let parenthesis = reader.parser.peek_nth_token_ref(1).token == Token::LParen;
    if parenthesis && reader.at(&["UNIQUE"]) {
        return Err(refuse(reader, "UNIQUE", "Make the columns the PRIMARY KEY, or leave it out."));
    }
    if parenthesis && reader.at(&["CHECK"]) {
        return Err(refuse(reader, "CHECK", "Filter in a view: CREATE VIEW v AS SELECT … WHERE …."));
    }
    if reader.at(&["FOREIGN", "KEY"]) {
        return Err(refuse(reader, "FOREIGN KEY", "Leave it out: references are not checked."));
    }
    if reader.at(&["EXCLUDE", "USING"]) {
        return Err(refuse(reader, "EXCLUDE", "Leave it out."));
    }
    if reader.at(&["LIKE"]) {
        return Err(refuse(reader, "LIKE in CREATE TABLE", "List the columns: DESCRIBE shows them."));
    }
    if named {
        return Err(reader.unexpected("PRIMARY KEY"));
    }
    Ok(false)
}

fn not_enforced(reader: &Reader<'_>) -> Result<()> {
    if reader.at(&["NOT", "ENFORCED"]) || reader.at(&["ENFORCED"]) {
        return Err(refuse(
            reader,
            "NOT ENFORCED",
            "Leave it out: a later row with the same key replaces the earlier one.",
        ));
    }
    if reader.at(&["DEFERRABLE"]) || reader.at(&["NOT", "DEFERRABLE"]) || reader.at(&["INITIALLY"]) {
        return Err(refuse(reader, "DEFERRABLE", "Leave it out: constraints are checked at once."));
    }
    Ok(())
}

fn column(reader: &mut Reader<'_>, table: &str, columns: &mut Columns) -> Result<()> {
    let at = reader.here();
    let name = reader.new_identifier()?;
    if columns.columns.iter().any(|column| column.name == name) {
        return Err(duplicate_column(&name).position(at));
    }
    if reader.eat(&["AS"]) {
        let computed = reader.expression()?;
        query_checks::check(&computed)?;
        columns.columns.push(ColumnDefinition {
            name,
            // The expression's, which is known when it is planned.
            data_type: DataType::Null,
            sql_type: String::new(),
            length_max: None,
            nullable: true,
            default: None,
            computed: Some(computed),
        });
        return Ok(());
    }
    let type_at = reader.here();
    if !matches!(reader.parser.peek_token_ref().token, Token::Word(_)) {
        return Err(reader.unexpected("the column's type"));
    }
    let stored = data_type(reader).map_err(|error| error.position_or(Some(type_at)))?;
    let mut column = ColumnDefinition {
        name: name.clone(),
        data_type: stored.data_type,
        sql_type: stored.sql_type,
        length_max: stored.length_max,
        nullable: true,
        default: None,
        computed: None,
    };
    let mut said_null = false;
    loop {
        let at = reader.here();
        if reader.eat(&["CONSTRAINT"]) {
            reader.identifier()?;
        } else if reader.eat(&["NOT", "NULL"]) {
            if said_null {
                return Err(contradiction(&name, table).position(at));
            }
            column.nullable = false;
        } else if reader.eat(&["NULL"]) {
            if !column.nullable {
                return Err(contradiction(&name, table).position(at));
            }
            said_null = true;
        } else if reader.eat(&["PRIMARY", "KEY"]) {
            columns.set_primary_key(table, vec![(name.clone(), at)], at)?;
            not_enforced(reader)?;
        } else if reader.eat(&["DEFAULT"]) {
            if column.default.is_some() {
                return Err(Error::new(
                    SqlState::SyntaxError,
                    format!("multiple default values specified for column \"{name}\" of table \"{table}\""),
                )
                .hint("Give one DEFAULT.")
                .position(at));
            }
            // As in PostgreSQL, what binds looser than LIKE needs parentheses: `DEFAULT 5 NOT NULL`.
            let binding = ClinkDialect.prec_value(Precedence::Like);
            column.default = Some(reader.run(|parser| parser.parse_subexpr(binding))?);
        } else if reader.at(&["CHECK"]) {
            return Err(refuse(reader, "CHECK", "Filter in a view: CREATE VIEW v AS SELECT … WHERE …."));
        } else if reader.at(&["UNIQUE"]) {
            return Err(refuse(reader, "UNIQUE", "Make the column the PRIMARY KEY, or leave it out."));
        } else if reader.at(&["REFERENCES"]) {
            return Err(refuse(reader, "REFERENCES", "Leave it out: references are not checked."));
        } else if reader.at(&["COLLATE"]) {
            return Err(refuse(reader, "COLLATE", "Leave it out: texts are ordered by their bytes."));
        } else if reader.at(&["AS"]) {
            return Err(refuse(
                reader,
                "AS behind a column's type",
                "Write c int GENERATED ALWAYS AS (…), or c AS … without a type.",
            ));
        } else if reader.at(&["GENERATED"]) {
            generated(reader, &mut column)?;
        } else if reader.at(&["METADATA"]) {
            return Err(refuse(reader, "METADATA", "Leave it out."));
        } else {
            break;
        }
    }
    columns.columns.push(column);
    Ok(())
}

/// Reads `GENERATED ALWAYS AS (expression) [STORED]`.
fn generated(reader: &mut Reader<'_>, column: &mut ColumnDefinition) -> Result<()> {
    if !reader.at(&["GENERATED", "ALWAYS", "AS"]) || reader.parser.peek_nth_token_ref(3).token != Token::LParen {
        return Err(refuse(reader, "GENERATED as an identity", "Write GENERATED ALWAYS AS (expression)."));
    }
    let at = reader.here();
    if column.default.is_some() || column.computed.is_some() {
        return Err(Error::new(
            SqlState::SyntaxError,
            format!("both default and generation expression specified for column \"{}\"", column.name),
        )
        .hint("Give one of them.")
        .position(at));
    }
    reader.expect(&["GENERATED", "ALWAYS", "AS"])?;
    reader.expect_token(&Token::LParen)?;
    let computed = reader.expression()?;
    reader.expect_token(&Token::RParen)?;
    query_checks::check(&computed)?;
    column.computed = Some(computed);
    let _ = reader.eat(&["STORED"]) || reader.eat(&["VIRTUAL"]);
    Ok(())
}

fn contradiction(column: &str, table: &str) -> Error {
    Error::new(
        SqlState::SyntaxError,
        format!("conflicting NULL/NOT NULL declarations for column \"{column}\" of table \"{table}\""),
    )
    .hint("Write one of them.")
}

/// Reads a type: ours with angle brackets, or one of sqlparser's.
pub(super) fn data_type(reader: &mut Reader<'_>) -> Result<StoredType> {
    let mut closed = 0;
    let stored = nested_type(reader, &mut closed)?;
    if closed > 0 { Err(reader.unexpected("a type without a spare >")) } else { Ok(stored) }
}

/// `closed` counts closing brackets that an inner type has read ahead of its own: `>>` is one token.
fn nested_type(reader: &mut Reader<'_>, closed: &mut usize) -> Result<StoredType> {
    let at = reader.here();
    let bracket = reader.parser.peek_nth_token_ref(1).token == Token::Lt;
    let mut stored = if bracket && (reader.eat(&["STRUCT"]) || reader.eat(&["ROW"])) {
        reader.expect_token(&Token::Lt)?;
        let mut fields: Vec<(String, StoredType)> = Vec::new();
        loop {
            let at = reader.here();
            let name = reader.identifier()?;
            if fields.iter().any(|(other, _)| *other == name) {
                return Err(duplicate_column(&name).position(at));
            }
            fields.push((name, nested_type(reader, closed)?));
            if *closed > 0 || !reader.eat_token(&Token::Comma) {
                break;
            }
        }
        close(reader, closed)?;
        StoredType::struct_of(fields)
    } else if bracket && reader.eat(&["MAP"]) {
        reader.expect_token(&Token::Lt)?;
        let key = nested_type(reader, closed)?;
        reader.expect_token(&Token::Comma)?;
        let value = nested_type(reader, closed)?;
        close(reader, closed)?;
        StoredType::map_of(key, value)
    } else if bracket && reader.eat(&["ARRAY"]) {
        reader.expect_token(&Token::Lt)?;
        let element = nested_type(reader, closed)?;
        close(reader, closed)?;
        StoredType::array_of(element)
    } else {
        let named = reader.run(|parser| parser.parse_data_type())?;
        stored(&named).map_err(|error| error.position_or(Some(at)))?
    };
    while *closed == 0 && reader.eat_token(&Token::LBracket) {
        reader.expect_token(&Token::RBracket)?;
        stored = StoredType::array_of(stored);
    }
    Ok(stored)
}

fn close(reader: &mut Reader<'_>, closed: &mut usize) -> Result<()> {
    if *closed > 0 {
        *closed -= 1;
        return Ok(());
    }
    // Several brackets in a row are one token.
    let brackets = match &reader.parser.peek_token_ref().token {
        Token::Gt => 1,
        Token::ShiftRight => 2,
        Token::CustomBinaryOperator(text) if text.bytes().all(|byte| byte == b'>') => text.len(),
        _ => return Err(reader.unexpected(">")),
    };
    reader.parser.advance_token();
    *closed += brackets - 1;
    Ok(())
}

/// Reads `WITH (key = value, …)`.
pub(super) fn with_options(reader: &mut Reader<'_>) -> Result<BTreeMap<String, OptionValue>> {
    reader.expect(&["WITH"])?;
    reader.expect_token(&Token::LParen)?;
    let mut options = BTreeMap::new();
    loop {
        let position = reader.here();
        let key = option_key(reader)?;
        reader.expect_token(&Token::Eq)?;
        let number = matches!(reader.parser.peek_token_ref().token, Token::Number(..) | Token::Minus | Token::Plus);
        let text = value_text(reader)?;
        if options.contains_key(&key) {
            return Err(Error::new(SqlState::SyntaxError, format!("option \"{key}\" is given more than once"))
                .hint("Give each option once.")
                .position(position));
        }
        options.insert(key, OptionValue { text, position, number });
        if !reader.eat_token(&Token::Comma) {
            break;
        }
    }
    reader.expect_token(&Token::RParen)?;
    Ok(options)
}

/// Reads an option's key, bare, dotted or quoted, in lower case.
fn option_key(reader: &mut Reader<'_>) -> Result<String> {
    let mut key = String::new();
    loop {
        let part = match &reader.parser.peek_token_ref().token {
            Token::Word(word) => word.value.to_lowercase(),
            Token::SingleQuotedString(text) if key.is_empty() => text.to_lowercase(),
            _ => return Err(reader.unexpected("an option's name")),
        };
        reader.parser.advance_token();
        key.push_str(&part);
        if !reader.eat_token(&Token::Period) {
            return Ok(key);
        }
        key.push('.');
    }
}

/// Reads `AS query` and gives the query's own text too.
pub(super) fn query_of(reader: &mut Reader<'_>, text: &str) -> Result<(Box<sqlparser::ast::Query>, String)> {
    reader.expect(&["AS"])?;
    let start = reader.here();
    let query = reader.query()?;
    query_checks::check(query.as_ref())?;
    let length = reader.here().saturating_sub(start);
    let query_text: String = text.chars().skip(start.saturating_sub(1)).take(length).collect();
    Ok((query, query_text.trim_end().to_owned()))
}

/// Reads `AS query` to the statement's end and gives the query's own text too.
fn as_query(reader: &mut Reader<'_>, text: &str) -> Result<(Box<sqlparser::ast::Query>, String)> {
    reader.expect(&["AS"])?;
    let start = reader.here();
    let query = reader.query()?;
    if reader.at(&["WITH", "NO", "DATA"]) || reader.at(&["WITH", "DATA"]) {
        return Err(refuse(reader, "WITH [NO] DATA", "Leave it out, or write WITH (background = true) before AS."));
    }
    if reader.at(&["WITH", "CHECK", "OPTION"]) {
        return Err(refuse(reader, "WITH CHECK OPTION", "Leave it out: views are not written to."));
    }
    reader.finish()?;
    query_checks::check(query.as_ref())?;
    let query_text = text.chars().skip(start.saturating_sub(1)).collect();
    Ok((query, query_text))
}

fn view_columns(reader: &mut Reader<'_>) -> Result<Vec<String>> {
    let names = reader.names_in_parentheses()?.unwrap_or_default();
    Ok(names.into_iter().map(|(name, _)| name).collect())
}

fn view(reader: &mut Reader<'_>, text: &str) -> Result<CreateView> {
    let if_not_exists = reader.eat(&["IF", "NOT", "EXISTS"]);
    let name = reader.name()?;
    let columns = view_columns(reader)?;
    if reader.at(&["WITH"]) {
        return Err(refuse(reader, "WITH in CREATE VIEW", "Leave it out, or write CREATE MATERIALIZED VIEW."));
    }
    let (query, query_text) = as_query(reader, text)?;
    Ok(CreateView { name, if_not_exists, columns, query, query_text })
}

const VIEW_OPTIONS: &str =
    "The options of a materialized view are background, on_error, retain_history, state_backend and state_ttl.";

fn materialized_view(reader: &mut Reader<'_>, text: &str) -> Result<CreateMaterializedView> {
    let if_not_exists = reader.eat(&["IF", "NOT", "EXISTS"]);
    let name = reader.name()?;
    let columns = view_columns(reader)?;
    let options = if reader.at(&["WITH"]) { with_options(reader)? } else { BTreeMap::new() };
    let (mut background, mut fail_on_error) = (false, false);
    let (mut state_backend, mut retain_history, mut state_ttl) = (None, None, None);
    for (key, value) in &options {
        match key.as_str() {
            "background" => {
                background = match value.text.to_ascii_lowercase().as_str() {
                    "true" | "on" => true,
                    "false" | "off" => false,
                    other => {
                        return Err(Error::new(
                            SqlState::InvalidParameterValue,
                            format!("invalid value for option \"background\": \"{other}\""),
                        )
                        .hint("Write background = true or background = false.")
                        .position(value.position));
                    }
                };
            }
            "on_error" => {
                fail_on_error = match value.text.to_ascii_lowercase().as_str() {
                    "table" => false,
                    "fail" => true,
                    other => {
                        return Err(Error::new(
                            SqlState::InvalidParameterValue,
                            format!("invalid value for option \"on_error\": \"{other}\""),
                        )
                        .hint("Write on_error = 'table' or on_error = 'fail'.")
                        .position(value.position));
                    }
                };
            }
            "state_backend" => state_backend = Some(value.clone()),
            "retain_history" => {
                value.duration(key).map_err(|error| error.position_or(Some(value.position)))?;
                retain_history = Some(value.clone());
            }
            "state_ttl" => {
                Standing::new(Emit::Changes, Some(value))?;
                state_ttl = Some(value.clone());
            }
            _ => {
                return Err(Error::new(SqlState::InvalidParameterValue, format!("unrecognized option \"{key}\""))
                    .hint(VIEW_OPTIONS)
                    .position(value.position));
            }
        }
    }
    let (query, query_text) = as_query(reader, text)?;
    Ok(CreateMaterializedView {
        name,
        if_not_exists,
        columns,
        background,
        fail_on_error,
        state_backend,
        retain_history,
        state_ttl,
        query,
        query_text,
        emit: Emit::Changes,
    })
}
