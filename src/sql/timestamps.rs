//! The difference of two timestamps, as PostgreSQL gives it: days and a time of day.

use std::sync::Arc;

use arrow::array::{AsArray, PrimitiveArray};
use arrow::compute::try_binary;
use arrow::datatypes::{
    DataType, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit, TimeUnit, TimestampMicrosecondType,
};
use arrow::error::ArrowError;
use datafusion::common::ScalarValue;
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::errors::{to_arrow, to_datafusion};
use super::types::UTC;
use crate::types::{Error, SqlState};

const DAY_MICROS: i64 = 86_400_000_000;

/// `left - right` on timestamps.
pub(crate) fn timestamp_difference(left: Expr, right: Expr) -> Expr {
    let function = TimestampDifference { signature: Signature::user_defined(Volatility::Immutable) };
    ScalarUDF::new_from_impl(function).call(vec![left, right])
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TimestampDifference {
    signature: Signature,
}

impl ScalarUDFImpl for TimestampDifference {
    fn name(&self) -> &str {
        "checked_timestamp_difference"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DataFusionResult<Vec<DataType>> {
        let zone =
            types.iter().any(|data_type| matches!(data_type, DataType::Timestamp(_, Some(_)))).then(|| UTC.into());
        Ok(vec![DataType::Timestamp(TimeUnit::Microsecond, zone); types.len()])
    }

    fn return_type(&self, _types: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::Interval(IntervalUnit::MonthDayNano))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let [left, right] = args.args.as_slice() else {
            return Err(to_datafusion(Error::internal("a difference takes two arguments")));
        };
        let constant = matches!((left, right), (ColumnarValue::Scalar(_), ColumnarValue::Scalar(_)));
        let rows = if constant { 1 } else { args.number_rows };
        let (left, right) = (left.to_array(rows)?, right.to_array(rows)?);
        let (left, right) =
            (left.as_primitive::<TimestampMicrosecondType>(), right.as_primitive::<TimestampMicrosecondType>());
        let values: PrimitiveArray<IntervalMonthDayNanoType> = try_binary(left, right, |a: i64, b: i64| {
            difference(a, b).ok_or_else(|| -> ArrowError {
                to_arrow(Error::new(SqlState::DatetimeOverflow, "interval out of range"))
            })
        })?;
        if constant {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&values, 0)?));
        }
        Ok(ColumnarValue::Array(Arc::new(values)))
    }
}

fn difference(left: i64, right: i64) -> Option<IntervalMonthDayNano> {
    let micros = left.checked_sub(right)?;
    let days = i32::try_from(micros / DAY_MICROS).ok()?;
    Some(IntervalMonthDayNano::new(0, days, (micros % DAY_MICROS) * 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_come_before_the_time_of_day() {
        assert_eq!(difference(DAY_MICROS + 7, 0), Some(IntervalMonthDayNano::new(0, 1, 7000)));
        assert_eq!(difference(0, DAY_MICROS + 7), Some(IntervalMonthDayNano::new(0, -1, -7000)));
        assert_eq!(difference(i64::MAX, i64::MIN), None);
    }
}
