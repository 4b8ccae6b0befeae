//! The content of pages.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use treering::{domain::*, proto::pb};

use super::{Browser, real_store};
use crate::suite::{
    child::PATIENCE,
    meaning::{Model, embedded, filled},
    store::{append, call, conversation, message, open, result},
};

/// Returns the addresses of links in a page that begin with this.
fn links(body: &str, begin: &str) -> Vec<String> {
    let links = body.split("href=\"").skip(1);
    let links = links.map(|rest| rest.split('"').next().unwrap().replace("&amp;", "&"));
    links.filter(|link| link.starts_with(begin)).collect()
}

/// Resolves a link in the page at this path.
fn at(path: &str, link: &str) -> String {
    let link = link.split('#').next().unwrap();
    match link.starts_with('?') {
        true => format!("{}{link}", path.split('?').next().unwrap()),
        false => link.to_owned(),
    }
}

// A mistyped link must not lead to another conversation, and parts of ids must work on every page.
#[tokio::test(flavor = "multi_thread")]
async fn links_take_parts_of_ids_and_never_words_of_titles() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let id = ConversationId(uuid::Uuid::now_v7());
    let created = ConversationCreated {
        title: "Nothing here yet".into(),
        ..ConversationCreated::default()
    };
    let created = NewEvent::new(id, EventBody::ConversationCreated(created));
    let record = Custom {
        type_name: "codex/event_msg.task_started".into(),
        content_type: "application/json".into(),
        data: "{}".into(),
        text: String::new(),
        delta_of: String::new(),
    };
    let record = NewEvent::new(id, EventBody::Custom(record));
    append(&engine, vec![created, message(id, "hello"), record])
        .await
        .unwrap();
    engine.close().await;
    drop(engine);
    let browser = Browser::start(dir.path(), &[]).await;
    let part = &id.to_string()[..13];
    for page in ["branches", "tools", "request"] {
        let shown = browser.page(&format!("/c/{part}/{page}")).await;
        assert!(
            shown.body.contains(&id.to_string()),
            "{page}: {}",
            shown.body
        );
    }
    for page in ["/c/nothing-here", "/c/nothing", "/c/nothing-here/branches"] {
        let refused = browser.get(page).await;
        assert_eq!(refused.status, 404, "{page}");
        assert!(
            refused.body.contains("did you mean"),
            "{page}: {}",
            refused.body
        );
    }
    // Records of the harness are folded.
    let shown = browser.page(&format!("/c/{id}")).await;
    let (before, record) = shown.body.split_once("task_started").unwrap();
    assert!(before.contains("1 secondary event, #3"), "{before}");
    assert!(before.rfind("<details").unwrap() > before.rfind("</details>").unwrap_or(0));
    assert!(record.contains("</details>"));
}

