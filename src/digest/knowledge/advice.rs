//! Answers based on knowledge: prerequisites, guidance and a summary for prompts. All are bounded.

use std::fmt::Write;

use super::{
    file_effects::FileEffect,
    fold::Knowledge,
    policy::{From, RuleOutput, UNKNOWN_FILE, stands_for},
};

/// Maximum number of names in a sentence of guidance.
const GUIDANCE_NAMES_MAX: usize = 3;
/// Maximum length of guidance, in characters.
const GUIDANCE_CHARS_MAX: usize = 2_000;
/// Maximum length of a name in texts, in characters.
const NAME_CHARS_MAX: usize = 120;

impl Knowledge {
    /// Returns the tools that, according to the policy, must succeed before this one but have not
    /// succeeded yet. A name that ends in `*` means any tool with that prefix.
    #[must_use]
    pub fn missing_prerequisites(&self, tool: &str) -> Vec<String> {
        let mut missing = self.policy.prerequisites_of(tool);
        missing.retain(|before| {
            let mut tools = self.outcomes().iter();
            !tools.any(|(name, of_tool)| of_tool.succeeded > 0 && stands_for(before, name))
        });
        missing
    }

    /// Returns all tools that, according to the policy, must succeed before a tool.
    #[must_use]
    pub fn configured_prerequisites(&self, tool: &str) -> Vec<String> {
        self.policy.prerequisites_of(tool)
    }

    /// Returns advice on the next action in a few sentences: discover, inspect, analyse or
    /// interpret. `offered` are the names of the available tools. Empty if the results give no
    /// advice.
    #[must_use]
    pub fn guidance(&self, offered: &[String]) -> String {
        let texts = &self.policy.guidance;
        let mut said: Vec<String> = Vec::new();
        if self.outcomes().is_empty() && self.files().is_empty() {
            said.push(fill(
                &texts.start,
                "",
                &self.tools(RuleOutput::Files, offered),
            ));
        } else if self.variables().is_empty() && !self.files().is_empty() {
            let read = self.newest(|effect| effect == FileEffect::Read);
            let changed = self.newest(FileEffect::changes);
            let other = self.newest(|effect| effect == FileEffect::Listed);
            let other_text = match read.is_empty() && changed.is_empty() {
                true => &texts.files_known,
                false => &texts.files_not_read,
            };
            let tools = self.tools(RuleOutput::Variables, offered);
            for (text, files) in [
                (&texts.files_read, read),
                (other_text, other),
                (&texts.files_changed, changed),
            ] {
                if !files.is_empty() {
                    said.push(fill(text, &files, &tools));
                }
            }
        } else if !self.variables().is_empty() {
            let files = self.variables().iter().map(|of_file| &*of_file.file);
            said.push(fill(
                &texts.variables_known,
                &named(files, GUIDANCE_NAMES_MAX),
                "",
            ));
            if self.analyses > 0 {
                said.push(texts.analysed.clone());
            }
        }
        said.retain(|text| !text.is_empty());
        cut(said.join(" "), GUIDANCE_CHARS_MAX)
    }

    /// Returns the newest files whose last effect satisfies `has`, as text; empty if there are
    /// none.
    fn newest(&self, has: impl Fn(FileEffect) -> bool) -> String {
        let files = self.files().iter();
        let mut files: Vec<_> = files
            .filter(|file| file.is_there() && has(file.touch))
            .collect();
        files.sort_by_key(|file| std::cmp::Reverse(file.recency));
        named(files.iter().map(|file| &*file.path), GUIDANCE_NAMES_MAX)
    }

    /// Returns offered tools with this output, as ` (for example with list_files)`.
    fn tools(&self, gives: RuleOutput, offered: &[String]) -> String {
        let giving = offered.iter().filter(|tool| {
            self.policy
                .rules_of(tool)
                .any(|rule| rule.gives == gives && rule.from == From::Result)
        });
        match named(giving.map(String::as_str), GUIDANCE_NAMES_MAX) {
            names if names.is_empty() => names,
            names => format!(" (for example with {names})"),
        }
    }

