//! Bringing all relations back: from a checkpoint, and from what the timeline has behind it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{RETRY, Sequencer, feed_input};
use crate::engine::bad_rows::BadRows;
use crate::engine::checkpoints::{Message, Start, Unsaved, restore, sweep};
use crate::engine::coordinator::{RelationKind, RelationSpec};
use crate::engine::timeline::{Binding, Record};
use crate::env::Step;
use crate::exec::relation::lock;
use crate::exec::sink::Sink;
use crate::exec::source::{Offset, SplitId};
use crate::types::{Chunk, Error, RelationId, Result, SqlState, Time, Watermark};

/// Changes that one tick of a replay carries.
const REPLAY_ROWS_PER_TICK: usize = 65_536;
/// How long jobs are let take in what they start from, before a replay, and how long one tick of that is.
const FILL_BEFORE_MAX: Duration = Duration::from_secs(60);
const FILL_TICK: Duration = Duration::from_millis(100);
/// Ticks of a replay that may be open.
const REPLAY_OPEN_TICKS_MAX: usize = 8;

impl Sequencer {
    /// Restores the newest checkpoint, starts all relations behind its time, and replays what the log has behind it at its
    /// own times. Many small ticks become one, at the last one's time: of the times before, nobody can ask, but for those
    /// that a relation's `retain_history` covers.
    pub(super) fn recover(&mut self, relations: Vec<RelationSpec>) -> Result<()> {
        let start = self.restore(&relations)?;
        self.bring_back(relations, true)?;
        if let Some((_, controller)) = &self.state {
            // Who asks for the checkpoints from now on is told of those that there are. The controller is gone when the
            // server stops.
            let (known, is_known) = std::sync::mpsc::channel();
            let _ = controller.send(Message::Start(start, known));
            let _ = is_known.recv();
        }
        Ok(())
    }

    /// Starts all relations from what is restored. `first`: in this process, so nobody knows what came before.
    pub(super) fn bring_back(&mut self, relations: Vec<RelationSpec>, first: bool) -> Result<()> {
        let from = self.restored.as_ref().map_or(Time::ZERO, |restored| restored.time);
        let mut replay: Vec<Record> = Vec::new();
        let known: HashMap<RelationId, bool> = relations
            .iter()
            .map(|relation| (relation.id, matches!(relation.kind, RelationKind::Table { .. })))
            .collect();
        let mut errors = self.bad_rows_of(&relations);
        for relation in &relations {
            if matches!(&relation.kind, RelationKind::External { key, .. } if !key.is_empty()) {
                let known = self.restored.as_mut().and_then(|restored| restored.orders.remove(&relation.id));
                self.orders.insert(relation.id, known.unwrap_or_default());
            }
        }
        let sinks: HashMap<RelationId, Arc<dyn Sink>> = relations
            .iter()
            .filter(|_| first)
            .filter_map(|relation| match &relation.kind {
                RelationKind::Sink { target, .. } if target.is_table => Some((relation.id, Arc::clone(&target.sink))),
                _ => None,
            })
            .collect();
        if self.state.is_some() && first {
            self.unsaved = sinks.keys().map(|sink| (*sink, Unsaved::default())).collect();
        }
        for (id, chunks) in self.restored.iter().flat_map(|restored| &restored.written) {
            if let Some(sink) = sinks.get(id) {
                sink.recall(*id, chunks)?;
            }
        }
        let mut claims: HashMap<(RelationId, SplitId), (Watermark, Time)> = HashMap::new();
        let mut bindings: HashMap<RelationId, BTreeMap<SplitId, (Offset, Time)>> = HashMap::new();
        for (table, splits) in self.restored.iter().flat_map(|restored| &restored.offsets) {
            let splits = splits.iter().map(|(split, end)| (split.clone(), (*end, from)));
            bindings.insert(*table, splits.collect());
        }
        bindings.retain(|table, _| known.contains_key(table));
        let retained = relations.iter().map(RelationSpec::retain_millis).max().unwrap_or(0);
        let bound = lock(&self.head).head().clock_bound_millis;
        // The clock goes on behind its bound, and the past is kept from there.
        // So is what a job put out by the times of its input.
        let by_time = |relation: &RelationSpec| match &relation.kind {
            RelationKind::View { plan, .. } | RelationKind::Sink { plan, .. } => plan.awaits_whole(),
            _ => false,
        };
        let exact_from = Time::from_millis(match retained {
            _ if relations.iter().any(by_time) => 0,
            0 => u64::MAX,
            retained => bound.saturating_sub(retained),
        });
        self.log.replay(from, &mut |mut record| {
            for (id, chunks) in &record.writes {
                if let Some(sink) = sinks.get(id) {
                    sink.recall(*id, chunks)?;
                    if let Some(unsaved) = self.unsaved.get_mut(id) {
                        unsaved.add(chunks);
                    }
                }
            }
            record.writes.retain(|(table, _)| known.get(table).copied().unwrap_or(false));
            for Binding { table, split, end, .. } in &record.bindings {
                if let Some(order) = self.orders.get_mut(table) {
                    order.bind(split, *end);
                }
            }
            record.bindings.sort_by(|a, b| a.split.cmp(&b.split));
            for Binding { table, split, end, bad, watermark } in &record.bindings {
                claims.insert((*table, split.clone()), (*watermark, record.time));
                if !known.contains_key(table) {
                    continue;
                }
                let splits = bindings.entry(*table).or_default();
                let start = splits.insert(split.clone(), (*end, record.time)).map_or(Offset::default(), |(end, _)| end);
                if let Some(kept) = errors.get_mut(table).filter(|_| *bad > 0) {
                    kept.bind(record.time, split, start, *end, *bad as usize);
                }
            }
            match replay.last_mut() {
                // Rows behind a mark must not come to a time before it.
                Some(last)
                    if record.time <= exact_from
                        && !last.marks()
                        && rows_of(last) + rows_of(&record) <= REPLAY_ROWS_PER_TICK =>
                {
                    last.time = record.time;
                    last.writes.append(&mut record.writes);
                    last.watermarks = record.watermarks;
                    last.opened = record.opened;
                }
                _ => replay.push(record),
            }
            Ok(())
        })?;
        self.bad_rows = errors;
        let retaining: Vec<RelationId> =
            relations.iter().filter(|relation| relation.retain_millis() > 0).map(|relation| relation.id).collect();
        let ends = |splits: &BTreeMap<SplitId, (Offset, Time)>| {
            splits.iter().map(|(split, (end, _))| (split.clone(), *end)).collect()
        };
        self.bindings = bindings.iter().map(|(table, splits)| (*table, ends(splits))).collect();
        self.recovering = true;
        let started: Result<()> = relations.into_iter().try_for_each(|relation| {
            let id = relation.id;
            self.start(relation, from.next())?;
            if let (Some(progress), Some(splits)) = (self.relations.progress_of(id), bindings.get(&id)) {
                splits.iter().for_each(|(split, (end, time))| progress.recovered(split, *end, *time));
            }
            Ok(())
        });
        self.recovering = false;
        self.restored = None;
        started?;
        for ((table, split), (claim, time)) in claims {
            self.event_times.read(table, &split, claim, time);
        }
        self.fill_before(from, replay.first().map(|record| record.time), retaining);
        self.changed = !replay.is_empty();
        self.replay(replay);
        if first {
            // The clock goes on above every time that was ever handed out.
            let bound = lock(&self.head).head().clock_bound_millis;
            self.last_time.fetch_max(bound, Ordering::AcqRel);
        }
        let time = self.next_time()?;
        self.broadcast(time, Vec::new());
        self.relations.set_floor(time);
        Ok(())
    }

