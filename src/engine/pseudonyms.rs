//! Pseudonyms for what an event's header says of people.
//!
//! Erasing leaves headers: an actor, a correlation id, an idempotency key. A store with
//! pseudonyms never has them: what is stored instead is a keyed BLAKE3 of each, which is the
//! same for the same text, so that events of one person can still be found by who knows the key,
//! and cannot be guessed by who does not.
//!
//! That a store has them is said by an event of the reserved namespace, which comes with every
//! backup; the key does not. So no store goes back to plain texts because a file is missing.

use std::{io, path::Path};

use crate::{
    disk,
    domain::{
        AppendCommand, ConversationCreated, ConversationId, EventBody, Namespace, NewEvent, hex,
        with_causes,
    },
    engine::{
        Engine, derived_id,
        error::{AppendError, OpenError},
        open::failed,
        secret,
    },
};

/// The file of the key.
const KEY_FILE: &str = "pseudonyms.key";
const PUT_BACK: &str = "put it back. Without it, what is appended again with an idempotency key of \
                        before is not known again";
/// What a pseudonym begins with, so that a person sees what it is.
const PREFIX: &str = "p-";
/// Bytes of the hash that are kept: two texts with one pseudonym are not to be found.
const HASH_BYTES: usize = 16;

/// What texts of headers are replaced with.
#[derive(Clone)]
pub struct Pseudonyms([u8; 32]);

/// Without the key.
impl std::fmt::Debug for Pseudonyms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pseudonyms")
    }
}

impl Pseudonyms {
    /// Those of the store in a folder, if it has them.
    ///
    /// # Errors
    /// What the system says, and [`io::ErrorKind::InvalidData`] for a file that holds no key.
    pub fn of_store(data: &Path) -> io::Result<Option<Self>> {
        let read = secret::read(&data.join(KEY_FILE), PUT_BACK)?;
        Ok(read.map(Self))
    }

    /// Those of the store in a folder; from now on it has them.
    ///
    /// # Errors
    /// As [`Self::of_store`].
    pub fn begin(data: &Path) -> io::Result<Self> {
        if let Some(there) = Self::of_store(data)? {
            return Ok(there);
        }
        secret::make(&data.join(KEY_FILE)).map(Self)
    }

    /// True when the store in a folder has a key of them.
    pub(super) fn are_there(data: &Path) -> bool {
        data.join(KEY_FILE).exists()
    }

    /// What stands for a text in a namespace. Nothing stands for nothing.
    #[must_use]
    pub fn of(&self, namespace: &Namespace, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        // No namespace has this byte, so two of them cannot be taken for each other.
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(namespace.as_str().as_bytes());
        hasher.update(&[0]);
        hasher.update(text.as_bytes());
        format!(
            "{PREFIX}{}",
            hex(&hasher.finalize().as_bytes()[..HASH_BYTES])
        )
    }

    /// Gives the store in another folder those of the one in this, if it has them.
    ///
    /// # Errors
    /// What the system says.
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

    /// Takes the actors, the correlation ids and the idempotency keys out of a batch.
    pub(super) fn disguise<B>(&self, command: &mut AppendCommand<B>) {
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

/// The namespace and the conversation that say that a store has pseudonyms.
fn place() -> Result<(Namespace, ConversationId), AppendError> {
    let namespace = Namespace::new(RESERVED).map_err(AppendError::storage)?;
    let id = derived_id(&namespace, "pseudonyms", &[]);
    Ok((namespace, id))
}

impl Engine {
    /// True when what is appended here has pseudonyms, whether or not their key is there.
    ///
    /// # Errors
    /// [`AppendError::Read`] when that cannot be read.
    pub fn has_pseudonyms(&self) -> Result<bool, AppendError> {
        let (namespace, id) = place()?;
        Ok(self.inner.pseudonyms.is_some() || self.inner.find_row(&namespace, id)?.is_some())
    }

    /// Lets the store say that it has pseudonyms, if it has; and refuses to go on without them.
    /// `anew`: the key was made just now.
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

    /// False: the store has them, and their key is not there.
    async fn say_pseudonyms(&self, anew: bool) -> Result<bool, AppendError> {
        let (namespace, id) = place()?;
        let is_said = self.inner.find_row(&namespace, id)?.is_some();
        if self.inner.pseudonyms.is_none() {
            return Ok(!is_said);
        }
        if is_said {
            if anew {
                tracing::warn!(
                    "the key of this store's pseudonyms was lost, and there is a new one: the \
                     same text has another pseudonym than before, and what is appended again \
                     with an idempotency key of before is not known again"
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
            // They are in force all the same: the key is there.
            let error = with_causes(&error);
            tracing::warn!(%error, "that this store has pseudonyms could not be noted; it is tried again at the next start");
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::OpenOptions;

    // The same person is the same pseudonym after a restart, another one in another tenant's
    // namespace, and another one in another store.
    #[test]
    fn one_text_has_one_pseudonym_in_one_place() {
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

    // Somebody was to be forgotten, and the mail address stood in the header of each event, where
    // no erasing reaches. It must never come to the disk; and what is sent again, with the same
    // key, must still be told from something new, after a restart that does not name the flag.
    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_of_a_person_is_in_a_header() {
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

    // A store that gets pseudonyms has keys from before. What is sent again with one of them is
    // no second message.
    #[tokio::test(flavor = "multi_thread")]
    async fn keys_of_before_are_known() {
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

    // The key was lost, and the store went on in plain text without a word: it refuses, reads
    // all the same, and gets another key only when it is told to.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_store_never_loses_its_pseudonyms() {
        let dir = tempfile::tempdir().unwrap();
        opened(dir.path(), true).await.close().await;
        std::fs::remove_file(dir.path().join(KEY_FILE)).unwrap();
        let refused = Engine::open(OpenOptions::new(dir.path())).await;
        let error = refused.map(drop).unwrap_err();
        assert!(matches!(error, OpenError::NoPseudonyms { .. }), "{error}");
        assert!(!Pseudonyms::are_there(dir.path()));
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
