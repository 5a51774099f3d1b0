//! Where changes enter a dataflow: feeds, edges and constants.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use timely::container::NoopBuilder;
use timely::dataflow::Scope;
use timely::dataflow::operators::generic::operator::source;
use timely::scheduling::Activator;

use super::container::Packet;
use super::driver::{JobContext, Packets};
use super::job::JobSpec;
use crate::exec::arrangement::{Arrangement, Cursor, Selection, TimeChanges};
use crate::exec::operator_counts::OperatorCounts;
use crate::exec::relation::RelationShared;
use crate::types::{Chunk, RelationId, Time};

/// A stream of rows that the coordinator stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FeedId {
    /// What is new of a table: DML, or a connector's rows.
    Table(RelationId),
    /// What a connector gave before a job started: for that job (first) and that table (second).
    CatchUp(RelationId, RelationId),
    /// Nothing but the passing of time: for rows that are there from the start.
    Clock,
}

/// What a tick brings on one feed.
#[derive(Clone, Debug)]
pub(crate) struct FeedInput {
    pub(crate) feed: FeedId,
    /// Which of the relation's columns the chunks carry; `None` for all.
    pub(crate) columns: Option<Arc<[usize]>>,
    pub(crate) chunks: Vec<Chunk>,
    /// Nothing more comes on it: a catch-up is level.
    pub(crate) done: bool,
}

/// What waits to enter a dataflow on one worker.
pub(super) struct FeedQueue {
    chunks: VecDeque<Waiting>,
    upper: Time,
    catch_up: CatchUp,
    activator: Option<Activator>,
}

/// A chunk that waits, and which columns it carries.
struct Waiting {
    time: Time,
    chunk: Chunk,
    columns: Option<Arc<[usize]>>,
}

enum CatchUp {
    None,
    Running,
    DoneAt(Time),
}

impl FeedQueue {
    pub(super) fn new(as_of: Time, catch_up: bool) -> FeedQueue {
        let catch_up = if catch_up { CatchUp::Running } else { CatchUp::None };
        FeedQueue { chunks: VecDeque::new(), upper: as_of, catch_up, activator: None }
    }

    /// Rows that are there from the start.
    pub(super) fn constant(rows: Vec<Chunk>, as_of: Time) -> FeedQueue {
        let mut queue = FeedQueue::new(as_of, false);
        queue.push(as_of, None, rows.into_iter());
        queue
    }

    /// A worker's part of a tick's chunks.
    pub(super) fn push(&mut self, time: Time, columns: Option<&Arc<[usize]>>, chunks: impl Iterator<Item = Chunk>) {
        self.chunks.extend(chunks.map(|chunk| Waiting { time, chunk, columns: columns.cloned() }));
    }

    /// The catch-up is level at a time.
    pub(super) fn level(&mut self, time: Time) {
        self.catch_up = CatchUp::DoneAt(time);
    }

    /// Nothing below `upper` will come.
    pub(super) fn advance(&mut self, upper: Time) {
        self.upper = upper;
        if let Some(activator) = &self.activator {
            activator.activate();
        }
    }
}

/// A relation's rows from the ticks.
pub(super) fn feed<'scope>(
    scope: Scope<'scope, u64>,
    queue: &Rc<RefCell<FeedQueue>>,
    columns: Vec<usize>,
    counts: Arc<OperatorCounts>,
    job: &JobContext,
) -> Packets<'scope> {
    let queue = Rc::clone(queue);
    let job = job.clone();
    source::<_, NoopBuilder<Packet>, _, _>(scope, "feed", move |capability, info| {
        let mut capability = Some(capability);
        if let Some(capability) = &mut capability {
            capability.downgrade(&queue.borrow().upper.as_millis());
        }
        queue.borrow_mut().activator = Some(scope_activator(scope, &info.address));
        move |output| {
            let Some(capability) = &mut capability else { return };
            if job.failed() {
                queue.borrow_mut().chunks.clear();
                return;
            }
            let mut queue = queue.borrow_mut();
            while let Some(Waiting { time, chunk, columns: carried }) = queue.chunks.pop_front() {
                job.shared.count_in(chunk.rows());
                let selected = match &carried {
                    None => job.guard(|| select(&chunk, &columns)),
                    Some(carried) => job.guard(|| select(&chunk, &places(&columns, carried)?)),
                };
                let Some(chunk) = selected else { return };
                counts.count_in(chunk.rows());
                counts.count_out(&chunk);
                let mut packet = Packet(Some(chunk));
                output.session_with_builder(&capability.delayed(&time.as_millis())).give_container(&mut packet);
            }
            if let CatchUp::DoneAt(time) = queue.catch_up {
                queue.catch_up = CatchUp::None;
                job.feed_filled(time);
            }
            if *capability.time() < queue.upper.as_millis() {
                capability.downgrade(&queue.upper.as_millis());
            }
        }
    })
}

