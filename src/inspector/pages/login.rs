//! Logging in with a key, and logging out.

use axum::response::{IntoResponse, Redirect, Response};
use http::{HeaderValue, StatusCode, header::SET_COOKIE};
use maud::{Markup, html};

use crate::{
    bounds::KEY_BYTES_MAX,
    failure::PageFailure,
    form::AnonymousForm,
    frame::{self, Page, Tab},
    parts::escape::escape_inline,
    request_context::AnonymousRequest,
    session::{COOKIE, SESSION_COOKIE_SECONDS},
    site::Site,
};
use treering_access::{KeyHolder, KeyRole};
use treering_domain::Namespace;

/// Returns the form.
pub(crate) async fn page(stranger: AnonymousRequest) -> Page {
    form(&stranger, None)
}

fn form(stranger: &AnonymousRequest, refused: Option<&str>) -> Page {
    let here = &stranger.here;
    let to = stranger.asked.text("to").unwrap_or("/");
    let body = html! {
        section.failure {
            h1 { "Log in" }
            @if stranger.site.keys.is_open() {
                p.what { "This server does not require a key: none has been created." }
                p { a href=(here.link("/")) { "To the conversations" } }
            } @else {
                p.lead { "This store requires a key. You see what your key may read." }
                (by_certificate(stranger))
                @if let Some(refused) = refused {
                    p.notice.bad role="alert" { (escape_inline(refused)) }
                }
                form.stack method="post" action=(here.link("/login")) data-comes-back {
                    (frame::token(here))
                    input type="hidden" name="to" value=(to);
                    label { "Key"
                        input type="password" name="key" required autofocus
                            autocomplete="current-password" spellcheck="false" placeholder="tr_live_…";
                    }
                    div { button { "Log in" } }
                }
                p.hint { "Create keys with " code { "treering keys create" } "." }
            }
        }
    };
    frame::page(here, "Log in", Tab::None, body)
}

/// Renders the subject of the connection's certificate, if there is one.
fn by_certificate(stranger: &AnonymousRequest) -> Markup {
    let Some(certificate) = &stranger.certificate else {
        return html! {};
    };
    match stranger.site.keys.holder_of(certificate) {
        Ok(holder) => html! {
            p.notice.good {
                "Your certificate belongs to the key " strong { (escape_inline(holder.name())) }
                ": you need no key here, except to use another one. "
                a href=(stranger.here.link("/")) { "To the conversations" }
            }
        },
        Err(refusal) => html! { p.notice.wait { (escape_inline(&refusal.to_string())) } },
    }
}

/// Accepts a key, and starts a session for the browser.
///
/// # Errors
/// When the form is not from our page.
pub(crate) async fn log_in(
    AnonymousForm(stranger): AnonymousForm,
) -> Result<Response, PageFailure> {
    let site = &stranger.site;
    site.keys.reload_if_changed();
    let key = stranger.asked.text("key").unwrap_or_default();
    let holder = match key.len() {
        0..=KEY_BYTES_MAX => site.keys.holder(key),
        _ => site.keys.holder(""),
    };
    let holder = match holder {
        Ok(holder) => holder,
        Err(refusal) => {
            let mut answer = form(&stranger, Some(&refusal.to_string())).into_response();
            *answer.status_mut() = StatusCode::UNAUTHORIZED;
            return Ok(answer);
        }
    };
    if let Some(before) = &stranger.session {
        site.sessions().end(before);
    }
    let begun = site.sessions().begin(key);
    let name = begun.map_err(|error| {
        PageFailure::ours(format!(
            "the system's random number generator failed: {error}"
        ))
    })?;
    let to = stranger.asked.text("to").filter(|to| is_ours(to));
    let to = landing(&holder, to.unwrap_or("/"));
    Ok(with_cookie(
        site,
        Redirect::to(&to).into_response(),
        &name,
        SESSION_COOKIE_SECONDS,
    ))
}

/// Returns the address to go to after the login: the requested page if the key may read there; else
/// the namespace of the key if it has only one; else the page that selects a namespace.
fn landing(holder: &KeyHolder, to: &str) -> String {
    let named = to.strip_prefix("/@").map(|rest| {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        &rest[..end]
    });
    let wanted = named.map_or_else(|| Ok(Namespace::default()), Namespace::new);
    if wanted.is_ok_and(|wanted| holder.may(KeyRole::Reader, &wanted)) {
        return to.to_owned();
    }
    match holder.namespaces().as_slice() {
        [one] if holder.may(KeyRole::Reader, one) => format!("/@{one}/"),
        _ => "/namespace".to_owned(),
    }
}

/// True for our own addresses: a link to the login page must not redirect elsewhere.
fn is_ours(to: &str) -> bool {
    to.starts_with('/') && !to.starts_with("//") && !to.contains(['\\', '\r', '\n', '\t'])
}

/// Ends the session.
///
/// # Errors
/// When the form is not from our page.
pub(crate) async fn log_out(
    AnonymousForm(stranger): AnonymousForm,
) -> Result<Response, PageFailure> {
    if let Some(name) = &stranger.session {
        stranger.site.sessions().end(name);
    }
    let to = stranger.here.link("/login");
    Ok(with_cookie(
        &stranger.site,
        Redirect::to(&to).into_response(),
        "",
        0,
    ))
}

fn with_cookie(site: &Site, mut answer: Response, name: &str, seconds: u64) -> Response {
    let secure = if site.place.is_tls() { "; Secure" } else { "" };
    let cookie =
        format!("{COOKIE}={name}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        answer.headers_mut().insert(SET_COOKIE, cookie);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    // A link to the login page must not redirect to another site: that would help phishers.
    #[test]
    fn login_redirects_only_to_own_paths() {
        for (to, ours) in [
            ("/", true),
            ("/c/x?at=3", true),
            ("//evil.example", false),
            ("/\\evil.example", false),
            ("https://evil.example", false),
            ("", false),
            ("/\tx", false),
        ] {
            assert_eq!(is_ours(to), ours, "{to}");
        }
    }
}
