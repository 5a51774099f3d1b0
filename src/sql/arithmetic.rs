//! PostgreSQL's arithmetic on numbers: checked, and with its result types.
//!
//! | operands | result |
//! | --- | --- |
//! | integers | the wider of the two; overflow is an error at that width |
//! | numeric with numeric or integer | numeric; `/` keeps at least 16 digits after the point |
//! | real with real | real |
//! | anything else with a double or real | double precision |
//!
//! Division by zero is an error for every type, as is a double that overflows or underflows.

mod kernels;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, i256,
};
use arrow::error::ArrowError;
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use self::kernels::{Operand, compute};
use super::errors::{to_arrow, to_datafusion};
use super::types::sql_name;
use crate::types::{Error, SqlState};

/// Digits after the point that a quotient of numerics has at least.
const QUOTIENT_SCALE: i8 = 16;
/// Digits after the point that a product of numerics has at most when it could need more than 38
/// digits.
const PRODUCT_SCALE: i8 = 20;
const PRECISION: u8 = 38;

/// The operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

impl Arithmetic {
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Arithmetic::Add => "+",
            Arithmetic::Subtract => "-",
            Arithmetic::Multiply => "*",
            Arithmetic::Divide => "/",
            Arithmetic::Remainder => "%",
        }
    }

    fn function_name(self) -> &'static str {
        match self {
            Arithmetic::Add => "checked_add",
            Arithmetic::Subtract => "checked_subtract",
            Arithmetic::Multiply => "checked_multiply",
            Arithmetic::Divide => "checked_divide",
            Arithmetic::Remainder => "checked_remainder",
        }
    }

    /// `left op right` as a call.
    pub(crate) fn call(self, left: Expr, right: Expr) -> Expr {
        let function = CheckedArithmetic { operator: self, signature: Signature::user_defined(Volatility::Immutable) };
        ScalarUDF::new_from_impl(function).call(vec![left, right])
    }
}

/// `-value` as a call.
pub(crate) fn negate(value: Expr) -> Expr {
    ScalarUDF::new_from_impl(Negate { signature: Signature::user_defined(Volatility::Immutable) }).call(vec![value])
}

/// True for names of functions here, which can fail on a row.
pub(crate) fn is_checked(name: &str) -> bool {
    name.starts_with("checked_")
        || name == super::casts::NAME
        || super::math::is_checked(name)
        || super::row_functions::is_checked(name)
}

/// A number's type as it takes part in arithmetic.
fn operand(data_type: &DataType) -> Option<DataType> {
    use DataType::*;
    Some(match data_type {
        Int8 | UInt8 | Int16 => Int16,
        UInt16 | Int32 => Int32,
        UInt32 | UInt64 | Int64 => Int64,
        Float16 | Float32 => Float32,
        Float64 => Float64,
        Decimal128(precision, scale) => Decimal128(*precision, *scale),
        Decimal32(_, scale) | Decimal64(_, scale) | Decimal256(_, scale) => Decimal128(PRECISION, *scale),
        Dictionary(_, value) => return operand(value),
        _ => return None,
    })
}

/// True for types that this arithmetic is about.
pub(crate) fn is_number(data_type: &DataType) -> bool {
    operand(data_type).is_some()
}

/// The types that both operands are brought to.
fn promote(left: &DataType, right: &DataType) -> Option<(DataType, DataType)> {
    use DataType::*;
    let (left, right) = match (operand(left), operand(right)) {
        (Some(left), Some(right)) => (left, right),
        (Some(number), None) if *right == Null => (number.clone(), number),
        (None, Some(number)) if *left == Null => (number.clone(), number),
        _ => return None,
    };
    let as_decimal = |integer: &DataType| match integer {
        Int16 => Decimal128(5, 0),
        Int32 => Decimal128(10, 0),
        _ => Decimal128(19, 0),
    };
    Some(match (&left, &right) {
        (Float32, Float32) => (Float32, Float32),
        (Float32 | Float64, _) | (_, Float32 | Float64) => (Float64, Float64),
        (Decimal128(..), Decimal128(..)) => (left, right),
        (Decimal128(..), integer) => {
            let right = as_decimal(integer);
            (left, right)
        }
        (integer, Decimal128(..)) => (as_decimal(integer), right),
        (Int64, _) | (_, Int64) => (Int64, Int64),
        (Int32, _) | (_, Int32) => (Int32, Int32),
        _ => (Int16, Int16),
    })
}

