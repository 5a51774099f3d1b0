//! Runs plain operators as timely operators.
//!
//! Chunks are stashed by time under a capability; times are closed in order as the frontier passes them,
//! in slices. While a time is being closed its capability is held, so nothing behind sees a part of it as
//! the whole. An operator that fails or panics *keeps* its capability and swallows its input from then
//! on: what is behind it never takes a partial time for a whole one.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use timely::container::NoopBuilder;
use timely::dataflow::Stream;
use timely::dataflow::channels::pact::{DistributorPact, ParallelizationContract, Pipeline};
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::progress::frontier::MutableAntichain;

use super::barrier::JobStore;
use super::clock::Clock;
use super::container::Packet;
use super::exchange::{ByKeyGroup, Route};
use super::imports::Local;
use super::marks::Marks;
use super::slices::Slices;
use crate::exec::event_time::late_rows;
use crate::exec::operator_counts::{OperatorCounts, StateShare};
use crate::exec::operators::{Context, Operator, Step};
use crate::exec::plan::Closing;
use crate::exec::relation::{Progress, RelationShared};
use crate::state::RowCodec;
use crate::types::{Chunk, Error, Result, Time, Watermark};

pub(super) type Packets<'scope> = Stream<'scope, u64, Packet>;

/// With less stack than this, a piece of work gets a new one of [`STACK_GROWTH`] bytes.
const STACK_LEFT_MIN: usize = 1 << 20;
const STACK_GROWTH: usize = 8 << 20;

/// A job on one worker, as its operators see it.
#[derive(Clone)]
pub(super) struct JobContext {
    pub(super) shared: Arc<RelationShared>,
    progress: Arc<Progress>,
    pub(super) slices: Rc<Slices>,
    pub(super) worker: usize,
    pub(super) peers: usize,
    pub(super) store: Rc<JobStore>,
    clock: Arc<dyn Clock>,
    failed: Rc<Cell<bool>>,
}

impl JobContext {
    pub(super) fn new(
        shared: Arc<RelationShared>,
        progress: Arc<Progress>,
        slices: Rc<Slices>,
        worker: usize,
        peers: usize,
        store: Rc<JobStore>,
        clock: Arc<dyn Clock>,
    ) -> JobContext {
        JobContext { shared, progress, slices, worker, peers, store, clock, failed: Rc::new(Cell::new(false)) }
    }

    /// The same job, as the operators of another of its relations see it.
    pub(super) fn of(&self, relation: &Arc<RelationShared>) -> JobContext {
        JobContext { shared: Arc::clone(relation), ..self.clone() }
    }

    /// Asks the clock for the next time: there is work that waits for one.
    pub(super) fn request_tick(&self) {
        self.clock.request_tick();
    }

    /// Asks for a time when that one has come: an operator waits for it.
    fn wake_at(&self, time: Time) {
        self.clock.wake_at(time);
    }

    /// An edge of the job is level at a time. When all imports are, those who wait for the job to be
    /// whole have to look again, on every worker: a tick lets them.
    pub(super) fn edge_filled(&self, time: Time) {
        self.shared.edge_filled(time);
        self.progress.signal();
        self.request_tick();
    }

    /// A feed of the job is level at a time, likewise.
    pub(super) fn feed_filled(&self, time: Time) {
        self.shared.feed_filled(time);
        self.progress.signal();
        self.request_tick();
    }

    /// True when the job failed or was paused: swallow input.
    pub(super) fn failed(&self) -> bool {
        self.failed.get() || self.shared.halted()
    }

    /// Those who wait for the relation look again.
    pub(super) fn signal(&self) {
        self.progress.signal();
    }

