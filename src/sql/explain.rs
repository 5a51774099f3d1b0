//! EXPLAIN of a standing query: one line an operator, inputs indented below, with the tables of state that it keeps and
//! what bounds them.

use std::collections::HashMap;

use super::types::sql_name;
use crate::exec::plan::{
    AggregateCall, ClockBound, JobPlan, JoinKind, MatchSpec, OnError, OperatorSpec, PlanNode, Show,
};
use crate::types::RelationId;

/// What EXPLAIN says of a relation that a job reads.
#[derive(Clone, Debug)]
pub struct ImportedRelation {
    /// Its name.
    pub name: String,
    /// Names of the columns that identify a row; empty when the whole row does.
    pub key: Vec<String>,
    /// True when its rows only ever grow.
    pub append_only: bool,
}

/// The lines of `EXPLAIN`; `relations` are the imports. `kept` says that the result is kept, as that of a view is and that
/// of a sink is not. `note` gives what else is said of the operator with a path, `rows` for the kept result and `errors` for
/// the kept rows whose expressions failed.
pub fn explain_job(
    plan: &JobPlan,
    relations: &HashMap<RelationId, ImportedRelation>,
    kept: bool,
    note: &dyn Fn(&str) -> Option<String>,
) -> Vec<String> {
    let noted = |path: &str| note(path).map(|note| format!(" ({note})")).unwrap_or_default();
    let names: Vec<String> = plan.key.iter().map(|column| name_of(plan.root(), *column)).collect();
    let state = match (kept, names.as_slice()) {
        (false, _) => String::new(),
        (true, []) => "; state rows: each row with its count".to_owned(),
        (true, names) => format!("; state rows: a row for each {}", names.join(", ")),
    };
    let result = format!("Result: {}{state}", properties(&names, plan.append_only));
    let mut lines = vec![result + &noted("rows")];
    if plan.on_error == OnError::Keep {
        let errors = "Errors: rows for which an expression fails; state rows: each row with its count";
        lines.push(errors.to_owned() + &noted("errors"));
    }
    let mut open = vec![(plan.nodes.len().saturating_sub(1), 1_usize)];
    while let Some((at, depth)) = open.pop() {
        let Some(node) = plan.nodes.get(at) else {
            continue;
        };
        lines.push(format!("{}{}{}", "  ".repeat(depth), line(plan, node, relations), noted(&node.path)));
        open.extend(node.inputs.iter().rev().map(|input| (*input, depth + 1)));
    }
    lines
}

/// A relation's key, and whether its rows change.
fn properties(key: &[String], append_only: bool) -> String {
    let key = if key.is_empty() { "whole row".to_owned() } else { key.join(", ") };
    format!("key {key}; {}", if append_only { "append-only" } else { "updating" })
}

fn name_of(node: &PlanNode, column: usize) -> String {
    node.schema.fields().get(column).map_or_else(|| format!("#{column}"), |field| field.name().clone())
}

