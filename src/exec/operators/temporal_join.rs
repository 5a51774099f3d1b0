//! Joins each row of the left with the version of the right that is in force at its time: of the versions with its key
//! the one with the greatest time that is not after its own. Of versions with one time the greatest row counts.
//!
//! A row comes out at once, with the version that is known then. A version that comes later takes the place of the one
//! before it for the rows from its time up to that of the one behind it.
//!
//! With closings, a row or a version whose time is past when it comes is late. A row is forgotten when no version up to its
//! time can come any more; it stays in what was put out. Of the versions whose time is past on both sides the newest of
//! each key is kept, which rows to come may still ask for, and the others are forgotten.
//!
//! Stored as map state `l` and `r`: the key, then the time in order and the row, with its count.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, TimestampMicrosecondArray, UInt32Array};
use arrow::buffer::NullBuffer;
use arrow::compute::take;
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};

use super::rows::{decoded_or_null, null_keys, to_chunks};
use super::{Context, Operator, StateSize, Step};
use crate::exec::event_time::{divide, values};
use crate::exec::plan::{Closing, TemporalJoinSpec};
use crate::state::{Encoded, KeyIndex, Multiset, RowCodec, Slot, WriteBatch};
use crate::types::{CHUNK_ROWS_MAX, Chunk, Error, OperatorId, Result, Time, Watermark};

/// A time as entries begin with it, or an entry.
type Bytes = Box<[u8]>;

/// Rows that are forgotten between two looks at the clock.
const FORGOTTEN_MAX: usize = 1_024;

/// The operator on one worker: input 0 are the rows, input 1 the versions.
#[derive(Debug)]
pub struct TemporalJoin {
    operator: OperatorId,
    schema: SchemaRef,
    /// Rows without a version come out with NULLs.
    keep_left: bool,
    key_codec: RowCodec,
    /// Times as entries begin with them.
    times: RowCodec,
    time_bytes: usize,
    index: KeyIndex,
    sides: [Side; 2],
    pending: [VecDeque<Chunk>; 2],
    applying: Option<Applying>,
    /// Late rows are set apart, and what is not needed any more is forgotten.
    closes: bool,
    /// Rows that a version to come may still concern, in order of time.
    open_rows: BTreeSet<(Bytes, Slot)>,
    /// Versions that have one behind them, by the time of that one.
    superseded: BTreeSet<(Bytes, Slot, Bytes)>,
}

/// One input's rows.
#[derive(Debug)]
struct Side {
    schema: SchemaRef,
    keys: Vec<usize>,
    time: usize,
    /// The time, then the row.
    codec: RowCodec,
    rows: Multiset,
}

/// A chunk of versions that is being applied.
#[derive(Debug)]
struct Applying {
    chunk: Chunk,
    rows: Encoded,
    slots: Vec<Option<Slot>>,
    next: usize,
}

impl TemporalJoin {
    /// A join of rows of two schemas. With `track`, changes are remembered for barriers.
    ///
    /// # Errors
    /// 0A000 when a type cannot be kept.
    pub fn new(
        operator: OperatorId,
        inputs: [&SchemaRef; 2],
        schema: SchemaRef,
        spec: &TemporalJoinSpec,
        track: bool,
    ) -> Result<TemporalJoin> {
        let [left, right] = inputs;
        let key_codec = RowCodec::for_keys(spec.left_keys.iter().map(|key| left.field(*key).data_type()))?;
        let side = |schema: &SchemaRef, keys: &[usize], time: usize, slot: &str| -> Result<Side> {
            let order = [(schema.field(time).data_type(), Default::default())];
            Ok(Side {
                schema: Arc::clone(schema),
                keys: keys.to_vec(),
                time,
                codec: RowCodec::for_ordered_rows(order, schema.fields().iter().map(|field| field.data_type()))?,
                rows: Multiset::new(slot.to_owned(), track),
            })
        };
        let plain = DataType::Timestamp(TimeUnit::Microsecond, None);
        let times = RowCodec::for_ordered_rows([(&plain, Default::default())], [])?;
        let mut join = TemporalJoin {
            operator,
            schema,
            keep_left: spec.keep_left,
            key_codec,
            times,
            time_bytes: 0,
            index: KeyIndex::new(false),
            sides: [
                side(left, &spec.left_keys, spec.left_time, "l")?,
                side(right, &spec.right_keys, spec.right_time, "r")?,
            ],
            pending: Default::default(),
            applying: None,
            closes: false,
            open_rows: BTreeSet::new(),
            superseded: BTreeSet::new(),
        };
        join.time_bytes = join.encoded_times(&TimestampMicrosecondArray::from(vec![0]))?.row(0).len();
        Ok(join)
    }

