//! Validation of a batch on the caller's task, before the writer sees it: limits, encoding,
//! hashing, ids.

use std::{collections::HashSet, num::NonZeroU32};

use bytes::Bytes;

use super::error::AppendError;
use treering_domain::{
    AppendCommand, ContentHash, ConversationId, EventBody, EventHeader, Limits, NewEvent,
    TimestampMicros, check_key as check_event_key,
    limits::{
        IDEMPOTENCY_KEY_BYTES_MAX, INLINE_BODY_BYTES_MAX, PATCHED_BODY_BYTES_MIN,
        SHORT_TEXT_BYTES_MAX,
    },
};
use treering_log::{AppendKey, BlobRef, KeySalt, Record};
use treering_projections::KeyEntry;
use treering_proto::{
    body::{Encode, EncodedBody},
    tags,
};

/// A body as it will be stored.
#[derive(Clone, Debug)]
pub(super) struct ValidatedBody {
    /// The body preceded by its tags.
    pub(crate) bytes: Bytes,
    pub(crate) hash: ContentHash,
    /// Event key of a similar event, or empty.
    pub(crate) delta_of: String,
    /// The difference from another body, once that body was looked up.
    pub(crate) patch: Option<ValidatedPatch>,
    /// Content hash and salt for the event's own idempotency key, if it has one. Each event has its
    /// own salt, which is erased only with that event.
    pub(crate) own_key: Option<(ContentHash, KeySalt)>,
}

/// The difference of a body from another one.
#[derive(Clone, Debug)]
pub(super) struct ValidatedPatch {
    pub(crate) base: PatchBase,
    pub(crate) bytes: Bytes,
}

/// The base of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchBase {
    /// A body in the log, by its home offset.
    Home(u64),
    /// A body of the same batch: the index of the caller's event.
    Event(usize),
}

impl ValidatedBody {
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
            own_key: None,
        }
    }

    /// Returns false when another event was appended with this event's own key. See
    /// [`ValidatedBatch::may_be`].
    pub(crate) fn may_be(&self, used: &KeyEntry) -> bool {
        let Some((content_hash, _)) = self.own_key else {
            return false;
        };
        let salt = used.salt.map(KeySalt);
        used.events == 1 && salt.is_none_or(|salt| salt.hash(content_hash) == used.content_hash)
    }

    /// Returns whether the body is stored in the blob table, once for each distinct content.
    pub(crate) fn is_blob(&self) -> bool {
        let is_like_another =
            !self.delta_of.is_empty() && self.bytes.len() >= PATCHED_BODY_BYTES_MIN;
        is_like_another || self.bytes.len() > INLINE_BODY_BYTES_MAX
    }

    /// Returns the reference that a record stores when this body is stored at `home_offset`.
    pub(crate) fn reference(&self, home_offset: u64) -> BlobRef {
        BlobRef {
            hash: self.hash,
            bytes_len: self.bytes.len() as u64,
            home_offset,
        }
    }
}

/// A validated batch, complete except for data that must be looked up.
#[derive(Clone, Debug)]
pub(super) struct ValidatedBatch {
    pub(crate) command: AppendCommand<EncodedBody>,
    pub(crate) bodies: Vec<ValidatedBody>,
    /// Hash over everything that the caller chose. Only set for batches with a key.
    pub(crate) content_hash: ContentHash,
    /// The salt with which the log hashes `content_hash`, for a batch with a key.
    pub(crate) key_salt: Option<KeySalt>,
    /// Size of all bodies, in bytes.
    pub(crate) bytes: usize,
    /// The batch is the engine's own record of an erasure.
    pub(crate) by_eraser: bool,
    /// The first event of the conversation, in case it does not exist.
    creation: Option<Creation>,
    /// The batch currently begins with `creation`.
    creates: bool,
    /// The caller's events that are already stored, in order. They are currently removed from the
    /// command.
    skipped: Vec<StoredDuplicate>,
}

/// An event that is already stored.
#[derive(Clone, Debug)]
struct StoredDuplicate {
    /// The index of the caller's event.
    own: usize,
    event: NewEvent<EncodedBody>,
    body: ValidatedBody,
}

