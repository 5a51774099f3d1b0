//! Drops the columns of imports and filters that nothing above reads.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;

use super::errors::from_datafusion;
use crate::exec::plan::{OperatorSpec, PlanNode, RankSpec, Show};
use crate::types::{Error, Result};

/// Prunes the imports and filters of a plan whose root is the last node, and what temporal filters keep. Joins hand on what
/// their inputs have left; every other operator puts out the same columns as before.
pub(crate) fn prune(nodes: Vec<PlanNode>) -> Result<Vec<PlanNode>> {
    let needed = needed_columns(&nodes);
    // Per node: where each of its former columns is now.
    let mut places: Vec<Vec<Option<usize>>> = Vec::with_capacity(nodes.len());
    let mut pruned = Vec::with_capacity(nodes.len());
    let of_filters: BTreeSet<usize> = nodes
        .iter()
        .filter(|node| matches!(node.operator, OperatorSpec::TemporalFilter(_)))
        .flat_map(|node| node.inputs.iter().copied())
        .collect();
    for (at, (mut node, needed)) in nodes.into_iter().zip(needed).enumerate() {
        let width = node.schema.fields().len();
        let input = node.inputs.first().and_then(|input| places.get(*input)).cloned().unwrap_or_default();
        let mut place: Vec<Option<usize>> = (0..width).map(Some).collect();
        match &mut node.operator {
            OperatorSpec::Import { columns, .. } => {
                // A batch without columns has no length of its own: keep one.
                let kept = if needed.is_empty() { BTreeSet::from([0]) } else { needed };
                place = (0..width).map(|column| kept.iter().position(|kept| *kept == column)).collect();
                *columns = kept.iter().filter_map(|kept| columns.get(*kept).copied()).collect();
                node.schema = narrowed(&node.schema, &place);
            }
            OperatorSpec::Filter { predicate, columns } => {
                *predicate = moved(predicate, &input)?;
                let some = || input.iter().position(Option::is_some).into_iter().collect();
                let kept = if needed.is_empty() { some() } else { needed };
                place = (0..width).map(|column| kept.iter().position(|kept| *kept == column)).collect();
                *columns = kept.iter().map(|kept| moved_column(*kept, &input)).collect::<Result<_>>()?;
                node.schema = narrowed(&node.schema, &place);
            }
            OperatorSpec::Project { expressions } => {
                // What a temporal filter would keep for nobody.
                if of_filters.contains(&at) {
                    let mut column = 0..;
                    expressions.retain(|_| column.next().is_some_and(|column| needed.contains(&column)));
                    let kept: Vec<usize> = needed.into_iter().collect();
                    place = (0..width).map(|column| kept.iter().position(|kept| *kept == column)).collect();
                    node.schema = narrowed(&node.schema, &place);
                }
                for expression in expressions {
                    *expression = moved(expression, &input)?;
                }
            }
            OperatorSpec::TemporalFilter(bounds) => {
                for bound in bounds {
                    bound.column = moved_column(bound.column, &input)?;
                }
                place = input[..width].to_vec();
                node.schema = narrowed(&node.schema, &place);
            }
            OperatorSpec::Aggregate { keys, aggregates } => {
                for key in keys {
                    *key = moved_column(*key, &input)?;
                }
                for aggregate in aggregates {
                    for column in [&mut aggregate.argument, &mut aggregate.filter].into_iter().flatten() {
                        *column = moved_column(*column, &input)?;
                    }
                }
            }
            OperatorSpec::Rank(rank) => {
                for key in rank.keys.iter_mut().chain(rank.order.iter_mut().map(|key| &mut key.column)) {
                    *key = moved_column(*key, &input)?;
                }
                if matches!(rank.show, Show::First { .. }) {
                    node.schema = narrowed(&node.schema, &input);
                    place = input;
                }
            }
            OperatorSpec::SessionWindow(session) => {
                for column in session.keys.iter_mut().chain([&mut session.time]) {
                    *column = moved_column(*column, &input)?;
                }
                let kept = input.iter().flatten().count();
                place = input.iter().copied().chain([Some(kept), Some(kept + 1)]).collect();
                node.schema = narrowed(&node.schema, &place);
            }
            OperatorSpec::Join(join) => {
                let right = node.inputs.get(1).and_then(|input| places.get(*input)).cloned().unwrap_or_default();
                let kept = input.iter().flatten().count();
                let both: Vec<Option<usize>> =
                    input.iter().copied().chain(right.iter().map(|place| place.map(|place| kept + place))).collect();
                for key in &mut join.left_keys {
                    *key = moved_column(*key, &input)?;
                }
                for key in &mut join.right_keys {
                    *key = moved_column(*key, &right)?;
                }
                if let Some(condition) = &mut join.condition {
                    *condition = moved(condition, &both)?;
                }
                place = both[..width].to_vec();
                node.schema = narrowed(&node.schema, &place);
            }
            OperatorSpec::LookupJoin(join) => {
                let right = node.inputs.get(1).and_then(|input| places.get(*input)).cloned().unwrap_or_default();
                let kept = input.iter().flatten().count();
                for column in &mut join.left_keys {
                    *column = moved_column(*column, &input)?;
                }
                for column in &mut join.right_keys {
                    *column = moved_column(*column, &right)?;
                }
                let right = right.into_iter().map(|place| place.map(|place| kept + place));
                place = input.into_iter().chain(right).collect();
                node.schema = narrowed(&node.schema, &place);
            }
            OperatorSpec::TemporalJoin(join) => {
                let right = node.inputs.get(1).and_then(|input| places.get(*input)).cloned().unwrap_or_default();
                let kept = input.iter().flatten().count();
                for column in join.left_keys.iter_mut().chain([&mut join.left_time]) {
                    *column = moved_column(*column, &input)?;
                }
                for column in join.right_keys.iter_mut().chain([&mut join.right_time]) {
                    *column = moved_column(*column, &right)?;
                }
                let right = right.into_iter().map(|place| place.map(|place| kept + place));
                place = input.into_iter().chain(right).collect();
                node.schema = narrowed(&node.schema, &place);
            }
            OperatorSpec::Unnest(unnest) => {
                for column in unnest.lists.iter_mut().chain(&mut unnest.columns) {
                    *column = moved_column(*column, &input)?;
                }
            }
            // What expires is put in after pruning, and so are panes.
            OperatorSpec::Constant { .. }
            | OperatorSpec::HopAggregate { .. }
            | OperatorSpec::Union
            | OperatorSpec::Latest
            | OperatorSpec::Hold
            | OperatorSpec::Match(_)
            | OperatorSpec::Expire { .. } => {}
        }
        places.push(place);
        pruned.push(node);
    }
    Ok(pruned)
}

