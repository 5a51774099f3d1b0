//! Sums of doubles that lose nothing visible: pairs of doubles (Dekker 1971; the forms used here are
//! TwoSum of Knuth and TwoProduct by fused multiply-add).

use super::take;
use crate::types::Result;

/// An unevaluated sum of two doubles, with about 106 bits of precision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct DoubleDouble {
    high: f64,
    low: f64,
}

impl DoubleDouble {
    /// The exact product of two doubles.
    pub(super) fn product(a: f64, b: f64) -> DoubleDouble {
        let high = a * b;
        DoubleDouble { high, low: a.mul_add(b, -high) }
    }

    /// Adds another sum.
    pub(super) fn add(&mut self, other: DoubleDouble) {
        let high = self.high + other.high;
        let part = high - self.high;
        let error = (self.high - (high - part)) + (other.high - part);
        let low = error + self.low + other.low;
        self.high = high + low;
        self.low = low - (self.high - high);
    }

    /// Times a double.
    pub(super) fn times(self, factor: f64) -> DoubleDouble {
        let mut result = DoubleDouble::product(self.high, factor);
        result.add(DoubleDouble { high: self.low * factor, low: 0.0 });
        result
    }

    /// Its square.
    pub(super) fn square(self) -> DoubleDouble {
        let mut result = DoubleDouble::product(self.high, self.high);
        result.add(DoubleDouble::product(2.0 * self.high, self.low));
        result
    }

    /// The nearest double.
    pub(super) fn value(self) -> f64 {
        self.high + self.low
    }

    pub(super) fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.high.to_le_bytes());
        out.extend_from_slice(&self.low.to_le_bytes());
    }

    pub(super) fn decode(input: &mut &[u8]) -> Result<DoubleDouble> {
        Ok(DoubleDouble { high: f64::from_le_bytes(take(input)?), low: f64::from_le_bytes(take(input)?) })
    }
}

impl From<f64> for DoubleDouble {
    fn from(value: f64) -> DoubleDouble {
        DoubleDouble { high: value, low: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_can_be_taken_back() {
        let mut sum = DoubleDouble::default();
        for value in [1e20, 1.0, 0.1, -1e20, -0.1] {
            sum.add(value.into());
        }
        assert_eq!(sum.value(), 1.0);
        // 0.1 squared is not 0.01 in doubles; the pair knows the difference.
        let square = DoubleDouble::product(0.1, 0.1);
        assert_eq!(square.high, 0.1 * 0.1);
        assert_ne!(square.low, 0.0);
    }
}
