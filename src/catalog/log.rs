//! The durable log of DDL: `<data_dir>/catalog.log`.
//!
//! # Bytes
//!
//! The file is a sequence of records, nothing before, between or after them:
//!
//! ```text
//! offset  size  what
//!      0     4  length of the payload in bytes, little endian, at least 2
//!      4     4  CRC-32 (IEEE) of the payload, little endian
//!      8     n  payload: one JSON object in UTF-8
//! ```
//!
//! A payload has `"version": 1` and `"op"`:
//!
//! ```text
//! {"version":1,"op":"create","id":7,"schema":"public","name":"v","kind":"materialized_view",
//!  "depends_on":[3],"text":"CREATE MATERIALIZED VIEW ..."}      kind: table, view, materialized_view, sink, function
//!                                                               "errors":8 when it has an errors relation
//!                                                               "late":9 when it has one of late rows
//! {"version":1,"op":"alter", …}                                 as create: what the object is from now on
//! {"version":1,"op":"create_schema","schema":"s"}
//! {"version":1,"op":"drop","ids":[3,7],"schemas":[]}            a whole DROP ... CASCADE is one record
//! ```
//!
//! Numbers are given out in ascending order and never twice: the next one is above all that the log
//! ever named, dropped objects included. The log is never rewritten.
//!
//! # Crash
//!
//! A record counts when it is whole. What follows the last whole record is the rest of an append
//! that nobody was told of; it is cut off at open. When a whole record follows a damaged place, the
//! damage is not a torn append: open fails with XX001 and changes nothing.
//!
//! An append that fails is cut off again. When that fails too, or the sync fails, it is unknown what
//! is on disk: the log takes no more records until it is opened again.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::types::{Error, RelationId, Result, SqlState};

use super::objects::{Definition, Object, ObjectKind};

const HEADER_BYTES: usize = 8;
const FORMAT_VERSION: u32 = 1;

/// One change of the catalog.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Change {
    /// A relation is there from now on.
    Create(ObjectRecord),
    /// A relation that is there has another text.
    Alter(ObjectRecord),
    /// A schema is there from now on.
    CreateSchema {
        /// Its name.
        schema: String,
    },
    /// Objects and schemas are gone.
    Drop {
        /// The objects, dependents included.
        ids: Vec<RelationId>,
        /// The schemas.
        schemas: Vec<String>,
    },
}

/// An object as the log keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectRecord {
    /// Its number.
    pub id: RelationId,
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// What kind it is.
    pub kind: ObjectKind,
    /// The relations that its text names.
    pub depends_on: Vec<RelationId>,
    /// Its CREATE statement in canonical form.
    pub text: String,
    /// The number of its errors relation, which comes and goes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<RelationId>,
    /// The number of its relation of late rows, which comes and goes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<RelationId>,
}

impl ObjectRecord {
    /// What the log keeps of an object.
    pub fn of(object: &Object) -> ObjectRecord {
        ObjectRecord {
            id: object.id,
            schema: object.schema.clone(),
            name: object.name.clone(),
            kind: object.kind,
            depends_on: object.depends_on.clone(),
            text: object.text.clone(),
            errors: object.errors,
            late: object.late,
        }
    }

    /// The greatest number that it takes.
    pub fn last_id(&self) -> RelationId {
        self.errors.into_iter().chain(self.late).fold(self.id, RelationId::max)
    }

