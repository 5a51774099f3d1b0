//! Reading external sources: threads per feed that read and decode ahead, up to a bound.
//!
//! A feed has its splits in a queue. A thread takes one, reads it until it has nothing more for now, and puts it back;
//! so the reads of one split stay in order, and several splits are read at a time. When all wait, one thread looks for
//! new splits and after a while lets all be read again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};

use super::event_times::{SplitEvent, TableWatermark, highest};
use super::reading_order::ReadingOrder;
use super::source_progress::SourceProgress;
use crate::connectors::{OnError, SourceTable};
use crate::env::Env;
use crate::exec::source::{BadRow, Offset, Read, ReadRequest, SourceReader, SplitId};
use crate::exec::{FeedId, FeedInput, PLACE_COLUMN};
use crate::types::{CHUNK_ROWS_MAX, Chunk, Error, RelationId, Result, SqlState, Time, Watermark};

/// Reads that wait to be stamped.
const READS_AHEAD_MAX: usize = 8;
/// Reads that one tick takes at most.
const READS_PER_TICK_MAX: usize = 8;
/// Ticks with rows of one feed that its jobs may have open.
const OPEN_TICKS_MAX: usize = 3;
/// A tick that its jobs close later makes those after it smaller: writes and reads wait behind it.
const CLOSED_LATE: Duration = Duration::from_millis(60);
/// One that they close sooner makes those after it larger.
const CLOSED_SOON: Duration = Duration::from_millis(30);
/// Threads that read one source.
const THREADS_MAX: usize = 4;
/// Reads after which a split that never ends lets others be read.
const READS_IN_A_ROW: usize = 64;
/// How long a source that had nothing is left alone.
const POLL: Duration = Duration::from_millis(50);
/// How long looking for new splits may be put off.
const DISCOVERY_MAX: Duration = Duration::from_secs(1);
/// Looking for new splits takes at most this part of the time.
const DISCOVERY_PART: u32 = 20;
/// Reads a second of a source whose rows are limited.
const LIMITED_READS: u64 = 20;

enum FromReader {
    Rows {
        split: SplitId,
        chunks: Vec<Chunk>,
        bad: Vec<BadRow>,
        end: Offset,
        /// What the rows say of event time.
        claim: Watermark,
    },
    /// What happened to splits, of a source with event time.
    Splits(Vec<SplitEvent>),
    /// All that was there when [`Shared::asked`] had this value was given.
    Level(u64),
    End,
    Failed(Error),
}

/// A split to read.
pub(super) struct Part {
    pub(super) split: SplitId,
    pub(super) from: Offset,
    pub(super) until: Option<Offset>,
}

/// What a feed reads.
pub(super) enum Extent {
    /// What is new: splits from where they were read before, and those that come.
    New(Vec<(SplitId, Offset)>),
    /// What was read before.
    Past {
        parts: Vec<Part>,
        /// A split that is not there any more is left out.
        missing_ok: bool,
    },
    /// What was read before, in that order.
    InOrder(ReadingOrder),
}

/// How a feed is started.
pub(super) struct FeedSpec {
    pub(super) id: FeedId,
    /// The external table.
    pub(super) table: RelationId,
    pub(super) source: SourceTable,
    /// Which columns its rows carry, in ascending order.
    pub(super) columns: Arc<[usize]>,
    pub(super) extent: Extent,
    /// Rows carry their places in the order of their tick, in a column behind their own.
    pub(super) places: bool,
    pub(super) progress: Arc<SourceProgress>,
    /// Its event time, for a feed of what is new.
    pub(super) watermark: Option<(TableWatermark, Env)>,
}

/// A feed as the sequencer sees it.
pub(super) struct Feed {
    pub(super) id: FeedId,
    /// The external table.
    pub(super) table: RelationId,
    /// The jobs that wait for its rows: they bound how far it runs ahead.
    pub(super) jobs: Vec<RelationId>,
    /// Which columns its rows carry.
    pub(super) columns: Arc<[usize]>,
    pub(super) finished: bool,
    reads: Receiver<FromReader>,
    /// Received, and not taken yet.
    held: Option<FromReader>,
    open: VecDeque<(Time, Instant)>,
    reads_per_tick: usize,
    shared: Arc<Shared>,
    level: u64,
    /// Nobody waits for its end: it is slow on purpose, or has none.
    endless: bool,
    places: bool,
    /// At the last look it was held back, or had more than one tick takes: it wants another look by itself.
    pub(super) has_more: bool,
}

