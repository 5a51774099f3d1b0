//! Aggregates of `HOP` windows that come out once are made of panes, which the windows share.
//!
//! A plan has each row once for each of its windows, which a function gives as a list. Where nothing between that list and
//! the aggregate needs to know which window it is, the list is of one pane instead, and the aggregate one of windows of panes.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, Literal};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use super::casts;
use super::errors::from_datafusion;
use super::event_time::{interval, is_timestamp, number};
use super::window_functions::HOP_STARTS;
use crate::exec::plan::{AggregateCall, AggregateFunction, HopSpec, OperatorSpec, PlanNode};
use crate::types::Result;

/// Lets the windows of a plan whose operators close share panes.
///
/// # Errors
/// None but a fault of the planner.
pub(crate) fn share(nodes: &mut [PlanNode]) -> Result<()> {
    for at in 0..nodes.len() {
        let Some((project, list, hop)) = hops(nodes, at) else { continue };
        let pane: Arc<dyn PhysicalExpr> = Arc::new(Literal::new(ScalarValue::Int64(Some(hop.pane()))));
        if let OperatorSpec::Project { expressions } = &mut nodes[project].operator {
            let starts = Arc::clone(&expressions[list]);
            let mut children: Vec<Arc<dyn PhysicalExpr>> = starts.children().into_iter().cloned().collect();
            for place in [1, 2] {
                children[place] = Arc::clone(&pane);
            }
            expressions[list] = starts.with_new_children(children).map_err(|error| from_datafusion(&error))?;
        }
        let node = &mut nodes[at];
        if let OperatorSpec::Aggregate { aggregates, .. } = &mut node.operator {
            node.operator = OperatorSpec::HopAggregate { hop, aggregates: std::mem::take(aggregates) };
        }
    }
    Ok(())
}

/// Of an aggregate of windows that come out once: the operator that has the list of a row's windows, its column, and
/// the windows.
fn hops(nodes: &[PlanNode], at: usize) -> Option<(usize, usize, HopSpec)> {
    let node = nodes.get(at)?;
    let (OperatorSpec::Aggregate { keys, aggregates }, [closing]) = (&node.operator, node.closing.as_slice()) else {
        return None;
    };
    if !closing.last_only || node.ttl_millis.is_some() {
        return None;
    }
    let mut between = Vec::new();
    let mut below = *node.inputs.first()?;
    let unnest = loop {
        let node = nodes.get(below)?;
        match &node.operator {
            OperatorSpec::Project { .. } | OperatorSpec::Filter { .. } => {
                between.push(&node.operator);
                below = *node.inputs.first()?;
            }
            OperatorSpec::Unnest(unnest) => {
                below = *node.inputs.first()?;
                break unnest;
            }
            _ => return None,
        }
    };
    let (OperatorSpec::Project { expressions }, [list]) = (&nodes.get(below)?.operator, unnest.lists.as_slice()) else {
        return None;
    };
    let call = expressions.get(*list)?.downcast_ref::<ScalarFunctionExpr>()?;
    let [_, slide, size, offset] = call.args() else { return None };
    if call.name() != HOP_STARTS {
        return None;
    }
    let (slide, size, offset) = (number(slide)?, number(size)?, number(offset)?);
    // How much later than the start of its window a column is; `None` for one that is the same in all windows.
    let mut starts: Vec<Option<i64>> = unnest.columns.iter().map(|column| (column == list).then_some(0)).collect();
    for operator in between.into_iter().rev() {
        starts = match operator {
            OperatorSpec::Project { expressions } => {
                expressions.iter().map(|expression| of_start(expression, &starts)).collect::<Option<_>>()?
            }
            OperatorSpec::Filter { predicate, columns } => {
                of_start(predicate, &starts)?.is_none().then_some(())?;
                columns.iter().map(|column| starts.get(*column).copied()).collect::<Option<_>>()?
            }
            _ => return None,
        };
    }
    let is_start = |column: &usize| starts.get(*column).copied().flatten().is_some();
    let read = aggregates.iter().flat_map(|call| call.argument.into_iter().chain(call.filter));
    // What is taken back of a sum of floats leaves a trace, and all is lost when it was not finite.
    let rows = &nodes.get(*node.inputs.first()?)?.schema;
    let is_float = |column: usize| rows.fields().get(column).is_some_and(|field| field.data_type().is_floating());
    let inexact = |call: &AggregateCall| match call.function {
        AggregateFunction::Sum | AggregateFunction::Avg => call.argument.is_some_and(is_float),
        AggregateFunction::VarSamp
        | AggregateFunction::VarPop
        | AggregateFunction::StddevSamp
        | AggregateFunction::StddevPop => true,
        _ => false,
    };
    let shared = slide < size
        && !aggregates.iter().any(inexact)
        && is_start(&closing.column)
        && !read.into_iter().any(|column| is_start(&column));
    shared.then(|| (below, *list, HopSpec { keys: keys.clone(), starts, slide, size, offset }))
}

/// How much later than a start an expression is; `None` inside when it does not depend on it, and outside when it is
/// something else.
fn of_start(expression: &Arc<dyn PhysicalExpr>, starts: &[Option<i64>]) -> Option<Option<i64>> {
    if let Some(column) = expression.downcast_ref::<Column>() {
        return starts.get(column.index()).copied();
    }
    let depends = |column: &Column| starts.get(column.index()).is_none_or(Option::is_some);
    if !collect_columns(expression).iter().any(depends) {
        return Some(None);
    }
    if let Some(binary) = expression.downcast_ref::<BinaryExpr>() {
        let (start, span) = (of_start(binary.left(), starts)??, interval(binary.right())?);
        return match binary.op() {
            Operator::Plus => start.checked_add(span).map(Some),
            Operator::Minus => start.checked_sub(span).map(Some),
            _ => None,
        };
    }
    if let Some(cast) = expression.downcast_ref::<CastExpr>() {
        return of_start(cast.expr(), starts).filter(|_| is_timestamp(cast.cast_type()));
    }
    let call = expression.downcast_ref::<ScalarFunctionExpr>()?;
    let brought = call.name() == casts::NAME && is_timestamp(call.return_type());
    brought.then(|| of_start(call.args().first()?, starts)).flatten()
}

#[cfg(test)]
mod tests {
    use crate::exec::plan::greatest_divisor;

    #[test]
    fn panes_are_what_slide_and_size_have_in_common() {
        for (slide, size, pane) in [(1, 3_600, 1), (60, 150, 30), (7, 9, 1), (5, 15, 5)] {
            assert_eq!(greatest_divisor(slide, size), pane);
        }
    }
}
