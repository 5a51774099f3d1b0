//! What a checkpoint of one worker is made of, and the open format of state.

mod changelog;
mod format;
mod versions;

pub use changelog::{ChangelogReader, MaterialisationStore};
pub use format::{FORMAT_VERSION, SnapshotReader, SnapshotWriter, merge};
pub(super) use format::{metadata, read_metadata};
pub use versions::{StateVersions, VersionStamp};

use super::share::Share;
use super::store::Part;
use crate::types::{CheckpointId, KEY_GROUPS};

/// One worker's part of a checkpoint: which stored objects hold it and how they are read. Goes into the manifest.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Snapshot {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// When given, of its entries only keyed ones of these groups count: the first, and the first behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<(usize, usize)>,
    /// What the parts are.
    pub content: Content,
}

/// The kinds of snapshots.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Content {
    /// The canonical Arrow format: all entries in one stream, and what changed since it was written.
    Arrow {
        /// The stream.
        part: Part,
        /// Streams of changes, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        changes: Vec<Part>,
    },
    /// A base and the changes since.
    Changelog {
        /// The snapshots of the base: of this worker, or after a restore those it was restored from. Of them, only
        /// keyed entries count.
        base: Vec<Snapshot>,
        /// Segments of the log, in order; what they say of operator state does not count.
        segments: Vec<LogSegment>,
        /// All operator state, and the stamps, as a canonical stream.
        operator_state: Part,
    },
    /// The files of a RocksDB database, by the name that they have in its folder.
    RocksDb {
        /// The files. What they say of operator state does not count.
        files: Vec<RocksDbFile>,
        /// All operator state, and the stamps, as a canonical stream.
        operator_state: Part,
    },
    /// Sorted segments with newer ones first.
    Layers {
        /// The layers. What they say of operator state does not count.
        layers: Vec<Layer>,
        /// All operator state, and the stamps, as a canonical stream.
        operator_state: Part,
    },
}

/// A segment of a changelog, of which the changes with sequence numbers in `[from, to)` count; others are in the base.
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
    /// The groups that count: first, and first behind.
    pub groups: (usize, usize),
    /// Layers of one name are one sorted run, cut into objects; no other worker or checkpoint has a run of that name.
    pub run: String,
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
            Content::Arrow { part, changes } => {
                parts.push(part);
                parts.extend(changes);
            }
            Content::Changelog { base, segments, operator_state } => {
                base.iter().for_each(|base| base.collect_parts(parts));
                parts.extend(segments.iter().map(|segment| &segment.part));
                parts.push(operator_state);
            }
            Content::RocksDb { files, operator_state } => {
                parts.extend(files.iter().map(|file| &file.part));
                parts.push(operator_state);
            }
            Content::Layers { layers, operator_state } => {
                parts.extend(layers.iter().map(|layer| &layer.part));
                parts.push(operator_state);
            }
        }
    }

    /// A snapshot that is not narrowed.
    pub fn new(checkpoint: CheckpointId, content: Content) -> Snapshot {
        Snapshot { checkpoint, groups: None, content }
    }

    /// The same, of which only keyed entries of a share count, and no operator state.
    #[must_use]
    pub fn narrowed(&self, share: Share) -> Snapshot {
        let (ours, theirs) = (share.groups(), self.groups.unwrap_or((0, KEY_GROUPS)));
        let first = ours.start.max(theirs.0);
        Snapshot { groups: Some((first, ours.end.min(theirs.1).max(first))), ..self.clone() }
    }

    /// Whether an entry with this key counts.
    pub fn counts(&self, key: &[u8]) -> bool {
        self.groups.is_none_or(|(first, behind)| {
            key.first().is_some_and(|group| (first..behind).contains(&usize::from(*group)))
        })
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
