//! A read of groups by slot, as they were when it began.

use std::collections::VecDeque;

use arrow::array::{Array as _, ArrayRef};

use crate::state::{EncodedRows, PAST_BYTES_MAX, Slot, past_lost};
use crate::types::{Error, InspectionId, Result};

/// Groups as they were: their encoded keys, and their results.
#[derive(Debug)]
pub(super) struct Groups {
    pub(super) keys: EncodedRows,
    pub(super) results: Vec<ArrayRef>,
}

impl Groups {
    fn bytes(&self) -> usize {
        self.keys.byte_len() + self.results.iter().map(|column| column.get_array_memory_size()).sum::<usize>()
    }
}

/// A read that goes through the slots in order.
#[derive(Debug)]
pub(super) struct GroupsRead {
    pub(super) id: InspectionId,
    /// Slots below were gone through.
    next: usize,
    /// Slots that there were when it began.
    end: usize,
    /// A bit for each slot ahead whose group has changed since: what it was is put aside.
    changed: Vec<u64>,
    /// Groups that were put aside, and are not given yet.
    aside: VecDeque<Groups>,
    aside_bytes: usize,
    failed: Option<Error>,
}

impl GroupsRead {
    /// A read of all groups that there are in so many slots.
    pub(super) fn new(id: InspectionId, slots: usize) -> GroupsRead {
        GroupsRead {
            id,
            next: 0,
            end: slots,
            changed: vec![0; slots.div_ceil(64)],
            aside: VecDeque::new(),
            aside_bytes: 0,
            failed: None,
        }
    }

    /// Of some slots whose groups are about to change, the positions of those whose group is to be put aside now.
    pub(super) fn ahead(&mut self, slots: &[Slot]) -> Vec<u32> {
        let mut ahead = Vec::new();
        for (position, slot) in slots.iter().enumerate().filter(|_| self.failed.is_none()) {
            let at = *slot as usize;
            if at < self.next || at >= self.end {
                continue;
            }
            let Some(word) = self.changed.get_mut(at / 64) else { continue };
            let bit = 1 << (at % 64);
            if *word & bit == 0 {
                *word |= bit;
                // A chunk has less than 4 billion rows.
                ahead.push(position as u32);
            }
        }
        ahead
    }

    /// Puts groups aside.
    pub(super) fn put_aside(&mut self, groups: Result<Groups>) {
        let failed = match groups {
            Ok(groups) => {
                self.aside_bytes += groups.bytes();
                self.aside.push_back(groups);
                (self.aside_bytes > PAST_BYTES_MAX).then(past_lost)
            }
            Err(error) => Some(error),
        };
        if failed.is_some() {
            self.failed = failed;
            self.aside.clear();
            self.changed = Vec::new();
        }
    }

    /// Some of the groups that were put aside, if there are any.
    ///
    /// # Errors
    /// What the read failed with.
    pub(super) fn take_aside(&mut self, rows_max: usize) -> Result<Vec<Groups>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let (mut taken, mut count) = (Vec::new(), 0);
        while count < rows_max
            && let Some(groups) = self.aside.pop_front()
        {
            self.aside_bytes -= groups.bytes();
            count += groups.keys.len();
            taken.push(groups);
        }
        Ok(taken)
    }

    /// The next slots whose groups are as they were, at most so many, of those that are `there`.
    pub(super) fn next_slots(&mut self, max: usize, there: impl Fn(Slot) -> bool) -> Vec<Slot> {
        let mut slots = Vec::with_capacity(max.min(self.end - self.next));
        while slots.len() < max && self.next < self.end {
            let at = self.next;
            self.next += 1;
            let is_changed = self.changed.get(at / 64).is_some_and(|word| word & (1 << (at % 64)) != 0);
            // Numbers of slots are of the type of slots.
            if !is_changed && there(at as Slot) {
                slots.push(at as Slot);
            }
        }
        slots
    }

    /// True when nothing follows.
    pub(super) fn is_through(&self) -> bool {
        self.next >= self.end && self.aside.is_empty()
    }
}
