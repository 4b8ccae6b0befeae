use ratatui::{Terminal, backend::TestBackend};

use super::*;
use crate::cli::top::scrape::Scrape;

/// A server that has all that can be shown, and some trouble.
const BEFORE: &str = include_str!("before.txt");
const AFTER: &str = include_str!("after.txt");

fn shown() -> Glance {
    let (before, after) = (Scrape::read(BEFORE).unwrap(), Scrape::read(AFTER).unwrap());
    let mut shown = Glance {
        from: "http://127.0.0.1:9464".into(),
        up_seconds: Some(11_530.0),
        ..Glance::default()
    };
    shown.take(Figures::of(&before, None, 0.0));
    shown.take(Figures::of(&after, Some(&before), 2.0));
    shown
}

fn screen(shown: &Glance, columns: u16, rows: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal
        .draw(|frame| draw(shown, frame.area(), frame.buffer_mut()))
        .unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(usize::from(columns));
    let text = |row: &[ratatui::buffer::Cell]| row.iter().map(|cell| cell.symbol()).collect();
    rows.map(text).collect()
}

// The picture as a whole, of two real scrapes: what has moved out of its place shows here.
#[test]
fn the_screen_of_a_server() {
    insta::assert_snapshot!(screen(&shown(), 80, 24).join("\n"));
}

// A number that nobody sees is not there when it is needed: all fit the smallest usual
// terminal, and stand in their order.
#[test]
fn eighty_columns_have_all_of_it() {
    let lines = screen(&shown(), 80, 24);
    for (label, parts) in [
        ("appends", &["appends/s", "events/s", "/s", "head"][..]),
        ("commit", &["p50", "p99", "fsync"]),
        ("groups", &["appends", "events", "queue"]),
        (
            "lag",
            &["views", "index", "backup", "subscriptions 1, slowest"],
        ),
        ("disk", &["free", "floor"]),
        ("store", &["log", "views", "index"]),
        ("memory", &["resident"]),
        ("caches", &["states", " of "]),
        ("files", &["open", "connections 1", "threads", "cpu"]),
        ("refused", &["REVISION_MISMATCH 1"]),
        ("METHOD", &["/s", "errs", "p99"]),
    ] {
        let line = lines.iter().find(|line| line.starts_with(label));
        let line = line.unwrap_or_else(|| panic!("no {label} in {lines:#?}"));
        for part in parts {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
    assert!(lines[0].contains("live  ready  up 3h12m"), "{}", lines[0]);
}

// A terminal of any size is drawn, down to none, and nothing is drawn beyond it.
#[test]
fn any_terminal_will_do() {
    let mut shown = shown();
    shown.trouble = Some((9, "it is gone".into()));
    shown.hint = Some("turn it on".into());
    for columns in [1, 2, 5, 20, 61, 62, 70, 80, 200] {
        for rows in [1, 2, 5, 24, 60] {
            let lines = screen(&shown, columns, rows);
            assert_eq!(lines.len(), usize::from(rows));
        }
    }
    let small = screen(&shown, 20, 5);
    assert!(small[0].starts_with("treering "), "{small:?}");
    assert!(small[1].starts_with("for 9 s: it is gone"), "{small:?}");
}

// What a server calls its methods and versions is the server's: a name as long as a book
// must leave the numbers in their columns, and none may drive the terminal.
#[test]
fn names_of_others_stay_in_their_places() {
    let mut scrape = Scrape::read(AFTER).unwrap();
    let long = format!("other.v1.{}/Call", "Very".repeat(500));
    for name in [long.as_str(), "\u{1b}[2Jx\u{202e}/y", "灯台/光"] {
        scrape.set_of("treering_requests_running", &[("method", name)], 3.0);
    }
    let mut shown = shown();
    shown.take(Figures::of(&scrape, None, 0.0));
    for columns in [40, 80, 120] {
        let lines = screen(&shown, columns, 60).join("\n");
        assert!(!lines.contains(['\u{1b}', '\u{202e}']), "{lines}");
        let line = lines.lines().find(|line| line.starts_with("othe")).unwrap();
        assert!(line.contains('…') && line.contains("y/Call "), "{line}");
    }
    assert_eq!(within("abcdefghij", 5), "ab…ij");
    assert_eq!(within("abc", 0), "…");
}

// The middle of an outage: what it said last is not to be read as how it is.
#[test]
fn a_server_that_is_gone_is_told() {
    let mut shown = shown();
    shown.trouble = Some((75, "no server can be watched at http://h:1: refused".into()));
    let lines = screen(&shown, 100, 24);
    assert!(
        lines[0].contains("NO ANSWER") && !lines[0].contains("ready"),
        "{}",
        lines[0]
    );
    assert!(
        lines[1].starts_with("for 75 s: no server can be watched"),
        "{}",
        lines[1]
    );
    shown.take(Figures::of(&Scrape::read(AFTER).unwrap(), None, 0.0));
    assert!(screen(&shown, 100, 24)[0].contains("live  ready"));
}

#[test]
fn numbers_are_as_wide_as_they_may_be() {
    for (value, told) in [
        (0.0, "0us"),
        (0.000_25, "250us"),
        (0.0025, "2.5ms"),
        (0.25, "250ms"),
        (0.9999, "1.0s"),
        (30.0, "30.0s"),
    ] {
        assert_eq!(seconds(Some(value)), told);
    }
    for (value, told) in [
        (0.0, "0"),
        (0.04, "0.0"),
        (12.34, "12.3"),
        (12_345.0, "12,345"),
        (1_234_567.0, "1.2M"),
        (5e12, "5000G"),
    ] {
        assert_eq!(per_second(Some(value)), told);
    }
    assert_eq!(per_second(None), "-");
    for (value, told) in [
        (0.0, "0s"),
        (61.0, "1m01s"),
        (11_530.0, "3h12m"),
        (1e6, "11d13h"),
    ] {
        assert_eq!(lasting(value), told);
    }
    assert_eq!(lasting(-5.0), "0s", "clocks differ");
}
