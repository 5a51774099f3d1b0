//! The thread that takes checkpoints: it asks for a cut, makes the parts durable, completes and releases.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow::ipc::writer::StreamWriter;
use tokio::sync::oneshot;

use super::{Cut, GROUP, JobCut, StateStores, Unsaved, written};
use crate::engine::installed::{Relations, restarted};
use crate::engine::sequencer::{Request, stopping};
use crate::env::Env;
use crate::exec::Captured;
use crate::exec::relation::{RelationShared, lock};
use crate::exec::sink::SinkPosition;
use crate::state::{Head, HeadCheckpoint, HeadFile, Manifest, Part, Snapshot, released_parts};
use crate::types::{CheckpointId, Chunk, Error, RelationId, Result, SqlState, Time};

/// How often jobs are looked at that a checkpoint waits for: one may have ended.
const LOOK: Duration = Duration::from_millis(50);
/// How long the thread sleeps when nobody wants a checkpoint.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Checkpoints that are remembered for people to see.
const INFOS_MAX: usize = 50;

/// What the controller is told.
pub(crate) enum Message {
    /// The database is back: what HEAD names. The sender is dropped when that can be seen.
    Start(Start, Sender<()>),
    /// Somebody wants a checkpoint that has all that was answered so far.
    Now(oneshot::Sender<Result<Option<CheckpointId>>>),
    /// Somebody wants the newest one as a savepoint in a folder; the catalog has not changed since.
    Savepoint { folder: PathBuf, catalog: Vec<u8>, answer: oneshot::Sender<Result<CheckpointId>> },
    /// The sequencer has cut.
    Begun(Box<Begun>),
    /// The sequencer has not: nothing has changed, or for the reason given.
    NotBegun(Option<Error>),
    /// A job's part on one worker.
    Captured(Captured),
    /// Where a sink's writer was at the cut.
    Written { checkpoint: CheckpointId, sink: RelationId, position: Result<SinkPosition> },
    /// All jobs end now, to start again: what is under way is abandoned before the answer.
    Restarting(Sender<()>),
    /// End the thread.
    Stop,
}

/// The checkpoints that HEAD names at a start.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// The newest first.
    pub(crate) retained: Vec<(HeadCheckpoint, Cut)>,
    /// Those that are damaged.
    pub(crate) refused: Vec<HeadCheckpoint>,
    /// The one that the database started from.
    pub(crate) restored: Option<CheckpointId>,
}

/// A cut that was made: who is in it, and the sequencer's part.
pub(crate) struct Begun {
    pub(crate) checkpoint: CheckpointId,
    pub(crate) time: Time,
    /// Its jobs lack their workers' parts.
    pub(crate) cut: Cut,
    /// The rows of each of its [`Cut::bad_rows`] that are kept.
    pub(crate) bad_rows: Vec<Option<Vec<Chunk>>>,
    /// What each sink into a table wrote since the last cut.
    pub(crate) sinks: HashMap<RelationId, Unsaved>,
    /// In the order of its jobs.
    pub(crate) members: Vec<MemberJob>,
    /// The views that read nothing but sources, with those.
    pub(crate) on_sources_alone: HashMap<RelationId, Vec<RelationId>>,
    pub(crate) workers: usize,
}

/// A job that is to be captured.
pub(crate) struct MemberJob {
    pub(crate) shared: Arc<RelationShared>,
    /// The jobs whose rows it follows.
    pub(crate) follows: Vec<RelationId>,
    /// Its rows are nowhere else.
    pub(crate) is_table: bool,
    /// Its rows leave: its writer tells where it is.
    pub(crate) is_sink: bool,
}

/// A checkpoint as people see it.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointInfo {
    pub(crate) id: CheckpointId,
    pub(crate) status: &'static str,
    /// Milliseconds from the cut to the end; `None` when that was in an earlier life of the server.
    pub(crate) duration_millis: Option<u64>,
    pub(crate) jobs: usize,
    pub(crate) parts: usize,
    /// Of all its parts.
    pub(crate) bytes: u64,
    /// Of those that no earlier checkpoint has.
    pub(crate) bytes_new: u64,
    /// The longest that one job's operators on one worker were kept from other work.
    pub(crate) pause: Option<Duration>,
    /// The database started from it.
    pub(crate) restored: bool,
    pub(crate) error: Option<String>,
}