    /// Returns a summary for prompts, within the policy's limits. Empty if nothing is known.
    #[must_use]
    pub fn summary_text(&self) -> String {
        let bounds = self.policy.summary;
        let mut lines: Vec<String> = Vec::new();
        if let Some(directory) = self.working_directory() {
            lines.push(format!("Working directory: {}", short(&directory.path)));
        }
        if !self.files().is_empty() {
            let newest = self
                .files()
                .iter()
                .rev()
                .filter(|file| file.is_there())
                .map(|file| &*file.path);
            let files = named(newest, bounds.files_max);
            lines.push(format!(
                "Files ({}, newest first): {files}",
                self.files().len()
            ));
        }
        if !self.variables().is_empty() {
            lines.push(format!("Variables, by file ({}):", self.variables().len()));
            let newest = self.variables().iter().rev();
            for of_file in newest.take(bounds.analysed_files_max) {
                let names = of_file.variables.iter().map(|v| v.name.as_str());
                let file = match &*of_file.file {
                    UNKNOWN_FILE => "(file not known)".to_owned(),
                    file => short(file),
                };
                let names = named(names, bounds.variables_max);
                lines.push(format!("  {file}: {names}"));
            }
        }
        if self.left_out() > 0 {
            lines.push(format!("Left out because of bounds: {}", self.left_out()));
        }
        // A summary that has only counts is useless in a prompt.
        if lines.is_empty() {
            return String::new();
        }
        let tools = self.outcomes().iter().map(|(tool, of_tool)| {
            let mut text = format!("{} {} ok", short(tool), of_tool.succeeded);
            if of_tool.failed > 0 {
                let _ = write!(text, " {} failed", of_tool.failed);
            }
            text
        });
        let tools: Vec<String> = tools.take(bounds.tools_max + 1).collect();
        let more = self.outcomes().len().saturating_sub(bounds.tools_max);
        lines.push(format!(
            "Tools so far: {}",
            list(tools.iter().take(bounds.tools_max).cloned(), more)
        ));
        let recent = self.recent.iter().rev().map(|tool| &**tool);
        if !self.recent.is_empty() {
            lines.push(format!(
                "Last to succeed: {}",
                named(recent, bounds.tools_max)
            ));
        }
        cut(lines.join("\n"), bounds.chars_max)
    }
}

/// Returns the first names, and the number of the others.
fn named<'a>(names: impl Iterator<Item = &'a str>, max: usize) -> String {
    let mut names = names;
    let first: Vec<String> = names.by_ref().take(max).map(short).collect();
    list(first.into_iter(), names.count())
}

fn list(names: impl Iterator<Item = String>, more: usize) -> String {
    let mut text = names.collect::<Vec<_>>().join(", ");
    if more > 0 {
        let _ = match text.is_empty() {
            true => write!(text, "{more}"),
            false => write!(text, " and {more} more"),
        };
    }
    text
}

fn short(name: &str) -> String {
    cut(name.to_owned(), NAME_CHARS_MAX)
}

fn cut(text: String, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text,
        Some(_) => {
            let head: String = text.chars().take(chars_max.saturating_sub(1)).collect();
            format!("{head}…")
        }
    }
}