/// What a feed gives to a tick.
pub(super) struct Taken {
    pub(super) input: FeedInput,
    /// Up to where each split was read, and how many of the rows are bad: in order of splits, or of reading when rows
    /// have places.
    pub(super) bounds: Vec<Bound>,
    pub(super) failure: Option<Error>,
    pub(super) events: Vec<SplitEvent>,
    /// No split has more, and no other will come.
    pub(super) ended: bool,
}

impl Taken {
    fn is_empty(&self) -> bool {
        self.bounds.is_empty() && self.events.is_empty()
    }
}

/// A split's share of a tick.
pub(super) struct Bound {
    pub(super) split: SplitId,
    pub(super) end: Offset,
    pub(super) rows: usize,
    pub(super) bad: Vec<BadRow>,
    /// What its rows say of event time; then, what all its rows so far do.
    pub(super) watermark: Watermark,
}

impl Feed {
    /// Starts reading a source on threads of its own. `wake` tells the sequencer that there is something to take.
    pub(super) fn start(spec: FeedSpec, wake: impl Fn() + Send + Sync + 'static) -> Result<Feed> {
        let (sender, reads) = sync_channel(READS_AHEAD_MAX);
        let (id, table, columns) = (spec.id, spec.table, Arc::clone(&spec.columns));
        let past = !matches!(spec.extent, Extent::New(_));
        let places = spec.places;
        let endless = !past && (spec.source.rate_limit.is_some() || !spec.source.source.ends());
        let shared = Arc::new(Shared::new(spec));
        let reading = Reading { shared: Arc::clone(&shared), sender, wake: Arc::new(wake) };
        std::thread::Builder::new().name(format!("feed-{table}")).spawn(move || reading.run(true))?;
        Ok(Feed {
            id,
            table,
            jobs: Vec::new(),
            columns,
            finished: false,
            reads,
            held: None,
            open: VecDeque::new(),
            reads_per_tick: READS_PER_TICK_MAX,
            shared,
            level: 0,
            endless,
            places,
            has_more: false,
        })
    }

    /// Takes what one tick may have. `upper` is how far the feed's slowest job is; `None` when the
    /// feed has nothing, or is far enough ahead. The tick's time follows by [`Self::opened`].
    pub(super) fn take(&mut self, upper: Time) -> Option<Taken> {
        let mut taken = self.take_reads(upper)?;
        if self.places {
            let mut next = 0;
            taken.input.chunks.iter_mut().for_each(|chunk| *chunk = placed(chunk, &mut next));
            taken.input.columns = None;
        } else {
            taken.bounds.sort_by(|a, b| a.split.cmp(&b.split));
        }
        Some(taken)
    }

    fn take_reads(&mut self, upper: Time) -> Option<Taken> {
        self.has_more = !self.finished && !self.has_room(upper);
        if self.finished || self.has_more {
            return None;
        }
        let columns = Some(Arc::clone(&self.columns));
        let input = FeedInput { feed: self.id, columns, chunks: Vec::new(), done: false };
        let (events, ended) = (Vec::new(), false);
        let mut taken = Taken { input, bounds: Vec::new(), failure: None, events, ended };
        for _ in 0..self.reads_per_tick {
            match self.held.take().map_or_else(|| self.reads.try_recv(), Ok) {
                Ok(FromReader::Rows { split, chunks, bad, end, claim }) => {
                    let known = taken.bounds.iter().position(|bound| bound.split == split);
                    let new = matches!(self.id, FeedId::Table(_));
                    if self.places && new && known.is_some_and(|known| known + 1 < taken.bounds.len()) {
                        // A split that comes back after another is for the next tick: the bindings have the order.
                        self.held = Some(FromReader::Rows { split, chunks, bad, end, claim });
                        self.has_more = true;
                        return Some(taken);
                    }
                    let rows = chunks.iter().map(Chunk::rows).sum();
                    taken.input.chunks.extend(chunks);
                    match taken.bounds.iter_mut().find(|bound| bound.split == split) {
                        Some(bound) => {
                            bound.end = end;
                            bound.rows += rows;
                            bound.bad.extend(bad);
                            bound.watermark = bound.watermark.max(claim);
                        }
                        None => taken.bounds.push(Bound { split, end, rows, bad, watermark: claim }),
                    }
                }
                Ok(FromReader::Splits(events)) => taken.events.extend(events),
                Ok(FromReader::Level(asked)) => self.level = asked,
                Ok(FromReader::End) | Err(TryRecvError::Disconnected) => {
                    self.finished = true;
                    taken.ended = matches!(self.id, FeedId::Table(_));
                    // Only a catch-up is told of its end: jobs wait for that to be level.
                    taken.input.done = matches!(self.id, FeedId::CatchUp(..));
                    return Some(taken);
                }
                Ok(FromReader::Failed(error)) => {
                    self.finished = true;
                    taken.failure = Some(error);
                    return Some(taken);
                }
                Err(TryRecvError::Empty) => return (!taken.is_empty()).then_some(taken),
            }
        }
        self.has_more = true;
        (!taken.is_empty()).then_some(taken)
    }

