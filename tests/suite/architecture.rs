//! Rules of the source tree that the compiler does not check.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Dependencies and functions that only some modules may use, with these modules.
const KEPT_TO: [(&str, &[&str]); 23] = [
    ("redb::", &["base/disk", "log/redb", "projections"]),
    ("bincode::", &["projections/codec.rs"]),
    ("rusqlite::", &["import/opencode/database.rs"]),
    ("tokio_postgres::", &["log_postgres"]),
    ("object_store::", &["objects"]),
    (
        "tokio_rustls::",
        &["server/tls.rs", "server/connection/handshake.rs"],
    ),
    (
        "x509_cert::",
        &["access/subject.rs", "server/certificate.rs"],
    ),
    (
        "ureq::",
        &["embedders/endpoint.rs", "heads/webhook.rs", "summariser"],
    ),
    ("reqwest::", &["proxy"]),
    ("rten::", &["embedders/local.rs"]),
    ("jiff::", &["present/text/zone.rs"]),
    ("opentelemetry::", &["otel/export.rs"]),
    ("opentelemetry_proto::", &["server/spans"]),
    // The clock of the machine may show any time, so it is read in one place. `SystemTime::now` may
    // be before 1970, where converting it panics.
    ("SystemTime::now", &["domain/id.rs"]),
    // Text for the standard streams must be escaped for terminals first.
    ("eprintln!", &[]),
    ("println!", &[]),
    (
        "anstream::",
        &["cli/lib.rs", "cli/output.rs", "present/safe.rs"],
    ),
    ("io::stderr", &["cli/output.rs", "present/safe.rs"]),
    ("std::io::stderr", &["cli/lib.rs"]),
    ("io::stdout", &["cli/output.rs"]),
    ("std::io::stdout", &[]),
    ("Uuid::now_v7", &[]),
    ("Uuid::now_v6", &[]),
];

