//! Checks every request: its host, its origin, and the number of requests. Adds headers to every
//! answer, so that browsers do not run recorded content.

use axum::{
    Router,
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS},
    request::Parts,
};
use tower::ServiceExt;

use super::{
    bounds::PAGE_MAX,
    failure::{PageFailure, error_page},
    parts::escape::referenced,
    request_context::{FRAGMENT_HEADER, RequestAddress},
    site::{Site, session_of},
};
use treering_domain::Namespace;
use treering_server::WebRefusal;

/// Allows only content of this server and `data:` images, and no inline scripts or styles.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; \
     frame-ancestors 'none'";

/// Checks a request and answers it.
pub(crate) async fn answer(site: &Site, routes: Router, request: Request) -> Response {
    let (request, here) = match entered(site, request) {
        Ok(entered) => entered,
        Err(refused) => return hardened(error_page(&refused.0, &refused.1)),
    };
    let answer = match site.requests.try_acquire() {
        Ok(_permit) => match tokio::time::timeout(PAGE_MAX, routes.oneshot(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(never)) => match never {},
            Err(_) => PageFailure::too_long().into_response(),
        },
        Err(_) => PageFailure::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many requests are running",
            "retry in a moment",
        )
        .into_response(),
    };
    hardened(match answer.extensions().get::<PageFailure>() {
        Some(failure) if failure.asks_for_key() && !here.is_fragment => to_login(&here),
        Some(failure) => error_page(&here, failure),
        None => answer,
    })
}

/// A request that passed the checks, or its address and the reason for the refusal.
type AdmissionResult = Result<(Request<Body>, RequestAddress), Box<(RequestAddress, PageFailure)>>;

/// Checks a request, and removes the namespace from its path.
fn entered(site: &Site, request: Request) -> AdmissionResult {
    let (mut parts, body) = request.into_parts();
    let mut here = RequestAddress {
        base: String::new(),
        namespace: Namespace::default().as_str().to_owned(),
        path: "/".to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        token: site.token(&parts),
        has_session: !site.keys.is_open() && session_of(&parts.headers).is_some(),
        key: site.key_name(&parts),
        is_fragment: parts.headers.contains_key(FRAGMENT_HEADER),
        is_from_elsewhere: is(&parts.headers, "sec-fetch-site", "cross-site"),
    };
    let placed = check_place(site, &parts).and_then(|()| placed(&mut here, parts.uri.path()));
    if let Err(failure) = placed {
        return Err(Box::new((here, failure)));
    }
    parts.uri = match here.address_within().parse() {
        Ok(uri) => uri,
        Err(_) => {
            let failure = PageFailure::asked(
                "the address is invalid",
                "start with the list of conversations",
            );
            return Err(Box::new((here, failure)));
        }
    };
    parts.extensions.insert(here.clone());
    Ok((Request::from_parts(parts, body), here))
}

impl RequestAddress {
    /// Returns the path and query that the table of routes uses.
    fn address_within(&self) -> String {
        match self.query.is_empty() {
            true => self.path.clone(),
            false => format!("{}?{}", self.path, self.query),
        }
    }
}

fn placed(here: &mut RequestAddress, path: &str) -> Result<(), PageFailure> {
    let Some(rest) = path.strip_prefix("/@") else {
        here.path = path.to_owned();
        return Ok(());
    };
    let (name, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    Namespace::new(name).map_err(|error| {
        PageFailure::asked(
            format!("`{name}` is not a namespace: {error}"),
            "a namespace has 1 to 64 characters of a-z A-Z 0-9 . _ -",
        )
    })?;
    here.base = match name == Namespace::default().as_str() {
        true => String::new(),
        false => format!("/@{name}"),
    };
    here.namespace = name.to_owned();
    here.path = path.to_owned();
    Ok(())
}

/// Refuses requests for another host, or from a page of another site.
fn check_place(site: &Site, request: &Parts) -> Result<(), PageFailure> {
    let place = &site.place;
    let checked = place.host(&request.headers, &request.uri).and_then(|host| {
        // Other origins can be allowed only for MCP.
        place.check_origin(&host, &request.method, &request.headers, &[])
    });
    checked.map(|_own| ()).map_err(|refusal| {
        let hint = match &refusal {
            WebRefusal::OtherSite => "open the page here, and use it here",
            WebRefusal::OtherHost(_) | WebRefusal::NoHost | WebRefusal::Unclear(_) => {
                "use the address that the server printed; to allow another name, start the server \
                 with --web-host NAME"
            }
        };
        PageFailure::new(refusal.status(), refusal.to_string(), hint)
    })
}

fn is(headers: &HeaderMap, name: &str, value: &str) -> bool {
    headers.get(name).is_some_and(|said| said == value)
}

/// Redirects to the login page, which leads back here. A visitor who follows a link from another
/// site may be logged in already: the browser sends its cookie when the page requests itself again.
fn to_login(here: &RequestAddress) -> Response {
    if here.is_from_elsewhere {
        let again = maud::html! {
            (maud::DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="refresh" content={ "0;url=" (here.address()) };
                    title { "Treering" }
                }
                body { a href=(here.address()) { "Continue to the page" } }
            }
        };
        return axum::response::Html(referenced(again.into_string())).into_response();
    }
    let to = super::request_context::query(&[("to", &here.address())]);
    let to = here.link(&format!("/login?{to}"));
    axum::response::Redirect::to(&to).into_response()
}

fn hardened(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        // Pages must not stay in the browser's cache after the key was revoked.
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "same-origin"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (HeaderName::from_static("x-frame-options"), "DENY"),
    ] {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
    answer
}
