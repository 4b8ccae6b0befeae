//! Tests with logs that no released program produces.

use async_trait::async_trait;
use futures::{StreamExt, stream::BoxStream};

use super::*;
use treering_backup::{BackupError, BackupSource};
use treering_domain::*;
use treering_engine::{
    BackupNote, Engine, EraseCommand, EraseTarget, OpenOptions, ShipQuery, ShipmentItem, Signer,
};

async fn append(engine: &Engine, id: Option<ConversationId>) -> ConversationId {
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let said = EventBody::MessageAppended(MessageAppended::text(Role::User, "a word"));
    let first = id.is_none().then_some(created);
    let id = id.unwrap_or_else(ConversationId::generate);
    let bodies = first.into_iter().chain([said]);
    let events = bodies.map(|body| NewEvent::new(id, body)).collect();
    let command = AppendCommand::new(Namespace::default(), events);
    engine.append(command).await.unwrap();
    id
}

async fn erase(engine: &Engine, conversation: ConversationId) {
    let mut items = engine.erase(EraseCommand {
        namespace: Namespace::default(),
        target: EraseTarget::Revisions {
            conversation,
            revisions: vec![2..=2],
        },
        keep_derived: false,
        dry_run: false,
        reason: "asked to".to_owned(),
        actor: "operator".to_owned(),
    });
    while let Some(item) = items.next().await {
        item.unwrap();
    }
}

/// A store that does not report erasures.
struct UnreportedErasures(Engine);

#[async_trait]
impl BackupSource for UnreportedErasures {
    async fn ship(
        &self,
        query: ShipQuery,
    ) -> Result<BoxStream<'static, Result<ShipmentItem, BackupError>>, BackupError> {
        let items = BackupSource::ship(&self.0, query).await?;
        let is_told = |item: &Result<ShipmentItem, BackupError>| {
            !matches!(item, Ok(ShipmentItem::Erasure(_)))
        };
        Ok(items
            .filter(move |item| std::future::ready(is_told(item)))
            .boxed())
    }

    async fn note(&self, _note: BackupNote) -> Result<(), BackupError> {
        Ok(())
    }
}

fn signed(found: &survey::SurveyResult, signer: &Signer) -> SignedHead {
    SignedHead::sign(found.log, found.at, found.root.unwrap(), signer)
}

// The hash of an erased event stays in the chain. Somebody with access to the folder could
// therefore replace events with stubs, and every hash would still match. The history must record
// the erasure of all missing content.
#[tokio::test(flavor = "multi_thread")]
async fn missing_content_without_an_erasure_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    let id = append(&engine, None).await;
    append(&engine, Some(id)).await;
    let signer = Signer::of_store(dir.path()).unwrap();
    let found = survey(&engine, None, |_, _| {}).await.unwrap();
    let head = signed(&found, &signer);
    let of = signer.public();
    let silent = UnreportedErasures(engine.clone());
    check(&silent, &head, of, false, |_, _| {}).await.unwrap();
    erase(&engine, id).await;
    let checked = check(&engine, &head, of, false, |_, _| {}).await.unwrap();
    assert_eq!((checked.ends, checked.erased), (4, 1));
    let missed = check(&silent, &head, of, false, |_, _| {}).await;
    assert!(
        matches!(missed, Err(HeadError::NotErased { count: 1, conversation, revision })
            if (conversation, revision) == (id, Revision(2))),
        "{missed:?}"
    );
    engine.close().await;
}

// New heads of an idle store would bury those that matter. A head computed in steps, as on a
// server, must equal one computed at once.
#[tokio::test(flavor = "multi_thread")]
async fn head_is_stored_only_if_the_log_grew() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    let file = dir.path().join("head.json");
    let target = HeadTarget::new(file.to_str().unwrap()).unwrap();
    let signer = || Signer::of_store(dir.path()).unwrap();
    let mut keeping = HeadKeeper::new(engine.clone(), signer(), target);
    assert!(!keeping.put_if_new().await.unwrap(), "of an empty store");
    for round in 0..3 {
        let id = append(&engine, None).await;
        append(&engine, Some(id)).await;
        assert!(keeping.put_if_new().await.unwrap());
        let text = std::fs::read_to_string(&file).unwrap();
        let found = survey(&engine, None, |_, _| {}).await.unwrap();
        let at_once = signed(&found, &signer());
        let head = SignedHead::read(&text).unwrap();
        assert_eq!((head.root, head.position), (at_once.root, at_once.position));
        assert_eq!(head.conversations, round + 1);
        std::fs::remove_file(&file).unwrap();
        assert!(!keeping.put_if_new().await.unwrap());
        assert!(!file.exists());
    }
    engine.close().await;
}

// A head commits to all of its fields: a change of any part of its text must be refused.
#[test]
fn every_field_of_a_head_is_signed() {
    let dir = tempfile::tempdir().unwrap();
    let signer = Signer::of_store(dir.path()).unwrap();
    let log = treering_engine::LogIdentity {
        store: uuid::Uuid::from_u128(1),
        timeline: uuid::Uuid::from_u128(2),
    };
    let head = SignedHead::sign(log, 7, (ContentHash([3; 32]), 2), &signer);
    assert_eq!(SignedHead::read(head.text()).unwrap(), head);
    let fields: serde_json::Value = serde_json::from_str(head.text()).unwrap();
    let fields = fields.as_object().unwrap();
    assert_eq!(fields.len(), 10);
    for (name, value) in fields {
        let mut changed = fields.clone();
        let other: serde_json::Value = match value {
            serde_json::Value::Number(_) => 9.into(),
            _ => value.as_str().unwrap().replace(['0', '1', '2'], "3").into(),
        };
        assert_ne!(*value, other, "{name}");
        changed.insert(name.clone(), other);
        let read = SignedHead::read(&serde_json::to_string(&changed).unwrap());
        assert!(read.is_err(), "{name}");
        changed.remove(name);
        let read = SignedHead::read(&serde_json::to_string(&changed).unwrap());
        assert!(read.is_err(), "without {name}");
    }
}
