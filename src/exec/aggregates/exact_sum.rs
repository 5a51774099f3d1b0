//! `sum` and `avg` of integers and numerics: exact, with the range checked when the result is asked
//! for, so that a sum which was too great comes back when rows go.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowPrimitiveType, AsArray, Decimal128Array, Int64Array};
use arrow::datatypes::{DataType, Decimal128Type, Int16Type, Int32Type, Int64Type, i256};

use super::{Accumulator, Changes, take};
use crate::state::{KeyIndex, Slot};
use crate::types::{Error, Result, SqlState};

/// The sum or mean of an integer or numeric argument.
pub(super) fn exact_sum(argument: &DataType, result: &DataType, mean: bool) -> Result<Box<dyn Accumulator>> {
    let (scale, output) = match (argument, result) {
        (DataType::Decimal128(_, scale), _) => (*scale, Output::of(result)),
        _ => (0, Output::of(result)),
    };
    let Some(output) = output else {
        return Err(Error::internal(format!("an exact sum cannot result in {result}")));
    };
    Ok(match argument {
        DataType::Int16 => Box::new(ExactSum::<Int16Type, i128>::new(scale, mean, output)),
        DataType::Int32 => Box::new(ExactSum::<Int32Type, i128>::new(scale, mean, output)),
        DataType::Int64 => Box::new(ExactSum::<Int64Type, i128>::new(scale, mean, output)),
        DataType::Decimal128(..) => Box::new(ExactSum::<Decimal128Type, i256>::new(scale, mean, output)),
        other => return Err(Error::internal(format!("an exact sum was given {other}"))),
    })
}

#[derive(Clone, Copy, Debug)]
enum Output {
    Int64,
    Decimal { precision: u8, scale: i8 },
}

impl Output {
    fn of(data_type: &DataType) -> Option<Output> {
        match data_type {
            DataType::Int64 => Some(Output::Int64),
            DataType::Decimal128(precision, scale) => Some(Output::Decimal { precision: *precision, scale: *scale }),
            _ => None,
        }
    }
}

/// A sum wide enough that no number of rows overflows it.
trait Wide: Copy + Default + Send + Sync + fmt::Debug + 'static {
    type Bytes: AsRef<[u8]>;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn to_le_bytes(self) -> Self::Bytes;
    fn take(input: &mut &[u8]) -> Result<Self>;
    fn to_i256(self) -> i256;
}

/// Adds a value `diff` times.
trait Addend<W> {
    fn times(self, diff: i64) -> W;
}

impl Wide for i128 {
    type Bytes = [u8; 16];
    fn plus(self, other: i128) -> i128 {
        self.wrapping_add(other)
    }
    fn minus(self, other: i128) -> i128 {
        self.wrapping_sub(other)
    }
    fn to_le_bytes(self) -> [u8; 16] {
        i128::to_le_bytes(self)
    }
    fn take(input: &mut &[u8]) -> Result<i128> {
        Ok(i128::from_le_bytes(take(input)?))
    }
    fn to_i256(self) -> i256 {
        i256::from_i128(self)
    }
}

impl Wide for i256 {
    type Bytes = [u8; 32];
    fn plus(self, other: i256) -> i256 {
        self.wrapping_add(other)
    }
    fn minus(self, other: i256) -> i256 {
        self.wrapping_sub(other)
    }
    fn to_le_bytes(self) -> [u8; 32] {
        i256::to_le_bytes(self)
    }
    fn take(input: &mut &[u8]) -> Result<i256> {
        Ok(i256::from_le_bytes(take(input)?))
    }
    fn to_i256(self) -> i256 {
        self
    }
}

macro_rules! integer_addends {
    ($($native:ty),*) => {$(
        impl Addend<i128> for $native {
            fn times(self, diff: i64) -> i128 {
                i128::from(self) * i128::from(diff)
            }
        }
    )*};
}
integer_addends!(i16, i32, i64);

impl Addend<i256> for i128 {
    fn times(self, diff: i64) -> i256 {
        i256::from_i128(self).wrapping_mul(i256::from_i128(i128::from(diff)))
    }
}

#[derive(Debug)]
struct ExactSum<T, W> {
    scale: i8,
    mean: bool,
    output: Output,
    sums: Vec<W>,
    counts: Vec<i64>,
    argument: PhantomData<fn(T)>,
}

impl<T, W> ExactSum<T, W> {
    fn new(scale: i8, mean: bool, output: Output) -> ExactSum<T, W> {
        ExactSum { scale, mean, output, sums: Vec::new(), counts: Vec::new(), argument: PhantomData }
    }
}

