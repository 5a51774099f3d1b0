//! The extended query protocol: Parse, Bind, Describe, Execute, for statements without parameters.
//!
//! A statement is planned at Parse, to describe its rows, and again when it runs. Execute without
//! a row limit streams as the simple protocol does; with one, what is left of the rows waits in
//! the portal, unread.

use std::fmt::Debug;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use futures::{Sink, SinkExt as _, StreamExt as _, stream};
use pgwire::api::portal::{Format, Portal, PortalExecutionState};
use pgwire::api::query::ExtendedQueryHandler;
use pgwire::api::results::{FieldInfo, QueryResponse, Response};
use pgwire::api::stmt::QueryParser;
use pgwire::api::store::{Entry, PortalStore};
use pgwire::api::{ClientInfo, ClientPortalStore, DEFAULT_NAME, PgWireConnectionState, Type};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::extendedquery::{Bind, BindComplete, Execute, PortalSuspended};
use pgwire::messages::response::{CommandComplete, EmptyQueryResponse};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::tokenizer::{Token, Tokenizer};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, cancel_requests, send_notices};
use super::messages::{command_complete, describe, pg_error, tag_text};
use super::rows::{Formats, RowBuffer, check_width, send_rows};
use crate::engine::{Answer, Session, Statement, Tag};
use crate::server::errors;
use crate::types::{Error, Result, SqlState};

/// The tag of a portal whose rows are counted when they end.
const COUNTED: &str = "SELECT";

/// What Parse keeps.
#[derive(Clone)]
pub(super) struct Prepared {
    statement: Arc<Statement>,
    /// The rows that were described; `None` for a statement without rows.
    schema: Option<SchemaRef>,
}

/// Parses and describes statements with the connection's session.
pub(super) struct StatementParser {
    pub(super) session: Arc<Mutex<Session>>,
}

impl StatementParser {
    async fn parse(&self, sql: &str, types: &[Option<Type>]) -> Result<Option<Prepared>> {
        if !types.is_empty() {
            return Err(parameters_refused(None));
        }
        refuse_placeholders(sql)?;
        let session = self.session.lock().await;
        let mut statements = session.parse(sql)?;
        let Some(statement) = statements.pop() else { return Ok(None) };
        if !statements.is_empty() {
            return Err(Error::new(SqlState::SyntaxError, "cannot insert multiple commands into a prepared statement")
                .hint("Send them one by one, or use the simple query protocol."));
        }
        let schema = session.describe(&statement).await?;
        if let Some(schema) = &schema {
            check_width(schema.fields().len())?;
        }
        Ok(Some(Prepared { statement: Arc::new(statement), schema }))
    }
}

fn parameters_refused(position: Option<usize>) -> Error {
    Error::unsupported("parameters of prepared statements are not supported yet")
        .hint("Write the values into the statement; most drivers do it with preferQueryMode=simple or a like setting.")
        .position_or(position)
}

/// Refuses `$1` and its like where they stand, before planning takes them for something else.
fn refuse_placeholders(sql: &str) -> Result<()> {
    // A text that cannot be cut into tokens gets its error from the parser.
    let Ok(tokens) = Tokenizer::new(&PostgreSqlDialect {}, sql).tokenize_with_location() else { return Ok(()) };
    for token in tokens {
        if let Token::Placeholder(_) = token.token {
            let at = token.span.start;
            let line = usize::try_from(at.line).unwrap_or(1).saturating_sub(1);
            let column = usize::try_from(at.column).unwrap_or(1);
            let before: usize = sql.split('\n').take(line).map(|line| line.chars().count() + 1).sum();
            return Err(parameters_refused(Some(before + column)));
        }
    }
    Ok(())
}

#[async_trait]
impl QueryParser for StatementParser {
    type Statement = Prepared;

