//! Joins with the version that is in force at a row's time.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::JoinType;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, Join, LogicalPlan};

use super::super::temporal_join::span;
use super::super::view_checks::refuse;
use super::join::growing_join;
use super::{Lowered, Lowering, temporal_filter};
use crate::exec::plan::{OperatorSpec, TemporalJoinSpec, pair_schema};
use crate::types::{Error, Result};

/// A join whose right side are versions with the time of the next one.
struct Temporal<'a> {
    versions: &'a LogicalPlan,
    keys: Vec<(Expr, Expr)>,
    row_time: &'a Expr,
    version_time: &'a Expr,
    /// Conditions on pairs of a row and its version.
    others: Vec<Expr>,
}

/// `None` when the conditions say more, or the rules that brought them here have changed the form: then it is a join like
/// others, over a window function.
fn temporal<'a>(join: &'a Join, on: &[(Expr, Expr)], conditions: &'a [Expr]) -> Option<Temporal<'a>> {
    let at = conditions.iter().position(|condition| span(condition).is_some())?;
    let (_, row_time, until) = span(&conditions[at])?;
    let mut others: Vec<Expr> = conditions
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != at)
        .map(|(_, condition)| condition.clone())
        .collect();
    let mut right = join.right.as_ref();
    while let LogicalPlan::Filter(filter) = right {
        others.push(filter.predicate.clone());
        right = filter.input.as_ref();
    }
    let LogicalPlan::Window(window) = right else { return None };
    let [next] = window.window_expr.as_slice() else { return None };
    let Expr::WindowFunction(next) = unaliased(next) else { return None };
    let (Expr::Column(until), [version_time]) = (plain(until), next.params.args.as_slice()) else { return None };
    let is_until = window.schema.fields().last().is_some_and(|field| *field.name() == until.name);
    if next.fun.name() != "lead" || !is_until {
        return None;
    }
    let mut keys = Vec::new();
    for key in &next.params.partition_by {
        keys.push(on.iter().find(|(_, right)| right == key)?.clone());
    }
    let more = on.iter().filter(|pair| !keys.contains(pair));
    others.extend(more.map(|(left, right)| left.clone().eq(right.clone())));
    let pads = join.join_type == JoinType::Left;
    let possible = matches!(join.join_type, JoinType::Inner | JoinType::Left) && (!pads || others.is_empty());
    if !possible || others.iter().any(temporal_filter::asks_clock) {
        return None;
    }
    Some(Temporal { versions: &window.input, keys, row_time: plain(row_time), version_time, others })
}

fn unaliased(expression: &Expr) -> &Expr {
    match expression {
        Expr::Alias(alias) => unaliased(&alias.expr),
        _ => expression,
    }
}

/// A time before it was brought to the type of others: the number is the same.
fn plain(expression: &Expr) -> &Expr {
    match expression {
        Expr::Cast(cast) if matches!(cast.field.data_type(), DataType::Timestamp(..)) => plain(&cast.expr),
        _ => expression,
    }
}

impl Lowering<'_> {
    /// `None` for a join of another kind.
    pub(super) fn temporal_join(
        &mut self,
        join: &Join,
        on: &[(Expr, Expr)],
        conditions: &[Expr],
        path: &str,
    ) -> Result<Option<Lowered>> {
        let Some(Temporal { versions, keys, row_time, version_time, others }) = temporal(join, on, conditions) else {
            return Ok(None);
        };
        let (mut left_needed, mut right_needed): (Vec<Expr>, Vec<Expr>) = keys.into_iter().unzip();
        left_needed.push(row_time.clone());
        right_needed.push(version_time.clone());
        let below = if others.is_empty() { path.to_owned() } else { format!("{path}/input") };
        let mut left = self.keyed(&join.left, &left_needed, &format!("{below}/left"))?;
        let mut right = self.keyed(versions, &right_needed, &format!("{below}/right"))?;
        if !right.lowered.append_only {
            return Err(refuse(
                "FOR SYSTEM_TIME AS OF over versions that change",
                "Join with the table of the versions.",
            ));
        }
        let (left_schema, right_schema) = (self.schema_of(left.lowered.index), self.schema_of(right.lowered.index));
        let missing = || Error::internal("a temporal join without times");
        let (left_time, right_time) = (left.keys.pop().ok_or_else(missing)?, right.keys.pop().ok_or_else(missing)?);
        for time in [left_schema.field(left_time), right_schema.field(right_time)] {
            if !matches!(time.data_type(), DataType::Timestamp(TimeUnit::Microsecond, _)) {
                return Err(Error::internal(format!("a temporal join by a {}", time.data_type())));
            }
        }
        let spec = TemporalJoinSpec {
            keep_left: join.join_type == JoinType::Left,
            left_keys: left.keys,
            right_keys: right.keys,
            left_time,
            right_time,
        };
        let mut result = Lowered {
            index: 0,
            // A row has one version at most.
            key: left.lowered.key,
            append_only: false,
            bounded: left.lowered.bounded && right.lowered.bounded,
        };
        if !result.bounded {
            self.notices.push(growing_join(&below));
        }
        let schema = pair_schema(&left_schema, &right_schema);
        let right_start = left_schema.fields().len();
        let visible: Vec<usize> = (0..left.width).chain(right_start..right_start + right.width).collect();
        let (operator, inputs) = (OperatorSpec::TemporalJoin(spec), vec![left.lowered.index, right.lowered.index]);
        result.index = self.push_join(&below, operator, inputs, schema, &visible)?;
        if let Some(predicate) = conjunction(others) {
            // The time of the next version stands behind all other columns, and nothing but the join asks for it.
            let predicate = self.expression(&predicate, &join.schema)?;
            result.index = self.push_filter(path, predicate, result.index);
        }
        Ok(Some(result))
    }
}
