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

mod checkpoint;
mod recover;
mod restart;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::alarm::Alarm;
use super::bad_rows::BadRows;
use super::checkpoints::{Message, Restored, StateStores, Unsaved, fresh};
use super::coordinator::{RelationKind, RelationSpec, TableWrite};
use super::event_times::{EventTimes, TableWatermark};
use super::feeds::{Bound, Extent, Feed, FeedSpec, Part, Taken, WakeOnce};
use super::installed::{Installed, Relations};
use super::reading_order::ReadingOrder;
use super::sinks::{RunningSink, SinkStart};
use super::timeline::{Binding, Record, TimelineLog};
use crate::catalog::errors_schema;
use crate::env::Env;
use crate::exec::plan::{JobPlan, OperatorSpec};
use crate::exec::relation::lock;
use crate::exec::sink::JobOutput;
use crate::exec::source::{BadRow, Offset, SplitId};
use crate::exec::{Executor, FeedId, FeedInput, ImportKind, JobSpec, JobState, WorkerCommand};
use crate::state::HeadFile;
use crate::types::{Chunk, Error, RelationId, Result, SqlState, Time, Watermark};

/// The pace of ticks while sources give rows and nobody waits.
const TICK: Duration = Duration::from_millis(20);
/// How far the clock's durable bound is set ahead, in milliseconds.
const RESERVE_MILLIS: u64 = 10_000;
/// How often a held-back feed is looked at again.
const RETRY: Duration = Duration::from_millis(2);

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
    /// Keep indexes of these columns over a relation's rows, and no others.
    Index { relation: RelationId, columns: Vec<Vec<usize>>, answer: oneshot::Sender<()> },
    /// Start jobs that stopped again, with what stands on them, from the beginning.
    Resume { relations: Vec<RelationId>, answer: oneshot::Sender<Result<()>> },
    /// Start all jobs again from a checkpoint that was just taken.
    Restart { restart: Restart, answer: oneshot::Sender<Result<()>> },
    /// Hand out a time, and do something before there is a later one.
    AtTime(Box<dyn FnOnce(Result<Time>) + Send>),
    /// Tell once every feed, or those of some tables, has read its source to the end.
    AwaitFeeds { tables: Option<Vec<RelationId>>, answer: oneshot::Sender<()> },
    /// A feed has something to take.
    FeedReady,
    /// An operator waits for a time.
    AlarmSet,
    /// Cut for a checkpoint when something changed since the last one, or `anyway`.
    Checkpoint { anyway: bool },
    /// No checkpoint needs the timeline up to a time.
    ForgetTimeline { upto: Time },
    /// End the thread.
    Shutdown,
}

/// How jobs start again.
#[derive(Clone, Debug)]
pub(super) struct Restart {
    /// On how many workers; `None`: as many as there are.
    pub(super) workers: Option<usize>,
    /// A job whose state moves to the backend of this URI.
    pub(super) moves: Option<(RelationId, String)>,
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
    /// When operators wait for a time.
    pub(super) alarm: Alarm,
    pub(super) head: Arc<Mutex<HeadFile>>,
    pub(super) log: TimelineLog,
    /// The last time handed out, for all to see.
    pub(super) last_time: Arc<AtomicU64>,
    pub(super) feeds: Vec<Feed>,
    /// Up to where the splits of each external table were read.
    pub(super) bindings: HashMap<RelationId, BTreeMap<SplitId, Offset>>,
    /// In which order the splits of external tables whose rows are kept were read.
    pub(super) orders: HashMap<RelationId, ReadingOrder>,
    /// What sinks into tables wrote since the last cut.
    pub(super) unsaved: HashMap<RelationId, Unsaved>,
    /// Errors relations that no job has needed yet, by their tables.
    pub(super) errors: HashMap<RelationId, RelationSpec>,
    pub(super) event_times: EventTimes,
    /// Of tables with event time.
    pub(super) watermarks: HashMap<RelationId, TableWatermark>,
    /// By external table.
    pub(super) bad_rows: HashMap<RelationId, BadRows>,
    /// Rows that were read before the start must be there again.
    pub(super) recovering: bool,
    /// Where jobs keep their state, and who is told of cuts; `None`: nothing is kept.
    pub(super) state: Option<(Arc<StateStores>, Sender<Message>)>,
    /// While relations are brought back: what is restored.
    pub(super) restored: Option<Restored>,
    /// Something came in since the last cut.
    pub(super) changed: bool,
    /// The jobs in the last cut.
    pub(super) in_cut: Vec<RelationId>,
    pub(super) waiting_for_feeds: Vec<FeedWaiter>,
    /// Of the sink writer that was started last.
    pub(super) last_generation: u64,
    /// Columns of the indexes of each relation that has some.
    pub(super) indexes: HashMap<RelationId, Arc<Vec<Vec<usize>>>>,
}

