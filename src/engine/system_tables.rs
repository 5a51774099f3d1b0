//! `clink_catalog`: what the server knows of its jobs and settings, as tables.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;

use crate::types::Result;

use super::database::Engine;
use super::show;

/// The schema of these tables.
pub(crate) const SCHEMA: &str = "clink_catalog";

/// Their names.
pub(crate) const NAMES: &[&str] = &["jobs", "settings"];

/// A table by name; `None` when there is none.
///
/// # Errors
/// None but a fault of the program.
pub(crate) fn table(engine: &Engine, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
    let rows = match name {
        "jobs" => {
            let schema = show::jobs_schema();
            RecordBatch::try_new(schema, show::job_columns(&engine.jobs()))?
        }
        "settings" => {
            let settings = super::settings::Settings::default();
            RecordBatch::try_new(show::settings_schema(), show::settings_columns(&settings))?
        }
        _ => return Ok(None),
    };
    let schema = rows.schema();
    Ok(Some(Arc::new(MemTable::try_new(schema, vec![vec![rows]]).map_err(crate::engine::error_of)?)))
}
