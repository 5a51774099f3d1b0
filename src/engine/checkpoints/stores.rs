//! Where the state of jobs lies.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::runtime::Handle;

use super::CheckpointConfig;
use crate::env::{Env, Failpoints};
use crate::exec::relation::lock;
use crate::state::{BackendContext, LocalStore, PartStore, Registry, Share, SharedHead, StateBackend, StateUri};
use crate::types::{RelationId, Result};

/// The checkpoint folder, and the backends of jobs.
pub(crate) struct StateStores {
    registry: Registry,
    folder: PathBuf,
    root: Arc<dyn PartStore>,
    /// Of jobs that name none.
    default_uri: StateUri,
    memory_bytes: usize,
    sync: bool,
    failpoints: Failpoints,
    runtime: Handle,
    owner: Option<Owner>,
    /// Places that other machines reach and this process has taken, see [`StateStores::take`].
    taken: Mutex<HashMap<String, SharedHead>>,
    /// Backends that were started in this life of the process.
    started: AtomicU64,
}

/// The process that writes state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    /// The number of its database.
    pub(crate) database: u64,
    /// Its incarnation.
    pub(crate) incarnation: u64,
}

/// Set to `0` or `false`, files of state are not synced.
const FSYNC_VARIABLE: &str = "CLINK_STATE_FSYNC";

impl StateStores {
    /// Opens the checkpoint folder, from a thread of a runtime. Without an owner state is only read.
    ///
    /// # Errors
    /// 22023 for a URI that is not understood; when the folder cannot be made.
    pub(crate) fn open(
        config: &CheckpointConfig,
        env: &Env,
        owner: Option<Owner>,
        memory_bytes: usize,
    ) -> Result<StateStores> {
        let registry = Registry::default();
        let default_uri = registry.parse(&config.state_backend)?;
        let sync = !std::env::var(FSYNC_VARIABLE).is_ok_and(|value| value == "0" || value == "false");
        if !sync {
            tracing::warn!("{FSYNC_VARIABLE} is off: a crash of the machine can lose checkpoints");
        }
        let failpoints = env.failpoints().clone();
        Ok(StateStores {
            registry,
            root: Arc::new(LocalStore::open(&config.directory, sync, failpoints.clone())?),
            folder: config.directory.clone(),
            default_uri,
            memory_bytes,
            sync,
            failpoints,
            runtime: Handle::current(),
            owner,
            taken: Mutex::default(),
            started: AtomicU64::new(0),
        })
    }

    /// The store of manifests.
    pub(crate) fn root(&self) -> &Arc<dyn PartStore> {
        &self.root
    }

    /// A folder for files that must lie on a disk to be read.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.folder.join("scratch")
    }

    /// Named places at which tests let things fail.
    pub(crate) fn failpoints(&self) -> &Failpoints {
        &self.failpoints
    }

    /// Reads a job's URI; nothing is the server's default.
    ///
    /// # Errors
    /// 22023 saying what is wrong and what is known.
    pub(crate) fn uri(&self, text: Option<&str>) -> Result<StateUri> {
        text.map_or_else(|| Ok(self.default_uri.clone()), |text| self.registry.parse(text))
    }

    /// Takes a place that other machines reach, once: a server on a copy of the data directory cannot complete a
    /// checkpoint there any more, and that of another database is refused. Gives this process's incarnation there.
    ///
    /// # Errors
    /// 55000 when the place belongs to another database; when it cannot be reached.
    fn take(&self, uri: &StateUri) -> Result<u64> {
        let Some(owner) = self.owner else { return Ok(0) };
        let Some(root) = self.registry.shared_root(uri, &self.runtime)? else { return Ok(owner.incarnation) };
        let mut taken = lock(&self.taken);
        let place = place_of(uri)?;
        if let Some(head) = taken.get(&place) {
            return Ok(head.head().incarnation);
        }
        let head = SharedHead::take(root, owner.database, owner.incarnation)?;
        let incarnation = head.head().incarnation;
        taken.insert(place, head);
        Ok(incarnation)
    }

    /// Makes sure that the places of some jobs that other machines reach are still this process's.
    ///
    /// # Errors
    /// 57P01 when another has taken one over; when one cannot be reached.
    pub(crate) fn confirm<'a>(&self, uris: impl Iterator<Item = &'a str>) -> Result<()> {
        let mut taken = lock(&self.taken);
        if taken.is_empty() {
            return Ok(());
        }
        for uri in uris.collect::<BTreeSet<_>>() {
            let uri = self.registry.parse(uri)?;
            if uri.bucket().is_ok()
                && let Some(head) = taken.get_mut(&place_of(&uri)?)
            {
                head.update(|_| ())?;
            }
        }
        Ok(())
    }

    /// The places that other machines reach and this process has taken, above the parts of all jobs.
    pub(crate) fn shared_roots(&self) -> Vec<Arc<dyn PartStore>> {
        lock(&self.taken).values().map(|head| Arc::clone(head.store())).collect()
    }

    /// The store of a job's parts.
    ///
    /// # Errors
    /// When the place cannot be made or reached.
    pub(crate) fn store(&self, job: RelationId, uri: &StateUri) -> Result<Arc<dyn PartStore>> {
        self.registry.store(uri, &self.context(job, uri, Share::WHOLE)?)
    }

    /// A job's backends, one for each worker, empty.
    ///
    /// # Errors
    /// When the place cannot be made or reached.
    pub(crate) fn build(&self, job: RelationId, uri: &StateUri, workers: usize) -> Result<Vec<Box<dyn StateBackend>>> {
        let store = self.store(job, uri)?;
        (0..workers)
            .map(|worker| self.registry.build(uri, &self.context(job, uri, Share::new(worker, workers)?)?, &store))
            .collect()
    }

    /// Removes working files that a killed server left of a job, which may not be there any more.
    ///
    /// # Errors
    /// When they cannot be removed.
    pub(crate) fn remove_stale(&self, job: RelationId, uri: &StateUri) -> Result<()> {
        self.registry.remove_stale(uri, &self.context(job, uri, Share::WHOLE)?)
    }

    fn context(&self, job: RelationId, uri: &StateUri, share: Share) -> Result<BackendContext> {
        let folder = self.folder.join("jobs").join(job.to_string());
        Ok(BackendContext {
            checkpoints: Arc::new(LocalStore::open(&folder, self.sync, self.failpoints.clone())?),
            work_folder: self.folder.join("work"),
            job: job.to_string(),
            share,
            // Processes are counted, and so are the backends of each.
            life: BackendContext::life(self.take(uri)?, self.started.fetch_add(1, Ordering::Relaxed)),
            memory_bytes: self.memory_bytes,
            runtime: self.runtime.clone(),
            sync: self.sync,
            failpoints: self.failpoints.clone(),
        })
    }
}

/// The name of a place that other machines reach.
///
/// # Errors
/// 22023 for one that is local.
fn place_of(uri: &StateUri) -> Result<String> {
    let from_env = || ["AWS_ENDPOINT_URL", "AWS_ENDPOINT"].into_iter().find_map(|name| std::env::var(name).ok());
    let endpoint = uri.text("endpoint").map(str::to_owned).or_else(from_env).unwrap_or_default();
    Ok([endpoint.trim_end_matches('/'), uri.bucket()?, uri.prefix()].join("|"))
}
