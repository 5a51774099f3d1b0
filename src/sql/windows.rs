//! The window table functions `TUMBLE`, `HOP`, `CUMULATE` and `SESSION` in FROM, and `TUMBLE` in GROUP BY.
//!
//! A call becomes a derived table: the input's columns with `window_start`, `window_end` and `window_time`, in words
//! that the planner knows. So a view and a SELECT give the same rows, and windows follow every change of their
//! input. A row without a time is in no window. Windows are half open, `[start, end)`, and aligned to 1970-01-01
//! 00:00 UTC plus the offset.

use std::ops::ControlFlow;

use arrow::compute::kernels::cast_utils::{IntervalParseConfig, IntervalUnit, parse_interval_month_day_nano_config};
use sqlparser::ast::{
    self, ExcludeSelectItem, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Query, SelectItem,
    SetExpr, Spanned, TableAlias, TableFactor, VisitMut, VisitorMut,
};
use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::parser::{parse_expression_of_program, parse_query};
use super::reader::fold;
use super::tokens::{is_space, position, word};
use super::window_functions::{CUMULATE_ENDS, HOP_STARTS, WINDOW_START};
use crate::types::{Error, Result, SqlState};

/// Stands for `PARTITION BY` among a call's arguments.
const PARTITION: &str = "partition_of_session";
/// Whether a row opens a session, among the columns that a call of `SESSION` needs for itself.
pub(crate) const OPENS: &str = "clink_opens";
/// The number of a row's session in its partition, likewise.
pub(crate) const SESSION: &str = "clink_session";
const DAY_MICROS: i64 = 86_400_000_000;
/// Windows that one row may be in: it comes out for each.
const WINDOWS_PER_ROW_MAX: i64 = 10_000;

/// Writes the calls as the parser takes them: without `TABLE`, and `PARTITION BY a, b` as an argument.
pub(crate) fn plain_calls(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let is = |token: Option<&TokenWithSpan>, wanted: &str| token.and_then(word).is_some_and(|word| word == wanted);
    let solid: Vec<usize> = (0..tokens.len()).filter(|at| !is_space(&tokens[*at].token)).collect();
    let mut edits: Vec<(usize, Vec<Token>)> = Vec::new();
    for (nth, at) in solid.iter().enumerate() {
        let follow = |by: usize| solid.get(nth + by).map(|at| &tokens[*at]);
        let called = word(&tokens[*at]).is_some_and(|word| is_window(&word.to_lowercase()))
            && follow(1).is_some_and(|token| token.token == Token::LParen);
        if !called || !is(follow(2), "TABLE") {
            continue;
        }
        edits.push((solid[nth + 2], Vec::new()));
        // The list of the partition ends at the comma before DESCRIPTOR.
        let Some(by) = (nth + 3..solid.len() - 1).take(8).find(|nth| {
            is(solid.get(*nth).map(|at| &tokens[*at]), "PARTITION")
                && is(solid.get(nth + 1).map(|at| &tokens[*at]), "BY")
        }) else {
            continue;
        };
        let end = (by + 2..solid.len() - 1).find(|nth| {
            tokens[solid[*nth]].token == Token::Comma && is(solid.get(nth + 1).map(|at| &tokens[*at]), "DESCRIPTOR")
        });
        if let Some(end) = end {
            edits.push((solid[by], vec![Token::Comma, Token::make_word(PARTITION, None)]));
            edits.push((solid[by + 1], vec![Token::LParen]));
            edits.push((solid[end], vec![Token::RParen, Token::Comma]));
        }
    }
    if edits.is_empty() {
        return tokens;
    }
    let mut edits = edits.into_iter().peekable();
    let mut out = Vec::with_capacity(tokens.len() + 4);
    for (at, token) in tokens.into_iter().enumerate() {
        match edits.next_if(|(edited, _)| *edited == at) {
            Some((_, written)) => {
                out.extend(written.into_iter().map(|new| TokenWithSpan { token: new, span: token.span }))
            }
            None => out.push(token),
        }
    }
    out
}

/// True for the name of a window table function, in lower case.
pub(crate) fn is_window(name: &str) -> bool {
    matches!(name, "tumble" | "hop" | "cumulate" | "session")
}

