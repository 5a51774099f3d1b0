//! Checkpoint directories of the C++ engine. They are read, never written.
//!
//! ```text
//! <dir>/v<generation>/<subtask>/checkpoint-<id>.snap     a canonical stream
//! <dir>/v<generation>/<subtask>/checkpoint-<id>.snap.meta   its length and CRC-32C
//! <dir>/v<generation>/<subtask>/changelog-<id>.snap      the changelog variant
//! <dir>/_jobs/<job>/COMPLETED-<id>                       job=, checkpoint=, generation=, subtasks=
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::snapshot::{ChangelogReader, MaterialisationStore};
use crate::types::{Error, Result, SqlState};

/// A completed checkpoint of the C++ engine and its participants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginalCheckpoint {
    /// The job.
    pub job: String,
    /// The checkpoint.
    pub id: u64,
    /// The topology that wrote it.
    pub generation: u64,
    /// Its subtasks.
    pub subtasks: Vec<u64>,
}

fn damaged(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::new(SqlState::DataCorrupted, format!("{}: {what}", path.display()))
        .hint("Name another checkpoint of the directory.")
}

fn fields(path: &Path, text: &str) -> Result<BTreeMap<String, String>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let (name, value) = line.split_once('=').ok_or_else(|| damaged(path, "a line has no ="))?;
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        })
        .collect()
}

/// The newest completed checkpoint of a job in a directory, or the one with this id; without `job`, of the only one.
///
/// # Errors
/// 58P01 when there is none; 22023 when a job must be named; XX001 when a marker is damaged.
pub fn find_original(directory: &Path, job: Option<&str>, id: Option<u64>) -> Result<OriginalCheckpoint> {
    let jobs = directory.join("_jobs");
    let mut found: Vec<OriginalCheckpoint> = Vec::new();
    for entry in std::fs::read_dir(&jobs)?.collect::<std::io::Result<Vec<_>>>()? {
        if job.is_some_and(|job| entry.file_name().to_str() != Some(job)) || !entry.path().is_dir() {
            continue;
        }
        for marker in std::fs::read_dir(entry.path())?.collect::<std::io::Result<Vec<_>>>()? {
            let name = marker.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("COMPLETED-")?.parse::<u64>().ok());
            if number.is_some_and(|number| id.is_none_or(|id| id == number)) {
                found.push(read_marker(&marker.path())?);
            }
        }
    }
    let mut names: Vec<&str> = found.iter().map(|checkpoint| checkpoint.job.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() > 1 {
        return Err(Error::new(SqlState::InvalidParameterValue, "the directory holds checkpoints of several jobs")
            .hint(format!("Name one of the jobs: {}.", names.join(", "))));
    }
    found.into_iter().max_by_key(|checkpoint| checkpoint.id).ok_or_else(|| {
        Error::new(
            SqlState::UndefinedFile,
            format!("{} holds no completed checkpoint of that name", directory.display()),
        )
        .hint("Name the directory that has the folder _jobs in it.")
    })
}

fn read_marker(path: &Path) -> Result<OriginalCheckpoint> {
    let fields = fields(path, &std::fs::read_to_string(path)?)?;
    let field = |name: &str| fields.get(name).ok_or_else(|| damaged(path, format!("it has no {name}")));
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| damaged(path, format!("{text:?} is no number")));
    let subtasks = field("subtasks")?;
    Ok(OriginalCheckpoint {
        job: field("job")?.clone(),
        id: number(field("checkpoint")?)?,
        generation: number(field("generation")?)?,
        subtasks: subtasks.split(',').filter(|text| !text.trim().is_empty()).map(number).collect::<Result<_>>()?,
    })
}

impl OriginalCheckpoint {
    /// The canonical stream of each participant, in their order: every one of them, or an error.
    ///
    /// # Errors
    /// XX001 when a snapshot is missing or not what its sidecar says; 22023 when a base lies in a store that was not
    /// given.
    pub fn read(&self, directory: &Path, bases: Option<&MaterialisationStore<'_>>) -> Result<Vec<Vec<u8>>> {
        let generation = directory.join(format!("v{}", self.generation));
        self.subtasks.iter().map(|subtask| self.read_subtask(&generation.join(subtask.to_string()), bases)).collect()
    }

    fn read_subtask(&self, folder: &Path, bases: Option<&MaterialisationStore<'_>>) -> Result<Vec<u8>> {
        let plain = folder.join(format!("checkpoint-{}.snap", self.id));
        if plain.exists() {
            let bytes = std::fs::read(&plain)?;
            check_sidecar(&plain, &bytes)?;
            return Ok(bytes);
        }
        let changelog = folder.join(format!("changelog-{}.snap", self.id));
        if changelog.exists() {
            let local = |handle: &str| -> Result<Vec<u8>> {
                // The engine writes absolute paths; a copied directory has the file below the subtask.
                let name = Path::new(handle).file_name().map(PathBuf::from).unwrap_or_default();
                let beside = folder.join("materializations").join(&name);
                let path = if beside.exists() { beside } else { PathBuf::from(handle) };
                std::fs::read(&path).map_err(|error| damaged(&path, format!("the base cannot be read: {error}")))
            };
            let store: &MaterialisationStore<'_> = bases.unwrap_or(&local);
            return ChangelogReader::new(Some(store)).canonicalize(&std::fs::read(&changelog)?);
        }
        Err(damaged(&plain, "the snapshot of a participant is missing"))
    }
}

fn check_sidecar(snapshot: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = snapshot.as_os_str().to_owned();
    name.push(".meta");
    let path = PathBuf::from(name);
    if !path.exists() {
        return Err(damaged(&path, "the sidecar is missing, so the snapshot may be incomplete"));
    }
    let fields = fields(&path, &std::fs::read_to_string(&path)?)?;
    if fields.get("clink_checkpoint_meta").map(String::as_str) != Some("1") {
        return Err(damaged(&path, "its version is not known"));
    }
    let number = |name: &str| {
        let text = fields.get(name).ok_or_else(|| damaged(&path, format!("it has no {name}")))?;
        text.parse::<u64>().map_err(|_| damaged(&path, format!("{name} is no number")))
    };
    if number("payload_bytes")? != bytes.len() as u64 {
        return Err(damaged(
            snapshot,
            format!("it has {} bytes, its sidecar says {}", bytes.len(), number("payload_bytes")?),
        ));
    }
    if number("payload_crc32c")? != u64::from(crc32c::crc32c(bytes)) {
        return Err(damaged(snapshot, "its checksum is not that of its sidecar"));
    }
    Ok(())
}
