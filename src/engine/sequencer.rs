//! The thread that owns the clock and the timeline: it hands out times, makes what happens at a time
//! durable, and tells the workers.
//!
//! One loop: gather requests; when there is a reason for a tick, take the next time, append to the
//! log, broadcast. Writers that arrive while the log is synced share the next tick. Without work the
//! thread sleeps.
//!
//! A crash before the log is synced: the tick did not happen for anybody who was answered. A crash
//! after: recovery replays it. Times above the durable bound of the clock are never handed out, and a
//! restart begins at the bound.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::coordinator::{RelationKind, RelationSpec, TableWrite};
use super::feeds::{Feed, WakeOnce};
use super::installed::{Installed, Relations};
use super::sinks::RunningSink;
use super::timeline::{Record, TimelineLog};
use crate::env::Env;
use crate::exec::sink::JobOutput;
use crate::exec::source::{Offset, Source};
use crate::exec::{Executor, FeedId, FeedInput, ImportKind, JobSpec, WorkerCommand};
use crate::state::HeadFile;
use crate::types::{Chunk, Error, RelationId, Result, SqlState, Time};

/// The pace of ticks while sources give rows and nobody waits.
const TICK: Duration = Duration::from_millis(20);
/// How far the clock's durable bound is set ahead, in milliseconds.
const RESERVE_MILLIS: u64 = 10_000;
/// How often a held-back feed is looked at again.
const RETRY: Duration = Duration::from_millis(2);
/// Changes that one tick of a replay carries.
const REPLAY_ROWS_PER_TICK: usize = 65_536;
/// Ticks of a replay that may be open.
const REPLAY_OPEN_TICKS_MAX: usize = 8;

/// What the sequencer is asked for.
pub(super) enum Request {
    /// Make changes durable at one new time.
    Write { writes: Vec<TableWrite>, answer: oneshot::Sender<Result<Time>> },
    /// Hand out a time, now.
    Tick { answer: Option<oneshot::Sender<Result<Time>>> },
    /// Bring all relations back and replay the timeline.
    Recover { relations: Vec<RelationSpec>, answer: oneshot::Sender<Result<()>> },
    /// Start a relation.
    Install { relation: RelationSpec, answer: oneshot::Sender<Result<()>> },
    /// Stop relations.
    Uninstall { relations: Vec<RelationId>, answer: oneshot::Sender<Result<()>> },
    /// Start jobs that stopped again, with what stands on them, from the beginning.
    Resume { relations: Vec<RelationId>, answer: oneshot::Sender<Result<()>> },
    /// Tell once every feed has read its source to the end.
    AwaitFeeds { answer: oneshot::Sender<()> },
    /// A feed has something to take.
    FeedReady,
    /// End the thread.
    Shutdown,
}

pub(super) struct Sequencer {
    pub(super) env: Env,
    pub(super) executor: Arc<Executor>,
    pub(super) relations: Arc<Relations>,
    pub(super) requests: Receiver<Request>,
    /// For the feeds to wake this thread.
    pub(super) own_requests: Sender<Request>,
    pub(super) tick_wake: WakeOnce,
    pub(super) feed_wake: WakeOnce,
    pub(super) head: HeadFile,
    pub(super) log: TimelineLog,
    /// The last time handed out, for all to see.
    pub(super) last_time: Arc<AtomicU64>,
    pub(super) feeds: Vec<Feed>,
    pub(super) bindings: HashMap<RelationId, Offset>,
    pub(super) waiting_for_feeds: Vec<oneshot::Sender<()>>,
}

#[derive(Default)]
struct Batch {
    writes: Vec<(Vec<TableWrite>, oneshot::Sender<Result<Time>>)>,
    ticks: Vec<oneshot::Sender<Result<Time>>>,
    tick: bool,
}

impl Batch {
    fn is_urgent(&self) -> bool {
        self.tick || !self.writes.is_empty() || !self.ticks.is_empty()
    }
}

