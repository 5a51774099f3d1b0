//! `age(later, earlier)`: the difference of two times in years, months, days and a time of day.

use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, AsArray as _, PrimitiveArray};
use arrow::datatypes::{
    DataType, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit, TimeUnit, TimestampMicrosecondType,
};
use chrono::{DateTime, Datelike as _};

use super::row_functions::{Arguments, Function, is_text};
use super::types::UTC;
use crate::types::{Error, Result, SqlState};

pub(crate) const FUNCTIONS: &[Function] = &[Function { name: "age", returns, answer }];

const DAY_MICROS: i64 = 86_400_000_000;

fn returns(types: &[DataType]) -> Option<DataType> {
    let time = |data_type: &DataType| {
        matches!(data_type, DataType::Date32 | DataType::Timestamp(..)) || is_text(Some(data_type))
    };
    (types.len() == 2 && types.iter().all(time)).then_some(DataType::Interval(IntervalUnit::MonthDayNano))
}

fn answer(arguments: &Arguments) -> Result<ArrayRef> {
    let is_zoned = |column: &ArrayRef| matches!(column.data_type(), DataType::Timestamp(_, Some(_)));
    let zone = arguments.columns.iter().any(is_zoned).then(|| UTC.into());
    let zoned = zone.is_some();
    let to = DataType::Timestamp(TimeUnit::Microsecond, zone);
    let later = arguments.cast(0, &to)?.as_primitive::<TimestampMicrosecondType>().clone();
    let earlier = arguments.cast(1, &to)?.as_primitive::<TimestampMicrosecondType>().clone();
    // By the clock of the session's zone.
    let local = |micros: i64| if zoned { arguments.zone.local(micros) } else { micros };
    let ages = (0..arguments.rows).map(|row| {
        let valid = later.is_valid(row) && earlier.is_valid(row);
        valid.then(|| age(local(later.value(row)), local(earlier.value(row)))).transpose()
    });
    Ok(Arc::new(ages.collect::<Result<PrimitiveArray<IntervalMonthDayNanoType>>>()?))
}

/// As `timestamp_age` of PostgreSQL: field by field, a day borrowed from the month of the earlier time.
fn age(later: i64, earlier: i64) -> Result<IntervalMonthDayNano> {
    let (last, first, negative) = if later < earlier { (earlier, later, true) } else { (later, earlier, false) };
    let out_of_range = || Error::new(SqlState::DatetimeOverflow, "timestamp out of range");
    let date = |micros: i64| DateTime::from_timestamp_micros(micros).map(|at| at.date_naive()).ok_or_else(out_of_range);
    let (to, from) = (date(last)?, date(first)?);
    let mut micros = last.rem_euclid(DAY_MICROS) - first.rem_euclid(DAY_MICROS);
    let mut days = i64::from(to.day()) - i64::from(from.day());
    let mut months =
        12 * (i64::from(to.year()) - i64::from(from.year())) + i64::from(to.month()) - i64::from(from.month());
    if micros < 0 {
        (micros, days) = (micros + DAY_MICROS, days - 1);
    }
    if days < 0 {
        (days, months) = (days + i64::from(from.num_days_in_month()), months - 1);
    }
    let sign = if negative { -1 } else { 1 };
    let (months, days) = (i32::try_from(sign * months), i32::try_from(sign * days));
    match (months, days) {
        (Ok(months), Ok(days)) => Ok(IntervalMonthDayNano::new(months, days, sign * micros * 1000)),
        _ => Err(out_of_range()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::text::parse::parse_timestamp;

    #[test]
    fn ages_are_those_of_postgresql() {
        for (later, earlier, wanted) in [
            ("2001-04-10", "1957-06-13", (525, 27, 0)),
            ("2026-03-31", "2026-02-28", (1, 3, 0)),
            ("2026-03-01", "2026-01-31", (1, 1, 0)),
            ("2026-01-01 00:00", "2026-03-01 12:00", (-2, 0, -43_200)),
            ("2026-03-01 10:00", "2026-02-28 12:00", (0, 0, 79_200)),
        ] {
            let micros = |text: &str| parse_timestamp(text, false).expect(text);
            let (months, days, seconds) = wanted;
            let wanted = IntervalMonthDayNano::new(months, days, seconds * 1_000_000_000);
            assert_eq!(age(micros(later), micros(earlier)).unwrap(), wanted, "{later} {earlier}");
        }
    }
}
