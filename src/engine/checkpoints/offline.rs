//! State without a server: looked at, checked and swept in the files that checkpoints left.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::prelude::SessionContext;

use super::savepoint::{SavepointFiles, savepoint_folder};
use super::{CheckpointConfig, Cut, GROUP, JobCut, StateStores, is_ours};
use crate::connectors::export_job;
use crate::env::Env;
use crate::state::{
    ChangelogReader, Depth, HeadCheckpoint, HeadFile, Manifest, MaterialisationStore, Part, export_checkpoint,
    find_original, merge, query_batch, verify,
};
use crate::types::{CheckpointId, Error, Result, SqlState};

/// The state of one table or view, or of all that a file holds.
pub struct OfflineState {
    /// Its name.
    pub name: String,
    /// Its entries, as a canonical stream.
    pub stream: Vec<u8>,
}

/// What to take of a place.
#[derive(Clone, Debug, Default)]
pub struct OfflineSelection {
    /// The table or view, with or without its schema; all of them without.
    pub job: Option<String>,
    /// The checkpoint; the newest without.
    pub checkpoint: Option<u64>,
    /// Where the bases of changelog snapshots of the C++ engine lie, by the last part of their handles.
    pub bases: Option<PathBuf>,
}

/// What a check of a checkpoint found.
pub struct Verified {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Tables and views in it.
    pub jobs: usize,
    /// Objects that hold it.
    pub parts: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Why it is not whole.
    pub damage: Option<Error>,
}

/// A place with checkpoints of a database.
struct Place {
    stores: StateStores,
    root: PathBuf,
    /// The newest first.
    named: Vec<HeadCheckpoint>,
    /// A savepoint's folder has one store for all.
    is_savepoint: bool,
}

fn not_there(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::new(SqlState::UndefinedFile, format!("{}: {why}", path.display())).hint(
        "Name a data directory, a checkpoint folder, a savepoint, a snapshot file, or a checkpoint directory of the C++ engine.",
    )
}

/// Finds the checkpoints of a data directory, a checkpoint folder or a savepoint.
fn place(path: &Path) -> Result<Place> {
    let open = |root: &Path| {
        let mut config = CheckpointConfig::below(root);
        config.directory = root.to_owned();
        StateStores::open(&config, &Env::system(), None, 0)
    };
    if let Some(files) = SavepointFiles::find(path)? {
        let named = vec![files.named];
        return Ok(Place { stores: open(path)?, root: path.to_owned(), named, is_savepoint: true });
    }
    let (root, head) = if path.join("HEAD").exists() {
        (path.join("checkpoints"), Some(HeadFile::read(path)?))
    } else {
        (path.to_owned(), None)
    };
    if !root.join("manifests").is_dir() {
        return Err(not_there(path, "there is no checkpoint"));
    }
    let stores = open(&root)?;
    let named = match head {
        Some(head) => head.checkpoints.get(GROUP).cloned().unwrap_or_default(),
        // Without HEAD nobody says which are complete: those that are whole are looked at.
        None => {
            let mut named = Vec::new();
            for object in stores.root().list("manifests/")? {
                let number = object.name.strip_prefix("manifests/").and_then(|name| name.strip_prefix(GROUP));
                let number = number.and_then(|name| name.strip_prefix('-')?.strip_suffix(".json")?.parse().ok());
                let Some(number) = number else { continue };
                let manifest = Part::of(&object.name, &std::fs::read(root.join(&object.name))?);
                named.push(HeadCheckpoint { checkpoint: CheckpointId(number), manifest });
            }
            named.sort_by_key(|named| std::cmp::Reverse(named.checkpoint));
            named
        }
    };
    Ok(Place { stores, root, named, is_savepoint: false })
}

impl Place {
    fn cut(&self, named: &HeadCheckpoint) -> Result<Cut> {
        Cut::from_json(Manifest::read(&**self.stores.root(), named)?.engine)
    }

    fn choose(&self, checkpoint: Option<u64>) -> Result<&HeadCheckpoint> {
        let found = match checkpoint {
            None => self.named.first(),
            Some(id) => self.named.iter().find(|named| named.checkpoint == CheckpointId(id)),
        };
        found.ok_or_else(|| {
            let known: Vec<String> = self.named.iter().map(|named| named.checkpoint.to_string()).collect();
            Error::new(SqlState::UndefinedObject, format!("{} has no such checkpoint", self.root.display()))
                .hint(format!("It has: {}.", known.join(", ")))
        })
    }

