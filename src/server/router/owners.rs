//! Connections to the other nodes, and what their answers mean.

use std::{
    collections::HashMap,
    error::Error as _,
    sync::{Mutex, PoisonError},
};

use http::{HeaderMap, HeaderValue, Request, Response};
use tonic::{
    Code, ConnectError, Status,
    body::Body,
    transport::{Channel, ClientTlsConfig, Endpoint},
};
use tonic_types::StatusExt;
use tower::{Service, ServiceExt};

use super::{OwnerNode, ShardAway};
use crate::{
    bounds,
    status::{NOT_OWNER, Refusal},
};
use treering_domain::ShardId;

/// The metadata key of a forwarded call: the number of its shard. A call with it is never
/// forwarded again.
const SHARD_KEY: &str = "treering-shard";

/// The metadata key of a forwarded call: the [secret](super::ShardDirectory::secret) of the process
/// that it is for.
const SECRET_KEY: &str = "treering-process";

/// The metadata key of an answer: the address of the node that gave it.
pub(super) const OWNER_KEY: &str = "treering-owner";

/// The shard of a call that another node has forwarded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForwardedShard(pub(crate) ShardId);

impl ForwardedShard {
    /// Reads the metadata of a call at the process with this secret. Returns `None` for calls of
    /// clients.
    ///
    /// # Errors
    /// The call was forwarded to another process, or by somebody who is no node.
    pub(crate) fn of(headers: &HeaderMap, secret: &str) -> Result<Option<Self>, Refusal> {
        let Some(shard) = headers.get(SHARD_KEY) else {
            return Ok(None);
        };
        let shard = shard.to_str().ok().and_then(|text| text.parse().ok());
        let shard = ShardId(shard.unwrap_or(u32::MAX));
        let sent = headers
            .get(SECRET_KEY)
            .map_or(&[][..], HeaderValue::as_bytes);
        // Compared by hash: the time tells nothing about the secret.
        match blake3::hash(sent) == blake3::hash(secret.as_bytes()) {
            true => Ok(Some(Self(shard))),
            false => Err(Refusal::not_owner(shard, &ShardAway::Moving)),
        }
    }
}

/// Why a forwarded call has no answer.
#[derive(Debug)]
pub(super) enum ForwardFault {
    /// The call was not executed.
    NotExecuted(String),
    /// The connection broke after the call was sent, so it may have been executed.
    Unknown(String),
}

/// Connections to other nodes, one to each.
#[derive(Default)]
pub(super) struct OwnerChannels {
    tls: Option<ClientTlsConfig>,
    channels: Mutex<HashMap<String, Channel>>,
}

impl OwnerChannels {
    /// Connects with TLS if it is given.
    pub(super) fn new(tls: Option<ClientTlsConfig>) -> Self {
        Self {
            tls,
            channels: Mutex::default(),
        }
    }

    /// Sends a call to the owner of its shard.
    ///
    /// # Errors
    /// [`ForwardFault`].
    pub(super) async fn forward(
        &self,
        owner: &OwnerNode,
        shard: ShardId,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, ForwardFault> {
        let address = &owner.address;
        let headers = request.headers_mut();
        headers.insert(SHARD_KEY, HeaderValue::from(shard.0));
        if let Ok(mut secret) = HeaderValue::from_str(&owner.secret) {
            secret.set_sensitive(true);
            headers.insert(SECRET_KEY, secret);
        }
        let not_sent = |error: &dyn std::fmt::Display| ForwardFault::NotExecuted(error.to_string());
        let mut channel = self.channel(address).map_err(|error| not_sent(&error))?;
        let ready = channel.ready().await.map_err(|error| not_sent(&error))?;
        match ready.call(request).await {
            Ok(answer) if is_not_owner(&answer) => Err(ForwardFault::NotExecuted(format!(
                "{address} is not the owner"
            ))),
            Ok(answer) => Ok(answer),
            Err(error) if is_connect_error(&error) => Err(not_sent(&error)),
            Err(error) => Err(ForwardFault::Unknown(error.to_string())),
        }
    }

    fn channel(&self, address: &str) -> Result<Channel, tonic::transport::Error> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        if channels.len() >= bounds::OWNER_CHANNELS_MAX {
            // Nodes come and go. Calls that run on a dropped channel continue.
            channels.clear();
        }
        let scheme = match &self.tls {
            Some(_) => "https",
            None => "http",
        };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))?
            .connect_timeout(bounds::OWNER_CONNECT_WAIT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(bounds::OWNER_PING_EVERY)
            .keep_alive_timeout(bounds::OWNER_PING_WAIT)
            .initial_stream_window_size(bounds::STREAM_WINDOW_BYTES)
            .initial_connection_window_size(bounds::CONNECTION_WINDOW_BYTES);
        let endpoint = match &self.tls {
            Some(tls) => endpoint.tls_config(tls.clone())?,
            None => endpoint,
        };
        let channel = endpoint.connect_lazy();
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}

/// Returns true if the receiver did not execute the call because it does not own the shard.
fn is_not_owner(answer: &Response<Body>) -> bool {
    let status = Status::from_header_map(answer.headers());
    status.is_some_and(|status| {
        status.code() == Code::Unavailable
            && status
                .get_details_error_info()
                .is_some_and(|info| info.reason == NOT_OWNER)
    })
}

fn is_connect_error(error: &tonic::transport::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}
