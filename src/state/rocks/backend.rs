//! The backend over a [`Database`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use super::super::backend::{Capture, KeyRange, StateBackend, Values, VisitUntil, WriteBatch};
use super::super::deferred::Deferred;
use super::super::operator_file::{self, OperatorFile, operator_range};
use super::super::operator_state::OperatorRows;
use super::super::overlay::{Changes, Merged};
use super::super::restore::other_kind;
use super::super::share::Share;
use super::super::snapshot::{Content, RocksDbFile, Snapshot, StateVersions};
use super::super::store::{PartNames, PartStore};
use super::checkpoint::{Files, SnapshotStatistics};
use super::database::{Database, GO_ON};
use super::options::{RocksDbOptions, RocksDbShared};
use crate::types::{CheckpointId, KEY_GROUPS, OperatorId, Result};

/// From this many bytes of held writes on, a writer waits for the checkpoint's links.
const HELD_BYTES_MAX: usize = 64 << 20;

/// State in RocksDB.
pub struct RocksDbBackend {
    // Before the folder, which goes with its last user.
    database: Arc<Database>,
    folder: Arc<WorkFolder>,
    files: Arc<Files>,
    store: Arc<dyn PartStore>,
    names: PartNames,
    options: RocksDbOptions,
    shared: RocksDbShared,
    versions: StateVersions,
    operator_file: OperatorFile,
    held: Option<Held>,
}

/// The folder of working files. Captures have a part in it until they are persisted.
struct WorkFolder(PathBuf);

impl Drop for WorkFolder {
    fn drop(&mut self) {
        // What stays, the next process removes.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Writes after a capture whose links are not made yet.
struct Held {
    links: Arc<Deferred<()>>,
    changes: BTreeMap<OperatorId, Changes>,
    bytes: usize,
}

impl RocksDbBackend {
    /// An empty database in `folder`, which is cleared; checkpoints go to `store`. `life` is a number that no earlier
    /// backend of the job had.
    ///
    /// # Errors
    /// When the folder cannot be made or opened.
    pub fn open(
        folder: &Path,
        store: Arc<dyn PartStore>,
        names: PartNames,
        life: u64,
        options: RocksDbOptions,
        shared: RocksDbShared,
    ) -> Result<RocksDbBackend> {
        clear(folder)?;
        let database = Arc::new(Database::open(&folder.join("db"), &options, &shared)?);
        let files = Files::new(Arc::clone(&store), names.clone(), format!("sst/{life}-{}", names.worker_prefix()));
        Ok(RocksDbBackend {
            database,
            folder: Arc::new(WorkFolder(folder.to_owned())),
            files: Arc::new(files),
            store,
            names,
            options,
            shared,
            versions: StateVersions::default(),
            operator_file: OperatorFile::default(),
            held: None,
        })
    }

    /// What the last persisted snapshot cost.
    pub fn last_snapshot_statistics(&self) -> SnapshotStatistics {
        self.files.statistics()
    }

    /// Moves held writes into the database when the links are made, or nobody will make them. With `wait`, has them
    /// made first.
    fn settle(&mut self, wait: bool) -> Result<()> {
        let Some(held) = &self.held else { return Ok(()) };
        if wait && Arc::strong_count(&held.links) > 1 {
            // A failure is the snapshot thread's to report.
            let _ = held.links.force();
        }
        if held.links.outcome().is_none() && Arc::strong_count(&held.links) > 1 {
            return Ok(());
        }
        let changes = self.held.take().map(|held| held.changes).unwrap_or_default();
        changes.iter().try_for_each(|(operator, changes)| self.database.write_changes(*operator, changes))
    }

    #[cfg(test)]
    pub(super) fn compact(&self) {
        self.database.compact();
    }

    fn held(&self, operator: OperatorId) -> Option<&Changes> {
        self.held.as_ref()?.changes.get(&operator)
    }

    /// Opens the files of another worker beside the database and takes over its entries of the share.
    fn add_rows(&self, snapshot: &Snapshot, files: &[RocksDbFile], share: Share) -> Result<()> {
        let folder = self.folder.0.join("parent");
        clear(&folder)?;
        self.files.fetch(files, &folder.join("db"))?;
        let parent = Database::open(&folder.join("db"), &self.options, &self.shared)?;
        let groups = kept_groups(snapshot, share);
        // Groups are numbered below 128.
        let range = KeyRange { from: vec![groups.0 as u8], to: Some(vec![groups.1 as u8]) };
        for operator in parent.operators() {
            let mut batch = WriteBatch::default();
            let mut bytes = 0;
            let write = |batch: &mut WriteBatch| {
                let entries = std::mem::take(&mut batch.entries);
                self.database.write(operator, entries.iter().map(|(key, value)| (key.as_slice(), value.as_deref())))
            };
            parent.scan(operator, &range, &mut |key, value| {
                bytes += key.len() + value.len();
                batch.put(key.to_vec(), value.to_vec());
                if bytes >= 1 << 20 {
                    bytes = 0;
                    write(&mut batch)?;
                }
                Ok(GO_ON)
            })?;
            write(&mut batch)?;
        }
        drop(parent);
        clear(&folder)
    }
}

/// The groups of a snapshot that count for a share.
fn kept_groups(snapshot: &Snapshot, share: Share) -> (usize, usize) {
    snapshot.narrowed(share).groups.unwrap_or((0, KEY_GROUPS))
}

/// Makes an empty folder.
fn clear(folder: &Path) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    Ok(std::fs::create_dir_all(folder)?)
}

impl StateBackend for RocksDbBackend {
    fn get(&self, operator: OperatorId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.held(operator).and_then(|changes| changes.get(key)) {
            Some(change) => Ok(change.clone()),
            None => self.database.get(operator, key),
        }
    }

