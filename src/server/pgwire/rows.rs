//! Rows of an answer, sent as they come.

use std::fmt::Debug;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::{BufMut as _, BytesMut};
use datafusion::execution::SendableRecordBatchStream;
use futures::{FutureExt as _, Sink, SinkExt as _, StreamExt as _};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::DataRow;
use tokio_util::sync::CancellationToken;

use super::messages::row_description;
use crate::server::errors;
use crate::server::text::Column;
use crate::types::{Error, Result, SqlState};

/// PostgreSQL's bound on the columns of a result.
const COLUMNS_MAX: usize = 1664;
const BUFFER_BYTES: usize = 64 << 10;

/// Sends the description and all rows; gives their number. What was fed is flushed before every
/// wait for more.
pub(super) async fn send_rows<C>(
    client: &mut C,
    schema: &SchemaRef,
    mut rows: SendableRecordBatchStream,
    cancel: &CancellationToken,
    named: &(dyn Fn(&Error) -> PgWireError + Sync),
) -> PgWireResult<u64>
where
    C: Sink<PgWireBackendMessage> + Unpin + Send,
    C::Error: Debug,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    if schema.fields().len() > COLUMNS_MAX {
        return Err(named(&Error::new(
            SqlState::ProgramLimitExceeded,
            format!("target lists can have at most {COLUMNS_MAX} entries"),
        )));
    }
    let cancelled = || named(&Error::new(SqlState::QueryCanceled, "canceling statement due to user request"));
    client.feed(row_description(schema)).await?;
    let mut count = 0;
    let mut buffer = RowBuffer { scratch: Vec::new(), row: BytesMut::with_capacity(BUFFER_BYTES) };
    loop {
        let next = match rows.next().now_or_never() {
            Some(next) => next,
            None => {
                // Nothing is there yet: what was fed should not wait for it.
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => return Err(cancelled()),
                    flushed = client.flush() => flushed?,
                }
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => return Err(cancelled()),
                    next = rows.next() => next,
                }
            }
        };
        let Some(batch) = next else { return Ok(count) };
        let batch = batch.map_err(|error| named(&errors::of_stream(error)))?;
        // A client that does not read holds this up; the token ends it all the same.
        tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(cancelled()),
            sent = send_batch(client, &batch, &mut buffer, named) => sent?,
        }
        count += batch.num_rows() as u64;
    }
}

async fn send_batch<C>(
    client: &mut C,
    batch: &RecordBatch,
    buffer: &mut RowBuffer,
    named: &(dyn Fn(&Error) -> PgWireError + Sync),
) -> PgWireResult<()>
where
    C: Sink<PgWireBackendMessage> + Unpin + Send,
    C::Error: Debug,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    let columns: Vec<Column> =
        batch.columns().iter().map(Column::new).collect::<Result<_>>().map_err(|error| named(&error))?;
    for row in 0..batch.num_rows() {
        let row = buffer.encode(&columns, row).map_err(|error| named(&error))?;
        client.feed(PgWireBackendMessage::DataRow(row)).await?;
    }
    Ok(())
}

/// Room for rows, used again and again.
struct RowBuffer {
    scratch: Vec<u8>,
    row: BytesMut,
}

impl RowBuffer {
    /// One row: for each column its length and text, or -1 for NULL.
    fn encode(&mut self, columns: &[Column], row: usize) -> Result<DataRow> {
        for column in columns {
            if column.is_null(row) {
                self.row.put_i32(-1);
                continue;
            }
            self.scratch.clear();
            column.write_text(row, &mut self.scratch);
            let length = i32::try_from(self.scratch.len())
                .map_err(|_| Error::new(SqlState::ProgramLimitExceeded, "a value is longer than 2 GiB"))?;
            self.row.put_i32(length);
            self.row.extend_from_slice(&self.scratch);
        }
        // The number of columns was checked against a bound below `i16::MAX`.
        Ok(DataRow::new(self.row.split(), i16::try_from(columns.len()).unwrap_or(i16::MAX)))
    }
}
