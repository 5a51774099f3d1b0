//! Requests to another clink server, and their answers: JSON that is whole, Arrow as it comes.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::StreamDecoder;
use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use url::Url;

use crate::types::{Error, Result, SqlState};

/// How long the other server may take to begin its answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The most bytes of an answer that is taken whole.
const WHOLE_BYTES_MAX: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Fault {
    /// The server is not there, or cannot answer now: it may later.
    Away(Error),
    /// It refuses.
    Refused(Refusal),
    /// What it answers cannot be understood.
    Foreign(Error),
}

/// What the other server says against a request.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) code: String,
    pub(super) message: String,
    pub(super) detail: Option<String>,
    pub(super) hint: Option<String>,
}

impl Fault {
    /// The fault as the user sees it; `what` is read.
    pub(super) fn into_error(self, what: &str, server: &str) -> Error {
        let refusal = match self {
            Fault::Away(error) | Fault::Foreign(error) => return error,
            Fault::Refused(refusal) => refusal,
        };
        if refusal.code == SqlState::SnapshotTooOld.code() {
            return lost(what, refusal.detail.unwrap_or(refusal.message));
        }
        let code = match refusal.status {
            StatusCode::NOT_FOUND => SqlState::UndefinedTable,
            StatusCode::CONFLICT => SqlState::ObjectNotReady,
            status if status.is_server_error() => SqlState::IoError,
            _ if refusal.code == SqlState::WrongObjectType.code() => SqlState::WrongObjectType,
            _ => SqlState::InvalidParameterValue,
        };
        let mut error = Error::new(code, format!("{what}: {}", refusal.message));
        if let Some(detail) = refusal.detail {
            error = error.detail(detail);
        }
        error.hint(refusal.hint.unwrap_or_else(|| format!("curl {server}/api/v1/jobs shows what runs there.")))
    }
}

/// The error of a past that the other server has no more.
pub(super) fn lost(what: &str, detail: String) -> Error {
    let message = format!("{what} has lost the past that is read on from; with retain_history it keeps more");
    Error::new(SqlState::ObjectNotReady, message).detail(detail).hint(
        "DROP and CREATE the table to begin anew with the rows that are there. A view made there WITH \
             (retain_history = '1 hour') can be gone on with for that long.",
    )
}

/// The server as people write it.
pub(super) fn name_of(url: &Url) -> String {
    format!("http://{}", authority(url))
}

fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    format!("{host}:{}", url.port_or_known_default().unwrap_or_default())
}

/// An address on the server: the parts of its path, percent-encoded where they have to be, and its parameters.
pub(super) fn address(server: &Url, path: &[&str], parameters: &[(&str, &str)]) -> Url {
    let mut url = server.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.clear().extend(path);
    }
    if !parameters.is_empty() {
        url.query_pairs_mut().extend_pairs(parameters);
    }
    url
}

fn away(url: &Url, reason: impl std::fmt::Display) -> Fault {
    let server = name_of(url);
    Fault::Away(
        Error::new(SqlState::CannotConnect, format!("cannot read from {server}"))
            .detail(format!("{reason}."))
            .hint(format!("Start the server there, or see what it says: curl {server}/api/v1/health.")),
    )
}

pub(super) fn foreign(url: &Url, reason: impl std::fmt::Display) -> Fault {
    Fault::Foreign(
        Error::new(SqlState::IoError, format!("the answer of {} cannot be understood", name_of(url)))
            .detail(format!("{reason}."))
            .hint("The address has to be that of a clink server's HTTP."),
    )
}

