//! The file of a head: a JSON object, signed like receipts.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::error::HeadError;
use treering_domain::{ContentHash, PublicKey, TimestampMicros};
use treering_engine::{LogIdentity, Signer, signed_object};
use treering_proto::rfc3339;

/// Version of the format.
const VERSION: u64 = 1;

/// A signed commitment to a store's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedHead {
    /// The log.
    pub log: LogIdentity,
    /// The last position included; 0: the log was empty.
    pub position: u64,
    /// Number of conversations.
    pub conversations: u64,
    /// The root of their tree.
    pub root: ContentHash,
    /// The signer's public key.
    pub signed_by: PublicKey,
    text: String,
}

/// The signed fields, in this order.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    treering_head: u64,
    store: Uuid,
    timeline: Uuid,
    position: u64,
    conversations: u64,
    events: u64,
    root: String,
    made_at: String,
    #[serde(rename = "signed_by", skip_serializing)]
    _signed_by: String,
}

impl SignedHead {
    /// Signs the state of a log.
    #[must_use]
    pub fn sign(
        log: LogIdentity,
        position: u64,
        (root, conversations): (ContentHash, u64),
        signer: &Signer,
    ) -> Self {
        let fields = Fields {
            treering_head: VERSION,
            store: log.store,
            timeline: log.timeline,
            position,
            conversations,
            // Positions have no gaps.
            events: position,
            root: root.to_string(),
            made_at: rfc3339::text(TimestampMicros::now()).unwrap_or_default(),
            _signed_by: String::new(),
        };
        let fields = serde_json::to_value(&fields).unwrap_or_default();
        Self {
            log,
            position,
            conversations,
            root,
            signed_by: signer.public(),
            text: signer.sign(fields).to_string(),
        }
    }

    /// Parses the result of [`Self::text`] and verifies its signature. The caller must check who
    /// signed it.
    ///
    /// # Errors
    /// When it is not a head, or its signature is not valid.
    pub fn read(text: &str) -> Result<Self, HeadError> {
        let wrong = |what: String| HeadError::NoHead { what };
        let (signed_by, fields) = signed_object(text)?;
        let version = fields["treering_head"].as_u64();
        match version {
            Some(VERSION) => {}
            Some(version) => {
                let known = VERSION;
                return Err(HeadError::Newer { version, known });
            }
            None => return Err(wrong("the field treering_head is missing".to_owned())),
        }
        let fields: Fields =
            serde_json::from_value(fields).map_err(|error| wrong(error.to_string()))?;
        let root = treering_domain::unhex(fields.root.as_bytes());
        Ok(Self {
            log: LogIdentity {
                store: fields.store,
                timeline: fields.timeline,
            },
            position: fields.position,
            conversations: fields.conversations,
            root: ContentHash(
                root.ok_or_else(|| wrong("its root is not a valid hash".to_owned()))?,
            ),
            signed_by,
            text: text.trim_end().to_owned(),
        })
    }

    /// Returns the text of the file, without its line end.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the file name for a folder of heads.
    #[must_use]
    pub fn name(&self) -> String {
        format!("head-{}-{:016x}.json", self.log.store, self.position)
    }
}
