//! What is asked about a provider, and the enumeration that is made of the table of them.

use super::{
    Provider,
    maker::Vendor,
    media::{MediaPlace, Medium},
    names::Charset,
    render::{RenderError, Rendered},
};
use crate::{cancellation::CancellationToken, draft::Draft, policy::ContextPolicy};

/// All that the rest of the crate asks about a provider.
pub(crate) struct Description {
    /// Whose own models it serves; none: it has none.
    pub vendor: Option<&'static Vendor>,
    /// Gateways take the shape for models of any vendor.
    pub is_for_any_model: bool,
    /// What is reshaped until it is taken; none: nothing.
    pub reshaping: Option<Reshaping>,
    /// Parameters that it knows: our name and its own, in any order.
    pub parameters: &'static [(&'static str, &'static str)],
    /// Highest `temperature`.
    pub temperature_max: f64,
    /// Where reasoning stands.
    pub thoughts: Thoughts,
    /// A message says who wrote it.
    pub names_authors: bool,
    /// The pieces of its body that a prompt cache can share.
    pub cutting: Cutting,
    /// Writes the body.
    pub render: fn(&Draft, &ContextPolicy, &CancellationToken) -> Result<Rendered, RenderError>,
}

/// How what was recorded becomes what a provider takes.
#[derive(Clone, Copy)]
pub(crate) struct Reshaping {
    /// Characters of tools' names.
    pub tool_names: Charset,
    /// Characters of calls' ids.
    pub call_ids: Charset,
    /// Media that are taken.
    pub takes: Takes,
}

/// Whether a provider takes a medium at a place, or why not.
pub(crate) type Takes = fn(MediaPlace, &Medium<'_>) -> Result<(), &'static str>;

/// Where in a step's message its reasoning stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thoughts {
    /// There is no place for it.
    Nowhere,
    /// Anywhere.
    Anywhere,
    /// Before something that it led to.
    BeforeMore,
    /// Directly before the item that it led to: one piece of reasoning each.
    BeforeItsItem,
}

/// What a body is cut into, for comparing it with the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cutting {
    /// Field of the instructions; empty: they are messages.
    pub instructions: &'static str,
    /// Field of what was said.
    pub said: &'static str,
    /// Each block of a message is a piece, because what the same role says next goes into
    /// its last message; otherwise each message is one.
    pub by_block: bool,
}

/// A name that no provider has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no provider {0:?}: use {known}", known = names())]
pub struct UnknownProvider(pub String);

fn names() -> String {
    let names = Provider::ALL.map(Provider::as_str);
    let (last, others) = names.split_last().unwrap_or((&"", &[]));
    format!("{} or {last}", others.join(", "))
}

/// Makes [`Provider`] of the table: number on the wire, variant, folder, name, title.
macro_rules! providers {
    ($($(#[$about:meta])* $number:literal $provider:ident $folder:ident $name:literal $title:literal;)*) => {
        /// Whose request body.
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
            /// All of them.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$provider),*];

            /// The name on the command line.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$provider => $name,)*
                }
            }

            /// For people: what of the provider's it is.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self {
                    $(Self::$provider => $title,)*
                }
            }

            /// Its number in `proto/treering/v1/context.proto`.
            #[must_use]
            pub const fn number(self) -> i32 {
                match self {
                    $(Self::$provider => $number,)*
                }
            }

            /// All that is asked about it.
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
    /// The provider with this number; none when a newer version has it.
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

    /// A name is typed on command lines and written into policies; it must be read as it is
    /// told, and a mistyped one must be answered with those that there are.
    #[test]
    fn names_are_read_as_they_are_told() {
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
