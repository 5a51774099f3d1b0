//! Where the parts of checkpoints lie: immutable objects with a length and a checksum, on a local disk or in an object
//! store, and one small object that changes by compare-and-swap.
//!
//! Calls block; they are made on snapshot threads and at a start, not inside an async task.

#[cfg(test)]
pub(in crate::state) mod faults;
mod local;
mod object;

pub use local::LocalStore;
pub use object::ObjectPartStore;

use std::io::Write;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;

use crate::types::{CheckpointId, Error, Result, SqlState};

/// A stored object, as a manifest names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Part {
    /// Name below the store's root, with `/` between folders.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// CRC-32C (Castagnoli) of the content.
    pub crc32c: u32,
}

impl Part {
    /// Describes an object's content.
    pub fn of(name: &str, content: &[u8]) -> Part {
        Part { name: name.to_owned(), bytes: content.len() as u64, crc32c: crc32c::crc32c(content) }
    }

    /// Holds content against the description.
    ///
    /// # Errors
    /// XX001 when length or checksum differ.
    pub fn check(&self, content: &[u8]) -> Result<()> {
        if content.len() as u64 != self.bytes {
            return Err(self.damaged(format!("it has {} bytes, {} were written", content.len(), self.bytes)));
        }
        if crc32c::crc32c(content) != self.crc32c {
            return Err(self.damaged("its checksum is wrong"));
        }
        Ok(())
    }

    /// The error for an object that is not what was written.
    pub fn damaged(&self, why: impl std::fmt::Display) -> Error {
        Error::new(SqlState::DataCorrupted, format!("part {} of the checkpoint is damaged: {why}", self.name))
            .hint("Restore an older checkpoint, or a copy of this one.")
    }
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Name below the store's root.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// When it was written, in milliseconds since 1970 by the store's clock.
    pub modified_millis: i64,
}

/// What a mutable object held when it was read or written.
#[derive(Clone, Debug)]
pub struct Version {
    pub(super) content: Bytes,
    pub(super) update: Option<object_store::UpdateVersion>,
}

impl Version {
    /// The content.
    pub fn content(&self) -> &Bytes {
        &self.content
    }
}

/// The outcome of a compare-and-swap that was decided.
#[derive(Debug)]
pub enum Swap {
    /// The object has the new content.
    Done(Version),
    /// Another writer was first; nothing was changed.
    Lost,
}

/// A place for parts. Shared by threads.
///
/// A part is there as a whole and durable when `put` returns, or it is not there under its name. Names are written
/// once; to write the same content again is harmless. A part that a manifest names and that is missing is damage.
pub trait PartStore: Send + Sync + std::fmt::Debug {
    /// Writes an object.
    ///
    /// # Errors
    /// When that failed or may have failed; the name may then be used again for the same content.
    fn put(&self, name: &str, content: Bytes) -> Result<Part>;

    /// Writes an object that is made piece by piece; `fill` may be asked for it again, from the start.
    ///
    /// # Errors
    /// Those of `fill`; else as [`Self::put`].
    fn put_stream(&self, name: &str, fill: &dyn Fn(&mut dyn Write) -> Result<()>) -> Result<Part> {
        let mut content = Vec::new();
        fill(&mut content)?;
        self.put(name, content.into())
    }

    /// Writes an object with the content of a local file that does not change any more. `crc32c` is given when it is
    /// known already. May share the file's storage.
    ///
    /// # Errors
    /// As [`Self::put`].
    fn put_file(&self, name: &str, file: &Path, crc32c: Option<u32>) -> Result<Part>;

    /// The content of a part, checked.
    ///
    /// # Errors
    /// XX001 when it is missing or not what was written.
    fn get(&self, part: &Part) -> Result<Bytes>;

    /// Some bytes of a part; the caller checks them.
    ///
    /// # Errors
    /// XX001 when the part is missing or shorter.
    fn get_range(&self, part: &Part, range: Range<u64>) -> Result<Bytes>;

    /// Makes a local file of a part, checked. May share the part's storage, so the file must not be changed.
    ///
    /// # Errors
    /// XX001 when it is missing or not what was written.
    fn fetch(&self, part: &Part, file: &Path) -> Result<()>;

    /// All objects whose name starts with `prefix`, in order of names.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn list(&self, prefix: &str) -> Result<Vec<Listed>>;

    /// Removes an object; one that is not there is fine.
    ///
    /// # Errors
    /// When the store cannot be written.
    fn delete(&self, name: &str) -> Result<()>;

    /// The content of a mutable object.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn read(&self, name: &str) -> Result<Option<Version>>;

    /// Replaces a mutable object that still is what was read; `None` is one that is not there. An unclear answer is
    /// settled by reading back, for which `content` must differ from what any other writer writes.
    ///
    /// # Errors
    /// When it is unknown whether it was replaced, or the store cannot be reached.
    fn swap(&self, name: &str, expected: Option<&Version>, content: Bytes) -> Result<Swap>;

    /// Whether objects are local files, which [`Self::put_file`] links to.
    fn is_local(&self) -> bool;

    /// The place, for messages and `SHOW`; without secrets.
    fn location(&self) -> String;
}

/// How a worker names its parts: by checkpoint and worker, which no other part shares, as ids are used once.
#[derive(Clone, Debug)]
pub struct PartNames {
    prefix: String,
    worker: usize,
}

impl PartNames {
    /// The names of a worker.
    pub fn of_worker(worker: usize) -> PartNames {
        PartNames { prefix: String::new(), worker }
    }

    /// The same behind a prefix, for numbers that are not checkpoints.
    #[must_use]
    pub fn behind(&self, prefix: &str) -> PartNames {
        PartNames { prefix: format!("{prefix}{}", self.prefix), worker: self.worker }
    }

    /// `w<worker>/`, behind the prefix: for parts that several checkpoints share.
    pub fn worker_prefix(&self) -> String {
        format!("{}w{}/", self.prefix, self.worker)
    }

    /// `cp-<checkpoint>/w<worker>/<file>`.
    pub fn part(&self, checkpoint: CheckpointId, file: &str) -> String {
        format!("{}cp-{checkpoint}/w{}/{file}", self.prefix, self.worker)
    }
}

/// Refuses names that could lead out of the store.
pub(super) fn check_name(name: &str) -> Result<()> {
    let whole = |part: &str| !part.is_empty() && part != "." && part != "..";
    if name.split('/').all(whole) && !name.contains(['\\', '\0', '\n']) {
        Ok(())
    } else {
        Err(Error::new(SqlState::DataCorrupted, format!("{name:?} is no name of a part")))
    }
}

#[cfg(test)]
mod tests;
