//! Event time as one operator on one worker follows it.
//!
//! What is known of a column of event time changes with the ticks, the same for all workers. So it is told to the
//! operators beside the rows and not among them: an operator that closes a time knows what was known before it and what
//! is known at it.

use std::collections::{HashMap, VecDeque};

use timely::scheduling::Activator;

use crate::exec::plan::EventTime;
use crate::types::{RelationId, Time, Watermark};

/// What is known of a column that a job reads, from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The job.
    pub(crate) job: RelationId,
    /// The relation that it reads.
    pub(crate) relation: RelationId,
    /// The column.
    pub(crate) column: usize,
    pub(crate) watermark: Watermark,
}

/// What is known of the columns that a job reads when it starts.
pub(crate) type Known = HashMap<(RelationId, usize), Watermark>;

/// The marks of an operator that it has not come to.
pub(super) struct Marks {
    time: EventTime,
    known: Known,
    coming: VecDeque<(Time, Mark)>,
    pub(super) activator: Option<Activator>,
}

impl Marks {
    pub(super) fn new(time: &EventTime, known: &Known) -> Marks {
        Marks { time: time.clone(), known: known.clone(), coming: VecDeque::new(), activator: None }
    }

    /// Something is known from a time on, which is not before those of other marks.
    pub(super) fn push(&mut self, time: Time, mark: Mark) {
        if self.time.terms.iter().any(|term| (term.relation, term.column) == (mark.relation, mark.column)) {
            self.coming.push_back((time, mark));
            if let Some(activator) = &self.activator {
                activator.activate();
            }
        }
    }

    /// The first time at which something else is known.
    pub(super) fn next_time(&self) -> Option<Time> {
        self.coming.front().map(|(time, _)| *time)
    }

    /// What was known before a time, and what is known at it. Called in order of times.
    pub(super) fn pass(&mut self, time: Time) -> (Watermark, Watermark) {
        let before = self.watermark();
        while let Some((_, mark)) = self.coming.pop_front_if(|(at, _)| *at <= time) {
            self.known.insert((mark.relation, mark.column), mark.watermark);
        }
        (before, self.watermark())
    }

    fn watermark(&self) -> Watermark {
        self.time.watermark(|relation, column| self.known.get(&(relation, column)).copied().unwrap_or(Watermark::NONE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::plan::EventTerm;

    #[test]
    fn the_least_counts_and_a_time_sees_what_was_before_it() {
        let term = |relation, delay| EventTerm { relation: RelationId(relation), column: 1, delay };
        let time = EventTime { terms: vec![term(1, 0), term(2, 10)], size: None, end: 0 };
        let mut marks = Marks::new(&time, &HashMap::from([((RelationId(1), 1), Watermark::from_micros(5))]));
        let mark = |relation, micros| Mark {
            job: RelationId(9),
            relation: RelationId(relation),
            column: 1,
            watermark: Watermark::from_micros(micros),
        };
        marks.push(Time::from_millis(1), mark(2, 100));
        marks.push(Time::from_millis(3), mark(1, 50));
        marks.push(Time::from_millis(3), mark(3, 1));
        marks.push(Time::from_millis(4), mark(2, 55));
        let known = |micros| Watermark::from_micros(micros);
        assert_eq!(marks.next_time(), Some(Time::from_millis(1)));
        assert_eq!(marks.pass(Time::from_millis(1)), (Watermark::NONE, known(5)));
        assert_eq!(marks.pass(Time::from_millis(3)), (known(5), known(50)));
        assert_eq!(marks.pass(Time::from_millis(9)), (known(50), known(45)));
        assert_eq!(marks.next_time(), None);
    }
}
