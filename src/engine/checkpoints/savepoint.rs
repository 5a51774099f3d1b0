//! Savepoints: checkpoints that their owner keeps, with all that a database needs to begin from them.
//!
//! ```text
//! SAVEPOINT.json                    names the manifest and the catalog; written last
//! manifests/database-<id>.json      as in a checkpoint folder
//! jobs/<relation>/cp-<id>/w0/state.arrow     each job's state in the open format, whatever backend it has
//! cp-<id>/errors-<table>.arrow      rows that could not be read
//! cp-<id>/sink-<sink>.arrow         rows that a sink has written into its table
//! catalog.log                       as in a data directory
//! ```

use std::path::Path;

use bytes::Bytes;

use super::{Cut, GROUP, StateStores};
use crate::env::Failpoints;
use crate::state::{
    Content, HeadCheckpoint, HeadFile, LocalStore, Manifest, Part, PartStore, Snapshot, export_checkpoint,
};
use crate::types::{CheckpointId, Error, Result, SqlState};

const MARKER: &str = "SAVEPOINT.json";
const CATALOG: &str = "catalog.log";
/// The format that this program writes, and the newest that it reads.
const FORMAT_VERSION: u32 = 1;

#[derive(serde::Serialize, serde::Deserialize)]
struct Marker {
    format_version: u32,
    checkpoint: CheckpointId,
    manifest: Part,
    catalog: Part,
}

/// Writes a checkpoint as a savepoint into a folder that holds nothing; `catalog` is the catalog's log at its time.
///
/// # Errors
/// 42710 when something is there; when it cannot be written.
pub(super) fn write(
    stores: &StateStores,
    named: &HeadCheckpoint,
    cut: &Cut,
    catalog: Vec<u8>,
    folder: &Path,
) -> Result<()> {
    let store = LocalStore::open(folder, true, stores.failpoints().clone())?;
    if !store.list("")?.is_empty() {
        return Err(Error::new(SqlState::DuplicateObject, format!("folder {} is not empty", folder.display()))
            .hint("Name a folder that does not exist yet."));
    }
    let mut cut = cut.clone();
    // Where a sink's files end says nothing elsewhere: it begins anew.
    cut.jobs.retain(|job| job.position.is_none());
    for job in &mut cut.jobs {
        let from = stores.store(job.relation, &stores.uri(Some(&job.state_uri))?)?;
        let state = export_checkpoint(&from, &job.workers, &stores.scratch())?;
        let name = format!("cp-{}/w0/state.arrow", named.checkpoint);
        let part = store.put(&format!("jobs/{}/{name}", job.relation), state.into())?;
        job.state_uri = "memory://".to_owned();
        let content = Content::Arrow { part: Part { name, ..part }, changes: Vec::new() };
        job.workers = vec![Snapshot::new(named.checkpoint, content)];
    }
    for part in cut.root_parts() {
        store.put(&part.name, stores.root().get(part)?)?;
    }
    let mut manifest = Manifest::new(GROUP, named.checkpoint, "", Vec::new());
    manifest.time_millis = named.checkpoint.0;
    manifest.engine = cut.to_json()?;
    let marker = Marker {
        format_version: FORMAT_VERSION,
        checkpoint: named.checkpoint,
        manifest: manifest.write(&store)?.manifest,
        catalog: store.put(CATALOG, catalog.into())?,
    };
    let marker = serde_json::to_vec(&marker).map_err(|error| Error::internal(error.to_string()))?;
    store.put(MARKER, marker.into()).map(drop)
}

/// The files of a savepoint.
pub(super) struct SavepointFiles {
    pub(super) named: HeadCheckpoint,
    catalog: Part,
}

