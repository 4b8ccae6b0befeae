//! TLS for buckets.

/// Installs a TLS provider unless the embedding program has installed its own.
pub(super) fn ready() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