/// The way to the controller. Clones share it.
#[derive(Clone)]
pub(crate) struct Checkpoints {
    pub(crate) messages: Sender<Message>,
    infos: Arc<Mutex<VecDeque<CheckpointInfo>>>,
}

impl Checkpoints {
    /// A way to a controller that is yet to be started on [`Controller::run`].
    pub(crate) fn new(messages: Sender<Message>) -> Checkpoints {
        Checkpoints { messages, infos: Arc::default() }
    }

    /// The checkpoints that there are, and the last that failed or were released; the newest first.
    pub(crate) fn infos(&self) -> Vec<CheckpointInfo> {
        lock(&self.infos).iter().cloned().collect()
    }

    /// Takes a checkpoint that has all that was answered so far; `None` when there is nothing that could be in one.
    ///
    /// # Errors
    /// Why there is none; 57P01 when the server is stopping.
    pub(crate) async fn take(&self) -> Result<Option<CheckpointId>> {
        let (answer, answered) = oneshot::channel();
        self.messages.send(Message::Now(answer)).map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())?
    }

    /// Writes the newest checkpoint as a savepoint into a folder, with the catalog's log.
    ///
    /// # Errors
    /// 55000 when there is none; 42710 when the folder is not empty; when it cannot be written.
    pub(crate) async fn savepoint(&self, folder: PathBuf, catalog: Vec<u8>) -> Result<CheckpointId> {
        let (answer, answered) = oneshot::channel();
        self.messages.send(Message::Savepoint { folder, catalog, answer }).map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())?
    }
}

pub(crate) struct Controller {
    pub(crate) stores: Arc<StateStores>,
    pub(crate) head: Arc<Mutex<HeadFile>>,
    pub(crate) relations: Arc<Relations>,
    pub(crate) requests: Sender<Request>,
    pub(crate) received: Receiver<Message>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) interval: Option<Duration>,
    pub(crate) retained_max: usize,
    pub(crate) env: Env,
}

/// What a running controller knows.
struct Running {
    controller: Controller,
    retained: Vec<(HeadCheckpoint, Cut)>,
    refused: Vec<HeadCheckpoint>,
    /// What each worker's backend of a job persisted last.
    persisted: HashMap<(RelationId, usize), Snapshot>,
    /// What each job was in a complete checkpoint last: its backends may refer to these parts, also while it is in none.
    held: HashMap<RelationId, Vec<Snapshot>>,
    /// What each sink into a table wrote that no complete checkpoint has.
    unsaved: HashMap<RelationId, Unsaved>,
    pending: Option<Pending>,
    /// The sequencer was asked and has not answered.
    asked: bool,
    /// The last one failed: the next is due though nothing changed.
    failed: bool,
    /// Those who wait for the one that is asked for or under way.
    served: Vec<oneshot::Sender<Result<Option<CheckpointId>>>>,
    /// Those who came later.
    waiting: Vec<oneshot::Sender<Result<Option<CheckpointId>>>>,
}

struct Pending {
    begun: Begun,
    started: Instant,
    /// For each job, each worker's part.
    parts: Vec<Vec<Option<Snapshot>>>,
    /// Jobs that ended before they were captured.
    ended: HashSet<RelationId>,
    pause: Duration,
}

impl Controller {
    /// Runs until [`Message::Stop`].
    pub(crate) fn run(self) {
        let (start, known) = loop {
            match self.received.recv() {
                Ok(Message::Start(start, known)) => break (start, known),
                Ok(Message::Stop) | Err(_) => return,
                // Before the database is back there is nothing to be cut.
                Ok(_) => {}
            }
        };
        for (named, cut) in &start.retained {
            let mut info = describe(named.checkpoint, cut, &BTreeSet::new());
            info.restored = start.restored == Some(named.checkpoint);
            lock(&self.checkpoints.infos).push_back(info);
        }
        for named in &start.refused {
            let mut info = describe(named.checkpoint, &Cut::default(), &BTreeSet::new());
            info.status = "DAMAGED";
            lock(&self.checkpoints.infos).push_back(info);
        }
        drop(known);
        let restored = start.retained.iter().filter(|(named, _)| start.restored == Some(named.checkpoint));
        let held = restored.flat_map(|(_, cut)| &cut.jobs).map(|job| (job.relation, job.workers.clone())).collect();
        Running {
            held,
            controller: self,
            retained: start.retained,
            refused: start.refused,
            persisted: HashMap::new(),
            unsaved: HashMap::new(),
            pending: None,
            asked: false,
            failed: false,
            served: Vec::new(),
            waiting: Vec::new(),
        }
        .run();
    }
}

