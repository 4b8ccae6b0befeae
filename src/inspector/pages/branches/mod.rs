//! The branches of a conversation: drawn as a tree, and as a list of the same rows. In the list,
//! two branches can be compared and a branch can be forked.

mod draw;
mod layout;
mod tree;

use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};

use layout::{TreeMark, TreeMarkKind};
use tree::BranchChoice;

use crate::{
    bounds::{BRANCH_CHILDREN, BRANCH_MARKS, BRANCH_ROWS, BRANCHES_MAX},
    failure::PageFailure,
    form::Form,
    frame::{Page, Tab, token},
    parts::{
        escape::{escape_inline, headline},
        numbers::{count, things},
        pager::pager,
        pieces::{BadgeColor, badge, nothing},
        place::{ConversationPlace, link, moment},
    },
    request_context::{PageQuery, PathParams, RequestContext, path_part, query},
};
use treering_access::KeyRole;
use treering_domain::EventKind;
use treering_present::text::{printable, short_id};
use treering_proto::pb::{self, event::Body};

/// Characters of a branch's name in the list.
const NAME_CHARS: usize = 80;

/// Returns the page.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn page(
    PathParams(id): PathParams<String>,
    request_context: RequestContext,
) -> Result<Page, PageFailure> {
    page_with(&request_context, &id, None).await
}

/// A form that was refused, with the reason.
type RefusedForm<'a> = (&'a PageQuery, &'a PageFailure);

async fn page_with(
    request_context: &RequestContext,
    id: &str,
    refused: Option<RefusedForm<'_>>,
) -> Result<Page, PageFailure> {
    let place = ConversationPlace::of(request_context, id).await?;
    let (all, marks, children) = tokio::try_join!(
        branches(request_context, &place),
        marks(request_context, &place.id),
        children(request_context, &place)
    )?;
    let asked = &request_context.asked;
    let choice = BranchChoice {
        name: asked.text("name").unwrap_or_default().to_owned(),
        without_archived: asked.is_set("open"),
        page: usize::try_from(asked.number("page")?.unwrap_or(0)).unwrap_or(usize::MAX),
        at: asked.number("at")?,
    };
    let number = all.len();
    let page = tree::page(all, &choice, BRANCH_ROWS);
    let body = html! {
        (place.heading(request_context, "branches"))
        (filters(&choice, number))
        @if page.rows.is_empty() {
            (nothing("No branch has this name.", &html! { "Remove the filter." }))
        } @else {
            (draw::drawing(request_context, &place, &page.rows, &marks))
            (list(request_context, &place, &page, &marks, choice.at))
            (pages(request_context, &page))
        }
        (relatives(request_context, &place, &children))
        (fork_form(request_context, &place, refused)?)
    };
    Ok(request_context.page(&place.titled("Branches"), Tab::Conversations, body))
}

/// Returns all branches, up to a limit.
async fn branches(
    request_context: &RequestContext,
    place: &ConversationPlace,
) -> Result<Vec<pb::Branch>, PageFailure> {
    if !place.more_branches {
        return Ok(place.branches.clone());
    }
    let mut all = Vec::new();
    let mut request = pb::ListBranchesRequest {
        conversation_id: place.id.clone(),
        page_size: u32::MAX,
        ..Default::default()
    };
    loop {
        let mut conversations = request_context.store.conversations();
        let answer = conversations.list_branches(request.clone()).await?;
        let answer = answer.into_inner();
        all.extend(answer.branches);
        if answer.next_page_token.is_empty() || all.len() >= BRANCHES_MAX {
            all.truncate(BRANCHES_MAX);
            return Ok(all);
        }
        request.page_token = answer.next_page_token;
    }
}

/// Returns the conversations that were spawned or forked from this one.
async fn children(
    request_context: &RequestContext,
    place: &ConversationPlace,
) -> Result<Vec<String>, PageFailure> {
    let request = pb::LineageRequest {
        conversation_id: place.id.clone(),
        branch: place.branch.name.clone(),
    };
    let mut conversations = request_context.store.conversations();
    Ok(conversations.lineage(request).await?.into_inner().children)
}