/// The first event of a conversation.
#[derive(Clone, Debug)]
struct Creation {
    event: NewEvent<EncodedBody>,
    body: ValidatedBody,
}

impl ValidatedBatch {
    /// Checks the limits and encodes bodies that are not encoded yet.
    pub(crate) fn new<B: Encode>(
        command: AppendCommand<B>,
        limits: &Limits,
    ) -> Result<Self, AppendError> {
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
            let mut body = ValidatedBody::new(body, event.body.body());
            if event.idempotency_key.is_some() {
                body.own_key = Some((event_hash(&event, &body), KeySalt::random()));
            }
            bodies.push(body);
            events.push(event);
        }
        check_names(
            &events,
            command.idempotency_key.is_some(),
            command.skip_known,
        )?;
        for expected in &command.expected_keys {
            check_event_key(&expected.key).map_err(|fault| AppendError::Invalid {
                event_index: 0,
                message: format!("expected_keys: {fault}"),
            })?;
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
            key_life_seconds: command.key_life_seconds,
            events,
            create_if_missing: None,
            expected_keys: command.expected_keys,
            skip_known: command.skip_known,
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
        let has_key = command.idempotency_key.is_some();
        Ok(Self {
            command,
            bodies,
            content_hash,
            // A random salt takes a system call; an append without a key does not need it.
            key_salt: has_key.then(KeySalt::random),
            bytes,
            by_eraser: false,
            creation,
            creates: false,
            skipped: Vec::new(),
        })
    }

    /// Marks the batch as the engine's own record of an erasure.
    pub(crate) fn of_eraser(self) -> Self {
        Self {
            by_eraser: true,
            ..self
        }
    }

    /// Returns the conversation that the batch may create.
    pub(crate) fn may_create(&self) -> Option<ConversationId> {
        self.creation.as_ref().map(|of| of.event.conversation)
    }

