//! Text to tokens: statements split apart, positions counted in characters, limits held.

use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::{Location, Span, Token, TokenWithSpan, Tokenizer};

use super::dialect::ClinkDialect;
use crate::types::{Error, Limit, Limits, Result, SqlState};

/// Tokenises `text`. Spans are on line 1 with columns counted in characters over the whole text,
/// so that a column is a position as errors give it.
pub(crate) fn tokenize(text: &str, limits: &Limits) -> Result<Vec<TokenWithSpan>> {
    let most = limits.size(Limit::SqlBytes);
    if text.len() > most {
        let message = format!("the text of a query may be at most {most} bytes long, and this one has {}", text.len());
        return Err(limits
            .exceeded(Limit::SqlBytes, message)
            .hint("Send the statements one by one, and rows in several INSERT statements or through a file source."));
    }
    let lines = line_starts(text);
    if let Some(at) = text.chars().position(|character| character == '\0') {
        return Err(zero_byte().position(at + 1));
    }
    let mut tokens = Tokenizer::new(&ClinkDialect, text).tokenize_with_location().map_err(|error| {
        let error_at = flat(&lines, error.location);
        if error.message.contains("encoded string literal") && has_zero_escape(text, error_at) {
            return zero_byte().position(error_at.column as usize);
        }
        Error::new(SqlState::SyntaxError, lower_first(&error.message))
            .hint("Check that quotes and comments are closed.")
            .position(error_at.column as usize)
    })?;
    for token in &mut tokens {
        token.span = Span { start: flat(&lines, token.span.start), end: flat(&lines, token.span.end) };
        check_token(token)?;
    }
    Ok(tokens)
}

/// Names without a letter are refused; texts with Unicode escapes are texts from here on.
fn check_token(token: &mut TokenWithSpan) -> Result<()> {
    match &token.token {
        Token::Word(word) if word.value.is_empty() && word.quote_style == Some('"') => {
            let message = "zero-length delimited identifier at or near \"\"\"\"";
            let error = Error::new(SqlState::SyntaxError, message).hint("Put a name between the double quotes.");
            Err(error.position_or(position(token.span)))
        }
        Token::UnicodeStringLiteral(text) if text.contains('\0') => {
            let error = Error::new(SqlState::SyntaxError, "invalid Unicode escape value");
            Err(error.hint("A text cannot have a zero byte.").position_or(position(token.span)))
        }
        Token::UnicodeStringLiteral(text) => {
            token.token = Token::SingleQuotedString(text.clone());
            Ok(())
        }
        _ => Ok(()),
    }
}

fn zero_byte() -> Error {
    Error::new(SqlState::CharacterNotInRepertoire, "invalid byte sequence for encoding \"UTF8\": 0x00")
        .hint("A text cannot have a zero byte; store such data as bytea.")
}

/// True when the text that begins there is closed, and has a zero byte written as an escape.
fn has_zero_escape(text: &str, start: Location) -> bool {
    let rest = text.chars().skip((start.column as usize).saturating_sub(1));
    let literal: String = rest.skip_while(|character| *character != '\'').skip(1).take_while(|c| *c != '\'').collect();
    ["\\0", "\\x0", "\\u0000"].iter().any(|escape| literal.contains(escape))
}

/// Characters before each line of the text.
fn line_starts(text: &str) -> Vec<u64> {
    let mut starts = vec![0];
    for (at, character) in text.chars().enumerate() {
        if character == '\n' {
            starts.push(at as u64 + 1);
        }
    }
    starts
}

fn flat(lines: &[u64], location: Location) -> Location {
    let line = usize::try_from(location.line).unwrap_or(1).max(1);
    let before = lines.get(line - 1).copied().unwrap_or(0);
    Location { line: 1, column: before + location.column.max(1) }
}

fn lower_first(message: &str) -> String {
    let mut characters = message.chars();
    match characters.next() {
        Some(first) => first.to_lowercase().chain(characters).collect(),
        None => String::new(),
    }
}

/// Characters from 1 of a place in a statement that [`tokenize`] read; `None` where the parser
/// knew none.
pub(crate) fn position(span: Span) -> Option<usize> {
    (span.start.line > 0).then_some(span.start.column as usize)
}

/// Runs something that walks a statement's tree: threads have stacks of very different sizes, and the
/// deepest tree that [`check_depth`] lets through must fit on each.
pub(crate) fn with_stack<T>(walk: impl FnOnce() -> T) -> T {
    const ENOUGH: usize = 8 << 20;
    stacker::maybe_grow(ENOUGH, 2 * ENOUGH, walk)
}

