//! Times in named zones: `AT TIME ZONE 'Europe/Paris'`, `date_trunc('day', at, 'Europe/Paris')`.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray as _, PrimitiveArray};
use arrow::compute::cast as arrow_cast;
use arrow::datatypes::{DataType, TimeUnit, TimestampMicrosecondType};
use chrono::{DateTime, Datelike as _, NaiveDate};
use datafusion::common::ScalarValue;
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::errors::to_datafusion;
use super::types::UTC;
use crate::types::{Error, SqlState, TimeZone};

const HOUR_MICROS: i64 = 3_600_000_000;

fn zoned() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some(UTC.into()))
}

fn plain() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, None)
}

/// What a clock in the zone shows at a timestamptz.
pub(crate) fn local_time(value: Expr, zone: TimeZone) -> Expr {
    ScalarUDF::new_from_impl(Shift::new(zone, true)).call(vec![value])
}

/// The timestamptz at which a clock in the zone shows a timestamp.
pub(crate) fn time_of_local(value: Expr, zone: TimeZone) -> Expr {
    ScalarUDF::new_from_impl(Shift::new(zone, false)).call(vec![value])
}

/// `date_trunc` with a zone, under the name that the planner finds it by.
pub(crate) fn truncation() -> ScalarUDF {
    ScalarUDF::new_from_impl(Truncate { signature: Signature::any(3, Volatility::Immutable) })
}

/// The name of [`truncation`].
pub(crate) const TRUNCATION: &str = "date_trunc_in_zone";

#[derive(Debug, PartialEq, Eq, Hash)]
struct Shift {
    zone: ZoneName,
    to_local: bool,
    signature: Signature,
}

/// A zone that can be part of a plan.
#[derive(Debug, PartialEq, Eq)]
struct ZoneName(TimeZone);

impl std::hash::Hash for ZoneName {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.name().hash(state);
    }
}

impl Shift {
    fn new(zone: TimeZone, to_local: bool) -> Shift {
        Shift { zone: ZoneName(zone), to_local, signature: Signature::any(1, Volatility::Immutable) }
    }
}

/// Applies a function to microseconds, a constant once.
fn each(
    value: &ColumnarValue,
    rows: usize,
    result: &DataType,
    of: impl Fn(i64) -> i64,
) -> DataFusionResult<ColumnarValue> {
    let constant = matches!(value, ColumnarValue::Scalar(_));
    let values = value.to_array(if constant { 1 } else { rows })?;
    let zone = match values.data_type() {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => Some(UTC.into()),
    };
    let values = arrow_cast(&values, &DataType::Timestamp(TimeUnit::Microsecond, zone))?;
    let moved: PrimitiveArray<TimestampMicrosecondType> = values.as_primitive::<TimestampMicrosecondType>().unary(of);
    let zone = match result {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    };
    let moved: ArrayRef = Arc::new(moved.with_timezone_opt(zone));
    if constant {
        return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&moved, 0)?));
    }
    Ok(ColumnarValue::Array(moved))
}