impl Sequencer {
    /// Runs until [`Request::Shutdown`].
    pub(super) fn run(mut self) {
        let mut next_feed_tick = Instant::now();
        let mut batch = Batch::default();
        let mut feeds_may_give = false;
        loop {
            let wait = if batch.is_urgent() {
                Some(Duration::ZERO)
            } else {
                feeds_may_give.then(|| next_feed_tick.saturating_duration_since(Instant::now()))
            };
            let request = match wait {
                Some(wait) => self.requests.recv_timeout(wait),
                None => self.requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match request {
                Ok(Request::Shutdown) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Request::Write { writes, answer }) => batch.writes.push((writes, answer)),
                Ok(Request::Tick { answer }) => {
                    self.tick_wake.clear();
                    batch.tick = true;
                    batch.ticks.extend(answer);
                }
                Ok(Request::FeedReady) => {
                    self.feed_wake.clear();
                    feeds_may_give = true;
                }
                Ok(Request::AwaitFeeds { answer }) => {
                    self.waiting_for_feeds.push(answer);
                    feeds_may_give = true;
                }
                Ok(Request::Install { relation, answer }) => {
                    self.tick(std::mem::take(&mut batch));
                    let _ = answer.send(self.install(relation));
                    batch.tick = true;
                    feeds_may_give = true;
                }
                Ok(Request::Uninstall { relations, answer }) => {
                    self.tick(std::mem::take(&mut batch));
                    self.uninstall(&relations);
                    let _ = answer.send(Ok(()));
                }
                Ok(Request::Resume { relations, answer }) => {
                    self.tick(std::mem::take(&mut batch));
                    let _ = answer.send(self.resume(&relations));
                    batch.tick = true;
                    feeds_may_give = true;
                }
                Ok(Request::Recover { relations, answer }) => {
                    let _ = answer.send(self.recover(relations));
                    batch.tick = true;
                    feeds_may_give = true;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let due = feeds_may_give && Instant::now() >= next_feed_tick;
                    let held_back =
                        if batch.is_urgent() || due { self.tick(std::mem::take(&mut batch)) } else { false };
                    if due {
                        feeds_may_give = held_back || !self.waiting_for_feeds.is_empty();
                        next_feed_tick = Instant::now() + if held_back { RETRY } else { TICK };
                    }
                }
            }
        }
    }

    /// One tick; true when a feed was held back or has more. Without anything to say it is none.
    fn tick(&mut self, batch: Batch) -> bool {
        let mut inputs = Vec::new();
        let mut bindings = Vec::new();
        let mut given = Vec::new();
        let mut more = false;
        for (position, feed) in self.feeds.iter_mut().enumerate() {
            if self.relations.all_halted(&feed.jobs) {
                continue;
            }
            let upper = self.relations.least_upper_above(&feed.jobs);
            let Some(taken) = feed.take(upper) else {
                more |= !feed.finished;
                continue;
            };
            more |= !feed.finished;
            if let Some(error) = taken.failure {
                self.relations.fail_external(feed.table, &feed.jobs, &error);
            }
            if matches!(feed.id, FeedId::Table(_)) && !taken.input.chunks.is_empty() {
                bindings.push((feed.table, feed.bound));
            }
            given.push(position);
            inputs.push(taken.input);
        }
        if !batch.is_urgent() && inputs.is_empty() {
            self.answer_feed_waiters();
            return more;
        }
        let time = match self.next_time() {
            Ok(time) => time,
            Err(error) => {
                self.refuse(batch, &inputs, &error);
                return more;
            }
        };
        let mut writes: BTreeMap<RelationId, Vec<Chunk>> = BTreeMap::new();
        for (table_writes, _) in &batch.writes {
            for write in table_writes {
                writes.entry(write.table).or_default().extend(write.changes.iter().cloned());
            }
        }
        let record = Record { time, bindings, writes: writes.into_iter().collect() };
        if !record.bindings.is_empty() || !record.writes.is_empty() {
            // Only writes have somebody who must not be told too early.
            if let Err(error) = self.log.append(&record, !record.writes.is_empty()) {
                self.refuse(batch, &inputs, &error);
                return more;
            }
        }
        self.bindings.extend(record.bindings.iter().copied());
        for position in given {
            self.feeds[position].opened(time);
        }
        inputs.extend(record.writes.into_iter().map(|(table, chunks)| FeedInput {
            feed: FeedId::Table(table),
            chunks,
            done: false,
        }));
        self.broadcast(time, inputs);
        for answer in batch.writes.into_iter().map(|(_, answer)| answer).chain(batch.ticks) {
            // Whoever asked may be gone.
            let _ = answer.send(Ok(time));
        }
        self.answer_feed_waiters();
        more
    }

    fn broadcast(&mut self, time: Time, inputs: Vec<FeedInput>) {
        self.executor.broadcast(&WorkerCommand::Tick { time, inputs: Arc::new(inputs) });
        self.last_time.store(time.as_millis(), Ordering::Release);
        self.relations.progress().signal();
    }

