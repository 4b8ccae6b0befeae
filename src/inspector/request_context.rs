//! The data of a request that a page needs: the visitor, the address, and the store with the
//! visitor's permissions.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use http::request::Parts;
use maud::Markup;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

use super::{
    failure::PageFailure,
    frame::{self, Page, Tab},
    site::{Site, session_of},
};
use treering_access::{ClientCertificate, KeyHolder, KeyRole};
use treering_client::Connection;
use treering_domain::Namespace;

/// Header with which our own script requests a part of a page.
pub(crate) const FRAGMENT_HEADER: &str = "x-fragment";

/// The address of a request, for links and the frame.
#[derive(Clone, Debug)]
pub(crate) struct RequestAddress {
    /// Prefix of our paths: empty, or `/@NAMESPACE`.
    pub(crate) base: String,
    /// The namespace.
    pub(crate) namespace: String,
    /// The path without the prefix.
    pub(crate) path: String,
    /// The query, unchanged.
    pub(crate) query: String,
    /// The token that each form must contain.
    pub(crate) token: String,
    /// Whether the visitor has logged in, and can log out.
    pub(crate) has_session: bool,
    /// The name of the visitor's key; `None`: no authentication.
    pub(crate) key: Option<String>,
    /// Whether only a part of the page is requested.
    pub(crate) is_fragment: bool,
    /// Whether a link from another site led here, so that the browser withholds its cookie.
    pub(crate) is_from_elsewhere: bool,
}

impl RequestAddress {
    /// Returns the address of one of our pages; `path` begins with `/`.
    #[must_use]
    pub(crate) fn link(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Returns the address of this page.
    #[must_use]
    pub(crate) fn address(&self) -> String {
        match self.query.is_empty() {
            true => self.link(&self.path),
            false => format!("{}?{}", self.link(&self.path), self.query),
        }
    }
}

/// A request from a visitor: `async fn page(request_context: RequestContext) -> Result<Page,
/// PageFailure>`.
#[derive(Debug)]
pub(crate) struct RequestContext {
    /// The store, with the visitor's key and namespace.
    pub(crate) store: Connection,
    /// The address.
    pub(crate) here: RequestAddress,
    /// The query.
    pub(crate) asked: PageQuery,
    /// State shared by all requests.
    pub(crate) site: Arc<Site>,
    /// The holder of the visitor's key; `None`: no authentication.
    holder: Option<Arc<KeyHolder>>,
}

impl RequestContext {
    /// True when the visitor is identified by a key.
    #[must_use]
    pub(crate) fn is_known(&self) -> bool {
        self.holder.is_some()
    }

    /// True for an admin of the whole store, and when there is no authentication.
    #[must_use]
    pub(crate) fn may_all(&self) -> bool {
        self.holder.as_ref().is_none_or(|holder| holder.may_all())
    }