/// Puts what they mean in the place of all calls in a query.
///
/// # Errors
/// 42601 and 22023 for arguments that make no sense, 0A000 for a call in another place; with positions.
pub(crate) fn rewrite(query: &mut Query) -> Result<()> {
    match query.visit(&mut Windows) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Windows;

impl VisitorMut for Windows {
    type Break = Error;

    // Before what is in it: a call in FROM is no expression.
    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        let at = position(factor.span());
        match table(factor) {
            Ok(None) => ControlFlow::Continue(()),
            Ok(Some(derived)) => {
                *factor = derived;
                ControlFlow::Continue(())
            }
            Err(error) => ControlFlow::Break(error.position_or(at)),
        }
    }

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<Error> {
        let at = position(expression.span());
        match bound(expression) {
            Ok(None) => ControlFlow::Continue(()),
            Ok(Some(rewritten)) => {
                *expression = rewritten;
                ControlFlow::Continue(())
            }
            Err(error) => ControlFlow::Break(error.position_or(at)),
        }
    }
}

/// The derived table that a call in FROM stands for.
fn table(factor: &TableFactor) -> Result<Option<TableFactor>> {
    let (name, arguments, alias) = match factor {
        TableFactor::Table { name, args: Some(call), alias, .. } => (name, &call.args, alias),
        TableFactor::TableFunction { expr: Expr::Function(call), alias } => match &call.args {
            FunctionArguments::List(list) => (&call.name, &list.args, alias),
            _ => return Ok(None),
        },
        _ => return Ok(None),
    };
    let [ast::ObjectNamePart::Identifier(name)] = name.0.as_slice() else { return Ok(None) };
    let name = fold(name);
    if !is_window(&name) {
        return Ok(None);
    }
    let call = Call::read(&name, arguments)?;
    let query = call.query()?;
    let alias = alias.clone().or_else(|| {
        let name = call.input_name.clone()?;
        Some(TableAlias { explicit: true, name, columns: Vec::new(), at: None })
    });
    Ok(Some(TableFactor::Derived { lateral: false, subquery: query, alias, sample: None }))
}

/// `TUMBLE(ts, size)` in GROUP BY is the window's start, and so is `TUMBLE_START`; `TUMBLE_END` is its end.
fn bound(expression: &Expr) -> Result<Option<Expr>> {
    let Expr::Function(Function { name, args: FunctionArguments::List(list), over: None, .. }) = expression else {
        return Ok(None);
    };
    let [ast::ObjectNamePart::Identifier(name)] = name.0.as_slice() else { return Ok(None) };
    let name = fold(name);
    if !matches!(name.as_str(), "tumble" | "tumble_start" | "tumble_end" | "hop" | "cumulate" | "session") {
        return Ok(None);
    }
    let arguments: Vec<&Expr> = list.args.iter().filter_map(argument).collect();
    if !name.starts_with("tumble") {
        return Err(Error::unsupported(format!("{} in an expression is not supported", name.to_uppercase())).hint(
            format!(
                "Write it in FROM: FROM {}(TABLE t, DESCRIPTOR(ts), …) GROUP BY window_start, window_end.",
                name.to_uppercase()
            ),
        ));
    }
    let ([at, size] | [at, size, _]) = arguments.as_slice() else {
        return Err(misused(&name, "takes a time and a size"));
    };
    let size = micros(&name, "size", size)?;
    let offset = arguments.get(2).map_or(Ok(0), |offset| offset_micros(&name, offset))?;
    let start = format!("{WINDOW_START}({at}, {size}, {offset})");
    let text = if name == "tumble_end" { format!("({start} + {})", interval(size)) } else { start };
    parse_expression_of_program(&text).map(Some)
}

/// The arguments of a call in FROM.
struct Call<'a> {
    name: &'a str,
    /// What stands in FROM for the input.
    input: String,
    input_name: Option<Ident>,
    time: String,
    partition: Vec<String>,
    /// The intervals, in the order in which they are written.
    intervals: Vec<&'a Expr>,
}

