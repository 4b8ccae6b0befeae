//! What is done before the writer sees a batch, on the caller's task: bounds,
//! encoding, hashing, ids.

use bytes::Bytes;

use super::error::AppendError;
use crate::{
    codec::{
        body::{Encode, EncodedBody},
        tags,
    },
    domain::{
        AppendCommand, ContentHash, ConversationId, EventBody, Limits, NewEvent,
        limits::{
            IDEMPOTENCY_KEY_BYTES_MAX, INLINE_BODY_BYTES_MAX, PATCHED_BODY_BYTES_MIN,
            SHORT_TEXT_BYTES_MAX,
        },
    },
    log::{BlobRef, KeySalt, Record},
    views::KeyEntry,
};

/// A body as it will be stored.
#[derive(Clone, Debug)]
pub(super) struct PreparedBody {
    /// With its tags.
    pub bytes: Bytes,
    pub hash: ContentHash,
    /// The key of an event that it is like, or empty.
    pub delta_of: String,
    /// What is different in it from another one, once that was looked up.
    pub patch: Option<PreparedPatch>,
}

/// What is different in a body.
#[derive(Clone, Debug)]
pub(super) struct PreparedPatch {
    pub base: PatchBase,
    pub bytes: Bytes,
}

/// Where the body is that a patch is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchBase {
    /// In the log.
    Home(u64),
    /// In the same batch: which one of the caller's events.
    Event(usize),
}

impl PreparedBody {
    fn new(bytes: Bytes, body: &EventBody) -> Self {
        let delta_of = match body {
            EventBody::Custom(custom) => custom.delta_of.clone(),
            _ => String::new(),
        };
        Self {
            hash: Record::hash_body(&bytes),
            bytes,
            delta_of,
            patch: None,
        }
    }

    /// Kept apart, once for each content.
    pub fn is_blob(&self) -> bool {
        let is_like_another =
            !self.delta_of.is_empty() && self.bytes.len() >= PATCHED_BODY_BYTES_MIN;
        is_like_another || self.bytes.len() > INLINE_BODY_BYTES_MAX
    }

    /// How a record names it that finds it stored at `home_offset`.
    pub fn reference(&self, home_offset: u64) -> BlobRef {
        BlobRef {
            hash: self.hash,
            bytes_len: self.bytes.len() as u64,
            home_offset,
        }
    }
}

/// A batch that is ready for the writer but for what must be looked up.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    pub command: AppendCommand<EncodedBody>,
    pub bodies: Vec<PreparedBody>,
    /// Over everything that the caller chose. Only of keyed batches.
    pub content_hash: ContentHash,
    /// What the log's hash of that is made with.
    pub key_salt: KeySalt,
    /// All bodies, in bytes.
    pub bytes: usize,
    /// The engine says what it erases.
    pub by_eraser: bool,
    /// What its conversation is created with if it does not exist.
    creation: Option<Creation>,
    /// That is its first event now.
    creates: bool,
}

/// The first event of a conversation.
#[derive(Clone, Debug)]
struct Creation {
    event: NewEvent<EncodedBody>,
    body: PreparedBody,
}

