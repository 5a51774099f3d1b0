//! `bool_and` and `bool_or`.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray};

use super::{Accumulator, Changes, take};
use crate::state::{KeyIndex, Slot};
use crate::types::Result;

/// How many trues and falses a group has.
#[derive(Debug)]
pub(super) struct Bools {
    and: bool,
    counts: Vec<[i64; 2]>,
}

impl Bools {
    pub(super) fn new(and: bool) -> Bools {
        Bools { and, counts: Vec::new() }
    }
}

impl Accumulator for Bools {
    fn resize(&mut self, slots: usize) {
        if self.counts.len() < slots {
            self.counts.resize(slots, [0; 2]);
        }
    }

    fn update(&mut self, changes: &Changes<'_>) -> Result<()> {
        let values = changes.values()?.as_boolean();
        changes.for_each_value(values, |row, slot, diff| self.counts[slot][usize::from(values.value(row))] += diff);
        Ok(())
    }

    fn evaluate(&mut self, slots: &[Slot]) -> Result<ArrayRef> {
        Ok(Arc::new(BooleanArray::from_iter(slots.iter().map(|slot| {
            let [falses, trues] = self.counts[*slot as usize];
            (falses > 0 || trues > 0).then_some(if self.and { falses == 0 } else { trues > 0 })
        }))))
    }

    fn clear(&mut self, _: &KeyIndex, slot: Slot) {
        self.counts[slot as usize] = [0; 2];
    }

    fn encode(&self, slot: Slot, out: &mut Vec<u8>) {
        for count in self.counts[slot as usize] {
            out.extend_from_slice(&count.to_le_bytes());
        }
    }

    fn decode(&mut self, slot: Slot, input: &mut &[u8]) -> Result<()> {
        for count in &mut self.counts[slot as usize] {
            *count += i64::from_le_bytes(take(input)?);
        }
        Ok(())
    }

    fn take_back(&mut self, _: &KeyIndex, slot: Slot, input: &mut &[u8]) -> Result<()> {
        for count in &mut self.counts[slot as usize] {
            *count -= i64::from_le_bytes(take(input)?);
        }
        Ok(())
    }
}
