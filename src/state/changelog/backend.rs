//! The backend: a working store, its log and its base.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::super::backend::{Capture, KeyRange, StateBackend, Values, VisitUntil, WriteBatch};
use super::super::deferred::{Background, Deferred};
use super::super::operator_file::{self, OperatorFile};
use super::super::operator_state::OperatorRows;
use super::super::restore::other_kind;
use super::super::share::Share;
use super::super::snapshot::{Content, LogSegment, Snapshot, StateVersions};
use super::super::store::{PartNames, PartStore};
use super::log::Log;
use super::segment::replay;
use crate::types::{CheckpointId, Error, OperatorId, Result};

/// Settings of a changelog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangelogOptions {
    /// Bytes of changes since the last base that make a checkpoint begin a new one; at least half of what the last one
    /// wrote, so that bases cost no more than the changes.
    pub materialization_threshold_bytes: usize,
    /// Bytes of changes that go up without waiting for a checkpoint.
    pub upload_bytes: usize,
    /// Whether changes of a key are folded while nothing has sampled them.
    pub log_compaction: bool,
}

impl Default for ChangelogOptions {
    fn default() -> ChangelogOptions {
        ChangelogOptions { materialization_threshold_bytes: 64 << 10, upload_bytes: 1 << 20, log_compaction: true }
    }
}

/// What lies under the log: snapshots of the working store without the changes from `from` on.
struct Base {
    from: u64,
    snapshots: Vec<Snapshot>,
}

/// A working store with a log of changes.
pub struct ChangelogBackend {
    inner: Box<dyn StateBackend>,
    store: Arc<dyn PartStore>,
    names: PartNames,
    options: ChangelogOptions,
    background: Background,
    log: Log,
    base: Base,
    next_base: Option<(u64, Arc<Deferred<Snapshot>>)>,
    /// Bytes of changes since the base was sampled.
    logged_bytes: usize,
    /// Bytes that the base wrote and the one before had not.
    base_bytes: u64,
    /// A restored base holds more than its share: a new one is due.
    base_is_foreign: bool,
    operator_file: OperatorFile,
}

