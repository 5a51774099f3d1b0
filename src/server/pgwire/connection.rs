//! One client: its session and the statements that it sends.

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::BytesMut;
use futures::channel::oneshot;
use futures::{Sink, SinkExt as _};
use pgwire::api::cancel::{CancelHandler, DefaultCancelHandler};
use pgwire::api::query::{SimpleQueryHandler, send_ready_for_query};
use pgwire::api::results::{FieldFormat, Response};
use pgwire::api::store::PortalStore;
use pgwire::api::{ClientInfo, ClientPortalStore, ConnectionHandle, ConnectionManager, PgWireConnectionState};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::response::{EmptyQueryResponse, TransactionStatus as WireStatus};
use pgwire::messages::simplequery::Query;
use pgwire::messages::startup::ParameterStatus;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::copy::{self, Receiving};
use super::extended::Extended;
use super::listener::SessionSlot;
use super::messages::{Severity, command_complete, error_info, notice, pg_error, row_description};
use super::rows::{Formats, RowBuffer, check_width, send_rows};
use super::watched::Watched;
use crate::engine::{Answer, Notice, Session, TransactionStatus};
use crate::server::copy::Encoder;
use crate::server::metrics;
use crate::types::{Error, Limit, Limits, SqlState, TimeZone};

/// How often a running statement looks whether its client is still there.
const CLIENT_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How long the server's stop waits for a running statement.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// One client's connection.
pub(super) struct Connection {
    pub(super) session: Mutex<Session>,
    pub(super) extended: Mutex<Extended>,
    /// Rows on their way in.
    pub(super) copy: Mutex<Option<Receiving>>,
    reported: std::sync::Mutex<Reported>,
    pub(super) manager: Arc<ConnectionManager>,
    watched: Watched,
    pub(super) limits: Arc<Limits>,
    pub(super) slot: std::sync::Mutex<SessionSlot>,
    busy: AtomicBool,
    /// When the last message was answered: milliseconds since the connection began.
    answered_millis: AtomicU64,
    began: Instant,
    stop: CancellationToken,
}

impl Connection {
    pub(super) fn new(
        session: Session,
        manager: Arc<ConnectionManager>,
        watched: Watched,
        slot: SessionSlot,
        stop: CancellationToken,
    ) -> Connection {
        Connection {
            reported: std::sync::Mutex::new(Reported::of(&session)),
            limits: Arc::clone(session.limits()),
            session: Mutex::new(session),
            extended: Mutex::default(),
            copy: Mutex::default(),
            manager,
            watched,
            slot: std::sync::Mutex::new(slot),
            busy: AtomicBool::new(false),
            answered_millis: AtomicU64::new(0),
            began: Instant::now(),
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

    /// True when a transaction block has been left alone for longer than its session allows.
    pub(super) async fn idle_block_too_old(&self) -> bool {
        if self.busy.load(Ordering::Relaxed) {
            return false;
        }
        let Ok(session) = self.session.try_lock() else { return false };
        if session.status() == TransactionStatus::Idle {
            return false;
        }
        let Some(limit) = session.idle_in_transaction_timeout() else { return false };
        let answered = Duration::from_millis(self.answered_millis.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(answered) > limit
    }

    /// Tells the client why its connection ends. Nothing else is written now: no statement runs.
    fn say_last(&self, error: &Error) {
        let message = PgWireBackendMessage::ErrorResponse(error_info(error, Severity::Fatal).into());
        let mut bytes = BytesMut::new();
        if message.encode(&mut bytes).is_ok() {
            self.watched.say(&bytes);
        }
    }

    /// A transaction block was left alone.
    pub(super) fn say_idle_too_long(&self) {
        metrics::idle_block_ended();
        let error =
            Error::new(SqlState::IdleInTransactionTimeout, "terminating connection due to idle-in-transaction timeout")
                .hint("COMMIT or ROLLBACK sooner, or SET idle_in_transaction_session_timeout = 0.");
        self.say_last(&error);
    }

    /// The client did not log in.
    pub(super) fn say_login_took_too_long(&self) {
        let error = self.limits.exceeded(Limit::LoginTime, "the login took too long");
        self.say_last(&error.hint("Send the startup message at once."));
    }

    /// An error about bytes that are no message: it fails an open block, and ends a COPY.
    pub(super) async fn not_understood(&self, error: &Error) -> PgWireError {
        metrics::bad_message();
        *self.copy.lock().await = None;
        self.failed(&mut *self.session.lock().await, error)
    }

    /// What handles cancel requests.
    pub(super) fn canceller(&self) -> Arc<impl CancelHandler + use<>> {
        Arc::new(DefaultCancelHandler::new(Arc::clone(&self.manager)))
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
                    if self.watched.is_gone() {
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
        let _busy = Busy { connection: self };
        self.busy.store(true, Ordering::Relaxed);
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
        let statements = session.parse(text).map_err(|error| self.failed(&mut session, &error))?;
        if statements.is_empty() {
            client.feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new())).await?;
        }
        for (index, statement) in statements.iter().enumerate() {
            let answer = session.execute(statement, cancel).await.map_err(|error| self.named(&error))?;
            if matches!(answer, Answer::CopyIn(_)) && index + 1 < statements.len() {
                let error = Error::unsupported("statements behind COPY FROM STDIN in one text are not supported")
                    .hint("Send them when the copy is done.");
                return Err(self.failed(&mut session, &error));
            }
            let sent = self.send_answer(client, answer, &session.time_zone(), cancel, false).await;
            if sent.is_err() {
                session.fail_block();
            }
            sent?;
            self.after_statement(client, &session).await?;
        }
        Ok(())
    }

    /// Sends what a statement of the simple protocol answers, or one of the extended protocol that
    /// gives no rows.
    pub(super) async fn send_answer<C>(
        &self,
        client: &mut C,
        answer: Answer,
        zone: &TimeZone,
        cancel: &CancellationToken,
        extended: bool,
    ) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        match answer {
            Answer::Done { tag, notices } => {
                send_notices(client, &notices).await?;
                client.feed(command_complete(&tag, 0)).await?;
            }
            Answer::Rows { schema, rows, tag, notices } => {
                send_notices(client, &notices).await?;
                check_width(schema.fields().len(), &self.limits).map_err(|error| self.named(&error))?;
                client.feed(row_description(&schema)).await?;
                let mut buffer = RowBuffer::new(Formats::All(FieldFormat::Text), zone.clone(), &self.limits);
                let count = send_rows(client, rows, &mut buffer, cancel, &|error| self.named(error)).await?;
                metrics::rows(count);
                client.feed(command_complete(&tag, count)).await?;
            }
            Answer::CopyOut { schema, rows, options } => {
                check_width(schema.fields().len(), &self.limits).map_err(|error| self.named(&error))?;
                let encoder = Encoder::new(&options, &schema, zone.clone());
                copy::send(client, &schema, rows, encoder, cancel, &|error| self.named(error)).await?;
            }
            Answer::CopyIn(copy) => {
                client.feed(copy::response(&copy)).await?;
                client.flush().await?;
                *self.copy.lock().await = Some(Receiving::new(*copy));
                client.set_state(PgWireConnectionState::CopyInProgress(extended));
            }
        }
        Ok(())
    }

    /// Tells the client where the session stands and which of its reported settings changed.
    pub(super) async fn after_statement<C>(&self, client: &mut C, session: &Session) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        metrics::statement();
        self.show_status(client, session);
        let changed = self.reported.lock().map(|mut reported| reported.changes(session)).unwrap_or_default();
        for (name, value) in changed {
            client.feed(PgWireBackendMessage::ParameterStatus(ParameterStatus::new(name, value))).await?;
        }
        Ok(())
    }

