//! Access control. Every call of every connection passes here before its body is read.
//!
//! `rules` has the requirement of each method. A caller sends a key as `authorization: Bearer …`,
//! or its connection's certificate stands for one. If no key was ever created, none is required.
//! Services get a [`Caller`], with which they check what the guard cannot see: each event of a
//! batch, and the recorded actor.

mod rules;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use bytes::{BufMut, BytesMut};
use http::{HeaderMap, Request, header::AUTHORIZATION};
use prost::encoding;
use tonic::{Status, body::Body};

use super::{
    bounds::MANY_READ, call, from_proto::InvalidField, router::ForwardedShard, status::Refusal,
};
use treering_access::{
    CertificateSubject, ClientCertificate, KeyHolder, KeyId, KeyRefusal, KeyRole, KeyStore,
};
use treering_domain::{ApprovalDecided, ConversationId, EventBody, EventKind, Namespace, NewEvent};
use treering_proto::body::EncodedBody;

use rules::MethodRequirement;

/// A key lacks a permission.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Denied {
    /// It lacks the role.
    #[error(
        "key {key} needs the role {role} in namespace {namespace}: ask the administrator for a key \
         that has it"
    )]
    Role {
        key: String,
        role: KeyRole,
        namespace: Namespace,
    },
    /// It is not an admin key of all namespaces.
    #[error(
        "key {key} needs the role admin for all namespaces (`--role 'admin:*'`): the call concerns \
         the whole store"
    )]
    Store { key: String },
    /// Only the server itself appends to reserved namespaces.
    #[error(
        "namespace {namespace} is reserved, like all that begin with `_`: use another namespace to \
         append or erase"
    )]
    Reserved { namespace: Namespace },
    /// The method is unknown, so nobody may call it.
    #[error("this server does not have this method: it may be older than the client")]
    UnknownMethod,
}

/// Admits or refuses calls.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    /// `None`: no keys are required, as through an in-process pipe.
    keys: Option<Arc<KeyStore>>,
    /// Calls come from another part of this process, which vouches for certificates.
    is_beside: bool,
    /// In a cluster: the secret by which other nodes prove that they forwarded a call. They vouch
    /// for certificates too.
    node_secret: Option<Arc<str>>,
}

impl Guard {
    pub(crate) fn new(keys: Option<Arc<KeyStore>>) -> Self {
        Self {
            keys,
            is_beside: false,
            node_secret: None,
        }
    }

    /// Sets the secret of a node of a cluster.
    #[must_use]
    pub(crate) fn of_node(self, secret: Option<String>) -> Self {
        Self {
            node_secret: secret.map(Into::into),
            ..self
        }
    }

    /// Sets whether connections come from this process itself. Only then is the metadata that names
    /// a certificate trusted.
    #[must_use]
    pub(crate) fn beside(self, is_beside: bool) -> Self {
        Self { is_beside, ..self }
    }

    /// Admits a call and attaches its [`Caller`].
    ///
    /// # Errors
    /// Why the call is refused.
    pub(crate) fn admit(
        &self,
        request: &mut Request<Body>,
        certificate: Option<&ClientCertificate>,
    ) -> Result<(), Refusal> {
        let rule = rules::of(request.uri().path());
        if rule == Some(MethodRequirement::Nothing) {
            return Ok(());
        }
        let forwarded = match &self.node_secret {
            Some(secret) => ForwardedShard::of(request.headers(), secret)?,
            None => None,
        };
        let is_vouched = self.is_beside || forwarded.is_some();
        let holder = self.holder(request.headers(), certificate, is_vouched)?;
        let needs = rule.ok_or(Denied::UnknownMethod)?;
        if needs == MethodRequirement::AnyKey {
            return Ok(());
        }
        // The node that forwarded a call has counted it.
        if let Some(holder) = &holder
            && forwarded.is_none()
        {
            let one_more = holder.rate().call();
            one_more.map_err(|wait| Refusal::too_fast(holder.name(), "calls", wait))?;
        }
        let caller = Caller {
            namespace: call::namespace(request.headers())?,
            holder,
            only_reads: !needs.changes(),
            is_forwarded: forwarded.is_some(),
        };
        caller.check_method(needs)?;
        if self.node_secret.is_some() {
            self.vouch(request, forwarded, certificate);
        }
        request.extensions_mut().insert(caller);
        Ok(())
    }