    async fn parse_sql<C>(&self, _: &C, sql: &str, types: &[Option<Type>]) -> PgWireResult<Option<Prepared>>
    where
        C: ClientInfo + Unpin + Send + Sync,
    {
        self.parse(sql, types).await.map_err(|error| pg_error(&error))
    }

    fn get_parameter_types(&self, _: &Prepared) -> PgWireResult<Vec<Type>> {
        Ok(Vec::new())
    }

    fn get_result_schema(&self, prepared: &Prepared, format: Option<&Format>) -> PgWireResult<Vec<FieldInfo>> {
        let Some(schema) = &prepared.schema else { return Ok(Vec::new()) };
        let fields = schema.fields();
        let formats = Formats::of_portal(format.unwrap_or(&Format::UnifiedText), fields.len())
            .map_err(|error| pg_error(&error))?;
        Ok(fields.iter().enumerate().map(|(index, field)| describe(field, formats.of(index))).collect())
    }
}

impl Connection {
    /// Runs a portal, or goes on with one; at most `rows_max` rows when it is not zero.
    async fn execute_portal<C>(
        &self,
        client: &mut C,
        portal: &Portal<Prepared>,
        rows_max: usize,
        cancel: &CancellationToken,
    ) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let state = portal.state();
        let mut state = state.lock().await;
        // Whatever goes wrong from here on, the portal is through.
        match std::mem::replace(&mut *state, PortalExecutionState::Finished) {
            PortalExecutionState::Initial => {}
            PortalExecutionState::Finished => {
                return Ok(client.feed(command_complete(&Tag::Select, 0)).await?);
            }
            PortalExecutionState::Suspended(mut response) => {
                if self.send_some(client, &mut response, rows_max, cancel).await? {
                    *state = PortalExecutionState::Suspended(response);
                }
                return Ok(());
            }
        }
        let prepared = &portal.statement.statement;
        let answer = {
            let mut session = self.session.lock().await;
            session.execute(&prepared.statement, cancel).await.map_err(|error| self.named(&error))?
        };
        let (schema, rows, tag, notices) = match answer {
            Answer::Done { tag, notices } => {
                send_notices(client, &notices).await?;
                return Ok(client.feed(command_complete(&tag, 0)).await?);
            }
            Answer::Rows { schema, rows, tag, notices } => (schema, rows, tag, notices),
        };
        send_notices(client, &notices).await?;
        let described = prepared.schema.as_ref();
        if !described.is_some_and(|described| same_types(described, &schema)) {
            let error =
                Error::unsupported("cached plan must not change result type").hint("Prepare the statement again.");
            return Err(self.named(&error));
        }
        let formats = Formats::of_portal(&portal.result_column_format, schema.fields().len())
            .map_err(|error| self.named(&error))?;
        if rows_max == 0 {
            let count = send_rows(client, rows, &formats, cancel, &|error| self.named(error)).await?;
            return Ok(client.feed(command_complete(&tag, count)).await?);
        }
        let mut buffer = RowBuffer::new(formats);
        let rows = rows.flat_map(move |batch| {
            let encoded = batch.map_err(errors::of_stream).and_then(|batch| buffer.encode_batch(&batch));
            stream::iter(match encoded {
                Ok(rows) => rows.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(pg_error(&error))],
            })
        });
        let mut response = QueryResponse::new(Arc::new(Vec::new()), rows);
        response.set_command_tag(&match tag {
            Tag::Select => COUNTED.to_owned(),
            other => tag_text(&other, 0),
        });
        if self.send_some(client, &mut response, rows_max, cancel).await? {
            *state = PortalExecutionState::Suspended(response);
        }
        Ok(())
    }

    /// Sends the next rows of a portal; true when it is suspended and not through.
    async fn send_some<C>(
        &self,
        client: &mut C,
        response: &mut QueryResponse,
        rows_max: usize,
        cancel: &CancellationToken,
    ) -> PgWireResult<bool>
    where
        C: Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let send = async {
            let mut count = 0usize;
            while rows_max == 0 || count < rows_max {
                let Some(row) = response.data_rows().next().await else {
                    let tag = match response.command_tag() {
                        COUNTED => format!("{COUNTED} {count}"),
                        other => other.to_owned(),
                    };
                    client.feed(PgWireBackendMessage::CommandComplete(CommandComplete::new(tag))).await?;
                    return Ok(false);
                };
                client.feed(PgWireBackendMessage::DataRow(row?)).await?;
                count += 1;
            }
            client.feed(PgWireBackendMessage::PortalSuspended(PortalSuspended::new())).await?;
            Ok(true)
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => {
                Err(self.named(&Error::new(SqlState::QueryCanceled, "canceling statement due to user request")))
            }
            sent = send => sent,
        }
    }
}

