//! Building requests.

use std::sync::{Arc, atomic::Ordering};

use super::{BuildQuery, Built, ContextError, cache::SentTo};
use crate::{
    context::{
        Draft, Explanation, SharedPrefix,
        budget::{self, Fitted},
        enhancer,
        explain::{EnhancerReport, TokenBasis, Told},
        policy::{CONTEXT_POLICY, ContextPolicy},
        prefix::SentUnits,
        provider::{self, RenderError, Rendered},
        tokens::{Counter, Tally, TokenMemo, calibrate},
        window::WindowInput,
    },
    domain::Position,
    engine::{Engine, Inner, error::ReadError},
};

/// A draft before the budget, and what it was made of.
#[derive(Clone, Debug)]
pub struct Assembled {
    /// The window.
    pub window: WindowInput,
    /// The conversation's policy, with the call's merged over it.
    pub policy: ContextPolicy,
    /// Everything that the window offers, counted.
    pub draft: Draft,
    /// Counts as the draft was counted.
    pub tally: Tally,
    /// How well that counts.
    pub basis: TokenBasis,
    /// What each enhancer did.
    pub reports: Vec<EnhancerReport>,
}

impl Engine {
    /// The next request of a branch, ready to be sent, with its explanation.
    ///
    /// # Errors
    /// [`ContextError`]: the branch is not there, a policy cannot be used, or the
    /// provider takes no such request and the policy says to refuse.
    pub async fn build(&self, query: BuildQuery) -> Result<Built, ContextError> {
        let inner = &self.inner;
        let mut gathered = inner.gathered(&query).await?;
        self.add_knowledge(&query, &mut gathered).await?;
        // A request of the past, or by another policy, is no one's next one.
        let is_next = query.as_of.is_none() && query.policy.trim().is_empty();
        let (namespace, conversation) = (query.namespace.clone(), query.conversation);
        let finished = blocking(move || gathered.assemble(&query).finish()).await??;
        let shared = is_next.then(|| {
            let to = SentTo {
                namespace,
                conversation,
                branch: finished.assembled.window.branch.id,
                provider: finished.assembled.draft.provider,
                model: finished.assembled.draft.config.model_id.clone(),
            };
            inner.remember(to, &finished)
        });
        let Finished {
            assembled,
            fitted,
            rendered,
        } = finished;
        Ok(Built {
            request: rendered.body,
            explanation: assembled.explain(fitted, shared.flatten()),
        })
    }

    /// The same before it becomes a body: the draft within its budget, and its
    /// explanation. Remembers nothing.
    ///
    /// # Errors
    /// [`ContextError`]: the branch is not there, or a policy cannot be used.
    pub async fn draft(&self, query: BuildQuery) -> Result<(Draft, Explanation), ContextError> {
        let mut assembled = self.assembled(&query).await?;
        blocking(move || {
            let fitted = assembled.fit();
            let draft = assembled.draft.clone();
            (draft, assembled.explain(fitted, None))
        })
        .await
    }

    /// Everything that a branch's window offers for its next request, through the
    /// enhancers and counted, before the budget.
    pub(super) async fn assembled(&self, query: &BuildQuery) -> Result<Assembled, ContextError> {
        let mut gathered = self.inner.gathered(query).await?;
        self.add_knowledge(query, &mut gathered).await?;
        let query = query.clone();
        blocking(move || gathered.assemble(&query)).await
    }

    /// Only for who asks for it: the first time it goes through the whole branch.
    async fn add_knowledge(
        &self,
        query: &BuildQuery,
        gathered: &mut Gathered,
    ) -> Result<(), ContextError> {
        let wanted = gathered.policy.enhancers.get("knowledge");
        if wanted.is_some_and(|wanted| wanted.enabled) {
            let (id, branch) = (query.conversation, query.branch.as_ref());
            let text = self
                .knowledge_summary(&query.namespace, id, branch, query.as_of)
                .await?;
            gathered.window.knowledge = Some(text).filter(|text| !text.is_empty());
        }
        Ok(())
    }
}

