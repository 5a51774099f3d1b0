//! The coordinator: the one clock, the timeline, the workers, and the relations that they keep.

mod follow;
mod inspect;

pub(crate) use follow::Following;
pub(crate) use inspect::{Inside, OperatorRead};

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use datafusion::physical_expr::PhysicalExpr;
use tokio::sync::oneshot;

use super::alarm::{Alarm, ClockRequests};
use super::checkpoints::offline::{OfflineSelection, as_one, read_state};
use super::checkpoints::{CheckpointConfig, CheckpointInfo, Checkpoints, Controller, Message, Owner, StateStores};
use super::event_times::{EventTimes, SeenTime, TableWatermark};
use super::feeds::WakeOnce;
use super::installed::{Relations, gone, restarted};
use super::sequencer::{Request, Restart, Sequencer, stopping};
use super::sinks::SinkTarget;
use super::source_progress::SourceProgress;
use super::timeline::TimelineLog;
use crate::connectors::SourceTable;
use crate::env::Env;
use crate::exec::arrangement::{Cursor, Layout, Narrow, Selection};
use crate::exec::plan::JobPlan;
use crate::exec::relation::{Progress, RelationShared, lock};
use crate::exec::{Executor, ExecutorConfig, OperatorCounts, Peek, PeekAnswer, PeekRange, WorkerCommand};
use crate::state::HeadFile;
use crate::types::{CheckpointId, Chunk, Error, KeyGroup, RelationId, Result, SqlState, Time};

/// Bytes of writes that the workers may be behind; further writes wait.
const WRITE_BACKLOG_BYTES_MAX: usize = 64 << 20;
/// One part in so many of the memory is for what one backend of a worker can read again.
const STATE_MEMORY_PART: u64 = 64;
/// Bits of a topology version for the restarts of workers within one life of a server.
const TOPOLOGY_BITS: u32 = 20;

/// How a coordinator runs.
#[derive(Clone, Debug)]
pub struct CoordinatorConfig {
    /// Directory of HEAD and the timeline log; exists.
    pub data_dir: PathBuf,
    /// Worker threads, at least 1.
    pub workers: usize,
    /// How state is kept; `None`: not at all, a start replays everything.
    pub checkpoints: Option<CheckpointConfig>,
    /// The budget of memory for the process, in bytes.
    pub memory_bytes: u64,
}

/// A relation as the workers know it.
#[derive(Clone)]
pub struct RelationSpec {
    /// Its catalog number.
    pub id: RelationId,
    /// `schema.name`, for messages, logs and operator ids.
    pub qualified_name: String,
    /// What fills it.
    pub kind: RelationKind,
}

impl RelationSpec {
    /// The state backend that it names.
    pub(super) fn state_backend(&self) -> Option<&str> {
        match &self.kind {
            RelationKind::View { state_backend, .. } => state_backend.as_deref(),
            RelationKind::Table { .. }
            | RelationKind::External { .. }
            | RelationKind::Errors { .. }
            | RelationKind::RowErrors
            | RelationKind::LateRows
            | RelationKind::Sink { .. } => None,
        }
    }
}

impl RelationSpec {
    /// How long its past is kept over restarts, in milliseconds; 0: not at all.
    pub(super) fn retain_millis(&self) -> u64 {
        match &self.kind {
            RelationKind::View { plan, .. } => plan.retain_millis,
            RelationKind::Table { .. }
            | RelationKind::External { .. }
            | RelationKind::Errors { .. }
            | RelationKind::RowErrors
            | RelationKind::LateRows
            | RelationKind::Sink { .. } => 0,
        }
    }
}

