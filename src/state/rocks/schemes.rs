//! The schemes of RocksDB.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::super::backend::StateBackend;
use super::super::registry::{BackendContext, CHANGELOG_PARAMETERS, Parameter, Registry, base_names, changelog};
use super::super::store::{PartNames, PartStore};
use super::super::uri::{Place, StateUri};
use super::backend::RocksDbBackend;
use super::options::{RocksDbCompression, RocksDbOptions, RocksDbShared};
use crate::types::Result;

const COMPRESSIONS: [&str; 3] = ["none", "lz4", "zstd"];
const PARAMETERS: [Parameter; 6] = [
    Parameter::Bytes("block_cache_bytes"),
    Parameter::Bytes("write_buffer_bytes"),
    Parameter::Count("write_buffers_max"),
    Parameter::Bytes("bloom_bits"),
    Parameter::Word("compression", &COMPRESSIONS),
    Parameter::Count("background_jobs"),
];

/// All databases together may keep this many backends' parts of memory.
const SHARED_PARTS: usize = 8;
/// Fewer bytes are not worth a cache.
const SHARED_BYTES_MIN: usize = 32 << 20;

/// What the databases of a registry share, made when the first is opened.
type Shared = Arc<OnceLock<RocksDbShared>>;

/// Adds the schemes to a registry. All their databases share one cache, but those with `block_cache_bytes`.
pub(in crate::state) fn register_rocksdb(registry: &mut Registry) {
    let shared = Shared::default();
    for (scheme, place) in [("rocksdb", Place::Folder), ("s3+rocksdb", Place::Bucket)] {
        let shared = shared.clone();
        registry.register(scheme, place, &PARAMETERS, move |uri, context, store| {
            let names = PartNames::of_worker(context.share.worker());
            Ok(Box::new(open(uri, context, store, names, &shared)?))
        });
    }
    for (scheme, place) in [("changelog+rocksdb", Place::Folder), ("changelog+s3+rocksdb", Place::Bucket)] {
        let shared = shared.clone();
        let parameters = [&PARAMETERS[..], &CHANGELOG_PARAMETERS].concat();
        registry.register(scheme, place, &parameters, move |uri, context, store| {
            let inner: Box<dyn StateBackend> = Box::new(open(uri, context, store, base_names(context), &shared)?);
            changelog(uri, context, store, inner)
        });
    }
}

/// The local folder for the working files of a job's databases.
fn work_folder(uri: &StateUri, context: &BackendContext) -> Result<PathBuf> {
    let base = if uri.bucket().is_ok() { context.work_folder.clone() } else { uri.folder()? };
    Ok(base.join(&context.job).join("work"))
}

/// Removes the databases of a job that processes before this one left: each open one has a folder of its own, named
/// after its life.
pub(in crate::state) fn remove_stale(uri: &StateUri, context: &BackendContext) -> Result<()> {
    let folder = work_folder(uri, context)?;
    if !folder.exists() {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let life = name.to_str().and_then(|name| name.split('-').next()?.parse::<u64>().ok());
        if life.is_some_and(|life| BackendContext::incarnation_of(life) < BackendContext::incarnation_of(context.life))
        {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

fn open(
    uri: &StateUri,
    context: &BackendContext,
    store: &Arc<dyn PartStore>,
    names: PartNames,
    shared: &Shared,
) -> Result<RocksDbBackend> {
    let defaults = RocksDbOptions::default();
    let compression = match uri.word("compression", &COMPRESSIONS)? {
        Some("none") => RocksDbCompression::None,
        Some("zstd") => RocksDbCompression::Zstd,
        _ => RocksDbCompression::Lz4,
    };
    let options = RocksDbOptions {
        write_buffer_bytes: uri.bytes("write_buffer_bytes")?.unwrap_or(defaults.write_buffer_bytes),
        write_buffers_max: uri.count("write_buffers_max")?.unwrap_or(defaults.write_buffers_max),
        bloom_bits: uri
            .bytes("bloom_bits")?
            .map_or(defaults.bloom_bits, |bits| u32::try_from(bits).unwrap_or(u32::MAX)),
        compression,
        background_jobs: uri.count("background_jobs")?.unwrap_or(defaults.background_jobs),
    };
    let shared = match uri.bytes("block_cache_bytes")? {
        Some(bytes) => RocksDbShared::new(bytes),
        None => {
            let bytes = context.memory_bytes.saturating_mul(SHARED_PARTS).max(SHARED_BYTES_MIN);
            shared.get_or_init(|| RocksDbShared::new(bytes)).clone()
        }
    };
    remove_stale(uri, context)?;
    let folder = work_folder(uri, context)?.join(format!("{}-w{}", context.life, context.share.worker()));
    RocksDbBackend::open(&folder, Arc::clone(store), names, context.life, options, shared)
}
