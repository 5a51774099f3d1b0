//! Intervals times and by numbers, as PostgreSQL's `interval_mul` has it: what is left of months goes to days of a month
//! of thirty, what is left of days to the time of day.

use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, AsArray as _, PrimitiveArray};
use arrow::datatypes::{DataType, Float64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit};

use super::arithmetic::is_number;
use super::row_functions::{Arguments, Function};
use crate::types::{Error, Result, SqlState};

pub(crate) const FUNCTIONS: &[Function] = &[
    Function { name: MULTIPLY, returns, answer: |arguments| each(arguments, times) },
    Function {
        name: DIVIDE,
        returns,
        answer: |arguments| {
            each(arguments, |value, divisor| match divisor {
                0.0 => Err(Error::new(SqlState::DivisionByZero, "division by zero")),
                divisor => by(value, &|part| part / divisor),
            })
        },
    },
];

/// `interval * number`.
pub(crate) const MULTIPLY: &str = "interval_multiply";
/// `interval / number`.
pub(crate) const DIVIDE: &str = "interval_divide";

const DAYS_OF_MONTH: f64 = 30.0;
const SECONDS_OF_DAY: f64 = 86_400.0;

fn returns(types: &[DataType]) -> Option<DataType> {
    match types {
        [DataType::Interval(_), number] if is_number(number) => Some(DataType::Interval(IntervalUnit::MonthDayNano)),
        _ => None,
    }
}

fn each(arguments: &Arguments, of: fn(IntervalMonthDayNano, f64) -> Result<IntervalMonthDayNano>) -> Result<ArrayRef> {
    let interval = DataType::Interval(IntervalUnit::MonthDayNano);
    let values = arguments.cast(0, &interval)?.as_primitive::<IntervalMonthDayNanoType>().clone();
    let numbers = arguments.cast(1, &DataType::Float64)?.as_primitive::<Float64Type>().clone();
    let results = (0..arguments.rows).map(|row| {
        let valid = values.is_valid(row) && numbers.is_valid(row);
        valid.then(|| of(values.value(row), numbers.value(row))).transpose()
    });
    Ok(Arc::new(results.collect::<Result<PrimitiveArray<IntervalMonthDayNanoType>>>()?))
}

fn times(value: IntervalMonthDayNano, factor: f64) -> Result<IntervalMonthDayNano> {
    by(value, &|part| part * factor)
}

/// Each part of an interval changed, and what is left of it handed down.
fn by(value: IntervalMonthDayNano, of: &dyn Fn(f64) -> f64) -> Result<IntervalMonthDayNano> {
    let out_of_range = || Error::new(SqlState::DatetimeOverflow, "interval out of range");
    let whole = |number: f64| -> Result<i32> {
        let fits = number > f64::from(i32::MIN) - 1.0 && number < f64::from(i32::MAX) + 1.0;
        // In range, and the rest behind the point is meant to go.
        if fits { Ok(number as i32) } else { Err(out_of_range()) }
    };
    // Rounded to microseconds, so that thirds of a day add up.
    let rounded = |number: f64| (number * 1e6).round_ties_even() / 1e6;
    let (months, days) = (of(f64::from(value.months)), of(f64::from(value.days)));
    let (month, mut day) = (whole(months)?, whole(days)?);
    let days_left = rounded((months - f64::from(month)) * DAYS_OF_MONTH);
    let mut seconds = rounded((days - f64::from(day) + days_left - days_left.trunc()) * SECONDS_OF_DAY);
    let add = |day: i32, more: i32| day.checked_add(more).ok_or_else(out_of_range);
    if seconds.abs() >= SECONDS_OF_DAY {
        let more = (seconds / SECONDS_OF_DAY).trunc();
        day = add(day, whole(more)?)?;
        seconds -= more * SECONDS_OF_DAY;
    }
    day = add(day, whole(days_left)?)?;
    let micros = (of((value.nanoseconds / 1000) as f64) + seconds * 1e6).round_ties_even();
    // Nanoseconds have to fit their 64 bits.
    if micros.is_nan() || micros.abs() >= 9.2e15 {
        return Err(out_of_range());
    }
    Ok(IntervalMonthDayNano::new(month, day, micros as i64 * 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_goes_to_the_smaller_parts() {
        let of = IntervalMonthDayNano::new;
        let hour = 3_600_000_000_000;
        // SELECT interval '1 day' * 2, '1 month' * 0.5, '1 month 1 day' * 1.5, '1 day' * 0.1, '-1 month' * 0.5
        for (value, factor, wanted) in [
            (of(0, 1, 0), 2.0, of(0, 2, 0)),
            (of(1, 0, 0), 0.5, of(0, 15, 0)),
            (of(1, 1, 0), 1.5, of(1, 16, 12 * hour)),
            (of(0, 1, 0), 0.1, of(0, 0, 2 * hour + hour * 2 / 5)),
            (of(-1, 0, 0), 0.5, of(0, -15, 0)),
        ] {
            assert_eq!(times(value, factor).unwrap(), wanted, "{value:?} * {factor}");
        }
        assert!(times(of(i32::MAX, 0, 0), 2.0).is_err() && times(of(1, 0, 0), f64::NAN).is_err());
    }
}
