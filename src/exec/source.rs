//! Where rows enter: what a connector implements.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::types::Result;

/// A place in a split up to which it was read; only the connector knows the unit (a file: bytes).
/// Offsets of one split are ordered: a later row ends at a greater offset.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Offset(pub u64);

/// What one read gave.
#[derive(Debug)]
pub enum Read {
    /// Some rows, at least one, and the offset behind the last of them.
    Rows {
        /// The rows, in the source's schema.
        rows: RecordBatch,
        /// Where the next read starts.
        end: Offset,
    },
    /// The split ends here, for ever.
    End,
}

/// A table's rows outside of clink, which can be read again from any offset that a reader gave.
///
/// One split: reading from the same offset gives the same rows, however they are cut into reads.
pub trait Source: Send + Sync {
    /// Columns and types of the rows.
    fn schema(&self) -> SchemaRef;

    /// Opens a reader at `from`, which is [`Offset::default`] for the beginning or an offset that a
    /// reader of this source gave. With `until`, the reader ends there: every row ending at or
    /// before it is read and no other.
    ///
    /// # Errors
    /// When the place cannot be opened, or is shorter than `from`.
    fn open(&self, from: Offset, until: Option<Offset>) -> Result<Box<dyn SourceReader>>;

    /// What reading it costs at most, in the offset's unit, when known: for progress.
    fn size(&self) -> Option<Offset>;
}

/// One pass over a source. Called from a thread that may block.
pub trait SourceReader: Send {
    /// Reads the next rows, at most `rows_max` (at least 1).
    ///
    /// # Errors
    /// When a row cannot be read: the message names the offset of the row, its column and the
    /// reason. Rows before it in the same read are given first; the call after that fails.
    fn read(&mut self, rows_max: usize) -> Result<Read>;
}
