//! Aggregates of `HOP` windows, each put out once when it is over, from panes that the windows share.
//!
//! A row goes into one pane: the greatest length of which both slide and size are multiples. Beside the panes each key has the
//! sum of the window that is the next to close. When it has closed, the panes that the following one has no more are taken off
//! that sum, and those that it has besides are added. So a row costs a change of its pane, and a pane is added and taken off
//! once, however many windows it is in.
//!
//! A row is late for the windows that were over before its time, and told so for each; it is counted in the others.
//!
//! Stored as map state `panes`: the key without its windows, then the start of the pane in order; `[i64 rows]`, then the whole
//! state of each aggregate in order. The sums follow from that.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Int64Array, RecordBatch, TimestampMicrosecondArray, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::SchemaRef;

use super::aggregate::{accumulators, update};
use super::rows::{TIME_BYTES, encoded_time, time_of};
use super::{Context, Operator, StateSize, Step};
use crate::exec::aggregates::Accumulator;
use crate::exec::event_time::{divide_by, values};
use crate::exec::plan::{AggregateCall, Closing, HopSpec};
use crate::state::{KeyIndex, RowCodec, Slot, WriteBatch, map_key, split_map_key};
use crate::types::{CHUNK_ROWS_MAX, Chunk, Error, OperatorId, Result, SqlState, Time, Watermark};

const SLOT_NAME: &str = "panes";
/// Panes that a barrier writes between two looks at the clock.
const BARRIER_PANES: usize = 1_024;

/// The operator on one worker.
#[derive(Debug)]
pub struct HopAggregate {
    operator: OperatorId,
    schema: SchemaRef,
    spec: HopSpec,
    calls: Vec<AggregateCall>,
    /// The column by which windows are over, and how much later it is than a window's start.
    closing: (usize, i64),
    /// The keys that are no windows.
    keys: Vec<usize>,
    codec: RowCodec,
    index: KeyIndex,
    /// Number of panes of each key.
    pane_counts: Vec<usize>,
    /// Of the panes before `covered` that are not forgotten, by key.
    sums: Vec<Box<dyn Accumulator>>,
    sum_rows: Vec<i64>,
    /// Keys whose sum has rows.
    present: BTreeSet<Slot>,
    covered: i64,
    /// No window that starts before is still to close.
    next: i64,
    /// From a key's slot and a start to a pane's slot.
    pane_index: KeyIndex,
    panes: Vec<Box<dyn Accumulator>>,
    pane_rows: Vec<i64>,
    /// All panes, with the slots of their keys.
    order: BTreeSet<(i64, Slot)>,
    /// The states of panes are stored as a whole, so no state of an aggregate needs its key.
    no_keys: KeyIndex,
    pending: VecDeque<Chunk>,
    touched: Vec<(i64, Slot)>,
    /// By the slot of a pane.
    is_touched: Vec<bool>,
    track: bool,
    changed: BTreeSet<(i64, Slot)>,
    gone: Vec<(Box<[u8]>, i64)>,
    state: Vec<u8>,
}

/// The greatest multiple of `step`, moved by `offset`, that is not after `at`.
fn floor(at: i64, step: i64, offset: i64) -> i64 {
    let past = (i128::from(at) - i128::from(offset)).rem_euclid(i128::from(step));
    i64::try_from(i128::from(at) - past).unwrap_or(i64::MIN)
}

fn pane_key(slot: Slot, pane: i64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&slot.to_be_bytes());
    key[4..].copy_from_slice(&pane.to_be_bytes());
    key
}

fn pane_missing() -> Error {
    Error::internal("a pane is not there")
}

