//! Who may call what. Every call of every connection passes here before anything of its
//! body is read.
//!
//! `rules` says what each method needs. A key comes as `authorization: Bearer …`, or is that of
//! the certificate of the connection; while none was ever made, nobody is asked for one. Services get a [`Caller`], which they ask about
//! what only they can see: each event of a batch, and the actor that is written down.

mod rules;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use bytes::{BufMut, BytesMut};
use http::{HeaderMap, Request, header::AUTHORIZATION};
use prost::encoding;
use tonic::{Status, body::Body};

use super::{call, from_proto::Malformed, status::Refusal};
use crate::{
    access::{CertificateSubject, ClientCertificate, Holder, KeyId, KeyRefusal, KeyRing, KeyRole},
    codec::body::EncodedBody,
    domain::{ApprovalDecided, EventBody, EventKind, Namespace, NewEvent},
};

use rules::Needs;

/// A key is not enough.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Denied {
    /// It has not the role.
    #[error(
        "the key {key} is no {role} in the namespace {namespace}, which this needs: ask whoever \
         makes the keys for one that is"
    )]
    Role {
        key: String,
        role: KeyRole,
        namespace: Namespace,
    },
    /// It is not an admin's of all namespaces.
    #[error(
        "the key {key} is no admin of the whole store (`--role 'admin:*'`), which this needs: it \
         concerns all namespaces"
    )]
    Store { key: String },
    /// Only the server itself appends there.
    #[error(
        "the namespace {namespace} is reserved, as all are that begin with `_`: nothing can be \
         appended or erased there; take another name"
    )]
    Reserved { namespace: Namespace },
    /// Nothing is known of the method, so nobody may call it.
    #[error("this server has no such method: it may be older than its client")]
    UnknownMethod,
}

/// Lets calls in, or not.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    /// None: nobody is asked, as through a pipe of this process.
    keys: Option<Arc<KeyRing>>,
    /// Calls come from another part of this process, which says whose certificate it has seen.
    is_beside: bool,
}

impl Guard {
    pub fn new(keys: Option<Arc<KeyRing>>) -> Self {
        Self {
            keys,
            is_beside: false,
        }
    }

    /// The same for connections of this process itself: its word for a certificate counts there,
    /// and from nobody else.
    #[must_use]
    pub fn beside(self, is_beside: bool) -> Self {
        Self { is_beside, ..self }
    }

    /// Lets a call in, and leaves in it who calls.
    ///
    /// # Errors
    /// Why it is not let in.
    pub fn admit(
        &self,
        request: &mut Request<Body>,
        certificate: Option<&ClientCertificate>,
    ) -> Result<(), Refusal> {
        let rule = rules::of(request.uri().path());
        if rule == Some(Needs::Nothing) {
            return Ok(());
        }
        let holder = self.holder(request.headers(), certificate)?;
        let needs = rule.ok_or(Denied::UnknownMethod)?;
        if needs == Needs::AnyKey {
            return Ok(());
        }
        if let Some(holder) = &holder {
            let one_more = holder.rate().call();
            one_more.map_err(|wait| Refusal::too_fast(holder.name(), "calls", wait))?;
        }
        let caller = Caller {
            namespace: call::namespace(request.headers())?,
            holder,
        };
        caller.check_method(needs)?;
        request.extensions_mut().insert(caller);
        Ok(())
    }

    /// Who calls. A key that is sent is what counts, whatever the certificate says: behind one
    /// certificate, as that of a gateway, stand many callers. A bad one is refused.
    fn holder(
        &self,
        headers: &HeaderMap,
        certificate: Option<&ClientCertificate>,
    ) -> Result<Option<Arc<Holder>>, KeyRefusal> {
        let Some(keys) = &self.keys else {
            return Ok(None);
        };
        keys.look();
        if keys.is_open() {
            return Ok(None);
        }
        if headers.contains_key(AUTHORIZATION) {
            let key = bearer(headers).ok_or(KeyRefusal::Missing)?;
            return keys.holder(key).map(Some);
        }
        let told = match self.is_beside {
            true => told_certificate(headers),
            false => None,
        };
        let certificate = told.as_ref().or(certificate);
        let certificate = certificate.ok_or(KeyRefusal::Missing)?;
        keys.holder_of(certificate).map(Some)
    }
}

/// The metadata by which a part of this process says whose certificate it has seen.
pub const CERTIFICATE_KEY: &str = "treering-certificate-subject";

/// A subject as it stands there: it may be in any language, and headers are in one.
#[must_use]
pub fn certificate_word(subject: &CertificateSubject) -> String {
    STANDARD_NO_PAD.encode(subject.as_str())
}

fn told_certificate(headers: &HeaderMap) -> Option<ClientCertificate> {
    let word = headers.get(CERTIFICATE_KEY)?;
    let text = String::from_utf8(STANDARD_NO_PAD.decode(word).ok()?).ok()?;
    Some(ClientCertificate {
        subject: CertificateSubject::parse(&text).ok(),
    })
}

