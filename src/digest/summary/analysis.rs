//! Finds the analysis that the model of Claude Code writes before a summary. It has the same
//! content as the summary, and is a quarter to a half of the text.

use std::ops::Range;

/// Maximum offset at which an analysis begins, in bytes.
const BEGINS_WITHIN_BYTES: usize = 1_000;
/// Beginnings of an analysis, and of the part after it.
const FORMS: [[&str; 2]; 2] = [["Analysis:\n", "\nSummary:\n"], ["<analysis>", "<summary>"]];

/// Returns the byte range of the analysis in a summary.
#[must_use]
pub fn analysis(summary: &str) -> Option<Range<usize>> {
    let head = &summary[..summary.floor_char_boundary(BEGINS_WITHIN_BYTES)];
    FORMS.iter().find_map(|[begin, next]| {
        let is_line = |at: &usize| summary[..*at].is_empty() || summary[..*at].ends_with('\n');
        let start = head.find(begin).filter(is_line)?;
        let end = start + summary[start..].find(next)?;
        // The title `Summary:` belongs to the part after the analysis.
        let end = end + usize::from(next.starts_with('\n'));
        Some(start..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn analysis_is_found_before_its_summary() {
        let rest = |text: &str| {
            let found = analysis(text)?;
            Some(format!("{}|{}", &text[..found.start], &text[found.end..]))
        };
        let text = "It continues.\n\nAnalysis:\n1. Long.\n\nSummary:\n1. Short.";
        assert_eq!(
            rest(text).as_deref(),
            Some("It continues.\n\n|Summary:\n1. Short.")
        );
        let tags = "<analysis>\nlong\n</analysis>\n\n<summary>\nshort\n</summary>";
        assert_eq!(rest(tags).as_deref(), Some("|<summary>\nshort\n</summary>"));
        for none in [
            "Summary:\nx",
            "Analysis:\nx",
            "An Analysis:\nx\nSummary:\ny",
        ] {
            assert_eq!(rest(none), None, "{none}");
        }
    }
}