    /// Runs a piece of an operator; an error or a panic fails the job.
    pub(super) fn guard<T>(&self, work: impl FnOnce() -> Result<T>) -> Option<T> {
        // Expressions are evaluated by recursion, as deep as they were written.
        let work = || stacker::maybe_grow(STACK_LEFT_MIN, STACK_GROWTH, work);
        let error = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(value)) => return Some(value),
            Ok(Err(error)) => error,
            Err(panic) => Error::internal(format!("an operator panicked: {}", panic_text(&*panic)))
                .hint("This is a fault of the program; the server's log has more."),
        };
        self.failed.set(true);
        if self.shared.fail(error.clone()) {
            tracing::warn!(job = %self.shared.name, worker = self.worker, error = ?error, "job failed");
        }
        self.progress.signal();
        None
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Chunks, each with the number of its input.
type Arrived = VecDeque<(usize, Chunk)>;

/// The right to put something out at a time: rows, and late changes where there can be any.
struct Holding {
    rows: Capability<u64>,
    late: Option<Capability<u64>>,
}

impl Holding {
    fn time(&self) -> u64 {
        *self.rows.time()
    }

    fn delayed(&self, time: u64) -> Holding {
        Holding { rows: self.rows.delayed(&time), late: self.late.as_ref().map(|late| late.delayed(&time)) }
    }

    fn downgrade(&mut self, time: u64) {
        if self.time() < time {
            self.rows.downgrade(&time);
            if let Some(late) = &mut self.late {
                late.downgrade(&time);
            }
        }
    }
}

/// What has arrived of times that have not closed; each time with its capabilities.
#[derive(Default)]
struct Stash {
    times: BTreeMap<u64, (Holding, Arrived)>,
}

impl Stash {
    fn add(&mut self, holding: Holding, chunks: impl Iterator<Item = (usize, Chunk)>) {
        let time = holding.time();
        self.times.entry(time).or_insert_with(|| (holding, VecDeque::new())).1.extend(chunks);
    }

    /// Every time below is closed.
    fn closed_upto(&self, frontiers: &[&MutableAntichain<u64>]) -> Time {
        let stashed = self.times.first_key_value().map_or(u64::MAX, |(time, _)| *time);
        let open = frontiers.iter().map(|frontier| frontier.frontier().first().copied().unwrap_or(u64::MAX));
        Time::from_millis(open.min().unwrap_or(u64::MAX).min(stashed))
    }

    /// The earliest time, if it is below the frontiers of all inputs.
    fn pop_closed(&mut self, frontiers: &[&MutableAntichain<u64>]) -> Option<(Holding, Arrived)> {
        let entry = self.times.first_entry()?;
        let open = frontiers.iter().any(|frontier| frontier.less_equal(entry.key()));
        (!open).then(|| entry.remove())
    }
}

/// Takes in what has come on one input: into the stash, or nowhere.
type Receive = Box<dyn FnMut(Option<&mut Stash>)>;

fn receive<'scope, P>(
    builder: &mut OperatorBuilder<'scope, u64>,
    stream: Packets<'scope>,
    pact: P,
    input: usize,
    with_late: bool,
) -> Receive
where
    P: ParallelizationContract<u64, Packet>,
    P::Puller: 'static,
{
    let mut handle = builder.new_input(stream, pact);
    Box::new(move |stash| match stash {
        None => handle.for_each(|_, packet| packet.0 = None),
        Some(stash) => handle.for_each_stamp(|capability, packets| {
            if let Some(rows) = capability.retain_least(0) {
                let late = if with_late { capability.retain_least(1) } else { None };
                stash.add(
                    Holding { rows, late },
                    packets.filter_map(|packet| packet.0.take()).map(|chunk| (input, chunk)),
                );
            }
        }),
    })
}

/// What an operator follows of event time, and its name among the late changes.
pub(super) struct Follows {
    pub(super) path: String,
    /// By input.
    pub(super) sides: Vec<(Closing, Rc<RefCell<Marks>>)>,
}

impl Follows {
    /// The first time at which something else is known.
    fn next_time(&self) -> Option<Time> {
        self.sides.iter().filter_map(|(_, marks)| marks.borrow().next_time()).min()
    }

