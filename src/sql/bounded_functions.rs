//! Functions whose results may be far larger than their arguments, with a bound: DataFusion would make whatever is asked
//! for, and a few characters of SQL would take all memory.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef, Int64Type};
use datafusion::error::Result;
use datafusion::functions::{string, unicode};
use datafusion::functions_nested::{range, repeat, resize};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

use super::errors::to_datafusion;
use crate::types::{Error, SqlState};

/// The bytes of one text.
const TEXT_BYTES_MAX: u64 = 64 << 20;
/// The elements of one array.
const ELEMENTS_MAX: u64 = 10_000_000;
/// What the texts, or the elements, of one batch may be of these.
const BATCH_FACTOR_MAX: u64 = 8;

/// The functions, to be registered over DataFusion's.
pub(crate) fn all() -> impl Iterator<Item = Arc<ScalarUDF>> {
    [
        (string::repeat(), Size::Repeated),
        (unicode::lpad(), Size::Padded),
        (unicode::rpad(), Size::Padded),
        (range::range_udf(), Size::Range),
        (range::gen_series_udf(), Size::Range),
        (repeat::array_repeat_udf(), Size::Elements),
        (resize::array_resize_udf(), Size::Elements),
    ]
    .into_iter()
    .map(|(inner, size)| Arc::new(ScalarUDF::new_from_impl(Bounded { inner, size })))
}

/// How large a result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Size {
    /// The first argument as often as the second says.
    Repeated,
    /// As many characters as the second argument says.
    Padded,
    /// From the first argument to the second in steps of the third, of whole numbers.
    Range,
    /// As many elements as the second argument says.
    Elements,
}

impl Size {
    fn is_text(self) -> bool {
        matches!(self, Size::Repeated | Size::Padded)
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Bounded {
    inner: Arc<ScalarUDF>,
    size: Size,
}

impl Bounded {
    /// # Errors
    /// 54000 when a result would be too large, or those of a batch together.
    fn check(&self, args: &ScalarFunctionArgs) -> Result<()> {
        let constant = args.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let rows = if constant { 1 } else { args.number_rows };
        let arrays = args.args.iter().map(|argument| argument.to_array(rows)).collect::<Result<Vec<ArrayRef>>>()?;
        // Of times, the planner knows no count; DataFusion has a bound of its own for those.
        if self.size == Size::Range && arrays.iter().any(|array| !array.data_type().is_integer()) {
            return Ok(());
        }
        let wholes = |at: usize| -> Result<Option<Int64Array>> {
            let Some(array) = arrays.get(at) else { return Ok(None) };
            Ok(Some(cast(array, &DataType::Int64)?.as_primitive::<Int64Type>().clone()))
        };
        let at = |array: &Int64Array, row: usize| if array.is_valid(row) { array.value(row) } else { 0 };
        let (most, what) = match self.size.is_text() {
            true => (TEXT_BYTES_MAX, "bytes"),
            false => (ELEMENTS_MAX, "elements"),
        };
        let sizes: Box<dyn Fn(usize) -> u64> = match self.size {
            Size::Repeated => {
                let (Some(text), Some(times)) = (arrays.first(), wholes(1)?) else { return Ok(()) };
                let text = cast(text, &DataType::LargeUtf8)?;
                Box::new(move |row| {
                    let bytes = text.as_string::<i64>().value_length(row).unsigned_abs();
                    bytes.saturating_mul(at(&times, row).max(0).unsigned_abs())
                })
            }
            Size::Padded | Size::Elements => {
                let Some(count) = wholes(1)? else { return Ok(()) };
                Box::new(move |row| at(&count, row).max(0).unsigned_abs())
            }
            Size::Range => {
                let (first, last, step) = match (wholes(0)?, wholes(1)?, wholes(2)?) {
                    (Some(last), None, _) => (Int64Array::from(vec![0; rows]), last, None),
                    (Some(first), Some(last), step) => (first, last, step),
                    _ => return Ok(()),
                };
                Box::new(move |row| {
                    let step = step.as_ref().map_or(1, |step| at(step, row)).unsigned_abs().max(1);
                    at(&first, row).abs_diff(at(&last, row)) / step
                })
            }
        };
        let mut together: u64 = 0;
        for row in 0..rows {
            let size = sizes(row);
            together = together.saturating_add(size);
            if size > most || together > most * BATCH_FACTOR_MAX {
                let message = format!("{} would give {} {what}", self.inner.name(), size.max(together));
                return Err(to_datafusion(Error::new(SqlState::ProgramLimitExceeded, message).hint(format!(
                    "One value may have {most} {what}, and those of a batch of rows together {}.",
                    most * BATCH_FACTOR_MAX
                ))));
            }
        }
        Ok(())
    }
}

impl ScalarUDFImpl for Bounded {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.check(&args)?;
        self.inner.invoke_with_args(args)
    }
}
