//! What every restore does: read all workers' snapshots, keep the own share.

use std::collections::BTreeMap;

use super::backend::{StateBackend, WriteBatch};
use super::changelog::replay;
use super::operator_state::OperatorRows;
use super::share::Share;
use super::snapshot::{Content, Snapshot, SnapshotReader, StateVersions};
use super::store::PartStore;
use crate::types::{Error, OperatorId, Result, SqlState};

const BATCH_BYTES_MAX: usize = 4 << 20;

/// Writes the entries of a share into a fresh backend, in batches.
pub(super) struct Loader<'a> {
    backend: &'a mut dyn StateBackend,
    share: Share,
    operator_rows: OperatorRows,
    versions: StateVersions,
    operator: Option<OperatorId>,
    batch: WriteBatch,
    bytes: usize,
}

impl<'a> Loader<'a> {
    pub(super) fn new(backend: &'a mut dyn StateBackend, share: Share) -> Loader<'a> {
        Loader {
            backend,
            share,
            operator_rows: OperatorRows::new(share),
            versions: StateVersions::default(),
            operator: None,
            batch: WriteBatch::default(),
            bytes: 0,
        }
    }

    /// Takes in an entry of the next worker's snapshot.
    pub(super) fn add(&mut self, operator: OperatorId, key: &[u8], value: &[u8]) -> Result<()> {
        if Share::is_operator_state(key) {
            return self.operator_rows.add(operator, key, value);
        }
        if !self.share.keeps(key) {
            return Ok(());
        }
        if self.operator != Some(operator) || self.bytes >= BATCH_BYTES_MAX {
            self.flush()?;
            self.operator = Some(operator);
        }
        self.batch.put(key.to_vec(), value.to_vec());
        self.bytes += key.len() + value.len();
        Ok(())
    }

    /// Takes in stamps of the next worker's snapshot.
    pub(super) fn add_versions(&mut self, versions: &StateVersions) -> Result<()> {
        self.versions.merge(versions)
    }

    fn flush(&mut self) -> Result<()> {
        self.bytes = 0;
        match self.operator {
            Some(operator) => self.backend.apply(operator, std::mem::take(&mut self.batch)),
            None => Ok(()),
        }
    }

    /// Writes what is left, and the operator state.
    pub(super) fn finish(mut self) -> Result<()> {
        self.flush()?;
        for (operator, batch) in self.operator_rows.finish()? {
            self.backend.apply(operator, batch)?;
        }
        self.backend.set_versions(self.versions);
        Ok(())
    }
}

/// Fills a fresh backend from canonical streams, one for each worker, in their order.
///
/// # Errors
/// XX001 when a stream is damaged or copies of operator state contradict each other.
pub fn import(backend: &mut dyn StateBackend, streams: &[&[u8]], share: Share) -> Result<()> {
    let mut loader = Loader::new(backend, share);
    for stream in streams {
        let reader = SnapshotReader::new(stream)?;
        loader.add_versions(reader.versions())?;
        reader.visit(&mut |operator, key, value| loader.add(operator, key, value))?;
    }
    loader.finish()
}

/// Fills a fresh backend from snapshots that are canonical streams with changes. Gives the keys of operator state in the
/// snapshot of the worker of the same number.
pub(super) fn restore_arrow(
    backend: &mut dyn StateBackend,
    store: &dyn PartStore,
    from: &[Snapshot],
    share: Share,
) -> Result<Vec<(OperatorId, Vec<u8>)>> {
    let mut loader = Loader::new(backend, share);
    let mut own = Vec::new();
    for (worker, snapshot) in from.iter().enumerate() {
        let Content::Arrow { part, changes } = &snapshot.content else { return Err(other_kind(snapshot, "arrow")) };
        let is_wanted = |key: &[u8]| snapshot.counts(key) && (Share::is_operator_state(key) || share.keeps(key));
        let mut add = |operator: OperatorId, key: &[u8], value: &[u8]| {
            if worker == share.worker() && Share::is_operator_state(key) {
                own.push((operator, key.to_vec()));
            }
            loader.add(operator, key, value)
        };
        // Stamps are those of the newest stream.
        let mut newest = None;
        let mut changed: BTreeMap<(OperatorId, Vec<u8>), Option<Vec<u8>>> = BTreeMap::new();
        for part in changes {
            let bytes = store.get(part)?;
            newest = Some(replay(&bytes, 0..1, &mut |operator, key, value| {
                if is_wanted(key) {
                    changed.insert((operator, key.to_vec()), value.map(<[u8]>::to_vec));
                }
                Ok(())
            })?);
        }
        let bytes = store.get(part)?;
        let reader = SnapshotReader::new(&bytes)?;
        let versions = newest.as_ref().unwrap_or(reader.versions()).clone();
        let mut place = (OperatorId::from_u64(0), Vec::new());
        reader.visit(&mut |operator, key, value| {
            if !is_wanted(key) {
                return Ok(());
            }
            place.0 = operator;
            place.1.clear();
            place.1.extend_from_slice(key);
            match changed.remove(&place) {
                Some(Some(value)) => add(operator, key, &value),
                Some(None) => Ok(()),
                None => add(operator, key, value),
            }
        })?;
        for ((operator, key), value) in changed {
            value.map_or(Ok(()), |value| add(operator, &key, &value))?;
        }
        loader.add_versions(&versions)?;
    }
    loader.finish()?;
    Ok(own)
}

/// The error for a snapshot that another backend wrote.
pub(super) fn other_kind(snapshot: &Snapshot, expected: &str) -> Error {
    Error::new(
        SqlState::InvalidParameterValue,
        format!("checkpoint {} holds state as {}, this backend reads {expected}", snapshot.checkpoint, snapshot.kind()),
    )
    .hint("Restore it with the backend that wrote it, and move the state with ALTER … SET (state_backend = …).")
}
