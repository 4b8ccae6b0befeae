//! Arguments that name a conversation, a branch and a revision.

use clap::Args;

use super::{connect::Connection, error::ClientError, names, safe::tell};

/// A conversation, and one of its branches.
#[derive(Args, Clone, Debug)]
pub(crate) struct BranchArgs {
    /// The conversation: an id or the beginning of one, @last, or words of its title
    pub(crate) conversation: String,
    /// The branch [default: the active one]
    #[arg(long, short, value_name = "NAME", global = true)]
    pub(crate) branch: Option<String>,
}

/// A branch as of a revision.
#[derive(Args, Clone, Debug)]
pub(crate) struct AsOfArgs {
    #[command(flatten)]
    branch: BranchArgs,
    /// Show the branch as of this revision
    #[arg(long, value_name = "REVISION")]
    as_of: Option<u64>,
}

/// What a revision means to a command, and the value of the command's option; 0 if the option is
/// not given. The conversation argument may name the revision instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RevisionArg {
    /// The command takes no revision.
    None,
    /// The branch as of this revision.
    AsOf(u64),
    /// One event, which the branch must have.
    Event(u64),
    /// One event. If none is named, the branch is the one that has `from`.
    EventOr {
        /// The event.
        event: u64,
        /// First revision to read.
        from: u64,
    },
}

/// The branch that was found, in the form that calls use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundBranch {
    /// The conversation's UUID.
    pub(crate) conversation: String,
    /// Name of the branch; empty for the active one.
    pub(crate) branch: String,
    /// The revision, from the conversation argument or an option; 0 for none.
    pub(crate) revision: u64,
    /// Name of the conversation for messages.
    pub(crate) called: String,
}

impl BranchArgs {
    /// Finds the conversation and the branch.
    ///
    /// # Errors
    /// As [`names::find`], [`names::check_branch`] and [`names::branch_of`]; [`ClientError::Usage`]
    /// for two revisions, or a revision that the command does not take.
    pub(crate) async fn find(
        &self,
        store: &Connection,
        revision: RevisionArg,
    ) -> Result<FoundBranch, ClientError> {
        let found = names::find(store, &self.conversation).await?;
        let named = revision.with(found.revision, &self.conversation)?;
        let mut branch = self.branch.clone();
        if let Some(branch) = &branch {
            names::check_branch(&found, branch)?;
        }
        let (sought, is_event) = match revision {
            RevisionArg::None => (0, false),
            RevisionArg::AsOf(_) => (named, false),
            RevisionArg::Event(_) => (named, named > 0),
            RevisionArg::EventOr { from, .. } => (named.max(from), named > 0),
        };
        if sought > 0 && (branch.is_none() || is_event) {
            let of_revision = names::branch_of(store, &found, branch.as_deref(), sought).await?;
            if let (Some(name), None) = (&of_revision, &branch) {
                tell!("#{sought} is on the branch {name}");
            }
            branch = of_revision;
        }
        Ok(FoundBranch {
            called: found.called(),
            conversation: found.id,
            branch: branch.unwrap_or_default(),
            revision: named,
        })
    }
}

impl AsOfArgs {
    /// Finds the conversation, the branch and the revision.
    ///
    /// # Errors
    /// As [`BranchArgs::find`].
    pub(crate) async fn find(&self, store: &Connection) -> Result<FoundBranch, ClientError> {
        let as_of = RevisionArg::AsOf(self.as_of.unwrap_or_default());
        self.branch.find(store, as_of).await
    }
}

/// Finds a conversation.
///
/// # Errors
/// As [`BranchArgs::find`].
pub(crate) async fn find_conversation(
    store: &Connection,
    text: &str,
) -> Result<FoundBranch, ClientError> {
    find_if_named(store, Some(text), None).await
}

/// Finds the named conversation and branch. Fields that are not named stay empty.
///
/// # Errors
/// As [`BranchArgs::find`].
pub(crate) async fn find_if_named(
    store: &Connection,
    conversation: Option<&str>,
    branch: Option<&str>,
) -> Result<FoundBranch, ClientError> {
    let branch = branch.map(str::to_owned);
    let Some(conversation) = conversation.map(str::to_owned) else {
        return Ok(FoundBranch {
            branch: branch.unwrap_or_default(),
            ..Default::default()
        });
    };
    let args = BranchArgs {
        conversation,
        branch,
    };
    args.find(store, RevisionArg::None).await
}

impl RevisionArg {
    /// Returns the revision of the option or of `NAME#REVISION`; 0 for none.
    pub(crate) fn with(self, typed: Option<u64>, text: &str) -> Result<u64, ClientError> {
        let option = match self {
            Self::None => None,
            Self::AsOf(revision) | Self::Event(revision) => Some(revision),
            Self::EventOr { event, .. } => Some(event),
        };
        match (option, typed) {
            (None, Some(_)) => Err(ClientError::Usage {
                what: format!("{text} names an event, but this command takes a conversation"),
                hint: "omit the part from # on".into(),
            }),
            (option, None) => Ok(option.unwrap_or_default()),
            (Some(option), Some(typed)) if option == 0 || option == typed => Ok(typed),
            (Some(option), Some(typed)) => Err(ClientError::Usage {
                what: format!("{text} names #{typed}, but the option says #{option}"),
                hint: "give the revision only once".into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Two revisions must name the same event, and a command that takes no revision must refuse one.
    #[test]
    fn conflicting_or_unused_revision_is_refused() {
        assert_eq!(RevisionArg::Event(0).with(Some(7), "a#7").unwrap(), 7);
        assert_eq!(RevisionArg::AsOf(7).with(Some(7), "a#7").unwrap(), 7);
        assert_eq!(RevisionArg::AsOf(7).with(None, "a").unwrap(), 7);
        assert!(RevisionArg::Event(8).with(Some(7), "a#7").is_err());
        assert!(RevisionArg::None.with(Some(7), "a#7").is_err());
        assert_eq!(RevisionArg::None.with(None, "a").unwrap(), 0);
    }
}