fn line(plan: &JobPlan, node: &PlanNode, relations: &HashMap<RelationId, ImportedRelation>) -> String {
    let input = node.inputs.first().and_then(|input| plan.nodes.get(*input));
    let input_name = |column: usize| input.map_or_else(|| format!("#{column}"), |input| name_of(input, column));
    let what = match &node.operator {
        OperatorSpec::Import { relation, .. } => match relations.get(relation) {
            Some(of) => format!("{} [{}]; {}", of.name, columns(node), properties(&of.key, of.append_only)),
            None => format!("relation {relation} [{}]", columns(node)),
        },
        OperatorSpec::Constant { rows } => format!("{} rows [{}]", rows.num_rows(), columns(node)),
        OperatorSpec::Project { expressions } => {
            let parts: Vec<String> = expressions
                .iter()
                .enumerate()
                .map(|(at, expression)| {
                    let (text, name) = (expression.to_string(), name_of(node, at));
                    if text.rsplit_once('@').is_some_and(|(column, _)| column == name) {
                        name
                    } else {
                        format!("{text} AS {name}")
                    }
                })
                .collect();
            format!("[{}]", parts.join(", "))
        }
        OperatorSpec::Filter { predicate, .. } => predicate.to_string(),
        OperatorSpec::Expire { keys, ttl_millis } => {
            let by =
                if keys.is_empty() { "all rows".to_owned() } else { format!("by {}", names_of(keys, &input_name)) };
            format!("{by}, {ttl_millis} ms after the last change")
        }
        OperatorSpec::Union | OperatorSpec::Unnest(_) | OperatorSpec::Latest | OperatorSpec::Hold => {
            format!("[{}]", columns(node))
        }
        OperatorSpec::TemporalFilter(bounds) => {
            let parts: Vec<String> = bounds.iter().map(|bound| bound_text(bound, &input_name)).collect();
            parts.join(" AND ")
        }
        OperatorSpec::Aggregate { keys, aggregates } => grouped(keys, aggregates, &input_name),
        OperatorSpec::HopAggregate { hop, aggregates } => {
            let windows = format!("windows of {} every {}", seconds(hop.size), seconds(hop.slide));
            format!("{windows} from panes of {} {}", seconds(hop.pane()), grouped(&hop.keys, aggregates, &input_name))
        }
        OperatorSpec::Rank(rank) => {
            let keys: Vec<String> = rank.keys.iter().map(|key| input_name(*key)).collect();
            let order: Vec<String> = rank
                .order
                .iter()
                .map(|key| {
                    let direction = if key.options.descending { " DESC" } else { "" };
                    // Without a word NULLs are the greatest values.
                    let nulls = match (key.options.nulls_first, key.options.descending) {
                        (true, false) => " NULLS FIRST",
                        (false, true) => " NULLS LAST",
                        _ => "",
                    };
                    format!("{}{direction}{nulls}", input_name(key.column))
                })
                .collect();
            let mut parts = Vec::new();
            match &rank.show {
                Show::First { skip, limit } => {
                    let rows = limit.map_or_else(|| "all rows".to_owned(), |limit| format!("{limit} rows"));
                    parts.push(if *skip == 0 { rows } else { format!("{rows} after {skip}") });
                }
                Show::Window { limit, functions } => {
                    parts.push(functions.iter().map(|function| function.name()).collect::<Vec<_>>().join(", "));
                    parts.extend(limit.map(|limit| format!("of the first {limit} rows")));
                }
            }
            if !keys.is_empty() {
                parts.push(format!("by {}", keys.join(", ")));
            }
            if !order.is_empty() {
                parts.push(format!("in order of {}", order.join(", ")));
            }
            parts.join(" ")
        }
        OperatorSpec::Match(MatchSpec { keys, order, .. }) => {
            let order = order
                .iter()
                .map(|key| format!("{}{}", input_name(key.column), if key.options.descending { " DESC" } else { "" }));
            let order = order.collect::<Vec<_>>().join(", ");
            let by = if keys.is_empty() { String::new() } else { format!("by {} ", names_of(keys, &input_name)) };
            format!("{by}in order of {order}")
        }
        OperatorSpec::SessionWindow(session) => {
            let of = match session.keys.as_slice() {
                [] => String::new(),
                keys => format!(" by {}", names_of(keys, &input_name)),
            };
            format!("of {}, {} apart{of}", input_name(session.time), seconds(session.gap))
        }
        OperatorSpec::LookupJoin(join) => {
            let right = node.inputs.get(1).and_then(|input| plan.nodes.get(*input));
            let right_name = |column: usize| right.map_or_else(|| format!("#{column}"), |input| name_of(input, column));
            let keys = join.left_keys.iter().zip(&join.right_keys);
            let parts: Vec<String> =
                keys.map(|(left, right)| format!("{} = {}", input_name(*left), right_name(*right))).collect();
            let rows = if join.keep_left { "all rows" } else { "rows that meet one" };
            format!("of {rows} on {}, once", parts.join(" AND "))
        }
        OperatorSpec::TemporalJoin(join) => {
            let right = node.inputs.get(1).and_then(|input| plan.nodes.get(*input));
            let right_name = |column: usize| right.map_or_else(|| format!("#{column}"), |input| name_of(input, column));
            let keys = join.left_keys.iter().zip(&join.right_keys);
            let mut parts: Vec<String> =
                keys.map(|(left, right)| format!("{} = {}", input_name(*left), right_name(*right))).collect();
            let (left, right) = (input_name(join.left_time), right_name(join.right_time));
            parts.push(format!("the last {right} up to {left}"));
            let rows = if join.keep_left { "all rows" } else { "rows with a version" };
            format!("of {rows} on {}", parts.join(" AND "))
        }
        OperatorSpec::Join(join) => {
            let right = node.inputs.get(1).and_then(|input| plan.nodes.get(*input));
            let right_name = |column: usize| right.map_or_else(|| format!("#{column}"), |input| name_of(input, column));
            let keys = join.left_keys.iter().zip(&join.right_keys);
            let equal = if join.nulls_equal { "IS NOT DISTINCT FROM" } else { "=" };
            let mut parts: Vec<String> =
                keys.map(|(left, right)| format!("{} {equal} {}", input_name(*left), right_name(*right))).collect();
            parts.extend(join.condition.iter().map(ToString::to_string));
            if parts.is_empty() { "every pair".to_owned() } else { format!("on {}", parts.join(" AND ")) }
        }
    };
    let state = state(&node.operator, &input_name).map(|state| format!("; state {state}")).unwrap_or_default();
    let closing = match node.closing.first() {
        Some(closing) if closing.last_only => format!("; once, when {} is over", input_name(closing.column)),
        Some(_) if matches!(node.operator, OperatorSpec::Join(_)) => {
            "; forgets what finds no partner any more".to_owned()
        }
        Some(closing) => format!("; forgets what is over by {}", input_name(closing.column)),
        None => String::new(),
    };
    let ttl =
        node.ttl_millis.map(|millis| format!("; forgets groups {millis} ms after their last row")).unwrap_or_default();
    format!("{} {what}{state}{closing}{ttl} ({})", node.operator.name(), node.path)
}

