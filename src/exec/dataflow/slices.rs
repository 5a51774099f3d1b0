//! One worker step is shared among the jobs: all slices together share one deadline, and a job that
//! had none in one step goes first in the next.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::types::RelationId;

/// How long a step may last before commands are looked at again.
const STEP: Duration = Duration::from_millis(5);

/// The deadline of the running step, and who waits for a slice.
pub(super) struct Slices {
    deadline: Cell<Instant>,
    /// Had no slice in the step before, and have not had one since.
    waiting: RefCell<HashSet<RelationId>>,
    /// Used up the deadline in the step before.
    greedy: RefCell<HashSet<RelationId>>,
    next_waiting: RefCell<HashSet<RelationId>>,
    next_greedy: RefCell<HashSet<RelationId>>,
}

impl Slices {
    pub(super) fn new() -> Slices {
        Slices {
            deadline: Cell::new(Instant::now()),
            waiting: RefCell::default(),
            greedy: RefCell::default(),
            next_waiting: RefCell::default(),
            next_greedy: RefCell::default(),
        }
    }

    /// A step begins.
    pub(super) fn begin(&self) {
        self.deadline.set(Instant::now() + STEP);
        self.waiting.replace(self.next_waiting.take());
        self.greedy.replace(self.next_greedy.take());
    }

    /// Asks for a slice: its deadline, or `None` when the job has to come back in the next step.
    pub(super) fn admit(&self, job: RelationId) -> Option<Instant> {
        let deadline = self.deadline.get();
        let mut waiting = self.waiting.borrow_mut();
        waiting.remove(&job);
        let others_first = !waiting.is_empty() && self.greedy.borrow().contains(&job);
        if others_first || Instant::now() >= deadline {
            self.next_waiting.borrow_mut().insert(job);
            return None;
        }
        Some(deadline)
    }

    /// The job used up its slice and has more to do.
    pub(super) fn exhausted(&self, job: RelationId) {
        self.next_greedy.borrow_mut().insert(job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_had_none_goes_first() {
        let slices = Slices::new();
        let (greedy, small) = (RelationId(1), RelationId(2));
        slices.begin();
        assert!(slices.admit(greedy).is_some());
        slices.exhausted(greedy);
        slices.deadline.set(Instant::now());
        assert!(slices.admit(small).is_none());
        slices.begin();
        assert!(slices.admit(greedy).is_none(), "the small one waits");
        assert!(slices.admit(small).is_some());
        assert!(slices.admit(greedy).is_some(), "nobody waits");
    }
}
