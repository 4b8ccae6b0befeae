//! Effects of shell commands on files.

use serde_json::Value;

use super::{
    FileEffect, FileEffects, OUTPUT_BYTES_MAX, ParsedCall, git, looks_like_file, output,
    output::OutputFilter,
    shell::{self, ShellWord, SimpleCommand},
};
use crate::knowledge::read::below;

/// Names of arguments that contain the command line.
const LINE_ARGUMENTS: [&str; 6] = ["command", "cmd", "script", "code", "commands", "input"];
/// Names of arguments that contain the working directory.
const DIRECTORY_ARGUMENTS: [&str; 7] = [
    "cwd",
    "workdir",
    "working_directory",
    "working_dir",
    "workingDirectory",
    "directory",
    "dir",
];

/// Maximum length, in bytes, of an output that may only say (by `|| echo …`) that a file is
/// missing.
const NOT_FOUND_BYTES_MAX: usize = 60;

/// Records the files of a command line.
pub(super) fn shell(spoken: ParsedCall<'_>, touched: &mut FileEffects) {
    let Some(line) = line_of(spoken.arguments) else {
        return;
    };
    let output = &spoken.output[..spoken.output.floor_char_boundary(OUTPUT_BYTES_MAX)];
    let commands = shell::commands(&line);
    let asked = DIRECTORY_ARGUMENTS
        .iter()
        .find_map(|name| spoken.arguments.get(*name)?.as_str())
        .filter(|directory| !directory.trim().is_empty());
    let mut run = Run {
        directory: Directory::Asked(asked.map(str::to_owned)),
        output,
        touched,
        changes_directory: false,
    };
    // Directories to restore after closing parentheses.
    let mut outer: Vec<(usize, Directory)> = Vec::new();
    for (at, command) in commands.iter().enumerate() {
        while outer
            .last()
            .is_some_and(|(depth, _)| *depth >= command.depth)
        {
            if let Some((_, directory)) = outer.pop() {
                run.directory = directory;
            }
        }
        if command.depth > outer.last().map_or(0, |(depth, _)| depth + 1)
            || command.depth > outer.len()
        {
            outer.push((command.depth - 1, run.directory.clone()));
        }
        run.command(&commands, at);
    }
    output::file_header(output, &commands, run.touched);
    if run.changes_directory
        && outer.is_empty()
        && let Directory::Asked(Some(directory)) = run.directory
    {
        touched.directory = Some(directory);
    }
    if let Some(reset) = output::reset_directory(output) {
        touched.directory = Some(reset.to_owned());
    }
}

/// Returns the command line, also from `["bash", "-lc", "…"]`.
pub(super) fn line_of(arguments: &Value) -> Option<String> {
    if let Value::String(line) = arguments {
        return Some(line.clone());
    }
    let value = LINE_ARGUMENTS.iter().find_map(|name| {
        let value = arguments.get(*name)?;
        (value.is_string() || value.is_array()).then_some(value)
    })?;
    match value {
        Value::String(line) => Some(unfenced(line).to_owned()),
        Value::Array(words) => {
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            match words.as_slice() {
                [shell, option, line] if option.starts_with('-') && shell.ends_with("sh") => {
                    Some((*line).to_owned())
                }
                words => Some(words.join(" ")),
            }
        }
        _ => None,
    }
}

/// Returns the line without its code fence.
fn unfenced(line: &str) -> &str {
    let inner = line
        .trim()
        .strip_prefix("```")
        .and_then(|rest| rest.split_once('\n'))
        .and_then(|(_, rest)| rest.trim_end().strip_suffix("```"));
    inner.unwrap_or(line)
}

/// The start directory of relative paths.
#[derive(Clone)]
pub(super) enum Directory {
    /// The directory in the call's arguments. None for the shell's own directory.
    Asked(Option<String>),
    /// Only a shell knows.
    Unknown,
}

pub(super) struct Run<'a, 't> {
    directory: Directory,
    pub output: &'a str,
    touched: &'t mut FileEffects,
    changes_directory: bool,
}