impl SavepointFiles {
    /// Those of a folder; `None` when it holds no savepoint.
    ///
    /// # Errors
    /// XX001 when it cannot be understood.
    pub(super) fn find(folder: &Path) -> Result<Option<SavepointFiles>> {
        let path = folder.join(MARKER);
        let marker = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let damaged = |why: String| {
            Error::new(SqlState::DataCorrupted, format!("the savepoint in {} is damaged: {why}", folder.display()))
                .hint("Use another savepoint, or a copy of this one.")
        };
        let marker: Marker = serde_json::from_slice(&marker).map_err(|error| damaged(error.to_string()))?;
        if marker.format_version > FORMAT_VERSION {
            return Err(damaged(format!("it was written by a newer clink (format {})", marker.format_version)));
        }
        let named = HeadCheckpoint { checkpoint: marker.checkpoint, manifest: marker.manifest };
        Ok(Some(SavepointFiles { named, catalog: marker.catalog }))
    }

    /// Reads the catalog's log.
    ///
    /// # Errors
    /// XX001 when it is not what was written.
    pub(super) fn check_catalog(&self, folder: &Path) -> Result<()> {
        open(folder)?.get(&self.catalog).map(drop)
    }
}

/// Makes an empty data directory one that begins from a savepoint.
///
/// # Errors
/// 55000 when the directory has a database; 58P01 when there is no savepoint; XX001 when that is damaged.
pub(crate) fn begin_from(folder: &Path, data_dir: &Path, checkpoints: &Path) -> Result<()> {
    if data_dir.join(CATALOG).exists() {
        return Err(Error::new(
            SqlState::ObjectNotReady,
            format!("data directory {} has a database already", data_dir.display()),
        )
        .hint("Leave --restore-from out to go on with it, or give another --data-dir."));
    }
    let SavepointFiles { named, catalog } = SavepointFiles::find(folder)?.ok_or_else(|| {
        Error::new(SqlState::UndefinedFile, format!("there is no savepoint in {}", folder.display()))
            .hint("Name the folder that CREATE SAVEPOINT wrote.")
    })?;
    let (from, to) = (open(folder)?, open(checkpoints)?);
    let copy = |part: &Part, name: &str| -> Result<()> {
        let content: Bytes = from.get(&Part { name: name.to_owned(), ..part.clone() })?;
        to.put(name, content).map(drop)
    };
    let cut = Cut::from_json(Manifest::read(&from, &named)?.engine)?;
    for job in &cut.jobs {
        for part in job.workers.iter().flat_map(Snapshot::parts) {
            copy(part, &format!("jobs/{}/{}", job.relation, part.name))?;
        }
    }
    cut.root_parts().try_for_each(|part| copy(part, &part.name))?;
    copy(&named.manifest, &named.manifest.name)?;
    let catalog = from.get(&catalog)?;
    HeadFile::open(data_dir)?.update(|head| {
        // Times go on above those of the savepoint.
        head.clock_bound_millis = head.clock_bound_millis.max(named.checkpoint.0 + 1);
        head.checkpoints.insert(GROUP.to_owned(), vec![named]);
    })?;
    // A directory without a catalog has no database, so this comes last.
    open(data_dir)?.put(CATALOG, catalog).map(drop)
}

fn open(folder: &Path) -> Result<LocalStore> {
    LocalStore::open(folder, true, Failpoints::default())
}

/// The folder of a savepoint's URI.
///
/// # Errors
/// 0A000 for a place that is not a local folder, 22023 for one that is not absolute.
pub fn savepoint_folder(uri: &str) -> Result<std::path::PathBuf> {
    let path = uri.strip_prefix("file://").unwrap_or(uri);
    if path.contains("://") {
        return Err(Error::unsupported(format!("a savepoint in {uri} is not supported"))
            .hint("Write a local folder: file:///var/lib/clink/savepoint."));
    }
    let path = Path::new(path);
    if !path.is_absolute() || path.components().any(|part| part == std::path::Component::ParentDir) {
        return Err(Error::new(SqlState::InvalidParameterValue, format!("{uri:?} is no absolute folder"))
            .hint("Write file:///var/lib/clink/savepoint, with three slashes."));
    }
    Ok(path.to_owned())
}
