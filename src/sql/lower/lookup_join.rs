//! Joins with the rows that there are at a row's time on the clock.

use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, Filter, Join, LogicalPlan};

use super::super::errors::from_datafusion;
use super::super::temporal_join::of_the_moment;
use super::super::view_checks::refuse;
use super::{Lowered, Lowering};
use crate::exec::plan::{LookupJoinSpec, OperatorSpec, pair_schema};
use crate::types::Result;

impl Lowering<'_> {
    /// `None` for a join of another kind.
    pub(super) fn lookup_join(
        &mut self,
        join: &Join,
        on: &[(Expr, Expr)],
        conditions: &[Expr],
        path: &str,
    ) -> Result<Option<Lowered>> {
        // Conditions on the right alone may have come to stand there.
        let (mut of_right, mut right_plan) = (Vec::new(), &join.right);
        while let LogicalPlan::Filter(filter) = right_plan.as_ref() {
            of_right.push(filter.predicate.clone());
            right_plan = &filter.input;
        }
        let Some(input) = of_the_moment(right_plan) else { return Ok(None) };
        let mut right_plan = input.clone();
        if let Some(predicate) = conjunction(of_right) {
            let filter = Filter::try_new(predicate, Arc::new(right_plan)).map_err(|error| from_datafusion(&error))?;
            right_plan = LogicalPlan::Filter(filter);
        }
        let keep_left = join.join_type == JoinType::Left;
        if on.is_empty() || (keep_left && !conditions.is_empty()) {
            return Err(refuse(
                "FOR SYSTEM_TIME AS OF PROCTIME() with other conditions than equalities",
                "Join by equal keys alone, and put the others into WHERE.",
            ));
        }
        let (left_keys, right_keys): (Vec<Expr>, Vec<Expr>) = on.iter().cloned().unzip();
        let below = if conditions.is_empty() { path.to_owned() } else { format!("{path}/input") };
        let left = self.keyed(&join.left, &left_keys, &format!("{below}/left"))?;
        if !left.lowered.append_only || !self.keeps_times(left.lowered.index) {
            return Err(refuse(
                "FOR SYSTEM_TIME AS OF PROCTIME() over rows that change or come from a connector or a view",
                "Join the rows of a table made with APPEND ONLY; or by event time: FOR SYSTEM_TIME AS OF o.ts.",
            ));
        }
        let right = self.keyed(&right_plan, &right_keys, &format!("{below}/right"))?;
        let (left_schema, right_schema) = (self.schema_of(left.lowered.index), self.schema_of(right.lowered.index));
        let one = right.lowered.key.as_ref().is_some_and(|key| key.iter().all(|column| right.keys.contains(column)));
        let mut result = Lowered {
            index: 0,
            key: left.lowered.key.filter(|_| one),
            append_only: true,
            bounded: left.lowered.bounded && right.lowered.bounded,
        };
        let spec = LookupJoinSpec { keep_left, left_keys: left.keys, right_keys: right.keys };
        let schema = pair_schema(&left_schema, &right_schema);
        let right_start = left_schema.fields().len();
        let visible: Vec<usize> = (0..left.width).chain(right_start..right_start + right.width).collect();
        let (operator, inputs) = (OperatorSpec::LookupJoin(spec), vec![left.lowered.index, right.lowered.index]);
        result.index = self.push_join(&below, operator, inputs, schema, &visible)?;
        if let Some(predicate) = conjunction(conditions.iter().cloned()) {
            let predicate = self.expression(&predicate, &join.schema)?;
            result.index = self.push_filter(path, predicate, result.index);
        }
        Ok(Some(result))
    }

    /// True when each row below has one time of the clock for ever.
    fn keeps_times(&self, index: usize) -> bool {
        let Some(node) = self.nodes.get(index) else { return false };
        match &node.operator {
            OperatorSpec::Import { relation, .. } => self.inputs.get(relation).is_some_and(|input| input.keeps_times),
            _ => node.inputs.iter().all(|input| self.keeps_times(*input)),
        }
    }
}
