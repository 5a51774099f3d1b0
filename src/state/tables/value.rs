//! One value for each key, and what is built of it.

use super::super::backend::StateBackend;
use super::super::layout::{check_slot, slot_prefix, split_value_key, value_key};
use super::super::operator_state::{broadcast_key, get_operator_state};
use super::codec::Codec;
use crate::types::{KeyGroup, OperatorId, Result};

/// A value for each key: `[key group][slot '|'][key]`.
#[derive(Debug)]
pub struct ValueState<K, V> {
    operator: OperatorId,
    slot: String,
    keys: K,
    values: V,
}

impl<K: Codec, V: Codec> ValueState<K, V> {
    /// The table of an operator's slot.
    ///
    /// # Errors
    /// 22023 for a name that no slot can have.
    pub fn new(operator: OperatorId, slot: &str, keys: K, values: V) -> Result<ValueState<K, V>> {
        check_slot(slot)?;
        Ok(ValueState { operator, slot: slot.to_owned(), keys, values })
    }

    /// A key's value.
    ///
    /// # Errors
    /// When the store cannot be read or the value is damaged.
    pub fn get(&self, backend: &dyn StateBackend, key: &K::Value) -> Result<Option<V::Value>> {
        let stored = backend.get(self.operator, &value_key(&self.slot, &self.keys.to_bytes(key)))?;
        stored.map(|bytes| self.values.decode(&bytes)).transpose()
    }

    /// The values of many keys, in one read.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn get_many(&self, backend: &dyn StateBackend, keys: &[K::Value]) -> Result<Vec<Option<V::Value>>> {
        let stored: Vec<Vec<u8>> = keys.iter().map(|key| value_key(&self.slot, &self.keys.to_bytes(key))).collect();
        let slices: Vec<&[u8]> = stored.iter().map(Vec::as_slice).collect();
        let values = backend.get_many(self.operator, &slices)?;
        values.into_iter().map(|value| value.map(|bytes| self.values.decode(&bytes)).transpose()).collect()
    }

    /// Sets a key's value.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn put(&self, backend: &mut dyn StateBackend, key: &K::Value, value: &V::Value) -> Result<()> {
        let stored = value_key(&self.slot, &self.keys.to_bytes(key));
        backend.put(self.operator, &stored, &self.values.to_bytes(value))
    }

    /// Erases a key's value.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn erase(&self, backend: &mut dyn StateBackend, key: &K::Value) -> Result<()> {
        backend.erase(self.operator, &value_key(&self.slot, &self.keys.to_bytes(key)))
    }

    /// Visits all values, by key group and there in order of the keys' bytes.
    ///
    /// # Errors
    /// As [`Self::get`]; the error of `visit`.
    pub fn scan(
        &self,
        backend: &dyn StateBackend,
        visit: &mut dyn FnMut(K::Value, V::Value) -> Result<()>,
    ) -> Result<()> {
        for group in 0..crate::types::KEY_GROUPS {
            backend.scan(self.operator, &slot_prefix(&self.slot, KeyGroup::new(group)), &mut |stored, value| {
                match split_value_key(&self.slot, stored) {
                    Some(key) => visit(self.keys.decode(key)?, self.values.decode(value)?),
                    None => Ok(()),
                }
            })?;
        }
        Ok(())
    }
}

/// A value for each key that new ones are folded into.
pub struct ReducingState<K, V, F> {
    values: ValueState<K, V>,
    reduce: F,
}

impl<K: Codec, V: Codec, F: Fn(V::Value, V::Value) -> V::Value> ReducingState<K, V, F> {
    /// The table of a slot; `reduce` makes one value of the stored and the new.
    ///
    /// # Errors
    /// 22023 for a name that no slot can have.
    pub fn new(operator: OperatorId, slot: &str, keys: K, values: V, reduce: F) -> Result<ReducingState<K, V, F>> {
        Ok(ReducingState { values: ValueState::new(operator, slot, keys, values)?, reduce })
    }

