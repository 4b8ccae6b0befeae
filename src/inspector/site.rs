//! What all requests share, and how the inspector begins and ends.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use http::{HeaderMap, header::COOKIE as COOKIES};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
};

use super::{
    bounds::{REQUESTS_MAX, STREAMS_MAX},
    digest::Digests,
    failure::PageFailure,
    guard, routes,
    sampler::{StoreSamples, sample},
    session::{COOKIE, Sessions, secret},
};
use crate::{
    access::KeyRing,
    cli::{CliError, Connection},
    engine::Engine,
    server::{WebService, bearer},
};

/// How it is served.
#[derive(Clone, Debug, Default)]
pub struct InspectorOptions {
    /// Hosts that requests may be for, besides this machine's own names.
    pub hosts: Vec<String>,
    /// The port is encrypted.
    pub tls: bool,
}

/// What all requests share.
pub struct Site {
    /// The store, as nobody: see [`Connection::as_caller`].
    pub(super) store: Connection,
    pub(super) keys: Arc<KeyRing>,
    pub(super) options: InspectorOptions,
    pub(super) address: SocketAddr,
    /// Of which the tokens of forms are made.
    pub(super) secret: String,
    pub(super) requests: Arc<Semaphore>,
    pub(super) streams: Arc<Semaphore>,
    pub(super) digests: Arc<Digests>,
    pub(super) samples: Arc<StoreSamples>,
    /// True once streams are to end.
    pub(super) ending: watch::Sender<bool>,
    sessions: Mutex<Sessions>,
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").finish_non_exhaustive()
    }
}

impl Site {
    /// Everybody who has logged in.
    pub(super) fn sessions(&self) -> std::sync::MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key that a request is asked with: that of its session, or one that it brings itself
    /// as programs do. None while nobody is asked for one.
    ///
    /// # Errors
    /// When there is none and one is asked for.
    pub(super) fn key_of(&self, headers: &HeaderMap) -> Result<Option<String>, PageFailure> {
        self.keys.look();
        if self.keys.is_open() {
            return Ok(None);
        }
        if let Some(key) = bearer(headers) {
            return Ok(Some(key.to_owned()));
        }
        let key = session_of(headers).and_then(|name| self.sessions().key(name));
        match key {
            Some(key) => match self.keys.holder(&key) {
                Ok(_) => Ok(Some(key)),
                Err(refusal) => Err(PageFailure::no_key(refusal.to_string())),
            },
            None => Err(PageFailure::no_key(
                "This store is for those who have a key.",
            )),
        }
    }

    /// What the forms of a session send; of nobody's as well.
    pub(super) fn token(&self, headers: &HeaderMap) -> String {
        let session = session_of(headers).unwrap_or_default();
        let text = format!("{}:{session}", self.secret);
        blake3::hash(text.as_bytes()).to_hex().to_string()
    }
}

/// The name of the session that a browser says it has.
pub(super) fn session_of(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(COOKIES).into_iter();
    let texts = cookies.filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = texts
        .flat_map(|text| text.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    pairs
        .find(|(name, _)| *name == COOKIE)
        .map(|(_, value)| value)
}

/// The inspector of a server.
#[derive(Debug)]
pub struct Inspector {
    site: Arc<Site>,
    sampling: JoinHandle<()>,
}

impl Inspector {
    /// Begins, over an engine that is served on this address by this process.
    ///
    /// # Errors
    /// When the engine cannot be reached, or the system has no randomness.
    pub async fn open(
        engine: Engine,
        keys: Arc<KeyRing>,
        address: SocketAddr,
        options: InspectorOptions,
    ) -> Result<Self, CliError> {
        let secret = secret().map_err(|error: io::Error| CliError::Outcome {
            what: format!("the system gives no randomness: {error}"),
            hint: "serve without the inspector: --no-inspector".into(),
            exit: crate::cli::error::Exit::Unavailable,
        })?;
        let samples = Arc::<StoreSamples>::default();
        let sampling = tokio::spawn(sample(engine.clone(), Arc::downgrade(&samples)));
        let store = Connection::to_engine(engine, Arc::clone(&keys)).await?;
        let site = Arc::new(Site {
            store,
            keys,
            options,
            address,
            secret,
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            digests: Arc::default(),
            samples: Arc::clone(&samples),
            ending: watch::Sender::new(false),
            sessions: Mutex::default(),
        });
        Ok(Self { site, sampling })
    }

    /// What answers browsers.
    #[must_use]
    pub fn web(&self) -> WebService {
        let site = Arc::clone(&self.site);
        let routes = routes::routes(Arc::clone(&site));
        WebService::new(move |request| {
            let (site, routes) = (Arc::clone(&site), routes.clone());
            async move {
                let request = request.map(axum::body::Body::new);
                let answer = guard::answer(&site, routes, request).await;
                answer.map(tonic::body::Body::new)
            }
        })
    }

    /// Ends what is live: a page that waits for news would keep its connection from ending.
    pub fn end_streams(&self) {
        self.site.ending.send_replace(true);
    }

    /// Ends it. The engine is the server's, which ends it itself.
    pub async fn close(self) {
        self.end_streams();
        self.sampling.abort();
        // Whoever is still answered goes first, and what is left goes with them.
        if let Some(site) = Arc::into_inner(self.site)
            && let Err(error) = site.store.close().await
        {
            tracing::warn!(%error, "the inspector was not closed cleanly");
        }
    }
}