    fn state(&self, job: &JobCut) -> Result<Vec<u8>> {
        let store = self.stores.store(job.relation, &self.stores.uri(Some(&job.state_uri))?)?;
        export_checkpoint(&store, &job.workers, &self.stores.scratch())
    }

    fn verify(&self, named: &HeadCheckpoint) -> Verified {
        let mut found = Verified { checkpoint: named.checkpoint, jobs: 0, parts: 0, bytes: 0, damage: None };
        found.damage = self.verify_into(named, &mut found).err();
        found
    }

    fn verify_into(&self, named: &HeadCheckpoint, found: &mut Verified) -> Result<()> {
        let cut = self.cut(named)?;
        let parts = cut.parts();
        (found.jobs, found.parts) = (cut.jobs.len(), parts.len());
        found.bytes = parts.iter().map(|(_, part)| part.bytes).sum();
        for job in &cut.jobs {
            let store = self.stores.store(job.relation, &self.stores.uri(Some(&job.state_uri))?)?;
            let parts = Manifest::new(GROUP, named.checkpoint, &job.state_uri, job.workers.clone());
            verify(&*store, &parts, Depth::Checksums)
                .map_err(|error| error.detail(format!("It is part of the state of {}.", job.name)))?;
        }
        for part in cut.root_parts() {
            self.stores.root().get(part)?;
        }
        Ok(())
    }
}

/// A path that a URI of a local place names.
///
/// # Errors
/// 0A000 for other places.
fn local(target: &str) -> Result<PathBuf> {
    if target.contains("://") { savepoint_folder(target) } else { Ok(PathBuf::from(target)) }
}

/// The state in a file, a checkpoint folder, a data directory, a savepoint or a directory of the C++ engine.
///
/// # Errors
/// 58P01 when there is none; XX001 when it is damaged; 42704 for a job or checkpoint that is not in it.
pub fn read_state(target: &str, selection: &OfflineSelection) -> Result<Vec<OfflineState>> {
    let path = local(target)?;
    let bases = selection.bases.clone();
    let by_handle = move |handle: &str| -> Result<Vec<u8>> {
        let name = Path::new(handle).file_name().map(PathBuf::from).unwrap_or_default();
        let path = bases.clone().unwrap_or_default().join(name);
        std::fs::read(&path).map_err(|error| not_there(&path, error))
    };
    let by_handle: &MaterialisationStore<'_> = &by_handle;
    let store = selection.bases.is_some().then_some(by_handle);
    if path.is_file() {
        let bytes = std::fs::read(&path)?;
        let stream = if ChangelogReader::recognizes(&bytes) {
            ChangelogReader::new(store).canonicalize(&bytes)?
        } else {
            // Sorted and checked.
            merge(&[&bytes])?
        };
        return Ok(vec![OfflineState { name: path.display().to_string(), stream }]);
    }
    if path.join("_jobs").is_dir() {
        let found = find_original(&path, selection.job.as_deref(), selection.checkpoint)?;
        let streams = found.read(&path, store)?;
        let streams: Vec<&[u8]> = streams.iter().map(Vec::as_slice).collect();
        return Ok(vec![OfflineState { name: found.job, stream: merge(&streams)? }]);
    }
    if !path.is_dir() {
        return Err(not_there(&path, "there is nothing"));
    }
    let place = place(&path)?;
    let cut = place.cut(place.choose(selection.checkpoint)?)?;
    let is_wanted = |job: &JobCut| match &selection.job {
        None => true,
        Some(name) => job.name == *name || job.name.rsplit_once('.').is_some_and(|(_, bare)| bare == name),
    };
    let mut states = Vec::new();
    for job in cut.jobs.iter().filter(|job| is_wanted(job)) {
        states.push(OfflineState { name: job.name.clone(), stream: place.state(job)? });
    }
    if states.is_empty() && selection.job.is_some() {
        let known: Vec<&str> = cut.jobs.iter().map(|job| job.name.as_str()).collect();
        return Err(Error::new(SqlState::UndefinedObject, "the checkpoint has no such table or view")
            .hint(format!("It has: {}.", known.join(", "))));
    }
    Ok(states)
}

