//! Rows by primary key.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{Float32Type, Float64Type, Schema};
use arrow::row::{Row, RowConverter, Rows, SortField};

use crate::engine::coordinator::{PageRequest, Pin};
use crate::types::{CHUNK_ROWS_MAX, Error, RelationId, Result, SqlState};

use super::assign::shown;

/// Encodes the key columns of one table's rows so that equal keys have equal bytes.
pub(crate) struct Keys {
    converter: RowConverter,
    key: Vec<usize>,
}

impl Keys {
    /// For a table with these columns and key.
    ///
    /// # Errors
    /// None but a fault of the program.
    pub(crate) fn new(schema: &Schema, key: &[usize]) -> Result<Keys> {
        let fields = key.iter().map(|index| SortField::new(schema.field(*index).data_type().clone())).collect();
        Ok(Keys { converter: RowConverter::new(fields)?, key: key.to_vec() })
    }

    /// The keys of rows.
    ///
    /// # Errors
    /// None but a fault of the program.
    pub(crate) fn encode(&self, rows: &RecordBatch) -> Result<Rows> {
        let columns: Vec<ArrayRef> = self.key.iter().map(|index| one_zero(rows.column(*index))).collect();
        Ok(self.converter.convert_columns(&columns)?)
    }

    /// The rows byte for byte: `-0.0` is not `0.0` here.
    ///
    /// # Errors
    /// None but a fault of the program.
    pub(crate) fn encode_exactly(&self, rows: &RecordBatch) -> Result<Rows> {
        let columns: Vec<ArrayRef> = self.key.iter().map(|index| Arc::clone(rows.column(*index))).collect();
        Ok(self.converter.convert_columns(&columns)?)
    }
}

/// `-0.0` equals `0.0`, and every NaN equals every other.
fn one_zero(values: &ArrayRef) -> ArrayRef {
    if let Some(floats) = values.as_primitive_opt::<Float64Type>() {
        return Arc::new(floats.unary::<_, Float64Type>(|x| if x.is_nan() { f64::NAN } else { x + 0.0 }));
    }
    if let Some(floats) = values.as_primitive_opt::<Float32Type>() {
        return Arc::new(floats.unary::<_, Float32Type>(|x| if x.is_nan() { f32::NAN } else { x + 0.0 }));
    }
    Arc::clone(values)
}

/// The first row of each key.
pub(crate) fn first_rows(keys: &Rows) -> HashMap<Row<'_>, usize> {
    let mut first = HashMap::with_capacity(keys.num_rows());
    for (row, key) in keys.iter().enumerate() {
        first.entry(key).or_insert(row);
    }
    first
}

/// The rows of a table that have the keys of `rows`.
///
/// # Errors
/// Those of [`Pin::lookup`].
pub(crate) async fn existing(pin: &Pin, table: RelationId, rows: &RecordBatch, key: &[usize]) -> Result<RecordBatch> {
    let schema = rows.schema();
    let request = PageRequest {
        relation: table,
        projection: (0..schema.fields().len()).collect(),
        predicate: None,
        rows_max: CHUNK_ROWS_MAX,
        narrow: None,
    };
    let wanted = rows.project(key)?;
    let mut found = Vec::new();
    for start in (0..wanted.num_rows()).step_by(CHUNK_ROWS_MAX) {
        let part = wanted.slice(start, CHUNK_ROWS_MAX.min(wanted.num_rows() - start));
        let rows = pin.lookup(&request, &part, None).await?;
        found.push(RecordBatch::try_new(Arc::clone(&schema), rows.columns().to_vec())?);
    }
    Ok(concat_batches(&schema, &found)?)
}

/// The error of a key that is there already.
pub(crate) fn duplicate(relation: &str, rows: &RecordBatch, key: &[usize], row: usize) -> Error {
    let schema = rows.schema();
    let names: Vec<&str> = key.iter().map(|index| schema.field(*index).name().as_str()).collect();
    let columns: Vec<ArrayRef> = key.iter().map(|index| Arc::clone(rows.column(*index))).collect();
    Error::new(SqlState::UniqueViolation, format!("duplicate key value violates unique constraint \"{relation}_pkey\""))
        .detail(format!("Key ({})=({}) already exists.", names.join(", "), shown(&columns, row)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Float64Array, Int64Array};
    use arrow::datatypes::{DataType, Field};

    #[test]
    fn equal_keys_have_equal_bytes() {
        let schema = Arc::new(Schema::new(vec![
            Field::new("v", DataType::Int64, true),
            Field::new("k", DataType::Float64, false),
        ]));
        let rows = RecordBatch::try_new(
            Arc::clone(&schema),
            vec![
                Arc::new(Int64Array::from(vec![1, 2, 3, 4])),
                Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN, -f64::NAN])),
            ],
        )
        .unwrap();
        let keys = Keys::new(&schema, &[1]).unwrap().encode(&rows).unwrap();
        let first = first_rows(&keys);
        assert_eq!(first.len(), 2);
        assert_eq!(first[&keys.row(1)], 0);
        assert_eq!(first[&keys.row(3)], 2);
        let error = duplicate("t", &rows, &[0, 1], 0);
        assert_eq!(error.detail_text(), Some("Key (v, k)=(1, 0.0) already exists."));
    }
}
