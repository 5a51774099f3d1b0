//! The loops of arithmetic over columns.
//!
//! Each operator has a quick loop, which computes all rows and notes whether any result is doubtful, and an exact one, which
//! stops at the first row that fails. A quick loop has no way out of it, so the compiler can vectorise it; the exact one runs
//! only for a chunk with a doubt, and not for its NULLs.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use arrow::buffer::NullBuffer;
use arrow::compute::try_binary;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, i256,
};
use arrow::error::ArrowError;

use super::{Arithmetic, PRECISION, divide_rounded, out_of_range};
use crate::sql::errors::to_arrow;
use crate::types::{Error, SqlState};

/// What stands on one side of an operator: a column, or an array of one value, not NULL, for all rows.
pub(super) struct Operand {
    pub(super) values: ArrayRef,
    pub(super) constant: bool,
}

/// `left operator right`, of operands of one type, row by row; with two constants, one row.
///
/// # Errors
/// 22012 for a division by zero, 22003 for a result out of range.
pub(super) fn compute(
    operator: Arithmetic,
    left: &Operand,
    right: &Operand,
    result: &DataType,
) -> Result<ArrayRef, ArrowError> {
    Ok(match left.values.data_type() {
        DataType::Int16 => integers::<Int16Type>(operator, left, right)?,
        DataType::Int32 => integers::<Int32Type>(operator, left, right)?,
        DataType::Int64 => integers::<Int64Type>(operator, left, right)?,
        DataType::Float32 => floats::<Float32Type>(operator, left, right)?,
        DataType::Float64 => floats::<Float64Type>(operator, left, right)?,
        DataType::Decimal128(..) => decimals(operator, left, right, result)?,
        other => {
            return Err(to_arrow(Error::internal(format!("no arithmetic on {other}"))));
        }
    })
}

/// An operand by its type.
enum Side<'a, T: ArrowPrimitiveType> {
    Column(&'a PrimitiveArray<T>),
    Constant(T::Native),
}

impl<T: ArrowPrimitiveType> Side<'_, T> {
    fn nulls(&self) -> Option<&NullBuffer> {
        match self {
            Side::Column(values) => values.nulls(),
            Side::Constant(_) => None,
        }
    }
}

fn side<T: ArrowPrimitiveType>(operand: &Operand) -> Result<Side<'_, T>, ArrowError> {
    let values = operand.values.as_primitive_opt::<T>();
    match values {
        Some(values) if !operand.constant => Ok(Side::Column(values)),
        Some(values) if values.len() == 1 => Ok(Side::Constant(values.value(0))),
        _ => Err(to_arrow(Error::internal("operands of different types"))),
    }
}

/// All rows, unless one is doubtful. `apply` gives the result and whether it is.
fn quick<T: ArrowPrimitiveType>(
    left: &Side<'_, T>,
    right: &Side<'_, T>,
    apply: impl Fn(T::Native, T::Native) -> (T::Native, bool),
) -> Option<PrimitiveArray<T>> {
    let mut doubtful = false;
    let mut kept = |(value, doubt)| {
        doubtful |= doubt;
        value
    };
    let values: Vec<T::Native> = match (left, right) {
        (Side::Column(left), Side::Column(right)) => {
            left.values().iter().zip(right.values()).map(|(a, b)| kept(apply(*a, *b))).collect()
        }
        (Side::Column(left), Side::Constant(b)) => left.values().iter().map(|a| kept(apply(*a, *b))).collect(),
        (Side::Constant(a), Side::Column(right)) => right.values().iter().map(|b| kept(apply(*a, *b))).collect(),
        (Side::Constant(a), Side::Constant(b)) => vec![kept(apply(*a, *b))],
    };
    let nulls = NullBuffer::union(left.nulls(), right.nulls());
    (!doubtful).then(|| PrimitiveArray::new(values.into(), nulls))
}

