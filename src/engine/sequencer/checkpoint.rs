//! Cutting for a checkpoint.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Batch, Sequencer};
use crate::engine::checkpoints::{Begun, Cut, JobCut, Message, plan_mark};
use crate::exec::sink::SinkMark;
use crate::exec::{Barrier, WorkerCommand};
use crate::types::{CheckpointId, Error, Result};

impl Sequencer {
    /// Cuts when there is something new, or `anyway`, and tells the controller.
    pub(super) fn checkpoint(&mut self, batch: Batch, anyway: bool) {
        let Some((_, controller)) = self.state.clone() else { return };
        let message = match self.cut(batch, anyway) {
            Ok(Some((begun, barrier))) => {
                // The controller knows of the checkpoint before anything of it comes; it is gone when the server stops.
                let _ = controller.send(Message::Begun(Box::new(begun)));
                let (checkpoint, time) = (barrier.checkpoint, barrier.time);
                self.relations.mark_sinks(&barrier.jobs, |sink| {
                    let controller = controller.clone();
                    let told = move |position| {
                        let _ = controller.send(Message::Written { checkpoint, sink, position });
                    };
                    SinkMark { time, answer: Box::new(told) }
                });
                self.executor.broadcast(&WorkerCommand::Barrier(Arc::new(barrier)));
                return;
            }
            Ok(None) => Message::NotBegun(None),
            Err(error) => Message::NotBegun(Some(error)),
        };
        // The controller is gone when the server stops.
        let _ = controller.send(message);
    }

    fn cut(&mut self, batch: Batch, anyway: bool) -> Result<Option<(Begun, Barrier)>> {
        let Some((stores, controller)) = self.state.clone() else { return Ok(None) };
        let before = self.last_time();
        let is_new = anyway || self.changed || batch.is_urgent() || {
            let jobs = self.relations.to_capture(before)?;
            !jobs.iter().map(|(_, member)| member.shared.id).eq(self.in_cut.iter().copied())
        };
        if !is_new {
            return Ok(None);
        }
        let time = self.new_time(Batch { tick: true, ..batch })?;
        let jobs = self.relations.to_capture(time)?;
        self.log.begin_file(time)?;
        let offsets = self.bindings.iter().map(|(table, splits)| {
            let splits = splits.iter().map(|(split, end)| (split.as_str().to_owned(), *end));
            (*table, splits.collect::<BTreeMap<_, _>>())
        });
        let mut cut = Cut { offsets: offsets.collect(), event_times: self.event_times.cut(), ..Cut::default() };
        cut.orders = self.orders.iter().map(|(table, order)| (*table, order.cut())).collect();
        let mut bad_rows = Vec::new();
        for (table, bad) in &self.bad_rows {
            let (bad, rows) = bad.cut(*table);
            cut.bad_rows.push(bad);
            bad_rows.push(rows);
        }
        let mut members = Vec::with_capacity(jobs.len());
        for (spec, member) in jobs {
            let plan = plan_mark(&spec).ok_or_else(|| Error::internal("a job without a plan keeps state"))?;
            let state_uri = stores.uri(spec.state_backend())?.to_string();
            let (relation, name) = (spec.id, spec.qualified_name);
            let known = self.event_times.known_to(relation);
            cut.jobs.push(JobCut {
                relation,
                name,
                plan,
                state_uri,
                workers: Vec::new(),
                behind: None,
                position: None,
                known,
            });
            members.push(member);
        }
        let checkpoint = CheckpointId(time.as_millis());
        self.in_cut = cut.jobs.iter().map(|job| job.relation).collect();
        self.changed = false;
        let barrier = Barrier {
            checkpoint,
            time,
            jobs: self.in_cut.clone(),
            captured: Box::new(move |captured| {
                // The controller is gone when the server stops.
                let _ = controller.send(Message::Captured(captured));
            }),
            failpoints: stores.failpoints().clone(),
        };
        let workers = self.executor.workers();
        let on_sources_alone = self.relations.on_sources_alone();
        let sinks = self.unsaved.iter_mut().map(|(sink, unsaved)| (*sink, std::mem::take(unsaved))).collect();
        let begun = Begun { checkpoint, time, cut, bad_rows, sinks, members, on_sources_alone, workers };
        Ok(Some((begun, barrier)))
    }
}
