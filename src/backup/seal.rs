//! Wraps objects: compressed, encrypted if there is a key, and followed by a BLAKE3 hash of
//! everything. `docs/BACKUP.md` specifies the bytes.

use std::{fmt, io::Read, path::Path};

use bytes::Bytes;
use chacha20poly1305::{
    XChaCha20Poly1305, XNonce,
    aead::{Aead, KeyInit, Payload},
};
use uuid::Uuid;

use super::error::BackupError;
use treering_base::disk;
use treering_domain::unhex;

const MAGIC: [u8; 4] = *b"TRBU";
/// The format that this program writes, and the newest that it reads.
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 48;
const SUM_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
const KEY_ID_BYTES: usize = 8;
/// Zstandard level: objects are written once and rarely read.
const ZSTD_LEVEL: i32 = 3;
/// Largest unpacked object in bytes: the largest batch, with its large bodies.
const RAW_BYTES_MAX: u64 = 1 << 30;
/// Context string for deriving the key's id.
const KEY_ID: &str = "treering backup 2026 key id";
/// Longest key file in bytes.
const KEY_FILE_BYTES_MAX: u64 = 1 << 12;

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectKind {
    Records = 1,
    Manifest = 2,
}

/// Identity of an object, which the key authenticates together with the content.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectIdentity {
    pub(crate) kind: ObjectKind,
    pub(crate) store: Uuid,
    /// First and last offset; for a manifest, its generation twice.
    pub(crate) range: (u64, u64),
}

/// A 32-byte key that encrypts objects.
#[derive(Clone)]
pub struct EncryptionKey {
    bytes: [u8; 32],
    id: [u8; KEY_ID_BYTES],
}

impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl EncryptionKey {
    /// Creates a key from these bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        let mut id = [0; KEY_ID_BYTES];
        let derived = blake3::derive_key(KEY_ID, &bytes);
        id.copy_from_slice(&derived[..KEY_ID_BYTES]);
        Self { bytes, id }
    }

    /// Reads the key in a file: 64 hexadecimal digits, or 32 bytes.
    ///
    /// # Errors
    /// [`BackupError::Key`] when the file has no valid key.
    pub fn from_file(path: &Path) -> Result<Self, BackupError> {
        let unusable = |what: String| BackupError::Key {
            path: path.to_owned(),
            what,
        };
        let file = disk::open_secret(path).map_err(|error| unusable(error.to_string()))?;
        let mut read = Vec::new();
        let mut file = file.take(KEY_FILE_BYTES_MAX);
        file.read_to_end(&mut read)
            .map_err(|error| unusable(error.to_string()))?;
        let bytes = match <[u8; 32]>::try_from(&read[..]) {
            Ok(bytes) => Some(bytes),
            Err(_) => unhex(read.trim_ascii()),
        };
        bytes
            .map(Self::new)
            .ok_or_else(|| unusable("it must have 64 hexadecimal digits or 32 bytes".to_owned()))
    }
}

/// Wrapped content, with the hash that names it.
pub(super) struct SealedObject {
    pub(crate) bytes: Bytes,
    pub(crate) sum: blake3::Hash,
}

/// Wraps content.
///
/// # Errors
/// When it cannot be compressed or encrypted.
pub(super) fn seal(
    place: ObjectIdentity,
    raw: &[u8],
    key: Option<&EncryptionKey>,
) -> Result<SealedObject, BackupError> {
    let packed = zstd::bulk::compress(raw, ZSTD_LEVEL);
    let packed = packed.map_err(|error| BackupError::internal("compressing", error))?;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + packed.len() + 16 + SUM_BYTES);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[VERSION, place.kind as u8, u8::from(key.is_some()), 0]);
    bytes.extend_from_slice(&key.map_or([0; KEY_ID_BYTES], |key| key.id));
    bytes.extend_from_slice(&(raw.len() as u64).to_le_bytes());
    let nonce = if key.is_some() {
        nonce()
    } else {
        [0; NONCE_BYTES]
    };
    bytes.extend_from_slice(&nonce);
    match key {
        None => bytes.extend_from_slice(&packed),
        Some(key) => {
            let vouched = vouched(&bytes, place);
            let payload = Payload {
                msg: &packed,
                aad: &vouched,
            };
            let encrypted = cipher(key).encrypt(&XNonce::from(nonce), payload);
            let encrypted =
                encrypted.map_err(|error| BackupError::internal("encrypting", error))?;
            bytes.extend_from_slice(&encrypted);
        }
    }
    let sum = blake3::hash(&bytes);
    bytes.extend_from_slice(sum.as_bytes());
    Ok(SealedObject {
        bytes: bytes.into(),
        sum,
    })
}

