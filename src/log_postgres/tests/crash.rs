use std::{sync::mpsc, thread, time::Duration};

use futures::executor::block_on;
use treering_log::{EventLog, LogError};

use crate::server::{SHARD, Server, acquire, batch, open, read_all, single_copy};

// The server is killed repeatedly while a writer appends as fast as it can. Every acknowledged
// append must be there once and in order; acquiring the shard again shows the outcome of the
// others.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_appends_survive_kills_of_the_server() {
    let Some(mut server) = Server::single(&[]).await else {
        return;
    };
    let url = server.url(&server.new_log().await);
    let log = std::sync::Arc::new(open(&url, single_copy()).await);
    let mut ledger = Vec::new();
    for round in 0..4_u64 {
        let owned = acquire(&*log).await;
        assert_eq!(owned.head, ledger.len() as u64, "round {round}");
        let (sender, answers) = mpsc::channel();
        let appending = log.clone();
        // On a thread without a runtime, like the writer of a store.
        let writer = thread::spawn(move || {
            let mut head = owned.head;
            loop {
                let (records, batch) = batch(head, 3);
                let appended = block_on(appending.append(SHARD, owned.epoch, head, batch));
                let failed = appended.is_err();
                head = *appended.as_ref().unwrap_or(&head);
                sender.send((records, appended)).unwrap();
                if failed {
                    return;
                }
            }
        });
        tokio::time::sleep(Duration::from_millis(300 + 70 * round)).await;
        server.kill();
        writer.join().unwrap();
        server.start().await;
        let owned = acquire(&*log).await;
        for (records, appended) in answers {
            let there = match appended {
                Ok(_) => true,
                Err(LogError::UnknownOutcome { .. }) => owned.head > ledger.len() as u64,
                // The session was known to be lost before anything was sent.
                Err(LogError::Unavailable { .. }) => false,
                Err(error) => panic!("{error}"),
            };
            if there {
                ledger.extend(records);
            }
        }
        assert!(
            ledger.len() as u64 > 20 * (round + 1),
            "{} events",
            ledger.len()
        );
        assert_eq!(owned.head, ledger.len() as u64, "round {round}");
    }
    assert_eq!(read_all(&*log).await, ledger);
    assert_eq!(read_all(&open(&url, single_copy()).await).await, ledger);
}