/// The result's type over promoted operands.
fn result(operator: Arithmetic, left: &DataType, right: &DataType) -> DataType {
    let (DataType::Decimal128(p1, s1), DataType::Decimal128(p2, s2)) = (left, right) else {
        return left.clone();
    };
    let (p1, p2, s1, s2) = (i16::from(*p1), i16::from(*p2), i16::from(*s1), i16::from(*s2));
    let scale = s1.max(s2);
    let whole = (p1 - s1).max(p2 - s2);
    let (precision, scale) = match operator {
        Arithmetic::Add | Arithmetic::Subtract => (whole + scale + 1, scale),
        Arithmetic::Multiply if p1 + p2 < i16::from(PRECISION) || s1 + s2 <= i16::from(PRODUCT_SCALE) => {
            (p1 + p2 + 1, s1 + s2)
        }
        Arithmetic::Multiply => (i16::from(PRECISION), scale.max(i16::from(PRODUCT_SCALE))),
        Arithmetic::Divide => (i16::from(PRECISION), scale.max(i16::from(QUOTIENT_SCALE))),
        Arithmetic::Remainder => (whole + scale, scale),
    };
    // At most 38 after the clamp; scales stay within what the operands had or 20.
    DataType::Decimal128(precision.clamp(1, i16::from(PRECISION)) as u8, scale as i8)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct CheckedArithmetic {
    operator: Arithmetic,
    signature: Signature,
}

impl CheckedArithmetic {
    fn undefined(&self, types: &[DataType]) -> DataFusionError {
        let names: Vec<String> = types.iter().map(sql_name).collect();
        to_datafusion(undefined_operator(self.operator.symbol(), &names))
    }
}

/// 42883 for an operator.
pub(crate) fn undefined_operator(symbol: &str, types: &[String]) -> Error {
    let operands = match types {
        [left, right] => format!("{left} {symbol} {right}"),
        _ => format!("{symbol} {}", types.join(", ")),
    };
    Error::new(SqlState::UndefinedFunction, format!("operator does not exist: {operands}"))
        .hint("No operator matches the given name and argument types. You might need to add explicit type casts.")
}

impl ScalarUDFImpl for CheckedArithmetic {
    fn name(&self) -> &str {
        self.operator.function_name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DataFusionResult<Vec<DataType>> {
        match types {
            [left, right] => {
                promote(left, right).map(|(left, right)| vec![left, right]).ok_or_else(|| self.undefined(types))
            }
            _ => Err(self.undefined(types)),
        }
    }

    fn return_type(&self, types: &[DataType]) -> DataFusionResult<DataType> {
        match types {
            [left, right] => {
                let (left, right) = promote(left, right).ok_or_else(|| self.undefined(types))?;
                Ok(result(self.operator, &left, &right))
            }
            _ => Err(self.undefined(types)),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let [left, right] = args.args.as_slice() else {
            return Err(to_datafusion(Error::internal("an operator takes two arguments")));
        };
        let result = args.return_field.data_type();
        let is_null = |side: &ColumnarValue| matches!(side, ColumnarValue::Scalar(value) if value.is_null());
        if is_null(left) || is_null(right) {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_new_null(result)?));
        }
        let operand = |side: &ColumnarValue| {
            let constant = matches!(side, ColumnarValue::Scalar(_));
            Ok::<_, DataFusionError>(Operand {
                values: side.to_array(if constant { 1 } else { args.number_rows })?,
                constant,
            })
        };
        let (left, right) = (operand(left)?, operand(right)?);
        let values = compute(self.operator, &left, &right, result)?;
        if left.constant && right.constant {
            Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&values, 0)?))
        } else {
            Ok(ColumnarValue::Array(values))
        }
    }
}

pub(crate) fn out_of_range(data_type: &DataType) -> Error {
    let message = match data_type {
        DataType::Float32 | DataType::Float64 => "value out of range: overflow".to_owned(),
        DataType::Decimal128(..) => "value overflows numeric format".to_owned(),
        other => format!("{} out of range", sql_name(other)),
    };
    Error::new(SqlState::NumericOutOfRange, message)
}

