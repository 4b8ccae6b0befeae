//! The audit: who used which key to decide on an approval, erase, export, read everything, or read
//! an unusually large amount; and who changed keys. Entries are events of the reserved namespace,
//! durable and chained like all others.
//!
//! Without keys callers have no names, so nothing is recorded. A decision and its entry are
//! appended together. An erasure, an export and a read of everything are recorded before they
//! begin, or refused; a backup runs anyway and logs that it could not be recorded. The entry for a
//! key that has read an unusually large amount is written afterwards and retried until it is on
//! disk.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::{
    bounds::{KNOWN_KEYS_MAX, MANY_READ},
    guard::Caller,
    recent_reads::RecentReads,
    router::ShardDirectory,
};
use treering_access as access;
use treering_access::{ExceededReadBound, KeyId, KeyRecord, KeyStore};
use treering_domain::{
    AppendCommand, ApprovalDecided, ConversationCreated, ConversationId, Custom, Decision,
    EventBody, Namespace, NewEvent, ShardId, TimestampMicros, with_causes,
};
use treering_engine::{AppendError, BranchAddress, Companion, Engine, EraseTarget, ReadError};
use treering_proto::body::EncodedBody;

/// The namespace of the server's own records.
pub const SYSTEM_NAMESPACE: &str = "_system";

/// Type name of audit entries, whose content is a JSON object.
pub const AUDIT_TYPE: &str = "treering.audit";

/// Title of the conversations that hold the audit entries.
pub const AUDIT_TITLE: &str = "Who used which key";

/// Returns the id of the conversation that holds the audit entries. In a cluster, each shard has
/// one, with an id that is [placed](Engine::place) in the shard.
#[must_use]
pub fn audit_conversation() -> ConversationId {
    const AUDIT: Uuid = Uuid::from_u128(0x1b64_90d5_52f7_4cb0_8a3e_93d1_0c7e_a4f2);
    ConversationId(AUDIT)
}

