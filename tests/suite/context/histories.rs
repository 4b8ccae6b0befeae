//! Random histories with forks and compactions, and the requests at every moment of them.

use std::collections::HashMap;

use treering::context::Provider;
use treering_provider_check::assert_legal;

use super::{super::random::Random, super::store::append, *};

/// Number of histories, unless `TREERING_HISTORIES` sets another, and of commands in each.
const HISTORIES: u64 = 2;
const COMMANDS: usize = 160;

/// The request of a revision, built while that revision was the head.
struct Moment {
    branch: BranchName,
    revision: Revision,
    draft: Draft,
    /// By provider and policy.
    built: Vec<(Provider, &'static str, BuiltRequest)>,
    compaction: Option<EventRef>,
    prompt: Option<EventRef>,
}

/// Policies with which every moment's request is built. Cached state of one must not affect the
/// request of another.
const POLICIES: [&str; 3] = [
    "",
    r#"{"tool_results": "turn_end", "enhancers": {"messages": {"params": {"reasoning": false}}}}"#,
    r#"{"budget_tokens": 400, "unsupported_media": "placeholder"}"#,
];

struct History {
    engine: Engine,
    random: Random,
    id: ConversationId,
    moments: Vec<Moment>,
    looks: usize,
    compactions: usize,
}

// Every moment's request must be legal for every provider, its tokens must add up, and its
// beginning must stay the same until a compaction. When built again later as of its revision, it
// must be the same: caches must never differ from the log.
#[tokio::test(flavor = "multi_thread")]
async fn any_revision_of_any_history_gives_a_legal_request() {
    let (mut moments, mut compactions) = (0, 0);
    let histories = std::env::var("TREERING_HISTORIES");
    let histories = histories.map_or(HISTORIES, |number| number.parse().unwrap());
    for seed in 0..histories {
        let (looks, cuts) = random_history(seed).await;
        moments += looks;
        compactions += cuts;
    }
    println!("{moments} moments, {compactions} compactions");
    let (moments, compactions) = (moments as u64, compactions as u64);
    assert!(
        moments > 25 * histories && compactions > histories / 2,
        "{moments}, {compactions}"
    );
}

async fn random_history(seed: u64) -> (usize, usize) {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let id = ConversationId::generate();
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let mut events = vec![NewEvent::new(id, created)];
    if seed.is_multiple_of(2) {
        events.push(say(id, Role::System, "be brief"));
    }
    append(&engine, events).await.unwrap();
    let mut history = History {
        engine,
        random: Random(seed),
        id,
        moments: Vec::new(),
        looks: 0,
        compactions: 0,
    };
    for _ in 0..COMMANDS {
        history.step().await;
    }
    history.past_is_as_it_was().await;
    history.engine.close().await;
    (history.looks, history.compactions)
}

impl History {
    async fn step(&mut self) {
        let view = self
            .engine
            .conversation(&BranchAddress::active(ns(), self.id), None)
            .await
            .unwrap();
        let number = self.random.below(view.branches.len() as u64) as usize;
        let branch = &view.branches[number];
        match self.random.below(40) {
            0..2 => return self.fork(branch, None).await,
            2 if self.random.one_in(3) => return self.fork_into(branch).await,
            3 | 4 => return self.compact(branch).await,
            _ => {}
        }
        if let Some(body) = self.body(branch) {
            let event = NewEvent::new(self.id, body).on_branch(branch.name.clone());
            append(&self.engine, vec![event]).await.unwrap();
        }
        if self.random.one_in(3) {
            self.look(branch.name.clone()).await;
        }
    }