fn grouped(keys: &[usize], aggregates: &[AggregateCall], input_name: &impl Fn(usize) -> String) -> String {
    let calls: Vec<String> = aggregates.iter().map(|call| call_text(call, input_name)).collect();
    let keys = if keys.is_empty() { "one group".to_owned() } else { format!("by {}", names_of(keys, input_name)) };
    if calls.is_empty() { keys } else { format!("{keys}: {}", calls.join(", ")) }
}

fn names_of(columns: &[usize], name: &impl Fn(usize) -> String) -> String {
    columns.iter().map(|column| name(*column)).collect::<Vec<_>>().join(", ")
}

/// The tables of state of an operator, and what is in them: that is what bounds their size.
fn state(operator: &OperatorSpec, input_name: &impl Fn(usize) -> String) -> Option<String> {
    let listed = |columns: &[usize]| names_of(columns, input_name);
    match operator {
        OperatorSpec::Aggregate { keys, aggregates } => {
            let (groups, of) = match keys.as_slice() {
                [] => ("groups: one row".to_owned(), String::new()),
                keys => (format!("groups: a row for each {}", listed(keys)), " of a group".to_owned()),
            };
            let mut tables = vec![groups];
            for (at, call) in aggregates.iter().enumerate().filter(|(_, call)| call.keeps_values()) {
                let argument = call.argument.map(input_name).unwrap_or_default();
                tables.push(format!("a{at}: each {argument}{of}"));
            }
            Some(tables.join(", "))
        }
        OperatorSpec::Join(join) => {
            let mut tables = vec!["l: the left rows", "r: the right rows"];
            if join.condition.is_some() {
                // Partners are counted for the sides whose rows are told apart by having one.
                let left = !matches!(join.kind, JoinKind::Inner | JoinKind::Right);
                let right = matches!(join.kind, JoinKind::Right | JoinKind::Full);
                tables.extend(left.then_some("lp: partners of each left row"));
                tables.extend(right.then_some("rp: partners of each right row"));
            }
            Some(tables.join(", "))
        }
        OperatorSpec::HopAggregate { hop, .. } => {
            let keys = hop.plain_keys();
            let of = if keys.is_empty() { String::new() } else { format!(" of each {}", listed(&keys)) };
            Some(format!("panes: one for each {}{of}", seconds(hop.pane())))
        }
        OperatorSpec::Hold => Some("held: rows that are not over".to_owned()),
        OperatorSpec::Expire { keys, .. } => {
            let of = if keys.is_empty() { String::new() } else { format!(" of each {}", listed(keys)) };
            Some(format!("rows: all rows{of}, deadlines: until when"))
        }
        OperatorSpec::LookupJoin(_) => Some("r: the right rows".to_owned()),
        OperatorSpec::Match(spec) => {
            let bound = if spec.pattern.within.is_some() { ", for the time of WITHIN" } else { "" };
            let back = spec.pattern.rows_back();
            let behind = if back == 0 { String::new() } else { format!(", behind: the last {back} of each partition") };
            Some(format!("rows: those that a match may still have{bound}{behind}"))
        }
        OperatorSpec::TemporalJoin(_) => Some("l: the left rows, r: the versions".to_owned()),
        OperatorSpec::TemporalFilter(_) => Some("waiting: rows that are still to come or to go".to_owned()),
        OperatorSpec::SessionWindow(session) if session.keys.is_empty() => {
            Some("rows: all rows, closed: sessions that are over".to_owned())
        }
        OperatorSpec::SessionWindow(session) => {
            Some(format!("rows: all rows of each {}, closed: sessions that are over", listed(&session.keys)))
        }
        OperatorSpec::Rank(rank) if rank.keys.is_empty() => Some("rows: all rows".to_owned()),
        OperatorSpec::Rank(rank) => Some(format!("rows: all rows of each {}", listed(&rank.keys))),
        OperatorSpec::Import { .. }
        | OperatorSpec::Constant { .. }
        | OperatorSpec::Project { .. }
        | OperatorSpec::Filter { .. }
        | OperatorSpec::Union
        | OperatorSpec::Unnest(_)
        | OperatorSpec::Latest => None,
    }
}