// A person wants to know what an agent did: from the list to a conversation, an event and a whole
// result, and back with a search. Tested on real trajectories, with each page within its size
// limit.
#[tokio::test(flavor = "multi_thread")]
async fn real_conversations_can_be_browsed() {
    let Some(dir) = real_store().await else {
        return;
    };
    let browser = Browser::start(dir.path(), &[]).await;
    let list = browser.page("/").await;
    let conversations = links(&list.body, "/c/");
    assert!(conversations.len() > 10, "{}", list.body);
    assert!(list.body.contains("swe-agent") && list.body.contains("<time datetime="));
    let filtered = browser.page("/?source=swe-agent&sort=oldest").await;
    assert!(!links(&filtered.body, "/c/").is_empty());
    let none = browser.page("/?title=no-such-title-anywhere").await;
    assert!(links(&none.body, "/c/").is_empty() && none.body.contains("No conversation"));
    assert_eq!(browser.get("/?since=whenever").await.status, 400);
    assert_eq!(browser.get("/?page=nonsense").await.status, 400);
    // An invalid filter must be refused.
    for wrong in [
        "/?sort=bad",
        "/?sealed=perhaps",
        "/search?q=x&in=bad",
        "/tools?sort=bad",
        "/tools?outcome=bad",
    ] {
        let refused = browser.get(wrong).await;
        assert_eq!(refused.status, 400, "{wrong}");
        assert!(refused.body.contains("use one of"), "{}", refused.body);
    }
    for wrong in ["/search?q=***", "/search?q=a(&regex=1", "/e/nope"] {
        let refused = browser.get(wrong).await;
        assert!(
            !refused.body.contains("--help"),
            "{wrong}: {}",
            refused.body
        );
    }
    let one = browser.page("/?title=no-such-title-anywhere").await;
    assert!(one.body.contains(">0 of ") && list.body.contains("<option value=\"swe-agent\""));

    let sessions = browser.page("/?source=claude-code-entire").await;
    let sessions = links(&sessions.body, "/c/");
    let mut pages = 0;
    for path in conversations.iter().take(4).chain(sessions.iter().take(12)) {
        let mut next = Some(path.clone());
        let mut here = 0;
        while let Some(path) = next.take().filter(|_| here < 4) {
            let page = browser.page(&path).await;
            assert!(page.body.contains("data-item"), "{path}: {}", page.body);
            let later = links(&page.body, "?from=");
            next = later.first().map(|link| at(&path, link));
            (here, pages) = (here + 1, pages + 1);
        }
        let end = browser.page(&format!("{path}?end=1")).await;
        let event = links(&end.body, &format!("{path}/e/")).pop().unwrap();
        let event = browser.page(&event).await;
        assert!(event.body.contains("chain hash"), "{}", event.body);
        let early = browser.page(&format!("{path}?at=3")).await;
        assert!(early.body.contains("State at #3"), "{}", early.body);
        assert!(!early.body.contains("id=\"e4\""));
    }
    assert!(pages > 16, "no conversation has more than one page");

    let found = browser.page("/search?q=error&in=results").await;
    assert!(found.body.contains("<mark>") && found.body.contains("class=\"hit\""));
    let hit = links(&found.body, "/c/");
    let text = hit.iter().find(|link| link.contains("/text/")).unwrap();
    let text = browser.page(&at("/search", text)).await;
    assert!(text.body.contains("class=\"hit\"") && text.body.contains("id=\"L"));
    let around = hit.iter().find(|link| link.contains("around=")).unwrap();
    let around = browser.page(&at("/search", around)).await;
    assert!(around.body.contains("data-item"));
    let failed = browser.page("/search?q=error&failed=1").await;
    assert!(!failed.body.contains("badge good"));
    let none = browser.page("/search?q=xyzzyqwv").await;
    assert!(none.body.contains("Nothing found"));

    let store = browser.page("/store").await;
    assert!(
        store.body.contains("<svg") && store.body.contains("free disk"),
        "{}",
        store.body
    );
    for name in links(&list.body, "/assets/") {
        let asset = browser.get(&name).await;
        assert_eq!(asset.status, 200, "{name}");
        assert!(asset.header("cache-control").unwrap().contains("immutable"));
    }
}

// The size of a page must be limited for any text, also for text whose escaped form is much longer.
#[tokio::test(flavor = "multi_thread")]
async fn page_size_is_limited_for_any_text() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    for text in ["\0\u{202e}\u{1}", "\"<&'>", "<\n"] {
        let id = ConversationId::generate();
        let text = text.repeat(20_000);
        let title = text.replace('\0', "\u{1}");
        let title = title[..title.floor_char_boundary(512)].to_owned();
        let created = ConversationCreated {
            title,
            ..ConversationCreated::default()
        };
        let mut events = vec![NewEvent::new(id, EventBody::ConversationCreated(created))];
        for number in 0..110 {
            let name = number.to_string();
            let said: String = text.chars().take(10_000 + number).collect();
            let returned: String = text.chars().take(20_000 + number).collect();
            events.push(message(id, &said));
            events.push(call(id, &name, "tool"));
            events.push(result(id, &name, &returned));
        }
        append(&engine, events).await.unwrap();
    }
    engine.close().await;
    let browser = Browser::start(dir.path(), &[]).await;
    let list = browser.page("/").await;
    let conversations = links(&list.body, "/c/");
    assert_eq!(conversations.len(), 3);
    for path in conversations {
        browser.page(&path).await;
        browser.page(&format!("{path}?end=1")).await;
        for revision in [2, 4] {
            browser.page(&format!("{path}/e/{revision}")).await;
            browser.page(&format!("{path}/text/{revision}")).await;
            browser
                .page(&format!("{path}/text/{revision}?byte=100"))
                .await;
        }
    }
}