/// What fills a relation.
#[derive(Clone)]
pub enum RelationKind {
    /// DML: an ordinary table.
    Table {
        /// Its columns.
        schema: SchemaRef,
        /// Columns of the primary key; empty: the whole row identifies a row, with a count.
        key: Vec<usize>,
        /// Its event time, if it has one.
        watermark: Option<TableWatermark>,
    },
    /// A connector. Without a key no rows are kept and every job reads the source; with one the last row of each key is.
    External {
        /// The rows outside.
        source: SourceTable,
        /// Columns of the primary key.
        key: Vec<usize>,
        /// Its event time, if it has one.
        watermark: Option<TableWatermark>,
    },
    /// The rows of an external table that could not be read. It runs from the first job on that table on, so it is
    /// installed before a table that keeps rows, and else after it.
    Errors {
        /// The table.
        of: RelationId,
    },
    /// The rows for which an expression of a view or sink failed: it runs with that job.
    RowErrors,
    /// The changes that came too late for a view or sink: it runs with that job.
    LateRows,
    /// A standing query whose rows are kept.
    View {
        /// Its plan.
        plan: Arc<JobPlan>,
        /// Its errors relation, if it has one.
        errors: Option<RelationId>,
        /// Its relation of late changes, if it has one.
        late: Option<RelationId>,
        /// The URI of its state backend; `None`: the server's.
        state_backend: Option<String>,
    },
    /// A standing query whose rows leave.
    Sink {
        /// Its plan.
        plan: Arc<JobPlan>,
        /// Where to.
        target: SinkTarget,
        /// Its errors relation, if it has one.
        errors: Option<RelationId>,
        /// Its relation of late changes, if it has one.
        late: Option<RelationId>,
    },
}

/// The life of a relation's job.
#[derive(Clone, Debug)]
pub enum RelationState {
    /// It takes in its history; reads wait.
    Filling,
    /// It follows its inputs.
    Running,
    /// It stopped for the reason given; reads fail.
    Failed(Error),
    /// Somebody stopped it; reads fail.
    Paused,
    /// A relation that it stands on failed, for the reason given, or was paused.
    Blocked(RelationId, Option<Error>),
}

/// What is known of a relation's job now.
#[derive(Clone, Debug)]
pub struct RelationStatus {
    /// Where it stands.
    pub state: RelationState,
    /// When it got there: milliseconds since 1970.
    pub since_millis: u64,
    /// Changed rows taken in, over all workers, since the start of the server.
    pub rows_in: u64,
    /// Changed rows of the result, likewise.
    pub rows_out: u64,
    /// Every time below is closed: its answer is known.
    pub upper: Time,
}

/// The changes of one table in a write.
#[derive(Clone, Debug)]
pub struct TableWrite {
    /// The table.
    pub table: RelationId,
    /// Inserts and retractions; retractions name rows exactly as they are.
    pub changes: Vec<Chunk>,
}

/// Which time a read takes.
#[derive(Clone, Copy, Debug)]
pub enum ReadBound {
    /// The latest time that all relations have closed, at or after `at_least`.
    Latest {
        /// The session's own writes and earlier reads.
        at_least: Time,
    },
    /// The latest time handed out, waiting until it has closed: linearizable.
    Strict,
    /// Exactly this time.
    At(Time),
    /// What there is, also of failed relations.
    Available,
}

/// Runs relations on workers. Clones share one coordinator.
#[derive(Clone)]
pub struct Coordinator {
    inner: Arc<Inner>,
}

struct Inner {
    executor: Arc<Executor>,
    relations: Arc<Relations>,
    requests: Sender<Request>,
    last_time: Arc<AtomicU64>,
    incarnation: u64,
    sequencer: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// `None`: nothing is checkpointed.
    checkpoints: Option<Checkpoints>,
    /// Where they are.
    checkpoint_dir: Option<PathBuf>,
    controller: Mutex<Option<std::thread::JoinHandle<()>>>,
    event_times: Arc<Mutex<Vec<SeenTime>>>,
    backlog: Mutex<Vec<Backlog>>,
    /// Reads of operators that were begun.
    inspections: AtomicU64,
}

/// A write that some workers have not closed yet.
struct Backlog {
    time: Time,
    bytes: usize,
    relations: Vec<RelationId>,
}

