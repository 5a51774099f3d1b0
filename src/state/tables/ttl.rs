//! Values with an expiry.
//!
//! A value is stored as `[i64 LE deadline in milliseconds][value]`; beside it lies an entry of the *expiry index*,
//! `[key group][slot "#ttl|"][u64 BE deadline with its sign flipped][key]`, so that a sweep reads only what is due, in order of
//! deadlines. A value is expired when its deadline is at or before now, and then it is never reported. *Now* is the
//! caller's: a time of the clock, or the watermark for event time, which says nothing before the first.

use super::super::backend::{KeyRange, StateBackend, WriteBatch};
use super::super::layout::{check_slot, head, split_value_key, value_key};
use super::super::share::Share;
use super::codec::{Codec, damaged};
use crate::types::{Error, KEY_GROUPS, KeyGroup, OperatorId, Result, SqlState};

const FORM: &str = "#ttl";

/// What sets a value's deadline anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// Writing it.
    OnWrite,
    /// Writing or reading it.
    OnReadAndWrite,
}

/// How long the values of a slot live.
#[derive(Clone, Copy, Debug)]
pub struct TtlConfig {
    /// Milliseconds from the write, or the last read.
    pub lifetime_millis: i64,
    /// What begins a new life.
    pub refresh: Refresh,
}

impl TtlConfig {
    /// Checks a lifetime.
    ///
    /// # Errors
    /// 22023 when it is not positive.
    pub fn new(lifetime_millis: i64, refresh: Refresh) -> Result<TtlConfig> {
        if lifetime_millis <= 0 {
            return Err(Error::new(SqlState::InvalidParameterValue, "a time to live must be positive")
                .hint("Write for example '7 days' or '500 ms'."));
        }
        Ok(TtlConfig { lifetime_millis, refresh })
    }

    fn deadline(&self, now: i64) -> i64 {
        now.saturating_add(self.lifetime_millis)
    }
}

/// The stored form of a value with a deadline.
pub fn encode_expiring(deadline: i64, value: &[u8]) -> Vec<u8> {
    [&deadline.to_le_bytes(), value].concat()
}

/// Deadline and value of a stored form; `None` for fewer than 8 bytes, which count as absent.
pub fn decode_expiring(stored: &[u8]) -> Option<(i64, &[u8])> {
    let (deadline, value) = stored.split_first_chunk::<8>()?;
    Some((i64::from_le_bytes(*deadline), value))
}

/// What the index entries of a slot in a key group start with.
pub fn expiry_prefix(slot: &str, group: KeyGroup) -> Vec<u8> {
    head(slot, FORM, group)
}

/// The index entry of a key.
pub fn expiry_key(slot: &str, key: &[u8], deadline: i64) -> Vec<u8> {
    let mut stored = expiry_prefix(slot, KeyGroup::of(key));
    stored.extend(order(deadline));
    stored.extend(key);
    stored
}

/// The bytes of a number that sort as the numbers do.
fn order(number: i64) -> [u8; 8] {
    ((number as u64) ^ (1 << 63)).to_be_bytes()
}

/// A value for each key that expires.
#[derive(Debug)]
pub struct ExpiringValue<K, V> {
    operator: OperatorId,
    slot: String,
    keys: K,
    values: V,
    config: TtlConfig,
}

impl<K: Codec, V: Codec> ExpiringValue<K, V> {
    /// The table of an operator's slot.
    ///
    /// # Errors
    /// 22023 for a name that no slot can have.
    pub fn new(operator: OperatorId, slot: &str, keys: K, values: V, config: TtlConfig) -> Result<ExpiringValue<K, V>> {
        check_slot(slot)?;
        Ok(ExpiringValue { operator, slot: slot.to_owned(), keys, values, config })
    }

    /// A key's value, unless it is expired at `now`. With [`Refresh::OnReadAndWrite`], its life begins anew.
    ///
    /// # Errors
    /// When the store cannot be read or written, or the value is damaged.
    pub fn get(&self, backend: &mut dyn StateBackend, key: &K::Value, now: i64) -> Result<Option<V::Value>> {
        let key = self.keys.to_bytes(key);
        let Some(stored) = backend.get(self.operator, &value_key(&self.slot, &key))? else { return Ok(None) };
        let Some((deadline, value)) = decode_expiring(&stored).filter(|(deadline, _)| *deadline > now) else {
            return Ok(None);
        };
        let decoded = self.values.decode(value)?;
        if self.config.refresh == Refresh::OnReadAndWrite {
            self.store(backend, &key, Some(deadline), now, value)?;
        }
        Ok(Some(decoded))
    }

