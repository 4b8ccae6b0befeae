//! Text arguments, given directly, as `@FILE`, or as `-` for standard input.
//!
//! Pasted text often begins with a dash: `--- FAIL: TestX`, `- name: checkout`. Such text is
//! accepted, but a single word with a dash is refused as a mistyped option.

use std::{ffi::OsStr, fs, io::Read, path::PathBuf};

use clap::{
    Arg, Command,
    builder::{StringValueParser, TypedValueParser},
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::error::ClientError;

/// Parses the value of an option for text that may begin with a dash (`allow_hyphen_values`).
///
/// # Errors
/// A single word that begins with a dash.
pub(crate) fn free_text(text: &str) -> Result<String, String> {
    match is_option_like(text) {
        true => Err("a single word that begins with a dash looks like an option".into()),
        false => Ok(text.to_owned()),
    }
}

/// Parses a positional word of text (`allow_hyphen_values`). Words after `--` belong to another
/// argument, which accepts anything.
#[derive(Clone, Debug)]
pub(crate) struct FreeWord;

impl TypedValueParser for FreeWord {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        let word = StringValueParser::new().parse_ref(command, arg, value)?;
        if !is_option_like(&word) {
            return Ok(word);
        }
        let tips = [
            format!("to pass '{word}' as a value, use '-- {word}'"),
            "separate an option from its value: '-n 5', not '-n5'".to_owned(),
        ];
        let tips = tips
            .into_iter()
            .take(if word.starts_with("--") { 1 } else { 2 });
        let mut error = clap::Error::new(ErrorKind::UnknownArgument).with_cmd(command);
        error.insert(ContextKind::InvalidArg, ContextValue::String(word.clone()));
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(tips.map(Into::into).collect()),
        );
        Err(error)
    }
}

/// Returns true if a text is JSON.
pub(crate) fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

/// Returns true for a single word that begins with a dash, other than `-`.
fn is_option_like(text: &str) -> bool {
    text.len() > 1 && text.starts_with('-') && !text.contains(char::is_whitespace)
}

/// Returns the text of an argument. `@@` escapes a leading `@`.
///
/// # Errors
/// [`ClientError::ReadFile`] if it names a file that cannot be read as text.
pub(crate) fn text_of(argument: &str) -> Result<String, ClientError> {
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

fn unreadable(path: PathBuf, cause: std::io::Error) -> ClientError {
    ClientError::ReadFile { path, cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A summary that begins with an @ must not be taken as a file, and a missing file must not
    // become an empty summary.
    #[test]
    fn text_argument_reads_text_or_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "from a file\n").unwrap();
        let named = format!("@{}", file.path().display());
        assert_eq!(text_of(&named).unwrap(), "from a file\n");
        assert_eq!(text_of("plain @ text").unwrap(), "plain @ text");
        assert_eq!(text_of("@@ada said").unwrap(), "@ada said");
        let missing = text_of("@/nowhere/at/all");
        assert!(matches!(missing, Err(ClientError::ReadFile { .. })));
    }
}
