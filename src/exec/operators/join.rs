//! Joins of two inputs, kept current under changes of both.
//!
//! Each side keeps its rows by the join's key, with their counts. The chunks of a time are applied one after
//! the other: a changed row of one side meets the rows that the other has at that moment, so that each pair
//! is counted once in whatever order the chunks come (the symmetric hash join).
//!
//! Outer joins, EXISTS and NOT EXISTS also ask whether a row has a partner at all. While chunks are applied, a
//! row is taken for what it was before the time; when all are, the rows that have found their first partner or
//! lost their last one move over. Without a condition beyond the key, a row has a partner when the other side
//! has a row of its key; with one, each row's partners are counted.
//!
//! With closings, a row that comes when its event time is past is late, and one that can find no partner any more is
//! forgotten behind the changes of a time, without a word: it stays in what was put out.
//!
//! Stored as map state `l` and `r`: the key, then the row, with its count; `lp` and `rp`: with the number of
//! its partners.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{filter, filter_record_batch, take};
use arrow::datatypes::{Int64Type, SchemaRef};
use datafusion::physical_expr::PhysicalExpr;

use super::inspect::decoded;
use super::rows::{null_keys, to_chunks};
use super::{Context, Inspect, InspectedPage, Operator, StateSize, Step};
use crate::exec::event_time::{divide, values};
use crate::exec::plan::{Closing, JoinKind, JoinSpec};
use crate::exec::relation::from_datafusion;
use crate::state::{Encoded, EncodedRows, KeyIndex, Multiset, RowCodec, Slot, WriteBatch, past_lost};
use crate::types::{CHUNK_ROWS_MAX, Chunk, Error, InspectionId, OperatorId, Result, Time, Watermark};

/// The join operator on one worker: input 0 is the left side, input 1 the right one.
#[derive(Debug)]
pub struct Join {
    operator: OperatorId,
    /// What it puts out.
    schema: SchemaRef,
    /// The columns of both sides, left first: what the condition is over.
    pair_schema: SchemaRef,
    /// Pairs of rows are put out, and rows without a partner are filled up with NULLs.
    pairs: bool,
    key_codec: RowCodec,
    nulls_equal: bool,
    condition: Option<Arc<dyn PhysicalExpr>>,
    index: KeyIndex,
    sides: [Side; 2],
    pending: VecDeque<(usize, Chunk)>,
    applying: Option<Applying>,
    touched: Touched,
    /// Rows of both sides are needed for equally long: whether a row has a partner is known by its key alone.
    together: bool,
    /// Who reads which side.
    reads: Vec<(InspectionId, usize)>,
}

/// The rows of a side by event time: those without one are needed to the end.
#[derive(Debug)]
struct Needed {
    column: usize,
    keep: i64,
    times: BTreeSet<(i64, Slot, Box<[u8]>)>,
}

/// Rows that are forgotten between two looks at the clock.
const FORGOTTEN_MAX: usize = 1_024;

/// One input's rows.
#[derive(Debug)]
struct Side {
    schema: SchemaRef,
    keys: Vec<usize>,
    codec: RowCodec,
    rows: Multiset,
    /// Rows of each key.
    totals: Vec<i64>,
    /// Rows are put out by themselves while they have a partner (`true`), or while they have none (`false`).
    shows: Option<bool>,
    /// Partners of each row, where the key alone does not tell.
    partners: Option<Multiset>,
    /// With `partners`: the rows that this time touches, and whether they had a partner before.
    before: BTreeMap<(Slot, Box<[u8]>), bool>,
    needed: Option<Needed>,
}

/// The keys that this time touches, and whether each side had rows of it before.
#[derive(Debug, Default)]
struct Touched {
    keys: VecDeque<(Slot, [bool; 2])>,
    /// By slot: where it is in `keys`, plus one.
    places: Vec<u32>,
}

