//! The style sheet, the script and the icon, which are compiled in.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};

use crate::{failure::PageFailure, request_context::PathParams};

/// One style sheet: first the frame and common parts, then single pages.
const STYLE: &str = concat!(
    include_str!("../assets/style.css"),
    include_str!("../assets/pages.css")
);
const ASSETS: [(&str, &str, &str); 3] = [
    ("style.css", "text/css; charset=utf-8", STYLE),
    (
        "inspector.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/inspector.js"),
    ),
    (
        "icon.svg",
        "image/svg+xml",
        include_str!("../assets/icon.svg"),
    ),
];

/// Version of the assets in their address, because browsers cache them indefinitely.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = blake3::Hasher::new();
    for (_, _, text) in ASSETS {
        hasher.update(text.as_bytes());
    }
    hasher.finalize().to_hex()[..12].to_owned()
});

/// Returns the address of an asset. It is the same in every namespace.
#[must_use]
pub(crate) fn address(name: &str) -> String {
    format!("/assets/{name}?v={}", *VERSION)
}

/// Returns an asset.
///
/// # Errors
/// When there is none of that name.
pub(crate) async fn asset(PathParams(name): PathParams<String>) -> Result<Response, PageFailure> {
    let found = ASSETS.iter().find(|(own, _, _)| *own == name);
    let Some((_, kind, text)) = found else {
        return Err(PageFailure::none("there is no such file", ""));
    };
    let headers = [
        (CONTENT_TYPE, *kind),
        (CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    Ok((headers, *text).into_response())
}