    /// Lets jobs take in what they start from before what the log has, where that matters: of those that follow event time,
    /// a row of the past is not late; of those that retain history, every time of the log is known. Times before the first
    /// of the log are free for that.
    fn fill_before(&mut self, from: Time, first: Option<Time>, retaining: Vec<RelationId>) {
        let first = first.unwrap_or(Time::MAX);
        let mut time = from;
        let mut jobs = self.event_times.closed();
        jobs.extend(retaining);
        let relations = Arc::clone(&self.relations);
        let waits = || jobs.iter().any(|job| !relations.waits_for_no_edge(*job));
        let mut waited = Duration::ZERO;
        while waits() && time.next() < first && waited < FILL_BEFORE_MAX {
            time = time.next();
            self.broadcast(time, Vec::new());
            let tick = waited + FILL_TICK;
            while waits() && waited < tick {
                std::thread::park_timeout(RETRY);
                waited += RETRY;
            }
        }
    }

    fn restore(&mut self, relations: &[RelationSpec]) -> Result<Start> {
        let head = lock(&self.head).head().clone();
        let Some((stores, _)) = &self.state else {
            if head.checkpoints.is_empty() {
                return Ok(Start::default());
            }
            return Err(Error::new(SqlState::ObjectNotReady, "the data directory has checkpoints")
                .hint("Start a server on it: clink serve --data-dir …."));
        };
        let (restored, start) = restore(stores, &head, relations, self.executor.workers())?;
        sweep(stores, &start)?;
        self.restored = restored;
        Ok(start)
    }

    /// What is kept of rows that could not be read, by external table: as at the checkpoint.
    fn bad_rows_of(&self, relations: &[RelationSpec]) -> HashMap<RelationId, BadRows> {
        let mut found = HashMap::new();
        for relation in relations {
            let RelationKind::External { source, .. } = &relation.kind else { continue };
            let of_table =
                |other: &&RelationSpec| matches!(other.kind, RelationKind::Errors { of } if of == relation.id);
            let Some(errors) = relations.iter().find(of_table) else { continue };
            let restored = self.restored.as_ref().and_then(|restored| restored.bad_rows.get(&relation.id));
            let bad_rows = match restored {
                Some(restored) => BadRows::from_cut(errors.id, source.errors_retention, &restored.cut),
                None => BadRows::new(errors.id, source.errors_retention),
            };
            found.insert(relation.id, bad_rows);
        }
        found
    }

    fn replay(&mut self, replay: Vec<Record>) {
        let mut open = VecDeque::new();
        let total = replay.len() as u64;
        for (done, record) in replay.into_iter().enumerate() {
            let step = Step { what: "replaying the log of changes", done: done as u64, total };
            self.env.long_work().set(Some(step));
            while open.len() >= REPLAY_OPEN_TICKS_MAX {
                let upper = self.relations.least_upper_of_all();
                open.retain(|time| *time >= upper);
                if open.len() >= REPLAY_OPEN_TICKS_MAX {
                    std::thread::park_timeout(Duration::from_millis(1));
                }
            }
            open.push_back(record.time);
            for (table, watermark) in &record.watermarks {
                self.event_times.set(*table, *watermark, record.time);
            }
            // A job that is not whole yet is opened when it is.
            for job in record.opened {
                if self.event_times.is_closed(job) && self.relations.inputs_whole(job) {
                    self.event_times.open(job);
                    self.relations.opened(job, record.time);
                }
            }
            let inputs = record.writes.into_iter().map(|(table, chunks)| feed_input(table, chunks)).collect();
            self.broadcast(record.time, inputs);
        }
        self.env.long_work().set(None);
    }
}

fn rows_of(record: &Record) -> usize {
    record.writes.iter().flat_map(|(_, chunks)| chunks).map(Chunk::rows).sum()
}