impl Run<'_, '_> {
    fn command(&mut self, all: &[SimpleCommand], at: usize) {
        let command = &all[at];
        for (operator, target) in &command.redirects {
            let touch = match *operator {
                ">" => FileEffect::Created,
                ">>" => FileEffect::Edited,
                _ => FileEffect::Read,
            };
            self.file(target, touch);
        }
        let words = unwrapped(&command.words);
        let Some((program, operands)) = words.split_first() else {
            return;
        };
        let name = program.text.rsplit('/').next().unwrap_or(&program.text);
        let lines = OutputFilter::after(all, at);
        match name {
            "cd" | "pushd" => self.change_directory(operands),
            "git" => git::git(self, operands, lines),
            _ => self.program(name, operands, lines),
        }
    }

    fn change_directory(&mut self, operands: &[ShellWord]) {
        let target = operands.iter().find(|word| !word.text.starts_with("--"));
        let known = match &self.directory {
            Directory::Asked(known) => known.as_deref(),
            Directory::Unknown => None,
        };
        let rooted = |text: &str| text.starts_with(['/', '~']);
        self.directory = match target {
            Some(word) if word.is_plain && word.text != "-" => {
                if matches!(self.directory, Directory::Unknown) && !rooted(&word.text) {
                    Directory::Unknown
                } else {
                    self.changes_directory = true;
                    Directory::Asked(Some(below(known, &word.text)))
                }
            }
            _ => Directory::Unknown,
        };
    }

    fn program(&mut self, name: &str, operands: &[ShellWord], lines: OutputFilter) {
        use FileEffect::{Created, Edited, Listed, Read};
        match name {
            "cat" | "less" | "more" | "wc" | "nl" | "od" | "xxd" | "hexdump" | "strings"
            | "file" | "md5sum" | "sha1sum" | "sha256sum" | "cksum" | "sort" | "cut" | "diff"
            | "cmp" | "comm" | "paste" | "join" | "tac" | "rev" | "column" | "bat" | "head"
            | "tail" | "uniq" | "shellcheck" | "fold" | "fmt" | "expand" | "base64" | "readelf"
            | "objdump" | "nm" => self.files(operands, value_options(name), Read),
            "stat" | "chmod" | "chown" | "realpath" | "readlink" | "du" => {
                let skip = usize::from(matches!(name, "chmod" | "chown"));
                let words = plain_operands(operands, "");
                let files = words.iter().skip(skip);
                files
                    .filter(|word| looks_like_file(&word.text))
                    .for_each(|word| self.file(word, Listed));
            }
            "touch" => self.files(operands, "drt", Created),
            "truncate" => self.files(operands, "rs", Edited),
            "tee" => {
                let touch = if has_flag(operands, 'a') {
                    Edited
                } else {
                    Created
                };
                self.files(operands, "", touch);
            }
            "rm" | "unlink" => self.remove(operands),
            "mv" | "cp" => self.move_or_copy(name, operands),
            "ln" => {
                if let [_, link] = plain_operands(operands, "").as_slice() {
                    self.file(link, Created);
                }
            }
            "sed" | "awk" | "gawk" | "mawk" | "perl" | "jq" | "yq" => self.filter(name, operands),
            "grep" | "egrep" | "fgrep" | "rg" | "ag" | "ack" => self.search(name, operands, lines),
            "find" | "fd" | "fdfind" | "locate" | "tree" => self.find(name, operands, lines),
            "ls" | "dir" | "exa" | "eza" => self.list(operands, lines),
            "gofmt" | "goimports" | "prettier" | "rustfmt" | "black" | "isort" | "autopep8" => {
                let writes = matches!(name, "rustfmt" | "black" | "isort")
                    || operands
                        .iter()
                        .any(|word| matches!(word.text.as_str(), "-w" | "--write" | "-i"));
                let touch = if writes { Edited } else { Read };
                let files = plain_operands(operands, "");
                files
                    .iter()
                    .filter(|word| looks_like_file(&word.text))
                    .for_each(|word| self.file(word, touch));
            }
            "python" | "python2" | "python3" | "node" | "ruby" | "php" | "lua" | "sh" | "bash"
            | "zsh" | "source" | "." | "tsx" | "ts-node" | "deno" | "bun" | "Rscript" | "julia" => {
                self.script(operands);
            }
            "tshark" | "tcpdump" => self.option_file(operands, &["-r"], Read),
            "curl" | "wget" => {
                self.option_file(operands, &["-o", "-O", "--output"], Created);
                self.uploaded(operands);
            }
            // The body of a loop uses the files over which the loop iterates.
            "for" => {
                let words = operands.iter().skip_while(|word| word.text != "in").skip(1);
                words
                    .filter(|word| looks_like_file(&word.text))
                    .for_each(|word| self.file(word, Read));
            }
            // Commands of SWE-agent's shell.
            "open" | "goto" => {
                let files = plain_operands(operands, "a");
                files.iter().take(1).for_each(|word| self.file(word, Read));
            }
            "create" => self.files(operands, "", Created),
            "find_file" | "search_dir" | "search_file" => self.path_lines(lines),
            "xargs" => {}
            _ => {}
        }
    }

