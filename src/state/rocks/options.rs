//! Settings of RocksDB.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::{Arc, PoisonError, RwLock};

use rocksdb::compaction_filter::{CompactionFilter, Decision};
use rocksdb::compaction_filter_factory::{CompactionFilterContext, CompactionFilterFactory};
use rocksdb::{BlockBasedOptions, Cache, DBCompressionType, Options, WriteBufferManager};

/// How sorted files are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RocksDbCompression {
    /// Not at all.
    None,
    /// LZ4: fast.
    Lz4,
    /// Zstandard: small.
    Zstd,
}

/// Settings of one database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RocksDbOptions {
    /// Bytes of a memtable before it is written out.
    pub write_buffer_bytes: usize,
    /// Memtables of an operator that may wait to be written.
    pub write_buffers_max: usize,
    /// Bits of the Bloom filter for each key; 0 for none.
    pub bloom_bits: u32,
    /// Compression of sorted files.
    pub compression: RocksDbCompression,
    /// Threads that flush and compact.
    pub background_jobs: usize,
}

impl Default for RocksDbOptions {
    fn default() -> RocksDbOptions {
        RocksDbOptions {
            write_buffer_bytes: 64 << 20,
            write_buffers_max: 4,
            bloom_bits: 10,
            compression: RocksDbCompression::Lz4,
            background_jobs: 2,
        }
    }
}

/// What all databases of the process share: one block cache, and one bound for memtables, which are charged to it.
#[derive(Clone)]
pub struct RocksDbShared {
    cache: Cache,
    write_buffers: WriteBufferManager,
}

impl std::fmt::Debug for RocksDbShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RocksDbShared")
    }
}

impl RocksDbShared {
    /// A cache of `bytes`, of which memtables may take half.
    pub fn new(bytes: usize) -> RocksDbShared {
        let cache = Cache::new_lru_cache(bytes);
        let write_buffers = WriteBufferManager::new_write_buffer_manager_with_cache(bytes / 2, false, cache.clone());
        RocksDbShared { cache, write_buffers }
    }

    /// Bytes in the cache.
    pub fn usage_bytes(&self) -> usize {
        self.cache.get_usage()
    }
}

/// Deadlines up to which values of a slot were reported as expired, by slot; shared with the compactions.
pub(super) type Expired = Arc<RwLock<HashMap<Vec<u8>, i64>>>;

/// Options of the database as a whole.
pub(super) fn database_options(options: &RocksDbOptions, shared: &RocksDbShared) -> Options {
    let mut database = Options::default();
    database.create_if_missing(true);
    database.create_missing_column_families(true);
    // The setters take C integers; the values come from checked parameters far below their limits.
    database.set_max_background_jobs(i32::try_from(options.background_jobs.max(2)).unwrap_or(i32::MAX));
    database.set_write_buffer_manager(&shared.write_buffers);
    database.set_keep_log_file_num(2);
    database.set_stats_dump_period_sec(0);
    // An operator has a family, so there can be many: their files stay within the limits of a process.
    database.set_max_open_files(512);
    database
}

/// Options of an operator's family.
pub(super) fn family_options(options: &RocksDbOptions, shared: &RocksDbShared, expired: &Expired) -> Options {
    let mut family = Options::default();
    family.set_write_buffer_size(options.write_buffer_bytes);
    family.set_max_write_buffer_number(i32::try_from(options.write_buffers_max.max(2)).unwrap_or(i32::MAX));
    family.set_level_compaction_dynamic_level_bytes(true);
    family.set_compression_type(match options.compression {
        RocksDbCompression::None => DBCompressionType::None,
        RocksDbCompression::Lz4 => DBCompressionType::Lz4,
        RocksDbCompression::Zstd => DBCompressionType::Zstd,
    });
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&shared.cache);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_format_version(5);
    if options.bloom_bits > 0 {
        table.set_bloom_filter(f64::from(options.bloom_bits), false);
    }
    family.set_block_based_table_factory(&table);
    family.set_compaction_filter_factory(ExpiryFilterFactory {
        expired: Arc::clone(expired),
        name: c"clink.expiry".to_owned(),
    });
    family
}

/// Lets compactions drop what was reported as expired. Each family has one, at every opening.
struct ExpiryFilterFactory {
    expired: Expired,
    name: CString,
}

impl CompactionFilterFactory for ExpiryFilterFactory {
    type Filter = ExpiryFilter;

    fn create(&mut self, _: CompactionFilterContext) -> ExpiryFilter {
        let expired = self.expired.read().unwrap_or_else(PoisonError::into_inner).clone();
        ExpiryFilter { expired, name: self.name.clone() }
    }

    fn name(&self) -> &CStr {
        &self.name
    }
}

struct ExpiryFilter {
    expired: HashMap<Vec<u8>, i64>,
    name: CString,
}

impl CompactionFilter for ExpiryFilter {
    fn filter(&mut self, _: u32, key: &[u8], value: &[u8]) -> Decision {
        if self.expired.is_empty() {
            return Decision::Keep;
        }
        let slot = key.get(1..).and_then(|rest| rest.split(|byte| *byte == b'|').next());
        let horizon = slot.and_then(|slot| self.expired.get(slot));
        let deadline = value.first_chunk::<8>().map(|deadline| i64::from_le_bytes(*deadline));
        match (horizon, deadline) {
            (Some(horizon), Some(deadline)) if deadline <= *horizon => Decision::Remove,
            _ => Decision::Keep,
        }
    }

    fn name(&self) -> &CStr {
        &self.name
    }
}
