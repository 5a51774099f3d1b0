//! Where rows enter: what a connector implements.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::SchemaRef;

use crate::types::{Error, Result, SqlState};

/// A place in a split up to which it was read; only the connector knows the unit (a file of lines: bytes).
/// Offsets of one split are ordered: a later row ends at a greater offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Offset(pub u64);

/// The name of a split, the same for ever: what was read of it is remembered under it, over restarts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SplitId(Arc<str>);

impl SplitId {
    /// Longer names are cut by no one: a connector keeps them below.
    pub const BYTES_MAX: usize = 4096;

    /// A split's name, at most [`Self::BYTES_MAX`] long.
    pub fn new(name: impl Into<Arc<str>>) -> SplitId {
        SplitId(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SplitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A part of a source that is read by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Its name.
    pub id: SplitId,
    /// Where its first row may start.
    pub start: Offset,
    /// Where it ends now, when that is known.
    pub size: Option<Offset>,
}

/// The splits of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Splits {
    /// Those that are there, in the order in which they are best read.
    pub found: Vec<Split>,
    /// No other will ever come.
    pub complete: bool,
}

/// What to read.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// Which split.
    pub split: SplitId,
    /// Where to begin: [`Offset::default`] for the split's start, or an offset that a reader of this split gave.
    pub from: Offset,
    /// Where to end: every row that ends at or before it is read, and no other.
    pub until: Option<Offset>,
    /// Which columns of the schema, in order. Which rows are bad does not depend on it.
    pub columns: Arc<[usize]>,
    /// Say of each good row where it starts.
    pub offsets: bool,
}

/// What one read gave.
#[derive(Debug)]
pub enum Read {
    /// Some rows, good or bad; none when only the end has moved on.
    Rows {
        /// The good ones, with the columns asked for.
        rows: RecordBatch,
        /// The diff of each of them: a row of -1 takes away what has its key. `None` when all are inserts. Only a table
        /// that keeps the last row of each key takes others.
        diffs: Option<Int64Array>,
        /// Where each of them starts, when that was asked for; else empty.
        offsets: Vec<Offset>,
        /// The others.
        bad: Vec<BadRow>,
        /// Behind the last of all these rows: where the next read starts.
        end: Offset,
    },
    /// Nothing now: ask again later.
    Idle,
    /// The split ends here, for ever.
    End,
}

/// A row that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    /// The kind of fault.
    pub code: SqlState,
    /// Its text, cut to [`RAW_BYTES_MAX`]; what is no UTF-8 is replaced.
    pub raw: String,
    /// The reason.
    pub error: String,
    /// The column at fault, if one is.
    pub column: Option<String>,
    /// Where it starts.
    pub offset: Offset,
}

/// The most bytes of a bad row that are kept.
pub const RAW_BYTES_MAX: usize = 8 << 10;

impl BadRow {
    /// A bad row from its bytes.
    pub fn new(code: SqlState, raw: &[u8], error: String, column: Option<String>, offset: Offset) -> BadRow {
        let kept = raw.get(..RAW_BYTES_MAX).unwrap_or(raw);
        // No client takes a NUL in a text.
        let raw = String::from_utf8_lossy(kept).replace('\0', "\u{fffd}");
        BadRow { code, raw, error, column, offset }
    }

    /// The bad row as the error that ends a read.
    pub fn to_error(&self, split: &SplitId) -> Error {
        let column = self.column.as_ref().map(|column| format!(", column \"{column}\"")).unwrap_or_default();
        Error::new(self.code, format!("\"{split}\", row at {}{column}: {}", self.offset.0, self.error))
    }
}

/// The kind of a bad row's fault in one word, for counters.
pub fn fault_name(code: SqlState) -> &'static str {
    match code {
        SqlState::InvalidText => "type",
        SqlState::NumericOutOfRange | SqlState::DatetimeOverflow => "range",
        SqlState::StringTooLong => "length",
        SqlState::NotNullViolation => "null",
        SqlState::CharacterNotInRepertoire => "encoding",
        SqlState::StatementTooComplex => "depth",
        SqlState::ProgramLimitExceeded => "size",
        SqlState::BadCopyFormat => "format",
        _ => "expression",
    }
}

/// A table's rows outside of clink, which can be read again from any offset that a reader gave.
///
/// Reading a split from the same offset gives the same rows, however they are cut into reads. All methods may block.
pub trait Source: Send + Sync {
    /// Columns and types of the rows.
    fn schema(&self) -> SchemaRef;

    /// The splits that are there now. `known` are those that were read before and how far. Asked again from time
    /// to time until they are complete.
    ///
    /// # Errors
    /// When the place cannot be looked at.
    fn splits(&self, known: &[(SplitId, Offset)]) -> Result<Splits>;

    /// Opens a reader.
    ///
    /// # Errors
    /// 58P01 when the split is not there any more; others when it cannot be opened, or is shorter than what was
    /// read of it.
    fn open(&self, request: &ReadRequest) -> Result<Box<dyn SourceReader>>;

    /// True when a statement can read all that is there now and come to an end.
    fn ends(&self) -> bool;

    /// Looks at the place outside before a table is made over it; a start does not, so that it depends on nobody. `key`
    /// are the columns whose last row the table keeps, if it does.
    ///
    /// # Errors
    /// What the user should mend first: the place is not there, or has other rows than the table.
    fn check(&self, key: &[usize]) -> Result<()> {
        let _ = key;
        Ok(())
    }
}

/// One pass over a split. Called from threads that may block, by one at a time.
pub trait SourceReader: Send {
    /// Reads the next rows, at most `rows_max` (at least 1) good ones; more where rows belong to one time and must not be
    /// told apart.
    ///
    /// # Errors
    /// When the split cannot be read further. A row that cannot be understood is no error but a bad row.
    fn read(&mut self, rows_max: usize) -> Result<Read>;
}