/// A comparison with the clock, as it was likely written: `ts > now() - 300 s`.
fn bound_text(bound: &ClockBound, input_name: &impl Fn(usize) -> String) -> String {
    let operator = match (bound.lower, bound.inclusive) {
        (true, true) => "<=",
        (true, false) => "<",
        (false, true) => ">=",
        (false, false) => ">",
    };
    let sign = if bound.moved < 0 { '-' } else { '+' };
    let moved = if bound.moved == 0 { String::new() } else { format!(" {sign} {}", seconds(bound.moved)) };
    format!("{} {operator} now(){moved}", input_name(bound.column))
}

/// The length of so many microseconds.
fn seconds(micros: i64) -> String {
    match (micros.unsigned_abs() / 1_000_000, micros.unsigned_abs() % 1_000_000) {
        (seconds, 0) => format!("{seconds} s"),
        (seconds, micros) => format!("{seconds}.{micros:06} s"),
    }
}

fn columns(node: &PlanNode) -> String {
    let parts: Vec<String> =
        node.schema.fields().iter().map(|field| format!("{} {}", field.name(), sql_name(field.data_type()))).collect();
    parts.join(", ")
}

fn call_text(call: &AggregateCall, input_name: &impl Fn(usize) -> String) -> String {
    let argument = call.argument.map_or_else(|| "*".to_owned(), input_name);
    let distinct = if call.distinct { "DISTINCT " } else { "" };
    let filter = call.filter.map(|filter| format!(" FILTER (WHERE {})", input_name(filter))).unwrap_or_default();
    format!("{}({distinct}{argument}){filter}", call.function)
}
