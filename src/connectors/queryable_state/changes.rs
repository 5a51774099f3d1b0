//! The rows of one time, and then the changes from there on, by whole times.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, AsArray, Int64Array, RecordBatch};
use arrow::compute::{concat, concat_batches};
use arrow::datatypes::{Int64Type, Schema};

use super::client::{Batches, Fault, Next};
use super::rows::{Given, Rows, Wanted};
use super::there::There;
use crate::exec::source::{Offset, Read, SourceReader};
use crate::types::{Error, Result};

/// How long a read waits for changes.
const WAIT: Duration = Duration::from_millis(250);
/// How often it is noted how far it is when nothing changes: the past of the other server ends some time.
const MARK_INTERVAL: Duration = Duration::from_secs(10);
/// Columns before those of the relation: time, diff, kind, token.
const HEAD: usize = 4;

/// The columns of the relation in the columns of its changes.
pub(super) fn row_schema(schema: &Schema) -> Result<Schema> {
    Ok(schema.project(&(HEAD.min(schema.fields().len())..schema.fields().len()).collect::<Vec<_>>())?)
}

/// The time of a stream's first row.
pub(super) fn first_time(batch: &RecordBatch) -> Option<u64> {
    u64::try_from(batch.columns().first()?.as_primitive_opt::<Int64Type>()?.iter().next()??).ok()
}

/// Reads rows, then changes.
pub(super) struct ChangesReader {
    there: Arc<There>,
    time: u64,
    wanted: Wanted,
    batches: Option<Batches>,
    /// How the stream's batches become rows, once one has come.
    rows: Option<Rows>,
    /// Where the next read starts: a number of rows or a time.
    at: u64,
    until: Option<u64>,
    /// Rows of the stream that were given before.
    skip: u64,
    /// What has come of a time that is not whole, or of the first rows.
    waiting: Vec<(RecordBatch, Int64Array)>,
    ready: VecDeque<Piece>,
    marked: Instant,
    /// The other server was told of as being away.
    warned: bool,
}

/// Rows to give, if there are any, and where they end.
struct Piece {
    rows: Option<(RecordBatch, Int64Array)>,
    start: u64,
    end: u64,
}

impl ChangesReader {
    /// Goes on from `at` up to `until`; with a stream that begins there, if there is one.
    pub(super) fn new(
        there: Arc<There>,
        time: u64,
        wanted: Wanted,
        batches: Option<Batches>,
        (at, until): (u64, Option<u64>),
    ) -> ChangesReader {
        ChangesReader {
            there,
            time,
            wanted,
            batches,
            rows: None,
            at,
            until,
            skip: 0,
            waiting: Vec::new(),
            ready: VecDeque::new(),
            marked: Instant::now(),
            warned: false,
        }
    }

    /// True while the rows of the first time are read.
    fn in_snapshot(&self) -> bool {
        self.at < self.time
    }

    fn is_through(&self) -> bool {
        self.until.is_some_and(|until| until <= self.at)
    }

    /// The next rows of the stream, which is opened where it has to be.
    fn next(&mut self) -> Result<Next, Fault> {
        if self.batches.is_none() {
            self.waiting.clear();
            self.rows = None;
            let time = self.time;
            let (from, snapshot) = if self.in_snapshot() { (time, "true") } else { (self.at, "false") };
            let until = self.until.map(|until| until.max(time).to_string());
            let from = from.to_string();
            let mut parameters = vec![("as_of", from.as_str()), ("snapshot", snapshot)];
            parameters.extend(until.as_deref().map(|until| ("up_to", until)));
            self.skip = if self.in_snapshot() { self.at } else { 0 };
            self.batches = Some(self.there.changes(&parameters)?);
        }
        let Some(batches) = &mut self.batches else { return Ok(Next::Later) };
        batches.next(WAIT)
    }