    /// The object, with what its text means.
    pub fn into_object(self, definition: Definition) -> Object {
        Object {
            id: self.id,
            schema: self.schema,
            name: self.name,
            kind: self.kind,
            depends_on: self.depends_on,
            text: self.text,
            errors: self.errors,
            late: self.late,
            definition,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Payload {
    version: u32,
    #[serde(flatten)]
    change: Change,
}

/// The open log; the one writer of its file.
#[derive(Debug)]
pub struct CatalogLog {
    file: File,
    path: PathBuf,
    length: u64,
    /// Set when it is unknown what is on disk.
    broken: bool,
}

impl CatalogLog {
    /// All of it.
    ///
    /// # Errors
    /// 58030 when it cannot be read.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        Ok(std::fs::read(&self.path)?)
    }

    /// Opens or makes the log of a data directory and gives its changes in order.
    ///
    /// # Errors
    /// XX001 when it is damaged elsewhere than at its end or of a later format; 58030 when it cannot
    /// be read.
    pub fn open(data_dir: &Path) -> Result<(CatalogLog, Vec<Change>)> {
        let path = data_dir.join("catalog.log");
        let fresh = !path.exists();
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        if fresh {
            // The new name must survive too, not only what the file holds.
            File::open(data_dir)?.sync_all()?;
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let (changes, whole) = read_records(&bytes, &path)?;
        if whole < bytes.len() {
            tracing::warn!(path = %path.display(), bytes = bytes.len() - whole, "cut a torn record off the catalog log");
            file.set_len(whole as u64)?;
            file.sync_all()?;
        }
        file.seek(SeekFrom::Start(whole as u64))?;
        Ok((CatalogLog { file, path, length: whole as u64, broken: false }, changes))
    }

    /// Appends a change and syncs it.
    ///
    /// # Errors
    /// 58030 or 53100 when the file cannot be written: the change did not happen, unless the message
    /// says that this is unknown.
    pub fn append(&mut self, change: &Change) -> Result<()> {
        if self.broken {
            return Err(Error::new(SqlState::IoError, "the catalog log could not be written before")
                .hint("Restart the server: it reads back what is on disk."));
        }
        let payload = serde_json::to_vec(&Payload { version: FORMAT_VERSION, change: change.clone() })
            .map_err(|error| Error::internal(format!("cannot encode a catalog record: {error}")))?;
        let length = u32::try_from(payload.len())
            .map_err(|_| Error::new(SqlState::ProgramLimitExceeded, "the statement is too long for the catalog"))?;
        let mut record = Vec::with_capacity(HEADER_BYTES + payload.len());
        record.extend_from_slice(&length.to_le_bytes());
        record.extend_from_slice(&crc32fast::hash(&payload).to_le_bytes());
        record.extend_from_slice(&payload);

        if let Err(error) = self.file.write_all(&record) {
            let undone =
                self.file.set_len(self.length).and_then(|()| self.file.seek(SeekFrom::Start(self.length)).map(drop));
            self.broken = undone.is_err();
            return Err(Error::from(error).detail(format!("The file is \"{}\".", self.path.display())));
        }
        if let Err(error) = self.file.sync_data() {
            self.broken = true;
            return Err(Error::from(error).detail(format!(
                "It is unknown whether the change is in \"{}\"; a restart shows it.",
                self.path.display()
            )));
        }
        self.length += record.len() as u64;
        Ok(())
    }
}

/// Reads whole records from the start; gives them and where they end.
fn read_records(bytes: &[u8], path: &Path) -> Result<(Vec<Change>, usize)> {
    let mut changes = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let Some((payload, end)) = frame(bytes, at) else {
            break;
        };
        changes.push(decode(payload, at, path)?);
        at = end;
    }
    // A frame that holds anywhere behind the first damage was written after it.
    let damaged = (at + 1..bytes.len()).any(|later| frame(bytes, later).is_some());
    if damaged {
        return Err(Error::new(
            SqlState::DataCorrupted,
            format!("the catalog log \"{}\" is damaged at byte {at}", path.display()),
        )
        .detail("Whole records follow the damage, so it is not the end of an interrupted write.")
        .hint("Restore the file from a copy; nothing was changed."));
    }
    Ok((changes, at))
}

/// The payload of the record at `at` and where the record ends, when it is whole.
fn frame(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let start = at.checked_add(HEADER_BYTES)?;
    let length: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    let checksum: [u8; 4] = bytes.get(at + 4..start)?.try_into().ok()?;
    let end = start.checked_add(usize::try_from(u32::from_le_bytes(length)).ok()?)?;
    let payload = bytes.get(start..end)?;
    // Zeros would be a record of no bytes; a payload is an object and begins so.
    let whole = payload.first() == Some(&b'{') && crc32fast::hash(payload) == u32::from_le_bytes(checksum);
    whole.then_some((payload, end))
}

fn decode(payload: &[u8], at: usize, path: &Path) -> Result<Change> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let damaged = |reason: String| {
        Error::new(
            SqlState::DataCorrupted,
            format!("the catalog log \"{}\" cannot be read at byte {at}: {reason}", path.display()),
        )
        .hint("Open the data directory with the version of clink that wrote it.")
    };
    let version: Version = serde_json::from_slice(payload).map_err(|error| damaged(error.to_string()))?;
    if version.version != FORMAT_VERSION {
        return Err(damaged(format!("format version {} is not known", version.version)));
    }
    let payload: Payload = serde_json::from_slice(payload).map_err(|error| damaged(error.to_string()))?;
    Ok(payload.change)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(id: u64) -> Change {
        Change::Create(ObjectRecord {
            id: RelationId(id),
            schema: "public".into(),
            name: format!("t{id}"),
            kind: ObjectKind::Table,
            depends_on: vec![],
            text: format!("CREATE TABLE t{id} (\"größe\" integer)"),
            errors: None,
            late: None,
        })
    }

    fn drop_all() -> Change {
        Change::Drop { ids: vec![RelationId(1), RelationId(2)], schemas: vec!["s".into()] }
    }

    fn written(changes: &[Change]) -> (tempfile::TempDir, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, before) = CatalogLog::open(dir.path()).unwrap();
        assert!(before.is_empty());
        for change in changes {
            log.append(change).unwrap();
        }
        let bytes = std::fs::read(dir.path().join("catalog.log")).unwrap();
        (dir, bytes)
    }

