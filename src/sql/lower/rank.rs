//! LIMIT, DISTINCT ON and window functions: what depends on the order of rows.

use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    BinaryExpr, DistinctOn, Expr, FetchType, Filter, Limit, LogicalPlan, Operator, Projection, SkipType, Sort,
    SortExpr, Window,
};
use datafusion::physical_planner::create_window_expr;

use super::super::errors::from_datafusion;
use super::super::view_checks::{LIMIT_HINT, WINDOW_HINT, refuse};
use super::match_rows::pattern;
use super::{Lowered, Lowering, check_expression, column_of, columns, nullable, nullable_schema};
use crate::exec::plan::{OperatorSpec, RankSpec, Show, SortKey};
use crate::types::{Error, Result};

impl Lowering<'_> {
    pub(super) fn limit(&mut self, limit: &Limit, path: &str) -> Result<Lowered> {
        // A column that is only sorted by is dropped between the sort and the limit.
        if let LogicalPlan::Projection(projection) = limit.input.as_ref()
            && let LogicalPlan::Sort(_) = projection.input.as_ref()
        {
            let below = LogicalPlan::Limit(Limit { input: Arc::clone(&projection.input), ..limit.clone() });
            let above = Projection::try_new(projection.expr.clone(), Arc::new(below))
                .map_err(|error| from_datafusion(&error))?;
            return self.projection(&above, path);
        }
        let skip = limit.get_skip_type().map_err(|error| from_datafusion(&error))?;
        let fetch = limit.get_fetch_type().map_err(|error| from_datafusion(&error))?;
        let (SkipType::Literal(skip), FetchType::Literal(fetch)) = (skip, fetch) else {
            return Err(refuse("LIMIT or OFFSET of an expression", LIMIT_HINT));
        };
        let (input, order) = match limit.input.as_ref() {
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => (&sort.input, sort.expr.as_slice()),
            _ => (&limit.input, &[][..]),
        };
        self.first(input, &[], order, Show::First { skip: skip as u64, limit: fetch.map(|rows| rows as u64) }, path)
    }

    /// A sort that an optimizer gave a limit.
    pub(super) fn sorted_limit(&mut self, sort: &Sort, path: &str) -> Result<Lowered> {
        let limit = sort.fetch.map(|rows| rows as u64);
        self.first(&sort.input, &[], &sort.expr, Show::First { skip: 0, limit }, path)
    }

    pub(super) fn distinct_on(&mut self, distinct: &DistinctOn, path: &str) -> Result<Lowered> {
        let order = distinct.sort_expr.as_deref().unwrap_or_default();
        let show = Show::First { skip: 0, limit: Some(1) };
        let mut lowered = self.first(&distinct.input, &distinct.on_expr, order, show, &format!("{path}/input"))?;
        let input = distinct.input.schema();
        let shown: Vec<Option<usize>> = distinct.select_expr.iter().map(|expr| column_of(expr, input)).collect();
        let on: Option<Vec<usize>> = distinct.on_expr.iter().map(|expr| column_of(expr, input)).collect();
        lowered.key =
            on.and_then(|on| on.iter().map(|column| shown.iter().position(|shown| *shown == Some(*column))).collect());
        let expressions = self.expressions(&distinct.select_expr, input)?;
        let schema = nullable_schema(&distinct.schema);
        lowered.index = self.push(path, OperatorSpec::Project { expressions }, vec![lowered.index], schema);
        Ok(lowered)
    }

    pub(super) fn window(&mut self, window: &Window, path: &str) -> Result<Lowered> {
        if let Some(lowered) = self.session_window(window, path)? {
            return Ok(lowered);
        }
        let calls = window.window_expr.iter().map(call).collect::<Result<Vec<&WindowFunction>>>()?;
        let Some(first) = calls.first() else {
            return Err(Error::internal("a window operator without functions"));
        };
        if let ([call], Some(pattern)) = (calls.as_slice(), pattern(first)) {
            return self.matches(window, call, pattern, path);
        }
        let (partition, order) = (&first.params.partition_by, &first.params.order_by);
        if calls.iter().any(|call| call.params.partition_by != *partition || call.params.order_by != *order) {
            return Err(refuse("window functions over different windows in one step", WINDOW_HINT));
        }
        window.window_expr.iter().try_for_each(check_expression)?;
        let input = Arc::new(nullable(window.input.schema())?);
        let functions = window
            .window_expr
            .iter()
            .map(|function| {
                let context = PhysicalPlanningContext::default();
                create_window_expr(function, &input, self.state.execution_props(), &context)
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| from_datafusion(&error))?;
        self.note_state_of(first, path);
        let (partition, order) = (partition.clone(), order.clone());
        let width = window.input.schema().fields().len();
        let results = window.schema.fields().iter().skip(width);
        let results: Vec<Field> = results.map(|field| field.as_ref().clone().with_nullable(true)).collect();
        self.ranked(
            &window.input,
            &partition,
            &order,
            Show::Window { limit: self.limit_of(window), functions },
            results,
            path,
        )
    }

    fn limit_of(&self, window: &Window) -> Option<u64> {
        self.row_limits.iter().find(|(limited, _)| std::ptr::eq(*limited, window)).map(|(_, rows)| *rows)
    }

    fn note_state_of(&mut self, call: &WindowFunction, path: &str) {
        if call.params.partition_by.is_empty() {
            self.notices.push(format!(
                "a window without PARTITION BY is evaluated over all rows whenever one of them changes (operator {path})"
            ));
        }
    }

    fn first(
        &mut self,
        input: &LogicalPlan,
        keys: &[Expr],
        order: &[SortExpr],
        show: Show,
        path: &str,
    ) -> Result<Lowered> {
        self.ranked(input, keys, order, show, Vec::new(), path)
    }

    /// The operator, over columns for all of its keys; those that had to be computed are dropped again.
    fn ranked(
        &mut self,
        input: &LogicalPlan,
        keys: &[Expr],
        order: &[SortExpr],
        show: Show,
        results: Vec<Field>,
        path: &str,
    ) -> Result<Lowered> {
        let needed: Vec<Expr> = keys.iter().cloned().chain(order.iter().map(|sort| sort.expr.clone())).collect();
        let plain = needed.iter().all(|expression| column_of(expression, input.schema()).is_some());
        let rank_path = if plain { path.to_owned() } else { format!("{path}/input") };
        let keyed = self.keyed(input, &needed, &format!("{rank_path}/input"))?;
        let mut lowered = keyed.lowered;
        let (keys, sort_columns) = keyed.keys.split_at(keys.len());
        let order = sort_columns
            .iter()
            .zip(order)
            .map(|(column, sort)| SortKey {
                column: *column,
                options: SortOptions { descending: !sort.asc, nulls_first: sort.nulls_first },
            })
            .collect();
        let below = self.schema_of(lowered.index);
        let fields: Vec<Field> = below.fields().iter().map(|field| field.as_ref().clone()).chain(results).collect();
        let schema = Arc::new(Schema::new(fields));
        let spec = RankSpec { keys: keys.to_vec(), order, show };
        lowered.append_only = false;
        lowered.index = self.push(&rank_path, OperatorSpec::Rank(spec), vec![lowered.index], Arc::clone(&schema));
        if !plain {
            let shown: Vec<usize> = (0..keyed.width).chain(below.fields().len()..schema.fields().len()).collect();
            let expressions = columns(&schema, shown.iter().copied());
            let schema = Arc::new(schema.project(&shown)?);
            lowered.index = self.push(path, OperatorSpec::Project { expressions }, vec![lowered.index], schema);
        }
        Ok(lowered)
    }
}

