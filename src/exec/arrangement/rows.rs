//! The present rows of one key group: found by hash, walked in key order.
//!
//! A change of a key that is there costs one lookup. Order is made when somebody walks: new keys wait
//! unordered until then, and are merged into the ordered ones when there are many.

use std::cell::{Ref, RefCell};
use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::SmallVec;

/// Encoded key columns; short ones need no allocation.
pub(super) type Key = SmallVec<[u8; 24]>;
/// Encoded columns outside of the key, likewise.
pub(super) type Value = SmallVec<[u8; 32]>;

/// What a key stands for: the encoded columns outside of the key, and how many such rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) value: Value,
    pub(super) count: i64,
}

#[derive(Debug)]
struct Slot {
    key: Key,
    /// `None`: the key is gone; the slot is still named by an order.
    entry: Option<Entry>,
    /// It is among the changed ones.
    changed: bool,
    /// The store has the key.
    stored: bool,
}

/// What changed since the last barrier.
#[derive(Debug, Default)]
struct Changed {
    /// Each once, older ones of a key first.
    slots: Vec<u32>,
    /// Keys that the store has and whose slots were given back.
    gone: Vec<Key>,
}

/// Share of unordered keys, as one in so many, from which on they are merged.
const MERGE_SHARE: usize = 4;
/// Gone keys that are kept at least before slots are given back.
const GONE_MIN: usize = 1_024;

#[derive(Debug, Default)]
pub(super) struct Rows {
    hasher: DefaultHashBuilder,
    table: HashTable<u32>,
    slots: Vec<Slot>,
    order: RefCell<Order>,
    gone: usize,
    /// Bytes of the present keys and what they stand for.
    bytes: usize,
    /// `None`: nobody asks.
    changed: Option<Changed>,
}

/// The slots in key order, as far as somebody wanted it.
#[derive(Debug, Default)]
struct Order {
    ordered: Vec<u32>,
    /// Slots that came later; in key order up to `recent_ordered`.
    recent: Vec<u32>,
    recent_ordered: usize,
}

impl Rows {
    /// Empty; with `track`, remembers what changes for [`Self::take_changed`].
    pub(super) fn new(track: bool) -> Rows {
        Rows { changed: track.then(Changed::default), ..Rows::default() }
    }

    /// Tells of the keys that changed since the last call: what they are now, and of a key that went and came back,
    /// last.
    pub(super) fn take_changed(&mut self, mut visit: impl FnMut(&[u8], Option<&Entry>)) {
        let Some(changed) = &mut self.changed else { return };
        for key in changed.gone.drain(..) {
            visit(&key, None);
        }
        for slot in changed.slots.drain(..) {
            let slot = &mut self.slots[slot as usize];
            slot.changed = false;
            // A key that came and went in between is nothing to tell of.
            if slot.entry.is_some() || slot.stored {
                visit(&slot.key, slot.entry.as_ref());
            }
            slot.stored = slot.entry.is_some();
        }
    }

