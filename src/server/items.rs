//! The Items service: values under a path and a key, in a namespace's memory.

use std::{num::NonZeroU32, time::Duration};

use tonic::{Request, Response, Status};

use super::status::OrStatus;
use super::{
    bounds::LOOKUP_BYTES_MAX,
    call::{Call, ServiceContext},
    from_proto::{self, InvalidField},
    guard::Caller,
    search::search_by,
};
use treering_domain::limits::{ITEM_OPS_MAX, ITEM_PATH_LABELS_MAX, SHORT_TEXT_BYTES_MAX};
use treering_engine::{
    QUERY_BYTES_MAX,
    items::{
        Comparison, ItemAnswer, ItemAnswers, ItemBatch, ItemCondition, ItemName, ItemOp,
        ItemSearch, PathMatch, PathsQuery, RememberedItem,
    },
};
use treering_proto::{
    envelope::{position_to_pb, timestamp_to_pb},
    json,
    pb::{self, items_server::Items},
};

/// Maximum number of conditions of a search, or of path patterns of a list: each item is compared
/// with all of them.
const CONDITIONS_MAX: usize = 64;

/// A thin layer over the engine.
pub(super) struct ItemsService(pub(crate) ServiceContext);

#[tonic::async_trait]
impl Items for ItemsService {
    async fn batch(
        &self,
        request: Request<pb::ItemsRequest>,
    ) -> Result<Response<pb::ItemsResponse>, Status> {
        let call = Call::of(&request)?;
        let caller = call.caller.clone();
        let batch = batch(call, request.into_inner())?;
        let answers = self.0.engine.items(batch).await.or_status()?;
        Ok(Response::new(response(&caller, answers)))
    }

    async fn read(
        &self,
        request: Request<pb::ReadItemsRequest>,
    ) -> Result<Response<pb::ItemsResponse>, Status> {
        let call = Call::of(&request)?;
        let request = pb::ItemsRequest {
            ops: request.into_inner().ops,
            ..Default::default()
        };
        let caller = call.caller.clone();
        let batch = batch(call, request)?;
        if let Some(index) = batch.ops.iter().position(ItemOp::changes) {
            let message = "is a write, or renews a ttl: use Batch";
            return Err(InvalidField::new(format!("ops[{index}]"), message).into());
        }
        let answers = self.0.engine.items(batch).await.or_status()?;
        Ok(Response::new(response(&caller, answers)))
    }
}

fn batch(call: Call, request: pb::ItemsRequest) -> Result<ItemBatch, InvalidField> {
    from_proto::at_most_entries("ops", request.ops.len(), ITEM_OPS_MAX)?;
    if request.ops.is_empty() {
        return Err(InvalidField::new("ops", "is required"));
    }
    from_proto::check_short("actor", &request.actor)?;
    let ops = request.ops.into_iter().enumerate();
    let ops: Result<Vec<_>, InvalidField> = ops.map(|(index, of)| op(index, of)).collect();
    Ok(ItemBatch {
        ops: ops?,
        idempotency_key: from_proto::idempotency_key(request.idempotency_key)?,
        key_life_seconds: NonZeroU32::new(request.key_life_seconds),
        actor: call.caller.actor(request.actor),
        namespace: call.namespace,
        bytes_max: LOOKUP_BYTES_MAX,
    })
}

fn op(index: usize, op: pb::ItemOp) -> Result<ItemOp, InvalidField> {
    use pb::item_op::Op;
    let field = |name: &str| format!("ops[{index}].{name}");
    Ok(match op.op {
        None => {
            let message = "has no known operation: it may be from a newer version";
            return Err(InvalidField::new(format!("ops[{index}]"), message));
        }
        Some(Op::Get(get)) => ItemOp::Get {
            name: name(get.path, get.key),
            refresh: get.refresh_ttl,
        },
        Some(Op::Put(put)) => ItemOp::Put {
            name: name(put.path, put.key),
            value: json::check_bytes(put.value)
                .map_err(|fault| InvalidField::new(field("put.value"), fault.to_string()))?,
            ttl: (put.ttl_ms > 0).then(|| Duration::from_millis(put.ttl_ms)),
            text: put.text,
        },
        Some(Op::Delete(delete)) => ItemOp::Delete {
            name: name(delete.path, delete.key),
        },
        Some(Op::Search(search)) => ItemOp::Search(item_search(&field("search"), search)?),
        Some(Op::ListPaths(list)) => ItemOp::Paths(paths(&field("list_paths"), list)?),
    })
}

fn name(path: Vec<String>, key: String) -> ItemName {
    ItemName { path, key }
}

fn item_search(field: &str, search: pb::SearchItems) -> Result<ItemSearch, InvalidField> {
    if search.query.len() > QUERY_BYTES_MAX {
        let message = format!("has more than {QUERY_BYTES_MAX} bytes");
        return Err(InvalidField::new(format!("{field}.query"), message));
    }
    let at = format!("{field}.filter");
    from_proto::at_most_entries(&at, search.filter.len(), CONDITIONS_MAX)?;
    let filter = search.filter.into_iter().enumerate();
    let filter: Result<Vec<_>, InvalidField> = filter
        .map(|(index, of)| condition(&format!("{at}[{index}]"), of))
        .collect();
    Ok(ItemSearch {
        under: search.under,
        by: search_by(&format!("{field}.by"), search.by)?,
        query: search.query,
        filter: filter?,
        limit: search.limit as usize,
        offset: search.offset as usize,
        refresh: search.refresh_ttl,
    })
}