/// Why content cannot be unwrapped. The text continues a message that begins with the object's
/// name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UnsealError {
    /// It differs from what was written.
    Changed(String),
    /// It may be sound, but the key is wrong or missing.
    Locked(&'static str),
}

impl From<String> for UnsealError {
    fn from(what: String) -> Self {
        Self::Changed(what)
    }
}

impl From<&str> for UnsealError {
    fn from(what: &str) -> Self {
        Self::Changed(what.to_owned())
    }
}

impl UnsealError {
    /// Creates the error for an object with this address.
    pub(crate) fn of(self, object: String) -> BackupError {
        match self {
            Self::Changed(what) => BackupError::Damaged { object, what },
            Self::Locked(what) => BackupError::Locked { object, what },
        }
    }
}

/// Unwraps content.
///
/// # Errors
/// Why it cannot be unwrapped.
pub(super) fn open(
    place: ObjectIdentity,
    bytes: &[u8],
    key: Option<&EncryptionKey>,
) -> Result<Vec<u8>, UnsealError> {
    let changed = || "BLAKE3 mismatch";
    if bytes.len() < HEADER_BYTES + SUM_BYTES {
        return Err(format!("it is truncated: it has {} bytes", bytes.len()).into());
    }
    if bytes[..4] != MAGIC {
        return Err("it is not an object of a treering backup".into());
    }
    let (content, sum) = bytes.split_at(bytes.len() - SUM_BYTES);
    if blake3::hash(content).as_bytes() != sum {
        return Err(changed().into());
    }
    if content[4] != VERSION {
        return Err(format!(
            "it has format version {}, this program reads {VERSION}: use the version of treering \
             that wrote it",
            content[4]
        )
        .into());
    }
    if content[5] != place.kind as u8 {
        return Err("it is stored under the wrong name".into());
    }
    let (header, payload) = content.split_at(HEADER_BYTES);
    let mut raw_len = [0; 8];
    raw_len.copy_from_slice(&header[16..24]);
    let raw_len = u64::from_le_bytes(raw_len);
    if raw_len > RAW_BYTES_MAX {
        return Err("its stated size exceeds the maximum".into());
    }
    let decrypted;
    let packed = match (header[6], key) {
        (0, _) => payload,
        (_, None) => return Err(UnsealError::Locked("it is encrypted")),
        (_, Some(key)) => {
            decrypted = decrypt(place, header, payload, key)?;
            &decrypted
        }
    };
    let raw = zstd::bulk::decompress(packed, raw_len as usize).map_err(|_| changed())?;
    if raw.len() as u64 != raw_len {
        return Err(changed().into());
    }
    Ok(raw)
}

fn decrypt(
    place: ObjectIdentity,
    header: &[u8],
    payload: &[u8],
    key: &EncryptionKey,
) -> Result<Vec<u8>, UnsealError> {
    if header[8..16] != key.id {
        return Err(UnsealError::Locked("it is encrypted with another key"));
    }
    let mut nonce = [0; NONCE_BYTES];
    nonce.copy_from_slice(&header[24..HEADER_BYTES]);
    let vouched = vouched(header, place);
    let payload = Payload {
        msg: payload,
        aad: &vouched,
    };
    cipher(key)
        .decrypt(&XNonce::from(nonce), payload)
        .map_err(|_| "it was changed or is stored under the wrong name".into())
}