    fn get_many(&self, operator: OperatorId, keys: &[&[u8]]) -> Result<Values> {
        let mut values = self.database.get_many(operator, keys)?;
        if let Some(changes) = self.held(operator) {
            for (key, value) in keys.iter().zip(&mut values) {
                if let Some(change) = changes.get(*key) {
                    value.clone_from(change);
                }
            }
        }
        Ok(values)
    }

    fn apply(&mut self, operator: OperatorId, batch: WriteBatch) -> Result<()> {
        if batch.entries.iter().any(|(key, _)| Share::is_operator_state(key)) {
            self.operator_file.touch();
        }
        let full = self.held.as_ref().is_some_and(|held| held.bytes >= HELD_BYTES_MAX);
        self.settle(full)?;
        match &mut self.held {
            Some(held) => {
                held.bytes += batch.bytes();
                held.changes.entry(operator).or_default().extend(batch.entries);
                Ok(())
            }
            None => {
                let entries = batch.entries.iter().map(|(key, value)| (key.as_slice(), value.as_deref()));
                self.database.write(operator, entries)
            }
        }
    }

    fn scan_range(&self, operator: OperatorId, range: &KeyRange, visit: &mut VisitUntil<'_>) -> Result<()> {
        let mut stopped = false;
        let mut until = |key: &[u8], value: &[u8]| {
            let flow = visit(key, value)?;
            stopped = flow.is_break();
            Ok(flow)
        };
        let mut merged = Merged::new(self.held(operator), range, &mut until);
        let mut ended = false;
        self.database.scan(operator, range, &mut |key, value| {
            let flow = merged.older(key, value)?;
            ended = flow.is_break();
            Ok(flow)
        })?;
        if ended { Ok(()) } else { merged.finish() }
    }

    fn operators(&self) -> Result<Vec<OperatorId>> {
        let mut operators = self.database.operators();
        operators.extend(self.held.iter().flat_map(|held| held.changes.keys().copied()));
        operators.sort_unstable();
        operators.dedup();
        Ok(operators)
    }

