//! What items are called: a path of labels and a key. In the log that is the key of an event:
//! labels and key with slashes between them, `~` and `/` within them as `~0` and `~1`.

use crate::domain::limits::{EVENT_KEY_BYTES_MAX, ITEM_PATH_LABELS_MAX};

/// Stands for any label where paths are matched.
pub const ANY_LABEL: &str = "*";

/// The name of an item.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemName {
    /// Where it is, from the top; at least one label.
    pub path: Vec<String>,
    /// Which one it is there.
    pub key: String,
}

/// Why there can be no item of a name, or none under a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameFault {
    /// No label.
    #[error("the path is empty: an item is under at least one label")]
    NoPath,
    /// Too many.
    #[error("the path has {labels} labels; at most {ITEM_PATH_LABELS_MAX} are allowed")]
    TooDeep {
        /// How many.
        labels: usize,
    },
    /// A part says nothing.
    #[error("a label of the path, or the key, is empty")]
    Empty,
    /// A part has what no event's key has.
    #[error("a label of the path, or the key, has a NUL character")]
    HasNul,
    /// A label that stands for any.
    #[error("a label is {ANY_LABEL:?}, which stands for any label where paths are matched")]
    Any,
    /// All together.
    #[error(
        "path and key have {bytes} bytes together, with a separator for each label and two \
         bytes for each ~ and /; at most {EVENT_KEY_BYTES_MAX} are allowed"
    )]
    TooLong {
        /// How many.
        bytes: usize,
    },
}

impl ItemName {
    /// What its events are found by.
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

    /// The name that an event's key says; none: it is no item's.
    #[must_use]
    pub fn of_event_key(key: &str) -> Option<Self> {
        let mut path: Vec<String> = key.split('/').map(unescape).collect::<Option<_>>()?;
        let key = path.pop()?;
        let name = Self { path, key };
        let is_whole = !name.path.is_empty() && name.event_key().is_ok();
        is_whole.then_some(name)
    }
}

/// What the keys of all events under a path begin with.
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
        // Two items must never have one name, and a path never what another one begins with by
        // chance: "a/b" is one label, and not what is under "a".
        #[test]
        fn names_come_back(path in prop::collection::vec(label(), 1..4), key in label()) {
            let name = ItemName { path: path.clone(), key };
            let event_key = name.event_key().unwrap();
            prop_assert_eq!(ItemName::of_event_key(&event_key), Some(name));
            for depth in 0..=path.len() {
                prop_assert!(event_key.starts_with(&beginning(&path[..depth]).unwrap()));
            }
        }

        #[test]
        fn what_begins_so_is_under_it(
            path in prop::collection::vec(label(), 1..4),
            other in prop::collection::vec(label(), 1..4),
            key in label(),
        ) {
            let event_key = ItemName { path: path.clone(), key }.event_key().unwrap();
            let is_under = path.len() >= other.len() && path[..other.len()] == other;
            prop_assert_eq!(event_key.starts_with(&beginning(&other).unwrap()), is_under);
        }
    }

    // Each bound, and one past it; and keys of events that are no items.
    #[test]
    fn bounds_of_names() {
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
