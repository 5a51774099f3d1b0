//! Conditions on `now()`: a row that passes one now may not pass it later, so it comes and goes with the clock.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, Filter, Operator, binary_expr};

use super::super::casts;
use super::super::errors::from_datafusion;
use super::super::view_checks::{TIME_HINT, refuse};
use super::{Lowered, Lowering, columns, found, unit_row};
use crate::exec::plan::{ClockBound, OperatorSpec};
use crate::types::{Error, Result};

const DAY_MICROS: i64 = 86_400_000_000;

/// `left op right`, with the clock on one side.
pub(super) struct Comparison {
    left: Expr,
    op: Operator,
    right: Expr,
}

/// The comparisons with the clock among the conditions of a predicate, and the other conditions.
///
/// # Errors
/// 0A000 when a condition asks for the clock in another way.
pub(super) fn divide(predicate: &Expr) -> Result<(Vec<Comparison>, Vec<Expr>)> {
    let (mut comparisons, mut others) = (Vec::new(), Vec::new());
    let mut part = |left: &Expr, op: Operator, right: &Expr| {
        if asks_clock(left) || asks_clock(right) {
            comparisons.push(Comparison { left: left.clone(), op, right: right.clone() });
        } else {
            others.push(binary_expr(left.clone(), op, right.clone()));
        }
    };
    let mut rest = Vec::new();
    for condition in split_conjunction(predicate) {
        match condition {
            condition if !asks_clock(condition) => rest.push(condition.clone()),
            Expr::BinaryExpr(binary)
                if matches!(binary.op, Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq) =>
            {
                part(&binary.left, binary.op, &binary.right);
            }
            Expr::Between(between) if !between.negated => {
                part(&between.expr, Operator::GtEq, &between.low);
                part(&between.expr, Operator::LtEq, &between.high);
            }
            _ => return Err(refused()),
        }
    }
    rest.append(&mut others);
    Ok((comparisons, rest))
}

pub(super) fn asks_clock(expression: &Expr) -> bool {
    found(expression, |inner| matches!(inner, Expr::ScalarFunction(call) if call.func.name() == "now"))
}

fn refused() -> Error {
    refuse("function now() in this condition", TIME_HINT)
}

