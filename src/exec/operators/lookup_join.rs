//! Joins each row with the rows that the right has at the row's time on the clock. What changes on the right later does
//! not change what was put out.
//!
//! While the job fills, rows of the left wait: they meet the right as it is when all of it is there.
//!
//! Stored as map state `r`: the key, then the row of the right, with its count; `l`: the same for rows that wait.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{ArrayRef, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::SchemaRef;

use super::rows::{decoded_or_null, null_keys, to_chunks};
use super::{Context, Operator, StateSize, Step};
use crate::exec::plan::LookupJoinSpec;
use crate::state::{Encoded, KeyIndex, Multiset, RowCodec, Slot, WriteBatch};
use crate::types::{CHUNK_ROWS_MAX, Chunk, Error, OperatorId, Result, Time, Watermark};

/// The operator on one worker: input 0 are the rows, input 1 what they meet.
#[derive(Debug)]
pub struct LookupJoin {
    operator: OperatorId,
    schema: SchemaRef,
    /// Rows that meet none come out with NULLs.
    keep_left: bool,
    key_codec: RowCodec,
    index: KeyIndex,
    sides: [Side; 2],
    pending: [VecDeque<Chunk>; 2],
    meeting: Option<Meeting>,
    /// The first slot whose rows may still wait when the job is whole.
    resumed: usize,
}

/// One input's rows.
#[derive(Debug)]
struct Side {
    schema: SchemaRef,
    keys: Vec<usize>,
    codec: RowCodec,
    rows: Multiset,
}

/// Rows of the left that meet the right.
#[derive(Debug)]
struct Meeting {
    chunk: Chunk,
    slots: Vec<Option<Slot>>,
    next: usize,
}

impl LookupJoin {
    /// A join of rows of two schemas. With `track`, changes are remembered for barriers.
    ///
    /// # Errors
    /// 0A000 when a type cannot be kept.
    pub fn new(
        operator: OperatorId,
        inputs: [&SchemaRef; 2],
        schema: SchemaRef,
        spec: &LookupJoinSpec,
        track: bool,
    ) -> Result<LookupJoin> {
        let [left, right] = inputs;
        let key_codec = RowCodec::for_keys(spec.left_keys.iter().map(|key| left.field(*key).data_type()))?;
        let side = |schema: &SchemaRef, keys: &[usize], slot: &str| -> Result<Side> {
            Ok(Side {
                schema: Arc::clone(schema),
                keys: keys.to_vec(),
                codec: RowCodec::for_rows(schema.fields().iter().map(|field| field.data_type()))?,
                rows: Multiset::new(slot.to_owned(), track),
            })
        };
        Ok(LookupJoin {
            operator,
            schema,
            keep_left: spec.keep_left,
            key_codec,
            index: KeyIndex::new(false),
            sides: [side(left, &spec.left_keys, "l")?, side(right, &spec.right_keys, "r")?],
            pending: Default::default(),
            meeting: None,
            resumed: 0,
        })
    }

    fn grow(&mut self) {
        let slots = self.index.slots();
        self.sides.iter_mut().for_each(|side| side.rows.resize(slots));
    }

    /// The slots of a chunk's keys: with `keep` also new ones; none for keys with NULL, which meet nothing.
    fn slots(&mut self, at: usize, chunk: &Chunk, keep: bool) -> Result<Vec<Option<Slot>>> {
        let side = &self.sides[at];
        let keys: Vec<ArrayRef> = side.keys.iter().map(|key| Arc::clone(chunk.column(*key))).collect();
        let encoded = self.key_codec.encode(&keys, chunk.rows())?;
        let nulls = null_keys(&keys);
        let mut slots = Vec::with_capacity(chunk.rows());
        for row in 0..chunk.rows() {
            let partnerless = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
            // A row that waits does so whatever its key.
            slots.push(match (partnerless && (at == 1 || !keep), keep) {
                (true, _) => None,
                (false, true) => Some(self.index.insert(encoded.row(row)).0),
                (false, false) => self.index.get(encoded.row(row)),
            });
        }
        self.grow();
        Ok(slots)
    }

    fn encoded(&self, at: usize, chunk: &Chunk) -> Result<Encoded> {
        self.sides[at].codec.encode(chunk.batch().columns(), chunk.rows())
    }

    /// Takes in changes of the right, or rows of the left that wait.
    fn keep(&mut self, at: usize, chunk: &Chunk) -> Result<()> {
        let (rows, slots) = (self.encoded(at, chunk)?, self.slots(at, chunk, true)?);
        for (row, slot) in slots.iter().enumerate() {
            if let Some(slot) = *slot {
                self.sides[at].rows.add(&self.index, slot, rows.row(row), chunk.diff(row));
            }
        }
        slots.into_iter().flatten().for_each(|slot| self.drop_empty(slot));
        Ok(())
    }

    fn drop_empty(&mut self, slot: Slot) {
        if self.sides.iter().all(|side| side.rows.len(slot) == 0) {
            self.index.remove(slot);
        }
    }