impl HopAggregate {
    /// An aggregate over rows of `input`, whose columns of windows are those of panes. With `track`, changes are remembered
    /// for barriers.
    ///
    /// # Errors
    /// 42883 or 0A000 when a type cannot be aggregated or grouped.
    pub fn new(
        operator: OperatorId,
        input: &SchemaRef,
        schema: SchemaRef,
        spec: &HopSpec,
        calls: &[AggregateCall],
        closing: &Closing,
        track: bool,
    ) -> Result<HopAggregate> {
        let of_start = spec.starts.get(closing.column).copied().flatten();
        let of_start = of_start.ok_or_else(|| Error::internal("windows close by a column that is none of theirs"))?;
        let keys = spec.plain_keys();
        Ok(HopAggregate {
            operator,
            schema,
            calls: calls.to_vec(),
            closing: (closing.column, of_start),
            codec: RowCodec::for_keys(keys.iter().map(|key| input.field(*key).data_type()))?,
            keys,
            spec: spec.clone(),
            index: KeyIndex::new(false),
            pane_counts: Vec::new(),
            sums: accumulators(input, calls, false)?,
            sum_rows: Vec::new(),
            present: BTreeSet::new(),
            covered: i64::MIN,
            next: i64::MIN,
            pane_index: KeyIndex::new(false),
            panes: accumulators(input, calls, false)?,
            pane_rows: Vec::new(),
            order: BTreeSet::new(),
            no_keys: KeyIndex::new(false),
            pending: VecDeque::new(),
            touched: Vec::new(),
            is_touched: Vec::new(),
            track,
            changed: BTreeSet::new(),
            gone: Vec::new(),
            state: Vec::new(),
        })
    }

    /// The start of the first window that was not over.
    fn first_open(&self, before: Watermark) -> Option<i64> {
        let HopSpec { slide, offset, .. } = self.spec;
        match before {
            Watermark::NONE => None,
            Watermark::END => Some(i64::MAX),
            known => {
                let last = floor(known.as_micros().saturating_sub(self.closing.1), slide, offset);
                Some(last.saturating_add(slide))
            }
        }
    }

    /// The start of the first window that a pane is in.
    fn first_window(&self, pane: i64) -> i64 {
        let HopSpec { slide, size, offset, .. } = self.spec;
        floor(pane.saturating_sub(size), slide, offset).saturating_add(slide)
    }

    /// For how many windows the rows of a chunk are late.
    fn late_windows(&self, chunk: &Chunk, before: Watermark) -> Result<i64> {
        let Some(open) = self.first_open(before) else { return Ok(0) };
        let HopSpec { slide, offset, .. } = self.spec;
        let times = values(chunk.column(self.closing.0))?;
        let earliest = times.values().iter().min().map(|time| self.first_window(time - self.closing.1));
        if earliest.is_none_or(|first| first >= open) {
            return Ok(0);
        }
        let of_pane = |pane: i64| {
            let (first, last) = (self.first_window(pane), floor(pane, slide, offset).min(open - 1));
            if first <= last { (last - first) / slide + 1 } else { 0 }
        };
        Ok(times.values().iter().map(|time| of_pane(time - self.closing.1)).sum())
    }

    /// What of a chunk is in a window that is not over; what is late is told for each window.
    fn on_time(&self, chunk: Chunk, cx: &mut Context<'_>) -> Result<Option<Chunk>> {
        let Some(open) = self.first_open(cx.before[0]) else { return Ok(Some(chunk)) };
        let HopSpec { slide, offset, .. } = self.spec;
        let times = values(chunk.column(self.closing.0))?;
        let (mut rows, mut starts) = (Vec::new(), Vec::new());
        let mut over = Vec::with_capacity(chunk.rows());
        for row in 0..chunk.rows() {
            let pane = times.value(row) - self.closing.1;
            let (mut start, last) = (self.first_window(pane), floor(pane, slide, offset));
            while start < open && start <= last {
                rows.push(row as u32);
                starts.push(start);
                start = start.saturating_add(slide);
            }
            over.push(last < open);
        }
        let diffs = Int64Array::from_iter_values(rows.iter().map(|row| chunk.diff(*row as usize)));
        let late = take_record_batch(chunk.batch(), &UInt32Array::from(rows))?;
        let mut columns = late.columns().to_vec();
        for (column, of_start) in self.spec.starts.iter().enumerate() {
            if let Some(of_start) = of_start {
                let times = TimestampMicrosecondArray::from_iter_values(starts.iter().map(|start| start + of_start));
                columns[column] = Arc::new(times.with_data_type(late.schema().field(column).data_type().clone()));
            }
        }
        let late = RecordBatch::try_new(late.schema(), columns)?;
        cx.late.extend(Chunk::changes(&late, &diffs).into_iter().map(|late| (0, late)));
        Ok(divide_by(chunk, &BooleanArray::from(over))?.0)
    }

