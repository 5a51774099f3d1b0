//! Bytes in, bytes out.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::types::{OperatorId, Result};

/// Changes that belong together.
#[derive(Debug, Default)]
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
}

/// What is told of each entry of a scan: its key and its value.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// Stores bytes per (operator, key), each worker its own.
///
/// Called from one thread at a time. A write is seen by every later read of the same backend.
/// Keys of one operator are ordered as bytes. Keys and values are opaque; an empty value is a value
/// and not an absence.
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

    /// Visits the entries whose key starts with `prefix`, in key order, until `visit` fails.
    ///
    /// # Errors
    /// The error of `visit`, or that of a store that cannot be read.
    fn scan(&self, operator: OperatorId, prefix: &[u8], visit: &mut Visit<'_>) -> Result<()>;
}

/// `memory://`: ordered maps in the process.
#[derive(Debug, Default)]
pub struct MemoryBackend {
    operators: BTreeMap<OperatorId, BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl MemoryBackend {
    /// Number of entries of an operator.
    pub fn entries(&self, operator: OperatorId) -> usize {
        self.operators.get(&operator).map_or(0, BTreeMap::len)
    }
}

impl StateBackend for MemoryBackend {
    fn get(&self, operator: OperatorId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.operators.get(&operator).and_then(|entries| entries.get(key)).cloned())
    }

    fn apply(&mut self, operator: OperatorId, batch: WriteBatch) -> Result<()> {
        let entries = self.operators.entry(operator).or_default();
        for (key, value) in batch.entries {
            match value {
                Some(value) => entries.insert(key, value),
                None => entries.remove(&key),
            };
        }
        Ok(())
    }

    fn scan(&self, operator: OperatorId, prefix: &[u8], visit: &mut Visit<'_>) -> Result<()> {
        let Some(entries) = self.operators.get(&operator) else { return Ok(()) };
        for (key, value) in entries.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded)) {
            if !key.starts_with(prefix) {
                break;
            }
            visit(key, value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_operators_apart_and_scans_in_order() {
        let (a, b) = (OperatorId::of("public.v", "root"), OperatorId::of("public.v", "root/input"));
        let mut backend = MemoryBackend::default();
        let mut batch = WriteBatch::default();
        batch.put(vec![1, 2], vec![20]);
        batch.put(vec![1, 1], vec![]);
        batch.put(vec![2], vec![1]);
        batch.put(vec![1, 3], vec![30]);
        batch.erase(vec![1, 3]);
        backend.apply(a, batch).expect("memory");
        let mut seen = Vec::new();
        backend
            .scan(a, &[1], &mut |key, value| {
                seen.push((key.to_vec(), value.to_vec()));
                Ok(())
            })
            .expect("memory");
        assert_eq!(seen, vec![(vec![1, 1], vec![]), (vec![1, 2], vec![20])]);
        assert_eq!(backend.get(a, &[1, 1]).expect("memory"), Some(vec![]));
        assert_eq!(backend.get(b, &[1, 1]).expect("memory"), None);
    }
}
