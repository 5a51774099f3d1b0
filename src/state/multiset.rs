//! Counted values per key: the decoded form of a map table.

use std::collections::{BTreeMap, BTreeSet};

use super::key_index::{KeyIndex, Slot};
use super::layout::{map_key, map_prefix, split_map_key};
use super::{StateBackend, WriteBatch};
use crate::types::{Error, OperatorId, Result, SqlState};

type Bytes = Box<[u8]>;

/// For each slot, encoded values in order, each with a count that is never zero.
///
/// Within one time a count may go below zero, when a retraction comes before its insertion; at the
/// end of a time it may not.
#[derive(Debug)]
pub struct Multiset {
    slot_name: String,
    entries: Vec<BTreeMap<Bytes, i64>>,
    track: bool,
    dirty: BTreeSet<(Bytes, Bytes)>,
}

impl Multiset {
    /// An empty one whose entries are stored under `slot_name`.
    pub fn new(slot_name: String, track: bool) -> Multiset {
        Multiset { slot_name, entries: Vec::new(), track, dirty: BTreeSet::new() }
    }

    /// Makes room for slots below `slots`.
    pub fn resize(&mut self, slots: usize) {
        if self.entries.len() < slots {
            self.entries.resize_with(slots, BTreeMap::new);
        }
    }

    /// Adds `diff` to a value's count and gives the count before and after.
    pub fn add(&mut self, index: &KeyIndex, slot: Slot, value: &[u8], diff: i64) -> (i64, i64) {
        if self.track {
            self.dirty.insert((index.key(slot).into(), value.into()));
        }
        let entries = &mut self.entries[slot as usize];
        match entries.get_mut(value) {
            Some(count) => {
                let before = *count;
                *count += diff;
                let after = *count;
                if after == 0 {
                    entries.remove(value);
                }
                (before, after)
            }
            None => {
                if diff != 0 {
                    entries.insert(value.into(), diff);
                }
                (0, diff)
            }
        }
    }

    /// A slot's values and counts, in order of value.
    pub fn entries(&self, slot: Slot) -> impl DoubleEndedIterator<Item = (&[u8], i64)> {
        self.entries[slot as usize].iter().map(|(value, count)| (&**value, *count))
    }

    /// Number of different values of a slot.
    pub fn len(&self, slot: Slot) -> usize {
        self.entries[slot as usize].len()
    }

    /// A value's count; zero when it is not there.
    pub fn count(&self, slot: Slot, value: &[u8]) -> i64 {
        self.entries[slot as usize].get(value).copied().unwrap_or(0)
    }

    /// Forgets a slot's values, which are all gone by their counts.
    pub fn clear(&mut self, slot: Slot) {
        self.entries[slot as usize].clear();
    }

    /// Hands the entries that changed since the last call to a batch. Entries of keys without a
    /// slot are erased.
    pub fn flush(&mut self, index: &KeyIndex, batch: &mut WriteBatch) {
        for (key, value) in std::mem::take(&mut self.dirty) {
            let stored = map_key(&self.slot_name, &key, &value);
            match index.get(&key).and_then(|slot| self.entries[slot as usize].get(&value)) {
                Some(count) => batch.put(stored, count.to_le_bytes().to_vec()),
                None => batch.erase(stored),
            }
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
        self.entries[slot as usize].insert(value.into(), count);
        Ok(())
    }

    /// Hands the entries of a slot's key that changed since the last call to a batch.
    pub fn flush_key(&mut self, slot: Slot, key: &[u8], batch: &mut WriteBatch) {
        let first: (Bytes, Bytes) = (key.into(), Bytes::default());
        let changed: Vec<(Bytes, Bytes)> =
            self.dirty.range(first..).take_while(|(owner, _)| **owner == *key).cloned().collect();
        for place in changed {
            let stored = map_key(&self.slot_name, key, &place.1);
            match self.entries[slot as usize].get(&place.1) {
                Some(count) => batch.put(stored, count.to_le_bytes().to_vec()),
                None => batch.erase(stored),
            }
            self.dirty.remove(&place);
        }
    }

    /// Bytes that a slot's entries take.
    pub fn bytes(&self, slot: Slot) -> usize {
        // A tree's node costs about as much again.
        self.entries[slot as usize].keys().map(|value| 2 * (size_of::<(Bytes, i64)>() + value.len())).sum()
    }

    /// Takes in the stored entries of the keys of `index`.
    ///
    /// # Errors
    /// XX001 when an entry belongs to no key or is not a count.
    pub fn load(&mut self, index: &KeyIndex, operator: OperatorId, backend: &dyn StateBackend) -> Result<()> {
        self.resize(index.slots());
        let slot_name = self.slot_name.clone();
        let entries = &mut self.entries;
        backend.scan(operator, &[], &mut |stored, count| {
            let Some((key, value)) = split_map_key(&slot_name, stored)? else { return Ok(()) };
            let damaged = || Error::new(SqlState::DataCorrupted, format!("a stored entry of {slot_name} is damaged"));
            let slot = index.get(key).ok_or_else(damaged)?;
            let count = i64::from_le_bytes(count.try_into().map_err(|_| damaged())?);
            entries[slot as usize].insert(value.into(), count);
            Ok(())
        })
    }
}
