//! Where the state of jobs lies.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;

use super::CheckpointConfig;
use crate::env::{Env, Failpoints};
use crate::state::{BackendContext, LocalStore, PartStore, Registry, Share, StateBackend, StateUri};
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
    incarnation: u64,
    /// Backends that were started in this life of the process.
    started: AtomicU64,
}

/// Set to `0` or `false`, files of state are not synced.
const FSYNC_VARIABLE: &str = "CLINK_STATE_FSYNC";

impl StateStores {
    /// Opens the checkpoint folder, from a thread of a runtime.
    ///
    /// # Errors
    /// 22023 for a URI that is not understood; when the folder cannot be made.
    pub(crate) fn open(
        config: &CheckpointConfig,
        env: &Env,
        incarnation: u64,
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
            incarnation,
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

    /// The store of a job's parts.
    ///
    /// # Errors
    /// When the place cannot be made or reached.
    pub(crate) fn store(&self, job: RelationId, uri: &StateUri) -> Result<Arc<dyn PartStore>> {
        self.registry.store(uri, &self.context(job, Share::WHOLE)?)
    }

    /// A job's backends, one for each worker, empty.
    ///
    /// # Errors
    /// When the place cannot be made or reached.
    pub(crate) fn build(&self, job: RelationId, uri: &StateUri, workers: usize) -> Result<Vec<Box<dyn StateBackend>>> {
        let store = self.store(job, uri)?;
        (0..workers)
            .map(|worker| self.registry.build(uri, &self.context(job, Share::new(worker, workers)?)?, &store))
            .collect()
    }

    /// Removes working files that a killed server left of a job, which may not be there any more.
    ///
    /// # Errors
    /// When they cannot be removed.
    pub(crate) fn remove_stale(&self, job: RelationId, uri: &StateUri) -> Result<()> {
        self.registry.remove_stale(uri, &self.context(job, Share::WHOLE)?)
    }

    fn context(&self, job: RelationId, share: Share) -> Result<BackendContext> {
        let folder = self.folder.join("jobs").join(job.to_string());
        Ok(BackendContext {
            checkpoints: Arc::new(LocalStore::open(&folder, self.sync, self.failpoints.clone())?),
            work_folder: self.folder.join("work"),
            job: job.to_string(),
            share,
            // Processes are counted, and so are the backends of each.
            life: BackendContext::life(self.incarnation, self.started.fetch_add(1, Ordering::Relaxed)),
            memory_bytes: self.memory_bytes,
            runtime: self.runtime.clone(),
            sync: self.sync,
            failpoints: self.failpoints.clone(),
        })
    }
}
