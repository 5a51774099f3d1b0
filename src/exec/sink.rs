//! Where a job's rows leave clink: what a connector implements, and the queue before it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::relation::lock;
use crate::types::{Chunk, Error, RelationId, Result, Time};

/// Which changes a sink can write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkInput {
    /// Inserted rows alone.
    Appends,
    /// Inserted and retracted rows.
    Changes,
}

/// A place outside of clink that takes rows.
pub trait Sink: Send + Sync {
    /// Which changes it can write; looked at when a job into it is planned.
    fn accepts(&self) -> SinkInput;

    /// Checks that a new job may write there: what is not a sink's own is never replaced.
    ///
    /// # Errors
    /// 42710 when something is there already.
    fn check_new(&self) -> Result<()> {
        Ok(())
    }

    /// How long what was written may wait to become visible.
    fn publish_interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Tells which job writes there, and hands over what that job put into the timeline log before the start. Called
    /// before [`Self::open`], never while a writer is open but with nothing.
    ///
    /// # Errors
    /// When what it put there cannot be understood.
    fn recall(&self, _job: RelationId, _written: &[Chunk]) -> Result<()> {
        Ok(())
    }

    /// Whether a writer can go on from a [`SinkWriter::position`]: then the job is part of checkpoints.
    fn resumes(&self) -> bool {
        false
    }

    /// Opens a writer for a job that goes on from a position; what was written behind it is taken back.
    ///
    /// # Errors
    /// When less is there than was said, or the place cannot be written.
    fn resume(&self, _job: &str, _position: &SinkPosition) -> Result<Box<dyn SinkWriter>> {
        Err(Error::internal("this sink begins anew"))
    }

    /// Opens a writer for a job, by its name, that starts from nothing: what an earlier writer of this
    /// job made is replaced when the new one publishes for the first time. `generation` is greater than
    /// that of every earlier writer.
    ///
    /// # Errors
    /// When the place cannot be written.
    fn open(&self, job: &str, generation: u64) -> Result<Box<dyn SinkWriter>>;
}

/// One job's way into a sink. Called from a thread that may block.
pub trait SinkWriter: Send {
    /// Takes changes of one closed time, consolidated, retractions first; times ascend.
    ///
    /// # Errors
    /// When a row cannot be written; the job fails for it.
    fn write(&mut self, time: Time, changes: &[Chunk]) -> Result<()>;

    /// Makes visible what was written so far.
    ///
    /// # Errors
    /// When the place cannot be written.
    fn publish(&mut self) -> Result<()>;

    /// Makes what was written so far visible and durable, and says where it ends; of sinks that resume.
    ///
    /// # Errors
    /// As [`Self::publish`].
    fn position(&mut self) -> Result<SinkPosition> {
        Err(Error::internal("this sink begins anew"))
    }
}

/// Where what was written ends; only the connector knows what it says.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SinkPosition(pub String);

/// A time at which somebody wants to know the writer's position.
pub(crate) struct SinkMark {
    pub(crate) time: Time,
    pub(crate) answer: Box<dyn FnOnce(Result<SinkPosition>) + Send>,
}

/// Bytes of changes that wait for a writer; beyond, the job's feeds hold.
const QUEUE_BYTES_MAX: usize = 16 << 20;

/// Closed times on their way from a worker to a sink's writer.
#[derive(Default)]
pub(crate) struct SinkQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    times: VecDeque<(Time, Vec<Chunk>)>,
    bytes: usize,
    /// Every time below was put in.
    upper: Time,
    closed: bool,
    mark: Option<SinkMark>,
    room: Option<Box<dyn Fn() + Send>>,
}

/// What a writer has to do next.
pub(crate) enum SinkStep {
    /// Write the changes of a time.
    Write(Time, Vec<Chunk>),
    /// All up to its time was given, and nothing later.
    Mark(SinkMark),
    /// Nothing waits; every time below this one was given.
    Idle(Time),
    /// The job is gone.
    Closed,
}

impl SinkQueue {
    /// `room` is called from another thread when there is room again.
    pub(crate) fn when_room(&self, room: Box<dyn Fn() + Send>) {
        self.lock().room = Some(room);
    }

