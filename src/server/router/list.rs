//! The list of conversations in a cluster.
//!
//! Each shard returns its own page in the order of the list, and a token for each place in it. The
//! pages are merged by the time that orders them. The token of the next page has the token of each
//! shard at the first conversation that was not returned.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use prost::Message;
use tonic::Status;

use super::{ShardRouter, call::CallHead, scatter::decoded_request};
use crate::{
    bounds::{LOOKUP_BYTES_MAX, PAGE_DEFAULT},
    from_proto::InvalidField,
};
use treering_domain::ShardId;
use treering_proto::pb;

const LIST_PART: &str = "/treering.v1.Shards/ListPart";

/// The content of a page token.
#[derive(Clone, PartialEq, Message)]
struct ListToken {
    /// One for each shard, in order.
    #[prost(message, repeated, tag = "1")]
    shards: Vec<ShardPlace>,
}

/// The place in the list of one shard.
#[derive(Clone, PartialEq, Message)]
struct ShardPlace {
    /// The shard's token of the page that is read next. Empty: its first page.
    #[prost(string, tag = "1")]
    token: String,
    /// All conversations of the shard were returned.
    #[prost(bool, tag = "3")]
    ended: bool,
}

impl ListToken {
    fn parse(text: &str, shards: u32) -> Result<Self, InvalidField> {
        if text.is_empty() {
            return Ok(Self {
                shards: vec![ShardPlace::default(); shards as usize],
            });
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok();
        let token = bytes.and_then(|bytes| Self::decode(&*bytes).ok());
        let token = token.filter(|token| token.shards.len() == shards as usize);
        token.ok_or_else(|| {
            let message = "is not a token of this cluster: restart the list without a token";
            InvalidField::new("page_token", message)
        })
    }

    /// Returns the text of the token; empty if every shard has ended.
    fn text(&self) -> String {
        match self.shards.iter().all(|shard| shard.ended) {
            true => String::new(),
            false => URL_SAFE_NO_PAD.encode(self.encode_to_vec()),
        }
    }
}

/// The page of one shard that is being merged.
struct ShardPage {
    shard: usize,
    page: pb::ListConversationsResponse,
    /// The shard's token of the page that begins with each conversation.
    tokens: Vec<String>,
    /// How many conversations of the page were returned.
    taken: usize,
}

impl ShardPage {
    fn next(&self) -> Option<&pb::ConversationSummary> {
        self.page.conversations.get(self.taken)
    }

    /// Returns true if the shard may have conversations after those of the page.
    fn has_more(&self) -> bool {
        !self.page.next_page_token.is_empty()
    }

