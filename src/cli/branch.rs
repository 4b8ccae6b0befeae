//! `branch`: the branches of a conversation: list, rename, archive and activate them.

use clap::{Args, Subcommand};

use super::{
    approve::person,
    connect::Connection,
    error::CliError,
    json::{self, Object},
    named::Named,
    names,
    output::{Out, Tone},
    pb, read,
    text::printable,
};

/// List, rename, archive and activate branches
///
/// `treering fork` makes one. Nothing is ever deleted: an archived branch takes nothing
/// more and can be read as before.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering branch ls CONVERSATION
  treering branch rename CONVERSATION retry with-tests
  treering branch activate CONVERSATION with-tests
  treering branch archive CONVERSATION retry --reason 'led nowhere'")]
pub struct BranchArgs {
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
    /// Give a branch another name
    Rename {
        #[command(flatten)]
        place: NamedBranch,
        /// Its new name
        #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
        to: String,
    },
    /// Let a branch take nothing more
    Archive {
        #[command(flatten)]
        place: NamedBranch,
        /// Why
        #[arg(
            long,
            short,
            value_name = "TEXT",
            default_value = "",
            hide_default_value = true
        )]
        reason: String,
    },
    /// Make a branch the one that commands mean when they name none
    Activate {
        #[command(flatten)]
        place: NamedBranch,
    },
}

/// Which branch.
#[derive(Args, Debug, Clone, PartialEq, Eq)]
pub struct NamedBranch {
    /// The conversation: an id or the beginning of one, @last, or words of its title
    pub conversation: String,
    /// The branch
    pub branch: String,
}

impl BranchArgs {
    /// True when it does more than look.
    pub fn appends(&self) -> bool {
        !matches!(self.what, BranchCommand::Ls { .. })
    }

    /// What it names.
    pub fn named(&mut self) -> Named<'_> {
        match &mut self.what {
            BranchCommand::Ls { conversation } => Named::new(conversation),
            BranchCommand::Rename { place, .. }
            | BranchCommand::Archive { place, .. }
            | BranchCommand::Activate { place } => Named::new(&mut place.conversation),
        }
    }
}

/// Lists branches, or changes one.
///
/// # Errors
/// What the store or the output says.
pub async fn run(args: BranchArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let (place, change, did) = match args.what {
        BranchCommand::Ls { conversation } => return list(&conversation, store, out).await,
        BranchCommand::Rename { place, to } => {
            let did = format!("is called {} now", printable(&to));
            (place, Change::Name(to), did)
        }
        BranchCommand::Archive { place, reason } => {
            let did = "is archived: it takes nothing more".to_owned();
            (place, Change::Archived(reason), did)
        }
        BranchCommand::Activate { place } => {
            (place, Change::Active, "is the active one now".to_owned())
        }
    };
    let found = names::find(store, &place.conversation).await?;
    names::check_branch(&found, &place.branch)?;
    let answer = change.of(&place, store).await?;
    if out.json {
        let text = json::appended(
            &answer.events,
            answer.repeated_key,
            &answer.warnings,
            Object::new(),
        );
        return Ok(out.line(text)?);
    }
    let name = out.paint.text(Tone::Name, printable(&place.branch));
    Ok(out.line(format!("{name} {did}"))?)
}

/// What becomes of a branch.
enum Change {
    Name(String),
    Archived(String),
    Active,
}

impl Change {
    async fn of(
        self,
        place: &NamedBranch,
        store: &Connection,
    ) -> Result<pb::AppendResponse, CliError> {
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

async fn list(conversation: &str, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let branches = read::branches(store, conversation).await?;
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