    /// The same, with inputs by whose event time rows are late and forgotten; one for each or none.
    #[must_use]
    pub fn closing(mut self, closing: &[Closing]) -> TemporalJoin {
        self.closes = closing.len() == 2;
        self
    }

    fn encoded_times(&self, times: &TimestampMicrosecondArray) -> Result<Encoded> {
        let plain: ArrayRef = Arc::new(times.clone().with_timezone_opt(None::<Arc<str>>));
        self.times.encode(&[plain], times.len())
    }

    fn grow(&mut self) {
        let slots = self.index.slots();
        self.sides.iter_mut().for_each(|side| side.rows.resize(slots));
    }

    /// The entries of a chunk's rows, and the slots of their keys: none for rows that have NULL in the key or no time,
    /// and so no partner.
    fn located(&mut self, at: usize, chunk: &Chunk) -> Result<(Encoded, Vec<Option<Slot>>)> {
        let side = &self.sides[at];
        let keys: Vec<ArrayRef> = side.keys.iter().map(|key| Arc::clone(chunk.column(*key))).collect();
        let encoded = self.key_codec.encode(&keys, chunk.rows())?;
        let time = chunk.column(side.time);
        let columns: Vec<ArrayRef> = std::iter::once(time).chain(chunk.batch().columns()).cloned().collect();
        let rows = side.codec.encode(&columns, chunk.rows())?;
        let nulls = NullBuffer::union(null_keys(&keys).as_ref(), time.logical_nulls().as_ref());
        let slots = (0..chunk.rows())
            .map(|row| {
                let partnerless = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
                (!partnerless).then(|| self.index.insert(encoded.row(row)).0)
            })
            .collect();
        self.grow();
        Ok((rows, slots))
    }

    /// Gives the rows of a chunk the versions that are known.
    fn apply_rows(&mut self, chunk: &Chunk, out: &mut Vec<Chunk>) -> Result<()> {
        let (rows, slots) = self.located(0, chunk)?;
        let times = values(chunk.column(self.sides[0].time))?;
        let ends: TimestampMicrosecondArray =
            times.iter().map(|time| time.map(|time| time.saturating_add(1))).collect();
        let ends = self.encoded_times(&ends)?;
        let TemporalJoin { schema, keep_left, index, sides: [left, right], closes, open_rows, .. } = self;
        let mut shown = Vec::with_capacity(chunk.rows());
        let mut versions = Vec::with_capacity(chunk.rows());
        let mut diffs = Vec::with_capacity(chunk.rows());
        for (row, slot) in slots.iter().enumerate() {
            let version = slot.and_then(|slot| {
                let end = if times.value(row) == i64::MAX { Unbounded } else { Excluded(ends.row(row)) };
                right.rows.range(slot, Unbounded, end).next_back().map(|(version, _)| version)
            });
            if version.is_some() || *keep_left {
                shown.push(row as u32);
                versions.push(version);
                diffs.push(chunk.diff(row));
            }
        }
        if !shown.is_empty() {
            let shown = UInt32Array::from(shown);
            let mut columns = chunk
                .batch()
                .columns()
                .iter()
                .map(|column| take(column, &shown, None))
                .collect::<std::result::Result<Vec<ArrayRef>, _>>()?;
            columns.extend(decoded_or_null(&right.schema, &right.codec, &versions)?);
            out.extend(to_chunks(schema, columns, diffs)?);
        }
        for (row, slot) in slots.iter().enumerate() {
            let Some(slot) = *slot else { continue };
            let entry = rows.row(row);
            let (before, after) = left.rows.add(index, slot, entry, chunk.diff(row));
            if !*closes {
                continue;
            }
            if after == 0 {
                open_rows.remove(&(entry.into(), slot));
            } else if before == 0 {
                open_rows.insert((entry.into(), slot));
            }
        }
        for slot in slots.into_iter().flatten() {
            self.drop_empty(slot);
        }
        Ok(())
    }