/// A chunk that is being applied.
#[derive(Debug)]
struct Applying {
    side: usize,
    chunk: Chunk,
    rows: Encoded,
    /// The key of each row; `None` for one with a NULL, which has no partners.
    slots: Vec<Option<Slot>>,
    next: usize,
}

impl Join {
    /// A join of rows of two schemas. With `track`, changes are remembered for barriers.
    ///
    /// # Errors
    /// 0A000 when a type cannot be kept.
    pub fn new(
        operator: OperatorId,
        inputs: [&SchemaRef; 2],
        schema: SchemaRef,
        spec: &JoinSpec,
        track: bool,
    ) -> Result<Join> {
        let [left, right] = inputs;
        let types = spec.left_keys.iter().map(|key| left.field(*key).data_type());
        let key_codec = RowCodec::for_keys(types)?;
        let shows = match spec.kind {
            JoinKind::Inner => [None, None],
            JoinKind::Left => [Some(false), None],
            JoinKind::Right => [None, Some(false)],
            JoinKind::Full => [Some(false), Some(false)],
            JoinKind::Semi => [Some(true), None],
            JoinKind::Anti => [Some(false), None],
        };
        let side = |schema: &SchemaRef, keys: &[usize], shows: Option<bool>, slot: &str| -> Result<Side> {
            let counted = shows.is_some() && spec.condition.is_some();
            Ok(Side {
                schema: Arc::clone(schema),
                keys: keys.to_vec(),
                codec: RowCodec::for_rows(schema.fields().iter().map(|field| field.data_type()))?,
                rows: Multiset::new(slot.to_owned(), track),
                totals: Vec::new(),
                shows,
                partners: counted.then(|| Multiset::new(format!("{slot}p"), track)),
                before: BTreeMap::new(),
                needed: None,
            })
        };
        let sides = [side(left, &spec.left_keys, shows[0], "l")?, side(right, &spec.right_keys, shows[1], "r")?];
        Ok(Join {
            operator,
            schema,
            pair_schema: spec.pair_schema(left, right),
            pairs: !matches!(spec.kind, JoinKind::Semi | JoinKind::Anti),
            key_codec,
            nulls_equal: spec.nulls_equal,
            condition: spec.condition.clone(),
            index: KeyIndex::new(false),
            sides,
            pending: VecDeque::new(),
            applying: None,
            touched: Touched::default(),
            together: spec.kind != JoinKind::Inner && spec.condition.is_none(),
            reads: Vec::new(),
        })
    }

    /// The same, with inputs by whose event time rows are late and forgotten; one for each or none.
    #[must_use]
    pub fn closing(mut self, closing: &[Closing]) -> Join {
        for (side, closing) in self.sides.iter_mut().zip(closing) {
            side.needed = Some(Needed { column: closing.column, keep: closing.keep, times: BTreeSet::new() });
        }
        self
    }

    /// How many different rows it keeps.
    #[cfg(test)]
    pub(super) fn kept_rows(&self) -> usize {
        self.sides.iter().flat_map(|side| (0..self.index.slots()).map(|slot| side.rows.len(slot as Slot))).sum()
    }

    /// Forgets some rows that can find no partner any more. False when there is none.
    fn forget(&mut self, now: [Watermark; 2]) -> bool {
        let mut gone = Vec::new();
        for at in 0..2 {
            let other = if self.together { now[0].min(now[1]) } else { now[1 - at] };
            let Some(needed) = &mut self.sides[at].needed else { continue };
            while gone.len() < FORGOTTEN_MAX
                && let Some((time, ..)) = needed.times.first()
                && other.after(needed.keep).is_past(*time)
            {
                gone.extend(needed.times.pop_first().map(|(_, slot, row)| (at, slot, row)));
            }
        }
        let any = !gone.is_empty();
        for (at, slot, row) in gone {
            let Join { index, sides, .. } = self;
            let side = &mut sides[at];
            let count = side.rows.count(slot, &row);
            side.rows.add(index, slot, &row, -count);
            side.totals[slot as usize] -= count;
            if let Some(partners) = &mut side.partners {
                let found = partners.count(slot, &row);
                partners.add(index, slot, &row, -found);
            }
            if sides.iter().all(|side| side.rows.len(slot) == 0) {
                index.remove(slot);
            }
        }
        any
    }

