//! `count(*)` and `count(x)`.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};

use super::{Accumulator, Changes, take};
use crate::state::{KeyIndex, Slot};
use crate::types::Result;

/// Rows per group.
#[derive(Debug, Default)]
pub(super) struct Count {
    counts: Vec<i64>,
}

impl Accumulator for Count {
    fn resize(&mut self, slots: usize) {
        if self.counts.len() < slots {
            self.counts.resize(slots, 0);
        }
    }

    fn update(&mut self, changes: &Changes<'_>) -> Result<()> {
        match changes.argument {
            Some(values) if values.null_count() > 0 => {
                changes.for_each_value(values, |_, slot, diff| self.counts[slot] += diff);
            }
            _ => {
                for (slot, diff) in changes.slots.iter().zip(changes.diffs) {
                    self.counts[*slot as usize] += diff;
                }
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, slots: &[Slot]) -> Result<ArrayRef> {
        Ok(Arc::new(Int64Array::from_iter_values(slots.iter().map(|slot| self.counts[*slot as usize]))))
    }

    fn clear(&mut self, _: &KeyIndex, slot: Slot) {
        self.counts[slot as usize] = 0;
    }

    fn encode(&self, slot: Slot, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.counts[slot as usize].to_le_bytes());
    }

    fn decode(&mut self, slot: Slot, input: &mut &[u8]) -> Result<()> {
        self.counts[slot as usize] += i64::from_le_bytes(take(input)?);
        Ok(())
    }

    fn take_back(&mut self, _: &KeyIndex, slot: Slot, input: &mut &[u8]) -> Result<()> {
        self.counts[slot as usize] -= i64::from_le_bytes(take(input)?);
        Ok(())
    }
}
