//! PostgreSQL's meaning of numbers and casts, put into a logical plan before DataFusion coerces its
//! types; the same for a SELECT and for a view, so that they agree.
//!
//! - Integer literals are `integer` when they fit, then `bigint`, then `numeric`.
//! - `+ - * / %` and the sign on numbers are checked (see [`super::arithmetic`]).
//! - Casts are PostgreSQL's (see [`super::casts`]).
//! - A date minus a date is a number of days, a timestamp minus a timestamp an interval.
//! - UNION refuses columns whose types PostgreSQL cannot match.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, Projection, Union,
    WindowFunctionDefinition,
};

use sqlparser::ast::BinaryOperator;

use super::arithmetic::{Arithmetic, is_number, negate, undefined_operator};
use super::casts::cast;
use super::errors::to_datafusion;
use super::timestamps::timestamp_difference;
use super::types::sql_name;
use crate::types::{Error, SqlState};

/// Puts the meaning into a plan that has not been analysed.
pub(crate) fn apply(plan: LogicalPlan) -> DataFusionResult<LogicalPlan> {
    Ok(plan.transform_up_with_subqueries(|node| node_with_meaning(node).map(Transformed::yes))?.data)
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
            let rows = values
                .values
                .into_iter()
                .map(|row| row.into_iter().map(|expression| expression_with_meaning(expression, &empty)).collect())
                .collect::<DataFusionResult<Vec<Vec<Expr>>>>()?;
            LogicalPlanBuilder::values(rows)?.build()
        }
        LogicalPlan::Union(union) => match_branches(union),
        node => {
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
                    None => Transformed::no(Expr::BinaryExpr(binary)),
                },
                Expr::Negative(inner) => match inner.get_type(schema) {
                    Ok(data_type) if is_number(&data_type) => Transformed::yes(negate(*inner)),
                    _ => Transformed::no(Expr::Negative(inner)),
                },
                Expr::Cast(inner) => match inner.expr.get_type(schema) {
                    // A text that was cast to text is no longer of an unknown type.
                    Ok(from) if from == *inner.field.data_type() => Transformed::no(Expr::Cast(inner)),
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

fn integer_literal(value: &ScalarValue) -> Option<ScalarValue> {
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
    let days = |date: Expr| datafusion::logical_expr::cast(date, DataType::Int32);
    let date = |days: Expr| datafusion::logical_expr::cast(days, DataType::Date32);
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
        (DataType::Date32, r) if r.is_integer() && (plus || minus) => date(operator.call(days(a), b)),
        (l, DataType::Date32) if l.is_integer() && plus => date(operator.call(a, days(b))),
        (DataType::Date32, DataType::Date32) if minus => operator.call(days(a), days(b)),
        (l, r) if minus && is_moment(l) && is_moment(r) => timestamp_difference(a, b),
        _ => return Ok(Planned::Other(a, b)),
    }))
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
        Ok(match arithmetic_with_meaning(operator, left, right, schema)? {
            Planned::Meant(expression) => PlannerResult::Planned(expression),
            Planned::Other(left, right) => PlannerResult::Original(RawBinaryExpr { op, left, right }),
        })
    }
}

/// What PostgreSQL calls a type's category: types of one category match in a UNION.
fn category(data_type: &DataType) -> u8 {
    match data_type {
        data_type if is_number(data_type) => 1,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => 2,
        DataType::Boolean => 3,
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => 4,
        DataType::Time32(_) | DataType::Time64(_) => 5,
        DataType::Interval(_) | DataType::Duration(_) => 6,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => 7,
        DataType::FixedSizeBinary(_) => 8,
        DataType::List(_) => 9,
        DataType::Struct(_) => 10,
        DataType::Map(..) => 11,
        _ => 0,
    }
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
