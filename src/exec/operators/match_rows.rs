//! Finds the matches of a pattern in rows that only grow, once their event time is past.
//!
//! Each partition keeps its rows in order. When event time goes on, the search looks through the rows whose time is past,
//! from the first on at which no match is decided yet; rows that no match can begin at any more are forgotten, but for
//! those before them that the pattern looks back at. A row whose time was past before it came is late.
//!
//! A match comes out once, as its first row with the measures behind it.
//!
//! Stored as map state `rows`, what the search has still to look at, and `behind`, what it looks back at: the partition,
//! then the row with its sort keys in front, with its count.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, TimestampMicrosecondArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};

use super::{Context, Operator, StateSize, Step};
use crate::exec::event_time::{divide, values};
use crate::exec::patterns::{Matcher, Matches};
use crate::exec::plan::{Closing, MatchSpec};
use crate::state::{Encoded, EncodedRows, KeyIndex, Multiset, RowCodec, Slot, WriteBatch};
use crate::types::{CHUNK_ROWS_MAX, Chunk, Error, OperatorId, Result, Time, Watermark};

const SLOT_NAME: &str = "rows";
const BEHIND_SLOT_NAME: &str = "behind";

/// The operator on one worker.
#[derive(Debug)]
pub struct MatchRows {
    operator: OperatorId,
    schema: SchemaRef,
    spec: MatchSpec,
    /// The column by which rows are past.
    time: usize,
    key_codec: RowCodec,
    /// Sort keys, then all columns of the input.
    row_codec: RowCodec,
    /// Times as rows begin with them.
    times: RowCodec,
    time_bytes: usize,
    index: KeyIndex,
    rows: Multiset,
    behind: Multiset,
    pending: VecDeque<Chunk>,
    /// Partitions by the event time at which they are to be looked at, and the same by partition.
    due: BTreeSet<(i64, Slot)>,
    due_of: Vec<Option<i64>>,
}

/// Rows of some partitions, one behind the other.
#[derive(Default)]
struct Gathered {
    slots: Vec<Slot>,
    rows: EncodedRows,
    partitions: Vec<Range<usize>>,
    /// Where each search goes on.
    firsts: Vec<usize>,
}

impl MatchRows {
    /// The operator over rows of `input`. With `track`, changes are remembered for barriers.
    ///
    /// # Errors
    /// 0A000 when a type cannot be kept or ordered.
    pub fn new(
        operator: OperatorId,
        input: &SchemaRef,
        schema: SchemaRef,
        spec: &MatchSpec,
        closing: &Closing,
        track: bool,
    ) -> Result<MatchRows> {
        let first = spec.order.first().filter(|first| first.column == closing.column);
        let first =
            first.ok_or_else(|| Error::internal("rows are matched in another order than that of event time"))?;
        let order = spec.order.iter().map(|key| (input.field(key.column).data_type(), key.options));
        let plain = DataType::Timestamp(TimeUnit::Microsecond, None);
        let mut matching = MatchRows {
            operator,
            key_codec: RowCodec::for_keys(spec.keys.iter().map(|key| input.field(*key).data_type()))?,
            row_codec: RowCodec::for_ordered_rows(order, input.fields().iter().map(|field| field.data_type()))?,
            times: RowCodec::for_ordered_rows([(&plain, first.options)], [])?,
            time_bytes: 0,
            schema,
            time: closing.column,
            spec: spec.clone(),
            index: KeyIndex::new(false),
            rows: Multiset::new(SLOT_NAME.to_owned(), track),
            behind: Multiset::new(BEHIND_SLOT_NAME.to_owned(), track),
            pending: VecDeque::new(),
            due: BTreeSet::new(),
            due_of: Vec::new(),
        };
        matching.time_bytes = matching.encoded_times(vec![0])?.row(0).len();
        Ok(matching)
    }

    fn encoded_times(&self, times: Vec<i64>) -> Result<Encoded> {
        let rows = times.len();
        self.times.encode(&[Arc::new(TimestampMicrosecondArray::from(times)) as ArrayRef], rows)
    }

    fn grow(&mut self) {
        let slots = self.index.slots();
        self.rows.resize(slots);
        self.behind.resize(slots);
        self.due_of.resize(slots, None);
    }

