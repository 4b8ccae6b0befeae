//! `verify --erased`: that what a receipt says is so.

use std::{fs, path::Path};

use serde::Deserialize;

use super::{
    connect::Connection,
    error::{CliError, Exit},
    json::{Array, Object},
    output::{Out, Tone},
    pb, read,
    text::things,
};
use crate::{
    codec::envelope::arm_of_event,
    domain::{PublicKey, hex},
    engine::receipt_signer,
};

/// The form of receipts that is understood.
const VERSION: u32 = 1;

/// Of a receipt, what can be held against the store.
#[derive(Deserialize)]
struct Receipt {
    receipt: u32,
    recorded: Vec<Recorded>,
}

#[derive(Deserialize)]
struct Recorded {
    conversation: String,
    revisions: Vec<[u64; 2]>,
    revision: u64,
    chain_hash: String,
}

/// Holds a receipt against the store: it must be as it was signed, by the key that the events
/// name; the events that say what was erased must be those of
/// the receipt, each of the others must be a stub, and together the stubs must have the hash
/// that was recorded.
///
/// # Errors
/// [`CliError::Outcome`] when something is not so.
pub async fn check(path: &Path, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let text = fs::read_to_string(path).map_err(|cause| CliError::ReadFile {
        path: path.to_owned(),
        cause,
    })?;
    let no_receipt = |error: serde_json::Error| CliError::Usage {
        what: format!("{} is no receipt: {error}", path.display()),
        hint: "name what `treering erase --receipt FILE` wrote".into(),
    };
    let receipt: Receipt = serde_json::from_str(&text).map_err(no_receipt)?;
    if receipt.receipt != VERSION {
        return Err(CliError::Usage {
            what: format!("the receipt is of version {}", receipt.receipt),
            hint: "check it with the version of treering that made it".into(),
        });
    }
    let signer = receipt_signer(&text).map_err(|error| CliError::Outcome {
        what: error.to_string(),
        hint: "take the receipt as `treering erase` wrote it".into(),
        exit: Exit::Failed,
    })?;
    let mut stubs = 0;
    let mut faults = Vec::new();
    for recorded in &receipt.recorded {
        match of_one(recorded, signer, store).await? {
            Ok(count) => stubs += count,
            Err(fault) => faults.push(fault),
        }
    }
    tell(stubs, signer, &faults, out)?;
    if faults.is_empty() {
        return Ok(());
    }
    Err(CliError::Outcome {
        what: "the store is not as the receipt says".into(),
        hint: "it is of another store, or that was put back to a copy from before: erase again"
            .into(),
        exit: Exit::Failed,
    })
}

fn tell(stubs: u64, signer: PublicKey, faults: &[String], out: &mut Out) -> Result<(), CliError> {
    if out.json {
        let mut object = Object::new();
        object
            .boolean("erased", faults.is_empty())
            .number("stubs", stubs)
            .string("signed_by", &signer.to_string())
            .raw("faults", &Array::of_strings(faults));
        return Ok(out.line(object.finish())?);
    }
    for fault in faults {
        out.line(fault)?;
    }
    let word = match faults.is_empty() {
        true => out.paint.text(Tone::Good, "erased"),
        false => out.paint.text(Tone::Bad, "not as the receipt says"),
    };
    Ok(out.line(format!(
        "{word}: {}; the receipt is as {signer} signed it",
        things(stubs, "event is a stub", "events are stubs")
    ))?)
}

/// Events between two revisions of a conversation.
async fn events(
    store: &Connection,
    conversation: &str,
    [first, last]: [u64; 2],
) -> Result<Vec<pb::Event>, CliError> {
    let request = pb::ReadRequest {
        from_revision: first,
        to_revision: last,
        ..read::of_conversation(conversation)
    };
    let mut answers = read::start(store, request).await?;
    let mut events = Vec::new();
    while let Some(answer) = answers.message().await? {
        events.extend(answer.events);
    }
    Ok(events)
}

/// How many stubs there are, or what is not so.
async fn of_one(
    recorded: &Recorded,
    signer: PublicKey,
    store: &Connection,
) -> Result<Result<u64, String>, CliError> {
    let id = &recorded.conversation;
    let at = [recorded.revision; 2];
    let place = format!("{id}#{}", recorded.revision);
    let said = events(store, id, at).await?.into_iter().next();
    let Some(said) = said else {
        return Ok(Err(format!("{place} is not there")));
    };
    let chain = hex(&said.chain_hash);
    let Some(pb::event::Body::ContentErased(body)) = said.body else {
        return Ok(Err(format!("{place} does not say what was erased")));
    };
    if chain != recorded.chain_hash {
        return Ok(Err(format!("{place} is another event than the receipt's")));
    }
    let body = <pb::ContentErased as prost::Message>::decode(body).unwrap_or_default();
    if body.signed_by[..] != signer.0 {
        return Ok(Err(format!(
            "{place} names another signer than the receipt"
        )));
    }
    let mut hasher = blake3::Hasher::new();
    let mut revisions = Vec::new();
    for range in &recorded.revisions {
        for event in events(store, id, *range).await? {
            if !event.erased {
                return Ok(Err(format!("{id}#{} was not erased", event.revision)));
            }
            revisions.push(event.revision);
            let stub = event
                .body
                .map(|body| arm_of_event(body).1)
                .unwrap_or_default();
            hasher.update(&(stub.len() as u64).to_le_bytes());
            hasher.update(&stub);
        }
    }
    if revisions != body.revisions {
        return Ok(Err(format!("{place} names other events than the receipt")));
    }
    if hasher.finalize().as_bytes()[..] != body.stubs_hash[..] {
        return Ok(Err(format!("{place} has the hash of other stubs")));
    }
    Ok(Ok(revisions.len() as u64))
}
