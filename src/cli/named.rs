//! Where each command line has the name of a conversation, so that one place
//! ([`resolve`]) looks all of them up before a command runs.

use super::{Command, connect::Connection, error::CliError, names, text::printable};

/// A conversation that a command line names, with what belongs to it.
#[derive(Debug)]
pub struct Named<'a> {
    conversation: &'a mut String,
    branch: Option<&'a mut Option<String>>,
    at: At<'a>,
    /// Other revisions that tell which branch is meant when none is named.
    also: u64,
    /// Whether the branch that is named must have the revision.
    must_have: bool,
    /// Other branches that it must have.
    branches: Vec<String>,
}

/// Where the revision goes that is typed with the conversation.
#[derive(Debug)]
enum At<'a> {
    Nowhere,
    /// 0: none.
    Number(&'a mut u64),
    Maybe(&'a mut Option<u64>),
}

impl<'a> Named<'a> {
    /// A conversation alone.
    pub fn new(conversation: &'a mut String) -> Self {
        Self {
            conversation,
            branch: None,
            at: At::Nowhere,
            also: 0,
            must_have: false,
            branches: Vec::new(),
        }
    }

    /// With one of its branches.
    #[must_use]
    pub fn branch(mut self, branch: &'a mut Option<String>) -> Self {
        self.branch = Some(branch);
        self
    }

    /// With branches that it must have.
    #[must_use]
    pub fn must_have(mut self, branches: [&String; 2]) -> Self {
        self.branches.extend(branches.into_iter().cloned());
        self
    }

    /// With a moment of it.
    #[must_use]
    pub fn moment(mut self, revision: &'a mut u64) -> Self {
        self.at = At::Number(revision);
        self
    }

    /// With one event, which the branch must have.
    #[must_use]
    pub fn event(mut self, revision: &'a mut u64) -> Self {
        self.at = At::Number(revision);
        self.must_have = true;
        self
    }

    /// The same.
    #[must_use]
    pub fn maybe_event(mut self, revision: &'a mut Option<u64>) -> Self {
        self.at = At::Maybe(revision);
        self.must_have = true;
        self
    }

    /// With a revision that tells the branch when nothing else does.
    #[must_use]
    pub fn also(mut self, revision: u64) -> Self {
        self.also = revision;
        self
    }

    /// Looks it up, and puts what every call takes in its place.
    ///
    /// # Errors
    /// As [`names::find`] and [`names::branch_of`].
    pub async fn resolve(self, store: &Connection) -> Result<(), CliError> {
        let found = names::find(store, self.conversation).await?;
        let typed = self.conversation.clone();
        self.conversation.clone_from(&found.id);
        for branch in &self.branches {
            names::check_branch(&found, branch)?;
        }
        let at = put(self.at, found.revision, &typed)?;
        let Some(branch) = self.branch else {
            return Ok(());
        };
        if let Some(branch) = branch.as_deref() {
            names::check_branch(&found, branch)?;
        }
        let revision = at.max(self.also);
        let is_sought = branch.is_none() || (self.must_have && at > 0);
        if revision > 0 && is_sought {
            let of_revision = names::branch_of(store, &found, branch.as_deref(), revision).await?;
            if let (Some(name), None) = (&of_revision, &branch) {
                let name = printable(name);
                anstream::eprintln!("#{revision} is on the branch {name}");
            }
            *branch = of_revision;
        }
        Ok(())
    }
}

/// Puts the revision of `NAME#REVISION` where the command has it, and tells which it
/// has then; 0: none.
fn put(at: At, typed: Option<u64>, text: &str) -> Result<u64, CliError> {
    let differs = |has: u64, typed: u64| CliError::Usage {
        what: format!("{text} names #{typed}, and the option #{has}"),
        hint: "say it once".into(),
    };
    match (at, typed) {
        (At::Nowhere, None) => Ok(0),
        (At::Nowhere, Some(_)) => Err(CliError::Usage {
            what: format!("{text} names one event, and this command takes a conversation"),
            hint: "leave the part from # on out".into(),
        }),
        (At::Number(has), None) => Ok(*has),
        (At::Maybe(has), None) => Ok(has.unwrap_or(0)),
        (At::Number(has), Some(typed)) if *has == 0 || *has == typed => {
            *has = typed;
            Ok(typed)
        }
        (At::Number(has), Some(typed)) => Err(differs(*has, typed)),
        (At::Maybe(has), Some(typed)) => match *has {
            Some(has) if has != typed => Err(differs(has, typed)),
            _ => {
                *has = Some(typed);
                Ok(typed)
            }
        },
    }
}

/// Looks up every conversation that a command line names, and puts what every call
/// takes in its place.
///
/// # Errors
/// As [`names::find`] and [`names::branch_of`].
pub async fn resolve(command: &mut Command, store: &Connection) -> Result<(), CliError> {
    for named in command.named() {
        named.resolve(store).await?;
    }
    Ok(())
}

impl Command {
    /// The first conversation that the line names.
    pub fn conversation(&mut self) -> Option<String> {
        let named = self.named().into_iter().next()?;
        Some(named.conversation.clone())
    }

    fn named(&mut self) -> Vec<Named<'_>> {
        let one = match self {
            Self::Export(args) => return args.named(),
            Self::Show(args) => Some(args.named()),
            Self::Log(args) => Some(args.named()),
            Self::Fork(args) => Some(args.named()),
            Self::Rewind(args) => Some(args.named()),
            Self::Replay(args) => Some(args.named()),
            Self::Diff(args) => Some(args.named()),
            Self::Search(args) => args.named(),
            Self::Tools(args) => Some(args.named()),
            Self::Result(args) => Some(args.named()),
            Self::Knowledge(args) => Some(args.named()),
            Self::Context(args) => Some(args.named()),
            Self::Compact(args) => Some(args.named()),
            Self::Set(args) => args.named(),
            Self::Watch(args) => args.named(),
            Self::Sub(args) => Some(args.named()),
            Self::Append(args) => args.named(),
            Self::Pending(args) => args.named(),
            Self::Approve(args) => Some(args.named()),
            Self::Deny(args) => Some(args.named()),
            Self::Annotate(args) => Some(args.named()),
            Self::Label(args) => Some(args.named()),
            Self::Branch(args) => Some(args.named()),
            Self::Serve(_)
            | Self::Mcp(_)
            | Self::Init(_)
            | Self::Demo(_)
            | Self::Items(_)
            | Self::Import(_)
            | Self::Ls(_)
            | Self::Verify(_)
            | Self::Rebuild(_)
            // It takes several, and ranges.
            | Self::Erase(_)
            | Self::Repair(_)
            | Self::Salvage(_)
            | Self::Keys(_)
            | Self::Top(_)
            | Self::Audit(_)
            | Self::Backup(_)
            | Self::Restore(_)
            | Self::Stats(_)
            | Self::Bench(_)
            | Self::Upgrade(_)
            | Self::Config(_)
            | Self::Man(_)
            | Self::Completions(_) => None,
        };
        one.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // An event that is named twice must be the same one, and a command that would
    // forget the event must say that it takes none.
    #[test]
    fn a_revision_goes_where_the_command_has_it() {
        let (mut unset, mut same, mut other) = (0, 7, 8);
        assert_eq!(put(At::Number(&mut unset), Some(7), "a#7").unwrap(), 7);
        assert_eq!(unset, 7);
        assert!(put(At::Number(&mut same), Some(7), "a#7").is_ok());
        assert!(put(At::Number(&mut other), Some(7), "a#7").is_err());
        assert!(put(At::Nowhere, Some(7), "a#7").is_err());
        assert_eq!(put(At::Nowhere, None, "a").unwrap(), 0);
        let mut maybe = None;
        assert_eq!(put(At::Maybe(&mut maybe), Some(7), "a#7").unwrap(), 7);
        assert_eq!(maybe, Some(7));
    }
}