    /// Adds the conversation's first event to the batch, or removes it.
    pub(crate) fn set_creates(&mut self, creates: bool) {
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

    /// Removes the caller's events with these indexes (in order) from the batch, because they are
    /// already stored. Events removed by an earlier call and not named now are put back.
    pub(crate) fn skip(&mut self, known: &[usize]) {
        if known.is_empty() && self.skipped.is_empty() {
            return;
        }
        let first = usize::from(self.creates);
        let events = self.command.events.split_off(first);
        let bodies = self.bodies.split_off(first);
        let mut skipped = std::mem::take(&mut self.skipped).into_iter().peekable();
        let mut kept = events.into_iter().zip(bodies);
        let mut known = known.iter().copied().peekable();
        for own in 0.. {
            let next = match skipped.next_if(|skipped| skipped.own == own) {
                Some(skipped) => Some((skipped.event, skipped.body)),
                None => kept.next(),
            };
            let Some((event, body)) = next else { break };
            if known.next_if_eq(&own).is_some() {
                self.skipped.push(StoredDuplicate { own, event, body });
            } else {
                self.command.events.push(event);
                self.bodies.push(body);
            }
        }
    }

    /// Returns the caller's events, including removed ones, with their indexes and bodies.
    pub(crate) fn own_events(&self) -> Vec<(usize, &NewEvent<EncodedBody>, &ValidatedBody)> {
        let first = usize::from(self.creates);
        let here = self.command.events.iter().zip(&self.bodies).skip(first);
        let here = here
            .enumerate()
            .map(|(at, (event, body))| (self.own_of(at), event, body));
        let skipped = self.skipped.iter();
        let skipped = skipped.map(|skipped| (skipped.own, &skipped.event, &skipped.body));
        let mut all: Vec<_> = here.chain(skipped).collect();
        all.sort_unstable_by_key(|(own, _, _)| *own);
        all
    }

    /// Returns true when an event has a chosen id or an idempotency key of its own.
    pub(crate) fn has_names(&self) -> bool {
        let named =
            |event: &NewEvent<EncodedBody>| event.id.is_some() || event.idempotency_key.is_some();
        !self.skipped.is_empty() || self.command.events.iter().any(named)
    }

    /// Returns true when all of the caller's events were removed.
    pub(crate) fn is_all_known(&self) -> bool {
        !self.skipped.is_empty() && self.command.events.len() == usize::from(self.creates)
    }

    /// Converts an index among the remaining events to an index among the caller's events.
    fn own_of(&self, at: usize) -> usize {
        let mut own = at;
        for skipped in &self.skipped {
            if skipped.own > own {
                break;
            }
            own += 1;
        }
        own
    }

    /// Returns the index in the batch of one of the caller's events; `None` if it was removed.
    pub(crate) fn index_of_own(&self, own: usize) -> Option<usize> {
        let before = self.skipped.partition_point(|skipped| skipped.own < own);
        let is_here = self.skipped.get(before).is_none_or(|at| at.own != own);
        is_here.then(|| own - before + usize::from(self.creates))
    }

    /// Returns the caller's index of an event in the batch; `None` for the creation.
    pub(crate) fn own_index(&self, index: usize) -> Option<usize> {
        let at = index.checked_sub(usize::from(self.creates))?;
        Some(self.own_of(at))
    }

    /// Returns the idempotency key stored with an event that is appended now: the batch's key with
    /// the first event, or the event's own.
    pub(crate) fn key_of(&self, index: usize, now: TimestampMicros) -> Option<AppendKey> {
        let life_us = |seconds: NonZeroU32| i64::from(seconds.get()) * 1_000_000;
        let life_us = self.command.key_life_seconds.map(life_us);
        let ends_at = life_us.map(|life_us| TimestampMicros(now.0.saturating_add(life_us)));
        if index == 0
            && let (Some(key), Some(salt)) = (&self.command.idempotency_key, self.key_salt)
        {
            return Some(AppendKey {
                key: key.clone(),
                events: u32::try_from(self.bodies.len()).unwrap_or(u32::MAX),
                content_hash: salt.hash(self.content_hash),
                salt: Some(salt),
                ends_at,
            });
        }
        let (content_hash, salt) = self.bodies[index].own_key?;
        Some(AppendKey {
            key: self.command.events[index].idempotency_key.clone()?,
            events: 1,
            content_hash: salt.hash(content_hash),
            salt: Some(salt),
            ends_at,
        })
    }

    /// Returns false when another batch was appended with this batch's key. Once an event of that
    /// batch was erased, its salt is gone and the two cannot be compared: a retry then gets that
    /// batch's answer.
    pub(crate) fn may_be(&self, used: &KeyEntry) -> bool {
        let salt = used.salt.map(KeySalt);
        salt.is_none_or(|salt| salt.hash(self.content_hash) == used.content_hash)
    }

    /// Returns the conversations that the writer needs to decide on this batch.
    pub(crate) fn conversations(&self) -> Vec<ConversationId> {
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
        let keys = &self.command.expected_keys;
        keys.iter().for_each(|key| note(key.conversation));
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
    let body = ValidatedBody::new(bytes, event.body.body());
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

/// Encodes an event's body. An already encoded body is not encoded again.
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
                "{field} has {} bytes; the maximum is {SHORT_TEXT_BYTES_MAX}",
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
        let message = "the idempotency key is empty: omit it or set one".to_owned();
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

/// Checks the ids and idempotency keys of events.
fn check_names(
    events: &[NewEvent<EncodedBody>],
    batch_has_key: bool,
    skip_known: bool,
) -> Result<(), AppendError> {
    let (mut ids, mut keys) = (HashSet::new(), HashSet::new());
    for (event_index, event) in events.iter().enumerate() {
        let fault = |message: &str| {
            let message = message.to_owned();
            Err(AppendError::Invalid {
                event_index,
                message,
            })
        };
        if let Some(id) = event.id {
            if !id.may_be_chosen() {
                return fault(
                    "its id must be a UUID of version 1 to 7 (RFC 9562): use another, or leave it \
                     empty",
                );
            }
            if !ids.insert(id) {
                return fault("an earlier event of the batch has the same id");
            }
        }
        if let Some(key) = &event.idempotency_key {
            check_key(key)?;
            if batch_has_key {
                return fault(
                    "both the event and the batch have an idempotency key: set only one of them",
                );
            }
            if !keys.insert(key) {
                return fault("an earlier event of the batch has the same idempotency key");
            }
        }
    }
    if batch_has_key && skip_known {
        let message = "skip_known does not allow an idempotency key: omit the key, because event \
                       ids identify known events";
        return Err(AppendError::Invalid {
            event_index: 0,
            message: message.to_owned(),
        });
    }
    Ok(())
}

/// Hashes parts with their lengths, so that different sequences of parts never hash the same input.
#[derive(Default)]
struct PartsHasher(blake3::Hasher);

impl PartsHasher {
    fn part(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    /// Hashes the fields of an event that the caller chose.
    fn event(&mut self, event: &NewEvent<EncodedBody>, body: &ValidatedBody) {
        self.part(event.conversation.0.as_bytes());
        let branch = event.branch.as_ref();
        self.part(branch.map_or(b"" as &[u8], |name| name.as_str().as_bytes()));
        self.part(&event.body.body().kind().number().to_le_bytes());
        let occurred_at = event.occurred_at.map_or(i64::MIN, |time| time.0);
        self.part(&occurred_at.to_le_bytes());
        self.part(event.actor.as_bytes());
        self.part(event.correlation_id.as_bytes());
        let causation_id = event.causation_id.map_or([0; 16], |id| *id.0.as_bytes());
        self.part(&causation_id);
        self.part(&body.hash.0);
        if let Some(id) = event.id {
            self.part(b"id");
            self.part(id.0.as_bytes());
        }
    }

    fn end(self) -> ContentHash {
        ContentHash(*self.0.finalize().as_bytes())
    }
}

/// Hashes the fields of a batch that the caller chose.
fn content_hash(
    command: &AppendCommand<EncodedBody>,
    bodies: &[ValidatedBody],
    creation: Option<&Creation>,
) -> ContentHash {
    let mut hasher = PartsHasher::default();
    for (event, body) in command.events.iter().zip(bodies) {
        hasher.event(event, body);
    }
    if let Some(creation) = creation {
        hasher.part(b"create_if_missing");
        hasher.part(creation.event.conversation.0.as_bytes());
        hasher.part(&creation.body.hash.0);
    }
    hasher.end()
}

/// Hashes the fields of one event that the caller chose.
fn event_hash(event: &NewEvent<EncodedBody>, body: &ValidatedBody) -> ContentHash {
    let mut hasher = PartsHasher::default();
    hasher.event(event, body);
    hasher.end()
}

/// Returns whether a stored event with the same id equals `event` in everything that its author
/// chose, except the branch, whose name may have changed. For an erased event only the headers are
/// compared.
pub(super) fn is_same_event(
    stored: (&EventHeader, Option<ContentHash>),
    event: &NewEvent<EncodedBody>,
    body: &ValidatedBody,
) -> bool {
    let (header, hash) = stored;
    header.conversation == event.conversation
        && header.kind == event.body.body().kind().number()
        && header.occurred_at == event.occurred_at
        && header.actor == event.actor
        && header.causation_id == event.causation_id
        && header.correlation_id == event.correlation_id
        && hash.is_none_or(|hash| hash == body.hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use treering_domain::Namespace;

    fn prepared(actor: &str) -> ValidatedBatch {
        let mut event = NewEvent::new(ConversationId::generate(), EventBody::BranchActivated);
        event.conversation = ConversationId::default();
        event.actor = actor.to_owned();
        let mut command = AppendCommand::new(Namespace::default(), vec![event]);
        command.idempotency_key = Some("key".to_owned());
        ValidatedBatch::new(command, &Limits::default()).unwrap()
    }

    // A retry is recognised by its content, although each attempt has its own salt. Once the salt
    // is erased, contents cannot be compared, and a retry must still not be appended again.
    #[test]
    fn retry_is_compared_until_its_salt_is_erased() {
        let (first, again, other) = (prepared("ada"), prepared("ada"), prepared("grace"));
        let mut used = KeyEntry {
            namespace: Namespace::default(),
            key: "key".to_owned(),
            content_hash: first.key_salt.unwrap().hash(first.content_hash),
            salt: Some(first.key_salt.unwrap().0),
            first_offset: 1,
            events: 1,
            ends_at: None,
        };
        assert_ne!(first.key_salt, again.key_salt);
        assert!(first.may_be(&used) && again.may_be(&used));
        assert!(!other.may_be(&used));
        used.salt = None;
        assert!(again.may_be(&used) && other.may_be(&used));
    }
}