    fn grow(&mut self) {
        let slots = self.index.slots();
        self.touched.places.resize(slots, 0);
        for side in &mut self.sides {
            side.totals.resize(slots, 0);
            side.rows.resize(slots);
            side.partners.iter_mut().for_each(|partners| partners.resize(slots));
        }
    }

    /// Finds the keys of a chunk and notes those that it is the first to touch.
    fn begin(&mut self, side: usize, chunk: Chunk) -> Result<Applying> {
        let this = &self.sides[side];
        let keys: Vec<ArrayRef> = this.keys.iter().map(|key| Arc::clone(chunk.column(*key))).collect();
        let encoded = self.key_codec.encode(&keys, chunk.rows())?;
        let rows = this.codec.encode(chunk.batch().columns(), chunk.rows())?;
        let nulls = if self.nulls_equal { None } else { null_keys(&keys) };
        let slots: Vec<Option<Slot>> = (0..chunk.rows())
            .map(|row| {
                let partnerless = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
                (!partnerless).then(|| self.index.insert(encoded.row(row)).0)
            })
            .collect();
        self.grow();
        for slot in slots.iter().flatten() {
            let place = &mut self.touched.places[*slot as usize];
            if *place == 0 {
                let had = [0, 1].map(|side: usize| self.sides[side].totals[*slot as usize] > 0);
                self.touched.keys.push_back((*slot, had));
                *place = self.touched.keys.len() as u32;
            }
        }
        Ok(Applying { side, chunk, rows, slots, next: 0 })
    }

    /// Applies some rows of a chunk: as many as have about a chunk of partners.
    fn apply(&mut self, work: &mut Applying, out: &mut Vec<Chunk>) -> Result<()> {
        let Join { schema, pair_schema, pairs, condition, index, sides, touched, .. } = self;
        let [left, right] = sides;
        let (this, other) = if work.side == 0 { (left, right) } else { (right, left) };
        let first = work.next;

        let mut found = Pairs::default();
        let wanted = *pairs || this.partners.is_some() || other.partners.is_some();
        while work.next < work.chunk.rows() && found.rows.len() < CHUNK_ROWS_MAX {
            if let Some(slot) = work.slots[work.next].filter(|_| wanted) {
                for (partner, count) in other.rows.entries(slot) {
                    found.rows.push(work.next as u32);
                    found.partners.push(partner);
                    found.counts.push(count);
                }
            }
            work.next += 1;
        }

        // Partners that the rows of this step find, and what the step does to the rows that they find.
        let mut partners_found = vec![0; work.next - first];
        for part in (0..found.rows.len()).step_by(CHUNK_ROWS_MAX) {
            let part = part..found.rows.len().min(part + CHUNK_ROWS_MAX);
            let rows = &found.rows[part.clone()];
            let batch = pair_batch(pair_schema, work, rows, &other.codec, &found.partners[part.clone()])?;
            let mask = condition.as_ref().map(|condition| holds(&**condition, &batch)).transpose()?;
            let diffs: Int64Array = rows
                .iter()
                .zip(&found.counts[part.clone()])
                .map(|(row, count)| work.chunk.diff(*row as usize) * count)
                .collect();
            for (at, row) in rows.iter().enumerate() {
                if mask.as_ref().is_some_and(|mask| !mask.value(at)) {
                    continue;
                }
                let (pair, row) = (part.start + at, *row as usize);
                partners_found[row - first] += found.counts[pair];
                if let (Some(partners), Some(slot)) = (&mut other.partners, work.slots[row]) {
                    let partner = found.partners[pair];
                    let (had, _) = partners.add(index, slot, partner, work.chunk.diff(row));
                    other.before.entry((slot, partner.into())).or_insert(had > 0);
                }
            }
            if *pairs {
                let batch = batch.with_schema(Arc::clone(schema))?;
                match &mask {
                    None => out.extend(Chunk::changes(&batch, &diffs)),
                    Some(mask) => {
                        let diffs = filter(&diffs, mask)?;
                        out.extend(Chunk::changes(
                            &filter_record_batch(&batch, mask)?,
                            diffs.as_primitive::<Int64Type>(),
                        ));
                    }
                }
            }
        }

        let (mut alone, mut alone_diffs) = (Vec::new(), Vec::new());
        for row in first..work.next {
            let diff = work.chunk.diff(row);
            let had_partner = match work.slots[row] {
                None => false,
                Some(slot) => {
                    let bytes = work.rows.row(row);
                    let (count, left) = this.rows.add(index, slot, bytes, diff);
                    if let Some(needed) = &mut this.needed {
                        let times = values(work.chunk.column(needed.column))?;
                        let time = if times.is_valid(row) { times.value(row) } else { i64::MAX };
                        if left == 0 {
                            needed.times.remove(&(time, slot, bytes.into()));
                        } else if count == 0 {
                            needed.times.insert((time, slot, bytes.into()));
                        }
                    }
                    this.totals[slot as usize] += diff;
                    match &mut this.partners {
                        None => touched.had(slot)[1 - work.side],
                        Some(partners) => {
                            if count == 0 {
                                partners.add(index, slot, bytes, partners_found[row - first]);
                            }
                            let now = partners.count(slot, bytes);
                            if left == 0 {
                                partners.add(index, slot, bytes, -now);
                            }
                            *this.before.entry((slot, bytes.into())).or_insert(now > 0)
                        }
                    }
                }
            };
            if this.shows == Some(had_partner) && diff != 0 {
                alone.push(row as u32);
                alone_diffs.push(diff);
            }
        }
        if !alone.is_empty() {
            let columns = take_columns(&work.chunk, alone)?;
            let padding = pairs.then_some(&other.schema);
            out.extend(alone_rows(schema, work.side, columns, padding, alone_diffs)?);
        }
        Ok(())
    }

