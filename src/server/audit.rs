//! Who used which key to decide, to erase, to export, to read everything or very much, and who
//! changed keys: events of the reserved namespace, durable and chained like all others.
//!
//! Without keys nobody can be named, and nothing is noted. An erasing, an export and a read of
//! everything are noted before they begin, or do not begin; a backup is made all the same, and a
//! decision was taken: where these cannot be noted the log says so.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::{
    bounds::{KNOWN_KEYS_MAX, WHOLE_READS_NOTED},
    guard::Caller,
    whole_reads::{self, NotedReads, WholeReads},
};
use crate::{
    access::{self, KeyRecord, KeyRing},
    codec::{body::EncodedBody, pb},
    domain::{
        AppendCommand, AppendOutcome, ConversationCreated, ConversationId, Custom, Decision,
        EventBody, Namespace, NewEvent, TimestampMicros, with_causes,
    },
    engine::{AppendError, BranchAddress, Engine, EraseTarget, ReadError},
};

/// The namespace of what the server notes about itself.
pub const SYSTEM_NAMESPACE: &str = "_system";

/// Type name of these events; their content is a JSON object.
pub const AUDIT_TYPE: &str = "treering.audit";

/// The conversation that they are in.
#[must_use]
pub fn audit_conversation() -> ConversationId {
    const AUDIT: Uuid = Uuid::from_u128(0x1b64_90d5_52f7_4cb0_8a3e_93d1_0c7e_a4f2);
    ConversationId(AUDIT)
}

