//! What the wires see of the engine.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::execution::SendableRecordBatchStream;

use super::checkpoints::CheckpointConfig;
use super::copy::CopyIn;
use crate::sql::CopyOptions;
use crate::types::{Error, Limits, RelationId, Time};

/// How an engine runs.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Everything durable lives below; made when absent.
    pub data_dir: PathBuf,
    /// Worker threads, at least 1.
    pub workers: usize,
    /// The budget of memory for the process, in bytes.
    pub memory_bytes: u64,
    /// What clients may take.
    pub limits: Limits,
    /// How state is kept and checkpointed; `None`: not at all, for a database that is not opened again.
    pub checkpoints: Option<CheckpointConfig>,
}

/// What a statement answers.
pub enum Answer {
    /// Nothing but a tag.
    Done {
        /// The command tag.
        tag: Tag,
        /// Notices to show before it.
        notices: Vec<Notice>,
    },
    /// Rows, then a tag. The tag's count is that of the rows that came.
    Rows {
        /// Columns.
        schema: SchemaRef,
        /// The rows; an error ends it.
        rows: SendableRecordBatchStream,
        /// The command tag.
        tag: Tag,
        /// Notices to show before the rows.
        notices: Vec<Notice>,
    },
    /// Rows to be sent in the form of COPY.
    CopyOut {
        /// Columns.
        schema: SchemaRef,
        /// The rows; an error ends it.
        rows: SendableRecordBatchStream,
        /// How they are written.
        options: CopyOptions,
    },
    /// Rows are awaited from the client: give them to the copy, then the copy to
    /// [`super::Session::finish_copy`].
    CopyIn(Box<CopyIn>),
}

/// A command tag of the PostgreSQL protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tag {
    /// A tag without a count, such as `CREATE TABLE`.
    Plain(&'static str),
    /// `INSERT 0 n`.
    Insert(u64),
    /// `UPDATE n`.
    Update(u64),
    /// `DELETE n`.
    Delete(u64),
    /// `SELECT n`, counted from the rows.
    Select,
    /// `SHOW`, `EXPLAIN`: rows without a count.
    Show(&'static str),
    /// `FETCH n`, counted from the rows.
    Fetch,
    /// `MOVE n`.
    Move(u64),
    /// `COPY n`, from the client.
    CopyIn(u64),
}

/// Something the user should know though the statement did its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The message.
    pub message: String,
    /// The next step, if there is one.
    pub hint: Option<String>,
}

/// A column as HTTP lists it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its SQL type.
    #[serde(rename = "type")]
    pub data_type: String,
}

/// A row of `SHOW JOBS` and of `GET /api/v1/jobs`.
#[derive(Clone, Debug)]
pub struct JobInfo {
    /// The relation that the job keeps.
    pub id: RelationId,
    /// `schema.name`.
    pub name: String,
    /// `table`, `source` or `materialized view`.
    pub kind: &'static str,
    /// `FILLING`, `RUNNING`, `FAILED` or `BLOCKED`.
    pub status: &'static str,
    /// Why, for `FAILED` and `BLOCKED`.
    pub error: Option<Error>,
    /// When it came into this status: milliseconds since 1970.
    pub since_millis: u64,
    /// Changed rows taken in since the start of the server.
    pub rows_in: u64,
    /// Changed rows of the result, likewise.
    pub rows_out: u64,
    /// How far its answer is behind the clock, in milliseconds.
    pub lag_millis: u64,
}

/// A materialized view as HTTP lists it.
#[derive(Clone, Debug)]
pub struct ViewInfo {
    /// Its catalog number.
    pub id: RelationId,
    /// Its name without schema.
    pub name: String,
    /// Its schema.
    pub schema: String,
    /// Columns in order.
    pub columns: Vec<Column>,
    /// Names of the columns that identify a row; empty when the whole row does.
    pub key: Vec<String>,
}

/// A key's column by name, unless it is the only one, and its value in text form, `None` for NULL.
pub type GivenKey = (Option<String>, Option<String>);

/// What to read of a relation, as HTTP asks it.
#[derive(Clone, Debug, Default)]
pub struct ScanRequest {
    /// Columns by name; all when absent.
    pub columns: Option<Vec<String>>,
    /// A SQL predicate over the relation's columns.
    pub filter: Option<String>,
    /// Rows in order of these columns, each with true when the greatest value comes first; without a cursor then.
    pub order: Option<Vec<(String, bool)>>,
    /// Only the row with this key.
    pub key: Option<Vec<GivenKey>>,
    /// Only the part that one worker has.
    pub worker: Option<usize>,
    /// At most so many rows.
    pub limit: Option<usize>,
    /// Go on where another scan of the relation ended.
    pub cursor: Option<String>,
    /// Exactly this time.
    pub as_of: Option<Time>,
    /// Find the end of a limited scan before its rows are read, so that `cursor` is there from the
    /// start; costs a second pass.
    pub cursor_first: bool,
}

/// Which changes of a relation, as HTTP asks it.
#[derive(Clone, Debug, Default)]
pub struct ChangesRequest {
    /// Begin with the rows that are there; when not said: unless `as_of` says where to begin.
    pub snapshot: Option<bool>,
    /// Rows that tell how far it is, each with a token.
    pub progress: bool,
    /// The token to go on from.
    pub as_of: Option<String>,
    /// The token at which it ends.
    pub up_to: Option<String>,
}

/// How many columns stand before those of the relation in rows of changes: time, diff, kind, token.
pub const CHANGE_COLUMNS: usize = 4;

/// Rows of a relation at one time.
pub struct Scan {
    /// The time.
    pub time: Time,
    /// Columns.
    pub schema: SchemaRef,
    /// The rows, in key order.
    pub rows: SendableRecordBatchStream,
    /// Where a scan that hit its limit goes on; set when the rows have been read to the end, or
    /// from the start with `cursor_first`. `None` inside: nothing follows.
    pub cursor: Arc<std::sync::Mutex<Option<String>>>,
}
