//! The writers of sinks: a thread per sink that takes closed times and writes them out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrow::array::Array as _;
use arrow::datatypes::SchemaRef;

use super::installed::Relations;
use crate::exec::consolidate::{consolidate, row_codec};
use crate::exec::relation::RelationShared;
use crate::exec::sink::{Sink, SinkPosition, SinkQueue, SinkStep, SinkWriter};
use crate::state::RowCodec;
use crate::types::{Chunk, Error, Result, SqlState, Time};

/// How long a writer sleeps when there is nothing to do.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A sink of a job, with what its writer has to know.
#[derive(Clone)]
pub struct SinkTarget {
    /// The place.
    pub sink: Arc<dyn Sink>,
    /// Columns that may not be NULL.
    pub required: Vec<usize>,
    /// It is a table of this database: what is written comes back as input.
    pub is_table: bool,
}

/// A sink that runs.
pub(super) struct RunningSink {
    pub(super) queue: Arc<SinkQueue>,
    pub(super) is_table: bool,
    published: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl RunningSink {
    /// Opens a sink and starts its writer, from nothing or from a position.
    ///
    /// # Errors
    /// When a thread cannot be started. A sink that cannot be opened fails its job.
    pub(super) fn start(
        target: &SinkTarget,
        schema: SchemaRef,
        append_only: bool,
        from: SinkStart,
        shared: &Arc<RelationShared>,
        relations: &Arc<Relations>,
    ) -> Result<RunningSink> {
        let queue = Arc::new(SinkQueue::default());
        let published = Arc::new(AtomicU64::new(0));
        let writing = Writing {
            queue: Arc::clone(&queue),
            published: Arc::clone(&published),
            shared: Arc::clone(shared),
            relations: Arc::clone(relations),
            codec: if append_only { None } else { Some(row_codec(&schema)?) },
            schema,
            required: target.required.clone(),
            publish_interval: target.sink.publish_interval(),
        };
        let sink = Arc::clone(&target.sink);
        let thread = std::thread::Builder::new().name(format!("sink-{}", shared.id)).spawn(move || {
            let open = || match &from {
                SinkStart::Anew { generation } => sink.open(&writing.shared.name, *generation),
                SinkStart::At(position) => sink.resume(&writing.shared.name, position),
            };
            let run = || writing.run(&mut *open()?);
            if let Err(error) = run() {
                let stopping = error.code() == SqlState::AdminShutdown;
                if !stopping && writing.shared.fail(error.clone()) {
                    tracing::warn!(job = %writing.shared.name, error = ?error, "a sink cannot be written");
                }
                writing.queue.close();
                writing.relations.progress().signal();
            }
        })?;
        Ok(RunningSink { queue, is_table: target.is_table, published, thread })
    }

    /// Ends the writer, after what it is about to write.
    pub(super) fn end(self) {
        self.queue.close();
        // A panic is in the log.
        let _ = self.thread.join();
    }

    /// Every time below is visible in the sink.
    pub(super) fn published(&self) -> Time {
        Time::from_millis(self.published.load(Ordering::Acquire))
    }
}

/// Where a sink's writer begins.
#[derive(Clone, Debug)]
pub(super) enum SinkStart {
    /// With nothing: it replaces what earlier ones wrote.
    Anew {
        /// Greater than that of every writer before.
        generation: u64,
    },
    /// Behind what was written at a checkpoint.
    At(SinkPosition),
}

struct Writing {
    queue: Arc<SinkQueue>,
    published: Arc<AtomicU64>,
    shared: Arc<RelationShared>,
    relations: Arc<Relations>,
    /// For changes that may cancel each other; `None` when rows are only added.
    codec: Option<RowCodec>,
    schema: SchemaRef,
    required: Vec<usize>,
    publish_interval: Duration,
}

impl Writing {
    fn run(&self, writer: &mut dyn SinkWriter) -> Result<()> {
        let mut idle_at = Time::ZERO;
        let mut last_publish: Option<Instant> = None;
        // Also a sink without rows is published once: it replaces what an earlier writer made.
        let mut dirty = true;
        let due = |last: Option<Instant>| {
            last.map_or(Duration::ZERO, |at| self.publish_interval.saturating_sub(at.elapsed()))
        };
        loop {
            let patience = if dirty && self.caught_up(idle_at) { due(last_publish) } else { PATIENCE };
            match self.queue.next(idle_at, patience) {
                SinkStep::Closed => return Ok(()),
                SinkStep::Write(time, chunks) => {
                    let changes = match &self.codec {
                        Some(codec) => consolidate(codec, &self.schema, &chunks)?,
                        None => chunks,
                    };
                    if !changes.is_empty() {
                        self.check(&changes)?;
                        writer.write(time, &changes)?;
                        dirty = true;
                    }
                    // A time is put in when it has closed, so all before it was given.
                    idle_at = time;
                }
                SinkStep::Mark(mark) => {
                    let position = writer.position();
                    let failure = position.as_ref().err().cloned();
                    (mark.answer)(position);
                    failure.map_or(Ok(()), Err)?;
                    last_publish = Some(Instant::now());
                    dirty = false;
                }
                SinkStep::Idle(upper) => idle_at = upper,
            }
            if dirty && due(last_publish).is_zero() && self.caught_up(idle_at) {
                writer.publish()?;
                last_publish = Some(Instant::now());
                dirty = false;
            }
            if !dirty {
                self.published.store(idle_at.as_millis(), Ordering::Release);
                self.relations.progress().signal();
            }
        }
    }

    /// True when the job has taken in what was there before it started, so that what replaces the
    /// rows of an earlier writer is not less than they were.
    fn caught_up(&self, upper: Time) -> bool {
        upper > self.relations.floor() && self.shared.whole_from().is_some_and(|from| from < upper)
    }

    fn check(&self, changes: &[Chunk]) -> Result<()> {
        for column in &self.required {
            if changes.iter().any(|chunk| chunk.column(*column).logical_null_count() > 0) {
                let name = self.schema.field(*column).name();
                return Err(Error::new(
                    SqlState::NotNullViolation,
                    format!("null value in column \"{name}\" of {} violates not-null constraint", self.shared.name),
                )
                .hint("Filter such rows out in the query, use coalesce(), or allow NULL in the target."));
            }
        }
        Ok(())
    }
}
