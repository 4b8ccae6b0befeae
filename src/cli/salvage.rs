//! `salvage`: copies everything sound from a damaged store to a new one.

use std::path::PathBuf;

use clap::Args;

use super::{
    args::{Common, Target},
    connect::FolderWait,
    embedded::refused as held,
    error::{ClientError, Exit},
    json::Object,
    output::{Out, Steps},
    safe::tell,
    text::count,
};
use treering_domain::with_causes;
use treering_engine::{SalvageError, SalvageOutcome, salvage};

/// Copy everything sound from a damaged store to a new one
///
/// Reads the log and copies each conversation up to its first damage. Ids, times, actors,
/// revisions, positions, bodies and chain hashes stay the same. The damaged store is not changed;
/// keep it until a backup is found.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering salvage --data ./store --to ./sound
  treering verify --data ./sound --deep")]
pub(crate) struct SalvageArgs {
    /// Folder of the new store: it is created, or must be empty
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
}

/// Salvages the store.
///
/// # Errors
/// [`ClientError::Outcome`] if the folders cannot be used; errors of the output.
pub(crate) async fn run(
    args: &SalvageArgs,
    common: &Common,
    out: &mut Out,
) -> Result<(), ClientError> {
    let Target::Data(from) = common.target()? else {
        return Err(ClientError::Usage {
            what: "a store cannot be salvaged through a server".into(),
            hint: "stop the server, then run: treering salvage --data DIR --to DIR".into(),
        });
    };
    let bar = Steps::start("salvage");
    let mut waiting = FolderWait::new(common.wait);
    let done = loop {
        let done = salvage(&from, &args.to, |step| {
            bar.reach(step.done, step.total);
        });
        match done.await {
            Ok(done) => break done,
            Err(error) => waiting.for_folder_alone(refused(error)).await?,
        }
    };
    drop(bar);
    print_damage(&done);
    if out.json {
        return Ok(out.line(json(&done))?);
    }
    let SalvageOutcome {
        whole, cut, lost, ..
    } = done;
    out.line(format!(
        "{} conversations are complete, {} end before their damage, {} are lost",
        count(whole),
        count(cut),
        count(lost)
    ))?;
    out.line(format!(
        "{} events copied, {} left out, {} positions of the log cannot be read",
        count(done.events_taken),
        count(done.events_left),
        count(done.unreadable_positions)
    ))?;
    if done.unreadable_positions > 0 {
        out.line(
            "The events at these positions are unknown, except for those that remaining \
             projections have: complete conversations may lack their last events.",
        )?;
    }
    Ok(out.line(format!(
        "Check it with `treering verify --deep --data {}`",
        args.to.display()
    ))?)
}

fn json(done: &SalvageOutcome) -> String {
    let mut conversations = Object::new();
    conversations
        .number("whole", done.whole)
        .number("cut", done.cut)
        .number("lost", done.lost);
    let mut events = Object::new();
    events
        .number("taken", done.events_taken)
        .number("left", done.events_left);
    let mut object = Object::new();
    object
        .raw("conversations", &conversations.finish())
        .raw("events", &events.finish())
        .number("unreadable_positions", done.unreadable_positions);
    object.finish()
}

/// Prints damage to standard error, one line each.
fn print_damage(done: &SalvageOutcome) {
    for cut in &done.damaged {
        tell!(
            "{} (namespace {}): left out from revision {} on, position {}: {}",
            cut.conversation,
            cut.namespace,
            cut.revision,
            cut.position,
            cut.what
        );
    }
}

fn refused(error: SalvageError) -> ClientError {
    let error = match error {
        SalvageError::Held(error) => return held(error),
        error => error,
    };
    let what = with_causes(&error).to_string();
    let (hint, exit) = match error {
        SalvageError::NoStore { .. } => ("give the store's folder with --data DIR", Exit::NotFound),
        SalvageError::NotEmpty { .. } | SalvageError::Within { .. } => {
            ("use another folder with --to DIR", Exit::Usage)
        }
        SalvageError::Source { .. } | SalvageError::Held(_) => {
            ("check that the folder is readable", Exit::Unavailable)
        }
        SalvageError::Target { .. } => (
            "check for free space, then try another folder",
            Exit::Failed,
        ),
        SalvageError::Unusable { .. } => (
            "keep both folders and report this: it is a bug",
            Exit::Failed,
        ),
    };
    ClientError::Outcome {
        what,
        hint: hint.into(),
        exit,
    }
}
