//! `sum` and `avg` of real and double precision.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array};
use arrow::datatypes::{DataType, Float32Type, Float64Type};

use super::double_double::DoubleDouble;
use super::{Accumulator, Changes, take};
use crate::state::{KeyIndex, Slot};
use crate::types::{Error, Result};

/// A compensated sum per group. NaN and the infinities are counted apart, so that they can be taken
/// back too.
#[derive(Debug)]
pub(super) struct FloatSum {
    mean: bool,
    groups: Vec<Group>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Group {
    sum: DoubleDouble,
    count: i64,
    nans: i64,
    positive_infinities: i64,
    negative_infinities: i64,
}

impl Group {
    fn add(&mut self, value: f64, diff: i64) {
        self.count += diff;
        if value.is_nan() {
            self.nans += diff;
        } else if value == f64::INFINITY {
            self.positive_infinities += diff;
        } else if value == f64::NEG_INFINITY {
            self.negative_infinities += diff;
        } else if diff == 1 {
            self.sum.add(value.into());
        } else {
            self.sum.add(DoubleDouble::product(value, diff as f64));
        }
    }

    /// Between two times, when nothing is left, no rounding may be left either. Within a time a count of
    /// zero says nothing: its changes come in any order.
    fn settle(&mut self) {
        if self.count == 0 {
            self.sum = DoubleDouble::default();
        }
    }

    fn total(&self) -> f64 {
        if self.nans > 0 || (self.positive_infinities > 0 && self.negative_infinities > 0) {
            f64::NAN
        } else if self.positive_infinities > 0 {
            f64::INFINITY
        } else if self.negative_infinities > 0 {
            f64::NEG_INFINITY
        } else {
            self.sum.value()
        }
    }
}

impl FloatSum {
    /// A sum; with `mean`, divided by the count.
    pub(super) fn new(mean: bool) -> FloatSum {
        FloatSum { mean, groups: Vec::new() }
    }
}

impl Accumulator for FloatSum {
    fn resize(&mut self, slots: usize) {
        if self.groups.len() < slots {
            self.groups.resize(slots, Group::default());
        }
    }

    fn update(&mut self, changes: &Changes<'_>) -> Result<()> {
        let values = changes.values()?;
        let groups = &mut self.groups;
        match values.data_type() {
            DataType::Float64 => {
                let values = values.as_primitive::<Float64Type>();
                changes.for_each_value(values, |row, slot, diff| groups[slot].add(values.value(row), diff));
            }
            DataType::Float32 => {
                let values = values.as_primitive::<Float32Type>();
                changes.for_each_value(values, |row, slot, diff| groups[slot].add(values.value(row).into(), diff));
            }
            other => return Err(Error::internal(format!("a sum of doubles was given {other}"))),
        }
        Ok(())
    }

    fn evaluate(&mut self, slots: &[Slot]) -> Result<ArrayRef> {
        Ok(Arc::new(Float64Array::from_iter(slots.iter().map(|slot| {
            let group = &mut self.groups[*slot as usize];
            group.settle();
            let divisor = if self.mean { group.count as f64 } else { 1.0 };
            (group.count > 0).then(|| group.total() / divisor)
        }))))
    }

    fn clear(&mut self, _: &KeyIndex, slot: Slot) {
        self.groups[slot as usize] = Group::default();
    }

    fn encode(&self, slot: Slot, out: &mut Vec<u8>) {
        let group = &self.groups[slot as usize];
        group.sum.encode(out);
        for count in [group.count, group.nans, group.positive_infinities, group.negative_infinities] {
            out.extend_from_slice(&count.to_le_bytes());
        }
    }

    fn decode(&mut self, slot: Slot, input: &mut &[u8]) -> Result<()> {
        let group = &mut self.groups[slot as usize];
        group.sum.add(DoubleDouble::decode(input)?);
        for count in [&mut group.count, &mut group.nans, &mut group.positive_infinities, &mut group.negative_infinities]
        {
            *count += i64::from_le_bytes(take(input)?);
        }
        Ok(())
    }

    fn take_back(&mut self, _: &KeyIndex, slot: Slot, input: &mut &[u8]) -> Result<()> {
        let group = &mut self.groups[slot as usize];
        group.sum.add(DoubleDouble::decode(input)?.times(-1.0));
        for count in [&mut group.count, &mut group.nans, &mut group.positive_infinities, &mut group.negative_infinities]
        {
            *count -= i64::from_le_bytes(take(input)?);
        }
        Ok(())
    }
}
