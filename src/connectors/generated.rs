//! What sources of made-up rows share: one split, row `n` behind offset `n`, so that any row can be made again.

use arrow::array::RecordBatch;

use super::options::Options;
use crate::exec::source::{BadRow, Offset, Read, ReadRequest, SourceReader, Split, SplitId, Splits};
use crate::types::{CHUNK_ROWS_MAX, Result};

/// More rows are not counted.
const ROWS_MAX: u64 = 1 << 53;
/// The most rows a second that an option may name.
const RATE_MAX: u64 = 1_000_000_000;
/// Where event time begins when nothing is said: 2026-01-01 00:00:00 UTC, in microseconds.
pub(crate) const START_MICROS: i64 = 1_767_225_600_000_000;

/// How many rows there are and how fast they come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    /// `None`: they never end.
    pub(crate) rows: Option<u64>,
    /// Rows a second; `None`: as fast as they are taken.
    pub(crate) rate: Option<u64>,
}

impl Amount {
    /// Takes `number_of_rows` and `rows_per_second`.
    pub(crate) fn parse(options: &Options<'_>) -> Result<Amount> {
        Ok(Amount {
            rows: options.integer("number_of_rows", 0..=ROWS_MAX)?,
            rate: options.integer("rows_per_second", 1..=RATE_MAX)?,
        })
    }

    /// The one split.
    pub(crate) fn splits(&self) -> Splits {
        let split = Split { id: SplitId::new("rows"), start: Offset(0), size: self.rows.map(Offset) };
        Splits { found: vec![split], complete: true }
    }
}

/// Makes rows by their numbers.
pub(crate) trait Generator: Send {
    /// The rows with these numbers, the good ones and the bad ones.
    ///
    /// # Errors
    /// None but a fault of the program.
    fn rows(&mut self, numbers: std::ops::Range<u64>) -> Result<(RecordBatch, Vec<BadRow>)>;
}

/// One pass over made-up rows.
pub(crate) struct GeneratedReader<G> {
    generator: G,
    next: u64,
    end: u64,
    offsets: bool,
}

impl<G: Generator> GeneratedReader<G> {
    pub(crate) fn new(generator: G, amount: Amount, request: &ReadRequest) -> GeneratedReader<G> {
        let end = request.until.map_or(u64::MAX, |until| until.0).min(amount.rows.unwrap_or(u64::MAX));
        GeneratedReader { generator, next: request.from.0, end, offsets: request.offsets }
    }
}

impl<G: Generator> SourceReader for GeneratedReader<G> {
    fn read(&mut self, rows_max: usize) -> Result<Read> {
        let count = (self.end.saturating_sub(self.next)).min(rows_max.min(CHUNK_ROWS_MAX) as u64);
        if count == 0 {
            return Ok(Read::End);
        }
        let numbers = self.next..self.next + count;
        let (rows, bad) = self.generator.rows(numbers.clone())?;
        self.next += count;
        let offsets = if self.offsets { good_offsets(numbers, &bad) } else { Vec::new() };
        Ok(Read::Rows { rows, diffs: None, offsets, bad, end: Offset(self.next) })
    }
}

/// The numbers of rows that are not bad.
pub(crate) fn good_offsets(numbers: std::ops::Range<u64>, bad: &[BadRow]) -> Vec<Offset> {
    let mut bad = bad.iter().map(|row| row.offset.0).peekable();
    numbers.filter(|number| bad.next_if_eq(number).is_none()).map(Offset).collect()
}

/// A number as good as random, made of a seed and a place. (The finalizer of SplitMix64, Steele et al., 2014.)
pub(crate) fn mixed(seed: u64, place: u64, number: u64) -> u64 {
    let mut x = seed ^ place.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2 {
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
    }
    x
}

/// [`mixed`] as a number from 0 to below 1.
pub(crate) fn mixed_share(seed: u64, place: u64, number: u64) -> f64 {
    // 53 bits are what a double holds.
    (mixed(seed, place, number) >> 11) as f64 / (1_u64 << 53) as f64
}