/// Per node: which of its columns the nodes above read.
fn needed_columns(nodes: &[PlanNode]) -> Vec<BTreeSet<usize>> {
    let mut needed: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); nodes.len()];
    for (at, node) in nodes.iter().enumerate().rev() {
        let all = 0..node.schema.fields().len();
        if at + 1 == nodes.len() {
            needed.get_mut(at).into_iter().for_each(|set| set.extend(all.clone()));
        }
        let own = needed.get(at).cloned().unwrap_or_default();
        if let (OperatorSpec::Join(join), [left, right]) = (&node.operator, node.inputs.as_slice()) {
            let width = nodes.get(*left).map_or(0, |left| left.schema.fields().len());
            let read: BTreeSet<usize> = own.into_iter().chain(join.condition.iter().flat_map(columns_of)).collect();
            let (of_left, of_right): (Vec<usize>, Vec<usize>) = read.into_iter().partition(|column| *column < width);
            let of_right = of_right.into_iter().map(|column| column - width).chain(join.right_keys.iter().copied());
            needed[*left].extend(of_left.into_iter().chain(join.left_keys.iter().copied()));
            needed[*right].extend(of_right);
            continue;
        }
        if let (OperatorSpec::LookupJoin(join), [left, right]) = (&node.operator, node.inputs.as_slice()) {
            let width = nodes.get(*left).map_or(0, |left| left.schema.fields().len());
            let (of_left, of_right): (Vec<usize>, Vec<usize>) = own.into_iter().partition(|column| *column < width);
            let of_right = of_right.into_iter().map(|column| column - width);
            needed[*left].extend(of_left.into_iter().chain(join.left_keys.iter().copied()));
            needed[*right].extend(of_right.chain(join.right_keys.iter().copied()));
            continue;
        }
        if let (OperatorSpec::TemporalJoin(join), [left, right]) = (&node.operator, node.inputs.as_slice()) {
            let width = nodes.get(*left).map_or(0, |left| left.schema.fields().len());
            let (of_left, of_right): (Vec<usize>, Vec<usize>) = own.into_iter().partition(|column| *column < width);
            let of_right = of_right.into_iter().map(|column| column - width);
            needed[*left].extend(of_left.into_iter().chain(join.left_keys.iter().copied()).chain([join.left_time]));
            needed[*right].extend(of_right.chain(join.right_keys.iter().copied()).chain([join.right_time]));
            continue;
        }
        let of_input: BTreeSet<usize> = match &node.operator {
            OperatorSpec::Import { .. }
            | OperatorSpec::Constant { .. }
            | OperatorSpec::Join(_)
            | OperatorSpec::TemporalJoin(_)
            | OperatorSpec::LookupJoin(_) => continue,
            OperatorSpec::Project { expressions } => expressions.iter().flat_map(columns_of).collect(),
            OperatorSpec::Rank(RankSpec { keys, order, show: Show::First { .. } }) => {
                own.into_iter().chain(keys.iter().copied()).chain(order.iter().map(|key| key.column)).collect()
            }
            // The functions and the pattern know their columns by place.
            OperatorSpec::Rank(RankSpec { show: Show::Window { .. }, .. }) | OperatorSpec::Match(_) => {
                let input = node.inputs.first().and_then(|input| nodes.get(*input));
                (0..input.map_or(0, |input| input.schema.fields().len())).collect()
            }
            OperatorSpec::SessionWindow(session) => {
                let input = node.schema.fields().len().saturating_sub(2);
                let read = own.into_iter().filter(|column| *column < input);
                read.chain(session.keys.iter().copied()).chain([session.time]).collect()
            }
            OperatorSpec::Filter { predicate, .. } => own.into_iter().chain(columns_of(predicate)).collect(),
            OperatorSpec::Unnest(unnest) => unnest.lists.iter().chain(&unnest.columns).copied().collect(),
            // A batch without columns has no length of its own: keep one.
            OperatorSpec::TemporalFilter(bounds) => {
                let shown = if own.is_empty() { BTreeSet::from([0]) } else { own };
                shown.into_iter().chain(bounds.iter().map(|bound| bound.column)).collect()
            }
            // The inputs of a union must keep one shape; no query is lowered to the latest rows of a key.
            OperatorSpec::Union
            | OperatorSpec::Latest
            | OperatorSpec::Hold
            | OperatorSpec::HopAggregate { .. }
            | OperatorSpec::Expire { .. } => all.collect(),
            OperatorSpec::Aggregate { keys, aggregates } => keys
                .iter()
                .copied()
                .chain(aggregates.iter().flat_map(|aggregate| aggregate.argument.into_iter().chain(aggregate.filter)))
                .collect(),
        };
        for input in &node.inputs {
            needed.get_mut(*input).into_iter().for_each(|set| set.extend(of_input.iter().copied()));
        }
    }
    needed
}

