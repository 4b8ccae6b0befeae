use std::{sync::Barrier, thread, time::Duration};

use super::*;
use crate::{GrantScope, IssuedKey, KeyLimits, NewKey, create, read, revoke, rotate};

const HOUR: Duration = Duration::from_secs(3_600);

fn new_key(name: &str, expires_in: Option<Duration>) -> NewKey {
    NewKey {
        name: name.into(),
        roles: vec![Grant {
            role: KeyRole::Writer,
            namespace: GrantScope::Every,
        }],
        expires_in,
        limits: KeyLimits::default(),
        by: "ada".into(),
    }
}

fn made(dir: &Path, name: &str) -> IssuedKey {
    create(dir, new_key(name, None)).unwrap()
}

fn holder(ring: &Arc<KeyStore>, key: &IssuedKey) -> Result<Arc<KeyHolder>, KeyRefusal> {
    ring.reload_if_changed();
    ring.holder(key.token.reveal())
}

// The life of keys while a server runs: a new key is accepted, a revoked one is not, and a refusal
// says what is wrong with the key.
#[test]
fn key_creation_and_revocation_apply_without_restart() {
    let dir = tempfile::tempdir().unwrap();
    let ring = KeyStore::open(dir.path()).unwrap();
    assert!(ring.is_open());
    let key = made(dir.path(), "ci");
    let other = made(dir.path(), "agent");
    assert_eq!(holder(&ring, &key).unwrap().name(), "ci");
    assert!(!ring.is_open() && ring.has_living());

    let forged = KeyToken::with_id(key.record.id.clone()).unwrap();
    assert_eq!(
        ring.holder(forged.reveal()).unwrap_err(),
        KeyRefusal::Unknown
    );
    let unknown = KeyToken::generate().unwrap();
    assert_eq!(
        ring.holder(unknown.reveal()).unwrap_err(),
        KeyRefusal::Unknown
    );
    let text = other.token.reveal();
    let typo = ring.holder(&text[..text.len() - 1]).unwrap_err();
    assert_eq!(typo, KeyRefusal::Malformed(TokenError::Mistyped));

    revoke(dir.path(), "ci", "ada").unwrap();
    assert_eq!(
        holder(&ring, &key).unwrap_err(),
        KeyRefusal::Revoked("ci".into())
    );
    holder(&ring, &other).unwrap();
    revoke(dir.path(), other.record.id.as_str(), "ada").unwrap();
    holder(&ring, &other).unwrap_err();
    assert!(!ring.is_open(), "keys that have ended open nothing");
    assert!(!ring.has_living());
    let again = KeyStore::open(dir.path()).unwrap();
    assert!(!again.is_open());
}

// A replaced secret must stay valid for its grace period and no longer; so must a key that expires.
#[test]
fn rotated_secrets_and_keys_expire_on_time() {
    let dir = tempfile::tempdir().unwrap();
    let key = made(dir.path(), "ci");
    let ring = KeyStore::open(dir.path()).unwrap();
    let second = rotate(dir.path(), "ci", HOUR, "ada").unwrap();
    assert_eq!(second.record.id, key.record.id);
    holder(&ring, &key).unwrap();
    holder(&ring, &second).unwrap();
    let third = rotate(dir.path(), "ci", Duration::ZERO, "ada").unwrap();
    for old in [&key, &second] {
        assert_eq!(
            holder(&ring, old).unwrap_err(),
            KeyRefusal::Expired("ci".into())
        );
    }
    holder(&ring, &third).unwrap();
    // Ended secrets are not kept.
    let fourth = rotate(dir.path(), "ci", HOUR, "ada").unwrap();
    assert_eq!(fourth.record.secrets.len(), 2);

    let over = create(dir.path(), new_key("over", Some(Duration::ZERO))).unwrap();
    assert_eq!(
        holder(&ring, &over).unwrap_err(),
        KeyRefusal::Expired("over".into())
    );
    assert!(matches!(
        rotate(dir.path(), "over", HOUR, ""),
        Err(KeyFileError::Ended(_))
    ));
}

// A stream holds a key for hours: it must be told when the key ends.
#[tokio::test]
async fn holder_is_notified_when_its_key_ends() {
    let dir = tempfile::tempdir().unwrap();
    let key = made(dir.path(), "ci");
    let other = made(dir.path(), "agent");
    let ring = KeyStore::open(dir.path()).unwrap();
    let (held, kept) = (holder(&ring, &key).unwrap(), holder(&ring, &other).unwrap());
    let mut ended = tokio::spawn(async move { held.wait_until_invalid().await });
    let stays = tokio::spawn(async move { kept.wait_until_invalid().await });
    let early = tokio::time::timeout(Duration::from_millis(20), &mut ended).await;
    assert!(early.is_err(), "{early:?}");
    revoke(dir.path(), "ci", "ada").unwrap();
    ring.reload_if_changed();
    assert_eq!(ended.await.unwrap(), KeyRefusal::Revoked("ci".into()));
    assert!(!stays.is_finished());

    let brief = create(
        dir.path(),
        new_key("brief", Some(Duration::from_millis(300))),
    )
    .unwrap();
    let brief = holder(&ring, &brief).unwrap();
    assert_eq!(
        brief.wait_until_invalid().await,
        KeyRefusal::Expired("brief".into())
    );
}

