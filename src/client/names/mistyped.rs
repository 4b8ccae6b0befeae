//! Errors for mistyped places: `NAME#x`, `NAME:19`, `NAME@19`.

use super::{
    super::{error::ClientError, text::printable},
    FoundConversation,
};

/// Separators before a revision, here and in other programs.
const SEPARATORS: [char; 3] = ['#', ':', '@'];

/// Splits a text that may be a mistyped place into the name and the part where the revision should
/// be.
#[must_use]
pub(super) fn halves(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = text.rsplit_once(SEPARATORS)?;
    let (name, rest) = (name.trim(), rest.trim());
    (!name.is_empty()).then_some((name, rest))
}

/// Returns the error for a place whose conversation exists and whose revision is not valid.
#[must_use]
pub(super) fn no_such_revision(text: &str, rest: &str, found: &FoundConversation) -> ClientError {
    let called = found.called();
    let hint = match rest.parse::<u64>() {
        Ok(revision) if revision > 0 => format!("did you mean {called}#{revision}"),
        _ => format!(
            "revisions are numbers from 1, as in {called}#1; `treering log {called}` shows them"
        ),
    };
    ClientError::Usage {
        what: format!(
            "{} is not an event of {called}: `{}` is not a revision",
            printable(text),
            printable(rest)
        ),
        hint,
    }
}

/// Returns the error for `NAME#0`.
#[must_use]
pub(super) fn no_zeroth(found: &FoundConversation) -> ClientError {
    let called = found.called();
    ClientError::Usage {
        what: format!("no event #0 in {called}"),
        hint: format!("its first event is {called}#1"),
    }
}
