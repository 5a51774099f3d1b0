//! Joins, and the subqueries and set operations that are joins in other words.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, NullEquality};
use datafusion::execution::SessionState;
use datafusion::logical_expr::utils::{conjunction, find_valid_equijoin_key_pair, split_conjunction_owned};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Join, LogicalPlan, Operator};
use datafusion::optimizer::decorrelate_predicate_subquery::DecorrelatePredicateSubquery;
use datafusion::optimizer::eliminate_cross_join::EliminateCrossJoin;
use datafusion::optimizer::extract_equijoin_predicate::ExtractEquijoinPredicate;
use datafusion::optimizer::scalar_subquery_to_join::ScalarSubqueryToJoin;
use datafusion::optimizer::{Optimizer, OptimizerContext, OptimizerRule};

use super::super::errors::from_datafusion;
use super::super::push_down_filter::CarefulPushDownFilter;
use super::super::view_checks::{NOT_IN_HINT, SUBQUERY_HINT, refuse};
use super::{Lowered, Lowering, column_of, columns, has_subquery};
use crate::exec::plan::{JoinKind, JoinSpec, OperatorSpec};
use crate::types::{Error, Result};

/// Makes joins of the subqueries of a plan, and brings conditions to the joins and inputs that they are about.
/// A plan without joins and subqueries stays as it is.
///
/// # Errors
/// 0A000 for a subquery that may have more than one row where a value stands.
pub(super) fn with_joins(state: &SessionState, plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut joins = false;
    plan.apply_with_subqueries(|node| {
        joins |= matches!(node, LogicalPlan::Join(_)) || node.expressions().iter().any(has_subquery);
        check_scalar_subqueries(node).map_err(super::super::errors::to_datafusion)?;
        Ok(TreeNodeRecursion::Continue)
    })
    .map_err(|error| from_datafusion(&error))?;
    if !joins {
        return Ok(plan);
    }
    let mut options = state.config_options().as_ref().clone();
    // A value that follows its query's changes is a join; a physical plan would ask once.
    options.optimizer.enable_physical_uncorrelated_scalar_subquery = false;
    let rules: Vec<Arc<dyn OptimizerRule + Send + Sync>> = vec![
        Arc::new(DecorrelatePredicateSubquery::new()),
        Arc::new(ScalarSubqueryToJoin::new()),
        Arc::new(EliminateCrossJoin::new()),
        Arc::new(ExtractEquijoinPredicate::new()),
        Arc::new(CarefulPushDownFilter::default()),
    ];
    let context = OptimizerContext::new_with_config_options(Arc::new(options));
    Optimizer::with_rules(rules).optimize(plan, &context, |_, _| {}).map_err(|error| from_datafusion(&error))
}

/// A join would give a row for each of the subquery's, where SQL wants an error.
fn check_scalar_subqueries(node: &LogicalPlan) -> Result<()> {
    for expression in node.expressions() {
        let mut several = false;
        let walked = expression.apply(|inner| {
            if let Expr::ScalarSubquery(query) = inner {
                several |= query.outer_ref_columns.is_empty() && query.subquery.max_rows() != Some(1);
            }
            Ok(TreeNodeRecursion::Continue)
        });
        walked.map_err(|error| from_datafusion(&error))?;
        if several {
            return Err(refuse(
                "a scalar subquery that may have more than one row",
                "Aggregate in it, as in (SELECT max(x) FROM …).",
            ));
        }
    }
    Ok(())
}

/// A lowered part of the plan with columns for some expressions.
pub(super) struct Keyed {
    pub(super) lowered: Lowered,
    /// Where the expressions are.
    pub(super) keys: Vec<usize>,
    /// Columns that the query knows of; expressions that had to be computed stand behind them.
    pub(super) width: usize,
}

