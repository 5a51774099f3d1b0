//! `memory://`, `memory+sharded://` and `file://`: ordered maps in the process.
//!
//! A checkpoint writes the entries that changed since the one before, and everything again when the changes would come to
//! as many bytes as that. A capture that was not persisted is followed by one with everything.
//!
//! An operator's entries lie in segments that a capture of everything shares: a write to a shared segment copies it first.
//! With `memory://` there is one segment for each operator, so the first write after such a capture copies all; with
//! `memory+sharded://` there is one for each key group, so it copies a 128th. Both write the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::backend::{Capture, KeyRange, StateBackend, VisitUntil, WriteBatch};
use super::changelog::{Change, encode, replay};
use super::overlay::Changes;
use super::restore::restore_arrow;
use super::share::Share;
use super::snapshot::{Content, Snapshot, SnapshotWriter, StateVersions};
use super::store::{Part, PartNames, PartStore};
use crate::types::{CheckpointId, Error, KEY_GROUPS, OperatorId, Result, SqlState};

/// Streams of changes that a snapshot may name before small ones are put together.
const CHANGES_MAX: usize = 8;
/// What a changed key takes in memory beside its bytes.
const CHANGED_BYTES: usize = 64;
/// What a change takes in a stream beside its bytes.
const ROW_BYTES: usize = 32;

type Segment = BTreeMap<Vec<u8>, Vec<u8>>;
type Operators = BTreeMap<OperatorId, Vec<Arc<Segment>>>;

/// Ordered maps in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryBackend {
    operators: Operators,
    sharded: bool,
    versions: StateVersions,
    checkpoints: Option<(Arc<dyn PartStore>, PartNames)>,
    written: Arc<Mutex<Written>>,
    /// The number of the last capture.
    captured: u64,
    /// Keys that were written since the last capture; `None`: the next one has everything.
    changed: Option<BTreeMap<OperatorId, BTreeSet<Vec<u8>>>>,
    changed_bytes: usize,
    /// The stamps are others than at the last capture.
    restamped: bool,
    /// Each capture has everything.
    whole: bool,
}

/// What the last persisted capture was written as.
#[derive(Debug, Default)]
struct Written {
    /// Its number; 0 is that of what was restored.
    capture: u64,
    all: Option<Part>,
    changes: Vec<Part>,
}

impl Written {
    /// Bytes of changes that may come before everything is written again.
    fn room(&self) -> usize {
        let changes = self.changes.iter().map(|part| part.bytes).sum();
        let left = self.all.as_ref().map_or(0, |part| part.bytes.saturating_sub(changes));
        usize::try_from(left).unwrap_or(usize::MAX)
    }
}

fn lock(written: &Mutex<Written>) -> MutexGuard<'_, Written> {
    written.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryBackend {
    /// One whose checkpoints are written to `store`. With `sharded`, a write after a capture copies at most the entries
    /// of a key group.
    pub fn new(store: Arc<dyn PartStore>, names: PartNames, sharded: bool) -> MemoryBackend {
        MemoryBackend { sharded, checkpoints: Some((store, names)), ..MemoryBackend::default() }
    }

    /// The same, whose every snapshot is one stream of all entries: the changes are kept elsewhere.
    #[must_use]
    pub fn whole(self) -> MemoryBackend {
        MemoryBackend { whole: true, ..self }
    }

    /// Number of entries of an operator.
    pub fn entries(&self, operator: OperatorId) -> usize {
        self.operators.get(&operator).map_or(0, |segments| segments.iter().map(|segment| segment.len()).sum())
    }

    fn segment(&self, key: &[u8]) -> usize {
        // An empty key comes first; operator state, which comes last, has a segment of its own.
        if self.sharded { key.first().map_or(0, |first| usize::from(*first).min(KEY_GROUPS)) } else { 0 }
    }

    /// Notes that keys change, as long as writing them alone is less than writing everything.
    fn note(&mut self, operator: OperatorId, batch: &WriteBatch) {
        let Some(changed) = &mut self.changed else { return };
        let keys = changed.entry(operator).or_default();
        for (key, value) in &batch.entries {
            if !keys.contains(key) {
                keys.insert(key.clone());
                self.changed_bytes += CHANGED_BYTES + key.len();
            }
            self.changed_bytes += value.as_ref().map_or(0, Vec::len);
        }
        let written = lock(&self.written);
        if written.capture == self.captured && self.changed_bytes > written.room() {
            self.changed = None;
        }
    }

    /// The changes since the last capture with their values, when that was persisted.
    fn changes(&mut self) -> Option<Vec<Change>> {
        if self.whole || lock(&self.written).capture != self.captured {
            return None;
        }
        let changed = self.changed.take()?;
        let value = |operator: &OperatorId, key: &[u8]| {
            self.operators.get(operator).and_then(|segments| segments[self.segment(key)].get(key).cloned())
        };
        let keys = changed.into_iter().flat_map(|(operator, keys)| keys.into_iter().map(move |key| (operator, key)));
        let change = |(operator, key): (OperatorId, Vec<u8>)| {
            let value = value(&operator, &key);
            Change { sqn: 0, operator, key, value }
        };
        Some(keys.map(change).collect())
    }
}