fn condition(field: &str, of: pb::ItemCondition) -> Result<ItemCondition, InvalidField> {
    use pb::ItemComparison as Pb;
    let comparison = match of.comparison() {
        Pb::Equal => Comparison::Equal,
        Pb::NotEqual => Comparison::NotEqual,
        Pb::Greater => Comparison::Greater,
        Pb::GreaterOrEqual => Comparison::GreaterOrEqual,
        Pb::Less => Comparison::Less,
        Pb::LessOrEqual => Comparison::LessOrEqual,
        Pb::Unspecified => {
            let message = "is unspecified or unknown";
            return Err(InvalidField::new(format!("{field}.comparison"), message));
        }
    };
    check_labels(&format!("{field}.field"), &of.field)?;
    let not_json = |fault: String| InvalidField::new(format!("{field}.value"), fault);
    json::check_bytes(of.value.clone()).map_err(|fault| not_json(fault.to_string()))?;
    Ok(ItemCondition {
        field: of.field,
        comparison,
        value: serde_json::from_slice(&of.value).map_err(|fault| not_json(fault.to_string()))?,
    })
}

fn paths(field: &str, list: pb::ListItemPaths) -> Result<PathsQuery, InvalidField> {
    let at = format!("{field}.matches");
    from_proto::at_most_entries(&at, list.matches.len(), CONDITIONS_MAX)?;
    let mut matches = Vec::with_capacity(list.matches.len());
    for (index, of) in list.matches.into_iter().enumerate() {
        check_labels(&format!("{at}[{index}].path"), &of.path)?;
        matches.push(match of.end() {
            pb::PathEnd::Prefix => PathMatch::Prefix(of.path),
            pb::PathEnd::Suffix => PathMatch::Suffix(of.path),
            pb::PathEnd::Unspecified => {
                let message = "is unspecified or unknown";
                return Err(InvalidField::new(format!("{at}[{index}].end"), message));
            }
        });
    }
    Ok(PathsQuery {
        matches,
        depth_max: list.depth_max as usize,
        limit: list.limit as usize,
        offset: list.offset as usize,
    })
}

fn check_labels(field: &str, labels: &[String]) -> Result<(), InvalidField> {
    from_proto::at_most_entries(field, labels.len(), ITEM_PATH_LABELS_MAX)?;
    match labels
        .iter()
        .any(|label| label.len() > SHORT_TEXT_BYTES_MAX)
    {
        true => {
            let message = format!("has a text of more than {SHORT_TEXT_BYTES_MAX} bytes");
            Err(InvalidField::new(field, message))
        }
        false => Ok(()),
    }
}

fn response(reader: &Caller, answers: ItemAnswers) -> pb::ItemsResponse {
    for answer in &answers.answers {
        let items: &[RememberedItem] = match answer {
            ItemAnswer::Got(found) => found.as_slice(),
            ItemAnswer::Found { items, .. } => items,
            ItemAnswer::Paths { .. } | ItemAnswer::Changed => &[],
        };
        reader.reads(items.iter().map(|item| item.at.conversation));
    }
    pb::ItemsResponse {
        results: answers.answers.into_iter().map(result).collect(),
        position: answers.position.map(position_to_pb),
        repeated_key: answers.repeated_key,
    }
}

fn result(answer: ItemAnswer) -> pb::ItemResult {
    use pb::item_result::Result as Is;
    let result = match answer {
        ItemAnswer::Got(found) => Is::Got(pb::GotItem {
            item: found.map(item),
        }),
        ItemAnswer::Found { items, is_partial } => Is::Found(pb::FoundItems {
            items: items.into_iter().map(item).collect(),
            partial: is_partial,
        }),
        ItemAnswer::Paths { paths, is_partial } => Is::Paths(pb::ListedItemPaths {
            paths: paths
                .into_iter()
                .map(|path| pb::ItemPath { path })
                .collect(),
            partial: is_partial,
        }),
        ItemAnswer::Changed => Is::Changed(pb::ChangedItem {}),
    };
    pb::ItemResult {
        result: Some(result),
    }
}

fn item(item: RememberedItem) -> pb::Item {
    let value = item.value.map(|value| value.as_bytes().clone());
    pb::Item {
        path: item.name.path,
        key: item.name.key,
        value_left_out: value.is_none(),
        value: value.unwrap_or_default(),
        created_at: Some(timestamp_to_pb(item.created_at)),
        updated_at: Some(timestamp_to_pb(item.updated_at)),
        expires_at: item.expires_at.map(timestamp_to_pb),
        conversation_id: item.at.conversation.to_string(),
        revision: item.at.revision.0,
        score: item.score,
    }
}