/// Returns true when the audit exists, which means that the store has had keys.
///
/// # Errors
/// When it cannot be read.
pub async fn has_begun(engine: &Engine) -> Result<bool, ReadError> {
    let namespace = Namespace::new(SYSTEM_NAMESPACE);
    let namespace = namespace.map_err(|error| ReadError::storage(error.to_string()))?;
    let address = BranchAddress::active(namespace, engine.place(audit_conversation()));
    match engine.conversation(&address, None).await {
        Ok(_) => Ok(true),
        Err(ReadError::ConversationNotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Records actions in the store.
#[derive(Clone)]
pub(super) struct Audit {
    engine: Engine,
    begun: Arc<OnceCell<Namespace>>,
    noted: RecentReads,
}

impl Audit {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            begun: Arc::default(),
            noted: RecentReads::default(),
        }
    }

    /// Returns the audit entries for the decisions of a batch, to be appended with it, or `None`
    /// when the batch decides nothing or the caller has no key.
    ///
    /// # Errors
    /// When the audit cannot be created: then nothing may be decided.
    pub(crate) async fn of_decisions(
        &self,
        caller: &Caller,
        command: &AppendCommand<EncodedBody>,
    ) -> Result<Option<Companion>, AppendError> {
        let mut events = command.events.iter();
        let (true, Some((name, id))) = (events.any(|it| decision(it).is_some()), caller.key())
        else {
            return Ok(None);
        };
        let system = self.begun.get_or_try_init(|| self.begin()).await?.clone();
        let (name, id) = (name.to_owned(), id.clone());
        let audit = self.conversation();
        let namespace = command.namespace.clone();
        Ok(Some(Companion::new(move |events, placed| {
            let decided = events.iter().zip(placed);
            let notes = decided.filter_map(|(event, placed)| {
                let decided = decision(event)?;
                let details = json!({
                    "conversation_id": event.conversation.to_string(),
                    "revision": placed.at.revision.0,
                    "call_id": decided.call_id,
                    "decision": match decided.decision {
                        Decision::Approved => "approved",
                        Decision::Denied => "denied",
                        Decision::Expired => "expired",
                    },
                });
                let about = about("decide", &name, &id, &namespace, details);
                Some(self::event(audit, &name, about, None))
            });
            AppendCommand::new(system.clone(), notes.collect())
        })))
    }

    /// Records an erasure that is about to begin. An erased literal is not recorded, only its
    /// length.
    ///
    /// # Errors
    /// When it cannot be recorded.
    pub(crate) async fn erases(
        &self,
        caller: &Caller,
        target: &EraseTarget,
    ) -> Result<(), AppendError> {
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

    /// Records a read of everything in a namespace.
    ///
    /// # Errors
    /// When it cannot be recorded.
    pub(crate) async fn reads_all(&self, caller: &Caller) -> Result<(), AppendError> {
        self.note_read("read_all", caller, None).await
    }

    /// Records a read of the whole log for a backup. Failures are only logged: a backup must be
    /// possible when the disk is full.
    pub(crate) async fn backs_up(&self, caller: &Caller) {
        if let Err(error) = self.reads_all(caller).await {
            tell("read_all", caller, &error);
        }
    }

    /// Records that a conversation is read for an export, as the client states.
    ///
    /// # Errors
    /// When it cannot be recorded.
    pub(crate) async fn exports(
        &self,
        caller: &Caller,
        conversation: ConversationId,
    ) -> Result<(), AppendError> {
        self.note_read("export", caller, Some(conversation)).await
    }

    /// Records which keys have read an unusually large amount, each once an hour. Returns false if
    /// this must be retried.
    pub(crate) async fn keys_read(&self, keys: &KeyStore) -> bool {
        let mut all_noted = true;
        for (id, name, reads) in keys.reads() {
            for (many, namespace) in reads.due(MANY_READ) {
                let details = match many {
                    ExceededReadBound::Conversations(count) => json!({"conversations": count}),
                    ExceededReadBound::Bytes(count) => json!({"bytes": count}),
                };
                let about = about("read_many", &name, &id, &namespace, details);
                match self
                    .append(event(self.conversation(), &name, about, None), None)
                    .await
                {
                    Ok(()) => reads.note(many),
                    Err(error) => {
                        let (error, key) = (with_causes(&error), &*name);
                        tracing::error!(
                            %error, key, ?many,
                            "a key's large reads could not be recorded in the audit; retrying"
                        );
                        all_noted = false;
                    }
                }
            }
        }
        all_noted
    }

    /// Records a read that comes in parts, once a minute.
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

    async fn note(&self, deed: &str, caller: &Caller, details: Value) -> Result<(), AppendError> {
        let Some((key, id)) = caller.key() else {
            return Ok(());
        };
        let about = about(deed, key, id, &caller.namespace, details);
        self.append(event(self.conversation(), key, about, None), None)
            .await
    }

    /// Records each creation, rotation and revocation of a key once, even if no server was running.
    /// Returns false when it must be retried.
    pub(crate) async fn keys_changed(&self, keys: &KeyStore) -> bool {
        let Ok(file) = access::read(keys.dir()) else {
            // The key store reports the error.
            return false;
        };
        let done = self.note_keys(&file.keys).await;
        if let Err(error) = &done {
            let error = with_causes(error);
            tracing::error!(%error, "changes of keys could not be recorded in the audit; retrying");
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
                    let event = event(
                        self.conversation(),
                        &change.by,
                        change.about.clone(),
                        Some(change.at),
                    );
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

    fn conversation(&self) -> ConversationId {
        self.engine.place(audit_conversation())
    }

    /// Creates the conversation if it does not exist.
    async fn begin(&self) -> Result<Namespace, AppendError> {
        let namespace = Namespace::new(SYSTEM_NAMESPACE);
        let namespace = namespace.map_err(|error| ReadError::storage(error.to_string()))?;
        let created = EventBody::ConversationCreated(ConversationCreated {
            title: AUDIT_TITLE.to_owned(),
            ..ConversationCreated::default()
        });
        let command = AppendCommand {
            idempotency_key: Some("audit".to_owned()),
            ..AppendCommand::new(
                namespace.clone(),
                vec![NewEvent::new(self.conversation(), created)],
            )
        };
        self.engine.append(command).await?;
        Ok(namespace)
    }
}

/// Where changes of keys, and keys that read an unusually large amount, are recorded.
#[derive(Clone)]
pub(super) enum KeyAudit {
    /// In a store.
    Store(Audit),
    /// In shards of a cluster.
    Shards(Arc<dyn ShardDirectory>),
}

impl KeyAudit {
    /// Returns the audit for changes of keys. In a cluster, one node records them: the owner of the
    /// shard of [`audit_conversation`].
    pub(crate) fn of_changes(&self) -> Option<Audit> {
        match self {
            Self::Store(audit) => Some(audit.clone()),
            Self::Shards(directory) => {
                let shard = directory.shard_map().of(audit_conversation());
                Self::of_shard(&**directory, shard)
            }
        }
    }

    /// Returns the audit for keys that have read unusually much through this process.
    pub(crate) fn of_reads(&self) -> Option<Audit> {
        match self {
            Self::Store(audit) => Some(audit.clone()),
            Self::Shards(directory) => {
                let shard = directory.served().first().copied();
                Self::of_shard(&**directory, shard?)
            }
        }
    }

    /// Returns the audit of a shard that this node serves.
    fn of_shard(directory: &dyn ShardDirectory, shard: ShardId) -> Option<Audit> {
        let local = directory.shard(shard).ok()?;
        Some(Audit::new(local.engine().clone()))
    }
}

/// Logs that an action was done but could not be recorded.
fn tell(deed: &str, caller: &Caller, error: &AppendError) {
    let (error, key) = (with_causes(error), caller.key().map(|(name, _)| name));
    let namespace = caller.namespace.as_str();
    tracing::error!(%error, deed, key, namespace, "done, but not recorded in the audit");
}

/// A change of a key, as recorded.
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

/// Returns the JSON description of what a key did in a namespace.
fn about(deed: &str, key: &str, id: &KeyId, namespace: &Namespace, details: Value) -> Value {
    let about = json!({
        "deed": deed,
        "key": key,
        "key_id": id.as_str(),
        "namespace": namespace.as_str(),
    });
    joined(about, details)
}

fn joined(mut about: Value, details: Value) -> Value {
    if let (Value::Object(about), Value::Object(details)) = (&mut about, details) {
        about.extend(details);
    }
    about
}

fn decision(event: &NewEvent<EncodedBody>) -> Option<&ApprovalDecided> {
    match event.body.body() {
        EventBody::ApprovalDecided(decided) => Some(decided),
        _ => None,
    }
}

fn event(
    conversation: ConversationId,
    actor: &str,
    about: Value,
    at: Option<TimestampMicros>,
) -> NewEvent {
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
        ..NewEvent::new(conversation, body)
    }
}