    /// The partition is looked at when this time is past, or sooner.
    fn look_at(&mut self, slot: Slot, time: i64) {
        let due = &mut self.due_of[slot as usize];
        if due.is_some_and(|due| due <= time) {
            return;
        }
        if let Some(later) = due.replace(time) {
            self.due.remove(&(later, slot));
        }
        self.due.insert((time, slot));
    }

    fn apply(&mut self, chunk: &Chunk) -> Result<()> {
        let columns = |columns: &mut dyn Iterator<Item = usize>| -> Vec<ArrayRef> {
            columns.map(|column| Arc::clone(chunk.column(column))).collect()
        };
        let keys = columns(&mut self.spec.keys.iter().copied());
        let partitions = self.key_codec.encode(&keys, chunk.rows())?;
        let width = chunk.batch().num_columns();
        let ordered = self.spec.order.iter().map(|key| key.column).chain(0..width);
        let rows = self.row_codec.encode(&columns(&mut { ordered }), chunk.rows())?;
        let times = values(chunk.column(self.time))?;
        for row in (0..chunk.rows()).filter(|row| times.is_valid(*row)) {
            if chunk.diff(row) < 0 {
                return Err(Error::internal("a row to be matched was retracted"));
            }
            let (slot, new) = self.index.insert(partitions.row(row));
            if new {
                self.grow();
            }
            self.rows.add(&self.index, slot, rows.row(row), chunk.diff(row));
            self.look_at(slot, times.value(row));
        }
        Ok(())
    }

    /// The rows that can be looked at of partitions that are due, about a chunk of them.
    fn gather(&mut self, now: Watermark) -> Result<Gathered> {
        let mut gathered = Gathered::default();
        let end = self.encoded_times(vec![now.as_micros().saturating_add(1)])?;
        let end = if now == Watermark::END { Unbounded } else { Excluded(end.row(0)) };
        while gathered.rows.len() < CHUNK_ROWS_MAX
            && self.due.first().is_some_and(|(time, _)| now.is_past(*time))
            && let Some((_, slot)) = self.due.pop_first()
        {
            self.due_of[slot as usize] = None;
            let start = gathered.rows.len();
            self.behind.entries(slot).try_for_each(|(row, count)| gathered.rows.push(row, count))?;
            gathered.firsts.push(gathered.rows.len());
            self.rows.range(slot, Unbounded, end).try_for_each(|(row, count)| gathered.rows.push(row, count))?;
            gathered.partitions.push(start..gathered.rows.len());
            gathered.slots.push(slot);
        }
        Ok(gathered)
    }

    /// Looks through some partitions, and puts out the matches.
    fn search(&mut self, mut gathered: Gathered, now: Watermark, out: &mut Vec<Chunk>) -> Result<()> {
        let pattern = Arc::clone(&self.spec.pattern);
        let columns = self.row_codec.decode(gathered.rows.iter())?.split_off(self.spec.order.len());
        let mut matcher = Matcher::new(&pattern, &columns, &gathered.partitions)?;
        let mut matches = Matches::default();
        let known = (now != Watermark::END).then(|| now.as_micros());
        let times = values(&columns[self.time])?;
        let mut open = Vec::new();
        for ((partition, first), slot) in
            gathered.partitions.iter().zip(&mut gathered.firsts).zip(gathered.slots.iter().copied())
        {
            let next = matcher.run(partition, *first, known, &mut matches)?;
            if next < partition.end {
                // Nothing comes any more that is within the time, or nothing at all.
                let until = |within| times.value(next).saturating_add(within).saturating_sub(1);
                open.push((slot, pattern.within.map_or(i64::MAX, until)));
            }
            *first = next;
        }
        if !matches.is_empty() {
            let starts = UInt32Array::from_iter_values(matches.starts().map(|row| row as u32));
            let mut shown =
                columns.iter().map(|column| take(column, &starts, None)).collect::<Result<Vec<ArrayRef>, _>>()?;
            shown.push(Arc::new(matcher.measures(&matches)?));
            out.extend(Chunk::inserts(&RecordBatch::try_new(Arc::clone(&self.schema), shown)?));
        }
        self.forget(&gathered);
        for (slot, time) in open {
            self.look_at(slot, time);
        }
        self.look_at_rest(&gathered.slots, now)
    }