impl Lowering<'_> {
    /// A filter of which some conditions are comparisons with the clock.
    pub(super) fn temporal_filter(
        &mut self,
        filter: &Filter,
        comparisons: &[Comparison],
        others: Vec<Expr>,
        path: &str,
    ) -> Result<Lowered> {
        let below = format!("{path}/input/input");
        let mut lowered = match conjunction(others) {
            None => self.node(&filter.input, &below)?,
            Some(predicate) => {
                let others = Filter::try_new(predicate, Arc::clone(&filter.input));
                self.filter(&others.map_err(|error| from_datafusion(&error))?, &below)?
            }
        };
        let schema = self.schema_of(lowered.index);
        let mut expressions = columns(&schema, 0..schema.fields().len());
        let mut fields: Vec<Field> = schema.fields().iter().map(|field| field.as_ref().clone()).collect();
        let mut bounds = Vec::with_capacity(comparisons.len());
        for comparison in comparisons {
            let (value, moved, op) = self.bound(comparison)?;
            let value = as_timestamp(value, filter.input.schema())?;
            let data_type = value.get_type(filter.input.schema()).map_err(|error| from_datafusion(&error))?;
            let name = match &value {
                Expr::Column(column) => column.name.clone(),
                other => other.schema_name().to_string(),
            };
            bounds.push(ClockBound {
                column: fields.len(),
                moved,
                lower: matches!(op, Operator::Gt | Operator::GtEq),
                inclusive: matches!(op, Operator::GtEq | Operator::LtEq),
            });
            fields.push(Field::new(name, data_type, true));
            expressions.push(self.expression(&value, filter.input.schema())?);
        }
        // What never goes is only ever added; what goes is no more than the rows of a span of time.
        lowered.append_only &= bounds.iter().all(|bound| bound.lower);
        lowered.bounded |= bounds.iter().any(|bound| !bound.lower);
        let prepared = OperatorSpec::Project { expressions };
        let path_of_input = format!("{path}/input");
        lowered.index = self.push(&path_of_input, prepared, vec![lowered.index], Arc::new(Schema::new(fields)));
        lowered.index = self.push(path, OperatorSpec::TemporalFilter(bounds), vec![lowered.index], schema);
        Ok(lowered)
    }

    /// A comparison as `now() + moved op value`.
    fn bound(&self, comparison: &Comparison) -> Result<(Expr, i64, Operator)> {
        let Comparison { left, op, right } = comparison;
        match (self.clock(left)?, self.clock(right)?) {
            (Some(moved), None) if !asks_clock(right) => Ok((right.clone(), moved, *op)),
            (None, Some(moved)) if !asks_clock(left) => {
                let op = op.swap().ok_or_else(refused)?;
                Ok((left.clone(), moved, op))
            }
            _ => Err(refused()),
        }
    }

    /// What is added to the clock, in microseconds, when the expression is `now()` with intervals.
    fn clock(&self, expression: &Expr) -> Result<Option<i64>> {
        match expression {
            Expr::Alias(alias) => self.clock(&alias.expr),
            Expr::Cast(cast) if is_timestamp(cast.field.data_type()) => self.clock(&cast.expr),
            Expr::ScalarFunction(call) if call.func.name() == "now" => Ok(Some(0)),
            Expr::ScalarFunction(call) if call.func.name() == casts::NAME => match call.args.as_slice() {
                [inner] if expression.get_type(&DFSchema::empty()).is_ok_and(|to| is_timestamp(&to)) => {
                    self.clock(inner)
                }
                _ => Ok(None),
            },
            Expr::BinaryExpr(binary) if matches!(binary.op, Operator::Plus | Operator::Minus) => {
                let (left, right) = (&binary.left, &binary.right);
                let (clock, interval, minus) = match (self.clock(left)?, self.clock(right)?) {
                    (Some(clock), None) => (clock, right, binary.op == Operator::Minus),
                    (None, Some(clock)) if binary.op == Operator::Plus => (clock, left, false),
                    _ => return Ok(None),
                };
                let span = self.constant_span(interval)?;
                let moved = if minus { clock.checked_sub(span) } else { clock.checked_add(span) };
                moved.map(Some).ok_or_else(refused)
            }
            _ => Ok(None),
        }
    }

    /// A constant interval of one length, in microseconds.
    pub(super) fn constant_span(&self, interval: &Expr) -> Result<i64> {
        if !interval.column_refs().is_empty() || asks_clock(interval) {
            return Err(refused());
        }
        let (unit, _) = unit_row()?;
        let value =
            self.expression(interval, &DFSchema::empty())?.evaluate(&unit).and_then(|value| value.into_array(1));
        let value = value.and_then(|value| ScalarValue::try_from_array(&value, 0));
        match value.map_err(|error| from_datafusion(&error))? {
            ScalarValue::IntervalMonthDayNano(Some(interval)) if interval.months == 0 => i64::from(interval.days)
                .checked_mul(DAY_MICROS)
                .and_then(|days| days.checked_add(interval.nanoseconds / 1_000))
                .ok_or_else(refused),
            ScalarValue::IntervalMonthDayNano(Some(_)) => {
                Err(refuse("an interval of months from now()", "Write it in days: months are not all of one length."))
            }
            _ => Err(refused()),
        }
    }
}

fn is_timestamp(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Timestamp(..))
}

/// What the clock is compared with, in microseconds: in UTC, where views are planned, a timestamp is the same number with
/// a zone and without.
fn as_timestamp(mut value: Expr, schema: &DFSchema) -> Result<Expr> {
    let type_of = |value: &Expr| value.get_type(schema).map_err(|error| from_datafusion(&error));
    // The clock has nanoseconds, in which far times have no place.
    while let Expr::Cast(cast) = &value
        && is_timestamp(cast.field.data_type())
        && (is_timestamp(&type_of(&cast.expr)?) || type_of(&cast.expr)? == DataType::Date32)
    {
        value = cast.expr.as_ref().clone();
    }
    Ok(match type_of(&value)? {
        DataType::Timestamp(TimeUnit::Microsecond, _) => value,
        _ => Expr::Cast(Cast::new(Box::new(value), DataType::Timestamp(TimeUnit::Microsecond, None))),
    })
}
