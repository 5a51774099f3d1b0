//! The coordinator: the one clock, the timeline, the workers, and the relations that they keep.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::physical_expr::PhysicalExpr;

use crate::env::Env;
use crate::exec::plan::JobPlan;
use crate::exec::source::Source;
use crate::types::{Chunk, Error, RelationId, Result, Time};

/// How a coordinator runs.
#[derive(Clone, Debug)]
pub struct CoordinatorConfig {
    /// Directory of HEAD and the timeline log; exists.
    pub data_dir: PathBuf,
    /// Worker threads, at least 1.
    pub workers: usize,
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

/// What fills a relation.
#[derive(Clone)]
pub enum RelationKind {
    /// DML: an ordinary table.
    Table {
        /// Its columns.
        schema: SchemaRef,
        /// Columns of the primary key; empty: the whole row identifies a row, with a count.
        key: Vec<usize>,
    },
    /// A connector; no rows are kept, every job reads the source.
    External {
        /// The rows outside.
        source: Arc<dyn Source>,
    },
    /// A standing query.
    View {
        /// Its plan.
        plan: Arc<JobPlan>,
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
    /// A relation that it stands on failed, for the reason given.
    Blocked(RelationId, Error),
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
pub struct Coordinator {}

impl Coordinator {
    /// Starts clock, timeline and workers on a data directory; nothing is installed yet.
    ///
    /// # Errors
    /// When another process holds the directory (55000), or its files are damaged (XX001).
    pub fn start(config: CoordinatorConfig, env: Env) -> Result<Coordinator> {
        let _ = (config, env);
        todo!()
    }

    /// Installs all relations of the catalog, upstream first, and replays the timeline into them.
    /// Called once, before any other statement. Reads wait by themselves until a view is filled.
    pub async fn recover(&self, relations: Vec<RelationSpec>) -> Result<()> {
        let _ = relations;
        todo!()
    }

    /// Starts a relation. All that it reads is installed. Returns at once; see [`Self::filled`].
    pub async fn install(&self, relation: RelationSpec) -> Result<()> {
        let _ = relation;
        todo!()
    }

    /// Waits until the relation has taken in the history of its tables and views. Cancel safe.
    ///
    /// # Errors
    /// The reason, when the job fails meanwhile.
    pub async fn filled(&self, relation: RelationId) -> Result<()> {
        let _ = relation;
        todo!()
    }

    /// Stops relations, dependents included by the caller, and frees what they hold.
    pub async fn uninstall(&self, relations: &[RelationId]) -> Result<()> {
        let _ = relations;
        todo!()
    }

    /// Makes changes of ordinary tables durable at one new time and hands them to the workers.
    /// Not cancel safe: once polled, the write may happen though nobody waits for the answer.
    ///
    /// # Errors
    /// When the log cannot be written: the write may or may not be there after a restart.
    pub async fn write(&self, writes: Vec<TableWrite>) -> Result<Time> {
        let _ = writes;
        todo!()
    }

    /// Chooses a time for reading the relations together, waits until all have closed it, and
    /// keeps it readable until the pin is dropped. Relations without kept rows (external) are not
    /// allowed here. Cancel safe.
    ///
    /// # Errors
    /// 55000 when a relation failed or is blocked (not with [`ReadBound::Available`]); 72000 when
    /// the time asked for is no longer kept.
    pub async fn pin(&self, relations: &[RelationId], bound: ReadBound) -> Result<Pin> {
        let _ = (relations, bound);
        todo!()
    }

    /// Waits until all input accepted so far is visible in every view: writes, and what external
    /// sources have given so far.
    pub async fn flush(&self) -> Result<Time> {
        todo!()
    }

    /// The state of a relation; `None` when it is not installed.
    pub fn status(&self, relation: RelationId) -> Option<RelationStatus> {
        let _ = relation;
        todo!()
    }

    /// Number of workers; a scan has one part for each.
    pub fn workers(&self) -> usize {
        todo!()
    }

    /// Stops feeds and workers and closes the files.
    pub async fn shutdown(&self) {
        todo!()
    }
}

/// A time kept readable for some relations.
pub struct Pin {}

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
        todo!()
    }

    /// The next page of the rows that `worker` keeps, from the start or from another page's
    /// `next`. Pages of worker 0, then 1, ... give the whole relation in (key group, key) order.
    /// `next` fits only the same relation; it may be used again with a later pin.
    pub async fn page(
        &self,
        request: &PageRequest,
        worker: usize,
        start: Option<Vec<u8>>,
    ) -> Result<Page> {
        let _ = (request, worker, start);
        todo!()
    }

    /// The worker at which a scan that ended with `next` goes on.
    pub fn worker_of(&self, next: &[u8]) -> Result<usize> {
        let _ = next;
        todo!()
    }

    /// The rows with the given keys: `keys` has the relation's key columns, in key order, with
    /// their exact types. Absent keys give no row; the order is not that of the keys.
    pub async fn lookup(&self, request: &PageRequest, keys: &RecordBatch) -> Result<RecordBatch> {
        let _ = (request, keys);
        todo!()
    }
}
