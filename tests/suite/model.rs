//! Random commands, run by the engine and by a model made of plain lists.

mod commands;
mod plain;

use std::{collections::HashMap, path::Path};

use futures::StreamExt;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use treering::{domain::*, engine::*, proto as codec};

use self::{
    commands::{CONVERSATIONS, Command, bulk, command, commands, conversation},
    plain::{At, Model, Refusal, State},
};

/// Number of runs of random commands, unless `TREERING_MODEL_CASES` sets another.
const CASES: u32 = 48;
/// The seed of the default cases.
const SEED: u64 = 20_261_121;
/// Longer branches are compared only as of some of their revisions.
const EVERY_REVISION_UP_TO: usize = 64;

/// The engine, the model, and the used keys.
struct Both {
    engine: Engine,
    model: Model,
    keys: HashMap<String, (AppendCommand, Vec<(At, u64)>)>,
    position: u64,
}

fn ns() -> Namespace {
    Namespace::default()
}

async fn open(dir: &Path) -> Engine {
    Engine::open(OpenOptions::new(dir)).await.unwrap()
}

// Whatever is appended, in whatever order, valid or not, the engine must answer as the model does,
// up to the name of the rule. Then both must have the same histories and states, now and as of any
// revision, also after a reopening and a rebuild of the projections.
#[test]
fn engine_equals_the_model() {
    let cases = std::env::var("TREERING_MODEL_CASES");
    let cases: Option<u32> = cases.ok().and_then(|cases| cases.parse().ok());
    let mut runner = TestRunner::new(Config {
        cases: cases.unwrap_or(CASES),
        // By default the cases are the same each time. With another number they are new ones.
        rng_seed: match cases {
            Some(_) => RngSeed::Random,
            None => RngSeed::Fixed(SEED),
        },
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runner
        .run(&commands(), |commands| {
            let dir = tempfile::tempdir().unwrap();
            runtime.block_on(run(dir.path(), commands))
        })
        .unwrap();
}

fn failed(what: impl Into<String>) -> TestCaseError {
    TestCaseError::fail(what.into())
}

macro_rules! same {
    ($engine:expr, $model:expr, $($what:tt)*) => {
        let (engine, model) = (&$engine, &$model);
        if engine != model {
            let what = format!($($what)*);
            return Err(failed(format!("{what}:\nengine {engine:?}\nmodel  {model:?}")));
        }
    };
}

async fn run(dir: &Path, commands: Vec<Command>) -> Result<(), TestCaseError> {
    let mut both = Both {
        engine: open(dir).await,
        model: Model::default(),
        keys: HashMap::new(),
        position: 0,
    };
    let created = EventBody::ConversationCreated(ConversationCreated::default());
    let first = NewEvent::new(conversation(0), created);
    both.append(AppendCommand::new(ns(), vec![first])).await?;
    for next in commands {
        match next {
            Command::Append(batch) => both.append(command(&both.model, &batch)).await?,
            Command::Repeat(number) => {
                let mut keys: Vec<_> = both.keys.keys().cloned().collect();
                keys.sort();
                if let Some(key) = keys.get(number as usize % keys.len().max(1)) {
                    both.append(both.keys[key].0.clone()).await?;
                }
            }
            Command::Bulk(number, branch, count) => {
                both.append(bulk(&both.model, number, branch, count))
                    .await?;
            }
            Command::Reopen => {
                both.engine.close().await;
                both.engine = open(dir).await;
            }
            Command::Rebuild => rebuild(&both.engine).await?,
        }
    }
    both.compare().await?;
    both.engine.close().await;
    both.engine = open(dir).await;
    both.compare().await?;
    verify(&both.engine).await?;
    rebuild(&both.engine).await?;
    both.compare().await?;
    both.engine.close().await;
    Ok(())
}

impl Both {
    /// Returns the model's answer to a batch.
    fn expected(&mut self, command: &AppendCommand) -> Result<(Vec<(At, u64)>, bool), Refusal> {
        if let Some(key) = &command.idempotency_key
            && let Some((before, places)) = self.keys.get(key)
        {
            return if before.events == command.events {
                Ok((places.clone(), true))
            } else {
                Err(Refusal::Rule(None, "IDEMPOTENCY_CONFLICT"))
            };
        }
        let places = self.model.append(&command.expectations, &command.events)?;
        if let Some(key) = &command.idempotency_key {
            let entry = (command.clone(), places.clone());
            self.keys.insert(key.clone(), entry);
        }
        Ok((places, false))
    }

    async fn append(&mut self, command: AppendCommand) -> Result<(), TestCaseError> {
        let expected = self.expected(&command);
        if expected == Err(Refusal::OutOfScope) {
            return Ok(());
        }
        let shown = format!("{command:?}");
        let answer = match self.engine.append(command).await {
            Ok(outcome) => {
                let places = outcome.events.iter().map(|event| {
                    let at = (event.conversation, event.revision.0);
                    (at, event.branch.0)
                });
                if !outcome.repeated_key {
                    for event in &outcome.events {
                        same!(event.position.offset, self.position + 1, "position");
                        self.position += 1;
                    }
                }
                Ok((places.collect::<Vec<_>>(), outcome.repeated_key))
            }
            Err(AppendError::Rejected(rejection)) => {
                let name = rejection.rule.name();
                Err(Refusal::Rule(rejection.event_index, name))
            }
            Err(other) => return Err(failed(format!("{other} for {shown}"))),
        };
        same!(answer, expected, "{shown}");
        Ok(())
    }

    async fn compare(&self) -> Result<(), TestCaseError> {
        for number in 0..CONVERSATIONS {
            let id = conversation(number);
            if self.model.conversations.contains_key(&id) {
                self.compare_conversation(id).await?;
            } else {
                let answer = self
                    .engine
                    .conversation(&BranchAddress::active(ns(), id), None)
                    .await;
                same!(
                    answer.is_err(),
                    true,
                    "a conversation that was never created"
                );
            }
        }
        let everything = self
            .engine
            .read_all(ReadQuery::all(ns(), EventSource::Log))
            .await;
        let count: usize = self.model.conversations.values().map(Vec::len).sum();
        same!(everything.unwrap().len(), count, "events in the log");
        Ok(())
    }

    async fn compare_conversation(&self, id: ConversationId) -> Result<(), TestCaseError> {
        let model = &self.model;
        let view = self
            .engine
            .conversation(&BranchAddress::active(ns(), id), None)
            .await;
        let view = view.map_err(|error| failed(error.to_string()))?;
        let summary = &view.summary;
        let events = &model.conversations[&id];
        same!(summary.head.0, events.len() as u64, "head of {id}");
        same!(summary.sealed, model.sealed(id), "seal of {id}");
        same!(summary.active.0, model.active(id), "active branch of {id}");
        let branches: Vec<_> = view.branches.iter().map(|b| b.id.0).collect();
        same!(branches, model.branches(id), "branches of {id}");
        let all: Vec<_> = (1..=events.len() as u64)
            .map(|revision| (id, revision))
            .collect();
        self.compare_events(EventSource::Conversation(id), &all)
            .await?;
        for branch in &view.branches {
            self.compare_branch(id, branch).await?;
        }
        Ok(())
    }

    async fn compare_branch(
        &self,
        id: ConversationId,
        branch: &BranchState,
    ) -> Result<(), TestCaseError> {
        let model = &self.model;
        let number = branch.id.0;
        let history = model.history(id, number).unwrap();
        let name = model.name(id, number);
        same!(
            branch.name.as_str(),
            name.as_str(),
            "name of {number} of {id}"
        );
        same!(
            branch.archived,
            model.archived(id, number),
            "archive of {name} of {id}"
        );
        let source = EventSource::Branch {
            conversation: id,
            branch: Some(branch.name.clone()),
        };
        self.compare_events(source, &history).await?;
        let mut state = State::default();
        let mut pending = Vec::new();
        for (place, at) in history.iter().enumerate() {
            state.fold(*at, model.body(*at));
            let sampled = history.len() <= EVERY_REVISION_UP_TO
                || place + 3 >= history.len()
                || (place + 2) % 256 < 4
                || place % 29 == 0;
            if at.0 == id && sampled {
                pending.push((at.1, state.clone()));
            }
        }
        same!(State::of(branch), state, "state of {name} of {id}");
        for (revision, state) in pending {
            let past = self
                .engine
                .conversation(
                    &BranchAddress::active(ns(), id).on(branch.name.clone()),
                    Some(Revision(revision)),
                )
                .await
                .map_err(|error| failed(format!("{name} of {id} as of {revision}: {error}")))?;
            same!(
                State::of(&past.branch),
                state,
                "{name} of {id} as of {revision}"
            );
        }
        Ok(())
    }

    async fn compare_events(
        &self,
        source: EventSource,
        history: &[At],
    ) -> Result<(), TestCaseError> {
        let shown = format!("{source:?}");
        let events = self.engine.read_all(ReadQuery::all(ns(), source)).await;
        let events = events.map_err(|error| failed(format!("{shown}: {error}")))?;
        let places: Vec<_> = events
            .iter()
            .map(|event| {
                let header = &event.event.header;
                (header.conversation, header.revision.0)
            })
            .collect();
        same!(places, history, "history of {shown}");
        for (event, at) in events.iter().zip(history) {
            let body = codec::body::encode(self.model.body(*at));
            same!(event.event.body, body, "content of {at:?}");
        }
        Ok(())
    }
}

async fn rebuild(engine: &Engine) -> Result<(), TestCaseError> {
    let mut items = engine.rebuild(true, true);
    while let Some(item) = items.next().await {
        if let Err(error) = item {
            return Err(failed(format!("rebuild: {error}")));
        }
    }
    Ok(())
}

async fn verify(engine: &Engine) -> Result<(), TestCaseError> {
    let mut items = engine.verify(&ns(), true);
    while let Some(item) = items.next().await {
        match item.map_err(|error| failed(error.to_string()))? {
            VerifyItem::Progress(_) => {}
            VerifyItem::Fault(fault) => return Err(failed(format!("{fault:?}"))),
            VerifyItem::Outcome(outcome) => {
                same!(outcome.sound, true, "soundness");
            }
        }
    }
    Ok(())
}