/// Writes the canonical stream of all entries.
fn encode_all(operators: &Operators, versions: &StateVersions, out: &mut dyn Write) -> Result<()> {
    let mut writer = SnapshotWriter::new(out, versions)?;
    for (operator, segments) in operators {
        for (key, value) in segments.iter().flat_map(|segment| segment.iter()) {
            writer.push(*operator, key, value)?;
        }
    }
    writer.finish().map(drop)
}

/// The changes of the last of some streams, as many as are small beside what comes, with that over them. The streams are
/// taken out.
fn put_together(store: &dyn PartStore, parts: &mut Vec<Part>, new: Vec<Change>) -> Result<Vec<Change>> {
    let length = |change: &Change| ROW_BYTES + change.key.len() + change.value.as_ref().map_or(0, Vec::len);
    let mut bytes = new.iter().map(length).sum::<usize>() as u64;
    let mut first = parts.len();
    while first > 0 && parts[first - 1].bytes <= bytes.saturating_mul(2).max(1 << 13) {
        first -= 1;
        bytes += parts[first].bytes;
    }
    let mut all: BTreeMap<OperatorId, Changes> = BTreeMap::new();
    for part in parts.drain(first..) {
        replay(&store.get(&part)?, 0..1, &mut |operator, key, value| {
            all.entry(operator).or_default().insert(key.to_vec(), value.map(<[u8]>::to_vec));
            Ok(())
        })?;
    }
    for change in new {
        all.entry(change.operator).or_default().insert(change.key, change.value);
    }
    let of = |(operator, changes): (OperatorId, Changes)| {
        changes.into_iter().map(move |(key, value)| Change { sqn: 0, operator, key, value })
    };
    Ok(all.into_iter().flat_map(of).collect())
}

impl StateBackend for MemoryBackend {
    fn get(&self, operator: OperatorId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(segments) = self.operators.get(&operator) else { return Ok(None) };
        Ok(segments[self.segment(key)].get(key).cloned())
    }

    fn apply(&mut self, operator: OperatorId, batch: WriteBatch) -> Result<()> {
        self.note(operator, &batch);
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
        let changes = self.changes();
        let restamped = std::mem::take(&mut self.restamped);
        (self.changed, self.changed_bytes) = ((!self.whole).then(BTreeMap::new), 0);
        self.captured += 1;
        let (capture, written, versions) = (self.captured, Arc::clone(&self.written), self.versions.clone());
        let Some(changes) = changes else {
            let operators = self.operators.clone();
            return Ok(Capture::new(checkpoint, move || {
                let fill = |out: &mut dyn Write| encode_all(&operators, &versions, out);
                let part = store.put_stream(&names.part(checkpoint, "state.arrow"), &fill)?;
                *lock(&written) = Written { capture, all: Some(part.clone()), changes: Vec::new() };
                Ok(Snapshot::new(checkpoint, Content::Arrow { part, changes: Vec::new() }))
            }));
        };
        Ok(Capture::new(checkpoint, move || {
            let (all, mut parts) = {
                let written = lock(&written);
                (written.all.clone(), written.changes.clone())
            };
            let part = all.ok_or_else(|| Error::internal("changes of nothing"))?;
            if !changes.is_empty() || restamped {
                let changes =
                    if parts.len() < CHANGES_MAX { changes } else { put_together(&*store, &mut parts, changes)? };
                let name = names.part(checkpoint, "changes.arrow");
                parts.push(store.put(&name, encode(&changes, &versions)?.into())?);
            }
            *lock(&written) = Written { capture, all: Some(part.clone()), changes: parts.clone() };
            Ok(Snapshot::new(checkpoint, Content::Arrow { part, changes: parts }))
        }))
    }

