//! Recognises texts that say little: praise, assent, greetings. They are used only if room is left.

/// Maximum length of such a text, in bytes.
const BYTES_MAX: usize = 80;
/// Words that ask for nothing, alone or together.
const LITTLE: &[&str] = &[
    "a",
    "ah",
    "ahead",
    "alright",
    "amazing",
    "and",
    "awesome",
    "beautiful",
    "brilliant",
    "continue",
    "cool",
    "damn",
    "done",
    "excellent",
    "fantastic",
    "fine",
    "go",
    "good",
    "got",
    "great",
    "ha",
    "haha",
    "hello",
    "hey",
    "hi",
    "hm",
    "hmm",
    "i",
    "indeed",
    "is",
    "it",
    "its",
    "job",
    "k",
    "keep",
    "kk",
    "like",
    "lol",
    "looks",
    "lot",
    "love",
    "lovely",
    "man",
    "much",
    "neat",
    "nice",
    "now",
    "oh",
    "ok",
    "okay",
    "on",
    "perfect",
    "please",
    "proceed",
    "right",
    "so",
    "sounds",
    "super",
    "sure",
    "thank",
    "thanks",
    "that",
    "thats",
    "the",
    "this",
    "thx",
    "ty",
    "very",
    "well",
    "work",
    "works",
    "wow",
    "yeah",
    "yep",
    "yes",
    "yo",
    "you",
    "yup",
];

/// Whether a text is only praise, assent or a greeting (`wow, it works`, `go on`).
pub(crate) fn is_filler(text: &str) -> bool {
    if text.len() > BYTES_MAX || text.contains(['?', '/', '@', '#', '`']) {
        return false;
    }
    let is_sign = |c: char| !c.is_alphanumeric() && c != '\'';
    text.split(is_sign)
        .filter(|word| !word.is_empty())
        .all(|word| {
            let word = word.replace('\'', "").to_lowercase();
            LITTLE.contains(&word.as_str())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    // `wow`, `yo` and `ok` must not take the place of the user's requests.
    #[test]
    fn praise_and_assent_are_not_requests() {
        for little in [
            "wow, it works",
            "wow",
            "yo",
            "ok",
            "Go on!",
            "Thanks a lot :)",
            "👍",
            "that's great",
        ] {
            assert!(is_filler(little), "{little}");
        }
        for said in [
            "fix it",
            "ls",
            "no",
            "run the tests",
            "works?",
            "go to main",
            "can leave it",
            "2",
        ] {
            assert!(!is_filler(said), "{said}");
        }
    }
}
