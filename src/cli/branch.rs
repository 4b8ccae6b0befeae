//! `branch`: the branches of a conversation: list, rename, archive and activate them.

use clap::{Args, Subcommand};

use super::{
    approve::person,
    branch_args::{BranchArgs, FoundBranch, RevisionArg, find_conversation},
    connect::Connection,
    error::ClientError,
    json,
    output::{Out, Tone},
    pb, read,
    text::printable,
    text_arg::free_text,
};

/// List, rename, archive and activate branches
///
/// `treering fork` creates one. Branches are never deleted: an archived branch takes no more events
/// but can still be read.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering branch ls CONVERSATION
  treering branch rename CONVERSATION retry with-tests
  treering branch activate CONVERSATION with-tests
  treering branch archive CONVERSATION retry --reason 'led nowhere'")]
pub(crate) struct BranchesArgs {
    #[command(subcommand)]
    what: BranchCommand,
}

#[derive(Subcommand, Debug, Clone)]
enum BranchCommand {
    /// List the branches with their heads
    Ls {
        /// The conversation: an id or the beginning of one, @last, or words of its title
        conversation: String,
    },
    /// Rename a branch
    Rename {
        #[command(flatten)]
        place: NamedBranch,
        /// Its new name
        #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
        to: String,
    },
    /// Archive a branch, so that it takes no more events
    Archive {
        #[command(flatten)]
        place: NamedBranch,
        /// Reason
        #[arg(long, short, value_name = "TEXT")]
        #[arg(allow_hyphen_values = true, value_parser = free_text)]
        reason: Option<String>,
    },
    /// Make a branch the active one, which commands use by default
    Activate {
        #[command(flatten)]
        place: NamedBranch,
    },
}

/// A branch of a conversation.
#[derive(Args, Debug, Clone)]
struct NamedBranch {
    /// The conversation: an id or the beginning of one, @last, or words of its title
    conversation: String,
    /// The branch
    branch: String,
}

impl BranchesArgs {
    /// Returns true for the subcommands that append events.
    pub(crate) fn appends(&self) -> bool {
        !matches!(self.what, BranchCommand::Ls { .. })
    }
}

/// Lists branches, or changes one.
pub(crate) async fn run(
    args: BranchesArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let (place, change, did) = match args.what {
        BranchCommand::Ls { conversation } => return list(&conversation, store, out).await,
        BranchCommand::Rename { place, to } => {
            let did = format!("is now named {}", printable(&to));
            (place, BranchChange::Name(to), did)
        }
        BranchCommand::Archive { place, reason } => {
            let did = "is archived".to_owned();
            (
                place,
                BranchChange::Archived(reason.unwrap_or_default()),
                did,
            )
        }
        BranchCommand::Activate { place } => {
            (place, BranchChange::Active, "is now active".to_owned())
        }
    };
    let found = BranchArgs {
        conversation: place.conversation,
        branch: Some(place.branch),
    };
    let place = found.find(store, RevisionArg::None).await?;
    let answer = change.of(&place, store).await?;
    if out.json {
        return Ok(out.appended(&answer.events, answer.repeated_key, &answer.warnings)?);
    }
    let name = out.paint.text(Tone::Name, printable(&place.branch));
    Ok(out.line(format!("{name} {did}"))?)
}

/// A change to a branch.
enum BranchChange {
    Name(String),
    Archived(String),
    Active,
}

impl BranchChange {
    async fn of(
        self,
        place: &FoundBranch,
        store: &Connection,
    ) -> Result<pb::AppendResponse, ClientError> {
        let (conversation_id, branch) = (place.conversation.clone(), place.branch.clone());
        let (actor, mut calls) = (person(None), store.conversations());
        let answer = match self {
            Self::Name(name) => {
                let request = pb::RenameBranchRequest {
                    conversation_id,
                    branch,
                    name,
                    actor,
                    ..Default::default()
                };
                calls.rename_branch(request).await?
            }
            Self::Archived(reason) => {
                let request = pb::ArchiveBranchRequest {
                    conversation_id,
                    branch,
                    reason,
                    actor,
                    ..Default::default()
                };
                calls.archive_branch(request).await?
            }
            Self::Active => {
                let request = pb::ActivateBranchRequest {
                    conversation_id,
                    branch,
                    actor,
                    ..Default::default()
                };
                calls.activate_branch(request).await?
            }
        };
        Ok(answer.into_inner())
    }
}

async fn list(conversation: &str, store: &Connection, out: &mut Out) -> Result<(), ClientError> {
    let found = find_conversation(store, conversation).await?;
    let branches = read::branches(store, &found.conversation).await?;
    let columns = branches.iter().map(|branch| branch.name.chars().count());
    let columns = columns.max().unwrap_or(0);
    for branch in &branches {
        if out.json {
            out.line(json::of(branch))?;
            continue;
        }
        let paint = out.paint;
        let name = format!("{:<columns$}", printable(&branch.name));
        let mut line = format!(
            "{} {}  head #{}",
            if branch.active { "*" } else { " " },
            paint.text(Tone::Name, name),
            branch.head
        );
        if branch.branch_id > 0 {
            let parent = branches
                .iter()
                .find(|other| other.branch_id == branch.parent_branch_id)
                .map_or_else(|| "another conversation".into(), |p| printable(&p.name));
            line.push_str(&format!(", from {parent} after #{}", branch.fork_revision));
        }
        if branch.archived {
            line.push_str(", archived");
        }
        out.row(line)?;
    }
    Ok(())
}
