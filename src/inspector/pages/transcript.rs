//! A conversation to be read: a branch of it, now or as it was at any event.

use std::collections::HashMap;

use axum::response::{IntoResponse, Redirect, Response};
use futures::future;
use maud::{Markup, html};

use crate::{
    cli::{
        names,
        text::{first_line, happened},
    },
    codec::pb,
    inspector::{
        bounds::{LABELS_SHOWN, QUESTIONS, TITLE_CHARS, TRANSCRIPT_BYTES},
        failure::PageFailure,
        frame::Tab,
        parts::{
            conversation,
            hostile::{first, headline, shown},
            numbers::{count, things},
            pager::pager,
            pieces::{Mood, badge, nothing},
            time,
        },
        transcript::{
            card::{self, Room},
            step,
            thread::{ThreadItem, thread},
            window::{History, Place, Window},
        },
        visit::{At, Visit, path_part},
    },
};

/// The page.
///
/// # Errors
/// What the store says.
pub async fn page(visit: Visit, At(id): At<String>) -> Result<Response, PageFailure> {
    let at = visit.asked.number("at")?.unwrap_or(0);
    let place = Place::of(&visit.asked)?;
    let named = visit.asked.text("branch").unwrap_or_default().to_owned();
    let request = pb::GetConversationRequest {
        conversation_id: id.clone(),
        branch: named.clone(),
        as_of_revision: at,
        ..Default::default()
    };
    let state = match visit.store.conversations().get(request).await {
        Ok(state) => state.into_inner(),
        Err(status) if status.code() == tonic::Code::NotFound && named.is_empty() && at == 0 => {
            return typed(&visit, &id).await;
        }
        Err(status) => return Err(status.into()),
    };
    let summary = state.summary.clone().unwrap_or_default();
    if summary.conversation_id != id {
        return Ok(to(&visit, &summary.conversation_id));
    }
    let branch = state.branch.clone().unwrap_or_default();
    let history = History {
        conversation: id,
        branch: branch.name.clone(),
        at,
    };
    let (window, questions) = future::join(
        Window::read(&visit.store, &history, &place),
        questions(&visit, &history),
    )
    .await;
    let view = View {
        visit: &visit,
        summary: &summary,
        state: &state,
        branch: &branch,
        history: &history,
        window: window?,
        questions,
    };
    let title = match summary.title.trim() {
        "" => "Conversation".to_owned(),
        title => first(title, TITLE_CHARS),
    };
    let page = visit.page(&title, Tab::Conversations, view.markup(&title));
    Ok(page.into_response())
}

/// What somebody typed into the address: a part of an id, or `@last`.
async fn typed(visit: &Visit, text: &str) -> Result<Response, PageFailure> {
    let found = names::find(&visit.store, text).await?;
    Ok(to(visit, &found.id))
}

fn to(visit: &Visit, id: &str) -> Response {
    let query = match visit.here.query.as_str() {
        "" => String::new(),
        query => format!("?{query}"),
    };
    let path = visit.link(&format!("/c/{}", path_part(id)));
    Redirect::to(&format!("{path}{query}")).into_response()
}

/// What people asked, the newest, oldest first. The index knows it; without it there is no list.
async fn questions(visit: &Visit, history: &History) -> Vec<pb::SearchHit> {
    let request = pb::SearchRequest {
        conversation_id: history.conversation.clone(),
        branch: history.branch.clone(),
        roles: vec![pb::Role::User.into()],
        kinds: vec![pb::EventKind::MessageAppended.into()],
        limit: QUESTIONS,
        every_copy: true,
        ..Default::default()
    };
    let answer = visit.store.search().search(request).await;
    let mut hits = answer.map_or_else(|_| Vec::new(), |answer| answer.into_inner().hits);
    hits.retain(|hit| history.at == 0 || hit.revision <= history.at);
    hits.reverse();
    hits
}

struct View<'a> {
    visit: &'a Visit,
    summary: &'a pb::ConversationSummary,
    state: &'a pb::ConversationState,
    branch: &'a pb::BranchState,
    history: &'a History,
    window: Window,
    questions: Vec<pb::SearchHit>,
}