    fn restore(&mut self, from: &[Snapshot], share: Share) -> Result<()> {
        let (store, _) = self.checkpoints.clone().ok_or_else(|| Error::internal("no store to restore from"))?;
        let own = restore_arrow(self, &*store, from, share)?;
        let snapshot = from.get(share.worker()).filter(|snapshot| snapshot.groups.is_none());
        if self.whole || from.len() != share.workers() {
            return Ok(());
        }
        let Some(Content::Arrow { part, changes }) = snapshot.map(|snapshot| &snapshot.content) else { return Ok(()) };
        // The worker goes on with its own keyed entries; operator state has come together from all.
        let mut changed: BTreeMap<OperatorId, BTreeSet<Vec<u8>>> = BTreeMap::new();
        for (operator, key) in own {
            changed.entry(operator).or_default().insert(key);
        }
        for (operator, segments) in &self.operators {
            let keys = segments.iter().flat_map(|segment| segment.keys().filter(|key| Share::is_operator_state(key)));
            let keys: BTreeSet<Vec<u8>> = keys.cloned().collect();
            if !keys.is_empty() {
                changed.entry(*operator).or_default().extend(keys);
            }
        }
        self.changed = Some(changed);
        self.restamped = true;
        *lock(&self.written) = Written { capture: 0, all: Some(part.clone()), changes: changes.clone() };
        Ok(())
    }

    fn held_parts(&self) -> Vec<String> {
        let written = lock(&self.written);
        written.all.iter().chain(&written.changes).map(|part| part.name.clone()).collect()
    }

    fn versions(&self) -> &StateVersions {
        &self.versions
    }

    fn set_versions(&mut self, versions: StateVersions) {
        self.restamped |= self.versions != versions;
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
    fn a_checkpoint_writes_what_changed_and_everything_at_last() {
        let folder = tempfile::tempdir().expect("a folder");
        let store: Arc<dyn PartStore> =
            Arc::new(super::super::store::LocalStore::open(folder.path(), false, Default::default()).expect("opens"));
        let open = || MemoryBackend::new(Arc::clone(&store), PartNames::of_worker(0), true);
        let operator = OperatorId::from_u64(1);
        let key = |number: u32| [&[(number % 128) as u8, b's', b'|'][..], &number.to_be_bytes()].concat();
        let mut backend = open();
        for number in 0..10_000 {
            backend.put(operator, &key(number), &number.to_le_bytes()).expect("memory");
        }
        let snapshot = backend.snapshot(CheckpointId(1)).expect("persists");
        let whole: u64 = snapshot.parts().iter().map(|part| part.bytes).sum();
        let (mut sizes, mut parts_max, mut latest) = (Vec::new(), 0, snapshot);
        for checkpoint in 2..60_u64 {
            for number in 0..100 {
                let number = (checkpoint as u32 * 100 + number) % 10_000;
                match number % 10 {
                    0 => backend.erase(operator, &key(number)).expect("memory"),
                    _ => backend.put(operator, &key(number), &checkpoint.to_le_bytes()).expect("memory"),
                }
            }
            // One is never persisted: the next has everything.
            if checkpoint == 30 {
                drop(backend.capture(CheckpointId(checkpoint)).expect("captures"));
                continue;
            }
            let snapshot = backend.snapshot(CheckpointId(checkpoint)).expect("persists");
            let new = snapshot.parts().into_iter().filter(|part| !latest.parts().contains(part));
            sizes.push(new.map(|part| part.bytes).sum::<u64>());
            parts_max = parts_max.max(snapshot.parts().len());
            latest = snapshot;
            if checkpoint % 20 == 0 {
                let mut restored = open();
                restored.restore(std::slice::from_ref(&latest), Share::WHOLE).expect("restores");
                assert_eq!(restored.operators, backend.operators, "checkpoint {checkpoint}");
                // The restored one goes on in the middle.
                backend = restored;
                backend.captured = 0;
            }
        }
        assert!(sizes[0] * 20 < whole, "{sizes:?} of {whole}");
        assert!(sizes.iter().sum::<u64>() < 6 * whole, "{sizes:?} of {whole}");
        assert_eq!(sizes.iter().filter(|bytes| **bytes * 2 > whole).count(), 1, "{sizes:?}: after the dropped one");
        assert!(parts_max <= CHANGES_MAX + 6, "{parts_max}");
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