/// Text that does harm if it is read as markup.
const HOSTILE: &str = "<script>alert('owned')</script><img src=x onerror=alert(1)>\
     \"'><style>*{display:none}</style></pre></details></main>\u{202e}gnirts\0nul\u{1b}[2J";

// A result may be a page with a script, one line of five megabytes, or characters that change the
// text direction. It must be shown as text, in parts, on every page.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_text_is_escaped_on_every_page() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let id = ConversationId::generate();
    let created = ConversationCreated {
        title: HOSTILE.replace('\0', ""),
        labels: [(HOSTILE[..20].to_owned(), HOSTILE[..30].to_owned())].into(),
        source: "<b>src".into(),
        source_id: "<i>id".into(),
        ..ConversationCreated::default()
    };
    let created = NewEvent::new(id, EventBody::ConversationCreated(created));
    let line = format!("{}needle<b>", "<x>".repeat(1_700_000));
    let many = "<li>line &amp; more\n".repeat(1_500_000);
    append(
        &engine,
        vec![
            created,
            message(id, HOSTILE),
            call(id, "<c>", "<b>tool"),
            result(id, "<c>", HOSTILE),
        ],
    )
    .await
    .unwrap();
    for (name, text) in [("long", line), ("many", many)] {
        append(
            &engine,
            vec![call(id, name, "<b>tool"), result(id, name, &text)],
        )
        .await
        .unwrap();
    }
    engine.close().await;

    let browser = Browser::start(dir.path(), &[]).await;
    let path = format!("/c/{id}");
    // The index may need a moment for the newest events.
    let mut pages = vec!["/".to_owned(), path.clone(), "/search?q=gnirts".to_owned()];
    pages.extend((1..=8).map(|revision| format!("{path}/e/{revision}")));
    pages.extend([2, 4, 6, 8].map(|revision| format!("{path}/text/{revision}")));
    pages.push(format!("{path}/text/6?byte=5099990"));
    pages.push(format!("{path}/text/8?from=1499990"));
    pages.push(format!("{path}/text/8?at=700000"));
    for path in &pages {
        let page = browser.page(path).await;
        for wrong in [
            "<script>",
            "<img src=x",
            "<style>",
            "\u{202e}",
            "\0",
            "\u{1b}",
            "<x>",
            "<li>line",
            "<b>tool",
            "<b>src",
        ] {
            assert!(
                !page.body.contains(wrong),
                "{wrong:?} in {path}: {}",
                page.body
            );
        }
    }
    let page = browser.page(&path).await;
    assert!(
        page.body.contains("&lt;script&gt;alert(&#39;owned&#39;)"),
        "{}",
        page.body
    );
    assert!(page.body.contains(">U+202E</span>gnirts"), "{}", page.body);
    assert!(page.body.contains("28.6 MiB, by lines"), "{}", page.body);
    let end = browser.page(&format!("{path}/text/6?byte=5099990")).await;
    assert!(end.body.contains("needle&lt;b&gt;"), "{}", end.body);
    let last = browser.page(&format!("{path}/text/8?from=1499990")).await;
    assert!(last.body.contains("id=\"L1500000\""), "{}", last.body);
    assert_eq!(
        browser
            .get(&format!("{path}/text/8?from=9999999"))
            .await
            .status,
        404
    );
    assert_eq!(browser.get(&format!("{path}/text/99")).await.status, 404);
    assert_eq!(browser.get(&format!("{path}/e/99")).await.status, 404);
    assert_eq!(browser.get(&format!("{path}/e/x")).await.status, 400);
    assert_eq!(browser.get("/c/nothing-like-it").await.status, 404);
}

