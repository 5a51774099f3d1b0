//! Updating GROUP BY, SELECT DISTINCT and global aggregates.
//!
//! State: the groups' keys with their number of rows, and a column of state for each aggregate. When a
//! time closes, the groups that its changes touch are found a chunk at a time; what they showed before
//! is kept, the changes are applied, and groups that show something else now retract the old row and
//! insert the new one. A group whose rows are all gone disappears; the global one stays.
//!
//! With a closing, a key has event time. Changes whose key was past before the time are late and change nothing; groups
//! whose key is past at it are forgotten behind its changes, and, when only last rows are asked for, put out then.
//!
//! With a time to live, groups to which no row came for so long are forgotten, and what they showed is retracted. That is
//! for rows that are only ever added; others expire before they come here.
//!
//! Stored as value state `groups`: `[i64 rows]`, then the bounded part of each aggregate in order; what
//! grows is map state `a0`, `a1`, … of the aggregates. Until when groups live is value state `deadlines`: `[i64 milliseconds of
//! the clock]`.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{concat_batches, interleave, kernels::cmp::distinct, take};
use arrow::datatypes::{DataType, SchemaRef};

use super::combine::states;
use super::groups_read::{Groups, GroupsRead};
use super::lifetimes::Lifetimes;
use super::rows::to_chunks;
use super::{Context, Inspect, InspectedPage, Operator, StateSize, Step};
use crate::exec::aggregates::{Accumulator, Changes, accumulator};
use crate::exec::event_time::{divide, values};
use crate::exec::plan::{AggregateCall, Closing};
use crate::state::{EncodedRows, KeyIndex, RowCodec, Slot, WriteBatch, past_lost, split_value_key, value_key};
use crate::types::{CHUNK_ROWS_MAX, Chunk, Error, InspectionId, OperatorId, Result, SqlState, Time, Watermark};

const SLOT_NAME: &str = "groups";
const DEADLINES: &str = "deadlines";
/// Groups that a barrier writes between two looks at the clock.
const BARRIER_KEYS: usize = 1_024;
/// Groups of which a page of a read has the results.
const READ_GROUPS: usize = 4_096;

/// The aggregate operator on one worker.
#[derive(Debug)]
pub struct Aggregate {
    operator: OperatorId,
    schema: SchemaRef,
    /// Columns of the input.
    width: usize,
    keys: Vec<usize>,
    codec: RowCodec,
    index: KeyIndex,
    rows: Vec<i64>,
    calls: Vec<AggregateCall>,
    accumulators: Vec<Box<dyn Accumulator>>,
    pending: VecDeque<Chunk>,
    touched: Vec<bool>,
    shown: VecDeque<Shown>,
    global: Option<GlobalGroup>,
    slots: Vec<Slot>,
    diffs: Vec<i64>,
    open: Option<OpenGroups>,
    lives: Option<Lifetimes>,
    reads: Vec<GroupsRead>,
}

/// Groups whose event time is not over.
#[derive(Debug)]
struct OpenGroups {
    /// The input's column.
    column: usize,
    /// Among the keys.
    key: usize,
    last_only: bool,
    /// By event time; groups without one are over at the end.
    times: BTreeSet<(i64, Slot)>,
    /// The event time of each slot in use.
    of_slot: Vec<i64>,
}

impl OpenGroups {
    fn add(&mut self, slot: Slot, time: Option<i64>) {
        let time = time.unwrap_or(i64::MAX);
        if self.of_slot.len() <= slot as usize {
            self.of_slot.resize(slot as usize + 1, i64::MAX);
        }
        self.of_slot[slot as usize] = time;
        self.times.insert((time, slot));
    }

    fn remove(&mut self, slot: Slot) {
        self.times.remove(&(self.of_slot[slot as usize], slot));
    }

    /// Takes some groups that are over, in order of event time.
    fn take_past(&mut self, now: Watermark, max: usize) -> Vec<Slot> {
        let mut taken = Vec::new();
        while taken.len() < max
            && let Some((time, slot)) = self.times.first().copied()
            && now.is_past(time)
        {
            self.times.pop_first();
            taken.push(slot);
        }
        taken
    }
}

/// What some groups showed before the time that is being closed.
#[derive(Debug)]
struct Shown {
    slots: Vec<Slot>,
    present: Vec<bool>,
    results: Vec<ArrayRef>,
}