    /// Puts a closed time in, unless too much waits already: then the chunks come back.
    pub(crate) fn put(&self, time: Time, chunks: Vec<Chunk>) -> std::result::Result<(), Vec<Chunk>> {
        let mut state = self.lock();
        if state.bytes >= QUEUE_BYTES_MAX && !state.closed {
            return Err(chunks);
        }
        if !state.closed {
            state.bytes += chunks.iter().map(Chunk::bytes).sum::<usize>();
            state.times.push_back((time, chunks));
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Every time below was put in.
    pub(crate) fn advance(&self, upper: Time) {
        let mut state = self.lock();
        if state.upper < upper {
            state.upper = upper;
            self.changed.notify_all();
        }
    }

    /// Asks for the position at a time behind which nothing was put in yet. A mark that is not reached is given up.
    pub(crate) fn mark(&self, mark: SinkMark) {
        self.lock().mark = Some(mark);
        self.changed.notify_all();
    }

    /// The job is gone: the writer ends.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.mark = None;
        state.times.clear();
        state.room = None;
        self.changed.notify_all();
    }

    /// What comes next; waits until there is something newer than `idle_at`, or `patience` is over.
    pub(crate) fn next(&self, idle_at: Time, patience: Duration) -> SinkStep {
        let deadline = Instant::now() + patience;
        let mut state = self.lock();
        loop {
            if state.closed {
                return SinkStep::Closed;
            }
            let first = state.times.front().map(|(time, _)| *time);
            let upper = state.upper;
            // Times are put in in their order.
            if let Some(mark) = state.mark.take_if(|mark| first.map_or(upper > mark.time, |first| first > mark.time)) {
                return SinkStep::Mark(mark);
            }
            if let Some((time, chunks)) = state.times.pop_front() {
                let before = state.bytes;
                state.bytes -= chunks.iter().map(Chunk::bytes).sum::<usize>().min(before);
                if before >= QUEUE_BYTES_MAX
                    && state.bytes < QUEUE_BYTES_MAX
                    && let Some(room) = &state.room
                {
                    room();
                }
                return SinkStep::Write(time, chunks);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.upper > idle_at || left.is_zero() {
                return SinkStep::Idle(state.upper);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        lock(&self.state)
    }
}

/// Where a job's result goes.
#[derive(Clone)]
pub(crate) enum JobOutput {
    /// It is kept, for readers and for the jobs that stand on it.
    Kept,
    /// It leaves through a sink.
    Sink(Arc<SinkQueue>),
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch};

    use super::*;

    fn chunks(rows: i64) -> Vec<Chunk> {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
        Chunk::inserts(&RecordBatch::try_from_iter([("a", column)]).expect("a batch"))
    }

    #[test]
    fn a_full_queue_gives_back_and_tells_of_room() {
        let queue = SinkQueue::default();
        let (told, heard) = std::sync::mpsc::channel();
        queue.when_room(Box::new(move || told.send(()).expect("heard")));
        let mut time = 1;
        while queue.put(Time::from_millis(time), chunks(8_192)).is_ok() {
            time += 1;
        }
        assert!(time > 2, "{time}: one time alone does not fill it");
        while heard.try_recv().is_err() {
            assert!(matches!(queue.next(Time::ZERO, Duration::ZERO), SinkStep::Write(..)));
        }
        assert!(queue.put(Time::from_millis(time), chunks(1)).is_ok());
    }

    #[test]
    fn a_mark_comes_between_its_time_and_the_next() {
        let queue = SinkQueue::default();
        let at = Time::from_millis;
        queue.put(at(3), chunks(1)).expect("room");
        queue.mark(SinkMark { time: at(5), answer: Box::new(drop) });
        assert!(matches!(queue.next(Time::ZERO, Duration::ZERO), SinkStep::Write(time, _) if time == at(3)));
        assert!(matches!(queue.next(at(3), Duration::ZERO), SinkStep::Idle(_)), "more may come up to it");
        queue.put(at(5), chunks(1)).expect("room");
        queue.put(at(6), chunks(1)).expect("room");
        assert!(matches!(queue.next(at(3), Duration::ZERO), SinkStep::Write(time, _) if time == at(5)));
        assert!(matches!(queue.next(at(5), Duration::ZERO), SinkStep::Mark(mark) if mark.time == at(5)));
        assert!(matches!(queue.next(at(5), Duration::ZERO), SinkStep::Write(time, _) if time == at(6)));
        queue.mark(SinkMark { time: at(8), answer: Box::new(drop) });
        queue.advance(at(9));
        assert!(matches!(queue.next(at(6), Duration::ZERO), SinkStep::Mark(mark) if mark.time == at(8)));
    }

    #[test]
    fn an_idle_writer_hears_of_progress_and_of_the_end() {
        let queue = SinkQueue::default();
        queue.advance(Time::from_millis(5));
        assert!(matches!(queue.next(Time::ZERO, Duration::from_secs(60)), SinkStep::Idle(t) if t.as_millis() == 5));
        assert!(matches!(queue.next(Time::from_millis(5), Duration::ZERO), SinkStep::Idle(t) if t.as_millis() == 5));
        queue.close();
        assert!(matches!(queue.next(Time::ZERO, Duration::from_secs(60)), SinkStep::Closed));
    }
}
