//! One database: families by operator, reads, writes, scans.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use rocksdb::checkpoint::Checkpoint;
use rocksdb::{
    BoundColumnFamily, ColumnFamilyDescriptor, DBWithThreadMode, MultiThreaded, Options, ReadOptions,
    WriteBatch as RocksBatch, WriteOptions,
};

use super::super::backend::{KeyRange, Values, VisitUntil};
use super::super::overlay::Changes;
use super::super::snapshot::{SnapshotWriter, StateVersions};
use super::options::{Expired, RocksDbOptions, RocksDbShared, database_options, family_options};
use crate::types::{Error, OperatorId, Result, SqlState};

const DEFAULT_FAMILY: &str = "default";
const STAMPS_KEY: &[u8] = b"__clink.state_versions";
const BATCH_BYTES_MAX: usize = 1 << 20;

pub(super) fn failed(error: rocksdb::Error) -> Error {
    let code = match error.kind() {
        rocksdb::ErrorKind::Corruption => SqlState::DataCorrupted,
        _ => SqlState::IoError,
    };
    Error::new(code, format!("RocksDB: {error}"))
        .hint("Restart from the last checkpoint; check disk space and the state folder.")
}

fn family_name(operator: OperatorId) -> String {
    format!("op_{operator}")
}

fn family_operator(name: &str) -> Option<OperatorId> {
    let digits = name.strip_prefix("op_").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().map(OperatorId::from_u64)
}

/// An open database. Shared with the thread that makes checkpoints.
pub(super) struct Database {
    rocks: DBWithThreadMode<MultiThreaded>,
    options: RocksDbOptions,
    shared: RocksDbShared,
    expired: RwLock<BTreeMap<OperatorId, Expired>>,
    write: WriteOptions,
}

impl Database {
    /// Opens a folder with all its families, or makes it.
    pub(super) fn open(folder: &Path, options: &RocksDbOptions, shared: &RocksDbShared) -> Result<Database> {
        let database = database_options(options, shared);
        let names = if folder.join("CURRENT").exists() {
            DBWithThreadMode::<MultiThreaded>::list_cf(&database, folder).map_err(failed)?
        } else {
            vec![DEFAULT_FAMILY.to_owned()]
        };
        let mut expired = BTreeMap::new();
        let families: Vec<ColumnFamilyDescriptor> = names
            .into_iter()
            .map(|name| {
                let filter = Expired::default();
                if let Some(operator) = family_operator(&name) {
                    expired.insert(operator, Arc::clone(&filter));
                }
                ColumnFamilyDescriptor::new(name, family_options(options, shared, &filter))
            })
            .collect();
        let rocks = DBWithThreadMode::open_cf_descriptors(&database, folder, families).map_err(failed)?;
        let mut write = WriteOptions::default();
        write.disable_wal(true);
        let expired = RwLock::new(expired);
        Ok(Database { rocks, options: options.clone(), shared: shared.clone(), expired, write })
    }

