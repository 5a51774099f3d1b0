//! The extended query protocol: Parse, Bind, Describe, Execute, Close, Sync.
//!
//! Prepared statements with names belong to the session, which `PREPARE` and `DEALLOCATE` share.
//! Execute without a row limit streams as the simple protocol does; with one, what is left of the
//! rows waits in the portal, unread.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::execution::SendableRecordBatchStream;
use futures::{Sink, SinkExt as _, StreamExt as _};
use pgwire::api::portal::{Format, Portal as WirePortal};
use pgwire::api::query::ExtendedQueryHandler;
use pgwire::api::results::Response;
use pgwire::api::stmt::NoopQueryParser;
use pgwire::api::store::PortalStore;
use pgwire::api::{ClientInfo, ClientPortalStore, PgWireConnectionState, Type};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::{NoData, ParameterDescription, RowDescription};
use pgwire::messages::extendedquery::{
    Bind, BindComplete, Close, CloseComplete, Describe, Execute, Parse, ParseComplete, PortalSuspended,
    Sync as SyncMessage, TARGET_TYPE_BYTE_PORTAL, TARGET_TYPE_BYTE_STATEMENT,
};
use pgwire::messages::response::{EmptyQueryResponse, ReadyForQuery};
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, cancel_requests, send_notices};
use super::messages::{Severity, command_complete, describe, error_info};
use super::parameters;
use super::rows::{Formats, RowBuffer, check_width, send_batch, send_rows};
use crate::engine::{Answer, Parameter, Prepared, Session, Tag, TransactionStatus};
use crate::server::errors;
use crate::server::metrics;
use crate::server::pg_types::pg_type;
use crate::types::{Error, Limit, Result, SqlState, TimeZone};

/// What a connection has parsed and bound.
#[derive(Default)]
pub(super) struct Extended {
    unnamed: Option<Stored>,
    named: HashMap<String, Stored>,
    portals: HashMap<String, Portal>,
}

/// A parsed statement.
#[derive(Clone)]
struct Stored {
    /// `None` for an empty text.
    prepared: Option<Arc<Prepared>>,
    /// The parameters' types as the client knows them.
    types: Vec<Type>,
}

/// A statement with its values, and how far it has run.
enum Portal {
    Empty,
    Bound { prepared: Arc<Prepared>, parameters: Vec<Parameter>, formats: Format },
    Suspended(Suspended),
    Finished(Tag),
}

/// A portal that has more rows.
struct Suspended {
    rows: SendableRecordBatchStream,
    /// Rows that were read and not sent.
    rest: Option<RecordBatch>,
    buffer: RowBuffer,
    tag: Tag,
    schema: SchemaRef,
    formats: Formats,
}

impl Extended {
    /// The portals end with the transaction.
    pub(super) fn end_transaction(&mut self) {
        self.portals.clear();
    }

    fn statement(&mut self, session: &Session, name: Option<&str>) -> Result<Stored> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return self.unnamed.clone().ok_or_else(|| {
                Error::new(SqlState::InvalidStatementName, "unnamed prepared statement does not exist")
                    .hint("Send Parse first.")
            });
        };
        if let Some(stored) = self.named.get(name) {
            let Some(prepared) = &stored.prepared else { return Ok(stored.clone()) };
            // DEALLOCATE, and PREPARE under the name again, are done with the session.
            if session.prepared(name).is_ok_and(|known| Arc::ptr_eq(&known, prepared)) {
                return Ok(stored.clone());
            }
            self.named.remove(name);
        }
        let prepared = session.prepared(name)?;
        let types = prepared.parameter_types().iter().map(pg_type).collect();
        Ok(Stored { prepared: Some(prepared), types })
    }

    fn portal(&mut self, name: Option<&str>) -> Result<&mut Portal> {
        let name = name.unwrap_or_default();
        self.portals.get_mut(name).ok_or_else(|| {
            Error::new(SqlState::InvalidCursorName, format!("portal \"{name}\" does not exist"))
                .hint("A portal ends with its transaction; outside of a block that is the next Sync.")
        })
    }
}