    /// Returns the place of the first conversation that was not returned.
    fn place(&self) -> ShardPlace {
        let token = match self.tokens.get(self.taken) {
            Some(token) => token,
            None => &self.page.next_page_token,
        };
        ShardPlace {
            token: token.clone(),
            ended: token.is_empty(),
        }
    }
}

impl ShardRouter {
    /// Answers a page of the list.
    ///
    /// # Errors
    /// An invalid token, or the first error of a shard.
    pub(super) async fn list(
        &self,
        call: &CallHead,
        message: &Bytes,
    ) -> Result<pb::ListConversationsResponse, Status> {
        let request: pb::ListConversationsRequest = decoded_request(message)?;
        let shards = self.inner.directory.shards();
        let mut token = ListToken::parse(&request.page_token, shards)?;
        let wanted = match request.page_size {
            0 => PAGE_DEFAULT,
            wanted => wanted as usize,
        };
        let wanted = match request.with_values {
            true => wanted.min(PAGE_DEFAULT),
            false => wanted,
        };
        let places = token.shards.iter().enumerate();
        let asked = places
            .filter(|(_, place)| !place.ended)
            .map(|(shard, place)| {
                let request = pb::ListConversationsRequest {
                    page_size: u32::try_from(wanted).unwrap_or(u32::MAX),
                    page_token: place.token.clone(),
                    ..request.clone()
                };
                (ShardId(u32::try_from(shard).unwrap_or(u32::MAX)), request)
            });
        let answers = self.ask_each(call, LIST_PART, asked.collect()).await?;
        let pages = answers.into_iter().map(|(shard, part)| {
            let part: pb::ListPartResponse = part;
            ShardPage {
                shard: shard.0 as usize,
                page: part.listed.unwrap_or_default(),
                tokens: part.tokens,
                taken: 0,
            }
        });
        let mut pages: Vec<_> = pages.collect();
        let mut answer = merge(&mut pages, &request, wanted);
        for page in &pages {
            token.shards[page.shard] = page.place();
        }
        answer.next_page_token = token.text();
        Ok(answer)
    }
}

/// Takes conversations from the pages in order, until there are enough, or until those that come
/// next are not known.
fn merge(
    pages: &mut [ShardPage],
    request: &pb::ListConversationsRequest,
    wanted: usize,
) -> pb::ListConversationsResponse {
    let by_happened = request.order == i32::from(pb::ListOrder::Happened);
    let time = |summary: &pb::ConversationSummary| {
        let time = match by_happened {
            true => summary.happened_to,
            false => summary.created_at,
        };
        let time = time.unwrap_or_default();
        (time.seconds, time.nanos)
    };
    let mut answer = pb::ListConversationsResponse::default();
    let mut room = LOOKUP_BYTES_MAX;
    while answer.conversations.len() < wanted {
        // A shard whose page ended here may have the next one.
        if pages
            .iter()
            .any(|page| page.next().is_none() && page.has_more())
        {
            break;
        }
        let heads = pages.iter_mut().filter(|page| page.next().is_some());
        let first = match request.ascending {
            true => heads.min_by_key(|page| page.next().map(time)),
            // Of equal ones, `max_by_key` takes the last: keep the order of the shards.
            false => heads.rev().max_by_key(|page| page.next().map(time)),
        };
        let Some(first) = first else {
            break;
        };
        if let Some(values) = first.page.values.get_mut(first.taken) {
            let values = std::mem::take(values);
            let bytes = values.encoded_len();
            if bytes > room && !answer.conversations.is_empty() {
                break;
            }
            room = room.saturating_sub(bytes);
            answer.values.push(values);
        }
        let summary = std::mem::take(&mut first.page.conversations[first.taken]);
        answer.conversations.push(summary);
        first.taken += 1;
    }
    if by_happened {
        sort_page(&mut answer, time, request.ascending);
    }
    answer
}

/// Sorts a page by time. In a shard's page, conversations of one second are not.
fn sort_page(
    answer: &mut pb::ListConversationsResponse,
    time: impl Fn(&pb::ConversationSummary) -> (i64, i32),
    ascending: bool,
) {
    let conversations = std::mem::take(&mut answer.conversations);
    let with_values = !answer.values.is_empty();
    let values = std::mem::take(&mut answer.values).into_iter();
    let values = values.chain(std::iter::repeat_with(pb::BranchValues::default));
    let mut page: Vec<_> = conversations.into_iter().zip(values).collect();
    page.sort_by(|(one, _), (other, _)| match ascending {
        true => time(one).cmp(&time(other)),
        false => time(other).cmp(&time(one)),
    });
    let (conversations, values) = page.into_iter().unzip();
    answer.conversations = conversations;
    if with_values {
        answer.values = values;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The token of each place is its time.
    fn page(shard: usize, seconds: &[i64], next: &str) -> ShardPage {
        let conversations = seconds.iter().map(|seconds| pb::ConversationSummary {
            created_at: Some(prost_types::Timestamp {
                seconds: *seconds,
                nanos: 0,
            }),
            ..Default::default()
        });
        ShardPage {
            shard,
            page: pb::ListConversationsResponse {
                conversations: conversations.collect(),
                next_page_token: next.into(),
                values: Vec::new(),
            },
            tokens: seconds.iter().map(i64::to_string).collect(),
            taken: 0,
        }
    }

    fn seconds(answer: &pb::ListConversationsResponse) -> Vec<i64> {
        let all = answer.conversations.iter();
        all.map(|one| one.created_at.unwrap().seconds).collect()
    }

    // A page that goes on past the known part of a shard would skip what the shard has next.
    #[test]
    fn pages_merge_up_to_what_is_known() {
        let request = pb::ListConversationsRequest::default();
        let mut pages = [page(0, &[9, 5], "more"), page(1, &[8, 2], "")];
        assert_eq!(seconds(&merge(&mut pages, &request, 3)), [9, 8, 5]);
        assert_eq!(pages[0].place().token, "more");
        assert_eq!(pages[1].place().token, "2");
        let mut pages = [page(0, &[9, 5], "more"), page(1, &[8, 2], "")];
        assert_eq!(seconds(&merge(&mut pages, &request, 10)), [9, 8, 5]);
        let ascending = pb::ListConversationsRequest {
            ascending: true,
            ..Default::default()
        };
        let mut pages = [page(0, &[1, 7], ""), page(1, &[3], "")];
        assert_eq!(seconds(&merge(&mut pages, &ascending, 10)), [1, 3, 7]);
        assert!(pages.iter().all(|page| page.place().ended));
    }

    // A token of another store, or a cut one, must not silently list something else.
    #[test]
    fn foreign_tokens_are_refused() {
        let token = ListToken::parse("", 4).unwrap();
        assert_eq!(ListToken::parse(&token.text(), 4).unwrap(), token);
        for wrong in ["x", "0123456789abcdef5", &token.text()[1..]] {
            assert!(ListToken::parse(wrong, 4).is_err(), "{wrong}");
        }
        assert!(ListToken::parse(&token.text(), 5).is_err());
    }
}
