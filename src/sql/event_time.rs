//! Which columns of a plan have event time, and what operators close by it.
//!
//! A table's column of event time has a watermark. It goes on through filters, to columns that are the same, that are it
//! with an interval, or that are windows of it; through a union or a join where it is known of both sides. An aggregate
//! with such a key forgets groups that can change no more, and puts each out once then when that is asked for. Where
//! rows still change above, they are held back until their event time is over.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use super::statement::Emit;
use super::window_functions::{CUMULATE_ENDS, HOP_STARTS, WINDOW_START};
use crate::exec::plan::{
    Closing, EventTerm, EventTime, JoinKind, JoinSpec, MatchSpec, OperatorSpec, PlanNode, RankSpec, SessionSpec, Show,
    TemporalJoinSpec,
};
use crate::types::{Error, RelationId, Result};

const DAY_MICROS: i64 = 86_400_000_000;

/// What is known of a relation that a plan reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Input {
    /// Its columns of event time.
    pub(crate) event_times: Vec<(usize, EventTime)>,
    /// Rows are only ever added.
    pub(crate) append_only: bool,
    /// A row has one time of the clock, over restarts too.
    pub(crate) keeps_times: bool,
}

/// What is known of the rows of an operator.
#[derive(Clone, Default)]
struct Rows {
    /// Of each column.
    times: Vec<Option<EventTime>>,
    append_only: bool,
}

/// Event time of the root, by column.
pub(crate) type Exports = Vec<(usize, EventTime)>;

/// Lets the operators of a plan close by event time; gives the event time of the root's columns, and whether its rows
/// only ever grow.
///
/// # Errors
/// 0A000 when rows are asked for once and there is no event time by which they could be final.
pub(crate) fn close(
    nodes: &mut Vec<PlanNode>,
    inputs: &HashMap<RelationId, Input>,
    emit: Emit,
) -> Result<(Exports, bool)> {
    let by_clock = nodes.iter().any(|node| matches!(node.operator, OperatorSpec::TemporalFilter(_)));
    if by_clock && emit == Emit::OnWindowClose {
        return Err(Error::unsupported("EMIT ON WINDOW CLOSE of rows that come and go with now() is not supported")
            .hint("Leave EMIT out, or the condition on now(): a window that is over is put out once, and stays."));
    }
    let mut known: Vec<Rows> = Vec::with_capacity(nodes.len());
    for node in nodes.iter_mut() {
        let of: Vec<&Rows> = node.inputs.iter().filter_map(|input| known.get(*input)).collect();
        let (rows, closing) = rows_of(node, &of, inputs, emit)?;
        node.closing = closing;
        node.append_only = rows.append_only;
        known.push(rows);
    }
    let mut root = known.pop().unwrap_or_default();
    if emit == Emit::OnWindowClose && !root.append_only {
        root = hold(nodes, root)?;
    }
    if emit == Emit::OnWindowClose && nodes.iter().all(|node| node.closing.is_empty()) {
        // Rows that only ever grow are final as they come; whose windows could close?
        let reads_closed = root.times.iter().flatten().any(|time| time.size.is_some());
        if !reads_closed {
            return Err(no_window(nodes, inputs));
        }
    }
    let exports = root.times.into_iter().enumerate().filter_map(|(column, time)| Some((column, time?))).collect();
    Ok((exports, root.append_only))
}

fn no_window(nodes: &[PlanNode], inputs: &HashMap<RelationId, Input>) -> Error {
    let error = Error::unsupported("EMIT ON WINDOW CLOSE of a query without windows that close is not supported");
    let read = nodes.iter().filter_map(|node| match &node.operator {
        OperatorSpec::Import { relation, .. } => inputs.get(relation),
        _ => None,
    });
    if read.clone().all(|input| input.event_times.is_empty()) {
        return error.hint(
            "Give the table event time: CREATE TABLE t (…, WATERMARK FOR ts AS ts - INTERVAL '5 seconds'); or leave \
             EMIT out.",
        );
    }
    error.hint(
        "GROUP BY window_start, window_end, over a window of the column with the watermark: FROM TUMBLE(TABLE t, \
         DESCRIPTOR(ts), INTERVAL '1 minute').",
    )
}

