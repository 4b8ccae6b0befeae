//! The TLS handshake of a connection, within its time limit.

use std::io::ErrorKind;

use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout_at,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{ConnectionLife, bounds};

/// Returns the TLS stream, or `None` when the connection ends before it is established.
pub(super) async fn handshake<IO>(
    tls: &TlsAcceptor,
    io: IO,
    life: &ConnectionLife,
) -> Option<TlsStream<IO>>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let end = life.activity.accepted + bounds::HANDSHAKE_WAIT;
    let done = tokio::select! {
        biased;
        () = life.wait_until_asked_to_end() => None,
        done = timeout_at(end, tls.accept(io)) => Some(done),
    };
    life.activity.shake_hands(false);
    match done {
        Some(Ok(Ok(io))) => Some(io),
        // Port scanners and the like just close the connection.
        Some(Ok(Err(error))) if error.kind() != ErrorKind::InvalidData => {
            tracing::debug!(%error, "a TLS handshake ended");
            None
        }
        Some(Ok(Err(error))) => {
            tracing::info!(%error, "a TLS handshake failed");
            None
        }
        Some(Err(_)) => {
            tracing::debug!("a TLS handshake took too long");
            None
        }
        None => None,
    }
}