/// All rows that are not NULL, up to the first that fails.
fn exact<T: ArrowPrimitiveType>(
    left: &Side<'_, T>,
    right: &Side<'_, T>,
    apply: impl Fn(T::Native, T::Native) -> Result<T::Native, ArrowError>,
) -> Result<PrimitiveArray<T>, ArrowError> {
    match (left, right) {
        (Side::Column(left), Side::Column(right)) => try_binary(*left, *right, apply),
        (Side::Column(left), Side::Constant(b)) => left.try_unary(|a| apply(a, *b)),
        (Side::Constant(a), Side::Column(right)) => right.try_unary(|b| apply(*a, b)),
        (Side::Constant(a), Side::Constant(b)) => Ok(PrimitiveArray::from_iter_values([apply(*a, *b)?])),
    }
}

fn division_by_zero() -> ArrowError {
    to_arrow(Error::new(SqlState::DivisionByZero, "division by zero"))
}

fn divides(operator: Arithmetic) -> bool {
    matches!(operator, Arithmetic::Divide | Arithmetic::Remainder)
}

/// Integers of one width.
trait Integer: Copy + PartialEq + Default {
    /// The result at this width and whether it overflowed; the divisor is not zero.
    fn overflowing(self, operator: Arithmetic, other: Self) -> (Self, bool);
}

macro_rules! integer {
    ($($native:ty),*) => { $(
        impl Integer for $native {
            #[inline(always)]
            fn overflowing(self, operator: Arithmetic, other: Self) -> (Self, bool) {
                match operator {
                    Arithmetic::Add => self.overflowing_add(other),
                    Arithmetic::Subtract => self.overflowing_sub(other),
                    Arithmetic::Multiply => self.overflowing_mul(other),
                    Arithmetic::Divide => self.overflowing_div(other),
                    // The smallest number modulo -1 is 0, though its quotient overflows.
                    Arithmetic::Remainder => (self.wrapping_rem(other), false),
                }
            }
        }
    )* };
}
integer!(i16, i32, i64);

fn integers<T>(operator: Arithmetic, left: &Operand, right: &Operand) -> Result<ArrayRef, ArrowError>
where
    T: ArrowPrimitiveType,
    T::Native: Integer,
{
    let (left, right) = (side::<T>(left)?, side::<T>(right)?);
    let zero = T::Native::default();
    // One loop an operator: which one it is must not be asked on each row.
    let values = match operator {
        Arithmetic::Add => quick(&left, &right, |a, b| a.overflowing(Arithmetic::Add, b)),
        Arithmetic::Subtract => quick(&left, &right, |a, b| a.overflowing(Arithmetic::Subtract, b)),
        Arithmetic::Multiply => quick(&left, &right, |a, b| a.overflowing(Arithmetic::Multiply, b)),
        Arithmetic::Divide => {
            quick(&left, &right, |a, b| if b == zero { (zero, true) } else { a.overflowing(Arithmetic::Divide, b) })
        }
        Arithmetic::Remainder => {
            quick(&left, &right, |a, b| if b == zero { (zero, true) } else { a.overflowing(Arithmetic::Remainder, b) })
        }
    };
    if let Some(values) = values {
        return Ok(Arc::new(values));
    }
    let values = exact(&left, &right, |a, b| {
        if divides(operator) && b == zero {
            return Err(division_by_zero());
        }
        match a.overflowing(operator, b) {
            (value, false) => Ok(value),
            (_, true) => Err(to_arrow(out_of_range(&T::DATA_TYPE))),
        }
    })?;
    Ok(Arc::new(values))
}

/// Floating point numbers of one width.
trait Float: Copy {
    /// The result with no sign on a zero: what is equal has to be one group and one key.
    fn plain(self, operator: Arithmetic, other: Self) -> Self;
    fn is_zero(self) -> bool;
    fn infinite(self) -> bool;
    fn finite(self) -> bool;
}

