//! EXPLAIN of a standing query: one line an operator, inputs indented below.

use std::collections::HashMap;

use super::types::sql_name;
use crate::exec::plan::{AggregateCall, JobPlan, OperatorSpec, PlanNode};
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
        OperatorSpec::Union | OperatorSpec::Latest => format!("[{}]", columns(node)),
        OperatorSpec::Aggregate { keys, aggregates } => {
            let keys: Vec<String> = keys.iter().map(|key| input_name(*key)).collect();
            let calls: Vec<String> = aggregates.iter().map(|call| call_text(call, &input_name)).collect();
            let keys = if keys.is_empty() { "one group".to_owned() } else { format!("by {}", keys.join(", ")) };
            if calls.is_empty() { keys } else { format!("{keys}: {}", calls.join(", ")) }
        }
    };
    format!("{} {what} ({})", node.operator.name(), node.path)
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
