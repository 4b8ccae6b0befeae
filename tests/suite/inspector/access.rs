//! Who may read pages, and from where.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use treering::{domain::*, proto::pb, server::bounds::MANY_READ};

use super::{Browser, key};
use crate::suite::{
    child::{self, PATIENCE, Server},
    store::{append, call, conversation, message, open, result},
};

/// Creates a store with one conversation that has this text.
async fn store_that_says(dir: &std::path::Path, text: &str) -> ConversationId {
    let engine = open(dir).await;
    let id = conversation(&engine).await;
    append(&engine, vec![message(id, text)]).await.unwrap();
    engine.close().await;
    id
}

// A page of another site must not read the store through a user's browser: neither under a host
// name that points here, nor with a request or a form.
#[tokio::test(flavor = "multi_thread")]
async fn requests_from_other_sites_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    store_that_says(dir.path(), "quokka").await;
    let browser = Browser::start(dir.path(), &["--web-host", "agents.example"]).await;
    let port = browser.address.rsplit_once(':').unwrap().1.to_owned();
    let as_host = |host: String| {
        let browser = &browser;
        async move { browser.ask("GET", "/", &[("Host", &host)], "").await.status }
    };
    assert_eq!(as_host("evil.example".into()).await, 403);
    assert_eq!(as_host(format!("evil.example:{port}")).await, 403);
    assert_eq!(as_host("127.0.0.1.evil.example".into()).await, 403);
    assert_eq!(as_host(format!("localhost:{port}")).await, 200);
    assert_eq!(as_host("[::1]".into()).await, 200);
    assert_eq!(as_host("Agents.example".into()).await, 200);

    let own = format!("http://{}", browser.address);
    for (headers, status) in [
        (vec![("Origin", "http://evil.example")], 403),
        (vec![("Origin", "null")], 403),
        (vec![("Origin", own.as_str())], 200),
        (
            vec![
                ("Sec-Fetch-Site", "cross-site"),
                ("Sec-Fetch-Mode", "no-cors"),
            ],
            403,
        ),
        (
            vec![("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Mode", "cors")],
            403,
        ),
        (
            vec![
                ("Sec-Fetch-Site", "cross-site"),
                ("Sec-Fetch-Mode", "navigate"),
            ],
            200,
        ),
        (
            vec![
                ("Sec-Fetch-Site", "same-origin"),
                ("Sec-Fetch-Mode", "cors"),
            ],
            200,
        ),
    ] {
        let answer = browser.ask("GET", "/", &headers, "").await;
        assert_eq!(answer.status, status, "{headers:?}");
        assert!(status == 200 || !answer.body.contains("quokka"));
    }
    for headers in [&[][..], &[("Origin", "http://evil.example")]] {
        let answer = browser.post("/logout", headers, "token=guessed").await;
        assert_eq!(answer.status, 403, "{headers:?}: {}", answer.body);
    }
    let answer = browser.ask("POST", "/logout", &[], "{}").await;
    assert_eq!(answer.status, 400);
    assert_eq!(browser.ask("DELETE", "/", &[], "").await.status, 405);
    assert_eq!(browser.get("/no/such/page").await.status, 404);
}

