//! Reads the words of a statement one after another, for the parts of the grammar that are our own.

use sqlparser::ast::{Expr, Ident, Query, Spanned};
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::dialect::ClinkDialect;
use super::scope_checks::{is_reserved, reserved};
use super::statement::Name;
use super::tokens::{position, word};
use crate::types::{Error, Result, SqlState};

/// The database's name: the only one that may stand before a schema.
pub(crate) const DATABASE: &str = "clink";

/// sqlparser counts several levels for one that a person sees; nesting itself is held by
/// [`super::tokens::check_depth`].
const RECURSION_MAX: usize = 1200;

/// A statement's tokens and how far they have been read.
pub(crate) struct Reader<'a> {
    pub(crate) parser: Parser<'a>,
    /// One past the statement's last character.
    end: usize,
}

impl Reader<'_> {
    pub(crate) fn new(tokens: Vec<TokenWithSpan>, text: &str) -> Reader<'static> {
        let parser = Parser::new(&ClinkDialect).with_recursion_limit(RECURSION_MAX).with_tokens_with_locations(tokens);
        Reader { parser, end: text.chars().count() + 1 }
    }

    /// Where the next token stands.
    pub(crate) fn here(&self) -> usize {
        position(self.parser.peek_token_ref().span).unwrap_or(self.end)
    }

    /// The next token's word in upper case, if it is an unquoted one.
    pub(crate) fn peek(&self) -> Option<String> {
        word(self.parser.peek_token_ref())
    }

    /// True when the next words are these.
    pub(crate) fn at(&self, words: &[&str]) -> bool {
        words
            .iter()
            .enumerate()
            .all(|(nth, wanted)| word(self.parser.peek_nth_token_ref(nth)).is_some_and(|word| word == *wanted))
    }

    /// Reads these words if they are next.
    pub(crate) fn eat(&mut self, words: &[&str]) -> bool {
        let there = self.at(words);
        if there {
            for _ in words {
                self.parser.advance_token();
            }
        }
        there
    }

    /// Reads these words.
    pub(crate) fn expect(&mut self, words: &[&str]) -> Result<()> {
        if self.eat(words) { Ok(()) } else { Err(self.unexpected(&words.join(" "))) }
    }

    /// Reads this token if it is next.
    pub(crate) fn eat_token(&mut self, token: &Token) -> bool {
        self.parser.consume_token(token)
    }

    /// Reads this token.
    pub(crate) fn expect_token(&mut self, token: &Token) -> Result<()> {
        if self.eat_token(token) { Ok(()) } else { Err(self.unexpected(&token.to_string())) }
    }

    /// True when nothing is left.
    pub(crate) fn is_done(&self) -> bool {
        self.parser.peek_token_ref().token == Token::EOF
    }

    /// Refuses anything that is left.
    pub(crate) fn finish(&self) -> Result<()> {
        if self.is_done() { Ok(()) } else { Err(self.unexpected("the end of the statement")) }
    }

    /// The error for a next token that is not what it should be.
    pub(crate) fn unexpected(&self, expected: &str) -> Error {
        let found = self.parser.peek_token_ref();
        syntax_error(&found.to_string(), found.token == Token::EOF, expected).position(self.here())
    }

    /// Runs one of sqlparser's own methods.
    pub(crate) fn run<T>(&mut self, read: impl FnOnce(&mut Parser<'_>) -> Result<T, ParserError>) -> Result<T> {
        let end = self.end;
        read(&mut self.parser).map_err(|error| parser_error(error, end))
    }

    /// Reads a name, folded to lower case unless quoted.
    pub(crate) fn identifier(&mut self) -> Result<String> {
        if !matches!(self.parser.peek_token_ref().token, Token::Word(_)) {
            return Err(self.unexpected("a name"));
        }
        let identifier = self.run(|parser| parser.parse_identifier())?;
        Ok(fold(&identifier))
    }

    /// Reads a name that is no reserved word unless quoted.
    pub(crate) fn new_identifier(&mut self) -> Result<String> {
        if let Some(word) = self.peek().filter(|word| is_reserved(word)) {
            let shown = self.parser.peek_token_ref().to_string();
            return Err(reserved(if shown.is_empty() { &word } else { &shown }).position(self.here()));
        }
        self.identifier()
    }

    /// Reads `name` or `schema.name`.
    pub(crate) fn name(&mut self) -> Result<Name> {
        let at = self.here();
        let mut parts = vec![self.new_identifier()?];
        while self.eat_token(&Token::Period) {
            parts.push(self.identifier()?);
        }
        to_name(parts, at)
    }

    /// Reads an expression.
    pub(crate) fn expression(&mut self) -> Result<Expr> {
        self.run(|parser| parser.parse_expr())
    }

    /// Reads a query.
    pub(crate) fn query(&mut self) -> Result<Box<Query>> {
        self.run(|parser| parser.parse_query())
    }

    /// Reads names in parentheses; `None` when no parenthesis is next.
    pub(crate) fn names_in_parentheses(&mut self) -> Result<Option<Vec<(String, usize)>>> {
        if !self.eat_token(&Token::LParen) {
            return Ok(None);
        }
        let mut names: Vec<(String, usize)> = Vec::new();
        loop {
            let at = self.here();
            let name = self.identifier()?;
            if names.iter().any(|(other, _)| *other == name) {
                return Err(duplicate_column(&name).position(at));
            }
            names.push((name, at));
            if !self.eat_token(&Token::Comma) {
                break;
            }
        }
        self.expect_token(&Token::RParen)?;
        Ok(Some(names))
    }
}