impl ChangelogBackend {
    /// A log in `store` over a working store, whose own snapshots must be named behind [`Self::base_prefix`].
    /// `life` is a number that no earlier backend of the job had.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(
        inner: Box<dyn StateBackend>,
        store: Arc<dyn PartStore>,
        worker: usize,
        life: u64,
        options: ChangelogOptions,
    ) -> Result<ChangelogBackend> {
        let log = Log::new(Arc::clone(&store), format!("log/{life}-w{worker}/"), options.log_compaction);
        Ok(ChangelogBackend {
            inner,
            store,
            names: PartNames::of_worker(worker),
            options,
            background: Background::start("state-upload")?,
            log,
            base: Base { from: 0, snapshots: Vec::new() },
            next_base: None,
            logged_bytes: 0,
            base_bytes: 0,
            base_is_foreign: false,
            operator_file: OperatorFile::default(),
        })
    }

    /// What the names of the working store's snapshots begin with: bases are numbered by sequence number, which
    /// begins anew in each life.
    pub fn base_prefix(life: u64) -> String {
        format!("base/{life}-")
    }

    /// Takes a base that has become durable into use, and forgets one that failed.
    fn adopt_base(&mut self) {
        let Some((from, outcome)) = self.next_base.as_ref().and_then(|(from, base)| Some((*from, base.outcome()?)))
        else {
            return;
        };
        self.next_base = None;
        match outcome {
            Ok(snapshot) => {
                self.log.truncate(from);
                // Links of the same file have other names.
                let before: BTreeSet<(u64, u32)> = self
                    .base
                    .snapshots
                    .iter()
                    .flat_map(Snapshot::parts)
                    .map(|part| (part.bytes, part.crc32c))
                    .collect();
                let new = snapshot.parts().into_iter().filter(|part| !before.contains(&(part.bytes, part.crc32c)));
                self.base_bytes = new.map(|part| part.bytes).sum();
                self.base = Base { from, snapshots: vec![snapshot.narrowed(Share::WHOLE)] };
                self.base_is_foreign = false;
            }
            // The old base and all segments since are still there; the next checkpoint begins another.
            Err(error) => {
                tracing::warn!(%error, "a base of the state's changelog could not be written");
                self.base_bytes = 0;
                self.logged_bytes = self.logged_bytes.max(self.options.materialization_threshold_bytes);
            }
        }
    }

    fn begin_base(&mut self) -> Result<()> {
        if self.next_base.is_some() {
            return Ok(());
        }
        let from = self.log.sample();
        let mut capture = Some(self.inner.capture(CheckpointId(from))?);
        let base = Deferred::new(move || {
            capture.take().map_or_else(|| Err(Error::internal("the base was abandoned")), Capture::persist)
        });
        self.background.begin(&base);
        self.next_base = Some((from, base));
        self.logged_bytes = 0;
        Ok(())
    }

    /// Waits for the base that is under way.
    #[cfg(test)]
    pub(super) fn finish_base(&mut self) {
        if let Some((_, base)) = &self.next_base {
            base.force().expect("persists");
            self.adopt_base();
        }
    }

    #[cfg(test)]
    pub(super) fn log(&self) -> &Log {
        &self.log
    }

    /// Replays the logs of snapshots, the innermost first, on the restored bases.
    fn replay(&mut self, snapshot: &Snapshot, share: Share) -> Result<()> {
        let Content::Changelog { base, segments, .. } = &snapshot.content else { return Ok(()) };
        for base in base {
            self.replay(&narrowed_by(base, snapshot), share)?;
        }
        let ours = snapshot.narrowed(share);
        for segment in segments {
            let bytes = self.store.get(&segment.part)?;
            let (mut operator, mut batch) = (None, WriteBatch::default());
            let inner = &mut self.inner;
            let mut flush = |operator: Option<OperatorId>, batch: &mut WriteBatch| match operator {
                Some(operator) => inner.apply(operator, std::mem::take(batch)),
                None => Ok(()),
            };
            replay(&bytes, segment.from..segment.to, &mut |changed, key, value| {
                if ours.counts(key) {
                    if operator != Some(changed) {
                        flush(operator, &mut batch)?;
                        operator = Some(changed);
                    }
                    batch.entries.push((key.to_vec(), value.map(<[u8]>::to_vec)));
                }
                Ok(())
            })?;
            flush(operator, &mut batch)?;
        }
        Ok(())
    }
}

/// A base under a snapshot that may itself be narrowed.
fn narrowed_by(base: &Snapshot, outer: &Snapshot) -> Snapshot {
    let mut base = base.narrowed(Share::WHOLE);
    if let (Some((first, behind)), Some(groups)) = (outer.groups, &mut base.groups) {
        groups.0 = groups.0.max(first);
        groups.1 = groups.1.min(behind).max(groups.0);
    }
    base
}

/// The snapshots of working stores at the bottom.
fn bottom(snapshot: &Snapshot, found: &mut Vec<Snapshot>) {
    match &snapshot.content {
        Content::Changelog { base, .. } => base.iter().for_each(|base| bottom(&narrowed_by(base, snapshot), found)),
        _ => found.push(snapshot.clone()),
    }
}

impl StateBackend for ChangelogBackend {
    fn get(&self, operator: OperatorId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.inner.get(operator, key)
    }

    fn get_many(&self, operator: OperatorId, keys: &[&[u8]]) -> Result<Values> {
        self.inner.get_many(operator, keys)
    }

    fn supports_async_get(&self) -> bool {
        self.inner.supports_async_get()
    }

