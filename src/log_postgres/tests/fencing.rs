use std::{collections::BTreeMap, sync::Arc};

use treering_domain::EventId;
use treering_log::{EventLog, LogError};

use crate::server::{SHARD, Server, acquire, batch, open, read_all, single_copy};

// Two processes both believe that they own the shard, and append at the same time: each offset must
// have one event, and every acknowledged event must be there.
#[tokio::test(flavor = "multi_thread")]
async fn two_owners_never_share_an_offset() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let database = server.new_log().await;
    let mut owners = Vec::new();
    for number in 1..=2 {
        let log = Arc::new(open(&server.url(&database), single_copy()).await);
        owners.push(tokio::spawn(async move {
            let mut acknowledged = BTreeMap::<u64, EventId>::new();
            let mut fenced = 0;
            let mut owned = acquire(&*log).await;
            while acknowledged.len() < 600 {
                let (records, batch) = batch(owned.head, number + 1);
                match log.append(SHARD, owned.epoch, owned.head, batch).await {
                    Ok(head) => {
                        let offsets = owned.head + 1..=head;
                        acknowledged.extend(offsets.zip(records.iter().map(|r| r.header.id)));
                        owned.head = head;
                    }
                    Err(LogError::NotOwner { .. }) => {
                        fenced += 1;
                        owned = acquire(&*log).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            (acknowledged, fenced)
        }));
    }
    let stored = open(&server.url(&database), single_copy()).await;
    let mut all = BTreeMap::new();
    let mut fenced = 0;
    for owner in owners {
        let (acknowledged, times) = owner.await.unwrap();
        for (offset, id) in acknowledged {
            assert_eq!(
                all.insert(offset, id),
                None,
                "offset {offset} has two events"
            );
        }
        fenced += times;
    }
    assert!(fenced > 2, "the owners did not meet");
    let read = read_all(&stored).await;
    assert_eq!(read.len(), all.len());
    for (record, (offset, id)) in read.iter().zip(all) {
        assert_eq!(record.header.id, id, "offset {offset}");
    }
}

// Two processes hold an epoch, one of them an outdated one, and append at the same moment.
#[tokio::test(flavor = "multi_thread")]
async fn earlier_owner_cannot_append_beside_the_later_one() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let url = server.url(&server.new_log().await);
    let (first, second) = (
        open(&url, single_copy()).await,
        open(&url, single_copy()).await,
    );
    for round in 0..20 {
        let old = acquire(&first).await;
        let new = acquire(&second).await;
        assert_eq!(old.head, new.head);
        let (_, fenced) = batch(old.head, 1);
        let (records, taken) = batch(new.head, 1);
        let (fenced, taken) = tokio::join!(
            first.append(SHARD, old.epoch, old.head, fenced),
            second.append(SHARD, new.epoch, new.head, taken),
        );
        assert!(
            matches!(fenced, Err(LogError::NotOwner { .. })),
            "{fenced:?}"
        );
        assert_eq!(taken.unwrap(), new.head + 1);
        let last = read_all(&second).await.pop().unwrap();
        assert_eq!(last.header.id, records[0].header.id, "round {round}");
    }
}

// A process that does not own the shard follows it, although no message tells it of appends.
#[tokio::test(flavor = "multi_thread")]
async fn other_process_follows() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    let url = server.url(&server.new_log().await);
    let (owner, follower) = (
        open(&url, single_copy()).await,
        open(&url, single_copy()).await,
    );
    let owned = acquire(&owner).await;
    let tail = follower.tail(SHARD, 0);
    let (records, batch) = batch(0, 5);
    let append = owner.append(SHARD, owned.epoch, 0, batch);
    let (head, appended) = tokio::join!(tail, append);
    assert_eq!((head.unwrap(), appended.unwrap()), (5, 5));
    assert_eq!(read_all(&follower).await, records);
}
