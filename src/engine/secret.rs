//! Secrets of a store: 32 random bytes, each in a file of its own that only its owner reads.

use std::{fs, io, path::Path};

use crate::{
    disk,
    domain::{hex, unhex},
};

/// Bytes of a secret.
pub(super) const SECRET_BYTES: usize = 32;

/// The secret in a file: 64 hexadecimal digits and the end of a line. None where there is no
/// file.
///
/// # Errors
/// What the system says; [`io::ErrorKind::InvalidData`], with what to do, for a file that holds
/// none.
pub(super) fn read(path: &Path, what_to_do: &str) -> io::Result<Option<[u8; SECRET_BYTES]>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    unhex(text.trim_ascii_end()).map(Some).ok_or_else(|| {
        let what = format!("{} holds no key: {what_to_do}", path.display());
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

/// Makes a secret, and a file of it that lasts.
///
/// # Errors
/// What the system says.
pub(super) fn make(path: &Path) -> io::Result<[u8; SECRET_BYTES]> {
    let mut secret = [0; SECRET_BYTES];
    getrandom::fill(&mut secret).map_err(io::Error::other)?;
    let new = path.with_extension("new");
    disk::write(&new, format!("{}\n", hex(&secret)).as_bytes())?;
    disk::rename(&new, path)?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    // A secret that is read back as another one signs in another's name, or makes two persons
    // of one; and nobody else on the machine may read it.
    #[test]
    fn a_secret_is_read_back_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("some.key");
        assert_eq!(read(&path, "").unwrap(), None);
        let made = make(&path).unwrap();
        assert_eq!(read(&path, "").unwrap(), Some(made));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        for wrong in ["", "no key", &"0".repeat(63), &"g".repeat(64)] {
            fs::write(&path, wrong).unwrap();
            let error = read(&path, "put it back").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(error.to_string().ends_with("put it back"), "{error}");
        }
    }
}
