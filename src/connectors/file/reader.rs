//! Bytes of a file to records to rows.

use std::fs::File;
use std::io::{Read as _, Seek, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;

use crate::connectors::formats::csv::{CsvDecoder, record_end};
use crate::connectors::formats::json::JsonDecoder;
use crate::connectors::formats::{Columns, ROW_BYTES_MAX, RowError};
use crate::exec::source::{Offset, Read, SourceReader};
use crate::types::{Error, Result, SqlState};

const READ_BYTES: usize = 1 << 20;
/// A read stops after so many bytes of input, so that a batch of long rows stays bounded.
const BATCH_BYTES: u64 = 8 << 20;

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

/// A record within the buffer.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    range: Range<usize>,
}

/// Cuts a file into records, line ends included.
pub(crate) struct RecordBuffer {
    file: File,
    /// Read bytes; those before `start` are used up.
    buffer: Vec<u8>,
    start: usize,
    /// Offset in the file of `buffer[start]`.
    offset: u64,
    until: Option<u64>,
    /// Line ends inside quotes do not end a record.
    quoted: bool,
    /// The file is read to its end, or to `until`.
    ended: bool,
    positioned: bool,
}

impl RecordBuffer {
    /// Records from `offset` on; with `until` the file is taken to end there.
    pub(crate) fn new(file: File, offset: u64, until: Option<u64>, quoted: bool) -> RecordBuffer {
        RecordBuffer { file, buffer: Vec::new(), start: 0, offset, until, quoted, ended: false, positioned: false }
    }

    /// Offset in the file behind the last record given.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes of the record that was given last.
    pub(crate) fn bytes(&self, record: &Record) -> &[u8] {
        self.buffer.get(record.range.clone()).unwrap_or_default()
    }

    /// Skips a UTF-8 byte order mark, which may only stand at the start of the file.
    pub(crate) fn skip_byte_order_mark(&mut self) -> std::io::Result<()> {
        while self.buffer.len() < 3 && !self.ended {
            self.fill()?;
        }
        if self.buffer.starts_with(b"\xef\xbb\xbf") {
            self.start = 3;
            self.offset += 3;
        }
        Ok(())
    }

    /// The next record; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Record>> {
        let mut scanned = 0;
        loop {
            let data = self.buffer.get(self.start..).unwrap_or_default();
            let end = if self.quoted {
                record_end(data)
            } else {
                memchr::memchr(b'\n', data.get(scanned..).unwrap_or_default()).map(|at| scanned + at + 1)
            };
            let length = match end {
                Some(length) => length,
                None if self.ended => data.len(),
                None if data.len() > ROW_BYTES_MAX => data.len(),
                None => {
                    scanned = data.len();
                    self.fill()?;
                    continue;
                }
            };
            if length > ROW_BYTES_MAX {
                return Err(Error::new(
                    SqlState::ProgramLimitExceeded,
                    format!("the row at byte {} is longer than {} MiB", self.offset, ROW_BYTES_MAX >> 20),
                ));
            }
            if length == 0 {
                return Ok(None);
            }
            let range = self.start..self.start + length;
            self.start = range.end;
            self.offset += length as u64;
            return Ok(Some(Record { range }));
        }
    }

    fn fill(&mut self) -> std::io::Result<()> {
        if !self.positioned {
            self.file.seek(SeekFrom::Start(self.offset))?;
            self.positioned = true;
        }
        self.buffer.drain(..self.start);
        self.start = 0;
        let mut want = READ_BYTES as u64;
        if let Some(until) = self.until {
            let have = self.offset + self.buffer.len() as u64;
            want = want.min(until.saturating_sub(have));
        }
        self.buffer.reserve(READ_BYTES);
        let got = (&mut self.file).take(want).read_to_end(&mut self.buffer)?;
        // Short of what was wanted: the end of the file.
        self.ended = (got as u64) < READ_BYTES as u64;
        if self.ended
            && let Some(until) = self.until
            && self.offset + (self.buffer.len() as u64) < until
        {
            return Err(std::io::Error::new(
                std::io::ErrorKind::UnexpectedEof,
                format!("the file ends before byte {until}, which was read before"),
            ));
        }
        Ok(())
    }
}

/// One pass over a file.
pub(crate) struct FileReader {
    path: PathBuf,
    records: RecordBuffer,
    decoder: Decoder,
    columns: Columns,
    /// The fault that ended the pass; every further read gives it.
    failed: Option<Error>,
}

impl FileReader {
    pub(crate) fn new(path: PathBuf, records: RecordBuffer, decoder: Decoder, columns: Columns) -> Result<FileReader> {
        Ok(FileReader { path, records, decoder, columns, failed: None })
    }

    /// Reads one record into the columns; false at the end.
    fn step(&mut self) -> Result<bool> {
        let start = self.records.offset();
        let Some(record) = self.records.next().map_err(|error| self.named(&error))? else {
            return Ok(false);
        };
        let bytes = self.records.bytes(&record);
        match self.decoder.decode(bytes, &mut self.columns) {
            Ok(_) => Ok(true),
            Err(error) => Err(self.bad_row(start, &error)),
        }
    }

    fn named(&self, error: &Error) -> Error {
        Error::new(error.code(), format!("file \"{}\": {}", self.path.display(), error.message()))
    }

    fn bad_row(&self, start: u64, error: &RowError) -> Error {
        let column = error.column.as_ref().map(|column| format!(", column \"{column}\"")).unwrap_or_default();
        Error::new(
            error.code,
            format!("file \"{}\", row at byte {start}{column}: {}", self.path.display(), error.reason),
        )
    }
}

impl SourceReader for FileReader {
    fn read(&mut self, rows_max: usize) -> Result<Read> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let start = self.records.offset();
        let mut end = start;
        // Blank lines alone do not fill a batch.
        while self.columns.rows() < rows_max && (self.columns.rows() == 0 || end - start < BATCH_BYTES) {
            match self.step() {
                Ok(true) => end = self.records.offset(),
                Ok(false) => break,
                Err(error) => {
                    self.failed = Some(error.clone());
                    if self.columns.rows() == 0 {
                        return Err(error);
                    }
                    break;
                }
            }
        }
        if self.columns.rows() == 0 {
            return Ok(Read::End);
        }
        let rows = self.columns.finish()?;
        Ok(Read::Rows { rows, end: Offset(end) })
    }
}
