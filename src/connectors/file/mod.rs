//! The connector `file`: a file, a folder or a pattern; JSON lines, CSV or Parquet; read once or followed.
//!
//! ```text
//! paths    which files there are            splits   their names for ever
//! input    bytes, also of packed files      records  bytes → records
//! lines    records → rows                   parquet  columns → rows
//! ```

mod input;
mod lines;
mod options;
mod parquet;
mod paths;
mod records;
mod sink;
mod source;
mod splits;

pub(crate) use sink::FileSink;
pub(crate) use source::FileSource;

#[cfg(test)]
mod follow_tests;
#[cfg(test)]
mod tests;