/// Renders links to the parent and child conversations.
fn relatives(
    request_context: &RequestContext,
    place: &ConversationPlace,
    children: &[String],
) -> Markup {
    let more = children.len().saturating_sub(BRANCH_CHILDREN);
    html! {
        @if let Some(parent) = &place.summary.parent {
            p.section-hint {
                @if place.summary.shares_history { "Forked from " } @else { "Spawned by " }
                a href=(moment(request_context, &parent.conversation_id, "", parent.revision)) {
                    "another conversation, at #" (count(parent.revision))
                }
                "."
            }
        }
        @if !children.is_empty() {
            p.section-hint {
                "Conversations forked or spawned from it: "
                @for (index, child) in children.iter().take(BRANCH_CHILDREN).enumerate() {
                    @if index > 0 { ", " }
                    a.mono href=(link(request_context, child, "", &[])) { (short_id("", child)) }
                }
                @if more > 0 { " and " (count(more as u64)) " more" }
                "."
            }
        }
    }
}

/// Returns the newest compactions and sub-contexts of a conversation.
async fn marks(request_context: &RequestContext, id: &str) -> Result<Vec<TreeMark>, PageFailure> {
    let compactions = read(request_context, id, &[EventKind::Compacted], true);
    let children = [EventKind::SubContextSpawned, EventKind::SubContextReturned];
    let children = read(request_context, id, &children, false);
    let (compactions, children) = tokio::try_join!(compactions, children)?;
    let compactions = compactions.iter().map(|event| TreeMark {
        branch_id: event.branch_id,
        revision: event.revision,
        kind: TreeMarkKind::Compaction,
    });
    Ok(compactions
        .chain(children.iter().filter_map(child))
        .collect())
}

fn child(event: &pb::Event) -> Option<TreeMark> {
    use prost::Message;
    let kind = match event.body.as_ref()? {
        Body::SubContextSpawned(body) => {
            let body = pb::SubContextSpawned::decode(body.clone()).ok()?;
            TreeMarkKind::Spawned(body.conversation_id)
        }
        Body::SubContextReturned(body) => {
            let body = pb::SubContextReturned::decode(body.clone()).ok()?;
            TreeMarkKind::Returned(body.conversation_id)
        }
        _ => return None,
    };
    Some(TreeMark {
        branch_id: event.branch_id,
        revision: event.revision,
        kind,
    })
}

async fn read(
    request_context: &RequestContext,
    id: &str,
    kinds: &[EventKind],
    headers_only: bool,
) -> Result<Vec<pb::Event>, PageFailure> {
    let request = pb::ReadRequest {
        kinds: kinds.iter().map(|kind| i32::from(kind.number())).collect(),
        backward: true,
        limit: BRANCH_MARKS,
        headers_only,
        ..treering_client::read::of_conversation(id)
    };
    let mut events = request_context
        .store
        .events()
        .read(request)
        .await?
        .into_inner();
    let mut all = Vec::new();
    while let Some(batch) = events.message().await? {
        all.extend(batch.events);
    }
    Ok(all)
}

fn filters(choice: &BranchChoice, number: usize) -> Markup {
    let is_cut = number >= BRANCHES_MAX;
    let number = things(number as u64, "branch", "branches");
    html! {
        form.filters role="search" aria-label="Branches" {
            p.summary {
                (number)
                @if is_cut { span.dim { " (only these are drawn)" } }
            }
            label { "Name has " input type="search" name="name" value=(choice.name); }
            label.check {
                input type="checkbox" name="open" value="1" checked[choice.without_archived];
                " without archived ones"
            }
            button { "Filter" }
        }
    }
}

/// Renders the drawn rows as a table. It is the text alternative of the drawing, and lets the user
/// choose branches to compare or fork.
fn list(
    request_context: &RequestContext,
    place: &ConversationPlace,
    page: &tree::TreePage,
    marks: &[TreeMark],
    at: Option<u64>,
) -> Markup {
    html! {
        form.branches action=(place.link(request_context, "/diff", &[])) {
            div.table tabindex="0" role="group" aria-label="Branches" {
                table.rows {
                    thead {
                        tr {
                            th scope="col" { "Branch" }
                            th scope="col" { "Forked from" }
                            th.number scope="col" { "Last event" }
                            th scope="col" { "On it" }
                            th scope="col" { "Compare" }
                            th scope="col" { span.hidden { "Fork" } }
                        }
                    }
                    tbody {
                        @for row in &page.rows { (row_of(request_context, place, page, row, marks, at)) }
                    }
                }
            }
            p.actions { button { "Compare A with B" } }
        }
    }
}