/// True when content is encrypted.
pub(super) fn is_encrypted(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC) && bytes.get(6).is_some_and(|flag| *flag != 0)
}

fn cipher(key: &EncryptionKey) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&key.bytes.into())
}

fn vouched(header: &[u8], place: ObjectIdentity) -> Vec<u8> {
    let mut vouched = header.to_vec();
    vouched.extend_from_slice(place.store.as_bytes());
    vouched.extend_from_slice(&place.range.0.to_le_bytes());
    vouched.extend_from_slice(&place.range.1.to_le_bytes());
    vouched
}

/// Returns random bytes for a single use.
fn nonce() -> [u8; NONCE_BYTES] {
    // Each UUID has 122 random bits.
    let two = [Uuid::new_v4().into_bytes(), Uuid::new_v4().into_bytes()].concat();
    let mut nonce = [0; NONCE_BYTES];
    nonce.copy_from_slice(&blake3::hash(&two).as_bytes()[..NONCE_BYTES]);
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> ObjectIdentity {
        ObjectIdentity {
            kind: ObjectKind::Records,
            store: Uuid::nil(),
            range: (1, 9),
        }
    }

    // A damaged, truncated or swapped object must never be accepted. With a key, nobody else can
    // create a valid object.
    #[test]
    fn changed_truncated_or_swapped_object_is_refused() {
        let raw = b"some records, some records, some records".repeat(20);
        let (key, other) = (EncryptionKey::new([7; 32]), EncryptionKey::new([8; 32]));
        for key in [None, Some(&key)] {
            let sealed = seal(place(), &raw, key).unwrap().bytes;
            assert_eq!(open(place(), &sealed, key).unwrap(), raw);
            assert_eq!(is_encrypted(&sealed), key.is_some());
            for at in 0..sealed.len() {
                let mut changed = sealed.to_vec();
                changed[at] ^= 1;
                assert!(open(place(), &changed, key).is_err(), "byte {at}");
                assert!(open(place(), &sealed[..at], key).is_err(), "cut at {at}");
            }
        }
        let sealed = seal(place(), &raw, Some(&key)).unwrap().bytes;
        let moved = ObjectIdentity {
            range: (10, 19),
            ..place()
        };
        let (moved, others, unread) = (
            open(moved, &sealed, Some(&key)).unwrap_err(),
            open(place(), &sealed, Some(&other)).unwrap_err(),
            open(place(), &sealed, None).unwrap_err(),
        );
        assert!(
            matches!(moved, UnsealError::Changed(what) if what.contains("under the wrong name"))
        );
        assert!(matches!(others, UnsealError::Locked(what) if what.contains("another key")));
        assert!(matches!(unread, UnsealError::Locked(what) if what.contains("encrypted")));
        assert!(!sealed.windows(12).any(|window| window == b"some records"));
    }

    // When encrypted, equal content must not be recognizable as equal.
    #[test]
    fn each_sealed_object_has_a_new_nonce() {
        let key = EncryptionKey::new([7; 32]);
        let one = seal(place(), b"the same", Some(&key)).unwrap().bytes;
        let two = seal(place(), b"the same", Some(&key)).unwrap().bytes;
        assert_ne!(one[24..48], two[24..48]);
    }

    // A key file may have a line feed, upper case digits or raw bytes; anything else must be an
    // error that names the file.
    #[test]
    fn key_file_is_parsed_or_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        let read = |content: &[u8]| {
            disk::write(&file, content).unwrap();
            EncryptionKey::from_file(&file).map(|key| key.bytes)
        };
        assert_eq!(read("0A".repeat(32).as_bytes()).unwrap(), [10; 32]);
        assert_eq!(
            read(format!("{}\n", "0a".repeat(32)).as_bytes()).unwrap(),
            [10; 32]
        );
        assert_eq!(read(&[3; 32]).unwrap(), [3; 32]);
        for wrong in [&b""[..], b"xy", &[3; 31], "0g".repeat(32).as_bytes()] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains(&file.display().to_string()), "{error}");
        }
    }
}
