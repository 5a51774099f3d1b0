//! From a database to parts, and back.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::snapshot::RocksDbFile;
use super::super::store::{Part, PartNames, PartStore};
use crate::types::{CheckpointId, Error, Result};

/// What a checkpoint cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotStatistics {
    /// Sorted files in it.
    pub files: usize,
    /// Of these, the ones that the checkpoint before had too.
    pub shared_files: usize,
    /// Bytes of the sorted files.
    pub bytes: u64,
    /// Bytes of the shared ones.
    pub shared_bytes: u64,
}

/// Puts files into the store, each sorted file once.
pub(super) struct Files {
    store: Arc<dyn PartStore>,
    names: PartNames,
    /// What objects of sorted files begin with: unique to the worker and its life, so that file numbers do not meet.
    prefix: String,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Sorted files of the last persisted or restored snapshot, by name.
    sorted: BTreeMap<String, Part>,
    statistics: SnapshotStatistics,
}

impl Files {
    pub(super) fn new(store: Arc<dyn PartStore>, names: PartNames, prefix: String) -> Files {
        Files { store, names, prefix, known: Mutex::default() }
    }

    /// What the last snapshot cost.
    pub(super) fn statistics(&self) -> SnapshotStatistics {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).statistics.clone()
    }

    /// Parts that the next snapshot may name again.
    pub(super) fn held(&self) -> Vec<String> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.sorted.values().map(|part| part.name.clone()).collect()
    }

    /// Stores the files of a folder.
    pub(super) fn persist(&self, checkpoint: CheckpointId, folder: &Path) -> Result<Vec<RocksDbFile>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).sorted.clone();
        let (mut files, mut sorted, mut statistics) = (Vec::new(), BTreeMap::new(), SnapshotStatistics::default());
        for (file, path) in listed(folder)? {
            if !file.ends_with(".sst") {
                let part = self.store.put_file(&self.names.part(checkpoint, &format!("db/{file}")), &path, None)?;
                files.push(RocksDbFile { file, part });
                continue;
            }
            // A number is used once in a database, so a file of the same name and length is the same file.
            let bytes = std::fs::metadata(&path)?.len();
            let before = known.get(&file).filter(|part| part.bytes == bytes);
            let part = match before {
                // A link of its own makes the checkpoint's folder a whole database.
                Some(part) if self.store.is_local() => {
                    let name = self.names.part(checkpoint, &format!("db/{file}"));
                    self.store.put_file(&name, &path, Some(part.crc32c))?
                }
                Some(part) => part.clone(),
                None if self.store.is_local() => {
                    self.store.put_file(&self.names.part(checkpoint, &format!("db/{file}")), &path, None)?
                }
                None => self.store.put_file(&format!("{}{file}", self.prefix), &path, None)?,
            };
            statistics.files += 1;
            statistics.bytes += bytes;
            if before.is_some() {
                statistics.shared_files += 1;
                statistics.shared_bytes += bytes;
            }
            sorted.insert(file.clone(), part.clone());
            files.push(RocksDbFile { file, part });
        }
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Known { sorted, statistics };
        Ok(files)
    }

    /// Makes a folder with the files of a snapshot.
    pub(super) fn fetch(&self, files: &[RocksDbFile], folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        for RocksDbFile { file, part } in files {
            if file.contains(['/', '\\']) || file.starts_with('.') {
                return Err(part.damaged(format!("it is said to be the file {file:?}")));
            }
            let target = folder.join(file);
            if file.ends_with(".sst") {
                self.store.fetch(part, &target)?;
            } else {
                // RocksDB writes to these, so they are not shared with the checkpoint.
                std::fs::write(&target, self.store.get(part)?)?;
            }
        }
        Ok(())
    }

    /// The database goes on with the sorted files of a snapshot.
    pub(super) fn adopt(&self, files: &[RocksDbFile]) {
        let sorted = files.iter().filter(|file| file.file.ends_with(".sst"));
        let sorted = sorted.map(|file| (file.file.clone(), file.part.clone())).collect();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).sorted = sorted;
    }
}

fn listed(folder: &Path) -> Result<BTreeMap<String, std::path::PathBuf>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|_| Error::internal("a file of RocksDB has no name"))?;
        if entry.file_type()?.is_file() {
            files.insert(name, entry.path());
        }
    }
    Ok(files)
}
