//! The functions of time that windows are made of; their other arguments are whole microseconds.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, PrimitiveArray};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type, TimeUnit, TimestampMicrosecondType};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};

use super::errors::to_datafusion;
use crate::types::{Error, SqlState};

/// `(ts, size, offset)`: the start of the window that `ts` is in.
pub(crate) const WINDOW_START: &str = "clink_window_start";
/// `(ts, slide, size, offset)`: the starts of the windows that `ts` is in, earliest first.
pub(crate) const HOP_STARTS: &str = "clink_hop_starts";
/// `(ts, step, size)`: the ends of the windows that `ts` is in, earliest first.
pub(crate) const CUMULATE_ENDS: &str = "clink_cumulate_ends";

/// The functions, to be registered.
pub(crate) fn all() -> impl Iterator<Item = Arc<ScalarUDF>> {
    [(WINDOW_START, 3), (HOP_STARTS, 4), (CUMULATE_ENDS, 3)].into_iter().map(|(name, arguments)| {
        let signature = Signature::any(arguments, Volatility::Immutable);
        Arc::new(ScalarUDF::new_from_impl(WindowFunction { name, signature }))
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct WindowFunction {
    name: &'static str,
    signature: Signature,
}

impl WindowFunction {
    fn lists(&self) -> bool {
        self.name != WINDOW_START
    }
}

impl ScalarUDFImpl for WindowFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        let time = time_type(types.first())?;
        Ok(if self.lists() { DataType::List(Arc::new(Field::new_list_field(time, true))) } else { time })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [time, rest @ ..] = args.args.as_slice() else { return Err(misuse()) };
        let constant = matches!(time, ColumnarValue::Scalar(_));
        let times = time.to_array(if constant { 1 } else { args.number_rows })?;
        let data_type = time_type(Some(times.data_type()))?;
        let times = cast(&times, &data_type)?;
        let times = times.as_primitive::<TimestampMicrosecondType>();
        let micros = rest
            .iter()
            .map(|value| {
                let micros = cast(&value.to_array(1)?, &DataType::Int64)?;
                let micros = micros.as_primitive::<Int64Type>();
                if micros.is_valid(0) { Ok(micros.value(0)) } else { Err(misuse()) }
            })
            .collect::<Result<Vec<i64>>>()?;
        let values = match (self.name, micros.as_slice()) {
            (WINDOW_START, [size, offset]) => {
                let starts =
                    times.try_unary::<_, TimestampMicrosecondType, DataFusionError>(|at| floor(at, *size, *offset))?;
                Arc::new(starts.with_data_type(data_type)) as ArrayRef
            }
            (HOP_STARTS, [slide, size, offset]) => lists(times, &data_type, |at, starts| {
                let last = floor(at, *slide, *offset)?;
                // The earliest start is less than a size away; a slide is no longer than a size.
                for step in (0..=(size - 1 - (at - last)) / slide).rev() {
                    starts.push(step.checked_mul(*slide).and_then(|by| last.checked_sub(by)).ok_or_else(out_of_range)?);
                }
                Ok(())
            })?,
            (CUMULATE_ENDS, [step, size]) => lists(times, &data_type, |at, ends| {
                let start = floor(at, *size, 0)?;
                let passed = (at - start) / step;
                for nth in passed + 1..=size / step {
                    ends.push(start.checked_add(nth * step).ok_or_else(out_of_range)?);
                }
                Ok(())
            })?,
            _ => return Err(misuse()),
        };
        if constant {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&values, 0)?));
        }
        Ok(ColumnarValue::Array(values))
    }
}

/// A list of times for each time; NULL for NULL.
fn lists(
    times: &PrimitiveArray<TimestampMicrosecondType>,
    data_type: &DataType,
    mut of: impl FnMut(i64, &mut Vec<i64>) -> Result<()>,
) -> Result<ArrayRef> {
    let mut values = Vec::new();
    let mut lengths = Vec::with_capacity(times.len());
    for at in times {
        let before = values.len();
        if let Some(at) = at {
            of(at, &mut values)?;
        }
        lengths.push(values.len() - before);
    }
    let values = PrimitiveArray::<TimestampMicrosecondType>::from(values).with_data_type(data_type.clone());
    let field = Arc::new(Field::new_list_field(data_type.clone(), true));
    let offsets = OffsetBuffer::from_lengths(lengths);
    Ok(Arc::new(ListArray::try_new(field, offsets, Arc::new(values), times.nulls().cloned())?))
}

/// The greatest multiple of `size`, moved by `offset`, that is not after `at`; also before 1970.
fn floor(at: i64, size: i64, offset: i64) -> Result<i64> {
    let past = (i128::from(at) - i128::from(offset)).rem_euclid(i128::from(size));
    i64::try_from(i128::from(at) - past).map_err(|_| out_of_range())
}

fn time_type(data_type: Option<&DataType>) -> Result<DataType> {
    match data_type {
        Some(DataType::Timestamp(_, zone)) => Ok(DataType::Timestamp(TimeUnit::Microsecond, zone.clone())),
        Some(DataType::Date32 | DataType::Null) => Ok(DataType::Timestamp(TimeUnit::Microsecond, None)),
        _ => Err(to_datafusion(
            Error::new(SqlState::DatatypeMismatch, "the time of a window is not a timestamp")
                .hint("Cast the column to timestamptz in a view over the table."),
        )),
    }
}

fn out_of_range() -> DataFusionError {
    to_datafusion(Error::new(SqlState::DatetimeOverflow, "a window is outside of the times that there are"))
}

fn misuse() -> DataFusionError {
    to_datafusion(Error::internal("a function of windows with other arguments"))
}