    fn grow(&mut self) {
        let (keys, panes) = (self.index.slots(), self.pane_index.slots());
        self.pane_counts.resize(keys, 0);
        self.sum_rows.resize(keys, 0);
        self.sums.iter_mut().for_each(|sum| sum.resize(keys));
        self.pane_rows.resize(panes, 0);
        self.is_touched.resize(panes, false);
        self.panes.iter_mut().for_each(|pane| pane.resize(panes));
    }

    /// The slot of a pane, which is made when it is not there.
    fn pane(&mut self, slot: Slot, start: i64) -> Slot {
        let (pane, new) = self.pane_index.insert(&pane_key(slot, start));
        if new {
            self.order.insert((start, slot));
            if self.pane_counts.len() <= slot as usize {
                self.pane_counts.resize(slot as usize + 1, 0);
            }
            self.pane_counts[slot as usize] += 1;
        }
        pane
    }

    fn apply(&mut self, chunk: &Chunk) -> Result<()> {
        let columns: Vec<ArrayRef> = self.keys.iter().map(|key| Arc::clone(chunk.column(*key))).collect();
        let encoded = self.codec.encode(&columns, chunk.rows())?;
        let times = values(chunk.column(self.closing.0))?;
        if times.null_count() > 0 {
            return Err(Error::internal("a row is in no window"));
        }
        let mut keys = Vec::with_capacity(chunk.rows());
        let mut panes = Vec::with_capacity(chunk.rows());
        let mut diffs = Vec::with_capacity(chunk.rows());
        // Those of the rows that are in the sums.
        let (mut summed, mut any) = (Vec::with_capacity(chunk.rows()), false);
        for row in 0..chunk.rows() {
            let start = times.value(row) - self.closing.1;
            let (slot, _) = self.index.insert(encoded.row(row));
            let diff = chunk.diff(row);
            keys.push(slot);
            panes.push(self.pane(slot, start));
            diffs.push(diff);
            summed.push(if start < self.covered { diff } else { 0 });
            any |= start < self.covered;
        }
        self.grow();
        for (row, pane) in panes.iter().enumerate() {
            self.pane_rows[*pane as usize] += diffs[row];
            if !std::mem::replace(&mut self.is_touched[*pane as usize], true) {
                self.touched.push((times.value(row) - self.closing.1, keys[row]));
            }
        }
        update(&self.calls, &mut self.panes, &self.no_keys, &panes, chunk, &diffs)?;
        if any {
            keys.iter().zip(&summed).for_each(|(slot, diff)| self.sum_rows[*slot as usize] += diff);
            update(&self.calls, &mut self.sums, &self.no_keys, &keys, chunk, &summed)?;
        }
        Ok(())
    }

    /// The rows of a time are all there: panes without rows go.
    fn settle(&mut self) -> Result<()> {
        for (start, slot) in std::mem::take(&mut self.touched) {
            let pane = self.pane_index.get(&pane_key(slot, start)).ok_or_else(pane_missing)?;
            self.is_touched[pane as usize] = false;
            match self.pane_rows[pane as usize] {
                ..0 => return Err(Error::internal("more rows of a window were retracted than inserted")),
                0 => self.forget(slot, start)?,
                _ => {
                    self.note_present(slot);
                    if self.track {
                        self.changed.insert((start, slot));
                    }
                }
            }
        }
        Ok(())
    }

