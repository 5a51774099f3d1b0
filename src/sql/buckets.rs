//! `width_bucket(operand, low, high, count)`: the number of the bucket that a value falls into.

use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, AsArray as _, Int32Array};
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, i256};

use super::arithmetic::{is_number, out_of_range};
use super::row_functions::{Arguments, Function};
use crate::types::{Error, Result, SqlState};

pub(crate) const FUNCTIONS: &[Function] = &[Function { name: "width_bucket", returns, answer }];

fn is_exact(types: &[DataType]) -> bool {
    let exact = |data_type: &DataType| matches!(data_type, DataType::Decimal128(..));
    types.iter().any(exact) && types.iter().all(|data_type| exact(data_type) || data_type.is_integer())
}

fn returns(types: &[DataType]) -> Option<DataType> {
    let number = |data_type: &DataType| is_number(data_type) || matches!(data_type, DataType::Null | DataType::Utf8);
    let [_, _, _, count] = types else { return None };
    let whole = count.is_integer() || *count == DataType::Null;
    (whole && types.iter().all(number)).then_some(DataType::Int32)
}

fn answer(arguments: &Arguments) -> Result<ArrayRef> {
    let types: Vec<DataType> = arguments.columns.iter().take(3).map(|column| column.data_type().clone()).collect();
    let counts = arguments.integers(3)?;
    let buckets: Box<dyn Fn(usize, i64) -> Result<Option<i64>>> = if is_exact(&types) {
        // One scale for all, so that their digits can be compared.
        let scale = |data_type: &DataType| match data_type {
            DataType::Decimal128(_, scale) => *scale,
            _ => 0,
        };
        let scales: Vec<i8> = types.iter().map(scale).collect();
        let most = scales.iter().copied().max().unwrap_or(0);
        let mut columns = Vec::with_capacity(3);
        for (at, scale) in scales.into_iter().enumerate() {
            let digits = arguments.cast(at, &DataType::Decimal128(38, scale))?.as_primitive::<Decimal128Type>().clone();
            let factor = i256::from_i128(10).wrapping_pow(u32::from((most - scale).unsigned_abs()));
            columns.push((digits, factor));
        }
        Box::new(move |row, count| {
            if columns.iter().any(|(digits, _)| digits.is_null(row)) {
                return Ok(None);
            }
            let values =
                columns.iter().map(|(digits, factor)| i256::from_i128(digits.value(row)).wrapping_mul(*factor));
            match values.collect::<Vec<_>>().as_slice() {
                [operand, low, high] => exact(*operand, *low, *high, count).map(Some),
                _ => Ok(None),
            }
        })
    } else {
        let mut columns = Vec::with_capacity(3);
        for at in 0..3 {
            columns.push(arguments.cast(at, &DataType::Float64)?.as_primitive::<Float64Type>().clone());
        }
        Box::new(move |row, count| {
            if columns.iter().any(|column| column.is_null(row)) {
                return Ok(None);
            }
            match columns.iter().map(|column| column.value(row)).collect::<Vec<_>>().as_slice() {
                [operand, low, high] => of_doubles(*operand, *low, *high, count).map(Some),
                _ => Ok(None),
            }
        })
    };
    let numbers = (0..arguments.rows).map(|row| {
        if counts.is_null(row) {
            return Ok(None);
        }
        let bucket = buckets(row, counts.value(row))?;
        bucket.map(|bucket| i32::try_from(bucket).map_err(|_| out_of_range(&DataType::Int32))).transpose()
    });
    Ok(Arc::new(numbers.collect::<Result<Int32Array>>()?))
}

fn wrong(message: &str) -> Error {
    Error::new(SqlState::InvalidWidthBucket, message).hint("Write width_bucket(value, low, high, count).")
}

fn exact(operand: i256, low: i256, high: i256, count: i64) -> Result<i64> {
    if count <= 0 {
        return Err(wrong("count must be greater than zero"));
    }
    if low == high {
        return Err(wrong("lower bound cannot equal upper bound"));
    }
    let (from, span) = if low < high {
        (operand.wrapping_sub(low), high.wrapping_sub(low))
    } else {
        (low.wrapping_sub(operand), low.wrapping_sub(high))
    };
    if from < i256::ZERO {
        return Ok(0);
    }
    if from >= span {
        return Ok(count + 1);
    }
    // Both have at most 38 digits and the difference of the scales; the count has 10.
    let bucket = from.checked_mul(i256::from_i128(i128::from(count))).map(|product| product.wrapping_div(span));
    let bucket = bucket.and_then(i256::to_i128).and_then(|bucket| i64::try_from(bucket).ok());
    bucket.map(|bucket| bucket + 1).ok_or_else(|| out_of_range(&DataType::Int32))
}

fn of_doubles(operand: f64, low: f64, high: f64, count: i64) -> Result<i64> {
    if count <= 0 {
        return Err(wrong("count must be greater than zero"));
    }
    if operand.is_nan() || low.is_nan() || high.is_nan() {
        return Err(wrong("operand, lower bound, and upper bound cannot be NaN"));
    }
    if low.is_infinite() || high.is_infinite() {
        return Err(wrong("lower and upper bounds must be finite"));
    }
    if low == high {
        return Err(wrong("lower bound cannot equal upper bound"));
    }
    let (below, above) = if low < high { (operand < low, operand >= high) } else { (operand > low, operand <= high) };
    if below {
        return Ok(0);
    }
    if above {
        return Ok(count + 1);
    }
    // Halves, so that no difference of doubles is beyond them.
    let share = (operand / 2.0 - low / 2.0) / (high / 2.0 - low / 2.0);
    // A bucket's number is below the count, which is a 64-bit number.
    let bucket = (share * count as f64) as i64;
    Ok(bucket.min(count - 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_those_of_postgresql() {
        // SELECT width_bucket(5.35, 0.024, 10.06, 5), width_bucket(0.3, 0, 1, 10), width_bucket(1, 10, 0, 5)
        let of = |value: i128| i256::from_i128(value);
        assert_eq!(exact(of(5350), of(24), of(10060), 5).unwrap(), 3);
        assert_eq!(exact(of(3), of(0), of(10), 10).unwrap(), 4);
        assert_eq!(of_doubles(5.35, 0.024, 10.06, 5).unwrap(), 3);
        assert_eq!(of_doubles(1.0, 10.0, 0.0, 5).unwrap(), 5);
        assert_eq!(of_doubles(-1.0, 0.0, 10.0, 5).unwrap(), 0);
        assert_eq!(of_doubles(10.0, 0.0, 10.0, 5).unwrap(), 6);
        assert!(exact(of(1), of(1), of(1), 5).is_err() && of_doubles(1.0, 0.0, 2.0, 0).is_err());
    }
}
