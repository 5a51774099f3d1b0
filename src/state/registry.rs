//! Schemes and what they build.
//!
//! | scheme | place | state | checkpoints |
//! | --- | --- | --- | --- |
//! | `memory`, `memory+sharded` | | maps | whole, in the server's checkpoint folder |
//! | `file` | folder | maps | whole, in the folder |
//! | `changelog` | | maps | changes, in the server's checkpoint folder |
//! | `changelog+file` | folder | maps | changes, in the folder |
//! | `changelog+s3` | bucket | maps | changes, in the bucket |
//! | `rocksdb` | folder | RocksDB | linked files, in the folder |
//! | `changelog+rocksdb` | folder | RocksDB | changes and linked files, in the folder |
//! | `s3+rocksdb` | bucket | RocksDB, in a working folder | files, in the bucket |
//! | `changelog+s3+rocksdb` | bucket | RocksDB, in a working folder | changes and files, in the bucket |
//! | `disagg-local` | | layers and a hot tier | layers, in the server's checkpoint folder |
//! | `remote-read` | bucket | layers and a hot tier | layers, in the bucket |
//!
//! Several jobs on one URI get sub-folders by job; several workers of a job share the store and differ in names.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use tokio::runtime::Handle;

use super::backend::StateBackend;
use super::changelog::{ChangelogBackend, ChangelogOptions};
use super::memory::MemoryBackend;
use super::remote::{LayerPool, RemoteOptions, RemoteReadBackend};
use super::rocks::{register_rocksdb, remove_stale};
use super::share::Share;
use super::store::{LocalStore, ObjectPartStore, PartNames, PartStore};
use super::uri::{Place, StateUri};
use crate::env::Failpoints;
use crate::types::{Error, Result, SqlState};

/// What a backend is given by its server.
#[derive(Clone)]
pub struct BackendContext {
    /// The job's part of the server's checkpoint folder: for schemes that name no place.
    pub checkpoints: Arc<dyn PartStore>,
    /// A local folder for working files of schemes whose place is a bucket.
    pub work_folder: PathBuf,
    /// The sub-folder of the job in a URI that several share.
    pub job: String,
    /// What the worker keeps.
    pub share: Share,
    /// A number that no earlier backend of the job had, see [`BackendContext::life`].
    pub life: u64,
    /// Bytes of memory that the backend may use for what it can read again.
    pub memory_bytes: usize,
    /// Runs requests to object stores.
    pub runtime: Handle,
    /// Whether files are synced; without, a crash of the machine can lose checkpoints.
    pub sync: bool,
    /// Named places at which tests let writes fail.
    pub failpoints: Failpoints,
}

/// Backends that one process can start.
const LIVES_BITS: u32 = 32;

impl BackendContext {
    /// The life of a process's backend: greater than that of every backend of an earlier process.
    pub fn life(incarnation: u64, started: u64) -> u64 {
        (incarnation << LIVES_BITS) | started
    }

    /// The incarnation of the process that has such a backend.
    pub fn incarnation_of(life: u64) -> u64 {
        life >> LIVES_BITS
    }
}

type Build = dyn Fn(&StateUri, &BackendContext, &Arc<dyn PartStore>) -> Result<Box<dyn StateBackend>> + Send + Sync;

