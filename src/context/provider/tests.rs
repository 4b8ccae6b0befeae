//! Tests that hold for all adapters and any draft.

use proptest::prelude::*;

use super::samples::*;
use super::*;
use crate::{
    draft::{Content, Draft, Fate, Item},
    policy::{ContextPolicy, UnsupportedMedia},
};

fn policy() -> ContextPolicy {
    ContextPolicy::default()
}

fn is_legal(draft: &Draft) -> Result<(), TestCaseError> {
    let rendered = render(draft, &policy());
    let rendered = rendered.map_err(|error| TestCaseError::fail(error.to_string()))?;
    let again = render(draft, &policy()).map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert_eq!(&rendered, &again);
    let kept: Vec<_> = draft
        .items
        .iter()
        .map(|item| item.fate != Fate::Dropped)
        .collect();
    for unit in &rendered.units {
        prop_assert!(unit.items.iter().all(|item| kept[*item]));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A history can have any content that the engine accepts. The request must always be valid for
    /// OpenAI Chat, and deterministic.
    #[test]
    fn any_draft_gives_a_legal_openai_chat_body(draft in any_draft(Provider::OpenAiChat)) {
        is_legal(&draft)?;
    }

    /// The same for OpenAI Responses.
    #[test]
    fn any_draft_gives_a_legal_openai_responses_body(draft in any_draft(Provider::OpenAiResponses)) {
        is_legal(&draft)?;
    }

    /// The same for Anthropic.
    #[test]
    fn any_draft_gives_a_legal_anthropic_body(draft in any_draft(Provider::Anthropic)) {
        is_legal(&draft)?;
    }

    /// The same for Gemini.
    #[test]
    fn any_draft_gives_a_legal_gemini_body(draft in any_draft(Provider::Gemini)) {
        is_legal(&draft)?;
    }

    /// The same for Treering's own format.
    #[test]
    fn any_draft_gives_a_legal_neutral_body(draft in any_draft(Provider::Neutral)) {
        is_legal(&draft)?;
    }

    /// A prompt cache serves unchanged content, so items added at the end must not change the units
    /// of earlier items. One exception: if Gemini's last content is the model's, the model's next
    /// text is merged into it.
    #[test]
    fn appended_items_do_not_change_earlier_units(
        draft in proptest::sample::select(Provider::ALL.to_vec()).prop_flat_map(any_draft),
        cut in 0_usize..12,
    ) {
        let mut draft = draft;
        let is_instruction = |item: &Item| matches!(*item.content, Content::Instruction(_));
        // Instructions are one unit, so they must come first.
        draft.items.sort_by_key(|item| !is_instruction(item));
        let first = draft.items.iter().take_while(|item| is_instruction(item)).count();
        let mut shorter = draft.clone();
        shorter.items.truncate(cut.max(first));
        let whole = render(&draft, &policy()).unwrap();
        let part = render(&shorter, &policy()).unwrap();
        // Only an empty request has a placeholder.
        let is_said = |unit: &&CacheUnit| unit.items.iter().any(|item| *item >= first);
        if part.units.iter().any(|unit| is_said(&unit)) {
            let ends_with_model = part.body.ends_with(b"]}]}")
                && draft.provider == Provider::Gemini
                && part.warnings.iter().any(|warning| warning.contains("ends with the model"));
            let stable = part.units.len() - usize::from(ends_with_model);
            prop_assert!(whole.units.len() >= stable);
            for (before, after) in part.units[..stable].iter().zip(&whole.units) {
                prop_assert_eq!(before, after);
            }
        }
    }
}

/// Users and providers read the bodies, so a change of a format must be reviewed.
#[test]
fn bodies_of_all_providers_match_the_snapshots() {
    for provider in Provider::ALL {
        let rendered = render(&rich(provider), &policy()).unwrap();
        let body: serde_json::Value = serde_json::from_slice(&rendered.body).unwrap();
        insta::with_settings!({ sort_maps => false }, {
            insta::assert_json_snapshot!(format!("{provider}"), serde_json::json!({
                "body": body,
                "units": rendered.units.iter().map(|unit| &unit.items).collect::<Vec<_>>(),
                "warnings": rendered.warnings,
            }));
        });
    }
}

/// If the policy refuses unsupported media, the request must fail with the medium's name.
#[test]
fn policy_can_refuse_unsupported_media() {
    let audio = treering_domain::ContentPart::Audio(treering_domain::Media {
        media_type: "audio/wav".into(),
        source: treering_domain::MediaSource::Data(bytes::Bytes::from_static(b"RIFF")),
        ..Default::default()
    });
    let message = crate::draft::Message {
        speaker: crate::draft::Speaker::User,
        parts: vec![audio].into(),
        author: String::new(),
        is_told: false,
    };
    let draft = draft(Provider::Anthropic, vec![Content::Message(message)]);
    let refuse = ContextPolicy {
        unsupported_media: UnsupportedMedia::Refuse,
        ..policy()
    };
    let error = render(&draft, &refuse).unwrap_err();
    assert!(matches!(error, RenderError::Unsupported { ref medium, .. } if medium == "audio/wav"));
    let rendered = render(&draft, &policy()).unwrap();
    assert_eq!(
        rendered.warnings,
        ["audio/wav was left out: audio is not accepted"]
    );
    let text = String::from_utf8(rendered.body).unwrap();
    assert!(
        text.contains("[audio/wav was left out: audio is not accepted]"),
        "{text}"
    );
}

/// Strict tools lost their flag, so the model could ignore the schema. OpenAI's formats must have
/// it, and the others must not.
#[test]
fn strict_tools_are_marked_strict_for_openai() {
    for (provider, strict, expected) in [
        (Provider::OpenAiChat, Some(true), Some("\"strict\":true")),
        (Provider::OpenAiChat, None, None),
        (
            Provider::OpenAiResponses,
            Some(true),
            Some("\"strict\":true"),
        ),
        (Provider::OpenAiResponses, None, Some("\"strict\":false")),
        (Provider::Neutral, Some(false), Some("\"strict\":false")),
        (Provider::Anthropic, Some(true), None),
        (Provider::Gemini, Some(true), None),
    ] {
        let mut draft = draft(provider, Vec::new());
        let one = tool("look", r#"{"type": "object"}"#);
        draft.tools = vec![treering_domain::ToolDefinition { strict, ..one }];
        let rendered = render(&draft, &policy()).unwrap();
        let body = String::from_utf8(rendered.body).unwrap();
        match expected {
            Some(text) => assert!(body.contains(text), "{provider}: {body}"),
            None => assert!(!body.contains("strict"), "{provider}: {body}"),
        }
    }
}