fn scope_activator(scope: Scope<'_, u64>, address: &Rc<[usize]>) -> Activator {
    scope.activator_for(Rc::clone(address))
}

/// Where columns of a relation are among those that are carried.
fn places(columns: &[usize], carried: &[usize]) -> crate::types::Result<Vec<usize>> {
    let place = |column: &usize| carried.binary_search(column);
    let found: Result<Vec<usize>, usize> = columns.iter().map(place).collect();
    found.map_err(|_| crate::types::Error::internal("a feed does not carry a column that a job reads"))
}

fn select(chunk: &Chunk, columns: &[usize]) -> crate::types::Result<Chunk> {
    if columns.len() == chunk.batch().num_columns() && columns.iter().enumerate().all(|(i, c)| i == *c) {
        return Ok(chunk.clone());
    }
    Ok(chunk.with_batch(chunk.batch().project(columns)?))
}

/// An arrangement on this worker and those who follow it.
pub(super) struct Local {
    pub(super) arrangement: Arrangement,
    pub(super) shared: Arc<RelationShared>,
    pub(super) followers: Vec<Rc<RefCell<EdgeQueue>>>,
}

/// The changes on an edge that its reader has not taken.
#[derive(Default)]
pub(super) struct EdgeQueue {
    changes: VecDeque<Rc<TimeChanges>>,
    activator: Option<Activator>,
    closed: bool,
}

impl Local {
    /// Hands a closed time's changes to the followers.
    pub(super) fn publish(&mut self, changes: &Rc<TimeChanges>) {
        self.followers.retain(|follower| !follower.borrow().closed);
        for follower in &self.followers {
            follower.borrow_mut().changes.push_back(Rc::clone(changes));
        }
    }

    /// Tells the followers that the relation got on.
    pub(super) fn wake(&self) {
        for follower in &self.followers {
            if let Some(activator) = &follower.borrow().activator {
                activator.activate();
            }
        }
    }
}

impl EdgeQueue {
    /// The reader is gone.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.changes.clear();
        self.activator = None;
    }
}

/// Rows of one hydration slice.
const HYDRATION_ROWS: usize = 8_192;
/// Rows after which hydration waits for the next time, so that no time is huge.
const HYDRATION_ROWS_PER_TIME: usize = 131_072;

/// Hydration on one worker: the upstream's present rows are put in key by key, a slice at a time, each
/// slice as the rows stand at the latest closed time; changes of keys already put in pass. So nothing is
/// pinned, and when the last key is in, the edge just follows.
enum Hydration {
    Waiting,
    Running { cursor: Option<Cursor>, time: Time, rows: usize },
    Done,
}

