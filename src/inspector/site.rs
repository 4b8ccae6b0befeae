//! State shared by all requests, and the start and end of the inspector.

use std::{
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
};

use http::{HeaderMap, header::COOKIE as COOKIES, request::Parts};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
};

use super::{
    bounds::{REQUESTS_MAX, STREAMS_MAX},
    digest::Digests,
    failure::PageFailure,
    guard,
    prices::Prices,
    routes,
    sampler::{StoreSamples, sample},
    session::{COOKIE, Sessions, secret},
    sources::SourceCache,
};
use treering_access::{
    CallerProof, CertificateSubject, ClientCertificate, KeyHolder, KeyRefusal, KeyStore,
};
use treering_client::{ClientError, Connection};
use treering_server::{ServedStore, WebPlace, WebService, bearer};

/// State shared by all requests.
pub(crate) struct Site {
    /// The store without a caller: see [`Connection::as_caller`].
    pub(super) store: Connection,
    pub(super) keys: Arc<KeyStore>,
    pub(super) place: WebPlace,
    /// Secret for the tokens of forms.
    pub(super) secret: String,
    pub(super) requests: Arc<Semaphore>,
    pub(super) streams: Arc<Semaphore>,
    pub(super) digests: Arc<Digests>,
    pub(super) sources: SourceCache,
    pub(super) samples: Arc<StoreSamples>,
    /// What models cost; may be empty.
    pub(super) prices: Arc<Prices>,
    /// True once streams must end.
    pub(super) ending: watch::Sender<bool>,
    sessions: Mutex<Sessions>,
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").finish_non_exhaustive()
    }
}

impl Site {
    /// Locks and returns the sessions of all visitors.
    pub(super) fn sessions(&self) -> std::sync::MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the caller of a request. Precedence: the key in its headers, as programs send it;
    /// then the key of its session; then the key of its client certificate. Without authentication,
    /// the caller has no key.
    ///
    /// # Errors
    /// When a key is required and there is none.
    pub(super) fn asks_as(&self, request: &Parts) -> Result<CallerIdentity, PageFailure> {
        self.keys.reload_if_changed();
        if self.keys.is_open() {
            return Ok(CallerIdentity {
                proof: CallerProof::Nothing,
                holder: None,
            });
        }
        let refused = |refusal: KeyRefusal| PageFailure::no_key(refusal.to_string());
        // The header may hold a password for a proxy in front of the server, which is not a key.
        let sent = bearer(&request.headers).map(|key| CallerProof::Key(key.to_owned()));
        let proof = match sent.or_else(|| self.of_session(&request.headers)) {
            Some(proof) => proof,
            None => {
                let certificate = request.extensions.get::<ClientCertificate>();
                let nobody = || PageFailure::no_key("This store requires a key.");
                CallerProof::of_certificate(certificate.ok_or_else(nobody)?).map_err(refused)?
            }
        };
        let holder = proof.holder(&self.keys).map_err(refused)?;
        Ok(CallerIdentity { proof, holder })
    }

    /// Returns the key of a session. If the key is no longer valid, the session ends, and the
    /// visitor is identified by a client certificate, if there is one.
    fn of_session(&self, headers: &HeaderMap) -> Option<CallerProof> {
        let name = session_of(headers)?;
        let key = self.sessions().key(name)?;
        if self.keys.holder(&key).is_err() {
            self.sessions().end(name);
            return None;
        }
        Some(CallerProof::Key(key))
    }

    /// Returns the name of the key of a request; `None` without authentication.
    pub(super) fn key_name(&self, request: &Parts) -> Option<String> {
        let holder = self.asks_as(request).ok()?.holder?;
        Some(holder.name().to_owned())
    }

    /// Returns the token for forms. It depends on the session and on the certificate's subject, if
    /// there are any.
    pub(super) fn token(&self, request: &Parts) -> String {
        let session = session_of(&request.headers).unwrap_or_default();
        let certificate = request.extensions.get::<ClientCertificate>();
        let subject = certificate.and_then(|shown| shown.subject.as_ref());
        let subject = subject.map(CertificateSubject::as_str).unwrap_or_default();
        let text = format!("{}:{session}:{subject}", self.secret);
        blake3::hash(text.as_bytes()).to_hex().to_string()
    }
}

/// The caller of a request.
#[derive(Debug)]
pub(super) struct CallerIdentity {
    /// The caller's proof.
    pub(crate) proof: CallerProof,
    /// The holder of the key; `None`: no authentication.
    pub(crate) holder: Option<Arc<KeyHolder>>,
}

/// Returns the session name in a browser's cookie.
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
    sampling: Option<JoinHandle<()>>,
}

impl Inspector {
    /// Opens the inspector for a store that this process serves at this address. Pages show what
    /// model calls cost if there are prices. Those of a node of a cluster have no charts.
    ///
    /// # Errors
    /// When the store cannot be reached, or the system's random number generator fails.
    pub async fn open(
        store: ServedStore,
        keys: Arc<KeyStore>,
        place: WebPlace,
        prices: Arc<Prices>,
    ) -> Result<Self, ClientError> {
        let secret = secret().map_err(|error: io::Error| ClientError::Outcome {
            what: format!("the system's random number generator failed: {error}"),
            hint: "serve without the inspector: --no-inspector".into(),
            exit: treering_client::error::Exit::Unavailable,
        })?;
        let samples = Arc::<StoreSamples>::default();
        let sampling = match &store {
            ServedStore::Engine(engine) => {
                let sampling = sample(engine.clone(), Arc::downgrade(&samples));
                Some(tokio::spawn(sampling))
            }
            ServedStore::Node(_) => None,
        };
        let store = Connection::beside(store, Arc::clone(&keys)).await?;
        let site = Arc::new(Site {
            store,
            keys,
            place,
            secret,
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            digests: Arc::default(),
            sources: SourceCache::default(),
            samples: Arc::clone(&samples),
            prices,
            ending: watch::Sender::new(false),
            sessions: Mutex::default(),
        });
        Ok(Self { site, sampling })
    }

    /// Returns the web service that answers browsers.
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

    /// Ends the live streams. Otherwise, pages that wait for updates would keep their connections
    /// open.
    pub fn end_streams(&self) {
        self.site.ending.send_replace(true);
    }

    /// Closes the inspector. The store belongs to the server, which closes it.
    pub async fn close(self) {
        self.end_streams();
        if let Some(sampling) = &self.sampling {
            sampling.abort();
        }
        // Fails while requests are still being answered; the last of them then drops the store.
        if let Some(site) = Arc::into_inner(self.site)
            && let Err(error) = site.store.close().await
        {
            tracing::warn!(%error, "the inspector was not closed cleanly");
        }
    }
}
