//! Reads messages leniently: repairs text that is almost JSON, and answers what cannot be read,
//! because a client without an answer waits until its timeout.

use std::borrow::Cow;

use rmcp::{
    RoleServer,
    model::{ErrorCode, ErrorData},
    service::RxJsonRpcMessage,
};
use serde_json::{Value, json};

use super::{bounds::MESSAGE_BYTES_MAX, quote::one_line};

/// Longest message id that is repeated in an answer, in bytes.
const ID_BYTES_MAX: usize = 128;
/// Maximum length of the description of an error in a message, in characters.
const WRONG_CHARS: usize = 200;

/// The result of reading.
#[derive(Debug)]
pub(crate) enum IncomingMessage {
    /// A message.
    Message(Box<RxJsonRpcMessage<RoleServer>>),
    /// Nothing that requires an answer.
    Nothing,
    /// Unreadable; this is the answer, as JSON text.
    Unread(String),
}

/// Reads a message.
#[must_use]
pub(crate) fn read(bytes: &[u8]) -> IncomingMessage {
    let bytes = repair_json(bytes);
    match serde_json::from_slice::<RxJsonRpcMessage<RoleServer>>(&bytes) {
        // A request with an id of an invalid type is parsed as a notification.
        Ok(RxJsonRpcMessage::<RoleServer>::Notification(_)) if has_id(&bytes) => {
            let what = "the id of a request must be a string or an integer";
            IncomingMessage::Unread(answer(Value::Null, ErrorCode::INVALID_REQUEST, what))
        }
        Ok(message) => IncomingMessage::Message(Box::new(message)),
        Err(error) => match serde_json::from_slice::<Value>(&bytes) {
            Ok(value) if is_notification(&value) => IncomingMessage::Nothing,
            Ok(value) => IncomingMessage::Unread(answer(
                id_of(&value),
                ErrorCode::INVALID_REQUEST,
                &format!("not a request: {error}"),
            )),
            Err(error) => IncomingMessage::Unread(unread(&bytes, &error)),
        },
    }
}

/// Returns the answer to text that is not JSON; `None` if it is JSON.
#[must_use]
pub(crate) fn refusal(bytes: &[u8]) -> Option<String> {
    let error = serde_json::from_slice::<Value>(bytes).err()?;
    Some(unread(bytes, &error))
}

fn unread(bytes: &[u8], error: &serde_json::Error) -> String {
    let what = format!("not JSON, or nested too deep: {error}");
    answer(early_id(bytes), ErrorCode::PARSE_ERROR, &what)
}

/// Returns the answer to a message over the length limit.
#[must_use]
pub(crate) fn too_long() -> String {
    let what = format!("the message has more than {MESSAGE_BYTES_MAX} bytes");
    answer(Value::Null, ErrorCode::INVALID_REQUEST, &what)
}

fn answer(id: Value, code: ErrorCode, what: &str) -> String {
    let what: String = one_line(what).chars().take(WRONG_CHARS).collect();
    let error = ErrorData::new(code, what, None);
    json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string()
}

fn is_notification(value: &Value) -> bool {
    value.get("id").is_none() && value.get("method").is_some_and(Value::is_string)
}

fn has_id(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Value>(bytes).is_ok_and(|value| value.get("id").is_some())
}

fn id_of(value: &Value) -> Value {
    match value.get("id") {
        Some(Value::String(id)) if id.len() > ID_BYTES_MAX => Value::Null,
        Some(id @ (Value::String(_) | Value::Number(_))) => id.clone(),
        _ => Value::Null,
    }
}

/// Repairs JSON written by JavaScript: replaces unpaired surrogates, which it writes when a text
/// was cut inside a surrogate pair, and removes a byte order mark.
#[must_use]
pub(crate) fn repair_json(bytes: &[u8]) -> Cow<'_, [u8]> {
    const BYTE_ORDER: &[u8] = b"\xef\xbb\xbf";
    let bytes = bytes.strip_prefix(BYTE_ORDER).unwrap_or(bytes);
    let mut mended = Cow::Borrowed(bytes);
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            at += 1;
            continue;
        }
        at += match (unit(bytes, at), unit(bytes, at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                mended.to_mut()[at..at + 6].copy_from_slice(b"\\ufffd");
                6
            }
            _ => 2,
        };
    }
    mended
}

