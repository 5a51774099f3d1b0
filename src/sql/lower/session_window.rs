//! `SESSION` in FROM: the window functions that stand for it ([`super::super::windows`]) are one operator in a view.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Operator, Window};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, Literal};

use super::super::errors::from_datafusion;
use super::super::windows::{OPENS, SESSION};
use super::rank::{call, uncast};
use super::{Lowered, Lowering, column_of, nullable_schema};
use crate::exec::plan::{OperatorSpec, SessionSpec};
use crate::types::Result;

/// What a call of `SESSION` was over.
struct Sessions<'a> {
    input: &'a LogicalPlan,
    keys: &'a [Expr],
    time: &'a Expr,
    /// Whether a row opens a session, which says how long the gap is.
    opens: &'a Expr,
    /// The input's column that each column below the bounds is; `None` for those that the call needed for itself.
    origins: Vec<Option<usize>>,
}

/// `None` for window functions that say something else, or in another form: they are evaluated as they are.
fn sessions(window: &Window) -> Option<Sessions<'_>> {
    let numbered = window_below(&window.input)?;
    let opened = window_below(&numbered.input)?;
    let ([number], [previous]) = (numbered.window_expr.as_slice(), opened.window_expr.as_slice()) else { return None };
    let (number, previous) = (call(number).ok()?, call(previous).ok()?);
    let argument = uncast(number.params.args.first()?);
    if number.fun.name() != "sum" || previous.fun.name() != "lag" || !is_column(argument, OPENS) {
        return None;
    }
    let input = opened.input.as_ref();
    let (keys, time) = (previous.params.partition_by.as_slice(), previous.params.args.first()?);
    let below = &window.input;
    for expression in &window.window_expr {
        let bound = call(expression).ok()?;
        let [of @ .., session] = bound.params.partition_by.as_slice() else { return None };
        let same = |above: &Expr, key: &Expr| {
            column_of(above, below.schema()).and_then(|column| origin(below, column, input))
                == column_of(key, input.schema())
        };
        let plain = matches!(bound.fun.name(), "min" | "max")
            && bound.params.order_by.is_empty()
            && bound.params.filter.is_none()
            && is_column(session, SESSION)
            && of.len() == keys.len()
            && bound.params.args.len() == 1
            && keys.iter().chain([time]).all(|key| column_of(key, input.schema()).is_some())
            && of.iter().chain(&bound.params.args).zip(keys.iter().chain([time])).all(|(above, key)| same(above, key));
        if !plain {
            return None;
        }
    }
    let opens = definition(&numbered.input, column_of(argument, numbered.input.schema())?)?;
    let origins = (0..below.schema().fields().len()).map(|column| origin(below, column, input)).collect();
    Some(Sessions { input, keys, time, opens, origins })
}

fn is_column(expression: &Expr, name: &str) -> bool {
    matches!(uncast(expression), Expr::Column(column) if column.name == name)
}

/// The window operator below projections.
fn window_below(plan: &LogicalPlan) -> Option<&Window> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => window_below(&alias.input),
        LogicalPlan::Projection(projection) => window_below(&projection.input),
        LogicalPlan::Window(window) => Some(window),
        _ => None,
    }
}

/// What a projection computes as a column.
fn definition(plan: &LogicalPlan, column: usize) -> Option<&Expr> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => definition(&alias.input, column),
        LogicalPlan::Projection(projection) => projection.expr.get(column),
        _ => None,
    }
}

/// Which column of an input below projections and window operators a column is.
fn origin(plan: &LogicalPlan, column: usize, input: &LogicalPlan) -> Option<usize> {
    if std::ptr::eq(plan, input) {
        return Some(column);
    }
    match plan {
        LogicalPlan::SubqueryAlias(alias) => origin(&alias.input, column, input),
        LogicalPlan::Projection(projection) => {
            let column = column_of(projection.expr.get(column)?, projection.input.schema())?;
            origin(&projection.input, column, input)
        }
        LogicalPlan::Window(window) if column < window.input.schema().fields().len() => {
            origin(&window.input, column, input)
        }
        _ => None,
    }
}

impl Lowering<'_> {
    /// `None` for window functions that are not those of `SESSION`.
    pub(super) fn session_window(&mut self, window: &Window, path: &str) -> Result<Option<Lowered>> {
        let Some(Sessions { input, keys, time, opens, origins }) = sessions(window) else { return Ok(None) };
        let time_type = time.get_type(input.schema()).map_err(|error| from_datafusion(&error))?;
        let Some(gap) = self.gap(opens)? else { return Ok(None) };
        if !matches!(time_type, DataType::Timestamp(TimeUnit::Microsecond, _)) {
            return Ok(None);
        }
        let needed: Vec<Expr> = keys.iter().chain([time]).cloned().collect();
        let keyed = self.keyed(input, &needed, &format!("{path}/input/input"))?;
        let (mut lowered, mut keys) = (keyed.lowered, keyed.keys);
        let time = keys.pop().unwrap_or_default();
        let below = self.schema_of(lowered.index);
        let width = below.fields().len();
        let bounds = ["session_start", "session_last"].map(|name| Arc::new(Field::new(name, time_type.clone(), true)));
        let schema = Arc::new(Schema::new(below.fields().iter().cloned().chain(bounds).collect::<Vec<_>>()));
        let operator = OperatorSpec::SessionWindow(SessionSpec { keys, time, gap });
        let at = self.push(&format!("{path}/input"), operator, vec![lowered.index], Arc::clone(&schema));
        let shown = nullable_schema(&window.schema);
        let mut expressions: Vec<Arc<dyn PhysicalExpr>> = Vec::with_capacity(shown.fields().len());
        for (column, field) in shown.fields().iter().enumerate() {
            let from = match window.window_expr.get(column.wrapping_sub(origins.len())) {
                Some(bound) => Some(width + usize::from(call(bound)?.fun.name() == "max")),
                None => origins.get(column).copied().flatten(),
            };
            expressions.push(match from {
                Some(from) => Arc::new(Column::new(schema.field(from).name(), from)),
                // Nothing can read it: no name is shown for it.
                None => Arc::new(Literal::new(
                    ScalarValue::try_from(field.data_type()).map_err(|error| from_datafusion(&error))?,
                )),
            });
        }
        lowered.key = lowered.key.and_then(|key| {
            key.iter().map(|column| origins.iter().position(|origin| *origin == Some(*column))).collect()
        });
        lowered.append_only = false;
        lowered.index = self.push(path, OperatorSpec::Project { expressions }, vec![at], shown);
        Ok(Some(lowered))
    }

    /// The interval that is added to the time before.
    fn gap(&self, opens: &Expr) -> Result<Option<i64>> {
        let mut gap = None;
        let walked = opens.apply(|inner| {
            if let Expr::BinaryExpr(binary) = inner
                && binary.op == Operator::Plus
            {
                gap = self.constant_span(&binary.right).ok();
            }
            Ok(TreeNodeRecursion::Continue)
        });
        walked.map_err(|error| from_datafusion(&error))?;
        Ok(gap.filter(|gap| *gap > 0))
    }
}