impl<'a> Call<'a> {
    fn read(name: &'a str, arguments: &'a [FunctionArg]) -> Result<Call<'a>> {
        let form = || misused(name, "takes a table, the column of its time, and intervals");
        let mut arguments = arguments.iter().map(|written| argument(written).ok_or_else(form));
        let (input, input_name) = match arguments.next().ok_or_else(form)?? {
            Expr::Identifier(name) => (name.to_string(), Some(name.clone())),
            Expr::CompoundIdentifier(parts) => {
                let text: Vec<String> = parts.iter().map(ToString::to_string).collect();
                (text.join("."), parts.last().cloned())
            }
            Expr::Subquery(query) => (format!("({query}) AS input"), None),
            _ => return Err(form()),
        };
        let mut partition = Vec::new();
        let mut time = arguments.next().ok_or_else(form)??;
        if let Some(columns) = call_of(time, PARTITION) {
            if name != "session" {
                return Err(misused(name, "takes no PARTITION BY"));
            }
            partition = columns.iter().filter_map(argument).map(ToString::to_string).collect();
            time = arguments.next().ok_or_else(form)??;
        }
        if let Some([descriptor]) = call_of(time, "descriptor") {
            time = argument(descriptor).ok_or_else(form)?;
        }
        let Expr::Identifier(time) = time else {
            return Err(misused(name, "takes a column of its table as time"));
        };
        let intervals = arguments.collect::<Result<Vec<&Expr>>>()?;
        Ok(Call { name, input, input_name, time: time.to_string(), partition, intervals })
    }

    fn query(&self) -> Result<Box<Query>> {
        let Call { name, input, time, .. } = self;
        let with_end = |start: &str, end: &str| {
            format!("{start} AS window_start, {end} AS window_end, {end} - INTERVAL '1 microsecond' AS window_time")
        };
        let text = match (*name, self.intervals.as_slice()) {
            ("tumble", [size] | [size, _]) => {
                let size = micros(name, "size", size)?;
                let start = format!("{WINDOW_START}({time}, {size}, {})", self.offset(1)?);
                let columns = with_end(&start, &format!("{start} + {}", interval(size)));
                format!("SELECT *, {columns} FROM {input} WHERE {time} IS NOT NULL")
            }
            ("hop", [slide_text, size_text] | [slide_text, size_text, _]) => {
                let (slide, size) = (micros(name, "slide", slide_text)?, micros(name, "size", size_text)?);
                if slide > size {
                    return Err(Error::new(SqlState::InvalidParameterValue, "HOP's slide is longer than its size")
                        .hint(format!(
                            "The slide comes first: HOP(TABLE {input}, DESCRIPTOR({time}), {size_text}, {slide_text})."
                        )));
                }
                check_windows("HOP", "slide", size / slide)?;
                let starts = format!("unnest({HOP_STARTS}({time}, {slide}, {size}, {}))", self.offset(2)?);
                let end = format!("window_start + {}", interval(size));
                format!(
                    "SELECT *, {end} AS window_end, {end} - INTERVAL '1 microsecond' AS window_time \
                     FROM (SELECT *, {starts} AS window_start FROM {input} WHERE {time} IS NOT NULL) AS hops"
                )
            }
            ("cumulate", [step_text, size_text]) => {
                let (step, size) = (micros(name, "step", step_text)?, micros(name, "size", size_text)?);
                if size % step != 0 {
                    return Err(Error::new(
                        SqlState::InvalidParameterValue,
                        "CUMULATE's size is no multiple of its step",
                    )
                    .hint("The step comes first: CUMULATE(TABLE t, DESCRIPTOR(ts), step, size)."));
                }
                check_windows("CUMULATE", "step", size / step)?;
                let start = format!("{WINDOW_START}({time}, {size}, 0)");
                format!(
                    "SELECT *, window_end - INTERVAL '1 microsecond' AS window_time \
                     FROM (SELECT *, {start} AS window_start, unnest({CUMULATE_ENDS}({time}, {step}, {size})) AS window_end \
                     FROM {input} WHERE {time} IS NOT NULL) AS steps"
                )
            }
            ("session", [gap]) => return self.sessions(micros(name, "gap", gap)?),
            _ => {
                let form = match *name {
                    "tumble" => "TUMBLE(TABLE t, DESCRIPTOR(ts), size [, offset])",
                    "hop" => "HOP(TABLE t, DESCRIPTOR(ts), slide, size [, offset])",
                    "cumulate" => "CUMULATE(TABLE t, DESCRIPTOR(ts), step, size)",
                    _ => "SESSION(TABLE t [PARTITION BY k], DESCRIPTOR(ts), gap)",
                };
                return Err(misused(name, "has other arguments").hint(format!("Write {form}.")));
            }
        };
        parse_query(&text)
    }

    /// A session begins with a row that is a gap or more behind the last one of its partition.
    fn sessions(&self, gap: i64) -> Result<Box<Query>> {
        let Call { input, time, partition, .. } = self;
        let gap = interval(gap);
        let columns = partition.join(", ");
        let by = if partition.is_empty() { String::new() } else { format!("PARTITION BY {columns} ") };
        let session = partition.iter().map(String::as_str).chain([SESSION]).collect::<Vec<_>>().join(", ");
        let text = format!(
            "SELECT *, min({time}) OVER (PARTITION BY {session}) AS window_start, \
             max({time}) OVER (PARTITION BY {session}) + {gap} AS window_end, \
             max({time}) OVER (PARTITION BY {session}) + {gap} - INTERVAL '1 microsecond' AS window_time \
             FROM (SELECT *, sum({OPENS}) OVER ({by}ORDER BY {time}) AS {SESSION} \
             FROM (SELECT *, CASE WHEN {time} < lag({time}) OVER ({by}ORDER BY {time}) + {gap} THEN 0 ELSE 1 END AS {OPENS} \
             FROM {input} WHERE {time} IS NOT NULL) AS rows_of_sessions) AS sessions"
        );
        let mut query = parse_query(&text)?;
        if let SetExpr::Select(select) = query.body.as_mut()
            && let Some(SelectItem::Wildcard(options)) = select.projection.first_mut()
        {
            let names = [OPENS, SESSION].map(|name| ast::ObjectName::from(vec![Ident::new(name)]));
            options.opt_exclude = Some(ExcludeSelectItem::Multiple(names.into()));
        }
        Ok(query)
    }

    fn offset(&self, at: usize) -> Result<i64> {
        self.intervals.get(at).map_or(Ok(0), |offset| offset_micros(self.name, offset))
    }
}

