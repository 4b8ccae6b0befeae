//! Causes of errors.
//!
//! An error's `Display` describes only its own part; its cause is its `source`. To show an error
//! to people, use [`with_causes`].

use std::{error::Error, fmt, ops::Deref, sync::Arc};

/// A cloneable cause, for errors that several waiters receive. Dereferences to the error itself.
#[derive(Clone, Debug)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl Cause {
    /// Creates a cause from an error or a text.
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

/// An operation that failed, with its cause.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}")]
pub struct OperationError {
    what: String,
    source: Cause,
}

impl OperationError {
    /// Creates the error from the failed operation and its cause.
    pub fn new(what: impl Into<String>, of: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            what: what.into(),
            source: Cause::of(of),
        }
    }
}

/// Formats an error with its causes for people: `the store failed: the views' store failed: …`.
/// A cause that the error's own text already contains is not repeated.
#[must_use]
pub fn with_causes<'a>(error: &'a (dyn Error + 'a)) -> WithCauses<'a> {
    WithCauses(error)
}

/// The result of [`with_causes`].
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
    struct DirectError {
        source: io::Error,
    }

    /// The projections dropped the disk's error. The full text must contain every cause, and must
    /// not repeat a cause that an error already includes.
    #[test]
    fn error_text_contains_each_cause_once() {
        let disk = || io::Error::other("the disk is gone");
        let error = OperationError::new(
            "the store failed",
            OperationError::new("the views failed", disk()),
        );
        let text = "the store failed: the views failed: the disk is gone";
        assert_eq!(with_causes(&error).to_string(), text);
        let error = OperationError::new("the store failed", DirectError { source: disk() });
        let text = "the store failed: the log failed: the disk is gone";
        assert_eq!(with_causes(&error).to_string(), text);
        assert_eq!(with_causes(&disk()).to_string(), "the disk is gone");
        let source = error.source().unwrap();
        assert!(source.downcast_ref::<DirectError>().is_some(), "{source:?}");
        let text = OperationError::new("the store failed", "the engine is closing");
        assert_eq!(
            with_causes(&text).to_string(),
            "the store failed: the engine is closing"
        );
    }
}