/// An answer whose body comes.
pub(super) struct Answer {
    body: Incoming,
    url: Url,
    /// `X-Clink-Time`.
    pub(super) time: Option<u64>,
    _sender: SendRequest<String>,
    _connection: JoinHandle<()>,
    /// Drives the connection while somebody waits for the body.
    runtime: Option<Runtime>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        // Dropping a runtime waits for its threads, which not every thread may; this one has none.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A piece of a body.
enum Piece {
    Bytes(Bytes),
    /// None within the time.
    Later,
    End,
}

/// Asks. The answer has the status 200.
pub(super) fn get(url: &Url, accept: &'static str, within: Duration) -> Result<Answer, Fault> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| away(url, error))?;
    let asked = runtime.block_on(async { tokio::time::timeout(within, ask(url, accept)).await });
    let (response, sender, connection) = match asked {
        Ok(Ok(asked)) => asked,
        Ok(Err(error)) => return Err(away(url, error)),
        Err(_) => return Err(away(url, format!("It does not answer within {} s", within.as_secs()))),
    };
    let status = response.status();
    let time = response.headers().get("x-clink-time").and_then(|time| time.to_str().ok()?.parse().ok());
    let mut answer = Answer {
        body: response.into_body(),
        url: url.clone(),
        time,
        _sender: sender,
        _connection: connection,
        runtime: Some(runtime),
    };
    if status == StatusCode::OK {
        return Ok(answer);
    }
    let text = answer.whole(WHOLE_BYTES_MAX)?;
    let fields: Value =
        serde_json::from_slice(&text).map_err(|_| foreign(url, format!("It has the status {status}")))?;
    let field = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
    let Some(message) = field("error") else { return Err(foreign(url, format!("It has the status {status}"))) };
    if status == StatusCode::SERVICE_UNAVAILABLE {
        return Err(away(url, message));
    }
    let code = field("sqlstate").unwrap_or_default();
    Err(Fault::Refused(Refusal { status, code, message, detail: field("detail"), hint: field("hint") }))
}

type Asked = (Response<Incoming>, SendRequest<String>, JoinHandle<()>);

async fn ask(url: &Url, accept: &'static str) -> Result<Asked, Box<dyn std::error::Error + Send + Sync>> {
    let addresses = url.socket_addrs(|| None)?;
    let stream = TcpStream::connect(addresses.as_slice()).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Whoever reads the body sees how it ends.
    let connection = tokio::spawn(async move { drop(connection.await) });
    let path = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    let request = Request::get(path).header(HOST, authority(url)).header(ACCEPT, accept).body(String::new())?;
    let response = sender.send_request(request).await?;
    Ok((response, sender, connection))
}

/// Asks for JSON.
pub(super) fn get_json(url: &Url) -> Result<Value, Fault> {
    let text = get(url, "application/json", ANSWER_WITHIN)?.whole(WHOLE_BYTES_MAX)?;
    serde_json::from_slice(&text).map_err(|error| foreign(url, error))
}

/// Asks for something that is taken whole, however much it is, and begins within a time.
pub(super) fn get_whole(url: &Url, accept: &'static str, within: Duration) -> Result<Vec<u8>, Fault> {
    get(url, accept, within)?.whole(usize::MAX)
}

impl Answer {
    fn next(&mut self, within: Duration) -> Result<Piece, Fault> {
        let body = &mut self.body;
        let next = async {
            let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
            tokio::time::timeout(within, frame).await
        };
        let Some(runtime) = &self.runtime else { return Ok(Piece::End) };
        match runtime.block_on(next) {
            Err(_) => Ok(Piece::Later),
            Ok(None) => Ok(Piece::End),
            // Trailers say nothing.
            Ok(Some(Ok(frame))) => Ok(Piece::Bytes(frame.into_data().unwrap_or_default())),
            Ok(Some(Err(error))) => Err(away(&self.url, error)),
        }
    }

    fn whole(&mut self, bytes_max: usize) -> Result<Vec<u8>, Fault> {
        let mut text = Vec::new();
        loop {
            match self.next(ANSWER_WITHIN)? {
                Piece::Bytes(bytes) => text.extend_from_slice(&bytes),
                Piece::Later => return Err(away(&self.url, "Its answer stopped in the middle")),
                Piece::End => return Ok(text),
            }
            if text.len() > bytes_max {
                return Err(foreign(&self.url, "It is too long"));
            }
        }
    }
}

/// Batches of an Arrow stream.
pub(super) struct Batches {
    answer: Answer,
    decoder: StreamDecoder,
    /// Bytes that are not decoded yet.
    rest: Buffer,
    /// A batch that was looked at.
    ahead: Option<RecordBatch>,
}

/// What a stream of batches gives.
pub(super) enum Next {
    Rows(RecordBatch),
    /// None within the time.
    Later,
    End,
}

impl Batches {
    /// Asks for an Arrow stream.
    pub(super) fn get(url: &Url) -> Result<Batches, Fault> {
        let answer = get(url, "application/vnd.apache.arrow.stream", ANSWER_WITHIN)?;
        Ok(Batches { answer, decoder: StreamDecoder::new(), rest: Buffer::default(), ahead: None })
    }

    /// The time of the rows, where all are of one.
    pub(super) fn time(&self) -> Option<u64> {
        self.answer.time
    }

    /// The next batch; waits for it.
    pub(super) fn next(&mut self, within: Duration) -> Result<Next, Fault> {
        if let Some(batch) = self.ahead.take() {
            return Ok(Next::Rows(batch));
        }
        let until = Instant::now() + within;
        loop {
            let decoded = self.decoder.decode(&mut self.rest).map_err(|error| foreign(&self.answer.url, error))?;
            if let Some(batch) = decoded {
                return Ok(Next::Rows(batch));
            }
            match self.answer.next(until.saturating_duration_since(Instant::now()))? {
                Piece::Bytes(bytes) => self.rest = Buffer::from(bytes),
                Piece::Later => return Ok(Next::Later),
                Piece::End => {
                    self.decoder.finish().map_err(|error| away(&self.answer.url, error))?;
                    return Ok(Next::End);
                }
            }
        }
    }

    /// The columns, and the first batch if there is one; it stays the next.
    pub(super) fn look(&mut self) -> Result<(SchemaRef, Option<&RecordBatch>), Fault> {
        match self.next(ANSWER_WITHIN)? {
            Next::Rows(batch) => self.ahead = Some(batch),
            Next::Later => return Err(away(&self.answer.url, "It does not begin with its rows")),
            Next::End => {}
        }
        let schema = self.decoder.schema().ok_or_else(|| foreign(&self.answer.url, "It has no columns"))?;
        Ok((schema, self.ahead.as_ref()))
    }
}