impl Running {
    fn run(mut self) {
        let interval = self.controller.interval.unwrap_or(PATIENCE);
        let mut due = Instant::now() + interval;
        loop {
            let idle = self.pending.is_none() && !self.asked;
            let is_due = Instant::now() >= due && self.controller.interval.is_some();
            if idle && (is_due || !self.waiting.is_empty()) {
                self.served.append(&mut self.waiting);
                self.asked = true;
                if self.controller.requests.send(Request::Checkpoint { anyway: self.failed }).is_err() {
                    return;
                }
            }
            let working = self.pending.is_some() || self.asked;
            let wait = if self.pending.is_some() {
                LOOK
            } else if self.asked {
                PATIENCE
            } else {
                due.saturating_duration_since(Instant::now()).min(PATIENCE)
            };
            match self.controller.received.recv_timeout(wait) {
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Message::Start(..)) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::Now(answer)) => self.waiting.push(answer),
                Ok(Message::Savepoint { folder, catalog, answer }) => {
                    // Whoever asked may be gone.
                    let _ = answer.send(self.savepoint(&folder, catalog));
                }
                Ok(Message::Begun(begun)) => self.begun(*begun),
                Ok(Message::NotBegun(reason)) => {
                    self.asked = false;
                    let newest = self.retained.first().map(|(named, _)| named.checkpoint);
                    if let Some(error) = &reason {
                        tracing::warn!(%error, "there is no checkpoint now");
                    }
                    self.answer(&reason.map_or(Ok(newest), Err));
                }
                Ok(Message::Captured(captured)) => self.captured(captured),
                Ok(Message::Written { checkpoint, sink, position }) => self.written(checkpoint, sink, position),
                Ok(Message::Restarting(answer)) => {
                    self.abandon(&restarted());
                    self.persisted.clear();
                    // The sequencer waits.
                    let _ = answer.send(());
                }
            }
            if self.pending.is_some() {
                self.look();
            }
            if working && self.pending.is_none() && !self.asked {
                // Also when there was nothing to do.
                due = Instant::now() + interval;
            }
        }
    }

    fn answer(&mut self, outcome: &Result<Option<CheckpointId>>) {
        for waiting in self.served.drain(..) {
            // Whoever asked may be gone.
            let _ = waiting.send(outcome.clone());
        }
    }

    /// Nothing is released meanwhile: that is this thread's work too.
    fn savepoint(&self, folder: &Path, catalog: Vec<u8>) -> Result<CheckpointId> {
        let Some((named, cut)) = self.retained.first() else {
            return Err(Error::new(SqlState::ObjectNotReady, "there is nothing to keep in a savepoint")
                .hint("Create a table or a materialized view first."));
        };
        super::savepoint::write(&self.controller.stores, named, cut, catalog, folder)?;
        Ok(named.checkpoint)
    }

    fn begun(&mut self, mut begun: Begun) {
        self.asked = false;
        let mut unsaved: HashMap<RelationId, Unsaved> = HashMap::new();
        for (sink, new) in std::mem::take(&mut begun.sinks) {
            let mut all = self.unsaved.remove(&sink).unwrap_or_default();
            all.add(new.chunks());
            unsaved.insert(sink, all);
        }
        // Others are gone.
        self.unsaved = unsaved;
        let mut info = describe(begun.checkpoint, &begun.cut, &BTreeSet::new());
        info.status = "RUNNING";
        self.show(info);
        self.pending = Some(Pending {
            started: Instant::now(),
            parts: begun.members.iter().map(|_| vec![None; begun.workers]).collect(),
            ended: HashSet::new(),
            pause: Duration::ZERO,
            begun,
        });
        // Before anything is written where another process may be at work now.
        if let Err(error) = self.confirm() {
            self.abandon(&error);
        }
    }

    /// Makes sure that what is under way may still be completed.
    fn confirm(&self) -> Result<()> {
        let jobs = self.pending.iter().flat_map(|pending| &pending.begun.cut.jobs);
        self.controller.stores.confirm(jobs.map(|job| job.state_uri.as_str()))
    }

    /// Shows a checkpoint's state in place of the one before.
    fn show(&self, info: CheckpointInfo) {
        let mut infos = lock(&self.controller.checkpoints.infos);
        match infos.iter_mut().find(|known| known.id == info.id) {
            Some(known) => *known = info,
            None => infos.push_front(info),
        }
        infos.truncate(INFOS_MAX);
    }

    fn captured(&mut self, captured: Captured) {
        // What belongs to one that was abandoned is dropped: the backend has it for the next.
        let Some(pending) = self.pending.as_mut().filter(|p| p.begun.checkpoint == captured.checkpoint) else { return };
        let Some(at) = pending.begun.cut.jobs.iter().position(|job| job.relation == captured.job) else { return };
        pending.pause = pending.pause.max(captured.pause);
        let place = (captured.job, captured.worker);
        let snapshot = match captured.capture {
            Ok(Some(capture)) => capture.persist().inspect(|_| captured.persisted.store(true, Ordering::Release)),
            Ok(None) => self
                .persisted
                .get(&place)
                .cloned()
                .ok_or_else(|| Error::internal("a job says that its state is persisted, and it is not")),
            Err(error) => Err(error),
        };
        match snapshot {
            Ok(snapshot) => {
                self.persisted.insert(place, snapshot.clone());
                if let Some(part) = pending.parts[at].get_mut(captured.worker) {
                    *part = Some(snapshot);
                }
            }
            Err(error) => {
                self.persisted.remove(&place);
                self.abandon(&error);
            }
        }
    }

    fn written(&mut self, checkpoint: CheckpointId, sink: RelationId, position: Result<SinkPosition>) {
        let Some(pending) = self.pending.as_mut().filter(|p| p.begun.checkpoint == checkpoint) else { return };
        match position {
            Ok(position) => {
                let jobs = &mut pending.begun.cut.jobs;
                jobs.iter_mut()
                    .filter(|job| job.relation == sink)
                    .for_each(|job| job.position = Some(position.clone()));
            }
            Err(error) => self.abandon(&error),
        }
    }

    /// Leaves out jobs that ended, and completes the checkpoint when all others are there.
    fn look(&mut self) {
        let Some(pending) = &mut self.pending else { return };
        let mut all = true;
        let jobs = pending.begun.members.iter().zip(&pending.parts).zip(&pending.begun.cut.jobs);
        for ((member, parts), job) in jobs {
            let is_there = parts.iter().all(Option::is_some) && (!member.is_sink || job.position.is_some());
            if is_there || pending.ended.contains(&member.shared.id) {
                continue;
            }
            if self.controller.relations.still_runs(&member.shared) {
                all = false;
            } else {
                pending.ended.insert(member.shared.id);
            }
        }
        if !all {
            return;
        }
        let Some(pending) = self.pending.take() else { return };
        let checkpoint = pending.begun.checkpoint;
        match self.complete(pending) {
            Ok(()) => {
                self.failed = false;
                self.answer(&Ok(Some(checkpoint)));
            }
            Err(error) => self.failed(checkpoint, &error),
        }
    }

    fn abandon(&mut self, error: &Error) {
        if let Some(pending) = self.pending.take() {
            self.failed(pending.begun.checkpoint, error);
        }
    }

    fn failed(&mut self, checkpoint: CheckpointId, error: &Error) {
        if error.code() == SqlState::AdminShutdown {
            tracing::error!(%checkpoint, ?error, "there are no checkpoints any more");
        } else {
            tracing::warn!(%checkpoint, %error, "a checkpoint was abandoned");
        }
        self.failed = true;
        let mut info = describe(checkpoint, &Cut::default(), &BTreeSet::new());
        info.status = "FAILED";
        info.error = Some(error.message().to_owned());
        self.show(info);
        self.answer(&Err(error.clone()));
    }

    fn complete(&mut self, pending: Pending) -> Result<()> {
        let Pending { begun, started, parts, ended, pause } = pending;
        let mut cut = self.cut_of(&begun, parts, &ended)?;
        let controller = &self.controller;
        let before = self.retained.first().map(|(_, cut)| cut.sinks.as_slice()).unwrap_or_default();
        cut.sinks = written::write(&**controller.stores.root(), begun.checkpoint, before, &self.unsaved)?;
        let failpoints = controller.env.failpoints();
        failpoints.pass("checkpoint.manifest")?;
        let mut manifest = Manifest::new(GROUP, begun.checkpoint, "", Vec::new());
        manifest.time_millis = begun.time.as_millis();
        manifest.incarnation = lock(&controller.head).head().incarnation;
        manifest.engine = cut.to_json()?;
        let named = manifest.write(&**controller.stores.root())?;
        controller.stores.confirm(cut.jobs.iter().map(|job| job.state_uri.as_str()))?;
        failpoints.pass("checkpoint.head")?;
        let refused: Vec<CheckpointId> = self.refused.iter().map(|refused| refused.checkpoint).collect();
        let complete = |head: &mut Head| {
            // What is damaged is no reason to keep less.
            head.checkpoints.entry(GROUP.to_owned()).or_default().retain(|c| !refused.contains(&c.checkpoint));
            head.complete(GROUP, named.clone(), controller.retained_max)
        };
        let released = lock(&controller.head).update(complete)?;
        self.unsaved.values_mut().for_each(|unsaved| *unsaved = Unsaved::default());
        let before = self.retained.iter().flat_map(|(_, cut)| cut.parts()).collect();
        let mut info = describe(begun.checkpoint, &cut, &before);
        info.duration_millis = Some(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX));
        info.pause = Some(pause);
        tracing::debug!(checkpoint = %begun.checkpoint, jobs = info.jobs, bytes = info.bytes, ?pause, "checkpoint");
        self.show(info);
        for job in cut.jobs.iter().filter(|job| job.behind.is_none()) {
            self.held.insert(job.relation, job.workers.clone());
        }
        let is_there = |job: &RelationId| self.controller.relations.status(*job).is_some();
        self.persisted.retain(|(job, _), _| is_there(job));
        self.held.retain(|job, _| is_there(job));
        self.retained.insert(0, (named, cut));
        self.release(&released);
        Ok(())
    }

    /// The cut with the parts of the jobs that are in it.
    fn cut_of(&self, begun: &Begun, parts: Vec<Vec<Option<Snapshot>>>, ended: &HashSet<RelationId>) -> Result<Cut> {
        let mut kept: HashSet<RelationId> = HashSet::new();
        for member in &begun.members {
            if member.is_table
                && ended.contains(&member.shared.id)
                && self.controller.relations.is_there(&member.shared)
            {
                return Err(Error::new(
                    SqlState::ObjectNotReady,
                    format!("table {} has failed, so there is no checkpoint", member.shared.name),
                )
                .hint("The server's log has the reason. A restart brings its rows back from the timeline."));
            }
            // Members are in the order of their numbers: what a job follows comes before it.
            if !ended.contains(&member.shared.id) && member.follows.iter().all(|job| kept.contains(job)) {
                kept.insert(member.shared.id);
            }
        }
        let mut cut = begun.cut.clone();
        for (job, parts) in cut.jobs.iter_mut().zip(parts) {
            job.workers = parts.into_iter().flatten().collect();
        }
        cut.jobs.retain(|job| kept.contains(&job.relation));
        if let Some((_, before)) = self.retained.first() {
            for job in before.jobs.iter().filter(|job| !kept.contains(&job.relation)) {
                let Some(sources) = begun.on_sources_alone.get(&job.relation) else { continue };
                let known = job.behind.as_ref().unwrap_or(&before.offsets);
                let known = known.iter().filter(|(table, _)| sources.contains(table));
                let behind = known.map(|(table, splits)| (*table, splits.clone())).collect();
                cut.jobs.push(JobCut { behind: Some(behind), ..job.clone() });
            }
            cut.jobs.sort_by_key(|job| job.relation);
        }
        for (bad, rows) in cut.bad_rows.iter_mut().zip(&begun.bad_rows) {
            let Some(rows) = rows else { continue };
            let mut writer = StreamWriter::try_new(Vec::new(), &crate::catalog::errors_schema())?;
            rows.iter().try_for_each(|chunk| writer.write(chunk.batch()))?;
            let name = format!("cp-{}/errors-{}.arrow", begun.checkpoint, bad.table);
            bad.rows = Some(self.controller.stores.root().put(&name, writer.into_inner()?.into())?);
        }
        Ok(cut)
    }

    /// Removes what only released checkpoints need. What cannot be removed is left to a sweep.
    fn release(&mut self, released: &[HeadCheckpoint]) {
        let refused = std::mem::take(&mut self.refused);
        let is_released = |named: &HeadCheckpoint| released.contains(named);
        let (gone, kept) = std::mem::take(&mut self.retained).into_iter().partition(|(named, _)| is_released(named));
        self.retained = kept;
        let gone: Vec<(HeadCheckpoint, Cut)> = gone;
        for info in lock(&self.controller.checkpoints.infos).iter_mut() {
            if gone.iter().any(|(named, _)| named.checkpoint == info.id) {
                info.status = "RELEASED";
            }
        }
        if let Err(error) = self.remove(&gone, &refused) {
            tracing::warn!(%error, "parts of released checkpoints could not be removed; the next start tries again");
        }
        if let Some((oldest, _)) = self.retained.last() {
            let upto = Time::from_millis(oldest.checkpoint.0);
            // The sequencer is gone when the server stops.
            let _ = self.controller.requests.send(Request::ForgetTimeline { upto });
        }
    }

    fn remove(&self, gone: &[(HeadCheckpoint, Cut)], refused: &[HeadCheckpoint]) -> Result<()> {
        let stores = &self.controller.stores;
        self.controller.env.failpoints().pass("checkpoint.release")?;
        for (named, cut) in gone {
            for job in &cut.jobs {
                let same = |other: &&JobCut| other.relation == job.relation && other.state_uri == job.state_uri;
                let kept = self.retained.iter().flat_map(|(_, cut)| cut.jobs.iter().filter(same));
                let held = self.held.get(&job.relation).into_iter().flatten();
                let parts = released_parts(&job.workers, kept.flat_map(|job| &job.workers).chain(held));
                let store = stores.store(job.relation, &stores.uri(Some(&job.state_uri))?)?;
                parts.iter().try_for_each(|part| store.delete(part))?;
            }
            let is_kept =
                |part: &&Part| self.retained.iter().any(|(_, cut)| cut.root_parts().any(|kept| kept == *part));
            let rest = cut.root_parts().filter(|part| !is_kept(part));
            rest.chain([&named.manifest]).try_for_each(|part| stores.root().delete(&part.name))?;
        }
        refused.iter().try_for_each(|named| stores.root().delete(&named.manifest.name))
    }
}

fn describe(id: CheckpointId, cut: &Cut, before: &BTreeSet<(RelationId, &Part)>) -> CheckpointInfo {
    let parts = cut.parts();
    let written: HashSet<_> = before.iter().map(content).collect();
    CheckpointInfo {
        id,
        status: "COMPLETE",
        duration_millis: None,
        jobs: cut.jobs.len(),
        parts: parts.len(),
        bytes: parts.iter().map(|(_, part)| part.bytes).sum(),
        bytes_new: parts.iter().filter(|part| !written.contains(&content(part))).map(|(_, part)| part.bytes).sum(),
        pause: None,
        restored: false,
        error: None,
    }
}

/// What two parts share when one was written: a sorted file of RocksDB has links in the folders of all its checkpoints.
fn content<'a>((job, part): &(RelationId, &'a Part)) -> (RelationId, &'a str, u64, u32) {
    let name = match part.name.rsplit_once('/') {
        Some((_, file)) if file.ends_with(".sst") => file,
        _ => part.name.as_str(),
    };
    (*job, name, part.bytes, part.crc32c)
}