/// Rows of the root are held back until their event time is over.
fn hold(nodes: &mut Vec<PlanNode>, root: Rows) -> Result<Rows> {
    let refused = || {
        Error::unsupported("EMIT ON WINDOW CLOSE of rows without a window's column is not supported")
            .hint("Select window_end too: it says when a row is final.")
    };
    let column = latest(&root.times).ok_or_else(refused)?;
    let time = root.times.get(column).cloned().flatten().ok_or_else(refused)?;
    // It takes the root's place, so all below moves down one step.
    for node in nodes.iter_mut() {
        node.path = node.path.replacen("root", "root/input", 1);
    }
    let input = nodes.len().checked_sub(1).ok_or_else(refused)?;
    nodes.push(PlanNode {
        path: "root".to_owned(),
        operator: OperatorSpec::Hold,
        inputs: vec![input],
        schema: Arc::clone(&nodes[input].schema),
        closing: vec![Closing { column, time, last_only: true, keep: 0 }],
        append_only: true,
        ttl_millis: None,
    });
    Ok(Rows { append_only: true, ..root })
}

/// The column by which rows are closed: one of windows rather than one of single times.
fn latest(times: &[Option<EventTime>]) -> Option<usize> {
    let known = times.iter().enumerate().filter_map(|(column, time)| Some((column, time.as_ref()?)));
    // Of several, the one that is over first: a window's own end rather than the start of the longest that has it.
    let of_windows = known.filter(|(_, time)| time.size.is_some()).min_by_key(|(_, time)| time.end);
    of_windows.map(|(column, _)| column).or_else(|| times.iter().position(Option::is_some))
}

fn rows_of(
    node: &PlanNode,
    of: &[&Rows],
    inputs: &HashMap<RelationId, Input>,
    emit: Emit,
) -> Result<(Rows, Vec<Closing>)> {
    let first = of.first().copied().cloned().unwrap_or_default();
    let time_of = |column: &usize| first.times.get(*column).cloned().flatten();
    let rows = match &node.operator {
        OperatorSpec::Import { relation, columns } => {
            let Some(input) = inputs.get(relation) else { return Ok((Rows::default(), Vec::new())) };
            let find = |column: &usize| input.event_times.iter().find(|(known, _)| known == column);
            let times = columns.iter().map(|column| find(column).map(|(_, time)| time.clone())).collect();
            Rows { times, append_only: input.append_only }
        }
        OperatorSpec::Constant { rows } => Rows { times: vec![None; rows.num_columns()], append_only: true },
        OperatorSpec::Project { expressions } => {
            let times = expressions.iter().map(|expression| of_expression(expression, &first.times)).collect();
            Rows { times, ..first }
        }
        OperatorSpec::Filter { columns, .. } => Rows { times: columns.iter().map(time_of).collect(), ..first },
        OperatorSpec::Hold | OperatorSpec::Latest | OperatorSpec::Expire { .. } => first,
        // Rows come and go by the clock, whatever is known of their event time.
        OperatorSpec::TemporalFilter(bounds) => Rows {
            times: vec![None; node.schema.fields().len()],
            append_only: first.append_only && bounds.iter().all(|bound| bound.lower),
        },
        OperatorSpec::Unnest(unnest) => Rows { times: unnest.columns.iter().map(time_of).collect(), ..first },
        OperatorSpec::Union => {
            let width = node.schema.fields().len();
            let all = |column| of.iter().map(move |rows: &&Rows| rows.times.get(column).cloned().flatten());
            let times = (0..width).map(|column| all(column).reduce(both).flatten()).collect();
            Rows { times, append_only: of.iter().all(|rows| rows.append_only) }
        }
        OperatorSpec::Aggregate { keys, .. } => {
            let mut times: Vec<Option<EventTime>> = keys.iter().map(time_of).collect();
            let closing = latest(&times).and_then(|key| {
                // Over rows that change, a group that is forgotten could not take a change back.
                let last_only = emit == Emit::OnWindowClose;
                let time = times.get(key).cloned().flatten()?;
                (last_only || first.append_only).then_some(Closing { column: keys[key], time, last_only, keep: 0 })
            });
            if closing.is_none() && emit == Emit::OnWindowClose {
                let what =
                    if keys.is_empty() { "an aggregate without GROUP BY" } else { "a GROUP BY without a window" };
                let known = first.times.iter().any(Option::is_some);
                let hint = if known {
                    "Add window_start and window_end of TUMBLE, HOP, CUMULATE or SESSION over the column with the watermark \
                     to GROUP BY."
                } else {
                    "Give the table event time with WATERMARK FOR ts AS ts - INTERVAL '5 seconds', and group by a window \
                     of it: FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1 minute') GROUP BY window_start, window_end."
                };
                return Err(Error::unsupported(format!("EMIT ON WINDOW CLOSE of {what} is not supported")).hint(hint));
            }
            times.resize(node.schema.fields().len(), None);
            let append_only = closing.as_ref().is_some_and(|closing| closing.last_only);
            return Ok((Rows { times, append_only }, closing.into_iter().collect()));
        }
        OperatorSpec::Rank(RankSpec { keys, show, .. }) => {
            // A row of a partition that is not over may still change.
            let times = first.times.iter().enumerate();
            let mut times: Vec<Option<EventTime>> =
                times.map(|(column, time)| time.clone().filter(|_| keys.contains(&column))).collect();
            if matches!(show, Show::Window { .. }) {
                times.resize(node.schema.fields().len(), None);
            }
            Rows { times, append_only: false }
        }
        OperatorSpec::Match(MatchSpec { order, .. }) => {
            let column = order.first().map(|first| first.column).unwrap_or_default();
            let Some(time) = time_of(&column) else {
                let error = "MATCH_RECOGNIZE in a materialized view over rows without event time is not supported";
                return Err(Error::unsupported(error).hint(
                    "Let ORDER BY begin with the column that has the watermark: CREATE TABLE t (…, WATERMARK FOR ts AS ts - \
                     INTERVAL '5 seconds') APPEND ONLY.",
                ));
            };
            if !first.append_only {
                let error = "MATCH_RECOGNIZE in a materialized view over rows that change is not supported";
                return Err(Error::unsupported(error).hint(
                    "Match the rows of a table made with APPEND ONLY or of a connector without a primary key, or windows \
                     with EMIT ON WINDOW CLOSE.",
                ));
            }
            let closing = Closing { column, time, last_only: true, keep: 0 };
            let rows = Rows { times: vec![None; node.schema.fields().len()], append_only: true };
            return Ok((rows, vec![closing]));
        }
        // Made of aggregates that close, when that is known.
        OperatorSpec::HopAggregate { .. } => return Err(Error::internal("panes before their windows close")),
        OperatorSpec::SessionWindow(session) => return session_rows(session, &first, emit),
        OperatorSpec::LookupJoin(_) => {
            // Rows come out at the time at which they come.
            let mut times = first.times;
            times.resize(node.schema.fields().len(), None);
            Rows { times, append_only: first.append_only }
        }
        OperatorSpec::TemporalJoin(join) => {
            let right = of.get(1).copied().cloned().unwrap_or_default();
            return Ok(temporal_join_rows(join, &first, &right, node.schema.fields().len()));
        }
        OperatorSpec::Join(join) => {
            let right = of.get(1).copied().cloned().unwrap_or_default();
            return Ok(join_rows(join, first, right, node.schema.fields().len()));
        }
    };
    Ok((rows, Vec::new()))
}

