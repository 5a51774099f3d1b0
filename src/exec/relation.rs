//! What workers and the coordinator share about a relation.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::error::DataFusionError;
use tokio::sync::Notify;

use super::arrangement::Needs;
use super::operator_counts::OperatorCounts;
use crate::types::{Error, RelationId, Time};

/// Wakes those who wait for a relation to get on.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    notify: Notify,
}

impl Progress {
    /// Some relation got on.
    pub(crate) fn signal(&self) {
        self.notify.notify_waiters();
    }

    /// Waits until `ready` gives something; looks again whenever a relation gets on. Cancel safe.
    pub(crate) async fn wait_for<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        loop {
            // Registered before the look, so that no signal falls between the two.
            let mut signal = std::pin::pin!(self.notify.notified());
            signal.as_mut().enable();
            if let Some(found) = ready() {
                return found;
            }
            signal.await;
        }
    }
}

/// A relation's progress, failure and read holds. Workers write their own places without locks; the
/// coordinator reads.
#[derive(Debug)]
pub(crate) struct RelationShared {
    pub(crate) id: RelationId,
    pub(crate) name: String,
    uppers: Box<[AtomicU64]>,
    sinces: Box<[AtomicU64]>,
    rows_in: AtomicU64,
    rows_out: AtomicU64,
    job: Arc<JobState>,
    holds: Mutex<BTreeMap<Time, usize>>,
    /// Times up to which those who follow have the changes.
    follows: Mutex<BTreeMap<Time, usize>>,
    /// The relation's `retain_history`; 0: none.
    retain_millis: u64,
    /// The time of the checkpoint that it began from; 0: none.
    restored_at: AtomicU64,
}

/// What the relations of one job share.
#[derive(Debug)]
struct JobState {
    fill: Mutex<Fill>,
    halt: Mutex<Option<Halt>>,
    halted: AtomicBool,
    /// In the order of the plan, which is the same on every worker.
    operators: Mutex<Vec<Arc<OperatorCounts>>>,
}

/// Why a job takes no more input.
#[derive(Clone, Debug)]
pub(crate) enum Halt {
    /// It cannot go on.
    Failed(Error),
    /// Somebody asked for it.
    Paused,
}

#[derive(Debug)]
struct Fill {
    edges: usize,
    feeds: usize,
    /// Nothing is known to it of event time yet.
    closed: bool,
    whole_from: Time,
}

impl RelationShared {
    /// A relation on `workers` workers that starts at `as_of`; it is whole when its imports on each
    /// worker have reported: `edges` from other relations, `feeds` from the ticks.
    pub(crate) fn new(
        id: RelationId,
        name: String,
        workers: usize,
        edges: usize,
        feeds: usize,
        as_of: Time,
    ) -> RelationShared {
        let places = |time: Time| (0..workers).map(|_| AtomicU64::new(time.as_millis())).collect();
        RelationShared {
            id,
            name,
            uppers: places(as_of),
            sinces: places(Time::ZERO),
            rows_in: AtomicU64::new(0),
            rows_out: AtomicU64::new(0),
            job: Arc::new(JobState {
                fill: Mutex::new(Fill {
                    edges: edges * workers,
                    feeds: feeds * workers,
                    closed: false,
                    whole_from: as_of,
                }),
                halt: Mutex::new(None),
                halted: AtomicBool::new(false),
                operators: Mutex::default(),
            }),
            holds: Mutex::new(BTreeMap::new()),
            follows: Mutex::new(BTreeMap::new()),
            retain_millis: 0,
            restored_at: AtomicU64::new(0),
        }
    }

    /// Its past is kept for so long, over restarts too.
    pub(crate) fn retaining(mut self, millis: u64) -> RelationShared {
        self.retain_millis = millis;
        self
    }

    /// Milliseconds of the past that are kept over restarts; 0: none.
    pub(crate) fn retain_millis(&self) -> u64 {
        self.retain_millis
    }