    /// Takes what came: rows wait for the word that their time is whole.
    fn take(&mut self, batch: &RecordBatch) -> Result<()> {
        let missing = || Error::internal("a column of a change is missing");
        let number = |at: usize| batch.columns().get(at).and_then(|column| column.as_primitive_opt::<Int64Type>());
        let (times, diffs) = (number(0).ok_or_else(missing)?, number(1).ok_or_else(missing)?);
        let tokens = batch.columns().get(3).ok_or_else(missing)?;
        let rows = batch.project(&(HEAD..batch.num_columns()).collect::<Vec<_>>())?;
        let mut from = 0;
        for row in 0..batch.num_rows() {
            if tokens.is_null(row) {
                continue;
            }
            self.wait(rows.slice(from, row - from), diffs.slice(from, row - from))?;
            from = row + 1;
            let time = u64::try_from(times.value(row)).map_err(|_| missing())?;
            self.reached(time)?;
        }
        self.wait(rows.slice(from, batch.num_rows() - from), diffs.slice(from, batch.num_rows() - from))
    }

    fn wait(&mut self, rows: RecordBatch, diffs: Int64Array) -> Result<()> {
        let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(rows.num_rows());
        self.skip -= skipped as u64;
        let left = rows.num_rows() - skipped;
        if left == 0 {
            return Ok(());
        }
        if self.in_snapshot() {
            // The last of them are held back: with them it is known that all are in.
            let end = self.at + self.waiting.iter().map(|(rows, _)| rows.num_rows() as u64).sum::<u64>();
            self.gather(end)?;
        }
        self.waiting.push((rows.slice(skipped, left), diffs.slice(skipped, left)));
        Ok(())
    }

    /// What waits is whole up to an offset.
    fn gather(&mut self, end: u64) -> Result<()> {
        if let Some((first, _)) = self.waiting.first() {
            let rows = concat_batches(&first.schema(), self.waiting.iter().map(|(rows, _)| rows))?;
            let diffs: Vec<&dyn Array> = self.waiting.iter().map(|(_, diffs)| diffs as &dyn Array).collect();
            let diffs = concat(&diffs)?.as_primitive::<Int64Type>().clone();
            self.ready.push_back(Piece { rows: Some((rows, diffs)), start: self.at, end });
            self.waiting.clear();
            self.at = end;
        }
        Ok(())
    }

    /// All up to a time is in.
    fn reached(&mut self, time: u64) -> Result<()> {
        let first = self.in_snapshot();
        let end = time.max(self.time);
        let moves = first || self.marked.elapsed() >= MARK_INTERVAL || self.until == Some(end);
        if self.waiting.is_empty() && moves && end > self.at {
            self.ready.push_back(Piece { rows: None, start: self.at, end });
            self.marked = Instant::now();
        }
        self.gather(end)?;
        self.at = self.at.max(end);
        Ok(())
    }

    /// Rows as they are given: up to `until`, which may lie among those of the first time.
    fn give(&mut self, piece: Piece) -> Result<Read> {
        let Piece { rows, start, mut end } = piece;
        let Some((mut rows, mut diffs)) = rows else {
            let rows = RecordBatch::new_empty(Arc::clone(&self.wanted.schema));
            return Ok(Read::Rows { rows, diffs: None, offsets: Vec::new(), bad: Vec::new(), end: Offset(end) });
        };
        let first = start < self.time;
        let stop = self.until.filter(|until| first && *until < self.time.min(start + rows.num_rows() as u64));
        if let Some(until) = stop {
            let count = usize::try_from(until.saturating_sub(start)).unwrap_or(usize::MAX);
            (rows, diffs, end) = (rows.slice(0, count), diffs.slice(0, count), until);
            self.ready.clear();
            self.at = until;
        }
        let offset = |row: usize| Offset(if first { start + row as u64 } else { start });
        let maker = self.rows.as_ref().ok_or_else(|| Error::internal("rows before their columns are known"))?;
        let Given { rows, diffs, offsets, bad } = maker.of(&rows, Some(&diffs), offset)?;
        Ok(Read::Rows { rows, diffs, offsets, bad, end: Offset(end) })
    }
}

