//! The connector `blackhole`: takes every row and keeps none, for measuring what comes before it.

use std::sync::Arc;

use super::ConnectorColumn;
use super::options::Options;
use crate::exec::sink::{Sink, SinkInput, SinkWriter};
use crate::types::{Chunk, Result, Time};

/// Takes rows and forgets them.
pub(crate) struct Blackhole;

impl Blackhole {
    /// # Errors
    /// 22023 for any option.
    pub(crate) fn from_options(options: &mut Options<'_>, _: &[ConnectorColumn]) -> Result<Arc<dyn Sink>> {
        options.finish()?;
        Ok(Arc::new(Blackhole))
    }
}

impl Sink for Blackhole {
    fn accepts(&self) -> SinkInput {
        SinkInput::Changes
    }

    fn open(&self, _: &str, _: u64) -> Result<Box<dyn SinkWriter>> {
        Ok(Box::new(Blackhole))
    }
}

impl SinkWriter for Blackhole {
    fn write(&mut self, _: Time, _: &[Chunk]) -> Result<()> {
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        Ok(())
    }
}