// Reads through pages and agents use a server inside the process. Mass reading through them must be
// in the audit, too.
#[tokio::test(flavor = "multi_thread")]
async fn mass_reading_by_pages_or_mcp_is_in_the_audit() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let mut ids = Vec::new();
    for _ in 0..MANY_READ.conversations {
        let id = conversation(&engine).await;
        append(&engine, vec![message(id, "quokka")]).await.unwrap();
        ids.push(id);
    }
    engine.close().await;
    let ops = key(dir.path(), "ops", "admin:*").await;
    let person = key(dir.path(), "person", "reader:default").await;
    let agent = key(dir.path(), "agent", "reader:default").await;
    let server = Server::start(dir.path()).await;
    let channel = tonic::transport::Endpoint::from_shared(server.url.clone());
    let channel = channel.unwrap().connect().await.unwrap();
    let sent = |key: &str| format!("Bearer {key}");
    let (person, agent) = (sent(&person), sent(&agent));
    for id in &ids {
        let headers = [("authorization", person.as_str())];
        let page = child::asked(&channel, "GET", &format!("/c/{id}"), &headers, "").await;
        assert!(page.0 == 200 && page.1.contains("quokka"), "{page:?}");
        let headers = [
            ("authorization", agent.as_str()),
            ("mcp-protocol-version", "2025-06-18"),
        ];
        let call = format!(
            r#"{{"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                "params": {{"name": "read", "arguments": {{"reference": "{id}#3"}}}}}}"#
        );
        let told = child::asked(&channel, "POST", "/mcp", &headers, &call).await;
        assert!(told.0 == 200 && told.1.contains("quokka"), "{told:?}");
    }
    let noted = async {
        loop {
            let audit = ["audit", "--server", &server.url];
            let audit = child::run_with(&audit, &[("TREERING_TOKEN", &ops)]).await;
            let text = String::from_utf8(audit.stdout).unwrap();
            let lines: Vec<_> = text.lines().filter(|it| it.contains("read_many")).collect();
            let of = |key: &str| lines.iter().filter(|line| line.contains(key)).count();
            if of("person") > 0 && of("agent") > 0 {
                return (of("person"), of("agent"));
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    let noted = tokio::time::timeout(PATIENCE, noted).await;
    assert_eq!(noted.expect("both are in the audit"), (1, 1));
    server.kill().await;
}

// A browser must not cache recorded content. Otherwise the next user sees it, also after the key
// has ended.
#[tokio::test(flavor = "multi_thread")]
async fn recorded_content_is_not_cached_by_browsers() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let id = conversation(&engine).await;
    let png = ContentPart::Image(Media {
        media_type: "image/png".into(),
        source: MediaSource::Data(b"\x89PNG\r\n".as_slice().into()),
        name: String::new(),
        detail: String::new(),
    });
    let image = MessageAppended::new(Role::User, vec![png]);
    let events = vec![
        message(id, "quokka"),
        NewEvent::new(id, EventBody::MessageAppended(image)),
        call(id, "call_1", "read"),
        result(id, "call_1", "what it returned"),
    ];
    let appended = append(&engine, events).await.unwrap();
    let image = appended.events[1].revision.0;
    engine.close().await;
    let browser = Browser::start(dir.path(), &[]).await;
    for path in [
        format!("/c/{id}/media/{image}/0"),
        format!("/c/{id}/call/call_1/result"),
        format!("/c/{id}/call/call_1/arguments"),
        format!("/c/{id}/request/body"),
        format!("/c/{id}/request"),
        format!("/c/{id}/text/{image}"),
        format!("/c/{id}/e/{image}"),
        format!("/c/{id}/call/call_1"),
        format!("/c/{id}"),
        "/search?q=quokka".to_owned(),
        "/".to_owned(),
        "/login".to_owned(),
        "/no/such/page".to_owned(),
    ] {
        let answer = browser.ask_bytes(&path).await.to_ascii_lowercase();
        let (head, _) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(head.matches("cache-control").count(), 1, "{path}: {head}");
        assert!(head.contains("cache-control: no-store"), "{path}: {head}");
        let is_file = path.contains("/media/") || path.ends_with("/result");
        assert!(
            !is_file || head.starts_with("http/1.1 200"),
            "{path}: {head}"
        );
        let is_body = path.ends_with("/arguments") || path.ends_with("/body");
        assert!(
            !is_body || head.starts_with("http/1.1 200"),
            "{path}: {head}"
        );
    }
    // Assets of the program may be cached.
    let page = browser.page("/").await;
    let style = page.after("href=\"/assets/").to_owned();
    let style = browser.get(&format!("/assets/{style}")).await;
    assert!(style.header("cache-control").unwrap().contains("immutable"));
}

// If the store has keys, pages require one, and show only what the key may read. The key itself is
// in no page. The session ends with a log-out, or with the key.
#[tokio::test(flavor = "multi_thread")]
async fn pages_show_only_what_the_key_may_read() {
    let dir = tempfile::tempdir().unwrap();
    let id = store_that_says(dir.path(), "quokka").await;
    let page = format!("/c/{id}");
    let mut browser = Browser::start(dir.path(), &[]).await;
    let open = browser.page(&page).await;
    assert!(open.body.contains("quokka") && !open.body.contains("Log out"));

    let reader = key(dir.path(), "reader", "reader:default").await;
    let other = key(dir.path(), "other", "reader:team-b").await;
    let refused = browser.get(&format!("{page}?at=1")).await;
    assert_eq!(refused.status, 303, "{}", refused.body);
    let login = refused.header("location").unwrap().to_owned();
    assert!(
        login.starts_with("/login?to=%2Fc%2F") && login.ends_with("at%3D1"),
        "{login}"
    );
    assert_eq!(browser.get("/live").await.status, 303);
    let fragment = browser.ask("GET", &page, &[("X-Fragment", "1")], "").await;
    assert_eq!(fragment.status, 401);
    assert!(!fragment.body.contains("quokka"));

    let form = browser.page(&login).await;
    let token = form.after("name=\"token\" value=\"").to_owned();
    let to = form.after("name=\"to\" value=\"").replace("&amp;", "&");
    let wrong = format!("token={token}&key=tr_live_nothing&to=%2F");
    let wrong = browser.post("/login", &[], &wrong).await;
    assert_eq!(wrong.status, 401);
    assert!(wrong.header("set-cookie").is_none());
    let unasked = browser
        .post("/login", &[], &format!("token=x&key={reader}"))
        .await;
    assert_eq!(unasked.status, 403);

    let sent = format!("token={token}&key={reader}&to={}", to.replace('&', "%26"));
    let entered = browser.post("/login", &[], &sent).await;
    assert_eq!(entered.status, 303, "{}", entered.body);
    assert_eq!(
        entered.header("location"),
        Some(format!("{page}?at=1").as_str())
    );
    let cookie = entered.header("set-cookie").unwrap();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains(&reader) && !cookie.contains("tr_live"));
    browser.cookie = Some(cookie.split(';').next().unwrap().to_owned());
    let seen = browser.page(&page).await;
    assert!(seen.body.contains("quokka") && seen.body.contains("Log out"));
    assert!(!seen.body.contains("tr_live_"));
    assert!(seen.body.contains("class=\"key-name\"") && seen.body.contains(">reader<"));
    // Only administrators of the machine may see the folder of the store.
    let folder = dir.path().display().to_string();
    assert!(!browser.page("/store").await.body.contains(&folder));
    // The key is not valid for another namespace.
    let elsewhere = browser.get("/@team-b/").await;
    assert_eq!(elsewhere.status, 403);
    assert!(elsewhere.body.contains("Not allowed") && elsewhere.body.contains("team-b"));

    // The token of one session is not valid in another.
    let stale = browser
        .post("/logout", &[], &format!("token={token}"))
        .await;
    assert_eq!(stale.status, 403);
    let own = seen.after("name=\"token\" value=\"").to_owned();
    let left = browser.post("/logout", &[], &format!("token={own}")).await;
    assert_eq!(left.status, 303);
    assert!(left.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(browser.get(&page).await.status, 303, "its session is over");

    // A key of another namespace sees nothing here.
    let sent = format!("token={token}&key={other}");
    browser.cookie = None;
    let entered = browser.post("/login", &[], &sent).await;
    assert_eq!(entered.header("location"), Some("/@team-b/"));
    // An address that it may not read does not prevent the login either.
    let sent = format!("{sent}&to=%2Fsearch%3Fq%3Dx");
    let again = browser.post("/login", &[], &sent).await;
    assert_eq!(again.header("location"), Some("/@team-b/"));
    let cookie = entered.header("set-cookie").unwrap();
    browser.cookie = Some(cookie.split(';').next().unwrap().to_owned());
    for path in [page.as_str(), "/", "/search?q=quokka", "/store", "/live"] {
        let denied = browser.get(path).await;
        assert_eq!(denied.status, 403, "{path}: {}", denied.body);
        assert!(!denied.body.contains("quokka"), "{path}: {}", denied.body);
    }
    assert_eq!(browser.page("/@team-b/").await.status, 200);
    // Programs send their key as usual.
    let bearer = format!("Bearer {reader}");
    browser.cookie = None;
    let program = browser
        .ask("GET", &page, &[("Authorization", &bearer)], "")
        .await;
    assert_eq!(program.status, 200);
}

// Calls and pages share a port and must not disturb each other. Other requests are refused.
#[tokio::test(flavor = "multi_thread")]
async fn grpc_and_pages_share_a_port() {
    let dir = tempfile::tempdir().unwrap();
    store_that_says(dir.path(), "quokka").await;
    let browser = Browser::start(dir.path(), &[]).await;
    let url = format!("http://{}", browser.address);
    let mut calls = pb::admin_client::AdminClient::connect(url).await.unwrap();
    for _ in 0..3 {
        let stats = calls.stats(pb::StatsRequest {}).await.unwrap().into_inner();
        assert_eq!(stats.conversations, 1);
        browser.page("/store").await;
    }
    // A gRPC call by HTTP/1 is an ordinary request, and no such page exists.
    let kind = [("Content-Type", "application/grpc")];
    let call = browser
        .ask("POST", "/treering.v1.Admin/Stats", &kind, "")
        .await;
    assert_eq!(call.status, 404);
    for garbage in ["NONSENSE\r\n\r\n", "GET / HTTP/9\r\n\r\n", "\0\0\0\0"] {
        let mut stream = tokio::net::TcpStream::connect(&browser.address)
            .await
            .unwrap();
        stream.write_all(garbage.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(
            !String::from_utf8_lossy(&answer).contains("200 OK"),
            "{garbage:?}"
        );
    }
    let long = format!("/?{}", "x".repeat(100_000));
    let head = "x".repeat(100_000);
    let answer = browser.ask("GET", "/", &[("X-Long", &head)], "").await;
    assert_eq!(answer.status, 431);
    assert_ne!(browser.get(&long).await.status, 200);
    browser.page("/").await;
}

// A connection with a running answer is not idle: neither a live page nor a slow call of an agent
// may be cut off.
#[tokio::test(flavor = "multi_thread")]
async fn running_answer_is_not_an_idle_connection() {
    use std::time::Duration;
    use treering::server::{ServeOptions, WebService, serve};
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let web = WebService::new(|_| async {
        let (mut words, body) =
            http_body_util::channel::Channel::<bytes::Bytes, std::convert::Infallible>::new(1);
        tokio::spawn(async move {
            for _ in 0..6 {
                tokio::time::sleep(Duration::from_millis(250)).await;
                if words.send_data("data: on\n\n".into()).await.is_err() {
                    return;
                }
            }
        });
        http::Response::new(tonic::body::Body::new(body))
    });
    let options = ServeOptions {
        web: Some(web),
        idle_max: Some(Duration::from_millis(400)),
        ..ServeOptions::default()
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = async move {
        let _ = stopped.await;
    };
    let serving = tokio::spawn(serve(engine, listener, stopped, options));
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    // After the end of the answer it is idle, and is closed.
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    read.expect("the idle connection is not closed").unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert_eq!(answer.matches("data: on").count(), 6, "{answer}");
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
}

// Both HTTP endpoints can be disabled.
#[tokio::test(flavor = "multi_thread")]
async fn inspector_and_mcp_can_be_disabled() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(
        dir.path(),
        &["--listen", "127.0.0.1:0", "--no-inspector", "--no-mcp"],
    );
    let server = server.await;
    let address = server.url.strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(
        !String::from_utf8_lossy(&answer).contains("HTTP/1.1"),
        "{answer:?}"
    );
    server.kill().await;
}
