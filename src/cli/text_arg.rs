//! Arguments that are text, or say where it is: `@FILE`, or `-` for standard
//! input.

use std::{fs, io::Read, path::PathBuf};

use super::error::CliError;

/// The text that an argument stands for. `@@` begins a text with an `@`.
///
/// # Errors
/// [`CliError::ReadFile`] when it names what cannot be read as text.
pub fn text_of(argument: &str) -> Result<String, CliError> {
    if argument == "-" {
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        return match read {
            Ok(_) => Ok(text),
            Err(cause) => Err(unreadable("standard input".into(), cause)),
        };
    }
    match argument.strip_prefix('@') {
        Some(rest) if rest.starts_with('@') => Ok(rest.to_owned()),
        Some(path) => {
            let path = PathBuf::from(path);
            fs::read_to_string(&path).map_err(|cause| unreadable(path, cause))
        }
        None => Ok(argument.to_owned()),
    }
}

fn unreadable(path: PathBuf, cause: std::io::Error) -> CliError {
    CliError::ReadFile { path, cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A summary that begins with an @ must not be taken for a file, and a file
    // that is not there must not become an empty summary.
    #[test]
    fn texts_and_files_are_told_apart() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "from a file\n").unwrap();
        let named = format!("@{}", file.path().display());
        assert_eq!(text_of(&named).unwrap(), "from a file\n");
        assert_eq!(text_of("plain @ text").unwrap(), "plain @ text");
        assert_eq!(text_of("@@ada said").unwrap(), "@ada said");
        let missing = text_of("@/nowhere/at/all");
        assert!(matches!(missing, Err(CliError::ReadFile { .. })));
    }
}