    fn has_room(&mut self, upper: Time) -> bool {
        while let Some((_, opened)) = self.open.pop_front_if(|(time, _)| *time < upper) {
            let took = opened.elapsed();
            if took > CLOSED_LATE {
                self.reads_per_tick = (self.reads_per_tick / 2).max(1);
            } else if took < CLOSED_SOON {
                self.reads_per_tick = (self.reads_per_tick + 1).min(READS_PER_TICK_MAX);
            }
        }
        self.open.len() < OPEN_TICKS_MAX
    }

    /// What was taken went out at `time`.
    pub(super) fn opened(&mut self, time: Time) {
        self.open.push_back((time, Instant::now()));
    }

    /// Asks to be told when all that is there now was given.
    pub(super) fn ask_level(&self) {
        self.shared.asked.fetch_add(1, Ordering::AcqRel);
        self.shared.changed.notify_all();
    }

    /// True when all that was there at the last [`Self::ask_level`] was taken, or nobody should wait for that.
    pub(super) fn is_level(&self) -> bool {
        self.finished || self.endless || self.level >= self.shared.asked.load(Ordering::Acquire)
    }
}

/// Rows with their places among those of a tick, from `next` on.
fn placed(chunk: &Chunk, next: &mut i64) -> Chunk {
    let start = *next;
    *next += chunk.rows() as i64;
    let mut fields = chunk.schema().fields().to_vec();
    fields.push(Arc::new(Field::new(PLACE_COLUMN, DataType::Int64, false)));
    let mut columns = chunk.batch().columns().to_vec();
    columns.push(Arc::new(Int64Array::from_iter_values(start..*next)) as ArrayRef);
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("one place a row");
    chunk.with_batch(batch)
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.changed.notify_all();
    }
}

/// A split and its reader, once that is open.
struct Task {
    request: ReadRequest,
    reader: Option<Box<dyn SourceReader>>,
    /// Since when it has nothing.
    idle_since: Option<Instant>,
    /// That it has nothing was told.
    idle: bool,
}

impl Task {
    fn new(request: ReadRequest) -> Task {
        Task { request, reader: None, idle_since: None, idle: false }
    }
}

#[derive(Default)]
struct Queue {
    todo: VecDeque<Task>,
    /// Had nothing when they were looked at last.
    idle: Vec<Task>,
    /// Tasks that threads hold.
    busy: usize,
    /// How far each split was read, also those that ended.
    known: HashMap<SplitId, Offset>,
    /// Splits that are read now or have ended.
    taken: HashSet<SplitId>,
    /// No other split will come.
    complete: bool,
    discover_at: Option<Instant>,
    /// What [`Shared::asked`] was when the round began.
    round_asked: u64,
    /// The last [`FromReader::Level`] that was sent.
    told: u64,
    /// The limit on rows lets the next read begin.
    next_read: Option<Instant>,
    /// The end was sent, or nobody wants more.
    over: bool,
}

struct Shared {
    table: RelationId,
    source: SourceTable,
    columns: Arc<[usize]>,
    /// True when it reads what was read before.
    past: bool,
    missing_ok: bool,
    /// What was read before is read in this order.
    order: Option<ReadingOrder>,
    places: bool,
    rows_per_read: usize,
    progress: Arc<SourceProgress>,
    /// Its expression is over the columns that are read.
    watermark: Option<(TableWatermark, Env)>,
    queue: Mutex<Queue>,
    changed: Condvar,
    stopped: AtomicBool,
    asked: AtomicU64,
}

