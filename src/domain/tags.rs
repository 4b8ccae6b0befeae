//! What an event is found by: a key, and attributes.

use std::collections::BTreeMap;

use super::limits::{
    ATTRIBUTE_NAME_BYTES_MAX, ATTRIBUTES_BYTES_MAX, ATTRIBUTES_MAX, EVENT_KEY_BYTES_MAX,
};

/// What an event's author gave it to be found by. Content like its body: erased with it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Tags {
    /// Need not be unique: the newest event with a key is its latest. Empty: none.
    pub key: String,
    /// Name to value.
    pub attributes: BTreeMap<String, String>,
}

/// Tags that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagsFault {
    /// The key is over its bound.
    #[error("the key has {bytes} bytes; at most {EVENT_KEY_BYTES_MAX} are allowed")]
    KeyTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The key has a NUL.
    #[error("the key has a NUL character, which keys cannot have")]
    KeyHasNul,
    /// There are too many attributes.
    #[error("there are {count} attributes; at most {ATTRIBUTES_MAX} are allowed")]
    TooManyAttributes {
        /// How many.
        count: usize,
    },
    /// An attribute has no name, or one over its bound.
    #[error(
        "the name of an attribute has {bytes} bytes; 1 to {ATTRIBUTE_NAME_BYTES_MAX} are allowed"
    )]
    AttributeName {
        /// Its length.
        bytes: usize,
    },
    /// The attributes are over their bound.
    #[error(
        "names and values of the attributes have {bytes} bytes together; \
         at most {ATTRIBUTES_BYTES_MAX} are allowed"
    )]
    AttributesTooLong {
        /// Of names and values together.
        bytes: usize,
    },
}

impl TagsFault {
    /// The field that it is about.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::KeyTooLong { .. } | Self::KeyHasNul => "key",
            Self::TooManyAttributes { .. }
            | Self::AttributeName { .. }
            | Self::AttributesTooLong { .. } => "attributes",
        }
    }
}

impl Tags {
    /// True when there is nothing to find the event by.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.key.is_empty() && self.attributes.is_empty()
    }

    /// Checks them against their bounds.
    ///
    /// # Errors
    /// The first bound that they pass.
    pub fn check(&self) -> Result<(), TagsFault> {
        check_key(&self.key)?;
        let count = self.attributes.len();
        if count > ATTRIBUTES_MAX {
            return Err(TagsFault::TooManyAttributes { count });
        }
        let mut bytes = 0;
        for (name, value) in &self.attributes {
            if name.is_empty() || name.len() > ATTRIBUTE_NAME_BYTES_MAX {
                let bytes = name.len();
                return Err(TagsFault::AttributeName { bytes });
            }
            bytes += name.len() + value.len();
        }
        if bytes > ATTRIBUTES_BYTES_MAX {
            return Err(TagsFault::AttributesTooLong { bytes });
        }
        Ok(())
    }
}

/// Checks a key, or the beginning of one.
///
/// # Errors
/// [`TagsFault`] when no key can be like it.
pub fn check_key(key: &str) -> Result<(), TagsFault> {
    if key.len() > EVENT_KEY_BYTES_MAX {
        let bytes = key.len();
        return Err(TagsFault::KeyTooLong { bytes });
    }
    // Keys end with one in the index, so that those with a common beginning stand together.
    if key.contains('\0') {
        return Err(TagsFault::KeyHasNul);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(count: usize, name: usize, value: usize) -> Tags {
        let attribute = |n| (format!("{n:0name$}"), "v".repeat(value));
        Tags {
            key: String::new(),
            attributes: (0..count).map(attribute).collect(),
        }
    }

    // What is stored for ever must be bounded where it comes in: at each bound, and one past it.
    #[test]
    fn tags_are_bounded() {
        let key = |key: String| Tags {
            key,
            ..Tags::default()
        };
        assert_eq!(key("k".repeat(512)).check(), Ok(()));
        let fault = TagsFault::KeyTooLong { bytes: 513 };
        assert_eq!(key("k".repeat(513)).check(), Err(fault));
        assert_eq!(key("a\0b".to_owned()).check(), Err(TagsFault::KeyHasNul));
        assert_eq!(attributes(32, 128, 128).check(), Ok(()));
        let fault = TagsFault::TooManyAttributes { count: 33 };
        assert_eq!(attributes(33, 4, 1).check(), Err(fault));
        let fault = TagsFault::AttributeName { bytes: 129 };
        assert_eq!(attributes(1, 129, 1).check(), Err(fault));
        let fault = TagsFault::AttributesTooLong { bytes: 32 * 257 };
        assert_eq!(attributes(32, 128, 129).check(), Err(fault));
        let unnamed = Tags {
            key: String::new(),
            attributes: [(String::new(), "v".to_owned())].into(),
        };
        let fault = TagsFault::AttributeName { bytes: 0 };
        assert_eq!(unnamed.check(), Err(fault));
    }
}