/// 42701.
pub(crate) fn duplicate_column(name: &str) -> Error {
    Error::new(SqlState::DuplicateColumn, format!("column \"{name}\" specified more than once"))
        .hint("Give each column a name of its own, in a SELECT with AS.")
}

/// A name's parts as an object's name.
///
/// # Errors
/// 0A000 for another database, 42601 for more than three parts.
pub(crate) fn to_name(mut parts: Vec<String>, at: usize) -> Result<Name> {
    if parts.len() == 3 && parts.first().is_some_and(|database| database == DATABASE) {
        parts.remove(0);
    }
    let refuse = |parts: &[String]| {
        Error::unsupported(format!("cross-database references are not supported: {}", parts.join(".")))
            .hint("Write schema.name: there is one database, clink.")
            .position(at)
    };
    match (parts.pop(), parts.pop(), parts.is_empty()) {
        (Some(name), schema, true) => Ok(Name { schema, name, position: at }),
        (name, schema, _) => {
            parts.extend(schema);
            parts.extend(name);
            Err(refuse(&parts))
        }
    }
}

/// sqlparser's name as an object's name.
pub(crate) fn object_name(name: &sqlparser::ast::ObjectName) -> Result<Name> {
    let at = position(name.span()).unwrap_or(1);
    let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident()).map(fold).collect();
    to_name(parts, at)
}

/// An identifier as stored: with the letters of ASCII in lower case unless quoted, as PostgreSQL and the planner do it.
pub(crate) fn fold(identifier: &Ident) -> String {
    match identifier.quote_style {
        Some(_) => identifier.value.clone(),
        None => identifier.value.to_ascii_lowercase(),
    }
}

fn syntax_error(found: &str, at_end: bool, expected: &str) -> Error {
    let message =
        if at_end { "syntax error at end of input".to_owned() } else { format!("syntax error at or near \"{found}\"") };
    Error::new(SqlState::SyntaxError, message).hint(format!("Expected {expected}."))
}

/// sqlparser's error in PostgreSQL's words; `end` is the position of the end of input.
pub(crate) fn parser_error(error: ParserError, end: usize) -> Error {
    let text = match error {
        ParserError::RecursionLimitExceeded => {
            return Error::new(SqlState::StatementTooComplex, "the statement is nested too deeply")
                .hint("Name parts of it with WITH, or make views of them.");
        }
        ParserError::TokenizerError(text) | ParserError::ParserError(text) => text,
    };
    let (text, at) = match text.rsplit_once(" at Line: ") {
        Some((before, place)) => {
            let column = place.rsplit_once("Column: ").and_then(|(_, column)| column.trim().parse().ok());
            (before.to_owned(), column)
        }
        None => (text, None),
    };
    let expected = text.strip_prefix("Expected: ").and_then(|rest| rest.rsplit_once(", found: "));
    match expected {
        Some((expected, found)) => {
            let at_end = found == "EOF";
            syntax_error(found, at_end, expected).position(if at_end { end } else { at.unwrap_or(end) })
        }
        None => Error::new(SqlState::SyntaxError, format!("syntax error: {text}"))
            .hint("Check the words before this place; \\h in psql shows the forms of statements.")
            .position(at.unwrap_or(1)),
    }
}
