//! What buckets need besides: a TLS provider.

/// Lets TLS use the provider that this program has. Whoever embeds it may have set its own.
pub(super) fn ready() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