impl Connection {
    /// A simple query ends the unnamed statement and portal.
    pub(super) async fn forget_unnamed(&self) {
        let mut extended = self.extended.lock().await;
        extended.unnamed = None;
        extended.portals.remove("");
    }

    async fn parse(&self, message: Parse) -> Result<()> {
        let name = message.name.as_deref().unwrap_or_default();
        let declared = parameters::declared(&message.type_oids)?;
        let mut session = self.session.lock().await;
        let mut extended = self.extended.lock().await;
        if name.is_empty() {
            extended.unnamed = None;
        }
        let mut statements = session.parse(&message.query)?;
        let statement = statements.pop();
        if !statements.is_empty() {
            return Err(Error::new(SqlState::SyntaxError, "cannot insert multiple commands into a prepared statement")
                .hint("Send them one by one, or use the simple query protocol."));
        }
        let stored = match statement {
            None => Stored { prepared: None, types: Vec::new() },
            Some(statement) => {
                let known: Vec<_> =
                    declared.iter().map(|declared| declared.as_ref().map(|(_, stored)| stored.clone())).collect();
                let prepared = session.prepare(statement, &known).await?;
                if let Some(schema) = prepared.schema() {
                    check_width(schema.fields().len(), &self.limits)?;
                }
                let types = prepared
                    .parameter_types()
                    .iter()
                    .enumerate()
                    .map(|(index, stored)| match declared.get(index) {
                        Some(Some((kind, _))) => kind.clone(),
                        _ => pg_type(stored),
                    })
                    .collect();
                Stored { prepared: Some(Arc::new(prepared)), types }
            }
        };
        if name.is_empty() {
            extended.unnamed = Some(stored);
        } else {
            if let Some(prepared) = &stored.prepared {
                session.keep_prepared(name, Arc::clone(prepared))?;
            }
            extended.named.insert(name.to_owned(), stored);
        }
        Ok(())
    }

    async fn bind(&self, message: &Bind) -> Result<()> {
        let session = self.session.lock().await;
        let mut extended = self.extended.lock().await;
        let stored = extended.statement(&session, message.statement_name.as_deref())?;
        let name = message.portal_name.as_deref().unwrap_or_default();
        if !name.is_empty() && extended.portals.contains_key(name) {
            return Err(Error::new(SqlState::DuplicateCursor, format!("portal \"{name}\" already exists"))
                .hint("Close it first, or choose another name."));
        }
        let most = self.limits.size(Limit::Portals);
        if extended.portals.len() >= most {
            let message = format!("a connection may have at most {most} portals");
            return Err(self.limits.exceeded(Limit::Portals, message).hint("Close those that are done."));
        }
        let wanted = stored.types.len();
        if message.parameters.len() != wanted {
            let given = message.parameters.len();
            return Err(Error::new(
                SqlState::ProtocolViolation,
                format!("bind message supplies {given} parameters, but the prepared statement requires {wanted}"),
            )
            .hint("Send one value for each parameter."));
        }
        let portal = match stored.prepared {
            None => Portal::Empty,
            Some(prepared) => {
                let stored_types = prepared.parameter_types();
                let parameters = parameters::values(message, &stored.types, stored_types)?;
                let columns = prepared.schema().map_or(0, |schema| schema.fields().len());
                let formats = parameters::formats(&message.result_column_format_codes);
                // PostgreSQL takes any codes for a statement without rows.
                if columns > 0 {
                    Formats::of_portal(&formats, columns)?;
                }
                Portal::Bound { prepared, parameters, formats }
            }
        };
        extended.portals.insert(name.to_owned(), portal);
        Ok(())
    }

