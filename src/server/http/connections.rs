//! HTTP connections: how many, how long they may be silent, and what each is told that must go.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::server::progress::Progressing;
use crate::server::{errors, metrics};
use crate::types::{Error, Limit, Limits};

/// How long a refused client may take to hear why.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves connections until the stop, and then what has begun.
pub(super) async fn serve(listener: TcpListener, router: Router, limits: Arc<Limits>, stop: CancellationToken) {
    let mut tasks = JoinSet::new();
    let mut open =
        Open { most: limits.size(Limit::HttpConnections), began: Instant::now(), connections: VecDeque::new() };
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => {
                    if !open.has_room() {
                        let error = limits.exceeded(Limit::HttpConnections, "too many connections");
                        tasks.spawn(refused(socket, error.hint("Close some, or use one for several requests.")));
                        continue;
                    }
                    let activity = Arc::new(Activity::new(open.began));
                    let task = connection(socket, router.clone(), Arc::clone(&activity), Arc::clone(&limits), stop.clone());
                    open.connections.push_back((tasks.spawn(task), activity));
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
    while tasks.join_next().await.is_some() {}
}

/// The connections that are open.
struct Open {
    most: usize,
    began: Instant,
    connections: VecDeque<(AbortHandle, Arc<Activity>)>,
}

impl Open {
    /// Makes room for one more: the one that has been silent longest goes. False when all are busy.
    fn has_room(&mut self) -> bool {
        if self.connections.len() < self.most {
            return true;
        }
        self.connections.retain(|(task, _)| !task.is_finished());
        if self.connections.len() < self.most {
            return true;
        }
        let idle = self.connections.iter().enumerate().filter(|(_, (_, activity))| !activity.is_busy());
        let Some((silent, _)) = idle.min_by_key(|(_, (_, activity))| activity.last_millis.load(Ordering::Relaxed))
        else {
            return false;
        };
        if let Some((task, _)) = self.connections.remove(silent) {
            metrics::limit_hit(Limit::HttpConnections);
            task.abort();
        }
        true
    }
}

/// What a connection does.
struct Activity {
    began: Instant,
    /// Requests that are not answered in full.
    requests: AtomicUsize,
    /// When it last began or ended one, since the listener began.
    last_millis: AtomicU64,
}

impl Activity {
    fn new(began: Instant) -> Activity {
        let activity = Activity { began, requests: AtomicUsize::new(0), last_millis: AtomicU64::new(0) };
        activity.touch();
        activity
    }

    fn touch(&self) {
        let millis = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_millis.store(millis, Ordering::Relaxed);
    }

    fn is_busy(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 0
    }
}

/// Marks a connection as busy while it lives.
struct Busy(Arc<Activity>);

impl Busy {
    fn new(activity: &Arc<Activity>) -> Busy {
        activity.requests.fetch_add(1, Ordering::Relaxed);
        activity.touch();
        Busy(Arc::clone(activity))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer: the connection is busy until it is sent.
struct Answering {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

async fn connection(
    socket: TcpStream,
    router: Router,
    activity: Arc<Activity>,
    limits: Arc<Limits>,
    stop: CancellationToken,
) {
    let _ = socket.set_nodelay(true);
    let socket = TokioIo::new(Progressing::new(socket, limits.time(Limit::ReaderTime)));
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let busy = Busy::new(&activity);
        let answer = router.call(request);
        Box::pin(async move { answer.await.map(|answer: Response| answer.map(|body| Answering { body, _busy: busy })) })
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.time(Limit::HttpHeaderTime))
        // The library takes no less.
        .max_buf_size(limits.size(Limit::HttpHeaderBytes).max(8 << 10))
        .serve_connection(socket, service);
    let served = tokio::select! {
        served = poll_fn(|context| connection.poll_without_shutdown(context)) => served,
        () = stop.cancelled() => {
            Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|context| connection.poll_without_shutdown(context)).await
        }
    };
    let parts = connection.into_parts();
    let mut socket = parts.io.into_inner();
    match served {
        Err(error) if error.is_timeout() => {
            // One that asked for nothing is told nothing.
            if parts.read_buf.is_empty() {
                metrics::limit_hit(Limit::HttpHeaderTime);
            } else {
                let error = limits
                    .exceeded(Limit::HttpHeaderTime, "the header of the request took too long")
                    .hint("Send the whole request at once.");
                let _ = tokio::time::timeout(REFUSAL_TIMEOUT, tell(&mut socket, "408 Request Timeout", &error)).await;
            }
        }
        Err(error) if error.is_parse_too_large() => metrics::limit_hit(Limit::HttpHeaderBytes),
        Err(error) => tracing::debug!(%error, "HTTP connection ended"),
        Ok(()) => {}
    }
    let _ = socket.shutdown().await;
}

/// Tells a client that there is no room for it.
async fn refused(mut socket: TcpStream, error: Error) {
    let _ = tokio::time::timeout(REFUSAL_TIMEOUT, tell(&mut socket, "503 Service Unavailable", &error)).await;
}

async fn tell(socket: &mut (impl tokio::io::AsyncWrite + Unpin), status: &str, error: &Error) -> io::Result<()> {
    let body = serde_json::to_string(&errors::fields(error)).unwrap_or_default();
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    socket.write_all(answer.as_bytes()).await?;
    socket.shutdown().await
}