    /// Sets what ReadyForQuery says.
    pub(super) fn show_status<C: ClientInfo>(&self, client: &mut C, session: &Session) {
        client.set_transaction_status(match session.status() {
            TransactionStatus::Idle => WireStatus::Idle,
            TransactionStatus::InBlock => WireStatus::Transaction,
            TransactionStatus::Failed => WireStatus::Error,
        });
    }

    /// The settings that the client is told of when it connects.
    pub(super) fn told(&self, session: &Session) -> Vec<(&'static str, String)> {
        let told = Reported::of(session);
        let pairs = REPORTED.into_iter().zip(told.0.iter().cloned()).collect();
        if let Ok(mut reported) = self.reported.lock() {
            *reported = told;
        }
        pairs
    }

    /// An error that fails an open block.
    pub(super) fn failed(&self, session: &mut Session, error: &Error) -> PgWireError {
        session.fail_block();
        self.named(error)
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

/// The settings that clients keep track of.
const REPORTED: [&str; 7] = [
    "application_name",
    "client_encoding",
    "DateStyle",
    "default_transaction_read_only",
    "IntervalStyle",
    "standard_conforming_strings",
    "TimeZone",
];

/// The values that the client was told of.
struct Reported(Vec<String>);

impl Reported {
    fn of(session: &Session) -> Reported {
        Reported(REPORTED.iter().map(|name| session.setting(name).unwrap_or_default().to_owned()).collect())
    }

    /// What changed since it was told.
    fn changes(&mut self, session: &Session) -> Vec<(String, String)> {
        let mut changes = Vec::new();
        for (name, told) in REPORTED.iter().zip(&mut self.0) {
            let value = session.setting(name).unwrap_or_default();
            if value != told.as_str() {
                value.clone_into(told);
                changes.push(((*name).to_owned(), value.to_owned()));
            }
        }
        changes
    }
}

/// Where the next cancel request for the connection arrives.
pub(super) async fn cancel_requests<C: ClientInfo + Sync>(client: &C) -> Option<oneshot::Receiver<()>> {
    let handle = client.session_extensions().get::<Arc<ConnectionHandle>>()?;
    Some(handle.start_query().await)
}

/// Marks the connection as busy while it lives.
struct Busy<'a> {
    connection: &'a Connection,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let millis = u64::try_from(self.connection.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.connection.answered_millis.store(millis, Ordering::Relaxed);
        self.connection.busy.store(false, Ordering::Relaxed);
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
        self.forget_unnamed().await;
        self.run_text(client, &query.query).await?;
        if matches!(client.state(), PgWireConnectionState::CopyInProgress(_)) {
            // What follows is said when the copy is done.
            return Ok(());
        }
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
