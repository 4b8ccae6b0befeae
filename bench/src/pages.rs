//! Measures how fast the inspector's pages answer, and their size, over real conversations.

use std::{fs, time::Instant};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    Setup,
    child::Child,
    failed,
    rounds::{median, percentile, ratio},
    row::{Row, Target, Unit},
    stores,
};
use treering::proto::pb;
use treering_client::{connect::Connection, error::ClientError};

/// Longest median time to the first byte of a page, in milliseconds.
const FIRST_BYTE_MS: f64 = 50.0;
/// Largest page, in kB.
const PAGE_KB: f64 = 300.0;
/// The baseline: a small file that is built into the program.
const PLAIN: &str = "/assets/inspector.js";
/// Largest file that a quick run imports, in bytes.
const QUICK_FILES_BYTES: u64 = 3 << 20;
/// Conversations in one page of the list.
const PAGE_SIZE: u32 = 1_000;

/// Measures the rows of this group.
///
/// # Errors
/// When the server cannot be started, or a page fails or is too large.
pub(super) async fn measure(setup: &Setup) -> Result<Vec<Row>, ClientError> {
    let mut files = setup.trajectory_files();
    if setup.quick {
        files.retain(|file| fs::metadata(file).is_ok_and(|meta| meta.len() <= QUICK_FILES_BYTES));
    }
    if files.is_empty() {
        setup.left_out("pages", "real conversations");
        return Ok(Vec::new());
    }
    let folder = setup.folder()?;
    setup.doing("pages: importing");
    let engine = stores::open_dense(folder.path()).await?;
    let imported = stores::import(&engine, &files).await?;
    stores::indexed(&engine).await?;
    engine.close().await;
    setup.doing("pages: starting a server");
    let child = Child::serve(folder.path()).await?;
    let address = child.url.trim_start_matches("http://").to_owned();
    let shown = PageTargets::find(&child.connect().await?).await?;
    let mut rows = Vec::new();
    for (id, what, path) in shown.pages() {
        setup.doing(&format!("pages: {what}"));
        let (mut ours, mut plain, mut bytes) = (Vec::new(), Vec::new(), 0);
        // The first round is not counted: a process does some work only once.
        for round in 0..=setup.or_quick(40, 8) {
            let page = PageLoad::get(&address, &path).await?;
            let asset = PageLoad::get(&address, PLAIN).await?;
            if round > 0 {
                ours.push(page.first_byte_ms);
                plain.push(asset.first_byte_ms);
            }
            bytes = page.bytes.max(bytes);
        }
        let kb = bytes as f64 / 1e3;
        if kb > PAGE_KB {
            return Err(failed("a page", format!("{path} has {kb:.0} kB")));
        }
        rows.push(
            Row::new(id, what, median(&ours), Unit::Milliseconds)
                .beside("a file", median(&plain), ratio(&ours, &plain))
                .aim(Target::AtMost(FIRST_BYTE_MS))
                .note(format!(
                    "until the first byte, one connection each; p95 {:.1} ms; {kb:.0} kB; {} \
                     conversations, {} events",
                    percentile(&ours, 95.0),
                    imported.conversations,
                    imported.events
                )),
        );
    }
    Ok(rows)
}

/// The conversations that the pages show: the longest one, and the longest one with a fork.
struct PageTargets {
    long: String,
    forked: String,
    branches: [String; 2],
}

impl PageTargets {
    async fn find(store: &Connection) -> Result<Self, ClientError> {
        let (mut long, mut forked) = (None, None);
        let mut page_token = String::new();
        loop {
            let request = pb::ListConversationsRequest {
                page_size: PAGE_SIZE,
                page_token,
                ..Default::default()
            };
            let page = store.conversations().list(request).await?.into_inner();
            for found in page.conversations {
                longest(&mut long, &found);
                if found.branch_count > 1 {
                    longest(&mut forked, &found);
                }
            }
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        let (_, long) =
            long.ok_or_else(|| failed("looking for conversations", "there are none"))?;
        let forked = forked.map_or_else(|| long.clone(), |(_, id)| id);
        let request = pb::ListBranchesRequest {
            conversation_id: forked.clone(),
            ..Default::default()
        };
        let found = store.conversations().list_branches(request).await?;
        let mut names = found.into_inner().branches.into_iter().map(|b| b.name);
        let first = names.next().unwrap_or_default();
        let branches = [first.clone(), names.next().unwrap_or(first)];
        Ok(Self {
            long,
            forked,
            branches,
        })
    }

    fn pages(&self) -> [(&'static str, &'static str, String); 10] {
        let (long, forked, [a, b]) = (&self.long, &self.forked, &self.branches);
        [
            ("pages.conversations", "page: conversations", "/".into()),
            (
                "pages.branches",
                "page: branches",
                format!("/c/{forked}/branches"),
            ),
            (
                "pages.transcript",
                "page: the longest transcript",
                format!("/c/{long}"),
            ),
            ("pages.event", "page: an event", format!("/c/{long}/e/2")),
            ("pages.tools", "page: tool calls of all", "/tools".into()),
            (
                "pages.search",
                "page: a search",
                "/search?q=connection+refused".into(),
            ),
            (
                "pages.request",
                "page: a request",
                format!("/c/{long}/request?provider=anthropic"),
            ),
            (
                "pages.diff",
                "page: two branches",
                format!("/c/{forked}/diff?a={a}&b={b}"),
            ),
            ("pages.approvals", "page: approvals", "/approvals".into()),
            ("pages.store", "page: the store", "/store".into()),
        ]
    }
}

fn longest(best: &mut Option<(u64, String)>, found: &pb::ConversationSummary) {
    if best.as_ref().is_none_or(|(head, _)| *head < found.head) {
        *best = Some((found.head, found.conversation_id.clone()));
    }
}

/// The measurements of one HTTP response.
struct PageLoad {
    first_byte_ms: f64,
    bytes: usize,
}

impl PageLoad {
    async fn get(address: &str, path: &str) -> Result<Self, ClientError> {
        let started = Instant::now();
        let mut stream = TcpStream::connect(address).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = vec![0; 1];
        stream.read_exact(&mut answer).await?;
        let first_byte_ms = started.elapsed().as_secs_f64() * 1e3;
        stream.read_to_end(&mut answer).await?;
        if !answer.starts_with(b"HTTP/1.1 200 ") {
            let head: String = String::from_utf8_lossy(&answer).chars().take(200).collect();
            return Err(failed("a page", format!("{path} answered {head}")));
        }
        Ok(Self {
            first_byte_ms,
            bytes: answer.len(),
        })
    }
}
