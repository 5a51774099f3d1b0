//! Lets rows go when nothing happened to their key for so long.
//!
//! Rows pass at once and are kept, by key. When the last change of a key lies so far back, all its rows are retracted, and
//! what is retracted of them later has no effect any more: what stands above sees a relation that is whole at each time, and
//! forgets with it.
//!
//! Stored as map state `rows`: the key, then the row, with its count; and as value state `deadlines`: by key, `[i64
//! milliseconds of the clock]`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;

use super::inspect::decoded;
use super::lifetimes::Lifetimes;
use super::rows::to_chunks;
use super::{Context, Inspect, InspectedPage, Operator, StateSize, Step};
use crate::exec::consolidate::consolidate;
use crate::state::{EncodedRows, KeyIndex, Multiset, RowCodec, WriteBatch, split_value_key, value_key};
use crate::types::{Chunk, Error, InspectionId, OperatorId, Result, SqlState, Time};

const ROWS: &str = "rows";
const DEADLINES: &str = "deadlines";
/// Keys that a barrier writes between two looks at the clock.
const BARRIER_KEYS: usize = 1_024;
/// Keys whose rows go between two looks at the clock.
const EXPIRED_KEYS: usize = 1_024;

/// The operator on one worker.
#[derive(Debug)]
pub struct Expire {
    operator: OperatorId,
    schema: SchemaRef,
    keys: Vec<usize>,
    key_codec: RowCodec,
    row_codec: RowCodec,
    index: KeyIndex,
    rows: Multiset,
    lives: Lifetimes,
    pending: VecDeque<Chunk>,
    /// The changes of this time, in order.
    changes: VecDeque<Chunk>,
}

impl Expire {
    /// An operator over rows of `schema`, in which a key is a group of its columns. With `track`, changes are remembered for
    /// barriers.
    ///
    /// # Errors
    /// 0A000 when a type cannot be kept.
    pub fn new(
        operator: OperatorId,
        schema: SchemaRef,
        keys: Vec<usize>,
        ttl_millis: u64,
        track: bool,
    ) -> Result<Expire> {
        Ok(Expire {
            operator,
            key_codec: RowCodec::for_keys(keys.iter().map(|key| schema.field(*key).data_type()))?,
            row_codec: RowCodec::for_rows(schema.fields().iter().map(|field| field.data_type()))?,
            schema,
            keys,
            index: KeyIndex::new(track),
            rows: Multiset::new(ROWS.to_owned(), track),
            lives: Lifetimes::new(ttl_millis),
            pending: VecDeque::new(),
            changes: VecDeque::new(),
        })
    }

    /// Takes in a chunk whose rows stand once in it, and passes on what is not about rows that went already.
    fn apply(&mut self, chunk: &Chunk, now: Time, out: &mut Vec<Chunk>) -> Result<()> {
        let keys: Vec<ArrayRef> = self.keys.iter().map(|key| Arc::clone(chunk.column(*key))).collect();
        let keys = self.key_codec.encode(&keys, chunk.rows())?;
        let rows = self.row_codec.encode(chunk.batch().columns(), chunk.rows())?;
        let (mut picks, mut diffs) = (Vec::with_capacity(chunk.rows()), Vec::with_capacity(chunk.rows()));
        for row in 0..chunk.rows() {
            let diff = chunk.diff(row);
            let slot = match diff > 0 {
                true => self.index.insert(keys.row(row)).0,
                false => match self.index.get(keys.row(row)) {
                    Some(slot) => slot,
                    None => continue,
                },
            };
            self.rows.resize(self.index.slots());
            let diff = diff.max(-self.rows.count(slot, rows.row(row)));
            if diff == 0 {
                continue;
            }
            self.rows.add(&self.index, slot, rows.row(row), diff);
            self.index.touch(slot);
            if self.rows.len(slot) == 0 {
                self.lives.remove(slot);
                self.index.remove(slot);
            } else {
                self.lives.renew(slot, now);
            }
            picks.push(row as u32);
            diffs.push(diff);
        }
        if picks.len() == chunk.rows() {
            out.push(chunk.clone());
        } else if !picks.is_empty() {
            let rows = take_record_batch(chunk.batch(), &UInt32Array::from(picks))?;
            out.extend(Chunk::changes(&rows, &Int64Array::from(diffs)));
        }
        Ok(())
    }

