//! Shows rows while the clock stands between bounds of theirs: a row comes and goes by itself.
//!
//! The clock is the time that is closed, so what is shown at a time depends on the rows up to it and on nothing else. A
//! row whose time is over is forgotten, and so is one that has come and never goes; a retraction of such a row needs no
//! memory, since the row itself says whether it is shown.
//!
//! State: rows with their number, by the time at which they come or go. Stored as value state `waiting`: by row,
//! `[u8 1 when it is shown][i64 number]`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;

use super::{Context, Operator, StateSize, Step};
use crate::exec::event_time::values;
use crate::exec::plan::ClockBound;
use crate::state::{RowCodec, WriteBatch, split_value_key, value_key};
use crate::types::{CHUNK_ROWS_MAX, Chunk, Error, OperatorId, Result, SqlState, Time};

const SLOT_NAME: &str = "waiting";
/// Rows that a barrier writes between two looks at the clock.
const BARRIER_ROWS: usize = 1_024;
/// The clock never gets there.
const NEVER: i64 = i64::MAX;

/// The operator on one worker.
#[derive(Debug)]
pub struct TemporalFilter {
    operator: OperatorId,
    /// What it puts out: the first columns of its input.
    schema: SchemaRef,
    bounds: Vec<ClockBound>,
    codec: RowCodec,
    pending: VecDeque<Chunk>,
    /// By the time at which something happens to the row, in milliseconds of the clock, and encoded row.
    waiting: BTreeMap<(i64, Arc<[u8]>), Waiting>,
    /// Of the rows that wait, their times and counts.
    waiting_bytes: usize,
    /// What changed since the last barrier, when that is asked for.
    changed: Option<BTreeSet<(i64, Arc<[u8]>)>>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    count: i64,
    /// True: it goes then. False: it comes then.
    shown: bool,
}

impl TemporalFilter {
    /// An operator over rows of `input`, whose first columns are those of `schema`. With `track`, changes are
    /// remembered for barriers.
    ///
    /// # Errors
    /// 0A000 when a type cannot be kept.
    pub fn new(
        operator: OperatorId,
        input: &SchemaRef,
        schema: SchemaRef,
        bounds: Vec<ClockBound>,
        track: bool,
    ) -> Result<TemporalFilter> {
        Ok(TemporalFilter {
            operator,
            schema,
            bounds,
            codec: RowCodec::for_rows(input.fields().iter().map(|field| field.data_type()))?,
            pending: VecDeque::new(),
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            changed: track.then(BTreeSet::new),
        })
    }

    fn add(&mut self, at: i64, row: &[u8], count: i64, shown: bool) {
        let key = (at, Arc::from(row));
        let entry = self.waiting.entry(key.clone()).or_insert_with(|| {
            self.waiting_bytes += stored_bytes(row);
            Waiting { count: 0, shown }
        });
        entry.count += count;
        if entry.count == 0 {
            self.waiting.remove(&key);
            self.waiting_bytes -= stored_bytes(row);
        }
        if let Some(changed) = &mut self.changed {
            changed.insert(key);
        }
    }

    fn apply(&mut self, chunk: &Chunk, now: i64, out: &mut Vec<Chunk>) -> Result<()> {
        let encoded = self.codec.encode(chunk.batch().columns(), chunk.rows())?;
        let spans = spans(&self.bounds, chunk.batch().columns(), chunk.rows())?;
        let shown: Vec<bool> = spans.iter().map(|(from, until)| *from <= now && now < *until).collect();
        for (row, (from, until)) in spans.into_iter().enumerate() {
            if shown[row] {
                if until != NEVER {
                    self.add(until, encoded.row(row), chunk.diff(row), true);
                }
            } else if now < from && from < until && from != NEVER {
                self.add(from, encoded.row(row), chunk.diff(row), false);
            }
        }
        let diffs = (0..chunk.rows()).filter(|row| shown[*row]).map(|row| chunk.diff(row));
        let diffs = Int64Array::from_iter_values(diffs);
        if !diffs.is_empty() {
            let rows = self.visible(chunk.batch().columns(), chunk.rows())?;
            out.extend(Chunk::changes(&filter_record_batch(&rows, &BooleanArray::from(shown))?, &diffs));
        }
        Ok(())
    }

    /// The columns that come out.
    fn visible(&self, columns: &[ArrayRef], rows: usize) -> Result<RecordBatch> {
        let columns = columns.iter().take(self.schema.fields().len()).cloned().collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }

