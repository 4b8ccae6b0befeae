//! Cuts passages into texts that are short enough for a model to read them completely.

/// A window ends at the best break after this many bytes and before [`WINDOW_BYTES_MAX`]. 600 bytes
/// are about 200 tokens, for a model that reads at most 256.
const WINDOW_BYTES_MIN: usize = 600;
/// Maximum number of bytes of a window.
const WINDOW_BYTES_MAX: usize = 900;

/// A part of a passage, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextWindow {
    /// The offset of its first byte in the passage.
    pub start: u16,
    /// Its length.
    pub len: u16,
}

impl TextWindow {
    /// Returns the window's text; empty when the passage does not have these bytes.
    #[must_use]
    pub fn text(self, passage: &str) -> &str {
        let start = usize::from(self.start);
        passage
            .get(start..start + usize::from(self.len))
            .unwrap_or_default()
    }
}

/// Cuts a passage into windows: at a line end, else at the end of a sentence, else at a space.
/// Windows with only white space are left out. Equal passages have equal windows. A passage has
/// fewer than 65,536 bytes; windows that would begin later are left out.
#[must_use]
pub fn windows(passage: &str) -> Vec<TextWindow> {
    let mut cut = Vec::new();
    let mut start = 0;
    while start < passage.len() {
        let len = window_len(&passage[start..]);
        let (Ok(from), Ok(bytes)) = (u16::try_from(start), u16::try_from(len)) else {
            break;
        };
        if !passage[start..start + len].trim().is_empty() {
            cut.push(TextWindow {
                start: from,
                len: bytes,
            });
        }
        start += len;
    }
    cut
}

fn window_len(rest: &str) -> usize {
    if rest.len() <= WINDOW_BYTES_MAX {
        return rest.len();
    }
    let end = rest.floor_char_boundary(WINDOW_BYTES_MAX);
    let least = rest.floor_char_boundary(WINDOW_BYTES_MIN);
    let last = &rest[least..end];
    let place = last
        .rfind('\n')
        .or_else(|| last.rfind(". ").map(|at| at + 1))
        .or_else(|| last.rfind(' '));
    place.map_or(end, |at| least + at + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Text between two windows would never be found by its meaning.
    proptest! {
        #[test]
        fn windows_cover_all_that_is_not_blank(text in "(\\PC{0,300}[ \n.]){0,20}") {
            let mut end = 0;
            for window in windows(&text) {
                let start = usize::from(window.start);
                prop_assert!(text[end..start].trim().is_empty());
                prop_assert!(usize::from(window.len) <= WINDOW_BYTES_MAX);
                prop_assert!(!window.text(&text).trim().is_empty());
                end = start + usize::from(window.len);
            }
            prop_assert!(text[end..].trim().is_empty());
        }
    }

    #[test]
    fn windows_end_at_lines_and_sentences() {
        let line = format!("{}\n", "a".repeat(650));
        let text = line.repeat(3);
        let cut: Vec<usize> = windows(&text).iter().map(|w| usize::from(w.len)).collect();
        assert_eq!(cut, [651, 651, 651]);
        let sentence = format!("{}. ", "word ".repeat(130).trim_end());
        let text = sentence.repeat(3);
        assert!(
            windows(&text)
                .iter()
                .all(|w| w.text(&text).starts_with("word"))
        );
        let dense = "é".repeat(2_000);
        assert_eq!(windows(&dense).len(), 5);
    }
}
