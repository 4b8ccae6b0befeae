//! `verify`, `rebuild` and `stats`: commands on the whole store.

use std::path::PathBuf;

use clap::Args;
use tonic::{Code, Status};

use super::{
    args::Common,
    connect::Connection,
    error::{ClientError, Exit},
    heads::SinceArgs,
    json::{self, Object},
    output::{Out, Steps, Tone},
    pb,
    text::{bytes_human, count, printable},
};

/// Check everything in the store
///
/// Reads the whole log and checks checksums, hash chains, revisions and large bodies, and that
/// views and index agree with it. Exits with 0 only if there is no fault.
#[derive(Args, Debug, Clone)]
pub(crate) struct VerifyArgs {
    /// Also compare views and index with a rebuild (slower)
    #[arg(long)]
    deep: bool,
    /// Check a receipt of `erase` against the store instead
    #[arg(long, value_name = "RECEIPT", conflicts_with = "deep")]
    erased: Option<PathBuf>,
    #[command(flatten)]
    since: SinceArgs,
}

/// Rebuild the views and the search index from the log
///
/// Nothing is lost, because the log is the only source of truth. Without an option, both are
/// rebuilt. The old ones stay if a rebuild fails. Conversations that cannot be read from the log
/// are marked as damaged.
#[derive(Args, Debug, Clone)]
pub(crate) struct RebuildArgs {
    /// Only the views
    #[arg(long)]
    views: bool,
    /// Only the search index
    #[arg(long)]
    index: bool,
}

/// Verifies the store.
///
/// # Errors
/// [`ClientError::Outcome`] if there is a fault; errors of the store or the output.
pub(crate) async fn verify(
    args: &VerifyArgs,
    common: &Common,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    if let Some(receipt) = &args.erased {
        return super::receipt_check::check(receipt, store, out).await;
    }
    if let Some(head) = args.since.head() {
        return super::heads::check(head, &args.since, common, store, out).await;
    }
    let bar = Steps::start("verify");
    let request = pb::VerifyRequest { deep: args.deep };
    let mut answers = store.admin().verify(request).await?.into_inner();
    let mut outcome = None;
    while let Some(answer) = answers.message().await.map_err(cannot_go_on)? {
        match answer.item {
            Some(pb::verify_response::Item::Progress(step)) => bar.show(&step),
            Some(pb::verify_response::Item::Fault(fault)) => {
                bar.suspend(|| print_fault(&fault, out))?;
            }
            Some(pb::verify_response::Item::Outcome(done)) => outcome = Some(done),
            None => {}
        }
    }
    drop(bar);
    let outcome = outcome.ok_or(ClientError::Answer {
        call: "Verify",
        part: "outcome",
    })?;
    print_outcome(&outcome, out)?;
    if outcome.sound {
        return Ok(());
    }
    Err(ClientError::Outcome {
        what: format!("the store is damaged: {} faults", count(outcome.faults)),
        hint: FAULTS_HINT.into(),
        exit: Exit::Damaged,
    })
}

/// Advice on faults. It does not assume that there is a backup.
const FAULTS_HINT: &str = "`treering rebuild` repairs faults in projections or index; for faults \
                           in the log, keep a copy of the folder, then put an older copy back, or \
                           copy the intact data with `treering salvage --to DIR`";

/// Returns the error for damage that stops the check itself. The usual hint for damage, to run
/// `verify`, would be useless here.
fn cannot_go_on(status: Status) -> ClientError {
    if status.code() != Code::DataLoss {
        return status.into();
    }
    ClientError::Outcome {
        what: format!("the check cannot continue: {}", status.message()),
        hint: FAULTS_HINT.into(),
        exit: Exit::Damaged,
    }
}

fn print_fault(fault: &pb::Fault, out: &mut Out) -> Result<(), ClientError> {
    if out.json {
        return Ok(out.line(json::of(fault))?);
    }
    let place = match (fault.conversation_id.is_empty(), fault.revision) {
        (true, _) => fault.position.map_or(String::new(), |place| {
            format!(" at offset {}", place.offset)
        }),
        (false, 0) => format!(" in {}", fault.conversation_id),
        (false, revision) => format!(" in {} #{revision}", fault.conversation_id),
    };
    let part = out.paint.text(Tone::Bad, &fault.part);
    Ok(out.line(format!("{part}{place}: {}", fault.message))?)
}

fn print_outcome(outcome: &pb::VerifyOutcome, out: &mut Out) -> Result<(), ClientError> {
    if out.json {
        return Ok(out.line(json::of(outcome))?);
    }
    let word = if outcome.sound {
        out.paint.text(Tone::Good, "sound")
    } else {
        out.paint.text(Tone::Bad, "not sound")
    };
    Ok(out.line(format!(
        "{word}: {} events of {} conversations, {} large bodies checked",
        count(outcome.events),
        count(outcome.conversations),
        count(outcome.blobs)
    ))?)
}

