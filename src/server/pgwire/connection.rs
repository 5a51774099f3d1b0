//! One client: its session and the statements that it sends.

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::channel::oneshot;
use futures::{Sink, SinkExt as _};
use pgwire::api::auth::StartupHandler;
use pgwire::api::cancel::{CancelHandler, DefaultCancelHandler};
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler, send_ready_for_query};
use pgwire::api::results::{FieldFormat, Response};
use pgwire::api::store::PortalStore;
use pgwire::api::{
    ClientInfo, ClientPortalStore, ConnectionHandle, ConnectionManager, PgWireConnectionState, PgWireServerHandlers,
};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::response::EmptyQueryResponse;
use pgwire::messages::simplequery::Query;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::extended::StatementParser;
use super::listener::SessionSlot;
use super::messages::{Severity, command_complete, error_info, notice, pg_error, row_description};
use super::rows::{Formats, check_width, send_rows};
use crate::engine::{Answer, Notice, Session};
use crate::types::{Error, SqlState};

/// How often a running statement looks whether its client is still there.
const CLIENT_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How long the server's stop waits for a running statement.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// One client's connection.
pub(super) struct Connection {
    pub(super) session: Arc<Mutex<Session>>,
    pub(super) parser: Arc<StatementParser>,
    pub(super) manager: Arc<ConnectionManager>,
    /// A second handle on the socket, never read from, only looked at.
    watched: std::net::TcpStream,
    pub(super) slot: std::sync::Mutex<SessionSlot>,
    busy: AtomicBool,
    stop: CancellationToken,
}

impl Connection {
    pub(super) fn new(
        session: Session,
        manager: Arc<ConnectionManager>,
        watched: std::net::TcpStream,
        slot: SessionSlot,
        stop: CancellationToken,
    ) -> Connection {
        let session = Arc::new(Mutex::new(session));
        Connection {
            parser: Arc::new(StatementParser { session: Arc::clone(&session) }),
            session,
            manager,
            watched,
            slot: std::sync::Mutex::new(slot),
            busy: AtomicBool::new(false),
            stop,
        }
    }

    /// Waits until no statement runs, or for some seconds.
    pub(super) async fn idle(&self) {
        let wait = async {
            while self.busy.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        // Whether it ended or not, the connection is closed now.
        let _ = tokio::time::timeout(STOP_TIMEOUT, wait).await;
    }

    /// True when the client closed the connection, or said that it will and sends nothing more.
    fn client_gone(&self) -> bool {
        const TERMINATE: [u8; 5] = [b'X', 0, 0, 0, 4];
        let mut bytes = [0u8; TERMINATE.len() + 1];
        // The socket does not block; peeking leaves the bytes for the reader.
        match self.watched.peek(&mut bytes) {
            Ok(0) => true,
            Ok(length) => bytes.get(..length) == Some(&TERMINATE[..]),
            Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted),
        }
    }

    /// Fires the token when the client asks for it or is gone. Never ends by itself.
    async fn watch(&self, mut asked: Option<oneshot::Receiver<()>>, cancel: &CancellationToken) -> Infallible {
        loop {
            let ask = async {
                match &mut asked {
                    Some(receiver) => receiver.await.is_ok(),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                fired = ask => {
                    asked = None;
                    if fired {
                        cancel.cancel();
                    }
                }
                () = tokio::time::sleep(CLIENT_CHECK_INTERVAL) => {
                    if self.client_gone() {
                        cancel.cancel();
                    }
                }
            }
        }
    }

    /// Does some work under a token that is fired when the client asks for it or is gone.
    pub(super) async fn guarded<T>(
        &self,
        asked: Option<oneshot::Receiver<()>>,
        cancel: &CancellationToken,
        work: impl Future<Output = T>,
    ) -> T {
        let _busy = Busy::new(&self.busy);
        tokio::select! {
            done = work => done,
            never = self.watch(asked, cancel) => match never {},
        }
    }

    /// A token for one message; the server's stop fires it too.
    pub(super) fn token(&self) -> CancellationToken {
        self.stop.child_token()
    }

    /// Runs a text of statements up to the first error.
    async fn run_text<C>(&self, client: &mut C, text: &str) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let asked = cancel_requests(client).await;
        let cancel = self.token();
        self.guarded(asked, &cancel, self.run_statements(client, text, &cancel)).await
    }