    fn note_present(&mut self, slot: Slot) {
        if self.sum_rows[slot as usize] > 0 {
            self.present.insert(slot);
        } else {
            self.present.remove(&slot);
        }
    }

    /// Adds a pane to the sum of its key, or takes it off.
    fn sum_up(&mut self, slot: Slot, pane: Slot, add: bool) -> Result<()> {
        for (pane_state, sum) in self.panes.iter().zip(&mut self.sums) {
            self.state.clear();
            pane_state.export(pane, &mut self.state);
            let mut state = self.state.as_slice();
            match add {
                true => sum.import(&self.no_keys, slot, &mut state)?,
                false => sum.take_back(&self.no_keys, slot, &mut state)?,
            }
        }
        let rows = self.pane_rows[pane as usize];
        self.sum_rows[slot as usize] += if add { rows } else { -rows };
        self.note_present(slot);
        Ok(())
    }

    /// Forgets a pane.
    fn forget(&mut self, slot: Slot, start: i64) -> Result<()> {
        let pane = self.pane_index.get(&pane_key(slot, start)).ok_or_else(pane_missing)?;
        if start < self.covered {
            self.sum_up(slot, pane, false)?;
        }
        self.panes.iter_mut().for_each(|state| state.clear(&self.no_keys, pane));
        self.pane_rows[pane as usize] = 0;
        self.pane_index.remove(pane);
        self.order.remove(&(start, slot));
        if self.track {
            self.changed.remove(&(start, slot));
            self.gone.push((self.index.key(slot).into(), start));
        }
        self.pane_counts[slot as usize] -= 1;
        if self.pane_counts[slot as usize] == 0 {
            // No rounding is left.
            self.sums.iter_mut().for_each(|sum| sum.clear(&self.no_keys, slot));
            self.index.remove(slot);
        }
        Ok(())
    }

    /// Puts out the next window that is over. False when there is none.
    fn close_window(&mut self, now: Watermark, out: &mut Vec<Chunk>) -> Result<bool> {
        let Some((pane, _)) = self.order.first().copied() else { return Ok(false) };
        let start = self.first_window(pane).max(self.next);
        if !now.is_past(start.saturating_add(self.closing.1)) {
            return Ok(false);
        }
        let end = start.saturating_add(self.spec.size);
        if self.covered < end {
            let more: Vec<(i64, Slot)> = self.order.range((self.covered, 0)..(end, 0)).copied().collect();
            self.covered = end;
            for (start, slot) in more {
                let pane = self.pane_index.get(&pane_key(slot, start)).ok_or_else(pane_missing)?;
                self.sum_up(slot, pane, true)?;
            }
        }
        let present: Vec<Slot> = self.present.iter().copied().collect();
        for slots in present.chunks(CHUNK_ROWS_MAX) {
            self.put_out(start, slots, out)?;
        }
        self.next = start.saturating_add(self.spec.slide);
        while let Some((pane, slot)) = self.order.first().copied().filter(|(pane, _)| *pane < self.next) {
            self.forget(slot, pane)?;
        }
        Ok(true)
    }

    fn put_out(&mut self, start: i64, slots: &[Slot], out: &mut Vec<Chunk>) -> Result<()> {
        let mut plain = self.codec.decode(slots.iter().map(|slot| self.index.key(*slot)))?.into_iter();
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        for (key, field) in self.spec.keys.iter().zip(self.schema.fields()) {
            columns.push(match self.spec.starts.get(*key).copied().flatten() {
                Some(of_start) => {
                    let times = TimestampMicrosecondArray::from(vec![start.saturating_add(of_start); slots.len()]);
                    Arc::new(times.with_data_type(field.data_type().clone()))
                }
                None => plain.next().ok_or_else(|| Error::internal("a key is not there"))?,
            });
        }
        for sum in &mut self.sums {
            columns.push(sum.evaluate(slots)?);
        }
        out.extend(Chunk::inserts(&RecordBatch::try_new(Arc::clone(&self.schema), columns)?));
        Ok(())
    }