/// Rebuilds views and index.
pub(crate) async fn rebuild(
    args: &RebuildArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let both = args.views == args.index;
    let request = pb::RebuildRequest {
        views: both || args.views,
        index: both || args.index,
    };
    let bar = Steps::start("rebuild");
    let mut answers = store.admin().rebuild(request).await?.into_inner();
    let mut outcome = None;
    while let Some(answer) = answers.message().await? {
        match answer.item {
            Some(pb::rebuild_response::Item::Progress(step)) => bar.show(&step),
            Some(pb::rebuild_response::Item::Outcome(done)) => outcome = Some(done),
            None => {}
        }
    }
    drop(bar);
    let outcome = outcome.ok_or(ClientError::Answer {
        call: "Rebuild",
        part: "outcome",
    })?;
    if out.json {
        let mut object = Object::new();
        object
            .number("events", outcome.events)
            .number("documents", outcome.documents)
            .number("damaged", outcome.damaged)
            .number("not_indexed", outcome.not_indexed);
        return Ok(out.line(object.finish())?);
    }
    let events = count(outcome.events);
    let documents = count(outcome.documents);
    out.line(format!(
        "Rebuilt from {events} events; {documents} documents in the index"
    ))?;
    if outcome.damaged > 0 {
        let damaged = count(outcome.damaged);
        out.line(format!(
            "{damaged} conversations are damaged and end at the damage: `treering ls` marks them"
        ))?;
    }
    if outcome.not_indexed > 0 {
        let left = count(outcome.not_indexed);
        out.line(format!(
            "{left} events could not be read and are not in the index"
        ))?;
    }
    Ok(())
}

/// Rows about the vectors for search by meaning.
fn about_vectors(vectors: &pb::VectorStats) -> Vec<(&'static str, String)> {
    let embedded = format!(
        "{} of {} passages",
        count(vectors.embedded),
        count(vectors.passages)
    );
    let stored = format!(
        "{} in {}",
        count(vectors.vectors),
        bytes_human(vectors.bytes)
    );
    let mut rows = vec![
        ("embedder", printable(&vectors.model)),
        ("embedded", embedded),
        ("vectors", stored),
    ];
    if !vectors.previous_model.is_empty() {
        rows.push(("searched until then", printable(&vectors.previous_model)));
    }
    if !vectors.failure.is_empty() {
        rows.push(("embedder fails", printable(&vectors.failure)));
    }
    rows
}

/// Prints statistics of the store.
pub(crate) async fn stats(store: &Connection, out: &mut Out) -> Result<(), ClientError> {
    let stats = store.admin().stats(pb::StatsRequest {}).await?.into_inner();
    if out.json {
        return Ok(out.line(json::of(&stats))?);
    }
    let row = |name: &str, value: String| format!("{name:<26} {value}");
    let offset = |place: Option<pb::Position>| place.map_or(0, |place| place.offset);
    // Only callers with access to the whole store get the path.
    let data_folder = match stats.data_dir.as_str() {
        "" => "not visible to this key",
        dir => dir,
    };
    let data_folder = printable(data_folder);
    for (name, value) in [
        ("version", stats.version.clone()),
        ("data folder", data_folder),
        ("up since", out.zone().day_clock(stats.started_at.as_ref())),
        ("conversations", count(stats.conversations)),
        ("damaged conversations", count(stats.damaged_conversations)),
        ("branches", count(stats.branches)),
        ("events", count(stats.events)),
        ("waiting approvals", count(stats.pending_approvals)),
        ("indexed documents", count(stats.indexed_documents)),
        ("log", bytes_human(stats.log_bytes)),
        ("views", bytes_human(stats.views_bytes)),
        ("index", bytes_human(stats.index_bytes)),
        ("log segments", count(stats.log_segments)),
        ("log head", count(offset(stats.head))),
        ("unreadable positions", count(stats.unreadable_positions)),
        ("projections reached", count(offset(stats.views_reached))),
        ("index reached", count(offset(stats.index_reached))),
    ] {
        out.line(row(name, value))?;
    }
    let bound = |quota: Option<u64>, words: fn(u64) -> String| match quota {
        Some(quota) => format!(" of {}", words(quota)),
        None => String::new(),
    };
    let used = [
        (
            "quota: bytes",
            bytes_human(stats.event_bytes) + &bound(stats.quota_bytes, bytes_human),
        ),
        (
            "quota: conversations",
            count(stats.conversations) + &bound(stats.quota_conversations, count),
        ),
    ];
    let has_quota = stats.quota_bytes.is_some() || stats.quota_conversations.is_some();
    for (name, value) in used.into_iter().filter(|_| has_quota) {
        out.line(row(name, value))?;
    }
    if let (Some(resident), Some(mapped)) = (stats.resident_bytes, stats.mapped_bytes) {
        let (resident, mapped) = (bytes_human(resident), bytes_human(mapped));
        let memory = format!("{resident}, of which {mapped} are pages of files");
        out.line(row("memory", memory))?;
    }
    if let Some(vectors) = &stats.vectors {
        for (name, value) in about_vectors(vectors) {
            out.line(row(name, value))?;
        }
    }
    if stats.damaged_reads > 0 {
        let met = format!("{}: {}", count(stats.damaged_reads), stats.first_damage);
        out.line(row("reads with damage", met))?;
    }
    let mut kinds: Vec<_> = stats.events_by_kind.iter().collect();
    kinds.sort_by_key(|(name, number)| (std::cmp::Reverse(**number), (*name).clone()));
    for (name, number) in kinds {
        out.line(row(&format!("  {name}"), count(*number)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After `verify`, the hint must not be to run `verify`.
    #[test]
    fn hint_of_verify_does_not_suggest_verify() {
        let error = cannot_go_on(Status::data_loss("the log is damaged at offset 7"));
        assert!(matches!(
            error,
            ClientError::Outcome {
                exit: Exit::Damaged,
                ..
            }
        ));
        let hint = error.hint().unwrap();
        assert!(hint.contains("treering salvage"), "{hint}");
        for wrong in ["treering verify", "backup"] {
            assert!(!hint.contains(wrong) && !error.to_string().contains(wrong));
        }
    }
}