impl Lowering<'_> {
    pub(super) fn join(&mut self, join: &Join, path: &str) -> Result<Lowered> {
        if join.null_aware {
            return Err(refuse("NOT IN (SELECT …)", NOT_IN_HINT));
        }
        // What keeps rows of the right is said of the left, with the sides changed over.
        let (kind, swapped) = match join.join_type {
            JoinType::Inner => (JoinKind::Inner, false),
            JoinType::Left => (JoinKind::Left, false),
            JoinType::Right => (JoinKind::Right, false),
            JoinType::Full => (JoinKind::Full, false),
            JoinType::LeftSemi => (JoinKind::Semi, false),
            JoinType::LeftAnti => (JoinKind::Anti, false),
            JoinType::RightSemi => (JoinKind::Semi, true),
            JoinType::RightAnti => (JoinKind::Anti, true),
            JoinType::LeftMark | JoinType::RightMark => {
                return Err(refuse("IN or EXISTS in a larger expression", SUBQUERY_HINT));
            }
        };
        let (mut on, conditions) = split(join)?;
        if let Some(lowered) = self.lookup_join(join, &on, &conditions, path)? {
            return Ok(lowered);
        }
        if let Some(lowered) = self.temporal_join(join, &on, &conditions, path)? {
            return Ok(lowered);
        }
        let (mut left_plan, mut right_plan) = (&join.left, &join.right);
        if swapped {
            std::mem::swap(&mut left_plan, &mut right_plan);
            on = on.into_iter().map(|(left, right)| (right, left)).collect();
        }
        let (left_keys, right_keys): (Vec<Expr>, Vec<Expr>) = on.into_iter().unzip();
        let left = self.keyed(left_plan, &left_keys, &format!("{path}/left"))?;
        let right = self.keyed(right_plan, &right_keys, &format!("{path}/right"))?;
        let (left_schema, right_schema) = (self.schema_of(left.lowered.index), self.schema_of(right.lowered.index));

        let mut spec = JoinSpec {
            kind,
            left_keys: left.keys.clone(),
            right_keys: right.keys.clone(),
            nulls_equal: join.null_equality == NullEquality::NullEqualsNull,
            condition: None,
        };
        if let Some(condition) = conjunction(conditions) {
            let both = left_plan.schema().join(right_plan.schema()).map_err(|error| from_datafusion(&error))?;
            let condition = self.expression(&condition, &both)?;
            // Computed keys of the left stand between the two.
            let (from, by) = (left.width, left_schema.fields().len() - left.width);
            spec.condition = Some(super::shifted(&condition, from, by)?);
        }
        let pairs = !matches!(kind, JoinKind::Semi | JoinKind::Anti);
        let schema = if pairs { spec.pair_schema(&left_schema, &right_schema) } else { Arc::clone(&left_schema) };
        let right_start = left_schema.fields().len();
        let mut visible: Vec<usize> = (0..left.width).collect();
        if pairs {
            visible.extend(right_start..right_start + right.width);
        }
        let mut result = Lowered {
            index: 0,
            key: key_of(kind, &left, &right, right_start),
            append_only: matches!(kind, JoinKind::Inner | JoinKind::Semi)
                && left.lowered.append_only
                && right.lowered.append_only,
            bounded: left.lowered.bounded && right.lowered.bounded,
        };
        if !result.bounded && !self.expires {
            self.notices.push(format!("{}; WITH (state_ttl = '1 day') would bound it", growing_join(path)));
        }
        let inputs = vec![left.lowered.index, right.lowered.index];
        result.key = result
            .key
            .and_then(|key| key.iter().map(|column| visible.iter().position(|shown| shown == column)).collect());
        result.index = self.push_join(path, OperatorSpec::Join(spec), inputs, schema, &visible)?;
        Ok(result)
    }

    /// A join, with a projection above it when not all of its columns are `visible`: keys that were computed are not.
    pub(super) fn push_join(
        &mut self,
        path: &str,
        operator: OperatorSpec,
        inputs: Vec<usize>,
        schema: SchemaRef,
        visible: &[usize],
    ) -> Result<usize> {
        if visible.len() == schema.fields().len() {
            return Ok(self.push(path, operator, inputs, schema));
        }
        let joined = self.push(&format!("{path}/input"), operator, inputs, Arc::clone(&schema));
        let expressions = columns(&schema, visible.iter().copied());
        let shown = Arc::new(schema.project(visible)?);
        Ok(self.push(path, OperatorSpec::Project { expressions }, vec![joined], shown))
    }

    /// Lowers a part, with a projection above it when the expressions are more than columns.
    pub(super) fn keyed(&mut self, plan: &LogicalPlan, keys: &[Expr], path: &str) -> Result<Keyed> {
        let width = plan.schema().fields().len();
        let plain: Option<Vec<usize>> = keys.iter().map(|key| column_of(key, plan.schema())).collect();
        if let Some(keys) = plain {
            return Ok(Keyed { lowered: self.node(plan, path)?, keys, width });
        }
        let mut lowered = self.node(plan, &format!("{path}/input"))?;
        let input = self.schema_of(lowered.index);
        let mut expressions = columns(&input, 0..width);
        let mut fields: Vec<Field> = input.fields().iter().map(|field| field.as_ref().clone()).collect();
        for key in keys {
            let data_type = key.get_type(plan.schema()).map_err(|error| from_datafusion(&error))?;
            fields.push(Field::new(key.schema_name().to_string(), data_type, true));
        }
        expressions.extend(self.expressions(keys, plan.schema())?);
        let schema: SchemaRef = Arc::new(Schema::new(fields));
        lowered.index = self.push(path, OperatorSpec::Project { expressions }, vec![lowered.index], schema);
        Ok(Keyed { lowered, keys: (width..width + keys.len()).collect(), width })
    }
}