/// The one group of an aggregate without keys.
#[derive(Debug)]
struct GlobalGroup {
    /// Lives here: this worker owns the group.
    here: bool,
    /// Its row was put out.
    shown: bool,
}

impl Aggregate {
    /// An aggregate over rows of `input`. For one without keys, `owns_global` tells whether this
    /// worker keeps the one group. With `track`, changes are remembered for barriers.
    ///
    /// # Errors
    /// 42883 or 0A000 when a type cannot be aggregated or grouped.
    pub fn new(
        operator: OperatorId,
        input: &SchemaRef,
        schema: SchemaRef,
        keys: Vec<usize>,
        calls: Vec<AggregateCall>,
        owns_global: bool,
        track: bool,
    ) -> Result<Aggregate> {
        let codec = RowCodec::for_keys(keys.iter().map(|key| input.field(*key).data_type()))?;
        let accumulators = accumulators(input, &calls, track)?;
        let global = keys.is_empty().then_some(GlobalGroup { here: owns_global, shown: false });
        Ok(Aggregate {
            operator,
            schema,
            width: input.fields().len(),
            keys,
            codec,
            index: KeyIndex::new(track),
            rows: Vec::new(),
            calls,
            accumulators,
            pending: VecDeque::new(),
            touched: Vec::new(),
            shown: VecDeque::new(),
            global,
            slots: Vec::new(),
            diffs: Vec::new(),
            open: None,
            lives: None,
            reads: Vec::new(),
        })
    }

    /// The same, with a key by whose event time groups are over.
    ///
    /// # Errors
    /// None but a fault of the planner.
    pub fn closing(mut self, closing: &Closing) -> Result<Aggregate> {
        let key = self.keys.iter().position(|key| *key == closing.column);
        self.open = Some(OpenGroups {
            column: closing.column,
            key: key.ok_or_else(|| Error::internal("groups are closed by a column that is no key"))?,
            last_only: closing.last_only,
            times: BTreeSet::new(),
            of_slot: Vec::new(),
        });
        Ok(self)
    }

    /// The same, with groups that are forgotten so long after their last row.
    pub fn living(mut self, ttl_millis: u64) -> Aggregate {
        self.lives = Some(Lifetimes::new(ttl_millis));
        self
    }

    /// How many groups it keeps.
    #[cfg(test)]
    pub(super) fn groups(&self) -> usize {
        self.index.len()
    }

