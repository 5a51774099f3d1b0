//! What a relation was before each of its last times: for reads of the past, and for those who follow its changes.
//!
//! A closed time leaves an *undo batch*: what each changed key was before. Batches stay
//!
//! - [`RETAIN_MILLIS`], or as long as the relation's `retain_history` says,
//! - while a reader holds their time, up to [`HISTORY_BYTES_MAX`],
//! - while somebody who follows has not had them, up to [`FOLLOWED_BYTES_MAX`]: one who is slower is told so.
//!
//! With `retain_history` they are state: value `[u8 was there][i64 count][encoded columns outside of the key]` of the map
//! `history`, by encoded key and time (`u64` BE); the oldest readable time stands in the operator state `history`.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Instant;

use arrow::array::RecordBatch;

use super::rows::{Entry, Key, Rows, Value};
use super::{Arrangement, ROWS_PER_LOOK};
use crate::exec::operators::{Context, Step};
use crate::state::{WriteBatch, broadcast_key, get_operator_state, map_key, split_map_key};
use crate::types::{Error, KeyGroup, OperatorId, Result, SqlState, Time};

/// How long the past stays readable without a hold.
const RETAIN_MILLIS: u64 = 1_000;
/// How many bytes of the past are kept for readers that hold it, and by `retain_history`.
const HISTORY_BYTES_MAX: usize = 256 << 20;
/// How many bytes of the past are kept for those who follow.
const FOLLOWED_BYTES_MAX: usize = 32 << 20;
/// Entries freed, or given to the store, in one go.
const ENTRIES_PER_STEP: usize = 8_192;

const SLOT_NAME: &str = "history";

/// What one key was before a time.
#[derive(Debug)]
struct Undo {
    group: KeyGroup,
    key: Key,
    before: Option<Entry>,
}

/// The entries of one key group in a batch.
#[derive(Debug)]
struct UndoGroup {
    group: KeyGroup,
    start: usize,
    end: usize,
    /// Where they stand in key order, once somebody asked: most batches are never looked into by key.
    order: OnceCell<Box<[u32]>>,
}

impl UndoGroup {
    fn order(&self, entries: &[Undo]) -> &[u32] {
        self.order.get_or_init(|| {
            let mut order: Box<[u32]> = (self.start as u32..self.end as u32).collect();
            order.sort_unstable_by(|a, b| entries[*a as usize].key.cmp(&entries[*b as usize].key));
            order
        })
    }
}

/// What some keys were before a time, in order of their groups.
#[derive(Debug)]
struct UndoBatch {
    time: Time,
    entries: Vec<Undo>,
    groups: Vec<UndoGroup>,
    /// What each was at the time; empty when nobody followed then.
    after: Vec<Option<Entry>>,
    keeps_after: bool,
    bytes: usize,
    stored: bool,
}

impl UndoBatch {
    fn new(time: Time, keeps_after: bool) -> UndoBatch {
        let (entries, groups, after) = (Vec::new(), Vec::new(), Vec::new());
        UndoBatch { time, entries, groups, after, keeps_after, bytes: 0, stored: false }
    }

    /// Groups come one after another.
    fn push(&mut self, undo: Undo) {
        let end = self.entries.len() + 1;
        match self.groups.last_mut().filter(|last| last.group == undo.group) {
            Some(last) => last.end = end,
            None => {
                let order = OnceCell::new();
                self.groups.push(UndoGroup { group: undo.group, start: end - 1, end, order });
            }
        }
        self.entries.push(undo);
    }

    /// The entries of a group in key order, as places.
    fn ordered(&self, group: KeyGroup) -> &[u32] {
        match self.groups.binary_search_by_key(&group, |undone| undone.group) {
            Ok(at) => self.groups[at].order(&self.entries),
            Err(_) => &[],
        }
    }

    fn find(&self, group: KeyGroup, key: &[u8]) -> Option<&Undo> {
        let order = self.ordered(group);
        let at = order.binary_search_by(|place| (*self.entries[*place as usize].key).cmp(key)).ok()?;
        self.entries.get(order[at] as usize)
    }
}

/// The last times of an arrangement.
#[derive(Debug, Default)]
pub(super) struct History {
    batches: VecDeque<UndoBatch>,
    bytes: usize,
    trash: Vec<Vec<Undo>>,
    /// The oldest time that can be read.
    since: Time,
    /// The relation's `retain_history`; 0: none.
    retain_millis: u64,
    followed: bool,
    /// Stored entries that were given up since the last barrier.
    given_up: Vec<(Key, Time)>,
    stored_since: Option<Time>,
}

/// Who still needs the past, and of which time at least.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    /// Readers.
    pub(crate) held: Option<Time>,
    /// Those who follow.
    pub(crate) followed: Option<Time>,
}

