//! Sockets: bound first, served when the database is open, closed in good order.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{http, metrics, pgwire};
use crate::engine::Engine;
use crate::env::Env;
use crate::types::{Error, Result, SqlState};

/// How long connections may take to end when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Where to listen; `None` opens no port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listen {
    /// For PostgreSQL's protocol; port 0 picks a free one.
    pub pg: Option<SocketAddr>,
    /// For HTTP; likewise.
    pub http: Option<SocketAddr>,
    /// The folder of a Unix socket for PostgreSQL's protocol, whose file has the name that clients
    /// look for.
    pub pg_socket: Option<PathBuf>,
}

/// Where the server listens.
pub type ServerAddresses = Listen;

/// Bound sockets that nobody serves yet.
#[derive(Debug)]
pub struct BoundSockets {
    pg: Option<TcpListener>,
    http: Option<TcpListener>,
    pg_socket: Option<(UnixListener, SocketFile)>,
}

/// The port that names a Unix socket when there is no other.
const PORT: u16 = 7432;

/// The file of a Unix socket; it goes with the server.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A file that stays is in nobody's way: the next server removes it.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl BoundSockets {
    /// Binds the addresses.
    ///
    /// # Errors
    /// When one cannot be bound, naming it.
    pub async fn bind(listen: Listen) -> Result<BoundSockets> {
        let pg = bind("pg", listen.pg).await?;
        let port = match &pg {
            Some(pg) => pg.local_addr()?.port(),
            None => PORT,
        };
        let pg_socket = match listen.pg_socket {
            Some(folder) => Some(bind_unix(&folder, port).await?),
            None => None,
        };
        Ok(BoundSockets { pg, http: bind("http", listen.http).await?, pg_socket })
    }

    /// Starts to serve a database.
    ///
    /// # Errors
    /// When a socket does not tell its address.
    pub fn serve(self, engine: Arc<Engine>, env: Env) -> Result<Server> {
        let address = |listener: &Option<TcpListener>| listener.as_ref().map(TcpListener::local_addr).transpose();
        let pg_socket = self.pg_socket.as_ref().map(|(_, file)| file.0.clone());
        let addresses = ServerAddresses { pg: address(&self.pg)?, http: address(&self.http)?, pg_socket };
        metrics::start(engine.limits());
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let house = pgwire::House::new(Arc::clone(&engine), stop.clone());
        if let Some(listener) = self.pg {
            tasks.spawn(pgwire::serve(pgwire::Door::Tcp(listener), house.clone()));
        }
        let mut socket_file = None;
        if let Some((listener, file)) = self.pg_socket {
            socket_file = Some(file);
            tasks.spawn(pgwire::serve(pgwire::Door::Unix(listener), house));
        }
        if let (Some(listener), Some(address)) = (self.http, addresses.http) {
            tasks.spawn(http::serve(listener, address, engine, env, stop.clone()));
        }
        Ok(Server { addresses, stop, tasks, _socket_file: socket_file })
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

/// Binds `.s.PGSQL.<port>` in a folder, for this user alone.
async fn bind_unix(folder: &Path, port: u16) -> Result<(UnixListener, SocketFile)> {
    let path = folder.join(format!(".s.PGSQL.{port}"));
    let failed = |error: io::Error| {
        let message = format!("could not bind {} (--pg-socket): {error}", path.display());
        Error::new(SqlState::IoError, message).hint("Name a folder that is there and that you may write to.")
    };
    // A file that a server left behind answers nobody.
    if UnixStream::connect(&path).await.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        std::fs::remove_file(&path).map_err(failed)?;
    }
    let listener = UnixListener::bind(&path).map_err(failed)?;
    let file = SocketFile(path.clone());
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).map_err(failed)?;
    Ok((listener, file))
}

/// A server that answers.
#[derive(Debug)]
pub struct Server {
    addresses: ServerAddresses,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    _socket_file: Option<SocketFile>,
}

impl Server {
    /// Where it listens, ports as they were picked.
    pub fn addresses(&self) -> &ServerAddresses {
        &self.addresses
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
