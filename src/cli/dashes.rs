//! Texts that begin with a dash, as lines that are pasted often do: `--- FAIL: TestX`,
//! `- name: checkout`, `-rw-r--r--`. They are told from options before the line is read.
//!
//! What has a blank in it is a text, unless it is `--OPTION=…`. What has none and is no
//! option that the command knows is one, too, where the command takes free text (its
//! argument is marked with [`ValueHint::Other`]: nothing can be completed there); what is
//! nearly an option is left to be refused as that one mistyped. A line with such texts is
//! written anew: options first, then `--`, then the rest; a text that follows an option
//! which takes a value becomes `--option=text`.

use std::{any::TypeId, ffi::OsString};

use clap::{Arg, ArgAction, Command, ValueHint};

/// So many letters at most are mistyped in what is nearly an option.
const MISTYPED_MAX: usize = 2;
/// Shorter words are like too many options.
const MISTYPED_CHARS_MIN: usize = 4;

/// The words of a command line, program first, such that texts are read as texts.
#[must_use]
pub fn told_apart(words: Vec<OsString>, mut command: Command) -> Vec<OsString> {
    command.build();
    let texts: Option<Vec<String>> = words
        .iter()
        .map(|word| word.to_str().map(str::to_owned))
        .collect();
    // What is no Unicode is a path: nothing of it begins with a dash and is a text.
    let Some(texts) = texts else {
        return words;
    };
    match Line::read(&texts, &command) {
        Some(line) => line.words.into_iter().map(Into::into).collect(),
        None => words,
    }
}

/// A line that is written anew.
#[derive(Default)]
struct Line {
    words: Vec<String>,
    /// What is given without an option, to the innermost command.
    positional: Vec<String>,
    /// There is a text that would be taken for an option.
    is_needed: bool,
}

impl Line {
    /// None: the line can be read as it is.
    fn read(words: &[String], command: &Command) -> Option<Self> {
        let mut line = Self::default();
        let mut command = command;
        let mut words = words.iter();
        line.words.extend(words.next().cloned());
        while let Some(word) = words.next() {
            if word == "--" {
                line.positional.extend(words.cloned());
                break;
            }
            if !is_dashed(word) {
                match command.find_subcommand(word) {
                    Some(inner) => {
                        command = inner;
                        // Those of the outer command stay before its name.
                        line.words.append(&mut line.positional);
                        line.words.push(word.clone());
                    }
                    None => line.positional.push(word.clone()),
                }
                continue;
            }
            match meaning(word, command) {
                Meaning::Text => {
                    line.is_needed = true;
                    line.positional.push(word.clone());
                }
                Meaning::Option => line.words.push(word.clone()),
                Meaning::OptionBefore => match words.as_slice().first() {
                    Some(value) if is_text_value(value, command) => {
                        line.is_needed = true;
                        line.words.push(format!("{word}={value}"));
                        words.next();
                    }
                    value => {
                        line.words.push(word.clone());
                        line.words.extend(value.cloned());
                        words.next();
                    }
                },
            }
        }
        if !line.positional.is_empty() {
            line.words.push("--".into());
            line.words.append(&mut line.positional);
        }
        line.is_needed.then_some(line)
    }
}

/// What a word that begins with a dash is.
#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    /// An option, with its value if it takes one; or what is to be refused as one.
    Option,
    /// An option whose value is the next word.
    OptionBefore,
    Text,
}

fn is_dashed(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-')
}

fn meaning(word: &str, command: &Command) -> Meaning {
    let has_blank = word.contains(char::is_whitespace);
    let known = match word.strip_prefix("--") {
        Some(long) => known_long(long, command),
        None => known_short(&word[1..], has_blank, command),
    };
    match known {
        Some(meaning) => meaning,
        None if has_blank => Meaning::Text,
        None if takes_text(command) && !is_mistyped(word, command) => Meaning::Text,
        None => Meaning::Option,
    }
}

fn known_long(long: &str, command: &Command) -> Option<Meaning> {
    let (name, value) = match long.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (long, None),
    };
    let option = command
        .get_arguments()
        .find(|arg| longs(arg).any(|long| long == name))?;
    Some(match value {
        None if takes_value(option) => Meaning::OptionBefore,
        _ => Meaning::Option,
    })
}

/// `-x`, several in one word (`-rn`), or one with its value (`-n5`).
fn known_short(letters: &str, has_blank: bool, command: &Command) -> Option<Meaning> {
    let mut rest = letters.chars();
    while let Some(letter) = rest.next() {
        let is_it = |arg: &&Arg| {
            let more = arg.get_all_short_aliases().unwrap_or_default();
            arg.get_short() == Some(letter) || more.contains(&letter)
        };
        let option = command.get_arguments().find(is_it)?;
        if !takes_value(option) {
            continue;
        }
        let value = rest.as_str();
        let is_value = value.starts_with('=') || !has_blank && is_fit(value, option);
        return match value {
            "" => Some(Meaning::OptionBefore),
            _ => is_value.then_some(Meaning::Option),
        };
    }
    Some(Meaning::Option)
}

