//! Stop words: words that are in nearly every sentence and do not determine the topic of a
//! question.
//!
//! Negations (`not`, `no`) and directions (`off`, `out`, `before`) are not among them, since they
//! carry meaning in errors and names.

/// In lower case, sorted.
const SMALL_WORDS: [&str; 100] = [
    "a", "about", "also", "am", "an", "and", "any", "are", "as", "at", "be", "been", "being",
    "but", "by", "can", "could", "did", "do", "does", "doing", "for", "from", "had", "has", "have",
    "having", "he", "her", "here", "him", "his", "how", "i", "if", "in", "into", "is", "it", "its",
    "just", "let", "lets", "many", "may", "me", "might", "much", "must", "my", "of", "on", "or",
    "our", "please", "really", "shall", "she", "should", "so", "some", "than", "that", "the",
    "their", "them", "then", "there", "these", "they", "thing", "things", "this", "those", "to",
    "too", "us", "very", "was", "we", "were", "what", "whatever", "when", "whenever", "where",
    "wherever", "whether", "which", "while", "who", "whoever", "whom", "whose", "why", "will",
    "with", "would", "you", "your",
];
/// Ends of contractions: `we'll`, `don't`.
const ENDS: [&str; 6] = ["d", "ll", "m", "re", "t", "ve"];
/// Beginnings of contractions with `t`.
const NEGATED: [&str; 14] = [
    "aren", "can", "couldn", "didn", "doesn", "don", "hasn", "haven", "isn", "shouldn", "wasn",
    "weren", "won", "wouldn",
];

/// Returns whether a word, as typed, is a stop word. A word in capitals may be a name (`IT`, `US`).
pub(super) fn is_small(word: &str) -> bool {
    let word = word.trim_matches(|c: char| !c.is_alphanumeric());
    if word.is_empty() || word.len() > 12 {
        return false;
    }
    let is_capital = word.len() > 1 && !word.contains(|c: char| c.is_lowercase());
    if is_capital || word.chars().skip(1).any(char::is_uppercase) {
        return false;
    }
    let word = word.to_lowercase();
    let is_listed = |word: &str| SMALL_WORDS.binary_search(&word).is_ok();
    match word.split_once(['\'', '’']) {
        Some((before, "s")) => is_listed(before),
        Some((before, end)) => {
            ENDS.contains(&end) && (is_listed(before) || NEGATED.contains(&before))
        }
        None => is_listed(&word),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A missed stop word distorts the ranking of a question; a word wrongly taken for one is not
    // searched for.
    #[test]
    fn stop_words_are_recognised() {
        assert!(SMALL_WORDS.is_sorted());
        for small in [
            "the", "Where", "did", "we", "what's", "we'll", "don't", "I", "I'm", "(is", "how?",
        ] {
            assert!(is_small(small), "{small}");
        }
        for other in [
            "fix",
            "not",
            "no",
            "off",
            "IT",
            "US",
            "doT",
            "watcher's",
            "",
            "--",
            "a.b",
            "it's_x",
        ] {
            assert!(!is_small(other), "{other}");
        }
    }
}
