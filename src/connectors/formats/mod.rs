//! From the bytes of a record to columns: [`json`] and [`csv`] find the fields, [`values`] turns
//! text into values and [`columns`] gathers them.

pub(crate) mod columns;
pub(crate) mod csv;
pub(crate) mod decimal;
pub(crate) mod json;
pub(crate) mod values;
pub(crate) mod write;

pub(crate) use columns::{Columns, RowError};

/// The most bytes in one record.
pub(crate) const ROW_BYTES_MAX: usize = 16 << 20;