    async fn described(&self, message: &Describe) -> Result<Vec<PgWireBackendMessage>> {
        let session = self.session.lock().await;
        let mut extended = self.extended.lock().await;
        let name = message.name.as_deref();
        let mut messages = Vec::new();
        let (schema, formats) = match message.target_type {
            TARGET_TYPE_BYTE_STATEMENT => {
                let stored = extended.statement(&session, name)?;
                let types = stored.types.iter().map(Type::oid).collect();
                messages.push(PgWireBackendMessage::ParameterDescription(ParameterDescription::new(types)));
                let schema = stored.prepared.and_then(|prepared| prepared.schema().map(Arc::clone));
                (schema, Formats::All(pgwire::api::results::FieldFormat::Text))
            }
            // A cursor of SQL is a portal too.
            TARGET_TYPE_BYTE_PORTAL if !extended.portals.contains_key(name.unwrap_or_default()) => {
                match session.cursor_schema(name.unwrap_or_default()) {
                    Ok(schema) => (Some(schema), Formats::All(pgwire::api::results::FieldFormat::Text)),
                    Err(_) => {
                        return Err(extended.portal(name).err().unwrap_or_else(|| Error::internal("a portal came")));
                    }
                }
            }
            TARGET_TYPE_BYTE_PORTAL => match extended.portal(name)? {
                Portal::Empty | Portal::Finished(_) => (None, Formats::All(pgwire::api::results::FieldFormat::Text)),
                Portal::Bound { prepared, formats, .. } => {
                    let schema = prepared.schema().map(Arc::clone);
                    let columns = schema.as_ref().map_or(0, |schema| schema.fields().len());
                    let formats = if columns > 0 {
                        Formats::of_portal(formats, columns)?
                    } else {
                        Formats::All(pgwire::api::results::FieldFormat::Text)
                    };
                    (schema, formats)
                }
                Portal::Suspended(suspended) => (Some(Arc::clone(&suspended.schema)), suspended.formats.clone()),
            },
            other => {
                return Err(Error::new(
                    SqlState::ProtocolViolation,
                    format!("invalid DESCRIBE message subtype {other}"),
                ));
            }
        };
        messages.push(match schema {
            None => PgWireBackendMessage::NoData(NoData::new()),
            Some(schema) => {
                let fields = schema.fields().iter().enumerate();
                let fields = fields.map(|(index, field)| (&describe(field, formats.of(index))).into()).collect();
                PgWireBackendMessage::RowDescription(RowDescription::new(fields))
            }
        });
        Ok(messages)
    }