    /// Returns the key's holder. A key that is sent takes precedence over a certificate, because a
    /// gateway's certificate may serve many callers. An invalid key is refused.
    fn holder(
        &self,
        headers: &HeaderMap,
        certificate: Option<&ClientCertificate>,
        is_vouched: bool,
    ) -> Result<Option<Arc<KeyHolder>>, KeyRefusal> {
        let Some(keys) = &self.keys else {
            return Ok(None);
        };
        keys.reload_if_changed();
        if keys.is_open() {
            return Ok(None);
        }
        if headers.contains_key(AUTHORIZATION) {
            let key = bearer(headers).ok_or(KeyRefusal::Missing)?;
            return keys.holder(key).map(Some);
        }
        let told = match is_vouched {
            true => told_certificate(headers),
            false => None,
        };
        let certificate = told.as_ref().or(certificate);
        let certificate = certificate.ok_or(KeyRefusal::Missing)?;
        keys.holder_of(certificate).map(Some)
    }

    /// Marks a call for the router: as forwarded to a shard, or else with the subject of its
    /// certificate, which the owner of its shard cannot see.
    fn vouch(
        &self,
        request: &mut Request<Body>,
        forwarded: Option<ForwardedShard>,
        certificate: Option<&ClientCertificate>,
    ) {
        if let Some(shard) = forwarded {
            request.extensions_mut().insert(shard);
            return;
        }
        if self.is_beside {
            // The other part of this process has marked it.
            return;
        }
        request.headers_mut().remove(CERTIFICATE_KEY);
        let subject = certificate.and_then(|certificate| certificate.subject.as_ref());
        if let Some(word) = subject.and_then(|subject| certificate_word(subject).parse().ok()) {
            request.headers_mut().insert(CERTIFICATE_KEY, word);
        }
    }
}

/// The metadata key by which a part of this process, or another node, passes on a certificate's
/// subject.
pub const CERTIFICATE_KEY: &str = "treering-certificate-subject";

/// Encodes a subject for that header: subjects may be non-ASCII, headers may not.
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

/// Returns the key that a call sends.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    const SCHEME: &str = "bearer ";
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then(|| key.trim())
}

/// The caller and the namespace of a call.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(crate) namespace: Namespace,
    /// `None`: no key was required.
    holder: Option<Arc<KeyHolder>>,
    /// The method changes nothing, so the call counts as a read of every conversation that it
    /// names.
    only_reads: bool,
    /// Another node forwarded the call.
    is_forwarded: bool,
}

impl Caller {
    /// Returns a caller without a key.
    #[cfg(test)]
    pub(crate) fn anybody(namespace: Namespace) -> Self {
        Self {
            namespace,
            holder: None,
            only_reads: true,
            is_forwarded: false,
        }
    }

