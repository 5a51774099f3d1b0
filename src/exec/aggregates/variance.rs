//! `var_*` and `stddev_*`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};

use super::double_double::DoubleDouble;
use super::{Accumulator, Changes, take};
use crate::exec::plan::AggregateFunction;
use crate::state::{KeyIndex, Slot};
use crate::types::Result;

/// Sum and sum of squares per group, in double-double, so that their difference keeps its digits
/// also when the mean is far greater than the deviation.
#[derive(Debug)]
pub(super) struct Variance {
    function: AggregateFunction,
    groups: Vec<Group>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Group {
    sum: DoubleDouble,
    squares: DoubleDouble,
    count: i64,
    // NaN and infinities: the result is NaN while there is one.
    unbounded: i64,
}

impl Group {
    fn add(&mut self, value: f64, diff: i64) {
        self.count += diff;
        if value.is_finite() {
            self.sum.add(DoubleDouble::product(value, diff as f64));
            self.squares.add(DoubleDouble::product(value, value).times(diff as f64));
        } else {
            self.unbounded += diff;
        }
    }

    /// Between two times, when nothing is left, no rounding may be left either. Within a time a count of
    /// zero says nothing: its changes come in any order.
    fn settle(&mut self) {
        if self.count == 0 {
            (self.sum, self.squares) = Default::default();
        }
    }

    /// The sum of the squared distances from the mean.
    fn deviation(&self) -> f64 {
        if self.unbounded > 0 {
            return f64::NAN;
        }
        // n * squares - sum * sum, over n: the products keep all their digits.
        let mut deviation = self.squares.times(self.count as f64);
        deviation.add(self.sum.square().times(-1.0));
        (deviation.value() / self.count as f64).max(0.0)
    }
}

impl Variance {
    pub(super) fn new(function: AggregateFunction) -> Variance {
        Variance { function, groups: Vec::new() }
    }
}

impl Accumulator for Variance {
    fn resize(&mut self, slots: usize) {
        if self.groups.len() < slots {
            self.groups.resize(slots, Group::default());
        }
    }

    fn update(&mut self, changes: &Changes<'_>) -> Result<()> {
        let values = cast(changes.values()?, &DataType::Float64)?;
        let values = values.as_primitive::<Float64Type>();
        let groups = &mut self.groups;
        changes.for_each_value(values as &dyn Array, |row, slot, diff| groups[slot].add(values.value(row), diff));
        Ok(())
    }

    fn evaluate(&mut self, slots: &[Slot]) -> Result<ArrayRef> {
        Ok(Arc::new(Float64Array::from_iter(slots.iter().map(|slot| {
            let group = &mut self.groups[*slot as usize];
            group.settle();
            let (sample, root) = match self.function {
                AggregateFunction::VarSamp => (true, false),
                AggregateFunction::StddevSamp => (true, true),
                AggregateFunction::StddevPop => (false, true),
                _ => (false, false),
            };
            let divisor = if sample { group.count - 1 } else { group.count };
            (divisor > 0).then(|| {
                let variance = group.deviation() / divisor as f64;
                if root { variance.sqrt() } else { variance }
            })
        }))))
    }

    fn clear(&mut self, _: &KeyIndex, slot: Slot) {
        self.groups[slot as usize] = Group::default();
    }

    fn encode(&self, slot: Slot, out: &mut Vec<u8>) {
        let group = &self.groups[slot as usize];
        group.sum.encode(out);
        group.squares.encode(out);
        out.extend_from_slice(&group.count.to_le_bytes());
        out.extend_from_slice(&group.unbounded.to_le_bytes());
    }

    fn decode(&mut self, slot: Slot, input: &mut &[u8]) -> Result<()> {
        let group = &mut self.groups[slot as usize];
        group.sum.add(DoubleDouble::decode(input)?);
        group.squares.add(DoubleDouble::decode(input)?);
        group.count += i64::from_le_bytes(take(input)?);
        group.unbounded += i64::from_le_bytes(take(input)?);
        Ok(())
    }

    fn take_back(&mut self, _: &KeyIndex, slot: Slot, input: &mut &[u8]) -> Result<()> {
        let group = &mut self.groups[slot as usize];
        group.sum.add(DoubleDouble::decode(input)?.times(-1.0));
        group.squares.add(DoubleDouble::decode(input)?.times(-1.0));
        group.count -= i64::from_le_bytes(take(input)?);
        group.unbounded -= i64::from_le_bytes(take(input)?);
        Ok(())
    }
}