/// True when a client that was told of one may be sent the other.
fn same_types(described: &SchemaRef, sent: &SchemaRef) -> bool {
    let types = |schema: &SchemaRef| schema.fields().iter().map(|field| field.data_type().clone()).collect::<Vec<_>>();
    types(described) == types(sent)
}

#[async_trait]
impl ExtendedQueryHandler for Connection {
    type Statement = Prepared;
    type QueryParser = StatementParser;

    fn query_parser(&self) -> Arc<StatementParser> {
        Arc::clone(&self.parser)
    }

    async fn on_bind<C>(&self, client: &mut C, message: Bind) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let statement = message.statement_name.as_deref().unwrap_or(DEFAULT_NAME);
        let portal = message.portal_name.as_deref().unwrap_or(DEFAULT_NAME);
        if !message.parameters.is_empty() {
            let count = message.parameters.len();
            return Err(pg_error(&Error::new(
                SqlState::ProtocolViolation,
                format!("bind message supplies {count} parameters, but the prepared statement requires 0"),
            )));
        }
        match client.portal_store().get_statement(statement) {
            Some(Entry::Value(statement)) => {
                let portal = Portal::try_new(&message, statement)?;
                client.portal_store().put_portal(Arc::new(portal));
            }
            Some(Entry::Empty) => client.portal_store().put_empty_portal(portal),
            None => return Err(PgWireError::StatementNotFound(statement.to_owned())),
        }
        client.feed(PgWireBackendMessage::BindComplete(BindComplete::new())).await?;
        Ok(())
    }

    async fn on_execute<C>(&self, client: &mut C, message: Execute) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        if !matches!(client.state(), PgWireConnectionState::ReadyForQuery) {
            return Err(PgWireError::NotReadyForQuery);
        }
        client.set_state(PgWireConnectionState::QueryInProgress);
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        // Zero and below: no limit.
        let rows_max = usize::try_from(message.max_rows).unwrap_or(0);
        match client.portal_store().get_portal(name) {
            None => return Err(PgWireError::PortalNotFound(name.to_owned())),
            Some(Entry::Empty) => {
                client.feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new())).await?;
            }
            Some(Entry::Value(portal)) => {
                let asked = cancel_requests(client).await;
                let cancel = self.token();
                self.guarded(asked, &cancel, self.execute_portal(client, &portal, rows_max, &cancel)).await?;
            }
        }
        client.set_state(PgWireConnectionState::ReadyForQuery);
        Ok(())
    }

    /// Not reached: [`Self::on_execute`] does all, so that a cancelled statement is waited for.
    async fn do_query<C>(&self, client: &mut C, portal: &Portal<Prepared>, rows_max: usize) -> PgWireResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let _ = (client, portal, rows_max);
        Err(pg_error(&Error::internal("a portal was run past its handler")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_refused_where_they_stand() {
        let error = refuse_placeholders("SELECT '$1',\n  é + $1").expect_err("a parameter");
        assert_eq!((error.code(), error.position_at()), (SqlState::FeatureNotSupported, Some(20)));
        assert!(refuse_placeholders("SELECT '$1' -- $2").is_ok());
    }
}
