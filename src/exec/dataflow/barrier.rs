//! Barriers on one worker: a job's operators reach a checkpoint's time, hand what changed to the job's backend, and the
//! last of them captures it.
//!
//! An operator reaches the barrier between two times: everything up to the checkpoint's time is closed, nothing later is
//! begun. They get there one after the other; the backend is written at barriers alone, so what it holds when the last
//! one is through is the state of all of them at that time. Writing what was captured is another thread's work.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use timely::scheduling::Activator;

use super::driver::JobContext;
use super::inspect::{Inspection, Inspections};
use crate::env::Failpoints;
use crate::exec::operators::{Context, Operator, Step};
use crate::state::{Capture, StateBackend};
use crate::types::{CheckpointId, RelationId, Result, Time};

/// A cut that jobs are to capture.
pub(crate) struct Barrier {
    pub(crate) checkpoint: CheckpointId,
    /// What happened up to this time is in it, and nothing later.
    pub(crate) time: Time,
    /// The jobs, all of which take part on every worker.
    pub(crate) jobs: Vec<RelationId>,
    /// Told of each job's part on each worker; called from the worker's thread.
    pub(crate) captured: Box<dyn Fn(Captured) + Send + Sync>,
    pub(crate) failpoints: Failpoints,
}

/// A job's part of a cut on one worker.
pub(crate) struct Captured {
    pub(crate) checkpoint: CheckpointId,
    pub(crate) job: RelationId,
    pub(crate) worker: usize,
    /// `None`: it is what was persisted last.
    pub(crate) capture: Result<Option<Capture>>,
    /// To be set when the capture is persisted.
    pub(crate) persisted: Arc<AtomicBool>,
    /// How long the operators were kept from other work.
    pub(crate) pause: Duration,
}

/// The backend of a job on one worker, and the barrier that its operators are about to reach.
pub(super) struct JobStore {
    job: RelationId,
    worker: usize,
    pub(super) backend: RefCell<Box<dyn StateBackend>>,
    operators: RefCell<Vec<Activator>>,
    /// What is asked of operators, by their places in the plan.
    inspections: RefCell<HashMap<String, Rc<Inspections>>>,
    reaching: RefCell<Option<Reaching>>,
    /// Something was written since the last capture.
    changed: Cell<bool>,
    /// What was captured last is persisted.
    persisted: Arc<AtomicBool>,
}

struct Reaching {
    barrier: Arc<Barrier>,
    /// Operators that are not through.
    left: usize,
    pause: Duration,
}

impl JobStore {
    pub(super) fn new(job: RelationId, worker: usize, backend: Box<dyn StateBackend>) -> JobStore {
        JobStore {
            job,
            worker,
            backend: RefCell::new(backend),
            operators: RefCell::default(),
            inspections: RefCell::default(),
            reaching: RefCell::default(),
            changed: Cell::new(true),
            persisted: Arc::default(),
        }
    }

    /// An operator of the job keeps its state here.
    pub(super) fn join(self: &Rc<Self>, activator: Activator) -> Member {
        self.operators.borrow_mut().push(activator);
        Member { store: Rc::clone(self), passed: None }
    }

    /// The operator at a place of the plan can be looked into.
    pub(super) fn inspected(&self, path: &str, activator: Activator) -> Rc<Inspections> {
        let inspections = Rc::new(Inspections::new(activator));
        self.inspections.borrow_mut().insert(path.to_owned(), Rc::clone(&inspections));
        inspections
    }

    /// Hands on what is asked of an operator. Whoever asks for one that is not there is told by the end of the channel.
    pub(super) fn inspect(&self, inspection: &Arc<Inspection>) {
        if let Some(inspections) = self.inspections.borrow().get(&inspection.operator) {
            inspections.ask(inspection);
        }
    }

    /// The operators have a barrier to reach. One that they have not reached yet is given up; what was written for it is
    /// part of this one.
    pub(super) fn reach(&self, barrier: &Arc<Barrier>) {
        let operators = self.operators.borrow();
        let reaching = Reaching { barrier: Arc::clone(barrier), left: operators.len(), pause: Duration::ZERO };
        self.reaching.replace(Some(reaching));
        operators.iter().for_each(Activator::activate);
    }

    fn capture(&self, barrier: &Barrier) -> Result<Option<Capture>> {
        barrier.failpoints.pass("checkpoint.capture")?;
        if !self.changed.get() && self.persisted.load(Ordering::Acquire) {
            return Ok(None);
        }
        self.persisted.store(false, Ordering::Release);
        let capture = self.backend.borrow_mut().capture(barrier.checkpoint)?;
        self.changed.set(false);
        Ok(Some(capture))
    }
}

/// An operator's place in its job's barriers.
pub(super) struct Member {
    store: Rc<JobStore>,
    passed: Option<CheckpointId>,
}

impl Member {
    /// True when a barrier is to be passed now, with every time below `reached` closed and none later begun.
    pub(super) fn is_due(&self, reached: Time) -> bool {
        let reaching = self.store.reaching.borrow();
        reaching.as_ref().is_some_and(|r| r.barrier.time < reached && self.passed != Some(r.barrier.checkpoint))
    }

    /// A slice of passing the barrier; `None` when the job failed by it.
    pub(super) fn pass(&mut self, job: &JobContext, operator: &mut dyn Operator, deadline: Instant) -> Option<Step> {
        let started = Instant::now();
        let step = {
            let mut backend = self.store.backend.borrow_mut();
            let mut context = Context::new(&mut **backend, deadline);
            let step = job.guard(|| operator.barrier(&mut context));
            if context.wrote {
                self.store.changed.set(true);
            }
            step?
        };
        let mut reaching = self.store.reaching.borrow_mut();
        let Some(current) = reaching.as_mut() else { return Some(step) };
        current.pause += started.elapsed();
        if step == Step::Again {
            return Some(step);
        }
        self.passed = Some(current.barrier.checkpoint);
        current.left -= 1;
        if current.left > 0 {
            return Some(step);
        }
        let Some(Reaching { barrier, mut pause, .. }) = reaching.take() else { return Some(step) };
        let started = Instant::now();
        let capture = self.store.capture(&barrier);
        pause += started.elapsed();
        (barrier.captured)(Captured {
            checkpoint: barrier.checkpoint,
            job: self.store.job,
            worker: self.store.worker,
            capture,
            persisted: Arc::clone(&self.store.persisted),
            pause,
        });
        Some(step)
    }
}
