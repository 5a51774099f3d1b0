//! Accepts connections and keeps their tasks.
//!
//! A client that does not log in holds nothing that others need: it has some seconds, and when too
//! many wait, the one that has waited longest is cut.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use pgwire::api::ConnectionManager;
use pgwire::tokio::process_socket;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, Handlers};
use crate::engine::Engine;
use crate::server::metrics;

/// The most sessions at a time.
const CONNECTIONS_MAX: usize = 200;
/// The most connections that have not logged in: to do so, to be refused, or to cancel.
const WAITING_MAX: usize = 64;
/// How long a client may take to log in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a silent peer may stay unconfirmed, and how long sent data may.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);
/// How often idle transaction blocks are looked for.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Serves connections until `stop` fires; then ends them.
pub(crate) async fn serve(listener: TcpListener, engine: Arc<Engine>, stop: CancellationToken) {
    let manager = Arc::new(ConnectionManager::new());
    let sessions = Arc::new(AtomicUsize::new(0));
    let mut connections = JoinSet::new();
    let mut waiting = Waiting::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => report(ended),
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => {
                    let logged_in = Arc::new(AtomicBool::new(false));
                    let slot = SessionSlot {
                        sessions: Arc::clone(&sessions),
                        logged_in: Arc::clone(&logged_in),
                        taken: false,
                    };
                    let task = connection(socket, Arc::clone(&engine), Arc::clone(&manager), slot, stop.clone());
                    waiting.add(connections.spawn(task), logged_in);
                }
                Err(error) => {
                    // Out of file descriptors, mostly: it passes when some connections end.
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        report(ended);
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection ended by a panic; the others go on");
    }
}

/// Connections that have not logged in, in the order in which they came.
#[derive(Default)]
struct Waiting(VecDeque<(AbortHandle, Arc<AtomicBool>)>);

impl Waiting {
    fn add(&mut self, task: AbortHandle, logged_in: Arc<AtomicBool>) {
        self.0.push_back((task, logged_in));
        if self.0.len() <= WAITING_MAX {
            return;
        }
        self.0.retain(|(task, logged_in)| !task.is_finished() && !logged_in.load(Ordering::Relaxed));
        while self.0.len() > WAITING_MAX {
            if let Some((oldest, _)) = self.0.pop_front() {
                metrics::limit_hit("logins");
                oldest.abort();
            }
        }
    }
}

/// A place among the sessions, given back when the connection ends.
pub(super) struct SessionSlot {
    sessions: Arc<AtomicUsize>,
    logged_in: Arc<AtomicBool>,
    taken: bool,
}

impl SessionSlot {
    /// Takes a place; false when none is left.
    pub(super) fn take(&mut self) -> bool {
        let before = self.sessions.fetch_add(1, Ordering::Relaxed);
        if before >= CONNECTIONS_MAX {
            self.sessions.fetch_sub(1, Ordering::Relaxed);
            metrics::limit_hit("sessions");
            return false;
        }
        self.taken = true;
        self.logged_in.store(true, Ordering::Relaxed);
        metrics::sessions(before + 1);
        true
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        if self.taken {
            let before = self.sessions.fetch_sub(1, Ordering::Relaxed);
            metrics::sessions(before.saturating_sub(1));
        }
    }
}

async fn connection(
    socket: TcpStream,
    engine: Arc<Engine>,
    manager: Arc<ConnectionManager>,
    slot: SessionSlot,
    stop: CancellationToken,
) {
    let prepared = prepare(socket);
    let (socket, watched) = match prepared {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!(%error, "a connection was gone before it was served");
            return;
        }
    };
    let logged_in = Arc::clone(&slot.logged_in);
    let connection = Arc::new(Connection::new(engine.session(), manager, watched, slot, stop.clone()));
    let handlers = Handlers { connection: Arc::clone(&connection) };
    let too_late = async {
        tokio::time::sleep(LOGIN_TIMEOUT).await;
        if logged_in.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    let idle_too_long = async {
        loop {
            tokio::time::sleep(IDLE_CHECK_INTERVAL).await;
            if connection.idle_block_too_old().await {
                return;
            }
        }
    };
    tokio::select! {
        ended = process_socket(socket, None, handlers) => {
            if let Err(error) = ended {
                tracing::debug!(%error, "connection ended");
            }
        }
        () = async { stop.cancelled().await; connection.idle().await } => {}
        () = too_late => {
            metrics::limit_hit("login_time");
            tracing::debug!("a client did not log in in time");
        }
        () = idle_too_long => {
            metrics::limit_hit("idle_in_transaction");
            connection.say_idle_too_long();
        }
    }
}

/// Sets the socket's timeouts, and makes a second handle on which its end can be seen while a
/// statement runs.
fn prepare(socket: TcpStream) -> std::io::Result<(TcpStream, std::net::TcpStream)> {
    let keepalive =
        TcpKeepalive::new().with_time(PEER_TIMEOUT / 2).with_interval(Duration::from_secs(10)).with_retries(3);
    let reference = SockRef::from(&socket);
    reference.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    reference.set_tcp_user_timeout(Some(PEER_TIMEOUT))?;
    let socket = socket.into_std()?;
    let watched = socket.try_clone()?;
    Ok((TcpStream::from_std(socket)?, watched))
}