impl Prepared {
    /// Checks the bounds and encodes what is not encoded yet.
    pub fn new<B: Encode>(command: AppendCommand<B>, limits: &Limits) -> Result<Self, AppendError> {
        within(
            "the number of events",
            command.events.len(),
            limits.batch_events_max,
            "batch_events_max",
        )?;
        let mut bodies = Vec::with_capacity(command.events.len());
        let mut events = Vec::with_capacity(command.events.len());
        let mut bytes = 0;
        for (event_index, event) in command.events.into_iter().enumerate() {
            check_short_texts(event_index, &event)?;
            let event = encoded(event_index, event)?;
            let body = tags::join(&event.tags, event.body.bytes());
            within(
                "an event's body, in bytes,",
                body.len(),
                limits.body_bytes_max,
                "body_bytes_max",
            )?;
            bytes += body.len();
            bodies.push(PreparedBody::new(body, event.body.body()));
            events.push(event);
        }
        let creation = command.create_if_missing.map(|event| creation(*event));
        let creation = creation.transpose()?;
        if let Some(creation) = &creation {
            bytes += creation.body.bytes.len();
        }
        let command = AppendCommand {
            namespace: command.namespace,
            expectations: command.expectations,
            idempotency_key: command.idempotency_key,
            events,
            create_if_missing: None,
        };
        within(
            "the batch, in bytes,",
            bytes,
            limits.batch_bytes_max,
            "batch_bytes_max",
        )?;
        let content_hash = match &command.idempotency_key {
            Some(key) => {
                check_key(key)?;
                content_hash(&command, &bodies, creation.as_ref())
            }
            None => ContentHash::default(),
        };
        Ok(Self {
            command,
            bodies,
            content_hash,
            key_salt: KeySalt::random(),
            bytes,
            by_eraser: false,
            creation,
            creates: false,
        })
    }

    /// The same, as what the engine says of its own erasing.
    pub fn of_eraser(self) -> Self {
        Self {
            by_eraser: true,
            ..self
        }
    }

    /// What its conversation is created with if it does not exist: tenant and id are whose.
    pub fn may_create(&self) -> Option<ConversationId> {
        self.creation.as_ref().map(|of| of.event.conversation)
    }

    /// Lets it create its conversation, or not.
    pub fn set_creates(&mut self, creates: bool) {
        let Some(creation) = &self.creation else {
            return;
        };
        if creates && !self.creates {
            self.command.events.insert(0, creation.event.clone());
            self.bodies.insert(0, creation.body.clone());
        } else if !creates && self.creates {
            self.command.events.remove(0);
            self.bodies.remove(0);
        }
        self.creates = creates;
    }

    /// Where one of the caller's events is.
    pub fn index_of_own(&self, own: usize) -> usize {
        own + usize::from(self.creates)
    }

    /// Which of the caller's events this one is; none: it is the creation.
    pub fn own_index(&self, index: usize) -> Option<usize> {
        index.checked_sub(usize::from(self.creates))
    }

    /// False when another batch was appended with its key. Once something of that one was
    /// erased it cannot be told any more, and whoever repeats it gets its answer.
    pub fn may_be(&self, used: &KeyEntry) -> bool {
        let salt = used.salt.map(KeySalt);
        salt.is_none_or(|salt| salt.hash(self.content_hash) == used.content_hash)
    }

    /// The conversations that the decision looks at.
    pub fn conversations(&self) -> Vec<ConversationId> {
        let mut ids = Vec::new();
        let mut note = |id| {
            if !ids.contains(&id) {
                ids.push(id);
            }
        };
        self.command
            .expectations
            .iter()
            .for_each(|e| note(e.conversation));
        let creation = self.creation.as_ref().map(|creation| &creation.event);
        for event in self.command.events.iter().chain(creation) {
            note(event.conversation);
            if let EventBody::ConversationCreated(created) = event.body.body()
                && let Some(parent) = &created.parent
            {
                note(parent.conversation);
            }
        }
        ids
    }
}

fn creation<B: Encode>(event: NewEvent<B>) -> Result<Creation, AppendError> {
    check_short_texts(0, &event)?;
    let event = encoded(0, event)?;
    let bytes = tags::join(&event.tags, event.body.bytes());
    let body = PreparedBody::new(bytes, event.body.body());
    Ok(Creation { event, body })
}

fn within(
    what: &'static str,
    actual: usize,
    max: usize,
    limit: &'static str,
) -> Result<(), AppendError> {
    if actual > max {
        return Err(AppendError::TooLarge {
            what,
            actual,
            max,
            limit,
        });
    }
    Ok(())
}