    /// Records operands as files.
    fn files(&mut self, operands: &[ShellWord], with_value: &str, touch: FileEffect) {
        for word in plain_operands(operands, with_value) {
            self.file(&word, touch);
        }
    }

    pub(super) fn file(&mut self, word: &ShellWord, touch: FileEffect) {
        if !word.is_plain || (touch <= FileEffect::Read && self.is_missing(&word.text)) {
            return;
        }
        self.path(&word.text, touch);
    }

    pub(super) fn path(&mut self, path: &str, touch: FileEffect) {
        match &self.directory {
            Directory::Asked(directory) => self.touched.add(directory.as_deref(), path, touch),
            Directory::Unknown if path.starts_with(['/', '~']) => {
                self.touched.add(None, path, touch)
            }
            Directory::Unknown => {}
        }
    }

    pub(super) fn is_in(&mut self, directory: &ShellWord) {
        self.change_directory(std::slice::from_ref(directory));
        self.changes_directory = false;
    }

    /// Whether the output says that the file does not exist.
    fn is_missing(&self, path: &str) -> bool {
        let mut lines = self.output.lines().take(200);
        let only = self.output.trim().len() <= NOT_FOUND_BYTES_MAX
            && self.output.to_ascii_lowercase().contains("not found")
            && !self.output.contains("command not found");
        only || lines.any(|line| {
            line.contains(path)
                && (line.contains("No such file") || line.contains("Is a directory"))
        })
    }

    fn remove(&mut self, operands: &[ShellWord]) {
        let recursive = has_flag(operands, 'r') || has_flag(operands, 'R');
        for word in plain_operands(operands, "") {
            if !recursive || looks_like_file(&word.text) {
                self.file(&word, FileEffect::Deleted);
            }
        }
    }

    fn move_or_copy(&mut self, name: &str, operands: &[ShellWord]) {
        let words = plain_operands(operands, "tS");
        let Some((target, sources)) = words.split_last() else {
            return;
        };
        let into = sources.len() > 1
            || target.text.ends_with('/')
            || !looks_like_file(&target.text)
                && sources.iter().any(|word| looks_like_file(&word.text));
        for source in sources {
            if has_flag(operands, 'r') && !looks_like_file(&source.text) {
                continue;
            }
            let touch = if name == "mv" {
                FileEffect::Deleted
            } else {
                FileEffect::Read
            };
            self.file(source, touch);
            let name = source.text.rsplit('/').next().unwrap_or(&source.text);
            let created = if into {
                below(Some(&target.text), name)
            } else {
                target.text.clone()
            };
            if target.is_plain && source.is_plain {
                self.path(&created, FileEffect::Created);
            }
        }
    }

    /// Records the files of programs that take a script and then files.
    fn filter(&mut self, name: &str, operands: &[ShellWord]) {
        let in_place = match name {
            "sed" => operands.iter().any(|word| {
                word.text.starts_with("-i") || word.text == "--in-place" || word.text == "-Ei"
            }),
            "perl" => operands
                .iter()
                .any(|word| word.text.starts_with("-pi") || word.text.starts_with("-i")),
            "yq" => has_flag(operands, 'i'),
            _ => false,
        };
        let given = operands.iter().any(|word| {
            matches!(
                word.text.as_str(),
                "-e" | "-f" | "--expression" | "--file" | "-pe" | "-ne"
            ) || name == "perl" && word.text.starts_with("-pi") && word.text.ends_with('e')
        });
        let values = match name {
            "sed" => "ef",
            "awk" | "gawk" | "mawk" => "Fvf",
            "perl" => "eIM",
            _ => "f",
        };
        let mut words = plain_operands(operands, values);
        // BSD's `sed -i '' …`.
        words.retain(|word| !word.text.is_empty());
        let skip = if given && name == "perl" {
            // The script was the value of an option, or it follows `-pi -e`.
            usize::from(
                words
                    .first()
                    .is_some_and(|word| !looks_like_file(&word.text)),
            )
        } else {
            usize::from(!given)
        };
        let touch = if in_place {
            FileEffect::Edited
        } else {
            FileEffect::Read
        };
        let after_pairs =
            name == "jq" && operands.iter().any(|word| word.text.starts_with("--arg"));
        for word in words.iter().skip(skip) {
            let is_variable = matches!(name, "awk" | "gawk" | "mawk") && word.text.contains('=');
            if !(is_variable || after_pairs && !looks_like_file(&word.text)) {
                self.file(word, touch);
            }
        }
    }

