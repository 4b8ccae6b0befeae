use std::{collections::BTreeSet, path::Path};

use prost::Message;
use prost_types::FileDescriptorSet;
use tonic::Code;

use super::*;
use crate as server;
use crate::NAMESPACE_KEY;
use treering_access::{
    Grant, GrantScope, KeyLimits, KeyToken, NewKey, create, create_for_certificate,
};
use treering_domain::{ContentHash, ConversationId, Decision, MessageAppended, Role};
use treering_proto::{access, body, pb};

const READ: &str = "/treering.v1.Events/Read";
const APPEND: &str = "/treering.v1.Events/Append";
const ERASE: &str = "/treering.v1.Conversations/Erase";
const VERIFY: &str = "/treering.v1.Admin/Verify";
const HEALTH: &str = "/grpc.health.v1.Health/Check";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

// A method without a rule would be closed to everyone, and a rule for a misspelt method would be a
// hole. Rules and descriptors must name the same methods.
#[test]
fn every_method_has_a_rule() {
    let mut served = BTreeSet::new();
    for bytes in server::served(&server::ServeOptions::default()) {
        for file in FileDescriptorSet::decode(bytes).unwrap().file {
            for service in &file.service {
                for method in &service.method {
                    let (package, service) = (file.package(), service.name());
                    served.insert(format!("/{package}.{service}/{}", method.name()));
                }
            }
        }
    }
    for path in &served {
        assert!(rules::of(path).is_some(), "{path} has no rule");
    }
    let ours = access::METHODS.iter().map(|(path, _)| *path);
    let foreign = rules::FOREIGN.iter().map(|(path, _)| *path);
    for path in ours.chain(foreign) {
        assert!(served.contains(path), "{path} is not served");
    }
}

fn key(dir: &Path, name: &str, roles: &[&str]) -> KeyToken {
    let roles = roles.iter().map(|role| {
        let (role, namespace) = role.split_once(':').unwrap();
        Grant {
            role: role.parse().unwrap(),
            namespace: GrantScope::try_from(namespace.to_owned()).unwrap(),
        }
    });
    let new = NewKey {
        name: name.into(),
        roles: roles.collect(),
        expires_in: None,
        limits: KeyLimits::default(),
        by: String::new(),
    };
    create(dir, new).unwrap().token
}

fn call(path: &str, key: Option<&KeyToken>, namespace: &str) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = path.parse().unwrap();
    let headers = request.headers_mut();
    headers.insert(NAMESPACE_KEY, namespace.parse().unwrap());
    if let Some(key) = key {
        let value = format!("Bearer {}", key.reveal());
        headers.insert(AUTHORIZATION, value.parse().unwrap());
    }
    request
}

fn refused(guard: &Guard, path: &str, key: Option<&KeyToken>, namespace: &str) -> Option<String> {
    let refusal = guard.admit(&mut call(path, key, namespace), None).err()?;
    let expected = if refusal.reason.starts_with("KEY_") {
        Code::Unauthenticated
    } else if refusal.reason == "UNKNOWN_METHOD" {
        Code::Unimplemented
    } else {
        Code::PermissionDenied
    };
    assert_eq!(refusal.code, expected, "{refusal:?}");
    Some(refusal.reason.to_owned())
}

// Expected permissions, written by hand: each role in its namespace, another, and a reserved one.
#[test]
fn each_role_grants_the_expected_methods() {
    let dir = tempfile::tempdir().unwrap();
    let guard = Guard::new(Some(KeyStore::open(dir.path()).unwrap()));
    for path in [READ, APPEND, ERASE, VERIFY, HEALTH, REFLECTION] {
        assert_eq!(
            refused(&guard, path, None, "a"),
            None,
            "no key was made: {path}"
        );
    }
    let reader = key(dir.path(), "reader", &["reader:a"]);
    let approver = key(dir.path(), "approver", &["approver:a"]);
    let both = key(dir.path(), "both", &["writer:a", "reader:b"]);
    let admin = key(dir.path(), "admin", &["admin:a"]);
    let all = key(dir.path(), "all", &["admin:*"]);
    let may = [
        (&reader, "a", vec![READ]),
        (&reader, "b", vec![]),
        (&approver, "a", vec![READ, APPEND]),
        (&both, "a", vec![READ, APPEND]),
        (&both, "b", vec![READ]),
        (&admin, "a", vec![READ, APPEND, ERASE]),
        (&admin, "b", vec![]),
        (&admin, "_system", vec![]),
        (&all, "b", vec![READ, APPEND, ERASE, VERIFY]),
        (&all, "_system", vec![READ, VERIFY]),
    ];
    for (key, namespace, allowed) in may {
        for path in [READ, APPEND, ERASE, VERIFY] {
            let reason = refused(&guard, path, Some(key), namespace);
            assert_eq!(
                reason.is_none(),
                allowed.contains(&path),
                "{key:?} {namespace} {path}"
            );
        }
        assert_eq!(refused(&guard, REFLECTION, Some(key), namespace), None);
    }
    assert_eq!(refused(&guard, HEALTH, None, "a"), None);
    for path in [
        READ,
        APPEND,
        VERIFY,
        REFLECTION,
        "/treering.v1.Events/New",
        "/x",
    ] {
        let reason = refused(&guard, path, None, "a");
        assert_eq!(reason.as_deref(), Some("KEY_MISSING"), "{path}");
    }
    let reason = refused(&guard, "/treering.v1.Events/New", Some(&all), "a");
    assert_eq!(reason.as_deref(), Some("UNKNOWN_METHOD"));
    let reason = refused(&guard, APPEND, Some(&all), "_system");
    assert_eq!(reason.as_deref(), Some("RESERVED_NAMESPACE"));
}

