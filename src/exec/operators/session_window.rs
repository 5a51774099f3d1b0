//! Sessions: rows of a key that are each less than a gap behind another. Every row comes out with the first and the last
//! time of its session.
//!
//! State: the rows of each key in order of time, and of its sessions the bounds. A row touches the sessions beside it and no
//! others: it joins them, or one that goes divides what it held together. When a time closes, the rows of sessions with
//! other bounds go out with the old ones taken back; where bounds stay, the new rows alone.
//!
//! With a closing, a session is over when no row can come any more that is less than the gap behind its last one. Its rows
//! are forgotten then, and, when only last rows are asked for, put out then. Its bounds are kept for another gap: a row that
//! would have joined it is late, like one whose own session would be over already. A row that falls into a session that is
//! open is not late, however far behind it is. So what was put out is what the rows that were not late are together.
//!
//! Stored as map state `rows`: the key, then the time in order and the row, with its count; and `closed`: the key, then the
//! bounds of a session that is over, once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{self, Excluded, Included, Unbounded};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, SchemaRef};

use super::rows::{TIME_BYTES, encoded_time, time_of, to_chunks};
use super::{Context, Operator, StateSize, Step};
use crate::exec::event_time::{divide_by, values};
use crate::exec::plan::{Closing, SessionSpec};
use crate::state::{Encoded, EncodedRows, KeyIndex, Multiset, RowCodec, Slot, WriteBatch};
use crate::types::{CHUNK_ROWS_MAX, Chunk, Error, OperatorId, Result, SqlState, Time, Watermark};

const SLOT_NAME: &str = "rows";
const CLOSED_SLOT_NAME: &str = "closed";

/// The operator on one worker.
#[derive(Debug)]
pub struct SessionWindow {
    operator: OperatorId,
    schema: SchemaRef,
    spec: SessionSpec,
    zone: Option<Arc<str>>,
    key_codec: RowCodec,
    row_codec: RowCodec,
    index: KeyIndex,
    rows: Multiset,
    sessions: Vec<Sessions>,
    /// Sessions that are over, and that a row to come may still be less than a gap from.
    closed: Multiset,
    pending: VecDeque<Chunk>,
    gathered: Changes,
    applying: Option<Applying>,
    shown: Shown,
    closes: Option<Closes>,
}

/// First and last time of a session.
type Bounds = (i64, i64);

/// What of event time a closing follows.
#[derive(Debug)]
struct Closes {
    last_only: bool,
    /// Sessions by their last times, with their first.
    open: BTreeSet<(i64, Slot, i64)>,
    /// Those that are over and still kept, likewise.
    over: BTreeSet<(i64, Slot, i64)>,
}

/// The sessions of one key that are kept: last times by first.
#[derive(Debug, Default)]
struct Sessions(BTreeMap<i64, i64>);

/// What became of the sessions of a key.
#[derive(Debug, Default)]
struct Altered {
    gone: BTreeSet<Bounds>,
    new: BTreeSet<Bounds>,
}

impl Sessions {
    /// The session that a time lies in.
    fn holding(&self, at: i64) -> Option<Bounds> {
        let (start, last) = self.0.range(..=at).next_back()?;
        (at <= *last).then_some((*start, *last))
    }

    fn put(&mut self, (start, last): Bounds, altered: &mut Altered) {
        self.0.insert(start, last);
        if !altered.gone.remove(&(start, last)) {
            altered.new.insert((start, last));
        }
    }

    fn take(&mut self, (start, last): Bounds, altered: &mut Altered) {
        self.0.remove(&start);
        if !altered.new.remove(&(start, last)) {
            altered.gone.insert((start, last));
        }
    }

    /// There is a row of that time.
    fn add(&mut self, at: i64, gap: i64, altered: &mut Altered) {
        let of = |(start, last): (&i64, &i64)| (*start, *last);
        let (mut start, mut last) = (at, at);
        if let Some(before) = self.0.range(..=at).next_back().map(of)
            && at < before.1.saturating_add(gap)
        {
            if at <= before.1 {
                return;
            }
            self.take(before, altered);
            start = before.0;
        }
        if let Some(behind) = self.0.range(at..).next().map(of)
            && behind.0 < at.saturating_add(gap)
        {
            self.take(behind, altered);
            last = behind.1;
        }
        self.put((start, last), altered);
    }