/// How a change reads at the edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowKind {
    /// A new row.
    Insert,
    /// The old row of a key that has a new one.
    UpdateBefore,
    /// The new row of that key.
    UpdateAfter,
    /// A row that is gone.
    Delete,
}

impl RowKind {
    /// The name that clients see.
    pub(crate) fn name(self) -> &'static str {
        match self {
            RowKind::Insert => "insert",
            RowKind::UpdateBefore => "update_before",
            RowKind::UpdateAfter => "update_after",
            RowKind::Delete => "delete",
        }
    }
}

/// The change of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowChange {
    pub(crate) time: Time,
    pub(crate) diff: i64,
    pub(crate) kind: RowKind,
}

/// A place in the history: the entry to begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChangePlace {
    time: Time,
    entry: usize,
}

/// Changes in order of time.
#[derive(Debug)]
pub(crate) struct Changes {
    /// One row for each change.
    pub(crate) rows: RecordBatch,
    pub(crate) changes: Vec<RowChange>,
    /// Where more follow.
    pub(crate) next: Option<ChangePlace>,
}

impl History {
    pub(super) fn since(&self) -> Time {
        self.since
    }

    /// The time of the newest batch, which may not be whole.
    pub(super) fn newest(&self) -> Time {
        self.batches.back().map_or(Time::ZERO, |batch| batch.time)
    }

    /// Begins the batch of a time, unless it has begun.
    pub(super) fn begin(&mut self, time: Time) {
        if self.batches.back().is_none_or(|batch| batch.time < time) {
            self.batches.push_back(UndoBatch::new(time, self.keeps_after()));
        }
    }

    /// True when what keys become is kept too.
    pub(super) fn keeps_after(&self) -> bool {
        self.followed || self.retain_millis > 0
    }

    /// Notes what a key was before the time that was begun, and what it is now. Key groups come in order, and all keys
    /// of one before anybody reads.
    pub(super) fn note(&mut self, group: KeyGroup, key: &[u8], before: Option<Entry>, after: Option<Entry>) {
        let Some(batch) = self.batches.back_mut() else { return };
        let size = |entry: &Option<Entry>| entry.as_ref().map_or(0, |entry| entry.value.len());
        let bytes = key.len() + size(&before) + size(&after) + 64;
        batch.bytes += bytes;
        self.bytes += bytes;
        batch.push(Undo { group, key: Key::from_slice(key), before });
        if batch.keeps_after {
            batch.after.push(after);
        }
    }

    /// Gives up the past before `newest` that nobody needs; frees a little of what was given up before.
    fn forget(&mut self, newest: Time, needs: Needs) {
        self.followed = needs.followed.is_some();
        if let Some(entries) = self.trash.last_mut() {
            entries.truncate(entries.len().saturating_sub(ENTRIES_PER_STEP));
            if entries.is_empty() {
                self.trash.pop();
            }
        }
        let retained = newest.as_millis().saturating_sub(self.retain_millis.max(RETAIN_MILLIS));
        let wanted = needs.held.map_or(retained, |hold| hold.as_millis().min(retained));
        while let Some(batch) = self.batches.front() {
            let followed = needs.followed.is_some_and(|time| batch.time > time) && self.bytes <= FOLLOWED_BYTES_MAX;
            let needed = batch.time.as_millis() > wanted || followed;
            let over = self.bytes > HISTORY_BYTES_MAX && batch.time < newest;
            if needed && !over {
                break;
            }
            let Some(batch) = self.batches.pop_front() else { break };
            self.bytes -= batch.bytes;
            self.since = batch.time;
            if batch.stored {
                self.given_up.extend(batch.entries.iter().map(|undo| (undo.key.clone(), batch.time)));
            }
            self.trash.push(batch.entries);
        }
    }

    /// What a key was at `time`, if it changed since.
    pub(super) fn undone(&self, time: Time, group: KeyGroup, key: &[u8]) -> Option<Option<&Entry>> {
        let mut later = self.batches.iter().filter(|batch| batch.time > time);
        later.find_map(|batch| batch.find(group, key)).map(|undo| undo.before.as_ref())
    }

