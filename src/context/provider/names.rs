//! Maps tool names and call ids to the characters that a provider accepts. A mapped name depends
//! only on the original, so it is the same in every request.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

/// The names or ids that a provider accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charset {
    /// Allowed characters besides letters and digits; none if all characters are allowed.
    pub marks: Option<&'static str>,
    /// Whether the first character must be a letter or underscore.
    pub starts_with_letter: bool,
    /// Maximum number of characters.
    pub max: usize,
}

impl Charset {
    /// Letters, digits, `_` and `-`, at most 64.
    pub const WORD: Self = Self {
        marks: Some("_-"),
        starts_with_letter: false,
        max: 64,
    };
    /// Gemini's function names.
    pub(crate) const GEMINI: Self = Self {
        marks: Some("_-."),
        starts_with_letter: true,
        max: 64,
    };

    /// Any characters, at most `max`.
    pub const fn any(max: usize) -> Self {
        Self {
            marks: None,
            starts_with_letter: false,
            max,
        }
    }

    fn takes(&self, c: char) -> bool {
        match self.marks {
            Some(marks) => c.is_ascii_alphanumeric() || marks.contains(c),
            None => !c.is_control(),
        }
    }

    fn is_start(&self, c: char) -> bool {
        !self.starts_with_letter || c.is_ascii_alphabetic() || c == '_'
    }

    /// Whether the name is accepted unchanged.
    #[must_use]
    pub fn is_legal(&self, name: &str) -> bool {
        name.chars()
            .next()
            .is_some_and(|first| self.is_start(first))
            && name.chars().all(|c| self.takes(c))
            && name.chars().count() <= self.max
    }

    /// Returns the name in these characters, with 8 hex digits of its hash, so that different names
    /// stay different.
    fn mapped(&self, name: &str) -> String {
        let hash = blake3::hash(name.as_bytes()).to_hex();
        let mut out = String::new();
        if name
            .chars()
            .next()
            .is_some_and(|first| !self.is_start(first))
        {
            out.push('_');
        }
        let room = self.max - 9 - out.len();
        let kept = name.chars().map(|c| if self.takes(c) { c } else { '_' });
        out.extend(kept.take(room));
        out.push('_');
        out.push_str(&hash[..8]);
        out
    }

    /// Returns the name with only accepted characters, cut to the limit. None if nothing is left.
    /// For names that nothing refers to.
    #[must_use]
    pub fn cleaned<'a>(&self, name: &'a str) -> Option<Cow<'a, str>> {
        if self.is_legal(name) {
            return Some(Cow::Borrowed(name));
        }
        let kept = name.chars().map(|c| if self.takes(c) { c } else { '_' });
        let name: String = kept.take(self.max).collect();
        let says_something = name.chars().any(|c| c.is_ascii_alphanumeric());
        says_something.then_some(Cow::Owned(name))
    }
}

/// Mapped names of tools. Each original has one mapped name.
#[derive(Debug)]
pub(crate) struct ToolNames {
    charset: Charset,
    mapped: HashMap<String, String>,
    taken: HashSet<String>,
}

impl ToolNames {
    /// Creates an empty mapping.
    #[must_use]
    pub fn new(charset: Charset) -> Self {
        Self {
            charset,
            mapped: HashMap::new(),
            taken: HashSet::new(),
        }
    }

    /// Returns the name as the provider accepts it.
    pub fn name<'a>(&mut self, name: &'a str) -> Cow<'a, str> {
        if let Some(mapped) = self.mapped.get(name) {
            return Cow::Owned(mapped.clone());
        }
        if self.charset.is_legal(name) && !self.taken.contains(name) {
            return Cow::Borrowed(name);
        }
        let mapped = unique(self.charset.mapped(name), &self.charset, &self.taken);
        self.taken.insert(mapped.clone());
        self.mapped.insert(name.to_owned(), mapped.clone());
        Cow::Owned(mapped)
    }
}

/// Ids of calls, unique within a body.
#[derive(Debug)]
pub(crate) struct CallIds {
    charset: Charset,
    taken: HashSet<String>,
}

impl CallIds {
    /// Creates an empty set.
    #[must_use]
    pub fn new(charset: Charset) -> Self {
        Self {
            charset,
            taken: HashSet::new(),
        }
    }

    /// Returns the id of the next call.
    pub fn assign<'a>(&mut self, wire_id: &'a str) -> Cow<'a, str> {
        if self.charset.is_legal(wire_id) && self.taken.insert(wire_id.to_owned()) {
            return Cow::Borrowed(wire_id);
        }
        let id = unique(self.charset.mapped(wire_id), &self.charset, &self.taken);
        self.taken.insert(id.clone());
        Cow::Owned(id)
    }
}

fn unique(first: String, charset: &Charset, taken: &HashSet<String>) -> String {
    let mut name = first;
    while taken.contains(&name) {
        name = charset.mapped(&name);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids come from any provider or framework. Ids that are not accepted are mapped, always in the
    /// same way, and never to the id of another call.
    #[test]
    fn mapped_call_ids_are_legal_unique_and_stable() {
        let odd = [
            "",
            "a b",
            "a:b",
            "ünï",
            "x".repeat(99).leak(),
            "a b",
            "ok-1",
        ];
        let assign = || {
            let mut ids = CallIds::new(Charset::WORD);
            odd.map(|id| ids.assign(id).into_owned())
        };
        let ids = assign();
        assert!(ids.iter().all(|id| Charset::WORD.is_legal(id)), "{ids:?}");
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        assert_eq!(ids[6], "ok-1");
        assert_eq!(assign(), ids);
    }

    /// A call and the tools section must use the same mapped name for a tool.
    #[test]
    fn tool_name_is_mapped_to_one_legal_name() {
        let mut names = ToolNames::new(Charset::GEMINI);
        let first = names.name("mcp/read file").into_owned();
        assert!(Charset::GEMINI.is_legal(&first), "{first}");
        assert_eq!(names.name("mcp/read file"), first);
        assert_ne!(names.name("mcp/read_file"), first);
        assert_eq!(names.name("read.file"), "read.file");
        assert!(names.name("1st").starts_with('_'));
    }

    /// A real name that looks like a mapped name must not collide with it.
    #[test]
    fn real_name_never_equals_a_mapped_name() {
        let mut names = ToolNames::new(Charset::WORD);
        let mapped = names.name("a b").into_owned();
        assert_ne!(names.name(&mapped.clone()), mapped);
    }
}
