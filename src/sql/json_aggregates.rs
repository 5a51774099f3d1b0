//! `jsonb_agg` and `jsonb_object_agg`, said by `array_agg`: so they are kept in views as it is, in the same order.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, AsArray as _, LargeStringArray};
use arrow::datatypes::DataType;
use sqlparser::ast::{
    Expr, Function as Call, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectName, ObjectNamePart,
};

use super::catalog_queries::call;
use super::reader::fold;
use super::row_functions::{Arguments, Function};
use crate::types::{Error, JSONB, Result, SqlState, json};

pub(crate) const FUNCTIONS: &[Function] = &[Function { name: OBJECT, returns, answer }];

/// What makes one document of names and values.
const OBJECT: &str = "jsonb_object_of_pairs";

fn returns(types: &[DataType]) -> Option<DataType> {
    match types {
        [DataType::List(pair)] if matches!(pair.data_type(), DataType::LargeUtf8 | DataType::Null) => Some(JSONB),
        [DataType::Null] => Some(JSONB),
        _ => None,
    }
}

/// The call that stands for one of these aggregates; `None` for other functions.
pub(crate) fn rewritten(function: &Call) -> Option<Expr> {
    let [ObjectNamePart::Identifier(name)] = function.name.0.as_slice() else { return None };
    let FunctionArguments::List(list) = &function.args else { return None };
    let (outer, argument) = match (fold(name).as_str(), list.args.as_slice()) {
        ("jsonb_agg" | "json_agg", [argument]) => ("to_jsonb", argument.clone()),
        (
            "jsonb_object_agg" | "json_object_agg",
            [FunctionArg::Unnamed(FunctionArgExpr::Expr(key)), FunctionArg::Unnamed(FunctionArgExpr::Expr(value))],
        ) => {
            let pair = call("jsonb_build_array", vec![key.clone(), value.clone()])?;
            (OBJECT, FunctionArg::Unnamed(FunctionArgExpr::Expr(pair)))
        }
        _ => return None,
    };
    // With all clauses: DISTINCT, ORDER BY, FILTER, OVER.
    let mut inner = function.clone();
    let array = Ident { value: "array_agg".into(), quote_style: None, span: name.span };
    inner.name = ObjectName(vec![ObjectNamePart::Identifier(array)]);
    if let FunctionArguments::List(list) = &mut inner.args {
        list.args = vec![argument];
    }
    call(outer, vec![Expr::Function(inner)])
}

fn answer(arguments: &Arguments) -> Result<ArrayRef> {
    let lists = arguments.column(0)?;
    let Some(lists) = lists.as_list_opt::<i32>() else {
        return Ok(Arc::new(LargeStringArray::new_null(arguments.rows)));
    };
    let objects = (0..arguments.rows).map(|row| {
        if lists.is_null(row) {
            return Ok(None);
        }
        let pairs = lists.value(row);
        let Some(pairs) = pairs.as_string_opt::<i64>() else { return Ok(None) };
        let mut members = Vec::with_capacity(pairs.len());
        for pair in pairs.iter().flatten() {
            let key = json::element(pair, 0)?.map(json::as_text).transpose()?.flatten().ok_or_else(|| {
                Error::new(SqlState::InvalidParameterValue, "field name must not be null")
                    .hint("Leave such rows out: FILTER (WHERE name IS NOT NULL).")
            })?;
            members.push((key, Cow::Borrowed(json::element(pair, 1)?.unwrap_or("null"))));
        }
        json::object(members).map(Some)
    });
    Ok(Arc::new(objects.collect::<Result<LargeStringArray>>()?))
}
