//! `verify --erased`: checks a receipt against the store.

use std::{collections::BTreeSet, fs, path::Path};

use serde::Deserialize;
use serde_json::Value;

use super::{
    connect::Connection,
    error::{ClientError, Exit},
    json::{Array, Object},
    output::{Out, Tone},
    pb, read,
    text::things,
};
use treering_domain::{PublicKey, hex};
use treering_engine::receipt_signer;
use treering_proto::envelope::arm_of_event;

/// The supported version of receipts.
const VERSION: u32 = 1;

/// The fields of a receipt that can be checked against the store.
#[derive(Deserialize)]
struct Receipt {
    receipt: u32,
    /// Number of erased events.
    events: u64,
    recorded: Vec<RecordedErasure>,
}

impl Receipt {
    /// Returns what is wrong with the receipt, or `None` if it is complete. It must name as many
    /// events as it counts. Otherwise a forged receipt could omit events that the store would not
    /// confirm. The store makes no receipt for an empty erasure.
    fn lacks(&self) -> Option<String> {
        let ranges = self.recorded.iter().flat_map(|one| &one.revisions);
        let many = |[first, last]: &[u64; 2]| last.saturating_add(1).saturating_sub(*first);
        let named = ranges.map(many).fold(0, u64::saturating_add);
        if named == 0 {
            return Some("the receipt names no erased event".into());
        }
        let places = self.recorded.iter();
        let places: BTreeSet<_> = places.map(|it| (&it.conversation, it.revision)).collect();
        if named != self.events || places.len() != self.recorded.len() {
            let events = self.events;
            return Some(format!(
                "the receipt counts {events} events but names {named}"
            ));
        }
        None
    }
}

#[derive(Deserialize)]
struct RecordedErasure {
    conversation: String,
    revisions: Vec<[u64; 2]>,
    revision: u64,
    chain_hash: String,
}

/// Checks a receipt against the store. It must name all events that it counts, and be signed by the
/// key that the store's events name. The events that record the erasure must match the receipt,
/// each erased event must be a stub, and the hash over the stubs must equal the recorded one.
///
/// # Errors
/// [`ClientError::Outcome`] if a check fails.
pub(crate) async fn check(
    path: &Path,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let text = fs::read_to_string(path).map_err(|cause| ClientError::ReadFile {
        path: path.to_owned(),
        cause,
    })?;
    let no_receipt = |error: serde_json::Error| ClientError::Usage {
        what: format!("{} is not a receipt: {error}", path.display()),
        hint: "use the file that `treering erase --receipt FILE` wrote".into(),
    };
    // A cluster makes one for each shard.
    let receipts: Vec<String> = match serde_json::from_str(&text).map_err(no_receipt)? {
        Value::Array(several) => several.iter().map(Value::to_string).collect(),
        _ => vec![text],
    };
    let mut is_sound = !receipts.is_empty();
    for text in receipts {
        let receipt: Receipt = serde_json::from_str(&text).map_err(no_receipt)?;
        if receipt.receipt != VERSION {
            return Err(ClientError::Usage {
                what: format!("the receipt has version {}", receipt.receipt),
                hint: "check it with the version of treering that wrote it".into(),
            });
        }
        let signer = receipt_signer(&text).map_err(|error| ClientError::Outcome {
            what: format!("{}: {error}", path.display()),
            hint: "use the receipt exactly as `treering erase` wrote it".into(),
            exit: Exit::Failed,
        })?;
        is_sound &= is_confirmed(&receipt, signer, store, out).await?;
    }
    if is_sound {
        return Ok(());
    }
    Err(ClientError::Outcome {
        what: "the store does not match the receipt".into(),
        hint: "it is another store, or was restored from an older copy: erase again".into(),
        exit: Exit::Failed,
    })
}

