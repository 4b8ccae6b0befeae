//! Pseudonyms for personal data in event headers.
//!
//! An erasure keeps headers: the actor, the correlation id, the idempotency key. A store with
//! pseudonyms stores a keyed BLAKE3 hash of each of these texts, never the text. Equal texts have
//! equal hashes, so someone with the key can still find a person's events, and someone without it
//! cannot guess the texts.
//!
//! An event in the reserved namespace records that a store has pseudonyms. Backups include that
//! event but not the key. A missing key file therefore never makes a store fall back to plain text.

use std::{io, path::Path};

use crate::{
    Engine, derived_id,
    error::{AppendError, OpenError},
    open::failed,
    secret,
};
use treering_base::disk;
use treering_domain::{
    AppendCommand, ConversationCreated, ConversationId, EventBody, Namespace, NewEvent, hex,
    with_causes,
};

/// Name of the key file.
const KEY_FILE: &str = "pseudonyms.key";
const PUT_BACK: &str = "restore the original. Without it, retries of appends with earlier \
                        idempotency keys are not recognised";
/// Prefix of a pseudonym, so that people recognise it.
const PREFIX: &str = "p-";
/// Bytes of the hash that are kept: enough that finding two texts with one pseudonym is infeasible.
const HASH_BYTES: usize = 16;

/// The key of the hashes that replace header texts.
#[derive(Clone)]
pub(crate) struct Pseudonyms([u8; 32]);

/// Does not print the key.
impl std::fmt::Debug for Pseudonyms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pseudonyms")
    }
}

/// Returns true if a store's folder has the key of its pseudonyms.
#[must_use]
pub fn has_pseudonym_key(data: &Path) -> bool {
    data.join(KEY_FILE).exists()
}

impl Pseudonyms {
    /// Returns the pseudonyms of the store in a folder, if it has them.
    ///
    /// # Errors
    /// The I/O error, or [`io::ErrorKind::InvalidData`] for a file that holds no key.
    pub(crate) fn of_store(data: &Path) -> io::Result<Option<Self>> {
        let read = secret::read(&data.join(KEY_FILE), PUT_BACK)?;
        Ok(read.map(Self))
    }

    /// Returns the pseudonyms of the store in a folder, creating the key if there is none.
    ///
    /// # Errors
    /// As [`Self::of_store`].
    pub(crate) fn begin(data: &Path) -> io::Result<Self> {
        if let Some(there) = Self::of_store(data)? {
            return Ok(there);
        }
        secret::make(&data.join(KEY_FILE)).map(Self)
    }

    /// Returns the pseudonym of a text in a namespace. An empty text stays empty.
    #[must_use]
    pub(crate) fn of(&self, namespace: &Namespace, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        // No namespace name contains this byte, so the input is unambiguous.
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(namespace.as_str().as_bytes());
        hasher.update(&[0]);
        hasher.update(text.as_bytes());
        format!(
            "{PREFIX}{}",
            hex(&hasher.finalize().as_bytes()[..HASH_BYTES])
        )
    }

