//! Sockets: bound first, served when the database is open, closed in good order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{http, metrics, pgwire};
use crate::engine::Engine;
use crate::env::Env;
use crate::types::{Error, Result, SqlState};

/// How long connections may take to end when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Where to listen; `None` opens no port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listen {
    /// For PostgreSQL's protocol; port 0 picks a free one.
    pub pg: Option<SocketAddr>,
    /// For HTTP; likewise.
    pub http: Option<SocketAddr>,
}

/// Where the server listens.
pub type ServerAddresses = Listen;

/// Bound sockets that nobody serves yet.
#[derive(Debug)]
pub struct BoundSockets {
    pg: Option<TcpListener>,
    http: Option<TcpListener>,
}

impl BoundSockets {
    /// Binds the addresses.
    ///
    /// # Errors
    /// When one cannot be bound, naming it.
    pub async fn bind(listen: Listen) -> Result<BoundSockets> {
        Ok(BoundSockets { pg: bind("pg", listen.pg).await?, http: bind("http", listen.http).await? })
    }

    /// Starts to serve a database.
    ///
    /// # Errors
    /// When a socket does not tell its address.
    pub fn serve(self, engine: Arc<Engine>, env: Env) -> Result<Server> {
        let address = |listener: &Option<TcpListener>| listener.as_ref().map(TcpListener::local_addr).transpose();
        let addresses = ServerAddresses { pg: address(&self.pg)?, http: address(&self.http)? };
        metrics::start();
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        if let Some(listener) = self.pg {
            tasks.spawn(pgwire::serve(listener, Arc::clone(&engine), stop.clone()));
        }
        if let Some(listener) = self.http {
            tasks.spawn(http::serve(listener, engine, env, stop.clone()));
        }
        Ok(Server { addresses, stop, tasks })
    }
}

async fn bind(flag: &str, address: Option<SocketAddr>) -> Result<Option<TcpListener>> {
    let Some(address) = address else {
        return Ok(None);
    };
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(Some(listener)),
        Err(error) => Err(Error::new(SqlState::IoError, format!("could not bind {address} (--{flag}): {error}"))
            .hint("Is another server running there? Choose another port, or port 0 for a free one.")),
    }
}

/// A server that answers.
#[derive(Debug)]
pub struct Server {
    addresses: ServerAddresses,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Server {
    /// Where it listens, ports as they were picked.
    pub fn addresses(&self) -> ServerAddresses {
        self.addresses
    }

    /// Closes the sockets, cancels what runs, and waits for the connections to end, at most some
    /// seconds.
    pub async fn stop(mut self) {
        self.stop.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_TIMEOUT, ended).await.is_err() {
            tracing::warn!("some connections did not end in time and are cut");
        }
        self.tasks.shutdown().await;
    }
}