/// Checks one receipt, and tells the result.
async fn is_confirmed(
    receipt: &Receipt,
    signer: PublicKey,
    store: &Connection,
    out: &mut Out,
) -> Result<bool, ClientError> {
    let mut stubs = 0;
    let mut faults = Vec::from_iter(receipt.lacks());
    for recorded in &receipt.recorded {
        match of_one(recorded, signer, store).await? {
            Ok(count) => stubs += count,
            Err(fault) => faults.push(fault),
        }
    }
    tell(stubs, signer, &faults, out)?;
    Ok(faults.is_empty())
}

fn tell(
    stubs: u64,
    signer: PublicKey,
    faults: &[String],
    out: &mut Out,
) -> Result<(), ClientError> {
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
        false => out.paint.text(Tone::Bad, "does not match the receipt"),
    };
    Ok(out.line(format!(
        "{word}: {}; the receipt is signed by {signer}",
        things(stubs, "event is a stub", "events are stubs")
    ))?)
}

/// Returns the events of a conversation from the first to the last revision.
async fn events(
    store: &Connection,
    conversation: &str,
    [first, last]: [u64; 2],
) -> Result<Vec<pb::Event>, ClientError> {
    let request = pb::ReadRequest {
        from_revision: first,
        to_revision: last,
        ..read::of_conversation(conversation)
    };
    read::all(store, request).await
}

/// Returns the number of stubs, or a description of the fault.
async fn of_one(
    recorded: &RecordedErasure,
    signer: PublicKey,
    store: &Connection,
) -> Result<Result<u64, String>, ClientError> {
    let id = &recorded.conversation;
    let at = [recorded.revision; 2];
    let place = format!("{id}#{}", recorded.revision);
    let said = events(store, id, at).await?.into_iter().next();
    let Some(said) = said else {
        return Ok(Err(format!("{place} does not exist")));
    };
    let chain = hex(&said.chain_hash);
    let Some(pb::event::Body::ContentErased(body)) = said.body else {
        return Ok(Err(format!("{place} does not record an erasure")));
    };
    if chain != recorded.chain_hash {
        return Ok(Err(format!("{place} is not the receipt's event")));
    }
    let body = <pb::ContentErased as prost::Message>::decode(body).unwrap_or_default();
    if body.signed_by[..] != signer.0 {
        return Ok(Err(format!(
            "{place} and the receipt have different signers"
        )));
    }
    let mut hasher = blake3::Hasher::new();
    let mut revisions = Vec::new();
    for range in &recorded.revisions {
        for event in events(store, id, *range).await? {
            if !event.erased {
                return Ok(Err(format!("{id}#{} is not erased", event.revision)));
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
        return Ok(Err(format!(
            "{place} and the receipt list different events"
        )));
    }
    if hasher.finalize().as_bytes()[..] != body.stubs_hash[..] {
        return Ok(Err(format!("the stubs do not match their hash in {place}")));
    }
    Ok(Ok(revisions.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    // A receipt that names no events must not be confirmed, whoever signed it. Nor must a receipt
    // that names fewer events than it counts.
    #[test]
    fn receipt_with_fewer_events_than_its_count_is_refused() {
        let lacks = |events: u64, recorded: &[(&str, u64, [u64; 2])]| {
            let recorded = recorded
                .iter()
                .map(|(id, revision, range)| RecordedErasure {
                    conversation: (*id).to_owned(),
                    revisions: vec![*range],
                    revision: *revision,
                    chain_hash: String::new(),
                });
            let receipt = Receipt {
                receipt: VERSION,
                events,
                recorded: recorded.collect(),
            };
            receipt.lacks()
        };
        assert_eq!(lacks(3, &[("a", 9, [1, 2]), ("b", 9, [5, 5])]), None);
        for (events, recorded) in [
            (0, &[][..]),
            (3, &[]),
            (0, &[("a", 9, [2, 1])]),
            (3, &[("a", 9, [1, 2])]),
            (1, &[("a", 9, [1, 2])]),
            (2, &[("a", 9, [1, 1]), ("a", 9, [1, 1])]),
            (1, &[("a", 9, [0, u64::MAX])]),
        ] {
            assert!(lacks(events, recorded).is_some(), "{events} {recorded:?}");
        }
    }
}