    fn body(&mut self, branch: &BranchState) -> Option<EventBody> {
        let size = self.random.below(200) as usize;
        let words = self.random.text(size);
        let message = |role| EventBody::MessageAppended(MessageAppended::text(role, words.clone()));
        let number = self.random.below(100);
        let open: Vec<_> = branch.open_calls.keys().cloned().collect();
        let call_id = match open.is_empty() {
            true => None,
            false => Some(self.random.pick(&open).clone()),
        };
        Some(match number {
            0..20 => message(Role::User),
            20..45 => message(Role::Assistant),
            45..65 => {
                let id = format!("call {}", self.random.below(5));
                (!branch.open_calls.contains_key(&id)).then(|| request(&id))?
            }
            65..88 => EventBody::ToolResultRecorded(ToolResultRecorded::text(call_id?, words)),
            88..90 => EventBody::ToolCallCancelled(ToolCallCancelled {
                call_id: call_id?,
                reason: CancelReason::Interrupted,
                detail: String::new(),
            }),
            90..92 => message(Role::Tool),
            92..94 => EventBody::SystemPromptSet(PromptSet {
                id: String::new(),
                content: words,
            }),
            94..97 => set(self.id, "key", "[1, 2.50]").body,
            97..98 => EventBody::SummaryRecorded(SummaryRecorded {
                content: words,
                from_revision: Revision(1),
                to_revision: Revision(1),
            }),
            _ => EventBody::Custom(Custom {
                type_name: "mine".to_owned(),
                content_type: String::new(),
                data: vec![1].into(),
                text: String::new(),
                delta_of: String::new(),
            }),
        })
    }

    async fn fork(&mut self, branch: &BranchState, into: Option<ConversationId>) {
        let name = format!("b{}", self.random.next());
        let source = EventSource::Branch {
            conversation: self.id,
            branch: Some(branch.name.clone()),
        };
        let all = self
            .engine
            .read_all(ReadQuery::all(ns(), source))
            .await
            .unwrap();
        let own: Vec<_> = all
            .iter()
            .filter(|event| event.event.header.conversation == self.id)
            .collect();
        let at = self.random.pick(&own).event.header.revision;
        let fork = ForkCommand {
            address: BranchAddress::active(ns(), self.id).on(branch.name.clone()),
            at: Some(at),
            name,
            system_prompt: String::new(),
            into,
            activate: false,
            idempotency_key: None,
            actor: String::new(),
        };
        self.engine.fork(fork).await.unwrap();
    }

    /// Forks into a new conversation, and continues there. Windows then span several conversations.
    async fn fork_into(&mut self, branch: &BranchState) {
        self.past_is_as_it_was().await;
        let child = ConversationId::generate();
        self.fork(branch, Some(child)).await;
        self.moments.clear();
        self.id = child;
    }

    /// Ends open calls, and cuts there, or at a random earlier revision.
    async fn compact(&mut self, branch: &BranchState) {
        let on = |body| NewEvent::new(self.id, body).on_branch(branch.name.clone());
        let cancelled = branch.open_calls.keys().map(|call_id| {
            on(EventBody::ToolCallCancelled(ToolCallCancelled {
                call_id: call_id.clone(),
                reason: CancelReason::Superseded,
                detail: String::new(),
            }))
        });
        let mut ending: Vec<_> = cancelled.collect();
        ending.push(say(self.id, Role::Assistant, "done").on_branch(branch.name.clone()));
        let ended = append(&self.engine, ending).await.unwrap();
        let head = ended.events.last().map(|event| event.revision.0);
        let back = self.random.below(4) * self.random.below(4);
        let cut = Revision(head.unwrap_or_default().saturating_sub(back).max(1));
        let compacted = EventBody::Compacted(Compacted {
            summary: "what was done".to_owned(),
            cut_revision: cut,
            kept_turns: 1,
            tokens_before: 0,
            tokens_after: 0,
            trigger: CompactionTrigger::Manual,
            raw: None,
        });
        let event = NewEvent::new(self.id, compacted).on_branch(branch.name.clone());
        // Refused unless the cut is at the end of a turn.
        let taken = append(&self.engine, vec![event]).await;
        self.compactions += usize::from(taken.is_ok());
    }

