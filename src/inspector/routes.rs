//! Every page and its address. `/@NAMESPACE` before an address means another namespace than
//! `default`; the guard takes it off before this table is looked at.

use std::sync::Arc;

use axum::{
    Router,
    routing::{get, post},
};

use super::{failure::PageFailure, live, pages, site::Site};

/// All addresses.
pub fn routes(site: Arc<Site>) -> Router {
    Router::new()
        // 1: conversations
        .route("/", get(pages::conversations::page))
        // 3: transcript, and what it shows
        .route("/c/{id}", get(pages::transcript::page))
        .route("/c/{id}/text/{revision}", get(pages::text::page))
        .route("/c/{id}/media/{revision}/{part}", get(pages::media::image))
        // 4: event
        .route("/c/{id}/e/{revision}", get(pages::event::page))
        .route("/e/{id}", get(pages::event::by_id))
        .route("/correlated", get(pages::correlated::page))
        // 2: the tree of branches, and forking
        .route("/c/{id}/branches", get(pages::branches::page))
        .route("/c/{id}/fork", post(pages::branches::fork))
        // 5: calls, and one call
        .route("/tools", get(pages::tools::of_namespace))
        .route("/c/{id}/tools", get(pages::tools::of_conversation))
        .route("/c/{id}/call/{call}", get(pages::call::page))
        .route("/c/{id}/call/{call}/result", get(pages::call::result))
        .route(
            "/c/{id}/call/{call}/arguments",
            get(pages::call::whole_arguments),
        )
        // 7: requests
        .route("/c/{id}/request", get(pages::request::page))
        .route("/c/{id}/request/body", get(pages::request::whole))
        // 8: two branches
        .route("/c/{id}/diff", get(pages::diff::page))
        // 9: approvals
        .route(
            "/approvals",
            get(pages::approvals::page).post(pages::approvals::decide),
        )
        // 6: search
        .route("/search", get(pages::search::page))
        // 10: store
        .route("/store", get(pages::store::page))
        // what is live, who looks, and what pages are made of
        .route("/live", get(live::stream))
        .route("/login", get(pages::login::page).post(pages::login::log_in))
        .route("/logout", post(pages::login::log_out))
        .route("/namespace", get(pages::namespace::page))
        .route("/namespace/go", get(pages::namespace::go))
        .route("/assets/{name}", get(pages::assets::asset))
        .fallback(none)
        .method_not_allowed_fallback(not_so)
        .with_state(site)
}

async fn none() -> PageFailure {
    PageFailure::none(
        "no page has this address",
        "begin with the list of conversations",
    )
}

async fn not_so() -> PageFailure {
    PageFailure::new(
        http::StatusCode::METHOD_NOT_ALLOWED,
        "this address is not for that",
        "go back and load the page again",
    )
}
