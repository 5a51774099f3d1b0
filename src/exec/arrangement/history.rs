//! How a relation's rows were a moment ago: what each changed key was before a time.
//!
//! A batch is put in key order only when a reader looks into it, group by group: most are never looked into.

use std::cell::OnceCell;
use std::collections::{BTreeMap, VecDeque};

use super::rows::{Entry, Key};
use crate::types::{KeyGroup, Time};

/// How long the past stays readable without a hold.
const RETAIN_MILLIS: u64 = 1_000;
/// How many bytes of the past are kept for readers that hold it.
const BYTES_MAX: usize = 256 << 20;
/// Entries freed in one go: freeing is work too.
const FREED_ENTRIES_MAX: usize = 8_192;

/// A key and what it was; `None`: it was not there.
pub(super) type Undone = (Key, Option<Entry>);

/// The undo batches that are kept, in order of their times.
#[derive(Default)]
pub(super) struct History {
    batches: VecDeque<UndoBatch>,
    bytes: usize,
    trash: Vec<Vec<Undone>>,
}

/// What some keys were before a time.
struct UndoBatch {
    time: Time,
    /// In order of their groups.
    groups: Vec<UndoneGroup>,
    bytes: usize,
}

struct UndoneGroup {
    group: KeyGroup,
    entries: Vec<Undone>,
    /// Places of the entries in key order.
    order: OnceCell<Box<[u32]>>,
}

impl UndoneGroup {
    fn order(&self) -> &[u32] {
        self.order.get_or_init(|| {
            let mut order: Box<[u32]> = (0..self.entries.len() as u32).collect();
            order.sort_unstable_by(|a, b| self.key(*a).cmp(self.key(*b)));
            order
        })
    }

    fn key(&self, place: u32) -> &[u8] {
        &self.entries[place as usize].0
    }

    fn find(&self, key: &[u8]) -> Option<&Undone> {
        let order = self.order();
        let at = order.binary_search_by(|place| self.key(*place).cmp(key)).ok()?;
        Some(&self.entries[order[at] as usize])
    }

    /// The entries behind a key, in key order.
    fn behind(&self, after: Option<&[u8]>) -> impl Iterator<Item = &Undone> {
        let order = self.order();
        let from = after.map_or(0, |after| order.partition_point(|place| self.key(*place) <= after));
        order[from..].iter().map(|place| &self.entries[*place as usize])
    }
}

impl UndoBatch {
    fn group(&self, group: KeyGroup) -> Option<&UndoneGroup> {
        let at = self.groups.binary_search_by_key(&group, |undone| undone.group).ok()?;
        Some(&self.groups[at])
    }
}

impl History {
    /// Begins the batch of a time, unless it is begun.
    pub(super) fn begin(&mut self, time: Time) {
        if self.batches.back().is_none_or(|batch| batch.time < time) {
            self.batches.push_back(UndoBatch { time, groups: Vec::new(), bytes: 0 });
        }
    }

    /// Adds what the keys of a group were before the time that was begun last. Groups come in their order, and once.
    pub(super) fn note(&mut self, group: KeyGroup, entries: Vec<Undone>) {
        let Some(batch) = self.batches.back_mut().filter(|_| !entries.is_empty()) else { return };
        let size = |(key, before): &Undone| key.len() + before.as_ref().map_or(0, |entry| entry.value.len()) + 64;
        let bytes: usize = entries.iter().map(size).sum();
        batch.bytes += bytes;
        self.bytes += bytes;
        batch.groups.push(UndoneGroup { group, entries, order: OnceCell::new() });
    }

    /// Gives up the past that nobody holds, of a relation whose newest time is `newest`; frees a little of what was
    /// given up before. The latest time given up, if there is one.
    pub(super) fn forget(&mut self, newest: Time, oldest_hold: Option<Time>) -> Option<Time> {
        let mut budget = FREED_ENTRIES_MAX;
        while budget > 0
            && let Some(entries) = self.trash.last_mut()
        {
            let left = entries.len().saturating_sub(budget);
            budget -= entries.len() - left;
            entries.truncate(left);
            if entries.is_empty() {
                self.trash.pop();
            }
        }
        let retained = Time::from_millis(newest.as_millis().saturating_sub(RETAIN_MILLIS));
        let wanted = oldest_hold.map_or(retained, |hold| hold.min(retained));
        let mut given_up = None;
        while let Some(batch) = self.batches.front() {
            let over = self.bytes > BYTES_MAX && batch.time < newest;
            if batch.time > wanted && !over {
                break;
            }
            let Some(batch) = self.batches.pop_front() else { break };
            self.bytes -= batch.bytes;
            given_up = Some(batch.time);
            self.trash.extend(batch.groups.into_iter().map(|undone| undone.entries));
        }
        given_up
    }

