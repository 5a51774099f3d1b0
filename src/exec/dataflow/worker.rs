//! A worker's loop: commands, then a step, again and again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use timely::worker::Worker;
use tokio::sync::oneshot;

use super::barrier::{Barrier, JobStore};
use super::build::{Built, build};
use super::clock::Clock;
use super::driver::JobContext;
use super::imports::{EdgeQueue, FeedId, FeedInput, FeedQueue, Local};
use super::inspect::Inspection;
use super::job::JobSpec;
use super::marks::{Mark, Marks};
use super::shared_reads::SharedReads;
use super::slices::Slices;
use crate::exec::arrangement::{ChangePlace, Changes, Cursor, Narrow, Selection};
use crate::exec::relation::{Progress, lock};
use crate::state::MemoryBackend;
use crate::types::{Error, RelationId, Result, SqlState, Time};

/// What the coordinator tells the workers; all get the same in the same order, but for peeks.
#[derive(Clone)]
pub(crate) enum WorkerCommand {
    /// Run a relation. What it imports by edge runs already.
    Create(Arc<JobSpec>),
    /// Stop relations; dependents stand before what they depend on.
    Drop(Arc<Vec<RelationId>>),
    /// The changes of one time; afterwards every time up to it is complete.
    Tick { time: Time, inputs: Arc<Vec<FeedInput>>, marks: Arc<[Mark]> },
    /// Keep indexes of these columns over a relation's rows, and no others.
    Index { relation: RelationId, columns: Arc<Vec<Vec<usize>>> },
    /// Capture the state of jobs, as of the last tick.
    Barrier(Arc<Barrier>),
    /// Read, on this worker.
    Peek(Arc<Peek>),
    /// Read what changed, on this worker.
    Follow(Arc<Follow>),
    /// Look into an operator, on this worker.
    Inspect(Arc<Inspection>),
    /// End the thread.
    Shutdown,
}

/// A read of a relation's rows on one worker at a time that it has closed.
pub(crate) struct Peek {
    pub(crate) relation: RelationId,
    pub(crate) time: Time,
    pub(crate) range: PeekRange,
    pub(crate) selection: Selection,
    pub(crate) answer: std::sync::Mutex<Option<oneshot::Sender<Result<PeekAnswer>>>>,
}

/// A read of a relation's changes on one worker, of times that it has closed.
pub(crate) struct Follow {
    pub(crate) relation: RelationId,
    /// Changes after this time.
    pub(crate) after: Time,
    /// ... up to this one.
    pub(crate) upto: Time,
    pub(crate) place: Option<ChangePlace>,
    pub(crate) rows_max: usize,
    pub(crate) projection: Vec<usize>,
    pub(crate) answer: std::sync::Mutex<Option<oneshot::Sender<Result<Changes>>>>,
}

/// Which rows a peek wants.
pub(crate) enum PeekRange {
    /// Those behind a place, at most so many; an index may find them.
    Page { start: Option<Cursor>, rows_max: usize, narrow: Option<Arc<Narrow>> },
    /// Those with the encoded keys.
    Keys(Vec<Vec<u8>>),
}

/// The rows that a peek found, and where the next page starts.
pub(crate) struct PeekAnswer {
    pub(crate) rows: RecordBatch,
    pub(crate) next: Option<Cursor>,
}

/// How long one page may take: a read is a guest on the worker.
const PAGE: Duration = Duration::from_millis(2);
/// How long commands may take between two steps.
const COMMANDS: Duration = Duration::from_millis(5);

struct Running {
    /// `None` when it runs in the dataflow of another relation.
    dataflow: Option<usize>,
    local: Option<Rc<RefCell<Local>>>,
    feeds: Vec<(FeedId, Rc<RefCell<FeedQueue>>)>,
    edges: Vec<Rc<RefCell<EdgeQueue>>>,
    marks: Vec<Rc<RefCell<Marks>>>,
    store: Rc<JobStore>,
}

struct WorkerState {
    index: usize,
    peers: usize,
    slices: Rc<Slices>,
    progress: Arc<Progress>,
    clock: Arc<dyn Clock>,
    running: HashMap<RelationId, Running>,
    feeds: HashMap<FeedId, Vec<Rc<RefCell<FeedQueue>>>>,
    reads: SharedReads,
}