/// True for space and comments.
pub(crate) fn is_space(token: &Token) -> bool {
    matches!(token, Token::Whitespace(_))
}

/// The token's word in upper case when it is an unquoted one.
pub(crate) fn word(token: &TokenWithSpan) -> Option<String> {
    match &token.token {
        Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_ascii_uppercase()),
        _ => None,
    }
}

/// Writes `TABLE t` where a query may begin as `SELECT * FROM t`, which is what it means; the parser
/// reads little of what may follow it.
pub(crate) fn without_table_commands(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let mut out: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    let mut tokens = tokens.into_iter().peekable();
    let mut before: Option<TokenWithSpan> = None;
    let mut view = None;
    while let Some(token) = tokens.next() {
        if is_space(&token.token) {
            out.push(token);
            continue;
        }
        let view = *view.get_or_insert_with(|| word(&token).is_some_and(|word| word == "CREATE"));
        let begins = match &before {
            None => true,
            Some(before) if before.token == Token::LParen => true,
            Some(before) => word(before).is_some_and(|word| match word.as_str() {
                "UNION" | "ALL" | "EXCEPT" | "INTERSECT" | "EXPLAIN" | "ANALYZE" => true,
                // AS could give a column that name elsewhere.
                "AS" => view,
                _ => false,
            }),
        };
        let command = begins && word(&token).is_some_and(|word| word == "TABLE");
        // In parentheses and behind ALL it could be a column of that name.
        let named = command && {
            let mut ahead = tokens.clone().filter(|token| !is_space(&token.token));
            ahead.next().is_some_and(|token| matches!(token.token, Token::Word(_)))
        };
        before = Some(token.clone());
        if named {
            for written in [Token::make_keyword("SELECT"), Token::Mul, Token::make_keyword("FROM")] {
                out.push(TokenWithSpan { token: written, span: token.span });
            }
        } else {
            out.push(token);
        }
    }
    out
}

/// A statement's part of a text.
pub(crate) struct Piece {
    /// Its text, without semicolon and surrounding space.
    pub(crate) text: String,
    /// Characters before it.
    pub(crate) offset: usize,
}

/// Splits a text at its semicolons; pieces with nothing but space and comments are left out.
pub(crate) fn split(text: &str, limits: &Limits) -> Result<Vec<Piece>> {
    let tokens = tokenize(text, limits)?;
    let characters: Vec<char> = text.chars().collect();
    let mut pieces = Vec::new();
    let mut first: Option<usize> = None;
    let mut end = 0;
    for token in &tokens {
        if token.token == Token::SemiColon {
            if let Some(start) = first.take() {
                pieces.push((start, end));
            }
        } else if !is_space(&token.token) && token.token != Token::EOF {
            // The column of the end is one past the last character.
            let start = (token.span.start.column as usize).saturating_sub(1);
            first.get_or_insert(start);
            end = (token.span.end.column as usize).saturating_sub(1).max(start + 1);
        }
    }
    if let Some(start) = first {
        pieces.push((start, end));
    }
    Ok(pieces
        .into_iter()
        .map(|(start, end)| Piece {
            text: characters.get(start..end.min(characters.len())).unwrap_or_default().iter().collect(),
            offset: start,
        })
        .collect())
}

