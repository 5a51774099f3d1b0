//! HEAD on a local disk: the one small object that says what the directory holds.
//!
//! `HEAD` is a JSON object, written to a new file, synced, renamed over the old one, and the directory
//! synced; a lock file, held for the life of the process, keeps a second process out. A crash leaves
//! the old or the new object, never a part.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use rand::Rng;

use super::store::Part;
use crate::types::{CheckpointId, Error, Result, SqlState, Time};

/// What HEAD says.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Head {
    /// Version of this format.
    pub format_version: u32,
    /// A random number that tells databases apart; 0 when none was drawn.
    #[serde(default)]
    pub database: u64,
    /// Number of the process's life: one more at each start.
    pub incarnation: u64,
    /// Every time ever handed out is below, in milliseconds: a restart begins here.
    pub clock_bound_millis: u64,
    /// The complete checkpoints of each group of jobs, the newest first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub checkpoints: BTreeMap<String, Vec<HeadCheckpoint>>,
}

/// A complete checkpoint as HEAD names it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HeadCheckpoint {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Its manifest.
    pub manifest: Part,
}

/// The format that this program writes, and the newest that it reads.
pub(super) const FORMAT_VERSION: u32 = 1;

impl Head {
    /// HEAD of a directory that nothing was written to.
    pub(super) fn new() -> Head {
        Head {
            format_version: FORMAT_VERSION,
            database: 0,
            incarnation: 0,
            clock_bound_millis: 0,
            checkpoints: BTreeMap::new(),
        }
    }

    /// Reads HEAD's text; `place` names it in errors.
    pub(super) fn parse(bytes: &[u8], place: &str) -> Result<Head> {
        let head = serde_json::from_slice::<Head>(bytes).map_err(|error| {
            Error::new(SqlState::DataCorrupted, format!("{place} is damaged: {error}"))
                .hint("Restore the file from a copy of the data directory.")
        })?;
        if head.format_version > FORMAT_VERSION {
            return Err(Error::new(
                SqlState::DataCorrupted,
                format!("{place} was written by a newer clink (format {})", head.format_version),
            )
            .hint("Start the newer program on this directory."));
        }
        Ok(head)
    }

    /// Makes a checkpoint the newest of its group, keeps `retained` of them and gives those that are released.
    pub fn complete(&mut self, group: &str, checkpoint: HeadCheckpoint, retained: usize) -> Vec<HeadCheckpoint> {
        let kept = self.checkpoints.entry(group.to_owned()).or_default();
        kept.insert(0, checkpoint);
        kept.split_off(retained.max(1).min(kept.len()))
    }
}

/// HEAD and its lock.
#[derive(Debug)]
pub struct HeadFile {
    directory: PathBuf,
    head: Head,
    // Held until the process ends.
    _lock: File,
}

impl HeadFile {
    /// Takes the directory for this process and begins the next incarnation.
    ///
    /// # Errors
    /// 55000 when another process holds it; XX001 when HEAD cannot be understood.
    pub fn open(directory: &Path) -> Result<HeadFile> {
        let lock = lock(directory)?;
        let path = directory.join("HEAD");
        let mut head = match std::fs::read(&path) {
            Ok(bytes) => Head::parse(&bytes, &path.display().to_string())?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Head::new(),
            Err(error) => return Err(error.into()),
        };
        head.incarnation += 1;
        while head.database == 0 {
            head.database = rand::rng().random();
        }
        let mut file = HeadFile { directory: directory.to_owned(), head, _lock: lock };
        file.store()?;
        Ok(file)
    }

    /// What HEAD of a directory says, without taking the directory.
    ///
    /// # Errors
    /// XX001 when it cannot be understood.
    pub fn read(directory: &Path) -> Result<Head> {
        let path = directory.join("HEAD");
        Head::parse(&std::fs::read(&path)?, &path.display().to_string())
    }

    /// Keeps other processes out of the directory until what is given is dropped; HEAD stays as it is.
    ///
    /// # Errors
    /// 55000 when another process holds it.
    pub fn hold(directory: &Path) -> Result<impl Sized + use<>> {
        lock(directory)
    }

    /// What it says.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Makes a new upper bound of the clock durable.
    ///
    /// # Errors
    /// When it cannot be written; the old bound stays in force.
    pub fn reserve(&mut self, bound: Time) -> Result<()> {
        self.update(|head| head.clock_bound_millis = bound.as_millis())
    }

    /// Makes a change durable.
    ///
    /// # Errors
    /// When it cannot be written; what HEAD said before stays in force.
    pub fn update<T>(&mut self, change: impl FnOnce(&mut Head) -> T) -> Result<T> {
        let previous = self.head.clone();
        let changed = change(&mut self.head);
        self.store().inspect_err(|_| self.head = previous)?;
        Ok(changed)
    }

    fn store(&mut self) -> Result<()> {
        let (path, next) = (self.directory.join("HEAD"), self.directory.join("HEAD.next"));
        let bytes = serde_json::to_vec(&self.head).map_err(|error| Error::internal(error.to_string()))?;
        let mut file = File::create(&next)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&next, &path)?;
        File::open(&self.directory)?.sync_all()?;
        Ok(())
    }
}

fn lock(directory: &Path) -> Result<File> {
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(directory.join("LOCK"))?;
    lock.try_lock().map_err(|_| {
        Error::new(SqlState::ObjectNotReady, format!("data directory {} is in use", directory.display()))
            .hint("Stop the other clink server, or give this one another --data-dir.")
    })?;
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_lives_and_keeps_the_bound() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut head = HeadFile::open(directory.path()).expect("opens");
        assert_eq!(head.head().incarnation, 1);
        head.reserve(Time::from_millis(77)).expect("writes");
        assert_eq!(HeadFile::open(directory.path()).expect_err("held").code(), SqlState::ObjectNotReady);
        drop(head);
        let head = HeadFile::open(directory.path()).expect("opens");
        assert_eq!((head.head().incarnation, head.head().clock_bound_millis), (2, 77));
        let database = head.head().database;
        assert_ne!(database, 0);
        drop(head);
        assert_eq!(HeadFile::open(directory.path()).expect("opens").head().database, database);
    }
}
