//! The description of a provider, and the macro that generates the enumeration of providers from
//! the table.

use super::{
    Provider,
    maker::Vendor,
    media::{MediaPlace, Medium},
    names::Charset,
    render::{RenderError, RenderedBody},
};
use crate::{cancellation::CancellationToken, draft::Draft, policy::ContextPolicy};

/// Everything that the rest of the crate knows about a provider.
pub(crate) struct Description {
    /// The vendor of its format; none if no vendor owns it.
    pub vendor: Option<&'static Vendor>,
    /// Whether gateways use the format for models of any vendor.
    pub is_for_any_model: bool,
    /// How content is adapted to the provider; none if content stays unchanged.
    pub reshaping: Option<ReshapeRules>,
    /// Accepted parameters, as pairs of our name and the provider's name, in any order.
    pub parameters: &'static [(&'static str, &'static str)],
    /// Highest `temperature`.
    pub temperature_max: f64,
    /// Where reasoning may be.
    pub thoughts: ReasoningPlacement,
    /// Whether messages have the name of their author.
    pub names_authors: bool,
    /// How its body is cut into units that a prompt cache can share.
    pub cutting: UnitFields,
    /// Writes the body.
    pub render: fn(&Draft, &ContextPolicy, &CancellationToken) -> Result<RenderedBody, RenderError>,
}

/// How recorded content is adapted to what a provider accepts.
#[derive(Clone, Copy)]
pub(crate) struct ReshapeRules {
    /// Accepted tool names.
    pub tool_names: Charset,
    /// Accepted call ids.
    pub call_ids: Charset,
    /// Accepted media.
    pub takes: MediaRule,
}

/// Checks whether a provider accepts a medium at a place. The error says why it does not.
pub(crate) type MediaRule = fn(MediaPlace, &Medium<'_>) -> Result<(), &'static str>;

/// Where reasoning may be in a step's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReasoningPlacement {
    /// Nowhere.
    Nowhere,
    /// Anywhere.
    Anywhere,
    /// Before at least one item of the step.
    BeforeMore,
    /// Directly before the item that it led to; at most one piece for each item.
    BeforeItsItem,
}

/// How a body is cut into units for the comparison with the previous one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnitFields {
    /// Field of the instructions; empty if they are messages.
    pub instructions: &'static str,
    /// Field of the conversation.
    pub said: &'static str,
    /// Whether each block of a message is a unit, because consecutive messages of one role are
    /// merged. Otherwise each message is one.
    pub by_block: bool,
}

/// An unknown provider name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no provider {0:?}: use {known}", known = names())]
pub struct UnknownProvider(pub String);

fn names() -> String {
    let names = Provider::ALL.map(Provider::as_str);
    let (last, others) = names.split_last().unwrap_or((&"", &[]));
    format!("{} or {last}", others.join(", "))
}

/// Generates [`Provider`] from the table: number in the protocol, variant, folder, name, title.
macro_rules! providers {
    ($($(#[$about:meta])* $number:literal $provider:ident $folder:ident $name:literal $title:literal;)*) => {
        /// The provider of a request body.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default,
            serde::Serialize, serde::Deserialize,
        )]
        pub enum Provider {
            $(
                #[doc = concat!($title, ".")]
                #[serde(rename = $name)]
                $(#[$about])*
                $provider,
            )*
        }

        impl Provider {
            /// All providers.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$provider),*];

            /// Name on the command line.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$provider => $name,)*
                }
            }

            /// Title for people: the API of the provider.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self {
                    $(Self::$provider => $title,)*
                }
            }

            /// Number in `proto/treering/v1/context.proto`.
            #[must_use]
            pub const fn number(self) -> i32 {
                match self {
                    $(Self::$provider => $number,)*
                }
            }

            /// Returns its description.
            pub(crate) fn description(self) -> &'static table::Description {
                match self {
                    $(Self::$provider => &$folder::DESCRIPTION,)*
                }
            }
        }
    };
}
pub(super) use providers;

impl Provider {
    /// Returns the provider with this number. None if the number is unknown, for example from a
    /// newer version.
    #[must_use]
    pub fn of_number(number: i32) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|provider| provider.number() == number)
    }
}

impl std::fmt::Display for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Provider {
    type Err = UnknownProvider;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let mut all = Self::ALL.into_iter();
        all.find(|provider| provider.as_str() == name)
            .ok_or_else(|| UnknownProvider(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are used on command lines and in policies. Each name must parse back, and the error
    /// for an unknown one must list the known ones.
    #[test]
    fn provider_names_round_trip_and_unknown_ones_are_refused() {
        for provider in Provider::ALL {
            assert_eq!(provider.as_str().parse(), Ok(provider));
            assert_eq!(Provider::of_number(provider.number()), Some(provider));
            let json = serde_json::to_string(&provider).unwrap();
            assert_eq!(json, format!("{:?}", provider.as_str()));
        }
        let unknown = "claude".parse::<Provider>().unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "there is no provider \"claude\": use openai-chat, openai-responses, anthropic, \
             gemini or neutral"
        );
    }
}
