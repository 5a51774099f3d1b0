//! Bytes in, bytes out: the contract of every store of state.

use std::ops::ControlFlow;

use futures::future::{BoxFuture, FutureExt, ready};

use super::share::Share;
use super::snapshot::{Snapshot, StateVersions};
use crate::types::{CheckpointId, OperatorId, Result};

/// Changes that belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteBatch {
    /// Keys with their new value; `None` erases.
    pub entries: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl WriteBatch {
    /// Sets a key's value.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.entries.push((key, Some(value)));
    }

    /// Erases a key; nothing happens when it is not there.
    pub fn erase(&mut self, key: Vec<u8>) {
        self.entries.push((key, None));
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.entries.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len)).sum()
    }
}

/// Keys from `from` up to, not including, `to`; without `to`, all keys from there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key.
    pub from: Vec<u8>,
    /// The first key behind the range.
    pub to: Option<Vec<u8>>,
}

impl KeyRange {
    /// Every key.
    pub fn all() -> KeyRange {
        KeyRange::default()
    }

    /// The keys that start with `prefix`.
    pub fn of_prefix(prefix: &[u8]) -> KeyRange {
        // The successor is the prefix with its last byte that can grow grown.
        let to = prefix.iter().rposition(|byte| *byte < u8::MAX).map(|last| {
            let mut to = prefix[..=last].to_vec();
            to[last] += 1;
            to
        });
        KeyRange { from: prefix.to_vec(), to }
    }

    /// Whether a key lies in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.from.as_slice() && self.to.as_deref().is_none_or(|to| key < to)
    }

    /// True when no key can lie in it.
    pub fn is_empty(&self) -> bool {
        self.to.as_deref().is_some_and(|to| to <= self.from.as_slice())
    }
}

/// What is told of each entry of a scan: its key and its value.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// As [`Visit`], and tells whether to go on.
pub type VisitUntil<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>> + 'a;

/// What is told of each entry of all operators.
pub type VisitEntry<'a> = dyn FnMut(OperatorId, &[u8], &[u8]) -> Result<()> + 'a;

/// Values of keys, in the order of the keys.
pub type Values = Vec<Option<Vec<u8>>>;

/// A checkpoint's cut, detached from the backend: made on the worker's thread, persisted on another.
///
/// One that fails, or that is dropped without having been persisted, loses nothing: what it held is part of the
/// backend's next capture.
pub struct Capture {
    checkpoint: CheckpointId,
    persist: Box<dyn FnOnce() -> Result<Snapshot> + Send>,
}

impl Capture {
    /// A cut and how it is made durable.
    pub fn new(checkpoint: CheckpointId, persist: impl FnOnce() -> Result<Snapshot> + Send + 'static) -> Capture {
        Capture { checkpoint, persist: Box::new(persist) }
    }

    /// The checkpoint it belongs to.
    pub fn checkpoint(&self) -> CheckpointId {
        self.checkpoint
    }

    /// Makes it durable; may take long. Only when this has returned may the checkpoint be acknowledged.
    ///
    /// # Errors
    /// When a part cannot be written.
    pub fn persist(self) -> Result<Snapshot> {
        (self.persist)()
    }
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture").field("checkpoint", &self.checkpoint).finish_non_exhaustive()
    }
}

/// Stores bytes per (operator, key), each worker its own.
///
/// **Entries.** Called from one thread at a time. A write is seen by every later read of the same backend. Keys of one
/// operator are ordered as bytes. Keys and values are opaque, but that a key's first byte is its key group, `0..128`;
/// an empty key and one whose first byte is greater is *operator state*. An empty value is a value and not an absence.
///
/// **Checkpoints.** `capture` fixes what the state is now, on the worker's thread and without waiting for storage
/// where [`Self::supports_async_persist`] says so; [`Capture::persist`] writes it, on any thread, while the worker goes
/// on. Writes after `capture` are not in it. Captures are persisted in the order in which they were made; a
/// checkpoint's id is greater than those before, and never used twice. What `persist` returns names all that a restore
/// needs. Parts belong to nobody until a manifest names them, and are deleted by whoever keeps the manifests.
///
/// **Restore.** `restore` is called at most once, before any other call, with the snapshots of *all* workers of one
/// checkpoint, in the order of the workers. Keyed entries outside the share are left out; operator state of all is
/// merged by its form (see `operator_state`). A backend restores snapshots of its own kind; another kind moves through
/// [`Self::export`] and [`super::import`].
pub trait StateBackend: Send {
    /// The value of a key, `None` when absent.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn get(&self, operator: OperatorId, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Applies all changes of a batch, in order: a later one of the same key wins.
    ///
    /// # Errors
    /// When the store cannot be written; then any part of the batch may be there.
    fn apply(&mut self, operator: OperatorId, batch: WriteBatch) -> Result<()>;

