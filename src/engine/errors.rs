//! DataFusion's errors on their way to the user.

use datafusion::error::DataFusionError;

use crate::sql;
use crate::types::Error;

/// The user's error behind an error of planning, or of a stream of rows.
pub fn error_of(error: DataFusionError) -> Error {
    sql::from_datafusion(&error)
}