    /// Moves the rows over that have found their first partner or lost their last one, for some keys.
    fn finish(&mut self, out: &mut Vec<Chunk>) -> Result<()> {
        let mut keys = Vec::new();
        let mut rows = 0;
        while rows < CHUNK_ROWS_MAX
            && let Some(key) = self.touched.keys.pop_front()
        {
            let slot = key.0 as usize;
            self.touched.places[slot] = 0;
            if let Some(side) = self.sides.iter().find(|side| side.totals[slot] < 0) {
                return Err(Error::internal("more rows of a join's key were retracted than inserted")
                    .detail(format!("The key has {} rows.", side.totals[slot])));
            }
            rows += 1 + self.sides.iter().map(|side| side.rows.len(key.0)).sum::<usize>();
            keys.push(key);
        }
        for at in 0..2 {
            let (this, other) = (&self.sides[at], &self.sides[1 - at]);
            let Some(shows) = this.shows.filter(|_| this.partners.is_none()) else { continue };
            let (mut moved, mut diffs) = (Vec::new(), Vec::new());
            for (slot, had) in &keys {
                let has = other.totals[*slot as usize] > 0;
                if has != had[1 - at] {
                    for (row, count) in this.rows.entries(*slot) {
                        moved.push(row);
                        diffs.push(if has == shows { count } else { -count });
                    }
                }
            }
            self.put_alone(at, &moved, &diffs, out)?;
        }
        if self.touched.keys.is_empty() {
            self.finish_counted(out)?;
        }
        for (slot, _) in keys {
            if self.sides.iter().all(|side| side.rows.len(slot) == 0) {
                self.index.remove(slot);
            }
        }
        Ok(())
    }

