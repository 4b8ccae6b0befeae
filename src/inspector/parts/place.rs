//! The conversation of a page: its title, and links to its other pages.

use maud::{Markup, html};
use tonic::{Code, Status};

use super::{
    conversation,
    escape::{escape_inline, headline},
};
use crate::{
    bounds::TITLE_CHARS,
    failure::PageFailure,
    request_context::{RequestContext, path_part, query},
};
use treering_client::names;
use treering_proto::pb;

/// The conversation and branch of a page.
#[derive(Clone, Debug)]
pub(crate) struct ConversationPlace {
    /// The conversation's id, for calls.
    pub(crate) id: String,
    /// Its summary.
    pub(crate) summary: pb::ConversationSummary,
    /// The branch that is shown.
    pub(crate) branch: pb::BranchState,
    /// Its first branches.
    pub(crate) branches: Vec<pb::Branch>,
    /// Whether there are more branches.
    pub(crate) more_branches: bool,
}

impl ConversationPlace {
    /// Finds the conversation in an address, by its id, a part of the id or `@last`, and the branch
    /// in the query (`branch=`).
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) async fn of(
        request_context: &RequestContext,
        id: &str,
    ) -> Result<Self, PageFailure> {
        match Self::by_id(request_context, id).await {
            Err(status) if status.code() == Code::NotFound => {
                let found = names::find_by_id(&request_context.store, id).await?;
                Ok(Self::by_id(request_context, &found.id).await?)
            }
            found => Ok(found?),
        }
    }

    async fn by_id(request_context: &RequestContext, id: &str) -> Result<Self, Status> {
        let request = pb::GetConversationRequest {
            conversation_id: id.to_owned(),
            branch: request_context
                .asked
                .text("branch")
                .unwrap_or_default()
                .to_owned(),
            as_of_revision: 0,
            ..Default::default()
        };
        let state = request_context
            .store
            .conversations()
            .get(request)
            .await?
            .into_inner();
        let summary = state.summary.unwrap_or_default();
        Ok(Self {
            id: summary.conversation_id.clone(),
            summary,
            branch: state.branch.unwrap_or_default(),
            branches: state.branches,
            more_branches: state.more_branches,
        })
    }

    /// Returns the title of a page for the browser.
    #[must_use]
    pub(crate) fn titled(&self, word: &str) -> String {
        format!("{word} · {}", self.name())
    }

    /// Returns its display name.
    #[must_use]
    pub(crate) fn name(&self) -> &str {
        let id = treering_present::text::short_id(&self.summary.source_id, &self.id);
        match self.summary.title.trim() {
            "" => id,
            title => title,
        }
    }

    /// Returns the address of one of its pages, with a query of names and values.
    #[must_use]
    pub(crate) fn link(
        &self,
        request_context: &RequestContext,
        tail: &str,
        pairs: &[(&str, &str)],
    ) -> String {
        link(request_context, &self.id, tail, pairs)
    }

    /// Renders its title, and the links to its pages; `page` is the current one.
    #[must_use]
    pub(crate) fn heading(&self, request_context: &RequestContext, page: &str) -> Markup {
        self.heading_of(request_context, page, &html! { (conversation::word(page)) })
    }

    /// Like `heading`, for a page with its own title.
    #[must_use]
    pub(crate) fn heading_of(
        &self,
        request_context: &RequestContext,
        page: &str,
        word: &Markup,
    ) -> Markup {
        html! {
            div.crumbs {
                a href=(self.link(request_context, "", &[("branch", &self.branch.name)])) {
                    (headline(self.name(), TITLE_CHARS))
                }
            }
            div.head { h1 { (word) } }
            (conversation::tabs(request_context, &self.id, &self.branch.name, page))
        }
    }

    /// Renders a form field for choosing one of its branches.
    #[must_use]
    pub(crate) fn branch_field(&self, name: &str, chosen: &str) -> Markup {
        let named = self.branches.iter().map(|branch| branch.name.as_str());
        let is_listed = named.clone().any(|name| name == chosen);
        html! {
            @if self.more_branches {
                // Too many to choose from: a text field for the name.
                input name=(name) value=(chosen) required autocomplete="off" spellcheck="false";
            } @else {
                select name=(name) {
                    @if !is_listed && !chosen.is_empty() {
                        option value=(chosen) selected { (escape_inline(chosen)) }
                    }
                    @for one in named {
                        option value=(one) selected[one == chosen] {
                            (headline(one, OPTION_CHARS))
                        }
                    }
                }
            }
        }
    }
}

/// Maximum number of characters shown of a branch's name in the list of branches.
const OPTION_CHARS: usize = 60;

/// Returns the address of a page of a conversation.
#[must_use]
pub(crate) fn link(
    request_context: &RequestContext,
    id: &str,
    tail: &str,
    pairs: &[(&str, &str)],
) -> String {
    let query = query(pairs);
    let mark = if query.is_empty() { "" } else { "?" };
    request_context.link(&format!("/c/{}{tail}{mark}{query}", path_part(id)))
}

/// Returns the address of an event in its transcript.
#[must_use]
pub(crate) fn moment(
    request_context: &RequestContext,
    id: &str,
    branch: &str,
    revision: u64,
) -> String {
    let around = revision.to_string();
    let address = link(
        request_context,
        id,
        "",
        &[("branch", branch), ("around", &around)],
    );
    format!("{address}#e{revision}")
}

/// Returns the address of an event's own page.
#[must_use]
pub(crate) fn event(request_context: &RequestContext, id: &str, revision: u64) -> String {
    link(request_context, id, &format!("/e/{revision}"), &[])
}
