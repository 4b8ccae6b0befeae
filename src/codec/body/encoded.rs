//! A body together with its bytes.

use std::borrow::Borrow;

use bytes::Bytes;
use prost::Message;

use super::{BodyFault, decode, decode_incoming, encode};
use crate::domain::{EventBody, EventKind, ToolCallRequested};

/// Of a `ToolCallRequested` what the engine marks in it; all else is passed over.
#[derive(Message)]
struct CallMark {
    #[prost(bool, optional, tag = "6")]
    arguments_not_json: Option<bool>,
}

/// A body and the bytes that are stored of it. Only this module makes one, by
/// decoding the bytes, so the two say the same, and nobody decodes them again.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedBody {
    body: EventBody,
    bytes: Bytes,
}

/// Why a body cannot be stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeFault {
    /// Its bytes would be refused.
    #[error(transparent)]
    Body(#[from] BodyFault),
    /// Its bytes would be read as another one.
    #[error("{kind}: its bytes, or a hash in it, are not those of its content")]
    NotItself {
        /// What it is about.
        kind: EventKind,
    },
}

impl EncodedBody {
    /// A body that comes from outside; its bytes are kept as they are, fields that
    /// this version does not know among them. What the engine marks is put behind them.
    ///
    /// # Errors
    /// As [`decode_incoming`].
    pub fn received(kind: EventKind, bytes: Bytes) -> Result<Self, BodyFault> {
        let body = decode_incoming(kind, &bytes)?;
        let bytes = match &body {
            EventBody::ToolCallRequested(call) => marked(call, bytes),
            _ => bytes,
        };
        Ok(Self { body, bytes })
    }

    /// Encodes a body. What could not be read back as it is would be damage to every
    /// later reader.
    ///
    /// # Errors
    /// [`EncodeFault`] when that is so.
    pub fn encode(body: EventBody) -> Result<Self, EncodeFault> {
        let (kind, bytes) = (body.kind(), encode(&body));
        if decode(kind, &bytes)? != body {
            return Err(EncodeFault::NotItself { kind });
        }
        Ok(Self { body, bytes })
    }

    /// What happened.
    #[must_use]
    pub fn body(&self) -> &EventBody {
        &self.body
    }

    /// What is stored of it.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// A call that says of its arguments what they are. Of two fields with one number readers take
/// the last, so all that came stays as it came.
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

/// What a body can be appended as.
pub trait Encode: Borrow<EventBody> {
    /// With its bytes.
    ///
    /// # Errors
    /// [`EncodeFault`] when it could not be read back.
    fn into_encoded(self) -> Result<EncodedBody, EncodeFault>;

    /// Its bytes, as far as it can be said without reading them back.
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
