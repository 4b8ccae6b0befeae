//! Items from the command line, and custom states that are stored as deltas.

use serde_json::{Value, json};

use super::terminal::{NOT_FOUND, Shell, USAGE};

// One script stores items and another finds them: by name, by content and by words. A missing item
// has the exit code "not found", and invalid JSON changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn item_commands_put_get_and_search() {
    let shell = Shell::new();
    let value = r#"{"answers": "short", "level": 3}"#;
    let put = shell
        .ok(&["items", "put", "users/ada", "likes", value])
        .await;
    assert_eq!(put, "put users/ada/likes\n");
    let other = r#"{"answers": "long", "level": 1}"#;
    shell
        .ok(&["items", "put", "users/bob", "likes", other, "--ttl", "12h"])
        .await;
    let got = shell.ok(&["items", "get", "users/ada", "likes"]).await;
    assert_eq!(got, format!("{value}\n"));

    let told = shell
        .ok(&["items", "get", "users/bob", "likes", "--json"])
        .await;
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["value"], json!({"answers": "long", "level": 1}));
    assert!(told["expires_at"].is_string() && told["conversation_id"].is_string());

    let found = shell
        .ok(&["items", "search", "users", "--where", "level>=2"])
        .await;
    assert!(found.starts_with("users/ada/likes"), "{found}");
    assert_eq!(found.lines().count(), 1);
    let found = shell.ok(&["items", "search", "--words", "long"]).await;
    assert!(found.starts_with("users/bob/likes"), "{found}");
    assert_eq!(shell.ok(&["items", "ls"]).await, "users/ada\nusers/bob\n");
    assert_eq!(shell.ok(&["items", "ls", "--depth", "1"]).await, "users\n");
    assert_eq!(shell.ok(&["items", "ls", "*/bob"]).await, "users/bob\n");

    let gone = ["items", "rm", "users/ada", "likes"];
    assert_eq!(shell.ok(&gone).await, "removed users/ada/likes\n");
    assert_eq!(shell.ok(&gone).await, "users/ada/likes did not exist\n");
    let missing = shell.run(&["items", "get", "users/ada", "likes"]).await;
    assert_eq!(missing.code, Some(NOT_FOUND), "{}", missing.err);
    let bad = shell
        .run(&["items", "put", "users/ada", "likes", "short"])
        .await;
    assert_eq!(bad.code, Some(USAGE), "{}", bad.err);
    assert!(bad.err.contains("not JSON"), "{}", bad.err);
    let bad = shell.run(&["items", "search", "--where", "level~3"]).await;
    assert_eq!(bad.code, Some(USAGE), "{}", bad.err);
    assert_eq!(shell.ok(&["items", "ls"]).await, "users/bob\n");
}

// Each step of a program appends its whole state from a shell, and names the event that it
// resembles. Reads, exports and verification must return the whole state.
#[tokio::test(flavor = "multi_thread")]
async fn growing_custom_states_round_trip_through_the_cli() {
    let shell = Shell::filled().await;
    let mut state = Vec::new();
    for step in 0..5 {
        state.push(format!("step {step} {}", "of a long story ".repeat(500)));
        let said = serde_json::to_string(&state).unwrap();
        let line = ["append", "7ad31c26", "custom", "app.state", &said];
        let like = ["--event-key", "state", "--delta-of", "state"];
        shell.ok(&[&line[..], &like].concat()).await;
    }
    let log = shell
        .ok(&["log", "7ad31c26", "--type", "app.state", "--json"])
        .await;
    let lengths: Vec<usize> = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["key"] == "state")
        .map(|event| event.to_string().matches("of a long story").count())
        .collect();
    assert_eq!(
        lengths,
        [500, 1_000, 1_500, 2_000, 2_500],
        "{}",
        &log[..log.len().min(900)]
    );
    let verified = shell.ok(&["verify", "--deep"]).await;
    assert!(verified.contains("sound"), "{verified}");
}