    /// There is no row of that time any more in a session; `before` and `behind` are the times next to it there.
    fn remove(&mut self, of: Bounds, before: Option<i64>, behind: Option<i64>, gap: i64, altered: &mut Altered) {
        if let (Some(before), Some(behind)) = (before, behind)
            && behind < before.saturating_add(gap)
        {
            return;
        }
        self.take(of, altered);
        if let Some(before) = before {
            self.put((of.0, before), altered);
        }
        if let Some(behind) = behind {
            self.put((behind, of.1), altered);
        }
    }
}

/// Changes of entries.
#[derive(Debug, Default)]
struct Changes {
    /// Entries, one behind the other.
    bytes: Vec<u8>,
    all: Vec<Change>,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    slot: Slot,
    /// Where its entry is.
    start: usize,
    end: usize,
    diff: i64,
}

impl Changes {
    fn push(&mut self, slot: Slot, at: i64, row: &[u8], diff: i64) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&encoded_time(at));
        self.bytes.extend_from_slice(row);
        self.all.push(Change { slot, start, end: self.bytes.len(), diff });
    }

    fn entry(&self, change: &Change) -> &[u8] {
        &self.bytes[change.start..change.end]
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        self.all.sort_unstable_by(|left, right| {
            let entry = |change: &Change| &bytes[change.start..change.end];
            left.slot.cmp(&right.slot).then_with(|| entry(left).cmp(entry(right)))
        });
    }
}

/// Changes in order of slots and entries, that are being applied.
#[derive(Debug)]
struct Applying {
    changes: Changes,
    next: usize,
    /// Those of one slot, each entry once.
    of_slot: Vec<Change>,
}

/// Rows that are put out, with the bounds of their sessions.
#[derive(Debug, Default)]
struct Shown {
    rows: EncodedRows,
    starts: Vec<i64>,
    lasts: Vec<i64>,
    diffs: Vec<i64>,
}

impl Shown {
    fn push(&mut self, entry: &[u8], (start, last): Bounds, diff: i64) {
        if diff != 0 {
            self.rows.push_once(&entry[TIME_BYTES..]);
            self.starts.push(start);
            self.lasts.push(last);
            self.diffs.push(diff);
        }
    }
}

/// The bounds of a session that is over, as they are kept.
fn marker((start, last): Bounds) -> [u8; 2 * TIME_BYTES] {
    let mut marker = [0; 2 * TIME_BYTES];
    marker[..TIME_BYTES].copy_from_slice(&encoded_time(start));
    marker[TIME_BYTES..].copy_from_slice(&encoded_time(last));
    marker
}

fn marked(marker: &[u8]) -> Bounds {
    (time_of(marker), time_of(&marker[TIME_BYTES..]))
}

/// The entries of a slot with times from one to another.
fn between(rows: &Multiset, slot: Slot, from: i64, to: i64) -> impl DoubleEndedIterator<Item = (&[u8], i64)> {
    let end = to.checked_add(1).map(encoded_time);
    let end: Bound<&[u8]> = end.as_ref().map_or(Unbounded, |end| Excluded(end.as_slice()));
    rows.range(slot, Included(&encoded_time(from)), end)
}

impl SessionWindow {
    /// Sessions of rows of `input`. With `track`, changes are remembered for barriers.
    ///
    /// # Errors
    /// 0A000 when a type cannot be kept.
    pub fn new(
        operator: OperatorId,
        input: &SchemaRef,
        schema: SchemaRef,
        spec: &SessionSpec,
        track: bool,
    ) -> Result<SessionWindow> {
        let zone = match input.field(spec.time).data_type() {
            DataType::Timestamp(_, zone) => zone.clone(),
            other => return Err(Error::internal(format!("sessions by a {other}"))),
        };
        Ok(SessionWindow {
            operator,
            schema,
            spec: spec.clone(),
            zone,
            key_codec: RowCodec::for_keys(spec.keys.iter().map(|key| input.field(*key).data_type()))?,
            row_codec: RowCodec::for_rows(input.fields().iter().map(|field| field.data_type()))?,
            index: KeyIndex::new(false),
            rows: Multiset::new(SLOT_NAME.to_owned(), track),
            sessions: Vec::new(),
            closed: Multiset::new(CLOSED_SLOT_NAME.to_owned(), track),
            pending: VecDeque::new(),
            gathered: Changes::default(),
            applying: None,
            shown: Shown::default(),
            closes: None,
        })
    }