    /// Folds a value in.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub fn add(&self, backend: &mut dyn StateBackend, key: &K::Value, value: V::Value) -> Result<()> {
        let value = match self.values.get(backend, key)? {
            Some(stored) => (self.reduce)(stored, value),
            None => value,
        };
        self.values.put(backend, key, &value)
    }

    /// A key's value.
    ///
    /// # Errors
    /// As [`ValueState::get`].
    pub fn get(&self, backend: &dyn StateBackend, key: &K::Value) -> Result<Option<V::Value>> {
        self.values.get(backend, key)
    }

    /// Forgets a key.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn erase(&self, backend: &mut dyn StateBackend, key: &K::Value) -> Result<()> {
        self.values.erase(backend, key)
    }
}

/// How values of one type gather into one of another, from which a result is taken.
pub trait Aggregation {
    /// What is added.
    type Input;
    /// What is stored.
    type Accumulator;
    /// What is asked for.
    type Output;

    /// The accumulator of nothing.
    fn empty(&self) -> Self::Accumulator;
    /// Adds a value.
    fn add(&self, accumulator: &mut Self::Accumulator, input: Self::Input);
    /// The result.
    fn output(&self, accumulator: &Self::Accumulator) -> Self::Output;
}

/// An accumulator for each key.
pub struct AggregatingState<K, V, A> {
    values: ValueState<K, V>,
    aggregation: A,
}

impl<K: Codec, A: Aggregation, V: Codec<Value = A::Accumulator>> AggregatingState<K, V, A> {
    /// The table of a slot.
    ///
    /// # Errors
    /// 22023 for a name that no slot can have.
    pub fn new(
        operator: OperatorId,
        slot: &str,
        keys: K,
        values: V,
        aggregation: A,
    ) -> Result<AggregatingState<K, V, A>> {
        Ok(AggregatingState { values: ValueState::new(operator, slot, keys, values)?, aggregation })
    }

    /// Adds a value.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub fn add(&self, backend: &mut dyn StateBackend, key: &K::Value, input: A::Input) -> Result<()> {
        let mut accumulator = self.values.get(backend, key)?.unwrap_or_else(|| self.aggregation.empty());
        self.aggregation.add(&mut accumulator, input);
        self.values.put(backend, key, &accumulator)
    }

    /// A key's result, when something was added.
    ///
    /// # Errors
    /// As [`ValueState::get`].
    pub fn get(&self, backend: &dyn StateBackend, key: &K::Value) -> Result<Option<A::Output>> {
        Ok(self.values.get(backend, key)?.map(|accumulator| self.aggregation.output(&accumulator)))
    }

    /// Forgets a key.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn erase(&self, backend: &mut dyn StateBackend, key: &K::Value) -> Result<()> {
        self.values.erase(backend, key)
    }
}

/// One value that each worker has: `[0xFF][slot '|']`.
pub struct BroadcastState<V> {
    operator: OperatorId,
    slot: String,
    values: V,
}

impl<V: Codec> BroadcastState<V> {
    /// The value of an operator's slot.
    ///
    /// # Errors
    /// 22023 for a name that no slot can have.
    pub fn new(operator: OperatorId, slot: &str, values: V) -> Result<BroadcastState<V>> {
        check_slot(slot)?;
        Ok(BroadcastState { operator, slot: slot.to_owned(), values })
    }

    /// The value; one that an old snapshot has without the leading 0xFF is found too.
    ///
    /// # Errors
    /// When the store cannot be read or the value is damaged.
    pub fn get(&self, backend: &dyn StateBackend) -> Result<Option<V::Value>> {
        let stored = get_operator_state(backend, self.operator, format!("{}|", self.slot).as_bytes())?;
        stored.map(|bytes| self.values.decode(&bytes)).transpose()
    }

    /// Sets the value of this worker: all workers set the same.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn put(&self, backend: &mut dyn StateBackend, value: &V::Value) -> Result<()> {
        backend.put(self.operator, &broadcast_key(&self.slot)?, &self.values.to_bytes(value))
    }
}