/// Whether a value that stands in one word with its letter can be one: `-n5`, not `-name`.
fn is_fit(value: &str, option: &Arg) -> bool {
    let taken = option.get_value_parser().type_id();
    let numbers = [
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
    ];
    let is_number = numbers.into_iter().any(|number| taken == number);
    !is_number || value.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether the word after an option that takes a value is that value, though it begins with a
/// dash.
fn is_text_value(word: &str, command: &Command) -> bool {
    if !is_dashed(word) || word == "--" {
        return false;
    }
    let known = match word.strip_prefix("--") {
        Some(long) => known_long(long, command),
        None => known_short(&word[1..], word.contains(char::is_whitespace), command),
    };
    known.is_none() && !is_mistyped(word, command)
}

fn takes_value(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::Set | ArgAction::Append)
}

/// Whether something that the command takes without an option is free text.
fn takes_text(command: &Command) -> bool {
    let mut positionals = command.get_positionals();
    positionals.any(|arg| arg.get_value_hint() == ValueHint::Other)
}

fn longs(option: &Arg) -> impl Iterator<Item = &str> {
    let more = option.get_all_aliases().unwrap_or_default();
    option.get_long().into_iter().chain(more)
}

/// `--limt` is `--limit` mistyped, and no text.
fn is_mistyped(word: &str, command: &Command) -> bool {
    let Some(name) = word.strip_prefix("--") else {
        return false;
    };
    let name = name.split('=').next().unwrap_or(name);
    let is_near = |long: &str| strsim::osa_distance(long, name) <= MISTYPED_MAX;
    name.len() >= MISTYPED_CHARS_MIN
        && !name.contains(char::is_whitespace)
        && command.get_arguments().flat_map(longs).any(is_near)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn read(words: &[&str]) -> Vec<String> {
        let words = std::iter::once(&"treering")
            .chain(words)
            .map(OsString::from);
        let told = told_apart(words.collect(), super::super::Cli::command());
        let told = told
            .into_iter()
            .skip(1)
            .map(|word| word.into_string().unwrap());
        told.collect()
    }

    // A pasted line of a failed test was refused as an option, and the tip beside it did not
    // help; worse, `-name "*.go"` was read as a limit and `-c foo` as a conversation.
    #[test]
    fn what_is_no_option_is_text() {
        for text in [
            "--- FAIL: TestShadow (6.88s)",
            "- name: checkout",
            "-\told := x",
            "-name \"*.go\"",
            "-c foo",
            "-C 3 lines",
            "-exec",
            "-name",
            "--no-verify",
            "-1",
        ] {
            assert_eq!(read(&["search", text]), ["search", "--", text], "{text}");
        }
        // The order of words stays, options may stand anywhere, and `--` is heard.
        assert_eq!(
            read(&[
                "--data",
                "D",
                "search",
                "git",
                "-n",
                "3",
                "--no-verify",
                "x",
                "--json",
                "--",
                "-y"
            ]),
            [
                "--data",
                "D",
                "search",
                "-n",
                "3",
                "--json",
                "--",
                "git",
                "--no-verify",
                "x",
                "-y"
            ]
        );
        let message = [
            "append",
            "C",
            "--key",
            "k",
            "message",
            "user",
            "- one\n- two",
            "--json",
        ];
        assert_eq!(
            read(&message),
            [
                "append",
                "--key",
                "k",
                "C",
                "message",
                "--json",
                "--",
                "user",
                "- one\n- two"
            ]
        );
        assert_eq!(
            read(&["set", "C", "n", "-1"]),
            ["set", "--", "C", "n", "-1"]
        );
    }

    // A value may begin with a dash, too: of a summary that is a list it was said that no
    // value is there.
    #[test]
    fn what_follows_an_option_may_be_its_text() {
        assert_eq!(
            read(&["compact", "C", "apply", "--summary", "- done"]),
            ["compact", "C", "apply", "--summary=- done"]
        );
        assert_eq!(
            read(&["search", "-n", "-1", "x"]),
            ["search", "-n=-1", "--", "x"]
        );
    }

    // What is an option stays one, and a mistyped one is refused as that, not searched for.
    #[test]
    fn options_stay_options() {
        let lines: [&[&str]; 9] = [
            &[
                "search",
                "-n5",
                "-C",
                "3",
                "--tool=my tool",
                "-tbash",
                "words",
            ],
            &["search", "--limt", "5", "foo"],
            &["search", "-h"],
            &["ls", "--nosuch"],
            &["log", "@last", "-rn", "5", "--no-pager"],
            &["fork", "C", "--name", "--json"],
            &["append", "C", "message", "user", "-"],
            &["search", "--", "-x y"],
            &["annotate", "C", "--comment", "fine"],
        ];
        for line in lines {
            assert_eq!(read(line), line, "{line:?}");
        }
    }

    // Text that nobody can complete is free text: an argument that is not marked so would
    // refuse what begins with a dash.
    #[test]
    fn free_texts_are_marked() {
        let command = super::super::Cli::command();
        for path in [
            &["search"][..],
            &["set"],
            &["append", "message"],
            &["append", "result"],
            &["append", "system-prompt"],
            &["append", "guidance"],
            &["append", "snapshot"],
        ] {
            let inner = path
                .iter()
                .try_fold(&command, |command, name| command.find_subcommand(name));
            assert!(takes_text(inner.unwrap()), "{path:?}");
        }
    }
}