macro_rules! float {
    ($($native:ty),*) => { $(
        impl Float for $native {
            #[inline(always)]
            fn plain(self, operator: Arithmetic, other: Self) -> Self {
                let value = match operator {
                    Arithmetic::Add => self + other,
                    Arithmetic::Subtract => self - other,
                    Arithmetic::Multiply => self * other,
                    Arithmetic::Divide => self / other,
                    Arithmetic::Remainder => self % other,
                };
                // Adding zero takes the sign off a zero.
                value + 0.0
            }
            #[inline(always)]
            fn is_zero(self) -> bool {
                self == 0.0
            }
            #[inline(always)]
            fn infinite(self) -> bool {
                self.is_infinite()
            }
            #[inline(always)]
            fn finite(self) -> bool {
                self.is_finite()
            }
        }
    )* };
}
float!(f32, f64);

fn floats<T>(operator: Arithmetic, left: &Operand, right: &Operand) -> Result<ArrayRef, ArrowError>
where
    T: ArrowPrimitiveType,
    T::Native: Float,
{
    let (left, right) = (side::<T>(left)?, side::<T>(right)?);
    // A quotient by zero is not finite.
    let values = match operator {
        Arithmetic::Add => quick(&left, &right, |a, b| {
            let value = a.plain(Arithmetic::Add, b);
            (value, !value.finite())
        }),
        Arithmetic::Subtract => quick(&left, &right, |a, b| {
            let value = a.plain(Arithmetic::Subtract, b);
            (value, !value.finite())
        }),
        Arithmetic::Multiply => quick(&left, &right, |a, b| {
            let value = a.plain(Arithmetic::Multiply, b);
            (value, !value.finite() | (value.is_zero() & !a.is_zero() & !b.is_zero()))
        }),
        Arithmetic::Divide => quick(&left, &right, |a, b| {
            let value = a.plain(Arithmetic::Divide, b);
            (value, !value.finite() | (value.is_zero() & !a.is_zero()))
        }),
        Arithmetic::Remainder => quick(&left, &right, |a, b| {
            let value = a.plain(Arithmetic::Remainder, b);
            (value, !value.finite())
        }),
    };
    if let Some(values) = values {
        return Ok(Arc::new(values));
    }
    let values = exact(&left, &right, |a, b| {
        if divides(operator) && b.is_zero() {
            return Err(division_by_zero());
        }
        let value = a.plain(operator, b);
        if value.infinite() && !a.infinite() && !b.infinite() {
            return Err(to_arrow(out_of_range(&T::DATA_TYPE)));
        }
        let vanished = match operator {
            Arithmetic::Multiply => value.is_zero() && !a.is_zero() && !b.is_zero(),
            Arithmetic::Divide => value.is_zero() && !a.is_zero() && !b.infinite(),
            Arithmetic::Add | Arithmetic::Subtract | Arithmetic::Remainder => false,
        };
        if vanished {
            return Err(to_arrow(Error::new(SqlState::NumericOutOfRange, "value out of range: underflow")));
        }
        Ok(value)
    })?;
    Ok(Arc::new(values))
}

/// Ten to a power, which is at most 76: the largest that fits.
fn power(exponent: i16) -> Option<i256> {
    i256::from_i128(10).checked_pow(u32::try_from(exponent).ok().filter(|exponent| *exponent <= 76)?)
}

/// `value / divisor`, halves away from zero, and whether it overflowed or the divisor is zero.
fn divided(value: i128, divisor: i128) -> (i128, bool) {
    if divisor == 0 {
        return (0, true);
    }
    let (quotient, overflowed) = value.overflowing_div(divisor);
    let (rest, size) = (value.wrapping_rem(divisor).unsigned_abs(), divisor.unsigned_abs());
    // Twice the rest against the divisor, without overflow. A quotient that is rounded is far from the limits.
    let away = if rest < size - rest { 0 } else { value.signum() * divisor.signum() };
    (quotient.wrapping_add(away), overflowed)
}