/// A relation's rows from its arrangement on the same worker.
pub(super) fn edge<'scope>(
    scope: Scope<'scope, u64>,
    upstream: &Rc<RefCell<Local>>,
    queue: &Rc<RefCell<EdgeQueue>>,
    columns: Vec<usize>,
    spec: &JobSpec,
    counts: Arc<OperatorCounts>,
    job: &JobContext,
) -> Packets<'scope> {
    let (as_of, restored) = (spec.as_of, spec.restored());
    upstream.borrow_mut().followers.push(Rc::clone(queue));
    let (upstream, queue, job) = (Rc::clone(upstream), Rc::clone(queue), job.clone());
    source::<_, NoopBuilder<Packet>, _, _>(scope, "edge", move |mut capability, info| {
        capability.downgrade(&as_of.as_millis());
        let activator = scope_activator(scope, &info.address);
        queue.borrow_mut().activator = Some(scope_activator(scope, &info.address));
        // What was there before is in the job's state.
        let mut hydration = if restored { Hydration::Done } else { Hydration::Waiting };
        let mut to_report = restored;
        let selection = Selection { projection: columns.clone(), predicate: None };
        move |output| {
            if job.failed() {
                queue.borrow_mut().changes.clear();
                return;
            }
            let upstream = upstream.borrow();
            let upper = upstream.arrangement.upper();
            let newest = upper.previous().unwrap_or(Time::ZERO);
            // Changes first: they are of times up to the newest, of keys put in before.
            loop {
                let Some(changes) = queue.borrow_mut().changes.pop_front() else { break };
                if changes.time < as_of {
                    continue;
                }
                let capability = capability.delayed(&changes.time.as_millis());
                for (chunk, keys) in &changes.chunks {
                    let passing = match &hydration {
                        Hydration::Done => Some(chunk.clone()),
                        Hydration::Running { cursor: Some(cursor), .. } => {
                            job.guard(|| up_to(chunk, keys, cursor)).flatten()
                        }
                        Hydration::Running { cursor: None, .. } | Hydration::Waiting => None,
                    };
                    let Some(chunk) = passing else { continue };
                    job.shared.count_in(chunk.rows());
                    let Some(chunk) = job.guard(|| select(&chunk, &columns)) else { return };
                    counts.count_in(chunk.rows());
                    counts.count_out(&chunk);
                    output.session_with_builder(&capability).give_container(&mut Packet(Some(chunk)));
                }
            }
            let is_level = upstream.shared.inputs_from().is_some_and(|from| from <= newest) && newest >= as_of;
            if to_report && is_level {
                to_report = false;
                // All of its state is there, so every time is whole from which on its upstream is.
                job.edge_filled(upstream.shared.whole_from().map_or(newest, |from| from.max(as_of)));
            }
            if matches!(hydration, Hydration::Waiting) && is_level {
                hydration = Hydration::Running { cursor: None, time: newest, rows: 0 };
            }
            if let Hydration::Running { cursor, time, rows } = &mut hydration {
                if newest > *time {
                    (*time, *rows) = (newest, 0);
                }
                if capability.time() < &newest.as_millis() {
                    capability.downgrade(&newest.as_millis());
                }
                if *rows >= HYDRATION_ROWS_PER_TIME {
                    job.request_tick();
                    return;
                }
                let Some(deadline) = job.slices.admit(job.shared.id) else {
                    activator.activate();
                    return;
                };
                let page = job
                    .guard(|| upstream.arrangement.page(newest, cursor.as_ref(), HYDRATION_ROWS, deadline, &selection));
                let Some((batch, next)) = page else { return };
                job.shared.count_in(batch.num_rows());
                *rows += batch.num_rows();
                for chunk in Chunk::inserts(&batch) {
                    counts.count_in(chunk.rows());
                    counts.count_out(&chunk);
                    output.session_with_builder(&capability).give_container(&mut Packet(Some(chunk)));
                }
                if next.is_some() {
                    *cursor = next;
                    activator.activate();
                    return;
                }
                hydration = Hydration::Done;
                job.edge_filled(newest);
            }
            if capability.time() < &upper.as_millis() && matches!(hydration, Hydration::Done) {
                capability.downgrade(&upper.as_millis());
            }
        }
    })
}

/// The changes of a chunk whose keys are not behind the cursor.
fn up_to(chunk: &Chunk, keys: &crate::state::Encoded, cursor: &Cursor) -> crate::types::Result<Option<Chunk>> {
    use arrow::array::{AsArray, BooleanArray};
    let passes = |row: usize| {
        let key = keys.row(row);
        (crate::types::KeyGroup::of(key), key) <= (cursor.group, cursor.key.as_slice())
    };
    let mask = BooleanArray::from_iter((0..chunk.rows()).map(|row| Some(passes(row))));
    let batch = arrow::compute::filter_record_batch(chunk.batch(), &mask)?;
    let parts = match chunk.diffs() {
        None => Chunk::inserts(&batch),
        Some(diffs) => {
            let diffs = arrow::compute::filter(diffs, &mask)?;
            Chunk::changes(&batch, diffs.as_primitive::<arrow::datatypes::Int64Type>())
        }
    };
    Ok(parts.into_iter().next())
}