    fn last_only(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.last_only)
    }

    fn grow(&mut self) {
        let slots = self.index.slots();
        self.rows.resize(slots, 0);
        self.touched.resize(slots, false);
        for accumulator in &mut self.accumulators {
            accumulator.resize(slots);
        }
    }

    /// Applies one chunk and notes what the groups that it is the first to touch showed before.
    fn apply(&mut self, chunk: &Chunk, now: Time) -> Result<()> {
        let key_columns: Vec<ArrayRef> = self.keys.iter().map(|key| Arc::clone(chunk.column(*key))).collect();
        let encoded = self.codec.encode(&key_columns, chunk.rows())?;
        let mut slots = std::mem::take(&mut self.slots);
        let mut new = Vec::new();
        self.index.locate(&encoded, &mut slots, |slot| new.push(slot));
        self.grow();
        if let Some(open) = self.open.as_mut().filter(|_| !new.is_empty()) {
            let times = values(chunk.column(open.column))?;
            // New slots come in the order of the rows that they are new for.
            let mut new = new.into_iter().peekable();
            for (row, slot) in slots.iter().enumerate() {
                if new.next_if_eq(slot).is_some() {
                    open.add(*slot, times.is_valid(row).then(|| times.value(row)));
                }
            }
        }
        if let Some(lives) = &mut self.lives {
            slots.iter().for_each(|slot| lives.renew(*slot, now));
        }
        self.note_shown(&slots)?;
        if let Some(states) = states(chunk, self.width) {
            self.add_sums(&slots, states)?;
            self.slots = slots;
            return Ok(());
        }
        self.diffs.clear();
        match chunk.diffs() {
            Some(diffs) => self.diffs.extend_from_slice(diffs.values()),
            None => self.diffs.resize(chunk.rows(), 1),
        }
        for (slot, diff) in slots.iter().zip(&self.diffs) {
            self.rows[*slot as usize] += diff;
        }
        update(&self.calls, &mut self.accumulators, &self.index, &slots, chunk, &self.diffs)?;
        self.slots = slots;
        Ok(())
    }

    /// Adds what other workers summed up.
    fn add_sums(&mut self, slots: &[Slot], states: &BinaryArray) -> Result<()> {
        for (slot, mut state) in slots.iter().zip(states.iter().flatten()) {
            let cut = || Error::internal("the sum of a group is cut short");
            let (rows, rest) = state.split_first_chunk::<8>().ok_or_else(cut)?;
            self.rows[*slot as usize] += i64::from_le_bytes(*rows);
            state = rest;
            for accumulator in &mut self.accumulators {
                accumulator.import(&self.index, *slot, &mut state)?;
            }
        }
        Ok(())
    }

    /// The rows of groups with these keys and results.
    fn rows_of(&self, groups: &Groups) -> Result<RecordBatch> {
        let count = groups.keys.len();
        if count == 0 {
            return Ok(RecordBatch::new_empty(Arc::clone(&self.schema)));
        }
        let mut columns = self.codec.decode(groups.keys.iter())?;
        columns.extend(groups.results.iter().cloned());
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }

    /// Some groups as they are, all of which are there.
    fn groups_of(&mut self, slots: &[Slot]) -> Result<Groups> {
        let mut keys = EncodedRows::default();
        slots.iter().for_each(|slot| keys.push_once(self.index.key(*slot)));
        Ok(Groups { keys, results: if slots.is_empty() { Vec::new() } else { self.results(slots)? } })
    }

    /// Puts aside what groups that are about to change are, for those who read and have not come to them. `results` are
    /// what they show, when that is known.
    fn put_aside(&mut self, slots: &[Slot], results: Option<&[ArrayRef]>) {
        for at in 0..self.reads.len() {
            let mut ahead = self.reads[at].ahead(slots);
            ahead.retain(|position| self.present(slots[*position as usize], true));
            if ahead.is_empty() {
                continue;
            }
            let chosen: Vec<Slot> = ahead.iter().map(|position| slots[*position as usize]).collect();
            let groups = match results {
                None => self.groups_of(&chosen),
                Some(results) => {
                    let mut keys = EncodedRows::default();
                    chosen.iter().for_each(|slot| keys.push_once(self.index.key(*slot)));
                    let results = if chosen.len() == slots.len() {
                        Ok(results.to_vec())
                    } else {
                        let picks = UInt32Array::from(ahead);
                        results.iter().map(|column| take(column, &picks, None)).collect()
                    };
                    results.map(|results| Groups { keys, results }).map_err(Error::from)
                }
            };
            self.reads[at].put_aside(groups);
        }
    }

    fn note_shown(&mut self, slots: &[Slot]) -> Result<()> {
        let mut first = Vec::new();
        for slot in slots {
            let touched = &mut self.touched[*slot as usize];
            if !*touched {
                *touched = true;
                first.push(*slot);
            }
        }
        if first.is_empty() {
            return Ok(());
        }
        for slot in &first {
            self.index.touch(*slot);
        }
        let results = if self.last_only() { Vec::new() } else { self.results(&first)? };
        self.put_aside(&first, (!self.last_only()).then_some(results.as_slice()));
        let present = first.iter().map(|slot| self.present(*slot, true)).collect();
        self.shown.push_back(Shown { slots: first, present, results });
        Ok(())
    }

    fn results(&mut self, slots: &[Slot]) -> Result<Vec<ArrayRef>> {
        self.accumulators.iter_mut().map(|accumulator| accumulator.evaluate(slots)).collect()
    }

    /// Whether a group has a row in the result, before or after the time being closed.
    fn present(&self, slot: Slot, before: bool) -> bool {
        match &self.global {
            Some(global) => global.shown || !before,
            None => self.rows[slot as usize] > 0,
        }
    }

    /// Puts out the difference between what some groups showed and what they show now.
    fn emit(&mut self, shown: &Shown, out: &mut Vec<Chunk>) -> Result<()> {
        let slots = &shown.slots;
        if let Some(slot) = slots.iter().find(|slot| self.rows[**slot as usize] < 0) {
            return Err(Error::internal("more rows of a group were retracted than inserted")
                .detail(format!("The group has {} rows.", self.rows[*slot as usize])));
        }
        if self.last_only() {
            self.settle(slots);
            return Ok(());
        }
        let now: Vec<bool> = slots.iter().map(|slot| self.present(*slot, false)).collect();
        let results = self.results(slots)?;
        let changed = changed_rows(&shown.results, &results, slots.len())?;
        let mut picks = Vec::with_capacity(2 * slots.len());
        let mut diffs = Vec::with_capacity(2 * slots.len());
        for row in 0..slots.len() {
            let replaced = changed[row] || shown.present[row] != now[row];
            if replaced && shown.present[row] {
                picks.push((0, row));
                diffs.push(-1);
            }
            if replaced && now[row] {
                picks.push((1, row));
                diffs.push(1);
            }
        }
        if !picks.is_empty() {
            let keys = self.codec.decode(slots.iter().map(|slot| self.index.key(*slot)))?;
            let mut columns = Vec::with_capacity(self.schema.fields().len());
            for key in &keys {
                columns.push(interleave(&[key, key], &picks)?);
            }
            for (old, new) in shown.results.iter().zip(&results) {
                columns.push(interleave(&[old, new], &picks)?);
            }
            out.extend(to_chunks(&self.schema, columns, diffs)?);
        }
        self.settle(slots);
        if let Some(global) = &mut self.global {
            global.shown = true;
        }
        Ok(())
    }

    /// Groups are through with a time; those without rows go.
    fn settle(&mut self, slots: &[Slot]) {
        for slot in slots {
            self.touched[*slot as usize] = false;
            if self.global.is_none() && self.rows[*slot as usize] == 0 {
                if let Some(open) = &mut self.open {
                    open.remove(*slot);
                }
                self.forget(*slot);
            }
        }
    }

    fn forget(&mut self, slot: Slot) {
        self.rows[slot as usize] = 0;
        for accumulator in &mut self.accumulators {
            accumulator.clear(&self.index, slot);
        }
        if let Some(lives) = &mut self.lives {
            lives.remove(slot);
        }
        self.index.remove(slot);
    }

    /// Takes the rows of some groups to which none came for long; what they showed is noted. False when there is none.
    fn expire_groups(&mut self, now: Time) -> Result<bool> {
        let Some(lives) = &mut self.lives else { return Ok(false) };
        let slots = lives.take_past(now, CHUNK_ROWS_MAX);
        if slots.is_empty() {
            return Ok(false);
        }
        self.note_shown(&slots)?;
        for slot in slots {
            self.rows[slot as usize] = 0;
            for accumulator in &mut self.accumulators {
                accumulator.clear(&self.index, slot);
            }
        }
        Ok(true)
    }

    /// Forgets some groups that are over. False when there is none.
    fn close_groups(&mut self, now: Watermark, out: &mut Vec<Chunk>) -> Result<bool> {
        let Some(open) = &mut self.open else { return Ok(false) };
        let slots = open.take_past(now, CHUNK_ROWS_MAX);
        if slots.is_empty() {
            return Ok(false);
        }
        if self.last_only() {
            let mut columns = self.codec.decode(slots.iter().map(|slot| self.index.key(*slot)))?;
            columns.extend(self.results(&slots)?);
            out.extend(Chunk::inserts(&RecordBatch::try_new(Arc::clone(&self.schema), columns)?));
        }
        self.put_aside(&slots, None);
        for slot in slots {
            self.index.touch(slot);
            self.forget(slot);
        }
        Ok(true)
    }
}