    /// Likewise for the sides whose rows count their partners.
    fn finish_counted(&mut self, out: &mut Vec<Chunk>) -> Result<()> {
        for at in 0..2 {
            let before = std::mem::take(&mut self.sides[at].before);
            let this = &self.sides[at];
            let (Some(shows), Some(partners)) = (this.shows, &this.partners) else { continue };
            let (mut moved, mut diffs) = (Vec::new(), Vec::new());
            for ((slot, row), had) in &before {
                let (count, has) = (this.rows.count(*slot, row), partners.count(*slot, row) > 0);
                if has != *had && count != 0 {
                    moved.push(&**row);
                    diffs.push(if has == shows { count } else { -count });
                }
            }
            self.put_alone(at, &moved, &diffs, out)?;
        }
        Ok(())
    }

    fn put_alone(&self, side: usize, rows: &[&[u8]], diffs: &[i64], out: &mut Vec<Chunk>) -> Result<()> {
        let padding = self.pairs.then_some(&self.sides[1 - side].schema);
        for (rows, diffs) in rows.chunks(CHUNK_ROWS_MAX).zip(diffs.chunks(CHUNK_ROWS_MAX)) {
            let columns = self.sides[side].codec.decode(rows.iter().copied())?;
            out.extend(alone_rows(&self.schema, side, columns, padding, diffs.to_vec())?);
        }
        Ok(())
    }
}

impl Touched {
    /// Whether each side had rows of a touched key before this time.
    fn had(&self, slot: Slot) -> [bool; 2] {
        self.keys[self.places[slot as usize] as usize - 1].1
    }
}

/// Rows of a chunk and the partners that they meet on the other side.
#[derive(Default)]
struct Pairs<'a> {
    rows: Vec<u32>,
    partners: Vec<&'a [u8]>,
    counts: Vec<i64>,
}

