//! The messages of one connection, in order: each is checked, decoded and handled before the next is
//! looked at.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use futures::SinkExt as _;
use pgwire::api::{ClientInfo as _, DefaultClient, PgWireConnectionState as State};
use pgwire::error::{ErrorInfo, PgWireError};
use pgwire::messages::response::SslResponse;
use pgwire::messages::{DecodeContext, PgWireBackendMessage, PgWireFrontendMessage};
use pgwire::tokio::server::{PgWireMessageServerCodec, process_error, process_message};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio_util::codec::Framed;

use super::connection::Connection;
use super::frames::{self, Opening};
use super::messages::{Severity, error_info};
use crate::server::metrics;
use crate::types::{Error, Limits, SqlState};

/// Room for what is read at once; a connection that is silent holds no more.
const READ_BYTES: usize = 8 << 10;

type Client<S> = Framed<S, PgWireMessageServerCodec<String>>;

/// Talks with a client until it goes away, or must go.
///
/// # Errors
/// When the socket fails.
pub(super) async fn talk<S>(
    stream: S,
    peer: SocketAddr,
    connection: &Arc<Connection>,
    limits: &Limits,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + Sync + 'static,
{
    let mut client: Client<S> = Framed::new(stream, PgWireMessageServerCodec::new(DefaultClient::new(peer, false)));
    client.set_state(State::AwaitingStartup);
    let mut bytes = BytesMut::new();
    loop {
        let next = match client.state() {
            State::AwaitingStartup | State::AuthenticationInProgress => match frames::opening(&bytes, limits) {
                Ok(Some((length, Opening::Encryption))) => {
                    let _ = bytes.split_to(length);
                    client.send(PgWireBackendMessage::SslResponse(SslResponse::Refuse)).await?;
                    continue;
                }
                Ok(Some((length, Opening::Message))) => Ok(Some(length)),
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            },
            _ => frames::length(&bytes, limits),
        };
        match next {
            Err(error) => return end(&mut client, &error).await,
            Ok(Some(length)) => {
                let frame = bytes.split_to(length);
                if !handle(&mut client, frame, connection).await? {
                    return Ok(());
                }
            }
            Ok(None) => {
                if bytes.is_empty() {
                    // What a long message took is given back.
                    bytes = BytesMut::with_capacity(READ_BYTES);
                }
                bytes.reserve(READ_BYTES);
                if client.get_mut().read_buf(&mut bytes).await? == 0 {
                    return Ok(());
                }
            }
        }
    }
}

/// Handles one frame; false when it was the last.
async fn handle<S>(client: &mut Client<S>, mut frame: BytesMut, connection: &Arc<Connection>) -> io::Result<bool>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + Sync + 'static,
{
    let opening = matches!(client.state(), State::AwaitingStartup | State::AuthenticationInProgress);
    let kind = frame.first().copied().unwrap_or_default();
    let mut waits_for_sync = !opening && frames::is_extended(kind);
    match client.state() {
        // After an error all is skipped, read or not.
        State::AwaitingSync if !matches!(kind, b'S' | b'X') => return Ok(true),
        State::CopyInProgress(extended) => waits_for_sync = extended,
        _ => {}
    }
    if !opening && let Err(error) = frames::check(&frame) {
        let refused = connection.not_understood(&error).await;
        return refuse(client, refused, waits_for_sync).await;
    }
    let mut context = DecodeContext::default();
    context.protocol_version = client.protocol_version();
    context.awaiting_frontend_ssl = false;
    context.awaiting_frontend_startup = opening;
    let message = match PgWireFrontendMessage::decode(&mut frame, &context) {
        Ok(Some(message)) => message,
        // The frame was whole and checked.
        Ok(None) | Err(_) => {
            let error = Error::new(SqlState::ProtocolViolation, "invalid message format");
            return end(client, &error).await.map(|()| false);
        }
    };
    let cancels = match message {
        PgWireFrontendMessage::Terminate(_) => return Ok(false),
        PgWireFrontendMessage::CancelRequest(_) => true,
        _ => false,
    };
    let handled = process_message(
        message,
        client,
        Arc::clone(connection),
        Arc::clone(connection),
        Arc::clone(connection),
        Arc::clone(connection),
        connection.canceller(),
    )
    .await;
    match handled {
        Ok(()) => Ok(!cancels),
        Err(error) => refuse(client, error, waits_for_sync).await.map(|goes_on| goes_on && !opening),
    }
}

/// Sends an error; false when it ends the connection.
async fn refuse<S>(client: &mut Client<S>, error: PgWireError, waits_for_sync: bool) -> io::Result<bool>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + Sync + 'static,
{
    // The client is gone, or does not read: there is nobody to tell.
    if let PgWireError::IoError(error) = error {
        return Err(error);
    }
    let info = ErrorInfo::from(error);
    let goes_on = !info.is_fatal();
    process_error(client, PgWireError::UserError(Box::new(info)), waits_for_sync).await?;
    Ok(goes_on)
}

/// Tells the client why its connection ends.
async fn end<S>(client: &mut Client<S>, error: &Error) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + Sync + 'static,
{
    metrics::bad_message();
    let info = error_info(error, Severity::Fatal);
    client.send(PgWireBackendMessage::ErrorResponse(info.into())).await?;
    client.close().await
}
