//! Starting all jobs again from a checkpoint while the server runs: on another number of workers, or with a job's state in
//! another backend.
//!
//! The new backends are filled first; when that fails, nothing has happened. Then the workers end, others start, and the
//! jobs go on as after a restart of the server. Times, offsets, and what sinks know of their tables, stay: nothing of it
//! was in the workers. Statements that read meanwhile are told to come again.

use std::sync::mpsc::channel;

use super::{Restart, Sequencer};
use crate::engine::checkpoints::{GROUP, Message, restore};
use crate::engine::coordinator::{RelationKind, RelationSpec};
use crate::engine::feeds::Feed;
use crate::exec::relation::lock;
use crate::types::{Error, Result, SqlState};

impl Sequencer {
    /// Starts all jobs again from the newest checkpoint.
    pub(super) fn restart(&mut self, restart: Restart) -> Result<()> {
        let Some((stores, controller)) = self.state.clone() else {
            return Err(Error::new(SqlState::ObjectNotReady, "this database keeps no checkpoints")
                .hint("clink serve keeps them, in its data directory."));
        };
        let workers = restart.workers.unwrap_or_else(|| self.executor.workers());
        let specs = self.specs(&restart);
        let head = lock(&self.head).head().clone();
        let newest = head.checkpoints.get(GROUP).and_then(|named| named.first()).map(|named| named.checkpoint);
        let (restored, start) = restore(&stores, &head, &specs, workers)?;
        if start.restored != newest || !start.refused.is_empty() {
            return Err(Error::new(SqlState::DataCorrupted, "the checkpoint that was just taken cannot be read back")
                .hint("The server's log has the reason. CHECKPOINT takes another."));
        }
        let (told, heard) = channel();
        // The controller is gone when the server stops; then nobody takes checkpoints either.
        let _ = controller.send(Message::Restarting(told));
        let _ = heard.recv();
        let paused = self.relations.paused();
        self.relations.set_restarting(true);
        self.feeds.clear();
        // Dependents have greater numbers than what they depend on.
        for spec in specs.iter().rev() {
            self.relations.end(spec.id);
        }
        self.errors.clear();
        self.in_cut.clear();
        let started = self.executor.restart(workers).and_then(|()| {
            self.restored = restored;
            self.bring_back(specs, false)
        });
        self.relations.set_restarting(false);
        if !self.waiting_for_feeds.is_empty() {
            self.feeds.iter().for_each(Feed::ask_level);
        }
        if started.is_ok() {
            tracing::info!(workers, "all jobs were started again");
            paused.into_iter().try_for_each(|job| self.relations.pause(job))?;
        }
        started
    }

    /// What is installed, upstream first, as it is to be.
    fn specs(&self, restart: &Restart) -> Vec<RelationSpec> {
        let mut specs = self.relations.specs();
        specs.extend(self.errors.values().cloned());
        // An errors relation waits for the first job on its table.
        let is_job = |spec: &RelationSpec| !matches!(spec.kind, RelationKind::Errors { .. });
        specs.sort_by_key(|spec| (is_job(spec), spec.id));
        if let Some((job, uri)) = &restart.moves {
            for spec in specs.iter_mut().filter(|spec| spec.id == *job) {
                if let RelationKind::View { state_backend, .. } = &mut spec.kind {
                    *state_backend = Some(uri.clone());
                }
            }
        }
        specs
    }
}