impl Inner {
    async fn gathered(&self, query: &BuildQuery) -> Result<Gathered, ContextError> {
        if let Some(position) = query.at_least {
            self.wait_for(position).await?;
        }
        let window = self
            .window(
                &query.namespace,
                query.conversation,
                query.branch.as_ref(),
                query.as_of,
            )
            .await
            .inspect_err(|error| self.noticed(error))?;
        let own = window.info.policies.get(CONTEXT_POLICY);
        let own = own.map(String::as_str).unwrap_or_default();
        Ok(Gathered {
            policy: ContextPolicy::merged(own, &query.policy)?,
            window,
            counts: self.contexts.counts(),
        })
    }

    /// Waits until reads have come to a position. Ends with the store.
    async fn wait_for(&self, position: Position) -> Result<(), ContextError> {
        let mut news = self.news.clone();
        loop {
            let reached = *news.borrow_and_update();
            if reached.max(self.published.load(Ordering::Acquire)) >= position.offset {
                return Ok(());
            }
            if news.changed().await.is_err() {
                let message = "the store was closed while a request waited".to_owned();
                return Err(ReadError::Storage { message }.into());
            }
        }
    }

    /// Remembers what is sent, and compares it with what was sent before.
    fn remember(&self, to: SentTo, finished: &Finished) -> Option<SharedPrefix> {
        let assembled = &finished.assembled;
        let revision = assembled.window.revision;
        let sent = SentUnits::new(revision, &assembled.draft, &finished.rendered.units);
        let previous = self.contexts.sent.get(&to);
        let shared = previous.map(|previous| sent.shared_with(&previous));
        self.contexts.sent.insert(to, Arc::new(sent));
        shared
    }
}

/// What was read for a request. From here on nothing is.
struct Gathered {
    window: WindowInput,
    policy: ContextPolicy,
    counts: Arc<dyn TokenMemo>,
}

impl Gathered {
    fn assemble(self, query: &BuildQuery) -> Assembled {
        let Self {
            window,
            policy,
            counts,
        } = self;
        let mut config = window.branch.config.clone();
        if let Some(model) = &query.model {
            config.model_id.clone_from(model);
        }
        let counter = Counter::for_model(&config.model_id);
        let mut draft = Draft {
            provider: query.provider,
            config,
            tools: Vec::new(),
            tools_tokens: 0,
            items: Vec::new(),
            warnings: Vec::new(),
        };
        let tally = Tally::new(counter, Some(counts));
        let reports = enhancer::run(&window, &policy, &query.enhancers, &tally, &mut draft);
        let calibration = calibrate(counter, &window, &draft);
        let tally = tally.scaled(calibration.factor);
        tally.scale_counted(&mut draft);
        Assembled {
            window,
            policy,
            draft,
            tally,
            basis: calibration.basis(counter),
            reports,
        }
    }
}

/// A body, with what its explanation needs.
struct Finished {
    assembled: Assembled,
    fitted: Fitted,
    rendered: Rendered,
}

impl Assembled {
    /// Makes it fit its budget.
    pub(super) fn fit(&mut self) -> Fitted {
        budget::fit(&self.window, &self.policy, &self.tally, &mut self.draft)
    }

    fn finish(mut self) -> Result<Finished, RenderError> {
        let fitted = self.fit();
        let mut rendered = provider::render(&self.draft, &self.policy)?;
        self.draft.warnings.append(&mut rendered.warnings);
        Ok(Finished {
            assembled: self,
            fitted,
            rendered,
        })
    }

    fn explain(self, fitted: Fitted, shared: Option<SharedPrefix>) -> Explanation {
        let told = Told {
            window: &self.window,
            tally: &self.tally,
            basis: self.basis,
            reports: self.reports,
            fitted,
            budget_tokens: self.policy.budget_tokens,
        };
        told.explain(&self.draft, shared)
    }
}

/// Counting and rendering take milliseconds: others need not wait for them.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ContextError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ContextError::Invalid {
            message: format!(
                "a request could not be built: {error}; an enhancer may have panicked"
            ),
        })
}