    /// Sets a key's value; its life begins at `now`.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub fn put(&self, backend: &mut dyn StateBackend, key: &K::Value, value: &V::Value, now: i64) -> Result<()> {
        let key = self.keys.to_bytes(key);
        let before = self.deadline(backend, &key)?;
        self.store(backend, &key, before, now, &self.values.to_bytes(value))
    }

    /// Erases a key.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub fn erase(&self, backend: &mut dyn StateBackend, key: &K::Value) -> Result<()> {
        let key = self.keys.to_bytes(key);
        let mut batch = WriteBatch::default();
        if let Some(deadline) = self.deadline(backend, &key)? {
            batch.erase(expiry_key(&self.slot, &key, deadline));
        }
        batch.erase(value_key(&self.slot, &key));
        backend.apply(self.operator, batch)
    }

    fn deadline(&self, backend: &dyn StateBackend, key: &[u8]) -> Result<Option<i64>> {
        let stored = backend.get(self.operator, &value_key(&self.slot, key))?;
        Ok(stored.as_deref().and_then(decode_expiring).map(|(deadline, _)| deadline))
    }

    fn store(
        &self,
        backend: &mut dyn StateBackend,
        key: &[u8],
        before: Option<i64>,
        now: i64,
        value: &[u8],
    ) -> Result<()> {
        let deadline = self.config.deadline(now);
        let mut batch = WriteBatch::default();
        if let Some(before) = before.filter(|before| *before != deadline) {
            batch.erase(expiry_key(&self.slot, key, before));
        }
        batch.put(expiry_key(&self.slot, key, deadline), Vec::new());
        batch.put(value_key(&self.slot, key), encode_expiring(deadline, value));
        backend.apply(self.operator, batch)
    }

    /// Takes out up to `max` values that are expired at `now`, in order of (deadline, key), and tells of each, so that it
    /// can be retracted. Gives whether all that were due are gone. Only after that may the store drop by itself what was
    /// due, which it is told.
    ///
    /// # Errors
    /// When the store cannot be read or written; the error of `expire`.
    pub fn sweep(
        &self,
        backend: &mut dyn StateBackend,
        share: Share,
        now: i64,
        max: usize,
        expire: &mut dyn FnMut(K::Value, V::Value) -> Result<()>,
    ) -> Result<bool> {
        // The first of each group; of these the first of all.
        let mut due: Vec<(i64, Vec<u8>)> = Vec::new();
        for group in share.groups() {
            let prefix = expiry_prefix(&self.slot, KeyGroup::new(group));
            let to = now.checked_add(1).map(|behind| [&prefix[..], &order(behind)].concat());
            let range = KeyRange { from: prefix.clone(), to: to.or_else(|| KeyRange::of_prefix(&prefix).to) };
            let mut left = max.saturating_add(1);
            backend.scan_range(self.operator, &range, &mut |stored, _| {
                let rest = stored.get(prefix.len()..).and_then(|rest| rest.split_first_chunk::<8>());
                let (deadline, key) = rest.ok_or_else(|| damaged("expiry entry"))?;
                due.push(((u64::from_be_bytes(*deadline) ^ (1 << 63)) as i64, key.to_vec()));
                left -= 1;
                Ok(if left == 0 { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) })
            })?;
        }
        due.sort_unstable();
        let is_all = due.len() <= max;
        due.truncate(max);
        let mut batch = WriteBatch::default();
        for (deadline, key) in &due {
            let stored = value_key(&self.slot, key);
            batch.erase(expiry_key(&self.slot, key, *deadline));
            let value = backend.get(self.operator, &stored)?;
            // An entry of a life that a later write ended without having seen it says nothing.
            if let Some((_, value)) = value.as_deref().and_then(decode_expiring).filter(|(d, _)| d == deadline) {
                expire(self.keys.decode(key)?, self.values.decode(value)?)?;
                batch.erase(stored);
            }
        }
        backend.apply(self.operator, batch)?;
        if is_all {
            backend.set_expired(self.operator, &self.slot, now);
        }
        Ok(is_all)
    }

    /// Values and index entries that are stored, expired ones included: for gauges and tests.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn stored(&self, backend: &dyn StateBackend) -> Result<(usize, usize)> {
        let (mut values, mut entries) = (0, 0);
        for group in (0..KEY_GROUPS).map(KeyGroup::new) {
            let prefix = super::super::layout::slot_prefix(&self.slot, group);
            backend.scan(self.operator, &prefix, &mut |stored, _| {
                values += usize::from(split_value_key(&self.slot, stored).is_some());
                Ok(())
            })?;
            backend.scan(self.operator, &expiry_prefix(&self.slot, group), &mut |_, _| {
                entries += 1;
                Ok(())
            })?;
        }
        Ok((values, entries))
    }
}