impl Coordinator {
    /// Starts clock, timeline and workers on a data directory; nothing is installed yet. Called in a runtime, whose
    /// threads serve object stores.
    ///
    /// # Errors
    /// When another process holds the directory (55000), or its files are damaged (XX001).
    pub fn start(config: CoordinatorConfig, env: Env) -> Result<Coordinator> {
        let head = Arc::new(Mutex::new(HeadFile::open(&config.data_dir)?));
        let log = TimelineLog::open(&config.data_dir, env.clone())?;
        let progress = Arc::new(Progress::default());
        let relations = Arc::new(Relations::new(Arc::clone(&progress)));
        let (requests, received) = channel();
        let (tick_wake, alarm) = (WakeOnce::default(), Alarm::new());
        let clock = ClockRequests {
            tick_wake: tick_wake.clone(),
            alarm: alarm.clone(),
            requests: Mutex::new(requests.clone()),
        };
        let clock = Arc::new(clock);
        let executor = Arc::new(Executor::start(ExecutorConfig { workers: config.workers, progress, clock })?);
        let last_time = Arc::new(AtomicU64::new(0));
        let owner = {
            let head = lock(&head);
            Owner { database: head.head().database, incarnation: head.head().incarnation }
        };
        let checkpoint_dir = config.checkpoints.as_ref().map(|checkpoints| checkpoints.directory.clone());
        let mut controller = None;
        if let Some(checkpoints) = config.checkpoints {
            let memory_bytes = usize::try_from(config.memory_bytes / STATE_MEMORY_PART).unwrap_or(usize::MAX);
            let (messages, received) = channel();
            controller = Some(Controller {
                stores: Arc::new(StateStores::open(&checkpoints, &env, Some(owner), memory_bytes)?),
                head: Arc::clone(&head),
                relations: Arc::clone(&relations),
                requests: requests.clone(),
                received,
                checkpoints: Checkpoints::new(messages),
                interval: checkpoints.interval,
                retained_max: checkpoints.retained.max(1),
                env: env.clone(),
            });
        }
        let checkpoints = controller.as_ref().map(|controller| controller.checkpoints.clone());
        let state = controller
            .as_ref()
            .map(|controller| (Arc::clone(&controller.stores), controller.checkpoints.messages.clone()));
        let event_times = Arc::new(Mutex::new(Vec::new()));
        let sequencer = Sequencer {
            event_times: EventTimes::new(Arc::clone(&event_times)),
            watermarks: Default::default(),
            env,
            executor: Arc::clone(&executor),
            relations: Arc::clone(&relations),
            requests: received,
            own_requests: requests.clone(),
            tick_wake,
            alarm,
            feed_wake: WakeOnce::default(),
            head,
            log,
            last_time: Arc::clone(&last_time),
            feeds: Vec::new(),
            bindings: Default::default(),
            orders: Default::default(),
            unsaved: Default::default(),
            errors: Default::default(),
            bad_rows: Default::default(),
            recovering: false,
            state,
            restored: None,
            changed: false,
            in_cut: Vec::new(),
            waiting_for_feeds: Vec::new(),
            last_generation: 0,
            indexes: Default::default(),
        };
        let sequencer = std::thread::Builder::new().name("sequencer".to_owned()).spawn(move || sequencer.run())?;
        let run = |controller: Controller| {
            std::thread::Builder::new().name("checkpoints".to_owned()).spawn(move || controller.run())
        };
        let controller = controller.map(run).transpose()?;
        let inner = Inner {
            executor,
            relations,
            requests,
            last_time,
            incarnation: owner.incarnation,
            sequencer: Mutex::new(Some(sequencer)),
            checkpoints,
            checkpoint_dir,
            controller: Mutex::new(controller),
            event_times,
            backlog: Mutex::default(),
            inspections: AtomicU64::new(0),
        };
        Ok(Coordinator { inner: Arc::new(inner) })
    }

    /// How far event time is.
    pub(crate) fn event_times(&self) -> Vec<SeenTime> {
        lock(&self.inner.event_times).clone()
    }

    /// The checkpoints that there are, the newest first, and the last that failed or were released.
    pub(crate) fn checkpoints(&self) -> Vec<CheckpointInfo> {
        self.inner.checkpoints.as_ref().map(Checkpoints::infos).unwrap_or_default()
    }

    /// Takes a checkpoint that has all that was answered so far; gives the newest when nothing came since, and `None`
    /// when there is nothing that could be in one.
    ///
    /// # Errors
    /// 55000 when nothing is checkpointed here; why there is none; 57P01 when the server is stopping.
    pub async fn checkpoint(&self) -> Result<Option<CheckpointId>> {
        match &self.inner.checkpoints {
            Some(checkpoints) => checkpoints.take().await,
            None => Err(Error::new(SqlState::ObjectNotReady, "this database keeps no checkpoints")
                .hint("clink serve keeps them, in its data directory.")),
        }
    }