/// A session is over when no row can come any more that is less than the gap behind its last one.
fn session_rows(session: &SessionSpec, input: &Rows, emit: Emit) -> Result<(Rows, Vec<Closing>)> {
    let last_only = emit == Emit::OnWindowClose;
    let known = input.times.get(session.time).cloned().flatten();
    if last_only && known.is_some() && !input.append_only {
        let refused = Error::unsupported("EMIT ON WINDOW CLOSE of SESSION over rows that change is not supported");
        return Err(refused
            .detail("A row that goes can divide a session into parts that were over long ago.")
            .hint("Make the table APPEND ONLY, or leave EMIT out: the sessions then follow every change."));
    }
    let over = known.filter(|_| input.append_only).and_then(|mut time| {
        time.delay_by(session.gap.checked_sub(1)?)?;
        (time.size, time.end) = (Some(session.gap), session.gap);
        Some(time)
    });
    // A row of a partition that is not over may still change; one that is held back comes out behind its own times.
    let kept = input.times.iter().enumerate();
    let mut times: Vec<Option<EventTime>> =
        kept.map(|(column, time)| time.clone().filter(|_| !last_only && session.keys.contains(&column))).collect();
    times.push(None);
    times.push(over.clone().map(|time| EventTime { size: Some(0), ..time }));
    let append_only = last_only && over.is_some();
    let closing = over.map(|time| Closing { column: session.time, time, last_only, keep: 0 });
    Ok((Rows { times, append_only }, closing.into_iter().collect()))
}