    async fn run_statements<C>(&self, client: &mut C, text: &str, cancel: &CancellationToken) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let mut session = self.session.lock().await;
        let statements = session.parse(text).map_err(|error| pg_error(&error))?;
        if statements.is_empty() {
            client.feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new())).await?;
        }
        for statement in &statements {
            let answer = session.execute(statement, cancel).await.map_err(|error| self.named(&error))?;
            match answer {
                Answer::Done { tag, notices } => {
                    send_notices(client, &notices).await?;
                    client.feed(command_complete(&tag, 0)).await?;
                }
                Answer::Rows { schema, rows, tag, notices } => {
                    send_notices(client, &notices).await?;
                    check_width(schema.fields().len()).map_err(|error| self.named(&error))?;
                    client.feed(row_description(&schema)).await?;
                    let formats = Formats::All(FieldFormat::Text);
                    let count = send_rows(client, rows, &formats, cancel, &|error| self.named(error)).await?;
                    client.feed(command_complete(&tag, count)).await?;
                }
            }
        }
        Ok(())
    }

    /// A statement's error; one that was cancelled because the server stops says so.
    pub(super) fn named(&self, error: &Error) -> PgWireError {
        if error.code() == SqlState::QueryCanceled && self.stop.is_cancelled() {
            let error = Error::new(SqlState::AdminShutdown, "terminating connection due to administrator command");
            return PgWireError::UserError(Box::new(error_info(&error, Severity::Fatal)));
        }
        pg_error(error)
    }
}

/// Where the next cancel request for the connection arrives.
pub(super) async fn cancel_requests<C: ClientInfo + Sync>(client: &C) -> Option<oneshot::Receiver<()>> {
    let handle = client.session_extensions().get::<Arc<ConnectionHandle>>()?;
    Some(handle.start_query().await)
}

/// Marks the connection as busy while it lives.
struct Busy<'a>(&'a AtomicBool);

impl<'a> Busy<'a> {
    fn new(flag: &'a AtomicBool) -> Busy<'a> {
        flag.store(true, Ordering::Relaxed);
        Busy(flag)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

pub(super) async fn send_notices<C>(client: &mut C, notices: &[Notice]) -> PgWireResult<()>
where
    C: Sink<PgWireBackendMessage> + Unpin + Send,
    C::Error: Debug,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    for one in notices {
        client.feed(notice(one)).await?;
    }
    Ok(())
}

#[async_trait]
impl SimpleQueryHandler for Connection {
    async fn on_query<C>(&self, client: &mut C, query: Query) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        if !matches!(client.state(), PgWireConnectionState::ReadyForQuery) {
            return Err(PgWireError::NotReadyForQuery);
        }
        client.set_state(PgWireConnectionState::QueryInProgress);
        self.run_text(client, &query.query).await?;
        client.set_state(PgWireConnectionState::ReadyForQuery);
        let status = client.transaction_status();
        send_ready_for_query(client, status).await
    }

    async fn do_query<C>(&self, client: &mut C, query: &str) -> PgWireResult<Vec<Response>>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        self.run_text(client, query).await?;
        Ok(Vec::new())
    }
}

/// The handlers of one connection, all the same object.
pub(super) struct Handlers {
    pub(super) connection: Arc<Connection>,
}

impl PgWireServerHandlers for Handlers {
    fn simple_query_handler(&self) -> Arc<impl SimpleQueryHandler> {
        Arc::clone(&self.connection)
    }

    fn extended_query_handler(&self) -> Arc<impl ExtendedQueryHandler> {
        Arc::clone(&self.connection)
    }

    fn startup_handler(&self) -> Arc<impl StartupHandler> {
        Arc::clone(&self.connection)
    }

    fn cancel_handler(&self) -> Arc<impl CancelHandler> {
        Arc::new(DefaultCancelHandler::new(Arc::clone(&self.connection.manager)))
    }
}
