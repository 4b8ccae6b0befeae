//! The table of tool calls, and single calls.

use treering::domain::*;

use super::visitor::{PAGE_BYTES_MAX, Visitor};
use crate::suite::store::{append, call, conversation, message, open, result};

async fn with_result(dir: &std::path::Path, text: &str) -> ConversationId {
    let engine = open(dir).await;
    let id = conversation(&engine).await;
    let events = vec![call(id, "c/1 ?", "read"), result(id, "c/1 ?", text)];
    append(&engine, events).await.unwrap();
    engine.close().await;
    id
}

// A tool result may contain markup from anywhere. It must be shown as text, and must not affect the
// page.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_result_is_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let hostile =
        "</code></pre><script>alert(1)</script>\n\u{202e}txt.exe\0\u{1b}[2J<img src=x onerror=x>\n";
    let id = with_result(dir.path(), hostile).await;
    let visitor = Visitor::of(dir.path()).await;
    let list = visitor.page(&format!("/c/{id}/tools")).await;
    let address = list
        .all("href")
        .into_iter()
        .find(|link| link.contains("/call/"))
        .unwrap();
    let page = visitor.page(&address).await;
    assert!(
        page.body.contains("&lt;script&gt;alert(1)&lt;/script&gt;"),
        "{}",
        page.body
    );
    assert!(page.body.contains("U+202E") && !page.body.contains("<img src=x"));
    assert!(page.body.contains("c/1 ?") && page.body.contains("Snapshot"));
}

// A result of 30 MB is shown in parts, with the line numbers of the whole. The parts together, and
// the download, are the whole result.
#[tokio::test(flavor = "multi_thread")]
async fn large_result_is_shown_by_line_ranges() {
    let dir = tempfile::tempdir().unwrap();
    let lines: Vec<String> = (1..=400_000)
        .map(|line| format!("line <{line}> of a log, with words to fill it up, and more"))
        .collect();
    let text = lines.join("\n");
    assert!(text.len() > 20 << 20);
    let id = with_result(dir.path(), &text).await;
    let visitor = Visitor::of(dir.path()).await;
    let list = visitor.page(&format!("/c/{id}/tools")).await;
    let address = list
        .all("href")
        .into_iter()
        .find(|link| link.contains("/call/"))
        .unwrap();
    let page = visitor.page(&format!("{address}&line=123456")).await;
    assert!(page.body.contains("id=\"L123456\"") && page.body.contains("line &lt;123456&gt; of"));
    assert!(!page.body.contains("line &lt;123455&gt;"));
    // The pages leave out nothing.
    let mut next = address.clone();
    let mut expected = 1;
    for _ in 0..4 {
        let page = visitor.page(&next).await;
        for number in page.all("id").iter().filter_map(|id| id.strip_prefix('L')) {
            let number: u64 = number.parse().unwrap();
            assert!(
                number == expected || number + 1 == expected,
                "{number} after {expected}"
            );
            expected = number + 1;
        }
        let links = page.all("href");
        next = links
            .into_iter()
            .find(|link| link.contains("byte=") && link.contains("line="))
            .unwrap();
    }
    assert!(expected > 1_000, "{expected}");
    let file = list_file(&page.all("href"));
    let whole = visitor.get(&file).await;
    assert_eq!(
        whole.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert!(whole.body == text);
}

fn list_file(links: &[String]) -> String {
    links
        .iter()
        .find(|link| link.contains("/result?"))
        .unwrap()
        .clone()
}

// Five megabytes without a line break, which take more space as markup.
#[tokio::test(flavor = "multi_thread")]
async fn endless_line_is_shown_in_pages() {
    let dir = tempfile::tempdir().unwrap();
    let text = "<&\"".repeat(5 << 18);
    let id = with_result(dir.path(), &text).await;
    let visitor = Visitor::of(dir.path()).await;
    let list = visitor.page(&format!("/c/{id}/tools")).await;
    let address = list
        .all("href")
        .into_iter()
        .find(|link| link.contains("/call/"))
        .unwrap();
    let first = visitor.page(&address).await;
    assert!(first.body.len() < PAGE_BYTES_MAX);
    let links = first.all("href");
    let next = links
        .iter()
        .find(|link| link.contains("byte=") && link.contains("line=1"))
        .unwrap();
    let second = visitor.page(next).await;
    assert!(second.body.contains("id=\"L1\""), "the same line continues");
}

// The table shows which tools fail and which are slow. Each call is counted once, filters apply,
// and a conversation has its own table.
#[tokio::test(flavor = "multi_thread")]
async fn calls_are_counted_and_filtered() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let id = conversation(&engine).await;
    for number in 0..60 {
        let call_id = format!("c{number}");
        let tool = if number % 3 == 0 { "grep" } else { "bash" };
        let mut body = ToolResultRecorded::text(&call_id, "out");
        body.success = number % 10 != 0;
        body.execution_time_ms = Some(number);
        let ended = NewEvent::new(id, EventBody::ToolResultRecorded(body));
        append(&engine, vec![call(id, &call_id, tool), ended])
            .await
            .unwrap();
    }
    append(&engine, vec![call(id, "open", "bash"), message(id, "wait")])
        .await
        .unwrap();
    let elsewhere = Namespace::new("elsewhere").unwrap();
    let other = ConversationId::generate();
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let events = vec![
        NewEvent::new(other, created),
        call(other, "x", "secret-tool"),
    ];
    engine
        .append(AppendCommand::new(elsewhere, events))
        .await
        .unwrap();
    engine.close().await;
    let visitor = Visitor::of(dir.path()).await;
    for path in ["/tools".to_owned(), format!("/c/{id}/tools")] {
        let all = visitor.page(&path).await;
        assert!(
            all.body.contains("grep") && all.body.contains("1–50 of 61"),
            "{}",
            all.body
        );
        assert!(!all.body.contains("secret-tool"));
        let failed = visitor
            .page(&format!("{path}?outcome=failed&tool=grep"))
            .await;
        assert!(failed.body.contains("1–2 of 2"), "{}", failed.body);
        let open = visitor.page(&format!("{path}?outcome=open")).await;
        assert!(open.body.contains("1–1 of 1"), "{}", open.body);
        let before = visitor.page(&format!("{path}?until=2020-01-01")).await;
        assert!(before.body.contains("No tool was called in this period."));
        let since = visitor.page(&format!("{path}?since=2020-01-01")).await;
        assert!(since.body.contains("1–50 of 61"));
        let none = visitor.page(&format!("{path}?tool=nothing")).await;
        assert!(none.body.contains("No call matches."));
    }
    let theirs = visitor.page("/@elsewhere/tools").await;
    assert!(theirs.body.contains("secret-tool") && !theirs.body.contains("grep"));
}
