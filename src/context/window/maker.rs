//! The maker of an assistant message.

use crate::draft::Maker;
use treering_domain::{ContentPart, MessageAppended};

/// Returns the provider and model of a message: from its raw form, else its usage, else its
/// reasoning.
pub(super) fn of(message: &MessageAppended) -> Maker {
    let mut maker = Maker::default();
    if let Some(raw) = &message.raw {
        fill(&mut maker, &raw.provider, &raw.model);
    }
    if let Some(usage) = &message.usage {
        fill(&mut maker, "", &usage.model);
    }
    for part in &message.parts {
        if let ContentPart::Reasoning(reasoning) = part {
            fill(&mut maker, &reasoning.provider, &reasoning.model);
        }
    }
    maker
}

/// Sets fields that are still unknown.
pub(super) fn fill(maker: &mut Maker, provider: &str, model: &str) {
    if maker.provider.is_empty() {
        provider.clone_into(&mut maker.provider);
    }
    if maker.model.is_empty() {
        model.clone_into(&mut maker.model);
    }
}
