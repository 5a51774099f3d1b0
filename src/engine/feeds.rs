//! Reading external sources: a thread per feed that reads and decodes ahead, up to a bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use crate::exec::source::{Offset, Read, Source};
use crate::exec::{FeedId, FeedInput};
use crate::types::{CHUNK_ROWS_MAX, Chunk, Error, RelationId, Result, Time};

/// Reads that wait to be stamped.
const READS_AHEAD_MAX: usize = 8;
/// Reads that one tick takes at most.
const READS_PER_TICK_MAX: usize = 8;
/// Ticks with rows of one feed that its jobs may have open.
const OPEN_TICKS_MAX: usize = 3;

enum FromReader {
    Rows(Vec<Chunk>, Offset),
    End,
    Failed(Error),
}

/// A feed as the sequencer sees it.
pub(super) struct Feed {
    pub(super) id: FeedId,
    /// The external table.
    pub(super) table: RelationId,
    /// The jobs that wait for its rows: they bound how far it runs ahead.
    pub(super) jobs: Vec<RelationId>,
    /// Up to where its rows are stamped.
    pub(super) bound: Offset,
    pub(super) finished: bool,
    reads: Receiver<FromReader>,
    open: std::collections::VecDeque<Time>,
}

/// What a feed gives to a tick.
pub(super) struct Taken {
    pub(super) input: FeedInput,
    pub(super) failure: Option<Error>,
}

impl Feed {
    /// Starts reading a source on a thread of its own. `wake` tells the sequencer that there is
    /// something to take.
    pub(super) fn start(
        id: FeedId,
        table: RelationId,
        source: &Arc<dyn Source>,
        from: Offset,
        until: Option<Offset>,
        wake: impl Fn() + Send + 'static,
    ) -> Result<Feed> {
        let (sender, reads) = sync_channel(READS_AHEAD_MAX);
        let source = Arc::clone(source);
        std::thread::Builder::new()
            .name(format!("feed-{table}"))
            .spawn(move || read_all(&*source, from, until, &sender, &wake))?;
        Ok(Feed { id, table, jobs: Vec::new(), bound: from, finished: false, reads, open: Default::default() })
    }

    /// Takes what one tick may have. `upper` is how far the feed's slowest job is; `None` when the
    /// feed has nothing, or is far enough ahead. The tick's time follows by [`Self::opened`].
    pub(super) fn take(&mut self, upper: Time) -> Option<Taken> {
        if self.finished || !self.has_room(upper) {
            return None;
        }
        let mut taken = Taken { input: FeedInput { feed: self.id, chunks: Vec::new(), done: false }, failure: None };
        for _ in 0..READS_PER_TICK_MAX {
            match self.reads.try_recv() {
                Ok(FromReader::Rows(chunks, end)) => {
                    taken.input.chunks.extend(chunks);
                    self.bound = end;
                }
                Ok(FromReader::End) | Err(TryRecvError::Disconnected) => {
                    self.finished = true;
                    // Only a catch-up is told of its end: jobs wait for that to be level.
                    taken.input.done = matches!(self.id, FeedId::CatchUp(..));
                    return Some(taken);
                }
                Ok(FromReader::Failed(error)) => {
                    self.finished = true;
                    taken.failure = Some(error);
                    return Some(taken);
                }
                Err(TryRecvError::Empty) => break,
            }
        }
        (!taken.input.chunks.is_empty()).then_some(taken)
    }

    fn has_room(&mut self, upper: Time) -> bool {
        while self.open.front().is_some_and(|time| *time < upper) {
            self.open.pop_front();
        }
        self.open.len() < OPEN_TICKS_MAX
    }

    /// What was taken went out at `time`.
    pub(super) fn opened(&mut self, time: Time) {
        self.open.push_back(time);
    }
}

fn read_all(
    source: &dyn Source,
    from: Offset,
    until: Option<Offset>,
    sender: &SyncSender<FromReader>,
    wake: &dyn Fn(),
) {
    let run = || -> Result<()> {
        let mut reader = source.open(from, until)?;
        while let Read::Rows { rows, end } = reader.read(CHUNK_ROWS_MAX)? {
            if sender.send(FromReader::Rows(Chunk::inserts(&rows), end)).is_err() {
                // The feed was stopped.
                return Ok(());
            }
            wake();
        }
        Ok(())
    };
    let last = match run() {
        Ok(()) => FromReader::End,
        Err(error) => FromReader::Failed(error),
    };
    // A feed that was stopped wants no end.
    let _ = sender.send(last);
    wake();
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
