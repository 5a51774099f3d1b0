//! Functions of PostgreSQL that clients call and DataFusion lacks or answers otherwise.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};

use super::planner::DEFAULT_SCHEMA;
use super::reader::DATABASE;

/// The functions, to be registered over DataFusion's.
pub(crate) fn all() -> Vec<Arc<ScalarUDF>> {
    let version = format!("PostgreSQL 16.0 (clink {})", env!("CARGO_PKG_VERSION"));
    [
        Constant::new("version", version),
        Constant::new("current_database", DATABASE.into()),
        Constant::new("current_catalog", DATABASE.into()),
        Constant::new("current_schema", DEFAULT_SCHEMA.into()),
        Constant::new("current_user", DATABASE.into()),
        Constant::new("session_user", DATABASE.into()),
        Constant::new("user", DATABASE.into()),
    ]
    .into_iter()
    .map(|function| Arc::new(ScalarUDF::new_from_impl(function)))
    .collect()
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
