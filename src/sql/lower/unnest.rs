//! `unnest(list)`, in FROM and among the columns.

use datafusion::common::NullHandling;
use datafusion::logical_expr::Unnest;

use super::super::view_checks::refuse;
use super::{Lowered, Lowering, nullable_schema};
use crate::exec::plan::{OperatorSpec, UnnestSpec};
use crate::types::Result;

impl Lowering<'_> {
    pub(super) fn unnest(&mut self, unnest: &Unnest, path: &str) -> Result<Lowered> {
        let nested = unnest.list_type_columns.iter().any(|(_, list)| list.depth != 1);
        if nested || !unnest.struct_type_columns.is_empty() {
            return Err(refuse("UNNEST of more than lists", "Unnest a list of plain values."));
        }
        let mut lowered = self.node(&unnest.input, &format!("{path}/input"))?;
        let spec = UnnestSpec {
            lists: unnest.list_type_columns.iter().map(|(column, _)| *column).collect(),
            columns: unnest.dependency_indices.clone(),
            keep_nulls: unnest.options.null_handling == NullHandling::Preserve,
        };
        lowered.key = None;
        let schema = nullable_schema(&unnest.schema);
        lowered.index = self.push(path, OperatorSpec::Unnest(spec), vec![lowered.index], schema);
        Ok(lowered)
    }
}
