//! Renders a draft to a body and its units, in the same way for all providers. In tests of this
//! crate, each body is checked against the rules of its provider.

use serde::Serialize;

use super::{Provider, outline, units};
use crate::{cancellation::CancellationToken, draft::Draft, policy::ContextPolicy};

/// A body and its units.
#[derive(Clone, Debug, PartialEq)]
pub struct RenderedBody {
    /// JSON text. Stable content comes before content that may change.
    pub body: Vec<u8>,
    /// Units in the order in which a prompt cache reads them: tools, system prompt, then each
    /// message. For Anthropic, each block of a message is a unit, because consecutive messages of
    /// one role are merged.
    pub units: Vec<CacheUnit>,
    /// What was changed or omitted, as text for people.
    pub warnings: Vec<String>,
}

/// A part of a body that a prompt cache can share as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheUnit {
    /// Hash of its JSON text, without cache breakpoints. Only comparable within a process, because
    /// each process has its own hash key.
    pub hash: u128,
    /// Length of its JSON text, in bytes.
    pub bytes: u64,
    /// Indexes of its items in the draft. The tools have none.
    pub items: Vec<usize>,
}

/// Why a draft cannot be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The provider does not accept a medium, and the policy is to refuse the request.
    #[error("{provider} does not accept {medium} here: {why}")]
    Unsupported {
        /// Provider of the body.
        provider: Provider,
        /// For example `audio/wav`.
        medium: String,
        /// What the provider accepts.
        why: String,
    },
    /// The body does not have the parts that its adapter declared. This is a bug in Treering.
    #[error(
        "the request for {provider} does not have the parts that its adapter declared: \
         {message}; this is a bug in Treering, please report it"
    )]
    Illegal {
        /// Provider of the body.
        provider: Provider,
        /// What differs.
        message: String,
    },
    /// The request was cancelled.
    #[error("the request was cancelled before it was finished")]
    Stopped,
    /// A value could not be serialized as JSON.
    #[error("the request for {provider} cannot be written as JSON: {message}")]
    Json {
        /// Provider of the body.
        provider: Provider,
        /// Serde's message.
        message: String,
    },
}

/// A typed body and its units.
#[derive(Clone, Debug)]
pub struct AdaptedBody<B> {
    /// The body.
    pub body: B,
    /// For each unit after the tools: indexes of its items in the draft. The instructions are one
    /// unit if they have a field of their own. Each message, input item or content follows as a
    /// unit; for Anthropic, each block of each message.
    pub units: Vec<Vec<usize>>,
    /// What was changed or omitted, as text for people.
    pub warnings: Vec<String>,
}

/// Converts a draft to a provider's typed body. Must be a pure function.
pub trait Adapter {
    /// Type of the body. Its fields serialize with stable content before content that changes.
    type Body<'a>: Serialize;

    /// Provider of the body.
    fn provider(&self) -> Provider;

    /// Returns the body, which is incomplete if cancelled.
    ///
    /// # Errors
    /// [`RenderError::Unsupported`] if the policy refuses media.
    fn adapt<'a>(
        &self,
        draft: &'a Draft,
        policy: &ContextPolicy,
        cancellation: &CancellationToken,
    ) -> Result<AdaptedBody<Self::Body<'a>>, RenderError>;
}

/// Renders a draft as its provider's body.
///
/// # Errors
/// [`RenderError`].
pub fn render(draft: &Draft, policy: &ContextPolicy) -> Result<RenderedBody, RenderError> {
    render_until(draft, policy, &CancellationToken::default())
}

/// Renders a draft as its provider's body, unless cancelled.
///
/// # Errors
/// [`RenderError`].
pub fn render_until(
    draft: &Draft,
    policy: &ContextPolicy,
    cancellation: &CancellationToken,
) -> Result<RenderedBody, RenderError> {
    (draft.provider.description().render)(draft, policy, cancellation)
}

/// As [`render`], with an adapter of the caller.
///
/// # Errors
/// [`RenderError`].
pub fn render_with<A: Adapter>(
    adapter: &A,
    draft: &Draft,
    policy: &ContextPolicy,
    cancellation: &CancellationToken,
) -> Result<RenderedBody, RenderError> {
    let go_on = || match cancellation.is_cancelled() {
        true => Err(RenderError::Stopped),
        false => Ok(()),
    };
    let provider = adapter.provider();
    let adapted = adapter.adapt(draft, policy, cancellation);
    // A partial body may break the provider's rules.
    go_on()?;
    let adapted = adapted?;
    let body = outline::write(&adapted.body, units::depth(provider));
    let body = body.map_err(|error| RenderError::Json {
        provider,
        message: error.to_string(),
    })?;
    go_on()?;
    #[cfg(test)]
    treering_provider_check::assert_legal(provider.as_str(), &body.json);
    let units = units::of_body(provider, &body, adapted.units)?;
    Ok(RenderedBody {
        body: body.json,
        units,
        warnings: adapted.warnings,
    })
}