// Clients must not write the server's own records, with keys or without, over the network or in a
// pipe.
#[test]
fn appends_to_reserved_namespaces_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let keys = KeyStore::open(dir.path()).unwrap();
    for guard in [Guard::new(None), Guard::new(Some(keys))] {
        for path in [APPEND, ERASE] {
            let reason = refused(&guard, path, None, "_system");
            assert_eq!(reason.as_deref(), Some("RESERVED_NAMESPACE"));
        }
        assert_eq!(refused(&guard, READ, None, "_system"), None);
    }
}

// The metadata that names a certificate must be trusted from this process only.
#[test]
fn certificate_metadata_is_trusted_only_from_this_process() {
    let dir = tempfile::tempdir().unwrap();
    let subject = CertificateSubject::parse("CN=Jürgen,O=Acme").unwrap();
    let new = NewKey {
        name: "worker".into(),
        roles: vec![Grant {
            role: KeyRole::Reader,
            namespace: GrantScope::try_from("a".to_owned()).unwrap(),
        }],
        expires_in: None,
        limits: KeyLimits::default(),
        by: String::new(),
    };
    create_for_certificate(dir.path(), new, subject.clone()).unwrap();
    let word = certificate_word(&subject);
    let guard = Guard::new(Some(KeyStore::open(dir.path()).unwrap()));
    for (guard, is_beside) in [(guard.clone(), false), (guard.beside(true), true)] {
        for (word, is_its) in [(word.as_str(), true), ("x", false), ("Q049eA", false)] {
            let mut request = call(READ, None, "a");
            let headers = request.headers_mut();
            headers.insert(CERTIFICATE_KEY, word.parse().unwrap());
            let admitted = guard.admit(&mut request, None);
            assert_eq!(admitted.is_ok(), is_beside && is_its, "{word} {is_beside}");
        }
    }
}

// Clients in many languages send keys. The scheme is case-insensitive, and no other form is a key.
#[test]
fn bearer_key_is_parsed_from_headers() {
    let found = |value: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().unwrap());
        bearer(&headers).map(str::to_owned)
    };
    for value in ["Bearer k", "bearer k", "BEARER  k "] {
        assert_eq!(found(value).as_deref(), Some("k"));
    }
    for value in ["k", "Basic k", "Bearer", ""] {
        assert_eq!(found(value), None, "{value}");
    }
}

fn caller(dir: &Path, name: &str, roles: &[&str]) -> Caller {
    let token = key(dir, name, roles);
    let guard = Guard::new(Some(KeyStore::open(dir).unwrap()));
    let mut request = call(READ, Some(&token), "a");
    guard.admit(&mut request, None).unwrap();
    request.extensions().get::<Caller>().unwrap().clone()
}

fn event(body: &EventBody, more: &[u8]) -> NewEvent<EncodedBody> {
    let bytes = [&body::encode(body)[..], more].concat();
    let body = EncodedBody::received(body.kind(), bytes.into()).unwrap();
    NewEvent {
        actor: "somebody else".into(),
        ..NewEvent::new(ConversationId::generate(), body)
    }
}

fn decision(by: &str) -> EventBody {
    EventBody::ApprovalDecided(ApprovalDecided {
        call_id: "call_1".into(),
        decision: Decision::Approved,
        arguments_hash: ContentHash([7; 32]),
        decided_by: by.into(),
        reason: String::new(),
    })
}

// An agent that may append must not approve its own calls, and the recorded decider must be the
// key's holder, whatever the client says. Fields of newer clients are kept.
#[test]
fn actor_is_set_and_approval_requires_the_role() {
    let dir = tempfile::tempdir().unwrap();
    let writer = caller(dir.path(), "agent", &["writer:a"]);
    let approver = caller(dir.path(), "console", &["approver:a"]);
    let message = EventBody::MessageAppended(MessageAppended::text(Role::User, "hello"));

    let mut said = event(&message, &[]);
    writer.sign(&mut said).unwrap();
    assert_eq!(said.actor, "agent");
    let denied = approver.sign(&mut event(&message, &[])).unwrap_err();
    assert_eq!(denied.reason, "ROLE_MISSING");
    let denied = writer.sign(&mut event(&decision("ada"), &[])).unwrap_err();
    assert_eq!(denied.reason, "ROLE_MISSING");

    // Field 99, a varint.
    let newer = [0x98, 0x06, 0x05];
    for (said, written) in [
        ("ada", "console: ada"),
        ("", "console"),
        ("console", "console"),
    ] {
        let mut decided = event(&decision(said), &newer);
        approver.sign(&mut decided).unwrap();
        assert_eq!(decided.actor, "console");
        let EventBody::ApprovalDecided(body) = decided.body.body() else {
            panic!("{decided:?}");
        };
        assert_eq!(body.decided_by, written);
        let bytes = decided.body.bytes();
        let decoded = pb::ApprovalDecided::decode(bytes.clone()).unwrap();
        assert_eq!(decoded.decided_by, written);
        assert!(bytes.windows(3).any(|part| part == newer));
    }
    let nobody = Caller::anybody(Namespace::default());
    let mut free = event(&decision("ada"), &[]);
    nobody.sign(&mut free).unwrap();
    assert_eq!(free.actor, "somebody else");
}