/// The states of the aggregates of an operator.
///
/// # Errors
/// 42883 or 0A000 when a type cannot be aggregated.
pub(super) fn accumulators(
    input: &SchemaRef,
    calls: &[AggregateCall],
    track: bool,
) -> Result<Vec<Box<dyn Accumulator>>> {
    let accumulators = calls.iter().enumerate().map(|(position, call)| {
        let argument = call.argument.map_or(&DataType::Null, |argument| input.field(argument).data_type());
        accumulator(&call.function, argument, call.distinct, &format!("a{position}"), track)
    });
    accumulators.collect()
}

/// Applies a chunk's rows to the aggregates of their groups.
///
/// # Errors
/// When the chunk is not of the planned types.
pub(super) fn update(
    calls: &[AggregateCall],
    accumulators: &mut [Box<dyn Accumulator>],
    index: &KeyIndex,
    slots: &[Slot],
    chunk: &Chunk,
    diffs: &[i64],
) -> Result<()> {
    for (call, accumulator) in calls.iter().zip(accumulators) {
        let filtered = call.filter.map(|filter| passing(chunk.column(filter), diffs)).transpose()?;
        accumulator.update(&Changes {
            index,
            slots,
            argument: call.argument.map(|argument| chunk.column(argument)),
            diffs: filtered.as_deref().unwrap_or(diffs),
        })?;
    }
    Ok(())
}

