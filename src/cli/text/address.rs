//! Addresses: what is printed to be typed again.

use super::{columns_of, cut, printable, short_id};

/// An event, as every command takes it: `5d0c3c0e#19`.
#[must_use]
pub fn address(source_id: &str, conversation_id: &str, revision: u64) -> String {
    format!(
        "{}#{revision}",
        printable(short_id(source_id, conversation_id))
    )
}

/// A row with an address between what stands before and after it, of which only they give
/// way to the width.
#[must_use]
pub fn row_around(before: &str, address: &str, after: &str, columns: usize) -> String {
    /// Less of a text says nothing.
    const LEAST: usize = 4;
    /// Between two columns.
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

    // On a terminal the end of a row was cut, whatever stood there: of a hit of a source with
    // long ids nothing was left to go on with.
    #[test]
    fn an_address_is_never_cut() {
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