    /// Runs a portal, or goes on with one; at most `rows_max` rows when it is not zero.
    async fn execute_portal<C>(
        &self,
        client: &mut C,
        name: &str,
        rows_max: usize,
        cancel: &CancellationToken,
    ) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let mut session = self.session.lock().await;
        let mut extended = self.extended.lock().await;
        let portal = extended.portal(Some(name)).map_err(|error| self.failed(&mut session, &error))?;
        // Whatever goes wrong from here on, the portal is through.
        let (prepared, parameters, formats) = match std::mem::replace(portal, Portal::Finished(Tag::Select)) {
            Portal::Empty => {
                *portal = Portal::Empty;
                client.feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new())).await?;
                return Ok(());
            }
            Portal::Finished(tag) => {
                *portal = Portal::Finished(tag.clone());
                return Ok(client.feed(command_complete(&tag, 0)).await?);
            }
            Portal::Suspended(suspended) => {
                let sent = self.send_portion(client, suspended, rows_max, cancel).await;
                if sent.is_err() {
                    session.fail_block();
                }
                *portal = sent?;
                return Ok(());
            }
            Portal::Bound { prepared, parameters, formats } => (prepared, parameters, formats),
        };
        let answer = session.execute_prepared(&prepared, &parameters, cancel).await;
        let answer = answer.map_err(|error| self.named(&error))?;
        let sent = self.send_first(client, &prepared, answer, &formats, &session.time_zone(), rows_max, cancel).await;
        if sent.is_err() {
            session.fail_block();
        }
        *portal = sent?;
        let ended = session.status() == TransactionStatus::Idle
            && matches!(prepared.statement().kind, crate::engine::StatementKind::Transaction(_));
        if ended {
            extended.end_transaction();
        }
        drop(extended);
        self.after_statement(client, &session).await
    }

    #[expect(clippy::too_many_arguments, reason = "what Bind and Execute say, and where it goes")]
    async fn send_first<C>(
        &self,
        client: &mut C,
        prepared: &Prepared,
        answer: Answer,
        formats: &Format,
        zone: &TimeZone,
        rows_max: usize,
        cancel: &CancellationToken,
    ) -> PgWireResult<Portal>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let (schema, rows, tag, notices) = match answer {
            Answer::Rows { schema, rows, tag, notices } => (schema, rows, tag, notices),
            other => {
                self.send_answer(client, other, zone, cancel, true).await?;
                return Ok(Portal::Finished(Tag::Select));
            }
        };
        send_notices(client, &notices).await?;
        if !prepared.schema().is_some_and(|described| same_types(described, &schema)) {
            let error =
                Error::unsupported("cached plan must not change result type").hint("Prepare the statement again.");
            let mut info = error_info(&error, Severity::Error);
            // Drivers know by PostgreSQL's routine that they can prepare it again.
            info.routine = Some("RevalidateCachedQuery".to_owned());
            return Err(PgWireError::UserError(Box::new(info)));
        }
        let formats = Formats::of_portal(formats, schema.fields().len()).map_err(|error| self.named(&error))?;
        if rows_max == 0 {
            let mut buffer = RowBuffer::new(formats, zone.clone(), &self.limits);
            let count = send_rows(client, rows, &mut buffer, cancel, &|error| self.named(error)).await?;
            metrics::rows(count);
            client.feed(command_complete(&tag, count)).await?;
            return Ok(Portal::Finished(tag));
        }
        let buffer = RowBuffer::new(formats.clone(), zone.clone(), &self.limits);
        let suspended = Suspended { rows, rest: None, buffer, tag, schema, formats };
        self.send_portion(client, suspended, rows_max, cancel).await
    }

    /// Sends the next rows of a portal.
    async fn send_portion<C>(
        &self,
        client: &mut C,
        mut suspended: Suspended,
        rows_max: usize,
        cancel: &CancellationToken,
    ) -> PgWireResult<Portal>
    where
        C: Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let named = |error: &Error| self.named(error);
        let limit = if rows_max == 0 { usize::MAX } else { rows_max };
        let send = async {
            let mut left = limit;
            while left > 0 {
                let batch = match suspended.rest.take() {
                    Some(batch) => batch,
                    None => match suspended.rows.next().await {
                        Some(batch) => batch.map_err(|error| named(&errors::of_stream(error)))?,
                        None => {
                            let sent = u64::try_from(limit - left).unwrap_or(u64::MAX);
                            client.feed(command_complete(&suspended.tag, sent)).await?;
                            return Ok(Portal::Finished(suspended.tag));
                        }
                    },
                };
                let now = batch.num_rows().min(left);
                if now < batch.num_rows() {
                    suspended.rest = Some(batch.slice(now, batch.num_rows() - now));
                }
                send_batch(client, &batch.slice(0, now), &mut suspended.buffer, &named).await?;
                left -= now;
            }
            client.feed(PgWireBackendMessage::PortalSuspended(PortalSuspended::new())).await?;
            Ok(Portal::Suspended(suspended))
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => {
                Err(named(&Error::new(SqlState::QueryCanceled, "canceling statement due to user request")))
            }
            sent = send => sent,
        }
    }

    /// The error of a message, which fails an open block.
    async fn refused(&self, error: &Error) -> PgWireError {
        self.failed(&mut *self.session.lock().await, error)
    }
}

/// True when a client that was told of one may be sent the other.
fn same_types(described: &SchemaRef, sent: &SchemaRef) -> bool {
    let types = |schema: &SchemaRef| schema.fields().iter().map(|field| pg_type(field.data_type())).collect::<Vec<_>>();
    types(described) == types(sent)
}

