//! A server in a process of its own, and connections to it.
#![allow(dead_code, reason = "each test takes what it needs")]

#[path = "../support/state.rs"]
mod state;

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use state::state_backend;
use tokio::task::JoinHandle;
use tokio_postgres::error::ErrorPosition;
use tokio_postgres::{Client, NoTls};

/// How long a server may take to say that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A running server; it is killed when this is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) pg: String,
    pub(crate) http: String,
}

impl Server {
    /// Starts a server on a directory and waits until it is ready.
    pub(crate) fn start(directory: &Path, workers: usize) -> Server {
        let errors = File::options()
            .create(true)
            .append(true)
            .open(directory.with_extension("stderr"))
            .expect("the directory's parent can be written");
        let mut child = Command::new(env!("CARGO_BIN_EXE_clink"))
            .args(["serve", "--pg", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log", "warn"])
            .arg("--data-dir")
            .arg(directory)
            .args(["--workers", &workers.to_string()])
            .args(state_backend(directory).iter().flat_map(|uri| ["--state-backend", uri.as_str()]))
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("the server's binary starts");
        let stdout = child.stdout.take().expect("stdout is piped");
        let (sender, receiver) = mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(stdout).read_line(&mut line);
            // The receiver is gone when it did not wait so long.
            let _ = sender.send(read.map(|_| line));
        });
        let ready = receiver.recv_timeout(READY_WITHIN);
        let addresses = match &ready {
            Ok(Ok(line)) => addresses(line),
            Ok(Err(_)) | Err(_) => None,
        };
        let Some((pg, http)) = addresses else {
            let _ = child.kill();
            let _ = child.wait();
            let log = std::fs::read_to_string(directory.with_extension("stderr")).unwrap_or_default();
            panic!("the server said {ready:?} instead of being ready\n{log}");
        };
        Server { child, pg, http }
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self) -> Result<Connection, Failure> {
        connect(&self.pg).await
    }

    /// Ends the server at once, as a failing machine would.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The addresses of the line `clink ready pg=… http=…`.
fn addresses(line: &str) -> Option<(String, String)> {
    let mut words = line.strip_prefix("clink ready ")?.split_whitespace();
    let pg = words.next()?.strip_prefix("pg=")?;
    let http = words.next()?.strip_prefix("http=")?;
    Some((pg.to_owned(), http.to_owned()))
}

/// A connection and the task that moves its messages.
pub(crate) struct Connection {
    pub(crate) client: Client,
    task: JoinHandle<Result<(), tokio_postgres::Error>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Opens a connection to an address.
pub(crate) async fn connect(address: &str) -> Result<Connection, Failure> {
    let (host, port) = address.rsplit_once(':').expect("an address has a port");
    let settings = format!("host={host} port={port} user=clink dbname=clink connect_timeout=10");
    let (client, connection) = tokio_postgres::connect(&settings, NoTls).await?;
    Ok(Connection { client, task: tokio::spawn(connection) })
}

/// An error with what the server said in it: `SQLSTATE: message | hint: … | position: n`.
#[derive(Debug)]
pub(crate) struct Failure(tokio_postgres::Error);

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Failure {
        Failure(error)
    }
}

impl Failure {
    /// The five characters, when the server sent an error.
    pub(crate) fn code(&self) -> Option<&str> {
        self.0.code().map(tokio_postgres::error::SqlState::code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(error) = self.0.as_db_error() else {
            return write!(f, "no answer: {:?}", self.0);
        };
        write!(f, "{}: {}", error.code().code(), error.message())?;
        if let Some(hint) = error.hint() {
            write!(f, " | hint: {hint}")?;
        }
        if let Some(ErrorPosition::Original(position)) = error.position() {
            write!(f, " | position: {position}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}
