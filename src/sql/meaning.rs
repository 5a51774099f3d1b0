//! PostgreSQL's meaning of numbers and casts, put into a logical plan before DataFusion coerces its
//! types; the same for a SELECT and for a view, so that they agree.
//!
//! - Integer literals are `integer` when they fit, then `bigint`, then `numeric`.
//! - `+ - * / %` and the sign on numbers are checked (see [`super::arithmetic`]).
//! - Casts are PostgreSQL's (see [`super::casts`]).
//! - A date minus a date is a number of days, a timestamp minus a timestamp an interval.
//! - A number compared with a double, or standing beside one in a CASE or a list, becomes a double.
//! - A date plus an interval is a timestamp.
//! - `AT TIME ZONE` takes a zone off a timestamptz and puts one on a timestamp.
//! - UNION refuses columns whose types PostgreSQL cannot match.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, IntervalUnit, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, NullHandling, ScalarValue};
use datafusion::error::Result as DataFusionResult;
use datafusion::functions::core::nullif;
use datafusion::logical_expr::expr::{Case, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, Projection, RecursiveQuery, Union,
    Values, WindowFunctionDefinition,
};

use sqlparser::ast::BinaryOperator;

use super::any_all;
use super::arithmetic::{Arithmetic, is_number, negate, undefined_operator};
use super::casts::cast;
use super::errors::to_datafusion;
use super::functions::round_to_even;
use super::intervals::{DIVIDE, MULTIPLY};
use super::jsonb;
use super::matched::{category, differ, is_untyped, of_one_kind, with_typed_texts};
use super::row_functions;
use super::scalar_functions;
use super::timestamps::timestamp_difference;
use super::types::{UTC, sql_name};
use super::zoned;
use crate::types::{Error, JSONB, SqlState};

/// Puts the meaning into a plan that has not been analysed.
pub(crate) fn apply(plan: LogicalPlan) -> DataFusionResult<LogicalPlan> {
    let applied = plan.transform_up(|node| {
        // A subquery knows the types of the columns around it; those may be others by now.
        let around = merge_schema(&node.inputs());
        let node = node.map_subqueries(|subquery| {
            let LogicalPlan::Subquery(mut subquery) = subquery else { return Ok(Transformed::no(subquery)) };
            let inner = with_outer_types(Arc::unwrap_or_clone(subquery.subquery), &around)?;
            subquery.subquery = Arc::new(apply(inner)?);
            for column in &mut subquery.outer_ref_columns {
                *column = outer_type(column.clone(), &around);
            }
            Ok(Transformed::yes(LogicalPlan::Subquery(subquery)))
        })?;
        node_with_meaning(node.data).map(Transformed::yes)
    })?;
    Ok(applied.data)
}

/// A subquery's plan whose references to the columns around it have the types of `around`.
fn with_outer_types(plan: LogicalPlan, around: &DFSchema) -> DataFusionResult<LogicalPlan> {
    let typed = plan.transform_down_with_subqueries(|node| {
        node.map_expressions(|expression| {
            expression.transform_up(|inner| Ok(Transformed::yes(outer_type(inner, around))))
        })
    })?;
    Ok(typed.data)
}

fn outer_type(expression: Expr, around: &DFSchema) -> Expr {
    match expression {
        Expr::OuterReferenceColumn(field, column) => {
            let field = around.maybe_index_of_column(&column).map_or(field, |at| Arc::clone(&around.fields()[at]));
            Expr::OuterReferenceColumn(field, column)
        }
        other => other,
    }
}

fn node_with_meaning(node: LogicalPlan) -> DataFusionResult<LogicalPlan> {
    match node {
        // Their numbers count rows and take part in no arithmetic; a scan has no expressions yet.
        LogicalPlan::Limit(_)
        | LogicalPlan::TableScan(_)
        | LogicalPlan::EmptyRelation(_)
        | LogicalPlan::Subquery(_) => Ok(node),
        LogicalPlan::Values(values) => {
            let empty = DFSchema::empty();
            let rows = uncoerced(values)?;
            let rows = rows
                .into_iter()
                .map(|row| row.into_iter().map(|expression| expression_with_meaning(expression, &empty)).collect())
                .collect::<DataFusionResult<Vec<Vec<Expr>>>>()?;
            LogicalPlanBuilder::values(rows)?.build()
        }
        LogicalPlan::Union(union) => match_branches(union),
        LogicalPlan::RecursiveQuery(query) => match_terms(query),
        mut node => {
            if let LogicalPlan::Unnest(unnest) = &mut node {
                // NULL in the place of a list has no elements.
                unnest.options.null_handling = NullHandling::Drop;
            }
            let node = with_double_keys(node)?;
            let schema = merge_schema(&node.inputs());
            let names = NamePreserver::new(&node);
            let rewritten = node.map_expressions(|expression| {
                let name = names.save(&expression);
                Ok(Transformed::yes(name.restore(expression_with_meaning(expression, &schema)?)))
            })?;
            rewritten.data.recompute_schema()
        }
    }
}

