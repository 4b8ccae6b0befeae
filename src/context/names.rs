//! Finds tool names in a text.
//!
//! After a compaction, discovered tools are gone, so a summary that names one misleads the model.
//! But many tool names are everyday words (`read`, `search`), which a summary may use as such. The
//! rules are:
//!
//! - Names are whole words, compared case-sensitively. A word consists of letters, digits and `_`,
//!   and of `-`, `.`, `:` or `/` between two of those. For `server/get_page`, both the whole word
//!   and `get_page` are compared.
//! - A distinctive name (with `_`, `-`, `.`, `:`, `/`, a digit, or a capital after a small letter)
//!   always counts.
//! - Any other name counts only if it is used as a name: in backticks or quotation marks, before
//!   `(`, or next to the word `tool` or `function`.

use std::{
    borrow::Borrow,
    collections::{BTreeSet, HashSet},
    hash::Hash,
    ops::Range,
};

use crate::steps;

/// Returns the given tools that a text names, each once, in the order of the text.
pub fn tool_names_in<T>(text: &str, tools: &BTreeSet<T>) -> Vec<String>
where
    T: Borrow<str> + Ord + Hash,
{
    let mut names: Vec<String> = Vec::new();
    let mut known = HashSet::new();
    for found in mentions(text, tools) {
        let name = &text[found];
        steps::note(1);
        if known.insert(name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// Returns the text with the names of these tools replaced. It does not get longer.
pub(crate) fn without_tool_names<T>(text: &str, tools: &BTreeSet<T>) -> String
where
    T: Borrow<str> + Ord + Hash,
{
    let mut without = text.to_owned();
    loop {
        // Text that adjoined a removed name may now be a name itself.
        let found = mentions(&without, tools);
        if found.is_empty() {
            return without;
        }
        without = replaced(&without, &found);
    }
}

fn replaced(text: &str, found: &[Range<usize>]) -> String {
    /// Replacement for a name.
    const STAND_IN: &str = "[tool]";
    /// Replacement for a name that is shorter than [`STAND_IN`].
    const SHORT_STAND_IN: &str = "…";
    let mut without = String::with_capacity(text.len());
    let mut end = 0;
    for place in found {
        without.push_str(&text[end..place.start]);
        let long = place.len() >= STAND_IN.len();
        without.push_str(if long { STAND_IN } else { SHORT_STAND_IN });
        end = place.end;
    }
    without.push_str(&text[end..]);
    without
}

/// Returns the ranges of tool names, in order, without overlaps.
fn mentions<T>(text: &str, tools: &BTreeSet<T>) -> Vec<Range<usize>>
where
    T: Borrow<str> + Ord + Hash,
{
    let mut found = Vec::new();
    if tools.is_empty() {
        return found;
    }
    for word in words(text) {
        if is_mention(text, &word, tools) {
            found.push(word);
            continue;
        }
        for piece in pieces(text, &word) {
            if is_mention(text, &piece, tools) {
                found.push(piece);
            }
        }
    }
    found
}

fn is_mention<T>(text: &str, word: &Range<usize>, tools: &BTreeSet<T>) -> bool
where
    T: Borrow<str> + Ord + Hash,
{
    let name = &text[word.clone()];
    tools.contains(name) && (is_distinctive(name) || is_used_as_name(text, word))
}

/// Returns the words, including `-`, `.`, `:` and `/` inside them.
fn words(text: &str) -> impl Iterator<Item = Range<usize>> {
    runs(text, 0..text.len(), |c| is_word(c) || is_joint(c)).filter_map(|run| {
        let word = text[run.clone()].trim_start_matches(is_joint);
        let start = run.end - word.len();
        let end = start + word.trim_end_matches(is_joint).len();
        (start < end).then_some(start..end)
    })
}

/// Returns the parts of a word between `.`, `:` and `/`; empty if it has none of these.
fn pieces(text: &str, word: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let whole = word.clone();
    runs(text, word.clone(), |c| is_word(c) || c == '-').filter(move |piece| *piece != whole)
}

fn runs(
    text: &str,
    part: Range<usize>,
    inside: impl Fn(char) -> bool,
) -> impl Iterator<Item = Range<usize>> {
    let mut at = part.start;
    let end = part.end;
    std::iter::from_fn(move || {
        let start = at + text[at..end].find(&inside)?;
        let length = text[start..end].find(|c| !inside(c)).unwrap_or(end - start);
        at = start + length;
        Some(start..at)
    })
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_joint(c: char) -> bool {
    matches!(c, '-' | '.' | ':' | '/')
}

fn is_distinctive(name: &str) -> bool {
    let mut last_is_small = false;
    for c in name.chars() {
        if c == '_' || is_joint(c) || c.is_ascii_digit() || (last_is_small && c.is_uppercase()) {
            return true;
        }
        last_is_small = c.is_lowercase();
    }
    false
}

fn is_used_as_name(text: &str, word: &Range<usize>) -> bool {
    let (before, after) = (&text[..word.start], &text[word.end..]);
    if after.starts_with('(') {
        return true;
    }
    let quotes = [
        ('`', '`'),
        ('"', '"'),
        ('\'', '\''),
        ('“', '”'),
        ('‘', '’'),
        ('«', '»'),
    ];
    if quotes
        .iter()
        .any(|(open, close)| before.ends_with(*open) && after.starts_with(*close))
    {
        return true;
    }
    // Looks only at the blanks next to the word, so that each word takes constant time.
    let is_blank = |c: char| c == ' ' || c == '\n';
    let before_blanks = before.trim_end_matches(is_blank);
    let after_blanks = after.trim_start_matches(is_blank);
    steps::note(before.len() - before_blanks.len() + after.len() - after_blanks.len());
    let is_tool = |word: Option<&str>| {
        word.is_some_and(|word| {
            ["tool", "tools", "function"]
                .iter()
                .any(|known| word.eq_ignore_ascii_case(known))
        })
    };
    let stands_apart = |side: &str, rest: &str| rest.len() < side.len();
    (stands_apart(before, before_blanks) && is_tool(before_blanks.rsplit(|c| !is_word(c)).next()))
        || (stands_apart(after, after_blanks)
            && is_tool(after_blanks.split(|c| !is_word(c)).next()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOOLS: [&str; 7] = [
        "read",
        "Bash",
        "get_page",
        "webSearch",
        "follow-up",
        "fs.write",
        "page2",
    ];

    fn tools() -> BTreeSet<&'static str> {
        TOOLS.into()
    }

    /// Users would ignore warnings about every everyday word, and a check that misses `get_page` is
    /// useless.
    #[test]
    fn tool_names_are_distinguished_from_words() {
        for (text, expected) in [
            ("The home page was read, then written.", vec![]),
            (
                "I read the tool's output and had to bash it in shape",
                vec![],
            ),
            ("Bash failed. Read it.", vec![]),
            ("it used get_page twice: get_page.", vec!["get_page"]),
            ("get_pages and my_get_page and get_page_id", vec![]),
            ("called `read` and \"Bash\"", vec!["read", "Bash"]),
            ("don't read' it", vec![]),
            ("ran read(path)", vec!["read"]),
            ("the read tool, the function Bash", vec!["read", "Bash"]),
            ("webSearch; websearch", vec!["webSearch"]),
            ("follow-up, follow-ups", vec!["follow-up"]),
            ("server/get_page and cms:page2", vec!["get_page", "page2"]),
            ("with fs.write. And fs.writer", vec!["fs.write"]),
            ("ein Werkzeug „get_page“ für Straße", vec!["get_page"]),
        ] {
            assert_eq!(tool_names_in(text, &tools()), expected, "{text}");
        }
    }

    #[test]
    fn tool_names_are_replaced() {
        let text = "called `read`, then get_page on src/page.rs";
        let without = without_tool_names(text, &tools());
        assert_eq!(without, "called `…`, then [tool] on src/page.rs");
    }

    proptest! {
        /// After the replacement no name is left. The text is not longer, because it may already be
        /// at its limit.
        #[test]
        fn no_tool_name_is_left_after_replacement(
            pieces in proptest::collection::vec(
                prop_oneof![
                    proptest::sample::select(TOOLS.to_vec()),
                    proptest::sample::select(vec![" ", "`", "\"", "(", "tool", "-", ".", "ß", "\n", "…"]),
                ].prop_map(str::to_owned),
                0..30,
            ),
        ) {
            let text = pieces.concat();
            let without = without_tool_names(&text, &tools());
            prop_assert_eq!(tool_names_in(&without, &tools()), Vec::<String>::new());
            prop_assert!(without.chars().count() <= text.chars().count());
        }
    }
}