/// A parameter of a scheme and the values that it takes.
#[derive(Clone, Copy, Debug)]
pub enum Parameter {
    /// Any text.
    Text(&'static str),
    /// One of some words.
    Word(&'static str, &'static [&'static str]),
    /// A whole number from 1.
    Count(&'static str),
    /// A number of bytes, or another number from 0.
    Bytes(&'static str),
    /// True or false.
    Flag(&'static str),
}

impl Parameter {
    fn name(self) -> &'static str {
        match self {
            Parameter::Text(name)
            | Parameter::Word(name, _)
            | Parameter::Count(name)
            | Parameter::Bytes(name)
            | Parameter::Flag(name) => name,
        }
    }

    fn check(self, uri: &StateUri) -> Result<()> {
        match self {
            Parameter::Text(_) => Ok(()),
            Parameter::Word(name, words) => uri.word(name, words).map(drop),
            Parameter::Count(name) => uri.count(name).map(drop),
            Parameter::Bytes(name) => uri.bytes(name).map(drop),
            Parameter::Flag(name) => uri.flag(name).map(drop),
        }
    }
}

struct Scheme {
    place: Place,
    parameters: Vec<Parameter>,
    build: Box<Build>,
}

/// The known schemes. A value and no global: a server that has more of them adds them to its own.
pub struct Registry {
    schemes: BTreeMap<&'static str, Scheme>,
}

const BUCKET_PARAMETERS: [Parameter; 3] =
    [Parameter::Text("endpoint"), Parameter::Text("region"), Parameter::Flag("anonymous")];
pub(super) const CHANGELOG_PARAMETERS: [Parameter; 3] = [
    Parameter::Bytes("materialization_threshold_bytes"),
    Parameter::Bytes("upload_bytes"),
    Parameter::Flag("log_compaction"),
];
const HOT_PARAMETERS: [Parameter; 2] = [Parameter::Bytes("hot_max_bytes"), Parameter::Count("io_threads")];
/// Fewer bytes make no tier.
const HOT_BYTES_MIN: usize = 64 << 20;

impl Default for Registry {
    fn default() -> Registry {
        let mut registry = Registry { schemes: BTreeMap::new() };
        registry.register("memory", Place::Process, &[], |_, context, store| Ok(memory(context, store, false)));
        registry.register("memory+sharded", Place::Process, &[], |_, context, store| Ok(memory(context, store, true)));
        registry.register("file", Place::Folder, &[], |_, context, store| Ok(memory(context, store, true)));
        for (scheme, place) in
            [("changelog", Place::Process), ("changelog+file", Place::Folder), ("changelog+s3", Place::Bucket)]
        {
            registry.register(scheme, place, &CHANGELOG_PARAMETERS, |uri, context, store| {
                let names = base_names(context);
                changelog(uri, context, store, Box::new(MemoryBackend::new(Arc::clone(store), names, true).whole()))
            });
        }
        for (scheme, place) in [("remote-read", Place::Bucket), ("disagg-local", Place::Process)] {
            registry.register(scheme, place, &HOT_PARAMETERS, move |uri, context, store| {
                let threads = if place == Place::Bucket { 8 } else { 1 };
                remote(uri, context, store, threads)
            });
        }
        register_rocksdb(&mut registry);
        registry
    }
}

impl Registry {
    /// Adds a scheme: where it writes, its parameters beside those of the place, and how a backend is built, given
    /// the store of its checkpoints.
    pub fn register(
        &mut self,
        scheme: &'static str,
        place: Place,
        parameters: &[Parameter],
        build: impl Fn(&StateUri, &BackendContext, &Arc<dyn PartStore>) -> Result<Box<dyn StateBackend>>
        + Send
        + Sync
        + 'static,
    ) {
        let mut parameters = parameters.to_vec();
        if place == Place::Bucket {
            parameters.extend(BUCKET_PARAMETERS);
        }
        self.schemes.insert(scheme, Scheme { place, parameters, build: Box::new(build) });
    }

    /// The names of the schemes, in order.
    pub fn schemes(&self) -> impl Iterator<Item = &'static str> {
        self.schemes.keys().copied()
    }

    fn scheme(&self, uri: &StateUri) -> Result<&Scheme> {
        self.schemes.get(uri.scheme()).ok_or_else(|| {
            Error::new(SqlState::InvalidParameterValue, format!("there is no state backend {:?}", uri.scheme()))
                .hint(format!("The schemes are: {}.", self.schemes().collect::<Vec<_>>().join(", ")))
        })
    }

    /// Reads a URI and checks it, parameters included, without touching the place.
    ///
    /// # Errors
    /// 22023 saying what is wrong and what is known.
    pub fn parse(&self, text: &str) -> Result<StateUri> {
        let uri = StateUri::parse(text)?;
        let scheme = self.scheme(&uri)?;
        let names: Vec<&str> = scheme.parameters.iter().map(|parameter| parameter.name()).collect();
        uri.check(scheme.place, &names)?;
        scheme.parameters.iter().try_for_each(|parameter| parameter.check(&uri))?;
        Ok(uri)
    }

    /// The store of a URI's checkpoints: what a manifest's parts are names in.
    ///
    /// # Errors
    /// When the place cannot be made or reached.
    pub fn store(&self, uri: &StateUri, context: &BackendContext) -> Result<Arc<dyn PartStore>> {
        match self.scheme(uri)?.place {
            Place::Process => Ok(Arc::clone(&context.checkpoints)),
            Place::Folder => {
                let folder = uri.folder()?.join(&context.job).join("checkpoints");
                Ok(Arc::new(LocalStore::open(&folder, context.sync, context.failpoints.clone())?))
            }
            Place::Bucket => bucket(uri, &context.job, &context.runtime),
        }
    }

    /// Where a place that other machines reach has what says whose it is: above the stores of all jobs. `None` for one
    /// that is local.
    ///
    /// # Errors
    /// When the place cannot be used.
    pub fn shared_root(&self, uri: &StateUri, runtime: &Handle) -> Result<Option<Arc<dyn PartStore>>> {
        match self.scheme(uri)?.place {
            Place::Process | Place::Folder => Ok(None),
            Place::Bucket => bucket(uri, "", runtime).map(Some),
        }
    }

    /// Builds a worker's backend, empty; `store` is the one of [`Self::store`], which the workers may share.
    ///
    /// # Errors
    /// When its place cannot be made or reached.
    pub fn build(
        &self,
        uri: &StateUri,
        context: &BackendContext,
        store: &Arc<dyn PartStore>,
    ) -> Result<Box<dyn StateBackend>> {
        (self.scheme(uri)?.build)(uri, context, store)
    }

    /// Removes working files of a job that processes before this one left behind; building its backend does so too.
    ///
    /// # Errors
    /// When they cannot be removed.
    pub fn remove_stale(&self, uri: &StateUri, context: &BackendContext) -> Result<()> {
        if uri.scheme().ends_with("rocksdb") { remove_stale(uri, context) } else { Ok(()) }
    }
}

fn memory(context: &BackendContext, store: &Arc<dyn PartStore>, sharded: bool) -> Box<dyn StateBackend> {
    Box::new(MemoryBackend::new(Arc::clone(store), PartNames::of_worker(context.share.worker()), sharded))
}

/// Names of the bases of a changelog.
pub(super) fn base_names(context: &BackendContext) -> PartNames {
    PartNames::of_worker(context.share.worker()).behind(&ChangelogBackend::base_prefix(context.life))
}

/// A changelog over a working store.
pub(super) fn changelog(
    uri: &StateUri,
    context: &BackendContext,
    store: &Arc<dyn PartStore>,
    inner: Box<dyn StateBackend>,
) -> Result<Box<dyn StateBackend>> {
    let defaults = ChangelogOptions::default();
    let threshold = uri.bytes("materialization_threshold_bytes")?;
    let options = ChangelogOptions {
        materialization_threshold_bytes: threshold.unwrap_or(defaults.materialization_threshold_bytes),
        upload_bytes: uri.bytes("upload_bytes")?.unwrap_or(defaults.upload_bytes),
        log_compaction: uri.flag("log_compaction")?.unwrap_or(defaults.log_compaction),
    };
    let (worker, life) = (context.share.worker(), context.life);
    Ok(Box::new(ChangelogBackend::new(inner, Arc::clone(store), worker, life, options)?))
}

fn remote(
    uri: &StateUri,
    context: &BackendContext,
    store: &Arc<dyn PartStore>,
    io_threads: usize,
) -> Result<Box<dyn StateBackend>> {
    let names = PartNames::of_worker(context.share.worker());
    let share = context.memory_bytes.max(HOT_BYTES_MIN);
    let hot_max_bytes = match uri.bytes("hot_max_bytes")? {
        Some(0) => None,
        Some(bytes) => Some(bytes.min(share)),
        None => Some(share),
    };
    let options = RemoteOptions { hot_max_bytes, io_threads: uri.count("io_threads")?.unwrap_or(io_threads) };
    let pool = Arc::new(LayerPool::new(Arc::clone(store), names.clone()));
    Ok(Box::new(RemoteReadBackend::new(pool, Arc::clone(store), names, options)?))
}

fn bucket(uri: &StateUri, job: &str, runtime: &Handle) -> Result<Arc<dyn PartStore>> {
    let failed = |error: object_store::Error| {
        Error::new(SqlState::InvalidParameterValue, format!("{uri} cannot be used: {error}"))
            .hint("Give credentials in the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION.")
    };
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(uri.bucket()?);
    if let Some(endpoint) = uri.text("endpoint") {
        builder = builder.with_endpoint(endpoint);
    }
    // Who names such an address means it.
    let endpoints = [AmazonS3ConfigKey::Endpoint, AmazonS3ConfigKey::S3Endpoint];
    if endpoints.iter().filter_map(|key| builder.get_config_value(key)).any(|endpoint| endpoint.starts_with("http://"))
    {
        builder = builder.with_allow_http(true);
    }
    if let Some(region) = uri.text("region") {
        builder = builder.with_region(region);
    }
    if uri.flag("anonymous")? == Some(true) {
        builder = builder.with_skip_signature(true);
    }
    let store = Arc::new(builder.build().map_err(failed)?);
    let prefix = [uri.prefix(), job].join("/");
    let location = format!("{}://{}/{}", uri.scheme(), uri.bucket()?, prefix.trim_matches('/'));
    Ok(Arc::new(ObjectPartStore::new(store, prefix.trim_matches('/'), location, runtime.clone())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{CheckpointId, OperatorId};

    #[test]
    fn parameters_are_read_strictly_for_every_scheme() {
        let registry = Registry::default();
        let hint = |text: &str| {
            let error = registry.parse(text).expect_err(text);
            assert_eq!(error.code(), SqlState::InvalidParameterValue, "{text}");
            error.hint_text().unwrap_or_default().to_owned()
        };
        assert!(hint("rocksdbb:///x").contains("changelog+file"), "names the schemes");
        assert_eq!(hint("memory://?shards=4"), "This scheme has no parameters.");
        assert_eq!(
            hint("changelog://?materialisation_threshold_bytes=1"),
            "The parameters are: materialization_threshold_bytes, upload_bytes, log_compaction."
        );
        assert!(hint("remote-read://b/p?secret=hunter2").contains("hot_max_bytes"));
        assert!(hint("file://x/y").contains("file:///x/y"));
        for text in [
            "changelog://?materialization_threshold_bytes=64kb",
            "changelog://?log_compaction=maybe",
            "remote-read://b/p?io_threads=0",
            "remote-read://b/p?hot_max_bytes=-1",
            "remote-read:///p",
            "memory://x",
            "file:///",
        ] {
            hint(text);
        }
        for text in ["", "/x", "memory://", "memory+sharded://", "changelog+s3://b/p?region=x&upload_bytes=1MiB"] {
            registry.parse(text).expect(text);
        }
    }

    #[test]
    fn backends_are_built_from_their_uri_and_keep_their_jobs_apart() {
        let folder = tempfile::tempdir().expect("a folder");
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("starts");
        let checkpoints = LocalStore::open(&folder.path().join("cp"), false, Failpoints::default()).expect("opens");
        let context = |job: &str, life| BackendContext {
            checkpoints: Arc::new(
                LocalStore::open(&folder.path().join("cp").join(job), false, Failpoints::default()).expect("opens"),
            ),
            work_folder: folder.path().join("work"),
            job: job.to_owned(),
            share: Share::WHOLE,
            life,
            memory_bytes: 1 << 20,
            runtime: runtime.handle().clone(),
            sync: false,
            failpoints: Failpoints::default(),
        };
        drop(checkpoints);
        let registry = Registry::default();
        let operator = OperatorId::from_u64(1);
        let base = folder.path().join("state");
        let uris = [
            "memory://".to_owned(),
            "memory+sharded://".to_owned(),
            "changelog://?upload_bytes=1".to_owned(),
            "disagg-local://?hot_max_bytes=1000&io_threads=2".to_owned(),
            format!("file://{}", base.display()),
            format!("changelog+file://{}", base.display()),
            format!("rocksdb://{}?write_buffer_bytes=1MiB", base.display()),
            format!("changelog+rocksdb://{}?bloom_bits=0", base.display()),
        ];
        for (number, text) in uris.iter().enumerate() {
            let uri = registry.parse(text).expect(text);
            let mut snapshots = Vec::new();
            for job in ["7", "8"] {
                let context = context(job, 1 + number as u64);
                let store = registry.store(&uri, &context).expect("opens");
                let mut backend = registry.build(&uri, &context, &store).expect(text);
                backend.put(operator, b"\x01s|k", job.as_bytes()).expect("writes");
                snapshots.push(backend.snapshot(CheckpointId(1 + number as u64)).expect("persists"));
            }
            for (job, snapshot) in ["7", "8"].into_iter().zip(snapshots) {
                let context = context(job, 100 + number as u64);
                let store = registry.store(&uri, &context).expect("opens");
                let mut backend = registry.build(&uri, &context, &store).expect(text);
                backend.restore(&[snapshot], Share::WHOLE).expect(text);
                assert_eq!(backend.get(operator, b"\x01s|k").expect("reads"), Some(job.as_bytes().to_vec()), "{text}");
            }
        }
    }
}