    fn check_method(&self, needs: MethodRequirement) -> Result<(), Denied> {
        if needs.changes() && self.namespace.is_reserved() {
            return Err(Denied::Reserved {
                namespace: self.namespace.clone(),
            });
        }
        let Some(holder) = &self.holder else {
            return Ok(());
        };
        match needs {
            MethodRequirement::Nothing | MethodRequirement::AnyKey => Ok(()),
            MethodRequirement::Role(role) => self.check(role),
            MethodRequirement::Appending => self
                .check(KeyRole::Writer)
                .or_else(|denied| self.check(KeyRole::Approver).map_err(|_| denied)),
            MethodRequirement::Store if holder.may_all() => Ok(()),
            MethodRequirement::Store => Err(Denied::Store {
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

    /// Checks whether the key is still valid, for long calls.
    pub(crate) fn check_again(&self) -> Result<(), KeyRefusal> {
        self.holder.as_ref().map_or(Ok(()), |holder| holder.check())
    }

    /// Returns the counter of its requests and answers, or `None` without a key.
    pub(crate) fn counted(&self) -> Option<TrafficCounter> {
        Some(TrafficCounter {
            is_forwarded: self.is_forwarded,
            holder: Arc::clone(self.holder.as_ref()?),
            namespace: self.namespace.clone(),
        })
    }

    /// Records that a call names a conversation. If the call changes nothing, it counts as a read.
    pub(crate) fn names(&self, conversation: ConversationId) {
        if self.only_reads {
            self.reads([conversation]);
        }
    }

    /// Records that the answer comes from these conversations.
    pub(crate) fn reads(&self, conversations: impl IntoIterator<Item = ConversationId>) {
        if let Some(holder) = &self.holder {
            let reads = holder.reads();
            reads.add_conversations(&self.namespace, conversations, MANY_READ);
        }
    }

    /// Returns true when the caller may see figures of the whole store: without keys, or as an
    /// admin of every namespace.
    pub(crate) fn may_see_store(&self) -> bool {
        self.holder.as_ref().is_none_or(|holder| holder.may_all())
    }

    /// Returns the key's name and id, or `None` without a key.
    pub(crate) fn key(&self) -> Option<(&str, &KeyId)> {
        let holder = self.holder.as_ref()?;
        Some((holder.name(), holder.id()))
    }

    /// Waits until the key is no longer valid; without a key, forever.
    pub(crate) async fn wait_until_invalid(&self) -> KeyRefusal {
        match &self.holder {
            Some(holder) => holder.wait_until_invalid().await,
            None => std::future::pending().await,
        }
    }

    /// Returns the actor: the name of the key, or without a key the actor that the client names.
    pub(crate) fn actor(&self, said: String) -> String {
        match &self.holder {
            Some(holder) => holder.name().to_owned(),
            None => said,
        }
    }

    /// Checks that an event may be appended, and sets its actor.
    ///
    /// # Errors
    /// [`Denied::Role`].
    pub(crate) fn sign(&self, event: &mut NewEvent<EncodedBody>) -> Result<(), Refusal> {
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

/// Counts bytes received and sent with a key.
#[derive(Clone, Debug)]
pub(super) struct TrafficCounter {
    holder: Arc<KeyHolder>,
    namespace: Namespace,
    /// The node that forwarded the call has counted its request.
    is_forwarded: bool,
}

impl TrafficCounter {
    /// Counts a received request.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` when the key's rate limit is exceeded.
    pub(crate) fn take(&self, bytes: usize) -> Result<(), Status> {
        if self.is_forwarded {
            return Ok(());
        }
        let taken = self.holder.rate().request(bytes);
        taken.map_err(|wait| Refusal::too_fast(self.holder.name(), "bytes", wait).into())
    }

    /// Counts sent bytes of an answer.
    pub(crate) fn sends(&self, bytes: usize) {
        let reads = self.holder.reads();
        reads.add_bytes(&self.namespace, bytes, MANY_READ);
    }
}

/// Returns the `decided_by` to record, if it must differ from the client's: the key's name,
/// followed by the person whom the client names.
fn decided_by(key: &str, decided: &ApprovalDecided) -> Option<String> {
    match decided.decided_by.as_str() {
        said if said == key => None,
        "" => Some(key.to_owned()),
        said => Some(format!("{key}: {said}")),
    }
}

/// Field number of `ApprovalDecided.decided_by` in `proto/treering/v1/event.proto`.
const DECIDED_BY: u32 = 4;

/// Returns the decision with another `decided_by`. The field is appended again: readers take the
/// last value, and unknown fields are kept.
fn with_decided_by(body: &EncodedBody, who: &str) -> Result<EncodedBody, InvalidField> {
    let mut bytes = BytesMut::from(&body.bytes()[..]);
    let mut field = Vec::with_capacity(who.len() + 8);
    encoding::string::encode(DECIDED_BY, &who.to_owned(), &mut field);
    bytes.put_slice(&field);
    EncodedBody::received(EventKind::ApprovalDecided, bytes.freeze()).map_err(|fault| {
        InvalidField::new(
            "approval_decided.decided_by",
            format!("{}, including the key's name before it", fault.problem),
        )
    })
}