/// Somebody who waits for the feeds of some tables, or for all.
pub(super) type FeedWaiter = (Option<Vec<RelationId>>, oneshot::Sender<()>);

/// True when a waiter for some tables, or for all, waits for a feed.
fn concerns(tables: Option<&[RelationId]>, feed: &Feed) -> bool {
    tables.is_none_or(|tables| tables.contains(&feed.table))
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
                let feeds = feeds_may_give.then(|| next_feed_tick.saturating_duration_since(Instant::now()));
                [feeds, self.alarm.wait(self.env.now_millis())].into_iter().flatten().min()
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
                Ok(Request::AlarmSet) => self.alarm.wake.clear(),
                Ok(Request::AwaitFeeds { tables, answer }) => {
                    let asked = self.feeds.iter().filter(|feed| concerns(tables.as_deref(), feed));
                    asked.for_each(Feed::ask_level);
                    self.waiting_for_feeds.push((tables, answer));
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
                Ok(Request::Index { relation, columns, answer }) => {
                    self.set_indexes(relation, columns);
                    let _ = answer.send(());
                }
                Ok(Request::Resume { relations, answer }) => {
                    self.tick(std::mem::take(&mut batch));
                    let _ = answer.send(self.resume(&relations));
                    batch.tick = true;
                    feeds_may_give = true;
                }
                Ok(Request::Restart { restart, answer }) => {
                    self.tick(std::mem::take(&mut batch));
                    let _ = answer.send(self.restart(restart));
                    batch.tick = true;
                    feeds_may_give = true;
                }
                Ok(Request::AtTime(act)) => act(self.new_time(Batch { tick: true, ..std::mem::take(&mut batch) })),
                Ok(Request::Checkpoint { anyway }) => {
                    let batch = std::mem::take(&mut batch);
                    self.checkpoint(batch, anyway);
                }
                Ok(Request::ForgetTimeline { upto }) => {
                    if let Err(error) = self.log.forget(upto) {
                        tracing::warn!(%error, "a part of the timeline that nobody needs could not be removed");
                    }
                }
                Ok(Request::Recover { relations, answer }) => {
                    let _ = answer.send(self.recover(relations));
                    batch.tick = true;
                    feeds_may_give = true;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let due = feeds_may_give && Instant::now() >= next_feed_tick;
                    batch.tick |= self.alarm.rings(self.env.now_millis(), TICK);
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

    /// Ticks; gives the time.
    fn new_time(&mut self, batch: Batch) -> Result<Time> {
        let before = self.last_time();
        self.tick(batch);
        match self.last_time() {
            time if time > before => Ok(time),
            _ => Err(Error::internal("the clock does not go on").hint("The server's log has the reason.")),
        }
    }

    /// One tick; true when a feed was held back or has more. Without anything to say it is none.
    fn tick(&mut self, batch: Batch) -> bool {
        let (mut taken, more) = self.take_feeds();
        if !batch.is_urgent() && taken.is_empty() {
            self.answer_feed_waiters();
            return more;
        }
        let time = match self.next_time() {
            Ok(time) => time,
            Err(error) => {
                self.refuse(batch, &taken, &error);
                return more;
            }
        };
        self.changed |= !taken.is_empty() || !batch.writes.is_empty();
        let mut writes: BTreeMap<RelationId, Vec<Chunk>> = BTreeMap::new();
        for (table_writes, _) in &batch.writes {
            for write in table_writes {
                writes.entry(write.table).or_default().extend(write.changes.iter().cloned());
            }
        }
        let writes: Vec<(RelationId, Vec<Chunk>)> = writes.into_iter().collect();
        let watermarks = self.go_on(time, &mut taken, &writes);
        let opened = self.open_jobs(time);
        let bindings = taken.iter().filter(|taken| taken.new).flat_map(FromFeed::bindings).collect();
        let record = Record { time, bindings, writes, watermarks, opened };
        if !record.is_empty() {
            // Only writes have somebody who must not be told too early.
            if let Err(error) = self.log.append(&record, !record.writes.is_empty()) {
                self.refuse(batch, &taken, &error);
                return more;
            }
        }
        let mut inputs = Vec::new();
        for from_feed in &mut taken {
            self.feeds[from_feed.position].opened(time);
            let entering = self.stamp(time, from_feed);
            inputs.extend(entering);
        }
        inputs.extend(taken.into_iter().map(|from_feed| from_feed.taken.input));
        for (sink, chunks) in &record.writes {
            if let Some(unsaved) = self.unsaved.get_mut(sink) {
                unsaved.add(chunks);
            }
        }
        inputs.extend(record.writes.into_iter().map(|(table, chunks)| feed_input(table, chunks)));
        self.broadcast(time, inputs);
        for answer in batch.writes.into_iter().map(|(_, answer)| answer).chain(batch.ticks) {
            // Whoever asked may be gone.
            let _ = answer.send(Ok(time));
        }
        self.answer_feed_waiters();
        more
    }

    /// What rows say of event time becomes known; gives what is news of tables.
    fn go_on(
        &mut self,
        time: Time,
        taken: &mut [FromFeed],
        writes: &[(RelationId, Vec<Chunk>)],
    ) -> Vec<(RelationId, Watermark)> {
        let mut news = Vec::new();
        for from_feed in taken.iter_mut() {
            let (table, taken) = (from_feed.table, &mut from_feed.taken);
            if let FeedId::CatchUp(job, _) = taken.input.feed
                && taken.input.done
            {
                self.event_times.level(job, table);
            }
            if !from_feed.new || !self.event_times.has(table) {
                continue;
            }
            taken.events.iter().for_each(|event| self.event_times.happened(table, event, time));
            for bound in &mut taken.bounds {
                bound.watermark = self.event_times.read(table, &bound.split, bound.watermark, time);
            }
            if taken.ended {
                news.push((table, Watermark::END));
            } else {
                news.extend(self.event_times.combined(table).map(|watermark| (table, watermark)));
            }
        }
        for (table, chunks) in writes {
            let Some(watermark) = self.watermarks.get(table) else { continue };
            let now = self.env.now_millis();
            let claims = chunks.iter().map(|chunk| match chunk.inserted_rows() {
                Ok(rows) => watermark.of(&rows, now),
                Err(_) => Watermark::NONE,
            });
            let claim = claims.max().unwrap_or(Watermark::NONE);
            news.extend((claim > self.event_times.of(*table)).then_some((*table, claim)));
        }
        news.iter().for_each(|(table, watermark)| self.event_times.set(*table, *watermark, time));
        news
    }

    /// Jobs that are whole know of event time from now on.
    fn open_jobs(&mut self, time: Time) -> Vec<RelationId> {
        let whole = self.event_times.closed().into_iter().filter(|job| self.relations.inputs_whole(*job));
        let opened: Vec<RelationId> = whole.collect();
        for job in &opened {
            self.event_times.open(*job);
            self.relations.opened(*job, time);
        }
        opened
    }

    /// What the feeds give to the next tick, and whether one has more or was held back.
    fn take_feeds(&mut self) -> (Vec<FromFeed>, bool) {
        let mut from_feeds = Vec::new();
        let mut more = false;
        // Where rows replace each other, those that were read before come before new ones.
        let catching_up = |feed: &Feed| match feed.id {
            FeedId::CatchUp(job, table) if job == table && !feed.finished => Some(table),
            FeedId::CatchUp(..) | FeedId::Table(_) | FeedId::Clock => None,
        };
        let catching_up: Vec<RelationId> = self.feeds.iter().filter_map(catching_up).collect();
        for (position, feed) in self.feeds.iter_mut().enumerate() {
            if self.relations.all_halted(&feed.jobs) {
                continue;
            }
            if let FeedId::Table(table) = feed.id
                && catching_up.contains(&table)
            {
                more = true;
                continue;
            }
            if let FeedId::Table(table) = feed.id
                && self.event_times.is_ahead(table)
            {
                more = true;
                continue;
            }
            let upper = self.relations.least_upper_above(&feed.jobs);
            let taken = feed.take(upper);
            more |= feed.has_more;
            let Some(mut taken) = taken else { continue };
            if let Some(error) = taken.failure.take() {
                let errors = self.bad_rows.get(&feed.table).map(|bad| bad.relation);
                match feed.id {
                    FeedId::Table(_) => {
                        let jobs: Vec<RelationId> =
                            feed.jobs.iter().copied().filter(|job| Some(*job) != errors).collect();
                        self.relations.fail_external(feed.table, &jobs, &error);
                    }
                    // What was read before is missing to those who wait for it, not to others.
                    FeedId::CatchUp(..) | FeedId::Clock => {
                        self.relations.fail_jobs(&feed.jobs, &error);
                        if let Some(bad) =
                            self.bad_rows.get_mut(&feed.table).filter(|bad| feed.jobs.contains(&bad.relation))
                        {
                            bad.abandon_recovery();
                        }
                    }
                }
            }
            let new = matches!(feed.id, FeedId::Table(_));
            from_feeds.push(FromFeed { position, table: feed.table, new, taken });
        }
        (from_feeds, more)
    }

    /// What a feed gave becomes part of the database at a time; gives what enters the errors relation.
    fn stamp(&mut self, time: Time, from_feed: &mut FromFeed) -> Option<FeedInput> {
        let table = from_feed.table;
        let Taken { input, bounds, .. } = &mut from_feed.taken;
        if !from_feed.new {
            let bad = self
                .bad_rows
                .get_mut(&table)
                .filter(|bad| input.feed == FeedId::CatchUp(bad.relation, bad.relation))?;
            input.chunks.clear();
            bounds.drain(..).for_each(|bound| bad.found(&bound.split, bound.bad));
            if input.done {
                input.columns = None;
                match bad.end_recovery() {
                    Ok(chunks) => input.chunks = chunks,
                    Err(error) => self.relations.fail_jobs(&[bad.relation], &error),
                }
            }
            return None;
        }
        let progress = self.relations.progress_of(table);
        if let Some(order) = self.orders.get_mut(&table) {
            bounds.iter().for_each(|bound| order.bind(&bound.split, bound.end));
            bounds.sort_by(|a, b| a.split.cmp(&b.split));
        }
        let before = self.bindings.entry(table).or_default();
        let mut rows: Vec<(SplitId, BadRow)> = Vec::new();
        for Bound { split, end, rows: good, bad, watermark } in bounds.drain(..) {
            let start = before.insert(split.clone(), end).unwrap_or_default();
            let bound = Bound { split, end, rows: good, bad, watermark };
            if let Some(progress) = &progress {
                progress.bound(&bound, time);
            }
            if let Some(kept) = self.bad_rows.get_mut(&table).filter(|_| !bound.bad.is_empty()) {
                kept.bind(time, &bound.split, start, end, bound.bad.len());
                rows.extend(bound.bad.into_iter().map(|row| (bound.split.clone(), row)));
            }
        }
        let kept = self.bad_rows.get_mut(&table).filter(|_| !rows.is_empty())?;
        match kept.add(time, &rows) {
            Ok(chunks) => Some(feed_input(kept.relation, chunks)),
            Err(error) => {
                self.relations.fail_jobs(&[kept.relation], &error);
                None
            }
        }
    }

    fn broadcast(&mut self, time: Time, inputs: Vec<FeedInput>) {
        let marks = self.event_times.take_marks();
        self.alarm.clear();
        self.executor.broadcast(&WorkerCommand::Tick { time, inputs: Arc::new(inputs), marks });
        self.event_times.show();
        // What is replayed is older than what was handed out.
        self.last_time.fetch_max(time.as_millis(), Ordering::AcqRel);
        self.relations.progress().signal();
    }

    /// The tick cannot happen: nothing of it is handed to the workers.
    fn refuse(&mut self, batch: Batch, taken: &[FromFeed], error: &Error) {
        for from_feed in taken {
            let jobs = &self.feeds[from_feed.position].jobs;
            self.relations.fail_external(from_feed.table, jobs, error);
        }
        for answer in batch.writes.into_iter().map(|(_, answer)| answer).chain(batch.ticks) {
            let _ = answer.send(Err(error.clone()));
        }
    }

    fn answer_feed_waiters(&mut self) {
        let (feeds, relations) = (&self.feeds, &self.relations);
        let behind = |tables: Option<&[RelationId]>| {
            let mut awaited = feeds.iter().filter(|feed| concerns(tables, feed));
            awaited.any(|feed| !feed.is_level() && !relations.all_halted(&feed.jobs))
        };
        for (_, waiter) in self.waiting_for_feeds.extract_if(.., |(tables, _)| !behind(tables.as_deref())) {
            // Whoever waited may be gone.
            let _ = waiter.send(());
        }
    }

    fn last_time(&self) -> Time {
        Time::from_millis(self.last_time.load(Ordering::Acquire))
    }

    /// The next time: that of the wall clock, or the one after the last when the wall clock is behind.
    fn next_time(&mut self) -> Result<Time> {
        let time = Time::from_millis(self.env.now_millis()).max(self.last_time().next());
        let mut head = lock(&self.head);
        if time.as_millis() >= head.head().clock_bound_millis {
            self.env.failpoints().pass("clock.reserve")?;
            head.reserve(Time::from_millis(time.as_millis() + RESERVE_MILLIS))?;
        }
        Ok(time)
    }

    fn install(&mut self, relation: RelationSpec) -> Result<()> {
        let as_of = self.last_time().next();
        self.start(relation, as_of)
    }

    /// Starts a relation whose first time is `as_of`.
    fn start(&mut self, relation: RelationSpec, as_of: Time) -> Result<()> {
        if let RelationKind::Table { watermark: Some(watermark), .. }
        | RelationKind::External { watermark: Some(watermark), .. } = &relation.kind
        {
            let from = self.restored.as_ref().and_then(|restored| restored.event_times.get(&relation.id));
            self.event_times.add_table(relation.id, watermark, from);
            self.watermarks.insert(relation.id, watermark.clone());
        }
        match &relation.kind {
            RelationKind::External { key, .. } if key.is_empty() => {
                self.relations.insert(Installed::external(relation, as_of));
                Ok(())
            }
            RelationKind::External { source, key, .. } => {
                let plan = JobSpec::latest_plan(relation.id, source.source.schema(), key.clone());
                self.start_latest(relation, plan, as_of)
            }
            RelationKind::Errors { of } => {
                self.errors.insert(*of, relation);
                Ok(())
            }
            RelationKind::Table { schema, key, .. } => {
                let plan = Arc::new(JobSpec::table_plan(relation.id, Arc::clone(schema), key.clone()));
                let imports = HashMap::from([(relation.id, ImportKind::Feed { catch_up: false })]);
                self.create(relation, plan, imports, as_of)
            }
            // Its job brings it.
            RelationKind::RowErrors | RelationKind::LateRows => Ok(()),
            RelationKind::View { plan, .. } | RelationKind::Sink { plan, .. } => {
                let plan = Arc::clone(plan);
                self.start_view(relation, plan, as_of)
            }
        }
    }

    /// Starts an external table that keeps the last row of each key.
    fn start_latest(&mut self, relation: RelationSpec, plan: JobPlan, as_of: Time) -> Result<()> {
        let id = relation.id;
        let columns: Vec<usize> = (0..plan.schema().fields().len()).collect();
        let from = self.restored.as_ref().filter(|restored| restored.jobs.contains_key(&id));
        let read = from.and_then(|restored| restored.offsets_of(id).get(&id)).cloned().unwrap_or_default();
        let order = self.orders.entry(id).or_default().behind(&read);
        let catch_up = !order.is_empty();
        let imports = HashMap::from([(id, ImportKind::Feed { catch_up })]);
        self.create(relation, Arc::new(plan), imports, as_of)?;
        self.start_errors(id, as_of)?;
        if catch_up {
            let extent = Extent::InOrder(order);
            self.start_feed(FeedId::CatchUp(id, id), id, columns.clone().into(), extent, vec![id])?;
        }
        self.follow(id, id, &columns)
    }

    fn start_view(&mut self, relation: RelationSpec, plan: Arc<JobPlan>, as_of: Time) -> Result<()> {
        let id = relation.id;
        let (mut imports, mut external, mut errors) = (HashMap::new(), Vec::new(), Vec::new());
        let from = self.restored.as_ref().filter(|restored| restored.jobs.contains_key(&id));
        // What the job has of sources.
        let read: HashMap<RelationId, BTreeMap<SplitId, Offset>> =
            from.map(|restored| restored.offsets_of(id).clone()).unwrap_or_default();
        for import in plan.imports() {
            let waiting = self.errors.iter().find(|(_, errors)| errors.id == import).map(|(table, _)| *table);
            let known = self.bad_rows.iter().find(|(_, bad)| bad.relation == import).map(|(table, _)| *table);
            if let Some(table) = waiting.or(known) {
                // Rows that cannot be read come by reading.
                self.start_errors(table, as_of)?;
                errors.push((table, import));
                imports.insert(import, ImportKind::Edge);
            } else if self.relations.source(import)?.is_some() && !self.relations.keeps_source(import) {
                self.start_errors(import, as_of)?;
                let parts = self.unread(import, read.get(&import));
                imports.insert(import, ImportKind::Feed { catch_up: !parts.is_empty() });
                external.push((import, parts));
            } else {
                imports.insert(import, ImportKind::Edge);
            }
        }
        self.create(relation, Arc::clone(&plan), imports, as_of)?;
        for (table, parts) in external {
            if !parts.is_empty() {
                self.catch_up(id, table, columns_read(&plan, table), parts)?;
            }
            self.follow(id, table, &columns_read(&plan, table))?;
        }
        for (table, relation) in errors {
            self.follow(relation, table, &[])?;
        }
        Ok(())
    }

    /// Starts the errors relation of a table unless it runs, or there is none.
    fn start_errors(&mut self, table: RelationId, as_of: Time) -> Result<()> {
        let Some(errors) = self.errors.remove(&table) else { return Ok(()) };
        let Some(source) = self.relations.source(table)? else { return Ok(()) };
        let id = errors.id;
        let restored = self.restored.as_mut().filter(|restored| restored.jobs.contains_key(&id));
        let rows = restored.and_then(|r| Some((r.time, r.bad_rows.get_mut(&table)?.rows.take().unwrap_or_default())));
        let bad = self.bad_rows.entry(table).or_insert_with(|| BadRows::new(id, source.errors_retention));
        let parts = match rows {
            Some((time, rows)) => bad.begin_recovery_after(time, rows),
            None => bad.begin_recovery(),
        };
        let plan = Arc::new(JobSpec::table_plan(id, errors_schema(), Vec::new()));
        let imports = HashMap::from([(id, ImportKind::Feed { catch_up: !parts.is_empty() })]);
        self.create(errors, plan, imports, as_of)?;
        if !parts.is_empty() {
            let extent = Extent::Past { parts, missing_ok: false };
            self.start_feed(FeedId::CatchUp(id, id), table, Arc::from([]), extent, vec![id])?;
        }
        Ok(())
    }

    /// Lets the workers run a job.
    fn create(
        &mut self,
        relation: RelationSpec,
        plan: Arc<JobPlan>,
        imports: HashMap<RelationId, ImportKind>,
        as_of: Time,
    ) -> Result<()> {
        JobSpec::check(&plan)?;
        let id = relation.id;
        let restored = self.restored.as_ref().filter(|restored| restored.jobs.contains_key(&id));
        let known = restored.map(|restored| restored.known.get(&id).cloned().unwrap_or_default());
        let state = self.state_of(&relation)?;
        let (target, errors, late) = match &relation.kind {
            RelationKind::Sink { target, errors, late, .. } => (Some(target.clone()), *errors, *late),
            RelationKind::View { errors, late, .. } => (None, *errors, *late),
            _ => (None, None, None),
        };
        let mut installed = Installed::job(relation, &plan, &imports, self.executor.workers(), as_of)?;
        if matches!(plan.root().operator, OperatorSpec::Latest) {
            installed = installed.with_progress();
        }
        let shared = Arc::clone(installed.shared());
        if let Some(restored) = self.restored.as_ref().filter(|restored| restored.is_level(shared.id))
            && state.as_ref().is_some_and(|state| state.restored)
        {
            shared.restored(restored.time);
        }
        let behind = imports.iter().filter(|(_, kind)| **kind == ImportKind::Feed { catch_up: true });
        let behind = behind.map(|(table, _)| *table).collect();
        let known = self.event_times.add_job(id, &plan, known.as_ref(), behind);
        if self.event_times.is_closed(id) {
            shared.await_opening();
        }
        let mut output = JobOutput::Kept;
        if let Some(target) = target {
            if target.is_table && self.state.is_some() {
                // A sink that starts again goes on with what it wrote before.
                self.unsaved.entry(shared.id).or_default();
            }
            target.sink.recall(shared.id, &[])?;
            let position = self.restored.as_mut().and_then(|restored| restored.positions.remove(&shared.id));
            let from = match position {
                Some(position) => SinkStart::At(position),
                None => SinkStart::Anew { generation: self.next_generation(as_of)? },
            };
            let schema = Arc::clone(plan.schema());
            let sink = RunningSink::start(&target, schema, plan.append_only, from, &shared, &self.relations)?;
            output = JobOutput::Sink(Arc::clone(&sink.queue));
            installed.set_sink(sink);
        }
        let errors = errors.map(|id| installed.row_errors(id, as_of)).transpose()?;
        let late = late.map(|id| installed.late_rows(id, as_of)).transpose()?;
        self.relations.insert(installed);
        let beside = |relation: Installed| {
            let shared = Arc::clone(relation.shared());
            self.relations.insert(relation);
            shared
        };
        let (errors, late) = (errors.map(beside), late.map(beside));
        let spec = JobSpec { plan, shared, as_of, imports, output, errors, late, known, state };
        let id = spec.shared.id;
        self.executor.broadcast(&WorkerCommand::Create(Arc::new(spec)));
        self.tell_indexes(id);
        Ok(())
    }

    fn set_indexes(&mut self, relation: RelationId, columns: Vec<Vec<usize>>) {
        self.indexes.insert(relation, Arc::new(columns));
        self.tell_indexes(relation);
    }

    fn tell_indexes(&self, relation: RelationId) {
        if let Some(columns) = self.indexes.get(&relation) {
            let columns = Arc::clone(columns);
            self.executor.broadcast(&WorkerCommand::Index { relation, columns });
        }
    }

    /// The number of a sink's writer: greater than that of every one before, over restarts too.
    fn next_generation(&mut self, as_of: Time) -> Result<u64> {
        let mut head = lock(&self.head);
        let bound = head.head().clock_bound_millis;
        let generation = as_of.as_millis().max(bound).max(self.last_generation + 1);
        if generation >= bound {
            head.reserve(Time::from_millis(generation + 1))?;
        }
        self.last_generation = generation;
        Ok(generation)
    }

    /// Where a job keeps its state: what it had at the checkpoint, or nothing yet.
    fn state_of(&mut self, relation: &RelationSpec) -> Result<Option<JobState>> {
        let Some((stores, _)) = &self.state else { return Ok(None) };
        if matches!(&relation.kind, RelationKind::Sink { target, .. } if !target.sink.resumes()) {
            return Ok(None);
        }
        if let Some(backends) = self.restored.as_mut().and_then(|restored| restored.jobs.remove(&relation.id)) {
            return Ok(Some(JobState::new(backends, true)));
        }
        let backends = fresh(stores, relation, self.executor.workers())?;
        Ok(Some(JobState::new(backends, false)))
    }

    /// What was read of an external table and a job does not have; `read` is what it has.
    fn unread(&self, table: RelationId, read: Option<&BTreeMap<SplitId, Offset>>) -> Vec<Part> {
        let splits = self.bindings.get(&table).into_iter().flatten();
        splits
            .filter_map(|(split, end)| {
                let from = read.and_then(|read| read.get(split)).copied().unwrap_or_default();
                (*end > from).then(|| Part { split: split.clone(), from, until: Some(*end) })
            })
            .collect()
    }

    /// Lets a job have what was read of an external table before.
    fn catch_up(&mut self, job: RelationId, table: RelationId, columns: Vec<usize>, parts: Vec<Part>) -> Result<()> {
        let extent = Extent::Past { parts, missing_ok: !self.recovering };
        self.start_feed(FeedId::CatchUp(job, table), table, columns.into(), extent, vec![job])
    }

    /// Lets a job have what is new of an external table.
    fn follow(&mut self, job: RelationId, table: RelationId, columns: &[usize]) -> Result<()> {
        let mut jobs = vec![job];
        let mut wanted = columns.to_vec();
        if let Some(position) = self.feeds.iter().position(|feed| feed.id == FeedId::Table(table)) {
            let feed = &mut self.feeds[position];
            if feed.finished || columns.iter().all(|column| feed.columns.contains(column)) {
                if !feed.jobs.contains(&job) {
                    feed.jobs.push(job);
                }
                return Ok(());
            }
            // The reads that nobody has seen are read again, with more columns.
            let feed = self.feeds.remove(position);
            jobs.extend(feed.jobs.iter().filter(|other| **other != job));
            wanted.extend(feed.columns.iter().filter(|column| !columns.contains(column)));
        }
        wanted.sort_unstable();
        if let Some(bad) = self.bad_rows.get(&table)
            && !jobs.contains(&bad.relation)
        {
            jobs.push(bad.relation);
        }
        let known = self.bindings.get(&table).into_iter().flatten();
        let extent = Extent::New(known.map(|(split, end)| (split.clone(), *end)).collect());
        self.start_feed(FeedId::Table(table), table, wanted.into(), extent, jobs)
    }

    fn start_feed(
        &mut self,
        id: FeedId,
        table: RelationId,
        columns: Arc<[usize]>,
        extent: Extent,
        jobs: Vec<RelationId>,
    ) -> Result<()> {
        let mut columns = columns;
        let mut watermark = None;
        if let (FeedId::Table(_), Some(of_table)) = (id, self.watermarks.get(&table))
            && let Some(source) = self.relations.source(table)?
        {
            let mut read: Vec<usize> = columns.iter().copied().chain(of_table.columns()).collect();
            read.sort_unstable();
            read.dedup();
            columns = read.into();
            let over = source.source.schema().project(&columns)?;
            watermark = Some((of_table.over(&over)?, self.env.clone()));
        }
        let (Some(source), Some(progress)) = (self.relations.source(table)?, self.relations.progress_of(table)) else {
            return Err(Error::internal("a feed of a table without a source"));
        };
        let (wake, requests) = (self.feed_wake.clone(), self.own_requests.clone());
        // The errors relation of a table has its rows from a feed of its own.
        let of_table = match id {
            FeedId::Table(_) => true,
            FeedId::CatchUp(job, _) => job == table,
            FeedId::Clock => false,
        };
        let places = of_table && self.relations.keeps_source(table);
        let spec = FeedSpec { id, table, source, columns, extent, places, progress, watermark };
        let mut feed = Feed::start(spec, move || {
            if wake.set() {
                // The sequencer is gone when the server stops.
                let _ = requests.send(Request::FeedReady);
            }
        })?;
        feed.jobs = jobs;
        self.feeds.push(feed);
        Ok(())
    }

    fn uninstall(&mut self, relations: &[RelationId]) {
        // Dependents have greater numbers than what they depend on.
        let mut ids = relations.to_vec();
        ids.sort_unstable_by(|a, b| b.cmp(a));
        for feed in &mut self.feeds {
            feed.jobs.retain(|job| !ids.contains(job));
        }
        for id in &ids {
            self.relations.remove(*id);
            self.bindings.remove(id);
            self.orders.remove(id);
            self.unsaved.remove(id);
            self.indexes.remove(id);
            self.errors.remove(id);
            self.bad_rows.remove(id);
            self.event_times.remove(*id);
            self.watermarks.remove(id);
        }
        // Rows that cannot be read are no reason to read, unless somebody reads them.
        let (relations, bad_rows) = (&self.relations, &self.bad_rows);
        self.feeds.retain(|feed| {
            let errors = bad_rows.get(&feed.table).map(|bad| bad.relation);
            let alone = |job: &RelationId| Some(*job) == errors && relations.with_dependents(*job).len() == 1;
            !feed.jobs.iter().all(alone) || matches!(feed.id, FeedId::CatchUp(..)) && !feed.jobs.is_empty()
        });
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
        // Tables keep what is known of them.
        ids.iter().for_each(|id| self.event_times.remove_job(*id));
        ids.reverse();
        self.executor.broadcast(&WorkerCommand::Drop(Arc::new(ids)));
        let as_of = self.last_time().next();
        let result = specs.into_iter().try_for_each(|spec| self.start(spec, as_of));
        self.relations.progress().signal();
        result
    }
}

/// What a feed gave to a tick.
struct FromFeed {
    /// Among the feeds.
    position: usize,
    table: RelationId,
    /// It was not read before.
    new: bool,
    taken: Taken,
}

impl FromFeed {
    fn bindings(&self) -> Vec<Binding> {
        let binding = |bound: &Bound| Binding {
            table: self.table,
            split: bound.split.clone(),
            end: bound.end,
            bad: u32::try_from(bound.bad.len()).unwrap_or(u32::MAX),
            watermark: bound.watermark,
        };
        self.taken.bounds.iter().map(binding).collect()
    }
}

/// All columns of changes of a relation.
fn feed_input(relation: RelationId, chunks: Vec<Chunk>) -> FeedInput {
    FeedInput { feed: FeedId::Table(relation), columns: None, chunks, done: false }
}

/// The columns of a relation that a plan reads.
fn columns_read(plan: &JobPlan, of: RelationId) -> Vec<usize> {
    let mut columns: Vec<usize> = plan
        .nodes
        .iter()
        .filter_map(|node| match &node.operator {
            OperatorSpec::Import { relation, columns } if *relation == of => Some(columns),
            _ => None,
        })
        .flatten()
        .copied()
        .collect();
    columns.sort_unstable();
    columns.dedup();
    columns
}

/// What everybody gets who waits when the server stops.
pub(super) fn stopping() -> Error {
    Error::new(SqlState::AdminShutdown, "the server is stopping").hint("Connect again when it has started.")
}
