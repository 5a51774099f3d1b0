//! Functions of PostgreSQL that clients call and DataFusion lacks or answers otherwise.

use std::sync::Arc;

use arrow::array::{AsArray, Float64Array};
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::errors::to_datafusion;
use super::planner::DEFAULT_SCHEMA;
use super::reader::DATABASE;
use super::zone::user_of;
use crate::types::Error;

/// The functions, to be registered over DataFusion's.
pub(crate) fn all() -> Vec<Arc<ScalarUDF>> {
    let version = format!("PostgreSQL 16.0 (clink {})", env!("CARGO_PKG_VERSION"));
    [
        Constant::new("version", version),
        Constant::new("current_database", DATABASE.into()),
        Constant::new("current_catalog", DATABASE.into()),
        Constant::new("current_schema", DEFAULT_SCHEMA.into()),
    ]
    .into_iter()
    .map(|function| Arc::new(ScalarUDF::new_from_impl(function)))
    .chain(["current_user", "session_user", "user", "current_role"].map(|name| {
        let signature = Signature::nullary(Volatility::Stable);
        Arc::new(ScalarUDF::new_from_impl(User { name, signature }))
    }))
    .chain([Arc::new(super::zoned::truncation())])
    .chain(super::any_all::functions())
    .chain(super::math::functions())
    .chain(super::window_functions::all())
    .chain(super::bounded_functions::all())
    .chain(super::jsonb::functions())
    .chain(super::temporal_join::functions())
    .chain(super::row_functions::functions())
    .collect()
}

/// A double or a real rounded to a whole number, halves to even.
pub(crate) fn round_to_even(value: Expr) -> Expr {
    ScalarUDF::new_from_impl(RoundToEven { signature: Signature::any(1, Volatility::Immutable) }).call(vec![value])
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct RoundToEven {
    signature: Signature,
}

impl ScalarUDFImpl for RoundToEven {
    fn name(&self) -> &str {
        "round_to_even"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    // PostgreSQL rounds a real as a double.
    fn return_type(&self, _types: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::Float64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let Some(value) = args.args.first() else {
            return Err(to_datafusion(Error::internal("a rounding takes one argument")));
        };
        let constant = matches!(value, ColumnarValue::Scalar(_));
        let values = value.to_array(if constant { 1 } else { args.number_rows })?;
        let values = arrow::compute::cast(&values, &DataType::Float64)?;
        let rounded: Float64Array = values.as_primitive::<Float64Type>().unary(f64::round_ties_even);
        if constant {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&rounded, 0)?));
        }
        Ok(ColumnarValue::Array(Arc::new(rounded)))
    }
}

/// The user that is connected.
#[derive(Debug, PartialEq, Eq, Hash)]
struct User {
    name: &'static str,
    signature: Signature,
}

impl ScalarUDFImpl for User {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _types: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        Ok(ColumnarValue::Scalar(ScalarValue::Utf8(Some(user_of(&args.config_options)))))
    }
}

/// A function without arguments that always answers the same text.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Constant {
    name: &'static str,
    value: String,
    signature: Signature,
}

impl Constant {
    fn new(name: &'static str, value: String) -> Constant {
        Constant { name, value, signature: Signature::nullary(Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Constant {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _types: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, _args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        Ok(ColumnarValue::Scalar(ScalarValue::Utf8(Some(self.value.clone()))))
    }
}