    /// What the keys of a group, behind a key, were at `time`, if they changed since.
    fn overlay<'a>(
        &'a self,
        time: Time,
        group: KeyGroup,
        after: Option<&[u8]>,
    ) -> BTreeMap<&'a [u8], Option<&'a Entry>> {
        let mut overlay: BTreeMap<&'a [u8], Option<&'a Entry>> = BTreeMap::new();
        // From the newest to the oldest, so that what stands is the first change after `time`.
        for batch in self.batches.iter().rev().take_while(|batch| batch.time > time) {
            let order = batch.ordered(group);
            let is_before = |place: &u32| after.is_some_and(|after| *batch.entries[*place as usize].key <= *after);
            for place in &order[order.partition_point(is_before)..] {
                let undo = &batch.entries[*place as usize];
                overlay.insert(&undo.key, undo.before.as_ref());
            }
        }
        overlay
    }

    /// Gives the store what it does not have.
    fn store(&mut self, operator: OperatorId, cx: &mut Context<'_>) -> Result<Step> {
        if self.retain_millis == 0 {
            return Ok(Step::Done);
        }
        while !self.given_up.is_empty() {
            let from = self.given_up.len().saturating_sub(ENTRIES_PER_STEP);
            let mut writes = WriteBatch::default();
            for (key, time) in self.given_up.drain(from..) {
                writes.erase(map_key(SLOT_NAME, &key, &time.as_millis().to_be_bytes()));
            }
            cx.write(operator, writes)?;
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        for batch in self.batches.iter_mut().filter(|batch| !batch.stored) {
            let mut writes = WriteBatch::default();
            for Undo { key, before, .. } in &batch.entries {
                let mut value = vec![u8::from(before.is_some())];
                if let Some(entry) = before {
                    value.extend_from_slice(&entry.count.to_le_bytes());
                    value.extend_from_slice(&entry.value);
                }
                writes.put(map_key(SLOT_NAME, key, &batch.time.as_millis().to_be_bytes()), value);
            }
            cx.write(operator, writes)?;
            batch.stored = true;
            if cx.expired() {
                return Ok(Step::Again);
            }
        }
        if self.stored_since != Some(self.since) {
            let mut writes = WriteBatch::default();
            writes.put(broadcast_key(SLOT_NAME)?, self.since.as_millis().to_le_bytes().to_vec());
            cx.write(operator, writes)?;
            self.stored_since = Some(self.since);
        }
        Ok(Step::Done)
    }

    /// Takes in what the store has.
    fn open(&mut self, operator: OperatorId, groups: &[Rows], cx: &mut Context<'_>) -> Result<()> {
        let damaged = || Error::new(SqlState::DataCorrupted, "a stored change is damaged");
        if self.retain_millis == 0 {
            return Ok(());
        }
        let mut found: BTreeMap<Time, Vec<Undo>> = BTreeMap::new();
        cx.backend.scan(operator, &[], &mut |key, value| {
            let Some((key, time)) = split_map_key(SLOT_NAME, key)? else { return Ok(()) };
            let time = Time::from_millis(u64::from_be_bytes(time.try_into().map_err(|_| damaged())?));
            let (there, entry) = value.split_first().ok_or_else(damaged)?;
            let before = match there {
                0 => None,
                _ => {
                    let (count, value) = entry.split_first_chunk::<8>().ok_or_else(damaged)?;
                    Some(Entry { value: Value::from_slice(value), count: i64::from_le_bytes(*count) })
                }
            };
            let undo = Undo { group: KeyGroup::of(key), key: Key::from_slice(key), before };
            found.entry(time).or_default().push(undo);
            Ok(())
        })?;
        // What a key became is what it was before its next change, or what it is.
        let mut next: HashMap<Key, Option<Entry>> = HashMap::new();
        for (time, mut entries) in found.into_iter().rev() {
            entries.sort_unstable_by(|a, b| (a.group, &a.key).cmp(&(b.group, &b.key)));
            let mut batch = UndoBatch::new(time, true);
            for undo in &entries {
                let after = match next.insert(undo.key.clone(), undo.before.clone()) {
                    Some(after) => after,
                    None => groups[undo.group.index()].get(&undo.key).cloned(),
                };
                batch.after.push(after);
                batch.bytes += undo.key.len() + 2 * undo.before.as_ref().map_or(0, |entry| entry.value.len()) + 64;
            }
            entries.into_iter().for_each(|undo| batch.push(undo));
            batch.stored = true;
            self.bytes += batch.bytes;
            self.batches.push_front(batch);
        }
        if let Some(since) = get_operator_state(&*cx.backend, operator, format!("{SLOT_NAME}|").as_bytes())? {
            self.since = Time::from_millis(u64::from_le_bytes(since.as_slice().try_into().map_err(|_| damaged())?));
            self.stored_since = Some(self.since);
        }
        Ok(())
    }
}

impl Arrangement {
    /// Keeps the past for so long, over restarts too.
    pub(crate) fn retaining(mut self, millis: u64) -> Arrangement {
        self.history.retain_millis = millis;
        self
    }

