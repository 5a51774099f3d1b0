//! The engine: what all sessions share.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::execution::FunctionRegistry;
use datafusion::execution::SessionState;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use tokio_util::sync::CancellationToken;

use crate::catalog::{Catalog, CatalogStore, Definition, Object, ObjectKind};
use crate::connectors::{Connectors, SourceTable};
use crate::env::Env;
use crate::sql;
use crate::types::{Error, Limits, RelationId, Result, Time};

use super::aggregate_functions;
use super::api::{Column, EngineConfig, JobInfo, ViewInfo};
use super::checkpoints::begin_from;
use super::coordinator::{Coordinator, CoordinatorConfig, RelationState};
use super::pg_catalog::{self, Sizes};
use super::query_threads::QueryThreads;
use super::recovery;
use super::relations::DATABASE;
use super::session::Session;
use super::turns::Turns;

/// The share of the memory budget that queries may take together.
const QUERY_MEMORY_SHARE: f64 = 0.4;

/// The database: shared by all sessions.
pub struct Engine {
    coordinator: Coordinator,
    catalog: Arc<CatalogStore>,
    connectors: Connectors,
    /// The connector of each external table.
    sources: Mutex<HashMap<RelationId, SourceTable>>,
    /// What writers of each table share.
    writers: Mutex<HashMap<RelationId, Arc<Writer>>>,
    /// Whose turn it is to write each table.
    turns: Turns,
    /// One statement of DDL at a time: held from looking at the catalog to changing it.
    ddl: Arc<tokio::sync::Mutex<()>>,
    base_state: Arc<SessionState>,
    closed: CancellationToken,
    queries: QueryThreads,
    limits: Arc<Limits>,
    env: Env,
}

/// What writers of one table share.
#[derive(Default)]
pub(crate) struct Writer {
    last_write: AtomicU64,
}

impl Writer {
    /// The time of the last write that was answered.
    pub(crate) fn last_write(&self) -> Time {
        Time::from_millis(self.last_write.load(Ordering::Acquire))
    }

    /// Records a write.
    pub(crate) fn wrote(&self, time: Time) {
        self.last_write.fetch_max(time.as_millis(), Ordering::AcqRel);
    }
}

impl Engine {
    /// Opens a database and brings its relations back. A view or connector table that cannot be
    /// brought back does not stop this: it is `FAILED` and reading it gives the reason.
    ///
    /// # Errors
    /// 55000 when another process holds the directory, XX001 when its files are damaged, and what an
    /// ordinary table gives that cannot be brought back, whose rows would be lost.
    pub async fn open(config: EngineConfig, env: Env) -> Result<Arc<Engine>> {
        let data_dir = config.data_dir.clone();
        let workers = config.workers.max(1);
        let of_coordinator = env.clone();
        let (coordinator, (catalog, records)) = tokio::task::spawn_blocking(move || {
            std::fs::create_dir_all(&data_dir)?;
            if let Some((folder, checkpoints)) =
                config.checkpoints.as_ref().and_then(|c| Some((c.restore_from.as_ref()?, &c.directory)))
            {
                begin_from(folder, &data_dir, checkpoints)?;
            }
            // The coordinator first: it holds the lock on the directory.
            let (checkpoints, memory_bytes) = (config.checkpoints, config.memory_bytes);
            let coordinator_config =
                CoordinatorConfig { data_dir: data_dir.clone(), workers, checkpoints, memory_bytes };
            let coordinator = Coordinator::start(coordinator_config, of_coordinator)?;
            Ok::<_, Error>((coordinator, CatalogStore::open(&data_dir)?))
        })
        .await
        .map_err(|error| Error::internal(format!("opening the database ended: {error}")))??;

        let (catalog, limits) = (Arc::new(catalog), Arc::new(config.limits));
        let sizes: Sizes = Arc::new(coordinator.state_bytes());
        let engine = Arc::new(Engine {
            coordinator,
            base_state: Arc::new(base_state(workers, config.memory_bytes, &limits, &catalog, &sizes)?),
            catalog,
            connectors: Connectors::standard(),
            sources: Mutex::default(),
            writers: Mutex::default(),
            turns: Turns::default(),
            ddl: Arc::default(),
            closed: CancellationToken::new(),
            queries: QueryThreads::start(workers)?,
            limits,
            env,
        });
        if let Err(error) = recovery::recover(&engine, records).await {
            // Nothing of it writes to the directory any more when the caller knows.
            engine.close().await;
            return Err(error);
        }
        Ok(engine)
    }

