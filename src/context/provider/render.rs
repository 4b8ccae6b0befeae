//! From a draft to a body in pieces: what is the same for all providers. In tests of this crate
//! each body is checked against the rules of its provider.

use serde::Serialize;

use super::{Provider, outline, units};
use crate::{cancellation::CancellationToken, draft::Draft, policy::ContextPolicy};

/// A body, and what it is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// JSON text. What must stay byte-equal comes before what may change.
    pub body: Vec<u8>,
    /// In the order in which a prompt cache reads them: tools, system prompt,
    /// then each message; for Anthropic each block of each message, because what
    /// the same role says next goes into its last message.
    pub units: Vec<CacheUnit>,
    /// What was reshaped or left out, for people.
    pub warnings: Vec<String>,
}

/// A piece of a body that a prompt cache can share as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheUnit {
    /// Hash of its JSON text, without cache breakpoints. For comparing within a
    /// process: it is another one in each.
    pub hash: u128,
    /// Length of its JSON text.
    pub bytes: u64,
    /// Items of the draft that went into it, by index; the tools have none.
    pub items: Vec<usize>,
}

/// Why a draft cannot become a body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The provider takes no such medium, and the policy says to refuse.
    #[error("{provider} takes no {medium} here: {why}")]
    Unsupported {
        /// Whose body.
        provider: Provider,
        /// For example `audio/wav`.
        medium: String,
        /// What would be taken.
        why: String,
    },
    /// The body does not have the parts that its adapter stated. A fault of Treering.
    #[error(
        "the request for {provider} breaks a rule of it: {message}; this is a fault of Treering, please report it"
    )]
    Illegal {
        /// Whose body.
        provider: Provider,
        /// What differs.
        message: String,
    },
    /// Nobody waits for the body any more.
    #[error("the request was not finished, because nobody waits for it any more")]
    Stopped,
    /// A value could not be written as JSON.
    #[error("the request for {provider} cannot be written as JSON: {message}")]
    Json {
        /// Whose body.
        provider: Provider,
        /// What serde says.
        message: String,
    },
}

/// A typed body, and what it is made of.
#[derive(Clone, Debug)]
pub struct Adapted<B> {
    /// The body.
    pub body: B,
    /// For each unit after the tools: the items of the draft that went into it,
    /// by index. The instructions are one unit where they have a field of their
    /// own; then comes each message, input item or content, and for Anthropic
    /// each block of each message.
    pub units: Vec<Vec<usize>>,
    /// What was reshaped or left out, for people.
    pub warnings: Vec<String>,
}

/// Makes a provider's typed body out of a draft: a pure function.
pub trait Adapter {
    /// The body. Its fields serialize in an order that keeps what is stable
    /// before what changes.
    type Body<'a>: Serialize;

    /// Whose body.
    fn provider(&self) -> Provider;

    /// The body; incomplete if it is cancelled.
    ///
    /// # Errors
    /// [`RenderError::Unsupported`], where the policy refuses media.
    fn adapt<'a>(
        &self,
        draft: &'a Draft,
        policy: &ContextPolicy,
        cancellation: &CancellationToken,
    ) -> Result<Adapted<Self::Body<'a>>, RenderError>;
}

/// The draft as its provider's body.
///
/// # Errors
/// [`RenderError`].
pub fn render(draft: &Draft, policy: &ContextPolicy) -> Result<Rendered, RenderError> {
    render_until(draft, policy, &CancellationToken::default())
}

/// The draft as its provider's body, unless it is cancelled.
///
/// # Errors
/// [`RenderError`].
pub fn render_until(
    draft: &Draft,
    policy: &ContextPolicy,
    cancellation: &CancellationToken,
) -> Result<Rendered, RenderError> {
    (draft.provider.description().render)(draft, policy, cancellation)
}

/// The same with an adapter of the caller's.
///
/// # Errors
/// [`RenderError`].
pub fn render_with<A: Adapter>(
    adapter: &A,
    draft: &Draft,
    policy: &ContextPolicy,
    cancellation: &CancellationToken,
) -> Result<Rendered, RenderError> {
    let go_on = || match cancellation.is_cancelled() {
        true => Err(RenderError::Stopped),
        false => Ok(()),
    };
    let provider = adapter.provider();
    let adapted = adapter.adapt(draft, policy, cancellation);
    // What was adapted in part breaks rules that the whole keeps.
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
    Ok(Rendered {
        body: body.json,
        units,
        warnings: adapted.warnings,
    })
}