/// Puts the meaning into an expression over columns of `schema`.
pub(crate) fn expression_with_meaning(expression: Expr, schema: &DFSchema) -> DataFusionResult<Expr> {
    Ok(expression
        .transform_up(|expression| {
            Ok(match expression {
                Expr::Literal(value, metadata) => match integer_literal(&value) {
                    Some(value) => Transformed::yes(Expr::Literal(value, metadata)),
                    None => Transformed::no(Expr::Literal(value, metadata)),
                },
                Expr::BinaryExpr(binary) => match arithmetic(binary.op) {
                    Some(operator) => match arithmetic_with_meaning(operator, *binary.left, *binary.right, schema)? {
                        Planned::Meant(expression) => Transformed::yes(expression),
                        Planned::Other(left, right) => Transformed::no(Expr::BinaryExpr(BinaryExpr {
                            left: Box::new(left),
                            op: binary.op,
                            right: Box::new(right),
                        })),
                    },
                    None if is_comparison(binary.op) => Transformed::yes(Expr::BinaryExpr(compared(binary, schema)?)),
                    None if binary.op == Operator::StringConcat => {
                        Transformed::yes(Expr::BinaryExpr(concatenated(binary, schema)))
                    }
                    None => Transformed::no(Expr::BinaryExpr(binary)),
                },
                Expr::Between(mut between) => {
                    let operands = vec![*between.expr, *between.low, *between.high];
                    let operands = with_typed_texts(jsonb::compared(operands, Operator::LtEq, schema)?, schema);
                    let [expr, low, high] = <[Expr; 3]>::try_from(as_doubles(operands, schema, Doubles::Compared))
                        .map_err(|_| to_datafusion(Error::internal("operands of BETWEEN are lost")))?;
                    (between.expr, between.low, between.high) = (Box::new(expr), Box::new(low), Box::new(high));
                    Transformed::yes(Expr::Between(between))
                }
                Expr::InList(mut list) => {
                    let mut operands = vec![*list.expr];
                    operands.append(&mut list.list);
                    let operands = jsonb::compared(operands, Operator::Eq, schema)?;
                    let operands = with_typed_texts(operands, schema);
                    let mut operands = as_doubles(operands, schema, Doubles::Compared).into_iter();
                    list.expr = Box::new(operands.next().unwrap_or_default());
                    list.list = operands.collect();
                    Transformed::yes(Expr::InList(list))
                }
                Expr::Case(case) => Transformed::yes(Expr::Case(case_with_meaning(case, schema)?)),
                Expr::ScalarFunction(call) => {
                    if let Some(body) = scalar_functions::inlined(&call, schema)? {
                        return Ok(Transformed::yes(body));
                    }
                    jsonb::check_call(call.func.name(), &call.args, schema)?;
                    Transformed::yes(match any_all::with_meaning(call, schema)? {
                        Expr::ScalarFunction(call) => call_with_meaning(call, schema)?,
                        other => other,
                    })
                }
                Expr::Like(like) | Expr::SimilarTo(like) if matches!(like.expr.get_type(schema), Ok(JSONB)) => {
                    return Err(to_datafusion(undefined_operator("~~", &["jsonb".into(), "text".into()])));
                }
                Expr::AggregateFunction(mut call) => {
                    if matches!(call.func.name(), "min" | "max") {
                        jsonb::check_call(call.func.name(), &call.params.args, schema)?;
                    }
                    // What the condition leaves out is not computed, so that it cannot fail.
                    if let Some(condition) = &call.params.filter {
                        for argument in &mut call.params.args {
                            if !matches!(argument, Expr::Column(_) | Expr::Literal(..)) {
                                let then = std::mem::take(argument);
                                *argument = Expr::Case(Case {
                                    expr: None,
                                    when_then_expr: vec![(condition.clone(), Box::new(then))],
                                    else_expr: None,
                                });
                            }
                        }
                    }
                    Transformed::yes(Expr::AggregateFunction(call))
                }
                Expr::Negative(inner) => match inner.get_type(schema) {
                    Ok(data_type) if is_number(&data_type) => Transformed::yes(negate(*inner)),
                    _ => Transformed::no(Expr::Negative(inner)),
                },
                Expr::Cast(inner) => match inner.expr.get_type(schema) {
                    // A text that was cast to text is no longer of an unknown type.
                    Ok(from) if from == *inner.field.data_type() => Transformed::no(Expr::Cast(inner)),
                    // Only AT TIME ZONE is planned as a cast to nanoseconds.
                    Ok(from) if let DataType::Timestamp(TimeUnit::Nanosecond, Some(zone)) = inner.field.data_type() => {
                        let zone = Arc::clone(zone);
                        Transformed::yes(at_time_zone(*inner.expr, &from, &zone)?)
                    }
                    Ok(from) if is_no_cast(&from, inner.field.data_type()) => {
                        let (from, to) = (sql_name(&from), sql_name(inner.field.data_type()));
                        let hint = match (from.as_str(), to.as_str()) {
                            (_, "jsonb") => "Write to_jsonb(x).",
                            ("jsonb", _) => "Take the text out with ->> or #>> '{}', and cast that.",
                            ("boolean", _) | (_, "boolean") => "Write CASE WHEN x THEN 1 ELSE 0 END, or x <> 0.",
                            _ => "Take a number out of a time with extract(epoch FROM x); add an interval to make one.",
                        };
                        return Err(to_datafusion(
                            Error::new(SqlState::CannotCoerce, format!("cannot cast type {from} to {to}")).hint(hint),
                        ));
                    }
                    Ok(from) => {
                        let to = inner.field.data_type().clone();
                        Transformed::yes(cast(*inner.expr, &from, &to))
                    }
                    Err(_) => Transformed::no(Expr::Cast(inner)),
                },
                Expr::WindowFunction(mut call) => {
                    // Window functions read offsets and counts as 64-bit literals while planning.
                    if matches!(call.fun, WindowFunctionDefinition::WindowUDF(_)) {
                        for argument in call.params.args.iter_mut().skip(usize::from(call.fun.name() != "ntile")) {
                            if let Expr::Literal(ScalarValue::Int32(Some(value)), _) = argument {
                                *argument = Expr::Literal(ScalarValue::Int64(Some(i64::from(*value))), None);
                            }
                        }
                    }
                    Transformed::yes(Expr::WindowFunction(call))
                }
                other => Transformed::no(other),
            })
        })?
        .data)
}

