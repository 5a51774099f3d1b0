//! The connector `file`: one regular file, read from its beginning to its end.

mod options;
mod reader;
mod sink;
mod source;

pub(crate) use sink::FileSink;
pub(crate) use source::FileSource;

#[cfg(test)]
mod tests;