impl View<'_> {
    fn markup(mut self, title: &str) -> Markup {
        let events = std::mem::take(&mut self.window.events);
        let is_empty = events.is_empty();
        let pages = self.pages(&events);
        let items = thread(events, &self.window.heads);
        let is_live = self.history.at == 0 && !self.window.has_after && !self.summary.sealed;
        let live = format!("/live?c={}", path_part(&self.history.conversation));
        html! {
            (self.head(title))
            (conversation::tabs(self.visit, &self.history.conversation, &self.history.branch, "transcript"))
            (self.moment())
            div.reading {
                (self.aside())
                div #thread.thread data-live=[is_live.then(|| self.visit.link(&live))] data-part="#thread" data-follow {
                    (pages)
                    @if is_empty {
                        (nothing("Nothing has happened on this branch.", &html! {}))
                    }
                    (items_shown(self.visit, &items, &self.window.heads))
                    (pages)
                }
            }
        }
    }

    fn head(&self, title: &str) -> Markup {
        let summary = self.summary;
        let model = self
            .branch
            .config
            .as_ref()
            .map(|config| config.model_id.as_str());
        html! {
            div.head {
                h1 { (shown(title)) }
                p { span.live { "not live" } }
            }
            p.about {
                @if !summary.source.is_empty() { span.label { (shown(&summary.source)) } " " }
                @if let Some(model) = model.filter(|model| !model.is_empty()) { span.mono { (shown(model)) } " " }
                span.dim { (things(summary.head, "event", "events")) " · " (time::ago(happened(summary))) } " "
                @if summary.sealed { (badge(Mood::Plain, "sealed")) " " }
                @if let Some(damage) = &summary.damage {
                    (badge(Mood::Bad, "damaged")) " " span.dim { "from #" (damage.revision) " on: " (shown(&damage.what)) } " "
                }
                @if let Some(parent) = &summary.parent {
                    a href=(self.visit.link(&format!("/c/{}?around={}", path_part(&parent.conversation_id), parent.revision))) {
                        @if summary.shares_history { "forked from another at #" } @else { "spawned by another at #" } (parent.revision)
                    } " "
                }
                @for (name, value) in conversation::labels_of(summary).into_iter().take(LABELS_SHOWN) {
                    span.label title={ (name) "=" (value) } { (shown(&format!("{name}={value}"))) } " "
                }
            }
        }
    }

    /// Which branch, and as of when: a form that works by itself, and sends itself.
    fn moment(&self) -> Markup {
        let (visit, summary) = (self.visit, self.summary);
        let shown_at = if self.history.at == 0 {
            summary.head
        } else {
            self.history.at
        };
        let path = format!("/c/{}", path_part(&self.history.conversation));
        html! {
            form.moment method="get" action=(visit.link(&path)) data-auto {
                @if self.state.branches.len() > 1 {
                    label { "Branch"
                        select name="branch" {
                            @for branch in &self.state.branches {
                                option value=(branch.name) selected[branch.name == self.history.branch] {
                                    (first_line(&branch.name, 60))
                                    @if branch.active { " (active)" }
                                    @if branch.archived { " (archived)" }
                                }
                            }
                        }
                    }
                }
                label.grow for="at" { "As of " output for="at" { "#" (shown_at) } }
                input #at type="range" name="at" min="1" max=(summary.head.max(1)) value=(shown_at)
                    aria-label="as of which event";
                button.quiet { "Show" }
                @if self.history.at != 0 {
                    a.button.quiet href={ (visit.link(&path)) "?" (visit.asked.with("end", Some("1"), &["at", "from", "before", "around"])) } { "Now" }
                }
            }
            @if self.history.at != 0 {
                p.notice.wait { "As it was at #" (self.history.at) " of " (count(summary.head)) "." }
            }
        }
    }

    fn aside(&self) -> Markup {
        html! {
            aside.outline aria-label="Questions" {
                @if !self.questions.is_empty() {
                    details #outline open {
                        summary { "Questions " span.dim { (count(self.questions.len() as u64)) } }
                        ol {
                            @for hit in &self.questions {
                                li { a href=(self.jump(hit)) { (headline(&hit.snippet, 70)) } }
                            }
                        }
                    }
                }
            }
        }
    }

    fn jump(&self, hit: &pb::SearchHit) -> String {
        let is_own = hit.conversation_id == self.history.conversation;
        let spot = match is_own {
            true => hit.revision.to_string(),
            false => format!("{}@{}", hit.revision, hit.conversation_id),
        };
        let query = self
            .visit
            .asked
            .with("around", Some(&spot), &["from", "before", "end"]);
        format!("?{query}#e{}", hit.revision)
    }

    fn pages(&self, events: &[pb::Event]) -> Markup {
        let (Some(first), Some(last)) = (events.first(), events.last()) else {
            return html! {};
        };
        if !self.window.has_before && !self.window.has_after {
            return html! {};
        }
        let to = |name: &str, value: &str| {
            let others = ["from", "before", "around", "end"];
            format!("?{}", self.visit.asked.with(name, Some(value), &others))
        };
        let before = self.window.has_before.then(|| {
            let spot = self.history.spot(first).text();
            (to("before", &spot), "earlier events")
        });
        let after = self.window.has_after.then(|| {
            let mut spot = self.history.spot(last);
            spot.revision += 1;
            (to("from", &spot.text()), "later events")
        });
        let place = format!(
            "#{}–#{} of {}",
            count(first.revision),
            count(last.revision),
            count(self.summary.head)
        );
        html! {
            div.pages {
                (pager(before, after, &place))
                p.ends {
                    a href={ "?" (self.visit.asked.with("", None, &["from", "before", "around", "end"])) } { "to the beginning" }
                    " · " a href=(to("end", "1")) { "to the end" }
                }
            }
        }
    }
}

fn items_shown(
    visit: &Visit,
    items: &[ThreadItem],
    heads: &HashMap<(String, u64), crate::inspector::recorded::Piece>,
) -> Markup {
    let mut room = Room(TRANSCRIPT_BYTES);
    html! {
        @for item in items {
            @match item {
                ThreadItem::Said(event, message) => (card::said(visit, event, message, &mut room)),
                ThreadItem::Step(calls) => (step::step(visit, calls, heads, &mut room)),
                ThreadItem::Noted(event) => {
                    @match heads.get(&(event.conversation_id.clone(), event.revision)) {
                        Some(head) => (card::large(visit, event, head)),
                        None => (card::noted(visit, event, &mut room)),
                    }
                }
            }
        }
    }
}