    /// Puts some versions of a chunk in the place of those before them: as many as concern about a chunk of rows.
    fn apply_versions(&mut self, work: &mut Applying, out: &mut Vec<Chunk>) -> Result<()> {
        let TemporalJoin { schema, keep_left, index, sides: [left, right], closes, superseded, time_bytes, .. } = self;
        let (left, time_bytes) = (&*left, *time_bytes);
        let mut known: Vec<Box<[u8]>> = Vec::new();
        let (mut rows, mut versions, mut diffs) = (Vec::new(), Vec::new(), Vec::new());
        while work.next < work.chunk.rows() && rows.len() < CHUNK_ROWS_MAX {
            let row = work.next;
            work.next += 1;
            let Some(slot) = work.slots[row] else { continue };
            let version = work.rows.row(row);
            let (before, after) = right.rows.add(index, slot, version, work.chunk.diff(row));
            if after < before {
                return Err(Error::internal("a version was retracted"));
            }
            if before > 0 {
                continue;
            }
            let earlier = right.rows.range(slot, Unbounded, Excluded(version)).next_back().map(|(earlier, _)| earlier);
            let later = right.rows.range(slot, Excluded(version), Unbounded).next().map(|(later, _)| later);
            let end = later.map_or(Unbounded, |later| Excluded(&later[..time_bytes]));
            let first = rows.len();
            for (concerned, count) in left.rows.range(slot, Included(&version[..time_bytes]), end) {
                if earlier.is_some() || *keep_left {
                    rows.push(concerned);
                    versions.push(earlier.map(|_| known.len()));
                    diffs.push(-count);
                }
                rows.push(concerned);
                versions.push(Some(known.len() + usize::from(earlier.is_some())));
                diffs.push(count);
            }
            if rows.len() > first {
                known.extend(earlier.map(Box::from));
                known.push(version.into());
            }
            if *closes {
                if let Some(earlier) = earlier {
                    if let Some(later) = later {
                        superseded.remove(&(Box::from(&later[..time_bytes]), slot, earlier.into()));
                    }
                    superseded.insert((Box::from(&version[..time_bytes]), slot, earlier.into()));
                }
                if let Some(later) = later {
                    superseded.insert((Box::from(&later[..time_bytes]), slot, version.into()));
                }
            }
        }
        let versions: Vec<Option<&[u8]>> = versions.into_iter().map(|version| Some(&*known[version?])).collect();
        for part in (0..rows.len()).step_by(CHUNK_ROWS_MAX) {
            let part = part..rows.len().min(part + CHUNK_ROWS_MAX);
            let mut columns = left.codec.decode(rows[part.clone()].iter().copied())?.split_off(1);
            columns.extend(decoded_or_null(&right.schema, &right.codec, &versions[part.clone()])?);
            out.extend(to_chunks(schema, columns, diffs[part].to_vec())?);
        }
        Ok(())
    }