    fn capture(&mut self, checkpoint: CheckpointId) -> Result<Capture> {
        // One set of held writes at a time: the capture before is persisted by now, unless captures come too fast.
        self.settle(true)?;
        let mut operator_file = std::mem::take(&mut self.operator_file);
        let name = self.names.part(checkpoint, "operators.arrow");
        let operator_state = operator_file.capture(&*self, &self.store, name);
        self.operator_file = operator_file;
        let operator_state = operator_state?;
        let staging = self.folder.0.join(format!("staging-{checkpoint}"));
        let (database, linked) = (Arc::clone(&self.database), staging.clone());
        let links = Deferred::new(move || {
            if linked.exists() {
                std::fs::remove_dir_all(&linked)?;
            }
            database.link_into(&linked)
        });
        self.held = Some(Held { links: Arc::clone(&links), changes: BTreeMap::new(), bytes: 0 });
        let (files, folder) = (Arc::clone(&self.files), Arc::clone(&self.folder));
        Ok(Capture::new(checkpoint, move || {
            // Until here, though the job may be gone.
            let _folder = folder;
            links.force()?;
            let operator_state = operator_state.force()?;
            let files = files.persist(checkpoint, &staging)?;
            std::fs::remove_dir_all(&staging)?;
            Ok(Snapshot::new(checkpoint, Content::RocksDb { files, operator_state }))
        }))
    }

    fn restore(&mut self, from: &[Snapshot], share: Share) -> Result<()> {
        let mut operator_rows = OperatorRows::new(share);
        let mut versions = StateVersions::default();
        let mut parents = Vec::new();
        for (worker, snapshot) in from.iter().enumerate() {
            let Content::RocksDb { files, operator_state } = &snapshot.content else {
                return Err(other_kind(snapshot, "rocksdb"));
            };
            let mut groups = kept_groups(snapshot, share);
            if snapshot.groups.is_none() {
                operator_file::read(&*self.store, operator_state, &mut operator_rows, &mut versions)?;
                // The writer kept a share too; nothing lies outside.
                let theirs = Share::new(worker, from.len())?.groups();
                groups = (groups.0.max(theirs.start), groups.1.min(theirs.end));
            }
            let overlap = groups.1.saturating_sub(groups.0);
            if overlap > 0 {
                parents.push((overlap, snapshot, files));
            }
        }
        let largest = (0..parents.len()).max_by_key(|index| parents[*index].0);
        if let Some((_, snapshot, files)) = largest.map(|index| parents.swap_remove(index)) {
            let folder = self.folder.0.join("restored");
            clear(&folder)?;
            self.files.fetch(files, &folder.join("db"))?;
            self.database = Arc::new(Database::open(&folder.join("db"), &self.options, &self.shared)?);
            self.files.adopt(files);
            let (first, behind) = kept_groups(snapshot, share);
            self.database.drop_range(&[], &[first as u8])?;
            self.database.drop_range(&[behind as u8], &[KEY_GROUPS as u8])?;
        }
        for operator in self.database.operators() {
            let mut stale = vec![Vec::new()];
            self.database.scan(operator, &operator_range(), &mut |key, _| {
                stale.push(key.to_vec());
                Ok(GO_ON)
            })?;
            self.database.write(operator, stale.iter().map(|key| (key.as_slice(), None)))?;
        }
        for (_, snapshot, files) in parents {
            self.add_rows(snapshot, files, share)?;
        }
        for (operator, batch) in operator_rows.finish()? {
            self.apply(operator, batch)?;
        }
        self.set_versions(versions);
        Ok(())
    }

    fn versions(&self) -> &StateVersions {
        &self.versions
    }

    fn set_versions(&mut self, versions: StateVersions) {
        self.operator_file.touch();
        // The stamps that count are those of the operator state's part; these are for other readers of the files.
        if let Err(error) = self.database.write_versions(&versions) {
            tracing::warn!(%error, "the stamps could not be written to RocksDB");
        }
        self.versions = versions;
    }

    fn held_parts(&self) -> Vec<String> {
        let mut held = self.files.held();
        held.extend(self.operator_file.part().map(|part| part.name));
        held
    }

    fn set_expired(&mut self, operator: OperatorId, slot: &str, horizon: i64) {
        let expired = self.database.expired(operator);
        let mut expired = expired.write().unwrap_or_else(PoisonError::into_inner);
        let known = expired.entry(slot.as_bytes().to_vec()).or_insert(i64::MIN);
        *known = horizon.max(*known);
    }
}
