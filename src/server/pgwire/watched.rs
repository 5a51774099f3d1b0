//! A second handle on a connection's socket: never read from, only looked at while a statement runs.

use std::future::Future as _;
use std::io::{ErrorKind, Write as _};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tokio::io::Interest;

/// The handle.
pub(super) enum Watched {
    Tcp(std::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

impl Watched {
    /// True when the client closed the connection, or said that it will and sends nothing more.
    pub(super) fn is_gone(&self) -> bool {
        const TERMINATE: [u8; 5] = [b'X', 0, 0, 0, 4];
        match self {
            Watched::Tcp(socket) => {
                let mut bytes = [0u8; TERMINATE.len() + 1];
                // The socket does not block; peeking leaves the bytes for the reader.
                match socket.peek(&mut bytes) {
                    Ok(0) => true,
                    Ok(length) => bytes.get(..length) == Some(&TERMINATE[..]),
                    Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
                }
            }
            Watched::Unix(socket) => {
                let ready = pin!(socket.ready(Interest::READABLE));
                match ready.poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(Ok(ready)) => ready.is_read_closed(),
                    Poll::Ready(Err(_)) => true,
                    Poll::Pending => false,
                }
            }
        }
    }

    /// Writes without waiting, as far as it goes: a client that does not read is cut without a word.
    pub(super) fn say(&self, bytes: &[u8]) {
        let _ = match self {
            Watched::Tcp(socket) => (&mut &*socket).write(bytes),
            Watched::Unix(socket) => socket.try_write(bytes),
        };
    }
}