    fn note(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        if let Some(changed) = &mut self.changed
            && !place.changed
        {
            place.changed = true;
            changed.slots.push(slot);
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Entry> {
        let slot = self.find(key)?;
        self.slots[slot as usize].entry.as_ref()
    }

    fn find(&self, key: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        self.table.find(hash, |slot| self.slots[*slot as usize].key.as_slice() == key).copied()
    }

    /// Replaces a key's entry by what `change` makes of it; gives the one before, when they differ.
    ///
    /// # Errors
    /// Those of `change`; nothing is replaced then.
    pub(super) fn update<E>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(Option<&Entry>) -> Result<Option<Entry>, E>,
    ) -> Result<Option<Option<Entry>>, E> {
        let found = self.find(key);
        let before = found.and_then(|slot| self.slots[slot as usize].entry.as_ref());
        let after = change(before)?;
        if before == after.as_ref() {
            return Ok(None);
        }
        self.bytes -= before.map_or(0, |entry| stored_bytes(key, entry));
        self.bytes += after.as_ref().map_or(0, |entry| stored_bytes(key, entry));
        if let Some(slot) = found {
            self.note(slot);
        }
        Ok(Some(match (found, after) {
            (Some(slot), Some(after)) => self.slots[slot as usize].entry.replace(after),
            (Some(slot), None) => {
                let hash = self.hasher.hash_one(key);
                if let Ok(place) = self.table.find_entry(hash, |candidate| *candidate == slot) {
                    place.remove();
                }
                self.gone += 1;
                let before = self.slots[slot as usize].entry.take();
                self.give_back();
                before
            }
            (None, Some(after)) => {
                self.add(key, after, false);
                self.note(self.slots.len() as u32 - 1);
                None
            }
            (None, None) => None,
        }))
    }

    /// Puts in a key that is not there, from the store.
    pub(super) fn insert(&mut self, key: &[u8], entry: Entry) {
        self.bytes += stored_bytes(key, &entry);
        self.add(key, entry, true);
    }

    fn add(&mut self, key: &[u8], entry: Entry, stored: bool) {
        let hash = self.hasher.hash_one(key);
        // 4 billion keys of one group do not fit the memory of a worker.
        let slot = self.slots.len() as u32;
        self.slots.push(Slot { key: Key::from_slice(key), entry: Some(entry), changed: false, stored });
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.table.insert_unique(hash, slot, |slot| hasher.hash_one(slots[*slot as usize].key.as_slice()));
        self.order.get_mut().recent.push(slot);
    }

    /// Drops the slots of gone keys when they are many.
    fn give_back(&mut self) {
        if self.gone < GONE_MIN.max(self.slots.len() / 2) {
            return;
        }
        let order = self.order.get_mut();
        order.make(&self.slots);
        order.merge(&self.slots);
        let mut slots = Vec::with_capacity(self.table.len());
        self.table.clear();
        if let Some(changed) = &mut self.changed {
            changed.slots.clear();
        }
        for old in std::mem::take(&mut order.ordered) {
            let slot = &mut self.slots[old as usize];
            let kept = Slot { key: std::mem::take(&mut slot.key), entry: slot.entry.take(), ..*slot };
            if let Some(noted) = self.changed.as_mut().filter(|_| kept.changed) {
                match &kept.entry {
                    Some(_) => noted.slots.push(slots.len() as u32),
                    None if kept.stored => noted.gone.push(kept.key.clone()),
                    None => {}
                }
            }
            if kept.entry.is_some() {
                slots.push(kept);
            }
        }
        order.ordered = (0..slots.len() as u32).collect();
        self.slots = slots;
        self.gone = 0;
        let (slots, hasher) = (&self.slots, &self.hasher);
        let hash_of = |slot: &u32| hasher.hash_one(slots[*slot as usize].key.as_slice());
        for slot in &order.ordered {
            self.table.insert_unique(hash_of(slot), *slot, hash_of);
        }
    }

    /// Number of keys.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Bytes of the keys and what they stand for.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The rows in key order, behind a key.
    pub(super) fn behind(&self, after: Option<&[u8]>) -> Behind<'_> {
        self.order.borrow_mut().make(&self.slots);
        let order = self.order.borrow();
        let start = |list: &[u32]| match after {
            Some(after) => list.partition_point(|slot| self.slots[*slot as usize].key.as_slice() <= after),
            None => 0,
        };
        let (ordered, recent) = (start(&order.ordered), start(&order.recent));
        Behind { slots: &self.slots, order, ordered, recent }
    }
}

fn stored_bytes(key: &[u8], entry: &Entry) -> usize {
    key.len() + entry.value.len() + size_of::<i64>()
}

impl Order {
    /// Makes both lists ordered.
    fn make(&mut self, slots: &[Slot]) {
        if self.recent_ordered < self.recent.len() {
            self.recent.sort_unstable_by(|a, b| slots[*a as usize].key.cmp(&slots[*b as usize].key));
            self.recent_ordered = self.recent.len();
        }
        if self.recent.len() > self.ordered.len() / MERGE_SHARE {
            self.merge(slots);
        }
    }

    fn merge(&mut self, slots: &[Slot]) {
        if self.recent.is_empty() {
            return;
        }
        let mut merged = Vec::with_capacity(self.ordered.len() + self.recent.len());
        let mut old = self.ordered.iter().copied().peekable();
        for slot in self.recent.drain(..) {
            let key = &slots[slot as usize].key;
            while let Some(earlier) = old.next_if(|earlier| slots[*earlier as usize].key <= *key) {
                merged.push(earlier);
            }
            merged.push(slot);
        }
        merged.extend(old);
        self.ordered = merged;
        self.recent_ordered = 0;
    }
}

/// Rows of a key group in key order.
pub(super) struct Behind<'a> {
    slots: &'a [Slot],
    order: Ref<'a, Order>,
    ordered: usize,
    recent: usize,
}