/// Where numbers stand together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doubles {
    /// As operands: a real and any other number are compared as doubles.
    Compared,
    /// As values of one column: a real stays one unless a double is among them.
    Chosen,
}

/// The type that numbers with a double or a real among them are brought to.
fn common_float<'a>(types: impl Iterator<Item = &'a DataType> + Clone, doubles: Doubles) -> Option<DataType> {
    let mut numbers = types.filter(|data_type| is_number(data_type));
    let first = numbers.clone().next()?;
    if numbers.clone().all(|data_type| data_type == first) {
        return None;
    }
    let double = numbers.clone().any(|data_type| *data_type == DataType::Float64);
    let real = numbers.any(|data_type| *data_type == DataType::Float32);
    match (double, real, doubles) {
        (true, _, _) | (_, true, Doubles::Compared) => Some(DataType::Float64),
        (false, true, Doubles::Chosen) => Some(DataType::Float32),
        (false, false, _) => None,
    }
}

/// Casts numbers to a floating type when one of them has it, as PostgreSQL does; DataFusion would
/// bring them to a numeric.
fn as_doubles(expressions: Vec<Expr>, schema: &DFSchema, doubles: Doubles) -> Vec<Expr> {
    let types: Vec<DataType> =
        expressions.iter().map(|expression| expression.get_type(schema).unwrap_or(DataType::Null)).collect();
    let Some(float) = common_float(types.iter(), doubles) else {
        return expressions;
    };
    let typed = expressions.into_iter().zip(&types);
    typed
        .map(
            |(expression, data_type)| {
                if is_number(data_type) { cast(expression, data_type, &float) } else { expression }
            },
        )
        .collect()
}