    fn get_many_async(
        &self,
        operator: OperatorId,
        keys: Vec<Vec<u8>>,
        deadline: u64,
    ) -> BoxFuture<'static, Result<Values>> {
        self.inner.get_many_async(operator, keys, deadline)
    }

    fn apply(&mut self, operator: OperatorId, batch: WriteBatch) -> Result<()> {
        for (key, value) in &batch.entries {
            if Share::is_operator_state(key) {
                self.operator_file.touch();
            } else {
                self.log.append(operator, key, value.as_deref());
            }
        }
        self.logged_bytes += batch.bytes();
        if self.log.open_bytes() >= self.options.upload_bytes
            && let Some(segment) = self.log.close()
        {
            self.background.begin(&segment.upload);
        }
        self.inner.apply(operator, batch)
    }

    fn scan_range(&self, operator: OperatorId, range: &KeyRange, visit: &mut VisitUntil<'_>) -> Result<()> {
        self.inner.scan_range(operator, range, visit)
    }

    fn operators(&self) -> Result<Vec<OperatorId>> {
        self.inner.operators()
    }

    fn capture(&mut self, checkpoint: CheckpointId) -> Result<Capture> {
        self.adopt_base();
        let enough = self.logged_bytes >= self.options.materialization_threshold_bytes
            && self.logged_bytes as u64 >= self.base_bytes / 2;
        if self.base_is_foreign || enough {
            self.begin_base()?;
        }
        self.log.close();
        let segments = self.log.segments(self.base.from);
        segments.iter().for_each(|segment| self.background.begin(&segment.upload));
        let base = self.base.snapshots.clone();
        let mut operator_file = std::mem::take(&mut self.operator_file);
        let name = self.names.part(checkpoint, "operators.arrow");
        let operator_state = operator_file.capture(&*self.inner, &self.store, name);
        self.operator_file = operator_file;
        let operator_state = operator_state?;
        Ok(Capture::new(checkpoint, move || {
            let operator_state = operator_state.force()?;
            let uploaded = |segment: &super::log::Segment| {
                let part = segment.upload.force()?;
                Ok(LogSegment { from: segment.range.start, to: segment.range.end, part })
            };
            let segments = segments.iter().map(uploaded).collect::<Result<_>>()?;
            Ok(Snapshot::new(checkpoint, Content::Changelog { base, segments, operator_state }))
        }))
    }

    fn restore(&mut self, from: &[Snapshot], share: Share) -> Result<()> {
        let (mut bases, mut operator_rows) = (Vec::new(), OperatorRows::new(share));
        let mut versions = StateVersions::default();
        for snapshot in from {
            let Content::Changelog { operator_state, .. } = &snapshot.content else {
                return Err(other_kind(snapshot, "changelog"));
            };
            bottom(snapshot, &mut bases);
            operator_file::read(&*self.store, operator_state, &mut operator_rows, &mut versions)?;
        }
        if !bases.is_empty() {
            self.inner.restore(&bases, share)?;
        }
        for snapshot in from {
            self.replay(snapshot, share)?;
        }
        for (operator, batch) in operator_rows.finish()? {
            self.inner.apply(operator, batch)?;
        }
        self.inner.set_versions(versions);
        let narrowed = from.iter().map(|snapshot| snapshot.narrowed(share));
        let snapshots = narrowed.filter(|snapshot| snapshot.groups.is_none_or(|(first, behind)| first < behind));
        self.base = Base { from: 0, snapshots: snapshots.collect() };
        self.base_is_foreign = true;
        Ok(())
    }

    fn versions(&self) -> &StateVersions {
        self.inner.versions()
    }

    fn set_versions(&mut self, versions: StateVersions) {
        self.operator_file.touch();
        self.inner.set_versions(versions);
    }

    fn held_parts(&self) -> Vec<String> {
        let base = self.base.snapshots.iter().flat_map(Snapshot::parts).map(|part| part.name.clone());
        let next = self.next_base.iter().filter_map(|(_, base)| base.outcome()?.ok());
        let next =
            next.flat_map(|snapshot| snapshot.parts().into_iter().map(|part| part.name.clone()).collect::<Vec<_>>());
        let log = self.log.parts().chain(self.operator_file.part()).map(|part| part.name);
        base.chain(next).chain(log).chain(self.inner.held_parts()).collect()
    }

    fn set_expired(&mut self, operator: OperatorId, slot: &str, horizon: i64) {
        self.inner.set_expired(operator, slot, horizon);
    }

    fn materialize(&mut self) -> Result<()> {
        self.adopt_base();
        self.begin_base()
    }
}
