//! Looking into the operators of jobs: their rows at one time, page by page.
//!
//! A read hands out a time and begins on every worker when that time is closed and no later one begun. It holds nothing back:
//! the operators put aside what changes ahead of it, up to a bound.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use tokio::sync::oneshot;

use super::{Coordinator, Inner, RelationState};
use crate::engine::installed::{gone, restarted};
use crate::engine::sequencer::{Request, stopping};
use crate::exec::operators::InspectedPage;
use crate::exec::{Ask, Inspection, WorkerCommand};
use crate::types::{Error, InspectionId, KeyGroup, RelationId, Result, Time};

/// A part of an operator's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inside {
    /// The job.
    pub(crate) job: RelationId,
    /// The operator's place in its plan.
    pub(crate) operator: String,
    /// The number of the part.
    pub(crate) part: usize,
}

impl Inside {
    fn ask(&self, ask: Ask) -> WorkerCommand {
        WorkerCommand::Inspect(Arc::new(Inspection { job: self.job, operator: self.operator.clone(), ask }))
    }
}

/// A read of an operator's rows on all workers; it ends when it is dropped.
pub(crate) struct OperatorRead {
    inner: Arc<Inner>,
    /// Of the workers that it reads.
    generation: u64,
    inside: Inside,
    id: InspectionId,
}

impl Drop for OperatorRead {
    fn drop(&mut self) {
        self.inner.executor.broadcast(&self.inside.ask(Ask::End { id: self.id }));
    }
}

impl Coordinator {
    /// Begins reads of operators, all at one time that is not before anything that was answered so far. Waits until their
    /// jobs are whole. Cancel safe.
    ///
    /// # Errors
    /// 42P01 when a job is gone, 55000 when it failed or is blocked; 57P01 when the server is stopping.
    pub(crate) async fn inspect(&self, wanted: &[Inside]) -> Result<(Time, Vec<OperatorRead>)> {
        let generation = self.whole(wanted).await?;
        let (inner, wanted) = (Arc::clone(&self.inner), wanted.to_vec());
        self.at_new_time(move |time| {
            let read = |inside: Inside| {
                let id = InspectionId(inner.inspections.fetch_add(1, Ordering::Relaxed));
                inner.executor.broadcast(&inside.ask(Ask::Begin { id, part: inside.part, time }));
                OperatorRead { inner: Arc::clone(&inner), generation, inside, id }
            };
            wanted.into_iter().map(read).collect()
        })
        .await
    }

    /// The rows of an operator with an encoded key, which one worker has, and their time. Cancel safe.
    ///
    /// # Errors
    /// As [`Self::inspect`].
    pub(crate) async fn find_inside(&self, inside: &Inside, key: Vec<u8>) -> Result<(Time, RecordBatch)> {
        let generation = self.whole(std::slice::from_ref(inside)).await?;
        let (answer, answered) = oneshot::channel();
        let (inner, of) = (Arc::clone(&self.inner), inside.clone());
        let asked = self.at_new_time(move |time| {
            let worker = KeyGroup::of(&key).worker(inner.executor.workers());
            let find = Ask::Find { part: of.part, time, keys: vec![key], answer: Mutex::new(Some(answer)) };
            inner.executor.send(worker, of.ask(find));
        });
        let (time, ()) = asked.await?;
        Ok((time, self.inner.answered(inside.job, generation, answered.await)?))
    }

    /// Hands out a time, and does something before there is a later one. Cancel safe: what was done is dropped then.
    async fn at_new_time<T: Send + 'static>(&self, act: impl FnOnce(Time) -> T + Send + 'static) -> Result<(Time, T)> {
        let act = |answer: oneshot::Sender<Result<(Time, T)>>| {
            Request::AtTime(Box::new(move |time| {
                // Whoever asked may be gone.
                let _ = answer.send(time.map(|time| (time, act(time))));
            }))
        };
        self.ask(act).await?
    }

    /// Waits until some jobs are whole; gives the workers that they run on then.
    async fn whole(&self, wanted: &[Inside]) -> Result<u64> {
        let relations = &self.inner.relations;
        let all_whole = || {
            let generation = self.inner.executor.generation();
            for inside in wanted {
                if let Some(error) = relations.trouble(inside.job) {
                    return Some(Err(error));
                }
                match relations.status(inside.job).map(|status| status.state) {
                    Some(RelationState::Filling) => return None,
                    Some(_) => {}
                    None => return Some(Err(relations.missing())),
                }
            }
            Some(Ok(generation))
        };
        relations.progress().wait_for(all_whole).await
    }
}

impl Inner {
    /// What a worker answered; when it did not, why.
    fn answered<T>(
        &self,
        job: RelationId,
        generation: u64,
        answer: Result<Result<T>, oneshot::error::RecvError>,
    ) -> Result<T> {
        if self.executor.generation() != generation {
            return Err(restarted());
        }
        answer.unwrap_or_else(|_| Err(self.relations.trouble(job).unwrap_or_else(|| self.no_answer(job))))
    }

    fn no_answer(&self, job: RelationId) -> Error {
        match self.relations.status(job) {
            Some(_) => stopping(),
            None => gone(),
        }
    }
}

impl OperatorRead {
    /// What is read.
    pub(crate) fn inside(&self) -> &Inside {
        &self.inside
    }

    /// Number of workers that have its rows.
    pub(crate) fn workers(&self) -> usize {
        self.inner.executor.workers()
    }

    /// The next rows that `worker` has, at most about so many.
    ///
    /// # Errors
    /// 72000 when more changed meanwhile than is kept for a reader; 55000 when the job failed, 42P01 when it is gone.
    pub(crate) async fn page(&self, worker: usize, rows_max: usize) -> Result<InspectedPage> {
        let (answer, answered) = oneshot::channel();
        let page = Ask::Page { id: self.id, rows_max, answer: Mutex::new(Some(answer)) };
        self.inner.executor.send(worker, self.inside.ask(page));
        self.inner.answered(self.inside.job, self.generation, answered.await)
    }
}