    /// The same over rows that are only added, by whose event time sessions are over; without one as it is.
    #[must_use]
    pub fn closing(mut self, closing: Option<&Closing>) -> SessionWindow {
        self.closes = closing.map(|closing| Closes {
            last_only: closing.last_only,
            open: BTreeSet::new(),
            over: BTreeSet::new(),
        });
        self
    }

    fn last_only(&self) -> bool {
        self.closes.as_ref().is_some_and(|closes| closes.last_only)
    }

    fn grow(&mut self) {
        let slots = self.index.slots();
        self.rows.resize(slots);
        self.closed.resize(slots);
        if self.sessions.len() < slots {
            self.sessions.resize_with(slots, Sessions::default);
        }
    }

    fn encoded_keys(&self, chunk: &Chunk) -> Result<Encoded> {
        let keys: Vec<ArrayRef> = self.spec.keys.iter().map(|key| Arc::clone(chunk.column(*key))).collect();
        self.key_codec.encode(&keys, chunk.rows())
    }

    /// What of a chunk is not late; the rest is told.
    fn on_time(&self, chunk: Chunk, cx: &mut Context<'_>) -> Result<Option<Chunk>> {
        if self.closes.is_none() || cx.before[0] == Watermark::NONE {
            return Ok(Some(chunk));
        }
        let keys = self.encoded_keys(&chunk)?;
        let times = values(chunk.column(self.spec.time))?;
        let is_late = |row| times.is_valid(row) && self.is_late(keys.row(row), times.value(row), cx.before[0]);
        let late: BooleanArray = (0..chunk.rows()).map(|row| Some(is_late(row))).collect();
        let (on_time, late) = divide_by(chunk, &late)?;
        cx.late.extend(late.map(|late| (0, late)));
        Ok(on_time)
    }

    /// True when what a row would belong to is over, by what is kept before its time.
    fn is_late(&self, key: &[u8], at: i64, before: Watermark) -> bool {
        let Some(slot) = self.index.get(key) else { return before.is_past(at) };
        if self.sessions[slot as usize].holding(at).is_some() {
            return false;
        }
        let gap = self.spec.gap;
        let joins = |(start, last): Bounds| at > start.saturating_sub(gap) && at < last.saturating_add(gap);
        before.is_past(at) || self.closed.entries(slot).any(|(marker, _)| joins(marked(marker)))
    }

    /// Takes in what a chunk changes. A row without a time is in no session.
    fn gather(&mut self, chunk: &Chunk) -> Result<()> {
        let keys = self.encoded_keys(chunk)?;
        let rows = self.row_codec.encode(chunk.batch().columns(), chunk.rows())?;
        let times = values(chunk.column(self.spec.time))?;
        for row in (0..chunk.rows()).filter(|row| times.is_valid(*row)) {
            let (slot, _) = self.index.insert(keys.row(row));
            self.gathered.push(slot, times.value(row), rows.row(row), chunk.diff(row));
        }
        self.grow();
        Ok(())
    }

    /// Applies the changes of the next key.
    fn apply_next(&mut self, applying: &mut Applying) -> Result<()> {
        let Applying { changes, next, of_slot } = applying;
        let rest = &changes.all[*next..];
        let Some(slot) = rest.first().map(|change| change.slot) else { return Ok(()) };
        let count = rest.iter().take_while(|change| change.slot == slot).count();
        *next += count;
        of_slot.clear();
        for change in &rest[..count] {
            match of_slot.last_mut() {
                Some(last) if changes.entry(last) == changes.entry(change) => last.diff += change.diff,
                _ => of_slot.push(*change),
            }
        }
        of_slot.retain(|change| change.diff != 0);
        let altered = self.alter(slot, changes, of_slot)?;
        if let Some(closes) = &mut self.closes {
            altered.gone.iter().for_each(|(start, last)| {
                closes.open.remove(&(*last, slot, *start));
            });
            closes.open.extend(altered.new.iter().map(|(start, last)| (*last, slot, *start)));
        }
        if !self.last_only() {
            self.show(slot, changes, of_slot, &altered);
        }
        self.drop_empty(slot);
        Ok(())
    }

