//! Functions of numbers that are not defined everywhere: where DataFusion answers NaN or infinity, an error as in
//! PostgreSQL. And `chr(0)`, which would make a text that nothing can show.

use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, AsArray as _};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use datafusion::error::Result as DataFusionResult;
use datafusion::functions::{math, string};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

use super::errors::to_datafusion;
use crate::types::{Error, SqlState};

/// What is checked of a function's arguments and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Domain {
    /// Positive arguments.
    Logarithm,
    /// No argument for which there is no result.
    Arc,
    /// No result beyond what a double holds.
    Exponential,
    Power,
    Root,
    Character,
}

/// The names of these functions, which can fail on a row.
const NAMES: &[(&str, Domain)] = &[
    ("ln", Domain::Logarithm),
    ("log", Domain::Logarithm),
    ("log2", Domain::Logarithm),
    ("log10", Domain::Logarithm),
    ("asin", Domain::Arc),
    ("acos", Domain::Arc),
    ("acosh", Domain::Arc),
    ("atanh", Domain::Arc),
    ("exp", Domain::Exponential),
    ("power", Domain::Power),
    ("sqrt", Domain::Root),
    ("chr", Domain::Character),
];

/// True for the name of such a function.
pub(crate) fn is_checked(name: &str) -> bool {
    NAMES.iter().any(|(known, _)| *known == name)
}

/// The functions, to be registered over DataFusion's.
pub(crate) fn functions() -> impl Iterator<Item = Arc<ScalarUDF>> {
    let of_numbers = math::functions().into_iter().chain(string::functions());
    of_numbers.filter_map(|inner| {
        let (_, domain) = NAMES.iter().find(|(name, _)| *name == inner.name())?;
        Some(Arc::new(ScalarUDF::new_from_impl(Checked { inner, domain: *domain })))
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Checked {
    inner: Arc<ScalarUDF>,
    domain: Domain,
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> DataFusionResult<DataType> {
        self.inner.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> DataFusionResult<arrow::datatypes::FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn coerce_types(&self, types: &[DataType]) -> DataFusionResult<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> DataFusionResult<SortProperties> {
        self.inner.output_ordering(inputs)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let rows = args.number_rows;
        let inputs = args.args.iter().map(|value| doubles(value, rows)).collect::<DataFusionResult<Vec<_>>>()?;
        if matches!(self.domain, Domain::Logarithm | Domain::Power | Domain::Root | Domain::Character) {
            each(&inputs, rows, |values| self.domain.check_arguments(values))?;
        }
        let output = self.inner.invoke_with_args(args)?;
        if matches!(self.domain, Domain::Arc | Domain::Exponential | Domain::Power) {
            let mut all = inputs;
            all.push(doubles(&output, rows)?);
            each(&all, rows, |values| match values.split_last() {
                Some((result, arguments)) => self.domain.check_result(arguments, *result),
                None => Ok(()),
            })?;
        }
        Ok(output)
    }
}

/// Values as doubles; one for a constant.
fn doubles(value: &ColumnarValue, rows: usize) -> DataFusionResult<ArrayRef> {
    let values = value.to_array(if matches!(value, ColumnarValue::Scalar(_)) { 1 } else { rows })?;
    Ok(cast(&values, &DataType::Float64)?)
}

/// Checks the values of each row that has no NULL.
fn each(columns: &[ArrayRef], rows: usize, check: impl Fn(&[f64]) -> Result<(), Error>) -> DataFusionResult<()> {
    let columns: Vec<_> = columns.iter().map(|column| column.as_primitive::<Float64Type>()).collect();
    let rows = if columns.iter().all(|column| column.len() == 1) { 1 } else { rows };
    let mut values = vec![0.0; columns.len()];
    for row in 0..rows {
        let mut null = false;
        for (column, value) in columns.iter().zip(&mut values) {
            let at = if column.len() == 1 { 0 } else { row };
            null |= column.is_null(at);
            *value = column.value(at);
        }
        if !null {
            check(&values).map_err(to_datafusion)?;
        }
    }
    Ok(())
}

impl Domain {
    fn check_arguments(self, values: &[f64]) -> Result<(), Error> {
        let (code, message) = match (self, values) {
            (Domain::Logarithm, values) if values.contains(&0.0) => {
                (SqlState::InvalidLogarithm, "cannot take logarithm of zero")
            }
            (Domain::Logarithm, values) if values.iter().any(|value| *value < 0.0) => {
                (SqlState::InvalidLogarithm, "cannot take logarithm of a negative number")
            }
            (Domain::Root, [value]) if *value < 0.0 => {
                (SqlState::InvalidPower, "cannot take square root of a negative number")
            }
            (Domain::Power, [base, exponent]) if *base == 0.0 && *exponent < 0.0 => {
                (SqlState::InvalidPower, "zero raised to a negative power is undefined")
            }
            (Domain::Power, [base, exponent])
                if *base < 0.0 && base.is_finite() && exponent.is_finite() && exponent.fract() != 0.0 =>
            {
                (SqlState::InvalidPower, "a negative number raised to a non-integer power yields a complex result")
            }
            (Domain::Character, [0.0]) => (SqlState::ProgramLimitExceeded, "null character not permitted"),
            (Domain::Character, [number]) if *number < 0.0 => {
                (SqlState::ProgramLimitExceeded, "character number must be positive")
            }
            (Domain::Character, [number]) if *number > f64::from(u32::from(char::MAX)) => {
                (SqlState::ProgramLimitExceeded, "requested character too large for encoding")
            }
            _ => return Ok(()),
        };
        Err(Error::new(code, message).hint("Leave such rows out with WHERE, or test the value with CASE."))
    }

    fn check_result(self, arguments: &[f64], result: f64) -> Result<(), Error> {
        let finite = arguments.iter().all(|argument| argument.is_finite());
        let vanishes = match self {
            Domain::Exponential => true,
            Domain::Power => arguments.first().is_some_and(|base| *base != 0.0),
            _ => false,
        };
        let message = match self {
            Domain::Arc if result.is_nan() && !arguments.iter().any(|argument| argument.is_nan()) => {
                "input is out of range"
            }
            Domain::Arc => return Ok(()),
            _ if finite && result.is_infinite() => "value out of range: overflow",
            _ if finite && result == 0.0 && vanishes => "value out of range: underflow",
            _ => return Ok(()),
        };
        Err(Error::new(SqlState::NumericOutOfRange, message))
    }
}