/// `value / divisor`, halves away from zero.
pub(crate) fn divide_rounded(value: i256, divisor: i256) -> Option<i256> {
    let quotient = value.checked_div(divisor)?;
    let rest = value.checked_rem(divisor)?;
    // Twice the rest against the divisor, without overflow: rest >= divisor - rest.
    let (rest_size, divisor_size) = (rest.wrapping_abs(), divisor.wrapping_abs());
    if rest_size < divisor_size.wrapping_sub(rest_size) || rest == i256::ZERO {
        return Some(quotient);
    }
    let away = if (value < i256::ZERO) == (divisor < i256::ZERO) { i256::ONE } else { i256::MINUS_ONE };
    quotient.checked_add(away)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Negate {
    signature: Signature,
}

impl ScalarUDFImpl for Negate {
    fn name(&self) -> &str {
        "checked_negate"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DataFusionResult<Vec<DataType>> {
        self.return_type(types).map(|data_type| vec![data_type])
    }

    fn return_type(&self, types: &[DataType]) -> DataFusionResult<DataType> {
        let names: Vec<String> = types.iter().map(sql_name).collect();
        match types {
            [value] => operand(value).ok_or_else(|| to_datafusion(undefined_operator("-", &names))),
            _ => Err(to_datafusion(undefined_operator("-", &names))),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let Some(value) = args.args.first() else {
            return Err(to_datafusion(Error::internal("a sign takes one argument")));
        };
        let constant = matches!(value, ColumnarValue::Scalar(_));
        let values = value.to_array(if constant { 1 } else { args.number_rows })?;
        let negated = negated(&values)?;
        if constant {
            Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&negated, 0)?))
        } else {
            Ok(ColumnarValue::Array(negated))
        }
    }
}

fn negated(values: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    fn checked<T: ArrowPrimitiveType>(
        values: &ArrayRef,
        negate: impl Fn(T::Native) -> Option<T::Native>,
    ) -> Result<ArrayRef, ArrowError> {
        let values = values.as_primitive::<T>();
        let negated: PrimitiveArray<T> =
            values.try_unary(|value| negate(value).ok_or_else(|| to_arrow(out_of_range(values.data_type()))))?;
        Ok(Arc::new(negated.with_data_type(values.data_type().clone())))
    }
    match values.data_type() {
        DataType::Int16 => checked::<Int16Type>(values, i16::checked_neg),
        DataType::Int32 => checked::<Int32Type>(values, i32::checked_neg),
        DataType::Int64 => checked::<Int64Type>(values, i64::checked_neg),
        // Zero has no sign here: what is equal has to be one group and one key.
        DataType::Float32 => checked::<Float32Type>(values, |value| Some(0.0 - value)),
        DataType::Float64 => checked::<Float64Type>(values, |value| Some(0.0 - value)),
        DataType::Decimal128(..) => checked::<Decimal128Type>(values, i128::checked_neg),
        other => Err(to_arrow(Error::internal(format!("no sign on {other}")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_round_halves_away_from_zero() {
        let rounded = |value: i128, divisor: i128| {
            divide_rounded(i256::from_i128(value), i256::from_i128(divisor)).and_then(i256::to_i128)
        };
        assert_eq!(rounded(5, 2), Some(3));
        assert_eq!(rounded(-5, 2), Some(-3));
        assert_eq!(rounded(5, -2), Some(-3));
        assert_eq!(rounded(4, 3), Some(1));
        assert_eq!(rounded(-5, 3), Some(-2));
        assert_eq!(rounded(7, 1), Some(7));
    }

    #[test]
    fn types_are_postgresqls() {
        use DataType::*;
        let of = |operator, left: &DataType, right: &DataType| {
            let (left, right) = promote(left, right).expect("numbers");
            result(operator, &left, &right)
        };
        assert_eq!(of(Arithmetic::Add, &Int16, &Int16), Int16);
        assert_eq!(of(Arithmetic::Add, &Int16, &Int32), Int32);
        assert_eq!(of(Arithmetic::Divide, &Int32, &Int64), Int64);
        assert_eq!(of(Arithmetic::Add, &Float32, &Int32), Float64);
        assert_eq!(of(Arithmetic::Multiply, &Decimal128(12, 2), &Decimal128(2, 1)), Decimal128(15, 3));
        assert_eq!(of(Arithmetic::Divide, &Decimal128(9, 3), &Int32), Decimal128(38, 16));
        assert_eq!(of(Arithmetic::Add, &Decimal128(12, 2), &Int32), Decimal128(13, 2));
        assert_eq!(promote(&Utf8, &Int32), None);
    }
}
