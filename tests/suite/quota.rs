//! Quotas, tested with the built program as client and server.

use std::fs;

use super::{child, child::Server, terminal::Shell};

/// The exit code of a refusal that a retry does not change.
const REFUSED: i32 = 4;

async fn said(arguments: &[&str]) -> (String, String, Option<i32>) {
    let output = child::run(arguments).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        text(&output.stdout),
        text(&output.stderr),
        output.status.code(),
    )
}

fn conversation(n: usize) -> String {
    let text = "a boat ".repeat(40);
    let line = serde_json::json!({"id": format!("runs/{n}"), "source": "test",
        "messages": [{"role": "user", "content": format!("{n}: {text}")},
            {"role": "assistant", "content": text}]});
    format!("{line}\n")
}

// An import of more than the quota allows must stop there with advice. It must not retry for
// minutes, nor leave half a conversation. With a larger quota, the same import adds the rest, each
// conversation once.
#[tokio::test(flavor = "multi_thread")]
async fn import_stops_at_the_quota_and_can_continue() {
    let shell = Shell::new();
    let (store, lines) = (shell.path("store"), shell.path("lines.jsonl"));
    fs::write(&lines, (0..40).map(conversation).collect::<String>()).unwrap();
    let config = shell.path("treering.toml");
    let quota = "listen = \"127.0.0.1:0\"\nquota = [\"*=none,25\", \"small=10MiB,3\"]\n";
    fs::write(&config, quota).unwrap();
    let (out, errors, code) = said(&["config", "check", &config]).await;
    assert_eq!(code, Some(0), "{out}{errors}");

    let server = Server::start_with(store.as_ref(), &["--config", &config]).await;
    for (namespace, room) in [("default", 25), ("small", 3)] {
        let on = ["--server", &server.url, "--namespace", namespace];
        let import = [&["import", &lines][..], &on].concat();
        let (_, errors, code) = said(&import).await;
        assert_eq!(code, Some(REFUSED), "{errors}");
        assert!(errors.contains("of its quota of"), "{errors}");
        assert!(errors.contains("treering erase"), "{errors}");
        let (list, _, _) = said(&[&["ls", "--limit", "100", "--json"][..], &on].concat()).await;
        assert_eq!(list.lines().count(), room, "{list}");
        for line in list.lines() {
            let summary: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(summary["head"], 3, "{line}");
        }
        let (stats, _, _) = said(&[&["stats"][..], &on].concat()).await;
        let row = format!("{room} of {room}");
        assert!(stats.contains(&row), "{stats}");
    }
    let append = ["append", "new", "message", "user", "hello", "--server"];
    let (_, errors, code) = said(&[&append[..], &[&server.url]].concat()).await;
    assert_eq!(code, Some(REFUSED), "{errors}");
    server.kill().await;

    let more = ["--listen", "127.0.0.1:0", "--quota", "default=1GiB,40"];
    let server = Server::start_with(store.as_ref(), &more).await;
    let on = ["--server", &server.url];
    let (out, errors, code) = said(&[&["import", &lines][..], &on].concat()).await;
    assert_eq!(code, Some(0), "{errors}");
    let (list, _, _) = said(&[&["ls", "--limit", "100", "--json"][..], &on].concat()).await;
    assert_eq!(list.lines().count(), 40, "{out}");
    server.kill().await;
}

// An invalid quota must end the start with a reason. If it were ignored, the disk could fill.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_quota_ends_the_start() {
    let shell = Shell::new();
    let store = shell.path("store");
    for (quotas, word) in [
        (&["team-a"][..], "NAMESPACE=BYTES,CONVERSATIONS"),
        (&["team-a=10TB"], "MiB or GiB"),
        (&["team-a=99999999999999999999"], "MiB or GiB"),
        (&["team-a=1GiB,-1"], "neither a number of conversations"),
        (&["_system=1GiB"], "belongs to the server itself"),
        (&["*=1GiB", "*=2GiB"], "* is given twice"),
    ] {
        let mut line = vec!["serve", "--data", &store];
        for quota in quotas {
            line.extend(["--quota", quota]);
        }
        let (_, errors, code) = said(&line).await;
        assert_eq!(code, Some(2), "{errors}");
        assert!(errors.contains(word), "{word}: {errors}");
    }
}