fn row_of(
    request_context: &RequestContext,
    place: &ConversationPlace,
    page: &tree::TreePage,
    row: &tree::BranchRow,
    marks: &[TreeMark],
    at: Option<u64>,
) -> Markup {
    let branch = &row.branch;
    let name = branch.name.as_str();
    let is_new = at == Some(branch.branch_id);
    let of_branch = |mark: &&TreeMark| mark.branch_id == branch.branch_id;
    let parent = row.parent.map(|parent| &page.rows[parent].branch);
    html! {
        tr #{ "b" (branch.branch_id) } class=[class(row, is_new)] {
            th scope="row" {
                span class={ "indent d" (row.depth.min(DEPTH_MAX)) } {}
                a href=(place.link(request_context, "", &[("branch", name)])) { (headline(name, NAME_CHARS)) }
                @if branch.active { " " (badge(BadgeColor::Good, "active")) }
                @if branch.archived { " " (badge(BadgeColor::Plain, "archived")) }
                @if is_new { " " (badge(BadgeColor::Wait, "new")) }
            }
            td data-word="Forked from" {
                @match (parent, branch.branch_id) {
                    (_, 0) => { span.dim { "—" } },
                    (Some(parent), _) => {
                        (headline(&parent.name, NAME_CHARS)) " after "
                        a href=(moment(request_context, &place.id, &parent.name, branch.fork_revision)) {
                            "#" (count(branch.fork_revision))
                        }
                    },
                    (None, _) => { "after #" (count(branch.fork_revision)) },
                }
            }
            td.number data-word="Last event" {
                a href=(moment(request_context, &place.id, name, branch.head)) { "#" (count(branch.head)) }
            }
            td data-word="On it" { (marks_of(request_context, place, row, marks.iter().filter(of_branch).collect())) }
            td.choose data-word="Compare" {
                label { input type="radio" name="a" value=(name) checked[branch.active]; " A" }
                label { input type="radio" name="b" value=(name) checked[is_new]; " B" }
            }
            td {
                @let head = branch.head.to_string();
                a.quiet href={ (place.link(request_context, "/branches", &[("branch", name), ("fork", &head)])) "#fork" }
                    aria-label={ "Fork " (printable(name)) } { "Fork" }
            }
        }
    }
}

/// Deeper rows are not indented further.
const DEPTH_MAX: usize = 8;
/// Marks of a row that are listed individually.
const ROW_MARKS: usize = 4;

fn class(row: &tree::BranchRow, is_new: bool) -> Option<&'static str> {
    match (is_new, row.is_context, row.branch.archived) {
        (true, ..) => Some("new"),
        (_, true, _) => Some("context"),
        (.., true) => Some("archived"),
        _ => None,
    }
}

fn marks_of(
    request_context: &RequestContext,
    place: &ConversationPlace,
    row: &tree::BranchRow,
    marks: Vec<&TreeMark>,
) -> Markup {
    let more = marks.len().saturating_sub(ROW_MARKS);
    html! {
        @if row.descendants > 0 {
            span.part { (things(row.descendants as u64, "fork", "forks")) }
        }
        @for mark in marks.into_iter().take(ROW_MARKS) {
            " " (mark_link(request_context, place, &row.branch.name, mark))
        }
        @if more > 0 { span.dim { " and " (count(more as u64)) " more" } }
    }
}

fn mark_link(
    request_context: &RequestContext,
    place: &ConversationPlace,
    branch: &str,
    mark: &TreeMark,
) -> Markup {
    let here = moment(request_context, &place.id, branch, mark.revision);
    html! {
        @match &mark.kind {
            TreeMarkKind::Compaction => a.part href=(here) { "compaction #" (count(mark.revision)) },
            TreeMarkKind::Spawned(child) => {
                a.part href=(link(request_context, child, "", &[])) { "sub-context #" (count(mark.revision)) }
            }
            TreeMarkKind::Returned(_) => a.part href=(here) { "returned #" (count(mark.revision)) },
        }
    }
}

fn pages(request_context: &RequestContext, page: &tree::TreePage) -> Markup {
    if page.pages <= 1 {
        return html! {};
    }
    let to = |number: usize, word| {
        let number = number.to_string();
        let query = request_context
            .asked
            .with("page", Some(&number), &["at", "fork"]);
        (
            format!(
                "{}?{query}",
                request_context.link(&request_context.here.path)
            ),
            word,
        )
    };
    let before = page.number.checked_sub(1).map(|number| to(number, "Newer"));
    let after = (page.number + 1 < page.pages).then(|| to(page.number + 1, "Older"));
    let first = page.number * BRANCH_ROWS + 1;
    let last = page.wanted.min(first + BRANCH_ROWS - 1);
    let place = format!("{first}–{last} of {}", count(page.wanted as u64));
    pager(before, after, &place)
}

