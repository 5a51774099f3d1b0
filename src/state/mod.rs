//! Where operators keep what they know.
//!
//! A [`StateBackend`] stores bytes per (operator, key), fixes a cut of them at a checkpoint and takes in any share of key
//! groups at a restore; a URI chooses one ([`Registry`]). Operators do not use it row by row: they hold decoded *tables*
//! ([`HotTier`], [`KeyIndex`], [`Multiset`]) that know what changed, and hand the changed entries over at a barrier. With
//! the memory family the decoded tables are the state.
//!
//! ```text
//! tables, hot     decoded values in front of a backend
//! memory, rocks, remote, changelog     backends; the last over another one
//! restore, operator_state              what all of them do when workers change
//! snapshot        the parts of a checkpoint, the open Arrow format, stamps
//! store           where parts lie: a folder or a prefix of an object store
//! manifest, head  what makes a checkpoint complete
//! tools           state as data, without a job
//! ```
//!
//! Keys are laid out so that a scan by key group is a range scan:
//!
//! ```text
//! value state     [key group u8][slot '|'][key bytes]
//! map entry       [key group u8][slot "#map" '|'][u32 LE length of key][key bytes][entry bytes]
//! operator state  [0xFF][…], see `operator_state`
//! ```
//!
//! The key group is taken over the key bytes alone (FNV-1a modulo 128), which are the typed,
//! order-preserving encoding of [`RowCodec`]. All formats are in docs/state.md. Deliberately absent: operators, SQL.

mod backend;
mod changelog;
mod deferred;
mod head;
mod hot;
mod key_encoding;
mod key_index;
mod layout;
mod manifest;
mod memory;
mod multiset;
mod operator_file;
mod operator_state;
mod overlay;
mod past;
mod registry;
mod remote;
mod restore;
mod retention;
mod rocks;
mod share;
mod snapshot;
mod store;
mod tables;
mod tools;
mod uri;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod known_faults;

pub use backend::{Capture, KeyRange, StateBackend, Values, Visit, VisitEntry, VisitUntil, WriteBatch};
pub use changelog::{ChangelogBackend, ChangelogOptions};
pub use deferred::Background;
pub use head::{Head, HeadCheckpoint, HeadFile};
pub use hot::{Cells, HotTier, Residence};
pub use key_encoding::{Encoded, RowCodec, equal_floats};
pub use key_index::{KeyIndex, Slot};
pub use layout::{
    check_slot, list_key, list_prefix_of, map_key, map_prefix, operator_key, slot_prefix, split_map_key,
    split_value_key, value_key,
};
pub use manifest::{Chosen, Depth, Manifest, SharedHead, choose, foreign_objects, release, verify};
pub use memory::MemoryBackend;
pub use multiset::Multiset;
pub use operator_state::{broadcast_key, get_operator_state, list_item_key, list_prefix, union_key, union_prefix};
pub use past::{EncodedRows, PAST_BYTES_MAX, Pasts, past_lost};
pub use registry::{BackendContext, Parameter, Registry};
pub use remote::{Delta, LayerPool, LoaderPool, RemoteOptions, RemotePool, RemoteReadBackend};
pub use restore::import;
pub use retention::{released_parts, sweep};
pub use rocks::{
    RocksDbBackend, RocksDbCompression, RocksDbOptions, RocksDbShared, SnapshotStatistics, export_rocksdb_folder,
};
pub use share::{OPERATOR_STATE, Share};
pub use snapshot::{
    ChangelogReader, Content, FORMAT_VERSION, Layer, LogSegment, MaterialisationStore, RocksDbFile, Snapshot,
    SnapshotReader, SnapshotWriter, StateVersions, VersionStamp, merge,
};
pub use store::{Listed, LocalStore, ObjectPartStore, Part, PartNames, PartStore, Swap, Version};
pub use tables::{
    AggregatingState, Aggregation, BroadcastState, BytesCodec, Codec, ExpiringValue, I64Codec, ListState, MapState,
    Migrations, PairCodec, ReducingState, Refresh, TextCodec, TtlConfig, U32Codec, U64Codec, ValueState, VecCodec,
    decode_expiring, encode_expiring, expiry_key, expiry_prefix, migrate,
};
pub use tools::{
    Difference, OriginalCheckpoint, StateRow, diff, export_backend, export_checkpoint, export_parquet, find_original,
    query_batch, rows,
};
pub use uri::{Place, StateUri};
