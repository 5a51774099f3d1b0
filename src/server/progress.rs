//! A socket whose peer has to take what it is sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::metrics;
use crate::types::Limit;

/// Ends a connection whose peer takes nothing for too long: a write then fails with `TimedOut`.
#[derive(Debug)]
pub(super) struct Progressing<S> {
    inner: S,
    within: Duration,
    /// Runs while a write waits.
    stalled: Pin<Box<Sleep>>,
    waits: bool,
}

impl<S> Progressing<S> {
    /// The peer takes something within that time.
    pub(super) fn new(inner: S, within: Duration) -> Progressing<S> {
        Progressing { inner, within, stalled: Box::pin(sleep_until(Instant::now())), waits: false }
    }

    /// What a write came to, or the end of the peer's time.
    fn judge<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waits = false;
            return written;
        }
        if !std::mem::replace(&mut self.waits, true) {
            self.stalled.as_mut().reset(Instant::now() + self.within);
        }
        match self.stalled.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                metrics::limit_hit(Limit::ReaderTime);
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing of what it is sent")))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Progressing<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Progressing<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.judge(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.judge(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.judge(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_peer_that_takes_a_little_now_and_then_is_waited_for() {
        let (near, mut far) = tokio::io::duplex(8);
        let mut near = Progressing::new(near, Duration::from_millis(500));
        let slow = tokio::spawn(async move {
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_millis(200)).await;
                let mut taken = [0; 8];
                far.read_exact(&mut taken).await.expect("bytes");
            }
            far
        });
        near.write_all(&[7; 32]).await.expect("taken in time");
        let _far = slow.await.expect("a reader");
        near.write_all(&[7; 8]).await.expect("room");
        let error = near.write_all(&[7; 8]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