/// The window operator below a filter that lets through only rows up to a number, and the number: it need not
/// look at the others. Only where numbers are all that it computes.
pub(super) fn row_limit(filter: &Filter) -> Option<(&Window, u64)> {
    split_conjunction(&filter.predicate).into_iter().find_map(|condition| {
        let Expr::BinaryExpr(BinaryExpr { left, op, right }) = condition else { return None };
        let Expr::Literal(bound, _) = right.as_ref() else { return None };
        let ScalarValue::Int64(Some(bound)) = bound.cast_to(&DataType::Int64).ok()? else { return None };
        let rows = match op {
            Operator::LtEq | Operator::Eq => bound,
            Operator::Lt => bound.checked_sub(1)?,
            _ => return None,
        };
        let column = column_of(uncast(left), filter.input.schema())?;
        Some((numbering(&filter.input, column)?, u64::try_from(rows).unwrap_or(0)))
    })
}

/// The window operator that a column comes from, when it only numbers rows.
fn numbering(plan: &LogicalPlan, column: usize) -> Option<&Window> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => numbering(&alias.input, column),
        LogicalPlan::Projection(projection) => {
            let expression = uncast(projection.expr.get(column)?);
            numbering(&projection.input, column_of(expression, projection.input.schema())?)
        }
        LogicalPlan::Window(window) => {
            let computed = column >= window.input.schema().fields().len();
            let numbers = |expression| call(expression).is_ok_and(|call| call.fun.name() == "row_number");
            (computed && window.window_expr.iter().all(numbers)).then_some(window)
        }
        _ => None,
    }
}

pub(super) fn uncast(expression: &Expr) -> &Expr {
    match expression {
        Expr::Alias(alias) => uncast(&alias.expr),
        Expr::Cast(cast) => uncast(&cast.expr),
        _ => expression,
    }
}

pub(super) fn call(expression: &Expr) -> Result<&WindowFunction> {
    match expression {
        Expr::Alias(alias) => call(&alias.expr),
        Expr::WindowFunction(call) => Ok(call),
        _ => Err(Error::internal("a window operator over something else than a window function")),
    }
}
