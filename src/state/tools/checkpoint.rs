//! A checkpoint of any backend as a canonical stream.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::backend::StateBackend;
use super::super::changelog::{ChangelogBackend, ChangelogOptions};
use super::super::memory::MemoryBackend;
use super::super::remote::{LayerPool, RemoteOptions, RemoteReadBackend};
use super::super::rocks::{RocksDbBackend, RocksDbOptions, RocksDbShared};
use super::super::share::Share;
use super::super::snapshot::{Content, Snapshot, SnapshotWriter};
use super::super::store::{PartNames, PartStore};
use crate::types::Result;

const HOT_BYTES_MAX: usize = 64 << 20;

/// Everything that a backend holds now, as a canonical stream.
///
/// # Errors
/// When the store cannot be read.
pub fn export_backend(backend: &dyn StateBackend) -> Result<Vec<u8>> {
    let mut writer = SnapshotWriter::new(Vec::new(), backend.versions())?;
    backend.export(&mut |operator, key, value| writer.push(operator, key, value))?;
    writer.finish()
}

/// The state in the snapshots of all workers of a checkpoint, in their order, whatever wrote them. `scratch` is a folder
/// for files that must lie on a disk to be read.
///
/// # Errors
/// XX001 when a part is missing or damaged.
pub fn export_checkpoint(store: &Arc<dyn PartStore>, workers: &[Snapshot], scratch: &Path) -> Result<Vec<u8>> {
    let mut backend = reader(store, workers, scratch)?;
    backend.restore(workers, Share::WHOLE)?;
    export_backend(&*backend)
}

/// A backend that reads the kind of these snapshots.
fn reader(store: &Arc<dyn PartStore>, workers: &[Snapshot], scratch: &Path) -> Result<Box<dyn StateBackend>> {
    let names = PartNames::of_worker(0);
    match workers.first().map(|snapshot| &snapshot.content) {
        None | Some(Content::Arrow { .. }) => Ok(Box::new(MemoryBackend::new(Arc::clone(store), names, false))),
        Some(Content::Layers { .. }) => {
            let pool = Arc::new(LayerPool::new(Arc::clone(store), names.clone()));
            let options = RemoteOptions { hot_max_bytes: Some(HOT_BYTES_MAX), io_threads: 4 };
            Ok(Box::new(RemoteReadBackend::new(pool, Arc::clone(store), names, options)?))
        }
        Some(Content::Changelog { .. }) => {
            let bases: Vec<Snapshot> = workers.iter().flat_map(bottom).cloned().collect();
            let inner = reader(store, &bases, scratch)?;
            Ok(Box::new(ChangelogBackend::new(inner, Arc::clone(store), 0, 0, ChangelogOptions::default())?))
        }
        Some(Content::RocksDb { .. }) => {
            let (options, shared) = (RocksDbOptions::default(), RocksDbShared::new(HOT_BYTES_MAX));
            static OPENED: AtomicU64 = AtomicU64::new(0);
            let number = OPENED.fetch_add(1, Ordering::Relaxed);
            let folder = scratch.join(format!("rocksdb-{}-{number}", std::process::id()));
            Ok(Box::new(RocksDbBackend::open(&folder, Arc::clone(store), names, 0, options, shared)?))
        }
    }
}

fn bottom(snapshot: &Snapshot) -> Vec<&Snapshot> {
    match &snapshot.content {
        Content::Changelog { base, .. } => base.iter().flat_map(bottom).collect(),
        _ => vec![snapshot],
    }
}