    /// Checks whether the visitor's key has a role in this namespace. Pages do not offer actions
    /// that the key does not permit.
    ///
    /// # Errors
    /// A message for the visitor, when the key does not have the role.
    pub(crate) fn may(&self, role: KeyRole) -> Result<(), String> {
        let namespace = &self.here.namespace;
        let has = |holder: &Arc<KeyHolder>| {
            Namespace::new(namespace).is_ok_and(|namespace| holder.may(role, &namespace))
        };
        match &self.holder {
            Some(holder) if !has(holder) => Err(format!(
                "Your key {} does not have the role {role} in namespace {namespace}: ask the \
                 administrator for a key that has it.",
                holder.name()
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the address of one of our pages, in the visitor's namespace.
    #[must_use]
    pub(crate) fn link(&self, path: &str) -> String {
        self.here.link(path)
    }

    /// Returns a page with its frame, or only the body if a part was requested.
    #[must_use]
    pub(crate) fn page(&self, title: &str, tab: Tab, body: Markup) -> Page {
        frame::page(&self.here, title, tab, body)
    }
}

impl FromRequestParts<Arc<Site>> for RequestContext {
    type Rejection = PageFailure;

    async fn from_request_parts(parts: &mut Parts, site: &Arc<Site>) -> Result<Self, PageFailure> {
        let here = parts.extensions.get::<RequestAddress>().cloned();
        let here = here.ok_or_else(|| PageFailure::ours("the request bypassed the guard"))?;
        let asks = site.asks_as(parts)?;
        Ok(Self {
            store: site.store.as_caller(&here.namespace, &asks.proof)?,
            holder: asks.holder,
            asked: PageQuery::of(&here.query),
            here,
            site: Arc::clone(site),
        })
    }
}

/// A request of a visitor who need not be logged in, for pages that show no data of the store.
#[derive(Debug)]
pub(crate) struct AnonymousRequest {
    /// The address.
    pub(crate) here: RequestAddress,
    /// The query, or the fields of the form.
    pub(crate) asked: PageQuery,
    /// The session name in the cookie.
    pub(crate) session: Option<String>,
    /// The certificate of the connection.
    pub(crate) certificate: Option<ClientCertificate>,
    /// State shared by all requests.
    pub(crate) site: Arc<Site>,
}

impl AnonymousRequest {
    /// Returns the namespaces that are named in the roles of the visitor's key.
    #[must_use]
    pub(crate) fn namespaces(&self) -> Vec<String> {
        let key = self.session.as_deref();
        let key = key.and_then(|name| self.site.sessions().key(name));
        let holder = match (key, &self.certificate) {
            (Some(key), _) => self.site.keys.holder(&key).ok(),
            (None, Some(certificate)) => self.site.keys.holder_of(certificate).ok(),
            (None, None) => None,
        };
        let named = holder.as_ref().map(|holder| holder.namespaces());
        let named = named.unwrap_or_default().into_iter();
        named.map(ToString::to_string).collect()
    }
}

impl FromRequestParts<Arc<Site>> for AnonymousRequest {
    type Rejection = PageFailure;

    async fn from_request_parts(parts: &mut Parts, site: &Arc<Site>) -> Result<Self, PageFailure> {
        let here = parts.extensions.get::<RequestAddress>().cloned();
        let here = here.ok_or_else(|| PageFailure::ours("the request bypassed the guard"))?;
        Ok(Self {
            asked: PageQuery::of(&here.query),
            here,
            session: session_of(&parts.headers).map(str::to_owned),
            certificate: parts.extensions.get().cloned(),
            site: Arc::clone(site),
        })
    }
}

/// Parameters in the path: `PathParams((id, revision)): PathParams<(String, u64)>`.
#[derive(Debug)]
pub(crate) struct PathParams<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<Site>> for PathParams<T> {
    type Rejection = PageFailure;

    async fn from_request_parts(parts: &mut Parts, site: &Arc<Site>) -> Result<Self, PageFailure> {
        let path = Path::<T>::from_request_parts(parts, site).await;
        let path = path.map_err(|refusal| {
            PageFailure::asked(
                format!("the address is invalid: {}", refusal.body_text()),
                "start with the list of conversations",
            )
        });
        path.map(|Path(of)| Self(of))
    }
}

/// The query of an address, or the fields of a form.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageQuery(Vec<(String, String)>);

impl PageQuery {
    /// Parses a query, without its `?`.
    #[must_use]
    pub(crate) fn of(query: &str) -> Self {
        Self::of_bytes(query.as_bytes())
    }

    /// Parses the body of a form.
    #[must_use]
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        Self(form_urlencoded::parse(bytes).into_owned().collect())
    }

    /// Returns a value if it is present and not empty.
    #[must_use]
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let mut found = self.0.iter().filter(|(key, _)| key == name);
        found
            .next()
            .map(|(_, value)| value.trim())
            .filter(|text| !text.is_empty())
    }

    /// Returns all values of that name that are not empty.
    pub(crate) fn texts<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let all = self.0.iter().filter(move |(key, _)| key == name);
        all.map(|(_, value)| value.trim())
            .filter(|text| !text.is_empty())
    }

    /// True for `name=1`, and for a checked checkbox.
    #[must_use]
    pub(crate) fn is_set(&self, name: &str) -> bool {
        matches!(self.text(name), Some("1" | "on" | "true" | "yes"))
    }

    /// Returns a number.
    ///
    /// # Errors
    /// When the value is not a number.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, PageFailure> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        text.parse().map(Some).map_err(|_| {
            PageFailure::asked(
                format!("`{name}` is not a number"),
                format!("use an integer, for example `{name}=12`"),
            )
        })
    }

    /// Returns one of the given words.
    ///
    /// # Errors
    /// When the value is not one of them: an unknown filter must not seem to be applied.
    pub(crate) fn one_of(&self, name: &str, words: &[&str]) -> Result<Option<&str>, PageFailure> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        if words.contains(&text) {
            return Ok(Some(text));
        }
        let words: Vec<_> = words.iter().filter(|word| !word.is_empty()).collect();
        let list = words.iter().map(|word| format!("`{name}={word}`"));
        Err(PageFailure::asked(
            format!("`{name}` cannot be `{text}`"),
            format!("use one of {}", list.collect::<Vec<_>>().join(", ")),
        ))
    }

    /// Returns the query with another value for a name (`None`: without the name). Empty values,
    /// and the names in `but`, are left out.
    #[must_use]
    pub(crate) fn with(&self, name: &str, value: Option<&str>, but: &[&str]) -> String {
        let kept = self.0.iter().filter(|(key, value)| {
            key != name && !value.is_empty() && !but.contains(&key.as_str())
        });
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (key, value) in kept {
            query.append_pair(key, value);
        }
        if let Some(value) = value {
            query.append_pair(name, value);
        }
        query.finish()
    }
}

/// Characters that are escaped in addresses: all but ASCII letters, digits and `-._~`.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Escapes a text as one segment of a path.
#[must_use]
pub(crate) fn path_part(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

/// Returns a query of names and values; empty values are left out.
#[must_use]
pub(crate) fn query(pairs: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(pairs.iter().filter(|(_, value)| !value.is_empty()));
    query.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    // A link that changes one parameter must keep the others.
    #[test]
    fn changing_one_query_parameter_keeps_the_others() {
        let asked = PageQuery::of("q=a+b%26c&tool=Bash&tool=Read&page=x&empty=");
        assert_eq!(asked.text("q"), Some("a b&c"));
        assert_eq!(asked.texts("tool").collect::<Vec<_>>(), ["Bash", "Read"]);
        assert_eq!(
            asked.with("tool", Some("Edit"), &["page"]),
            "q=a+b%26c&tool=Edit"
        );
        assert_eq!(asked.with("q", None, &["page", "tool"]), "");
        assert!(asked.number("q").is_err());
        assert_eq!(asked.number("none").unwrap(), None);
        assert_eq!(query(&[("a", "1&2"), ("b", "")]), "a=1%262");
    }
}
