//! What depends on the order of a partition's rows: the first rows of it, and window functions.
//!
//! Each partition keeps its rows in order, with their counts; rows that the order does not tell apart are in
//! order of all their columns, so that the answer depends on the rows and on nothing else. When a time closes,
//! the partitions that it touches show what they showed before and what they show now, and the difference goes
//! out. The first rows cost their number; window functions are evaluated over the whole partition.
//!
//! Stored as map state `rows`: the partition, then the row with its sort keys in front, with its count.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{concat, take, take_record_batch};
use arrow::datatypes::SchemaRef;
use hashbrown::HashMap;

use super::inspect::decoded;
use super::rows::to_chunks;
use super::{Context, Inspect, InspectedPage, Operator, StateSize, Step};
use crate::exec::plan::{RankSpec, Show};
use crate::exec::relation::from_datafusion;
use crate::state::{EncodedRows, KeyIndex, Multiset, RowCodec, Slot, WriteBatch};
use crate::types::{CHUNK_ROWS_MAX, Chunk, Error, InspectionId, OperatorId, Result, Time};

const SLOT_NAME: &str = "rows";

/// The operator on one worker.
#[derive(Debug)]
pub struct Rank {
    operator: OperatorId,
    input: SchemaRef,
    schema: SchemaRef,
    spec: RankSpec,
    key_codec: RowCodec,
    /// Sort keys in their directions, then all columns of the input.
    row_codec: RowCodec,
    /// Rows as they are put out, to compare them.
    shown_codec: RowCodec,
    index: KeyIndex,
    rows: Multiset,
    pending: VecDeque<Chunk>,
    touched: Vec<bool>,
    /// What partitions showed before this time.
    before: VecDeque<(Vec<Slot>, Shown)>,
}

/// Rows that are shown, and how often each.
#[derive(Debug)]
struct Shown {
    rows: RecordBatch,
    counts: Vec<i64>,
}

impl Rank {
    /// The operator over rows of `input`. With `track`, changes are remembered for barriers.
    ///
    /// # Errors
    /// 0A000 when a type cannot be kept or ordered.
    pub fn new(
        operator: OperatorId,
        input: &SchemaRef,
        schema: SchemaRef,
        spec: &RankSpec,
        track: bool,
    ) -> Result<Rank> {
        let types = |columns: &[usize]| columns.iter().map(|c| input.field(*c).data_type()).collect::<Vec<_>>();
        let order = spec.order.iter().map(|key| (input.field(key.column).data_type(), key.options));
        Ok(Rank {
            operator,
            key_codec: RowCodec::for_keys(types(&spec.keys))?,
            row_codec: RowCodec::for_ordered_rows(order, input.fields().iter().map(|field| field.data_type()))?,
            shown_codec: RowCodec::for_rows(schema.fields().iter().map(|field| field.data_type()))?,
            input: Arc::clone(input),
            schema,
            spec: spec.clone(),
            index: KeyIndex::new(false),
            rows: Multiset::new(SLOT_NAME.to_owned(), track),
            pending: VecDeque::new(),
            touched: Vec::new(),
            before: VecDeque::new(),
        })
    }

    fn grow(&mut self) {
        self.touched.resize(self.index.slots(), false);
        self.rows.resize(self.index.slots());
    }

    /// Applies a chunk, and notes what the partitions that it is the first to touch showed before.
    fn apply(&mut self, chunk: &Chunk) -> Result<()> {
        let columns = |columns: &mut dyn Iterator<Item = usize>| -> Vec<ArrayRef> {
            columns.map(|column| Arc::clone(chunk.column(column))).collect()
        };
        let keys = columns(&mut self.spec.keys.iter().copied());
        let partitions = self.key_codec.encode(&keys, chunk.rows())?;
        let ordered = self.spec.order.iter().map(|key| key.column).chain(0..self.input.fields().len());
        let rows = self.row_codec.encode(&columns(&mut { ordered }), chunk.rows())?;
        let mut slots = Vec::new();
        self.index.locate(&partitions, &mut slots, |_| {});
        self.grow();
        let mut first = Vec::new();
        for slot in &slots {
            if !std::mem::replace(&mut self.touched[*slot as usize], true) {
                first.push(*slot);
            }
        }
        if !first.is_empty() {
            let shown = self.shown(&first)?;
            self.before.push_back((first, shown));
        }
        for (row, slot) in slots.iter().enumerate() {
            self.rows.add(&self.index, *slot, rows.row(row), chunk.diff(row));
        }
        Ok(())
    }