impl<T: ArrowPrimitiveType + fmt::Debug, W: Wide> ExactSum<T, W>
where
    T::Native: Addend<W>,
{
    /// The result in units of the output's scale; `None` for a group without arguments.
    fn result(&self, slot: Slot, output_scale: i8) -> Result<Option<i128>> {
        let (sum, count) = (self.sums[slot as usize].to_i256(), self.counts[slot as usize]);
        if count == 0 {
            return Ok(None);
        }
        if !self.mean && output_scale == self.scale {
            return sum.to_i128().map(Some).ok_or_else(overflow);
        }
        let divisor = if self.mean { i256::from_i128(i128::from(count)) } else { i256::ONE };
        rescale(sum, divisor, output_scale - self.scale).and_then(i256::to_i128).map(Some).ok_or_else(overflow)
    }
}

fn overflow() -> Error {
    Error::new(SqlState::NumericOutOfRange, "value overflows numeric format")
}

/// `sum * 10^digits / divisor`, rounded half away from zero; `None` on overflow.
fn rescale(sum: i256, divisor: i256, digits: i8) -> Option<i256> {
    let power = i256::from_i128(10).checked_pow(u32::from(digits.unsigned_abs()))?;
    let (dividend, divisor) =
        if digits >= 0 { (sum.checked_mul(power)?, divisor) } else { (sum, divisor.checked_mul(power)?) };
    let quotient = dividend.checked_div(divisor)?;
    let remainder = dividend.checked_rem(divisor)?;
    let twice = remainder.checked_abs()?.checked_mul(i256::from_i128(2))?;
    if twice < divisor {
        Some(quotient)
    } else if dividend.is_negative() {
        quotient.checked_sub(i256::ONE)
    } else {
        quotient.checked_add(i256::ONE)
    }
}

impl<T: ArrowPrimitiveType + fmt::Debug, W: Wide> Accumulator for ExactSum<T, W>
where
    T::Native: Addend<W>,
{
    fn resize(&mut self, slots: usize) {
        if self.sums.len() < slots {
            self.sums.resize(slots, W::default());
            self.counts.resize(slots, 0);
        }
    }

    fn update(&mut self, changes: &Changes<'_>) -> Result<()> {
        let values = changes.values()?;
        let values = values
            .as_primitive_opt::<T>()
            .ok_or_else(|| Error::internal(format!("a sum was given {} for {}", values.data_type(), T::DATA_TYPE)))?;
        let (sums, counts) = (&mut self.sums, &mut self.counts);
        changes.for_each_value(values, |row, slot, diff| {
            sums[slot] = sums[slot].plus(values.value(row).times(diff));
            counts[slot] += diff;
        });
        Ok(())
    }

    fn evaluate(&mut self, slots: &[Slot]) -> Result<ArrayRef> {
        match self.output {
            Output::Int64 => {
                let results = slots.iter().map(|slot| {
                    self.result(*slot, 0)?
                        .map(|sum| {
                            i64::try_from(sum)
                                .map_err(|_| Error::new(SqlState::NumericOutOfRange, "bigint out of range"))
                        })
                        .transpose()
                });
                Ok(Arc::new(results.collect::<Result<Int64Array>>()?))
            }
            Output::Decimal { precision, scale } => {
                let limit = 10_i128.checked_pow(u32::from(precision)).unwrap_or(i128::MAX);
                let results = slots.iter().map(|slot| match self.result(*slot, scale)? {
                    Some(value) if value.unsigned_abs() >= limit.unsigned_abs() => Err(overflow()),
                    other => Ok(other),
                });
                let results = results.collect::<Result<Decimal128Array>>()?;
                Ok(Arc::new(results.with_precision_and_scale(precision, scale)?))
            }
        }
    }

    fn clear(&mut self, _: &KeyIndex, slot: Slot) {
        self.sums[slot as usize] = W::default();
        self.counts[slot as usize] = 0;
    }

    fn encode(&self, slot: Slot, out: &mut Vec<u8>) {
        out.extend_from_slice(self.sums[slot as usize].to_le_bytes().as_ref());
        out.extend_from_slice(&self.counts[slot as usize].to_le_bytes());
    }

    fn decode(&mut self, slot: Slot, input: &mut &[u8]) -> Result<()> {
        let slot = slot as usize;
        self.sums[slot] = self.sums[slot].plus(W::take(input)?);
        self.counts[slot] += i64::from_le_bytes(take(input)?);
        Ok(())
    }

    fn take_back(&mut self, _: &KeyIndex, slot: Slot, input: &mut &[u8]) -> Result<()> {
        let slot = slot as usize;
        self.sums[slot] = self.sums[slot].minus(W::take(input)?);
        self.counts[slot] -= i64::from_le_bytes(take(input)?);
        Ok(())
    }
}