/// Returns the code unit of a `\u` escape at this position.
fn unit(bytes: &[u8], at: usize) -> Option<u32> {
    let escape = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    let digits = std::str::from_utf8(escape).ok()?;
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u32::from_str_radix(digits, 16).ok())?
}

/// Returns the id of a request that cannot be parsed completely, from the outermost object.
fn early_id(bytes: &[u8]) -> Value {
    let (mut depth, mut at) = (0_u32, 0);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'{' | b'[' => depth = depth.saturating_add(1),
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let end = string_end(bytes, at);
                let is_id = depth == 1 && bytes.get(at..end) == Some(&b"\"id\""[..]);
                match is_id.then(|| value_behind(bytes, end)).flatten() {
                    Some(id) => return id,
                    None => at = end,
                }
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    Value::Null
}

/// Returns the position after the closing quote.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns a string or number after a colon.
fn value_behind(bytes: &[u8], at: usize) -> Option<Value> {
    let rest = bytes.get(at..)?.trim_ascii_start();
    let rest = rest.strip_prefix(b":")?.trim_ascii_start();
    let end = match rest.first()? {
        b'"' => string_end(rest, 0),
        _ => rest
            .iter()
            .position(|byte| !byte.is_ascii_digit() && *byte != b'-')
            .unwrap_or(rest.len()),
    };
    let value: Value = serde_json::from_slice(&rest[..end]).ok()?;
    let id = id_of(&json!({"id": value}));
    (!id.is_null()).then_some(id)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(text: &str) -> Value {
        match read(text.as_bytes()) {
            IncomingMessage::Unread(answer) => serde_json::from_str(&answer).unwrap(),
            other => panic!("{text}: {other:?}"),
        }
    }

    // A text that JavaScript cut inside an emoji has half a surrogate pair, which is not valid
    // JSON: the request got no answer, and its agent waited for a minute.
    #[test]
    fn lone_surrogates_are_replaced() {
        for (text, expected) in [
            (r#""a \ud83d b""#, "a \u{fffd} b"),
            (r#""\ude00""#, "\u{fffd}"),
            (r#""\ud83d\ud83d\ude00""#, "\u{fffd}😀"),
            (r#""\uD83D\uDE00""#, "😀"),
            (r#""\\ud83d""#, "\\ud83d"),
            (r#""\\\ud83d""#, "\\\u{fffd}"),
            ("\u{feff}\"x\"", "x"),
        ] {
            let mended = repair_json(text.as_bytes());
            let read: String = serde_json::from_slice(&mended).unwrap();
            assert_eq!(read, expected, "{text}");
        }
        let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"\ud83d"}}"#;
        assert!(matches!(read(ping.as_bytes()), IncomingMessage::Message(_)));
    }

    // Every request must get an answer, with its id if that can be found.
    #[test]
    fn invalid_message_is_answered_with_an_error() {
        for broken in ["{", "hello", "\u{1b}[2J", "{\"a\":\"", "\"\\"] {
            let error = error(broken);
            assert_eq!(error["error"]["code"], -32_700, "{error}");
            assert_eq!(error["id"], Value::Null);
        }
        let deep = format!(
            r#"{{"a":{{"id":7}},"id":"x\"y","method":"ping","params":{}"#,
            "[".repeat(50_000)
        );
        let deep = error(&deep);
        assert_eq!(
            (&deep["id"], &deep["error"]["code"]),
            (&json!("x\"y"), &json!(-32_700))
        );
        assert_eq!(error(r#"{"id": -3, "method":"#)["id"], -3);
        for (text, id) in [
            (r#"{"jsonrpc":"2.0","id":4,"method":5}"#, json!(4)),
            (
                r#"{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}"#,
                Value::Null,
            ),
            ("[]", Value::Null),
            ("null", Value::Null),
            ("{}", Value::Null),
        ] {
            let error = error(text);
            assert_eq!(
                (&error["id"], &error["error"]["code"]),
                (&id, &json!(-32_600)),
                "{text}"
            );
        }
        let notification = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":7}"#;
        assert!(!matches!(
            read(notification.as_bytes()),
            IncomingMessage::Unread(_)
        ));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }

        #[test]
        fn valid_json_is_not_changed(text in "\\PC{0,60}") {
            let json = serde_json::to_vec(&text).unwrap();
            prop_assert_eq!(&*repair_json(&json), &*json);
            let _ = read(format!("{{\"id\":{text}").as_bytes());
        }
    }
}