    /// What some partitions show now.
    fn shown(&self, slots: &[Slot]) -> Result<Shown> {
        let (mut rows, mut counts) = (Vec::new(), Vec::new());
        let mut ends = Vec::with_capacity(slots.len());
        let (skip, limit) = match self.spec.show {
            Show::First { skip, limit } => (skip, limit),
            Show::Window { limit, .. } => (0, limit),
        };
        let end = limit.map_or(u64::MAX, |limit| skip.saturating_add(limit));
        for slot in slots {
            let mut place = 0_u64;
            for (row, count) in self.rows.entries(*slot) {
                let count = u64::try_from(count)
                    .map_err(|_| Error::internal("more rows of a partition were retracted than inserted"))?;
                let shown = (place + count).min(end).saturating_sub(place.max(skip));
                if shown > 0 {
                    rows.push(row);
                    counts.push(shown as i64);
                }
                place += count;
                if place >= end {
                    break;
                }
            }
            ends.push(rows.len());
        }
        let mut columns = self.row_codec.decode(rows.iter().copied())?;
        columns.drain(..self.spec.order.len());
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.input), columns, &options)?;
        match &self.spec.show {
            Show::First { .. } => Ok(Shown { rows: batch.with_schema(Arc::clone(&self.schema))?, counts }),
            Show::Window { .. } => self.with_windows(&batch, &counts, &ends),
        }
    }

    /// Partitions one after the other, each up to its end, with the values of the window functions.
    fn with_windows(&self, batch: &RecordBatch, counts: &[i64], ends: &[usize]) -> Result<Shown> {
        let Show::Window { functions, .. } = &self.spec.show else {
            return Err(Error::internal("a window operator without functions"));
        };
        let (mut values, mut parts) = (vec![Vec::new(); functions.len()], Vec::new());
        let mut start = 0;
        for end in ends.iter().copied().filter(|end| *end > 0) {
            if start == end {
                continue;
            }
            // Equal rows are rows of their own here: each has its own number.
            let picks = UInt32Array::from_iter_values(
                (start..end).flat_map(|row| std::iter::repeat_n(row as u32, counts[row] as usize)),
            );
            let part = take_record_batch(batch, &picks)?;
            for (function, values) in functions.iter().zip(&mut values) {
                values.push(function.evaluate(&part).map_err(from_datafusion)?);
            }
            parts.push(part);
            start = end;
        }
        let rows: usize = parts.iter().map(RecordBatch::num_rows).sum();
        let own =
            (0..self.input.fields().len()).map(|at| parts.iter().map(|part| Arc::clone(part.column(at))).collect());
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        for (parts, field) in own.chain(values).zip(self.schema.fields()) {
            let parts: Vec<ArrayRef> = parts;
            let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
            columns.push(if parts.is_empty() {
                arrow::array::new_empty_array(field.data_type())
            } else {
                concat(&parts)?
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let rows_shown = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?;
        Ok(Shown { rows: rows_shown, counts: vec![1; rows] })
    }

    /// Puts out the difference between what some partitions showed and what they show now.
    fn emit(&mut self, slots: &[Slot], before: &Shown, out: &mut Vec<Chunk>) -> Result<()> {
        let now = self.shown(slots)?;
        let old_rows = self.shown_codec.encode(before.rows.columns(), before.rows.num_rows())?;
        let new_rows = self.shown_codec.encode(now.rows.columns(), now.rows.num_rows())?;
        let mut changes: HashMap<&[u8], i64> = HashMap::with_capacity(old_rows.len() + new_rows.len());
        for (row, count) in now.counts.iter().enumerate() {
            *changes.entry(new_rows.row(row)).or_insert(0) += count;
        }
        for (row, count) in before.counts.iter().enumerate() {
            *changes.entry(old_rows.row(row)).or_insert(0) -= count;
        }
        // A row's whole change goes out where the row is first met.
        for (shown, encoded) in [(before, &old_rows), (&now, &new_rows)] {
            let (mut picks, mut diffs) = (Vec::new(), Vec::new());
            for row in 0..encoded.len() {
                if let Some(diff) = changes.remove(encoded.row(row)).filter(|diff| *diff != 0) {
                    picks.push(row as u32);
                    diffs.push(diff);
                }
            }
            if !picks.is_empty() {
                let picks = UInt32Array::from(picks);
                let columns =
                    shown.rows.columns().iter().map(|column| take(column, &picks, None)).collect::<Result<_, _>>()?;
                out.extend(to_chunks(&self.schema, columns, diffs)?);
            }
        }
        for slot in slots {
            self.touched[*slot as usize] = false;
            if self.rows.len(*slot) == 0 {
                self.index.remove(*slot);
            }
        }
        Ok(())
    }
}

impl Inspect for Rank {
    fn begin(&mut self, id: InspectionId, _: usize) {
        self.rows.begin_read(id);
    }

    fn page(&mut self, id: InspectionId, rows_max: usize, deadline: Instant) -> Result<InspectedPage> {
        let (rows, more) = self.rows.read(id, rows_max, deadline)?;
        Ok(InspectedPage { rows: decoded(&rows, &self.row_codec, &self.input)?, more })
    }

    fn find(&mut self, _: usize, keys: &[Vec<u8>]) -> Result<RecordBatch> {
        let mut rows = EncodedRows::default();
        for slot in keys.iter().filter_map(|key| self.index.get(key)) {
            self.rows.entries(slot).try_for_each(|(row, count)| rows.push(row, count))?;
        }
        decoded(&rows, &self.row_codec, &self.input)
    }

    fn end(&mut self, id: InspectionId) {
        self.rows.end_read(id);
    }
}

impl Operator for Rank {
    fn open(&mut self, cx: &mut Context<'_>) -> Result<()> {
        self.index.load_map_keys(SLOT_NAME, self.operator, cx.backend)?;
        self.grow();
        self.rows.load(&self.index, self.operator, cx.backend)
    }

    fn push(&mut self, _: usize, chunk: Chunk) -> Result<()> {
        self.pending.push_back(chunk);
        Ok(())
    }

    fn close(&mut self, _: Time, out: &mut Vec<Chunk>, cx: &mut Context<'_>) -> Result<Step> {
        while let Some(chunk) = self.pending.pop_front() {
            self.apply(&chunk)?;
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        while let Some((slots, before)) = self.before.pop_front() {
            debug_assert!(slots.len() <= CHUNK_ROWS_MAX, "a chunk touches at most its rows");
            self.emit(&slots, &before, out)?;
            if cx.expired() && !self.before.is_empty() {
                return Ok(Step::Again);
            }
        }
        Ok(Step::Done)
    }

    fn barrier(&mut self, cx: &mut Context<'_>) -> Result<Step> {
        let mut batch = WriteBatch::default();
        self.rows.flush(&self.index, &mut batch);
        cx.write(self.operator, batch)?;
        Ok(Step::Done)
    }

    fn state_size(&self) -> StateSize {
        StateSize { keys: self.rows.total_len(), bytes: self.index.key_bytes() + self.rows.total_bytes() }
    }

    fn inspect(&mut self) -> Option<&mut dyn Inspect> {
        Some(self)
    }
}
