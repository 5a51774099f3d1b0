//! Records to rows: JSON lines and CSV.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::records::{Next, Records};
use super::splits::FollowedFiles;
use crate::connectors::formats::csv::{CsvDecoder, without_line_end};
use crate::connectors::formats::json::JsonDecoder;
use crate::connectors::formats::{Columns, ROW_BYTES_MAX, RowError};
use crate::exec::source::{BadRow, Offset, Read, SourceReader, SplitId};
use crate::types::{Error, Result, SqlState};

/// A read stops after so many bytes of input, so that a batch of long rows stays bounded.
const BATCH_BYTES: u64 = 8 << 20;
/// A read stops after so many bad rows.
const BAD_ROWS_MAX: usize = 1024;
/// How long a file that was renamed away is followed for what its writer still had to say.
const RENAMED_FOR: Duration = Duration::from_secs(5);

/// Turns a record into a row.
pub(crate) enum Decoder {
    /// JSON lines.
    Json(JsonDecoder),
    /// CSV.
    Csv(CsvDecoder),
}

impl Decoder {
    fn decode(&mut self, record: &[u8], columns: &mut Columns) -> Result<bool, RowError> {
        match self {
            Decoder::Json(decoder) => decoder.decode(record, columns),
            Decoder::Csv(decoder) => decoder.decode(record, columns),
        }
    }
}

/// How a file that is followed is watched.
pub(crate) struct Watched {
    /// The files of the source.
    pub(crate) files: Arc<FollowedFiles>,
    /// What the file is known by.
    pub(crate) key: String,
    /// The split.
    pub(crate) split: SplitId,
}

/// One pass over a file of records.
pub(crate) struct LinesReader {
    path: PathBuf,
    records: Records,
    /// Records that start there or behind belong to another split.
    range_end: u64,
    decoder: Decoder,
    columns: Columns,
    /// Where the rows in `columns` start, when that was asked for.
    offsets: Option<Vec<Offset>>,
    watched: Option<Watched>,
    renamed_since: Option<Instant>,
}

impl LinesReader {
    pub(crate) fn new(
        path: PathBuf,
        records: Records,
        range_end: u64,
        decoder: Decoder,
        columns: Columns,
        offsets: bool,
        watched: Option<Watched>,
    ) -> LinesReader {
        let offsets = offsets.then(Vec::new);
        LinesReader { path, records, range_end, decoder, columns, offsets, watched, renamed_since: None }
    }

    /// Reads one record; false at the end.
    fn step(&mut self, bad: &mut Vec<BadRow>) -> Result<bool> {
        let start = self.records.offset();
        if start >= self.range_end {
            return Ok(false);
        }
        match self.records.next().map_err(|error| named(&self.path, error))? {
            Next::End => Ok(false),
            Next::TooLong(raw) => {
                let reason = format!("the row is longer than {} MiB", ROW_BYTES_MAX >> 20);
                let raw = without_line_end(&raw);
                bad.push(BadRow::new(SqlState::ProgramLimitExceeded, raw, reason, None, Offset(start)));
                Ok(true)
            }
            Next::Record(record) => {
                let bytes = self.records.bytes(&record);
                let decoded = self.decoder.decode(bytes, &mut self.columns);
                if let (Ok(true), Some(offsets)) = (&decoded, &mut self.offsets) {
                    offsets.push(Offset(start));
                }
                if let Err(error) = decoded {
                    // When quotes were not closed, the next lines are not part of the fault.
                    let line = memchr::memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1);
                    let raw = without_line_end(bytes.get(..line).unwrap_or_default());
                    bad.push(BadRow::new(error.code, raw, error.reason, error.column, Offset(start)));
                    if line < bytes.len() {
                        self.records.take_back(&record, line);
                    }
                }
                Ok(true)
            }
        }
    }

    /// What the end of the records means.
    fn at_end(&mut self) -> Result<Read> {
        let Some(watched) = &self.watched else { return Ok(Read::End) };
        let Some(file) = self.records.input().file() else { return Ok(Read::End) };
        if file.metadata()?.len() < self.records.read_up_to() {
            tracing::warn!(path = %self.path.display(), "a file that is followed was cut; it is read from its start");
            watched.files.was_cut(&watched.split);
            return Ok(Read::End);
        }
        if watched.files.is_current(&watched.key) {
            self.renamed_since = None;
            return Ok(Read::Idle);
        }
        if self.renamed_since.get_or_insert_with(Instant::now).elapsed() < RENAMED_FOR {
            return Ok(Read::Idle);
        }
        self.records.take_open_end();
        Ok(Read::End)
    }
}

/// An I/O error that names its file.
pub(crate) fn named(path: &std::path::Path, error: std::io::Error) -> Error {
    let error = Error::from(error);
    Error::new(error.code(), format!("file \"{}\": {}", path.display(), error.message()))
}

impl SourceReader for LinesReader {
    fn read(&mut self, rows_max: usize) -> Result<Read> {
        loop {
            if self.watched.is_some() {
                self.records.look_again();
            }
            let start = self.records.offset();
            let mut bad = Vec::new();
            let mut more = true;
            // Blank lines alone do not fill a batch.
            while more
                && self.columns.rows() < rows_max
                && bad.len() < BAD_ROWS_MAX
                && ((self.columns.rows() == 0 && bad.is_empty()) || self.records.offset() - start < BATCH_BYTES)
            {
                more = self.step(&mut bad)?;
            }
            if self.columns.rows() > 0 || !bad.is_empty() {
                let rows = self.columns.finish()?;
                let offsets = self.offsets.as_mut().map(std::mem::take).unwrap_or_default();
                return Ok(Read::Rows { rows, diffs: None, offsets, bad, end: Offset(self.records.offset()) });
            }
            match self.at_end()? {
                // The last line may have had no end.
                Read::End if self.renamed_since.take().is_some() => {}
                end => return Ok(end),
            }
        }
    }
}
