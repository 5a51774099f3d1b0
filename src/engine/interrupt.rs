//! What can end a statement before its time: the user, its time limit, the end of the server.

use std::future::Future;
use std::time::Duration;

use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::query_threads::Task;
use crate::types::{Error, Result, SqlState};

/// Batches that a query computes ahead of its reader.
const BATCHES_AHEAD_MAX: usize = 2;

/// How long a write that has begun may go on after the statement was cancelled.
const WRITE_GRACE: Duration = Duration::from_millis(500);

/// The reasons to stop, watched together. Clones watch the same.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    cancel: CancellationToken,
    closed: CancellationToken,
    deadline: Option<Instant>,
    queries: Handle,
}

impl Interrupt {
    /// Watches a user's token, the server's, and a time limit that begins now. What computes for long
    /// runs on the threads of `queries`.
    pub(crate) fn new(
        cancel: CancellationToken,
        closed: CancellationToken,
        timeout: Option<Duration>,
        queries: &Handle,
    ) -> Interrupt {
        Interrupt {
            cancel,
            closed,
            deadline: timeout.map(|timeout| Instant::now() + timeout),
            queries: queries.clone(),
        }
    }

    /// The same without a time limit.
    pub(crate) fn untimed(&self) -> Interrupt {
        Interrupt { deadline: None, ..self.clone() }
    }

    /// Waits until there is a reason to stop. Cancel safe.
    pub(crate) async fn fired(&self) -> Error {
        let timeout = async {
            match self.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.closed.cancelled() => {
                Error::new(SqlState::AdminShutdown, "terminating connection due to administrator command")
                    .hint("The server is stopping; connect again when it is back.")
            }
            () = self.cancel.cancelled() => {
                Error::new(SqlState::QueryCanceled, "canceling statement due to user request")
            }
            () = timeout => {
                Error::new(SqlState::QueryCanceled, "canceling statement due to statement timeout")
                    .hint("SET statement_timeout = 0 turns the limit off.")
            }
        }
    }

    /// Waits for something, or for a reason to stop. The future is dropped then.
    ///
    /// # Errors
    /// Its own, 57014 or 57P01.
    pub(crate) async fn guard<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            error = self.fired() => Err(error),
            result = future => result,
        }
    }

    /// Like [`Interrupt::guard`] for work that may compute for long between two awaits: it runs on a
    /// task of its own, so that the answer to a cancel does not wait for it.
    ///
    /// # Errors
    /// Its own, 57014 or 57P01.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let task = Task::spawn(&self.queries, future);
        self.guard(async { task.await.unwrap_or_else(|error| Err(Error::internal(format!("a task ended: {error}")))) })
            .await
    }

    /// Finishes something that must not be left half done: it goes on by itself when nobody waits.
    ///
    /// # Errors
    /// Its own; 57014 or 57P01 when there is a reason to stop and it does not end soon after.
    pub(crate) async fn finish<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let mut task = tokio::spawn(future);
        let ended = |result: Result<Result<T>, tokio::task::JoinError>| {
            result.unwrap_or_else(|error| Err(Error::internal(format!("a task ended: {error}"))))
        };
        tokio::select! {
            result = &mut task => ended(result),
            error = self.fired() => {
                match tokio::time::timeout(WRITE_GRACE, task).await {
                    Ok(result) => ended(result),
                    Err(_) => Err(error.detail("The change was on its way to disk and may still happen.")),
                }
            }
        }
    }

    /// Rows that end with an error when there is a reason to stop. They are computed on a task of
    /// their own, which ends when the stream is dropped.
    pub(crate) fn stream(&self, mut rows: SendableRecordBatchStream) -> SendableRecordBatchStream {
        let schema = rows.schema();
        let (sender, receiver) = mpsc::channel(BATCHES_AHEAD_MAX);
        let task = Task::spawn(&self.queries, async move {
            while let Some(batch) = rows.next().await {
                if sender.send(batch).await.is_err() {
                    break;
                }
            }
        });
        let state = Some((receiver, task, self.clone()));
        let stream = futures::stream::unfold(state, |state| async move {
            let (mut receiver, task, interrupt) = state?;
            let next = tokio::select! {
                biased;
                error = interrupt.fired() => {
                    return Some((Err(DataFusionError::External(Box::new(error))), None));
                }
                next = receiver.recv() => next,
            };
            match next {
                Some(Ok(batch)) => Some((Ok(batch), Some((receiver, task, interrupt)))),
                Some(Err(error)) => Some((Err(error), None)),
                // A panic ends the task without a word; it must not look like the end of the rows.
                None => match task.await {
                    Ok(()) => None,
                    Err(error) => Some((
                        Err(DataFusionError::External(Box::new(Error::internal(format!("a query ended: {error}"))))),
                        None,
                    )),
                },
            }
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interrupt(timeout: Option<Duration>) -> (CancellationToken, Interrupt) {
        let cancel = CancellationToken::new();
        (cancel.clone(), Interrupt::new(cancel, CancellationToken::new(), timeout, &Handle::current()))
    }

    #[tokio::test]
    async fn a_cancel_ends_what_never_ends() {
        let (cancel, interrupt) = interrupt(None);
        cancel.cancel();
        let error = interrupt.guard(std::future::pending::<Result<()>>()).await.unwrap_err();
        assert_eq!(error.code(), SqlState::QueryCanceled);
    }

    #[tokio::test]
    async fn a_time_limit_is_named() {
        let (_cancel, interrupt) = interrupt(Some(Duration::from_millis(1)));
        let error = interrupt.run(std::future::pending::<Result<()>>()).await.unwrap_err();
        assert_eq!(error.message(), "canceling statement due to statement timeout");
    }

    #[tokio::test]
    async fn a_write_that_ends_soon_after_a_cancel_is_answered() {
        let (cancel, interrupt) = interrupt(None);
        cancel.cancel();
        let written = interrupt.finish(async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok(7)
        });
        assert_eq!(written.await.unwrap(), 7);
    }
}