/// What is said of a join that keeps all rows.
pub(super) fn growing_join(path: &str) -> String {
    format!(
        "a join over a source that never ends keeps the rows of both sides, which can grow for ever (operator {path})"
    )
}

/// What is equal on both sides, left one first.
type Equalities = Vec<(Expr, Expr)>;

/// The equalities between the sides and all other conditions.
fn split(join: &Join) -> Result<(Equalities, Vec<Expr>)> {
    let mut on = join.on.clone();
    let mut conditions = Vec::new();
    for condition in join.filter.clone().map(split_conjunction_owned).unwrap_or_default() {
        if let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = &condition
            && let Some(pair) = find_valid_equijoin_key_pair(left, right, join.left.schema(), join.right.schema())
                .map_err(|error| from_datafusion(&error))?
            && join.null_equality == NullEquality::NullEqualsNothing
        {
            on.push(pair);
        } else {
            conditions.push(condition);
        }
    }
    for (left, right) in &on {
        let types = (left.get_type(join.left.schema()), right.get_type(join.right.schema()));
        if let (Ok(left), Ok(right)) = types
            && left != right
        {
            return Err(Error::internal(format!("a join's keys have the types {left} and {right}")));
        }
    }
    Ok((on, conditions))
}

/// Columns that identify a row of a join, when they do so in its inputs.
fn key_of(kind: JoinKind, left: &Keyed, right: &Keyed, right_start: usize) -> Option<Vec<usize>> {
    let own = left.lowered.key.clone();
    if matches!(kind, JoinKind::Semi | JoinKind::Anti) {
        return own;
    }
    let moved = |keys: &[usize]| keys.iter().map(|key| right_start + key).collect::<Vec<_>>();
    let other = right.lowered.key.as_deref().map(moved);
    // A row has one partner at most when the join's key holds the other side's own.
    let one = |side: &Keyed| side.lowered.key.as_ref().is_some_and(|key| key.iter().all(|k| side.keys.contains(k)));
    match kind {
        JoinKind::Inner | JoinKind::Left if one(right) => own,
        JoinKind::Inner | JoinKind::Right if one(left) => other,
        _ => Some([own?, other?].concat()),
    }
}
