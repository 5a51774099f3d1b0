//! Many entries for each key, each with a key of its own.

use super::super::backend::{StateBackend, WriteBatch};
use super::super::layout::{check_slot, list_key, list_prefix_of, map_key, map_prefix, split_map_key};
use super::codec::{Codec, damaged};
use crate::types::{OperatorId, Result};

const ERASE_ENTRIES_AT_ONCE: usize = 1024;

/// Entries by name for each key: `[key group][slot "#map|"][u32 length][key][entry]`.
#[derive(Debug)]
pub struct MapState<K, E, V> {
    operator: OperatorId,
    slot: String,
    keys: K,
    entries: E,
    values: V,
}

impl<K: Codec, E: Codec, V: Codec> MapState<K, E, V> {
    /// The table of an operator's slot.
    ///
    /// # Errors
    /// 22023 for a name that no slot can have.
    pub fn new(operator: OperatorId, slot: &str, keys: K, entries: E, values: V) -> Result<MapState<K, E, V>> {
        check_slot(slot)?;
        Ok(MapState { operator, slot: slot.to_owned(), keys, entries, values })
    }

    fn stored(&self, key: &K::Value, entry: &E::Value) -> Vec<u8> {
        map_key(&self.slot, &self.keys.to_bytes(key), &self.entries.to_bytes(entry))
    }

    /// An entry's value.
    ///
    /// # Errors
    /// When the store cannot be read or the value is damaged.
    pub fn get(&self, backend: &dyn StateBackend, key: &K::Value, entry: &E::Value) -> Result<Option<V::Value>> {
        let stored = backend.get(self.operator, &self.stored(key, entry))?;
        stored.map(|bytes| self.values.decode(&bytes)).transpose()
    }

    /// Sets an entry.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn put(
        &self,
        backend: &mut dyn StateBackend,
        key: &K::Value,
        entry: &E::Value,
        value: &V::Value,
    ) -> Result<()> {
        backend.put(self.operator, &self.stored(key, entry), &self.values.to_bytes(value))
    }

    /// Erases an entry.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn erase(&self, backend: &mut dyn StateBackend, key: &K::Value, entry: &E::Value) -> Result<()> {
        backend.erase(self.operator, &self.stored(key, entry))
    }

    /// Visits a key's entries in the order of their bytes.
    ///
    /// # Errors
    /// As [`Self::get`]; the error of `visit`.
    pub fn scan(
        &self,
        backend: &dyn StateBackend,
        key: &K::Value,
        visit: &mut dyn FnMut(E::Value, V::Value) -> Result<()>,
    ) -> Result<()> {
        let prefix = map_prefix(&self.slot, &self.keys.to_bytes(key));
        backend.scan(self.operator, &prefix, &mut |stored, value| {
            let (_, entry) = split_map_key(&self.slot, stored)?.ok_or_else(|| damaged("map entry"))?;
            visit(self.entries.decode(entry)?, self.values.decode(value)?)
        })
    }

    /// Erases all entries of a key.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub fn clear(&self, backend: &mut dyn StateBackend, key: &K::Value) -> Result<()> {
        erase_prefix(backend, self.operator, &map_prefix(&self.slot, &self.keys.to_bytes(key)))
    }
}

/// Elements in order for each key: `[key group][slot "#list|"][u32 length][key][u64 BE position]`. Positions ascend; those
/// of taken elements are not used again while the list has others.
#[derive(Debug)]
pub struct ListState<K, V> {
    operator: OperatorId,
    slot: String,
    keys: K,
    values: V,
}

impl<K: Codec, V: Codec> ListState<K, V> {
    /// The table of an operator's slot.
    ///
    /// # Errors
    /// 22023 for a name that no slot can have.
    pub fn new(operator: OperatorId, slot: &str, keys: K, values: V) -> Result<ListState<K, V>> {
        check_slot(slot)?;
        Ok(ListState { operator, slot: slot.to_owned(), keys, values })
    }

    /// Adds elements at the end. `next` is a position above all of the key's, which the operator keeps with the key: so
    /// that an addition reads nothing.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn add(&self, backend: &mut dyn StateBackend, key: &K::Value, next: u64, values: &[V::Value]) -> Result<u64> {
        let key = self.keys.to_bytes(key);
        let mut batch = WriteBatch::default();
        let mut position = next;
        for value in values {
            batch.put(list_key(&self.slot, &key, position), self.values.to_bytes(value));
            position += 1;
        }
        backend.apply(self.operator, batch)?;
        Ok(position)
    }

    /// Visits a key's elements in order, with their positions.
    ///
    /// # Errors
    /// When the store cannot be read or an element is damaged; the error of `visit`.
    pub fn scan(
        &self,
        backend: &dyn StateBackend,
        key: &K::Value,
        visit: &mut dyn FnMut(u64, V::Value) -> Result<()>,
    ) -> Result<()> {
        let prefix = list_prefix_of(&self.slot, &self.keys.to_bytes(key));
        backend.scan(self.operator, &prefix, &mut |stored, value| {
            let position = stored.get(prefix.len()..).and_then(|rest| rest.try_into().ok());
            let position = position.map(u64::from_be_bytes).ok_or_else(|| damaged("list element"))?;
            visit(position, self.values.decode(value)?)
        })
    }

    /// All elements of a key.
    ///
    /// # Errors
    /// As [`Self::scan`].
    pub fn get(&self, backend: &dyn StateBackend, key: &K::Value) -> Result<Vec<V::Value>> {
        let mut values = Vec::new();
        self.scan(backend, key, &mut |_, value| {
            values.push(value);
            Ok(())
        })?;
        Ok(values)
    }

    /// Takes an element out.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn erase(&self, backend: &mut dyn StateBackend, key: &K::Value, position: u64) -> Result<()> {
        backend.erase(self.operator, &list_key(&self.slot, &self.keys.to_bytes(key), position))
    }

    /// Erases all elements of a key.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub fn clear(&self, backend: &mut dyn StateBackend, key: &K::Value) -> Result<()> {
        erase_prefix(backend, self.operator, &list_prefix_of(&self.slot, &self.keys.to_bytes(key)))
    }
}

/// Erases a prefix in bounded steps.
fn erase_prefix(backend: &mut dyn StateBackend, operator: OperatorId, prefix: &[u8]) -> Result<()> {
    loop {
        let mut batch = WriteBatch::default();
        backend.scan_range(operator, &super::super::KeyRange::of_prefix(prefix), &mut |stored, _| {
            batch.erase(stored.to_vec());
            Ok(if batch.entries.len() < ERASE_ENTRIES_AT_ONCE {
                std::ops::ControlFlow::Continue(())
            } else {
                std::ops::ControlFlow::Break(())
            })
        })?;
        let is_last = batch.entries.len() < ERASE_ENTRIES_AT_ONCE;
        backend.apply(operator, batch)?;
        if is_last {
            return Ok(());
        }
    }
}
