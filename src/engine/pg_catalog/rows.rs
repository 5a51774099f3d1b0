//! Small tables made of Rust values.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Int16Array, Int16Builder, Int32Array, ListBuilder, RecordBatch, StringArray,
    new_null_array,
};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;

use crate::types::Result;

/// A column's values over the rows of type `T`.
pub(super) enum Values<T> {
    Text(fn(&T) -> Option<String>),
    /// An array of texts that is NULL.
    NoTexts,
    /// An array of column numbers.
    Numbers(fn(&T) -> Option<Vec<i16>>),
    Boolean(fn(&T) -> bool),
    Small(fn(&T) -> i16),
    Int(fn(&T) -> Option<i32>),
    Real(fn(&T) -> f32),
}

/// A table with a row for each of `rows`.
///
/// # Errors
/// None but a fault of the program.
pub(super) fn table<T>(rows: &[T], columns: &[(&str, Values<T>)]) -> Result<Arc<dyn TableProvider>> {
    let mut fields = Vec::with_capacity(columns.len());
    let mut arrays: Vec<ArrayRef> = Vec::with_capacity(columns.len());
    for (name, values) in columns {
        let array: ArrayRef = match values {
            Values::Text(of) => Arc::new(rows.iter().map(of).collect::<StringArray>()),
            Values::NoTexts => {
                let list = DataType::List(Arc::new(Field::new_list_field(DataType::Utf8, true)));
                new_null_array(&list, rows.len())
            }
            Values::Numbers(of) => {
                let mut builder = ListBuilder::new(Int16Builder::new());
                for row in rows {
                    builder.append_option(of(row).map(|numbers| numbers.into_iter().map(Some)));
                }
                Arc::new(builder.finish())
            }
            Values::Boolean(of) => Arc::new(rows.iter().map(|row| Some(of(row))).collect::<BooleanArray>()),
            Values::Small(of) => Arc::new(rows.iter().map(|row| Some(of(row))).collect::<Int16Array>()),
            Values::Int(of) => Arc::new(rows.iter().map(of).collect::<Int32Array>()),
            Values::Real(of) => Arc::new(rows.iter().map(|row| Some(of(row))).collect::<Float32Array>()),
        };
        fields.push(Field::new(*name, array.data_type().clone(), true));
        arrays.push(array);
    }
    let schema = Arc::new(Schema::new(fields));
    let batch = RecordBatch::try_new(Arc::clone(&schema), arrays)?;
    Ok(Arc::new(MemTable::try_new(schema, vec![vec![batch]]).map_err(crate::engine::error_of)?))
}
