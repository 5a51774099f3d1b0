//! The timeline log: which rows became part of the database at which time.
//!
//! One record a tick with data, appended and, when it holds rows of DML, synced before anybody is told.
//! A record is
//!
//! ```text
//! [u32 LE length of payload][u32 LE CRC-32 of payload][payload]
//! payload: [u8 version = 3][u64 LE time]
//!          [u32 LE number of bindings] then each [u64 LE table][u32 LE length][split, UTF-8]
//!                                                [u64 LE end offset][u32 LE bad rows][i64 LE watermark]
//!          [u32 LE number of tables]   then each [u64 LE table][u32 LE length][Arrow IPC stream]
//!          [u32 LE number of tables whose event time goes on] then each [u64 LE table][i64 LE watermark]
//!          [u32 LE number of jobs that know of event time from then on] then each [u64 LE job]
//! ```
//!
//! A watermark is in microseconds since 1970, the least number for none and the greatest for the end. The IPC stream has the table's columns and a last column `__diff`. A crash can cut the last record
//! short: opening cuts such a tail off, and only a tail; a record that is damaged with whole ones behind
//! it is an error. Once an append or sync failed, nothing more is appended: what the file holds is then
//! known only by reading it again.
//!
//! A checkpoint begins a new file: what `timeline.log` held is then `timeline-<time>.log`, whole, with records up to the
//! checkpoint's time. It is removed when no retained checkpoint needs it.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;

use crate::env::Env;
use crate::exec::source::{Offset, SplitId};
use crate::types::{Chunk, Error, RelationId, Result, SqlState, Time, Watermark};

const VERSION: u8 = 3;
/// Its records end with the changes, and its bindings know of no event time.
const VERSION_WITHOUT_TIME: u8 = 2;
const SEGMENT_PREFIX: &str = "timeline-";
const SEGMENT_SUFFIX: &str = ".log";
const DIFF_COLUMN: &str = "__diff";
/// No record is longer: a length beyond it is damage.
const RECORD_BYTES_MAX: u32 = 1 << 30;

/// What became part of the database at one time.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) time: Time,
    /// Up to where splits of external tables were read.
    pub(crate) bindings: Vec<Binding>,
    /// Changes of ordinary tables.
    pub(crate) writes: Vec<(RelationId, Vec<Chunk>)>,
    /// What is known of the event time of tables, where that is news.
    pub(crate) watermarks: Vec<(RelationId, Watermark)>,
    /// Jobs that know of event time from then on.
    pub(crate) opened: Vec<RelationId>,
}

impl Record {
    /// True when there is nothing to be written down.
    pub(crate) fn is_empty(&self) -> bool {
        self.bindings.is_empty() && self.writes.is_empty() && !self.marks()
    }

    /// True when something is known of event time that was not known before.
    pub(crate) fn marks(&self) -> bool {
        !self.watermarks.is_empty() || !self.opened.is_empty()
    }
}

/// Up to where a split was read at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) table: RelationId,
    pub(crate) split: SplitId,
    pub(crate) end: Offset,
    /// How many rows between the binding before and this one could not be read.
    pub(crate) bad: u32,
    /// What the split's rows so far say of event time.
    pub(crate) watermark: Watermark,
}

/// The log, open for appending.
pub(crate) struct TimelineLog {
    directory: PathBuf,
    /// Former files, each with a time that none of its records is behind, in order.
    segments: Vec<(Time, PathBuf)>,
    path: PathBuf,
    file: File,
    env: Env,
    failed: Option<Error>,
}

