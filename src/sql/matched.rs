//! Values that stand together: texts without a type take that of the others, and types of different kinds are refused.

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, ExprSchemable};

use super::arithmetic::is_number;
use super::cast_text::numeric_from_text;
use super::casts::cast;
use super::errors::to_datafusion;
use super::types::sql_name;
use crate::types::{Error, SqlState};

/// What PostgreSQL calls a type's category: types of one category match in a UNION.
pub(crate) fn category(data_type: &DataType) -> u8 {
    match data_type {
        data_type if is_number(data_type) => 1,
        DataType::Utf8 | DataType::Utf8View => 2,
        DataType::Boolean => 3,
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => 4,
        DataType::Time32(_) | DataType::Time64(_) => 5,
        DataType::Interval(_) | DataType::Duration(_) => 6,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => 7,
        DataType::FixedSizeBinary(_) => 8,
        DataType::List(_) => 9,
        DataType::Struct(_) => 10,
        DataType::Map(..) => 11,
        DataType::LargeUtf8 => 12,
        _ => 0,
    }
}

/// True for a text without a type of its own.
pub(crate) fn is_untyped(expression: &Expr) -> bool {
    matches!(expression, Expr::Literal(ScalarValue::Utf8(_), _))
}

/// The type of the first value that has one.
fn known(expressions: &[Expr], schema: &DFSchema) -> Option<DataType> {
    let typed = expressions.iter().filter(|expression| !is_untyped(expression));
    typed.filter_map(|expression| expression.get_type(schema).ok()).find(|data_type| *data_type != DataType::Null)
}

/// Gives texts without a type that of the operands beside them.
pub(crate) fn with_typed_texts(operands: Vec<Expr>, schema: &DFSchema) -> Vec<Expr> {
    match known(&operands, schema) {
        Some(beside) if matches!(category(&beside), 1 | 3..=9) => {
            operands.into_iter().map(|operand| typed(operand, &beside)).collect()
        }
        _ => operands,
    }
}

fn typed(operand: Expr, beside: &DataType) -> Expr {
    let Expr::Literal(ScalarValue::Utf8(Some(text)), _) = &operand else { return operand };
    let to = match beside {
        // Not rounded to the digits of a column.
        DataType::Decimal128(precision, scale) => {
            let digits = text.trim().split_once('.').map_or(0, |(_, fraction)| fraction.len());
            let fits =
                digits <= usize::from(scale.unsigned_abs()) && numeric_from_text(text, *precision, *scale).is_ok();
            let wanted = i8::try_from(digits.min(38)).map_or(*scale, |digits| digits.max(*scale));
            if fits { beside.clone() } else { DataType::Decimal128(38, wanted) }
        }
        other => other.clone(),
    };
    cast(operand, &DataType::Utf8, &to)
}

/// The values of a CASE, COALESCE or the like, with one kind of type.
///
/// # Errors
/// 42804.
pub(crate) fn of_one_kind(context: &str, values: Vec<Expr>, schema: &DFSchema) -> Result<Vec<Expr>> {
    let Some(first) = known(&values, schema) else { return Ok(values) };
    for value in &values {
        if let Ok(other) = value.get_type(schema)
            && !is_untyped(value)
            && differ(&first, &other)
        {
            let message = format!("{context} types {} and {} cannot be matched", sql_name(&first), sql_name(&other));
            let error = Error::new(SqlState::DatatypeMismatch, message);
            return Err(to_datafusion(error.hint("Cast one of the values, such as column::text.")));
        }
    }
    Ok(with_typed_texts(values, schema))
}

/// True for types that have no operator between them.
pub(crate) fn differ(left: &DataType, right: &DataType) -> bool {
    let (left, right) = (category(left), category(right));
    left != 0 && right != 0 && left != right
}
