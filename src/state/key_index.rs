//! From encoded keys to dense slots.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::backend::StateBackend;
use super::key_encoding::Encoded;
use super::layout::split_map_key;
use crate::types::{OperatorId, Result};

/// A place in an operator's columns of state. Slots of removed keys are used again.
pub type Slot = u32;

/// Maps encoded keys to slots, so that state is columns indexed by slot: the decoded form of a value
/// table. Remembers the keys that changed since they were last taken, when asked to.
#[derive(Debug, Default)]
pub struct KeyIndex {
    table: HashTable<Slot>,
    keys: Vec<Box<[u8]>>,
    /// Bytes of the keys in use.
    key_bytes: usize,
    free: Vec<Slot>,
    hasher: DefaultHashBuilder,
    track: bool,
    /// Slots that were touched; one may stand twice after it was freed.
    changed: Vec<Slot>,
    is_changed: Vec<bool>,
    /// The store has the slot's key.
    is_stored: Vec<bool>,
    /// Keys that the store has and that are gone.
    removed: Vec<Box<[u8]>>,
}

impl KeyIndex {
    /// An empty index. With `track`, changed keys are remembered for [`Self::take_changed`].
    pub fn new(track: bool) -> KeyIndex {
        KeyIndex { track, ..KeyIndex::default() }
    }

    /// The slots of a batch of keys, in order; new keys get one. `new_slot` is told of each.
    pub fn locate(&mut self, keys: &Encoded, slots: &mut Vec<Slot>, mut new_slot: impl FnMut(Slot)) {
        slots.clear();
        slots.reserve(keys.len());
        for row in 0..keys.len() {
            let (slot, is_new) = self.insert(keys.row(row));
            if is_new {
                new_slot(slot);
            }
            slots.push(slot);
        }
    }

    /// The slot of a key, made when absent, and whether it was made.
    pub fn insert(&mut self, key: &[u8]) -> (Slot, bool) {
        let hash = self.hasher.hash_one(key);
        if let Some(slot) = self.table.find(hash, |slot| &*self.keys[*slot as usize] == key) {
            return (*slot, false);
        }
        let slot = match self.free.pop() {
            Some(slot) => {
                self.keys[slot as usize] = key.into();
                slot
            }
            None => {
                self.keys.push(key.into());
                // 4 billion keys do not fit the memory of a worker.
                (self.keys.len() - 1) as Slot
            }
        };
        self.key_bytes += key.len();
        let (keys, hasher) = (&self.keys, &self.hasher);
        self.table.insert_unique(hash, slot, |slot| hasher.hash_one(&*keys[*slot as usize]));
        (slot, true)
    }

    /// The slot of a key.
    pub fn get(&self, key: &[u8]) -> Option<Slot> {
        let hash = self.hasher.hash_one(key);
        self.table.find(hash, |slot| &*self.keys[*slot as usize] == key).copied()
    }

    /// The key of a slot in use.
    pub fn key(&self, slot: Slot) -> &[u8] {
        &self.keys[slot as usize]
    }

    /// Frees a slot in use; the next new key may get it.
    pub fn remove(&mut self, slot: Slot) {
        let key = &self.keys[slot as usize];
        let hash = self.hasher.hash_one(&**key);
        if let Ok(entry) = self.table.find_entry(hash, |candidate| *candidate == slot) {
            entry.remove();
            let key = std::mem::take(&mut self.keys[slot as usize]);
            self.key_bytes -= key.len();
            if let Some(is_changed) = self.is_changed.get_mut(slot as usize) {
                *is_changed = false;
                if std::mem::take(&mut self.is_stored[slot as usize]) {
                    self.removed.push(key);
                }
            }
            self.free.push(slot);
        }
    }

    /// Takes in the keys of a stored map table.
    ///
    /// # Errors
    /// XX001 when a stored key is damaged.
    pub fn load_map_keys(&mut self, slot_name: &str, operator: OperatorId, backend: &dyn StateBackend) -> Result<()> {
        backend.scan(operator, &[], &mut |stored, _| {
            if let Some((key, _)) = split_map_key(slot_name, stored)? {
                self.insert(key);
            }
            Ok(())
        })
    }

    /// Notes that the value of a slot in use changes or goes.
    pub fn touch(&mut self, slot: Slot) {
        if !self.track {
            return;
        }
        self.make_flags();
        if !std::mem::replace(&mut self.is_changed[slot as usize], true) {
            self.changed.push(slot);
        }
    }

    fn make_flags(&mut self) {
        if self.is_changed.len() < self.keys.len() {
            self.is_changed.resize(self.keys.len(), false);
            self.is_stored.resize(self.keys.len(), false);
        }
    }

    /// Notes that a slot in use came from the store.
    pub fn loaded(&mut self, slot: Slot) {
        if self.track {
            self.make_flags();
            self.is_stored[slot as usize] = true;
        }
    }

    /// At most `keys_max` of the keys that were touched or removed since they were last taken; those without a slot are
    /// gone. With fewer, that was all. A key that was removed and came back may stand twice.
    pub fn take_changed(&mut self, keys_max: usize) -> Vec<Box<[u8]>> {
        let mut keys: Vec<Box<[u8]>> = self.removed.drain(self.removed.len().saturating_sub(keys_max)..).collect();
        while keys.len() < keys_max
            && let Some(slot) = self.changed.pop()
        {
            if std::mem::take(&mut self.is_changed[slot as usize]) {
                self.is_stored[slot as usize] = true;
                keys.push(self.keys[slot as usize].clone());
            }
        }
        keys
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Bytes of all keys.
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// True when there is no key.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Slots ever used: the length that columns of state need.
    pub fn slots(&self) -> usize {
        self.keys.len()
    }

    /// Whether changed keys are remembered.
    pub fn tracks(&self) -> bool {
        self.track
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_found_freed_and_used_again() {
        let mut index = KeyIndex::new(true);
        let (a, new) = index.insert(b"a");
        assert!(new);
        let (b, _) = index.insert(b"b");
        assert_eq!(index.insert(b"a"), (a, false));
        index.touch(a);
        index.remove(a);
        assert_eq!(index.get(b"a"), None);
        assert_eq!(index.insert(b"c"), (a, true));
        assert_eq!((index.key(a), index.key(b), index.len(), index.key_bytes()), (&b"c"[..], &b"b"[..], 2, 2));
        index.touch(a);
        let keys = |keys: &[&[u8]]| keys.iter().map(|key| Box::from(*key)).collect::<Vec<Box<[u8]>>>();
        assert_eq!(index.take_changed(9), keys(&[b"c"]), "the store never had the other");
        assert!(index.take_changed(9).is_empty());
        index.touch(a);
        index.remove(a);
        index.touch(b);
        index.loaded(b);
        index.remove(b);
        assert_eq!(index.insert(b"c"), (b, true));
        index.touch(b);
        assert_eq!(index.take_changed(1), keys(&[b"b"]));
        assert_eq!(index.take_changed(9), keys(&[b"c", b"c"]));
    }
}
