//! The connector `print`: every change as a line on standard error.

use std::io::Write as _;
use std::sync::Arc;

use super::ConnectorColumn;
use super::options::Options;
use super::registry::schema_of;
use crate::exec::sink::{Sink, SinkInput, SinkWriter};
use crate::types::text::JsonObjects;
use crate::types::{Chunk, Result, Time};

/// Prints `<job> +I {"a":1}` for an inserted row and `<job> -D {"a":1}` for a retracted one.
pub(crate) struct Print {
    columns: Vec<ConnectorColumn>,
}

impl Print {
    /// # Errors
    /// 22023 for any option.
    pub(crate) fn from_options(options: &mut Options<'_>, columns: &[ConnectorColumn]) -> Result<Arc<dyn Sink>> {
        options.finish()?;
        Ok(Arc::new(Print { columns: columns.to_vec() }))
    }
}

impl Sink for Print {
    fn accepts(&self) -> SinkInput {
        SinkInput::Changes
    }

    fn open(&self, job: &str, _: u64) -> Result<Box<dyn SinkWriter>> {
        let objects = JsonObjects::new(&schema_of(&self.columns));
        Ok(Box::new(Printer { job: job.to_owned(), objects, lines: Vec::new() }))
    }
}

struct Printer {
    job: String,
    objects: JsonObjects,
    lines: Vec<u8>,
}

impl SinkWriter for Printer {
    fn write(&mut self, _: Time, changes: &[Chunk]) -> Result<()> {
        for chunk in changes {
            let columns = JsonObjects::columns(chunk.batch())?;
            for row in 0..chunk.rows() {
                let diff = chunk.diff(row);
                for _ in 0..diff.unsigned_abs() {
                    self.lines.extend_from_slice(self.job.as_bytes());
                    self.lines.extend_from_slice(if diff > 0 { b" +I " } else { b" -D " });
                    self.objects.print(&columns, row, &mut self.lines);
                    self.lines.push(b'\n');
                }
            }
            self.flush()?;
        }
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        self.flush()
    }
}

impl Printer {
    fn flush(&mut self) -> Result<()> {
        std::io::stderr().lock().write_all(&self.lines)?;
        self.lines.clear();
        Ok(())
    }
}