    /// Lets some rows come and go whose time it is. False when there is none.
    fn turn(&mut self, now: i64, out: &mut Vec<Chunk>) -> Result<bool> {
        let (mut rows, mut due) = (Vec::new(), Vec::new());
        while rows.len() < CHUNK_ROWS_MAX
            && let Some(first) = self.waiting.first_entry()
            && first.key().0 <= now
        {
            let (key, waiting) = first.remove_entry();
            self.waiting_bytes -= stored_bytes(&key.1);
            if waiting.count < 0 {
                return Err(Error::internal("more rows were retracted than inserted"));
            }
            due.push(waiting);
            rows.push(Arc::clone(&key.1));
            if let Some(changed) = &mut self.changed {
                changed.insert(key);
            }
        }
        if rows.is_empty() {
            return Ok(false);
        }
        let columns = self.codec.decode(rows.iter().map(|row| &**row))?;
        let spans = spans(&self.bounds, &columns, rows.len())?;
        let mut diffs = Vec::with_capacity(rows.len());
        for ((row, waiting), (_, until)) in rows.iter().zip(&due).zip(spans) {
            if waiting.shown {
                diffs.push(-waiting.count);
            } else if until <= now {
                // It came and went between two times.
                diffs.push(0);
            } else {
                diffs.push(waiting.count);
                if until != NEVER {
                    self.add(until, row, waiting.count, true);
                }
            }
        }
        let batch = self.visible(&columns, rows.len())?;
        let seen: BooleanArray = diffs.iter().map(|diff| Some(*diff != 0)).collect();
        diffs.retain(|diff| *diff != 0);
        if !diffs.is_empty() {
            out.extend(Chunk::changes(&filter_record_batch(&batch, &seen)?, &Int64Array::from(diffs)));
        }
        Ok(true)
    }
}

/// From when on each row is shown, and until when: in milliseconds of the clock, without the last. A row that has no
/// bound where it should is never shown.
fn spans(bounds: &[ClockBound], columns: &[ArrayRef], rows: usize) -> Result<Vec<(i64, i64)>> {
    let mut spans = vec![(i64::MIN, NEVER); rows];
    for bound in bounds {
        let column = columns.get(bound.column).ok_or_else(|| Error::internal("a bound of the clock is missing"))?;
        let times = values(column)?;
        for (row, (from, until)) in spans.iter_mut().enumerate() {
            if times.is_null(row) {
                (*from, *until) = (NEVER, i64::MIN);
                continue;
            }
            let micros = times.value(row).saturating_sub(bound.moved);
            // The first millisecond at the bound or behind it, and the first behind it.
            let (at, part) = (micros.div_euclid(1_000), micros.rem_euclid(1_000));
            let first = if part != 0 || bound.lower != bound.inclusive { at + 1 } else { at };
            if bound.lower {
                *from = (*from).max(first);
            } else {
                *until = (*until).min(first);
            }
        }
    }
    Ok(spans)
}

/// Bytes of a row with its time and count.
fn stored_bytes(row: &[u8]) -> usize {
    row.len() + 2 * size_of::<i64>()
}

/// A time of the clock in the unit of the bounds.
fn millis(time: Time) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(NEVER)
}

impl Operator for TemporalFilter {
    fn open(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let damaged = || Error::new(SqlState::DataCorrupted, "a row that waits for its time is damaged");
        let mut stored: Vec<(Arc<[u8]>, Waiting)> = Vec::new();
        cx.backend.scan(self.operator, &[], &mut |key, value| {
            if let Some(key) = split_value_key(SLOT_NAME, key) {
                let (shown, count) = value.split_first().ok_or_else(damaged)?;
                let count = i64::from_le_bytes(count.try_into().map_err(|_| damaged())?);
                stored.push((Arc::from(key), Waiting { count, shown: *shown != 0 }));
            }
            Ok(())
        })?;
        for rows in stored.chunks(CHUNK_ROWS_MAX) {
            let columns = self.codec.decode(rows.iter().map(|(row, _)| &**row))?;
            let spans = spans(&self.bounds, &columns, rows.len())?;
            for ((row, waiting), (from, until)) in rows.iter().zip(spans) {
                self.waiting_bytes += stored_bytes(row);
                let at = if waiting.shown { until } else { from };
                self.waiting.insert((at, Arc::clone(row)), *waiting);
            }
        }
        Ok(())
    }

    fn push(&mut self, _: usize, chunk: Chunk) -> Result<()> {
        self.pending.push_back(chunk);
        Ok(())
    }

    fn close(&mut self, time: Time, out: &mut Vec<Chunk>, cx: &mut Context<'_>) -> Result<Step> {
        let now = millis(time);
        while let Some(chunk) = self.pending.pop_front() {
            self.apply(&chunk, now, out)?;
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        while self.turn(now, out)? {
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        Ok(Step::Done)
    }

    fn is_timed(&self) -> bool {
        true
    }

    fn wakes_at(&self) -> Option<Time> {
        let ((at, _), _) = self.waiting.first_key_value()?;
        Some(Time::from_millis(u64::try_from(*at).unwrap_or(0)))
    }

    fn barrier(&mut self, cx: &mut Context<'_>) -> Result<Step> {
        let Some(changed) = &mut self.changed else { return Ok(Step::Done) };
        while !changed.is_empty() {
            let mut batch = WriteBatch::default();
            for _ in 0..BARRIER_ROWS {
                // A row that came waits to go from then on: what is gone stands before what is there.
                let Some(key) = changed.pop_first() else { break };
                let stored = value_key(SLOT_NAME, &key.1);
                match self.waiting.get(&key) {
                    Some(Waiting { count, shown }) => {
                        let mut value = vec![u8::from(*shown)];
                        value.extend_from_slice(&count.to_le_bytes());
                        batch.put(stored, value);
                    }
                    None => batch.erase(stored),
                }
            }
            cx.write(self.operator, batch)?;
            if cx.expired() && !changed.is_empty() {
                return Ok(Step::Again);
            }
        }
        Ok(Step::Done)
    }

    fn state_size(&self) -> StateSize {
        StateSize { keys: self.waiting.len(), bytes: self.waiting_bytes }
    }
}