/// Whoever sends a command or a message unparks the worker. What blocks while operators run can use that up unseen, and a
/// worker that then slept for ever would hold back a time, or a checkpoint, until the next command.
const PARK_MAX: Duration = Duration::from_millis(50);

/// Runs until [`WorkerCommand::Shutdown`], or until the coordinator is gone.
pub(super) fn run(
    worker: &mut Worker,
    commands: &Receiver<WorkerCommand>,
    progress: Arc<Progress>,
    clock: Arc<dyn Clock>,
) {
    let mut state = WorkerState {
        index: worker.index(),
        peers: worker.peers(),
        slices: Rc::new(Slices::new()),
        progress,
        clock,
        running: HashMap::new(),
        feeds: HashMap::new(),
        reads: SharedReads::default(),
    };
    loop {
        let commands_end = Instant::now() + COMMANDS;
        let mut idle = false;
        while !idle && Instant::now() < commands_end {
            match commands.try_recv() {
                Ok(WorkerCommand::Shutdown) | Err(TryRecvError::Disconnected) => {
                    state.stop(worker);
                    return;
                }
                Ok(command) => state.obey(worker, command),
                Err(TryRecvError::Empty) => idle = true,
            }
        }
        state.reads.expire();
        state.slices.begin();
        worker.step_or_park(Some(if idle { PARK_MAX } else { Duration::ZERO }));
    }
}

impl WorkerState {
    fn obey(&mut self, worker: &mut Worker, command: WorkerCommand) {
        match command {
            WorkerCommand::Create(spec) => self.create(worker, &spec),
            WorkerCommand::Drop(relations) => {
                for relation in relations.iter() {
                    self.drop_relation(worker, *relation);
                }
            }
            WorkerCommand::Tick { time, inputs, marks } => self.tick(time, &inputs, &marks),
            WorkerCommand::Index { relation, columns } => self.index(relation, &columns),
            WorkerCommand::Barrier(barrier) => {
                for running in barrier.jobs.iter().filter_map(|job| self.running.get(job)) {
                    running.store.reach(&barrier);
                }
            }
            WorkerCommand::Peek(peek) => self.peek(&peek),
            WorkerCommand::Follow(follow) => self.follow(&follow),
            WorkerCommand::Inspect(inspection) => {
                if let Some(running) = self.running.get(&inspection.job) {
                    running.store.inspect(&inspection);
                }
            }
            WorkerCommand::Shutdown => {}
        }
    }

    fn create(&mut self, worker: &mut Worker, spec: &JobSpec) {
        self.reads.clear();
        let backend = spec.state.as_ref().and_then(|state| lock(state.backends.get(self.index)?).take());
        // Nobody asks a job without state that is kept for it.
        let backend = backend.unwrap_or_else(|| Box::new(MemoryBackend::default()));
        let store = Rc::new(JobStore::new(spec.shared.id, self.index, backend));
        let job = JobContext::new(
            Arc::clone(&spec.shared),
            Arc::clone(&self.progress),
            Rc::clone(&self.slices),
            self.index,
            self.peers,
            Rc::clone(&store),
            Arc::clone(&self.clock),
        );
        let locals =
            self.running.iter().filter_map(|(id, running)| Some((*id, Rc::clone(running.local.as_ref()?)))).collect();
        let dataflow = worker.next_dataflow_index();
        let mut built = worker.dataflow::<u64, _, _>(|scope| build(scope, spec, &job, &locals));
        for (feed, queue) in &built.feeds {
            self.feeds.entry(*feed).or_default().push(Rc::clone(queue));
        }
        for (shared, local) in [(&spec.errors, built.errors.take()), (&spec.late, built.late.take())] {
            if let (Some(shared), Some(local)) = (shared, local) {
                let (feeds, edges, marks) = (Vec::new(), Vec::new(), Vec::new());
                let store = Rc::clone(&store);
                let beside = Running { dataflow: None, local: Some(local), feeds, edges, marks, store };
                self.running.insert(shared.id, beside);
            }
        }
        let dataflow = Some(dataflow);
        let Built { local, feeds, edges, marks, .. } = built;
        let running = Running { dataflow, local, feeds, edges, marks, store };
        self.running.insert(spec.shared.id, running);
    }