    /// Lets some of the rows go on that wait. False when there is none.
    fn resume(&mut self) -> Result<bool> {
        let left = &self.sides[0];
        let mut waiting: Vec<(Slot, Box<[u8]>, i64)> = Vec::new();
        while waiting.len() < CHUNK_ROWS_MAX && self.resumed < self.index.slots() {
            let slot = self.resumed as Slot;
            let rows = left.rows.entries(slot).take(CHUNK_ROWS_MAX - waiting.len());
            waiting.extend(rows.map(|(row, count)| (slot, row.into(), count)));
            if waiting.len() < CHUNK_ROWS_MAX {
                self.resumed += 1;
            }
        }
        if waiting.is_empty() {
            return Ok(false);
        }
        let columns = left.codec.decode(waiting.iter().map(|(_, row, _)| &**row))?;
        let counts = waiting.iter().map(|(.., count)| *count).collect();
        let resumed = to_chunks(&left.schema, columns, counts)?;
        for (slot, row, count) in waiting {
            self.sides[0].rows.add(&self.index, slot, &row, -count);
            self.drop_empty(slot);
        }
        self.pending[0].extend(resumed);
        Ok(true)
    }

    /// Puts some pairs out: about a chunk of them.
    fn meet(&mut self, work: &mut Meeting, out: &mut Vec<Chunk>) -> Result<()> {
        let right = &self.sides[1];
        let (mut rows, mut partners, mut diffs) = (Vec::new(), Vec::new(), Vec::new());
        while work.next < work.chunk.rows() && rows.len() < CHUNK_ROWS_MAX {
            let (row, before) = (work.next, rows.len());
            work.next += 1;
            for (partner, count) in work.slots[row].into_iter().flat_map(|slot| right.rows.entries(slot)) {
                rows.push(row as u32);
                partners.push(Some(partner));
                diffs.push(work.chunk.diff(row) * count);
            }
            if rows.len() == before && self.keep_left {
                rows.push(row as u32);
                partners.push(None);
                diffs.push(work.chunk.diff(row));
            }
        }
        for part in (0..rows.len()).step_by(CHUNK_ROWS_MAX) {
            let part = part..rows.len().min(part + CHUNK_ROWS_MAX);
            let places = UInt32Array::from(rows[part.clone()].to_vec());
            let own = work.chunk.batch().columns().iter().map(|column| take(column, &places, None));
            let mut columns = own.collect::<std::result::Result<Vec<ArrayRef>, _>>()?;
            columns.extend(decoded_or_null(&right.schema, &right.codec, &partners[part.clone()])?);
            out.extend(to_chunks(&self.schema, columns, diffs[part].to_vec())?);
        }
        Ok(())
    }
}

impl Operator for LookupJoin {
    fn open(&mut self, cx: &mut Context<'_>) -> Result<()> {
        for slot_name in ["l", "r"] {
            self.index.load_map_keys(slot_name, self.operator, cx.backend)?;
        }
        self.grow();
        for side in &mut self.sides {
            side.rows.load(&self.index, self.operator, cx.backend)?;
        }
        Ok(())
    }

    fn push(&mut self, input: usize, chunk: Chunk) -> Result<()> {
        self.pending[input].push_back(chunk);
        Ok(())
    }

    fn close(&mut self, _: Time, out: &mut Vec<Chunk>, cx: &mut Context<'_>) -> Result<Step> {
        // Known from the time on at which the job is whole.
        let whole = cx.now[0] != Watermark::NONE;
        loop {
            if let Some(mut work) = self.meeting.take() {
                self.meet(&mut work, out)?;
                self.meeting = (work.next < work.chunk.rows()).then_some(work);
            } else if let Some(chunk) = self.pending[1].pop_front() {
                self.keep(1, &chunk)?;
            } else if let Some(chunk) = self.pending[0].pop_front() {
                if (0..chunk.rows()).any(|row| chunk.diff(row) < 0) {
                    return Err(Error::internal("a row that is joined once was retracted"));
                }
                if whole {
                    let slots = self.slots(0, &chunk, false)?;
                    self.meeting = Some(Meeting { chunk, slots, next: 0 });
                    continue;
                }
                self.keep(0, &chunk)?;
            } else if !whole || !self.resume()? {
                return Ok(Step::Done);
            }
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
    }

    fn barrier(&mut self, cx: &mut Context<'_>) -> Result<Step> {
        let mut batch = WriteBatch::default();
        for side in &mut self.sides {
            side.rows.flush(&self.index, &mut batch);
        }
        cx.write(self.operator, batch)?;
        Ok(Step::Done)
    }

    fn state_size(&self) -> StateSize {
        StateSize {
            keys: self.sides.iter().map(|side| side.rows.total_len()).sum(),
            bytes: self.index.key_bytes() + self.sides.iter().map(|side| side.rows.total_bytes()).sum::<usize>(),
        }
    }
}
