//! `rocksdb://` and `s3+rocksdb://`: state in an LSM on the local disk, larger than memory.
//!
//! One column family for each operator, `op_` and 16 hexadecimal digits; keys are those of every backend. The default
//! family holds the stamps. There is no write-ahead log: durability is the checkpoint's.
//!
//! A capture only starts to hold later writes in memory. `persist` has RocksDB flush and link its files into a staging
//! folder, and hands them to the store: a local one links them again, into a folder that is itself a database; an object
//! store takes each sorted file once, in whatever checkpoints it occurs. Then the held writes go into the database.
//!
//! A restore takes the files of the one worker whose groups overlap most, drops what lies outside the share and adds the
//! rows of others. The working folder is made anew in each life and goes with the backend; the checkpoint's files do not
//! move.

mod backend;
mod checkpoint;
mod database;
mod options;
mod schemes;

pub use backend::RocksDbBackend;
pub use checkpoint::SnapshotStatistics;
pub use database::export_rocksdb_folder;
pub use options::{RocksDbCompression, RocksDbOptions, RocksDbShared};
pub(super) use schemes::{register_rocksdb, remove_stale};

#[cfg(test)]
mod tests;