    /// Visits the entries of a range of keys, in key order, until `visit` breaks or fails.
    ///
    /// # Errors
    /// The error of `visit`, or that of a store that cannot be read.
    fn scan_range(&self, operator: OperatorId, range: &KeyRange, visit: &mut VisitUntil<'_>) -> Result<()>;

    /// The operators that may have entries, in order of their ids.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn operators(&self) -> Result<Vec<OperatorId>>;

    /// Fixes the present state as a checkpoint's cut.
    ///
    /// # Errors
    /// When that cannot be done; the state is as before.
    fn capture(&mut self, checkpoint: CheckpointId) -> Result<Capture>;

    /// Takes in the share of what was persisted.
    ///
    /// # Errors
    /// XX001 when a part is missing or damaged, or copies of operator state contradict each other; 22023 for snapshots
    /// of another kind. The backend is then of no use.
    fn restore(&mut self, from: &[Snapshot], share: Share) -> Result<()>;

    /// The stamps of what is stored: which type and version the values of a slot have.
    fn versions(&self) -> &StateVersions;

    /// Replaces the stamps; they are part of the next capture.
    fn set_versions(&mut self, versions: StateVersions);

    /// Whether `capture` hands the slow part to `persist`. When not, `capture` has done it all, and takes its time.
    fn supports_async_persist(&self) -> bool {
        true
    }

    /// Whether reads can wait for something slower than a local disk: then ask for many keys at once, and use
    /// [`Self::get_many_async`].
    fn supports_async_get(&self) -> bool {
        false
    }

    /// Sets one key's value.
    ///
    /// # Errors
    /// When the store cannot be written.
    fn put(&mut self, operator: OperatorId, key: &[u8], value: &[u8]) -> Result<()> {
        self.apply(operator, WriteBatch { entries: vec![(key.to_vec(), Some(value.to_vec()))] })
    }

    /// Erases one key.
    ///
    /// # Errors
    /// When the store cannot be written.
    fn erase(&mut self, operator: OperatorId, key: &[u8]) -> Result<()> {
        self.apply(operator, WriteBatch { entries: vec![(key.to_vec(), None)] })
    }

    /// The values of many keys, in their order.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn get_many(&self, operator: OperatorId, keys: &[&[u8]]) -> Result<Values> {
        keys.iter().map(|key| self.get(operator, key)).collect()
    }

    /// As [`Self::get`], without blocking the caller. Of what waits, requests with a smaller `deadline` go first. The
    /// answer is the state at the time of the call or later: whoever writes the key meanwhile lets the write win.
    fn get_async(
        &self,
        operator: OperatorId,
        key: Vec<u8>,
        deadline: u64,
    ) -> BoxFuture<'static, Result<Option<Vec<u8>>>> {
        let values = self.get_many_async(operator, vec![key], deadline);
        values.map(|values| values.map(|mut values| values.pop().flatten())).boxed()
    }

    /// As [`Self::get_many`], without blocking the caller; see [`Self::get_async`].
    fn get_many_async(
        &self,
        operator: OperatorId,
        keys: Vec<Vec<u8>>,
        _deadline: u64,
    ) -> BoxFuture<'static, Result<Values>> {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        ready(self.get_many(operator, &keys)).boxed()
    }

    /// Visits the entries whose key starts with `prefix`, in key order, until `visit` fails.
    ///
    /// # Errors
    /// The error of `visit`, or that of a store that cannot be read.
    fn scan(&self, operator: OperatorId, prefix: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        self.scan_range(operator, &KeyRange::of_prefix(prefix), &mut |key, value| {
            visit(key, value).map(ControlFlow::Continue)
        })
    }

    /// Captures and persists at once.
    ///
    /// # Errors
    /// Those of both.
    fn snapshot(&mut self, checkpoint: CheckpointId) -> Result<Snapshot> {
        self.capture(checkpoint)?.persist()
    }

    /// Visits every entry in order of (operator, key): the content of a canonical snapshot.
    ///
    /// # Errors
    /// The error of `visit`, or that of a store that cannot be read.
    fn export(&self, visit: &mut VisitEntry<'_>) -> Result<()> {
        for operator in self.operators()? {
            self.scan(operator, &[], &mut |key, value| visit(operator, key, value))?;
        }
        Ok(())
    }

    /// Names of parts that later snapshots may refer to without writing them again: a sweep spares them.
    fn held_parts(&self) -> Vec<String> {
        Vec::new()
    }

    /// Allows to drop values of a slot with expiry whose deadline is at or before `horizon`, in milliseconds: they
    /// were reported as expired. Dropping them is a permission and no duty.
    fn set_expired(&mut self, _operator: OperatorId, _slot: &str, _horizon: i64) {}

    /// Writes a base of all state now, where the backend keeps a log of changes; nothing for others.
    ///
    /// # Errors
    /// When that cannot be started.
    fn materialize(&mut self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_a_range() {
        assert_eq!(KeyRange::of_prefix(&[1, 2]), KeyRange { from: vec![1, 2], to: Some(vec![1, 3]) });
        assert_eq!(KeyRange::of_prefix(&[1, 0xFF]), KeyRange { from: vec![1, 0xFF], to: Some(vec![2]) });
        assert_eq!(KeyRange::of_prefix(&[0xFF]), KeyRange { from: vec![0xFF], to: None });
        assert_eq!(KeyRange::of_prefix(&[]), KeyRange::all());
        assert!(KeyRange::of_prefix(&[1, 0xFF]).contains(&[1, 0xFF, 0]));
        assert!(!KeyRange::of_prefix(&[1, 0xFF]).contains(&[2]));
    }
}