// Real images are shown. Content that browsers read as markup or scripts is named and not served.
#[tokio::test(flavor = "multi_thread")]
async fn only_real_images_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let id = conversation(&engine).await;
    let image = |kind: &str, bytes: &'static [u8]| {
        ContentPart::Image(Media {
            media_type: kind.into(),
            source: MediaSource::Data(bytes.into()),
            name: String::new(),
            detail: String::new(),
        })
    };
    let parts = vec![
        image("image/png", b"\x89PNG\r\n"),
        image("image/svg+xml", b"<svg onload='alert(1)'/>"),
        image("text/html", b"<script>alert(1)</script>"),
    ];
    let said = MessageAppended::new(Role::User, parts);
    let said = NewEvent::new(id, EventBody::MessageAppended(said));
    append(&engine, vec![said]).await.unwrap();
    engine.close().await;
    let browser = Browser::start(dir.path(), &[]).await;
    let page = browser.page(&format!("/c/{id}")).await;
    assert_eq!(page.body.matches("<img ").count(), 1, "{}", page.body);
    let revision = page.after("/media/").split('/').next().unwrap().to_owned();
    let part = |part: u32| format!("/c/{id}/media/{revision}/{part}");
    let png = browser.ask_bytes(&part(0)).await;
    assert!(
        png.starts_with("HTTP/1.1 200") && png.contains("content-type: image/png"),
        "{png}"
    );
    assert!(png.contains("nosniff") && png.contains("sandbox"), "{png}");
    for other in [1, 2, 3] {
        assert_eq!(browser.get(&part(other)).await.status, 404);
    }
}

// A page with the end of a conversation is notified of new events and shows them. A page as of a
// revision is not.
#[tokio::test(flavor = "multi_thread")]
async fn open_page_shows_appended_events() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let id = conversation(&engine).await;
    engine.close().await;
    let browser = Browser::start(dir.path(), &[]).await;
    let page = browser.page(&format!("/c/{id}")).await;
    let live = page.after("data-live=\"").to_owned();
    let past = browser.page(&format!("/c/{id}?at=1")).await;
    assert!(!past.body.contains("data-live"));
    let mut stream = TcpStream::connect(&browser.address).await.unwrap();
    let request = format!("GET {live} HTTP/1.1\r\nHost: {}\r\n\r\n", browser.address);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut told = String::new();
    let mut until = async |text: &str| {
        let mut bytes = [0; 4_096];
        while !told.contains(text) {
            let read = timeout(PATIENCE, stream.read(&mut bytes)).await;
            let read = read
                .unwrap_or_else(|_| panic!("no {text} in {told}"))
                .unwrap();
            assert_ne!(read, 0, "it ended: {told}");
            told.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    };
    until("event: open").await;
    let url = format!("http://{}", browser.address);
    let mut events = pb::events_client::EventsClient::connect(url).await.unwrap();
    let said = pb::MessageAppended {
        role: pb::Role::User.into(),
        parts: vec![pb::ContentPart {
            part: Some(pb::content_part::Part::Text("quokka".into())),
        }],
        ..Default::default()
    };
    let body = pb::new_event::Body::MessageAppended(prost::Message::encode_to_vec(&said).into());
    let request = pb::AppendRequest {
        conversation_id: id.to_string(),
        events: vec![pb::NewEvent {
            body: Some(body),
            ..Default::default()
        }],
        ..Default::default()
    };
    events.append(request).await.unwrap();
    until("event: changed").await;
    let headers = [("X-Fragment", "1")];
    let part = browser.ask("GET", &format!("/c/{id}"), &headers, "").await;
    assert!(
        part.body.contains("quokka") && !part.body.contains("<html"),
        "{}",
        part.body
    );
}

// From an error that a person reads to similar ones: the event and every hit link to them.
#[tokio::test(flavor = "multi_thread")]
async fn texts_similar_to_an_event_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::start();
    let engine = model.open(dir.path()).await;
    let id = filled(&engine).await;
    let events = vec![message(id, "no power in the car again")];
    append(&engine, events).await.unwrap();
    embedded(&engine).await;
    engine.close().await;
    let options = ["--embedder", &model.url, "--embedder-model", "topics"];
    let browser = Browser::start(dir.path(), &options).await;
    let event = browser.page(&format!("/c/{id}/e/3")).await;
    let link = &links(&event.body, "/search?similar=")[0];
    let found = browser.page(link).await.body;
    assert!(
        found.contains("Texts that are similar in meaning"),
        "{found}"
    );
    let hits: Vec<&str> = found.split("<li class=\"hit\"").skip(1).collect();
    assert!(hits[0].contains("no power in"), "{found}");
    assert!(
        !hits.iter().any(|hit| hit.contains("battery was flat")),
        "{found}"
    );
    let next = &links(hits[0], "/search?similar=")[0];
    let back = browser.page(next).await.body;
    assert!(back.contains("battery was flat"), "{back}");
    let refused = browser.get("/search?similar=here").await;
    assert_eq!(refused.status, 400, "{}", refused.body);
}