/// The key that a call brings.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    const SCHEME: &str = "bearer ";
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then(|| key.trim())
}

/// Who calls, and in which namespace.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub namespace: Namespace,
    /// None: nobody was asked for a key.
    holder: Option<Arc<Holder>>,
}

impl Caller {
    /// Somebody who was not asked.
    #[cfg(test)]
    pub fn anybody(namespace: Namespace) -> Self {
        Self {
            namespace,
            holder: None,
        }
    }

    fn check_method(&self, needs: Needs) -> Result<(), Denied> {
        if needs.changes() && self.namespace.is_reserved() {
            return Err(Denied::Reserved {
                namespace: self.namespace.clone(),
            });
        }
        let Some(holder) = &self.holder else {
            return Ok(());
        };
        match needs {
            Needs::Nothing | Needs::AnyKey => Ok(()),
            Needs::Role(role) => self.check(role),
            Needs::Appending => self
                .check(KeyRole::Writer)
                .or_else(|denied| self.check(KeyRole::Approver).map_err(|_| denied)),
            Needs::Store if holder.may_all() => Ok(()),
            Needs::Store => Err(Denied::Store {
                key: holder.name().to_owned(),
            }),
        }
    }

    fn check(&self, role: KeyRole) -> Result<(), Denied> {
        match &self.holder {
            Some(holder) if !holder.may(role, &self.namespace) => Err(Denied::Role {
                key: holder.name().to_owned(),
                role,
                namespace: self.namespace.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Whether the key is still good, for calls that take their time.
    pub fn check_again(&self) -> Result<(), KeyRefusal> {
        self.holder.as_ref().map_or(Ok(()), |holder| holder.check())
    }

    /// What its requests are counted by; none: nobody was asked for a key.
    pub fn counted(&self) -> Option<Counted> {
        let holder = self.holder.as_ref()?;
        Some(Counted(Arc::clone(holder)))
    }

    /// True when figures of the whole store may be told: without keys, or to an admin of
    /// every namespace.
    pub fn may_see_store(&self) -> bool {
        self.holder.as_ref().is_none_or(|holder| holder.may_all())
    }

    /// The key's name and id; none: nobody was asked.
    pub fn key(&self) -> Option<(&str, &KeyId)> {
        let holder = self.holder.as_ref()?;
        Some((holder.name(), holder.id()))
    }

    /// Waits until the key is good no more; without one for ever.
    pub async fn ended(&self) -> KeyRefusal {
        match &self.holder {
            Some(holder) => holder.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Who acts: the key's name, whatever the client says; without a key, what it says.
    pub fn actor(&self, said: String) -> String {
        match &self.holder {
            Some(holder) => holder.name().to_owned(),
            None => said,
        }
    }

    /// Checks that an event may be appended, and writes down who does.
    ///
    /// # Errors
    /// [`Denied::Role`].
    pub fn sign(&self, event: &mut NewEvent<EncodedBody>) -> Result<(), Refusal> {
        let Some(holder) = &self.holder else {
            return Ok(());
        };
        self.check(rules::appends(event.body.body().kind()))?;
        event.actor = self.actor(String::new());
        let decided = match event.body.body() {
            EventBody::ApprovalDecided(decided) => decided_by(holder.name(), decided),
            _ => None,
        };
        if let Some(who) = decided {
            event.body = with_decided_by(&event.body, &who)?;
        }
        Ok(())
    }
}

/// Counts the bytes that come with a key.
#[derive(Clone, Debug)]
pub(super) struct Counted(Arc<Holder>);

impl Counted {
    /// A request of so many bytes has come.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` when that is more than the key may send now.
    pub fn take(&self, bytes: usize) -> Result<(), Status> {
        let taken = self.0.rate().request(bytes);
        taken.map_err(|wait| Refusal::too_fast(self.0.name(), "bytes", wait).into())
    }
}

/// Who decided, if it is to be another one than the client says: the key, and behind it the
/// person whom its holder names.
fn decided_by(key: &str, decided: &ApprovalDecided) -> Option<String> {
    match decided.decided_by.as_str() {
        said if said == key => None,
        "" => Some(key.to_owned()),
        said => Some(format!("{key}: {said}")),
    }
}

/// `ApprovalDecided.decided_by` in `proto/treering/v1/event.proto`.
const DECIDED_BY: u32 = 4;

/// The same decision by somebody else. The field is written once more, behind what came:
/// readers take the last, and what this version does not know stays.
fn with_decided_by(body: &EncodedBody, who: &str) -> Result<EncodedBody, Malformed> {
    let mut bytes = BytesMut::from(&body.bytes()[..]);
    let mut field = Vec::with_capacity(who.len() + 8);
    encoding::string::encode(DECIDED_BY, &who.to_owned(), &mut field);
    bytes.put_slice(&field);
    EncodedBody::received(EventKind::ApprovalDecided, bytes.freeze()).map_err(|fault| {
        Malformed::new(
            "approval_decided.decided_by",
            format!("{}, with the key's name before it", fault.problem),
        )
    })
}