    /// What was known of each input before a time, and what is known at it.
    fn pass(&self, time: Time) -> ([Watermark; 2], [Watermark; 2]) {
        let (mut before, mut now) = ([Watermark::NONE; 2], [Watermark::NONE; 2]);
        for (input, (_, marks)) in self.sides.iter().enumerate().take(2) {
            (before[input], now[input]) = marks.borrow_mut().pass(time);
        }
        (before, now)
    }
}

/// Runs a stateful operator over its inputs, each of which comes by its route. Gives its rows, and the late changes
/// when it follows event time.
pub(super) fn drive<'scope>(
    inputs: Vec<(Packets<'scope>, Route)>,
    counts: Arc<OperatorCounts>,
    mut operator: Box<dyn Operator>,
    follows: Option<Follows>,
    as_of: Time,
    job: &JobContext,
) -> (Packets<'scope>, Option<Packets<'scope>>) {
    let scope = inputs.first().expect("an operator with an input").0.scope();
    let mut builder = OperatorBuilder::new(counts.name.clone(), scope);
    let activator = scope.activator_for(builder.operator_info().address);
    let with_late = follows.is_some();
    let mut receivers: Vec<Receive> = Vec::new();
    for (input, (stream, route)) in inputs.into_iter().enumerate() {
        receivers.push(match route {
            Route::Keys { columns, codec } if job.peers > 1 => {
                receive(&mut builder, stream, by_keys(columns, codec), input, with_late)
            }
            Route::Local | Route::Keys { .. } => receive(&mut builder, stream, Pipeline, input, with_late),
        });
    }
    let (output, out_stream) = builder.new_output::<Packet>();
    let mut output = OutputBuilder::<_, NoopBuilder<Packet>>::from(output);
    let (mut late_output, late_stream) = match with_late {
        true => {
            let (late, stream) = builder.new_output::<Packet>();
            (Some(OutputBuilder::<_, NoopBuilder<Packet>>::from(late)), Some(stream))
        }
        false => (None, None),
    };
    if let Some(follows) = &follows {
        for (_, marks) in &follows.sides {
            marks.borrow_mut().activator = Some(activator.clone());
        }
    }
    let job = job.clone();
    let mut member = job.store.join(activator.clone());
    let inspections = job.store.inspected(&counts.path, activator.clone());
    builder.build(move |mut initial| {
        // Held until the operator is open, so that no time passes before its state is there.
        let late = if with_late { initial.pop() } else { None };
        let mut unopened = initial.pop().map(|rows| Holding { rows, late });
        // Held to put something out when event time, or the clock, goes on without rows.
        let mut own: Option<Holding> = None;
        let mut stash = Stash::default();
        let mut closing: Option<(Holding, [Watermark; 2], [Watermark; 2])> = None;
        let mut share = StateShare::new(Arc::clone(&counts));
        move |frontiers| {
            let mut into = (!job.failed()).then_some(&mut stash);
            receivers.iter_mut().for_each(|receive| receive(into.as_deref_mut()));
            if into.is_none() {
                inspections.give_up();
                return;
            }
            let Some(deadline) = job.slices.admit(job.shared.id) else {
                activator.activate();
                return;
            };
            if let Some(holding) = unopened.take() {
                let mut backend = job.store.backend.borrow_mut();
                let mut context = Context::new(&mut **backend, deadline);
                let opened = job.guard(|| operator.open(&mut context).map(|()| operator.starts()));
                share.tell(operator.state_size());
                match opened {
                    Some(starts) => {
                        if starts {
                            stash.add(holding.delayed(as_of.as_millis()), std::iter::empty());
                        }
                        own = Some(holding).filter(|_| with_late || operator.is_timed());
                    }
                    None => {
                        unopened = Some(holding);
                        return;
                    }
                }
            }
            let frontiers: Vec<&MutableAntichain<u64>> = frontiers.iter().collect();
            let open = frontiers.iter().filter_map(|frontier| frontier.frontier().first().copied()).min();
            loop {
                if closing.is_none() {
                    // A time at which event time goes on is closed like one with rows.
                    let marked = follows.as_ref().and_then(Follows::next_time);
                    if let (Some(marked), Some(own)) = (marked, &own)
                        && open.is_none_or(|open| marked.as_millis() < open)
                    {
                        stash.add(own.delayed(marked.as_millis()), std::iter::empty());
                    }
                    // So is one that the operator waits for.
                    if let (Some(due), Some(own), Some(open)) = (operator.wakes_at(), &own, open)
                        && due.as_millis() < open
                    {
                        stash.add(own.delayed(due.as_millis().max(own.time())), std::iter::empty());
                    }
                    let reached = stash.closed_upto(&frontiers);
                    inspections.serve(Some(reached), &mut *operator, &job);
                    if member.is_due(reached) {
                        match member.pass(&job, &mut *operator, deadline) {
                            Some(Step::Done) => {}
                            Some(Step::Again) => {
                                job.slices.exhausted(job.shared.id);
                                activator.activate();
                                return;
                            }
                            None => return,
                        }
                    }
                    let Some((holding, chunks)) = stash.pop_closed(&frontiers) else {
                        match (open, &mut own) {
                            (Some(open), Some(own)) => own.downgrade(open),
                            _ => own = None,
                        }
                        if let Some(due) = operator.wakes_at() {
                            job.wake_at(due);
                        }
                        return;
                    };
                    let time = Time::from_millis(holding.time());
                    let (before, now) = match &follows {
                        Some(follows) => follows.pass(time),
                        None => ([Watermark::NONE; 2], [Watermark::NONE; 2]),
                    };
                    closing = Some((holding, before, now));
                    let mut chunks = chunks.into_iter();
                    let pushed = job.guard(|| {
                        chunks.try_for_each(|(input, chunk)| {
                            counts.count_in(chunk.rows());
                            operator.push(input, chunk)
                        })
                    });
                    if pushed.is_none() {
                        return;
                    }
                }
                let Some((holding, before, now)) = &closing else { return };
                inspections.serve(None, &mut *operator, &job);
                let mut out = Vec::new();
                let time = Time::from_millis(holding.time());
                let mut backend = job.store.backend.borrow_mut();
                let mut context = Context::new(&mut **backend, deadline).with_event_time(*before, *now);
                let since = Instant::now();
                let step = job.guard(|| operator.close(time, &mut out, &mut context));
                counts.worked(since);
                let Some(step) = step else { return };
                share.tell(operator.state_size());
                for chunk in out {
                    counts.count_out(&chunk);
                    let mut packet = Packet(Some(chunk));
                    output.activate().session_with_builder(&holding.rows).give_container(&mut packet);
                }
                if let (Some(follows), Some(late_output), Some(capability)) =
                    (&follows, &mut late_output, &holding.late)
                {
                    for (input, late) in std::mem::take(&mut context.late) {
                        let Some((closing, _)) = follows.sides.get(input) else { continue };
                        let rows = job.guard(|| late_rows(&follows.path, closing, &late, before[input]));
                        let Some(rows) = rows else { return };
                        let mut packet = Packet(Some(rows));
                        late_output.activate().session_with_builder(capability).give_container(&mut packet);
                    }
                }
                if step == Step::Done {
                    closing = None;
                }
                if context.expired() {
                    job.slices.exhausted(job.shared.id);
                    activator.activate();
                    return;
                }
            }
        }
    });
    (out_stream, late_stream)
}