/// An event with the bytes of its body. One that came with them is not looked at again.
fn encoded<B: Encode>(
    event_index: usize,
    event: NewEvent<B>,
) -> Result<NewEvent<EncodedBody>, AppendError> {
    event
        .try_map(Encode::into_encoded)
        .map_err(|fault| AppendError::Invalid {
            event_index,
            message: fault.to_string(),
        })
}

fn check_short_texts<B>(event_index: usize, event: &NewEvent<B>) -> Result<(), AppendError> {
    for (field, text) in [
        ("actor", &event.actor),
        ("correlation_id", &event.correlation_id),
    ] {
        if text.len() > SHORT_TEXT_BYTES_MAX {
            let message = format!(
                "{field} has {} bytes; at most {SHORT_TEXT_BYTES_MAX} are allowed",
                text.len()
            );
            return Err(AppendError::Invalid {
                event_index,
                message,
            });
        }
    }
    event.tags.check().map_err(|fault| AppendError::Invalid {
        event_index,
        message: fault.to_string(),
    })
}

fn check_key(key: &str) -> Result<(), AppendError> {
    if key.is_empty() {
        let message = "the idempotency key is empty: leave it out or give one".to_owned();
        return Err(AppendError::Invalid {
            event_index: 0,
            message,
        });
    }
    let what = "the idempotency key, in bytes,";
    within(
        what,
        key.len(),
        IDEMPOTENCY_KEY_BYTES_MAX,
        "IDEMPOTENCY_KEY_BYTES_MAX",
    )
}

/// Hashes what the caller chose, each part with its length, so that no two
/// batches read the same.
fn content_hash(
    command: &AppendCommand<EncodedBody>,
    bodies: &[PreparedBody],
    creation: Option<&Creation>,
) -> ContentHash {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for (event, body) in command.events.iter().zip(bodies) {
        part(event.conversation.0.as_bytes());
        part(
            event
                .branch
                .as_ref()
                .map_or(b"" as &[u8], |name| name.as_str().as_bytes()),
        );
        part(&event.body.body().kind().number().to_le_bytes());
        part(
            &event
                .occurred_at
                .map_or(i64::MIN, |time| time.0)
                .to_le_bytes(),
        );
        part(event.actor.as_bytes());
        part(event.correlation_id.as_bytes());
        part(
            event
                .causation_id
                .map_or([0; 16], |id| *id.0.as_bytes())
                .as_slice(),
        );
        part(&body.hash.0);
    }
    if let Some(creation) = creation {
        part(b"create_if_missing");
        part(creation.event.conversation.0.as_bytes());
        part(&creation.body.hash.0);
    }
    ContentHash(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Namespace;

    fn prepared(actor: &str) -> Prepared {
        let mut event = NewEvent::new(ConversationId::generate(), EventBody::BranchActivated);
        event.conversation = ConversationId::default();
        event.actor = actor.to_owned();
        let mut command = AppendCommand::new(Namespace::default(), vec![event]);
        command.idempotency_key = Some("key".to_owned());
        Prepared::new(command, &Limits::default()).unwrap()
    }

    // A repeat is known by what it says, although each has a salt of its own. Once the salt
    // is erased nobody can tell, and whoever repeats a batch must not append it again.
    #[test]
    fn a_repeat_is_known_while_its_salt_is_there() {
        let (first, again, other) = (prepared("ada"), prepared("ada"), prepared("grace"));
        let mut used = KeyEntry {
            namespace: Namespace::default(),
            key: "key".to_owned(),
            content_hash: first.key_salt.hash(first.content_hash),
            salt: Some(first.key_salt.0),
            first_offset: 1,
            events: 1,
        };
        assert_ne!(first.key_salt, again.key_salt);
        assert!(first.may_be(&used) && again.may_be(&used));
        assert!(!other.may_be(&used));
        used.salt = None;
        assert!(again.may_be(&used) && other.may_be(&used));
    }
}