impl ScalarUDFImpl for Shift {
    fn name(&self) -> &str {
        if self.to_local { "local_time" } else { "time_of_local" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(if self.to_local { plain() } else { zoned() })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let Some(value) = args.args.first() else {
            return Err(to_datafusion(Error::internal("a time zone without a time")));
        };
        let zone = &self.zone.0;
        if self.to_local {
            each(value, args.number_rows, &plain(), |micros| zone.local(micros))
        } else {
            each(value, args.number_rows, &zoned(), |micros| zone.utc_of_local(micros))
        }
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Truncate {
    signature: Signature,
}

impl ScalarUDFImpl for Truncate {
    fn name(&self) -> &str {
        TRUNCATION
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(zoned())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let text = |at: usize| match args.args.get(at) {
            Some(ColumnarValue::Scalar(ScalarValue::Utf8(Some(text)))) => Some(text.clone()),
            _ => None,
        };
        let (Some(unit), Some(value), Some(zone)) = (text(0), args.args.get(1), text(2)) else {
            return Err(to_datafusion(
                Error::unsupported("date_trunc takes its unit and its zone as constants")
                    .hint("Write date_trunc('day', at, 'Europe/Berlin')."),
            ));
        };
        let unit = Unit::parse(&unit).map_err(to_datafusion)?;
        let zone = named(&zone).map_err(to_datafusion)?;
        each(value, args.number_rows, &zoned(), |micros| unit.truncate(micros, &zone))
    }
}

/// A zone by its name.
///
/// # Errors
/// 22023 for a name that is none, 0A000 for offsets, whose sign has two meanings.
pub(crate) fn named(name: &str) -> Result<TimeZone, Error> {
    if !name.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return Err(Error::unsupported(format!("time zone \"{name}\" is not supported here"))
            .hint("Name the zone, such as 'Europe/Berlin'; add an interval to shift a time."));
    }
    TimeZone::parse(name).ok_or_else(|| {
        Error::new(SqlState::InvalidParameterValue, format!("time zone \"{name}\" not recognized"))
            .hint("Name the zone as the time zone database does, such as 'Europe/Berlin'.")
    })
}

#[derive(Clone, Copy)]
enum Unit {
    /// So many microseconds, within an hour: the offset from UTC stays.
    Micros(i64),
    Day,
    Week,
    /// So many months.
    Months(u32),
    /// So many years, counted from year 1 on: a decade begins with its 0.
    Years(i32, i32),
}

impl Unit {
    fn parse(name: &str) -> Result<Unit, Error> {
        Ok(match name.to_lowercase().trim_end_matches('s') {
            "microsecond" => Unit::Micros(1),
            "millisecond" => Unit::Micros(1_000),
            "second" => Unit::Micros(1_000_000),
            "minute" => Unit::Micros(60_000_000),
            "hour" => Unit::Micros(HOUR_MICROS),
            "day" => Unit::Day,
            "week" => Unit::Week,
            "month" => Unit::Months(1),
            "quarter" => Unit::Months(3),
            "year" => Unit::Years(1, 0),
            "decade" => Unit::Years(10, 0),
            "century" | "centurie" => Unit::Years(100, 1),
            "millennium" => Unit::Years(1000, 1),
            _ => {
                return Err(Error::new(
                    SqlState::InvalidParameterValue,
                    format!("unit \"{name}\" not recognized for type timestamp with time zone"),
                )
                .hint("The units are microseconds to millennium."));
            }
        })
    }

    fn truncate(self, micros: i64, zone: &TimeZone) -> i64 {
        let local = zone.local(micros);
        if let Unit::Micros(size) = self {
            return micros.saturating_sub(local.rem_euclid(size));
        }
        let Some(day) = DateTime::from_timestamp_micros(local).map(|moment| moment.date_naive()) else {
            return micros;
        };
        let first = match self {
            Unit::Micros(_) | Unit::Day => Some(day),
            Unit::Week => Some(day - chrono::Days::new(u64::from(day.weekday().num_days_from_monday()))),
            Unit::Months(count) => NaiveDate::from_ymd_opt(day.year(), day.month0() / count * count + 1, 1),
            Unit::Years(count, from) => {
                NaiveDate::from_ymd_opt((day.year() - from).div_euclid(count) * count + from, 1, 1)
            }
        };
        let start = first.and_then(|first| first.and_hms_opt(0, 0, 0)).map(|start| start.and_utc().timestamp_micros());
        start.map_or(micros, |start| zone.utc_of_local(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_that_comes_twice_is_two_hours() {
        let zone = named("Europe/Paris").expect("a zone");
        let hour = Unit::parse("hour").expect("a unit");
        // 2022-10-30 02:25 at +02 and at +01.
        assert_eq!(hour.truncate(1_667_089_500_000_000, &zone), 1_667_088_000_000_000);
        assert_eq!(hour.truncate(1_667_093_100_000_000, &zone), 1_667_091_600_000_000);
        // Midnight of that day is at +02.
        let day = Unit::parse("day").expect("a unit");
        assert_eq!(day.truncate(1_667_093_100_000_000, &zone), 1_667_080_800_000_000);
        assert!(named("+02").is_err() && named("Nowhere/City").is_err() && Unit::parse("fortnight").is_err());
    }
}