/// Runs a stateless operator: every chunk passes at once, at its own time.
pub(super) fn transform<'scope, I: IntoIterator<Item = Chunk>>(
    stream: Packets<'scope>,
    counts: Arc<OperatorCounts>,
    job: &JobContext,
    mut apply: impl FnMut(Chunk) -> Result<I> + 'static,
) -> Packets<'scope> {
    transform_two(stream, counts, job, move |chunk| Ok((apply(chunk)?, None))).0
}

/// Likewise, with a second output.
pub(super) fn transform_two<'scope, I: IntoIterator<Item = Chunk>>(
    stream: Packets<'scope>,
    counts: Arc<OperatorCounts>,
    job: &JobContext,
    mut apply: impl FnMut(Chunk) -> Result<(I, Option<Chunk>)> + 'static,
) -> (Packets<'scope>, Packets<'scope>) {
    let scope = stream.scope();
    let mut builder = OperatorBuilder::new(counts.name.clone(), scope);
    let activator = scope.activator_for(builder.operator_info().address);
    let mut input = builder.new_input(stream, Pipeline);
    let (output, out_stream) = builder.new_output::<Packet>();
    let mut output = OutputBuilder::<_, NoopBuilder<Packet>>::from(output);
    let (second, second_stream) = builder.new_output::<Packet>();
    let mut second = OutputBuilder::<_, NoopBuilder<Packet>>::from(second);
    let job = job.clone();
    builder.build(move |_| {
        let mut waiting: VecDeque<([Capability<u64>; 2], Chunk)> = VecDeque::new();
        // Kept for ever once the operator failed.
        let mut failed_at: Option<[Capability<u64>; 2]> = None;
        move |_| {
            if job.failed() || failed_at.is_some() {
                input.for_each(|_, packet| packet.0 = None);
                return;
            }
            input.for_each(|capability, packet| {
                if let (Some(chunk), Some(first), Some(second)) =
                    (packet.0.take(), capability.retain_least(0), capability.retain_least(1))
                {
                    waiting.push_back(([first, second], chunk));
                }
            });
            let mut deadline = None;
            while let Some((capability, chunk)) = waiting.pop_front() {
                let slice = match deadline {
                    Some(deadline) if Instant::now() < deadline => Some(deadline),
                    Some(_) => {
                        job.slices.exhausted(job.shared.id);
                        None
                    }
                    None => job.slices.admit(job.shared.id),
                };
                if slice.is_none() {
                    waiting.push_front((capability, chunk));
                    activator.activate();
                    return;
                }
                deadline = slice;
                counts.count_in(chunk.rows());
                let since = Instant::now();
                let applied = job.guard(|| apply(chunk));
                counts.worked(since);
                match applied {
                    Some((first, other)) => {
                        for chunk in first {
                            counts.count_out(&chunk);
                            let mut packet = Packet(Some(chunk));
                            output.activate().session_with_builder(&capability[0]).give_container(&mut packet);
                        }
                        if let Some(chunk) = other {
                            let mut packet = Packet(Some(chunk));
                            second.activate().session_with_builder(&capability[1]).give_container(&mut packet);
                        }
                    }
                    None => {
                        failed_at = Some(capability);
                        return;
                    }
                }
            }
        }
    });
    (out_stream, second_stream)
}