    /// Lets the rows of some keys go whose time is over. False when there is none.
    fn expire(&mut self, now: Time, out: &mut Vec<Chunk>) -> Result<bool> {
        let slots = self.lives.take_past(now, EXPIRED_KEYS);
        if slots.is_empty() {
            return Ok(false);
        }
        let (mut rows, mut diffs): (Vec<Box<[u8]>>, Vec<i64>) = (Vec::new(), Vec::new());
        for slot in slots {
            let first = rows.len();
            for (row, count) in self.rows.entries(slot) {
                rows.push(row.into());
                diffs.push(-count);
            }
            for (row, diff) in rows.iter().zip(&diffs).skip(first) {
                self.rows.add(&self.index, slot, row, *diff);
            }
            self.index.touch(slot);
            self.index.remove(slot);
        }
        let columns = self.row_codec.decode(rows.iter().map(|row| &**row))?;
        out.extend(to_chunks(&self.schema, columns, diffs)?);
        Ok(true)
    }
}

impl Inspect for Expire {
    fn begin(&mut self, id: InspectionId, _: usize) {
        self.rows.begin_read(id);
    }

    fn page(&mut self, id: InspectionId, rows_max: usize, deadline: Instant) -> Result<InspectedPage> {
        let (rows, more) = self.rows.read(id, rows_max, deadline)?;
        Ok(InspectedPage { rows: decoded(&rows, &self.row_codec, &self.schema)?, more })
    }

    fn find(&mut self, _: usize, keys: &[Vec<u8>]) -> Result<RecordBatch> {
        let mut rows = EncodedRows::default();
        for slot in keys.iter().filter_map(|key| self.index.get(key)) {
            self.rows.entries(slot).try_for_each(|(row, count)| rows.push(row, count))?;
        }
        decoded(&rows, &self.row_codec, &self.schema)
    }

    fn end(&mut self, id: InspectionId) {
        self.rows.end_read(id);
    }
}

impl Operator for Expire {
    fn open(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let damaged = || Error::new(SqlState::DataCorrupted, "the deadline of a key is damaged");
        let (index, lives) = (&mut self.index, &mut self.lives);
        cx.backend.scan(self.operator, &[], &mut |stored, value| {
            if let Some(key) = split_value_key(DEADLINES, stored) {
                let deadline = value.try_into().map_err(|_| damaged())?;
                let (slot, _) = index.insert(key);
                index.loaded(slot);
                lives.set(slot, i64::from_le_bytes(deadline));
            }
            Ok(())
        })?;
        self.rows.resize(self.index.slots());
        self.rows.load(&self.index, self.operator, cx.backend)
    }

    fn push(&mut self, _: usize, chunk: Chunk) -> Result<()> {
        self.pending.push_back(chunk);
        Ok(())
    }

    fn close(&mut self, time: Time, out: &mut Vec<Chunk>, cx: &mut Context<'_>) -> Result<Step> {
        if self.pending.iter().any(|chunk| chunk.diffs().is_some()) {
            // A retraction may stand before its insertion, and must not be taken for one of a row that went.
            let chunks: Vec<Chunk> = self.pending.drain(..).collect();
            self.changes.extend(consolidate(&self.row_codec, &self.schema, &chunks)?);
        }
        self.changes.extend(self.pending.drain(..));
        while let Some(chunk) = self.changes.pop_front() {
            self.apply(&chunk, time, out)?;
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        while self.expire(time, out)? {
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
        self.lives.next()
    }

    fn barrier(&mut self, cx: &mut Context<'_>) -> Result<Step> {
        loop {
            let keys = self.index.take_changed(BARRIER_KEYS);
            let mut batch = WriteBatch::default();
            for key in &keys {
                let stored = value_key(DEADLINES, key);
                match self.index.get(key) {
                    Some(slot) => batch.put(stored, self.lives.deadline(slot).to_le_bytes().to_vec()),
                    None => batch.erase(stored),
                }
            }
            cx.write(self.operator, batch)?;
            if keys.len() < BARRIER_KEYS {
                break;
            }
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        let mut batch = WriteBatch::default();
        self.rows.flush(&self.index, &mut batch);
        cx.write(self.operator, batch)?;
        Ok(Step::Done)
    }

    fn inspect(&mut self) -> Option<&mut dyn Inspect> {
        Some(self)
    }

    fn state_size(&self) -> StateSize {
        let deadlines = self.index.len() * size_of::<i64>();
        let bytes = self.index.key_bytes() + deadlines + self.rows.total_bytes();
        StateSize { keys: self.rows.total_len(), bytes }
    }
}