    /// Takes a checkpoint and writes it as a savepoint into a folder, with the catalog's log, which does not change
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Self::checkpoint`]; 42710 when the folder is not empty; when it cannot be written.
    pub(crate) async fn savepoint(&self, folder: PathBuf, catalog: Vec<u8>) -> Result<CheckpointId> {
        self.checkpoint().await?;
        match &self.inner.checkpoints {
            Some(checkpoints) => checkpoints.savepoint(folder, catalog).await,
            None => Err(Error::internal("checkpoints are gone")),
        }
    }

    /// Goes on with so many workers: all jobs start again from a checkpoint that is taken now.
    ///
    /// # Errors
    /// As [`Self::checkpoint`]; when that checkpoint cannot be read back.
    pub(crate) async fn set_workers(&self, workers: usize) -> Result<()> {
        if workers == self.workers() {
            return Ok(());
        }
        self.restart(Restart { workers: Some(workers), moves: None }).await
    }

    /// Moves a job's state to another backend: all jobs start again from a checkpoint that is taken now.
    ///
    /// # Errors
    /// As [`Self::set_workers`].
    pub(crate) async fn move_state(&self, job: RelationId, uri: String) -> Result<()> {
        self.restart(Restart { workers: None, moves: Some((job, uri)) }).await
    }

    async fn restart(&self, restart: Restart) -> Result<()> {
        self.checkpoint().await?;
        self.ask(|answer| Request::Restart { restart, answer }).await?
    }

    /// A number that grows whenever keys may have moved to other workers: with each start of a server on the database,
    /// and with each restart of the workers in it.
    pub(crate) fn topology_version(&self) -> u64 {
        self.inner.incarnation << TOPOLOGY_BITS | self.inner.executor.generation()
    }

    /// The state of a table or view as one canonical stream, of a capture that has all that was answered so far.
    ///
    /// # Errors
    /// As [`Self::checkpoint`]; 42704 when the relation keeps no state, or was not captured.
    pub(crate) async fn captured_state(&self, qualified_name: &str) -> Result<Vec<u8>> {
        let newest = || self.checkpoints().into_iter().find(|info| info.status == "COMPLETE").map(|info| info.id);
        let checkpoint = self.checkpoint().await?.or_else(newest).ok_or_else(|| {
            Error::new(SqlState::UndefinedObject, "there is no state").hint("Create a table or a view first.")
        })?;
        let folder = self.inner.checkpoint_dir.clone().unwrap_or_default();
        let job = Some(qualified_name.to_owned());
        let selection = OfflineSelection { job, checkpoint: Some(checkpoint.0), bases: None };
        let read = move || as_one(&read_state(&folder.display().to_string(), &selection)?);
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|error| Error::internal(format!("a read of state ended: {error}")))?
    }

    /// Installs all relations of the catalog, upstream first, and replays the timeline into them.
    /// Called once, before any other statement. Reads wait by themselves until a view is filled.
    ///
    /// # Errors
    /// XX001 when the timeline cannot be understood; what a relation cannot be started for.
    pub async fn recover(&self, relations: Vec<RelationSpec>) -> Result<()> {
        self.ask(|answer| Request::Recover { relations, answer }).await?
    }

    /// Starts a relation. All that it reads is installed. Returns at once; see [`Self::filled`].
    ///
    /// # Errors
    /// 0A000 when a type of its columns cannot be kept.
    pub async fn install(&self, relation: RelationSpec) -> Result<()> {
        self.ask(|answer| Request::Install { relation, answer }).await?
    }

    /// Waits until the relation has taken in the history of its tables and views. Cancel safe.
    ///
    /// # Errors
    /// The reason, when the job fails meanwhile.
    pub async fn filled(&self, relation: RelationId) -> Result<()> {
        let relations = &self.inner.relations;
        relations
            .progress()
            .wait_for(|| match relations.kept(relation) {
                Err(error) => Some(Err(error)),
                Ok((shared, _)) => match relations.trouble(relation) {
                    Some(error) => Some(Err(error)),
                    None => shared.history_from().filter(|from| *from < shared.upper()).map(|_| Ok(())),
                },
            })
            .await
    }

    /// Keeps indexes of these columns over a relation's rows, also when its job starts again, and no others. They are made
    /// while the relation is read without them.
    ///
    /// # Errors
    /// 57P01 when the server is stopping.
    pub(crate) async fn set_indexes(&self, relation: RelationId, columns: Vec<Vec<usize>>) -> Result<()> {
        self.ask(|answer| Request::Index { relation, columns, answer }).await
    }

    /// Stops relations, dependents included by the caller, and frees what they hold.
    ///
    /// # Errors
    /// 57P01 when the server is stopping.
    pub async fn uninstall(&self, relations: &[RelationId]) -> Result<()> {
        self.ask(|answer| Request::Uninstall { relations: relations.to_vec(), answer }).await?
    }

    /// Stops a job until [`Self::resume`]: it takes no input, and reads of it and of what stands on it
    /// fail.
    ///
    /// # Errors
    /// 42P01 when it is not installed.
    pub fn pause(&self, relation: RelationId) -> Result<()> {
        self.inner.relations.pause(relation)
    }

    /// Starts jobs that stopped again, from the beginning, with what stands on them. Returns at once;
    /// see [`Self::filled`].
    ///
    /// # Errors
    /// When a job cannot be started; 57P01 when the server is stopping.
    pub async fn resume(&self, relations: &[RelationId]) -> Result<()> {
        self.ask(|answer| Request::Resume { relations: relations.to_vec(), answer }).await?
    }

    /// Waits until all sinks that run show every time up to `time`. Cancel safe.
    pub async fn sinks_show(&self, time: Time) {
        let relations = &self.inner.relations;
        relations.progress().wait_for(|| relations.sinks_show(time, false).then_some(())).await;
    }

    /// Makes changes of ordinary tables durable at one new time and hands them to the workers.
    /// Not cancel safe: once polled, the write may happen though nobody waits for the answer.
    ///
    /// # Errors
    /// When the log cannot be written: the write may or may not be there after a restart.
    pub async fn write(&self, writes: Vec<TableWrite>) -> Result<Time> {
        self.inner.relations.progress().wait_for(|| self.has_room().then_some(())).await;
        let bytes = writes.iter().flat_map(|write| &write.changes).map(Chunk::bytes).sum();
        // What a sink writes down for itself holds nobody up.
        let kept = writes.iter().filter(|write| self.inner.relations.kept(write.table).is_ok());
        let relations = kept.flat_map(|write| self.inner.relations.with_dependents(write.table)).collect();
        let time = self.ask(|answer| Request::Write { writes, answer }).await??;
        lock(&self.inner.backlog).push(Backlog { time, bytes, relations });
        Ok(time)
    }

    fn has_room(&self) -> bool {
        let mut backlog = lock(&self.inner.backlog);
        backlog.retain(|write| self.inner.relations.least_upper(&write.relations) <= write.time);
        backlog.iter().map(|write| write.bytes).sum::<usize>() < WRITE_BACKLOG_BYTES_MAX
    }

    /// Chooses a time for reading the relations together, waits until all have closed it, and
    /// keeps it readable until the pin is dropped. Relations without kept rows (external) are not
    /// allowed here. Cancel safe.
    ///
    /// # Errors
    /// 55000 when a relation failed or is blocked (not with [`ReadBound::Available`]); 72000 when
    /// the time asked for is no longer kept.
    pub async fn pin(&self, relations: &[RelationId], bound: ReadBound) -> Result<Pin> {
        let bound = match bound {
            ReadBound::Strict => ReadBound::Latest { at_least: self.tick().await? },
            other => other,
        };
        let progress = self.inner.relations.progress();
        progress.wait_for(|| self.try_pin(relations, bound).transpose()).await
    }

    /// Hands out a time, now.
    async fn tick(&self) -> Result<Time> {
        self.ask(|answer| Request::Tick { answer: Some(answer) }).await?
    }

    /// A pin, if the time it needs is closed.
    fn try_pin(&self, ids: &[RelationId], bound: ReadBound) -> Result<Option<Pin>> {
        let relations = &self.inner.relations;
        let generation = self.inner.executor.generation();
        let available = matches!(bound, ReadBound::Available);
        let mut parts = Vec::with_capacity(ids.len());
        for id in ids {
            parts.push((*id, relations.kept(*id)?));
            if !available && let Some(error) = relations.trouble(*id) {
                return Err(error);
            }
        }
        let last = self.last_time();
        let closed = parts.iter().map(|(_, (shared, _))| shared.upper()).min().unwrap_or(Time::MAX);
        let newest = closed.previous().unwrap_or(Time::ZERO).min(last);
        let mut whole_from = relations.floor();
        for (_, (shared, _)) in &parts {
            match shared.whole_from() {
                Some(from) => whole_from = whole_from.max(from),
                None if available => {}
                None => return Ok(None),
            }
        }
        let time = match bound {
            ReadBound::Latest { at_least } if newest >= at_least.max(whole_from) => newest,
            ReadBound::Available => newest,
            ReadBound::At(time) if time > last => {
                return Err(Error::new(SqlState::InvalidParameterValue, format!("time {time} has not come yet"))
                    .hint("Use the time of an earlier answer."));
            }
            ReadBound::At(time)
                if time < whole_from && !parts.iter().all(|(_, (shared, _))| follow::keeps(shared, time, last)) =>
            {
                return Err(Error::new(SqlState::SnapshotTooOld, "snapshot too old")
                    .detail(format!("Time {time} was asked for; the relation can be read from {whole_from} on."))
                    .hint("Read again without a time."));
            }
            ReadBound::At(time) if newest >= time => time,
            ReadBound::Latest { .. } | ReadBound::At(_) | ReadBound::Strict => return Ok(None),
        };
        let pin = Pin { inner: Arc::clone(&self.inner), generation, time, parts: Vec::new() };
        let pin = parts.into_iter().fold(pin, |mut pin, (id, (shared, layout))| {
            shared.hold(time);
            pin.parts.push(Part { id, shared, layout });
            pin
        });
        // A worker may have given the time up just before the hold.
        match pin.parts.iter().map(|part| part.shared.since()).max() {
            Some(since) if since > time && !available => match bound {
                ReadBound::At(_) => Err(Error::new(SqlState::SnapshotTooOld, "snapshot too old")
                    .detail(format!("Time {time} was asked for; the oldest time that is kept is {since}."))
                    .hint("Read again without a time.")),
                _ => Ok(None),
            },
            _ => Ok(Some(pin)),
        }
    }

    /// Waits until all input accepted so far is visible in every view: writes, and what the external
    /// sources hold.
    ///
    /// # Errors
    /// 57P01 when the server is stopping.
    pub async fn flush(&self) -> Result<Time> {
        self.ask(|answer| Request::AwaitFeeds { tables: None, answer }).await?;
        let mut time = self.settled().await?;
        let relations = &self.inner.relations;
        // What comes out of a sink into a table may go through another.
        for _ in 0..relations.table_sinks() {
            relations.progress().wait_for(|| relations.sinks_show(time, true).then_some(())).await;
            time = self.settled().await?;
        }
        Ok(time)
    }

    /// Hands out a time and waits until all relations that run have closed it.
    async fn settled(&self) -> Result<Time> {
        let time = self.tick().await?;
        let relations = &self.inner.relations;
        relations
            .progress()
            .wait_for(|| {
                let behind = |id: &RelationId| {
                    relations.trouble(*id).is_none()
                        && relations
                            .kept(*id)
                            .is_ok_and(|(shared, _)| shared.upper() <= time || shared.whole_from().is_none())
                };
                (!relations.all_kept().iter().any(behind)).then_some(())
            })
            .await;
        Ok(time)
    }

    /// Waits until the sources of tables among some relations that keep their rows were read as far as they are there
    /// now; gives a time at which those rows are part of the database. Cancel safe.
    ///
    /// # Errors
    /// 57P01 when the server is stopping.
    pub async fn sources_read(&self, relations: &[RelationId]) -> Result<Option<Time>> {
        let tables: Vec<RelationId> =
            relations.iter().copied().filter(|id| self.inner.relations.keeps_source(*id)).collect();
        if tables.is_empty() {
            return Ok(None);
        }
        self.ask(|answer| Request::AwaitFeeds { tables: Some(tables), answer }).await?;
        Ok(Some(self.last_time()))
    }

    /// What the operators of a relation's job did; none when it has no job of its own.
    pub(crate) fn operators(&self, relation: RelationId) -> Vec<Arc<OperatorCounts>> {
        self.inner.relations.operators(relation)
    }

    /// How many bytes the state of a relation's job has; it may be asked at any time.
    pub(crate) fn state_bytes(&self) -> impl Fn(RelationId) -> u64 + Send + Sync + 'static {
        let inner = Arc::downgrade(&self.inner);
        move |relation| {
            let operators = inner.upgrade().map(|inner| inner.relations.operators(relation)).unwrap_or_default();
            operators.iter().map(|counts| counts.numbers().state.bytes as u64).sum()
        }
    }

    /// The state of a relation; `None` when it is not installed.
    pub fn status(&self, relation: RelationId) -> Option<RelationStatus> {
        self.inner.relations.status(relation)
    }

    /// How far an external table was read; `None` for other relations.
    pub(crate) fn source_progress(&self, relation: RelationId) -> Option<Arc<SourceProgress>> {
        self.inner.relations.progress_of(relation)
    }

    /// The last time handed out.
    pub fn last_time(&self) -> Time {
        Time::from_millis(self.inner.last_time.load(Ordering::Acquire))
    }

    /// Number of workers; a scan has one part for each.
    pub fn workers(&self) -> usize {
        self.inner.executor.workers()
    }

    /// Stops feeds and workers and closes the files.
    pub async fn shutdown(&self) {
        let inner = Arc::clone(&self.inner);
        let stop = move || {
            if let Some(checkpoints) = &inner.checkpoints {
                // A controller that is gone needs no word.
                let _ = checkpoints.messages.send(Message::Stop);
            }
            if let Some(thread) = lock(&inner.controller).take()
                && thread.join().is_err()
            {
                tracing::error!("the thread of checkpoints ended by a panic");
            }
            // A sequencer that is gone needs no word.
            let _ = inner.requests.send(Request::Shutdown);
            if let Some(thread) = lock(&inner.sequencer).take()
                && thread.join().is_err()
            {
                tracing::error!("the sequencer ended by a panic");
            }
            inner.executor.shutdown();
            inner.relations.progress().signal();
        };
        if tokio::task::spawn_blocking(stop).await.is_err() {
            tracing::error!("stopping the workers failed");
        }
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        self.inner.requests.send(request(answer)).map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())
    }
}

/// A time kept readable for some relations.
pub struct Pin {
    inner: Arc<Inner>,
    /// Of the workers that it reads.
    generation: u64,
    time: Time,
    parts: Vec<Part>,
}

struct Part {
    id: RelationId,
    shared: Arc<RelationShared>,
    layout: Arc<Layout>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        for part in &self.parts {
            part.shared.release(self.time);
        }
    }
}

/// What to read of a relation.
#[derive(Clone)]
pub struct PageRequest {
    /// The relation; among those of the pin.
    pub relation: RelationId,
    /// Columns to give, in order.
    pub projection: Vec<usize>,
    /// Only rows for which this holds; over the relation's columns, before projection.
    pub predicate: Option<Arc<dyn PhysicalExpr>>,
    /// At most about this many rows are gone through for one page.
    pub rows_max: usize,
    /// What the predicate says of indexed columns, for pages.
    pub(crate) narrow: Option<Arc<Narrow>>,
}

/// A part of a relation's rows, in key order.
#[derive(Debug)]
pub struct Page {
    /// The rows, each as often as it is there; may be empty though more follow.
    pub rows: RecordBatch,
    /// Where the next page starts: opaque bytes; `None` at the end.
    pub next: Option<Vec<u8>>,
}

impl Pin {
    /// The time that is read.
    pub fn time(&self) -> Time {
        self.time
    }

    /// The next page of the rows that `worker` keeps, from the start or from another page's
    /// `next`. Pages of worker 0, then 1, ... give the whole relation in (key group, key) order.
    /// `next` fits only the same relation; it may be used again with a later pin.
    ///
    /// # Errors
    /// 72000 when the time is no longer kept; what the predicate fails with.
    pub async fn page(&self, request: &PageRequest, worker: usize, start: Option<Vec<u8>>) -> Result<Page> {
        let start = start.map(|bytes| Cursor::from_bytes(&bytes)).transpose()?;
        let (rows_max, narrow) = (request.rows_max.max(1), request.narrow.clone());
        let answer = self.peek(request, worker, PeekRange::Page { start, rows_max, narrow }).await?;
        Ok(Page { rows: answer.rows, next: answer.next.map(|cursor| cursor.to_bytes()) })
    }

    /// The worker at which a scan that ended with `next` goes on.
    ///
    /// # Errors
    /// 22023 when it is not a place that a page gave.
    pub fn worker_of(&self, next: &[u8]) -> Result<usize> {
        Ok(Cursor::from_bytes(next)?.group.worker(self.inner.executor.workers()))
    }

    /// The rows with the given keys: `keys` has the relation's key columns, in key order, with
    /// their exact types. Absent keys give no row; the order is not that of the keys.
    ///
    /// # Errors
    /// As for [`Self::page`]. With `only`, what one worker has.
    pub async fn lookup(&self, request: &PageRequest, keys: &RecordBatch, only: Option<usize>) -> Result<RecordBatch> {
        let layout = &self.part(request.relation)?.layout;
        let encoded = layout.encode_bare_keys(keys)?;
        let workers = self.inner.executor.workers();
        let mut by_worker: Vec<Vec<Vec<u8>>> = vec![Vec::new(); workers];
        for row in 0..encoded.len() {
            let key = encoded.row(row);
            by_worker[KeyGroup::of(key).worker(workers)].push(key.to_vec());
        }
        for keys in &mut by_worker {
            keys.sort_unstable();
            keys.dedup();
        }
        let schema = Arc::new(layout.schema().project(&request.projection)?);
        let mut found = Vec::new();
        let wanted = |worker: usize| only.is_none_or(|only| only == worker);
        for (worker, keys) in by_worker.into_iter().enumerate().filter(|(at, keys)| wanted(*at) && !keys.is_empty()) {
            found.push(self.peek(request, worker, PeekRange::Keys(keys)).await?.rows);
        }
        Ok(concat_batches(&schema, &found)?)
    }

    /// The bytes that a state backend holds for an encoded key.
    ///
    /// # Errors
    /// As for [`Self::page`].
    pub(crate) async fn stored_value(&self, relation: RelationId, key: Vec<u8>) -> Result<Option<Vec<u8>>> {
        let layout = &self.part(relation)?.layout;
        let projection = (0..layout.schema().fields().len()).collect();
        let request = PageRequest { relation, projection, predicate: None, rows_max: 1, narrow: None };
        let worker = KeyGroup::of(&key).worker(self.inner.executor.workers());
        let found = self.peek(&request, worker, PeekRange::Keys(vec![key])).await?;
        layout.stored_value(&found.rows)
    }

    /// The columns that make the relation's key, in key order; all columns when no unique key is
    /// known.
    ///
    /// # Errors
    /// 42P01 when the relation is not one of the pin.
    pub fn key_columns(&self, relation: RelationId) -> Result<&[usize]> {
        Ok(self.part(relation)?.layout.key_columns())
    }

    fn part(&self, relation: RelationId) -> Result<&Part> {
        self.parts.iter().find(|part| part.id == relation).ok_or_else(gone)
    }

    async fn peek(&self, request: &PageRequest, worker: usize, range: PeekRange) -> Result<PeekAnswer> {
        let part = self.part(request.relation)?;
        let (answer, answered) = oneshot::channel();
        let peek = Peek {
            relation: part.id,
            time: self.time,
            range,
            selection: Selection { projection: request.projection.clone(), predicate: request.predicate.clone() },
            answer: Mutex::new(Some(answer)),
        };
        self.inner.executor.send(worker, WorkerCommand::Peek(Arc::new(peek)));
        let answer = answered.await;
        // Its keys may lie with other workers by now.
        if self.inner.executor.generation() != self.generation {
            return Err(restarted());
        }
        answer.map_err(|_| stopping())?
    }
}
