//! Counted values per key: the decoded form of a map table.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Instant;

use super::key_index::{KeyIndex, Slot};
use super::layout::{map_key, map_prefix, split_map_key};
use super::past::{EncodedRows, Pasts};
use super::{StateBackend, WriteBatch};
use crate::types::{Error, InspectionId, OperatorId, Result, SqlState};

type Bytes = Box<[u8]>;

/// For each slot, encoded values in order, each with a count that is never zero.
///
/// Within one time a count may go below zero, when a retraction comes before its insertion; at the
/// end of a time it may not.
#[derive(Debug)]
pub struct Multiset {
    slot_name: String,
    entries: Vec<BTreeMap<Bytes, Entry>>,
    track: bool,
    /// Entries that changed, each once as long as it is there.
    changed: Vec<(Slot, Bytes)>,
    /// Entries that the store has and that are gone, with their key.
    gone: BTreeSet<(Bytes, Bytes)>,
    /// Entries that are there, over all slots.
    live: usize,
    /// Bytes of their values and counts.
    live_bytes: usize,
    /// Reads of all entries, as they were when each began.
    pasts: Pasts,
}

#[derive(Debug)]
struct Entry {
    count: i64,
    /// It is among the changed ones.
    changed: bool,
    /// The store has it.
    stored: bool,
}

fn stored_bytes(value: &[u8]) -> usize {
    value.len() + size_of::<i64>()
}

/// Changed entries that are noted at least before those that came and went are forgotten.
const CHANGED_MIN: usize = 4_096;

impl Multiset {
    /// An empty one whose entries are stored under `slot_name`.
    pub fn new(slot_name: String, track: bool) -> Multiset {
        let (changed, gone, pasts) = (Vec::new(), BTreeSet::new(), Pasts::default());
        Multiset { slot_name, entries: Vec::new(), track, changed, gone, live: 0, live_bytes: 0, pasts }
    }

    /// Makes room for slots below `slots`.
    pub fn resize(&mut self, slots: usize) {
        if self.entries.len() < slots {
            self.entries.resize_with(slots, BTreeMap::new);
        }
    }

    /// Adds `diff` to a value's count and gives the count before and after.
    pub fn add(&mut self, index: &KeyIndex, slot: Slot, value: &[u8], diff: i64) -> (i64, i64) {
        let entries = &mut self.entries[slot as usize];
        match entries.get_mut(value) {
            Some(entry) => {
                let before = entry.count;
                self.pasts.note(i64::from(slot), value, before);
                entry.count += diff;
                let after = entry.count;
                if after == 0 {
                    let stored = entry.stored;
                    entries.remove(value);
                    self.live -= 1;
                    self.live_bytes -= stored_bytes(value);
                    if stored {
                        self.gone.insert((index.key(slot).into(), value.into()));
                    }
                } else if self.track && !entry.changed {
                    entry.changed = true;
                    self.note(slot, value.into());
                }
                (before, after)
            }
            None => {
                if diff != 0 {
                    self.pasts.note(i64::from(slot), value, 0);
                    entries.insert(value.into(), Entry { count: diff, changed: self.track, stored: false });
                    self.live += 1;
                    self.live_bytes += stored_bytes(value);
                    if self.track {
                        self.note(slot, value.into());
                    }
                }
                (0, diff)
            }
        }
    }

    /// A read of all values begins: they are given as they are now, each as often as it is there.
    pub fn begin_read(&mut self, id: InspectionId) {
        self.pasts.begin(id);
    }

    /// A read is over.
    pub fn end_read(&mut self, id: InspectionId) {
        self.pasts.end(id);
    }

    /// The next values of a read, at most about so many, and whether more may follow.
    ///
    /// # Errors
    /// 72000 when more has changed meanwhile than is kept for a reader.
    pub fn read(&mut self, id: InspectionId, rows_max: usize, deadline: Instant) -> Result<(EncodedRows, bool)> {
        let reached = self.pasts.reached(id)?;
        let first = reached.as_ref().map_or(0, |(slot, _)| usize::try_from(*slot).unwrap_or(usize::MAX));
        let behind = reached.as_ref().map_or(Bound::Unbounded, |(_, value)| Bound::Excluded(&**value));
        let rest = self.entries.iter().enumerate().skip(first);
        let live = rest.flat_map(|(slot, values)| {
            let from = if slot == first { behind } else { Bound::Unbounded };
            // Numbers of slots are of the type of slots.
            values
                .range::<[u8], _>((from, Bound::Unbounded))
                .map(move |(value, entry)| (slot as i64, &**value, entry.count))
        });
        self.pasts.page(id, live, rows_max, deadline)
    }

