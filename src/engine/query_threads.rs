//! The threads that SELECTs compute on, apart from those of the wires: however busy a query is, a cancel
//! is taken and answered.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{JoinError, JoinHandle};

use crate::types::Result;

/// Planning and evaluating walk queries by recursion, as deep as the parser lets them be. Of a stack only what was used takes
/// memory.
const STACK_BYTES: usize = 64 << 20;

/// A runtime of its own, which ends without waiting for queries.
#[derive(Debug)]
pub(crate) struct QueryThreads {
    runtime: Option<Runtime>,
    handle: Handle,
}

impl QueryThreads {
    /// Starts `threads` threads.
    ///
    /// # Errors
    /// When they cannot be started.
    pub(crate) fn start(threads: usize) -> Result<QueryThreads> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("clink-query")
            .thread_stack_size(STACK_BYTES)
            .enable_all()
            .build()?;
        Ok(QueryThreads { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// Where to spawn.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for QueryThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A task that ends, at its next wait, when nobody holds this any more.
#[derive(Debug)]
pub(crate) struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    /// Runs a future on the threads behind `handle`.
    pub(crate) fn spawn(handle: &Handle, future: impl Future<Output = T> + Send + 'static) -> Task<T> {
        Task(handle.spawn(future))
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
