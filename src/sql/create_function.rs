//! `CREATE FUNCTION`: a scalar function of SQL whose body is one expression.

use arrow::datatypes::DataType;
use sqlparser::ast::{self, GroupByExpr, SelectItem, SetExpr};
use sqlparser::tokenizer::Token;

use super::create;
use super::parser::parse;
use super::query_checks;
use super::reader::Reader;
use super::statement::{CreateFunction, FunctionParameter, FunctionVolatility, StatementKind};
use super::tokens::word;
use crate::types::{Error, Result, SqlState};

const FORM: &str =
    "Write CREATE FUNCTION f(a int, b text) RETURNS text LANGUAGE SQL AS 'SELECT …', or RETURN … at the end.";

/// What may be said of PostgreSQL's functions and has no meaning here.
const CLAUSES: &[&str] =
    &["PARALLEL", "LEAKPROOF", "COST", "ROWS", "SECURITY", "SUPPORT", "SET", "TRANSFORM", "WINDOW"];

/// A body as it is read.
struct Body {
    expression: ast::Expr,
    offset: usize,
    position: usize,
}

/// Reads what follows `CREATE [OR REPLACE] FUNCTION`.
pub(super) fn function(reader: &mut Reader<'_>, or_replace: bool) -> Result<CreateFunction> {
    let name = reader.name()?;
    let parameters = parameters(reader)?;
    reader.expect(&["RETURNS"])?;
    if reader.at(&["TABLE"]) || reader.at(&["SETOF"]) {
        return Err(refuse(reader, "a function that returns rows", "Make a view, and select from that."));
    }
    let returns = type_of(reader)?;
    let (mut language, mut volatility, mut nulls, mut body) = (false, None, None, None);
    loop {
        let at = reader.here();
        let twice = |there: bool| {
            let error = Error::new(SqlState::SyntaxError, "conflicting or redundant options").hint("Say it once.");
            if there { Err(error.position(at)) } else { Ok(()) }
        };
        if reader.is_done() {
            break;
        } else if reader.eat(&["LANGUAGE"]) {
            twice(language)?;
            read_language(reader)?;
            language = true;
        } else if reader.at(&["IMMUTABLE"]) || reader.at(&["STABLE"]) {
            twice(volatility.is_some())?;
            let immutable = reader.eat(&["IMMUTABLE"]);
            if !immutable {
                reader.expect(&["STABLE"])?;
            }
            volatility = Some(if immutable { FunctionVolatility::Immutable } else { FunctionVolatility::Stable });
        } else if reader.at(&["VOLATILE"]) {
            let hint = "Leave it out, or write STABLE or IMMUTABLE: a call is replaced by the function's expression.";
            return Err(refuse(reader, "a VOLATILE function", hint));
        } else if reader.eat(&["STRICT"]) || reader.eat(&["RETURNS", "NULL", "ON", "NULL", "INPUT"]) {
            twice(nulls.is_some())?;
            nulls = Some(true);
        } else if reader.eat(&["CALLED", "ON", "NULL", "INPUT"]) {
            twice(nulls.is_some())?;
            nulls = Some(false);
        } else if reader.eat(&["RETURN"]) {
            twice(body.is_some())?;
            let position = reader.here();
            let expression = reader.expression()?;
            query_checks::check(&expression)?;
            language = true;
            body = Some(Body { expression, offset: 0, position });
        } else if reader.eat(&["AS"]) {
            twice(body.is_some())?;
            body = Some(text_body(reader)?);
        } else if let Some(clause) = reader.peek().filter(|word| CLAUSES.contains(&word.as_str())) {
            return Err(refuse(reader, &format!("{clause} of a function"), "Leave it out."));
        } else if reader.at(&["BEGIN"]) {
            return Err(refuse(reader, "a body of statements", "Write RETURN and one expression."));
        } else {
            return Err(reader.unexpected("LANGUAGE SQL, IMMUTABLE, STABLE, STRICT, AS or RETURN"));
        }
    }
    let Some(body) = body else {
        return Err(wrong("no function body specified").hint(FORM).position(reader.here()));
    };
    if !language {
        return Err(wrong("no language specified").hint("Add LANGUAGE SQL.").position(name.position));
    }
    Ok(CreateFunction {
        name,
        or_replace,
        parameters,
        returns,
        volatility,
        strict: nulls == Some(true),
        body: body.expression,
        body_offset: body.offset,
        body_position: body.position,
    })
}

fn refuse(reader: &Reader<'_>, what: &str, hint: &str) -> Error {
    Error::unsupported(format!("{what} is not supported")).hint(hint).position(reader.here())
}

fn wrong(message: &str) -> Error {
    Error::new(SqlState::InvalidFunctionDefinition, message)
}

fn read_language(reader: &mut Reader<'_>) -> Result<()> {
    let at = reader.here();
    let language = match &reader.parser.peek_token_ref().token {
        Token::SingleQuotedString(name) => name.to_lowercase(),
        Token::Word(word) => word.value.to_lowercase(),
        _ => return Err(reader.unexpected("SQL")),
    };
    reader.parser.advance_token();
    if language == "sql" {
        return Ok(());
    }
    Err(Error::unsupported(format!("language \"{language}\" is not supported"))
        .hint("Write LANGUAGE SQL and a body of one expression.")
        .position(at))
}

