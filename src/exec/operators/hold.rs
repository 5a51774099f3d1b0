//! Keeps rows back until their event time is over: then each comes out once, and changes no more.
//!
//! State: rows with their number, by event time. Changes of rows whose event time was past before the time are late and
//! change nothing. A row without event time comes out at the end.
//!
//! Stored as value state `held`: by row, `[i64 number]`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, Int64Array, RecordBatch};
use arrow::datatypes::SchemaRef;

use super::inspect::decoded;
use super::{Context, Inspect, InspectedPage, Operator, StateSize, Step};
use crate::exec::event_time::{divide, values};
use crate::exec::plan::Closing;
use crate::state::{EncodedRows, Pasts, RowCodec, WriteBatch, split_value_key, value_key};
use crate::types::{CHUNK_ROWS_MAX, Chunk, Error, InspectionId, OperatorId, Result, SqlState, Time};

const SLOT_NAME: &str = "held";
/// Rows that a barrier writes between two looks at the clock.
const BARRIER_ROWS: usize = 1_024;

/// The operator on one worker.
#[derive(Debug)]
pub struct Hold {
    operator: OperatorId,
    schema: SchemaRef,
    column: usize,
    codec: RowCodec,
    pending: VecDeque<Chunk>,
    /// How often each row is there, by event time and encoded row.
    held: BTreeMap<(i64, Arc<[u8]>), i64>,
    /// Of the rows held, their times and counts.
    held_bytes: usize,
    /// What changed since the last barrier, when that is asked for.
    changed: Option<BTreeSet<(i64, Arc<[u8]>)>>,
    /// Reads of the rows held, as they were when each began.
    pasts: Pasts,
}

impl Hold {
    /// An operator over rows of `schema`. With `track`, changes are remembered for barriers.
    ///
    /// # Errors
    /// 0A000 when a type cannot be kept.
    pub fn new(operator: OperatorId, schema: SchemaRef, closing: &Closing, track: bool) -> Result<Hold> {
        let codec = RowCodec::for_rows(schema.fields().iter().map(|field| field.data_type()))?;
        Ok(Hold {
            operator,
            schema,
            column: closing.column,
            codec,
            pending: VecDeque::new(),
            held: BTreeMap::new(),
            held_bytes: 0,
            changed: track.then(BTreeSet::new),
            pasts: Pasts::default(),
        })
    }

    fn apply(&mut self, chunk: &Chunk) -> Result<()> {
        let encoded = self.codec.encode(chunk.batch().columns(), chunk.rows())?;
        let times = values(chunk.column(self.column))?;
        for row in 0..chunk.rows() {
            let time = if times.is_valid(row) { times.value(row) } else { i64::MAX };
            let key = (time, Arc::from(encoded.row(row)));
            let count = self.held.entry(key.clone()).or_insert_with(|| {
                self.held_bytes += stored_bytes(&key.1);
                0
            });
            self.pasts.note(time, &key.1, *count);
            *count += chunk.diff(row);
            if *count == 0 {
                self.held.remove(&key);
                self.held_bytes -= stored_bytes(&key.1);
            }
            if let Some(changed) = &mut self.changed {
                changed.insert(key);
            }
        }
        Ok(())
    }
}

/// Bytes of a row with its time and count.
fn stored_bytes(row: &[u8]) -> usize {
    row.len() + 2 * size_of::<i64>()
}

impl Inspect for Hold {
    fn begin(&mut self, id: InspectionId, _: usize) {
        self.pasts.begin(id);
    }

    fn page(&mut self, id: InspectionId, rows_max: usize, deadline: Instant) -> Result<InspectedPage> {
        let behind = match self.pasts.reached(id)? {
            Some((time, row)) => Bound::Excluded((time, Arc::from(row))),
            None => Bound::Unbounded,
        };
        let live = self.held.range((behind, Bound::Unbounded)).map(|((time, row), count)| (*time, &**row, *count));
        let (rows, more) = self.pasts.page(id, live, rows_max, deadline)?;
        Ok(InspectedPage { rows: decoded(&rows, &self.codec, &self.schema)?, more })
    }

    // Its rows have no key but themselves.
    fn find(&mut self, _: usize, _: &[Vec<u8>]) -> Result<RecordBatch> {
        decoded(&EncodedRows::default(), &self.codec, &self.schema)
    }

    fn end(&mut self, id: InspectionId) {
        self.pasts.end(id);
    }
}

impl Operator for Hold {
    fn open(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let damaged = || Error::new(SqlState::DataCorrupted, "a row that is held back is damaged");
        let mut stored: Vec<(Arc<[u8]>, i64)> = Vec::new();
        cx.backend.scan(self.operator, &[], &mut |key, value| {
            if let Some(key) = split_value_key(SLOT_NAME, key) {
                let count = value.try_into().map_err(|_| damaged())?;
                stored.push((Arc::from(key), i64::from_le_bytes(count)));
            }
            Ok(())
        })?;
        for rows in stored.chunks(CHUNK_ROWS_MAX) {
            let columns = self.codec.decode(rows.iter().map(|(row, _)| &**row))?;
            let times = values(columns.get(self.column).ok_or_else(damaged)?)?;
            for (at, (row, count)) in rows.iter().enumerate() {
                let time = if times.is_valid(at) { times.value(at) } else { i64::MAX };
                self.held_bytes += stored_bytes(row);
                self.held.insert((time, Arc::clone(row)), *count);
            }
        }
        Ok(())
    }

    fn push(&mut self, _: usize, chunk: Chunk) -> Result<()> {
        self.pending.push_back(chunk);
        Ok(())
    }

    fn close(&mut self, _: Time, out: &mut Vec<Chunk>, cx: &mut Context<'_>) -> Result<Step> {
        while let Some(chunk) = self.pending.pop_front() {
            let (on_time, late) = divide(chunk, self.column, cx.before[0])?;
            cx.late.extend(late.map(|late| (0, late)));
            on_time.map_or(Ok(()), |chunk| self.apply(&chunk))?;
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        loop {
            let (mut rows, mut counts) = (Vec::new(), Vec::new());
            while rows.len() < CHUNK_ROWS_MAX
                && let Some(first) = self.held.first_entry()
                && cx.now[0].is_past(first.key().0)
            {
                let (key, count) = first.remove_entry();
                self.pasts.note(key.0, &key.1, count);
                self.held_bytes -= stored_bytes(&key.1);
                if count < 0 {
                    return Err(Error::internal("more rows were retracted than inserted"));
                }
                counts.push(count);
                rows.push(Arc::clone(&key.1));
                if let Some(changed) = &mut self.changed {
                    changed.insert(key);
                }
            }
            if rows.is_empty() {
                return Ok(Step::Done);
            }
            let columns = self.codec.decode(rows.iter().map(|row| &**row))?;
            let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
            out.extend(Chunk::changes(&batch, &Int64Array::from(counts)));
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
    }

    fn barrier(&mut self, cx: &mut Context<'_>) -> Result<Step> {
        let Some(changed) = &mut self.changed else { return Ok(Step::Done) };
        while !changed.is_empty() {
            let mut batch = WriteBatch::default();
            for _ in 0..BARRIER_ROWS {
                let Some(key) = changed.pop_first() else { break };
                let stored = value_key(SLOT_NAME, &key.1);
                match self.held.get(&key) {
                    Some(count) => batch.put(stored, count.to_le_bytes().to_vec()),
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
        StateSize { keys: self.held.len(), bytes: self.held_bytes }
    }

    fn inspect(&mut self) -> Option<&mut dyn Inspect> {
        Some(self)
    }
}
