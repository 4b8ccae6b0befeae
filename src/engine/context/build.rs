//! Builds requests.

use std::{
    future::Future,
    sync::{Arc, atomic::Ordering},
};

use super::{BuildQuery, BuiltRequest, ContextError, cache::SentKey};
use crate::{
    Engine, Inner,
    error::ReadError,
    work::{self, PriorityClass, priority_for},
};
use treering_context::{
    Draft, Explanation, SharedPrefix,
    budget::{self, BudgetOutcome},
    cancellation::CancellationToken,
    compaction, enhancer,
    enhancers::KNOWLEDGE,
    explain::{EnhancerReport, ExplanationBuilder, TokenBasis},
    policy::{CONTEXT_POLICY, ContextPolicy},
    prefix::SentUnits,
    provider::{self, RenderedBody, maker},
    references,
    tokens::{Counter, Tally, TokenMemo, calibrate},
    window::WindowInput,
};
use treering_domain::{Position, Revision};

/// A draft before the budget is applied, with its inputs.
#[derive(Clone, Debug)]
pub(crate) struct AssembledDraft {
    /// The window.
    pub(crate) window: WindowInput,
    /// The conversation's policy, with the call's policy merged over it.
    pub(crate) policy: ContextPolicy,
    /// All candidates of the window, with token counts.
    pub(crate) draft: Draft,
    /// The token counter that was used for the draft.
    pub(crate) tally: Tally,
    /// The basis of the counts, which determines their accuracy.
    pub(crate) basis: TokenBasis,
    /// The report of each enhancer.
    pub(crate) reports: Vec<EnhancerReport>,
}

impl Engine {
    /// Builds the next request of a branch, ready to be sent, with its explanation.
    ///
    /// # Errors
    /// [`ContextError`]: the branch does not exist, a policy is invalid, or the provider cannot
    /// accept the request and the policy says to refuse.
    pub async fn build(&self, query: BuildQuery) -> Result<BuiltRequest, ContextError> {
        self.build_request(query, Purpose::Send).await
    }

    /// Explains how the next request of a branch would be built. The request is compared with the
    /// last one built, but is not remembered, because it is not sent.
    ///
    /// # Errors
    /// As [`Engine::build`].
    pub async fn explain(&self, query: BuildQuery) -> Result<Explanation, ContextError> {
        Ok(self.build_request(query, Purpose::Look).await?.explanation)
    }

    /// Waits until reads have reached a log position.
    ///
    /// # Errors
    /// [`ContextError`] when the store was closed in the meantime.
    pub async fn wait_read(&self, position: Position) -> Result<(), ContextError> {
        self.inner.wait_for(position).await
    }

    async fn build_request(
        &self,
        query: BuildQuery,
        purpose: Purpose,
    ) -> Result<BuiltRequest, ContextError> {
        let build = |engine: Self, query: BuildQuery| async move {
            let gathered = engine.gather_input(&query).await?;
            let inner = &engine.inner;
            let finished = gathered.assemble(&query)?.finish()?;
            // A request as of a revision, or with its own policy, does not count as the branch's
            // next request.
            let is_next = query.as_of.is_none() && query.policy.trim().is_empty();
            let shared = is_next.then(|| {
                let to = SentKey {
                    namespace: query.address.namespace,
                    conversation: query.address.conversation,
                    branch: finished.assembled.window.branch.id,
                    provider: finished.assembled.draft.provider,
                    model: finished.assembled.draft.config.model_id.clone(),
                };
                inner.shared_prefix(to, &finished, purpose)
            });
            let FinishedRequest {
                assembled,
                fitted,
                rendered,
            } = finished;
            Ok(BuiltRequest {
                request: rendered.body,
                explanation: assembled.explain(fitted, shared.flatten()),
            })
        };
        self.on_window(query, build).await
    }

    /// Returns the draft within its budget, before it becomes a body, and its explanation.
    /// Remembers nothing.
    ///
    /// # Errors
    /// [`ContextError`]: the branch does not exist, or a policy is invalid.
    pub async fn draft(&self, query: BuildQuery) -> Result<(Draft, Explanation), ContextError> {
        let draft = |engine: Self, query: BuildQuery| async move {
            let mut assembled = engine.gather_input(&query).await?.assemble(&query)?;
            let fitted = assembled.fit()?;
            let draft = assembled.draft.clone();
            Ok((draft, assembled.explain(fitted, None)))
        };
        self.on_window(query, draft).await
    }

    /// Runs `work` on a window in the priority class for its size, once reads have reached the
    /// position that the query requires.
    pub(super) async fn on_window<T, F>(
        &self,
        query: BuildQuery,
        work: impl FnOnce(Self, BuildQuery) -> F,
    ) -> Result<T, ContextError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ContextError>> + Send + 'static,
    {
        if let Some(position) = query.at_least {
            self.inner.wait_for(position).await?;
        }
        let address = query.address.clone();
        let size = |engine: Self| async move {
            let branch = engine.inner.reads.branch_at(&address)?;
            Ok::<_, ReadError>(priority_for(match branch.cut {
                Revision::NONE => branch.history_events,
                cut => branch.head.0.saturating_sub(cut.0),
            }))
        };
        let lane = self.on(PriorityClass::Short, size).await?;
        Box::pin(self.on(lane, |engine| work(engine, query))).await
    }

    /// Returns all candidates for a branch's next request, after the enhancers and with token
    /// counts, before the budget is applied.
    pub(super) async fn assemble_draft(
        &self,
        query: &BuildQuery,
    ) -> Result<AssembledDraft, ContextError> {
        let mut gathered = self.gather_input(query).await?;
        gathered.count_as = CountAs::ItsModel;
        gathered.assemble(query)
    }