    /// Forgets some of what is not needed any more. False when there is nothing.
    fn forget(&mut self, now: [Watermark; 2]) -> Result<bool> {
        let both = now[0].min(now[1]);
        let past = [now[1], both].map(|watermark| (watermark != Watermark::NONE).then(|| watermark.as_micros()));
        let past: TimestampMicrosecondArray = past.into_iter().collect();
        let ends = self.encoded_times(&past)?;
        let (mut rows, mut versions) = (Vec::new(), Vec::new());
        while past.is_valid(0)
            && rows.len() < FORGOTTEN_MAX
            && self.open_rows.first().is_some_and(|(entry, _)| entry[..self.time_bytes] <= *ends.row(0))
        {
            rows.extend(self.open_rows.pop_first());
        }
        while past.is_valid(1)
            && versions.len() < FORGOTTEN_MAX
            && self.superseded.first().is_some_and(|(by, ..)| **by <= *ends.row(1))
        {
            versions.extend(self.superseded.pop_first());
        }
        let any = !rows.is_empty() || !versions.is_empty();
        let gone = rows.into_iter().map(|(entry, slot)| (0, slot, entry));
        for (side, slot, entry) in gone.chain(versions.into_iter().map(|(_, slot, entry)| (1, slot, entry))) {
            let TemporalJoin { index, sides, .. } = self;
            let count = sides[side].rows.count(slot, &entry);
            sides[side].rows.add(index, slot, &entry, -count);
            self.drop_empty(slot);
        }
        Ok(any)
    }

    fn drop_empty(&mut self, slot: Slot) {
        if self.sides.iter().all(|side| side.rows.len(slot) == 0) {
            self.index.remove(slot);
        }
    }
}

impl Operator for TemporalJoin {
    fn open(&mut self, cx: &mut Context<'_>) -> Result<()> {
        for slot_name in ["l", "r"] {
            self.index.load_map_keys(slot_name, self.operator, cx.backend)?;
        }
        self.grow();
        for side in &mut self.sides {
            side.rows.load(&self.index, self.operator, cx.backend)?;
        }
        if !self.closes {
            return Ok(());
        }
        let [left, right] = &self.sides;
        for slot in (0..self.index.slots()).map(|slot| slot as Slot) {
            self.open_rows.extend(left.rows.entries(slot).map(|(entry, _)| (Box::from(entry), slot)));
            let behind = right.rows.entries(slot).skip(1).map(|(version, _)| &version[..self.time_bytes]);
            let versions = right.rows.entries(slot).zip(behind);
            self.superseded.extend(versions.map(|((version, _), by)| (Box::from(by), slot, Box::from(version))));
        }
        Ok(())
    }

    fn push(&mut self, input: usize, chunk: Chunk) -> Result<()> {
        self.pending[input].push_back(chunk);
        Ok(())
    }

    fn close(&mut self, _: Time, out: &mut Vec<Chunk>, cx: &mut Context<'_>) -> Result<Step> {
        loop {
            // Versions first: a row then meets those of its own time at once.
            if let Some(mut work) = self.applying.take() {
                self.apply_versions(&mut work, out)?;
                self.applying = (work.next < work.chunk.rows()).then_some(work);
            } else if let Some(chunk) = self.pending[1].pop_front() {
                if let Some(chunk) = self.on_time(1, chunk, cx)? {
                    let (rows, slots) = self.located(1, &chunk)?;
                    self.applying = Some(Applying { chunk, rows, slots, next: 0 });
                }
                continue;
            } else if let Some(chunk) = self.pending[0].pop_front() {
                if let Some(chunk) = self.on_time(0, chunk, cx)? {
                    self.apply_rows(&chunk, out)?;
                }
            } else if !self.closes || !self.forget(cx.now)? {
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

impl TemporalJoin {
    /// What of a chunk is not late; the rest is told.
    fn on_time(&self, input: usize, chunk: Chunk, cx: &mut Context<'_>) -> Result<Option<Chunk>> {
        if !self.closes {
            return Ok(Some(chunk));
        }
        let (on_time, late) = divide(chunk, self.sides[input].time, cx.before[input])?;
        cx.late.extend(late.map(|late| (input, late)));
        Ok(on_time)
    }
}