impl TimelineLog {
    /// Opens the log, cutting off a record that a crash left unfinished.
    ///
    /// # Errors
    /// XX001 when it is damaged before its tail.
    pub(crate) fn open(directory: &Path, env: Env) -> Result<TimelineLog> {
        let path = directory.join("timeline.log");
        let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path)?;
        let whole = scan(&path, &mut file, &mut |_| Ok(()))?;
        if file.metadata()?.len() > whole {
            tracing::warn!(path = %path.display(), bytes = whole, "cut off a record that was not finished");
            file.set_len(whole)?;
            file.sync_all()?;
        }
        File::open(directory)?.sync_all()?;
        file.seek(SeekFrom::Start(whole))?;
        let segments = segments(directory)?;
        Ok(TimelineLog { directory: directory.to_owned(), segments, path, file, env, failed: None })
    }

    /// Gives every record behind a time to `visit`, oldest first.
    ///
    /// # Errors
    /// The error of `visit`, or XX001 when a record cannot be understood.
    pub(crate) fn replay(&self, after: Time, visit: &mut dyn FnMut(Record) -> Result<()>) -> Result<()> {
        let mut visit = |payload: &[u8]| {
            let record = decode(payload)?;
            if record.time > after { visit(record) } else { Ok(()) }
        };
        for (upto, path) in self.segments.iter().filter(|(upto, _)| *upto > after) {
            let mut file = File::open(path)?;
            let whole = scan(path, &mut file, &mut visit)?;
            if whole < file.metadata()?.len() {
                return Err(damaged(path, whole).detail(format!("The file was whole when time {upto} was closed.")));
            }
        }
        let mut file = File::open(&self.path)?;
        scan(&self.path, &mut file, &mut visit)?;
        Ok(())
    }

    /// Begins a new file; no record so far is behind `time`.
    ///
    /// # Errors
    /// When that cannot be done; then every later call fails too.
    pub(crate) fn begin_file(&mut self, time: Time) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.try_begin_file(time).map_err(|error| self.fail(&error))
    }

    fn try_begin_file(&mut self, time: Time) -> Result<()> {
        if self.file.metadata()?.len() == 0 {
            return Ok(());
        }
        // Only its last file may have an end that is not whole.
        self.file.sync_all()?;
        self.env.failpoints().pass("timeline.begin_file")?;
        let segment = self.directory.join(format!("{SEGMENT_PREFIX}{}{SEGMENT_SUFFIX}", time.as_millis()));
        std::fs::rename(&self.path, &segment)?;
        self.file = OpenOptions::new().create_new(true).read(true).write(true).open(&self.path)?;
        File::open(&self.directory)?.sync_all()?;
        self.segments.push((time, segment));
        Ok(())
    }

    /// Removes the files whose records all are at or before a time.
    ///
    /// # Errors
    /// When one cannot be removed; later calls try again.
    pub(crate) fn forget(&mut self, upto: Time) -> Result<()> {
        while let Some((last, path)) = self.segments.first()
            && *last <= upto
        {
            self.env.failpoints().pass("timeline.forget")?;
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
                _ => drop(self.segments.remove(0)),
            }
        }
        Ok(())
    }

    fn fail(&mut self, error: &Error) -> Error {
        let error = Error::new(error.code(), format!("the timeline log cannot be written: {error}"))
            .detail("Whether the last change is in the log is known only after a restart.")
            .hint("See to the disk of the data directory, then restart the server.");
        self.failed = Some(error.clone());
        error
    }

    /// Appends a record; with `sync`, it is durable afterwards.
    ///
    /// # Errors
    /// When it may or may not be there; then every later call fails too.
    pub(crate) fn append(&mut self, record: &Record, sync: bool) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.try_append(record, sync).map_err(|error| self.fail(&error))
    }

    fn try_append(&mut self, record: &Record, sync: bool) -> Result<()> {
        let payload = encode(record)?;
        let length =
            u32::try_from(payload.len()).ok().filter(|length| *length <= RECORD_BYTES_MAX).ok_or_else(|| {
                Error::new(SqlState::ProgramLimitExceeded, "a transaction's changes exceed 1 GiB")
                    .hint("Write fewer rows at a time.")
            })?;
        self.env.failpoints().pass("timeline.append")?;
        let mut bytes = Vec::with_capacity(payload.len() + 8);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&payload).to_le_bytes());
        bytes.extend_from_slice(&payload);
        self.file.write_all(&bytes)?;
        if sync {
            self.env.failpoints().pass("timeline.sync")?;
            self.file.sync_data()?;
        }
        Ok(())
    }
}

