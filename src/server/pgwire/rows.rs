//! Rows of an answer, sent as they come.

use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::{BufMut as _, BytesMut};
use datafusion::execution::SendableRecordBatchStream;
use futures::{FutureExt as _, Sink, SinkExt as _, StreamExt as _};
use pgwire::api::portal::Format;
use pgwire::api::results::FieldFormat;
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::DataRow;
use tokio_util::sync::CancellationToken;

use crate::server::errors;
use crate::types::text::Column;
use crate::types::{Error, Limit, Limits, Result, SqlState, TimeZone};

const BUFFER_BYTES: usize = 64 << 10;

/// The format of each column of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Formats {
    /// All the same.
    All(FieldFormat),
    /// One for each column.
    Each(Vec<FieldFormat>),
}

impl Formats {
    /// What a Bind message asks for, of a result of so many columns.
    ///
    /// # Errors
    /// 08P01 when it names formats for another number of columns.
    pub(super) fn of_portal(format: &Format, columns: usize) -> Result<Formats> {
        match format {
            Format::UnifiedText => Ok(Formats::All(FieldFormat::Text)),
            Format::UnifiedBinary => Ok(Formats::All(FieldFormat::Binary)),
            Format::Individual(codes) if codes.len() == columns => {
                Ok(Formats::Each(codes.iter().map(|code| FieldFormat::from(*code)).collect()))
            }
            Format::Individual(codes) => Err(Error::new(
                SqlState::ProtocolViolation,
                format!("bind message has {} result formats but query has {columns} columns", codes.len()),
            )),
        }
    }

    /// The format of a column.
    pub(super) fn of(&self, column: usize) -> FieldFormat {
        match self {
            Formats::All(format) => *format,
            Formats::Each(formats) => formats.get(column).copied().unwrap_or(FieldFormat::Text),
        }
    }
}

/// Refuses results that the protocol cannot describe.
///
/// # Errors
/// 54000 when there are too many columns.
pub(super) fn check_width(columns: usize, limits: &Limits) -> Result<()> {
    let most = limits.size(Limit::ResultColumns);
    if columns > most {
        let message = format!("target lists can have at most {most} entries");
        return Err(limits.exceeded(Limit::ResultColumns, message).hint("Name the columns that are needed."));
    }
    Ok(())
}

/// Sends all rows, in the formats asked for; gives their number. What was fed is flushed before
/// every wait for more.
pub(super) async fn send_rows<C>(
    client: &mut C,
    mut rows: SendableRecordBatchStream,
    buffer: &mut RowBuffer,
    cancel: &CancellationToken,
    named: &(dyn Fn(&Error) -> PgWireError + Sync),
) -> PgWireResult<u64>
where
    C: Sink<PgWireBackendMessage> + Unpin + Send,
    C::Error: Debug,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    let cancelled = || named(&Error::new(SqlState::QueryCanceled, "canceling statement due to user request"));
    let mut count = 0;
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
            sent = send_batch(client, &batch, buffer, named) => sent?,
        }
        count += batch.num_rows() as u64;
    }
}

pub(super) async fn send_batch<C>(
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
    let columns: Vec<Column> = buffer.columns(batch).map_err(|error| named(&error))?;
    for row in 0..batch.num_rows() {
        let row = buffer.encode(&columns, row).map_err(|error| named(&error))?;
        client.feed(PgWireBackendMessage::DataRow(row)).await?;
    }
    Ok(())
}

/// Room for rows, used again and again.
pub(super) struct RowBuffer {
    formats: Formats,
    zone: TimeZone,
    scratch: Vec<u8>,
    row: BytesMut,
    limits: Arc<Limits>,
}

impl RowBuffer {
    /// For columns in some formats; times are shown in a zone.
    pub(super) fn new(formats: Formats, zone: TimeZone, limits: &Arc<Limits>) -> RowBuffer {
        let row = BytesMut::with_capacity(BUFFER_BYTES);
        RowBuffer { formats, zone, scratch: Vec::new(), row, limits: Arc::clone(limits) }
    }

    fn columns(&self, batch: &RecordBatch) -> Result<Vec<Column>> {
        batch.columns().iter().map(|column| Column::in_zone(column, &self.zone)).collect()
    }

    /// One row: for each column its length and bytes, or -1 for NULL.
    fn encode(&mut self, columns: &[Column], row: usize) -> Result<DataRow> {
        for (index, column) in columns.iter().enumerate() {
            if column.is_null(row) {
                self.row.put_i32(-1);
                continue;
            }
            self.scratch.clear();
            match self.formats.of(index) {
                FieldFormat::Text => column.write_text(row, &mut self.scratch),
                FieldFormat::Binary => column.write_binary(row, &mut self.scratch)?,
            }
            let length = i32::try_from(self.scratch.len())
                .map_err(|_| Error::new(SqlState::ProgramLimitExceeded, "a value is longer than 2 GiB"))?;
            self.row.put_i32(length);
            self.row.extend_from_slice(&self.scratch);
        }
        let most = self.limits.size(Limit::RowBytes);
        if self.row.len() > most {
            let message = format!("a row of {} bytes is too long: at most {most} are sent", self.row.len());
            self.row.clear();
            return Err(self
                .limits
                .exceeded(Limit::RowBytes, message)
                .hint("Take fewer columns, or parts of long values."));
        }
        // The number of columns was checked against a bound below `i16::MAX`.
        Ok(DataRow::new(self.row.split(), i16::try_from(columns.len()).unwrap_or(i16::MAX)))
    }
}
