//! Rows as JSON objects.

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;

use super::{Column, write_json_string};
use crate::types::Result;

/// Prints the rows of one schema as JSON objects.
pub struct JsonObjects {
    /// Each column's name, quoted, with its colon.
    names: Vec<Vec<u8>>,
}

impl JsonObjects {
    /// For rows of a schema.
    pub fn new(schema: &Schema) -> JsonObjects {
        let names = schema
            .fields()
            .iter()
            .map(|field| {
                let mut name = Vec::new();
                write_json_string(&mut name, field.name());
                name.push(b':');
                name
            })
            .collect();
        JsonObjects { names }
    }

    /// Columns made ready for [`Self::print`].
    ///
    /// # Errors
    /// 0A000 for a type that has no text form.
    pub fn columns(batch: &RecordBatch) -> Result<Vec<Column>> {
        batch.columns().iter().map(Column::new).collect()
    }

    /// Appends one row.
    pub fn print(&self, columns: &[Column], row: usize, out: &mut Vec<u8>) {
        out.push(b'{');
        for (index, (name, column)) in self.names.iter().zip(columns).enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(name);
            column.write_json(row, out, false);
        }
        out.push(b'}');
    }
}
