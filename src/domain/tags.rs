//! Tags: the event key and the attributes by which an event can be found.

use std::collections::BTreeMap;

use super::limits::{
    ATTRIBUTE_NAME_BYTES_MAX, ATTRIBUTES_BYTES_MAX, ATTRIBUTES_MAX, EVENT_KEY_BYTES_MAX,
};

/// The event key and attributes of an event. They are content and are erased with the body.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Tags {
    /// The event key; empty for none. Need not be unique: look-ups return the newest event.
    pub key: String,
    /// Attribute name to value.
    pub attributes: BTreeMap<String, String>,
}

/// Why tags were rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagsFault {
    /// The key is too long.
    #[error("the key has {bytes} bytes; the maximum is {EVENT_KEY_BYTES_MAX}")]
    KeyTooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The key has a NUL character.
    #[error("the key has a NUL character, which is not allowed")]
    KeyHasNul,
    /// There are too many attributes.
    #[error("the event has {count} attributes; the maximum is {ATTRIBUTES_MAX}")]
    TooManyAttributes {
        /// Number of attributes.
        count: usize,
    },
    /// An attribute's name is empty or too long.
    #[error("an attribute's name has {bytes} bytes; it must have 1 to {ATTRIBUTE_NAME_BYTES_MAX}")]
    AttributeName {
        /// Length of the name in bytes.
        bytes: usize,
    },
    /// The attributes are too long.
    #[error(
        "names and values of the attributes have {bytes} bytes together; the maximum is \
         {ATTRIBUTES_BYTES_MAX}"
    )]
    AttributesTooLong {
        /// Length of all names and values together, in bytes.
        bytes: usize,
    },
}

impl TagsFault {
    /// Returns the name of the field at fault.
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
    /// Returns true when there is neither a key nor an attribute.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.key.is_empty() && self.attributes.is_empty()
    }

    /// Checks the tags against their limits.
    ///
    /// # Errors
    /// [`TagsFault`] for the first limit that they exceed.
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

/// Checks an event key, or a prefix of one.
///
/// # Errors
/// [`TagsFault`] when no valid key can begin with it.
pub fn check_key(key: &str) -> Result<(), TagsFault> {
    if key.len() > EVENT_KEY_BYTES_MAX {
        let bytes = key.len();
        return Err(TagsFault::KeyTooLong { bytes });
    }
    // The index terminates keys with NUL, so that keys with a common prefix are adjacent.
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

    // Tags are stored permanently, so they must be bounded on input: test each limit, and one past
    // it.
    #[test]
    fn tags_over_their_limits_are_refused() {
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
