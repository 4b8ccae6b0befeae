//! Errors of refused requests.

use std::collections::HashMap;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::{ERROR_DOMAIN, bounds::IN_FLIGHT_RETRY};

fn refusal(code: Code, reason: &str, message: String, facts: &[(&str, usize)]) -> Status {
    tracing::debug!(reason, ?code, "refused");
    let facts: HashMap<_, _> = facts
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.to_string()))
        .collect();
    let mut details = ErrorDetails::with_error_info(reason, ERROR_DOMAIN, facts);
    if code == Code::ResourceExhausted {
        details.set_retry_info(Some(IN_FLIGHT_RETRY));
    }
    Status::with_error_details(code, message, details)
}

/// The message is longer than allowed.
pub(super) fn too_large(actual: usize, max: usize) -> Status {
    let message =
        format!("the message has {actual} bytes; the maximum is {max}: send less at once");
    let facts = [("actual", actual), ("max", max)];
    refusal(Code::OutOfRange, "MESSAGE_TOO_LARGE", message, &facts)
}

/// The decompressed message is longer than allowed.
pub(super) fn inflates_too_large(max: usize) -> Status {
    let message = format!(
        "the decompressed message has more than {max} bytes, the maximum: send less at once"
    );
    refusal(
        Code::OutOfRange,
        "MESSAGE_TOO_LARGE",
        message,
        &[("max", max)],
    )
}

/// The message has so many elements that decoding would take too much memory.
pub(super) fn decodes_too_large(max: usize) -> Status {
    let message = format!(
        "the message has so many elements that decoding it would take more than {max} bytes: send \
         less at once"
    );
    refusal(
        Code::OutOfRange,
        "TOO_MANY_ELEMENTS",
        message,
        &[("max", max)],
    )
}

/// Too many bytes are in flight.
pub(super) fn too_many_bytes() -> Status {
    let message = "too many request bytes are in flight: retry later";
    let reason = "BYTES_IN_FLIGHT";
    refusal(Code::ResourceExhausted, reason, message.into(), &[])
}

/// The request does not arrive in time.
pub(super) fn too_slow(received: usize) -> Status {
    let message = format!("the request arrived too slowly: {received} bytes before the timeout");
    let facts = [("received", received)];
    refusal(Code::DeadlineExceeded, "TOO_SLOW", message, &facts)
}

/// A second message for a method that takes one.
pub(super) fn second_message() -> Status {
    let message = "this method takes one message, but a second one arrived";
    refusal(Code::InvalidArgument, "SECOND_MESSAGE", message.into(), &[])
}

/// The framing or the compressed data is invalid.
pub(super) fn broken(what: &str) -> Status {
    refusal(
        Code::Internal,
        "BROKEN_MESSAGE",
        format!("protocol error: {what}"),
        &[],
    )
}
