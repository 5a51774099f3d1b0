//! PostgreSQL's spellings of what DataFusion has by another name, or in parts: operators, keywords and functions.

use sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, ObjectNamePart, UnaryOperator,
    Value,
};

use super::catalog_queries::call;
use super::parser::parse_expression_of_program;
use super::reader::fold;
use crate::types::{Error, Result};

/// Functions by the number of their arguments, and DataFusion's names of them.
const NAMES: &[(&str, usize, &str)] = &[
    // Those of the same names take the first one alone.
    ("array_remove", 2, "array_remove_all"),
    ("array_replace", 3, "array_replace_all"),
    ("ceiling", 1, "ceil"),
    ("every", 1, "bool_and"),
    ("sign", 1, "signum"),
    ("statement_timestamp", 0, "now"),
    ("to_json", 1, "to_jsonb"),
    ("transaction_timestamp", 0, "now"),
];

/// What stands for an expression; `None` where nothing has to.
///
/// # Errors
/// 0A000 for `SIMILAR TO` a pattern that is computed.
pub(crate) fn rewritten(expression: &Expr) -> Result<Option<Expr>> {
    Ok(match expression {
        Expr::Function(function) if function.name.to_string().eq_ignore_ascii_case("localtimestamp") => {
            parse_expression_of_program("CAST(now() AS timestamp)").ok()
        }
        Expr::Function(function) => of_function(function),
        Expr::Identifier(name) if name.quote_style.is_none() && name.value.eq_ignore_ascii_case("localtimestamp") => {
            parse_expression_of_program("CAST(now() AS timestamp)").ok()
        }
        Expr::BinaryOp { left, op, right } => {
            let name = match op {
                BinaryOperator::PGOverlap => "array_has_any",
                BinaryOperator::PGStartsWith => "starts_with",
                _ => return Ok(None),
            };
            call(name, vec![left.as_ref().clone(), right.as_ref().clone()])
        }
        Expr::UnaryOp { op, expr } => match op {
            UnaryOperator::PGSquareRoot => call("sqrt", vec![expr.as_ref().clone()]),
            UnaryOperator::PGCubeRoot => call("cbrt", vec![expr.as_ref().clone()]),
            UnaryOperator::PGAbs => call("abs", vec![expr.as_ref().clone()]),
            // In two's complement.
            UnaryOperator::BitwiseNot => with_operand("(-operand - 1)", expr),
            _ => None,
        },
        Expr::Substring { expr, substring_from: Some(pattern), substring_for: None, .. } if is_text(pattern) => {
            call("regexp_match", vec![expr.as_ref().clone(), pattern.as_ref().clone()])
                .and_then(|found| with_operand("(operand)[1]", &found))
        }
        Expr::SimilarTo { negated, expr, pattern, escape_char } => {
            let escape = match escape_char.as_ref().map(|escape| &escape.value) {
                None => Some('\\'),
                Some(Value::SingleQuotedString(escape)) => escape.chars().next(),
                Some(_) => None,
            };
            let Some(pattern) = text_of(pattern) else {
                return Err(Error::unsupported("SIMILAR TO a pattern that is not a literal is not supported")
                    .hint("Write a regular expression: value ~ pattern."));
            };
            let op = if *negated { BinaryOperator::PGRegexNotMatch } else { BinaryOperator::PGRegexMatch };
            let pattern = Value::SingleQuotedString(regular(pattern, escape));
            Some(Expr::BinaryOp { left: expr.clone(), op, right: Box::new(Expr::value(pattern)) })
        }
        _ => None,
    })
}

fn text_of(expression: &Expr) -> Option<&str> {
    match expression {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::EscapedStringLiteral(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

fn is_text(expression: &Expr) -> bool {
    text_of(expression).is_some()
}

/// An expression of the program with one of the user's in the place of `operand`.
fn with_operand(text: &str, operand: &Expr) -> Option<Expr> {
    let mut expression = parse_expression_of_program(text).ok()?;
    let _ = sqlparser::ast::visit_expressions_mut(&mut expression, |inner| {
        if matches!(inner, Expr::Identifier(name) if name.value == "operand") {
            *inner = Expr::Nested(Box::new(operand.clone()));
        }
        std::ops::ControlFlow::<()>::Continue(())
    });
    Some(expression)
}

fn of_function(function: &Function) -> Option<Expr> {
    let [ObjectNamePart::Identifier(name)] = function.name.0.as_slice() else { return None };
    let FunctionArguments::List(list) = &function.args else { return None };
    let called = fold(name);
    if let Some((_, _, other)) = NAMES.iter().find(|(name, count, _)| *name == called && *count == list.args.len()) {
        let mut function = function.clone();
        if let Some(ObjectNamePart::Identifier(name)) = function.name.0.first_mut() {
            name.value = (*other).to_owned();
        }
        return Some(Expr::Function(function));
    }
    let values: Vec<&Expr> = list
        .args
        .iter()
        .filter_map(|argument| match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => Some(value),
            _ => None,
        })
        .collect();
    match (called.as_str(), values.as_slice()) {
        ("gen_random_uuid", []) => parse_expression_of_program("CAST(uuid() AS uuid)").ok(),
        ("age", [earlier]) => {
            let today = parse_expression_of_program("CAST(current_date AS timestamp)").ok()?;
            call("age", vec![today, (*earlier).clone()])
        }
        // What is left of the division taken off, it has no rest.
        ("div", [number, divisor]) => {
            let mut quotient = parse_expression_of_program("CAST((a - a % b) / b AS numeric)").ok()?;
            let _ = sqlparser::ast::visit_expressions_mut(&mut quotient, |inner| {
                let put = match inner {
                    Expr::Identifier(name) if name.value == "a" => number,
                    Expr::Identifier(name) if name.value == "b" => divisor,
                    _ => return std::ops::ControlFlow::<()>::Continue(()),
                };
                *inner = Expr::Nested(Box::new((*put).clone()));
                std::ops::ControlFlow::Continue(())
            });
            Some(quotient)
        }
        ("regexp_substr", [text, pattern]) => {
            let group = with_operand("'(' || operand || ')'", pattern)?;
            let found = call("regexp_match", vec![(*text).clone(), group])?;
            with_operand("(operand)[1]", &found)
        }
        _ => None,
    }
}

/// The pattern of a SIMILAR TO as a regular expression.
fn regular(pattern: &str, escape: Option<char>) -> String {
    let mut regular = String::from("^(?:");
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        match character {
            escaped if Some(escaped) == escape => {
                let Some(next) = characters.next() else { break };
                if !next.is_alphanumeric() {
                    regular.push('\\');
                }
                regular.push(next);
            }
            '%' => regular.push_str("(?s:.*)"),
            '_' => regular.push_str("(?s:.)"),
            '.' | '^' | '$' | '\\' => {
                regular.push('\\');
                regular.push(character);
            }
            other => regular.push(other),
        }
    }
    regular.push_str(")$");
    regular
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_become_regular_expressions() {
        assert_eq!(regular("a%", Some('\\')), "^(?:a(?s:.*))$");
        assert_eq!(regular("(a|b)_.", Some('\\')), "^(?:(a|b)(?s:.)\\.)$");
        assert_eq!(regular("10\\%", Some('\\')), "^(?:10\\%)$");
    }
}
