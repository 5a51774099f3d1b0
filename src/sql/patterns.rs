//! The text of a pattern of `MATCH_RECOGNIZE`: `A B+? C{2,3} WITHIN INTERVAL '1 hour'`.
//!
//! The parser knows neither reluctant quantifiers nor WITHIN, so both stand in its way: what is between the parentheses
//! of PATTERN is one quoted name to it, which is read here.

use std::iter::Peekable;
use std::str::CharIndices;

use sqlparser::ast::Ident;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::parser::parse_expression_of_program;
use super::tokens::{is_space, position, word};
use super::windows::micros;
use crate::types::{Error, Result, SqlState};

/// What stands between a pattern, the place of its interval and the interval.
const MARK: char = '\u{1}';
const FORM: &str = "Write PATTERN (A B+ C?) with variables one after the other, each with *, +, ?, {n} or {n,m}.";

/// A pattern as it is written.
pub(crate) struct Written {
    pub(crate) elements: Vec<WrittenElement>,
    /// Microseconds.
    pub(crate) within: Option<i64>,
}

/// A variable with its quantifier.
#[derive(Debug, PartialEq)]
pub(crate) struct WrittenElement {
    pub(crate) name: String,
    pub(crate) least: usize,
    pub(crate) most: Option<usize>,
    pub(crate) greedy: bool,
}

/// Writes patterns as the parser takes them.
///
/// # Errors
/// 0A000 for clauses that the parser does not know, with positions.
pub(crate) fn plain_patterns(tokens: Vec<TokenWithSpan>) -> Result<Vec<TokenWithSpan>> {
    let solid: Vec<usize> = (0..tokens.len()).filter(|at| !is_space(&tokens[*at].token)).collect();
    let token = |nth: usize| solid.get(nth).map(|at| &tokens[*at]);
    let is = |nth: usize, wanted: &str| token(nth).and_then(word).is_some_and(|word| word == wanted);
    let is_token = |nth: usize, wanted: Token| token(nth).is_some_and(|token| token.token == wanted);
    let text = |nths: std::ops::Range<usize>| -> String {
        let texts = nths.filter_map(token).map(|token| token.token.to_string());
        texts.collect::<Vec<String>>().join(" ")
    };
    // Behind the parenthesis that closes the one there.
    let closed = |open: usize| {
        let mut depth = 0_usize;
        (open..solid.len()).find(|nth| {
            depth += usize::from(is_token(*nth, Token::LParen));
            depth -= usize::from(is_token(*nth, Token::RParen));
            depth == 0
        })
    };
    let (mut gone, mut names) = (Vec::new(), Vec::new());
    for start in 0..solid.len() {
        if !is(start, "MATCH_RECOGNIZE") || !is_token(start + 1, Token::LParen) {
            continue;
        }
        if start.checked_sub(1).is_some_and(|before| is_token(before, Token::RParen)) {
            return Err(Error::unsupported("MATCH_RECOGNIZE of a subquery or a table function is not supported")
                .hint("Name it first: WITH q AS (SELECT …) SELECT … FROM q MATCH_RECOGNIZE (…).")
                .position_or(token(start).and_then(|token| position(token.span))));
        }
        let Some(end) = closed(start + 1) else { continue };
        let mut nth = start + 2;
        while nth < end {
            if is(nth, "SUBSET") {
                return Err(Error::unsupported("SUBSET is not supported")
                    .hint("Name the variables of the pattern themselves in MEASURES and DEFINE.")
                    .position_or(token(nth).and_then(|token| position(token.span))));
            }
            let Some(close) = is_token(nth, Token::LParen).then(|| closed(nth)).flatten() else {
                nth += 1;
                continue;
            };
            if is(nth - 1, "PATTERN") && close > nth + 1 {
                let mut name = text(nth + 1..close);
                gone.extend(nth + 2..close);
                if is(close + 1, "WITHIN") {
                    let last = (close + 2..end).find(|nth| is(*nth, "DEFINE") || is(*nth, "SUBSET")).unwrap_or(end);
                    let at = token(close + 2).and_then(|token| position(token.span)).unwrap_or(1);
                    name.push_str(&format!("{MARK}{at}{MARK}{}", text(close + 2..last)));
                    gone.extend(close + 1..last);
                }
                names.push((nth + 1, name));
            }
            nth = close + 1;
        }
    }
    if names.is_empty() {
        return Ok(tokens);
    }
    let at = |nth: &usize| solid[*nth];
    let gone: std::collections::HashSet<usize> = gone.iter().map(at).collect();
    let names: std::collections::HashMap<usize, String> =
        names.iter().map(|(nth, name)| (at(nth), name.clone())).collect();
    let kept = tokens.into_iter().enumerate().filter(|(at, _)| !gone.contains(at));
    Ok(kept
        .map(|(at, token)| match names.get(&at) {
            Some(name) => TokenWithSpan { token: Token::make_word(name, Some('"')), span: token.span },
            None => token,
        })
        .collect())
}

/// Reads a pattern that [`plain_patterns`] wrote.
///
/// # Errors
/// 42601 when it cannot be read, 0A000 for forms that are not offered; with positions.
pub(crate) fn read(pattern: &Ident) -> Result<Written> {
    let mut parts = pattern.value.split(MARK);
    let elements =
        elements(parts.next().unwrap_or_default()).map_err(|error| error.position_or(position(pattern.span)))?;
    let within = match (parts.next().and_then(|at| at.parse::<usize>().ok()), parts.next()) {
        (Some(at), Some(text)) => {
            // With as much before it as in the statement, so that positions are those there.
            let interval = parse_expression_of_program(&format!("{}{text}", " ".repeat(at.saturating_sub(1))))?;
            Some(micros("within", "interval", &interval)?)
        }
        _ => None,
    };
    Ok(Written { elements, within })
}

