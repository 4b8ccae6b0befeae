//! A store with a failing log, for tests of code built on the engine. Unexpected failures panic.

#![allow(clippy::missing_panics_doc)]

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::StreamExt;
use treering_domain::*;
use treering_log::fallible_log::{AppendEnding, FallibleLog};

use super::{AppendError, Engine, OpenOptions, VerifyItem};

const PATIENCE: Duration = Duration::from_secs(180);

/// A store over a log that fails on demand.
pub struct Store {
    /// The log.
    pub log: Arc<FallibleLog>,
    /// The engine.
    pub engine: Engine,
    /// Its only conversation.
    pub conversation: ConversationId,
    _dir: tempfile::TempDir,
}

impl Store {
    /// Creates a store with one conversation, made with the key "made".
    pub async fn new() -> Self {
        Self::over(FallibleLog::default()).await
    }

    /// Creates a store over this log.
    pub async fn over(log: FallibleLog) -> Self {
        Self::with_quota(log, Quota::default()).await
    }

    /// Creates a store over this log, with a quota for its namespace.
    pub(crate) async fn with_quota(log: FallibleLog, quota: Quota) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(log);
        let mut options = OpenOptions::new(dir.path());
        options.quotas.others = quota;
        let engine = Engine::over_with(Arc::clone(&log) as _, options);
        let engine = engine.await.unwrap();
        let store = Self {
            log,
            engine,
            conversation: ConversationId::generate(),
            _dir: dir,
        };
        store.engine.append(store.made()).await.unwrap();
        store
    }

    /// Returns the command that creates the conversation.
    pub fn made(&self) -> AppendCommand {
        let body = EventBody::ConversationCreated(ConversationCreated::default());
        self.keyed("made", body)
    }

    /// Returns an append of a message with an idempotency key.
    pub fn message(&self, key: &str) -> AppendCommand {
        let message = MessageAppended::text(Role::User, format!("of {key}"));
        self.keyed(key, EventBody::MessageAppended(message))
    }

    /// Returns an append of an event with an idempotency key.
    pub fn keyed(&self, key: &str, body: EventBody) -> AppendCommand {
        let events = vec![NewEvent::new(self.conversation, body)];
        let mut command = AppendCommand::new(Namespace::default(), events);
        command.idempotency_key = Some(key.to_owned());
        command
    }

    /// Appends "lost". The outcome stays unknown until [`Self::mend`].
    pub async fn lose(&self, outcome: AppendEnding) {
        self.log.next_ends(outcome);
        self.log.deaf.store(true, Ordering::SeqCst);
        let error = self.engine.append(self.message("lost")).await.unwrap_err();
        assert!(
            matches!(error, AppendError::UnknownOutcome { .. }),
            "{error}"
        );
    }

    /// Makes the log answer again.
    pub fn mend(&self) {
        self.log.deaf.store(false, Ordering::SeqCst);
    }

    /// Retries an append until it succeeds.
    pub async fn insist(&self, command: AppendCommand) -> AppendOutcome {
        let insisting = async {
            loop {
                match self.engine.append(command.clone()).await {
                    Ok(outcome) => return outcome,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, insisting).await.unwrap()
    }

    /// Checks that projections and index equal what a rebuild would produce.
    pub async fn assert_sound(&self, events: u64) {
        let mut items = self.engine.verify(&Namespace::default(), true);
        while let Some(item) = items.next().await {
            match item.unwrap() {
                VerifyItem::Fault(fault) => panic!("{fault:?}"),
                VerifyItem::Outcome(outcome) => {
                    assert!(outcome.sound);
                    assert_eq!(outcome.events, events);
                }
                VerifyItem::Progress(_) => {}
            }
        }
    }
}