    /// A session for one client.
    pub fn session(self: &Arc<Self>) -> Session {
        Session::new(Arc::clone(self))
    }

    /// What the process is given by its surroundings.
    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    /// What clients may take.
    pub fn limits(&self) -> &Arc<Limits> {
        &self.limits
    }

    /// All jobs: tables, connector tables and materialized views, by id.
    pub fn jobs(&self) -> Vec<JobInfo> {
        let catalog = self.catalog();
        // The clock rests when idle, so the relation that is furthest says where it stands.
        let latest = catalog
            .objects()
            .filter_map(|object| self.coordinator.status(object.id))
            .map(|status| status.upper)
            .filter(|upper| *upper != Time::MAX)
            .max()
            .unwrap_or(Time::ZERO);
        catalog.objects().filter_map(|object| self.job(object, latest)).collect()
    }

    fn job(&self, object: &Object, latest: Time) -> Option<JobInfo> {
        let kind = match object.kind {
            ObjectKind::View | ObjectKind::Function => return None,
            ObjectKind::Table if object.is_external() => "source",
            ObjectKind::Table => "table",
            ObjectKind::MaterializedView => "materialized view",
            ObjectKind::Sink => "sink",
            // It runs from the first job on its table on.
            ObjectKind::Errors if self.coordinator.status(object.id).is_none() => return None,
            ObjectKind::Errors => "errors",
            ObjectKind::Late if self.coordinator.status(object.id).is_none() => return None,
            ObjectKind::Late => "late rows",
        };
        let mut job = JobInfo {
            id: object.id,
            name: object.qualified_name(),
            kind,
            status: "FAILED",
            error: None,
            since_millis: 0,
            rows_in: 0,
            rows_out: 0,
            lag_millis: 0,
        };
        if let Definition::Broken(error) = &object.definition {
            job.error = Some(error.clone());
            return Some(job);
        }
        // Between the catalog's change and the installation nothing is known yet.
        let Some(status) = self.coordinator.status(object.id) else {
            job.status = "FILLING";
            return Some(job);
        };
        (job.status, job.error) = match status.state {
            RelationState::Filling => ("FILLING", None),
            RelationState::Running => ("RUNNING", None),
            RelationState::Failed(error) => ("FAILED", Some(error)),
            RelationState::Paused => ("PAUSED", None),
            RelationState::Blocked(_, error) => ("BLOCKED", error),
        };
        job.since_millis = status.since_millis;
        job.rows_in = status.rows_in;
        job.rows_out = status.rows_out;
        // A source keeps no rows that could be late: what reads it has the lag.
        if !object.is_external() || !object.key().is_empty() {
            job.lag_millis = latest.as_millis().saturating_sub(status.upper.as_millis());
        }
        Some(job)
    }

    /// All materialized views, by id.
    pub fn views(&self) -> Vec<ViewInfo> {
        let catalog = self.catalog();
        let views = catalog.objects().filter(|object| object.kind == ObjectKind::MaterializedView);
        views
            .map(|object| {
                let columns = columns(object);
                let key = object.key().iter().filter_map(|index| columns.get(*index)).map(|c| c.name.clone()).collect();
                ViewInfo { id: object.id, name: object.name.clone(), schema: object.schema.clone(), columns, key }
            })
            .collect()
    }

    /// Waits until what the sources and tables hold is in every view and sink. Cancel safe.
    ///
    /// # Errors
    /// The reason of the first job that failed.
    pub async fn drained(&self) -> Result<()> {
        let time = self.coordinator.flush().await?;
        self.coordinator.sinks_show(time).await;
        match self.jobs().into_iter().find_map(|job| Some((job.name, job.error?))) {
            Some((name, error)) => Err(error.detail(format!("Job {name} failed."))),
            None => Ok(()),
        }
    }

    /// How much of what its sources have is read, and how much there is, as far as both are known.
    pub fn input_read(&self) -> Option<(u64, u64)> {
        let catalog = self.catalog();
        let sources = catalog.objects().filter_map(|object| self.coordinator.source_progress(object.id));
        let splits = sources.flat_map(|source| source.seen().splits.into_values());
        let known = splits.filter_map(|split| Some((split.read(), split.read() + split.lag()?)));
        known.reduce(|(read, all), (more_read, more)| (read + more_read, all + more))
    }

    /// Stops the engine; open sessions fail with 57P01.
    pub async fn close(&self) {
        self.closed.cancel();
        self.coordinator.shutdown().await;
    }