    fn family(&self, operator: OperatorId) -> Option<Arc<BoundColumnFamily<'_>>> {
        self.rocks.cf_handle(&family_name(operator))
    }

    fn family_or_new(&self, operator: OperatorId) -> Result<Arc<BoundColumnFamily<'_>>> {
        if self.family(operator).is_none() {
            let filter = self.expired(operator);
            let options = family_options(&self.options, &self.shared, &filter);
            self.rocks.create_cf(family_name(operator), &options).map_err(failed)?;
        }
        self.family(operator).ok_or_else(|| Error::internal("a column family is gone"))
    }

    /// What compactions of an operator's family may drop.
    pub(super) fn expired(&self, operator: OperatorId) -> Expired {
        let mut expired = self.expired.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(expired.entry(operator).or_default())
    }

    pub(super) fn operators(&self) -> Vec<OperatorId> {
        // Each family has its filter.
        self.expired.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    pub(super) fn get(&self, operator: OperatorId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(family) = self.family(operator) else { return Ok(None) };
        self.rocks.get_cf(&family, key).map_err(failed)
    }

    pub(super) fn get_many(&self, operator: OperatorId, keys: &[&[u8]]) -> Result<Values> {
        let Some(family) = self.family(operator) else { return Ok(vec![None; keys.len()]) };
        let values = self.rocks.batched_multi_get_cf(&family, keys.iter().copied(), false);
        values.into_iter().map(|value| Ok(value.map_err(failed)?.map(|value| value.to_vec()))).collect()
    }

    /// Writes changes of an operator, in order.
    pub(super) fn write<'a>(
        &self,
        operator: OperatorId,
        changes: impl IntoIterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    ) -> Result<()> {
        let family = self.family_or_new(operator)?;
        let mut batch = RocksBatch::default();
        for (key, value) in changes {
            match value {
                Some(value) => batch.put_cf(&family, key, value),
                None => batch.delete_cf(&family, key),
            }
            if batch.size_in_bytes() >= BATCH_BYTES_MAX {
                self.rocks.write_opt(std::mem::take(&mut batch), &self.write).map_err(failed)?;
            }
        }
        self.rocks.write_opt(batch, &self.write).map_err(failed)
    }

    pub(super) fn write_changes(&self, operator: OperatorId, changes: &Changes) -> Result<()> {
        self.write(operator, changes.iter().map(|(key, value)| (key.as_slice(), value.as_deref())))
    }

    /// Drops a range of keys of every operator.
    pub(super) fn drop_range(&self, from: &[u8], to: &[u8]) -> Result<()> {
        for operator in self.operators() {
            let family = self.family_or_new(operator)?;
            self.rocks.delete_range_cf_opt(&family, from, to, &self.write).map_err(failed)?;
        }
        Ok(())
    }

    /// Visits a range of an operator in order, as of now.
    pub(super) fn scan(&self, operator: OperatorId, range: &KeyRange, visit: &mut VisitUntil<'_>) -> Result<()> {
        let Some(family) = self.family(operator).filter(|_| !range.is_empty()) else { return Ok(()) };
        let mut options = ReadOptions::default();
        if let Some(to) = &range.to {
            options.set_iterate_upper_bound(to.clone());
        }
        let mut entries = self.rocks.raw_iterator_cf_opt(&family, options);
        entries.seek(&range.from);
        while let Some((key, value)) = entries.item() {
            if visit(key, value)?.is_break() {
                return Ok(());
            }
            entries.next();
        }
        entries.status().map_err(failed)
    }

    pub(super) fn write_versions(&self, versions: &StateVersions) -> Result<()> {
        self.rocks.put_opt(STAMPS_KEY, versions.pack(), &self.write).map_err(failed)
    }

    /// Flushes, and links the files of the present state into a folder that is not there yet.
    pub(super) fn link_into(&self, folder: &Path) -> Result<()> {
        Checkpoint::new(&self.rocks).and_then(|checkpoint| checkpoint.create_checkpoint(folder)).map_err(failed)
    }

    /// Compacts everything, as a test of what is dropped.
    #[cfg(test)]
    pub(super) fn compact(&self) {
        for operator in self.operators() {
            if let Some(family) = self.family(operator) {
                self.rocks.flush_cf(&family).expect("flushes");
                let mut options = rocksdb::CompactOptions::default();
                options.set_bottommost_level_compaction(rocksdb::BottommostLevelCompaction::Force);
                self.rocks.compact_range_cf_opt(&family, None::<&[u8]>, None::<&[u8]>, &options);
            }
        }
    }
}

/// The canonical stream of a database that lies in a folder and is open nowhere: a checkpoint of ours or of the C++
/// engine. The folder is not changed.
///
/// # Errors
/// XX001 when it is no database or damaged.
pub fn export_rocksdb_folder(folder: &Path) -> Result<Vec<u8>> {
    let options = Options::default();
    let mut names = DBWithThreadMode::<MultiThreaded>::list_cf(&options, folder).map_err(failed)?;
    names.sort_unstable();
    let rocks = DBWithThreadMode::<MultiThreaded>::open_cf_for_read_only(&options, folder, &names, false);
    let rocks = rocks.map_err(failed)?;
    let versions = match rocks.get(STAMPS_KEY).map_err(failed)? {
        Some(packed) => StateVersions::unpack(&String::from_utf8_lossy(&packed))?,
        None => StateVersions::default(),
    };
    let mut writer = SnapshotWriter::new(Vec::new(), &versions)?;
    // Hexadecimal digits sort as the numbers do.
    for name in &names {
        let (Some(operator), Some(family)) = (family_operator(name), rocks.cf_handle(name)) else { continue };
        let mut entries = rocks.raw_iterator_cf(&family);
        entries.seek_to_first();
        while let Some((key, value)) = entries.item() {
            writer.push(operator, key, value)?;
            entries.next();
        }
        entries.status().map_err(failed)?;
    }
    writer.finish()
}

/// A visitor that never stops.
pub(super) const GO_ON: ControlFlow<()> = ControlFlow::Continue(());
