//! Following a relation: its changes from a time on, page by page, out of the history that serves reads.
//!
//! Nothing is queued for one who follows. The workers keep the changes that it has not had, up to a bound; one that is
//! slower finds them gone. So a slow reader costs that bound, and a reader that is gone costs nothing.

use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::{Coordinator, Inner, Pin};
use crate::engine::installed::gone;
use crate::engine::sequencer::stopping;
use crate::exec::arrangement::{ChangePlace, Changes};
use crate::exec::relation::RelationShared;
use crate::exec::{Follow, WorkerCommand};
use crate::types::{Error, RelationId, Result, SqlState, Time};

/// A relation that is followed: its changes after a time stay readable, up to a bound.
pub(crate) struct Following {
    inner: Arc<Inner>,
    shared: Arc<RelationShared>,
    after: Time,
    /// Between these two times a restart had only a part of the input: what changed is of the second.
    unclear: (Time, Time),
}

impl Drop for Following {
    fn drop(&mut self) {
        self.shared.unfollow(self.after);
    }
}

impl Coordinator {
    /// Follows a relation from the time of a pin on.
    ///
    /// # Errors
    /// 42P01 when the pin is not one of the relation.
    pub(crate) fn follow_pin(&self, pin: &Pin, relation: RelationId) -> Result<Following> {
        let shared = Arc::clone(&pin.part(relation)?.shared);
        shared.follow(pin.time);
        Ok(Following { inner: Arc::clone(&self.inner), shared, after: pin.time, unclear: (Time::ZERO, Time::ZERO) })
    }

    /// Follows a relation from a time on whose rows somebody has; waits until it runs. Cancel safe.
    ///
    /// # Errors
    /// 72000 when its changes since are not known any more; 22023 when the time has not come yet; 55000 when the
    /// relation failed or is blocked.
    pub(crate) async fn follow(&self, relation: RelationId, after: Time) -> Result<Following> {
        let progress = self.inner.relations.progress();
        progress.wait_for(|| self.try_follow(relation, after).transpose()).await
    }

    fn try_follow(&self, relation: RelationId, after: Time) -> Result<Option<Following>> {
        let relations = &self.inner.relations;
        let (shared, _) = relations.kept(relation)?;
        if let Some(error) = relations.trouble(relation) {
            return Err(error);
        }
        let last = self.last_time();
        if after > last {
            return Err(Error::new(SqlState::InvalidParameterValue, format!("time {after} has not come yet"))
                .hint("Use the token of an earlier answer of this database."));
        }
        let Some(whole_from) = shared.whole_from() else { return Ok(None) };
        shared.follow(after);
        let following = Following {
            inner: Arc::clone(&self.inner),
            unclear: (shared.restored_at().unwrap_or(Time::ZERO), whole_from),
            shared,
            after,
        };
        let shared = &following.shared;
        let retained = shared.retain_millis();
        let oldest = if retained == 0 {
            relations.floor().max(shared.since())
        } else {
            shared.kept_since().max(Time::from_millis(last.as_millis().saturating_sub(retained)))
        };
        // A restart knows all times up to its checkpoint, and those from which on all input is in.
        let known = after >= whole_from || (retained > 0 && shared.restored_at().is_some_and(|at| after <= at));
        if after < oldest || !known {
            return Err(too_old(&format!(
                "The changes after time {after} were asked for; they are known from {} on.",
                if known { oldest } else { whole_from.max(oldest) }
            )));
        }
        Ok(Some(following))
    }
}

/// True when the `retain_history` of a relation covers a time, also one before the last start.
pub(super) fn keeps(shared: &RelationShared, time: Time, last: Time) -> bool {
    let retained = shared.retain_millis();
    let oldest = shared.kept_since().max(Time::from_millis(last.as_millis().saturating_sub(retained)));
    let is_whole = shared.whole_from().is_some_and(|from| time >= from);
    retained > 0 && time >= oldest && (is_whole || shared.restored_at().is_some_and(|at| time <= at))
}

fn too_old(detail: &str) -> Error {
    Error::new(SqlState::SnapshotTooOld, "the subscription cannot go on from here").detail(detail)
}

impl Following {
    /// Waits until times after the one that was reached have closed; gives the last of them. Cancel safe.
    ///
    /// # Errors
    /// 42P01 when the relation was dropped, 55000 when it failed; 72000 when its job was started anew.
    pub(crate) async fn closed(&self) -> Result<Time> {
        let relations = &self.inner.relations;
        relations
            .progress()
            .wait_for(|| {
                if !relations.is_there(&self.shared) {
                    return Some(Err(match relations.kept(self.shared.id) {
                        Ok(_) => too_old("The job was started anew."),
                        Err(_) => gone(),
                    }));
                }
                if let Some(error) = relations.trouble(self.shared.id) {
                    return Some(Err(error));
                }
                let newest = self.shared.upper().previous()?.min(self.last_time());
                let (from, clear) = self.unclear;
                let ready = newest > self.after && !(self.after <= from && newest < clear);
                ready.then_some(Ok(newest))
            })
            .await
    }

    fn last_time(&self) -> Time {
        Time::from_millis(self.inner.last_time.load(std::sync::atomic::Ordering::Acquire))
    }

    /// Changes after the reached time and up to another that `worker` has, from a place on.
    ///
    /// # Errors
    /// 72000 when they are gone: whoever follows was too slow.
    pub(crate) async fn changes(
        &self,
        worker: usize,
        upto: Time,
        place: Option<ChangePlace>,
        rows_max: usize,
        projection: &[usize],
    ) -> Result<Changes> {
        let (answer, answered) = oneshot::channel();
        let follow = Follow {
            relation: self.shared.id,
            after: self.after,
            upto,
            place,
            rows_max,
            projection: projection.to_vec(),
            answer: Mutex::new(Some(answer)),
        };
        self.inner.executor.send(worker, WorkerCommand::Follow(Arc::new(follow)));
        let changes = answered.await.map_err(|_| stopping())?;
        let mut changes = changes.map_err(|error| match error.code() {
            SqlState::SnapshotTooOld => too_old("It fell too far behind: its changes are not kept any more."),
            _ => error,
        })?;
        let (from, clear) = self.unclear;
        for change in &mut changes.changes {
            if change.time > from && change.time < clear {
                change.time = clear;
            }
        }
        Ok(changes)
    }

    /// Whoever follows has all changes up to a time.
    pub(crate) fn reached(&mut self, time: Time) {
        self.shared.follow(time);
        self.shared.unfollow(self.after);
        self.after = time;
    }

    /// True for a time on the way at which a restart had only a part of the input.
    pub(crate) fn is_unclear(&self, time: Time) -> bool {
        let (from, clear) = self.unclear;
        self.after <= from && time > from && time < clear
    }

    /// The time that was reached.
    pub(crate) fn after(&self) -> Time {
        self.after
    }

    /// Number of workers that have its rows.
    pub(crate) fn workers(&self) -> usize {
        self.inner.executor.workers()
    }
}