#[async_trait]
impl ExtendedQueryHandler for Connection {
    // Statements and portals are kept here and with the session, not in the library's store.
    type Statement = String;
    type QueryParser = NoopQueryParser;

    fn query_parser(&self) -> Arc<NoopQueryParser> {
        Arc::new(NoopQueryParser::new())
    }

    async fn on_parse<C>(&self, client: &mut C, message: Parse) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = String>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        // Planning may wait for a connector or a lock; a cancel ends that too.
        let asked = cancel_requests(client).await;
        let cancel = self.token();
        let parsed = self.guarded(asked, &cancel, async {
            tokio::select! {
                biased;
                () = cancel.cancelled() => {
                    Err(Error::new(SqlState::QueryCanceled, "canceling statement due to user request"))
                }
                parsed = self.parse(message) => parsed,
            }
        });
        if let Err(error) = parsed.await {
            return Err(self.refused(&error).await);
        }
        client.feed(PgWireBackendMessage::ParseComplete(ParseComplete::new())).await?;
        Ok(())
    }

    async fn on_bind<C>(&self, client: &mut C, message: Bind) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = String>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        if let Err(error) = self.bind(&message).await {
            return Err(self.refused(&error).await);
        }
        client.feed(PgWireBackendMessage::BindComplete(BindComplete::new())).await?;
        Ok(())
    }

    async fn on_describe<C>(&self, client: &mut C, message: Describe) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = String>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        match self.described(&message).await {
            Err(error) => Err(self.refused(&error).await),
            Ok(messages) => {
                for message in messages {
                    client.feed(message).await?;
                }
                Ok(())
            }
        }
    }

    async fn on_execute<C>(&self, client: &mut C, message: Execute) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = String>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        if !matches!(client.state(), PgWireConnectionState::ReadyForQuery) {
            return Err(PgWireError::NotReadyForQuery);
        }
        client.set_state(PgWireConnectionState::QueryInProgress);
        let name = message.name.as_deref().unwrap_or_default();
        // Zero and below: no limit.
        let rows_max = usize::try_from(message.max_rows).unwrap_or(0);
        let asked = cancel_requests(client).await;
        let cancel = self.token();
        self.guarded(asked, &cancel, self.execute_portal(client, name, rows_max, &cancel)).await?;
        if !matches!(client.state(), PgWireConnectionState::CopyInProgress(_)) {
            client.set_state(PgWireConnectionState::ReadyForQuery);
        }
        Ok(())
    }

    async fn on_close<C>(&self, client: &mut C, message: Close) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = String>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or_default();
        {
            let mut extended = self.extended.lock().await;
            match message.target_type {
                TARGET_TYPE_BYTE_STATEMENT if name.is_empty() => extended.unnamed = None,
                TARGET_TYPE_BYTE_STATEMENT => {
                    extended.named.remove(name);
                    drop(extended);
                    self.session.lock().await.forget_prepared(name);
                }
                _ => {
                    extended.portals.remove(name);
                }
            }
        }
        client.feed(PgWireBackendMessage::CloseComplete(CloseComplete::new())).await?;
        Ok(())
    }

    async fn on_sync<C>(&self, client: &mut C, _: SyncMessage) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = String>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        {
            let session = self.session.lock().await;
            self.show_status(client, &session);
            if session.status() == TransactionStatus::Idle {
                self.extended.lock().await.end_transaction();
            }
        }
        let status = client.transaction_status();
        client.send(PgWireBackendMessage::ReadyForQuery(ReadyForQuery::new(status))).await?;
        Ok(())
    }

    /// Not reached: [`Self::on_execute`] does all, so that a cancelled statement is waited for.
    async fn do_query<C>(&self, client: &mut C, portal: &WirePortal<String>, rows_max: usize) -> PgWireResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = String>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let _ = (client, portal, rows_max);
        Err(self.named(&Error::internal("a portal was run past its handler")))
    }
}
