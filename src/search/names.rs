//! Names of several parts in a query: `parse_config`, `src/main.rs`, `foo::bar`.
//!
//! A text with the whole name is a better match than one with only its parts. The index
//! distinguishes an identifier from its parts. For a path or names joined by signs, it knows only
//! that the parts are adjacent; the text itself shows the signs.

use std::ops::Range;

use super::{
    analyser::{AnalysedTerm, Analysis, TermForm, is_dense},
    stop_words::is_small,
};

/// Signs that join the parts of one name. A colon joins only as `::`, `://` or `:\`.
const JOINTS: &str = "_/\\.-:#@~>";
/// Minimum length of a mixed-case identifier of two capitalised parts, in bytes, to count as one
/// from a program. Shorter ones are just as often proper names (`GitHub`).
const MADE_BYTES_MIN: usize = 10;
/// Maximum number of signs between two parts; more are a drawn line.
const GAP_BYTES_MAX: usize = 4;

/// A name in a word of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TypedName {
    /// The word's parts that form it.
    pub(crate) parts: Range<usize>,
    /// Its bytes in the word, without surrounding signs.
    pub(crate) bytes: Range<usize>,
    /// The term of the identifier, if it is one.
    pub(crate) whole: Option<String>,
    /// Its parts may also be ordinary adjacent words, so it is a name only if nothing else was
    /// typed.
    pub(crate) may_be_words: bool,
}

/// Returns the names of several parts in a word, cut at signs that do not join: `Errorf("x_y` has
/// two.
pub(super) fn names_in(word: &str, analysis: &Analysis) -> Vec<TypedName> {
    let parts: Vec<AnalysedTerm<'_>> = parts(analysis).collect();
    let mut names = Vec::new();
    let mut first = 0;
    for next in 1..=parts.len() {
        let is_joined = next < parts.len() && gap(word, &parts, next).is_some_and(joins);
        if is_joined {
            continue;
        }
        names.extend(name(word, &parts, first..next, analysis));
        first = next;
    }
    names
}

fn name(
    word: &str,
    parts: &[AnalysedTerm<'_>],
    range: Range<usize>,
    analysis: &Analysis,
) -> Option<TypedName> {
    let own = &parts[range.clone()];
    let (first, last) = (own.first()?, own.last()?);
    if own.len() < 2 {
        return None;
    }
    let mut wholes = analysis.iter().filter(|term| term.form == TermForm::Whole);
    let whole = wholes.find(|term| term.start == first.start && term.end == last.end);
    let is_word = |part: &AnalysedTerm<'_>| {
        part.term.len() > 1 && part.term.chars().any(char::is_alphabetic) && !is_small(part.term)
    };
    let gaps = || {
        range
            .clone()
            .skip(1)
            .filter_map(|next| gap(word, parts, next))
    };
    let may_be_words = match whole {
        Some(_) => !is_made(word, own),
        // Not names: `3.14`, `e.g`, `10-20`.
        None if !own.iter().any(is_word) => return None,
        None => !is_joined(own, gaps()),
    };
    Some(TypedName {
        bytes: first.start..last.end,
        whole: whole.map(|whole| whole.term.to_owned()),
        may_be_words,
        parts: range,
    })
}

/// Returns whether an identifier was made for a program, such as `read_file` or `readFile`, rather
/// than a word of prose, such as `GitHub`, `mRNAs` or `TatAd`.
fn is_made(word: &str, parts: &[AnalysedTerm<'_>]) -> bool {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
        return false;
    };
    let identifier = &word[first.start..last.end];
    let is_hump = |part: &AnalysedTerm<'_>| {
        let text = &word[part.start..part.end];
        let behind = text.trim_start_matches(|c: char| !c.is_lowercase());
        let is_capitals = behind.is_empty() || text.len() - behind.len() <= 1;
        is_capitals && !behind.contains(char::is_uppercase)
    };
    let is_long = |part: &AnalysedTerm<'_>| part.term.len() > 2 || part.end == last.end;
    let is_clear = identifier.starts_with(char::is_lowercase)
        || parts.len() > 2
        || identifier.len() >= MADE_BYTES_MIN;
    let are_humps = parts.iter().all(|part| is_hump(part) && is_long(part));
    identifier.contains('_') || is_clear && are_humps
}

