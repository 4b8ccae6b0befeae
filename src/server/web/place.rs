//! Whom a request by HTTP is for, and where it comes from: a page of another site must neither
//! ask through the browser of somebody who may, nor under a name that it lets lead here. Pages
//! for people and the door for agents ask the same of each request.

use std::net::{IpAddr, SocketAddr};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri,
    header::{HOST, ORIGIN},
    uri::Authority,
};

/// Where a server is reached by HTTP.
#[derive(Clone, Debug)]
pub struct WebPlace {
    address: SocketAddr,
    /// Hosts that requests may be for, besides the server's own names.
    hosts: Vec<String>,
    tls: bool,
}

/// Why a request is not looked at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebRefusal {
    /// What would be checked is not what is meant.
    #[error("the header {0} is not clear")]
    Unclear(HeaderName),
    /// It is for nobody.
    #[error("the request says no host")]
    NoHost,
    /// It is for somebody else.
    #[error("this server is not `{0}`")]
    OtherHost(String),
    /// A page of another site sends it.
    #[error("the request comes from a page of another site")]
    OtherSite,
}

impl WebRefusal {
    /// What is answered.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Unclear(_) => StatusCode::BAD_REQUEST,
            Self::NoHost | Self::OtherHost(_) | Self::OtherSite => StatusCode::FORBIDDEN,
        }
    }
}

impl WebPlace {
    /// A listener's address, with the names that lead there by the word of whoever serves.
    #[must_use]
    pub fn new(address: SocketAddr, hosts: Vec<String>, tls: bool) -> Self {
        Self {
            address,
            hosts,
            tls,
        }
    }

    /// True when it is encrypted.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// The host that a request is for, when it is this one: a page of another site whose name
    /// leads here must not be answered as if it were ours.
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
        // Bound to all addresses, any of them is its own; an address, unlike a name, cannot be
        // made to lead here by another site.
        host == "localhost"
            || ip.is_some_and(|ip| {
                ip.to_canonical().is_loopback() || ip == bound || bound.is_unspecified()
            })
            || self.hosts.iter().any(|own| {
                own.eq_ignore_ascii_case(&host) || own.eq_ignore_ascii_case(said.as_str())
            })
    }

    /// The origin of the page that asks; none: no page does. It is one of this host's own, or
    /// one of those that were named, as [`web_origin`] writes them.
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
        // A link on another page may lead here; nothing else of it may.
        if fetched.is_some_and(|site| !matches!(site, b"same-origin" | b"none")) && !is_link {
            return Err(WebRefusal::OtherSite);
        }
        if said.is_none() {
            return Ok(None);
        }
        // Behind something that encrypts, the browser's scheme is another.
        let schemes = [if self.tls { "https" } else { "http" }, "https"];
        let own = schemes.map(|scheme| web_origin(&format!("{scheme}://{host}")).ok());
        match known.is_some() && own.contains(&known) {
            true => Ok(said.cloned()),
            false => Err(WebRefusal::OtherSite),
        }
    }
}

/// Several of a header, or a host with a name before it.
fn is_unclear(headers: &HeaderMap, name: &HeaderName) -> bool {
    let mut values = headers.get_all(name).iter();
    let has_at = |value: &HeaderValue| value.as_bytes().contains(&b'@');
    values.next().is_some_and(has_at) || values.next().is_some()
}

/// An origin as browsers write it: in small letters, without a port that is the usual one.
///
/// # Errors
/// What it has to be.
pub fn web_origin(text: &str) -> Result<String, String> {
    let takes = || "an origin is https://HOST or https://HOST:PORT".to_owned();
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

    // What no browser ever sends was taken as an origin, and let in nobody.
    #[test]
    fn origins_are_as_browsers_write_them() {
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

    // A name that another site lets lead here passed for this server's, where it was written in
    // a way that two readers understand in two ways.
    #[test]
    fn a_host_is_this_one_or_refused() {
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
            // By HTTP/2 it is the address that says it.
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

    // A page that was named may ask, whatever the browser says of where it stands; each other
    // page may not, and what is no page's may.
    #[test]
    fn a_page_asks_where_it_may() {
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