/// The diffs of the rows for which the filter is true; zero for the others.
fn passing(filter: &ArrayRef, diffs: &[i64]) -> Result<Vec<i64>> {
    let mask: &BooleanArray =
        filter.as_boolean_opt().ok_or_else(|| Error::internal("an aggregate's filter is not boolean"))?;
    Ok(mask.iter().zip(diffs).map(|(pass, diff)| if pass == Some(true) { *diff } else { 0 }).collect())
}

/// Which rows of two sets of columns differ. Nested types are taken to differ.
fn changed_rows(old: &[ArrayRef], new: &[ArrayRef], rows: usize) -> Result<Vec<bool>> {
    let mut changed = vec![false; rows];
    for (old, new) in old.iter().zip(new) {
        if old.data_type().is_nested() {
            changed.fill(true);
            break;
        }
        let differs = distinct(old, new)?;
        for (row, changed) in changed.iter_mut().enumerate() {
            *changed |= differs.value(row);
        }
    }
    Ok(changed)
}

impl Inspect for Aggregate {
    fn begin(&mut self, id: InspectionId, _: usize) {
        self.reads.push(GroupsRead::new(id, self.index.slots()));
    }

    fn page(&mut self, id: InspectionId, rows_max: usize, _: Instant) -> Result<InspectedPage> {
        let rows_max = rows_max.min(READ_GROUPS);
        let at = self.reads.iter().position(|read| read.id == id).ok_or_else(past_lost)?;
        let aside = self.reads[at].take_aside(rows_max)?;
        let rows = if aside.is_empty() {
            let (rows, global) = (&self.rows, self.global.as_ref());
            let there = |slot: Slot| global.map_or(rows[slot as usize] > 0, |global| global.shown);
            let slots = self.reads[at].next_slots(rows_max, there);
            let groups = self.groups_of(&slots)?;
            self.rows_of(&groups)?
        } else {
            let parts = aside.iter().map(|groups| self.rows_of(groups)).collect::<Result<Vec<_>>>()?;
            concat_batches(&self.schema, &parts)?
        };
        Ok(InspectedPage { rows, more: !self.reads[at].is_through() })
    }

    fn find(&mut self, _: usize, keys: &[Vec<u8>]) -> Result<RecordBatch> {
        let slots = keys.iter().filter_map(|key| self.index.get(key));
        let slots: Vec<Slot> = slots.filter(|slot| self.present(*slot, true)).collect();
        let groups = self.groups_of(&slots)?;
        self.rows_of(&groups)
    }

    fn end(&mut self, id: InspectionId) {
        self.reads.retain(|read| read.id != id);
    }
}

impl Operator for Aggregate {
    fn open(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let damaged = || Error::new(SqlState::DataCorrupted, "a group's stored state is damaged");
        let (mut stored, mut deadlines) = (Vec::new(), Vec::new());
        cx.backend.scan(self.operator, &[], &mut |key, value| {
            if let Some(key) = split_value_key(SLOT_NAME, key) {
                stored.push((key.to_vec(), value.to_vec()));
            } else if let Some(key) = split_value_key(DEADLINES, key) {
                let deadline = value.try_into().map(i64::from_le_bytes).map_err(|_| damaged())?;
                deadlines.push((key.to_vec(), deadline));
            }
            Ok(())
        })?;
        for (key, value) in &stored {
            let (slot, _) = self.index.insert(key);
            self.index.loaded(slot);
            self.grow();
            let (rows, mut rest) = value.split_first_chunk::<8>().ok_or_else(damaged)?;
            self.rows[slot as usize] = i64::from_le_bytes(*rows);
            for accumulator in &mut self.accumulators {
                accumulator.decode(slot, &mut rest)?;
            }
            if !rest.is_empty() {
                return Err(damaged());
            }
            if let Some(global) = &mut self.global {
                global.shown = true;
            }
        }
        if let Some(lives) = &mut self.lives {
            for (key, deadline) in deadlines {
                lives.set(self.index.get(&key).ok_or_else(damaged)?, deadline);
            }
        }
        for accumulator in &mut self.accumulators {
            accumulator.load(&self.index, self.operator, cx.backend)?;
        }
        if let Some(open) = &mut self.open {
            for keys in stored.chunks(CHUNK_ROWS_MAX) {
                let columns = self.codec.decode(keys.iter().map(|(key, _)| key.as_slice()))?;
                let times = values(&columns[open.key])?;
                for (row, (key, _)) in keys.iter().enumerate() {
                    let slot = self.index.get(key).ok_or_else(damaged)?;
                    open.add(slot, times.is_valid(row).then(|| times.value(row)));
                }
            }
        }
        Ok(())
    }