fn fill(text: &str, files: &str, tools: &str) -> String {
    // Names are inserted last, so that a name that looks like a placeholder is not replaced.
    let mut parts = text
        .split("{files}")
        .map(|part| part.replace("{tools}", tools));
    let mut filled = parts.next().unwrap_or_default();
    for part in parts {
        filled.push_str(files);
        filled.push_str(&part);
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::super::tests::{told, with_policy};

    // Guidance must change with the knowledge, from discovering to interpreting.
    #[test]
    fn guidance_follows_the_gathered_knowledge() {
        let offered = ["search", "list_files", "inspect_file"].map(str::to_owned);
        let steps = [
            ("list_files", "{}", r#"["a.nc", "b.nc", "c.nc", "d.nc"]"#),
            ("inspect_file", r#"{"filename": "a.nc"}"#, r#"{"t": 1}"#),
            ("mean", r#"{"filename": "a.nc"}"#, "3.5"),
        ];
        let said: Vec<String> = (0..=steps.len())
            .map(|count| told(&steps[..count]).guidance(&offered))
            .collect();
        assert_eq!(
            said[0],
            "Nothing is known yet: list the files first (for example with list_files)."
        );
        assert!(said[1].starts_with("Known files: a.nc, b.nc, c.nc and 1 more. Open"));
        assert!(
            said[1].ends_with("(for example with inspect_file)."),
            "{}",
            said[1]
        );
        assert!(said[2].starts_with("Variables are known for a.nc:"));
        assert!(said[3].starts_with(&said[2]) && said[3].contains("interpret"));
        assert_eq!(told(&[("think", "{}", "hm")]).guidance(&offered), "");
        let own = r#"{"guidance": {"start": "{tools}{files}!"}}"#;
        assert_eq!(with_policy(own, &[]).guidance(&[]), "!");
    }

    // Coding agents show no variables. Guidance must follow their actions: files that were read,
    // files that were only found, and changes that must be checked.
    #[test]
    fn guidance_follows_files_that_are_read_and_changed() {
        let steps = [
            ("Glob", r#"{"pattern": "*.rs"}"#, "src/a.rs\nsrc/b.rs"),
            ("Read", r#"{"file_path": "src/a.rs"}"#, "fn main() {}"),
            ("Edit", r#"{"file_path": "src/a.rs"}"#, "ok"),
            ("Read", r#"{"file_path": "src/b.rs"}"#, "mod a;"),
        ];
        let said: Vec<String> = (1..=steps.len())
            .map(|count| told(&steps[..count]).guidance(&[]))
            .collect();
        insta::assert_snapshot!(said.join("\n"), @r"
        Known files: src/a.rs, src/b.rs. Open one of them to see what it contains.
        Looked into: src/a.rs. Found, but not looked into: src/b.rs.
        Found, but not looked into: src/b.rs. Changed: src/a.rs. Check the changes, for example by running the tests, before reporting what was done.
        Looked into: src/b.rs. Changed: src/a.rs. Check the changes, for example by running the tests, before reporting what was done.
        ");
    }

    // A prerequisite is missing until it has succeeded. A failed call does not count.
    #[test]
    fn prerequisite_is_missing_until_it_succeeds() {
        let policy = r#"{"prerequisites": {"plot_*": ["list_*", "inspect_file"]}}"#;
        let calls = [
            ("list_data", "{}", "[]"),
            ("inspect_file", r#"{"fail": true}"#, "no such file"),
        ];
        let knowledge = with_policy(policy, &calls);
        assert_eq!(
            knowledge.missing_prerequisites("plot_map"),
            ["inspect_file"]
        );
        assert_eq!(
            knowledge.configured_prerequisites("plot_map"),
            ["list_*", "inspect_file"]
        );
        assert!(knowledge.missing_prerequisites("read").is_empty());
        assert!(knowledge.has_succeeded("list_data"));
        assert!(!knowledge.has_succeeded("inspect_file"));
    }

    // The summary goes into every prompt. It names the newest items, says how many it omits, and
    // stays within its limit.
    #[test]
    fn summary_is_bounded_and_counts_omitted_files() {
        let many: Vec<String> = (0..500).map(|n| format!("data/{n}.nc")).collect();
        let many = serde_json::to_string(&many).unwrap();
        let calls = [
            ("list_files", r#"{"cwd": "/work"}"#, many.as_str()),
            (
                "inspect_file",
                r#"{"file": "data/1.nc"}"#,
                r#"{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}"#,
            ),
            ("read_file", r#"{"fail": 1}"#, ""),
        ];
        let text = told(&calls).summary_text();
        insta::assert_snapshot!(text, @r"
        Working directory: /work
        Files (500, newest first): data/499.nc, data/498.nc, data/497.nc, data/496.nc, data/495.nc, data/494.nc, data/493.nc, data/492.nc, data/491.nc, data/490.nc and 490 more
        Variables, by file (1):
          data/1.nc: a, b, c, d, e and 1 more
        Tools so far: inspect_file 1 ok, list_files 1 ok, read_file 0 ok 1 failed
        Last to succeed: inspect_file, list_files
        ");
        let short = with_policy(r#"{"summary": {"chars_max": 40}}"#, &calls).summary_text();
        assert_eq!(short.chars().count(), 40);
        assert_eq!(told(&[("think", "{}", "hm")]).summary_text(), "");
    }
}
