//! Batches of changes.

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, UInt32Array};
use arrow::compute::{concat, concat_batches, take_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

/// The most rows in one chunk.
pub const CHUNK_ROWS_MAX: usize = 8_192;

/// Rows and what happens to them at one time: an Arrow batch and a diff per row.
///
/// A diff of `+n` inserts the row n times, `-n` retracts it n times; without diffs every row is
/// inserted once. A chunk is never empty and holds at most [`CHUNK_ROWS_MAX`] rows, so work on it
/// is bounded.
#[derive(Clone, Debug)]
pub struct Chunk {
    batch: RecordBatch,
    diffs: Option<Int64Array>,
}

impl Chunk {
    /// Chunks of rows that are all inserted once; none for an empty batch.
    pub fn inserts(batch: &RecordBatch) -> Vec<Chunk> {
        Chunk::split(batch, None)
    }

    /// Chunks of changes; none for an empty batch.
    ///
    /// # Panics
    /// When `diffs` has another length than `batch`.
    pub fn changes(batch: &RecordBatch, diffs: &Int64Array) -> Vec<Chunk> {
        assert_eq!(batch.num_rows(), diffs.len(), "one diff a row");
        Chunk::split(batch, Some(diffs))
    }

    fn split(batch: &RecordBatch, diffs: Option<&Int64Array>) -> Vec<Chunk> {
        (0..batch.num_rows())
            .step_by(CHUNK_ROWS_MAX)
            .map(|start| {
                let rows = CHUNK_ROWS_MAX.min(batch.num_rows() - start);
                Chunk { batch: batch.slice(start, rows), diffs: diffs.map(|d| d.slice(start, rows)) }
            })
            .collect()
    }

    /// The rows.
    pub fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// One column of the rows.
    pub fn column(&self, index: usize) -> &ArrayRef {
        self.batch.column(index)
    }

    /// The schema of the rows.
    pub fn schema(&self) -> SchemaRef {
        self.batch.schema()
    }

    /// The diff of each row; `None` when all are `+1`.
    pub fn diffs(&self) -> Option<&Int64Array> {
        self.diffs.as_ref()
    }

    /// The diff of one row.
    pub fn diff(&self, row: usize) -> i64 {
        self.diffs.as_ref().map_or(1, |diffs| diffs.value(row))
    }

    /// Number of rows, at least one.
    pub fn rows(&self) -> usize {
        self.batch.num_rows()
    }

    /// Bytes held by the rows and diffs.
    pub fn bytes(&self) -> usize {
        self.batch.get_array_memory_size() + self.diffs.as_ref().map_or(0, |d| d.get_array_memory_size())
    }

    /// The same changes with other columns.
    ///
    /// # Panics
    /// When `batch` has another number of rows.
    #[must_use]
    pub fn with_batch(&self, batch: RecordBatch) -> Chunk {
        assert_eq!(batch.num_rows(), self.rows(), "a row stays a row");
        Chunk { batch, diffs: self.diffs.clone() }
    }

    /// Some neighbouring rows, at least one.
    ///
    /// # Panics
    /// When there are not that many.
    #[must_use]
    pub fn slice(&self, start: usize, rows: usize) -> Chunk {
        assert!(rows > 0, "a chunk is never empty");
        Chunk { batch: self.batch.slice(start, rows), diffs: self.diffs.as_ref().map(|diffs| diffs.slice(start, rows)) }
    }

    /// The inserted rows, each as often as it is inserted.
    ///
    /// # Errors
    /// When a column outgrows its offsets.
    pub fn inserted_rows(&self) -> Result<RecordBatch, ArrowError> {
        let Some(diffs) = &self.diffs else { return Ok(self.batch.clone()) };
        let picks = UInt32Array::from_iter_values(
            diffs
                .values()
                .iter()
                .enumerate()
                .flat_map(|(row, diff)| std::iter::repeat_n(row as u32, usize::try_from(*diff).unwrap_or(0))),
        );
        take_record_batch(&self.batch, &picks)
    }

    /// All changes of some chunks of one schema as one batch with its diffs.
    ///
    /// # Errors
    /// When the batches do not share a schema or a column outgrows its offsets.
    pub fn concat(schema: &SchemaRef, chunks: &[Chunk]) -> Result<(RecordBatch, Int64Array), ArrowError> {
        let batch = concat_batches(schema, chunks.iter().map(Chunk::batch))?;
        let diffs: Vec<Int64Array> = chunks
            .iter()
            .map(|chunk| chunk.diffs.clone().unwrap_or_else(|| Int64Array::from_value(1, chunk.rows())))
            .collect();
        if diffs.is_empty() {
            return Ok((batch, Int64Array::from(Vec::<i64>::new())));
        }
        let diffs: Vec<&dyn Array> = diffs.iter().map(|d| d as &dyn Array).collect();
        let diffs = concat(&diffs)?;
        Ok((batch, arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(&diffs).clone()))
    }
}
