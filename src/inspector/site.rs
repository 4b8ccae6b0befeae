//! What all requests share, and how the inspector begins and ends.

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
    guard, routes,
    sampler::{StoreSamples, sample},
    session::{COOKIE, Sessions, secret},
    sources::SeenSources,
};
use crate::{
    access::{CallerProof, CertificateSubject, ClientCertificate, Holder, KeyRefusal, KeyRing},
    cli::{CliError, Connection},
    engine::Engine,
    server::{WebPlace, WebService, bearer},
};

/// What all requests share.
pub struct Site {
    /// The store, as nobody: see [`Connection::as_caller`].
    pub(super) store: Connection,
    pub(super) keys: Arc<KeyRing>,
    pub(super) place: WebPlace,
    /// Of which the tokens of forms are made.
    pub(super) secret: String,
    pub(super) requests: Arc<Semaphore>,
    pub(super) streams: Arc<Semaphore>,
    pub(super) digests: Arc<Digests>,
    pub(super) sources: SeenSources,
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

    /// As whom the store is asked: as the key that a request brings itself, as programs do, as
    /// that of its session, or as the one that the certificate of its connection stands for. As
    /// nobody, while nobody is asked for a key.
    ///
    /// # Errors
    /// When there is none and one is asked for.
    pub(super) fn asks_as(&self, request: &Parts) -> Result<AsksAs, PageFailure> {
        self.keys.look();
        if self.keys.is_open() {
            return Ok(AsksAs {
                proof: CallerProof::Nothing,
                holder: None,
            });
        }
        let refused = |refusal: KeyRefusal| PageFailure::no_key(refusal.to_string());
        // Something before the server may ask for a password: that is no key.
        let sent = bearer(&request.headers).map(|key| CallerProof::Key(key.to_owned()));
        let proof = match sent.or_else(|| self.of_session(&request.headers)) {
            Some(proof) => proof,
            None => {
                let certificate = request.extensions.get::<ClientCertificate>();
                let nobody = || PageFailure::no_key("This store is for those who have a key.");
                CallerProof::of_certificate(certificate.ok_or_else(nobody)?).map_err(refused)?
            }
        };
        let holder = proof.holder(&self.keys).map_err(refused)?;
        Ok(AsksAs { proof, holder })
    }

    /// The key of a session. One whose key has ended is over: whoever has a certificate is seen
    /// by that from then on.
    fn of_session(&self, headers: &HeaderMap) -> Option<CallerProof> {
        let name = session_of(headers)?;
        let key = self.sessions().key(name)?;
        if self.keys.holder(&key).is_err() {
            self.sessions().end(name);
            return None;
        }
        Some(CallerProof::Key(key))
    }

    /// The name of the key that a request comes with; none where nobody is asked for one.
    pub(super) fn key_name(&self, request: &Parts) -> Option<String> {
        let holder = self.asks_as(request).ok()?.holder?;
        Some(holder.name().to_owned())
    }

    /// What the forms of a session send, or of a certificate's holder; of nobody's as well.
    pub(super) fn token(&self, request: &Parts) -> String {
        let session = session_of(&request.headers).unwrap_or_default();
        let certificate = request.extensions.get::<ClientCertificate>();
        let subject = certificate.and_then(|shown| shown.subject.as_ref());
        let subject = subject.map(CertificateSubject::as_str).unwrap_or_default();
        let text = format!("{}:{session}:{subject}", self.secret);
        blake3::hash(text.as_bytes()).to_hex().to_string()
    }
}

/// As whom the store is asked.
#[derive(Debug)]
pub(super) struct AsksAs {
    /// What they have shown.
    pub proof: CallerProof,
    /// Whose key that is; none: nobody is asked for one.
    pub holder: Option<Arc<Holder>>,
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
    /// Begins, over an engine that is served at this place by this process.
    ///
    /// # Errors
    /// When the engine cannot be reached, or the system has no randomness.
    pub async fn open(
        engine: Engine,
        keys: Arc<KeyRing>,
        place: WebPlace,
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
            place,
            secret,
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            digests: Arc::default(),
            sources: SeenSources::default(),
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