/// What is known of the rows of a join, and what it forgets: where event times of both sides are equal, or within a
/// span of each other, no row finds a partner any more when the other side is past its span.
fn join_rows(join: &JoinSpec, left: Rows, right: Rows, width: usize) -> (Rows, Vec<Closing>) {
    let append_only = left.append_only && right.append_only;
    let mut times = vec![None; left.times.len() + right.times.len()];
    let mut closing = Vec::new();
    for Band { columns: [l, r], least, most } in bands(join, left.times.len()) {
        let known = (left.times.get(l).cloned().flatten(), right.times.get(r).cloned().flatten());
        let (Some(left_time), Some(right_time)) = known else { continue };
        // What comes is a pair with a new row of either side.
        let (mut of_left, mut of_right) = (right_time.clone(), left_time.clone());
        if of_left.delay_by(most).is_none() || of_right.delay_by(-least).is_none() {
            continue;
        }
        (of_left.size, of_left.end) = (left_time.size, left_time.end);
        (of_right.size, of_right.end) = (right_time.size, right_time.end);
        times[l] = both(Some(left_time.clone()), Some(of_left));
        times[left.times.len() + r] = both(Some(right_time.clone()), Some(of_right));
        if append_only && closing.is_empty() {
            let side = |column, time, keep| Closing { column, time, last_only: false, keep };
            closing = vec![side(l, left_time, most), side(r, right_time, -least)];
        }
    }
    times.truncate(width);
    (Rows { times, append_only: append_only && join.kind == JoinKind::Inner }, closing)
}

/// A row of a temporal join is what it is when neither rows nor versions of its time can come any more. What is over is
/// forgotten where nothing is ever taken back.
fn temporal_join_rows(join: &TemporalJoinSpec, left: &Rows, right: &Rows, width: usize) -> (Rows, Vec<Closing>) {
    let mut times = vec![None; width];
    let known =
        (left.times.get(join.left_time).cloned().flatten(), right.times.get(join.right_time).cloned().flatten());
    let (Some(left_time), Some(right_time)) = known else {
        return (Rows { times, append_only: false }, Vec::new());
    };
    times[join.left_time] = both(Some(left_time.clone()), Some(right_time.clone()));
    let side = |column, time| Closing { column, time, last_only: false, keep: 0 };
    let closing = if left.append_only && right.append_only {
        vec![side(join.left_time, left_time), side(join.right_time, right_time)]
    } else {
        Vec::new()
    };
    (Rows { times, append_only: false }, closing)
}

/// Columns of both sides, and how much greater the right one may be.
struct Band {
    columns: [usize; 2],
    least: i64,
    most: i64,
}

fn bands(join: &JoinSpec, width: usize) -> Vec<Band> {
    let equal = join.left_keys.iter().zip(&join.right_keys);
    let mut found: Vec<Band> = equal.map(|(l, r)| Band { columns: [*l, *r], least: 0, most: 0 }).collect();
    let mut spans: Vec<([usize; 2], Option<i64>, Option<i64>)> = Vec::new();
    let mut parts: Vec<&Arc<dyn PhysicalExpr>> = join.condition.iter().collect();
    while let Some(part) = parts.pop() {
        let Some(binary) = part.downcast_ref::<BinaryExpr>() else { continue };
        let (mut a, mut b, mut op) = (binary.left(), binary.right(), *binary.op());
        if op == Operator::And {
            parts.extend([a, b]);
            continue;
        }
        // As `a <= b`, an equality both ways.
        if matches!(op, Operator::Gt | Operator::GtEq) {
            std::mem::swap(&mut a, &mut b);
            op = Operator::LtEq;
        }
        if !matches!(op, Operator::Lt | Operator::LtEq | Operator::Eq) {
            continue;
        }
        let (Some((a, at_a)), Some((b, at_b))) = (moved_column(a), moved_column(b)) else { continue };
        let Some(span) = at_b.checked_sub(at_a) else { continue };
        // a + at_a <= b + at_b: the left column is at most `span` greater, or the right one at least `-span`.
        let (columns, least, most) = match (a < width, b < width) {
            (true, false) => ([a, b - width], Some(-span), None),
            (false, true) => ([b, a - width], None, Some(span)),
            _ => continue,
        };
        let exact = least.or(most);
        let (least, most) = if op == Operator::Eq { (exact, exact) } else { (least, most) };
        match spans.iter_mut().find(|(known, ..)| *known == columns) {
            Some((_, known_least, known_most)) => {
                *known_least = (*known_least).max(least);
                *known_most = [*known_most, most].into_iter().flatten().min();
            }
            None => spans.push((columns, least, most)),
        }
    }
    let whole = spans.into_iter().filter_map(|(columns, least, most)| {
        let (least, most) = (least?, most?);
        (least <= most).then_some(Band { columns, least, most })
    });
    found.extend(whole);
    found
}