fn argument(written: &FunctionArg) -> Option<&Expr> {
    let (FunctionArg::Unnamed(value)
    | FunctionArg::Named { arg: value, .. }
    | FunctionArg::ExprNamed { arg: value, .. }) = written;
    match value {
        FunctionArgExpr::Expr(expression) => Some(expression),
        _ => None,
    }
}

/// The arguments of a call of that function.
fn call_of<'a>(expression: &'a Expr, wanted: &str) -> Option<&'a [FunctionArg]> {
    match expression {
        Expr::Function(Function { name, args: FunctionArguments::List(list), .. }) if matches!(name.0.as_slice(), [ast::ObjectNamePart::Identifier(name)] if fold(name) == wanted) => {
            Some(&list.args)
        }
        _ => None,
    }
}

/// # Errors
/// 54000 when a row would be in too many windows.
fn check_windows(name: &str, step: &str, windows: i64) -> Result<()> {
    if windows <= WINDOWS_PER_ROW_MAX {
        return Ok(());
    }
    let message = format!("{name} would put each row into {windows} windows, and {WINDOWS_PER_ROW_MAX} are the most");
    Err(Error::new(SqlState::ProgramLimitExceeded, message)
        .hint(format!("Make the {step} longer, or the size shorter.")))
}

fn misused(name: &str, how: &str) -> Error {
    Error::new(SqlState::SyntaxError, format!("{} {how}", name.to_uppercase()))
        .hint("Write FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1 minute').")
}

fn interval(micros: i64) -> String {
    format!("INTERVAL '{micros} microseconds'")
}

/// The length of a constant interval that is not zero or less.
///
/// # Errors
/// 22023 for another one.
pub(crate) fn micros(call: &str, what: &str, written: &Expr) -> Result<i64> {
    let micros = offset_micros(call, written)?;
    if micros <= 0 {
        return Err(Error::new(
            SqlState::InvalidParameterValue,
            format!("{}'s {what} is not positive", call.to_uppercase()),
        )
        .hint("Write an interval such as INTERVAL '5 minutes'.")
        .position_or(position(written.span())));
    }
    Ok(micros)
}

fn offset_micros(call: &str, written: &Expr) -> Result<i64> {
    let refused = |why: &str| {
        Error::new(SqlState::InvalidParameterValue, format!("an interval of {} {why}", call.to_uppercase()))
            .hint("Write INTERVAL '5 minutes', with days as the greatest unit.")
            .position_or(position(written.span()))
    };
    let (value, unit) = match written {
        Expr::Interval(interval) => (interval.value.as_ref(), interval.leading_field.as_ref()),
        Expr::Cast { expr, .. } => (expr.as_ref(), None),
        other => (other, None),
    };
    let Expr::Value(value) = value else { return Err(refused("is not a constant")) };
    let text = match &value.value {
        ast::Value::SingleQuotedString(text) | ast::Value::Number(text, _) => match unit {
            Some(unit) => format!("{text} {unit}"),
            None => text.clone(),
        },
        _ => return Err(refused("is not a constant")),
    };
    let parsed = parse_interval_month_day_nano_config(&text, IntervalParseConfig::new(IntervalUnit::Second))
        .map_err(|_| refused(&format!("cannot be read: {text}")))?;
    if parsed.months != 0 {
        return Err(refused("has months, which are not all of one length"));
    }
    i64::from(parsed.days)
        .checked_mul(DAY_MICROS)
        .and_then(|days| days.checked_add(parsed.nanoseconds / 1_000))
        .ok_or_else(|| refused("is too long"))
}
