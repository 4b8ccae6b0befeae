//! A decoded body together with its bytes.

use std::borrow::Borrow;

use bytes::Bytes;
use prost::Message;

use super::{BodyFault, decode, decode_incoming, encode};
use treering_domain::{EventBody, EventKind, ToolCallRequested};

/// The field of `ToolCallRequested` that the engine sets; all other fields are skipped.
#[derive(Message)]
struct CallMark {
    #[prost(bool, optional, tag = "6")]
    arguments_not_json: Option<bool>,
}

/// A decoded body and its stored bytes. Only this module makes one, and it always decodes the
/// bytes. So both have the same content, and the bytes need not be decoded again.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedBody {
    body: EventBody,
    bytes: Bytes,
}

/// Why a body cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeFault {
    /// Decoding its bytes fails.
    #[error(transparent)]
    Body(#[from] BodyFault),
    /// Its bytes decode to another body.
    #[error("{kind}: its bytes, or a hash in it, do not match its content")]
    NotItself {
        /// The kind of the event.
        kind: EventKind,
    },
}

impl EncodedBody {
    /// Decodes a body from a client. Its bytes are kept, including fields that this
    /// version does not know. Fields that the engine sets are appended to them.
    ///
    /// # Errors
    /// As `decode_incoming`.
    pub fn received(kind: EventKind, bytes: Bytes) -> Result<Self, BodyFault> {
        let body = decode_incoming(kind, &bytes)?;
        let bytes = match &body {
            EventBody::ToolCallRequested(call) => marked(call, bytes),
            _ => bytes,
        };
        Ok(Self { body, bytes })
    }

    /// Encodes a body, and checks that decoding returns the same body. If it returned another one,
    /// a later reader would report damage.
    ///
    /// # Errors
    /// [`EncodeFault`] if decoding fails or returns another body.
    pub fn encode(body: EventBody) -> Result<Self, EncodeFault> {
        let (kind, bytes) = (body.kind(), encode(&body));
        if decode(kind, &bytes)? != body {
            return Err(EncodeFault::NotItself { kind });
        }
        Ok(Self { body, bytes })
    }

    /// Returns the decoded body.
    #[must_use]
    pub fn body(&self) -> &EventBody {
        &self.body
    }

    /// Returns the bytes to store.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// Sets `arguments_not_json` in the bytes of a call. The field is appended, so the received bytes
/// stay unchanged: if a field occurs twice, readers take the last value.
fn marked(call: &ToolCallRequested, bytes: Bytes) -> Bytes {
    let said = CallMark::decode(bytes.clone()).map(|said| said.arguments_not_json());
    if said == Ok(call.arguments_not_json) {
        return bytes;
    }
    let mark = CallMark {
        arguments_not_json: Some(call.arguments_not_json),
    };
    [&bytes[..], &mark.encode_to_vec()].concat().into()
}

impl Borrow<EventBody> for EncodedBody {
    fn borrow(&self) -> &EventBody {
        &self.body
    }
}

/// A body that can be appended: decoded only, or with its bytes.
pub trait Encode: Borrow<EventBody> {
    /// Returns the body with its bytes.
    ///
    /// # Errors
    /// As [`EncodedBody::encode`], if it has no bytes yet.
    fn into_encoded(self) -> Result<EncodedBody, EncodeFault>;

    /// Returns its bytes, without checking that they decode to the same body.
    fn to_bytes(&self) -> Bytes;
}

impl Encode for EventBody {
    fn into_encoded(self) -> Result<EncodedBody, EncodeFault> {
        EncodedBody::encode(self)
    }

    fn to_bytes(&self) -> Bytes {
        encode(self)
    }
}

impl Encode for EncodedBody {
    fn into_encoded(self) -> Result<EncodedBody, EncodeFault> {
        Ok(self)
    }

    fn to_bytes(&self) -> Bytes {
        self.bytes.clone()
    }
}