    /// Gives up the past that nobody needs; frees a little of what was given up before.
    pub(crate) fn forget(&mut self, needs: Needs) {
        self.history.forget(self.upper.previous().unwrap_or(Time::ZERO), needs);
        self.indexes.forget(self.history.since);
    }

    /// True when given-up history still waits to be freed.
    pub(crate) fn has_trash(&self) -> bool {
        !self.history.trash.is_empty()
    }

    pub(super) fn store_history(&mut self, cx: &mut Context<'_>) -> Result<Step> {
        self.history.store(self.operator, cx)
    }

    pub(super) fn open_history(&mut self, cx: &mut Context<'_>) -> Result<()> {
        self.history.open(self.operator, &self.groups, cx)
    }

    /// The changes of the closed times behind `after`, up to `upto`, from a place on, about `rows_max` at most.
    ///
    /// # Errors
    /// 72000 when they are no longer kept.
    pub(crate) fn changes(
        &self,
        (after, upto): (Time, Time),
        place: Option<ChangePlace>,
        rows_max: usize,
        deadline: Instant,
        projection: &[usize],
    ) -> Result<Changes> {
        let behind = place.and_then(|place| place.time.previous()).unwrap_or(after);
        self.check_readable(behind)?;
        let batches = &self.history.batches;
        let first = batches.partition_point(|batch| batch.time <= behind);
        let mut found: Vec<(&[u8], &Entry)> = Vec::new();
        let mut changes = Vec::new();
        let mut next = None;
        'batches: for (at, batch) in batches.iter().enumerate().skip(first) {
            if batch.time > upto {
                break;
            }
            let from = place.filter(|place| place.time == batch.time).map_or(0, |place| place.entry);
            for (entry, undo) in batch.entries.iter().enumerate().skip(from) {
                let look = !found.is_empty() && entry % ROWS_PER_LOOK == 0;
                if found.len() >= rows_max || (look && Instant::now() >= deadline) {
                    next = Some(ChangePlace { time: batch.time, entry });
                    break 'batches;
                }
                let after = match batch.after.get(entry) {
                    Some(after) => after.as_ref(),
                    None => {
                        let mut later = batches.iter().skip(at + 1);
                        match later.find_map(|later| later.find(undo.group, &undo.key)) {
                            Some(later) => later.before.as_ref(),
                            None => self.groups[undo.group.index()].get(&undo.key),
                        }
                    }
                };
                let mut add = |entry, diff, kind| {
                    found.push((&undo.key, entry));
                    changes.push(RowChange { time: batch.time, diff, kind });
                };
                match (undo.before.as_ref(), after) {
                    (None, None) => {}
                    (None, Some(after)) => add(after, after.count, RowKind::Insert),
                    (Some(before), None) => add(before, -before.count, RowKind::Delete),
                    (Some(before), Some(after)) if before.value == after.value => {
                        match after.count.cmp(&before.count) {
                            Ordering::Equal => {}
                            Ordering::Greater => add(after, after.count - before.count, RowKind::Insert),
                            Ordering::Less => add(after, after.count - before.count, RowKind::Delete),
                        }
                    }
                    (Some(before), Some(after)) => {
                        add(before, -before.count, RowKind::UpdateBefore);
                        add(after, after.count, RowKind::UpdateAfter);
                    }
                }
            }
        }
        Ok(Changes { rows: self.layout.decode_each(&found, projection)?, changes, next })
    }

    pub(super) fn check_readable(&self, time: Time) -> Result<()> {
        let since = self.history.since;
        if time < since {
            return Err(Error::new(SqlState::SnapshotTooOld, "snapshot too old")
                .detail(format!("Time {time} was asked for; the oldest time that is kept is {since}."))
                .hint("Read again without a time, or read faster: the past is kept for readers up to a bound."));
        }
        Ok(())
    }

    /// A key group's rows at a time, in key order, behind a key.
    pub(super) fn rows_at<'a>(
        &'a self,
        time: Time,
        group: KeyGroup,
        after: Option<&[u8]>,
    ) -> impl Iterator<Item = (&'a [u8], &'a Entry)> {
        let mut overlay = self.history.overlay(time, group, after).into_iter().peekable();
        let mut present = self.groups[group.index()].behind(after).peekable();
        std::iter::from_fn(move || {
            loop {
                let order = match (present.peek(), overlay.peek()) {
                    (None, None) => return None,
                    (Some(_), None) => Ordering::Less,
                    (None, Some(_)) => Ordering::Greater,
                    (Some((present, _)), Some((undone, _))) => present.cmp(undone),
                };
                if order == Ordering::Less {
                    return present.next();
                }
                if order == Ordering::Equal {
                    present.next();
                }
                if let Some((key, Some(entry))) = overlay.next() {
                    return Some((key, entry));
                }
            }
        })
    }
}