    fn starts(&self) -> bool {
        self.global.as_ref().is_some_and(|global| global.here && !global.shown)
    }

    fn push(&mut self, _: usize, chunk: Chunk) -> Result<()> {
        self.pending.push_back(chunk);
        Ok(())
    }

    fn close(&mut self, time: Time, out: &mut Vec<Chunk>, cx: &mut Context<'_>) -> Result<Step> {
        if self.starts() && self.index.is_empty() {
            self.index.insert(&[]);
            self.grow();
            self.note_shown(&[0])?;
        }
        while let Some(chunk) = self.pending.pop_front() {
            match &self.open {
                Some(open) => {
                    let (on_time, late) = divide(chunk, open.column, cx.before[0])?;
                    cx.late.extend(late.map(|late| (0, late)));
                    on_time.map_or(Ok(()), |chunk| self.apply(&chunk, time))?;
                }
                None => self.apply(&chunk, time)?,
            }
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        while self.expire_groups(time)? {
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        while let Some(shown) = self.shown.pop_front() {
            debug_assert!(shown.slots.len() <= CHUNK_ROWS_MAX, "a chunk touches at most its rows");
            self.emit(&shown, out)?;
            if cx.expired() && !self.shown.is_empty() {
                return Ok(Step::Again);
            }
        }
        while self.close_groups(cx.now[0], out)? {
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        Ok(Step::Done)
    }

    fn is_timed(&self) -> bool {
        self.lives.is_some()
    }

    fn wakes_at(&self) -> Option<Time> {
        self.lives.as_ref()?.next()
    }

    fn barrier(&mut self, cx: &mut Context<'_>) -> Result<Step> {
        loop {
            let keys = self.index.take_changed(BARRIER_KEYS);
            let mut batch = WriteBatch::default();
            for key in &keys {
                let stored = value_key(SLOT_NAME, key);
                match self.index.get(key) {
                    Some(slot) => {
                        let mut value = self.rows[slot as usize].to_le_bytes().to_vec();
                        for accumulator in &self.accumulators {
                            accumulator.encode(slot, &mut value);
                        }
                        batch.put(stored, value);
                        if let Some(lives) = &self.lives {
                            batch.put(value_key(DEADLINES, key), lives.deadline(slot).to_le_bytes().to_vec());
                        }
                    }
                    None => {
                        batch.erase(stored);
                        if self.lives.is_some() {
                            batch.erase(value_key(DEADLINES, key));
                        }
                    }
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
        for accumulator in &mut self.accumulators {
            accumulator.flush(&self.index, &mut batch);
        }
        cx.write(self.operator, batch)?;
        Ok(Step::Done)
    }

    fn state_size(&self) -> StateSize {
        let mut bounded = Vec::new();
        if self.index.slots() > 0 {
            // As long for one group as for another.
            self.accumulators.iter().for_each(|accumulator| accumulator.encode(0, &mut bounded));
        }
        let groups = self.index.len();
        let deadline = if self.lives.is_some() { size_of::<i64>() } else { 0 };
        let bytes = self.index.key_bytes() + groups * (size_of::<i64>() + bounded.len() + deadline);
        let entries = self.accumulators.iter().map(|accumulator| accumulator.entries().bytes).sum::<usize>();
        StateSize { keys: groups, bytes: bytes + entries }
    }

    fn inspect(&mut self) -> Option<&mut dyn Inspect> {
        Some(self)
    }
}