    /// Brings rows and sessions of a key to what they are now.
    fn alter(&mut self, slot: Slot, changes: &Changes, of_slot: &[Change]) -> Result<Altered> {
        let SessionWindow { index, rows, sessions, spec: SessionSpec { gap, .. }, .. } = self;
        let sessions = &mut sessions[slot as usize];
        let mut altered = Altered::default();
        for change in of_slot {
            let entry = changes.entry(change);
            let at = time_of(entry);
            let (_, left) = rows.add(index, slot, entry, change.diff);
            if left < 0 {
                return Err(Error::internal("more rows of a session were retracted than inserted"));
            }
            if change.diff > 0 {
                sessions.add(at, *gap, &mut altered);
            } else if left == 0 && between(rows, slot, at, at).next().is_none() {
                let (start, last) =
                    sessions.holding(at).ok_or_else(|| Error::internal("a row was in none of its key's sessions"))?;
                let before = (at > start).then(|| between(rows, slot, start, at - 1).next_back()).flatten();
                let behind = (at < last).then(|| between(rows, slot, at + 1, last).next()).flatten();
                let time = |found: Option<(&[u8], i64)>| found.map(|(entry, _)| time_of(entry));
                sessions.remove((start, last), time(before), time(behind), *gap, &mut altered);
            }
        }
        Ok(altered)
    }

    /// Puts out the difference between what a key showed and what it shows now.
    fn show(&mut self, slot: Slot, changes: &Changes, of_slot: &[Change], altered: &Altered) {
        let SessionWindow { rows, sessions, shown, .. } = self;
        let sessions = &sessions[slot as usize];
        for bounds @ (start, last) in altered.gone.iter().copied() {
            let from = of_slot.partition_point(|change| time_of(changes.entry(change)) < start);
            let to = of_slot.partition_point(|change| time_of(changes.entry(change)) <= last);
            let mut changed = of_slot[from..to].iter().peekable();
            for (entry, count) in between(rows, slot, start, last) {
                // An entry that is not there any more was there so often.
                while let Some(change) = changed.next_if(|change| changes.entry(change) < entry) {
                    shown.push(changes.entry(change), bounds, change.diff);
                }
                let diff = changed.next_if(|change| changes.entry(change) == entry).map_or(0, |change| change.diff);
                shown.push(entry, bounds, diff - count);
            }
            changed.for_each(|change| shown.push(changes.entry(change), bounds, change.diff));
        }
        for bounds @ (start, last) in altered.new.iter().copied() {
            between(rows, slot, start, last).for_each(|(entry, count)| shown.push(entry, bounds, count));
        }
        for change in of_slot {
            let entry = changes.entry(change);
            if let Some(bounds) = sessions.holding(time_of(entry)).filter(|bounds| !altered.new.contains(bounds)) {
                shown.push(entry, bounds, change.diff);
            }
        }
    }

    fn put_out(&mut self, out: &mut Vec<Chunk>) -> Result<()> {
        let Shown { rows, starts, lasts, diffs } = std::mem::take(&mut self.shown);
        if rows.is_empty() {
            return Ok(());
        }
        let mut columns = self.row_codec.decode(rows.iter())?;
        for bound in [starts, lasts] {
            columns.push(Arc::new(TimestampMicrosecondArray::from(bound).with_timezone_opt(self.zone.clone())));
        }
        out.extend(to_chunks(&self.schema, columns, diffs)?);
        Ok(())
    }

