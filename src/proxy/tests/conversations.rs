//! The conversation and branch in which a call is recorded.

use serde_json::{Value, json};
use treering_domain::EventKind;

use super::loopback::{Setup, chat, chat_answer, said, user, whole};

const PATH: &str = "/v1/chat/completions";

fn talk(texts: &[&str]) -> Value {
    let message = |(index, text): (usize, &&str)| match index % 2 {
        0 => user(text),
        _ => json!({"role": "assistant", "content": text}),
    };
    texts.iter().enumerate().map(message).collect()
}

// A user goes back and asks something else. The first answer must stay, and the other question must
// become a branch, even without a conversation header.
#[tokio::test(flavor = "multi_thread")]
async fn changed_past_becomes_a_branch() {
    let setup = Setup::start().await;
    for (number, texts) in [
        &["one", "1", "two"][..],
        &["one", "1", "three"],
        &["one", "1", "three", "3", "four"],
        // Back on the first branch.
        &["one", "1", "two", "2", "five"],
    ]
    .iter()
    .enumerate()
    {
        if number == 0 {
            let first = chat_answer("a", said("1"));
            setup.call(PATH, &chat(talk(&["one"])), whole(&first)).await;
        }
        let answer = chat_answer(&format!("b{number}"), said(["2", "3", "4", "5"][number]));
        setup.call(PATH, &chat(talk(texts)), whole(&answer)).await;
    }
    let stored = setup.stop().await;
    assert_eq!(stored.conversations.len(), 1);
    assert_eq!(stored.count(0, EventKind::BranchForked), 1);
    let (said, asked) = (stored.talk(0), ["one", "two", "three", "four", "five"]);
    assert_eq!(said.len(), 10, "{said:?}");
    for (number, text) in asked.iter().enumerate() {
        let both = [
            format!("user: {text}"),
            format!("assistant: {}", number + 1),
        ];
        assert!(both.iter().all(|one| said.contains(one)), "{said:?}");
    }
    let branches = stored.conversations[0].iter();
    let branches = branches.map(|event| event.header.branch);
    let last = branches.last().unwrap();
    assert_eq!(
        last,
        treering_domain::BranchId::MAIN,
        "the first branch is active again"
    );
}

// An agent asks for a title, or starts another agent, with the id of the same session. Each must
// become its own conversation, and the main one must continue without branches.
#[tokio::test(flavor = "multi_thread")]
async fn side_calls_are_conversations_of_their_own() {
    let setup = Setup::start().await;
    let headers = [("x-treering-conversation", "s")];
    let call = async |id: &str, system: &str, texts: &[&str], answer: &str| {
        let mut messages = vec![json!({"role": "system", "content": system})];
        messages.extend(talk(texts).as_array().unwrap().clone());
        let reply = whole(&chat_answer(id, said(answer)));
        let request = chat(json!(messages));
        setup.call_with(PATH, &headers, &request, reply).await;
    };
    call("1", "an agent", &["fix it"], "on it").await;
    call("2", "make a title", &["fix it"], "A fix").await;
    call("3", "a sub-agent", &["look for bugs"], "found").await;
    // The instructions of an agent may change, for example because they contain the time.
    call(
        "4",
        "an agent, later",
        &["fix it", "on it", "go on"],
        "done",
    )
    .await;
    call(
        "5",
        "a sub-agent, later",
        &["look for bugs", "found", "where?"],
        "there",
    )
    .await;
    let stored = setup.stop().await;
    let mut talks: Vec<_> = (0..3).map(|index| stored.talk(index)).collect();
    talks.sort();
    assert_eq!(stored.conversations.len(), 3);
    assert_eq!(
        talks,
        [
            &[
                "system: a sub-agent",
                "user: look for bugs",
                "assistant: found",
                "system: a sub-agent, later",
                "user: where?",
                "assistant: there"
            ][..],
            &[
                "system: an agent",
                "user: fix it",
                "assistant: on it",
                "system: an agent, later",
                "user: go on",
                "assistant: done"
            ],
            &["system: make a title", "user: fix it", "assistant: A fix"],
        ]
    );
    for index in 0..3 {
        assert_eq!(stored.count(index, EventKind::BranchForked), 0);
    }
}

// Several requests of one conversation may be in progress at once. Each must be recorded exactly
// once.
#[tokio::test(flavor = "multi_thread")]
async fn parallel_calls_of_a_conversation_are_all_recorded() {
    const CALLS: usize = 12;
    let setup = Setup::start().await;
    let headers = [("x-treering-conversation", "s")];
    let first = whole(&chat_answer("0", said("ready")));
    setup
        .call_with(PATH, &headers, &chat(talk(&["go"])), first)
        .await;
    let calls = (0..CALLS).map(|number| {
        let request = chat(talk(&["go", "ready", &format!("question {number}")]));
        let reply = whole(&chat_answer(&format!("n{number}"), said("answer")));
        let setup = &setup;
        async move { setup.call_with(PATH, &headers, &request, reply).await }
    });
    futures::future::join_all(calls).await;
    let stored = setup.stop().await;
    assert_eq!(stored.conversations.len(), 1);
    let said = stored.talk(0);
    for number in 0..CALLS {
        let question = format!("user: question {number}");
        assert_eq!(
            said.iter().filter(|one| **one == question).count(),
            1,
            "{said:?}"
        );
    }
    assert_eq!(
        said.iter()
            .filter(|one| *one == "assistant: answer")
            .count(),
        CALLS
    );
    assert_eq!(said.iter().filter(|one| *one == "user: go").count(), 1);
}

// The proxy restarts while an agent works. The agent's next request must continue the stored
// conversation, although nothing of it is in memory.
#[tokio::test(flavor = "multi_thread")]
async fn conversation_continues_after_a_restart() {
    let setup = Setup::start().await;
    let first = whole(&chat_answer("0", said("1")));
    setup.call(PATH, &chat(talk(&["one"])), first).await;
    let dir = setup.stop().await.dir;
    let setup = Setup::start_on(dir).await;
    let second = whole(&chat_answer("1", said("2")));
    setup
        .call(PATH, &chat(talk(&["one", "1", "two"])), second)
        .await;
    let stored = setup.stop().await;
    stored.only();
    let all = ["user: one", "assistant: 1", "user: two", "assistant: 2"];
    assert_eq!(stored.talk(0), all);
}