    fn drop_relation(&mut self, worker: &mut Worker, relation: RelationId) {
        self.reads.clear();
        let Some(running) = self.running.remove(&relation) else { return };
        for edge in &running.edges {
            edge.borrow_mut().close();
        }
        for (feed, queue) in &running.feeds {
            if let Some(queues) = self.feeds.get_mut(feed) {
                queues.retain(|other| !Rc::ptr_eq(other, queue));
                if queues.is_empty() {
                    self.feeds.remove(feed);
                }
            }
        }
        if let Some(dataflow) = running.dataflow {
            worker.drop_dataflow(dataflow);
        }
    }

    fn tick(&mut self, time: Time, inputs: &[FeedInput], marks: &[Mark]) {
        for mark in marks {
            let operators = self.running.get(&mark.job).into_iter().flat_map(|running| &running.marks);
            operators.for_each(|operator| operator.borrow_mut().push(time, *mark));
        }
        for input in inputs {
            for queue in self.feeds.get(&input.feed).into_iter().flatten() {
                let mut queue = queue.borrow_mut();
                let (index, peers) = (self.index, self.peers);
                let part = input.chunks.iter().enumerate().filter(|(i, _)| i % peers == index).map(|(_, c)| c.clone());
                queue.push(time, input.columns.as_ref(), part);
                if input.done {
                    queue.level(time);
                }
            }
        }
        for queue in self.feeds.values().flatten() {
            queue.borrow_mut().advance(time.next());
        }
    }

    fn index(&self, relation: RelationId, columns: &[Vec<usize>]) {
        // A relation that is not there gets them when it comes.
        let Ok(local) = self.local(relation) else { return };
        let mut local = local.borrow_mut();
        if let Err(error) = local.arrangement.set_indexes(columns) {
            tracing::error!(%relation, %error, "an index cannot be kept");
        }
        if let Some(arranger) = &local.arranger {
            arranger.activate();
        }
    }

    fn peek(&mut self, peek: &Arc<Peek>) {
        let Some(answer) = lock(&peek.answer).take() else { return };
        // Nobody waits any more: the statement was cancelled.
        if answer.is_closed() {
            return;
        }
        let read = match self.reads.find(peek) {
            Some(shared) => Ok(shared),
            None => self.read(peek).inspect(|made| self.reads.keep(peek, made)),
        };
        // A reader that is gone meanwhile does not mind.
        let _ = answer.send(read);
    }

    fn local(&self, relation: RelationId) -> Result<&Rc<RefCell<Local>>> {
        let running = self.running.get(&relation).and_then(|running| running.local.as_ref());
        running.ok_or_else(|| Error::new(SqlState::UndefinedTable, "the relation was dropped while it was read"))
    }

    fn follow(&self, follow: &Follow) {
        let Some(answer) = lock(&follow.answer).take() else { return };
        if answer.is_closed() {
            return;
        }
        let deadline = Instant::now() + PAGE;
        let times = (follow.after, follow.upto);
        let changes = self.local(follow.relation).and_then(|local| {
            let arrangement = &local.borrow().arrangement;
            arrangement.changes(times, follow.place, follow.rows_max, deadline, &follow.projection)
        });
        // A reader that is gone meanwhile does not mind.
        let _ = answer.send(changes);
    }

    fn read(&self, peek: &Peek) -> Result<PeekAnswer> {
        let local = self.local(peek.relation)?.borrow();
        match &peek.range {
            PeekRange::Page { start, rows_max, narrow } => {
                let deadline = Instant::now() + PAGE;
                let (arrangement, start) = (&local.arrangement, start.as_ref());
                let narrowed = match narrow {
                    Some(narrow) => arrangement.narrowed(peek.time, start, *rows_max, narrow, &peek.selection)?,
                    None => None,
                };
                let (rows, next) = match narrowed {
                    Some(page) => page,
                    None => arrangement.page(peek.time, start, *rows_max, deadline, &peek.selection)?,
                };
                Ok(PeekAnswer { rows, next })
            }
            PeekRange::Keys(keys) => {
                let rows = local.arrangement.lookup(peek.time, keys, &peek.selection)?;
                Ok(PeekAnswer { rows, next: None })
            }
        }
    }

    fn stop(&mut self, worker: &mut Worker) {
        self.running.clear();
        self.feeds.clear();
        for dataflow in worker.installed_dataflows() {
            worker.drop_dataflow(dataflow);
        }
    }
}
