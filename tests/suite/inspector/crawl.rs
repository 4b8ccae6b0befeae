//! Follows every link of a store in which every text is hostile.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Browser;
use crate::suite::output_escaping::{self, MARKUP, is_obeyed};

/// Maximum number of visited pages of one shape, such as one page with other orders and filters.
const OF_SHAPE_MAX: usize = 12;

/// Returns the values of attributes that are links within this site, absolute or with a query only.
fn links(path: &str, body: &str) -> Vec<String> {
    let page = path.split('?').next().unwrap();
    let values = body.split("=\"").skip(1);
    let values = values.map(|rest| rest.split('"').next().unwrap());
    let plain = |value: &str| {
        let value = value.split('#').next().unwrap();
        let named = [
            ("&lt;", "<"),
            ("&gt;", ">"),
            ("&quot;", "\""),
            ("&#39;", "'"),
        ];
        let value = named
            .iter()
            .fold(value.to_owned(), |value, (name, c)| value.replace(name, c));
        value.replace("&amp;", "&")
    };
    let here = values.filter_map(|value| match value.as_bytes() {
        [b'/', rest @ ..] if rest.first() != Some(&b'/') => Some(plain(value)),
        [b'?', ..] => Some(format!("{page}{}", plain(value))),
        _ => None,
    });
    here.collect()
}

/// Returns a path without numbers and ids, and the names of its query parameters.
fn shape(path: &str) -> String {
    let (page, query) = path.split_once('?').unwrap_or((path, ""));
    let part = |part: &str| match part.chars().any(|c| c.is_ascii_digit()) {
        true => "*".to_owned(),
        false => part.to_owned(),
    };
    let page: Vec<_> = page.split('/').map(part).collect();
    let names: BTreeSet<_> = query.split('&').map(|one| one.split('=').next()).collect();
    format!("{} {names:?}", page.join("/"))
}

// On every page that can be reached from the first one, recorded text must be text: not markup or
// the end of an attribute, nor characters that change the text direction, nor control characters,
// which a terminal with `curl` obeys.
#[tokio::test(flavor = "multi_thread")]
async fn recorded_text_is_escaped_on_every_page() {
    let (shell, _) = output_escaping::filled().await;
    let fork = [
        "fork",
        "evil",
        "--at",
        "9",
        "--name",
        output_escaping::BRANCH,
    ];
    shell.ok(&fork).await;
    shell
        .ok(&["items", "put", "users/ada", output_escaping::NAME, "{}"])
        .await;
    let browser = Browser::start(shell.path("store").as_ref(), &[]).await;
    let starts = ["/", "/search?q=said", "/search?q=evil&in=results", "/store"];
    let mut waiting: VecDeque<String> = starts.map(str::to_owned).into();
    let mut seen: BTreeSet<String> = waiting.iter().cloned().collect();
    let mut shapes: BTreeMap<String, usize> = BTreeMap::new();
    let mut wrong = BTreeSet::new();
    while let Some(path) = waiting.pop_front() {
        let count = shapes.entry(shape(&path)).or_default();
        *count += 1;
        // `/live` never ends.
        if *count > OF_SHAPE_MAX || path.starts_with("/live") {
            continue;
        }
        let page = browser.get(&path).await;
        if page.status >= 500 {
            wrong.insert(format!("{path}: {}", page.status));
        }
        let kind = page.header("content-type").unwrap_or_default();
        let disposition = page.header("content-disposition").unwrap_or_default();
        // An asset, or a download of a recorded result.
        let is_file = path.starts_with("/assets/") || disposition.starts_with("attachment");
        for line in page.body.lines().filter(|_| !is_file) {
            let is_broken = kind.starts_with("text/html")
                && (line.contains(MARKUP) || line.contains("<u/") || line.contains(r#""'&>"#));
            let controls = line.chars().any(is_obeyed);
            if is_broken || controls {
                wrong.insert(format!("{path} ({kind}): {line:?}"));
            }
        }
        let header = page.head.lines().find(|line| line.contains(is_obeyed));
        wrong.extend(header.map(|line| format!("{path}: {line:?}")));
        if kind.starts_with("text/html") {
            for link in links(&path, &page.body) {
                if link.contains(|c: char| c.is_control() || c == ' ' || c == '<') {
                    wrong.insert(format!("{path} links to {link:?}"));
                } else if seen.insert(link.clone()) {
                    waiting.push_back(link);
                }
            }
        }
    }
    let wrong: Vec<_> = wrong.into_iter().collect();
    assert!(wrong.is_empty(), "{} of them: {wrong:#?}", wrong.len());
    // Pages with recorded content were among them.
    for page in [
        "/c/*",
        "/c/*/e/*",
        "/c/*/text/*",
        "/c/*/branches",
        "/c/*/tools",
        "/c/*/call/*",
        "/c/*/usage",
        "/c/*/request",
        "/c/*/diff",
        "/tools",
        "/usage",
        "/approvals",
        "/search",
        "/correlated",
    ] {
        let begin = format!("{page} ");
        let is_there = shapes.keys().any(|shape| shape.starts_with(&begin));
        assert!(is_there, "no {page} among {shapes:#?}");
    }
}
