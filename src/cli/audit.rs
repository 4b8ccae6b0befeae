//! `audit`: prints the audit log as JSON lines.

use std::collections::VecDeque;

use clap::Args;
use prost::Message;
use serde_json::{Map, Value};
use tonic::Streaming;

use super::{
    connect::Connection,
    error::{ClientError, Exit},
    json::rfc3339,
    output::Out,
    pb::{self, event::Body},
    read,
    safe::tell,
};
use treering_server::audit::{AUDIT_TITLE, AUDIT_TYPE, SYSTEM_NAMESPACE};

/// Print which key was used for what, one JSON object on each line
///
/// A server with keys records who decided on calls, erased, exported conversations, read a
/// namespace's whole log or a hundred whole conversations within an hour, and who created, rotated
/// and revoked keys. The oldest entry comes first. On a server this requires the role admin in all
/// namespaces, or reader in _system.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering audit --data ./store
  treering audit --server https://db:7171 | jq 'select(.deed == \"decide\")'")]
pub(crate) struct AuditArgs {
    /// First revision to print: one more than the last one that you know. Not for a cluster, whose
    /// shards count their own
    #[arg(long, value_name = "REVISION")]
    from: Option<u64>,
}

/// Returns the namespace that `audit` reads, regardless of `--namespace`.
pub(crate) fn namespace() -> String {
    SYSTEM_NAMESPACE.to_owned()
}

/// Prints the audit log.
pub(crate) async fn run(
    args: &AuditArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let conversations = conversations(store).await?;
    if args.from.is_some() && conversations.len() > 1 {
        return Err(ClientError::Outcome {
            what:
                "--from is a revision of one conversation, and the audit of a cluster has one in \
                   each shard"
                    .to_owned(),
            hint: "leave it out, and select by the time in `at`".to_owned(),
            exit: Exit::Usage,
        });
    }
    let mut parts = Vec::new();
    for id in conversations {
        let request = pb::ReadRequest {
            from_revision: args.from.unwrap_or_default(),
            ..read::of_conversation(&id)
        };
        parts.push(AuditPart {
            pages: read::start(store, request).await?,
            events: VecDeque::new(),
        });
    }
    if parts.is_empty() {
        tell!("no audit: this store was never served with keys");
    }
    // A cluster has a part in each shard. The oldest entry comes first.
    loop {
        let mut first: Option<(Time, usize)> = None;
        for (index, part) in parts.iter_mut().enumerate() {
            if let Some(time) = part.next_time().await?
                && first.is_none_or(|(earliest, _)| time < earliest)
            {
                first = Some((time, index));
            }
        }
        let Some((_, index)) = first else {
            return Ok(());
        };
        let event = parts[index].events.pop_front();
        if let Some(line) = event.as_ref().and_then(line) {
            out.json(line)?;
        }
    }
}

/// Returns the ids of the conversations that hold the audit.
async fn conversations(store: &Connection) -> Result<Vec<String>, ClientError> {
    let mut ids = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = pb::ListConversationsRequest {
            title: AUDIT_TITLE.to_owned(),
            page_token,
            ..pb::ListConversationsRequest::default()
        };
        let page = store.conversations().list(request).await?.into_inner();
        ids.extend(page.conversations.into_iter().map(|of| of.conversation_id));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(ids);
        }
    }
}

/// Seconds and nanoseconds.
type Time = (i64, i32);

/// The audit of a store, or of one shard.
struct AuditPart {
    pages: Streaming<pb::ReadResponse>,
    events: VecDeque<pb::Event>,
}

impl AuditPart {
    /// Returns the time of the next event; `None` at the end.
    async fn next_time(&mut self) -> Result<Option<Time>, ClientError> {
        while self.events.is_empty() {
            match self.pages.message().await? {
                Some(page) => self.events.extend(page.events),
                None => return Ok(None),
            }
        }
        Ok(self.events.front().map(|event| {
            let time = event.recorded_at.unwrap_or_default();
            (time.seconds, time.nanos)
        }))
    }
}

fn line(event: &pb::Event) -> Option<String> {
    let Some(Body::Custom(body)) = &event.body else {
        return None;
    };
    let custom = pb::Custom::decode(body.clone()).ok()?;
    if custom.type_name != AUDIT_TYPE {
        return None;
    }
    let deed: Map<String, Value> = serde_json::from_slice(&custom.data).ok()?;
    let at = event.occurred_at.as_ref().or(event.recorded_at.as_ref());
    let mut line = Map::new();
    line.insert("at".into(), at.and_then(rfc3339).into());
    line.insert("revision".into(), event.revision.into());
    line.insert("by".into(), event.actor.clone().into());
    line.extend(deed);
    Some(Value::Object(line).to_string())
}
