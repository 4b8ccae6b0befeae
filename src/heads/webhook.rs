//! Sends heads to an HTTP address.

use std::{net::IpAddr, time::Duration};

use tokio::sync::oneshot;
use ureq::{Agent, http::Uri};

use super::error::HeadError;

/// Timeout for a whole request.
const WITHIN: Duration = Duration::from_secs(30);

/// An HTTP address that receives heads.
#[derive(Clone, Debug)]
pub(super) struct Webhook {
    url: String,
    /// The address without credentials.
    shown: String,
    agent: Agent,
}

impl Webhook {
    /// Returns `None` if it is not an HTTP address.
    pub(crate) fn of(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let scheme = uri.scheme_str()?;
        let host = uri.host()?.trim_matches(['[', ']']);
        if !matches!(scheme, "http" | "https") {
            return None;
        }
        let mut agent = Agent::config_builder()
            .timeout_global(Some(WITHIN))
            // A head must not go to another address.
            .max_redirects(0)
            .user_agent(concat!("treering/", env!("CARGO_PKG_VERSION")));
        let is_loopback = host.parse().is_ok_and(|host: IpAddr| host.is_loopback());
        if is_loopback || host == "localhost" {
            agent = agent.proxy(None);
        }
        let port = uri
            .port()
            .map_or_else(String::new, |port| format!(":{port}"));
        Some(Self {
            url: url.to_owned(),
            shown: format!("{scheme}://{host}{port}"),
            agent: agent.build().new_agent(),
        })
    }

    pub(crate) fn address(&self) -> &str {
        &self.shown
    }

    /// Sends a head. Dropping the future does not wait for the answer.
    pub(crate) async fn post(&self, text: &str) -> Result<(), HeadError> {
        let (webhook, text) = (self.clone(), text.to_owned());
        let (tell, told) = oneshot::channel();
        // A dedicated thread, because the shutdown of a runtime waits for its blocking tasks.
        let thread = std::thread::Builder::new().name("heads-http".to_owned());
        let spawned = thread.spawn(move || {
            let request = webhook.agent.post(&webhook.url);
            let answer = request.content_type("application/json").send(text);
            // Fails if nobody waits any more; then the head is sent again, as after a crash.
            let _ = tell.send(answer.map(drop));
        });
        let failed = |error| HeadError::failed(format!("sending a head to {}", self.shown), error);
        spawned.map_err(|error| failed(Box::from(error.to_string())))?;
        match told.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(failed(Box::from(error))),
            Err(_) => Err(failed(Box::<dyn std::error::Error + Send + Sync>::from(
                "the request was aborted",
            ))),
        }
    }
}