/// The state of a running job of a server, as it is now. `server` is the address of its HTTP, `job` the job's number or name.
///
/// # Errors
/// 22023 for an address that is none; 08001 when there is no answer; 42704 when there is no such job; XX001 when what comes
/// is no state.
pub fn read_running(server: &str, job: &str) -> Result<OfflineState> {
    let (name, stream) = export_job(server, job)?;
    // Checked.
    Ok(OfflineState { name, stream: merge(&[&stream])? })
}

/// Several states as one stream.
///
/// # Errors
/// XX001 when one is damaged.
pub fn as_one(states: &[OfflineState]) -> Result<Vec<u8>> {
    merge(&states.iter().map(|state| state.stream.as_slice()).collect::<Vec<_>>())
}

/// Checks every part of each checkpoint of a place, the newest first.
///
/// # Errors
/// 58P01 when there is none.
pub fn verify_checkpoints(target: &str) -> Result<Vec<Verified>> {
    let place = place(&local(target)?)?;
    Ok(place.named.iter().map(|named| place.verify(named)).collect())
}

/// Removes what no checkpoint of a data directory names; with `dry_run`, only tells. Gives the names.
///
/// # Errors
/// 55000 when a server runs on it; XX001 when a checkpoint cannot be read: then nothing is removed.
pub fn sweep_checkpoints(target: &str, dry_run: bool) -> Result<Vec<String>> {
    let path = local(target)?;
    if !path.join("HEAD").exists() {
        return Err(not_there(&path, "there is no HEAD, so nobody says which checkpoints are kept")
            .hint("Name a data directory."));
    }
    let _held = HeadFile::hold(&path)?;
    let place = place(&path)?;
    let mut needed: BTreeSet<PathBuf> = BTreeSet::new();
    let mut stores = vec![Arc::clone(place.stores.root())];
    let at = |store: &str, name: &str| Path::new(store).join(name);
    let root = place.stores.root().location();
    for named in &place.named {
        let cut = place.cut(named)?;
        needed.insert(at(&root, &named.manifest.name));
        needed.extend(cut.root_parts().map(|part| at(&root, &part.name)));
        for job in &cut.jobs {
            let store = place.stores.store(job.relation, &place.stores.uri(Some(&job.state_uri))?)?;
            let location = store.location();
            let parts = job.workers.iter().flat_map(|snapshot| snapshot.parts());
            needed.extend(parts.map(|part| at(&location, &part.name)));
            if !Path::new(&location).starts_with(&root) && !stores.iter().any(|known| known.location() == location) {
                stores.push(store);
            }
        }
    }
    let mut removed = Vec::new();
    for store in stores {
        let location = store.location();
        let is_root = location == root;
        for object in store.list("")? {
            let name = if is_root { object.name.clone() } else { format!("jobs/0/{}", object.name) };
            if is_ours(&name) && !needed.contains(&at(&location, &object.name)) {
                if !dry_run {
                    store.delete(&object.name)?;
                }
                removed.push(at(&location, &object.name).display().to_string());
            }
        }
    }
    Ok(removed)
}

/// Rows of a query over the table `state` of a stream.
///
/// # Errors
/// Those of the query; XX001 when the stream is damaged.
pub async fn query_state(stream: &[u8], sql: &str) -> Result<Vec<RecordBatch>> {
    let context = SessionContext::new();
    context.register_batch("state", query_batch(stream)?).map_err(crate::engine::error_of)?;
    let frame = context.sql(sql).await.map_err(crate::engine::error_of)?;
    let schema = Arc::clone(frame.schema().inner());
    let mut batches = frame.collect().await.map_err(crate::engine::error_of)?;
    if batches.is_empty() {
        batches.push(RecordBatch::new_empty(schema));
    }
    Ok(batches)
}

/// True when the place is a savepoint and its checkpoint is whole.
///
/// # Errors
/// 58P01 when it is no savepoint.
pub fn check_savepoint(target: &str) -> Result<(Verified, Vec<String>)> {
    let path = local(target)?;
    let place = place(&path)?;
    if !place.is_savepoint {
        return Err(not_there(&path, "it is no savepoint"));
    }
    let named = place.choose(None)?;
    let mut verified = place.verify(named);
    if verified.damage.is_none() {
        verified.damage = SavepointFiles::find(&path)?.and_then(|files| files.check_catalog(&path).err());
    }
    let names = place.cut(named).map(|cut| cut.jobs.into_iter().map(|job| job.name).collect());
    Ok((verified, names.unwrap_or_default()))
}
