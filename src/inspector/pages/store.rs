//! The store: what it holds and how it does.

use maud::html;

use crate::{
    codec::pb,
    inspector::{
        failure::Failure,
        frame::{Page, Tab},
        parts::{
            numbers::{count, size},
            pieces::figure,
            time,
        },
        visit::Visit,
    },
};

/// The page.
///
/// # Errors
/// What the store says.
pub async fn page(visit: Visit) -> Result<Page, Failure> {
    let request = pb::StatsRequest {};
    let stats = visit.store.admin().stats(request).await?.into_inner();
    let body = html! {
        h1 { "Store" }
        dl.figures #figures {
            (figure("conversations", &html! { (count(stats.conversations)) }))
            (figure("branches", &html! { (count(stats.branches)) }))
            (figure("events", &html! { (count(stats.events)) }))
            (figure("log", &size(stats.log_bytes)))
            (figure("views", &size(stats.views_bytes)))
            (figure("index", &size(stats.index_bytes)))
            (figure("serving since", &time::ago(stats.started_at.as_ref())))
        }
    };
    Ok(visit.page("Store", Tab::Store, body))
}