    /// It begins with what a checkpoint of that time has.
    pub(crate) fn restored(&self, at: Time) {
        self.restored_at.store(at.as_millis(), Ordering::Release);
    }

    /// The time of the checkpoint that it began from.
    pub(crate) fn restored_at(&self) -> Option<Time> {
        Some(Time::from_millis(self.restored_at.load(Ordering::Acquire))).filter(|time| *time > Time::ZERO)
    }

    /// A second relation of the same job: whole when this one is, and stopped with it.
    pub(crate) fn beside(&self, id: RelationId, name: String, as_of: Time) -> RelationShared {
        let other = RelationShared::new(id, name, self.uppers.len(), 0, 0, as_of);
        RelationShared { job: Arc::clone(&self.job), ..other }
    }

    /// Every time below is closed on all workers.
    pub(crate) fn upper(&self) -> Time {
        let least = self.uppers.iter().map(|upper| upper.load(Ordering::Acquire)).min();
        Time::from_millis(least.unwrap_or(0))
    }

    /// A worker closed every time below. True when that is news.
    pub(crate) fn advance(&self, worker: usize, upper: Time) -> bool {
        self.uppers[worker].swap(upper.as_millis(), Ordering::AcqRel) != upper.as_millis()
    }

    /// The oldest time that can still be read.
    pub(crate) fn since(&self) -> Time {
        self.kept_since().max(self.whole_from().unwrap_or(Time::ZERO))
    }

    /// The oldest time of which all workers have the rows, whole or not.
    pub(crate) fn kept_since(&self) -> Time {
        let greatest = self.sinces.iter().map(|since| since.load(Ordering::Acquire)).max();
        Time::from_millis(greatest.unwrap_or(0))
    }

    /// A worker gives up the history before a time.
    pub(crate) fn forget_before(&self, worker: usize, since: Time) {
        self.sinces[worker].store(since.as_millis(), Ordering::Release);
    }

    /// One edge on one worker has put in all that was there at `time`.
    pub(crate) fn edge_filled(&self, time: Time) {
        let mut fill = lock(&self.job.fill);
        fill.edges = fill.edges.saturating_sub(1);
        fill.whole_from = fill.whole_from.max(time);
    }

    /// One feed on one worker has put in all that was given before `time`.
    pub(crate) fn feed_filled(&self, time: Time) {
        let mut fill = lock(&self.job.fill);
        fill.feeds = fill.feeds.saturating_sub(1);
        fill.whole_from = fill.whole_from.max(time);
    }

    /// The job follows event time: it is not whole before it was opened.
    pub(crate) fn await_opening(&self) {
        lock(&self.job.fill).closed = true;
    }

    /// From a time on the job knows of event time.
    pub(crate) fn opened(&self, time: Time) {
        let mut fill = lock(&self.job.fill);
        fill.closed = false;
        fill.whole_from = fill.whole_from.max(time);
    }

    /// True when all that it reads is in.
    pub(crate) fn inputs_whole(&self) -> bool {
        self.pending() == (0, 0)
    }

    /// The first time at which all that it reads is in, also when it knows nothing of event time yet: what stands on it
    /// can begin.
    pub(crate) fn inputs_from(&self) -> Option<Time> {
        let fill = lock(&self.job.fill);
        (fill.edges == 0 && fill.feeds == 0).then_some(fill.whole_from)
    }

    /// How many edges and feeds are not level.
    pub(crate) fn pending(&self) -> (usize, usize) {
        let fill = lock(&self.job.fill);
        (fill.edges, fill.feeds)
    }

    /// The first time at which the history of the tables and views that it reads is in; `None` while
    /// it is not.
    pub(crate) fn history_from(&self) -> Option<Time> {
        let fill = lock(&self.job.fill);
        (fill.edges == 0 && !(fill.closed && fill.feeds == 0)).then_some(fill.whole_from)
    }

    /// The first time at which the relation is whole; `None` while it is not.
    pub(crate) fn whole_from(&self) -> Option<Time> {
        let fill = lock(&self.job.fill);
        (fill.edges == 0 && fill.feeds == 0 && !fill.closed).then_some(fill.whole_from)
    }