/// Both sides' columns of some pairs.
fn pair_batch(
    schema: &SchemaRef,
    work: &Applying,
    rows: &[u32],
    codec: &RowCodec,
    partners: &[&[u8]],
) -> Result<RecordBatch> {
    let own = take_columns(&work.chunk, rows.to_vec())?;
    let others = codec.decode(partners.iter().copied())?;
    let columns = if work.side == 0 { [own, others] } else { [others, own] }.concat();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

/// Rows without their partners; with `padding`, NULLs stand for the other side's columns.
fn alone_rows(
    schema: &SchemaRef,
    side: usize,
    own: Vec<ArrayRef>,
    padding: Option<&SchemaRef>,
    diffs: Vec<i64>,
) -> Result<Vec<Chunk>> {
    let others: Vec<ArrayRef> = padding
        .iter()
        .flat_map(|other| other.fields())
        .map(|field| arrow::array::new_null_array(field.data_type(), diffs.len()))
        .collect();
    let columns = if side == 0 { [own, others] } else { [others, own] }.concat();
    to_chunks(schema, columns, diffs)
}

fn take_columns(chunk: &Chunk, rows: Vec<u32>) -> Result<Vec<ArrayRef>> {
    let rows = UInt32Array::from(rows);
    Ok(chunk.batch().columns().iter().map(|column| take(column, &rows, None)).collect::<Result<_, _>>()?)
}

/// For which rows a condition is true, not false or NULL.
fn holds(condition: &dyn PhysicalExpr, batch: &RecordBatch) -> Result<BooleanArray> {
    let mask =
        condition.evaluate(batch).and_then(|value| value.into_array(batch.num_rows())).map_err(from_datafusion)?;
    let mask = mask.as_boolean_opt().ok_or_else(|| Error::internal("a join's condition is not boolean"))?;
    Ok(match mask.nulls() {
        None => mask.clone(),
        Some(valid) => BooleanArray::new(mask.values() & valid.inner(), None),
    })
}

impl Inspect for Join {
    fn begin(&mut self, id: InspectionId, part: usize) {
        if let Some(side) = self.sides.get_mut(part) {
            side.rows.begin_read(id);
            self.reads.push((id, part));
        }
    }

    fn page(&mut self, id: InspectionId, rows_max: usize, deadline: Instant) -> Result<InspectedPage> {
        let part = self.reads.iter().find(|(read, _)| *read == id).map(|(_, part)| *part);
        let side = part.and_then(|part| self.sides.get_mut(part)).ok_or_else(past_lost)?;
        let (rows, more) = side.rows.read(id, rows_max, deadline)?;
        Ok(InspectedPage { rows: decoded(&rows, &side.codec, &side.schema)?, more })
    }

    fn find(&mut self, part: usize, keys: &[Vec<u8>]) -> Result<RecordBatch> {
        let side = self.sides.get(part).ok_or_else(|| Error::internal("a join has two sides"))?;
        let mut rows = EncodedRows::default();
        for slot in keys.iter().filter_map(|key| self.index.get(key)) {
            side.rows.entries(slot).try_for_each(|(row, count)| rows.push(row, count))?;
        }
        decoded(&rows, &side.codec, &side.schema)
    }

    fn end(&mut self, id: InspectionId) {
        self.sides.iter_mut().for_each(|side| side.rows.end_read(id));
        self.reads.retain(|(read, _)| *read != id);
    }
}

impl Operator for Join {
    fn open(&mut self, cx: &mut Context<'_>) -> Result<()> {
        for slot_name in ["l", "r"] {
            self.index.load_map_keys(slot_name, self.operator, cx.backend)?;
        }
        self.grow();
        for side in &mut self.sides {
            side.rows.load(&self.index, self.operator, cx.backend)?;
            if let Some(partners) = &mut side.partners {
                partners.load(&self.index, self.operator, cx.backend)?;
            }
            for slot in 0..self.index.slots() {
                side.totals[slot] = side.rows.entries(slot as Slot).map(|(_, count)| count).sum();
                let Some(needed) = &mut side.needed else { continue };
                let rows: Vec<&[u8]> = side.rows.entries(slot as Slot).map(|(row, _)| row).collect();
                if rows.is_empty() {
                    continue;
                }
                let columns = side.codec.decode(rows.iter().copied())?;
                let times = values(&columns[needed.column])?;
                for (at, row) in rows.into_iter().enumerate() {
                    let time = if times.is_valid(at) { times.value(at) } else { i64::MAX };
                    needed.times.insert((time, slot as Slot, row.into()));
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, input: usize, chunk: Chunk) -> Result<()> {
        self.pending.push_back((input, chunk));
        Ok(())
    }

    fn close(&mut self, _: Time, out: &mut Vec<Chunk>, cx: &mut Context<'_>) -> Result<Step> {
        loop {
            if let Some(mut work) = self.applying.take() {
                self.apply(&mut work, out)?;
                self.applying = (work.next < work.chunk.rows()).then_some(work);
            } else if let Some((input, chunk)) = self.pending.pop_front() {
                let on_time = match &self.sides[input].needed {
                    None => Some(chunk),
                    Some(needed) => {
                        let (on_time, late) = divide(chunk, needed.column, cx.before[input])?;
                        cx.late.extend(late.map(|late| (input, late)));
                        on_time
                    }
                };
                self.applying = on_time.map(|chunk| self.begin(input, chunk)).transpose()?;
                continue;
            } else if self.touched.keys.is_empty() {
                if !self.forget(cx.now) {
                    return Ok(Step::Done);
                }
            } else {
                self.finish(out)?;
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
            side.partners.iter_mut().for_each(|partners| partners.flush(&self.index, &mut batch));
        }
        cx.write(self.operator, batch)?;
        Ok(Step::Done)
    }

    fn state_size(&self) -> StateSize {
        let kept = self.sides.iter().flat_map(|side| std::iter::once(&side.rows).chain(&side.partners));
        StateSize {
            keys: self.sides.iter().map(|side| side.rows.total_len()).sum(),
            bytes: self.index.key_bytes() + kept.map(Multiset::total_bytes).sum::<usize>(),
        }
    }

    fn inspect(&mut self) -> Option<&mut dyn Inspect> {
        Some(self)
    }
}
