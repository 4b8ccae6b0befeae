//! `audit`: prints the audit log as JSON lines.

use clap::Args;
use prost::Message;
use serde_json::{Map, Value};
use tonic::Code;

use super::{
    connect::Connection,
    error::ClientError,
    json::rfc3339,
    output::Out,
    pb::{self, event::Body},
    read,
    safe::tell,
};
use treering_server::audit::{AUDIT_TYPE, SYSTEM_NAMESPACE, audit_conversation};

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
    /// First revision to print: one more than the last one that you know
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
    let request = pb::ReadRequest {
        from_revision: args.from.unwrap_or_default(),
        ..read::of_conversation(&audit_conversation().to_string())
    };
    let mut pages = match read::start(store, request).await {
        Ok(pages) => pages,
        Err(ClientError::Status(status)) if status.code() == Code::NotFound => {
            tell!("no audit: this store was never served with keys");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    while let Some(page) = pages.message().await? {
        for event in &page.events {
            if let Some(line) = line(event) {
                out.json(line)?;
            }
        }
    }
    Ok(())
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