    fn search(&mut self, name: &str, operands: &[ShellWord], lines: OutputFilter) {
        let long = |option: &str| operands.iter().any(|word| word.text == option);
        let lists = has_flag(operands, 'l') || long("--files-with-matches") || long("--files");
        let given = long("-e") || long("-f") || long("--files") || long("--regexp");
        let words = plain_operands_or_patterns(operands, "eABCmfgtdj");
        let files: Vec<&ShellWord> = words.iter().skip(usize::from(!given)).collect();
        let recursive =
            has_flag(operands, 'r') || has_flag(operands, 'R') || !name.ends_with("grep");
        let touch = if lists {
            FileEffect::Listed
        } else {
            FileEffect::Read
        };
        let named: Vec<&&ShellWord> = files
            .iter()
            .filter(|word| !recursive || looks_like_file(&word.text))
            .collect();
        // A list has only matching files; other searches read all named files.
        if !lists {
            named.iter().for_each(|word| self.file(word, touch));
        }
        if lists || recursive || files.iter().any(|word| !word.is_plain) || files.len() > 1 {
            for path in output::found(lines, self.output, lists) {
                self.path(path, touch);
            }
        }
    }

    fn find(&mut self, name: &str, operands: &[ShellWord], lines: OutputFilter) {
        let has = |option: &str| operands.iter().any(|word| word.text == option);
        let directories = operands
            .windows(2)
            .any(|pair| pair[0].text == "-type" && pair[1].text.starts_with('d'));
        let executes = operands
            .windows(2)
            .find(|pair| matches!(pair[0].text.as_str(), "-exec" | "-execdir" | "-ok"))
            .map(|pair| pair[1].text.clone());
        let lists = executes.is_none_or(|program| {
            program == "ls" || program.ends_with("grep") && has_list_flag(operands)
        });
        if directories || !lists || has("-print0") || name == "tree" {
            return;
        }
        let touch = if has("-delete") {
            FileEffect::Deleted
        } else {
            FileEffect::Listed
        };
        if has("-delete") && !has("-print") {
            return;
        }
        for path in output::paths(lines, self.output) {
            self.path(path, touch);
        }
    }

    fn path_lines(&mut self, lines: OutputFilter) {
        for path in output::paths(lines, self.output) {
            self.path(path, FileEffect::Listed);
        }
    }

    fn list(&mut self, operands: &[ShellWord], lines: OutputFilter) {
        let words = plain_operands(operands, "Iw");
        if has_flag(operands, 'd') && words.iter().any(|word| !word.is_plain) {
            return self.path_lines(lines);
        }
        let marked = has_flag(operands, 'F') || has_flag(operands, 'p');
        let directory = match words.as_slice() {
            [only] if only.is_plain => Some(only.text.as_str()),
            _ => None,
        };
        let names = output::names(lines, self.output, marked);
        for (under, name) in names {
            // A file that the command names keeps that spelling.
            let asked = words.iter().any(|word| word.text == name);
            let path = match under.or(directory).filter(|_| !asked) {
                Some(directory) => below(Some(directory), name),
                None => name.to_owned(),
            };
            self.path(&path, FileEffect::Listed);
        }
    }

    /// Records the first operand of an interpreter, if it is a file.
    fn script(&mut self, operands: &[ShellWord]) {
        let inline =
            |word: &ShellWord| matches!(word.text.as_str(), "-c" | "-e" | "-m" | "-lc" | "--eval");
        if operands.iter().take(3).any(inline) {
            return;
        }
        let files = plain_operands(operands, "");
        let script = files.iter().find(|word| word.text != "run");
        if let Some(word) = script.filter(|word| looks_like_file(&word.text)) {
            self.file(word, FileEffect::Read);
        }
    }