    /// The tick cannot happen: nothing of it is handed to the workers.
    fn refuse(&mut self, batch: Batch, inputs: &[FeedInput], error: &Error) {
        for input in inputs {
            if let FeedId::Table(table) | FeedId::CatchUp(_, table) = input.feed {
                let jobs: Vec<RelationId> =
                    self.feeds.iter().filter(|feed| feed.id == input.feed).flat_map(|feed| feed.jobs.clone()).collect();
                self.relations.fail_external(table, &jobs, error);
            }
        }
        for answer in batch.writes.into_iter().map(|(_, answer)| answer).chain(batch.ticks) {
            let _ = answer.send(Err(error.clone()));
        }
    }

    fn answer_feed_waiters(&mut self) {
        if self.feeds.iter().all(|feed| feed.finished || self.relations.all_halted(&feed.jobs)) {
            for waiter in self.waiting_for_feeds.drain(..) {
                let _ = waiter.send(());
            }
        }
    }

    fn last_time(&self) -> Time {
        Time::from_millis(self.last_time.load(Ordering::Acquire))
    }

    /// The next time: that of the wall clock, or the one after the last when the wall clock is behind.
    fn next_time(&mut self) -> Result<Time> {
        let time = Time::from_millis(self.env.now_millis()).max(self.last_time().next());
        if time.as_millis() >= self.head.head().clock_bound_millis {
            self.env.failpoints().pass("clock.reserve")?;
            self.head.reserve(Time::from_millis(time.as_millis() + RESERVE_MILLIS))?;
        }
        Ok(time)
    }

    fn install(&mut self, relation: RelationSpec) -> Result<()> {
        let as_of = self.last_time().next();
        self.start(relation, as_of)
    }

    /// Starts a relation whose first time is `as_of`.
    fn start(&mut self, relation: RelationSpec, as_of: Time) -> Result<()> {
        let (plan, imports) = match &relation.kind {
            RelationKind::External { .. } => {
                self.relations.insert(Installed::external(relation, as_of));
                return Ok(());
            }
            RelationKind::Table { schema, key } => {
                let plan = JobSpec::table_plan(relation.id, Arc::clone(schema), key.clone());
                (Arc::new(plan), HashMap::from([(relation.id, ImportKind::Feed { catch_up: false })]))
            }
            RelationKind::View { plan } | RelationKind::Sink { plan, .. } => {
                let mut imports = HashMap::new();
                for id in plan.imports() {
                    let catch_up = self.bindings.get(&id).is_some_and(|bound| *bound > Offset::default());
                    let kind = if self.relations.source(id)?.is_some() {
                        ImportKind::Feed { catch_up }
                    } else {
                        ImportKind::Edge
                    };
                    imports.insert(id, kind);
                }
                (Arc::clone(plan), imports)
            }
        };
        JobSpec::check(&plan)?;
        let id = relation.id;
        let target = match &relation.kind {
            RelationKind::Sink { target, .. } => Some(target.clone()),
            _ => None,
        };
        let mut installed = Installed::job(relation, &plan, &imports, self.executor.workers(), as_of)?;
        let shared = Arc::clone(installed.shared());
        let mut output = JobOutput::Kept;
        if let Some(target) = target {
            // Greater than that of every writer before: times never go back.
            let generation = as_of.as_millis().max(self.head.head().clock_bound_millis);
            let schema = Arc::clone(plan.schema());
            let sink = RunningSink::start(&target, schema, plan.append_only, generation, &shared, &self.relations)?;
            output = JobOutput::Sink(Arc::clone(&sink.queue));
            installed.set_sink(sink);
        }
        self.relations.insert(installed);
        let feeds: Vec<(RelationId, bool)> = imports
            .iter()
            .filter_map(|(table, kind)| match kind {
                ImportKind::Feed { catch_up } if *table != id => Some((*table, *catch_up)),
                ImportKind::Feed { .. } | ImportKind::Edge => None,
            })
            .collect();
        let spec = JobSpec { plan, shared, as_of, imports, output, errors: None };
        self.executor.broadcast(&WorkerCommand::Create(Arc::new(spec)));
        for (table, catch_up) in feeds {
            self.follow(id, table, catch_up)?;
        }
        Ok(())
    }

    /// Lets a job have an external table's rows: what is new, and what was given before.
    fn follow(&mut self, job: RelationId, table: RelationId, catch_up: bool) -> Result<()> {
        let Some(source) = self.relations.source(table)? else { return Ok(()) };
        let bound = self.bindings.get(&table).copied().unwrap_or_default();
        if catch_up {
            let mut feed =
                self.start_feed(FeedId::CatchUp(job, table), table, &source, Offset::default(), Some(bound))?;
            feed.jobs.push(job);
            self.feeds.push(feed);
        }
        if let Some(feed) = self.feeds.iter_mut().find(|feed| feed.id == FeedId::Table(table)) {
            feed.jobs.push(job);
            return Ok(());
        }
        let mut feed = self.start_feed(FeedId::Table(table), table, &source, bound, None)?;
        feed.jobs.push(job);
        self.feeds.push(feed);
        Ok(())
    }