    fn note(&mut self, slot: Slot, value: Bytes) {
        if self.changed.len() >= CHANGED_MIN.max(2 * self.live) {
            // What came and went leaves its mark behind.
            let entries = &self.entries;
            self.changed.sort_unstable();
            self.changed.dedup();
            self.changed.retain(|(slot, value)| entries[*slot as usize].get(value).is_some_and(|entry| entry.changed));
        }
        self.changed.push((slot, value));
    }

    /// A slot's values and counts, in order of value.
    pub fn entries(&self, slot: Slot) -> impl DoubleEndedIterator<Item = (&[u8], i64)> {
        self.entries[slot as usize].iter().map(|(value, entry)| (&**value, entry.count))
    }

    /// Those of them between two bounds, the first of which is not above the second.
    pub fn range<'a>(
        &'a self,
        slot: Slot,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> impl DoubleEndedIterator<Item = (&'a [u8], i64)> + use<'a> {
        self.entries[slot as usize].range::<[u8], _>((from, to)).map(|(value, entry)| (&**value, entry.count))
    }

    /// Number of different values of a slot.
    pub fn len(&self, slot: Slot) -> usize {
        self.entries[slot as usize].len()
    }

    /// Number of entries over all slots.
    pub fn total_len(&self) -> usize {
        self.live
    }

    /// Bytes of the values and counts of all slots.
    pub fn total_bytes(&self) -> usize {
        self.live_bytes
    }

    /// A value's count; zero when it is not there.
    pub fn count(&self, slot: Slot, value: &[u8]) -> i64 {
        self.entries[slot as usize].get(value).map_or(0, |entry| entry.count)
    }

    /// Takes all values of a slot away.
    pub fn remove_all(&mut self, index: &KeyIndex, slot: Slot) {
        for (value, entry) in std::mem::take(&mut self.entries[slot as usize]) {
            self.live -= 1;
            self.live_bytes -= stored_bytes(&value);
            self.pasts.note(i64::from(slot), &value, entry.count);
            if entry.stored {
                self.gone.insert((index.key(slot).into(), value));
            }
        }
    }

    /// Forgets a slot's values; the store keeps them.
    pub fn clear(&mut self, slot: Slot) {
        let entries = &mut self.entries[slot as usize];
        self.live -= entries.len();
        self.live_bytes -= entries.keys().map(|value| stored_bytes(value)).sum::<usize>();
        entries.clear();
    }

    /// Hands the entries that changed since the last call to a batch. Entries of keys without a
    /// slot are erased.
    pub fn flush(&mut self, index: &KeyIndex, batch: &mut WriteBatch) {
        for (key, value) in std::mem::take(&mut self.gone) {
            batch.erase(map_key(&self.slot_name, &key, &value));
        }
        for (slot, value) in std::mem::take(&mut self.changed) {
            // One that stands twice, as it went and came back, is written once.
            let entry = self.entries[slot as usize].get_mut(&value).filter(|entry| entry.changed);
            let Some(entry) = entry else { continue };
            (entry.changed, entry.stored) = (false, true);
            batch.put(map_key(&self.slot_name, index.key(slot), &value), entry.count.to_le_bytes().to_vec());
        }
    }

    /// What the stored keys of a key's entries start with.
    pub fn entry_prefix(&self, key: &[u8]) -> Vec<u8> {
        map_prefix(&self.slot_name, key)
    }

    /// Takes in a stored entry of a slot, when it is one of this table.
    ///
    /// # Errors
    /// XX001 when it is not a count.
    pub fn load_entry(&mut self, slot: Slot, stored: &[u8], count: &[u8]) -> Result<()> {
        let Some((_, value)) = split_map_key(&self.slot_name, stored)? else { return Ok(()) };
        let count = count.try_into().map(i64::from_le_bytes).map_err(|_| {
            Error::new(SqlState::DataCorrupted, format!("a stored entry of {} is damaged", self.slot_name))
        })?;
        let entry = Entry { count, changed: false, stored: true };
        if self.entries[slot as usize].insert(value.into(), entry).is_none() {
            self.live += 1;
            self.live_bytes += stored_bytes(value);
        }
        Ok(())
    }

    /// Hands the entries of a slot's key that changed since the last call to a batch.
    pub fn flush_key(&mut self, slot: Slot, key: &[u8], batch: &mut WriteBatch) {
        let first: (Bytes, Bytes) = (key.into(), Bytes::default());
        let gone: Vec<(Bytes, Bytes)> =
            self.gone.range(first..).take_while(|(owner, _)| **owner == *key).cloned().collect();
        for place in gone {
            batch.erase(map_key(&self.slot_name, key, &place.1));
            self.gone.remove(&place);
        }
        for (value, entry) in self.entries[slot as usize].iter_mut().filter(|(_, entry)| entry.changed) {
            (entry.changed, entry.stored) = (false, true);
            batch.put(map_key(&self.slot_name, key, value), entry.count.to_le_bytes().to_vec());
        }
    }

    /// Bytes that a slot's entries take.
    pub fn bytes(&self, slot: Slot) -> usize {
        // A tree's node costs about as much again.
        self.entries[slot as usize].keys().map(|value| 2 * (size_of::<(Bytes, Entry)>() + value.len())).sum()
    }

    /// Takes in the stored entries of the keys of `index`.
    ///
    /// # Errors
    /// XX001 when an entry belongs to no key or is not a count.
    pub fn load(&mut self, index: &KeyIndex, operator: OperatorId, backend: &dyn StateBackend) -> Result<()> {
        self.resize(index.slots());
        let slot_name = self.slot_name.clone();
        let (entries, live, live_bytes) = (&mut self.entries, &mut self.live, &mut self.live_bytes);
        backend.scan(operator, &[], &mut |stored, count| {
            let Some((key, value)) = split_map_key(&slot_name, stored)? else { return Ok(()) };
            let damaged = || Error::new(SqlState::DataCorrupted, format!("a stored entry of {slot_name} is damaged"));
            let slot = index.get(key).ok_or_else(damaged)?;
            let count = i64::from_le_bytes(count.try_into().map_err(|_| damaged())?);
            entries[slot as usize].insert(value.into(), Entry { count, changed: false, stored: true });
            *live += 1;
            *live_bytes += stored_bytes(value);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a store has after batches, by value.
    fn stored(store: &mut BTreeMap<Vec<u8>, i64>, batch: WriteBatch) -> Vec<i64> {
        for (key, value) in batch.entries {
            match value {
                Some(value) => store.insert(key, i64::from_le_bytes(value.try_into().expect("a count"))),
                None => store.remove(&key),
            };
        }
        store.values().copied().collect()
    }

    #[test]
    fn what_came_and_went_leaves_nothing_behind() {
        let mut index = KeyIndex::new(true);
        let (slot, _) = index.insert(b"k");
        let mut values = Multiset::new("m".to_owned(), true);
        values.resize(1);
        let mut store = BTreeMap::new();
        let mut flush = |values: &mut Multiset| {
            let mut batch = WriteBatch::default();
            values.flush(&index, &mut batch);
            let written = batch.entries.len();
            (written, stored(&mut store, batch))
        };
        values.add(&index, slot, b"a", 2);
        values.add(&index, slot, b"b", 1);
        values.add(&index, slot, b"b", -1);
        assert_eq!(flush(&mut values), (1, vec![2]), "the store never hears of b");
        values.add(&index, slot, b"a", -2);
        values.add(&index, slot, b"a", 5);
        values.add(&index, slot, b"a", -1);
        assert_eq!(flush(&mut values), (2, vec![4]), "erased, then written once");
        values.add(&index, slot, b"a", -4);
        assert_eq!(flush(&mut values), (1, vec![]));
        for value in 0..100_000_u32 {
            values.add(&index, slot, &value.to_be_bytes(), 1);
            values.add(&index, slot, &value.to_be_bytes(), -1);
        }
        assert!(values.changed.len() <= CHANGED_MIN && values.gone.is_empty(), "nothing piles up");
        assert_eq!((values.total_len(), values.total_bytes()), (0, 0));
        values.add(&index, slot, b"abc", 2);
        assert_eq!((values.total_len(), values.total_bytes()), (1, 11), "three bytes and the count");
    }
}
