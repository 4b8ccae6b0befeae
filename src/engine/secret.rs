//! Secrets of a store. Each secret is 32 random bytes in its own file, which only the file's owner
//! can read.

use std::{io, path::Path};

use treering_base::disk;
use treering_domain::{hex, unhex};

/// Length of a secret, in bytes.
pub(super) const SECRET_BYTES: usize = 32;

/// Reads the secret in a file: 64 hexadecimal digits and a line end. `None` if there is no file.
///
/// # Errors
/// The I/O error; [`io::ErrorKind::InvalidData`] for a file without a valid secret, with
/// `what_to_do` in the message.
pub(super) fn read(path: &Path, what_to_do: &str) -> io::Result<Option<[u8; SECRET_BYTES]>> {
    let text = match disk::read_secret(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    unhex(text.trim_ascii_end()).map(Some).ok_or_else(|| {
        let what = format!("{} has no valid key: {what_to_do}", path.display());
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

/// Creates a secret and a durable file for it.
///
/// # Errors
/// The I/O error.
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
    use std::fs;

    use super::*;

    // A misread secret would sign as another store, or give one person two pseudonyms. Nobody else
    // on the machine may read it.
    #[test]
    fn secret_round_trips_or_is_refused() {
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