    async fn look(&mut self, branch: BranchName) {
        let view = self
            .engine
            .conversation(
                &BranchAddress::active(ns(), self.id).on(branch.clone()),
                None,
            )
            .await
            .unwrap();
        let state = &view.branch;
        let mut all = Vec::new();
        for (provider, policy) in variants() {
            let query = BuildQuery {
                address: BranchAddress::active(ns(), self.id).on(branch.clone()),
                provider,
                policy: policy.to_owned(),
                ..query(self.id)
            };
            let built = self.engine.build(query).await.unwrap();
            assert_legal(provider.as_str(), &built.request);
            adds_up(&built.explanation);
            all.push((provider, policy, built));
        }
        let query = BuildQuery {
            address: BranchAddress::active(ns(), self.id).on(branch.clone()),
            ..query(self.id)
        };
        let (draft, _) = self.engine.draft(query).await.unwrap();
        let moment = Moment {
            revision: state.head,
            draft,
            built: all,
            compaction: state.compaction,
            prompt: state.system_prompt,
            branch,
        };
        let before = self
            .moments
            .iter()
            .rev()
            .find(|before| before.branch == moment.branch);
        if let Some(before) = before
            && (before.compaction, before.prompt) == (moment.compaction, moment.prompt)
        {
            front_stays(&before.draft, &moment.draft);
        }
        self.moments.push(moment);
        self.looks += 1;
    }

    async fn past_is_as_it_was(&self) {
        let mut last: HashMap<(&BranchName, Revision), &Moment> = HashMap::new();
        for moment in &self.moments {
            last.insert((&moment.branch, moment.revision), moment);
        }
        // Appends one more event to each branch, so that every moment is in the past.
        let branches: std::collections::BTreeSet<_> = last.keys().map(|(name, _)| *name).collect();
        for branch in branches {
            let event = say(self.id, Role::User, "later").on_branch(branch.clone());
            append(&self.engine, vec![event]).await.unwrap();
        }
        for ((branch, revision), moment) in last {
            let query = BuildQuery {
                address: BranchAddress::active(ns(), self.id).on(branch.clone()),
                as_of: Some(revision),
                ..query(self.id)
            };
            let (past, _) = self.engine.draft(query).await.unwrap();
            assert_eq!(past, moment.draft, "{branch} as of {revision}");
            self.bodies_are_as_they_were(moment).await;
        }
    }

    /// Checks that requests built with caches equal, byte for byte, those built from the log alone.
    async fn bodies_are_as_they_were(&self, moment: &Moment) {
        for (provider, policy, then) in &moment.built {
            let query = BuildQuery {
                address: BranchAddress::active(ns(), self.id).on(moment.branch.clone()),
                as_of: Some(moment.revision),
                provider: *provider,
                policy: (*policy).to_owned(),
                ..query(self.id)
            };
            let now = self.engine.build(query).await.unwrap();
            let of = |built: &BuiltRequest| Explanation {
                shared_prefix: None,
                ..built.explanation.clone()
            };
            let which = format!("{} as of {}, {provider}", moment.branch, moment.revision);
            assert!(now.request == then.request, "{which}, {policy}");
            assert_eq!(of(&now), of(then), "{which}, {policy}");
        }
    }
}

fn variants() -> impl Iterator<Item = (Provider, &'static str)> {
    let of = |provider| POLICIES.map(move |policy| (provider, policy));
    Provider::ALL.into_iter().flat_map(of)
}

fn request(call_id: &str) -> EventBody {
    super::super::store::call(ConversationId::generate(), call_id, "run").body
}

/// Checks that the leading items that are not volatile are equal. The last step may have grown, if
/// its message was not complete.
fn front_stays(before: &Draft, after: &Draft) {
    let fixed = before
        .items
        .iter()
        .take_while(|item| !item.is_volatile)
        .count();
    for (index, (then, now)) in before.items[..fixed].iter().zip(&after.items).enumerate() {
        if index + 1 == fixed
            && let (Some(then), Some(now)) = (then.step(), now.step())
        {
            assert!(now.blocks.starts_with(&then.blocks), "{then:?}\n{now:?}");
            continue;
        }
        assert_eq!(then.content, now.content);
    }
    assert!(after.items.len() >= fixed);
}
