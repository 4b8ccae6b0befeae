//! What every request passes: is it for this host, may it come from where it comes, is there
//! room; and what every answer has: headers that keep browsers from running what was recorded.

use axum::{
    Router,
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri,
    header::{CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS},
    uri::Authority,
};
use tower::ServiceExt;

use super::{
    bounds::PAGE_MAX,
    failure::{PageFailure, told},
    site::{Site, session_of},
    visit::{FRAGMENT_HEADER, Here},
};
use crate::domain::Namespace;

/// Nothing but what this server sends itself, and no script or style within a page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; \
     frame-ancestors 'none'";

/// Answers a request, behind this guard.
pub async fn answer(site: &Site, routes: Router, request: Request) -> Response {
    let (request, here) = match entered(site, request) {
        Ok(entered) => entered,
        Err(refused) => return hardened(told(&refused.0, &refused.1)),
    };
    let answer = match site.requests.try_acquire() {
        Ok(_permit) => match tokio::time::timeout(PAGE_MAX, routes.oneshot(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(never)) => match never {},
            Err(_) => PageFailure::too_long().into_response(),
        },
        Err(_) => PageFailure::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many requests are under way",
            "try again in a moment",
        )
        .into_response(),
    };
    hardened(match answer.extensions().get::<PageFailure>() {
        Some(failure) if failure.asks_for_key() && !here.is_fragment => to_login(&here),
        Some(failure) => told(&here, failure),
        None => answer,
    })
}

/// A request that may go on, or where it was for and why it may not.
type Entered = Result<(Request<Body>, Here), Box<(Here, PageFailure)>>;

/// The request with what it is about, its namespace off its path.
fn entered(site: &Site, request: Request) -> Entered {
    let (mut parts, body) = request.into_parts();
    let mut here = Here {
        base: String::new(),
        namespace: Namespace::default().as_str().to_owned(),
        path: "/".to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        token: site.token(&parts.headers),
        has_session: !site.keys.is_open() && session_of(&parts.headers).is_some(),
        is_fragment: parts.headers.contains_key(FRAGMENT_HEADER),
        is_from_elsewhere: is(&parts.headers, "sec-fetch-site", "cross-site"),
    };
    let placed = check_host(site, &parts.headers, &parts.uri)
        .and_then(|host| check_origin(site, &host, &parts.method, &parts.headers))
        .and_then(|()| placed(&mut here, parts.uri.path()));
    if let Err(failure) = placed {
        return Err(Box::new((here, failure)));
    }
    parts.uri = match here.address_within().parse() {
        Ok(uri) => uri,
        Err(_) => {
            let failure = PageFailure::asked("the address cannot be read", "begin with the list");
            return Err(Box::new((here, failure)));
        }
    };
    parts.extensions.insert(here.clone());
    Ok((Request::from_parts(parts, body), here))
}

impl Here {
    /// What the table of routes looks at.
    fn address_within(&self) -> String {
        match self.query.is_empty() {
            true => self.path.clone(),
            false => format!("{}?{}", self.path, self.query),
        }
    }
}

fn placed(here: &mut Here, path: &str) -> Result<(), PageFailure> {
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
            format!("`{name}` is no namespace: {error}"),
            "a namespace has 1 to 64 of a-z A-Z 0-9 . _ -",
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

/// The host that a request is for, when it is this one: a page of another site whose name leads
/// here must not be answered as if it were ours.
fn check_host(site: &Site, headers: &HeaderMap, uri: &Uri) -> Result<Authority, PageFailure> {
    let said = match uri.authority() {
        Some(authority) => Some(authority.clone()),
        None => headers
            .get(HOST)
            .and_then(|host| host.to_str().ok())
            .and_then(|host| host.parse().ok()),
    };
    let refused = |what: String| {
        PageFailure::new(
            StatusCode::FORBIDDEN,
            what,
            "use the address that the server printed; for another name start it with \
             --inspector-host NAME",
        )
    };
    let Some(said) = said else {
        return Err(refused("the request says no host".to_owned()));
    };
    match is_own(site, &said) {
        true => Ok(said),
        false => Err(refused(format!("this server is not `{}`", said.host()))),
    }
}

fn is_own(site: &Site, said: &Authority) -> bool {
    let host = said.host().trim_matches(['[', ']']).to_ascii_lowercase();
    let ip: Option<std::net::IpAddr> = host.parse().ok();
    let bound = site.address.ip();
    // Bound to all addresses, any of them is its own; an address, unlike a name, cannot be made
    // to lead here by another site.
    host == "localhost"
        || ip.is_some_and(|ip| {
            ip.to_canonical().is_loopback() || ip == bound || bound.is_unspecified()
        })
        || site
            .options
            .hosts
            .iter()
            .any(|own| own.eq_ignore_ascii_case(&host) || own.eq_ignore_ascii_case(said.as_str()))
}

/// Refuses what another site's page asks for.
fn check_origin(
    site: &Site,
    host: &Authority,
    method: &Method,
    headers: &HeaderMap,
) -> Result<(), PageFailure> {
    let refused = || {
        PageFailure::new(
            StatusCode::FORBIDDEN,
            "the request comes from a page of another site",
            "open the page here, and do it there",
        )
    };
    let fetched = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    let is_safe = matches!(*method, Method::GET | Method::HEAD);
    let is_link = is_safe && is(headers, "sec-fetch-mode", "navigate");
    // A link on another page may lead here; nothing else of it may.
    if fetched.is_some_and(|site| !matches!(site, b"same-origin" | b"none")) && !is_link {
        return Err(refused());
    }
    let Some(origin) = headers.get(ORIGIN) else {
        return Ok(());
    };
    let scheme = if site.options.tls { "https" } else { "http" };
    let own = format!("{scheme}://{host}");
    match origin.as_bytes().eq_ignore_ascii_case(own.as_bytes()) {
        true => Ok(()),
        // Behind something that encrypts, the browser's scheme is another.
        false
            if origin
                .as_bytes()
                .eq_ignore_ascii_case(format!("https://{host}").as_bytes()) =>
        {
            Ok(())
        }
        false => Err(refused()),
    }
}

fn is(headers: &HeaderMap, name: &str, value: &str) -> bool {
    headers.get(name).is_some_and(|said| said == value)
}

/// Where one logs in, to come back here. Who follows a link of another site may have logged in
/// already: their browser shows that when the page asks for itself once more.
fn to_login(here: &Here) -> Response {
    if here.is_from_elsewhere {
        let again = maud::html! {
            (maud::DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="refresh" content={ "0;url=" (here.address()) };
                    title { "Treering" }
                }
                body { a href=(here.address()) { "On to the page" } }
            }
        };
        return axum::response::Html(again.into_string()).into_response();
    }
    let to = super::visit::query(&[("to", &here.address())]);
    let to = here.link(&format!("/login?{to}"));
    axum::response::Redirect::to(&to).into_response()
}

fn hardened(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
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
