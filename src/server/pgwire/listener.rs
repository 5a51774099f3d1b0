//! Accepts connections and keeps their tasks.
//!
//! A client that does not log in holds nothing that others need: it has some seconds, and when too
//! many wait, the one that has waited longest is cut.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use pgwire::api::ConnectionManager;
use pgwire::tokio::server::MaybeTls;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::dialogue;
use super::watched::Watched;
use crate::engine::Engine;
use crate::server::metrics;
use crate::server::progress::Progressing;
use crate::types::{Limit, Limits};

/// How long a silent peer may stay unconfirmed.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);
/// How often idle transaction blocks are looked for.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A socket that clients come to.
pub(crate) enum Door {
    /// For the machine's loopback address.
    Tcp(TcpListener),
    /// For those who may open a file.
    Unix(UnixListener),
}

enum Guest {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Door {
    async fn accept(&self) -> io::Result<Guest> {
        match self {
            Door::Tcp(listener) => Ok(Guest::Tcp(listener.accept().await?.0)),
            Door::Unix(listener) => Ok(Guest::Unix(listener.accept().await?.0)),
        }
    }
}

/// What the connections of all doors share.
#[derive(Clone)]
pub(crate) struct House {
    engine: Arc<Engine>,
    limits: Arc<Limits>,
    manager: Arc<ConnectionManager>,
    sessions: Arc<AtomicUsize>,
    stop: CancellationToken,
}

impl House {
    /// Nobody is there yet.
    pub(crate) fn new(engine: Arc<Engine>, stop: CancellationToken) -> House {
        let limits = Arc::clone(engine.limits());
        House { engine, limits, manager: Arc::new(ConnectionManager::new()), sessions: Arc::default(), stop }
    }
}

/// Serves connections until the stop; then ends them.
pub(crate) async fn serve(door: Door, house: House) {
    let mut connections = JoinSet::new();
    let mut waiting = Waiting { most: house.limits.size(Limit::Logins), connections: VecDeque::new() };
    loop {
        tokio::select! {
            () = house.stop.cancelled() => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => report(ended),
            accepted = door.accept() => match accepted {
                Ok(guest) => {
                    let logged_in = Arc::new(AtomicBool::new(false));
                    let slot = SessionSlot {
                        sessions: Arc::clone(&house.sessions),
                        most: house.limits.size(Limit::Sessions),
                        logged_in: Arc::clone(&logged_in),
                        taken: false,
                    };
                    waiting.add(connections.spawn(connection(guest, house.clone(), slot)), logged_in);
                }
                Err(error) => {
                    // Out of file descriptors, mostly: it passes when some connections end.
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    drop(door);
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
struct Waiting {
    most: usize,
    connections: VecDeque<(AbortHandle, Arc<AtomicBool>)>,
}

impl Waiting {
    fn add(&mut self, task: AbortHandle, logged_in: Arc<AtomicBool>) {
        self.connections.push_back((task, logged_in));
        if self.connections.len() <= self.most {
            return;
        }
        self.connections.retain(|(task, logged_in)| !task.is_finished() && !logged_in.load(Ordering::Relaxed));
        while self.connections.len() > self.most {
            if let Some((oldest, _)) = self.connections.pop_front() {
                metrics::limit_hit(Limit::Logins);
                oldest.abort();
            }
        }
    }
}

/// A place among the sessions, given back when the connection ends.
pub(super) struct SessionSlot {
    sessions: Arc<AtomicUsize>,
    most: usize,
    logged_in: Arc<AtomicBool>,
    taken: bool,
}

impl SessionSlot {
    /// Takes a place; false when none is left.
    pub(super) fn take(&mut self) -> bool {
        let before = self.sessions.fetch_add(1, Ordering::Relaxed);
        if before >= self.most {
            self.sessions.fetch_sub(1, Ordering::Relaxed);
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

async fn connection(guest: Guest, house: House, slot: SessionSlot) {
    let House { engine, limits, manager, stop, .. } = house;
    let (socket, peer, watched) = match prepare(guest, limits.time(Limit::ReaderTime)) {
        Ok(prepared) => prepared,
        Err(error) => {
            tracing::debug!(%error, "a connection was gone before it was served");
            return;
        }
    };
    let logged_in = Arc::clone(&slot.logged_in);
    let connection = Arc::new(Connection::new(engine.session(), manager, watched, slot, stop.clone()));
    let too_late = async {
        tokio::time::sleep(limits.time(Limit::LoginTime)).await;
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
    let socket = Progressing::new(socket, limits.time(Limit::ReaderTime));
    tokio::select! {
        ended = dialogue::talk(socket, peer, &connection, &limits) => {
            if let Err(error) = ended {
                tracing::debug!(%error, "connection ended");
            }
        }
        () = async { stop.cancelled().await; connection.idle().await } => {}
        () = too_late => connection.say_login_took_too_long(),
        () = idle_too_long => connection.say_idle_too_long(),
    }
}

/// Sets the socket's timeouts, and makes a second handle on which its end can be seen while a
/// statement runs.
fn prepare(guest: Guest, reader_time: Duration) -> io::Result<(MaybeTls, SocketAddr, Watched)> {
    match guest {
        Guest::Tcp(socket) => {
            let keepalive =
                TcpKeepalive::new().with_time(PEER_TIMEOUT / 2).with_interval(Duration::from_secs(10)).with_retries(3);
            let reference = SockRef::from(&socket);
            reference.set_tcp_keepalive(&keepalive)?;
            #[cfg(target_os = "linux")]
            reference.set_tcp_user_timeout(Some(PEER_TIMEOUT.max(reader_time)))?;
            socket.set_nodelay(true)?;
            let peer = socket.peer_addr()?;
            let socket = socket.into_std()?;
            let watched = Watched::Tcp(socket.try_clone()?);
            Ok((MaybeTls::Plain(TcpStream::from_std(socket)?), peer, watched))
        }
        Guest::Unix(socket) => {
            let socket = socket.into_std()?;
            let watched = Watched::Unix(UnixStream::from_std(socket.try_clone()?)?);
            let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            Ok((MaybeTls::Unix(UnixStream::from_std(socket)?), nowhere, watched))
        }
    }
}