/// The former files of a directory.
fn segments(directory: &Path) -> Result<Vec<(Time, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let time = name.to_str().and_then(|name| name.strip_prefix(SEGMENT_PREFIX)?.strip_suffix(SEGMENT_SUFFIX));
        if let Some(time) = time.and_then(|time| time.parse().ok()) {
            found.push((Time::from_millis(time), entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// Gives the payload of every whole record to `visit` and returns where the last of them ends.
fn scan(path: &Path, file: &mut File, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<u64> {
    let total = file.metadata()?.len();
    file.seek(SeekFrom::Start(0))?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let (mut position, mut payload) = (0_u64, Vec::new());
    loop {
        let mut header = [0; 8];
        if total - position < 8 {
            return Ok(position);
        }
        reader.read_exact(&mut header)?;
        let (length, crc) = header.split_at(4);
        let length = u32::from_le_bytes(length.try_into().map_err(|_| Error::internal("four bytes"))?);
        let crc = u32::from_le_bytes(crc.try_into().map_err(|_| Error::internal("four bytes"))?);
        let end = position + 8 + u64::from(length);
        if end > total {
            return Ok(position);
        }
        payload.resize(length as usize, 0);
        reader.read_exact(&mut payload)?;
        if length == 0 || length > RECORD_BYTES_MAX || crc32fast::hash(&payload) != crc {
            if end == total {
                return Ok(position);
            }
            return Err(damaged(path, position));
        }
        visit(&payload)?;
        position = end;
    }
}

fn damaged(path: &Path, position: u64) -> Error {
    Error::new(SqlState::DataCorrupted, format!("{} is damaged at byte {position}", path.display()))
        .detail("Whole records may follow, so the damage is not that of a crash.")
        .hint("Restore the data directory from a copy.")
}

fn encode(record: &Record) -> Result<Vec<u8>> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&record.time.as_millis().to_le_bytes());
    out.extend_from_slice(&(record.bindings.len() as u32).to_le_bytes());
    for binding in &record.bindings {
        let split = binding.split.as_str().as_bytes();
        out.extend_from_slice(&binding.table.0.to_le_bytes());
        out.extend_from_slice(&u32::try_from(split.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(split);
        out.extend_from_slice(&binding.end.0.to_le_bytes());
        out.extend_from_slice(&binding.bad.to_le_bytes());
        out.extend_from_slice(&binding.watermark.as_micros().to_le_bytes());
    }
    out.extend_from_slice(&(record.writes.len() as u32).to_le_bytes());
    for (table, chunks) in &record.writes {
        let bytes = encode_chunks(chunks)?;
        out.extend_from_slice(&table.0.to_le_bytes());
        out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&bytes);
    }
    out.extend_from_slice(&(record.watermarks.len() as u32).to_le_bytes());
    for (table, watermark) in &record.watermarks {
        out.extend_from_slice(&table.0.to_le_bytes());
        out.extend_from_slice(&watermark.as_micros().to_le_bytes());
    }
    out.extend_from_slice(&(record.opened.len() as u32).to_le_bytes());
    for job in &record.opened {
        out.extend_from_slice(&job.0.to_le_bytes());
    }
    Ok(out)
}

/// Changes as an Arrow IPC stream with their diffs in a last column, `__diff`; nothing for none.
///
/// # Errors
/// When a column outgrows the format.
pub(super) fn encode_chunks(chunks: &[Chunk]) -> Result<Vec<u8>> {
    let Some(first) = chunks.first() else { return Ok(Vec::new()) };
    let (batch, diffs) = Chunk::concat(&first.schema(), chunks)?;
    let mut fields = first.schema().fields().to_vec();
    fields.push(Arc::new(Field::new(DIFF_COLUMN, DataType::Int64, false)));
    let schema = Arc::new(Schema::new(fields));
    let mut columns: Vec<ArrayRef> = batch.columns().to_vec();
    columns.push(Arc::new(diffs));
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns)?;
    let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
    writer.write(&batch)?;
    Ok(writer.into_inner()?)
}

fn decode(payload: &[u8]) -> Result<Record> {
    let mut rest = payload;
    let [version] = take(&mut rest)?;
    if ![VERSION, VERSION_WITHOUT_TIME].contains(&version) {
        return Err(Error::new(
            SqlState::DataCorrupted,
            format!("the timeline log has a record of version {version}; this program reads versions {VERSION_WITHOUT_TIME} and {VERSION}"),
        )
        .hint("Start the version of the program that wrote it, or begin with an empty data directory."));
    }
    let time = Time::from_millis(u64::from_le_bytes(take(&mut rest)?));
    let mut bindings = Vec::new();
    for _ in 0..u32::from_le_bytes(take(&mut rest)?) {
        let table = RelationId(u64::from_le_bytes(take(&mut rest)?));
        let split = std::str::from_utf8(take_bytes(&mut rest)?).map_err(|_| short())?;
        let split = SplitId::new(split);
        let end = Offset(u64::from_le_bytes(take(&mut rest)?));
        let bad = u32::from_le_bytes(take(&mut rest)?);
        let watermark = match version {
            VERSION => Watermark::from_micros(i64::from_le_bytes(take(&mut rest)?)),
            _ => Watermark::NONE,
        };
        bindings.push(Binding { table, split, end, bad, watermark });
    }
    let mut writes = Vec::new();
    for _ in 0..u32::from_le_bytes(take(&mut rest)?) {
        let table = RelationId(u64::from_le_bytes(take(&mut rest)?));
        writes.push((table, decode_chunks(take_bytes(&mut rest)?)?));
    }
    let (mut watermarks, mut opened) = (Vec::new(), Vec::new());
    if version == VERSION_WITHOUT_TIME {
        return Ok(Record { time, bindings, writes, watermarks, opened });
    }
    for _ in 0..u32::from_le_bytes(take(&mut rest)?) {
        let table = RelationId(u64::from_le_bytes(take(&mut rest)?));
        watermarks.push((table, Watermark::from_micros(i64::from_le_bytes(take(&mut rest)?))));
    }
    for _ in 0..u32::from_le_bytes(take(&mut rest)?) {
        opened.push(RelationId(u64::from_le_bytes(take(&mut rest)?)));
    }
    Ok(Record { time, bindings, writes, watermarks, opened })
}

/// The changes of [`encode_chunks`].
///
/// # Errors
/// XX001 when they are cut short.
pub(super) fn decode_chunks(bytes: &[u8]) -> Result<Vec<Chunk>> {
    let mut chunks = Vec::new();
    if bytes.is_empty() {
        return Ok(chunks);
    }
    for batch in StreamReader::try_new(bytes, None)? {
        let batch = batch?;
        let last = batch.num_columns().checked_sub(1).ok_or_else(short)?;
        let diffs = batch.column(last).as_primitive_opt::<Int64Type>().ok_or_else(short)?.clone();
        let rows = batch.project(&(0..last).collect::<Vec<_>>())?;
        chunks.extend(Chunk::changes(&rows, &diffs));
    }
    Ok(chunks)
}

fn short() -> Error {
    Error::new(SqlState::DataCorrupted, "a record of the timeline log is cut short")
}

/// Bytes behind their length.
fn take_bytes<'a>(input: &mut &'a [u8]) -> Result<&'a [u8]> {
    let length = u32::from_le_bytes(take(input)?) as usize;
    let (bytes, rest) = input.split_at_checked(length).ok_or_else(short)?;
    *input = rest;
    Ok(bytes)
}

fn take<const N: usize>(input: &mut &[u8]) -> Result<[u8; N]> {
    let (bytes, rest) = input.split_first_chunk::<N>().ok_or_else(short)?;
    *input = rest;
    Ok(*bytes)
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;

    use super::*;

    fn bindings(time: u64) -> Vec<Binding> {
        ["a", "b.ndjson#1"]
            .map(|split| Binding {
                table: RelationId(4),
                split: SplitId::new(split),
                end: Offset(time * 10),
                bad: u32::try_from(time).expect("small"),
                watermark: Watermark::from_micros(-5),
            })
            .to_vec()
    }

    fn record(time: u64, value: i64) -> Record {
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, true)]));
        let rows =
            RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(vec![Some(value), None]))]).expect("fits");
        Record {
            time: Time::from_millis(time),
            bindings: bindings(time),
            writes: vec![(RelationId(7), Chunk::changes(&rows, &Int64Array::from(vec![1, -2])))],
            watermarks: vec![(RelationId(7), Watermark::from_micros(9)), (RelationId(8), Watermark::END)],
            opened: vec![RelationId(11)],
        }
    }

    fn times(log: &TimelineLog) -> Vec<u64> {
        let mut times = Vec::new();
        log.replay(Time::ZERO, &mut |record| {
            assert_eq!(record.bindings, bindings(record.time.as_millis()));
            assert_eq!(record.watermarks[1], (RelationId(8), Watermark::END));
            assert_eq!(record.opened, [RelationId(11)]);
            assert_eq!(record.writes[0].1[0].diffs().map(|d| d.values().to_vec()), Some(vec![1, -2]));
            times.push(record.time.as_millis());
            Ok(())
        })
        .expect("readable");
        times
    }

    #[test]
    fn a_cut_at_any_byte_loses_the_last_record_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("timeline.log");
        let mut log = TimelineLog::open(directory.path(), Env::system()).expect("opens");
        log.append(&record(1, 10), true).expect("appends");
        let first = std::fs::metadata(&path).expect("there").len();
        log.append(&record(2, 20), true).expect("appends");
        drop(log);
        let bytes = std::fs::read(&path).expect("readable");
        for cut in first..bytes.len() as u64 {
            std::fs::write(&path, &bytes[..cut as usize]).expect("writable");
            let mut log = TimelineLog::open(directory.path(), Env::system()).expect("a tail is cut off");
            assert_eq!(times(&log), vec![1]);
            log.append(&record(3, 30), true).expect("appends");
            assert_eq!(times(&log), vec![1, 3]);
        }
    }

    #[test]
    fn files_that_no_checkpoint_needs_go() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut log = TimelineLog::open(directory.path(), Env::system()).expect("opens");
        for time in 1..=6 {
            log.append(&record(time, 10), true).expect("appends");
            if time % 2 == 0 {
                log.begin_file(Time::from_millis(time)).expect("begins");
            }
        }
        log.begin_file(Time::from_millis(9)).expect("an empty one goes on");
        log.append(&record(10, 10), true).expect("appends");
        drop(log);
        let mut log = TimelineLog::open(directory.path(), Env::system()).expect("opens");
        assert_eq!(times(&log), vec![1, 2, 3, 4, 5, 6, 10]);
        let mut behind = Vec::new();
        log.replay(Time::from_millis(3), &mut |record| {
            behind.push(record.time.as_millis());
            Ok(())
        })
        .expect("readable");
        assert_eq!(behind, vec![4, 5, 6, 10]);
        log.forget(Time::from_millis(5)).expect("removes");
        assert_eq!(times(&log), vec![5, 6, 10]);
        let whole = directory.path().join("timeline-6.log");
        let bytes = std::fs::read(&whole).expect("readable");
        std::fs::write(&whole, &bytes[..bytes.len() - 1]).expect("writable");
        let error = log.replay(Time::ZERO, &mut |_| Ok(())).expect_err("only the last file may be cut");
        assert_eq!(error.code(), SqlState::DataCorrupted);
    }

    #[test]
    fn damage_before_the_tail_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("timeline.log");
        let mut log = TimelineLog::open(directory.path(), Env::system()).expect("opens");
        log.append(&record(1, 10), true).expect("appends");
        log.append(&record(2, 20), true).expect("appends");
        drop(log);
        let mut bytes = std::fs::read(&path).expect("readable");
        bytes[20] ^= 1;
        std::fs::write(&path, &bytes).expect("writable");
        let error = TimelineLog::open(directory.path(), Env::system()).err().expect("damaged");
        assert_eq!(error.code(), SqlState::DataCorrupted);
    }

    #[test]
    fn a_record_of_another_version_is_refused_by_name() {
        let mut payload = encode(&record(1, 10)).expect("encodes");
        payload[0] = 1;
        let error = decode(&payload).expect_err("refused");
        assert!(error.message().contains("version 1; this program reads versions 2 and 3"), "{error}");
        assert!(error.hint_text().is_some());
    }

    #[test]
    fn after_a_failed_sync_nothing_more_is_taken() {
        let directory = tempfile::tempdir().expect("a directory");
        let env = Env::system();
        let mut log = TimelineLog::open(directory.path(), env.clone()).expect("opens");
        env.failpoints().arm("timeline.sync", 0);
        assert!(log.append(&record(1, 10), true).is_err());
        assert!(log.append(&record(2, 20), true).is_err());
    }
}
