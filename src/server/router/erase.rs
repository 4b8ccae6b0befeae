//! Erasing what can be in any shard: a literal, a namespace, conversations that are due.
//!
//! One shard after the other erases, and makes a receipt of its own. Each is a store: its erasure
//! is recorded there, and finished there if it is interrupted. The client gets all items as one
//! stream, and one outcome with all receipts.

use bytes::Bytes;
use futures::stream;
use http::Response;
use tokio::sync::mpsc;
use tonic::{Status, body::Body};

use super::{
    ShardRouter,
    answers::{AnswerMessages, streamed},
    call::{CallHead, with_prefix},
};
use treering_domain::ShardId;
use treering_proto::pb::{self, erase_response::Item};

pub(super) const ERASE: &str = "/treering.v1.Conversations/Erase";
/// Maximum number of items that wait for a slow client.
const ITEMS_MAX: usize = 64;

type Items = mpsc::Sender<Result<pb::EraseResponse, Status>>;

/// The outcomes of the shards, added up.
#[derive(Default)]
struct Outcomes {
    sum: pb::EraseOutcome,
    receipts: Vec<String>,
}

impl Outcomes {
    fn add(&mut self, of: pb::EraseOutcome) {
        self.sum.events += of.events;
        self.sum.derived += of.derived;
        self.sum.stay += of.stay;
        self.receipts
            .extend(Some(of.receipt).filter(|text| !text.is_empty()));
    }

    /// Returns the outcome of all. Several receipts are a JSON array.
    fn outcome(self) -> pb::EraseOutcome {
        let receipt = match &self.receipts[..] {
            [] => String::new(),
            [one] => one.clone(),
            several => format!("[{}]", several.join(",")),
        };
        pb::EraseOutcome {
            receipt,
            ..self.sum
        }
    }
}

impl ShardRouter {
    /// Erases in every shard. Continues if the client leaves. After a failure, later shards are not
    /// asked; the client gets the outcome of the earlier ones, whose receipts cannot be made again,
    /// and then the error.
    pub(super) fn erase(&self, call: &CallHead, message: &Bytes) -> Response<Body> {
        let (items, mut received) = mpsc::channel(ITEMS_MAX);
        let (router, call) = (self.clone(), call.read_here());
        let message = with_prefix(message);
        tokio::spawn(async move {
            let mut outcomes = Outcomes::default();
            let done = router
                .erase_in_turn(&call, &message, &items, &mut outcomes)
                .await;
            if done.is_ok() || !outcomes.receipts.is_empty() {
                let last = Item::Outcome(outcomes.outcome());
                let _gone = items.send(Ok(pb::EraseResponse { item: Some(last) })).await;
            }
            if let Err(status) = done {
                let _gone = items.send(Err(status)).await;
            }
        });
        streamed(stream::poll_fn(move |context| received.poll_recv(context)))
    }

    async fn erase_in_turn(
        &self,
        call: &CallHead,
        message: &Bytes,
        items: &Items,
        outcomes: &mut Outcomes,
    ) -> Result<(), Status> {
        for shard in (0..self.inner.directory.shards()).map(ShardId) {
            let mut one = call.beside(ERASE, message.clone());
            let answer = self.serve(&mut one, shard).await?;
            outcomes.add(passed_on(answer, items).await?);
        }
        Ok(())
    }
}

/// Passes on the items of a shard's answer to the client, which may be gone. Returns its outcome.
async fn passed_on(answer: Response<Body>, items: &Items) -> Result<pb::EraseOutcome, Status> {
    let mut messages = AnswerMessages::of(answer);
    let mut outcome = None;
    while let Some(message) = messages.next::<pb::EraseResponse>().await? {
        match message.item {
            Some(Item::Outcome(last)) => outcome = Some(last),
            _ => {
                let _gone = items.send(Ok(message)).await;
            }
        }
    }
    outcome.ok_or_else(|| {
        Status::unknown("a shard did not say how its erasure ended; erase again to be sure")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each shard signs a receipt of its own, and none can be made again.
    #[test]
    fn outcome_has_all_receipts() {
        let of = |events, receipt: &str| pb::EraseOutcome {
            events,
            derived: 1,
            stay: 2,
            receipt: receipt.to_owned(),
        };
        let sum = |all: &[pb::EraseOutcome]| {
            let mut outcomes = Outcomes::default();
            all.iter().cloned().for_each(|one| outcomes.add(one));
            outcomes.outcome()
        };
        assert_eq!(sum(&[]).receipt, "");
        let one = sum(&[of(0, ""), of(4, "{\"a\":1}")]);
        assert_eq!((one.events, &*one.receipt), (4, "{\"a\":1}"));
        let two = sum(&[of(3, "{}"), of(4, "{\"a\":1}")]);
        assert_eq!((two.events, two.derived, two.stay), (7, 2, 4));
        assert_eq!(two.receipt, "[{},{\"a\":1}]");
    }
}