fn columns_of(expression: &Arc<dyn PhysicalExpr>) -> Vec<usize> {
    collect_columns(expression).iter().map(Column::index).collect()
}

fn narrowed(schema: &Schema, place: &[Option<usize>]) -> Arc<Schema> {
    let fields: Vec<_> = schema
        .fields()
        .iter()
        .zip(place)
        .filter(|(_, place)| place.is_some())
        .map(|(field, _)| Arc::clone(field))
        .collect();
    Arc::new(Schema::new(fields))
}

fn moved_column(column: usize, place: &[Option<usize>]) -> Result<usize> {
    place.get(column).copied().flatten().ok_or_else(|| Error::internal("a column was pruned that is read"))
}

fn moved(expression: &Arc<dyn PhysicalExpr>, place: &[Option<usize>]) -> Result<Arc<dyn PhysicalExpr>> {
    let moved = Arc::clone(expression).transform(|inner| {
        let Some(column) = inner.downcast_ref::<Column>() else {
            return Ok(Transformed::no(inner));
        };
        let index = moved_column(column.index(), place).map_err(super::errors::to_datafusion)?;
        let moved = Arc::new(Column::new(column.name(), index)) as Arc<dyn PhysicalExpr>;
        Ok(Transformed::yes(moved))
    });
    moved.map(|moved| moved.data).map_err(|error| from_datafusion(&error))
}