    /// Gathers the input of a request. Knowledge is read only if the policy enables it.
    async fn gather_input(&self, query: &BuildQuery) -> Result<RequestInput, ContextError> {
        let mut gathered = self.inner.gather_input(query).await?;
        let asked = gathered.policy.enhancers.get(KNOWLEDGE);
        if asked.is_some_and(|set| set.enabled) {
            let revision = gathered.window.revision;
            let known = self.knowledge_summary(&query.address, Some(revision));
            gathered.window.knowledge = Some(known.await?);
        }
        Ok(gathered)
    }
}

impl Inner {
    async fn gather_input(&self, query: &BuildQuery) -> Result<RequestInput, ContextError> {
        let mut window = self
            .window(&query.address, query.as_of)
            .await
            .inspect_err(|error| self.record_damage(error))?;
        if let Some(long_term) = &query.long_term {
            window.long_term.clone_from(long_term);
        }
        let own = window.info.policies.get(CONTEXT_POLICY);
        let own = own.map(String::as_str).unwrap_or_default();
        Ok(RequestInput {
            policy: ContextPolicy::merged(own, &query.policy)?,
            window,
            counts: self.context.windows.counts(),
            count_as: CountAs::Asked,
        })
    }

    /// Waits until reads have reached a log position, or the store closes.
    async fn wait_for(&self, position: Position) -> Result<(), ContextError> {
        let mut news = self.appends.news.of_log();
        loop {
            let reached = *news.borrow_and_update();
            if reached.max(self.reads.published.load(Ordering::Acquire)) >= position.offset {
                return Ok(());
            }
            if news.changed().await.is_err() {
                let what = "the store was closed while a request waited";
                return Err(ReadError::storage(what).into());
            }
        }
    }

    /// Compares a request with the previous one, and remembers it if it is to be sent.
    fn shared_prefix(
        &self,
        to: SentKey,
        finished: &FinishedRequest,
        purpose: Purpose,
    ) -> Option<SharedPrefix> {
        let assembled = &finished.assembled;
        let revision = assembled.window.revision;
        let sent = SentUnits::new(revision, &assembled.draft, &finished.rendered.units);
        let previous = self.context.windows.sent.get(&to);
        let shared = previous.map(|previous| sent.shared_with(&previous));
        if purpose == Purpose::Send {
            self.context.windows.sent.insert(to, Arc::new(sent));
        }
        shared
    }
}

/// The purpose of building a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Send,
    Look,
}

/// The input of a request. Nothing more is read after it is complete.
struct RequestInput {
    window: WindowInput,
    policy: ContextPolicy,
    counts: Arc<dyn TokenMemo>,
    count_as: CountAs,
}

/// The provider whose format determines the token counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountAs {
    /// The requested provider.
    Asked,
    /// The maker of the model, when no body is rendered.
    ItsModel,
}

impl RequestInput {
    fn assemble(self, query: &BuildQuery) -> Result<AssembledDraft, ContextError> {
        let Self {
            window,
            policy,
            counts,
            count_as,
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
            warnings: window.warnings.clone(),
        };
        let counted_as = match count_as {
            CountAs::Asked => query.provider,
            CountAs::ItsModel => maker::provider_of(&draft.config.model_id),
        };
        let tally = Tally::new(counter, Some(counts))
            .sent_to(counted_as, &draft.config.model_id)
            .until(cancellation());
        let reports = enhancer::run(&window, &policy, &query.enhancers, &tally, &mut draft);
        work::check()?;
        let calibration = calibrate(counter, &window, &draft);
        let tally = tally.scaled(calibration.factor);
        tally.scale_counted(&mut draft);
        Ok(AssembledDraft {
            window,
            policy,
            draft,
            tally,
            basis: calibration.basis(counter),
            reports,
        })
    }
}

/// A rendered body, with the input for its explanation.
struct FinishedRequest {
    assembled: AssembledDraft,
    fitted: BudgetOutcome,
    rendered: RenderedBody,
}

impl AssembledDraft {
    /// Fits the draft into its budget.
    pub(super) fn fit(&mut self) -> Result<BudgetOutcome, ReadError> {
        let (policy, tally, draft) = (&self.policy, &self.tally, &mut self.draft);
        references::reserve(&self.window, policy, tally, draft);
        let fitted = budget::fit(&self.window, policy, tally, draft);
        let unused = references::settle(&self.window, policy, tally, draft);
        work::check()?;
        Ok(fitted.without(unused, policy.budget_tokens, draft))
    }

    fn finish(mut self) -> Result<FinishedRequest, ContextError> {
        let fitted = self.fit()?;
        let rendered = provider::render_until(&self.draft, &self.policy, &cancellation());
        work::check()?;
        let mut rendered = rendered?;
        self.draft.warnings.append(&mut rendered.warnings);
        Ok(FinishedRequest {
            assembled: self,
            fitted,
            rendered,
        })
    }

    fn explain(self, fitted: BudgetOutcome, shared: Option<SharedPrefix>) -> Explanation {
        let told = ExplanationBuilder {
            window: &self.window,
            tally: &self.tally,
            basis: self.basis,
            reports: self.reports,
            fitted,
            budget_tokens: self.policy.budget_tokens,
        };
        let mut explanation = told.explain(&self.draft, shared);
        // A compaction that could cut nothing is not due.
        let keep = self.policy.compaction.keep_turns;
        explanation.compaction_due =
            explanation.compaction_due && compaction::cut(&self.window, keep).is_ok();
        explanation
    }
}

/// Returns the cancellation token of the current work.
pub(super) fn cancellation() -> CancellationToken {
    match work::current() {
        Some(stop) => CancellationToken::new(move || stop.is_set()),
        None => CancellationToken::default(),
    }
}