    /// Copies the key, if there is one, from one store's folder to another.
    ///
    /// # Errors
    /// The I/O error.
    pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
        match std::fs::read(from.join(KEY_FILE)) {
            Ok(key) => {
                disk::write(&to.join(KEY_FILE), &key)?;
                disk::sync_folder(to)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Replaces the actors, correlation ids and idempotency keys of a batch.
    pub(super) fn pseudonymize<B>(&self, command: &mut AppendCommand<B>) {
        let namespace = &command.namespace;
        if let Some(key) = &mut command.idempotency_key {
            *key = self.of(namespace, key);
        }
        let creation = command.create_if_missing.as_deref_mut();
        for event in command.events.iter_mut().chain(creation) {
            event.actor = self.of(namespace, &event.actor);
            event.correlation_id = self.of(namespace, &event.correlation_id);
            if let Some(key) = &mut event.idempotency_key {
                *key = self.of(namespace, key);
            }
        }
    }
}

/// The server's own namespace.
const RESERVED: &str = "_system";

/// Returns the namespace and conversation that record that a store has pseudonyms.
fn place() -> Result<(Namespace, ConversationId), AppendError> {
    let namespace = Namespace::new(RESERVED).map_err(AppendError::storage)?;
    let id = derived_id(&namespace, "pseudonyms", &[]);
    Ok((namespace, id))
}

impl Engine {
    /// Returns true when the store has pseudonyms, whether or not their key is present.
    ///
    /// # Errors
    /// [`AppendError::Read`] when the projections cannot be read.
    pub fn has_pseudonyms(&self) -> Result<bool, AppendError> {
        let (namespace, id) = place()?;
        Ok(self.inner.appends.pseudonyms.is_some()
            || self.inner.reads.find_row(&namespace, id)?.is_some())
    }

    /// Records that the store has pseudonyms, if it has them. Fails if their key is missing.
    /// `anew`: the key was just created.
    pub(super) async fn keep_pseudonyms(self, anew: bool) -> Result<Self, OpenError> {
        let dir = &self.inner.options.data_dir;
        let kept = self.say_pseudonyms(anew).await;
        match kept {
            Ok(true) => Ok(self),
            Ok(false) => {
                let path = dir.clone();
                self.close().await;
                Err(OpenError::NoPseudonyms { path })
            }
            Err(error) => {
                let error = failed(dir, error);
                self.close().await;
                Err(error)
            }
        }
    }

    /// Records that the store has pseudonyms, if it has them. Returns false if their key is
    /// missing.
    async fn say_pseudonyms(&self, anew: bool) -> Result<bool, AppendError> {
        let (namespace, id) = place()?;
        let is_said = self.inner.reads.find_row(&namespace, id)?.is_some();
        if self.inner.appends.pseudonyms.is_none() {
            return Ok(!is_said);
        }
        if is_said {
            if anew {
                tracing::warn!(
                    "the key of this store's pseudonyms was lost and replaced: the same text now \
                     has another pseudonym, and retries of appends with earlier idempotency keys \
                     are not recognised"
                );
            }
            return Ok(true);
        }
        let created = EventBody::ConversationCreated(ConversationCreated {
            title: "Headers of this store have pseudonyms".to_owned(),
            ..ConversationCreated::default()
        });
        let command = AppendCommand::new(namespace, vec![NewEvent::new(id, created)]);
        if let Err(error) = self.append(command).await {
            // Pseudonyms are in effect anyway, because the key exists.
            let error = with_causes(&error);
            tracing::warn!(%error, "could not record that this store has pseudonyms; the next \
                                    start retries");
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenOptions;

    // One person has the same pseudonym after a restart, but different ones in another tenant's
    // namespace and in another store.
    #[test]
    fn pseudonym_is_stable_per_store_and_namespace() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Pseudonyms::of_store(dir.path()).unwrap().is_none());
        let first = Pseudonyms::begin(dir.path()).unwrap();
        let again = Pseudonyms::of_store(dir.path()).unwrap().unwrap();
        let other = Pseudonyms::begin(tempfile::tempdir().unwrap().path()).unwrap();
        let [one, two] = ["one", "two"].map(|name| Namespace::new(name).unwrap());
        let said = first.of(&one, "ada@example.com");
        assert!(said.starts_with("p-") && said.len() == 34, "{said}");
        assert_eq!(again.of(&one, "ada@example.com"), said);
        assert_ne!(first.of(&two, "ada@example.com"), said);
        assert_ne!(other.of(&one, "ada@example.com"), said);
        assert_eq!(first.of(&one, ""), "");
    }
    const ADA: &str = "ada.lovelace@example.com";

    fn hello(id: ConversationId, key: &str) -> AppendCommand {
        let created = EventBody::ConversationCreated(ConversationCreated::default());
        let mut event = NewEvent::new(id, created);
        event.actor = ADA.to_owned();
        event.correlation_id = ADA.to_owned();
        AppendCommand {
            idempotency_key: Some(key.to_owned()),
            ..AppendCommand::new(Namespace::default(), vec![event])
        }
    }

    async fn opened(dir: &Path, pseudonyms: bool) -> Engine {
        let options = OpenOptions {
            pseudonyms,
            ..OpenOptions::new(dir)
        };
        Engine::open(options).await.unwrap()
    }

    fn holds(dir: &Path, text: &str) -> bool {
        std::fs::read_dir(dir).unwrap().flatten().any(|entry| {
            let path = entry.path();
            match path.is_dir() {
                true => holds(&path, text),
                false => std::fs::read(&path)
                    .is_ok_and(|bytes| bytes.windows(text.len()).any(|at| at == text.as_bytes())),
            }
        })
    }

    // A person's data had to be erased, but the mail address was in every event's header, which
    // erasure keeps. It must never reach the disk. A retry with the same key must still be
    // recognised, also after a restart without the flag.
    #[tokio::test(flavor = "multi_thread")]
    async fn headers_on_disk_contain_only_pseudonyms() {
        let dir = tempfile::tempdir().unwrap();
        let key = format!("mail from {ADA}");
        let engine = opened(dir.path(), true).await;
        let id = ConversationId::generate();
        let first = engine.append(hello(id, &key)).await.unwrap();
        engine.close().await;
        assert!(!holds(dir.path(), ADA));

        let engine = opened(dir.path(), false).await;
        let again = engine.append(hello(id, &key)).await.unwrap();
        assert!(again.repeated_key && again.events == first.events);
        let ns = Namespace::default();
        assert!(engine.appended_with_key(&ns, &key).await.unwrap().is_some());
        let known = engine
            .known_keys(&ns, vec![key.clone(), "other".to_owned()])
            .await;
        assert_eq!(known.unwrap(), [true, false]);
        engine.close().await;
        assert!(!holds(dir.path(), ADA));
    }

    // A store that switches to pseudonyms has earlier keys in plain text. A retry with one of them
    // must not append again.
    #[tokio::test(flavor = "multi_thread")]
    async fn idempotency_keys_from_before_pseudonyms_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let engine = opened(dir.path(), false).await;
        let id = ConversationId::generate();
        engine.append(hello(id, "before")).await.unwrap();
        engine.close().await;
        let engine = opened(dir.path(), true).await;
        assert!(
            engine
                .append(hello(id, "before"))
                .await
                .unwrap()
                .repeated_key
        );
        engine.close().await;
    }

    // The key was lost, and the store silently continued in plain text. It must refuse to append,
    // still open read-only, and create a new key only when told to.
    #[tokio::test(flavor = "multi_thread")]
    async fn store_without_its_pseudonym_key_opens_only_to_read() {
        let dir = tempfile::tempdir().unwrap();
        opened(dir.path(), true).await.close().await;
        std::fs::remove_file(dir.path().join(KEY_FILE)).unwrap();
        let refused = Engine::open(OpenOptions::new(dir.path())).await;
        let error = refused.map(drop).unwrap_err();
        assert!(matches!(error, OpenError::NoPseudonyms { .. }), "{error}");
        assert!(!crate::has_pseudonym_key(dir.path()));
        let reading = Engine::open(OpenOptions::new(dir.path()).read_only()).await;
        let reading = reading.unwrap();
        assert!(reading.has_pseudonyms().unwrap());
        reading.close().await;
        let engine = opened(dir.path(), true).await;
        let id = ConversationId::generate();
        engine.append(hello(id, "again")).await.unwrap();
        engine.close().await;
        assert!(!holds(dir.path(), ADA));
        opened(dir.path(), false).await.close().await;
        let plain = tempfile::tempdir().unwrap();
        let engine = opened(plain.path(), false).await;
        assert!(!engine.has_pseudonyms().unwrap());
        assert_eq!(engine.head().offset, 0);
        engine.close().await;
    }
}
