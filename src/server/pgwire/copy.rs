//! COPY over the wire.

use std::fmt::Debug;

use arrow::datatypes::Schema;
use async_trait::async_trait;
use bytes::BytesMut;
use datafusion::execution::SendableRecordBatchStream;
use futures::{FutureExt as _, Sink, SinkExt as _, StreamExt as _};
use pgwire::api::ClientInfo;
use pgwire::api::copy::CopyHandler;
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::copy::{CopyData, CopyDone, CopyFail, CopyInResponse, CopyOutResponse};
use pgwire::messages::response::CommandComplete;
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, cancel_requests};
use crate::engine::{Answer, CopyFormat, CopyIn, CopyOptions};
use crate::server::copy::{Decoder, Encoder};
use crate::server::errors;
use crate::server::pg_types::pg_type;
use crate::types::{Error, Limit, Result, SqlState};

/// Room for the messages of rows.
const BUFFER_BYTES: usize = 64 << 10;

/// A COPY whose rows come.
pub(super) struct Receiving {
    decoder: Decoder,
    copy: CopyIn,
}

impl Receiving {
    pub(super) fn new(copy: CopyIn) -> Receiving {
        let columns = copy.columns().map(|(name, data_type)| (name, pg_type(data_type)));
        let row_bytes_max = copy.limits().size(Limit::RowBytes);
        Receiving { decoder: Decoder::new(copy.options(), copy.table(), columns, row_bytes_max), copy }
    }

    fn take(&mut self, all: bool) -> Result<()> {
        while let Some((columns, lines)) = self.decoder.take(all) {
            self.copy.push(&columns, |row| lines.get(row).copied().unwrap_or(0))?;
        }
        Ok(())
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        if !self.decoder.feed(bytes)? {
            let limits = self.copy.limits();
            let message = format!("a row may be at most {} bytes long", limits.get(Limit::RowBytes));
            return Err(limits.exceeded(Limit::RowBytes, message).hint("Is the end of line, or a quote, missing?"));
        }
        self.take(false)
    }

    fn finish(mut self) -> Result<CopyIn> {
        self.decoder.finish()?;
        self.take(true)?;
        Ok(self.copy)
    }
}

fn codes(options: &CopyOptions, columns: usize) -> (i8, i16, Vec<i16>) {
    let binary = options.format == CopyFormat::Binary;
    // The number of columns was checked against a bound below `i16::MAX`.
    (i8::from(binary), i16::try_from(columns).unwrap_or(i16::MAX), vec![i16::from(binary); columns])
}

/// The message that asks for rows.
pub(super) fn response(copy: &CopyIn) -> PgWireBackendMessage {
    let (format, columns, formats) = codes(copy.options(), copy.columns().count());
    PgWireBackendMessage::CopyInResponse(CopyInResponse::new(format, columns, formats))
}

/// Sends rows, each in a message of its own: clients take a message for a row.
pub(super) async fn send<C>(
    client: &mut C,
    schema: &Schema,
    mut rows: SendableRecordBatchStream,
    mut encoder: Encoder,
    cancel: &CancellationToken,
    named: &(dyn Fn(&Error) -> PgWireError + Sync),
) -> PgWireResult<()>
where
    C: Sink<PgWireBackendMessage> + Unpin + Send,
    C::Error: Debug,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    let (format, columns, formats) = codes(encoder.options(), schema.fields().len());
    let binary = encoder.options().format == CopyFormat::Binary;
    client.feed(PgWireBackendMessage::CopyOutResponse(CopyOutResponse::new(format, columns, formats))).await?;
    let (mut out, mut messages) = (Vec::new(), BytesMut::with_capacity(BUFFER_BYTES));
    encoder.start(schema, &mut out);
    // A header line is a message too; the binary signature stands before the first row.
    if !binary && !out.is_empty() {
        client.feed(message(&mut out, &mut messages)).await?;
    }
    let mut count = 0_u64;
    let send = async {
        loop {
            let next = match rows.next().now_or_never() {
                Some(next) => next,
                None => {
                    // Nothing is there yet: what was fed should not wait for it.
                    client.flush().await?;
                    rows.next().await
                }
            };
            let Some(batch) = next else { break };
            let batch = batch.map_err(|error| named(&errors::of_stream(error)))?;
            let columns = encoder.columns(&batch).map_err(|error| named(&error))?;
            for row in 0..batch.num_rows() {
                encoder.row(&columns, row, &mut out).map_err(|error| named(&error))?;
                client.feed(message(&mut out, &mut messages)).await?;
            }
            count += batch.num_rows() as u64;
        }
        encoder.end(&mut out);
        if !out.is_empty() {
            client.feed(message(&mut out, &mut messages)).await?;
        }
        client.feed(PgWireBackendMessage::CopyDone(CopyDone::new())).await?;
        let tag = CommandComplete::new(format!("COPY {count}"));
        Ok(client.feed(PgWireBackendMessage::CommandComplete(tag)).await?)
    };
    // A client that does not read holds this up; the token ends it all the same.
    tokio::select! {
        biased;
        () = cancel.cancelled() => {
            Err(named(&Error::new(SqlState::QueryCanceled, "canceling statement due to user request")))
        }
        sent = send => sent,
    }
}

/// What was written, as a message.
fn message(written: &mut Vec<u8>, messages: &mut BytesMut) -> PgWireBackendMessage {
    messages.extend_from_slice(written);
    written.clear();
    PgWireBackendMessage::CopyData(CopyData::new(messages.split().freeze()))
}

#[async_trait]
impl CopyHandler for Connection {
    async fn on_copy_data<C>(&self, _: &mut C, data: CopyData) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let mut receiving = self.copy.lock().await;
        let Some(copy) = receiving.as_mut() else { return Ok(()) };
        if let Err(error) = copy.feed(&data.data) {
            *receiving = None;
            return Err(self.failed(&mut *self.session.lock().await, &error));
        }
        Ok(())
    }

    async fn on_copy_done<C>(&self, client: &mut C, _: CopyDone) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let Some(receiving) = self.copy.lock().await.take() else { return Ok(()) };
        let asked = cancel_requests(client).await;
        let cancel = self.token();
        let work = async {
            let mut session = self.session.lock().await;
            let copy = receiving.finish().map_err(|error| self.failed(&mut session, &error))?;
            let answer = session.finish_copy(copy, &cancel).await.map_err(|error| self.named(&error))?;
            match answer {
                Answer::CopyIn(_) => Err(self.named(&Error::internal("a copy that begins at its end"))),
                answer => {
                    self.send_answer(client, answer, &session.time_zone(), &cancel, false).await?;
                    self.after_statement(client, &session).await
                }
            }
        };
        self.guarded(asked, &cancel, work).await
    }

    async fn on_copy_fail<C>(&self, _: &mut C, fail: CopyFail) -> PgWireError
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        *self.copy.lock().await = None;
        let error =
            Error::new(SqlState::QueryCanceled, format!("COPY from stdin failed: {}", fail.message.replace('\0', "")))
                .hint("Nothing was written; copy again.");
        self.failed(&mut *self.session.lock().await, &error)
    }
}