fn is_comparison(operator: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(operator, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// A comparison: numbers by their common type, and none between types that have nothing in common.
fn compared(binary: BinaryExpr, schema: &DFSchema) -> DataFusionResult<BinaryExpr> {
    let BinaryExpr { left, op, right } = binary;
    if let (Ok(a), Ok(b)) = (left.get_type(schema), right.get_type(schema))
        && differ(&a, &b)
        && !is_untyped(&left)
        && !is_untyped(&right)
        && a != JSONB
        && b != JSONB
    {
        return Err(to_datafusion(undefined_operator(&op.to_string(), &[sql_name(&a), sql_name(&b)])));
    }
    let operands = jsonb::compared(vec![*left, *right], op, schema)?;
    let operands = with_typed_texts(operands, schema);
    let mut operands = as_doubles(operands, schema, Doubles::Compared).into_iter();
    let (left, right) = (operands.next().unwrap_or_default(), operands.next().unwrap_or_default());
    Ok(BinaryExpr { left: Box::new(left), op, right: Box::new(right) })
}

/// A value beside a text becomes one as it is cast.
fn concatenated(binary: BinaryExpr, schema: &DFSchema) -> BinaryExpr {
    let BinaryExpr { left, op, right } = binary;
    let (Ok(a), Ok(b)) = (left.get_type(schema), right.get_type(schema)) else {
        return BinaryExpr { left, op, right };
    };
    let worded = |value: Box<Expr>, of: &DataType, beside: &DataType| match of {
        DataType::Timestamp(..)
        | DataType::Interval(_)
        | DataType::Time64(_)
        | DataType::Float32
        | DataType::Float64
            if *beside == DataType::Utf8 =>
        {
            Box::new(cast(*value, of, &DataType::Utf8))
        }
        _ => value,
    };
    BinaryExpr { left: worded(left, &a, &b), op, right: worded(right, &b, &a) }
}

fn case_with_meaning(mut case: Case, schema: &DFSchema) -> DataFusionResult<Case> {
    let (whens, thens): (Vec<Expr>, Vec<Expr>) =
        case.when_then_expr.into_iter().map(|(when, then)| (*when, *then)).unzip();
    let whens = match case.expr.take() {
        Some(base) => {
            let mut operands = vec![*base];
            operands.extend(whens);
            let operands = with_typed_texts(operands, schema);
            let mut operands = as_doubles(operands, schema, Doubles::Compared);
            let whens = operands.split_off(1);
            case.expr = operands.pop().map(Box::new);
            whens
        }
        None => {
            for when in &whens {
                if let Ok(data_type) = when.get_type(schema)
                    && is_number(&data_type)
                {
                    let error = Error::new(
                        SqlState::DatatypeMismatch,
                        format!("argument of CASE/WHEN must be type boolean, not type {}", sql_name(&data_type)),
                    )
                    .hint("Compare the value, such as WHEN number <> 0.");
                    return Err(to_datafusion(error));
                }
            }
            whens
        }
    };
    let count = thens.len();
    let mut results = thens;
    results.extend(case.else_expr.take().map(|otherwise| *otherwise));
    let results = of_one_kind("CASE", results, schema)?;
    let mut results = as_doubles(results, schema, Doubles::Chosen);
    case.else_expr = results.split_off(count).pop().map(Box::new);
    case.when_then_expr = whens.into_iter().zip(results).map(|(when, then)| (Box::new(when), Box::new(then))).collect();
    Ok(case)
}

/// `extract(second from …)` and `milliseconds`, with their fractions: the name of a part that
/// DataFusion counts in whole numbers, how many of them make one, and the result's type.
fn fractional_part(part: &Expr) -> Option<(i128, DataType)> {
    let Expr::Literal(ScalarValue::Utf8(Some(name)), _) = part else {
        return None;
    };
    match name.to_lowercase().as_str() {
        "second" | "seconds" | "sec" | "secs" | "s" => Some((1_000_000, DataType::Decimal128(8, 6))),
        "millisecond" | "milliseconds" | "msec" | "msecs" | "ms" => Some((1000, DataType::Decimal128(8, 3))),
        _ => None,
    }
}

/// Functions whose arguments have one type, and those that give whole numbers.
fn call_with_meaning(mut call: ScalarFunction, schema: &DFSchema) -> DataFusionResult<Expr> {
    match (call.func.name(), call.args.as_slice()) {
        ("coalesce" | "greatest" | "least" | "make_array", _) => {
            let context = match call.func.name() {
                "make_array" => "ARRAY".to_owned(),
                name => name.to_uppercase(),
            };
            let values = of_one_kind(&context, call.args, schema)?;
            call.args = as_doubles(values, schema, Doubles::Chosen);
        }
        ("nullif", _) => {
            if let [left, right] = call.args.as_slice()
                && let (Ok(a), Ok(b)) = (left.get_type(schema), right.get_type(schema))
                && differ(&a, &b)
                && !is_untyped(left)
                && !is_untyped(right)
            {
                return Err(to_datafusion(undefined_operator("=", &[sql_name(&a), sql_name(&b)])));
            }
            call.args = with_typed_texts(call.args, schema);
            let double = |of: &Expr| matches!(of.get_type(schema), Ok(DataType::Float32 | DataType::Float64));
            // The result has the first argument's type.
            if call.args.first().is_some_and(double) {
                call.args = as_doubles(call.args, schema, Doubles::Chosen);
            }
        }
        ("pg_typeof", [value]) if is_untyped(value) || matches!(value, Expr::Literal(ScalarValue::Null, _)) => {
            return Ok(Expr::Literal(ScalarValue::Utf8(Some("unknown".into())), None));
        }
        ("array_length" | "array_ndims" | "array_position" | "cardinality", _) => {
            // An empty array has no length.
            let empty = call.func.name() == "array_length";
            let number = Expr::ScalarFunction(call);
            let from = number.get_type(schema)?;
            let number = cast(number, &from, &DataType::Int32);
            let zero = Expr::Literal(ScalarValue::Int32(Some(0)), None);
            return Ok(if empty { nullif().call(vec![number, zero]) } else { number });
        }
        ("date_part", [part, value]) => {
            let timed = matches!(value.get_type(schema), Ok(DataType::Timestamp(..) | DataType::Time64(_)));
            if let Some((factor, data_type)) = fractional_part(part).filter(|_| timed) {
                if let Some(part) = call.args.first_mut() {
                    *part = Expr::Literal(ScalarValue::Utf8(Some("microsecond".into())), None);
                }
                let factor = Expr::Literal(ScalarValue::Decimal128(Some(factor), 7, 0), None);
                let quotient = Arithmetic::Divide.call(Expr::ScalarFunction(call), factor);
                return Ok(cast(quotient, &DataType::Decimal128(38, 16), &data_type));
            }
        }
        ("round" | "trunc" | "ceil" | "floor", [value]) => match value.get_type(schema) {
            Ok(DataType::Float32 | DataType::Float64) if call.func.name() == "round" => {
                return Ok(round_to_even(call.args.remove(0)));
            }
            Ok(from @ DataType::Decimal128(precision, scale)) if scale > 0 => {
                // One digit more for what is rounded up, before and after.
                let whole = DataType::Decimal128(precision.saturating_sub(scale.unsigned_abs()).saturating_add(1), 0);
                let wide = DataType::Decimal128(precision.saturating_add(1).min(38), scale);
                if let Some(value) = call.args.first_mut() {
                    *value = cast(std::mem::take(value), &from, &wide);
                }
                let expression = Expr::ScalarFunction(call);
                let from = expression.get_type(schema).unwrap_or(from);
                return Ok(cast(expression, &from, &whole));
            }
            _ => {}
        },
        _ => {}
    }
    Ok(Expr::ScalarFunction(call))
}

/// `value AT TIME ZONE 'zone'`.
fn at_time_zone(value: Expr, from: &DataType, zone: &str) -> DataFusionResult<Expr> {
    let zone = zoned::named(zone).map_err(to_datafusion)?;
    let stored = DataType::Timestamp(TimeUnit::Microsecond, Some(UTC.into()));
    let plain = DataType::Timestamp(TimeUnit::Microsecond, None);
    Ok(match (from, zone.is_utc()) {
        (DataType::Timestamp(_, None), true) => cast(value, from, &stored),
        (DataType::Timestamp(_, Some(_)), true) => cast(value, from, &plain),
        (DataType::Timestamp(_, None), false) => zoned::time_of_local(value, zone),
        (DataType::Timestamp(_, Some(_)), false) => zoned::local_time(value, zone),
        // A text or a date is a timestamptz first.
        (_, true) => cast(cast(value, from, &stored), &stored, &plain),
        (_, false) => zoned::local_time(cast(value, from, &stored), zone),
    })
}

/// Equal columns of a join, where one is a double and the other another number.
fn with_double_keys(node: LogicalPlan) -> DataFusionResult<LogicalPlan> {
    let LogicalPlan::Join(mut join) = node else {
        return Ok(node);
    };
    for (left, right) in &mut join.on {
        let (Ok(a), Ok(b)) = (left.get_type(join.left.schema()), right.get_type(join.right.schema())) else {
            continue;
        };
        if let Some(float) = common_float([&a, &b].into_iter(), Doubles::Compared) {
            *left = cast(std::mem::take(left), &a, &float);
            *right = cast(std::mem::take(right), &b, &float);
        }
    }
    Ok(LogicalPlan::Join(join))
}

/// The rows of a VALUES list with their own types where DataFusion made numerics of doubles.
fn uncoerced(values: Values) -> DataFusionResult<Vec<Vec<Expr>>> {
    let empty = DFSchema::empty();
    let mut rows = values.values;
    for (column, field) in values.schema.fields().iter().enumerate() {
        let common = field.data_type();
        if !is_number(common) {
            continue;
        }
        let own = |cell: &Expr| match cell {
            Expr::Cast(outer) if outer.field.data_type() == common => (*outer.expr).clone(),
            other => other.clone(),
        };
        let cells: Vec<Expr> = rows.iter().filter_map(|row| row.get(column)).map(own).collect();
        let types: Vec<DataType> = cells.iter().map(|cell| cell.get_type(&empty)).collect::<DataFusionResult<_>>()?;
        if common_float(types.iter(), Doubles::Chosen).is_none() {
            continue;
        }
        for (row, cell) in rows.iter_mut().zip(as_doubles(cells, &empty, Doubles::Chosen)) {
            if let Some(old) = row.get_mut(column) {
                *old = if cell.get_type(&empty)? == DataType::Null || is_null(&cell) {
                    Expr::Literal(ScalarValue::Null, None)
                } else {
                    cell
                };
            }
        }
    }
    Ok(rows)
}

fn is_null(expression: &Expr) -> bool {
    match expression {
        Expr::Literal(value, _) => value.is_null(),
        Expr::ScalarFunction(call) => call.func.name() == super::casts::NAME && call.args.iter().all(is_null),
        _ => false,
    }
}

/// Brings the terms of a recursive query to the types that its working table was planned with,
/// where an integer literal is a bigint.
fn match_terms(query: RecursiveQuery) -> DataFusionResult<LogicalPlan> {
    let (mut first, mut next) = (query.static_term, query.recursive_term);
    for (column, field) in query.schema.fields().iter().enumerate() {
        let wanted = field.data_type();
        for term in [&mut first, &mut next] {
            let Some(found) = term.schema().fields().get(column).map(|field| field.data_type().clone()) else {
                continue;
            };
            if found != *wanted && is_number(&found) && is_number(wanted) {
                *term = with_cast(term, column, &found, wanted)?;
            }
        }
    }
    Ok(LogicalPlan::RecursiveQuery(RecursiveQuery { static_term: first, recursive_term: next, ..query }))
}

/// An expression that may be an integer literal, with its type by size.
fn with_integer_literal(expression: Expr) -> Expr {
    match expression {
        Expr::Literal(value, metadata) => match integer_literal(&value) {
            Some(value) => Expr::Literal(value, metadata),
            None => Expr::Literal(value, metadata),
        },
        other => other,
    }
}

pub(crate) fn integer_literal(value: &ScalarValue) -> Option<ScalarValue> {
    match value {
        ScalarValue::Int64(Some(value)) => i32::try_from(*value).ok().map(|value| ScalarValue::Int32(Some(value))),
        ScalarValue::UInt64(Some(value)) => Some(ScalarValue::Decimal128(Some(i128::from(*value)), 20, 0)),
        _ => None,
    }
}

fn arithmetic(operator: Operator) -> Option<Arithmetic> {
    match operator {
        Operator::Plus => Some(Arithmetic::Add),
        Operator::Minus => Some(Arithmetic::Subtract),
        Operator::Multiply => Some(Arithmetic::Multiply),
        Operator::Divide => Some(Arithmetic::Divide),
        Operator::Modulo => Some(Arithmetic::Remainder),
        _ => None,
    }
}

/// An arithmetic operation with its meaning, or the operands of one that stays DataFusion's.
enum Planned {
    Meant(Expr),
    Other(Expr, Expr),
}

fn arithmetic_with_meaning(operator: Arithmetic, a: Expr, b: Expr, schema: &DFSchema) -> DataFusionResult<Planned> {
    let (Ok(left), Ok(right)) = (a.get_type(schema), b.get_type(schema)) else {
        return Ok(Planned::Other(a, b));
    };
    let is_timestamp = |data_type: &DataType| matches!(data_type, DataType::Timestamp(..));
    let is_moment = |data_type: &DataType| is_timestamp(data_type) || *data_type == DataType::Date32;
    // Not the casts that a user writes, which there are none of between dates and numbers: 32 bits stay 32 bits,
    // so these cannot fail. What is wider is checked first.
    let days = |date: Expr| datafusion::logical_expr::try_cast(date, DataType::Int32);
    let date = |days: Expr, number: &DataType| {
        let wide = if *number == DataType::Int64 { DataType::Int64 } else { DataType::Int32 };
        datafusion::logical_expr::try_cast(cast(days, &wide, &DataType::Int32), DataType::Date32)
    };
    let midnight = DataType::Timestamp(TimeUnit::Microsecond, None);
    let (plus, minus) = (operator == Arithmetic::Add, operator == Arithmetic::Subtract);
    let undefined = |left: &DataType, right: &DataType| {
        Err(to_datafusion(undefined_operator(operator.symbol(), &[sql_name(left), sql_name(right)])))
    };
    Ok(Planned::Meant(match (&left, &right) {
        (l, r) if is_number(l) && (is_number(r) || *r == DataType::Null) => operator.call(a, b),
        (DataType::Null, r) if is_number(r) => operator.call(a, b),
        // A text literal takes the other side's type; a text column has no arithmetic.
        (l, DataType::Utf8) if is_number(l) && matches!(b, Expr::Literal(..)) => {
            operator.call(a, cast(b, &right, &left))
        }
        (DataType::Utf8, r) if is_number(r) && matches!(a, Expr::Literal(..)) => {
            operator.call(cast(a, &left, &right), b)
        }
        (l, r) if is_number(l) && *r == DataType::Utf8 || *l == DataType::Utf8 && is_number(r) => {
            return undefined(l, r);
        }
        (DataType::Utf8, DataType::Utf8) => return undefined(&left, &right),
        (DataType::Boolean, r) if *r != DataType::Null => return undefined(&left, r),
        (l, DataType::Boolean) if *l != DataType::Null => return undefined(l, &right),
        (DataType::Date32, r) if r.is_integer() && (plus || minus) => date(operator.call(days(a), b), r),
        (l, DataType::Date32) if l.is_integer() && plus => date(operator.call(a, days(b)), l),
        (DataType::Date32, DataType::Date32) if minus => operator.call(days(a), days(b)),
        // A text literal beside an interval is one.
        (DataType::Interval(_), DataType::Utf8) if (plus || minus) && is_untyped(&b) => {
            return Ok(Planned::Other(a, cast(b, &right, &left)));
        }
        (DataType::Utf8, DataType::Interval(_)) if (plus || minus) && is_untyped(&a) => {
            return Ok(Planned::Other(cast(a, &left, &right), b));
        }
        // Midnight of the date.
        (DataType::Date32, DataType::Interval(_)) if plus || minus => {
            return Ok(Planned::Other(cast(a, &left, &midnight), b));
        }
        (DataType::Interval(_), DataType::Date32) if plus => {
            return Ok(Planned::Other(a, cast(b, &right, &midnight)));
        }
        (DataType::Interval(_), r) if is_number(r) && operator == Arithmetic::Multiply => of_interval(MULTIPLY, a, b),
        (DataType::Interval(_), r) if is_number(r) && operator == Arithmetic::Divide => of_interval(DIVIDE, a, b),
        (l, DataType::Interval(_)) if is_number(l) && operator == Arithmetic::Multiply => of_interval(MULTIPLY, b, a),
        (DataType::Interval(_), r) if is_number(r) => return undefined(&left, r),
        (l, r) if minus && is_moment(l) && is_moment(r) => timestamp_difference(a, b),
        _ => return Ok(Planned::Other(a, b)),
    }))
}

/// An interval and a number.
fn of_interval(name: &str, interval: Expr, number: Expr) -> Expr {
    // The functions are known by their names here and there alike.
    row_functions::call(name, vec![interval, number]).unwrap_or_default()
}

/// Plans arithmetic while DataFusion reads the query: it would refuse some of it before [`apply`]
/// could give it its meaning.
#[derive(Debug)]
pub(crate) struct ArithmeticPlanner;

impl ExprPlanner for ArithmeticPlanner {
    fn plan_binary_op(
        &self,
        binary: RawBinaryExpr,
        schema: &DFSchema,
    ) -> DataFusionResult<PlannerResult<RawBinaryExpr>> {
        if let Some(planned) = jsonb::operator(&binary.op, &binary.left, &binary.right, schema)? {
            return Ok(PlannerResult::Planned(planned));
        }
        let operator = match &binary.op {
            BinaryOperator::Plus => Arithmetic::Add,
            BinaryOperator::Minus => Arithmetic::Subtract,
            BinaryOperator::Multiply => Arithmetic::Multiply,
            BinaryOperator::Divide => Arithmetic::Divide,
            BinaryOperator::Modulo => Arithmetic::Remainder,
            _ => return Ok(PlannerResult::Original(binary)),
        };
        let RawBinaryExpr { op, left, right } = binary;
        let (left, right) = (with_integer_literal(left), with_integer_literal(right));
        let left = with_parameter_type(left, &right, schema);
        let right = with_parameter_type(right, &left, schema);
        Ok(match arithmetic_with_meaning(operator, left, right, schema)? {
            Planned::Meant(expression) => PlannerResult::Planned(expression),
            Planned::Other(left, right) => PlannerResult::Original(RawBinaryExpr { op, left, right }),
        })
    }
}

/// A parameter without a type beside a number is one of its type; beside a time it is an interval.
fn with_parameter_type(operand: Expr, other: &Expr, schema: &DFSchema) -> Expr {
    let Expr::Placeholder(mut parameter) = operand else { return operand };
    if parameter.field.is_none() {
        let data_type = match other.get_type(schema) {
            Ok(data_type) if is_number(&data_type) => Some(data_type),
            Ok(DataType::Timestamp(..) | DataType::Date32) => Some(DataType::Interval(IntervalUnit::MonthDayNano)),
            _ => None,
        };
        parameter.field = data_type.map(|data_type| Arc::new(Field::new("", data_type, true)));
    }
    Expr::Placeholder(parameter)
}

fn is_unknown(branch: &LogicalPlan, column: usize) -> bool {
    match branch {
        LogicalPlan::Projection(projection) => projection
            .expr
            .get(column)
            .is_some_and(|expression| matches!(expression.clone().unalias(), Expr::Literal(ScalarValue::Utf8(_), _))),
        LogicalPlan::Sort(sort) => is_unknown(&sort.input, column),
        LogicalPlan::SubqueryAlias(alias) => is_unknown(&alias.input, column),
        _ => false,
    }
}

/// A branch with one of its columns cast.
fn with_cast(
    branch: &Arc<LogicalPlan>,
    column: usize,
    from: &DataType,
    to: &DataType,
) -> DataFusionResult<Arc<LogicalPlan>> {
    let expressions: Vec<Expr> = branch
        .schema()
        .iter()
        .enumerate()
        .map(|(at, (qualifier, field))| {
            let expression = Expr::from((qualifier, field));
            if at == column {
                cast(expression, from, to).alias_qualified(qualifier.cloned(), field.name())
            } else {
                expression
            }
        })
        .collect();
    Ok(Arc::new(LogicalPlan::Projection(Projection::try_new(expressions, Arc::clone(branch))?)))
}

/// Checks that a UNION's columns match, and gives text literals the type of the other branches.
fn match_branches(union: Union) -> DataFusionResult<LogicalPlan> {
    let width = union.inputs.iter().map(|input| input.schema().fields().len()).min().unwrap_or(0);
    let mut inputs = union.inputs;
    for column in 0..width {
        let mut found: Option<DataType> = None;
        for input in &inputs {
            let data_type = input.schema().field(column).data_type();
            if *data_type == DataType::Null || is_unknown(input, column) {
                continue;
            }
            match &found {
                Some(other) if category(other) != category(data_type) => {
                    let error = Error::new(
                        SqlState::DatatypeMismatch,
                        format!("UNION types {} and {} cannot be matched", sql_name(other), sql_name(data_type)),
                    )
                    .hint("Cast one of the columns, such as column::text.");
                    return Err(to_datafusion(error));
                }
                Some(_) => {}
                None => found = Some(data_type.clone()),
            }
        }
        let Some(found) = found.filter(|found| category(found) != 2) else {
            continue;
        };
        // A double or a real is preferred to the exact numbers, as in PostgreSQL.
        let has = |wanted: &DataType| inputs.iter().any(|input| input.schema().field(column).data_type() == wanted);
        let float = [DataType::Float64, DataType::Float32].into_iter().find(has).filter(|_| category(&found) == 1);
        for input in &mut inputs {
            let from = input.schema().field(column).data_type().clone();
            if is_unknown(input, column) {
                *input = with_cast(input, column, &from, float.as_ref().unwrap_or(&found))?;
            } else if let Some(float) = &float
                && from != *float
                && from != DataType::Null
            {
                *input = with_cast(input, column, &from, float)?;
            }
        }
    }
    Ok(LogicalPlan::Union(Union::try_new_with_loose_types(inputs)?))
}

/// Times and numbers have no cast between them, and only texts become documents.
fn is_no_cast(from: &DataType, to: &DataType) -> bool {
    if *to == JSONB {
        return !matches!(from, DataType::Utf8 | DataType::Utf8View | DataType::Null);
    }
    if *from == JSONB {
        return !matches!(to, DataType::Utf8 | DataType::Boolean) && !is_number(to);
    }
    // An integer has a truth value, other numbers have none.
    let is_exact = |data_type: &DataType| *data_type == DataType::Int32 || !is_number(data_type);
    if *from == DataType::Boolean && !is_exact(to) || *to == DataType::Boolean && !is_exact(from) {
        return true;
    }
    let is_time = |data_type: &DataType| data_type.is_temporal();
    let is_plain = |data_type: &DataType| is_number(data_type) || *data_type == DataType::Boolean;
    (is_time(from) && is_plain(to)) || (is_plain(from) && is_time(to))
}
