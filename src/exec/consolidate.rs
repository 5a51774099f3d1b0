//! The changes of one time, each row once.

use arrow::array::{Int64Array, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;

use crate::state::RowCodec;
use crate::types::{Chunk, Result};

/// Sums up the changes of equal rows and leaves out what comes to nothing: retractions first, then
/// insertions, each in order of the encoded row.
///
/// # Errors
/// 54000 when the rows together outgrow a column's offsets.
pub(crate) fn consolidate(codec: &RowCodec, schema: &SchemaRef, chunks: &[Chunk]) -> Result<Vec<Chunk>> {
    let (batch, diffs) = Chunk::concat(schema, chunks)?;
    let encoded = codec.encode(batch.columns(), batch.num_rows())?;
    let mut order: Vec<u32> = (0..batch.num_rows() as u32).collect();
    order.sort_unstable_by(|a, b| encoded.row(*a as usize).cmp(encoded.row(*b as usize)));
    let (mut retracted, mut inserted) = (Sums::default(), Sums::default());
    for equal in order.chunk_by(|a, b| encoded.row(*a as usize) == encoded.row(*b as usize)) {
        let sum: i64 = equal.iter().map(|row| diffs.value(*row as usize)).sum();
        match sum {
            0 => {}
            1.. => inserted.add(equal[0], sum),
            _ => retracted.add(equal[0], sum),
        }
    }
    let mut out = retracted.chunks(&batch)?;
    out.extend(inserted.chunks(&batch)?);
    Ok(out)
}

#[derive(Default)]
struct Sums {
    rows: Vec<u32>,
    diffs: Vec<i64>,
}

impl Sums {
    fn add(&mut self, row: u32, diff: i64) {
        self.rows.push(row);
        self.diffs.push(diff);
    }

    fn chunks(self, batch: &RecordBatch) -> Result<Vec<Chunk>> {
        let picked = take_record_batch(batch, &UInt32Array::from(self.rows))?;
        Ok(Chunk::changes(&picked, &Int64Array::from(self.diffs)))
    }
}

/// How rows of a schema are compared.
///
/// # Errors
/// 0A000 when a column's type cannot be compared.
pub(crate) fn row_codec(schema: &SchemaRef) -> Result<RowCodec> {
    RowCodec::for_rows(schema.fields().iter().map(|field| field.data_type()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray};
    use arrow::datatypes::Int64Type;

    use super::*;

    #[test]
    fn equal_rows_are_summed_and_retractions_come_first() {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![Some(3), Some(1), Some(3), Some(2), None, Some(2)]));
        let batch = RecordBatch::try_from_iter_with_nullable([("a", column, true)]).expect("a batch");
        let chunks = Chunk::changes(&batch, &Int64Array::from(vec![1, 2, -1, -1, 1, -1]));
        let codec = row_codec(&batch.schema()).expect("comparable");
        let out = consolidate(&codec, &batch.schema(), &chunks).expect("consolidated");
        let seen: Vec<(Option<i64>, i64)> = out
            .iter()
            .flat_map(|chunk| {
                let column = chunk.column(0).as_primitive::<Int64Type>().clone();
                (0..chunk.rows())
                    .map(move |row| (column.iter().nth(row).flatten(), chunk.diff(row)))
                    .collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(seen, [(Some(2), -2), (Some(1), 2), (None, 1)]);
    }
}