fn source_files(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            source_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Returns every source file: its path below `src`, and its text without comments and test modules.
fn sources() -> Vec<(String, String)> {
    let root = Path::new(crate::ROOT).join("src");
    let mut files = Vec::new();
    source_files(&root, &mut files);
    files
        .into_iter()
        .map(|path| {
            let name = path
                .strip_prefix(&root)
                .unwrap()
                .to_string_lossy()
                .replace('\\', "/");
            let text = fs::read_to_string(&path).unwrap();
            let text = text
                .split("#[cfg(test)]\nmod tests {")
                .next()
                .unwrap_or_default();
            let code: Vec<_> = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"))
                .collect();
            (name, code.join("\n"))
        })
        .filter(|(name, _)| !name.contains("tests") && !name.ends_with("build.rs"))
        .collect()
}

/// If a storage, index or transport crate is used outside its adapter, the adapter is hard to
/// replace.
#[test]
fn adapter_crates_are_used_only_in_their_adapter() {
    let mut wrong = Vec::new();
    for (name, code) in sources() {
        for (krate, places) in KEPT_TO {
            let named = code.match_indices(krate).any(|(at, _)| {
                let before = code[..at].chars().next_back().unwrap_or(' ');
                let path = code[..at].ends_with("crate::log::") || code[..at].ends_with("self::");
                !path && !before.is_alphanumeric() && before != '_' && before != ':'
            });
            if named && !places.iter().any(|place| name.starts_with(place)) {
                wrong.push(format!("src/{name} names {krate}"));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Folders whose types have the names of the format that they mirror.
const MIRRORS: [&str; 6] = [
    "cli/append/bodies.rs",
    "context/provider/anthropic/",
    "context/provider/gemini/",
    "context/provider/neutral/",
    "context/provider/openai_chat/",
    "context/provider/openai_responses/",
];

/// Two types with one name confuse a reader: a plan of an import, and one of a budget. A type that
/// is visible outside its module must have a unique name.
#[test]
fn public_type_names_are_unique() {
    let mut known: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, code) in sources() {
        if MIRRORS.iter().any(|mirror| name.starts_with(mirror)) {
            continue;
        }
        for line in code.lines() {
            let seen = ["pub ", "pub(crate) ", "pub(in "];
            if !seen.iter().any(|seen| line.starts_with(seen)) {
                continue;
            }
            let mut words = line.split_whitespace().skip_while(|word| {
                !matches!(*word, "struct" | "enum" | "trait" | "type" | "union")
            });
            if let Some(word) = words.nth(1) {
                let end = word.find(|c: char| !c.is_alphanumeric());
                let own = word[..end.unwrap_or(word.len())].to_owned();
                known.entry(own).or_default().push(name.clone());
            }
        }
    }
    assert!(known.len() > 300, "only {} types were found", known.len());
    known.retain(|_, places| places.len() > 1);
    assert_eq!(known, BTreeMap::new());
}

/// A file with several purposes is hard to navigate.
#[test]
fn source_files_stay_below_the_line_limit() {
    const LINES_MAX: usize = 700;
    let long: Vec<_> = sources()
        .into_iter()
        .map(|(name, code)| (code.lines().count(), name))
        .filter(|(lines, _)| *lines > LINES_MAX)
        .collect();
    assert_eq!(long, Vec::new());
}

/// Users cannot disable an enhancer that the docs do not list, and a wrong description misleads
/// them.
#[test]
fn docs_list_every_enhancer() {
    let root = Path::new(crate::ROOT);
    let docs = fs::read_to_string(root.join("docs/CONTEXT.md")).unwrap();
    let mut from = 0;
    for step in treering::context::enhancers::built_in() {
        let row = format!("| `{}` | {}", step.name, step.about);
        let Some(at) = docs[from..].find(&row) else {
            panic!("docs/CONTEXT.md lacks, or has in another order: {row}");
        };
        from += at;
        for param in step.params {
            let line = docs[from..].lines().next().unwrap_or_default();
            let name = format!("`{}`", param.name);
            assert!(line.contains(&name), "{} takes {name}: {line}", step.name);
        }
    }
}

/// Words in capitals that are not error reasons: variables of the build, and names of gRPC codes.
const NO_REASONS: [&str; 4] = ["CARGO_PKG_VERSION", "OUT_DIR", "OK", "S"];

/// Adds the texts of a file that look like error reasons.
fn reasons_in(file: &Path, found: &mut std::collections::BTreeSet<String>) {
    let text = fs::read_to_string(file).unwrap();
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    for part in text.split('"').skip(1).step_by(2) {
        let is_word = !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
            && !NO_REASONS.contains(&part);
        if is_word {
            found.insert(part.to_owned());
        }
    }
}

// Operators look up error reasons. The page must list each reason in the code, and no other.
#[test]
fn docs_list_every_error_reason() {
    let root = Path::new(crate::ROOT);
    let mut coded = std::collections::BTreeSet::new();
    reasons_in(&root.join("src/domain/rejection.rs"), &mut coded);
    let mut folders = vec![root.join("src/server")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".rs") && !name.contains("tests") && name != "measures.rs" {
                reasons_in(&path, &mut coded);
            }
        }
    }
    let page = fs::read_to_string(root.join("docs/ERRORS.md")).unwrap();
    let row = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    let told: std::collections::BTreeSet<String> = page.lines().filter_map(row).collect();
    assert!(coded.len() > 60, "{coded:?}");
    let missing: Vec<_> = coded.difference(&told).collect();
    let made_up: Vec<_> = told.difference(&coded).collect();
    assert!(missing.is_empty(), "docs/ERRORS.md lacks {missing:?}");
    assert!(
        made_up.is_empty(),
        "docs/ERRORS.md has {made_up:?}, and the code has not"
    );
    for line in page.lines().filter(|line| row(line).is_some()) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert!(
            cells.len() == 4 && cells.iter().all(|cell| !cell.is_empty()),
            "{line}"
        );
    }
}