    #[test]
    fn gives_back_what_was_appended() {
        let changes = [create(1), Change::CreateSchema { schema: "s".into() }, create(2), drop_all()];
        let (dir, _) = written(&changes);
        let (_, read) = CatalogLog::open(dir.path()).unwrap();
        assert_eq!(read, changes);
    }

    #[test]
    fn a_tail_torn_at_any_byte_is_cut_and_the_log_goes_on() {
        let (_, two) = written(&[create(1), create(2)]);
        let (_, three) = written(&[create(1), create(2), drop_all()]);
        for length in two.len()..three.len() {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("catalog.log");
            std::fs::write(&path, &three[..length]).unwrap();
            let (mut log, read) = CatalogLog::open(dir.path()).unwrap();
            assert_eq!(read, [create(1), create(2)], "cut at {length}");
            log.append(&create(3)).unwrap();
            drop(log);
            let (_, read) = CatalogLog::open(dir.path()).unwrap();
            assert_eq!(read, [create(1), create(2), create(3)], "cut at {length}");
        }
    }

    #[test]
    fn a_tail_of_zeros_is_cut() {
        let (dir, mut bytes) = written(&[create(1)]);
        bytes.extend_from_slice(&[0; 100]);
        std::fs::write(dir.path().join("catalog.log"), &bytes).unwrap();
        let (_, read) = CatalogLog::open(dir.path()).unwrap();
        assert_eq!(read, [create(1)]);
    }

    #[test]
    fn damage_before_a_whole_record_is_refused_and_nothing_is_changed() {
        let (_, first) = written(&[create(1)]);
        let (dir, bytes) = written(&[create(1), create(2)]);
        let path = dir.path().join("catalog.log");
        for at in 0..first.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            std::fs::write(&path, &damaged).unwrap();
            let error = CatalogLog::open(dir.path()).unwrap_err();
            assert_eq!(error.code(), SqlState::DataCorrupted, "flipped at {at}");
            assert_eq!(std::fs::read(&path).unwrap(), damaged);
        }
    }
}
