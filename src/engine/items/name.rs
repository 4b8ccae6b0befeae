//! Names of items: a path of labels and a key. The event key joins labels and key with slashes; `~`
//! and `/` within them are escaped as `~0` and `~1`.

use treering_domain::limits::{EVENT_KEY_BYTES_MAX, ITEM_PATH_LABELS_MAX};

/// Matches any label in path conditions.
pub(crate) const ANY_LABEL: &str = "*";

/// The name of an item.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemName {
    /// The path from the top; at least one label.
    pub path: Vec<String>,
    /// The key under that path.
    pub key: String,
}

/// Why a name or path is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameFault {
    /// The path has no label.
    #[error("the path is empty: it needs at least one label")]
    NoPath,
    /// The path has too many labels.
    #[error("the path has {labels} labels; the maximum is {ITEM_PATH_LABELS_MAX}")]
    TooDeep {
        /// The number of labels.
        labels: usize,
    },
    /// A label or the key is empty.
    #[error("the key or a label of the path is empty")]
    Empty,
    /// A label or the key has a NUL, which event keys cannot have.
    #[error("the key or a label of the path has a NUL character")]
    HasNul,
    /// A label is the wildcard.
    #[error("{ANY_LABEL:?} is not allowed as a label: it is the wildcard of path conditions")]
    Any,
    /// The name is too long.
    #[error(
        "path and key have {bytes} bytes together (one more per label, two for each ~ and /); the \
         maximum is {EVENT_KEY_BYTES_MAX}"
    )]
    TooLong {
        /// The length in bytes.
        bytes: usize,
    },
}

impl ItemName {
    /// Returns the event key of the item's events.
    ///
    /// # Errors
    /// [`NameFault`].
    pub fn event_key(&self) -> Result<String, NameFault> {
        if self.path.is_empty() {
            return Err(NameFault::NoPath);
        }
        check_label(&self.key)?;
        let mut key = beginning(&self.path)?;
        escape(&self.key, &mut key);
        match key.len() {
            bytes if bytes > EVENT_KEY_BYTES_MAX => Err(NameFault::TooLong { bytes }),
            _ => Ok(key),
        }
    }

    /// Returns the name that an event key encodes; `None` if it is not an item's.
    #[must_use]
    pub(crate) fn of_event_key(key: &str) -> Option<Self> {
        let mut path: Vec<String> = key.split('/').map(unescape).collect::<Option<_>>()?;
        let key = path.pop()?;
        let name = Self { path, key };
        let is_whole = !name.path.is_empty() && name.event_key().is_ok();
        is_whole.then_some(name)
    }
}

/// Returns the common prefix of the event keys of all items under a path.
///
/// # Errors
/// [`NameFault`].
pub(super) fn beginning(path: &[String]) -> Result<String, NameFault> {
    if path.len() > ITEM_PATH_LABELS_MAX {
        let labels = path.len();
        return Err(NameFault::TooDeep { labels });
    }
    let mut key = String::new();
    for label in path {
        check_label(label)?;
        if label == ANY_LABEL {
            return Err(NameFault::Any);
        }
        escape(label, &mut key);
        key.push('/');
    }
    match key.len() {
        bytes if bytes > EVENT_KEY_BYTES_MAX => Err(NameFault::TooLong { bytes }),
        _ => Ok(key),
    }
}

fn check_label(label: &str) -> Result<(), NameFault> {
    if label.is_empty() {
        return Err(NameFault::Empty);
    }
    match label.contains('\0') {
        true => Err(NameFault::HasNul),
        false => Ok(()),
    }
}

fn escape(label: &str, into: &mut String) {
    for char in label.chars() {
        match char {
            '~' => into.push_str("~0"),
            '/' => into.push_str("~1"),
            char => into.push(char),
        }
    }
}

fn unescape(label: &str) -> Option<String> {
    let mut text = String::with_capacity(label.len());
    let mut chars = label.chars();
    while let Some(char) = chars.next() {
        text.push(match char {
            '~' => match chars.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            char => char,
        });
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn label() -> impl Strategy<Value = String> {
        prop_oneof!["[a-z~/]{1,6}", "[^\0]{1,4}"]
            .prop_filter("it stands for any", |label| label != ANY_LABEL)
    }

    proptest! {
        // Two items must never share an event key, and a path's prefix must not match other paths
        // by accident: "a/b" as one label is not under "a".
        #[test]
        fn item_names_round_trip(path in prop::collection::vec(label(), 1..4), key in label()) {
            let name = ItemName { path: path.clone(), key };
            let event_key = name.event_key().unwrap();
            prop_assert_eq!(ItemName::of_event_key(&event_key), Some(name));
            for depth in 0..=path.len() {
                prop_assert!(event_key.starts_with(&beginning(&path[..depth]).unwrap()));
            }
        }

        #[test]
        fn event_key_prefix_matches_items_under_a_path(
            path in prop::collection::vec(label(), 1..4),
            other in prop::collection::vec(label(), 1..4),
            key in label(),
        ) {
            let event_key = ItemName { path: path.clone(), key }.event_key().unwrap();
            let is_under = path.len() >= other.len() && path[..other.len()] == other;
            prop_assert_eq!(event_key.starts_with(&beginning(&other).unwrap()), is_under);
        }
    }

    // Test each limit and one past it, and event keys that are not items'.
    #[test]
    fn item_names_over_their_limits_are_refused() {
        let name = |labels: usize, key: &str| ItemName {
            path: vec!["a".to_owned(); labels],
            key: key.to_owned(),
        };
        assert_eq!(name(0, "k").event_key(), Err(NameFault::NoPath));
        assert_eq!(name(1, "").event_key(), Err(NameFault::Empty));
        assert_eq!(name(1, "a\0").event_key(), Err(NameFault::HasNul));
        assert!(name(1, "*").event_key().is_ok());
        assert!(name(ITEM_PATH_LABELS_MAX, "k").event_key().is_ok());
        let labels = ITEM_PATH_LABELS_MAX + 1;
        let deep = name(labels, "k").event_key();
        assert_eq!(deep, Err(NameFault::TooDeep { labels }));
        let longest = "k".repeat(EVENT_KEY_BYTES_MAX - 2);
        assert!(name(1, &longest).event_key().is_ok());
        let bytes = EVENT_KEY_BYTES_MAX + 1;
        let long = name(1, &format!("{longest}k")).event_key();
        assert_eq!(long, Err(NameFault::TooLong { bytes }));
        for key in ["", "k", "/k", "a/", "a//k", "a/~", "a/~2", "*/k"] {
            assert_eq!(ItemName::of_event_key(key), None, "{key}");
        }
    }
}
