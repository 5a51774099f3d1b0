//! Accepts connections and keeps their tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pgwire::api::ConnectionManager;
use pgwire::tokio::process_socket;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, Handlers};
use crate::engine::Engine;

/// The most sessions at a time.
const CONNECTIONS_MAX: usize = 200;
/// The most open sockets: those beyond the sessions live only to be told so, or to cancel.
const SOCKETS_MAX: usize = 2 * CONNECTIONS_MAX;
/// How long a silent peer may stay unconfirmed, and how long sent data may.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);

/// Serves connections until `stop` fires; then ends them.
pub(crate) async fn serve(listener: TcpListener, engine: Arc<Engine>, stop: CancellationToken) {
    let manager = Arc::new(ConnectionManager::new());
    let sessions = Arc::new(AtomicUsize::new(0));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => report(ended),
            accepted = listener.accept(), if connections.len() < SOCKETS_MAX => match accepted {
                Ok((socket, _)) => {
                    let slot = SessionSlot { sessions: Arc::clone(&sessions), taken: false };
                    connections.spawn(connection(socket, Arc::clone(&engine), Arc::clone(&manager), slot, stop.clone()));
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

/// A place among the sessions, given back when the connection ends.
pub(super) struct SessionSlot {
    sessions: Arc<AtomicUsize>,
    taken: bool,
}

impl SessionSlot {
    /// Takes a place; false when none is left.
    pub(super) fn take(&mut self) -> bool {
        let before = self.sessions.fetch_add(1, Ordering::Relaxed);
        if before >= CONNECTIONS_MAX {
            self.sessions.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.taken = true;
        true
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        if self.taken {
            self.sessions.fetch_sub(1, Ordering::Relaxed);
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
    let connection = Arc::new(Connection::new(engine.session(), manager, watched, slot, stop.clone()));
    let handlers = Handlers { connection: Arc::clone(&connection) };
    tokio::select! {
        ended = process_socket(socket, None, handlers) => {
            if let Err(error) = ended {
                tracing::debug!(%error, "connection ended");
            }
        }
        () = async { stop.cancelled().await; connection.idle().await } => {}
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