    /// Why the relation's job takes no more input, if it does not.
    pub(crate) fn halt(&self) -> Option<Halt> {
        self.halted().then(|| lock(&self.job.halt).clone()).flatten()
    }

    /// True when the job failed or was paused.
    pub(crate) fn halted(&self) -> bool {
        self.job.halted.load(Ordering::Acquire)
    }

    /// The job fails; the first reason stays. True when this is the first.
    pub(crate) fn fail(&self, error: Error) -> bool {
        self.stop(Halt::Failed(error))
    }

    /// The job is paused, unless it stopped already.
    pub(crate) fn pause(&self) {
        self.stop(Halt::Paused);
    }

    fn stop(&self, reason: Halt) -> bool {
        let mut halt = lock(&self.job.halt);
        let first = halt.is_none();
        halt.get_or_insert(reason);
        self.job.halted.store(true, Ordering::Release);
        first
    }

    /// Keeps a time readable until [`Self::release`].
    pub(crate) fn hold(&self, time: Time) {
        add(&self.holds, time);
    }

    /// Gives a hold back.
    pub(crate) fn release(&self, time: Time) {
        remove(&self.holds, time);
    }

    /// Keeps the changes after a time until [`Self::unfollow`], up to a bound.
    pub(crate) fn follow(&self, time: Time) {
        add(&self.follows, time);
    }

    /// Nobody waits any more for the changes after a time for which [`Self::follow`] was called.
    pub(crate) fn unfollow(&self, time: Time) {
        remove(&self.follows, time);
    }

    /// Who needs the past.
    pub(crate) fn needs(&self) -> Needs {
        let first = |times: &Mutex<BTreeMap<Time, usize>>| lock(times).first_key_value().map(|(time, _)| *time);
        Needs { held: first(&self.holds), followed: first(&self.follows) }
    }

    pub(crate) fn count_in(&self, rows: usize) {
        self.rows_in.fetch_add(rows as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_out(&self, rows: usize) {
        self.rows_out.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// The counts of one of the job's operators, which its workers share.
    pub(crate) fn operator(&self, path: &str, name: &str) -> Arc<OperatorCounts> {
        let mut operators = lock(&self.job.operators);
        if let Some(counts) = operators.iter().find(|counts| counts.path == path) {
            return Arc::clone(counts);
        }
        let counts = Arc::new(OperatorCounts::new(path, name));
        operators.push(Arc::clone(&counts));
        counts
    }

    /// The counts of all operators of the job.
    pub(crate) fn operators(&self) -> Vec<Arc<OperatorCounts>> {
        lock(&self.job.operators).clone()
    }

    /// Changed rows in and out so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.rows_in.load(Ordering::Relaxed), self.rows_out.load(Ordering::Relaxed))
    }
}

fn add(times: &Mutex<BTreeMap<Time, usize>>, time: Time) {
    *lock(times).entry(time).or_insert(0) += 1;
}

fn remove(times: &Mutex<BTreeMap<Time, usize>>, time: Time) {
    let mut times = lock(times);
    if let Some(count) = times.get_mut(&time) {
        *count -= 1;
        if *count == 0 {
            times.remove(&time);
        }
    }
}

/// A lock whose data is whole even if a holder panicked: each section only moves plain values.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An expression's failure as the user's error.
pub(crate) fn from_datafusion(error: DataFusionError) -> Error {
    match error {
        DataFusionError::ArrowError(error, _) => Error::from(*error),
        DataFusionError::External(source) => match source.downcast::<Error>() {
            Ok(error) => *error,
            Err(source) => Error::internal(source.to_string()),
        },
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => from_datafusion(*inner),
        DataFusionError::Shared(shared) => match Arc::try_unwrap(shared) {
            Ok(inner) => from_datafusion(inner),
            Err(shared) => Error::internal(shared.to_string()),
        },
        other => Error::internal(other.to_string()),
    }
}
