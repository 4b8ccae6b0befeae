//! The maker of a piece of reasoning. Reasoning may be sent only to the same provider and the same
//! model family.
//!
//! A **family** is a model's name without the parts that identify a host or a release. These are a
//! path in front (`openai/`), a tag at the end (`:beta`, `@20250101`), a date (`-20250929`,
//! `-2025-08-07`), a three-digit build (`-001`), and `-latest`, `-preview` or `-exp` with the text
//! after it. The generation stays: `claude-sonnet-4` and `claude-sonnet-4-5` are two families.

use super::{super::draft::Maker, Provider, VENDORS};
use treering_domain::Reasoning;

/// A vendor of models. It accepts the reasoning of its own models.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Vendor {
    /// Name for people.
    pub name: &'static str,
    /// The body format of its models if no provider is named.
    pub provider: Provider,
    /// Prefixes of its model [families](family).
    pub models: &'static [&'static str],
    /// Words by which a recording names the vendor or a service that hosts its models.
    pub words: &'static [&'static str],
}

/// Other vendors, which have no body format of their own here, with prefixes of their model
/// families.
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
    /// Returns the vendor of a body format, if it has one.
    #[must_use]
    pub fn of(provider: Provider) -> Option<&'static Self> {
        provider.description().vendor
    }

    /// Returns the name of the model's vendor if it is not the vendor of this provider. None if it
    /// is, or if the vendor is unknown.
    #[must_use]
    pub(crate) fn of_stranger(provider: Provider, model: &str) -> Option<&'static str> {
        let own = Self::of(provider)?;
        let family = family(model);
        let makes =
            |(_, models): &&(_, &[&str])| models.iter().any(|start| family.starts_with(start));
        match Self::named("", model) {
            Some(maker) => (maker != own).then_some(maker.name),
            // Other vendors use this format for their own models.
            None if provider == Provider::OpenAiChat => None,
            None => OTHERS.iter().find(makes).map(|(name, _)| *name),
        }
    }

    /// Returns the vendor by the names in a recording. The model's name takes precedence over the
    /// provider's, because many providers host models of other vendors.
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

/// Returns the body format for a model, by its name; Treering's own format if the name is unknown.
#[must_use]
pub fn provider_of(model: &str) -> Provider {
    Vendor::named("", model).map_or(Provider::Neutral, |vendor| vendor.provider)
}

/// Why reasoning is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OmissionReason {
    /// The maker is unknown.
    UnknownMaker,
    /// Another provider made it.
    OtherProvider,
    /// Another model family made it, or the request names no model.
    OtherFamily,
    /// It has no signature.
    Unsigned,
}

impl OmissionReason {
    /// Returns text for people.
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

/// Checks whether reasoning may be sent to a model of this vendor.
///
/// # Errors
/// The reason why it may not.
pub(crate) fn goes_back(
    reasoning: &Reasoning,
    step: &Maker,
    vendor: &Vendor,
    model: &str,
) -> Result<(), OmissionReason> {
    let or = |own: &'_ str, of_step: &'_ str| -> String {
        let name = if own.is_empty() { of_step } else { own };
        name.to_owned()
    };
    let maker_model = or(&reasoning.model, &step.model);
    let maker = Vendor::named(&or(&reasoning.provider, &step.provider), &maker_model)
        .ok_or(OmissionReason::UnknownMaker)?;
    if maker != vendor {
        return Err(OmissionReason::OtherProvider);
    }
    if maker_model.is_empty() {
        return Err(OmissionReason::UnknownMaker);
    }
    if model.is_empty() || family(model) != family(&maker_model) {
        return Err(OmissionReason::OtherFamily);
    }
    if reasoning.signature.is_empty() {
        return Err(OmissionReason::Unsigned);
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

/// Returns the name without a final date, three-digit build or `v1`. None if it has none of these.
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

    /// Releases of one model share reasoning, but different models do not. The family has no dates
    /// and stages, but has generations and sizes.
    #[test]
    fn model_family_drops_dates_and_stages() {
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

    /// Other providers and models refuse a signature, so only an exact match may pass.
    #[test]
    fn reasoning_is_sent_only_to_its_own_model_family() {
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
        assert_eq!(
            check(&by_step, ("", ""), "x"),
            Err(OmissionReason::UnknownMaker)
        );
        let unknown_model = check(&by_step, ("anthropic", ""), "claude-sonnet-4-5");
        assert_eq!(unknown_model, Err(OmissionReason::UnknownMaker));
        assert_eq!(
            check(&own, ("", ""), "claude-opus-4"),
            Err(OmissionReason::OtherFamily)
        );
        assert_eq!(check(&own, ("", ""), ""), Err(OmissionReason::OtherFamily));
        let other = signed("openai", "gpt-5");
        assert_eq!(
            check(&other, ("", ""), "gpt-5"),
            Err(OmissionReason::OtherProvider)
        );
        let unsigned = Reasoning {
            signature: "".into(),
            ..own
        };
        let unsigned = check(&unsigned, ("", ""), "claude-sonnet-4-5");
        assert_eq!(unsigned, Err(OmissionReason::Unsigned));
    }
}