fn refused(what: &str) -> Error {
    Error::unsupported(format!("{what} in a pattern is not supported")).hint(FORM)
}

fn misread(why: &str) -> Error {
    Error::new(SqlState::SyntaxError, format!("syntax error in a pattern: {why}")).hint(FORM)
}

type Chars<'a> = Peekable<CharIndices<'a>>;

fn elements(text: &str) -> Result<Vec<WrittenElement>> {
    let mut chars: Chars<'_> = text.char_indices().peekable();
    let mut elements = Vec::new();
    while let Some(first) = next_solid(&mut chars) {
        let name = match first {
            '"' => {
                chars.next();
                let mut name = String::new();
                while let Some((_, character)) = chars.next() {
                    if character == '"' && chars.next_if(|(_, next)| *next == '"').is_none() {
                        break;
                    }
                    name.push(character);
                }
                name
            }
            first if first.is_alphabetic() || first == '_' => {
                let mut name = String::new();
                while let Some((_, part)) =
                    chars.next_if(|(_, part)| part.is_alphanumeric() || matches!(part, '_' | '$'))
                {
                    name.push(part.to_ascii_lowercase());
                }
                if name == "permute" && next_solid(&mut chars) == Some('(') {
                    return Err(refused("PERMUTE"));
                }
                name
            }
            '(' => return Err(refused("a group")),
            '|' => return Err(refused("an alternation")),
            '{' => return Err(refused("an exclusion")),
            '^' | '$' => return Err(refused("an anchor")),
            other => return Err(misread(&format!("\"{other}\" stands where a variable should"))),
        };
        let (least, most) = quantifier(&mut chars)?;
        let greedy = next_solid(&mut chars) != Some('?');
        if !greedy {
            chars.next();
        }
        if most.is_some_and(|most| most < least || most == 0) {
            return Err(misread(&format!("the most rows of \"{name}\" are less than the least, or none")));
        }
        elements.push(WrittenElement { name, least, most, greedy });
    }
    if elements.is_empty() {
        return Err(misread("it is empty"));
    }
    if elements.iter().all(|element| element.least == 0) {
        return Err(
            refused("nothing but optional variables").hint("Let one variable at least be there: A+ instead of A*.")
        );
    }
    Ok(elements)
}

fn next_solid(chars: &mut Chars<'_>) -> Option<char> {
    while chars.next_if(|(_, character)| character.is_whitespace()).is_some() {}
    chars.peek().map(|(_, character)| *character)
}

/// How often: at least and at most.
fn quantifier(chars: &mut Chars<'_>) -> Result<(usize, Option<usize>)> {
    let quantifier = match next_solid(chars) {
        Some('*') => (0, None),
        Some('+') => (1, None),
        Some('?') => (0, Some(1)),
        Some('{') => {
            chars.next();
            if next_solid(chars) == Some('-') {
                return Err(refused("an exclusion"));
            }
            let least = number(chars)?;
            let comma = next_solid(chars) == Some(',');
            if comma {
                chars.next();
            }
            let most = if comma { number(chars)? } else { least };
            if next_solid(chars) != Some('}') || least.is_none() && most.is_none() {
                return Err(misread("a quantifier in braces is {n}, {n,}, {,m} or {n,m}"));
            }
            (least.unwrap_or(0), most)
        }
        _ => return Ok((1, Some(1))),
    };
    chars.next();
    Ok(quantifier)
}

fn number(chars: &mut Chars<'_>) -> Result<Option<usize>> {
    let mut digits = String::new();
    next_solid(chars);
    while let Some((_, digit)) = chars.next_if(|(_, digit)| digit.is_ascii_digit()) {
        digits.push(digit);
    }
    if digits.is_empty() {
        return Ok(None);
    }
    digits.parse::<u32>().map(|number| Some(number as usize)).map_err(|_| misread("a number in braces is too great"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(name: &str, least: usize, most: Option<usize>, greedy: bool) -> WrittenElement {
        WrittenElement { name: name.to_owned(), least, most, greedy }
    }

    #[test]
    fn quantifiers_are_read() {
        let read = elements("A b * c+ ? \"D e\" ?  f ? ? g {3} h{2,}? i {,4} j { 1 , 2 }").expect("a pattern");
        let expected = [
            element("a", 1, Some(1), true),
            element("b", 0, None, true),
            element("c", 1, None, false),
            element("D e", 0, Some(1), true),
            element("f", 0, Some(1), false),
            element("g", 3, Some(3), true),
            element("h", 2, None, false),
            element("i", 0, Some(4), true),
            element("j", 1, Some(2), true),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn other_patterns_are_refused() {
        for (text, code) in [
            ("A | B", SqlState::FeatureNotSupported),
            ("(A B)+", SqlState::FeatureNotSupported),
            ("A {- B -} C", SqlState::FeatureNotSupported),
            ("PERMUTE(A, B)", SqlState::FeatureNotSupported),
            ("^ A $", SqlState::FeatureNotSupported),
            ("A* B?", SqlState::FeatureNotSupported),
            ("A{3,2}", SqlState::SyntaxError),
            ("A{0}", SqlState::SyntaxError),
            ("A{,}", SqlState::SyntaxError),
            ("A{x}", SqlState::SyntaxError),
            ("A, B", SqlState::SyntaxError),
            ("1", SqlState::SyntaxError),
        ] {
            let error = elements(text).expect_err(text);
            assert_eq!(error.code(), code, "{text}");
            assert!(error.hint_text().is_some(), "{text}");
        }
    }
}
