//! Schedules the packing of the log into blocks. The log itself does the packing.

use std::sync::{Arc, Mutex, PoisonError, atomic::AtomicBool};

use super::{Engine, PackingMode, error::ReadError};
use treering_domain::with_causes;
use treering_log::{LogError, RedbLog, Rewriter};

/// Maximum size of the frames that closing packs, in bytes: a few tenths of a second of work. More
/// is packed later, when the store is idle.
const CLOSE_BYTES_MAX: u64 = 16 << 20;

/// A flag that is never set, for packing that is not interrupted.
static NEVER: AtomicBool = AtomicBool::new(false);

impl Engine {
    /// Packs the whole log now. Otherwise that happens in the background, when the store is idle
    /// and when it is closed. Appends and reads continue.
    ///
    /// # Errors
    /// [`ReadError::Storage`] with the cause. Nothing is lost, and packing is retried later.
    pub async fn pack_log(&self) -> Result<(), ReadError> {
        let inner = Arc::clone(&self.inner);
        let done = tokio::task::spawn_blocking(move || match &inner.upkeep.packer {
            Some(packer) => packer.log.pack_log(u64::MAX, &NEVER).map(|_| ()),
            None => Ok(()),
        });
        done.await
            .map_err(ReadError::storage)?
            .map_err(ReadError::storage)
    }
}

/// Packs a log in the background and when it is closed.
pub(super) struct LogPacker {
    log: Arc<RedbLog>,
    rewriter: Mutex<Option<Rewriter>>,
    /// Closing packs everything, however long that takes.
    when_closed: bool,
}

impl LogPacker {
    /// Starts packing for a log that is open for writing. `None` if packing is disabled, by the
    /// options or by tests of the whole program that need control over the log's folder.
    pub(super) fn start(log: &Arc<RedbLog>, packing: PackingMode) -> Option<Self> {
        let keeps_frames = std::env::var_os("TREERING_KEEP_FRAMES").is_some();
        if packing == PackingMode::Never || keeps_frames {
            return None;
        }
        let rewriter = Rewriter::start(log).inspect_err(|error| {
            tracing::warn!(error = %with_causes(&error), "could not start compressing the \
                                                          log in the background");
        });
        Some(Self {
            log: Arc::clone(log),
            rewriter: Mutex::new(rewriter.ok()),
            when_closed: packing == PackingMode::WhenClosed,
        })
    }

    /// Stops the background work, and packs as much as closing has time for.
    pub(super) fn close(&self) {
        let rewriter = self
            .rewriter
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(rewriter);
        let done = if self.when_closed {
            self.log.pack_log(u64::MAX, &NEVER).map(|_| ())
        } else {
            self.close_quickly()
        };
        if let Err(error) = done {
            tracing::warn!(error = %with_causes(&error), "compressing the log failed; it is retried later");
        }
    }

    fn close_quickly(&self) -> Result<(), LogError> {
        // Segments that still wait for packing may be large, so closing leaves them.
        if !self.log.has_to_rewrite() && self.log.seal_last(CLOSE_BYTES_MAX)? {
            self.log.rewrite_next(&NEVER)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use futures::StreamExt;

    use crate::{Engine, EventSource, NamedEvent, OpenOptions, ReadQuery, VerifyItem};
    use treering_domain::*;

    /// Appends messages that compress to half of their size.
    async fn fill(engine: &Engine, messages: u64) {
        let id = ConversationId::generate();
        let mut events = vec![NewEvent::new(
            id,
            EventBody::ConversationCreated(ConversationCreated::default()),
        )];
        events.extend((0..messages).map(|number| {
            let hash = |part: u64| blake3::hash(&(number << 8 | part).to_le_bytes()).to_hex();
            let text: String = (0..32).map(|part| hash(part).to_string()).collect();
            let message = MessageAppended::text(Role::User, &text);
            NewEvent::new(id, EventBody::MessageAppended(message))
        }));
        for batch in events.chunks(100) {
            let command = AppendCommand::new(Namespace::default(), batch.to_vec());
            engine.append(command).await.unwrap();
        }
    }

    async fn open(dir: &Path) -> Engine {
        Engine::open(OpenOptions::new(dir)).await.unwrap()
    }

    async fn events(engine: &Engine) -> Vec<NamedEvent> {
        let all = ReadQuery::all(Namespace::default(), EventSource::Log);
        engine.read_all(all).await.unwrap()
    }

    fn is_dense(dir: &Path) -> bool {
        let manifest = std::fs::read_to_string(dir.join("log").join("MANIFEST")).unwrap();
        manifest.contains(r#""form":"blocks""#)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn small_store_is_packed_on_close() {
        // A store that never fills a segment would never pack its frames. A store that only appends
        // a little must not pay for packing.
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path()).await;
        fill(&engine, 5).await;
        engine.close().await;
        assert!(!is_dense(dir.path()));
        let engine = open(dir.path()).await;
        fill(&engine, 700).await;
        let before = events(&engine).await;
        engine.close().await;
        assert!(is_dense(dir.path()));
        let engine = open(dir.path()).await;
        let after = events(&engine).await;
        let equal = |(a, b): (&NamedEvent, &NamedEvent)| a.event == b.event;
        assert_eq!(before.len(), after.len());
        assert!(before.iter().zip(&after).all(equal));
        fill(&engine, 3).await;
        let mut checked = engine.verify(&Namespace::default(), true);
        while let Some(item) = checked.next().await {
            if let VerifyItem::Outcome(outcome) = item.unwrap() {
                assert!(outcome.sound && outcome.faults == 0, "{outcome:?}");
            }
        }
        engine.close().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn store_is_packed_while_open() {
        let dir = tempfile::tempdir().unwrap();
        let engine = open(dir.path()).await;
        fill(&engine, 700).await;
        let before = events(&engine).await;
        engine.pack_log().await.unwrap();
        assert!(is_dense(dir.path()));
        fill(&engine, 3).await;
        let after = events(&engine).await;
        let equal = |(a, b): (&NamedEvent, &NamedEvent)| a.event == b.event;
        assert_eq!(after.len(), before.len() + 4);
        assert!(before.iter().zip(&after).all(equal));
        engine.close().await;
    }
}
