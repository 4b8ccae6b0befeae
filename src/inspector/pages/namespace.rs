//! Selects another namespace.

use maud::html;

use crate::{
    failure::PageFailure,
    frame::{self, Page, Tab},
    parts::escape::escape_inline,
    request_context::AnonymousRequest,
};

/// Returns the form.
///
/// # Errors
/// None at present.
pub(crate) async fn page(stranger: AnonymousRequest) -> Result<Page, PageFailure> {
    let here = &stranger.here;
    let own = stranger.namespaces();
    let body = html! {
        section.failure {
            h1 { "Namespace" }
            p.lead { "You are in namespace " strong { (escape_inline(&here.namespace)) } ". A namespace is a tenant and is isolated from the others; a key may be limited to some of them." }
            @if !own.is_empty() {
                p { "Your key is valid for "
                    @for (index, one) in own.iter().enumerate() {
                        @if index > 0 { ", " }
                        a href={ "/@" (one) "/" } { (escape_inline(one)) }
                    }
                    "."
                }
            }
            form.stack method="get" action=(here.link("/namespace/go")) {
                label { "Namespace"
                    input name="to" required autofocus maxlength="64" pattern="[A-Za-z0-9._\\-]+"
                        autocomplete="off" spellcheck="false" placeholder="default";
                }
                div { button { "Look" } }
            }
        }
    };
    Ok(frame::page(here, "Namespace", Tab::None, body))
}

/// Redirects to the namespace.
///
/// # Errors
/// When the name is not a valid namespace.
pub(crate) async fn go(
    stranger: AnonymousRequest,
) -> Result<axum::response::Redirect, PageFailure> {
    let to = stranger.asked.text("to").unwrap_or("default");
    treering_domain::Namespace::new(to).map_err(|error| {
        PageFailure::asked(
            format!("`{to}` is not a namespace: {error}"),
            "a namespace has 1 to 64 characters of a-z A-Z 0-9 . _ -",
        )
    })?;
    Ok(axum::response::Redirect::to(&format!("/@{to}/")))
}