impl SourceReader for ChangesReader {
    fn read(&mut self, _: usize) -> Result<Read> {
        let began = Instant::now();
        loop {
            if let Some(piece) = self.ready.pop_front() {
                self.marked = Instant::now();
                return self.give(piece);
            }
            if self.is_through() {
                return Ok(Read::End);
            }
            if began.elapsed() >= WAIT {
                return Ok(Read::Idle);
            }
            match self.next() {
                Ok(Next::Rows(batch)) => {
                    if std::mem::take(&mut self.warned) {
                        tracing::info!(of = %self.there, "the other server is there again");
                    }
                    if self.rows.is_none() {
                        self.rows = Some(self.wanted.rows(&row_schema(&batch.schema())?, &self.there)?);
                    }
                    self.take(&batch)?;
                }
                Ok(Next::Later) => return Ok(Read::Idle),
                // It ends when the server stops, and where it was told to.
                Ok(Next::End) => {
                    self.batches = None;
                    return Ok(if self.is_through() { Read::End } else { Read::Idle });
                }
                Err(Fault::Away(error)) => {
                    self.batches = None;
                    if !std::mem::replace(&mut self.warned, true) {
                        tracing::warn!(of = %self.there, error = ?error, "the other server is away");
                    }
                    return Ok(Read::Idle);
                }
                Err(fault) => return Err(self.there.error(fault)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arrow::array::{ArrayRef, StringArray};
    use arrow::datatypes::{DataType, Field};

    use super::*;
    use crate::connectors::options::{OptionValue, Options};
    use crate::connectors::queryable_state::options::StateOptions;
    use crate::connectors::registry::{ConnectorColumn, schema_of};

    const T: u64 = 1_000;

    /// A reader of `k bigint NOT NULL, v text`, the second of them wanted, whose first rows are of the time `T`.
    fn reader(at: u64, until: Option<u64>) -> ChangesReader {
        let texts = [("url", "http://127.0.0.1:1"), ("view", "w"), ("mode", "changes")];
        let value = |text: &str| OptionValue { text: text.to_owned(), position: 1, number: false };
        let values: BTreeMap<String, OptionValue> =
            texts.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect();
        let there = Arc::new(There { options: StateOptions::parse(&Options::new(&values)).expect("options") });
        let column = |name: &str, data_type, nullable| ConnectorColumn {
            name: name.to_owned(),
            data_type,
            nullable,
            length_max: None,
        };
        let columns = [column("k", DataType::Int64, false), column("v", DataType::Utf8, true)];
        let wanted = Wanted {
            schema: Arc::new(schema_of(&columns).project(&[1]).expect("there")),
            columns: columns.into(),
            wanted: Arc::from([1]),
            offsets: true,
        };
        ChangesReader::new(there, T, wanted, None, (at, until))
    }

    /// Rows as the other server sends them: time, diff, key, value; a diff of 0 is progress.
    fn come(reader: &mut ChangesReader, rows: &[(i64, i64, Option<i64>, &str)]) {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("clink_time", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0)))),
            ("clink_diff", Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1)))),
            ("clink_kind", Arc::new(StringArray::from_iter_values(rows.iter().map(|_| "any")))),
            ("clink_token", Arc::new(rows.iter().map(|row| (row.1 == 0).then_some("t")).collect::<StringArray>())),
            ("v", Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.3)))),
            ("k", Arc::new(rows.iter().map(|row| row.2).collect::<Int64Array>())),
        ];
        let fields: Vec<Field> =
            columns.iter().map(|(name, column)| Field::new(*name, column.data_type().clone(), true)).collect();
        let columns = columns.into_iter().map(|(_, column)| column).collect();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("fits");
        let schema = row_schema(&batch.schema()).expect("columns");
        reader.rows.get_or_insert(reader.wanted.rows(&schema, &reader.there).expect("the same columns"));
        reader.take(&batch).expect("understood");
    }

    /// What is given: values with their diffs, the offsets of rows, bad rows, the end.
    type Seen = (Vec<(String, i64)>, Vec<u64>, usize, u64);

    fn given(reader: &mut ChangesReader) -> Vec<Seen> {
        let mut seen = Vec::new();
        while let Some(piece) = reader.ready.pop_front() {
            let Read::Rows { rows, diffs, offsets, bad, end } = reader.give(piece).expect("given") else {
                panic!("rows")
            };
            let values = rows.column(0).as_string::<i32>();
            let diff = |row: usize| diffs.as_ref().map_or(1, |diffs| diffs.value(row));
            let values = (0..rows.num_rows()).map(|row| (values.value(row).to_owned(), diff(row))).collect();
            seen.push((values, offsets.iter().map(|offset| offset.0).collect(), bad.len(), end.0));
        }
        seen
    }

    fn values(of: &[(&str, i64)]) -> Vec<(String, i64)> {
        of.iter().map(|(value, diff)| ((*value).to_owned(), *diff)).collect()
    }

    #[test]
    fn rows_come_by_their_numbers_then_changes_by_whole_times() {
        let mut reader = reader(0, None);
        come(&mut reader, &[(1_000, 1, Some(1), "a"), (1_000, 1, Some(2), "b")]);
        assert_eq!(given(&mut reader), [], "they may be the last of their time");
        come(&mut reader, &[(1_000, 1, Some(3), "c")]);
        assert_eq!(given(&mut reader), [(values(&[("a", 1), ("b", 1)]), vec![0, 1], 0, 2)]);
        come(&mut reader, &[(1_000, 0, None, "")]);
        assert_eq!(given(&mut reader), [(values(&[("c", 1)]), vec![2], 0, T)]);
        come(&mut reader, &[(1_001, -1, Some(1), "a")]);
        assert_eq!(given(&mut reader), [], "a time that is not whole is not given");
        come(&mut reader, &[(1_001, 1, Some(1), "A"), (1_002, -1, Some(2), "b"), (1_002, 0, None, "")]);
        assert_eq!(given(&mut reader), [(values(&[("a", -1), ("A", 1), ("b", -1)]), vec![T; 3], 0, 1_002)]);
        // A row that the table does not take is bad once, and not when it is taken away.
        come(&mut reader, &[(1_003, 1, None, "x"), (1_003, 0, None, ""), (1_004, -1, None, "x"), (1_004, 0, None, "")]);
        assert_eq!(given(&mut reader), [(values(&[]), vec![], 1, 1_003), (values(&[]), vec![], 0, 1_004)]);
    }

    #[test]
    fn no_rows_at_all_are_known_to_be_all() {
        let mut reader = reader(0, None);
        come(&mut reader, &[(1_000, 0, None, "")]);
        assert_eq!(given(&mut reader), [(values(&[]), vec![], 0, T)]);
        come(&mut reader, &[(2_000, 0, None, "")]);
        assert_eq!(given(&mut reader), [], "time that passes is not noted at once");
    }

    #[test]
    fn first_rows_are_read_again_up_to_any_of_them() {
        let mut reader = reader(0, Some(1));
        come(&mut reader, &[(1_000, 1, Some(1), "a"), (1_000, 1, Some(2), "b"), (1_000, 0, None, "")]);
        assert_eq!(given(&mut reader), [(values(&[("a", 1)]), vec![0], 0, 1)]);
        assert!(reader.is_through());
        let mut behind = self::reader(1, None);
        behind.skip = 1;
        come(&mut behind, &[(1_000, 1, Some(1), "a"), (1_000, 1, Some(2), "b"), (1_000, 0, None, "")]);
        assert_eq!(given(&mut behind), [(values(&[("b", 1)]), vec![1], 0, T)]);
    }
}
