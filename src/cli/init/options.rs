//! The options that a configuration has after the program. A given option replaces the existing one
//! of the same name; others stay.

/// The two options that name a store. Giving either replaces both.
const STORES: [&str; 2] = ["--data", "--server"];
/// Options of `mcp` only.
const OF_THE_DOOR: [&str; 2] = ["--writable", "--allow-approvals"];

/// Options of a program with their values, without the subcommand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options(Vec<Vec<String>>);

impl Options {
    /// Returns the options among words. Words before the first option are ignored.
    pub(crate) fn of(words: &[String]) -> Self {
        let mut options: Vec<Vec<String>> = Vec::new();
        for word in words {
            match options.last_mut() {
                _ if word.starts_with("--") => options.push(vec![word.clone()]),
                Some(option) => option.push(word.clone()),
                None => {}
            }
        }
        Self(options)
    }

    /// Merges given options over these, in their order. Also returns the existing ones that were
    /// kept.
    pub(crate) fn with(self, given: &Self) -> (Self, Vec<String>) {
        let names_store = |option: &[String]| STORES.contains(&name(option));
        let other_store = given.0.iter().any(|option| names_store(option));
        let (mut all, mut kept) = (Vec::new(), Vec::new());
        for option in self.0 {
            let same = given.0.iter().find(|one| name(one) == name(&option));
            match same {
                Some(same) => all.push(same.clone()),
                None if other_store && names_store(&option) => {}
                None => {
                    kept.push(option.join(" "));
                    all.push(option);
                }
            }
        }
        for option in &given.0 {
            if !all.iter().any(|one| name(one) == name(option)) {
                all.push(option.clone());
            }
        }
        (Self(all), kept)
    }

    /// Returns true if one of them names a store.
    pub(crate) fn names_store(&self) -> bool {
        self.0.iter().any(|option| STORES.contains(&name(option)))
    }

    /// Returns these options and one more.
    pub(crate) fn and(mut self, option: &[String]) -> Self {
        self.0.push(option.to_vec());
        self
    }

    /// Removes the options that only `mcp` accepts.
    pub(crate) fn of_every_command(self) -> Self {
        let of_all = |option: &Vec<String>| !OF_THE_DOOR.contains(&name(option));
        Self(self.0.into_iter().filter(of_all).collect())
    }

    /// Returns the options as words of a command line.
    pub(crate) fn words(self) -> Vec<String> {
        self.0.into_iter().flatten().collect()
    }
}

fn name(option: &[String]) -> &str {
    let word = option.first().map(String::as_str).unwrap_or_default();
    word.split_once('=').map_or(word, |(name, _)| name)
}

/// Quotes a word for a shell.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Returns the words of a command that [`quoted`] has written, or `None` if the user has extended
/// it.
pub(crate) fn unquoted(command: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = command.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(chars.next()?),
            c if "\"$`;&|<>(){}*?[]~#!\n\r".contains(c) => return None,
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    // A run with fewer options must not make the agent read another store or lose its write access.
    #[test]
    fn merge_keeps_options_that_are_not_given() {
        for (there, given, all, kept) in [
            (
                "mcp --data /a --writable",
                "mcp",
                "--data /a --writable",
                &["--data /a", "--writable"][..],
            ),
            (
                "mcp --data /a --namespace t",
                "mcp --namespace u --writable",
                "--data /a --namespace u --writable",
                &["--data /a"],
            ),
            (
                "mcp --data=/a --wait 3s",
                "mcp --server http://b",
                "--wait 3s --server http://b",
                &["--wait 3s"],
            ),
            ("mcp", "mcp --data /a", "--data /a", &[]),
        ] {
            let (merged, was_kept) = Options::of(&words(there)).with(&Options::of(&words(given)));
            assert_eq!(merged.words().join(" "), all, "{there} | {given}");
            assert_eq!(was_kept, kept, "{there} | {given}");
        }
        let of_all = Options::of(&words("mcp --writable --data /a --allow-approvals"));
        assert_eq!(of_all.of_every_command().words(), words("--data /a"));
    }

    // A folder with a space or a quote in its name must stay one word, and must be read back
    // unchanged.
    #[test]
    fn shell_quoting_round_trips() {
        assert_eq!(quoted("--data"), "--data");
        assert_eq!(quoted("/home/a b"), "'/home/a b'");
        assert_eq!(quoted("it's; rm"), r"'it'\''s; rm'");
        assert_eq!(quoted(""), "''");
        let all = ["--data", "/home/a b", "it's; rm", "", "ü"].map(str::to_owned);
        let command: Vec<_> = all.iter().map(|word| quoted(word)).collect();
        assert_eq!(unquoted(&command.join(" ")).unwrap(), all);
        for other in ["a; b", "a | b", "a $B", "\"a\"", "'a", "a\\"] {
            assert_eq!(unquoted(other), None, "{other}");
        }
    }
}
