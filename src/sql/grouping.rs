//! `GROUPING SETS`, `ROLLUP` and `CUBE`: a union of one plain `GROUP BY` for each set.
//!
//! So a view keeps them with the operators that there are, and a SELECT gives the same rows, also over no rows: the
//! empty set has one then, as in PostgreSQL.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, ScalarValue};
use datafusion::error::Result;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::expr::GroupingSet;
use datafusion::logical_expr::utils::grouping_set_to_exprlist;
use datafusion::logical_expr::{Aggregate, Expr, ExprSchemable, LogicalPlan, Projection, Union, lit};

use super::errors::to_datafusion;
use crate::types::Error;

/// Puts the unions in the place of all such groupings of a plan, subqueries included.
///
/// # Errors
/// 54001 for a `CUBE` of too many columns.
pub(crate) fn expanded(plan: LogicalPlan) -> Result<LogicalPlan> {
    let expanded = plan.transform_up_with_subqueries(|node| match &node {
        LogicalPlan::Aggregate(aggregate) => match aggregate.group_expr.as_slice() {
            [Expr::GroupingSet(sets)] => Ok(Transformed::yes(union(aggregate, sets)?)),
            _ => Ok(Transformed::no(node)),
        },
        _ => Ok(Transformed::no(node)),
    })?;
    Ok(expanded.data)
}

/// Columns of a `CUBE` beyond which there are too many sets.
const CUBE_MAX: usize = 8;

fn sets_of(sets: &GroupingSet) -> Result<Vec<Vec<Expr>>> {
    Ok(match sets {
        GroupingSet::GroupingSets(sets) => sets.clone(),
        GroupingSet::Rollup(columns) => (0..=columns.len()).rev().map(|length| columns[..length].to_vec()).collect(),
        GroupingSet::Cube(columns) if columns.len() > CUBE_MAX => {
            return Err(to_datafusion(
                Error::new(
                    crate::types::SqlState::StatementTooComplex,
                    format!("CUBE takes at most {CUBE_MAX} columns"),
                )
                .hint("Write the sets that are wanted: GROUPING SETS ((a, b), (a), ())."),
            ));
        }
        GroupingSet::Cube(columns) => (0..1_usize << columns.len())
            .rev()
            .map(|set| {
                let has = |at: usize| set >> (columns.len() - 1 - at) & 1 == 1;
                columns.iter().enumerate().filter(|(at, _)| has(*at)).map(|(_, column)| column.clone()).collect()
            })
            .collect(),
    })
}

fn union(aggregate: &Aggregate, sets: &GroupingSet) -> Result<LogicalPlan> {
    let all: Vec<Expr> = grouping_set_to_exprlist(&aggregate.group_expr)?.into_iter().cloned().collect();
    let input_schema = aggregate.input.schema();
    let id_type = aggregate.schema.field(all.len()).data_type();
    let name = |place: usize| format!("c{place}");
    let mut branches = Vec::new();
    for set in sets_of(sets)? {
        // All rows are one group, which only an aggregate can stand for.
        let alone = set.is_empty() && aggregate.aggr_expr.is_empty();
        let aggregates = if alone { vec![count(lit(1_i64))] } else { aggregate.aggr_expr.clone() };
        let calls = aggregates.len();
        let groups = Aggregate::try_new(Arc::clone(&aggregate.input), set.clone(), aggregates)?;
        let (mut shown, mut id) = (Vec::new(), 0_i64);
        for (place, group) in all.iter().enumerate() {
            let there = set.iter().position(|column| column == group);
            id = id << 1 | i64::from(there.is_none());
            let value = match there {
                Some(at) => Expr::Column(Column::from(groups.schema.qualified_field(at))),
                None => Expr::Literal(ScalarValue::try_from(&group.get_type(input_schema)?)?, None),
            };
            shown.push(value.alias(name(place)));
        }
        let id = Expr::Literal(ScalarValue::Int64(Some(id)).cast_to(id_type)?, None);
        shown.push(id.alias(name(all.len())));
        // A set that names a column twice groups by it once.
        let grouped = groups.schema.fields().len() - calls;
        let end = if alone { grouped } else { grouped + calls };
        shown.extend((grouped..end).map(|at| {
            Expr::Column(Column::from(groups.schema.qualified_field(at))).alias(name(all.len() + 1 + at - grouped))
        }));
        let branch = Projection::try_new(shown, Arc::new(LogicalPlan::Aggregate(groups)))?;
        branches.push(Arc::new(LogicalPlan::Projection(branch)));
    }
    let union = match branches.as_slice() {
        [only] => Arc::clone(only),
        _ => Arc::new(LogicalPlan::Union(Union::try_new_with_loose_types(branches)?)),
    };
    let shown = aggregate.schema.iter().enumerate().map(|(place, (qualifier, field))| {
        Expr::Column(Column::new_unqualified(name(place))).alias_qualified(qualifier.cloned(), field.name())
    });
    Ok(LogicalPlan::Projection(Projection::try_new(shown.collect(), union)?))
}