impl<'a> Iterator for Behind<'a> {
    type Item = (&'a [u8], &'a Entry);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let ordered = self.order.ordered.get(self.ordered).copied();
            let recent = self.order.recent.get(self.recent).copied();
            let slot = match (ordered, recent) {
                (Some(a), Some(b)) if self.slots[b as usize].key < self.slots[a as usize].key => {
                    self.recent += 1;
                    b
                }
                (Some(a), _) => {
                    self.ordered += 1;
                    a
                }
                (None, Some(b)) => {
                    self.recent += 1;
                    b
                }
                (None, None) => return None,
            };
            let slot = &self.slots[slot as usize];
            if let Some(entry) = &slot.entry {
                return Some((slot.key.as_slice(), entry));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a B-tree: any order of inserts, updates, removals and walks.
        #[test]
        fn it_is_an_ordered_map(steps in proptest::collection::vec((0u16..400, -1i64..4, any::<bool>()), 0..3_000)) {
            let mut rows = Rows::new(true);
            let mut model: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
            let mut stored: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
            for (number, count, walk) in steps {
                let key = number.to_string().into_bytes();
                let after = (count > 0).then(|| Entry { value: Value::from_slice(&key), count });
                let before = rows.update(&key, |_| Ok::<_, ()>(after)).expect("no error");
                let expected = if count > 0 { model.insert(key.clone(), count) } else { model.remove(&key) };
                let changed = expected != (count > 0).then_some(count);
                prop_assert_eq!(before.is_some(), changed);
                if let Some(before) = before {
                    prop_assert_eq!(before.map(|entry| entry.count), expected);
                }
                prop_assert_eq!(rows.get(&key).map(|entry| entry.count), model.get(&key).copied());
                if walk && number % 31 == 0 {
                    rows.take_changed(|key, entry| match entry {
                        Some(entry) => drop(stored.insert(key.to_vec(), entry.count)),
                        None => drop(stored.remove(key)),
                    });
                    prop_assert_eq!(&stored, &model);
                }
                if walk && number % 7 == 0 {
                    let seen: Vec<_> = rows.behind(Some(&key)).map(|(k, e)| (k.to_vec(), e.count)).collect();
                    let model: Vec<_> = model
                        .range::<[u8], _>((std::ops::Bound::Excluded(key.as_slice()), std::ops::Bound::Unbounded))
                        .map(|(k, c)| (k.clone(), *c))
                        .collect();
                    prop_assert_eq!(seen, model);
                }
            }
            let seen: Vec<_> = rows.behind(None).map(|(k, e)| (k.to_vec(), e.count)).collect();
            let bytes: usize = model.keys().map(|key| 2 * key.len() + 8).sum();
            prop_assert_eq!((rows.len(), rows.bytes()), (model.len(), bytes));
            prop_assert_eq!(seen, model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn slots_of_gone_keys_are_given_back() {
        let mut rows = Rows::new(true);
        for round in 0u32..20 {
            for key in 0u32..1_000 {
                let key = (round * 1_000 + key).to_be_bytes();
                rows.update(&key, |_| Ok::<_, ()>(Some(Entry { value: Value::new(), count: 1 }))).expect("no error");
            }
            for key in 0u32..1_000 {
                let key = (round * 1_000 + key).to_be_bytes();
                rows.update(&key, |_| Ok::<_, ()>(None)).expect("no error");
            }
        }
        assert!(rows.slots.len() < 4 * GONE_MIN, "{} slots for no rows", rows.slots.len());
        assert_eq!(rows.behind(None).count(), 0);
        rows.take_changed(|key, _| panic!("the store never had {key:?}"));
        assert!(rows.changed.as_ref().is_some_and(|changed| changed.gone.is_empty()), "nothing piles up");
        for key in 0u32..5_000 {
            rows.insert(&key.to_be_bytes(), Entry { value: Value::new(), count: 1 });
        }
        for key in 0u32..5_000 {
            rows.update(&key.to_be_bytes(), |_| Ok::<_, ()>(None)).expect("no error");
        }
        let mut erased = std::collections::BTreeSet::new();
        rows.take_changed(|key, entry| {
            assert!(entry.is_none());
            erased.insert(key.to_vec());
        });
        assert_eq!(erased.len(), 5_000, "also those whose slots are gone");
    }
}
