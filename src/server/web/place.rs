//! Checks the host and origin of an HTTP request. A page of another site must not send requests
//! through an authorised user's browser, nor through a host name that it points at this server. The
//! inspector and the MCP endpoint use the same checks.

use std::net::{IpAddr, SocketAddr};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri,
    header::{HOST, ORIGIN},
    uri::Authority,
};

/// The place where a server is reached by HTTP.
#[derive(Clone, Debug)]
pub struct WebPlace {
    address: SocketAddr,
    /// Accepted hosts besides the server's own names.
    hosts: Vec<String>,
    tls: bool,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebRefusal {
    /// A header is ambiguous.
    #[error("the header {0} is ambiguous")]
    Unclear(HeaderName),
    /// The request has no host.
    #[error("the request has no host")]
    NoHost,
    /// The request is for another host.
    #[error("this server is not named `{0}`")]
    OtherHost(String),
    /// A page of another site sent the request.
    #[error("the request comes from a page of another site")]
    OtherSite,
}

impl WebRefusal {
    /// Returns the HTTP status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Unclear(_) => StatusCode::BAD_REQUEST,
            Self::NoHost | Self::OtherHost(_) | Self::OtherSite => StatusCode::FORBIDDEN,
        }
    }
}

impl WebPlace {
    /// Returns the place of a listener, with further host names that the operator configured for
    /// it.
    #[must_use]
    pub fn new(address: SocketAddr, hosts: Vec<String>, tls: bool) -> Self {
        Self {
            address,
            hosts,
            tls,
        }
    }

    /// Returns true when it is served with TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Returns the request's host if it is this server. Another site's name that points here must
    /// not be answered (DNS rebinding).
    ///
    /// # Errors
    /// [`WebRefusal::Unclear`], [`WebRefusal::NoHost`], [`WebRefusal::OtherHost`].
    pub fn host(&self, headers: &HeaderMap, uri: &Uri) -> Result<Authority, WebRefusal> {
        if let Some(unclear) = [HOST, ORIGIN]
            .into_iter()
            .find(|name| is_unclear(headers, name))
        {
            return Err(WebRefusal::Unclear(unclear));
        }
        let said = match uri.authority() {
            Some(authority) => Some(authority.clone()),
            None => headers
                .get(HOST)
                .and_then(|host| host.to_str().ok())
                .and_then(|host| host.parse().ok()),
        };
        let said = said.ok_or(WebRefusal::NoHost)?;
        if said.as_str().contains('@') {
            return Err(WebRefusal::Unclear(HOST));
        }
        match self.is_own(&said) {
            true => Ok(said),
            false => Err(WebRefusal::OtherHost(said.host().to_owned())),
        }
    }

    fn is_own(&self, said: &Authority) -> bool {
        let host = said.host().trim_matches(['[', ']']).to_ascii_lowercase();
        let ip: Option<IpAddr> = host.parse().ok();
        let bound = self.address.ip();
        // If the server is bound to all addresses, any address is its own: another site can point
        // a name at this server, but not an address.
        host == "localhost"
            || ip.is_some_and(|ip| {
                ip.to_canonical().is_loopback() || ip == bound || bound.is_unspecified()
            })
            || self.hosts.iter().any(|own| {
                own.eq_ignore_ascii_case(&host) || own.eq_ignore_ascii_case(said.as_str())
            })
    }

    /// Returns the origin of the page that sends the request, or `None` when no page does. The
    /// origin must be this host's own or one of `named`, which have the form that [`web_origin`]
    /// returns.
    ///
    /// # Errors
    /// [`WebRefusal::OtherSite`].
    pub fn check_origin(
        &self,
        host: &Authority,
        method: &Method,
        headers: &HeaderMap,
        named: &[String],
    ) -> Result<Option<HeaderValue>, WebRefusal> {
        let said = headers.get(ORIGIN);
        let known = said
            .and_then(|said| said.to_str().ok())
            .and_then(|said| web_origin(said).ok());
        if known.as_ref().is_some_and(|known| named.contains(known)) {
            return Ok(said.cloned());
        }
        let fetched = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        let is_safe = matches!(*method, Method::GET | Method::HEAD);
        let mode = headers.get("sec-fetch-mode");
        let is_link = is_safe && mode.is_some_and(|mode| mode == "navigate");
        // A page of another site may link here, but may not send other requests.
        if fetched.is_some_and(|site| !matches!(site, b"same-origin" | b"none")) && !is_link {
            return Err(WebRefusal::OtherSite);
        }
        if said.is_none() {
            return Ok(None);
        }
        // Behind a proxy that terminates TLS, the browser's scheme is https.
        let schemes = [if self.tls { "https" } else { "http" }, "https"];
        let own = schemes.map(|scheme| web_origin(&format!("{scheme}://{host}")).ok());
        match known.is_some() && own.contains(&known) {
            true => Ok(said.cloned()),
            false => Err(WebRefusal::OtherSite),
        }
    }
}

