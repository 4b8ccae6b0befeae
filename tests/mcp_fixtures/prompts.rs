//! Prompts with every kind of message.

use rmcp::{
    ErrorData,
    model::{
        ClientCapabilities, ContentBlock, GetPromptRequestParams, GetPromptResponse,
        GetPromptResult, Prompt, PromptArgument, PromptMessage, ResourceContents, Role,
    },
};

use super::{
    questions::{self, ClientState},
    tools::PNG,
};

const SIMPLE: &str = "test_simple_prompt";
const ARGUMENTS: &str = "test_prompt_with_arguments";
const RESOURCE: &str = "test_prompt_with_embedded_resource";
const IMAGE: &str = "test_prompt_with_image";

/// Returns all prompts.
#[must_use]
pub fn offered() -> Vec<Prompt> {
    vec![
        prompt(SIMPLE, &[]),
        prompt(ARGUMENTS, &["arg1", "arg2"]),
        prompt(RESOURCE, &["resourceUri"]),
        prompt(IMAGE, &[]),
        prompt(questions::PROMPT, &[]),
    ]
}

fn prompt(name: &str, arguments: &[&str]) -> Prompt {
    let argument = |name: &&str| PromptArgument::new(*name).with_required(true);
    let arguments: Vec<_> = arguments.iter().map(argument).collect();
    Prompt::new(name, Some("A prompt for the suite"), Some(arguments))
}

/// Returns a prompt.
///
/// # Errors
/// If there is no such prompt, or an argument is missing.
pub fn get(
    request: GetPromptRequestParams,
    client: ClientCapabilities,
) -> Result<GetPromptResponse, ErrorData> {
    let arguments = request.arguments.unwrap_or_default();
    let given = |name: &str| {
        let value = arguments.get(name).and_then(|value| value.as_str());
        value.ok_or_else(|| ErrorData::invalid_params(format!("`{name}` lacks"), None))
    };
    let content = match request.name.as_str() {
        SIMPLE => vec![ContentBlock::text("A prompt.")],
        ARGUMENTS => vec![ContentBlock::text(format!(
            "A prompt about {} and {}.",
            given("arg1")?,
            given("arg2")?
        ))],
        RESOURCE => vec![
            ContentBlock::resource(ResourceContents::text("A text.", given("resourceUri")?)),
            ContentBlock::text("Look at that."),
        ],
        IMAGE => vec![
            ContentBlock::image(PNG, "image/png"),
            ContentBlock::text("Look at that."),
        ],
        questions::PROMPT => {
            let said = ClientState {
                answers: request.input_responses,
                state: request.request_state,
                client,
            };
            if let Some(asked) = questions::next(questions::PROMPT, &said)? {
                return Ok(asked.into());
            }
            vec![ContentBlock::text("Thank you.")]
        }
        _ => return Err(ErrorData::invalid_params("there is no such prompt", None)),
    };
    let messages = content
        .into_iter()
        .map(|content| PromptMessage::new(Role::User, content));
    Ok(GetPromptResult::new(messages.collect()).into())
}
