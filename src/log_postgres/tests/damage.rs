use treering_log::{EventLog, LogError, frame};

use crate::server::{SHARD, Server, acquire, batch, open, single_copy};

// A flipped bit in a stored frame, a missing row, a changed count: a read must report the offset,
// the frames before it must be readable, and the next frame must be found.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_rows_are_reported_with_their_offset() {
    let Some(server) = Server::single(&[]).await else {
        return;
    };
    for damage in [
        "update treering_frame set bytes = set_byte(bytes, 50, get_byte(bytes, 50) # 4)",
        "update treering_frame set bytes = substr(bytes, 1, 60)",
        "update treering_frame set bytes = ''",
        "update treering_frame set count = count - 1",
        "update treering_frame set first_offset = first_offset + 1",
        "delete from treering_frame",
    ] {
        let database = server.new_log().await;
        let log = open(&server.url(&database), single_copy()).await;
        let mut owned = acquire(&log).await;
        for count in [2, 3, 2] {
            let (_, batch) = batch(owned.head, count);
            owned.head = log
                .append(SHARD, owned.epoch, owned.head, batch)
                .await
                .unwrap();
        }
        server
            .sql_in(&database, &format!("{damage} where first_offset = 3"))
            .await;
        let before = log.read(SHARD, 1, 1 << 20).await.unwrap();
        assert_eq!(before.len(), 1, "{damage}");
        assert_eq!(frame::decode(&before[0]).unwrap().records.len(), 2);
        let error = log.read(SHARD, 3, 1 << 20).await;
        assert!(
            matches!(error, Err(LogError::Damaged { offset: 3, .. })),
            "{damage}: {error:?}"
        );
        assert_eq!(log.next_frame(SHARD, 5).await.unwrap(), Some(6), "{damage}");
        assert_eq!(
            log.read(SHARD, 6, 1 << 20).await.unwrap().len(),
            1,
            "{damage}"
        );
    }
}
