//! Renders a draft as a provider's request body.
//!
//! **One description for each provider.** The table below has a line for each: its number in the
//! protocol, its name and its folder. The folder has its typed body, its writer and its
//! `DESCRIPTION`, which is all that the rest of the crate knows about a provider. Nothing else
//! distinguishes providers by name.
//!
//! [`render`] writes the body and splits it into the units that a prompt cache can share. The crate
//! `treering-provider-check` checks bodies in tests.

pub mod anthropic;
pub mod gemini;
pub mod neutral;
pub mod openai_chat;
pub mod openai_responses;

table::providers! {
    1 OpenAiChat openai_chat "openai-chat" "OpenAI Chat Completions";
    2 OpenAiResponses openai_responses "openai-responses" "OpenAI Responses";
    3 Anthropic anthropic "anthropic" "Anthropic Messages";
    4 Gemini gemini "gemini" "Google Gemini generateContent";
    #[default]
    5 Neutral neutral "neutral" "Treering's own shape: everything, nothing reshaped";
}

/// Model vendors, in the order in which the names in a recording are tried. Vendors that also host
/// models of others come last.
static VENDORS: [&maker::Vendor; 3] = [
    &anthropic::VENDOR,
    &openai_responses::VENDOR,
    &gemini::VENDOR,
];

#[cfg(test)]
mod item_tests;
pub mod json;
pub mod maker;
pub mod media;
mod names;
mod outline;
mod parameters;
mod reader;
mod render;
#[cfg(test)]
mod rule_tests;
#[cfg(test)]
pub(crate) mod samples;
mod sent;
mod table;
#[cfg(test)]
mod tests;
mod units;

pub(crate) use self::{
    media::MediaPlace,
    sent::{SentPart, sent, sent_thoughts},
};
pub use self::{
    render::{
        AdaptedBody, Adapter, CacheUnit, RenderError, RenderedBody, render, render_until,
        render_with,
    },
    table::UnknownProvider,
};