/// Returns whether the signs between parts show that they form a path or a name in a program.
/// `TCR/CD3` could also be prose, so its sign does not show that.
fn is_joined<'a>(parts: &[AnalysedTerm<'_>], gaps: impl Iterator<Item = &'a str>) -> bool {
    let (mut soft, mut has_dot) = (0, false);
    for gap in gaps {
        if gap.contains(['_', '\\', '>']) || gap.contains("::") {
            return true;
        }
        soft += usize::from(gap.contains(['/', '.']));
        has_dot |= gap == ".";
    }
    soft > 1 || has_dot && parts.iter().all(|part| part.term.len() > 1)
}

fn parts(analysis: &Analysis) -> impl Iterator<Item = AnalysedTerm<'_>> {
    analysis.iter().filter(|term| term.form == TermForm::Part)
}

/// Returns the text between a part and the one before it, or `None` when these are not parts of a
/// name, such as pairs of Chinese characters.
fn gap<'a>(word: &'a str, parts: &[AnalysedTerm<'_>], next: usize) -> Option<&'a str> {
    let (before, part) = (&parts[next - 1], &parts[next]);
    let has_dense = before.term.starts_with(is_dense) || part.term.starts_with(is_dense);
    word.get(before.end..part.start).filter(|_| !has_dense)
}

fn joins(gap: &str) -> bool {
    let has_colon = gap.contains(':') && !matches!(gap, "::" | "://" | ":\\");
    !has_colon && gap.len() <= GAP_BYTES_MAX && gap.chars().all(|c| JOINTS.contains(c))
}

#[cfg(test)]
mod tests {
    use super::{super::analyser::Analyser, *};

    // Words that are wrongly taken for a name would lower the rank of texts that say the same in
    // other words. A name between signs must still be recognised.
    #[test]
    fn names_in_a_query_are_recognised() {
        let shown = |word: &str| {
            let analysis = Analyser::default().analyse(word);
            let names = names_in(word, &analysis).into_iter().map(|name| {
                let doubt = if name.may_be_words { "?" } else { "" };
                let one = if name.whole.is_some() { "=" } else { "" };
                format!("{doubt}{one}{}", &word[name.bytes])
            });
            names.collect::<Vec<_>>().join(" ")
        };
        for (word, names) in [
            ("trackedFileBackups", "=trackedFileBackups"),
            ("get_feature_flags()", "=get_feature_flags"),
            ("./cmd/entire/cli/", "cmd/entire/cli"),
            ("foo::bar_baz", "foo::bar_baz"),
            ("fmt.Errorf(\"read_file:", "fmt.Errorf =read_file"),
            ("main.go:42:7:", "main.go"),
            ("read-only", "?read-only"),
            ("add-anthropic-header", "?add-anthropic-header"),
            ("readFile", "=readFile"),
            ("getID", "=getID"),
            ("ValidateSessionID", "=ValidateSessionID"),
            ("GitHub", "?=GitHub"),
            ("mRNAs", "?=mRNAs"),
            ("src/main.rs", "src/main.rs"),
            ("TCR/CD3", "?TCR/CD3"),
            ("watcher", ""),
            ("3.14", ""),
            ("e.g.", ""),
            ("don't", ""),
            ("10:30", ""),
            ("a,b", ""),
            ("and/or", ""),
            ("https://a.example/bc", "https://a.example/bc"),
            ("error:/tmp/x/y", "tmp/x/y"),
            ("東京都", ""),
        ] {
            assert_eq!(shown(word), names, "{word}");
        }
    }
}