    fn stored(&self, start: i64, slot: Slot) -> Result<Vec<u8>> {
        let pane = self.pane_index.get(&pane_key(slot, start)).ok_or_else(pane_missing)?;
        let mut value = self.pane_rows[pane as usize].to_le_bytes().to_vec();
        self.panes.iter().for_each(|state| state.export(pane, &mut value));
        Ok(value)
    }
}

impl Operator for HopAggregate {
    fn open(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let damaged = || Error::new(SqlState::DataCorrupted, "a stored pane is damaged");
        let mut stored: Vec<(Vec<u8>, i64, Vec<u8>)> = Vec::new();
        cx.backend.scan(self.operator, &[], &mut |key, value| {
            if let Some((key, start)) = split_map_key(SLOT_NAME, key)? {
                let start = (start.len() == TIME_BYTES).then(|| time_of(start)).ok_or_else(damaged)?;
                stored.push((key.to_vec(), start, value.to_vec()));
            }
            Ok(())
        })?;
        for (key, start, value) in stored {
            let (slot, _) = self.index.insert(&key);
            let pane = self.pane(slot, start);
            self.grow();
            let (rows, mut rest) = value.split_first_chunk::<8>().ok_or_else(damaged)?;
            self.pane_rows[pane as usize] = i64::from_le_bytes(*rows);
            for state in &mut self.panes {
                state.import(&self.no_keys, pane, &mut rest)?;
            }
            if !rest.is_empty() {
                return Err(damaged());
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
            let late = self.late_windows(&chunk, cx.before[0])?;
            if late > CHUNK_ROWS_MAX as i64 && chunk.rows() > 1 {
                // Cut up first: a row may be late for thousands of windows.
                let half = chunk.rows() / 2;
                self.pending.push_front(chunk.slice(half, chunk.rows() - half));
                self.pending.push_front(chunk.slice(0, half));
                continue;
            }
            let on_time = if late > 0 { self.on_time(chunk, cx)? } else { Some(chunk) };
            if let Some(chunk) = on_time {
                self.apply(&chunk)?;
            }
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        self.settle()?;
        self.next = self.next.max(self.first_open(cx.before[0]).unwrap_or(i64::MIN));
        while self.close_window(cx.now[0], out)? {
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        Ok(Step::Done)
    }

    fn barrier(&mut self, cx: &mut Context<'_>) -> Result<Step> {
        let mut batch = WriteBatch::default();
        for (key, start) in std::mem::take(&mut self.gone) {
            batch.erase(map_key(SLOT_NAME, &key, &encoded_time(start)));
        }
        loop {
            for _ in 0..BARRIER_PANES {
                let Some((start, slot)) = self.changed.pop_first() else { break };
                let value = self.stored(start, slot)?;
                batch.put(map_key(SLOT_NAME, self.index.key(slot), &encoded_time(start)), value);
            }
            cx.write(self.operator, std::mem::take(&mut batch))?;
            if self.changed.is_empty() {
                return Ok(Step::Done);
            }
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
    }

    fn state_size(&self) -> StateSize {
        let mut bounded = Vec::new();
        if self.pane_index.slots() > 0 {
            // As long for one pane as for another.
            self.panes.iter().for_each(|state| state.encode(0, &mut bounded));
        }
        let entries = self.panes.iter().map(|state| state.entries().bytes).sum::<usize>();
        let pane = 2 * size_of::<i64>() + bounded.len();
        StateSize { keys: self.order.len(), bytes: self.index.key_bytes() + self.order.len() * pane + entries }
    }
}
