//! What errors were caused by.
//!
//! An error says its own part and carries its cause as its source; who shows it to people
//! shows the [`with_causes`].

use std::{error::Error, fmt, ops::Deref, sync::Arc};

/// What an error was caused by, for errors that are handed to several who wait. It derefs to
/// the error itself.
#[derive(Clone, Debug)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl Cause {
    /// An error, or a text where there is none.
    pub fn of(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(Arc::from(error.into()))
    }
}

impl Deref for Cause {
    type Target = dyn Error + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

/// What could not be done, and why.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}")]
pub struct NotDone {
    what: String,
    source: Cause,
}

impl NotDone {
    /// What could not be done, with its cause.
    pub fn new(what: impl Into<String>, of: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            what: what.into(),
            source: Cause::of(of),
        }
    }
}

/// An error with its causes, for people: `the store failed: the views' store failed: …`.
/// A cause that an error has told already is not told again.
#[must_use]
pub fn with_causes<'a>(error: &'a (dyn Error + 'a)) -> WithCauses<'a> {
    WithCauses(error)
}

/// See [`with_causes`].
#[derive(Clone, Copy, Debug)]
pub struct WithCauses<'a>(&'a (dyn Error + 'a));

impl fmt::Display for WithCauses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = self.0.to_string();
        f.write_str(&told)?;
        let mut next = self.0.source();
        while let Some(error) = next {
            let text = error.to_string();
            if !told.contains(&text) {
                write!(f, ": {text}")?;
                told = text;
            }
            next = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the log failed: {source}")]
    struct Tells {
        source: io::Error,
    }

    /// The views swallowed what the disk had said: a full text must have every cause, and
    /// one that says its cause itself must not have it twice.
    #[test]
    fn each_cause_is_told_once() {
        let disk = || io::Error::other("the disk is gone");
        let error = NotDone::new("the store failed", NotDone::new("the views failed", disk()));
        let text = "the store failed: the views failed: the disk is gone";
        assert_eq!(with_causes(&error).to_string(), text);
        let error = NotDone::new("the store failed", Tells { source: disk() });
        let text = "the store failed: the log failed: the disk is gone";
        assert_eq!(with_causes(&error).to_string(), text);
        assert_eq!(with_causes(&disk()).to_string(), "the disk is gone");
        let source = error.source().unwrap();
        assert!(source.downcast_ref::<Tells>().is_some(), "{source:?}");
        let text = NotDone::new("the store failed", "the engine is closing");
        assert_eq!(
            with_causes(&text).to_string(),
            "the store failed: the engine is closing"
        );
    }
}
