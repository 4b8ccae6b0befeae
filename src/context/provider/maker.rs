//! Who made a piece of reasoning, and whether it may go back: only to its own
//! provider and to the same family of models.
//!
//! A **family** is a model's name without what only dates or stages a release:
//! a path before it (`openai/`), a tag after it (`:beta`, `@20250101`), a date
//! (`-20250929`, `-2025-08-07`), a three-digit build (`-001`), `-latest`,
//! `-preview` and `-exp` with what follows. Numbers of a generation stay:
//! `claude-sonnet-4` and `claude-sonnet-4-5` are two families.

use super::{super::draft::Maker, Provider, VENDORS};
use treering_domain::Reasoning;

/// Who makes models, and takes their reasoning back.
#[derive(Debug, PartialEq, Eq)]
pub struct Vendor {
    /// What people call it.
    pub name: &'static str,
    /// Whose body its models are sent when nobody names one.
    pub provider: Provider,
    /// How the [families](family) of its models begin.
    pub models: &'static [&'static str],
    /// Words of the names that recordings give to it, and to who serves its models.
    pub words: &'static [&'static str],
    /// What came from its cache is reported beside the other tokens, not as a part of them.
    pub reports_cache_apart: bool,
}

/// Who else makes models, for which there is no body of their own here, with how their
/// families begin.
const OTHERS: [(&str, &[&str]); 2] = [
    (
        "Mistral",
        &[
            "mistral",
            "open-mistral",
            "mixtral",
            "open-mixtral",
            "ministral",
            "magistral",
            "codestral",
            "devstral",
            "pixtral",
        ],
    ),
    ("Cohere", &["command-", "c4ai-"]),
];

impl Vendor {
    /// The vendor of a body, if its shape has one.
    #[must_use]
    pub fn of(provider: Provider) -> Option<&'static Self> {
        provider.description().vendor
    }

    /// The name of who else makes a model that a body of this provider names; none: nobody
    /// else, or it is not known.
    #[must_use]
    pub fn of_stranger(provider: Provider, model: &str) -> Option<&'static str> {
        let own = Self::of(provider)?;
        let family = family(model);
        let makes =
            |(_, models): &&(_, &[&str])| models.iter().any(|start| family.starts_with(start));
        match Self::named("", model) {
            Some(maker) => (maker != own).then_some(maker.name),
            // They take this shape for their own models.
            None if provider == Provider::OpenAiChat => None,
            None => OTHERS.iter().find(makes).map(|(name, _)| *name),
        }
    }

    /// By the names that a recording gives. The model's name says more than the
    /// provider's: many serve models of others.
    #[must_use]
    pub fn named(provider: &str, model: &str) -> Option<&'static Self> {
        let family = family(model);
        let provider = provider.to_ascii_lowercase();
        let makes = |vendor: &&Self| vendor.models.iter().any(|start| family.starts_with(start));
        let is_named = |vendor: &&Self| vendor.words.iter().any(|word| provider.contains(word));
        let by_model = VENDORS.into_iter().find(makes);
        by_model.or_else(|| VENDORS.into_iter().find(is_named))
    }
}

/// Whose body a model is sent, by its name; Treering's own shape when that says nothing.
#[must_use]
pub fn provider_of(model: &str) -> Provider {
    Vendor::named("", model).map_or(Provider::Neutral, |vendor| vendor.provider)
}

/// Why a piece of reasoning does not go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaysOut {
    /// Nobody knows who made it.
    UnknownMaker,
    /// Another provider made it.
    OtherProvider,
    /// Another family of models made it, or the request names no model.
    OtherFamily,
    /// It has no signature.
    Unsigned,
}

impl StaysOut {
    /// For people.
    #[must_use]
    pub fn why(self) -> &'static str {
        match self {
            Self::UnknownMaker => "it is not known which provider and model made it",
            Self::OtherProvider => "another provider made it",
            Self::OtherFamily => "another family of models made it",
            Self::Unsigned => "it has no signature of its provider",
        }
    }
}

/// Whether reasoning may go back to a model of this vendor.
///
/// # Errors
/// Why not.
pub fn goes_back(
    reasoning: &Reasoning,
    step: &Maker,
    vendor: &Vendor,
    model: &str,
) -> Result<(), StaysOut> {
    let or = |own: &'_ str, of_step: &'_ str| -> String {
        let name = if own.is_empty() { of_step } else { own };
        name.to_owned()
    };
    let maker_model = or(&reasoning.model, &step.model);
    let maker = Vendor::named(&or(&reasoning.provider, &step.provider), &maker_model)
        .ok_or(StaysOut::UnknownMaker)?;
    if maker != vendor {
        return Err(StaysOut::OtherProvider);
    }
    if maker_model.is_empty() {
        return Err(StaysOut::UnknownMaker);
    }
    if model.is_empty() || family(model) != family(&maker_model) {
        return Err(StaysOut::OtherFamily);
    }
    if reasoning.signature.is_empty() {
        return Err(StaysOut::Unsigned);
    }
    Ok(())
}

