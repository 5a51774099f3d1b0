//! EXPLAIN of a standing query: one line an operator, inputs indented below.

use std::collections::HashMap;

use super::types::sql_name;
use crate::exec::plan::{AggregateCall, JobPlan, OperatorSpec, PlanNode, Show};
use crate::types::RelationId;

/// The lines of `EXPLAIN`; `relations` names the imports.
pub fn explain_job(plan: &JobPlan, relations: &HashMap<RelationId, String>) -> Vec<String> {
    let key = if plan.key.is_empty() {
        "whole row".to_owned()
    } else {
        plan.key.iter().map(|column| name_of(plan.root(), *column)).collect::<Vec<_>>().join(", ")
    };
    let kind = if plan.append_only { "append-only" } else { "updating" };
    let mut lines = vec![format!("Result: key {key}; {kind}")];
    let mut open = vec![(plan.nodes.len().saturating_sub(1), 1_usize)];
    while let Some((at, depth)) = open.pop() {
        let Some(node) = plan.nodes.get(at) else {
            continue;
        };
        lines.push(format!("{}{}", "  ".repeat(depth), line(plan, node, relations)));
        open.extend(node.inputs.iter().rev().map(|input| (*input, depth + 1)));
    }
    lines
}

fn name_of(node: &PlanNode, column: usize) -> String {
    node.schema.fields().get(column).map_or_else(|| format!("#{column}"), |field| field.name().clone())
}

fn line(plan: &JobPlan, node: &PlanNode, relations: &HashMap<RelationId, String>) -> String {
    let input = node.inputs.first().and_then(|input| plan.nodes.get(*input));
    let input_name = |column: usize| input.map_or_else(|| format!("#{column}"), |input| name_of(input, column));
    let what = match &node.operator {
        OperatorSpec::Import { relation, .. } => {
            let name = relations.get(relation).cloned().unwrap_or_else(|| format!("relation {relation}"));
            format!("{name} [{}]", columns(node))
        }
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
        OperatorSpec::Filter { predicate } => predicate.to_string(),
        OperatorSpec::Union | OperatorSpec::Unnest(_) | OperatorSpec::Latest | OperatorSpec::Hold => {
            format!("[{}]", columns(node))
        }
        OperatorSpec::Aggregate { keys, aggregates } => {
            let keys: Vec<String> = keys.iter().map(|key| input_name(*key)).collect();
            let calls: Vec<String> = aggregates.iter().map(|call| call_text(call, &input_name)).collect();
            let keys = if keys.is_empty() { "one group".to_owned() } else { format!("by {}", keys.join(", ")) };
            if calls.is_empty() { keys } else { format!("{keys}: {}", calls.join(", ")) }
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
    let closing = match node.closing.first() {
        Some(closing) if closing.last_only => format!("; once, when {} is over", input_name(closing.column)),
        Some(_) if matches!(node.operator, OperatorSpec::Join(_)) => {
            "; forgets what finds no partner any more".to_owned()
        }
        Some(closing) => format!("; forgets what is over by {}", input_name(closing.column)),
        None => String::new(),
    };
    format!("{} {what}{closing} ({})", node.operator.name(), node.path)
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
