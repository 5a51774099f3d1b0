//! What a checkpoint of one worker is made of, and the open format of state.

mod changelog;
mod format;
mod versions;

pub use changelog::{ChangelogReader, MaterialisationStore};
pub use format::{FORMAT_VERSION, SnapshotReader, SnapshotWriter, merge};
pub use versions::{StateVersions, VersionStamp};

use super::store::Part;
use crate::types::CheckpointId;

/// One worker's part of a checkpoint: which stored objects hold it and how they are read. Goes into the manifest.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Snapshot {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// What the parts are.
    pub content: Content,
}

/// The kinds of snapshots.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Content {
    /// The canonical Arrow format: all entries in one stream.
    Arrow {
        /// The stream.
        part: Part,
    },
    /// A base and the changes since.
    Changelog {
        /// The snapshots of the base: of this worker, or after a restore those it was restored from.
        base: Vec<Snapshot>,
        /// Of a base that others wrote, the groups that are kept: first, and first behind.
        base_groups: Option<(usize, usize)>,
        /// Changes with a greater or the same sequence number are not in the base.
        from: u64,
        /// Segments of the log, in order.
        segments: Vec<LogSegment>,
    },
    /// The files of a RocksDB database, by the name that they have in its folder.
    RocksDb {
        /// The files.
        files: Vec<RocksDbFile>,
        /// How many bytes of them were there before this checkpoint.
        shared_bytes: u64,
    },
    /// Sorted segments with newer ones first.
    Layers {
        /// The layers.
        layers: Vec<Layer>,
        /// Stamps, as packed text.
        versions: String,
    },
}

/// A segment of a changelog: the changes with sequence numbers in `[from, to)`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LogSegment {
    /// First sequence number.
    pub from: u64,
    /// First sequence number behind.
    pub to: u64,
    /// The object.
    pub part: Part,
}

/// A file of a RocksDB database.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RocksDbFile {
    /// Its name in the database's folder.
    pub file: String,
    /// The object that holds it.
    pub part: Part,
}

/// A layer of a [`Content::Layers`] snapshot.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Layer {
    /// The object.
    pub part: Part,
    /// Of keyed entries, the groups that count: first, and first behind.
    pub groups: (usize, usize),
    /// Whether operator state in it counts.
    pub operator_state: bool,
    /// Entries in it, tombstones included.
    pub entries: u64,
    /// Bytes of its tail: the index of its blocks.
    pub index_bytes: u32,
}

impl Snapshot {
    /// Every object that it needs.
    pub fn parts(&self) -> Vec<&Part> {
        let mut parts = Vec::new();
        self.collect_parts(&mut parts);
        parts
    }

    fn collect_parts<'a>(&'a self, parts: &mut Vec<&'a Part>) {
        match &self.content {
            Content::Arrow { part } => parts.push(part),
            Content::Changelog { base, segments, .. } => {
                base.iter().for_each(|base| base.collect_parts(parts));
                parts.extend(segments.iter().map(|segment| &segment.part));
            }
            Content::RocksDb { files, .. } => parts.extend(files.iter().map(|file| &file.part)),
            Content::Layers { layers, .. } => parts.extend(layers.iter().map(|layer| &layer.part)),
        }
    }

    /// The kind in words, for errors.
    pub fn kind(&self) -> &'static str {
        match &self.content {
            Content::Arrow { .. } => "arrow",
            Content::Changelog { .. } => "changelog",
            Content::RocksDb { .. } => "rocksdb",
            Content::Layers { .. } => "layers",
        }
    }
}