/// Returns true when a header is repeated, or its host has user information.
fn is_unclear(headers: &HeaderMap, name: &HeaderName) -> bool {
    let mut values = headers.get_all(name).iter();
    let has_at = |value: &HeaderValue| value.as_bytes().contains(&b'@');
    values.next().is_some_and(has_at) || values.next().is_some()
}

/// Normalises an origin as browsers do: lower case, without the default port.
///
/// # Errors
/// A message with the required form.
pub fn web_origin(text: &str) -> Result<String, String> {
    let takes = || "an origin has the form https://HOST or https://HOST:PORT".to_owned();
    let uri: Uri = text.trim_end_matches('/').parse().map_err(|_| takes())?;
    let (Some(scheme), Some(authority), "/") = (uri.scheme_str(), uri.authority(), uri.path())
    else {
        return Err(takes());
    };
    let usual = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return Err(takes()),
    };
    if authority.as_str().contains('@') || uri.query().is_some() {
        return Err(takes());
    }
    let host = authority.host().to_ascii_lowercase();
    Ok(match authority.port_u16() {
        Some(port) if port != usual => format!("{scheme}://{host}:{port}"),
        _ => format!("{scheme}://{host}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Origins that no browser sends must be refused, since they would match nobody.
    #[test]
    fn web_origins_are_normalised_or_refused() {
        for (text, expected) in [
            ("https://App.example", "https://app.example"),
            ("https://app.example:443/", "https://app.example"),
            ("http://[::1]:8080", "http://[::1]:8080"),
        ] {
            assert_eq!(web_origin(text).as_deref(), Ok(expected));
        }
        for wrong in [
            "foo",
            "null",
            "",
            "*",
            "https://",
            "ftp://a",
            "https://a/b",
            "https://b@a",
            "https://a?b",
        ] {
            assert!(web_origin(wrong).is_err(), "{wrong}");
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    // Another site's name that points here must not pass for this server's, even if written so that
    // two parsers read it differently.
    #[test]
    fn foreign_host_is_refused() {
        let place = WebPlace::new(
            "127.0.0.1:7171".parse().unwrap(),
            vec!["agents.example".into()],
            false,
        );
        let host = |pairs: &[(&'static str, &'static str)], uri: &str| {
            place.host(&headers(pairs), &uri.parse().unwrap())
        };
        for own in [
            "localhost:7171",
            "127.0.0.1:7171",
            "[::1]:1",
            "Agents.example",
        ] {
            assert!(host(&[("host", own)], "/").is_ok(), "{own}");
        }
        for (pairs, uri, refused) in [
            (&[][..], "/", WebRefusal::NoHost),
            (
                &[("host", "evil.example")],
                "/",
                WebRefusal::OtherHost("evil.example".into()),
            ),
            // In HTTP/2 the URI names the host.
            (
                &[("host", "localhost")],
                "http://evil.example/",
                WebRefusal::OtherHost("evil.example".into()),
            ),
            (
                &[("host", "localhost"), ("host", "evil.example")],
                "/",
                WebRefusal::Unclear(HOST),
            ),
            (
                &[("host", "evil.example@localhost")],
                "/",
                WebRefusal::Unclear(HOST),
            ),
            (&[], "http://evil@localhost/", WebRefusal::Unclear(HOST)),
        ] {
            assert_eq!(host(pairs, uri), Err(refused), "{pairs:?} {uri}");
        }
        let everywhere = WebPlace::new("0.0.0.0:1".parse().unwrap(), Vec::new(), true);
        let by_address = headers(&[("host", "192.168.1.4:1")]);
        assert!(everywhere.host(&by_address, &"/".parse().unwrap()).is_ok());
    }

    // A named page may send requests, whatever the browser says about its site; other pages may
    // not, and requests without a page may.
    #[test]
    fn only_allowed_origins_may_send_requests() {
        let place = WebPlace::new("127.0.0.1:7171".parse().unwrap(), Vec::new(), false);
        let host: Authority = "127.0.0.1:7171".parse().unwrap();
        let named = ["https://app.example".to_owned()];
        for (pairs, may) in [
            (&[][..], true),
            (&[("origin", "http://127.0.0.1:7171")], true),
            (&[("origin", "https://127.0.0.1:7171")], true),
            (&[("origin", "http://127.0.0.1")], false),
            (&[("origin", "null")], false),
            (&[("origin", "https://evil.example")], false),
            (&[("sec-fetch-site", "cross-site")], false),
            (
                &[
                    ("origin", "https://App.example:443"),
                    ("sec-fetch-site", "cross-site"),
                ],
                true,
            ),
        ] {
            let told = place.check_origin(&host, &Method::POST, &headers(pairs), &named);
            assert_eq!(told.is_ok(), may, "{pairs:?}");
            let by_a_page = pairs.iter().any(|(name, _)| *name == "origin");
            assert_eq!(told.ok().flatten().is_some(), may && by_a_page, "{pairs:?}");
        }
    }
}