impl Shared {
    fn new(spec: FeedSpec) -> Shared {
        let mut queue = Queue::default();
        let mut in_order = None;
        let (past, missing) = match spec.extent {
            Extent::New(known) => {
                queue.known = known.into_iter().collect();
                (false, false)
            }
            Extent::Past { parts, missing_ok } => {
                queue.complete = true;
                for Part { split, from, until } in parts {
                    let request =
                        ReadRequest { split, from, until, columns: Arc::clone(&spec.columns), offsets: false };
                    queue.todo.push_back(Task::new(request));
                }
                (true, missing_ok)
            }
            Extent::InOrder(order) => {
                queue.complete = true;
                in_order = Some(order);
                (true, false)
            }
        };
        // What is read again was slow once.
        let rows_per_read = match spec.source.rate_limit.filter(|_| !past) {
            Some(rate) => usize::try_from(rate / LIMITED_READS).unwrap_or(usize::MAX).clamp(1, CHUNK_ROWS_MAX),
            None => CHUNK_ROWS_MAX,
        };
        Shared {
            table: spec.table,
            source: spec.source,
            columns: spec.columns,
            past,
            missing_ok: missing,
            order: in_order,
            places: spec.places,
            rows_per_read,
            progress: spec.progress,
            watermark: spec.watermark,
            queue: Mutex::new(queue),
            changed: Condvar::new(),
            stopped: AtomicBool::new(false),
            asked: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

/// A thread of a feed.
#[derive(Clone)]
struct Reading {
    shared: Arc<Shared>,
    sender: SyncSender<FromReader>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

/// How a thread left a split.
enum Left {
    /// There is more.
    More(Task),
    /// There is nothing for now.
    Idle(Task),
    /// It has ended.
    Ended,
    /// The feed was stopped.
    Stopped,
}

impl Reading {
    fn run(&self, first: bool) {
        // A library that panics over a damaged file must not look like the end of that file.
        if catch_unwind(AssertUnwindSafe(|| self.read_splits(first))).is_err() {
            self.fail(Error::internal("reading the source panicked").hint("The server's log has more."));
        }
    }

    /// Reads what was read before as the order says; one thread does.
    fn read_in_order(&self, order: &ReadingOrder) -> Result<()> {
        let open = |split: &SplitId, from: Offset, until: Offset| {
            let (split, columns) = (split.clone(), Arc::clone(&self.shared.columns));
            self.shared.source.source.open(&ReadRequest { split, from, until: Some(until), columns, offsets: true })
        };
        // Splits that take turns give few rows at a time: they are sent together, under the name of the last.
        let (mut waiting, mut rows_waiting) = (Vec::new(), 0);
        let send = |split: &SplitId, end: Offset, chunks: Vec<Chunk>| {
            let claim = Watermark::NONE;
            self.send(FromReader::Rows { split: split.clone(), chunks, bad: Vec::new(), end, claim })
        };
        let mut last = None;
        order.read(self.shared.rows_per_read, open, |split, end, rows| {
            rows_waiting += rows.num_rows();
            waiting.extend(Chunk::inserts(&rows));
            last = Some((split.clone(), end));
            if rows_waiting < CHUNK_ROWS_MAX {
                return true;
            }
            rows_waiting = 0;
            !self.shared.stopped() && send(split, end, std::mem::take(&mut waiting))
        })?;
        if let Some((split, end)) = last.filter(|_| !waiting.is_empty() && !self.shared.stopped()) {
            send(&split, end, waiting);
        }
        Ok(())
    }

    fn read_splits(&self, first: bool) {
        if let Some(order) = &self.shared.order {
            match self.read_in_order(order) {
                Ok(()) => {
                    // A feed that was stopped wants no end.
                    let _ = self.send(FromReader::End);
                }
                Err(error) => self.fail(error),
            }
            return;
        }
        if first {
            if let Err(error) = self.discover() {
                return self.fail(error);
            }
            let splits = self.shared.lock().todo.len();
            let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            // Where their order matters, one thread reads the splits one after the other.
            let threads = if self.shared.places { 1 } else { splits.min(cores).min(THREADS_MAX) };
            for _ in 1..threads {
                let other = self.clone();
                let started = std::thread::Builder::new()
                    .name(format!("feed-{}", self.shared.table))
                    .spawn(move || other.run(false));
                if started.is_err() {
                    // The others read it all.
                    break;
                }
            }
        }
        while let Some(task) = self.next() {
            let split = task.request.split.clone();
            let left = self.read(task);
            if matches!(left, Ok(Left::Ended)) {
                self.tell(vec![SplitEvent::Ended(split.clone())]);
            }
            let mut queue = self.shared.lock();
            queue.busy -= 1;
            match left {
                Ok(Left::More(task)) => {
                    queue.known.insert(split, task.request.from);
                    if self.shared.places {
                        queue.todo.push_front(task);
                    } else {
                        queue.todo.push_back(task);
                    }
                }
                Ok(Left::Idle(task)) => {
                    queue.known.insert(split, task.request.from);
                    queue.idle.push(task);
                }
                Ok(Left::Ended) => {}
                Ok(Left::Stopped) => queue.over = true,
                Err(error) => {
                    drop(queue);
                    self.fail(error);
                    return;
                }
            }
            drop(queue);
            self.shared.changed.notify_all();
        }
    }

    fn fail(&self, error: Error) {
        self.shared.lock().over = true;
        self.shared.changed.notify_all();
        // A feed that was stopped wants no end.
        let _ = self.send(FromReader::Failed(error));
    }

    fn send(&self, read: FromReader) -> bool {
        let sent = self.sender.send(read).is_ok();
        (self.wake)();
        sent
    }

    /// Tells what happened to splits, of a source with event time.
    fn tell(&self, events: Vec<SplitEvent>) {
        if self.shared.watermark.is_some() && !events.is_empty() {
            // A feed that was stopped wants to know nothing.
            let _ = self.send(FromReader::Splits(events));
        }
    }

    /// The next split to read; waits for one. `None` when the feed is over.
    fn next(&self) -> Option<Task> {
        let mut queue = self.shared.lock();
        loop {
            if queue.over || self.shared.stopped() {
                return None;
            }
            if let Some(task) = queue.todo.pop_front() {
                queue.busy += 1;
                return Some(task);
            }
            if queue.busy > 0 {
                queue = self.shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if queue.complete && queue.idle.is_empty() {
                queue.over = true;
                drop(queue);
                self.shared.changed.notify_all();
                // A feed that was stopped wants no end.
                let _ = self.send(FromReader::End);
                return None;
            }
            // A round is over. This thread looks after the next one; the others wait.
            queue.busy += 1;
            let round = queue.round_asked;
            if round > queue.told {
                queue.told = round;
                drop(queue);
                let wanted = self.send(FromReader::Level(round));
                queue = self.shared.lock();
                queue.over |= !wanted;
            }
            if self.shared.asked.load(Ordering::Acquire) == round {
                let waited = self.shared.changed.wait_timeout(queue, POLL);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            queue.round_asked = self.shared.asked.load(Ordering::Acquire);
            let fresh = queue.round_asked > round;
            drop(queue);
            if let Err(error) = self.discover_when_due(fresh) {
                self.fail(error);
            }
            queue = self.shared.lock();
            queue.busy -= 1;
            let idle = std::mem::take(&mut queue.idle);
            queue.todo.extend(idle);
            self.shared.changed.notify_all();
        }
    }

    fn discover_when_due(&self, now: bool) -> Result<()> {
        let due = {
            let queue = self.shared.lock();
            !queue.complete && (now || queue.discover_at.is_none_or(|at| at <= Instant::now()))
        };
        if due { self.discover() } else { Ok(()) }
    }

    /// Looks for splits that are not read yet.
    fn discover(&self) -> Result<()> {
        let known: Vec<(SplitId, Offset)> = {
            let queue = self.shared.lock();
            queue.known.iter().map(|(split, offset)| (split.clone(), *offset)).collect()
        };
        let source = &self.shared.source.source;
        let began = Instant::now();
        let splits = source.splits(&known)?;
        if !self.shared.past {
            // Before a row of theirs can come; nobody else takes splits up.
            let queue = self.shared.lock();
            let new = splits.found.iter().filter(|split| !queue.taken.contains(&split.id));
            let found = new.map(|split| SplitEvent::Found(split.id.clone())).collect();
            drop(queue);
            self.tell(found);
        }
        let mut queue = self.shared.lock();
        queue.discover_at = Some(Instant::now() + (began.elapsed() * DISCOVERY_PART).min(DISCOVERY_MAX));
        if self.shared.past {
            return Ok(());
        }
        queue.complete = splits.complete;
        self.shared.progress.found(&splits.found);
        for split in splits.found {
            if !queue.taken.insert(split.id.clone()) {
                continue;
            }
            let from = queue.known.get(&split.id).copied().unwrap_or_default();
            queue.known.entry(split.id.clone()).or_default();
            let columns = Arc::clone(&self.shared.columns);
            let request = ReadRequest { split: split.id, from, until: None, columns, offsets: false };
            queue.todo.push_back(Task::new(request));
        }
        Ok(())
    }

    /// Reads a split for as long as it has rows.
    fn read(&self, mut task: Task) -> Result<Left> {
        let shared = &self.shared;
        let mut reader = match task.reader.take() {
            Some(reader) => reader,
            None => match shared.source.source.open(&task.request) {
                Ok(reader) => reader,
                Err(error) if error.code() == SqlState::UndefinedFile && (shared.missing_ok || self.may_vanish()) => {
                    tracing::warn!(split = %task.request.split, error = ?error, "a split is not there any more");
                    return Ok(Left::Ended);
                }
                Err(error) => return Err(error),
            },
        };
        let mut reads = 0;
        loop {
            self.await_limit();
            if shared.stopped() {
                return Ok(Left::Stopped);
            }
            let (rows, bad, end) = match reader.read(shared.rows_per_read)? {
                Read::Rows { rows, bad, end, .. } => (rows, bad, end),
                Read::Idle => {
                    let since = *task.idle_since.get_or_insert_with(Instant::now);
                    let timeout = shared.watermark.as_ref().and_then(|(watermark, _)| watermark.idle_timeout);
                    if timeout.is_some_and(|timeout| since.elapsed() >= Duration::from_millis(timeout)) && !task.idle {
                        task.idle = true;
                        self.tell(vec![SplitEvent::Idle(task.request.split.clone())]);
                    }
                    task.reader = Some(reader);
                    return Ok(Left::Idle(task));
                }
                Read::End => {
                    let mut queue = shared.lock();
                    queue.known.insert(task.request.split.clone(), task.request.from);
                    return Ok(Left::Ended);
                }
            };
            self.count_limit(rows.num_rows() + bad.len());
            if shared.source.on_error == OnError::Fail
                && let Some(first) = bad.first()
            {
                return Err(first.to_error(&task.request.split).hint(
                    "Mend the row where it comes from, or make the table with on_error = 'table', which sets such rows \
                     apart.",
                ));
            }
            task.request.from = end;
            (task.idle_since, task.idle) = (None, false);
            let split = task.request.split.clone();
            let claim = match &shared.watermark {
                Some((watermark, env)) => {
                    let bound = watermark.bound(env.now_millis());
                    highest(&*watermark.expression, &rows, bound).unwrap_or(Watermark::NONE)
                }
                None => Watermark::NONE,
            };
            if !self.send(FromReader::Rows { split, chunks: Chunk::inserts(&rows), bad, end, claim }) {
                return Ok(Left::Stopped);
            }
            reads += 1;
            if reads >= READS_IN_A_ROW && !shared.lock().complete {
                task.reader = Some(reader);
                return Ok(Left::More(task));
            }
        }
    }

    /// True when splits may be gone before they are opened: new ones are looked for all the time.
    fn may_vanish(&self) -> bool {
        !self.shared.past && !self.shared.lock().complete
    }

    /// Waits until the limit on rows lets another read begin.
    fn await_limit(&self) {
        let mut queue = self.shared.lock();
        while let Some(at) = queue.next_read
            && !self.shared.stopped()
            && let Some(wait) = at.checked_duration_since(Instant::now()).filter(|wait| !wait.is_zero())
        {
            queue = self.shared.changed.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn count_limit(&self, rows: usize) {
        let Some(rate) = self.shared.source.rate_limit.filter(|_| !self.shared.past) else { return };
        let mut queue = self.shared.lock();
        let now = Instant::now();
        let from = queue.next_read.map_or(now, |at| at.max(now.checked_sub(POLL).unwrap_or(now)));
        queue.next_read = Some(from + Duration::from_secs_f64(rows as f64 / rate as f64));
    }
}

/// Lets many wake-ups be one until it is answered.
#[derive(Clone, Default)]
pub(super) struct WakeOnce {
    pending: Arc<AtomicBool>,
}

impl WakeOnce {
    /// True when nobody asked since the last [`Self::clear`].
    pub(super) fn set(&self) -> bool {
        !self.pending.swap(true, Ordering::AcqRel)
    }

    /// The wake-up is answered.
    pub(super) fn clear(&self) {
        self.pending.store(false, Ordering::Release);
    }
}