    /// True when given-up history still waits to be freed.
    pub(super) fn has_trash(&self) -> bool {
        !self.trash.is_empty()
    }

    /// What a key was at a time, if it changed after it.
    pub(super) fn at(&self, time: Time, group: KeyGroup, key: &[u8]) -> Option<Option<&Entry>> {
        let later = self.batches.iter().filter(|batch| batch.time > time);
        later.filter_map(|batch| batch.group(group)?.find(key)).map(|(_, before)| before.as_ref()).next()
    }

    /// What the keys of a group behind a key were at a time, of those that changed after it.
    pub(super) fn behind(&self, time: Time, group: KeyGroup, after: Option<&[u8]>) -> BTreeMap<&[u8], Option<&Entry>> {
        let mut undone = BTreeMap::new();
        // From the newest to the oldest, so that what stands is the first change after `time`.
        for batch in self.batches.iter().rev().take_while(|batch| batch.time > time) {
            let entries = batch.group(group).into_iter().flat_map(|undone| undone.behind(after));
            undone.extend(entries.map(|(key, before)| (key.as_slice(), before.as_ref())));
        }
        undone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::arrangement::rows::Value;

    fn entry(count: i64) -> Option<Entry> {
        Some(Entry { value: Value::new(), count })
    }

    fn keys(entries: &[(&str, Option<Entry>)]) -> Vec<Undone> {
        entries.iter().map(|(key, before)| (Key::from_slice(key.as_bytes()), before.clone())).collect()
    }

    #[test]
    fn the_first_change_after_a_time_tells_what_was() {
        let time = Time::from_millis;
        let (group, other) = (KeyGroup::new(3), KeyGroup::new(9));
        let mut history = History::default();
        history.begin(time(10));
        history.note(group, keys(&[("b", entry(1)), ("a", None)]));
        history.note(other, keys(&[("z", entry(7))]));
        history.begin(time(20));
        history.note(group, keys(&[("c", entry(5)), ("b", entry(2))]));
        let counts = |at: u64, after: Option<&str>| -> Vec<(String, Option<i64>)> {
            let behind = history.behind(time(at), group, after.map(str::as_bytes));
            let text = |key: &[u8]| String::from_utf8(key.to_vec()).expect("text");
            behind.into_iter().map(|(key, before)| (text(key), before.map(|entry| entry.count))).collect()
        };
        let named = |key: &str, count: Option<i64>| (key.to_owned(), count);
        assert_eq!(counts(5, None), [named("a", None), named("b", Some(1)), named("c", Some(5))]);
        assert_eq!(counts(5, Some("a")), [named("b", Some(1)), named("c", Some(5))]);
        assert_eq!(counts(10, None), [named("b", Some(2)), named("c", Some(5))]);
        assert!(counts(20, None).is_empty());
        let at = |at: u64, group, key: &str| history.at(time(at), group, key.as_bytes()).map(|e| e.map(|e| e.count));
        assert_eq!(at(5, group, "b"), Some(Some(1)));
        assert_eq!(at(10, group, "b"), Some(Some(2)));
        assert_eq!((at(5, group, "a"), at(10, group, "a")), (Some(None), None));
        assert_eq!((at(5, other, "z"), at(5, group, "z")), (Some(Some(7)), None));
    }

    #[test]
    fn a_hold_keeps_the_past() {
        let mut history = History::default();
        let time = Time::from_millis;
        history.begin(time(10));
        history.note(KeyGroup::new(0), keys(&[("a", None)]));
        history.begin(time(50));
        assert_eq!(history.forget(time(9_000), Some(time(5))), None);
        assert_eq!(history.forget(time(9_000), Some(time(10))), Some(time(10)));
        assert!(history.has_trash());
        assert_eq!(history.forget(time(9_000), None), Some(time(50)));
        assert!(!history.has_trash(), "freed since");
    }
}