/// True when the store has notes about keys: so it had some.
///
/// # Errors
/// When it cannot be read.
pub async fn has_begun(engine: &Engine) -> Result<bool, ReadError> {
    let namespace = Namespace::new(SYSTEM_NAMESPACE);
    let namespace = namespace.map_err(|error| ReadError::storage(error.to_string()))?;
    let address = BranchAddress::active(namespace, audit_conversation());
    match engine.conversation(&address, None).await {
        Ok(_) => Ok(true),
        Err(ReadError::ConversationNotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Notes deeds in the store.
#[derive(Clone)]
pub(super) struct Audit {
    engine: Engine,
    begun: Arc<OnceCell<Namespace>>,
    whole_reads: WholeReads,
    noted: NotedReads,
}

/// A decision that is on its way.
pub(super) struct Decided {
    index: usize,
    conversation: ConversationId,
    call_id: String,
    decision: Decision,
}

/// The decisions of a batch.
pub(super) fn decisions(command: &AppendCommand<EncodedBody>) -> Vec<Decided> {
    let events = command.events.iter().enumerate();
    let decided = |(index, event): (usize, &NewEvent<EncodedBody>)| match event.body.body() {
        EventBody::ApprovalDecided(decided) => Some(Decided {
            index,
            conversation: event.conversation,
            call_id: decided.call_id.clone(),
            decision: decided.decision,
        }),
        _ => None,
    };
    events.filter_map(decided).collect()
}

impl Audit {
    pub fn new(engine: Engine) -> Self {
        Self {
            engine,
            begun: Arc::default(),
            whole_reads: WholeReads::default(),
            noted: NotedReads::default(),
        }
    }

    /// Decisions that were taken.
    pub async fn decided(&self, caller: &Caller, decided: Vec<Decided>, outcome: &AppendOutcome) {
        if outcome.repeated_key || caller.key().is_none() {
            return;
        }
        for one in decided {
            let revision = outcome.events.get(one.index).map(|event| event.revision.0);
            let details = json!({
                "conversation_id": one.conversation.to_string(),
                "revision": revision,
                "call_id": one.call_id,
                "decision": match one.decision {
                    Decision::Approved => "approved",
                    Decision::Denied => "denied",
                    Decision::Expired => "expired",
                },
            });
            self.note_or_tell("decide", caller, details).await;
        }
    }

    /// An erasing that is about to begin. What a literal is stays out of it.
    ///
    /// # Errors
    /// When it cannot be noted.
    pub async fn erases(&self, caller: &Caller, target: &EraseTarget) -> Result<(), AppendError> {
        let details = match target {
            EraseTarget::Revisions {
                conversation,
                revisions,
            } => {
                let ranges = revisions.iter();
                let ranges: Vec<_> = ranges.map(|of| [*of.start(), *of.end()]).collect();
                json!({"conversation_id": conversation.to_string(), "revisions": ranges})
            }
            EraseTarget::Conversation(id) => json!({"conversation_id": id.to_string()}),
            EraseTarget::Namespace => json!({"whole_namespace": true}),
            EraseTarget::Due(retention) => json!({
                "keep_days": retention.keep_days,
                "keep_sealed_days": retention.keep_sealed_days,
                "labels": retention.labels,
            }),
            EraseTarget::Literal(literal) => json!({"literal_bytes": literal.len()}),
        };
        self.note("erase", caller, details).await
    }

    /// All that a namespace has is read, from an offset of the log on.
    ///
    /// # Errors
    /// When it cannot be noted.
    pub async fn reads_all(&self, caller: &Caller) -> Result<(), AppendError> {
        self.note_read("read_all", caller, None).await
    }

    /// The whole log is read, to be kept somewhere else. Where the disk is full there must be a
    /// way to save what is on it.
    pub async fn backs_up(&self, caller: &Caller) {
        if let Err(error) = self.reads_all(caller).await {
            tell("read_all", caller, &error);
        }
    }

    /// A conversation is read: to be exported, as the client says, or as one of many.
    ///
    /// # Errors
    /// When it cannot be noted.
    pub async fn reads(
        &self,
        caller: &Caller,
        conversation: ConversationId,
        request: &pb::ReadRequest,
    ) -> Result<(), AppendError> {
        if request.exports {
            return self.note_read("export", caller, Some(conversation)).await;
        }
        let Some((_, id)) = caller.key() else {
            return Ok(());
        };
        if whole_reads::is_whole(request) && self.whole_reads.are_many(id, conversation) {
            let details = json!({"conversations": WHOLE_READS_NOTED});
            self.note("read_many", caller, details).await?;
        }
        Ok(())
    }

    /// Notes a read that comes in parts once a minute.
    async fn note_read(
        &self,
        deed: &str,
        caller: &Caller,
        of: Option<ConversationId>,
    ) -> Result<(), AppendError> {
        let Some((_, id)) = caller.key() else {
            return Ok(());
        };
        if self.noted.is_recent(id, &caller.namespace, of) {
            return Ok(());
        }
        let details = match of {
            Some(conversation) => json!({"conversation_id": conversation.to_string()}),
            None => json!({}),
        };
        self.note(deed, caller, details).await?;
        self.noted.remember(id, &caller.namespace, of);
        Ok(())
    }

    async fn note_or_tell(&self, deed: &str, caller: &Caller, details: Value) {
        if let Err(error) = self.note(deed, caller, details).await {
            tell(deed, caller, &error);
        }
    }

    async fn note(&self, deed: &str, caller: &Caller, details: Value) -> Result<(), AppendError> {
        let Some((key, id)) = caller.key() else {
            return Ok(());
        };
        let about = json!({
            "deed": deed,
            "key": key,
            "key_id": id.as_str(),
            "namespace": caller.namespace.as_str(),
        });
        self.append(event(key, joined(about, details), None), None)
            .await
    }

    /// Notes which keys were made, rotated and revoked, each once, whoever did it and whether
    /// or not a server ran then. False: it is to be tried again.
    pub async fn keys_changed(&self, keys: &KeyRing) -> bool {
        let Ok(file) = access::read(keys.dir()) else {
            // The ring tells what is wrong with it.
            return false;
        };
        let done = self.note_keys(&file.keys).await;
        if let Err(error) = &done {
            let error = with_causes(error);
            tracing::error!(%error, "changes of keys could not be noted; trying again");
        }
        done.is_ok()
    }

    async fn note_keys(&self, keys: &[KeyRecord]) -> Result<(), AppendError> {
        let changes: Vec<_> = keys.iter().flat_map(changes).collect();
        for some in changes.chunks(KNOWN_KEYS_MAX) {
            let once = some.iter().map(|change| change.once.clone()).collect();
            let known = self.known(once).await?;
            for (change, known) in some.iter().zip(known) {
                if !known {
                    let event = event(&change.by, change.about.clone(), Some(change.at));
                    self.append(event, Some(change.once.clone())).await?;
                }
            }
        }
        Ok(())
    }

    async fn known(&self, once: Vec<String>) -> Result<Vec<bool>, ReadError> {
        let namespace = self.begun.get_or_try_init(|| self.begin()).await;
        let namespace = namespace.map_err(|error| ReadError::storage(error.to_string()))?;
        self.engine.known_keys(namespace, once).await
    }

    async fn append(&self, event: NewEvent, once: Option<String>) -> Result<(), AppendError> {
        let namespace = self.begun.get_or_try_init(|| self.begin()).await?;
        let command = AppendCommand {
            idempotency_key: once,
            ..AppendCommand::new(namespace.clone(), vec![event])
        };
        self.engine.append(command).await.map(drop)
    }

    /// Makes the conversation, the first time ever.
    async fn begin(&self) -> Result<Namespace, AppendError> {
        let namespace = Namespace::new(SYSTEM_NAMESPACE);
        let namespace = namespace.map_err(|error| ReadError::storage(error.to_string()))?;
        let created = EventBody::ConversationCreated(ConversationCreated {
            title: "Who used which key".to_owned(),
            ..ConversationCreated::default()
        });
        let command = AppendCommand {
            idempotency_key: Some("audit".to_owned()),
            ..AppendCommand::new(
                namespace.clone(),
                vec![NewEvent::new(audit_conversation(), created)],
            )
        };
        self.engine.append(command).await?;
        Ok(namespace)
    }
}

/// Says in the log what could not be noted.
fn tell(deed: &str, caller: &Caller, error: &AppendError) {
    let (error, key) = (with_causes(error), caller.key().map(|(name, _)| name));
    let namespace = caller.namespace.as_str();
    tracing::error!(%error, deed, key, namespace, "it was done, and could not be noted");
}

/// A change of a key, as it is noted.
struct Change {
    /// Its idempotency key.
    once: String,
    at: TimestampMicros,
    by: String,
    about: Value,
}

fn changes(key: &KeyRecord) -> Vec<Change> {
    let id = key.id.as_str();
    let about = |deed: &str| json!({"deed": deed, "key": key.name, "key_id": id});
    let roles: Vec<String> = key.roles.iter().map(ToString::to_string).collect();
    let subject = key.certificate_subject.as_ref();
    let made = match subject {
        Some(subject) => json!({"roles": roles, "certificate_subject": subject.as_str()}),
        None => json!({"roles": roles}),
    };
    let mut changes = vec![Change {
        once: format!("made/{id}"),
        at: key.made_at,
        by: key.made_by.clone(),
        about: joined(about("key_made"), made),
    }];
    let newer = key
        .secrets
        .iter()
        .filter(|secret| secret.made_at != key.made_at);
    changes.extend(newer.map(|secret| Change {
        once: format!("rotated/{id}/{}", secret.blake3),
        at: secret.made_at,
        by: secret.made_by.clone(),
        about: about("key_rotated"),
    }));
    changes.extend(key.revoked_at.map(|at| Change {
        once: format!("revoked/{id}"),
        at,
        by: key.revoked_by.clone(),
        about: about("key_revoked"),
    }));
    changes
}

fn joined(mut about: Value, details: Value) -> Value {
    if let (Value::Object(about), Value::Object(details)) = (&mut about, details) {
        about.extend(details);
    }
    about
}

fn event(actor: &str, about: Value, at: Option<TimestampMicros>) -> NewEvent {
    let body = EventBody::Custom(Custom {
        type_name: AUDIT_TYPE.to_owned(),
        content_type: "application/json".to_owned(),
        data: about.to_string().into(),
        text: String::new(),
        delta_of: String::new(),
    });
    NewEvent {
        actor: actor.to_owned(),
        occurred_at: at,
        ..NewEvent::new(audit_conversation(), body)
    }
}