/// Refuses what would need too deep a stack to parse, plan or evaluate: an expression is a tree as deep
/// as its chain of operators is long, and every walk over it needs that much stack.
pub(crate) fn check_depth(tokens: &[TokenWithSpan], limits: &Limits) -> Result<()> {
    let (nesting_max, chain_max) = (limits.size(Limit::SqlDepth), limits.size(Limit::SqlChain));
    // One counter of operators for each open level of nesting.
    let mut operators = vec![0_usize];
    // The open levels that have a WITH: DataFusion looks through each of those twice.
    let (mut withs, withs_max) = (Vec::new(), limits.size(Limit::SqlSubqueries));
    let mut set_operations = 0_usize;
    let mut cases = 0_usize;
    let mut sizes = Sizes::default();
    for token in tokens {
        sizes.see(&token.token, limits).map_err(|error| error.position_or(position(token.span)))?;
        let mut opened = false;
        match &token.token {
            Token::LBracket => {
                count(&mut operators);
                opened = true;
            }
            Token::LParen | Token::LBrace => opened = true,
            Token::RParen | Token::RBracket | Token::RBrace => {
                if operators.len() > 1 {
                    operators.pop();
                }
            }
            Token::Comma => reset(&mut operators),
            Token::Word(word) => match word.keyword {
                Keyword::CASE => {
                    cases += 1;
                    opened = true;
                }
                Keyword::END if cases > 0 => {
                    cases -= 1;
                    if operators.len() > 1 {
                        operators.pop();
                    }
                }
                Keyword::WITH if withs.last() != Some(&operators.len()) => withs.push(operators.len()),
                Keyword::UNION | Keyword::INTERSECT | Keyword::EXCEPT => {
                    set_operations += 1;
                    reset(&mut operators);
                }
                Keyword::SELECT | Keyword::FROM | Keyword::WHERE | Keyword::HAVING | Keyword::WHEN => {
                    reset(&mut operators);
                }
                Keyword::AND
                | Keyword::OR
                | Keyword::NOT
                | Keyword::IS
                | Keyword::JOIN
                | Keyword::LIKE
                | Keyword::ILIKE
                | Keyword::COLLATE
                | Keyword::AT => count(&mut operators),
                _ => {}
            },
            Token::Number(..)
            | Token::SingleQuotedString(_)
            | Token::Whitespace(_)
            | Token::Period
            | Token::SemiColon
            | Token::EOF => {}
            _ => count(&mut operators),
        }
        if opened {
            operators.push(0);
        }
        while withs.last().is_some_and(|level| *level > operators.len()) {
            withs.pop();
        }
        if withs.len() > withs_max {
            let message = format!("WITH is nested too deeply: the limit is {withs_max} levels");
            let error = limits.exceeded(Limit::SqlSubqueries, message);
            return Err(error
                .hint("Write the queries one behind the other: WITH a AS (…), b AS (… FROM a) SELECT ….")
                .position_or(position(token.span)));
        }
        let nested = operators.len() - 1 > nesting_max;
        if nested || operators.last().is_some_and(|n| *n > chain_max) || set_operations > chain_max {
            let (limit, message, hint) = if nested {
                (
                    Limit::SqlDepth,
                    format!("the statement is nested too deeply: the limit is {nesting_max} levels"),
                    "Name parts of it with WITH, or make views of them.",
                )
            } else {
                (
                    Limit::SqlChain,
                    format!("the statement has too long a chain of operators: the limit is {chain_max}"),
                    "Write long OR chains as IN (…), long sums and unions as a VALUES list or a table.",
                )
            };
            let error = limits.exceeded(limit, message).hint(hint);
            return Err(error.position_or(position(token.span)));
        }
    }
    Ok(())
}

/// Counts the values of IN lists and the joins of each SELECT.
#[derive(Default)]
struct Sizes {
    /// For each open parenthesis: the values of its list when IN stands before it, and its joins.
    open: Vec<(Option<usize>, usize)>,
    joins: usize,
    after_in: bool,
}

impl Sizes {
    fn see(&mut self, token: &Token, limits: &Limits) -> Result<()> {
        let after_in = std::mem::take(&mut self.after_in);
        match token {
            Token::LParen => self.open.push((after_in.then_some(1), 0)),
            Token::RParen => {
                self.open.pop();
            }
            Token::Comma => {
                let most = limits.size(Limit::SqlListItems);
                if let Some((Some(items), _)) = self.open.last_mut() {
                    *items += 1;
                    if *items > most {
                        let message = format!("a list of IN may have at most {most} values");
                        let hint = "Put the values into a table, or give them as an array: = ANY ($1).";
                        return Err(limits.exceeded(Limit::SqlListItems, message).hint(hint));
                    }
                }
            }
            Token::Word(word) => match word.keyword {
                Keyword::IN => self.after_in = true,
                Keyword::SELECT => *self.joins() = 0,
                Keyword::JOIN => {
                    let most = limits.size(Limit::SqlJoins);
                    let joins = self.joins();
                    *joins += 1;
                    if *joins > most {
                        let message = format!("a SELECT may have at most {most} joins");
                        let hint = "Make a view of some of them, and join that.";
                        return Err(limits.exceeded(Limit::SqlJoins, message).hint(hint));
                    }
                }
                _ => {}
            },
            Token::Whitespace(_) => self.after_in = after_in,
            _ => {}
        }
        Ok(())
    }

    fn joins(&mut self) -> &mut usize {
        match self.open.last_mut() {
            Some((_, joins)) => joins,
            None => &mut self.joins,
        }
    }
}

fn reset(operators: &mut [usize]) {
    if let Some(count) = operators.last_mut() {
        *count = 0;
    }
}

fn count(operators: &mut [usize]) {
    if let Some(count) = operators.last_mut() {
        *count += 1;
    }
}
