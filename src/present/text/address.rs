//! Formats event addresses so that the user can type them.

use super::{columns_of, cut, printable, short_id};

/// Returns the address of an event as every command accepts it: `5d0c3c0e#19`.
#[must_use]
pub fn address(source_id: &str, conversation_id: &str, revision: u64) -> String {
    format!(
        "{}#{revision}",
        printable(short_id(source_id, conversation_id))
    )
}

/// Formats a row with an address between two texts. Only the texts are cut to fit the width, never
/// the address.
#[must_use]
pub fn row_around(before: &str, address: &str, after: &str, columns: usize) -> String {
    /// Minimum width at which a text is shown, in columns.
    const LEAST: usize = 4;
    /// Spaces between two columns.
    const GAP: usize = 2;
    let mut left = columns.saturating_sub(columns_of(address));
    let mut row = String::new();
    if left >= LEAST + GAP {
        let shown = cut(before, left - GAP);
        left -= columns_of(&shown) + GAP;
        row = shown + "  ";
    }
    row.push_str(address);
    if left >= LEAST + GAP {
        row.push_str("  ");
        row.push_str(&cut(after, left - GAP));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    // Rows were cut at the edge of the terminal. For sources with long ids, this removed the
    // address that the next command needs.
    #[test]
    fn event_address_is_never_cut() {
        let row = |columns| {
            row_around(
                "assistant said",
                "tau/airline/38-0#15",
                "3 days ago",
                columns,
            )
        };
        assert_eq!(row(60), "assistant said  tau/airline/38-0#15  3 days ago");
        assert_eq!(row(44), "assistant said  tau/airline/38-0#15  3 days…");
        assert_eq!(row(36), "assistant said  tau/airline/38-0#15");
        assert_eq!(row(28), "assist…  tau/airline/38-0#15");
        assert_eq!(row(20), "tau/airline/38-0#15");
        assert_eq!(row(10), "tau/airline/38-0#15");
        let colored = row_around("灯台の光", "\u{1b}[36mab#1\u{1b}[0m", "x", 12);
        assert_eq!(colored, "灯台…  \u{1b}[36mab#1\u{1b}[0m");
    }
}
