//! What is asked of an operator by those who look into it, on one worker.
//!
//! A read begins between two times, like a barrier: with everything up to its time closed, and nothing later begun. So the reads
//! of all workers that begin at one time see one state. Pages are answered whenever the operator has its turn.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use timely::scheduling::Activator;
use tokio::sync::oneshot;

use super::driver::JobContext;
use crate::exec::operators::{InspectedPage, Operator};
use crate::exec::relation::lock;
use crate::types::{Error, InspectionId, RelationId, Result, Time};

/// How long a page may take: a read is a guest on the worker.
const PAGE: Duration = Duration::from_millis(2);

/// Where an answer goes; whoever waited may be gone.
type Answer<T> = Mutex<Option<oneshot::Sender<Result<T>>>>;

/// Something asked of an operator.
pub(crate) struct Inspection {
    pub(crate) job: RelationId,
    /// Its place in the plan.
    pub(crate) operator: String,
    pub(crate) ask: Ask,
}

/// What is asked.
pub(crate) enum Ask {
    /// Begin a read of a part, with everything up to a time closed and nothing later.
    Begin { id: InspectionId, part: usize, time: Time },
    /// The rows of a part with some keys, at such a moment.
    Find { part: usize, time: Time, keys: Vec<Vec<u8>>, answer: Answer<RecordBatch> },
    /// The next rows of a read.
    Page { id: InspectionId, rows_max: usize, answer: Answer<InspectedPage> },
    /// A read is over.
    End { id: InspectionId },
}

/// What is asked of one operator and not answered.
pub(super) struct Inspections {
    asked: RefCell<VecDeque<Arc<Inspection>>>,
    activator: Activator,
}

impl Inspections {
    pub(super) fn new(activator: Activator) -> Inspections {
        Inspections { asked: RefCell::default(), activator }
    }

    /// Something more is asked.
    pub(super) fn ask(&self, inspection: &Arc<Inspection>) {
        self.asked.borrow_mut().push_back(Arc::clone(inspection));
        self.activator.activate();
    }

    /// Nothing will be answered: the job has stopped. Whoever waits is told by the end of the channel.
    pub(super) fn give_up(&self) {
        self.asked.borrow_mut().clear();
    }

    /// Answers what can be answered, one page at most. `reached` says that every time below is closed and none later
    /// begun; `None`: one is being closed.
    pub(super) fn serve(&self, reached: Option<Time>, operator: &mut dyn Operator, job: &JobContext) {
        if self.asked.borrow().is_empty() {
            return;
        }
        let mut paged = false;
        let mut later: VecDeque<Arc<Inspection>> = VecDeque::new();
        let asked = std::mem::take(&mut *self.asked.borrow_mut());
        for inspection in asked {
            let waits = match &inspection.ask {
                Ask::Begin { time, .. } | Ask::Find { time, .. } => reached.is_none_or(|reached| *time >= reached),
                Ask::Page { id, .. } => paged || begins(&later, *id),
                Ask::End { .. } => false,
            };
            if waits {
                later.push_back(inspection);
                continue;
            }
            if let Ask::End { id } = inspection.ask {
                later.retain(|other| !matches!(other.ask, Ask::Begin { id: begun, .. } if begun == id));
            }
            paged |= matches!(inspection.ask, Ask::Page { .. });
            // A panic fails the job, as in any of its work; an error is the reader's alone.
            if job.guard(|| answer(&inspection.ask, operator)).is_none() {
                return;
            }
        }
        if paged && later.iter().any(|other| matches!(other.ask, Ask::Page { .. })) {
            self.activator.activate();
        }
        self.asked.borrow_mut().extend(later);
    }
}

/// True when a read has not begun.
fn begins(later: &VecDeque<Arc<Inspection>>, id: InspectionId) -> bool {
    later.iter().any(|other| matches!(other.ask, Ask::Begin { id: begun, .. } if begun == id))
}

fn answer(ask: &Ask, operator: &mut dyn Operator) -> Result<()> {
    let Some(operator) = operator.inspect() else { return Err(Error::internal("an operator keeps no rows")) };
    match ask {
        Ask::Begin { id, part, .. } => operator.begin(*id, *part),
        Ask::Find { part, keys, answer, .. } => give(answer, || operator.find(*part, keys)),
        Ask::Page { id, rows_max, answer } => {
            give(answer, || operator.page(*id, *rows_max, Instant::now() + PAGE));
        }
        Ask::End { id } => operator.end(*id),
    }
    Ok(())
}

fn give<T>(answer: &Answer<T>, find: impl FnOnce() -> Result<T>) {
    let Some(answer) = lock(answer).take().filter(|answer| !answer.is_closed()) else { return };
    // Whoever asked may be gone meanwhile.
    let _ = answer.send(find());
}