/// The family of a model, in lower case.
#[must_use]
pub fn family(model: &str) -> String {
    let name = model.rsplit('/').next().unwrap_or(model);
    let name = name.split([':', '@']).next().unwrap_or(name);
    let mut name = name.to_ascii_lowercase();
    // Bedrock: `us.anthropic.claude-…-v1`.
    if let Some((_, after)) = name.rsplit_once("anthropic.") {
        name = after.to_owned();
    }
    loop {
        let shorter = without_stage(&name).or_else(|| without_last_stamp(&name));
        match shorter {
            Some(shorter) if !shorter.is_empty() => name = shorter.to_owned(),
            _ => return name,
        }
    }
}

fn without_stage(name: &str) -> Option<&str> {
    const STAGES: [&str; 4] = ["-latest", "-preview", "-exp", "-experimental"];
    STAGES.iter().find_map(|stage| {
        let at = name.find(stage)?;
        let after = &name[at + stage.len()..];
        (after.is_empty() || after.starts_with('-')).then(|| &name[..at])
    })
}

/// Without a date, a three-digit build or a `v1` at the end.
fn without_last_stamp(name: &str) -> Option<&str> {
    let (before, last) = name.rsplit_once('-')?;
    let digits = |text: &str, count: usize| {
        text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    if digits(last, 8) || digits(last, 3) {
        return Some(before);
    }
    if last
        .strip_prefix('v')
        .is_some_and(|version| digits(version, 1))
    {
        return Some(before);
    }
    let (before, month) = before.rsplit_once('-')?;
    let (before, year) = before.rsplit_once('-')?;
    (digits(last, 2) && digits(month, 2) && digits(year, 4)).then_some(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Releases of one model share reasoning, other models do not: the family
    /// must drop dates and stages, and keep generations and sizes.
    #[test]
    fn families() {
        let cases = [
            ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
            ("anthropic/claude-sonnet-4", "claude-sonnet-4"),
            ("us.anthropic.claude-opus-4-20250514-v1:0", "claude-opus-4"),
            ("claude-3-5-sonnet@20240620", "claude-3-5-sonnet"),
            ("claude-3-7-sonnet-latest", "claude-3-7-sonnet"),
            ("gpt-5-2025-08-07", "gpt-5"),
            ("gpt-5-mini", "gpt-5-mini"),
            ("openai/o3", "o3"),
            ("gemini-2.5-pro-preview-06-05", "gemini-2.5-pro"),
            ("models/gemini-2.0-flash-001", "gemini-2.0-flash"),
            ("gemini-2.0-flash-exp", "gemini-2.0-flash"),
            ("", ""),
        ];
        for (model, expected) in cases {
            assert_eq!(family(model), expected, "{model}");
        }
    }

    /// A signature shown to another provider or model is refused by it: only an
    /// exact match may pass.
    #[test]
    fn reasoning_goes_back_to_its_own_family_only() {
        let signed = |provider: &str, model: &str| Reasoning {
            signature: "sig".into(),
            provider: provider.into(),
            model: model.into(),
            ..Reasoning::default()
        };
        let anthropic = Vendor::of(Provider::Anthropic).unwrap();
        let check = |reasoning: &Reasoning, step: (&str, &str), model: &str| {
            let maker = Maker {
                provider: step.0.into(),
                model: step.1.into(),
            };
            goes_back(reasoning, &maker, anthropic, model)
        };
        let own = signed("anthropic", "claude-sonnet-4-5-20250929");
        assert_eq!(check(&own, ("", ""), "claude-sonnet-4-5"), Ok(()));
        let by_step = signed("", "");
        let sonnet = ("anthropic", "claude-sonnet-4-5");
        assert_eq!(check(&by_step, sonnet, "claude-sonnet-4-5"), Ok(()));
        assert_eq!(check(&by_step, ("", ""), "x"), Err(StaysOut::UnknownMaker));
        let unknown_model = check(&by_step, ("anthropic", ""), "claude-sonnet-4-5");
        assert_eq!(unknown_model, Err(StaysOut::UnknownMaker));
        assert_eq!(
            check(&own, ("", ""), "claude-opus-4"),
            Err(StaysOut::OtherFamily)
        );
        assert_eq!(check(&own, ("", ""), ""), Err(StaysOut::OtherFamily));
        let other = signed("openai", "gpt-5");
        assert_eq!(
            check(&other, ("", ""), "gpt-5"),
            Err(StaysOut::OtherProvider)
        );
        let unsigned = Reasoning {
            signature: "".into(),
            ..own
        };
        let unsigned = check(&unsigned, ("", ""), "claude-sonnet-4-5");
        assert_eq!(unsigned, Err(StaysOut::Unsigned));
    }
}