/// A column, and what is added to it.
fn moved_column(expression: &Arc<dyn PhysicalExpr>) -> Option<(usize, i64)> {
    if let Some(column) = expression.downcast_ref::<Column>() {
        return Some((column.index(), 0));
    }
    let binary = expression.downcast_ref::<BinaryExpr>()?;
    let (column, added) = moved_column(binary.left())?;
    let span = interval(binary.right())?;
    match binary.op() {
        Operator::Plus => Some((column, added.checked_add(span)?)),
        Operator::Minus => Some((column, added.checked_sub(span)?)),
        _ => None,
    }
}

/// What is known of rows of either of two.
fn both(left: Option<EventTime>, right: Option<EventTime>) -> Option<EventTime> {
    let (mut left, right) = (left?, right?);
    if left.size != right.size {
        left.size = None;
    }
    for term in right.terms {
        if !left.terms.contains(&term) {
            left.terms.push(term);
        }
    }
    Some(left)
}

/// What is known of an expression over columns.
fn of_expression(expression: &Arc<dyn PhysicalExpr>, columns: &[Option<EventTime>]) -> Option<EventTime> {
    if let Some(column) = expression.downcast_ref::<Column>() {
        return columns.get(column.index()).cloned().flatten();
    }
    if let Some(binary) = expression.downcast_ref::<BinaryExpr>() {
        let time = of_expression(binary.left(), columns)?;
        let span = interval(binary.right())?;
        return match binary.op() {
            Operator::Plus => shifted(time, span),
            Operator::Minus => shifted(time, span.checked_neg()?),
            _ => None,
        };
    }
    if let Some(cast) = expression.downcast_ref::<CastExpr>() {
        // In UTC, where definitions are planned, a timestamp is the same number with a zone and without.
        return of_expression(cast.expr(), columns).filter(|_| is_timestamp(cast.cast_type()));
    }
    let call = expression.downcast_ref::<ScalarFunctionExpr>()?;
    let [time, rest @ ..] = call.args() else { return None };
    if call.name() == super::casts::NAME {
        return of_expression(time, columns).filter(|_| is_timestamp(call.return_type()));
    }
    let mut time = of_expression(time, columns)?;
    let numbers = rest.iter().map(number).collect::<Option<Vec<i64>>>()?;
    match (call.name(), numbers.as_slice()) {
        // The last time in a window is just before its end.
        (WINDOW_START, [size, _]) | (HOP_STARTS, [_, size, _]) => {
            time.delay_by(size.checked_sub(1)?)?;
            (time.size, time.end) = (Some(*size), *size);
        }
        (CUMULATE_ENDS, [_, _]) => {
            time.delay_by(-1)?;
            (time.size, time.end) = (Some(0), 0);
        }
        _ => return None,
    }
    Some(time)
}

fn shifted(mut time: EventTime, span: i64) -> Option<EventTime> {
    time.delay_by(span.checked_neg()?)?;
    time.end = time.end.checked_sub(span)?;
    Some(time)
}

impl EventTime {
    /// Takes more off what is known.
    fn delay_by(&mut self, micros: i64) -> Option<()> {
        for term in &mut self.terms {
            term.delay = term.delay.checked_add(micros)?;
        }
        Some(())
    }

    /// What is known of a column of a relation, when so much is taken off.
    pub fn of(relation: RelationId, column: usize, delay: i64) -> EventTime {
        EventTime { terms: vec![EventTerm { relation, column, delay }], size: None, end: 0 }
    }
}

pub(super) fn is_timestamp(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Timestamp(TimeUnit::Microsecond, _))
}

/// A constant interval of one length, in microseconds.
pub(super) fn interval(expression: &Arc<dyn PhysicalExpr>) -> Option<i64> {
    match expression.downcast_ref::<Literal>()?.value() {
        ScalarValue::IntervalMonthDayNano(Some(interval)) if interval.months == 0 => {
            i64::from(interval.days).checked_mul(DAY_MICROS)?.checked_add(interval.nanoseconds / 1_000)
        }
        _ => None,
    }
}

pub(super) fn number(expression: &Arc<dyn PhysicalExpr>) -> Option<i64> {
    match expression.downcast_ref::<Literal>()?.value() {
        ScalarValue::Int64(number) => *number,
        ScalarValue::Int32(number) => number.map(i64::from),
        _ => None,
    }
}