    fn option_file(&mut self, operands: &[ShellWord], options: &[&str], touch: FileEffect) {
        for pair in operands.windows(2) {
            if options.contains(&pair[0].text.as_str()) && !pair[1].text.starts_with('-') {
                self.file(&pair[1], touch);
            }
        }
    }

    /// Records the files in `curl -F file=@a.txt` and `--data @a.json`.
    fn uploaded(&mut self, operands: &[ShellWord]) {
        for word in operands {
            if let Some((before, path)) = word.text.split_once('@')
                && (before.is_empty() || before.ends_with('='))
                && looks_like_file(path)
            {
                let file = ShellWord {
                    text: path.to_owned(),
                    is_plain: word.is_plain,
                };
                self.file(&file, FileEffect::Read);
            }
        }
    }
}

/// Returns a command without wrappers: `sudo`, `env A=b`, `timeout 5`.
pub(super) fn unwrapped(words: &[ShellWord]) -> &[ShellWord] {
    const WRAPPERS: [&str; 16] = [
        "sudo", "env", "time", "nohup", "timeout", "command", "exec", "nice", "stdbuf", "npx",
        "then", "do", "else", "if", "!", "while",
    ];
    let mut words = words;
    while let Some((first, rest)) = words.split_first() {
        let is_assignment = first.text.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        });
        let wraps = WRAPPERS.contains(&first.text.as_str());
        if !is_assignment && !wraps {
            break;
        }
        words = rest;
        while wraps
            && words.first().is_some_and(|word| {
                word.text.starts_with('-') || word.text.bytes().all(|b| b.is_ascii_digit())
            })
        {
            words = &words[1..];
        }
    }
    words
}

/// Returns the short options of a command that take a value.
fn value_options(name: &str) -> &'static str {
    match name {
        "head" | "tail" => "nc",
        "cut" => "dfcb",
        "sort" => "ktoST",
        "od" => "AtNjwS",
        "xxd" => "lsc",
        "diff" => "UCIxL",
        "paste" => "d",
        "join" => "tj12ao",
        "fold" | "fmt" => "w",
        "column" => "ts",
        "uniq" => "fsw",
        "base64" => "wi",
        _ => "",
    }
}

/// Returns the words that are neither options nor values of options, including words that only a
/// shell can expand.
fn plain_operands_or_patterns(words: &[ShellWord], with_value: &str) -> Vec<ShellWord> {
    let mut operands = Vec::new();
    let (mut skip, mut only_operands) = (false, false);
    for word in words {
        if std::mem::take(&mut skip) {
            continue;
        }
        let text = word.text.as_str();
        if only_operands || !text.starts_with('-') || text == "-" {
            operands.push(word.clone());
        } else if text == "--" {
            only_operands = true;
        } else if let Some(letters) = text.strip_prefix('-').filter(|rest| !rest.starts_with('-')) {
            // `-n5` includes its value; `-n 5` does not.
            let last = letters.chars().last();
            let first = letters.chars().next();
            let takes = |c: Option<char>| c.is_some_and(|c| with_value.contains(c));
            skip = takes(last) && (letters.len() == 1 || !takes(first));
        }
    }
    operands
}

/// As [`plain_operands_or_patterns`], for callers that ignore words that only a shell can expand.
fn plain_operands(words: &[ShellWord], with_value: &str) -> Vec<ShellWord> {
    plain_operands_or_patterns(words, with_value)
}

/// Whether a flag is among the short options: `-la` has `l`.
pub(super) fn has_flag(words: &[ShellWord], flag: char) -> bool {
    words.iter().any(|word| {
        let letters = word.text.strip_prefix('-');
        letters.is_some_and(|letters| !letters.starts_with('-') && letters.contains(flag))
    })
}

fn has_list_flag(words: &[ShellWord]) -> bool {
    let after = words.iter().skip_while(|word| !word.text.ends_with("grep"));
    after.skip(1).any(|word| {
        word.text.starts_with('-') && !word.text.starts_with("--") && word.text.contains('l')
    })
}