    pub(crate) fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// The current version of the catalog.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        self.catalog.current()
    }

    pub(crate) fn catalog_store(&self) -> &Arc<CatalogStore> {
        &self.catalog
    }

    /// Writes a savepoint into a folder. Whoever calls holds the DDL lock: what is created meanwhile would be in the
    /// catalog and not in the state.
    ///
    /// # Errors
    /// 42710 when the folder is not empty; when there is no checkpoint, or it cannot be written.
    pub(crate) async fn savepoint(&self, folder: std::path::PathBuf) -> Result<()> {
        let catalog = self.catalog.log_bytes()?;
        self.coordinator().savepoint(folder, catalog).await.map(drop)
    }

    pub(crate) fn connectors(&self) -> &Connectors {
        &self.connectors
    }

    pub(crate) fn ddl(&self) -> &Arc<tokio::sync::Mutex<()>> {
        &self.ddl
    }

    pub(crate) fn base_state(&self) -> Arc<SessionState> {
        Arc::clone(&self.base_state)
    }

    /// The threads that queries compute on.
    pub(crate) fn query_threads(&self) -> &tokio::runtime::Handle {
        self.queries.handle()
    }

    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    /// The connector of an external table.
    ///
    /// # Errors
    /// XX000 when the table has none.
    pub(crate) fn source(&self, table: RelationId) -> Result<SourceTable> {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.get(&table).cloned().ok_or_else(|| Error::internal(format!("table {table} has no connector")))
    }

    /// True when the rows of a table with a connector can be read.
    pub(crate) fn has_source(&self, table: RelationId) -> bool {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&table)
    }

    pub(crate) fn set_source(&self, table: RelationId, source: SourceTable) {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).insert(table, source);
    }

    /// What writers of a table share.
    pub(crate) fn writer(&self, table: RelationId) -> Arc<Writer> {
        Arc::clone(self.writers.lock().unwrap_or_else(PoisonError::into_inner).entry(table).or_default())
    }

    /// Whose turn it is to write each table.
    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// The time of the last write that was answered, in any table.
    pub(crate) fn last_write(&self) -> Time {
        let writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        writers.values().map(|writer| writer.last_write()).max().unwrap_or(Time::ZERO)
    }

    /// Forgets what is kept for relations that are gone.
    pub(crate) fn forget(&self, relations: &[RelationId]) {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| !relations.contains(id));
        self.writers.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| !relations.contains(id));
        self.turns.forget(relations);
    }
}

/// The columns of an object with their SQL types; none when its text could not be planned.
pub(crate) fn columns(object: &Object) -> Vec<Column> {
    if let Definition::Table(table) = &object.definition {
        return table
            .columns
            .iter()
            .map(|column| {
                // Only a length is not in the stored type.
                let data_type = if column.length_max.is_some() {
                    column.sql_type.clone()
                } else {
                    sql::sql_name(&column.data_type)
                };
                Column { name: column.name.clone(), data_type }
            })
            .collect();
    }
    let Some(schema) = object.row_schema() else {
        return Vec::new();
    };
    schema
        .fields()
        .iter()
        .map(|field| Column { name: field.name().clone(), data_type: sql::sql_name(field.data_type()) })
        .collect()
}

/// The state that all statements are planned with, but for the names of the catalog.
fn base_state(
    workers: usize,
    memory_bytes: u64,
    limits: &Arc<Limits>,
    catalog: &Arc<CatalogStore>,
    sizes: &Sizes,
) -> Result<SessionState> {
    let config = sql::session_config()
        .with_extension(Arc::clone(limits))
        .with_target_partitions(workers)
        .with_default_catalog_and_schema(DATABASE, crate::catalog::DEFAULT_SCHEMA)
        .with_create_default_catalog_and_schema(false);
    let memory = usize::try_from(memory_bytes).unwrap_or(usize::MAX);
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_limit(memory, QUERY_MEMORY_SHARE)
        .build_arc()
        .map_err(crate::engine::error_of)?;
    let builder = SessionStateBuilder::new().with_config(config).with_runtime_env(runtime).with_default_features();
    let mut state = sql::configure(builder).build();
    for function in aggregate_functions::functions() {
        state.register_udaf(function).map_err(crate::engine::error_of)?;
    }
    for function in pg_catalog::functions(catalog, sizes) {
        state.register_udf(Arc::new(function)).map_err(crate::engine::error_of)?;
    }
    Ok(state)
}

/// Rows tables by name, as [`super::relations::Relations::with_rows`] takes them.
pub(crate) type RowTables = BTreeMap<String, Arc<dyn datafusion::catalog::TableProvider>>;