/// Keeps a stream's rows as an arrangement, counted under `path`, and tells readers and followers how far it is. With
/// `latest`, rows replace each other by key.
pub(super) fn arrange<'scope>(
    stream: Packets<'scope>,
    route: Route,
    path: &str,
    latest: bool,
    local: &Rc<RefCell<Local>>,
    job: &JobContext,
) {
    let counts = job.shared.operator(path, "Arrangement");
    match route {
        Route::Keys { columns, codec } if job.peers > 1 => {
            arrange_by(stream, by_keys(columns, codec), counts, latest, local, job)
        }
        Route::Local | Route::Keys { .. } => arrange_by(stream, Pipeline, counts, latest, local, job),
    }
}

fn arrange_by<P>(
    stream: Packets<'_>,
    pact: P,
    counts: Arc<OperatorCounts>,
    latest: bool,
    local: &Rc<RefCell<Local>>,
    job: &JobContext,
) where
    P: ParallelizationContract<u64, Packet>,
{
    let scope = stream.scope();
    let mut builder = OperatorBuilder::new("arrange".to_owned(), scope);
    let activator = scope.activator_for(builder.operator_info().address);
    let mut input = builder.new_input(stream, pact);
    let (local, job) = (Rc::clone(local), job.clone());
    local.borrow_mut().arranger = Some(activator.clone());
    let mut member = job.store.join(activator.clone());
    builder.build(move |_| {
        let mut share = StateShare::new(Arc::clone(&counts));
        let mut opened = false;
        let mut stash: BTreeMap<u64, VecDeque<Chunk>> = BTreeMap::new();
        let mut closing: Option<Time> = None;
        move |frontiers| {
            if job.failed() {
                input.for_each(|_, packet| packet.0 = None);
                return;
            }
            input.for_each(|capability, packet| {
                if let (Some(chunk), Some(time)) = (packet.0.take(), capability.least()) {
                    stash.entry(*time).or_default().push_back(chunk);
                }
            });
            let Some(deadline) = job.slices.admit(job.shared.id) else {
                activator.activate();
                return;
            };
            let mut local = local.borrow_mut();
            if !opened {
                let mut backend = job.store.backend.borrow_mut();
                let mut context = Context::new(&mut **backend, deadline);
                if job.guard(|| local.arrangement.open(&mut context)).is_none() {
                    return;
                }
                opened = true;
                share.tell(local.arrangement.state_size());
            }
            let frontier = frontiers[0].frontier().first().copied().unwrap_or(u64::MAX);
            let mut at_barrier = false;
            let mut expired = false;
            while !expired {
                let time = match closing {
                    Some(time) => time,
                    None => {
                        let stashed = stash.first_key_value().map_or(u64::MAX, |(time, _)| *time);
                        if member.is_due(Time::from_millis(frontier.min(stashed))) {
                            match member.pass(&job, &mut local.arrangement, deadline) {
                                Some(Step::Done) => {}
                                Some(Step::Again) => {
                                    at_barrier = true;
                                    break;
                                }
                                None => return,
                            }
                        }
                        let Some(entry) = stash.first_entry().filter(|entry| *entry.key() < frontier) else { break };
                        let time = Time::from_millis(*entry.key());
                        for chunk in entry.remove() {
                            counts.count_in(chunk.rows());
                            if latest {
                                local.arrangement.stage_latest(chunk);
                            } else {
                                local.arrangement.stage(chunk);
                            }
                        }
                        time
                    }
                };
                closing = Some(time);
                let since = Instant::now();
                let closed = job.guard(|| local.arrangement.close_time(time, deadline));
                counts.worked(since);
                match closed {
                    None => return,
                    Some(Some(changes)) => {
                        closing = None;
                        changes.chunks.iter().for_each(|(chunk, _)| counts.count_out(chunk));
                        share.tell(local.arrangement.state_size());
                        local.publish(&changes);
                    }
                    Some(None) => {}
                }
                expired = Instant::now() >= deadline;
            }
            if !expired
                && local.arrangement.is_indexing()
                && job.guard(|| local.arrangement.build_indexes(deadline)).is_none()
            {
                return;
            }
            let closed_upto = closing.map_or(u64::MAX, Time::as_millis);
            let stashed = stash.first_key_value().map_or(u64::MAX, |(time, _)| *time);
            local.arrangement.advance(Time::from_millis(frontier.min(closed_upto).min(stashed)));
            job.shared.count_out(local.arrangement.take_changed());
            local.arrangement.forget(job.shared.needs());
            job.shared.forget_before(job.worker, local.arrangement.since());
            if job.shared.advance(job.worker, local.arrangement.upper()) {
                job.progress.signal();
                local.wake();
            }
            let unfinished = local.arrangement.has_trash() || local.arrangement.is_indexing();
            if closing.is_some() || at_barrier || unfinished || stashed < frontier {
                job.slices.exhausted(job.shared.id);
                activator.activate();
            }
        }
    });
}

pub(super) fn by_keys(
    columns: Vec<usize>,
    codec: RowCodec,
) -> DistributorPact<impl FnOnce(usize) -> ByKeyGroup + 'static> {
    DistributorPact(move |peers| ByKeyGroup { columns, codec, peers })
}