    /// Forgets the rows before the place at which each search goes on, but for those that the pattern looks back at.
    fn forget(&mut self, gathered: &Gathered) {
        let back = self.spec.pattern.rows_back();
        let mut rows = gathered.rows.iter();
        let searched = gathered.slots.iter().zip(&gathered.partitions).zip(&gathered.firsts);
        for ((slot, partition), next) in searched {
            let mut was_behind: i64 = self.behind.entries(*slot).map(|(_, count)| count).sum();
            for (place, row) in partition.clone().zip(rows.by_ref()) {
                let (behind, stays) = (was_behind > 0, place + back >= *next);
                was_behind -= 1;
                if place >= *next {
                    continue;
                }
                if !behind {
                    self.rows.add(&self.index, *slot, row, -1);
                }
                let change = i64::from(stays) - i64::from(behind);
                if change != 0 {
                    self.behind.add(&self.index, *slot, row, change);
                }
            }
        }
    }

    /// Partitions are looked at again when the next of their rows is past; those without rows are forgotten.
    fn look_at_rest(&mut self, slots: &[Slot], now: Watermark) -> Result<()> {
        let mut next = EncodedRows::default();
        let mut waiting = Vec::new();
        if now != Watermark::END {
            let from = self.encoded_times(vec![now.as_micros().saturating_add(1)])?;
            for slot in slots {
                if let Some((row, _)) = self.rows.range(*slot, Included(from.row(0)), Unbounded).next() {
                    next.push_once(&row[..self.time_bytes]);
                    waiting.push(*slot);
                }
            }
        }
        self.look_at_rows(&waiting, &next)?;
        for slot in slots {
            if self.rows.len(*slot) == 0 && self.behind.len(*slot) == 0 {
                self.index.remove(*slot);
            }
        }
        Ok(())
    }

    /// Partitions are looked at when the rows that begin with these times are past.
    fn look_at_rows(&mut self, slots: &[Slot], times: &EncodedRows) -> Result<()> {
        if slots.is_empty() {
            return Ok(());
        }
        let decoded = self.times.decode(times.iter())?;
        let times = values(decoded.first().ok_or_else(|| Error::internal("rows to be matched without times"))?)?;
        for (slot, time) in slots.iter().zip(times.values()) {
            self.look_at(*slot, *time);
        }
        Ok(())
    }
}

impl Operator for MatchRows {
    fn open(&mut self, cx: &mut Context<'_>) -> Result<()> {
        for slot_name in [SLOT_NAME, BEHIND_SLOT_NAME] {
            self.index.load_map_keys(slot_name, self.operator, cx.backend)?;
        }
        self.grow();
        self.rows.load(&self.index, self.operator, cx.backend)?;
        self.behind.load(&self.index, self.operator, cx.backend)?;
        let (mut slots, mut times) = (Vec::new(), EncodedRows::default());
        for slot in (0..self.index.slots()).map(|slot| slot as Slot) {
            if let Some((row, _)) = self.rows.entries(slot).next() {
                times.push_once(&row[..self.time_bytes]);
                slots.push(slot);
            }
        }
        self.look_at_rows(&slots, &times)
    }

    fn push(&mut self, _: usize, chunk: Chunk) -> Result<()> {
        self.pending.push_back(chunk);
        Ok(())
    }

    fn close(&mut self, _: Time, out: &mut Vec<Chunk>, cx: &mut Context<'_>) -> Result<Step> {
        while let Some(chunk) = self.pending.pop_front() {
            let (on_time, late) = divide(chunk, self.time, cx.before[0])?;
            cx.late.extend(late.map(|late| (0, late)));
            on_time.map_or(Ok(()), |chunk| self.apply(&chunk))?;
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        let now = cx.now[0];
        loop {
            let gathered = self.gather(now)?;
            if gathered.slots.is_empty() {
                return Ok(Step::Done);
            }
            self.search(gathered, now, out)?;
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
    }

    fn barrier(&mut self, cx: &mut Context<'_>) -> Result<Step> {
        let mut batch = WriteBatch::default();
        self.rows.flush(&self.index, &mut batch);
        self.behind.flush(&self.index, &mut batch);
        cx.write(self.operator, batch)?;
        Ok(Step::Done)
    }

    fn state_size(&self) -> StateSize {
        StateSize {
            keys: self.rows.total_len() + self.behind.total_len(),
            bytes: self.index.key_bytes() + self.rows.total_bytes() + self.behind.total_bytes(),
        }
    }
}