fn parameters(reader: &mut Reader<'_>) -> Result<Vec<FunctionParameter>> {
    let mut parameters: Vec<FunctionParameter> = Vec::new();
    reader.expect_token(&Token::LParen)?;
    if reader.eat_token(&Token::RParen) {
        return Ok(parameters);
    }
    loop {
        if reader.at(&["OUT"]) || reader.at(&["INOUT"]) || reader.at(&["VARIADIC"]) {
            return Err(refuse(
                reader,
                "a parameter that is OUT, INOUT or VARIADIC",
                "Give the parameters one by one.",
            ));
        }
        let _ = reader.eat(&["IN"]);
        let at = reader.here();
        let name = if begins_type(reader) { None } else { Some(reader.identifier()?) };
        if name.is_some() && parameters.iter().any(|other| other.name == name) {
            let name = name.unwrap_or_default();
            return Err(wrong(&format!("parameter name \"{name}\" used more than once"))
                .hint("Give each parameter a name of its own.")
                .position(at));
        }
        parameters.push(FunctionParameter { name, data_type: type_of(reader)? });
        if reader.at(&["DEFAULT"]) || reader.parser.peek_token_ref().token == Token::Eq {
            return Err(refuse(reader, "a default of a parameter", "Make another function without the parameter."));
        }
        if !reader.eat_token(&Token::Comma) {
            break;
        }
    }
    reader.expect_token(&Token::RParen)?;
    Ok(parameters)
}

/// True when the next word is a type and no name: something else than a type follows it.
fn begins_type(reader: &Reader<'_>) -> bool {
    let next = reader.parser.peek_nth_token_ref(1);
    let of_two_words = matches!(
        (reader.peek().as_deref(), word(next).as_deref()),
        (Some("DOUBLE"), Some("PRECISION"))
            | (Some("CHARACTER" | "CHAR"), Some("VARYING"))
            | (Some("TIMESTAMP" | "TIME"), Some("WITH" | "WITHOUT"))
    );
    of_two_words || !matches!(next.token, Token::Word(_))
}

/// Reads the type of a parameter or result.
pub(super) fn type_of(reader: &mut Reader<'_>) -> Result<DataType> {
    let at = reader.here();
    if !matches!(reader.parser.peek_token_ref().token, Token::Word(_)) {
        return Err(reader.unexpected("a type"));
    }
    let stored = create::data_type(reader).map_err(|error| error.position_or(Some(at)))?;
    if stored.length_max.is_some() {
        return Err(Error::unsupported(format!("a function over {} is not supported", stored.sql_type))
            .hint("Write text: lengths are checked where a value is stored.")
            .position(at));
    }
    Ok(stored.data_type)
}

/// Reads a body that is a text with a SELECT in it.
fn text_body(reader: &mut Reader<'_>) -> Result<Body> {
    let position = reader.here();
    // Where the text begins within its quotes.
    let (text, opening) = match &reader.parser.peek_token_ref().token {
        Token::SingleQuotedString(text) => (text.clone(), 1),
        Token::DollarQuotedString(quoted) => {
            (quoted.value.clone(), 2 + quoted.tag.as_ref().map_or(0, |tag| tag.chars().count()))
        }
        Token::EscapedStringLiteral(text) => (text.clone(), 2),
        _ => return Err(reader.unexpected("a body in quotes, such as 'SELECT a + b'")),
    };
    reader.parser.advance_token();
    let offset = position + opening - 1;
    let shifted = |error: Error| match error.position_at() {
        Some(at) => error.position(at + offset),
        None => error.position(position),
    };
    let mut statements = parse(&text).map_err(shifted)?;
    let query = match (statements.pop().map(|statement| statement.kind), statements.is_empty()) {
        (Some(StatementKind::Query(query)), true) => query,
        (None, _) => return Err(wrong("the body of the function is empty").hint(FORM).position(position)),
        (Some(_), false) => {
            return Err(Error::unsupported("a body of several statements is not supported")
                .hint("Write one SELECT of one expression.")
                .position(position));
        }
        (Some(_), true) => {
            return Err(wrong("the body of the function is no SELECT").hint(FORM).position(position));
        }
    };
    Ok(Body { expression: only_expression(&query).map_err(shifted)?, offset, position })
}

/// The expression of a query that is nothing more than one.
fn only_expression(query: &ast::Query) -> Result<ast::Expr> {
    let refuse = || {
        Error::unsupported("a function of SQL that reads relations or is more than one expression is not supported")
            .hint("Write SELECT and one expression of the parameters, and join relations in the query that calls it.")
    };
    let plain = query.with.is_none()
        && query.order_by.is_none()
        && query.limit_clause.is_none()
        && query.fetch.is_none()
        && query.locks.is_empty();
    let SetExpr::Select(select) = query.body.as_ref() else { return Err(refuse()) };
    let grouped = !matches!(&select.group_by, GroupByExpr::Expressions(keys, modifiers)
        if keys.is_empty() && modifiers.is_empty());
    if !plain
        || grouped
        || !select.from.is_empty()
        || select.selection.is_some()
        || select.having.is_some()
        || select.distinct.is_some()
        || select.qualify.is_some()
    {
        return Err(refuse());
    }
    match select.projection.as_slice() {
        [SelectItem::UnnamedExpr(expression) | SelectItem::ExprWithAlias { expr: expression, .. }] => {
            Ok(expression.clone())
        }
        [_] => Err(refuse()),
        _ => Err(wrong("the body of a function gives more than one column")
            .detail("The SELECT must have exactly one column.")
            .hint("Make a function for each of them.")),
    }
}
