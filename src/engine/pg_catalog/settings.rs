//! `pg_settings`: the session's settings.

use std::sync::Arc;

use datafusion::catalog::TableProvider;

use super::rows::{Values, table as rows_table};
use crate::engine::settings::{Described, Settings};
use crate::types::Result;

/// The table with a session's values.
///
/// # Errors
/// None but a fault of the program.
pub(crate) fn settings_table(settings: &Settings) -> Result<Arc<dyn TableProvider>> {
    let rows: Vec<Described<'_>> = settings.described().collect();
    rows_table(
        &rows,
        &[
            ("name", Values::Text(|row| Some(row.name.to_owned()))),
            ("setting", Values::Text(|row| Some(row.value.to_owned()))),
            ("unit", Values::Text(|row| row.unit.map(str::to_owned))),
            ("category", Values::Text(|_| Some("Client Connection Defaults".to_owned()))),
            ("short_desc", Values::Text(|row| Some(row.description.to_owned()))),
            ("extra_desc", Values::Text(|_| None)),
            ("context", Values::Text(|row| Some(if row.read_only { "internal" } else { "user" }.to_owned()))),
            ("vartype", Values::Text(|row| Some(row.kind.to_owned()))),
            (
                "source",
                Values::Text(|row| Some(if row.value == row.default { "default" } else { "session" }.to_owned())),
            ),
            ("min_val", Values::Text(|_| None)),
            ("max_val", Values::Text(|_| None)),
            ("enumvals", Values::NoTexts),
            ("boot_val", Values::Text(|row| Some(row.default.to_owned()))),
            ("reset_val", Values::Text(|row| Some(row.reset.to_owned()))),
            ("sourcefile", Values::Text(|_| None)),
            ("sourceline", Values::Int(|_| None)),
            ("pending_restart", Values::Boolean(|_| false)),
        ],
    )
}