// A file that is lost, emptied or damaged under a running server must not open the store, and a
// server must not start with a damaged one.
#[test]
fn missing_or_damaged_key_file_does_not_open_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let key = made(dir.path(), "ci");
    let ring = KeyStore::open(dir.path()).unwrap();
    let path = file::path(dir.path());
    let sound = fs::read(&path).unwrap();
    let empty = br#"{"format": 1, "keys": []}"#;
    for bad in [
        None,
        Some(&b"{"[..]),
        Some(empty),
        Some(br#"{"format": 2, "keys": []}"#),
    ] {
        match bad {
            Some(text) => disk::write(&path, text).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        holder(&ring, &key).unwrap();
        assert!(!ring.is_open(), "{bad:?}");
        let readable = bad.is_none() || bad == Some(empty);
        assert_eq!(KeyStore::open(dir.path()).is_ok(), readable);
    }
    disk::write(&path, &sound).unwrap();
    revoke(dir.path(), "ci", "ada").unwrap();
    holder(&ring, &key).unwrap_err();
}

// Concurrent creations must not lose a key; no two living keys share a name.
#[test]
fn concurrent_key_changes_are_all_kept() {
    const EACH: usize = 10;
    let dir = tempfile::tempdir().unwrap();
    let barrier = Barrier::new(4);
    thread::scope(|scope| {
        for person in 0..4 {
            let (barrier, dir) = (&barrier, dir.path());
            scope.spawn(move || {
                barrier.wait();
                for number in 0..EACH {
                    made(dir, &format!("key-{person}-{number}"));
                }
            });
        }
    });
    assert_eq!(read(dir.path()).unwrap().keys.len(), 4 * EACH);
    let taken = create(dir.path(), new_key("key-1-1", None));
    assert!(matches!(taken, Err(KeyFileError::NameTaken(_))));
    revoke(dir.path(), "key-1-1", "").unwrap();
    made(dir.path(), "key-1-1");
    for bad in ["", "a b", "a/b", "a:b", "ä", "a\n"] {
        let bad = create(dir.path(), new_key(bad, None));
        assert!(matches!(bad, Err(KeyFileError::Invalid(_))));
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(file::path(dir.path())).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
    }
    let text = fs::read_to_string(file::path(dir.path())).unwrap();
    assert!(!text.contains("tr_live"), "a secret is in the file");
}

// A key's name may equal another key's id. Revoking by id once revoked the key with that name.
#[test]
fn an_id_comes_before_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let first = made(dir.path(), "ci");
    let id = first.record.id.as_str();
    made(dir.path(), id);
    assert_eq!(revoke(dir.path(), id, "ada").unwrap().name, "ci");
    let again = revoke(dir.path(), id, "ada");
    assert!(matches!(again, Err(KeyFileError::Ended(_))), "{again:?}");
}

// An unused key can be revoked safely, so times of last use must survive a restart.
#[test]
fn last_use_times_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (key, idle) = (made(dir.path(), "ci"), made(dir.path(), "idle"));
    let ring = KeyStore::open(dir.path()).unwrap();
    holder(&ring, &key).unwrap();
    ring.note_uses().unwrap();
    let ring = KeyStore::open(dir.path()).unwrap();
    ring.note_uses().unwrap();
    let uses = file::last_uses(dir.path());
    let age = TimestampMicros::now().0 - uses[&key.record.id].0;
    assert!((0..2 * LAST_USE_RESOLUTION_MICROS).contains(&age), "{age}");
    assert!(!uses.contains_key(&idle.record.id));
}

// A node takes the keys of its cluster over while its disk is full: a revoked key must be refused all
// the same, and the copy must not come back as the folder's own keys.
#[test]
fn copied_keys_are_in_force_even_if_they_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut keys = KeyFile::default();
    let (ops, agent) = (
        keys.create(new_key("ops", None)).unwrap(),
        keys.create(new_key("agent", None)).unwrap(),
    );
    let ring = KeyStore::open(dir.path()).unwrap();
    ring.replace(&keys).unwrap();
    holder(&ring, &ops).unwrap();
    assert_eq!(read(dir.path()).unwrap(), keys);
    let refused = revoke(dir.path(), "ops", "ada").unwrap_err();
    assert!(matches!(refused, KeyFileError::IsCopy(_)), "{refused}");

    keys.revoke("agent", "ada").unwrap();
    // A folder in place of the lock makes the replacement fail.
    let lock = dir.path().join("keys.lock");
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    ring.replace(&keys).unwrap_err();
    assert!(holder(&ring, &agent).is_err());
    holder(&ring, &ops).unwrap();
    fs::remove_dir(&lock).unwrap();
    ring.replace(&keys).unwrap();
    let again = KeyStore::open(dir.path()).unwrap();
    assert!(again.holder(agent.token.reveal()).is_err());
    // Nobody may get access because the table is empty.
    ring.replace(&KeyFile::default()).unwrap();
    holder(&ring, &ops).unwrap();
    assert!(!ring.is_open());
}