    /// Forgets some sessions that are over. False when there is none.
    fn close_sessions(&mut self, now: Watermark, out: &mut Vec<Chunk>) -> Result<bool> {
        let SessionWindow { index, rows, sessions, closed, shown, closes: Some(closes), spec, .. } = self else {
            return Ok(false);
        };
        let mut emptied = Vec::new();
        let mut forgotten = 0;
        while forgotten < CHUNK_ROWS_MAX
            && let Some((last, slot, start)) = closes.open.first().copied()
            && now.is_past(last)
        {
            closes.open.pop_first();
            sessions[slot as usize].0.remove(&start);
            let entries: Vec<(Box<[u8]>, i64)> =
                between(rows, slot, start, last).map(|(entry, count)| (entry.into(), count)).collect();
            for (entry, count) in &entries {
                if closes.last_only {
                    shown.push(entry, (start, last), *count);
                }
                rows.add(index, slot, entry, -count);
            }
            forgotten += entries.len();
            closed.add(index, slot, &marker((start, last)), 1);
            closes.over.insert((last, slot, start));
        }
        while forgotten < CHUNK_ROWS_MAX
            && let Some((last, slot, start)) = closes.over.first().copied()
            && now.is_past(last.saturating_add(spec.gap - 1))
        {
            closes.over.pop_first();
            closed.add(index, slot, &marker((start, last)), -1);
            emptied.push(slot);
            forgotten += 1;
        }
        emptied.into_iter().for_each(|slot| self.drop_empty(slot));
        self.put_out(out)?;
        Ok(forgotten > 0)
    }

    fn drop_empty(&mut self, slot: Slot) {
        if self.rows.len(slot) == 0 && self.closed.len(slot) == 0 {
            self.index.remove(slot);
        }
    }
}

impl Operator for SessionWindow {
    fn open(&mut self, cx: &mut Context<'_>) -> Result<()> {
        for slot_name in [SLOT_NAME, CLOSED_SLOT_NAME] {
            self.index.load_map_keys(slot_name, self.operator, cx.backend)?;
        }
        self.grow();
        self.rows.load(&self.index, self.operator, cx.backend)?;
        self.closed.load(&self.index, self.operator, cx.backend)?;
        let damaged = || Error::new(SqlState::DataCorrupted, "a stored row of a session is damaged");
        for slot in (0..self.index.slots()).map(|slot| slot as Slot) {
            let sessions = &mut self.sessions[slot as usize].0;
            for (entry, _) in self.rows.entries(slot) {
                let at = (entry.len() >= TIME_BYTES).then(|| time_of(entry)).ok_or_else(damaged)?;
                let session = sessions.last_key_value().map(|(start, last)| (*start, *last));
                let start = session.filter(|(_, last)| at < last.saturating_add(self.spec.gap)).map(|(start, _)| start);
                sessions.insert(start.unwrap_or(at), at);
            }
            if self.closed.entries(slot).any(|(marker, _)| marker.len() != 2 * TIME_BYTES) {
                return Err(damaged());
            }
            if let Some(closes) = &mut self.closes {
                closes.open.extend(sessions.iter().map(|(start, last)| (*last, slot, *start)));
                let over = self.closed.entries(slot).map(|(marker, _)| marked(marker));
                closes.over.extend(over.map(|(start, last)| (last, slot, start)));
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
            if let Some(chunk) = self.on_time(chunk, cx)? {
                self.gather(&chunk)?;
            }
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        if !self.gathered.all.is_empty() {
            let mut changes = std::mem::take(&mut self.gathered);
            changes.sort();
            self.applying = Some(Applying { changes, next: 0, of_slot: Vec::new() });
        }
        while let Some(mut applying) = self.applying.take() {
            self.apply_next(&mut applying)?;
            let done = applying.next >= applying.changes.all.len();
            self.applying = (!done).then_some(applying);
            if done || self.shown.rows.len() >= CHUNK_ROWS_MAX {
                self.put_out(out)?;
            }
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        while self.close_sessions(cx.now[0], out)? {
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        Ok(Step::Done)
    }

    fn barrier(&mut self, cx: &mut Context<'_>) -> Result<Step> {
        let mut batch = WriteBatch::default();
        self.rows.flush(&self.index, &mut batch);
        self.closed.flush(&self.index, &mut batch);
        cx.write(self.operator, batch)?;
        Ok(Step::Done)
    }

    fn state_size(&self) -> StateSize {
        StateSize {
            keys: self.rows.total_len() + self.closed.total_len(),
            bytes: self.index.key_bytes() + self.rows.total_bytes() + self.closed.total_bytes(),
        }
    }
}