fn decimals(operator: Arithmetic, left: &Operand, right: &Operand, result: &DataType) -> Result<ArrayRef, ArrowError> {
    let (DataType::Decimal128(_, s1), DataType::Decimal128(_, s2), DataType::Decimal128(precision, scale)) =
        (left.values.data_type(), right.values.data_type(), result)
    else {
        return Err(to_arrow(Error::internal("numerics without a scale")));
    };
    let (precision, scale) = (*precision, *scale);
    let (s1, s2, wanted) = (i16::from(*s1), i16::from(*s2), i16::from(scale));
    let (left, right) = (side::<Decimal128Type>(left)?, side::<Decimal128Type>(right)?);
    let bound = 10_i128.pow(u32::from(PRECISION)).unsigned_abs();
    // The factors do not depend on the row.
    let (raise_left, raise_right) = (power(s1.max(s2) - s1), power(s1.max(s2) - s2));
    let (quotient, product) = (power(wanted - s1 + s2), power(s1 + s2 - wanted));
    let small = |power: Option<i256>| power.and_then(i256::to_i128);
    let values = match (operator, small(raise_left), small(raise_right), small(quotient), small(product)) {
        (Arithmetic::Add, Some(raise_left), Some(raise_right), ..) => quick(&left, &right, |a, b| {
            let ((a, first), (b, second)) = (a.overflowing_mul(raise_left), b.overflowing_mul(raise_right));
            let (value, third) = a.overflowing_add(b);
            (value, first | second | third | (value.unsigned_abs() >= bound))
        }),
        (Arithmetic::Subtract, Some(raise_left), Some(raise_right), ..) => quick(&left, &right, |a, b| {
            let ((a, first), (b, second)) = (a.overflowing_mul(raise_left), b.overflowing_mul(raise_right));
            let (value, third) = a.overflowing_sub(b);
            (value, first | second | third | (value.unsigned_abs() >= bound))
        }),
        (Arithmetic::Multiply, .., Some(1)) => quick(&left, &right, |a, b| {
            let (value, overflowed) = a.overflowing_mul(b);
            (value, overflowed | (value.unsigned_abs() >= bound))
        }),
        (Arithmetic::Multiply, .., Some(product)) => quick(&left, &right, |a, b| {
            let (value, overflowed) = a.overflowing_mul(b);
            let (value, doubt) = divided(value, product);
            (value, overflowed | doubt | (value.unsigned_abs() >= bound))
        }),
        (Arithmetic::Divide, _, _, Some(factor), _) => quick(&left, &right, |a, b| {
            let (value, overflowed) = a.overflowing_mul(factor);
            let (value, doubt) = divided(value, b);
            (value, overflowed | doubt | (value.unsigned_abs() >= bound))
        }),
        _ => None,
    };
    let values = match values {
        Some(values) => values,
        None => exact(&left, &right, |a, b| {
            if divides(operator) && b == 0 {
                return Err(division_by_zero());
            }
            let (a, b) = (i256::from_i128(a), i256::from_i128(b));
            let level = || Some((a.checked_mul(raise_left?)?, b.checked_mul(raise_right?)?));
            let value = match operator {
                Arithmetic::Add => level().and_then(|(a, b)| a.checked_add(b)),
                Arithmetic::Subtract => level().and_then(|(a, b)| a.checked_sub(b)),
                Arithmetic::Remainder => level().and_then(|(a, b)| a.checked_rem(b)),
                Arithmetic::Multiply => a.checked_mul(b).and_then(|value| divide_rounded(value, product?)),
                Arithmetic::Divide => quotient.and_then(|factor| divide_rounded(a.checked_mul(factor)?, b)),
            };
            value
                .and_then(i256::to_i128)
                .filter(|value| value.unsigned_abs() < bound)
                .ok_or_else(|| to_arrow(out_of_range(&DataType::Decimal128(precision, scale))))
        })?,
    };
    Ok(Arc::new(values.with_precision_and_scale(precision, scale)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Decimal128Array, Float64Array, Int64Array};

    fn column(values: impl Array + 'static) -> Operand {
        Operand { values: Arc::new(values), constant: false }
    }

    fn constant(values: impl Array + 'static) -> Operand {
        Operand { values: Arc::new(values), constant: true }
    }

    #[test]
    fn a_constant_stands_on_either_side() {
        let rows = || column(Int64Array::from(vec![Some(17), None, Some(-17)]));
        let ten = || constant(Int64Array::from(vec![10]));
        let result = |operator, left: &Operand, right: &Operand| {
            compute(operator, left, right, &DataType::Int64).expect("no row fails").as_primitive::<Int64Type>().clone()
        };
        assert_eq!(result(Arithmetic::Remainder, &rows(), &ten()), Int64Array::from(vec![Some(7), None, Some(-7)]));
        assert_eq!(result(Arithmetic::Subtract, &ten(), &rows()), Int64Array::from(vec![Some(-7), None, Some(27)]));
        assert_eq!(result(Arithmetic::Divide, &rows(), &ten()), Int64Array::from(vec![Some(1), None, Some(-1)]));
        assert_eq!(result(Arithmetic::Multiply, &rows(), &rows()), Int64Array::from(vec![Some(289), None, Some(289)]));
    }

    #[test]
    fn what_a_null_hides_fails_no_row() {
        // Below the NULL stands a zero, and the largest number.
        let hidden =
            |values: Vec<i64>| column(Int64Array::new(values.into(), Some(NullBuffer::from(vec![true, false]))));
        let divided = compute(Arithmetic::Divide, &hidden(vec![6, 6]), &hidden(vec![3, 0]), &DataType::Int64);
        assert_eq!(divided.expect("fails").as_primitive::<Int64Type>(), &Int64Array::from(vec![Some(2), None]));
        let one = constant(Int64Array::from(vec![1]));
        let sum = compute(Arithmetic::Add, &hidden(vec![6, i64::MAX]), &one, &DataType::Int64);
        assert_eq!(sum.expect("fails").as_primitive::<Int64Type>(), &Int64Array::from(vec![Some(7), None]));
    }

    #[test]
    fn doubles_that_are_not_finite_or_zero_go_on() {
        let rows = column(Float64Array::from(vec![f64::INFINITY, f64::NAN, -0.0, 2.0]));
        let half = constant(Float64Array::from(vec![0.5]));
        let product = compute(Arithmetic::Multiply, &rows, &half, &DataType::Float64).expect("fails");
        let product = product.as_primitive::<Float64Type>().values().to_vec();
        assert_eq!(product[0], f64::INFINITY);
        assert!(product[1].is_nan());
        assert_eq!((product[2].to_bits(), product[3]), (0, 1.0));
        let tiny = column(Float64Array::from(vec![1e-200]));
        assert!(compute(Arithmetic::Multiply, &tiny, &tiny, &DataType::Float64).is_err(), "it vanishes");
    }

    #[test]
    fn numerics_beyond_128_bits_on_the_way_are_exact() {
        let numerics = |values: Vec<i128>, precision, scale| {
            let values = Decimal128Array::from(values).with_precision_and_scale(precision, scale);
            column(values.expect("a numeric"))
        };
        // 10^30 / 3 with 16 digits needs 10^46 on the way; 1 / 8 does not.
        let (large, three) = (numerics(vec![10_i128.pow(30), 1], 38, 0), numerics(vec![3, 8], 38, 10));
        let result = DataType::Decimal128(38, 16);
        let error = compute(Arithmetic::Divide, &large, &three, &result).expect_err("it has too many digits");
        assert!(error.to_string().contains("overflows"), "{error}");
        let (some, eight) = (numerics(vec![1, -1, 15], 38, 0), numerics(vec![8, 16, 1_000_000], 38, 0));
        let quotient = compute(Arithmetic::Divide, &some, &eight, &DataType::Decimal128(38, 3)).expect("fails");
        // 0.125, -0.0625 rounded away from zero, 0.000015.
        assert_eq!(quotient.as_primitive::<Decimal128Type>().values().to_vec(), [125, -63, 0]);
        let (a, b) = (numerics(vec![10_i128.pow(25)], 38, 10), numerics(vec![10_i128.pow(20)], 38, 10));
        // 10^15 * 10^10 = 10^25, with 10 digits after the point: 10^45 on the way.
        let product = compute(Arithmetic::Multiply, &a, &b, &DataType::Decimal128(38, 10)).expect("fails");
        assert_eq!(product.as_primitive::<Decimal128Type>().values().to_vec(), [10_i128.pow(35)]);
    }
}
