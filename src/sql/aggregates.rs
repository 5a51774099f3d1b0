//! Aggregate calls of a logical plan, as the operators of a job take them.

use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::{AggregateFunction as PlannedFunction, Sort};

use super::errors::near_miss;
use super::lower::text_literal;
use super::view_checks::refuse;
use crate::exec::plan::AggregateFunction;
use crate::types::{Error, Result};

/// A call before its argument has a column.
pub(crate) struct Call {
    pub(crate) function: AggregateFunction,
    pub(crate) argument: Option<Expr>,
    pub(crate) distinct: bool,
    pub(crate) filter: Option<Expr>,
}

const NAMES: &[&str] = &[
    "count",
    "sum",
    "avg",
    "min",
    "max",
    "bool_and",
    "bool_or",
    "var_samp",
    "var_pop",
    "stddev_samp",
    "stddev_pop",
    "string_agg",
    "array_agg",
];

fn function(name: &str, delimiter: Option<&str>) -> Option<AggregateFunction> {
    Some(match name {
        "count" => AggregateFunction::Count,
        "sum" => AggregateFunction::Sum,
        "avg" | "mean" => AggregateFunction::Avg,
        "min" => AggregateFunction::Min,
        "max" => AggregateFunction::Max,
        "bool_and" | "every" => AggregateFunction::BoolAnd,
        "bool_or" => AggregateFunction::BoolOr,
        "var" | "variance" | "var_samp" | "var_sample" => AggregateFunction::VarSamp,
        "var_pop" | "var_population" => AggregateFunction::VarPop,
        "stddev" | "stddev_samp" => AggregateFunction::StddevSamp,
        "stddev_pop" => AggregateFunction::StddevPop,
        "string_agg" => AggregateFunction::StringAgg { delimiter: delimiter?.to_owned() },
        "array_agg" => AggregateFunction::ArrayAgg,
        _ => return None,
    })
}

/// Reads an aggregate expression of a plan.
///
/// # Errors
/// 0A000 for functions and forms that are not kept current.
pub(crate) fn call(expression: &Expr) -> Result<Call> {
    let inner = expression.clone().unalias();
    let Expr::AggregateFunction(PlannedFunction { func, params }) = inner else {
        return Err(Error::internal(format!("{expression} stands where an aggregate should")));
    };
    let name = func.name().to_lowercase();
    let delimiter = params.args.get(1).and_then(text_literal).map(str::to_owned);
    if name == "string_agg" && delimiter.is_none() {
        return Err(refuse("string_agg with a delimiter that is not a literal", "Write string_agg(column, ', ')."));
    }
    let Some(function) = function(&name, delimiter.as_deref()) else {
        let hint = match near_miss(&name, NAMES.iter().copied()) {
            Some(near) => format!("Perhaps you meant {near}."),
            None => format!("The aggregates of materialized views are {}.", NAMES.join(", ")),
        };
        return Err(refuse(&format!("aggregate {name}"), &hint));
    };
    let ordered_by_value = matches!(function, AggregateFunction::StringAgg { .. } | AggregateFunction::ArrayAgg);
    if ordered_by_value && !params.order_by.is_empty() && !is_value_order(&params.order_by, params.args.first()) {
        return Err(refuse(
            &format!("{name} with ORDER BY"),
            "Leave ORDER BY out: the values come in their own ascending order.",
        ));
    }
    if params.null_treatment.is_some() {
        return Err(refuse("IGNORE NULLS or RESPECT NULLS", "Filter with FILTER (WHERE x IS NOT NULL)."));
    }
    let arguments_taken = if name == "string_agg" { 2 } else { 1 };
    if params.args.len() > arguments_taken {
        return Err(refuse(&format!("{name} of several arguments"), "Aggregate one expression."));
    }
    let argument = params.args.into_iter().next();
    // `count(*)` is planned as the count of a literal that is never NULL.
    let counts_rows = function == AggregateFunction::Count
        && !params.distinct
        && argument.as_ref().is_none_or(|argument| matches!(argument, Expr::Literal(value, _) if !value.is_null()));
    // Duplicates change nothing in these.
    let distinct = params.distinct
        && !matches!(
            function,
            AggregateFunction::Min | AggregateFunction::Max | AggregateFunction::BoolAnd | AggregateFunction::BoolOr
        );
    Ok(Call {
        function,
        argument: if counts_rows { None } else { argument },
        distinct,
        filter: params.filter.map(|filter| *filter),
    })
}

/// True when the order asked for is the one that the values come in.
fn is_value_order(order: &[Sort], argument: Option<&Expr>) -> bool {
    matches!(order, [Sort { expr, asc: true, nulls_first: false }] if Some(expr) == argument)
}
