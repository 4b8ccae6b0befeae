//! The id by which a client names its conversation.

use serde_json::Value;
use treering_import::model_call::CallFormat;

/// Maximum length of an id, in bytes.
const ID_BYTES_MAX: usize = 256;

/// The fields of OpenAI's `metadata` that name a conversation.
const METADATA: [&str; 4] = ["conversation", "conversation_id", "session_id", "thread_id"];

/// Returns the id in a request; `None` if it has none.
pub(crate) fn of_request(format: CallFormat, request: &Value) -> Option<String> {
    let id = match format {
        CallFormat::Messages => of_user_id(request["metadata"]["user_id"].as_str()?),
        CallFormat::ChatCompletions | CallFormat::Responses => {
            let mut metadata = METADATA.iter();
            let metadata = metadata.find_map(|name| request["metadata"][*name].as_str());
            let conversation = &request["conversation"];
            let conversation = conversation.as_str().or(conversation["id"].as_str());
            let id = metadata.or(conversation);
            id.or(request["prompt_cache_key"].as_str())
                .map(str::to_owned)
        }
    };
    id.map(|id| id.trim().to_owned()).filter(|id| is_id(id))
}

/// Returns true for a text that can be an id.
pub(crate) fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= ID_BYTES_MAX && !id.chars().any(char::is_control)
}

/// Returns the session id in Anthropic's `user_id`. Some clients put a person's id there instead.
fn of_user_id(user_id: &str) -> Option<String> {
    if let Ok(fields) = serde_json::from_str::<Value>(user_id) {
        return fields["session_id"].as_str().map(str::to_owned);
    }
    let (_, session) = user_id.rsplit_once("_session_")?;
    Some(session.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    // Each client puts its session id in a different place. A person's id is not a session id: all
    // conversations of that person would become one.
    #[test]
    fn session_is_found_where_clients_put_it() {
        let messages = |user: &str| {
            let request = json!({"metadata": {"user_id": user}});
            of_request(CallFormat::Messages, &request)
        };
        assert_eq!(
            messages("user_0f_account__session_7b-1").as_deref(),
            Some("7b-1")
        );
        let newer = json!({"device_id": "d", "session_id": "7b-2"}).to_string();
        assert_eq!(messages(&newer).as_deref(), Some("7b-2"));
        assert_eq!(messages("customer-17"), None);
        let openai = |request: Value| of_request(CallFormat::Responses, &request);
        let both = json!({"metadata": {"session_id": "s"}, "prompt_cache_key": "k"});
        assert_eq!(openai(both).as_deref(), Some("s"));
        assert_eq!(
            openai(json!({"prompt_cache_key": "k"})).as_deref(),
            Some("k")
        );
        assert_eq!(
            openai(json!({"conversation": {"id": "c"}})).as_deref(),
            Some("c")
        );
        assert_eq!(openai(json!({"prompt_cache_key": "  "})), None);
    }
}