    fn start_feed(
        &self,
        id: FeedId,
        table: RelationId,
        source: &Arc<dyn Source>,
        from: Offset,
        until: Option<Offset>,
    ) -> Result<Feed> {
        let (wake, requests) = (self.feed_wake.clone(), self.own_requests.clone());
        Feed::start(id, table, source, from, until, move || {
            if wake.set() {
                // The sequencer is gone when the server stops.
                let _ = requests.send(Request::FeedReady);
            }
        })
    }

    fn uninstall(&mut self, relations: &[RelationId]) {
        // Dependents have greater numbers than what they depend on.
        let mut ids = relations.to_vec();
        ids.sort_unstable_by(|a, b| b.cmp(a));
        for feed in &mut self.feeds {
            feed.jobs.retain(|job| !ids.contains(job));
        }
        self.feeds.retain(|feed| !feed.jobs.is_empty());
        for id in &ids {
            self.relations.remove(*id);
            self.bindings.remove(id);
        }
        self.executor.broadcast(&WorkerCommand::Drop(Arc::new(ids)));
        self.relations.progress().signal();
    }

    /// Starts jobs again, with what stands on them and the sources that failed them.
    fn resume(&mut self, relations: &[RelationId]) -> Result<()> {
        let mut ids = self.relations.to_resume(relations);
        ids.sort_unstable();
        for feed in &mut self.feeds {
            feed.jobs.retain(|job| !ids.contains(job));
        }
        self.feeds.retain(|feed| !feed.jobs.is_empty() && !ids.contains(&feed.table));
        let specs: Vec<RelationSpec> = ids.iter().filter_map(|id| self.relations.remove(*id)).collect();
        ids.reverse();
        self.executor.broadcast(&WorkerCommand::Drop(Arc::new(ids)));
        let as_of = self.last_time().next();
        let result = specs.into_iter().try_for_each(|spec| self.start(spec, as_of));
        self.relations.progress().signal();
        result
    }

    /// Starts all relations before the first time of the log, then replays it at its own times; many
    /// small ticks become one, at the last one's time, since nobody has seen anything yet.
    fn recover(&mut self, relations: Vec<RelationSpec>) -> Result<()> {
        let mut replay: Vec<Record> = Vec::new();
        let known: HashMap<RelationId, bool> = relations
            .iter()
            .map(|relation| (relation.id, matches!(relation.kind, RelationKind::Table { .. })))
            .collect();
        let mut bindings = HashMap::new();
        self.log.replay(&mut |mut record| {
            record.writes.retain(|(table, _)| known.get(table).copied().unwrap_or(false));
            bindings.extend(record.bindings.iter().filter(|(table, _)| known.contains_key(table)).copied());
            match replay.last_mut() {
                Some(last) if rows_of(last) + rows_of(&record) <= REPLAY_ROWS_PER_TICK => {
                    last.time = record.time;
                    last.writes.append(&mut record.writes);
                }
                _ => replay.push(record),
            }
            Ok(())
        })?;
        self.bindings = bindings;
        for relation in relations {
            self.start(relation, Time::ZERO.next())?;
        }
        let mut open = std::collections::VecDeque::new();
        for record in replay {
            while open.len() >= REPLAY_OPEN_TICKS_MAX {
                let upper = self.relations.least_upper_of_all();
                open.retain(|time| *time >= upper);
                if open.len() >= REPLAY_OPEN_TICKS_MAX {
                    std::thread::park_timeout(Duration::from_millis(1));
                }
            }
            open.push_back(record.time);
            let inputs = record
                .writes
                .into_iter()
                .map(|(table, chunks)| FeedInput { feed: FeedId::Table(table), chunks, done: false })
                .collect();
            self.broadcast(record.time, inputs);
        }
        // The clock goes on above every time that was ever handed out.
        let bound = self.head.head().clock_bound_millis;
        self.last_time.fetch_max(bound, Ordering::AcqRel);
        let time = self.next_time()?;
        self.broadcast(time, Vec::new());
        self.relations.set_floor(time);
        Ok(())
    }
}

fn rows_of(record: &Record) -> usize {
    record.writes.iter().flat_map(|(_, chunks)| chunks).map(Chunk::rows).sum()
}

/// What everybody gets who waits when the server stops.
pub(super) fn stopping() -> Error {
    Error::new(SqlState::AdminShutdown, "the server is stopping").hint("Connect again when it has started.")
}