/// Renders the form for a fork from any event. Branch and event come from the address, so that
/// other pages can link to it. A refused form keeps its values.
fn fork_form(
    request_context: &RequestContext,
    place: &ConversationPlace,
    refused: Option<RefusedForm<'_>>,
) -> Result<Markup, PageFailure> {
    let asked = request_context.asked.number("fork")?;
    let head = place.branch.head;
    let typed = |name| refused.and_then(|(fields, _)| fields.text(name));
    let at = asked.unwrap_or(head).min(head).to_string();
    let at = typed("at").unwrap_or(&at);
    Ok(html! {
        section #fork aria-labelledby="fork-title" {
            h2 #fork-title { "Fork" }
            p.hint {
                "A new branch shares all events up to the fork point and continues from there. The \
                 original branch does not change."
            }
            @if place.summary.sealed {
                p { (badge(BadgeColor::Plain, "sealed")) " This conversation accepts no events." }
            } @else if let Err(why) = request_context.may(KeyRole::Writer) {
                p.hint { "You cannot fork it. " (escape_inline(&why)) }
            } @else {
                @if let Some((_, failure)) = refused { (failure.notice()) }
                form.fields method="post" action={ (place.link(request_context, "/fork", &[])) "#fork" } {
                    (token(&request_context.here))
                    label { span { "Branch" } (place.branch_field("branch", &place.branch.name)) }
                    label {
                        span { "After event" }
                        input type="number" name="at" min="1" value=(at) required inputmode="numeric";
                    }
                    label {
                        span { "Name of the new branch" }
                        input name="name" required maxlength="128" autocomplete="off" spellcheck="false"
                            value=[typed("name")] autofocus[asked.is_some() || refused.is_some()];
                    }
                    label.wide {
                        span { "System prompt " span.dim { "(empty: unchanged)" } }
                        textarea name="system_prompt" rows="2" { (typed("system_prompt").unwrap_or_default()) }
                    }
                    label.check.wide {
                        input type="checkbox" name="activate" value="1" checked[typed("activate").is_some()];
                        " make it the active branch, which is used when none is named"
                    }
                    button.primary { "Fork" }
                }
            }
        }
    })
}

/// Forks a branch. A refused form is shown again with its values.
///
/// # Errors
/// Errors of the store; in that case, nothing has changed.
pub(crate) async fn fork(
    PathParams(id): PathParams<String>,
    form: Form,
) -> Result<Response, PageFailure> {
    let Form {
        mut request_context,
        fields,
    } = form;
    let failure = match forked(&request_context, &id, &fields).await {
        Ok(there) => return Ok(there.into_response()),
        Err(failure) => failure,
    };
    request_context.asked = PageQuery::of(&query(&[(
        "branch",
        fields.text("branch").unwrap_or_default(),
    )]));
    request_context.here.path = format!("/c/{}/branches", path_part(&id));
    let page = page_with(&request_context, &id, Some((&fields, &failure))).await;
    let mut answer = page.map_err(|_| failure.clone())?.into_response();
    *answer.status_mut() = failure.status();
    Ok(answer)
}

async fn forked(
    request_context: &RequestContext,
    id: &str,
    fields: &PageQuery,
) -> Result<Redirect, PageFailure> {
    let text = |name| fields.text(name).unwrap_or_default().to_owned();
    let Some(at_revision) = fields.number("at")?.filter(|at| *at > 0) else {
        return Err(PageFailure::asked(
            "the form has no fork point",
            "give the number of an event, for example 12",
        ));
    };
    let request = pb::ForkRequest {
        conversation_id: id.to_owned(),
        branch: text("branch"),
        at_revision,
        name: text("name"),
        system_prompt: text("system_prompt"),
        activate: fields.is_set("activate"),
        actor: "inspector".to_owned(),
        ..Default::default()
    };
    let answer = request_context
        .store
        .conversations()
        .fork(request)
        .await?
        .into_inner();
    let branch = answer.branch.unwrap_or_default();
    let at = branch.branch_id.to_string();
    let pairs = [("branch", branch.name.as_str()), ("at", &at)];
    let address = link(
        request_context,
        &answer.conversation_id,
        "/branches",
        &pairs,
    );
    Ok(Redirect::to(&format!("{address}#b{at}")))
}
