//! Every page and its address. The prefix `/@NAMESPACE` selects a namespace other than `default`;
//! the guard removes it before this table is used.

use std::sync::Arc;

use axum::{
    Router,
    routing::{get, post},
};

use super::{failure::PageFailure, live, pages, site::Site};

/// Returns the table of routes.
pub(crate) fn routes(site: Arc<Site>) -> Router {
    Router::new()
        // conversations
        .route("/", get(pages::conversations::page))
        // transcript and its texts and images
        .route("/c/{id}", get(pages::transcript::page))
        .route("/c/{id}/text/{revision}", get(pages::text::page))
        .route("/c/{id}/media/{revision}/{part}", get(pages::media::image))
        // event
        .route("/c/{id}/e/{revision}", get(pages::event::page))
        .route("/e/{id}", get(pages::event::by_id))
        .route("/correlated", get(pages::correlated::page))
        // tree of branches, and forking
        .route("/c/{id}/branches", get(pages::branches::page))
        .route("/c/{id}/fork", post(pages::branches::fork))
        // calls, and one call
        .route("/tools", get(pages::tools::of_namespace))
        .route("/c/{id}/tools", get(pages::tools::of_conversation))
        .route("/c/{id}/call/{call}", get(pages::call::page))
        .route("/c/{id}/call/{call}/result", get(pages::call::result))
        .route(
            "/c/{id}/call/{call}/arguments",
            get(pages::call::whole_arguments),
        )
        // tokens and costs of model calls
        .route("/usage", get(pages::usage::of_namespace))
        .route("/c/{id}/usage", get(pages::usage::of_conversation))
        // requests
        .route("/c/{id}/request", get(pages::request::page))
        .route("/c/{id}/request/body", get(pages::request::whole))
        // comparison of two branches
        .route("/c/{id}/diff", get(pages::diff::page))
        // approvals
        .route(
            "/approvals",
            get(pages::approvals::page).post(pages::approvals::decide),
        )
        // search
        .route("/search", get(pages::search::page))
        // store
        .route("/store", get(pages::store::page))
        // live updates, session, and assets
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
        "start with the list of conversations",
    )
}

async fn not_so() -> PageFailure {
    PageFailure::new(
        http::StatusCode::METHOD_NOT_ALLOWED,
        "this address does not support that method",
        "go back and reload the page",
    )
}
