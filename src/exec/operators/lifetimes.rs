//! Until when the state of each key is kept, when it lives for so long after its last change.

use std::collections::BTreeSet;

use crate::state::Slot;
use crate::types::Time;

/// The slot is not in use.
const UNUSED: i64 = i64::MAX;

/// Deadlines in milliseconds of the clock, by slot.
#[derive(Debug)]
pub(super) struct Lifetimes {
    ttl_millis: i64,
    /// A deadline of each slot in use, in order. One that was put off or given up since still stands where it was until that
    /// time: a change costs no search.
    order: BTreeSet<(i64, Slot)>,
    deadlines: Vec<i64>,
}

impl Lifetimes {
    pub(super) fn new(ttl_millis: u64) -> Lifetimes {
        let ttl_millis = i64::try_from(ttl_millis).unwrap_or(i64::MAX);
        Lifetimes { ttl_millis, order: BTreeSet::new(), deadlines: Vec::new() }
    }

    /// The slot's key changed.
    pub(super) fn renew(&mut self, slot: Slot, now: Time) {
        // The last millisecond that is no mark.
        self.set(slot, millis(now).saturating_add(self.ttl_millis).min(UNUSED - 1));
    }

    /// The slot is kept until a time, which is no earlier than the one it had.
    pub(super) fn set(&mut self, slot: Slot, deadline: i64) {
        if self.deadlines.len() <= slot as usize {
            self.deadlines.resize(slot as usize + 1, UNUSED);
        }
        if std::mem::replace(&mut self.deadlines[slot as usize], deadline) == UNUSED {
            self.order.insert((deadline, slot));
        }
    }

    /// The slot's key is gone.
    pub(super) fn remove(&mut self, slot: Slot) {
        self.deadlines[slot as usize] = UNUSED;
    }

    /// Until when a slot in use is kept.
    pub(super) fn deadline(&self, slot: Slot) -> i64 {
        self.deadlines[slot as usize]
    }

    /// Takes at most `max` slots whose time is over, in order of their deadlines. They are out of use then.
    pub(super) fn take_past(&mut self, now: Time, max: usize) -> Vec<Slot> {
        let now = millis(now);
        let mut taken = Vec::new();
        while taken.len() < max
            && let Some((stood, slot)) = self.order.first().copied()
            && stood <= now
        {
            self.order.pop_first();
            let deadline = self.deadlines[slot as usize];
            if deadline == UNUSED {
                continue;
            }
            if deadline <= now {
                self.deadlines[slot as usize] = UNUSED;
                taken.push(slot);
            } else {
                self.order.insert((deadline, slot));
            }
        }
        taken
    }

    /// The next time at which one may be over.
    pub(super) fn next(&self) -> Option<Time> {
        let (deadline, _) = self.order.first()?;
        Some(Time::from_millis(u64::try_from(*deadline).unwrap_or(0)))
    }
}

/// A time of the clock in the unit of deadlines.
fn millis(time: Time) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    #[test]
    fn what_changes_again_lives_longer() {
        let mut lives = Lifetimes::new(100);
        lives.renew(0, at(10));
        lives.renew(1, at(20));
        lives.renew(0, at(60));
        assert_eq!(lives.next(), Some(at(110)), "where it stood first");
        assert_eq!(lives.take_past(at(119), 10), Vec::<Slot>::new());
        assert_eq!(lives.next(), Some(at(120)));
        assert_eq!(lives.take_past(at(120), 10), [1]);
        assert_eq!((lives.next(), lives.deadline(0)), (Some(at(160)), 160));
        // A slot that is used again begins anew.
        lives.renew(1, at(130));
        lives.remove(0);
        lives.renew(0, at(140));
        assert_eq!(lives.take_past(at(239), 10), [1]);
        assert_eq!(lives.take_past(at(240), 10), [0]);
        lives.renew(0, at(300));
        lives.remove(0);
        assert_eq!(lives.take_past(at(900), 10), Vec::<Slot>::new());
        assert_eq!(lives.next(), None);
    }
}
