//! `memory://`, `memory+sharded://` and `file://`: ordered maps in the process, written whole at a checkpoint.
//!
//! An operator's entries lie in segments that a capture shares: a write to a shared segment copies it first. With
//! `memory://` there is one segment for each operator, so the first write after a capture copies all; with
//! `memory+sharded://` there is one for each key group, so it copies a 128th. Both write the same bytes.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::backend::{Capture, KeyRange, StateBackend, VisitUntil, WriteBatch};
use super::restore::restore_arrow;
use super::share::Share;
use super::snapshot::{Content, Snapshot, SnapshotWriter, StateVersions};
use super::store::{PartNames, PartStore};
use crate::types::{CheckpointId, Error, KEY_GROUPS, OperatorId, Result, SqlState};

type Segment = BTreeMap<Vec<u8>, Vec<u8>>;

/// Ordered maps in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryBackend {
    operators: BTreeMap<OperatorId, Vec<Arc<Segment>>>,
    sharded: bool,
    versions: StateVersions,
    checkpoints: Option<(Arc<dyn PartStore>, PartNames)>,
}

impl MemoryBackend {
    /// One whose checkpoints are written to `store`. With `sharded`, a write after a capture copies at most the entries
    /// of a key group.
    pub fn new(store: Arc<dyn PartStore>, names: PartNames, sharded: bool) -> MemoryBackend {
        MemoryBackend { sharded, checkpoints: Some((store, names)), ..MemoryBackend::default() }
    }

    /// Number of entries of an operator.
    pub fn entries(&self, operator: OperatorId) -> usize {
        self.operators.get(&operator).map_or(0, |segments| segments.iter().map(|segment| segment.len()).sum())
    }

    fn segment(&self, key: &[u8]) -> usize {
        // An empty key comes first; operator state, which comes last, has a segment of its own.
        if self.sharded { key.first().map_or(0, |first| usize::from(*first).min(KEY_GROUPS)) } else { 0 }
    }

    /// The canonical stream of all entries.
    ///
    /// # Errors
    /// When a value outgrows the format.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut writer = SnapshotWriter::new(Vec::new(), &self.versions)?;
        for (operator, segments) in &self.operators {
            for (key, value) in segments.iter().flat_map(|segment| segment.iter()) {
                writer.push(*operator, key, value)?;
            }
        }
        writer.finish()
    }
}

impl StateBackend for MemoryBackend {
    fn get(&self, operator: OperatorId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(segments) = self.operators.get(&operator) else { return Ok(None) };
        Ok(segments[self.segment(key)].get(key).cloned())
    }

    fn apply(&mut self, operator: OperatorId, batch: WriteBatch) -> Result<()> {
        let segments = if self.sharded { KEY_GROUPS + 1 } else { 1 };
        let empty = || std::iter::repeat_with(Arc::default).take(segments).collect::<Vec<Arc<Segment>>>();
        let mut entries = self.operators.remove(&operator).unwrap_or_else(empty);
        for (key, value) in batch.entries {
            let segment = Arc::make_mut(&mut entries[self.segment(&key)]);
            match value {
                Some(value) => segment.insert(key, value),
                None => segment.remove(&key),
            };
        }
        self.operators.insert(operator, entries);
        Ok(())
    }

    fn scan_range(&self, operator: OperatorId, range: &KeyRange, visit: &mut VisitUntil<'_>) -> Result<()> {
        let Some(segments) = self.operators.get(&operator).filter(|_| !range.is_empty()) else { return Ok(()) };
        let to = range.to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let last = range.to.as_deref().map_or(segments.len() - 1, |to| self.segment(to));
        for segment in &segments[self.segment(&range.from)..=last] {
            for (key, value) in segment.range::<[u8], _>((Bound::Included(range.from.as_slice()), to)) {
                if visit(key, value)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn operators(&self) -> Result<Vec<OperatorId>> {
        Ok(self.operators.keys().copied().collect())
    }

    fn capture(&mut self, checkpoint: CheckpointId) -> Result<Capture> {
        let Some((store, names)) = self.checkpoints.clone() else {
            return Err(Error::new(SqlState::ObjectNotReady, "this state is kept in memory alone")
                .hint("Give the server a --checkpoint-dir."));
        };
        let frozen = self.clone();
        Ok(Capture::new(checkpoint, move || {
            let part = store.put(&names.part(checkpoint, "state.arrow"), frozen.encode()?.into())?;
            Ok(Snapshot::new(checkpoint, Content::Arrow { part }))
        }))
    }

    fn restore(&mut self, from: &[Snapshot], share: Share) -> Result<()> {
        let (store, _) = self.checkpoints.clone().ok_or_else(|| Error::internal("no store to restore from"))?;
        restore_arrow(self, &*store, from, share)
    }

    fn versions(&self) -> &StateVersions {
        &self.versions
    }

    fn set_versions(&mut self, versions: StateVersions) {
        self.versions = versions;
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
        assert_eq!(backend.capture(CheckpointId(1)).expect_err("nowhere").code(), SqlState::ObjectNotReady);
    }

    #[test]
    fn a_write_after_a_capture_copies_one_group() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = super::super::store::LocalStore::open(folder.path(), false, Default::default()).expect("opens");
        let mut backend = MemoryBackend::new(Arc::new(store), PartNames::of_worker(0), true);
        let operator = OperatorId::from_u64(1);
        for group in 0..128_u8 {
            backend.put(operator, &[group, b's', b'|', 1], b"v").expect("memory");
        }
        let capture = backend.capture(CheckpointId(1)).expect("captures");
        backend.put(operator, &[5, b's', b'|', 2], b"v").expect("memory");
        let copied = backend.operators[&operator].iter().filter(|segment| Arc::strong_count(segment) == 1).count();
        // The written one, and the last, of operator state, which is shared too.
        assert_eq!(copied, 1);
        drop(capture);
    }
}
