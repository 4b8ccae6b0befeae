use serde_json::json;

use super::*;

fn of(form: FileEffectForm, arguments: &Value, output: &str) -> Vec<String> {
    let touched = FileEffects::of(form, ParsedCall { arguments, output });
    let told = touched.files.iter();
    told.map(|(path, touch)| format!("{} {path}", touch.name()))
        .collect()
}

fn shell(line: &str, output: &str) -> Vec<String> {
    of(FileEffectForm::Shell, &json!({"command": line}), output)
}

// The words of a command show which files it touches. Words that only a shell can expand must not
// become names.
#[test]
fn file_effects_are_parsed_from_shell_commands() {
    for (line, output, expected) in [
        ("cat a.txt b/c.rs", "", vec!["read a.txt", "read b/c.rs"]),
        (
            "cd /repo && head -n 20 src/a.rs | tail -5",
            "",
            vec!["read /repo/src/a.rs"],
        ),
        (
            "(cd sub && cat x.py); cat y.py",
            "",
            vec!["read sub/x.py", "read y.py"],
        ),
        (
            "cd $HOME && cat a.txt && cat /etc/hosts",
            "",
            vec!["read /etc/hosts"],
        ),
        ("cat a.txt", "cat: a.txt: No such file or directory", vec![]),
        ("cat *.log $FILE \"$X/a\" 2>/dev/null", "", vec![]),
        ("sed -n '1,20p' a.rs", "", vec!["read a.rs"]),
        ("sed -i '' 's|a|b|g' a.rs", "", vec!["edited a.rs"]),
        (
            "sed -i -e 's/a/b/' a.rs b.rs",
            "",
            vec!["edited a.rs", "edited b.rs"],
        ),
        ("awk -F, '{print $1}' t.csv", "", vec!["read t.csv"]),
        ("jq -r .name package.json", "", vec!["read package.json"]),
        ("grep -n 'a b' src/x.rs", "12: a b", vec!["read src/x.rs"]),
        (
            "grep -rn TODO src | head",
            "src/a.rs:3:// TODO\nsrc/b.rs:1:TODO",
            vec!["read src/a.rs", "read src/b.rs"],
        ),
        (
            "rg -l needle",
            "src/a.rs\nb.md",
            vec!["listed src/a.rs", "listed b.md"],
        ),
        ("rg needle | wc -l", "12", vec![]),
        (
            "find . -name '*.rs' | sort | head -3",
            "./a.rs\n./b/c.rs",
            vec!["listed a.rs", "listed b/c.rs"],
        ),
        ("find /w -type d", "/w/a.d", vec![]),
        (
            "ls -la src",
            "total 8\n-rw-r--r-- 1 u g 3 Jan 1 10:00 a.rs\ndrwxr-xr-x 2 u g 9 Jan 1 10:00 sub",
            vec!["listed src/a.rs"],
        ),
        (
            "ls -F",
            "a.rs\nsub/\nrun*\n",
            vec!["listed a.rs", "listed run"],
        ),
        ("ls a.txt", "a.txt", vec!["listed a.txt"]),
        ("rm -f a.txt && rm -rf build", "", vec!["deleted a.txt"]),
        ("mv a.rs b.rs", "", vec!["deleted a.rs", "created b.rs"]),
        ("cp a.rs dir/", "", vec!["read a.rs", "created dir/a.rs"]),
        (
            "touch new.txt; echo x > out.txt; echo y >> log.txt",
            "",
            vec!["created new.txt", "created out.txt", "edited log.txt"],
        ),
        (
            "cat > f.py <<'EOF'\nimport os\nrm -rf x.py\nEOF\npython f.py",
            "",
            vec!["created f.py"],
        ),
        (
            "git add a.rs && git commit -m \"fix b.rs\"",
            "",
            vec!["listed a.rs"],
        ),
        (
            "git status",
            "Changes:\n\tmodified:   a.rs\n\tnew file:   b.rs\n",
            vec!["listed a.rs", "listed b.rs"],
        ),
        (
            "git status --short",
            " M a.rs\n?? b.rs\n",
            vec!["listed a.rs", "listed b.rs"],
        ),
        (
            "git -C /w diff",
            "diff --git a/x.rs b/x.rs\n--- a/x.rs\n+++ b/x.rs\n",
            vec!["read /w/x.rs"],
        ),
        (
            "git diff --stat",
            " a.rs | 2 +-\n b/c.md | 10 ++++\n 2 files changed",
            vec!["listed a.rs", "listed b/c.md"],
        ),
        (
            "sudo env A=1 timeout 5 python3 run.py --x y.txt",
            "",
            vec!["read run.py"],
        ),
        ("echo 'cat a.txt' # cat b.txt", "", vec![]),
        ("cargo test 2>&1 | tail -3", "src/a.rs:1:2: error", vec![]),
        ("echo $(cat a.txt) `cat b.txt`", "", vec![]),
        ("cat 'unended", "", vec![]),
    ] {
        assert_eq!(shell(line, output), expected, "{line}");
    }
}

// Paths are relative to the directory of the call or to the working directory.
#[test]
fn file_effects_follow_the_working_directory() {
    let arguments = json!({"cmd": ["bash", "-lc", "cat a.rs"], "workdir": "/w/x"});
    assert_eq!(
        of(FileEffectForm::Shell, &arguments, ""),
        ["read /w/x/a.rs"]
    );
    let left = |line: &str, output: &str| {
        let arguments = json!({"command": line});
        let spoken = ParsedCall {
            arguments: &arguments,
            output,
        };
        FileEffects::of(FileEffectForm::Shell, spoken).directory
    };
    assert_eq!(left("cd /a && cd b && ls", "").as_deref(), Some("/a/b"));
    assert_eq!(left("(cd /a && ls)", ""), None);
    assert_eq!(left("ls && cat x", ""), None);
    assert_eq!(left("cd -", ""), None);
    let reset = "ok\nShell cwd was reset to /home/dev/w";
    assert_eq!(left("cd /tmp && ls", reset).as_deref(), Some("/home/dev/w"));
}

// Common agent tools are recognised in any spelling and on any server.
#[test]
fn tools_are_matched_by_name() {
    let rules = rule::defaults();
    let form = |tool: &str| {
        let mut rules = rules.values().filter(|rule| rule.matches(tool));
        rules.next().map(|rule| rule.form)
    };
    for (tool, expected) in [
        ("Read", FileEffectForm::Read),
        ("mcp__filesystem__read_text_file", FileEffectForm::Read),
        ("functions.read_file", FileEffectForm::Read),
        ("Write", FileEffectForm::Write),
        ("MultiEdit", FileEffectForm::Edit),
        ("multi_edit", FileEffectForm::Edit),
        ("Glob", FileEffectForm::Glob),
        ("Grep", FileEffectForm::Search),
        ("LS", FileEffectForm::List),
        ("mcp__fs__list_directory", FileEffectForm::List),
        ("mcp__fs__move_file", FileEffectForm::Move),
        ("Bash", FileEffectForm::Shell),
        ("run_terminal_cmd", FileEffectForm::Shell),
        ("apply_patch", FileEffectForm::Patch),
        ("str_replace_editor", FileEffectForm::Editor),
        ("str_replace_based_edit_tool", FileEffectForm::Editor),
    ] {
        assert_eq!(form(tool), Some(expected), "{tool}");
    }
    assert_eq!(form("get_weather"), None);
    assert_eq!(form(""), None);
}

#[test]
fn file_effects_are_read_from_arguments_and_results() {
    let patch = "*** Begin Patch\n*** Add File: new.rs\n+x\n*** Update File: a.rs\n*** Move to: b.rs\n\
                 @@\n*** Delete File: old.rs\n*** End Patch";
    for (form, arguments, output, expected) in [
        (
            FileEffectForm::Read,
            json!({"file_path": "/a/b.rs"}),
            "",
            vec!["read /a/b.rs"],
        ),
        (
            FileEffectForm::Read,
            json!({"paths": ["a.rs", "b.rs"]}),
            "",
            vec!["read a.rs", "read b.rs"],
        ),
        (
            FileEffectForm::Read,
            json!({"file_id": "3"}),
            "id: '3'\nfilename: a.docx\n",
            vec!["read a.docx"],
        ),
        (
            FileEffectForm::Write,
            json!({"path": "x", "content": "y"}),
            "File created",
            vec!["created x"],
        ),
        (
            FileEffectForm::Write,
            json!({"path": "x"}),
            "The file x has been updated.",
            vec!["edited x"],
        ),
        (
            FileEffectForm::Edit,
            json!({"search": "a"}),
            "Replaced.\n(Open file: /r/a.py)",
            vec!["edited /r/a.py"],
        ),
        (
            FileEffectForm::Move,
            json!({"source": "a", "destination": "b"}),
            "",
            vec!["deleted a", "created b"],
        ),
        (
            FileEffectForm::List,
            json!({"path": "/w"}),
            "[FILE] a.rs\n[DIR] src",
            vec!["listed /w/a.rs"],
        ),
        (
            FileEffectForm::Glob,
            json!({"pattern": "*"}),
            "/w/a.rs\n/w/b.rs",
            vec!["listed /w/a.rs", "listed /w/b.rs"],
        ),
        (
            FileEffectForm::Glob,
            json!({"pattern": "*"}),
            "No files found",
            vec![],
        ),
        (
            FileEffectForm::Search,
            json!({"pattern": "x"}),
            "a.rs:1:x\na.rs-2-y\n--\nb.rs:3:x",
            vec!["read a.rs", "read b.rs"],
        ),
        (
            FileEffectForm::Search,
            json!({"pattern": "x"}),
            "Found 1 file\na/b.rs",
            vec!["listed a/b.rs"],
        ),
        (
            FileEffectForm::Search,
            json!({"pattern": "x", "path": "a.rs"}),
            "12:x",
            vec!["read a.rs"],
        ),
        (
            FileEffectForm::Search,
            json!({"pattern": "x", "path": "src"}),
            "No matches found",
            vec![],
        ),
        (
            FileEffectForm::Patch,
            json!({"input": patch}),
            "",
            vec![
                "created new.rs",
                "deleted a.rs",
                "created b.rs",
                "deleted old.rs",
            ],
        ),
        (
            FileEffectForm::Editor,
            json!({"command": "view", "path": "/a.py"}),
            "",
            vec!["read /a.py"],
        ),
        (
            FileEffectForm::Editor,
            json!({"command": "create", "path": "/a.py"}),
            "",
            vec!["created /a.py"],
        ),
        (
            FileEffectForm::Editor,
            json!({"command": "str_replace", "path": "/a.py"}),
            "",
            vec!["edited /a.py"],
        ),
    ] {
        assert_eq!(of(form, &arguments, output), expected, "{arguments}");
    }
}

// The state of a file is the last effect on it.
#[test]
fn last_effect_on_a_file_counts() {
    let line = "touch a.rs && sed -i s/a/b/ a.rs && cat a.rs; cat b.rs; rm b.rs";
    assert_eq!(shell(line, ""), ["created a.rs", "deleted b.rs"]);
}

// The directory before a valid file name had control characters.
#[test]
fn directory_with_control_characters_is_left_out() {
    let arguments = json!({"command": "cd \u{7f}odd && touch a.rs"});
    let spoken = ParsedCall {
        arguments: &arguments,
        output: "",
    };
    let touched = FileEffects::of(FileEffectForm::Shell, spoken);
    assert_eq!((touched.files.len(), touched.left_out), (0, 1));
}

proptest::proptest! {
    /// For any arguments and output, the paths are bounded and clean.
    #[test]
    fn any_command_gives_bounded_clean_paths(
        line in "[a-z .|&;<>()'\"$`\\\\\n/*=-]{0,120}|(cat|ls|git|rg|find|cd|sed -i|<<E) .{0,60}",
        output in ".{0,200}",
    ) {
        for form in [FileEffectForm::Shell, FileEffectForm::Search, FileEffectForm::Glob, FileEffectForm::List, FileEffectForm::Patch] {
            let arguments = json!({"command": line, "path": line});
            let touched = FileEffects::of(form, ParsedCall { arguments: &arguments, output: &output });
            for (path, _) in &touched.files {
                proptest::prop_assert!(!path.is_empty() && path.len() <= PATH_BYTES_MAX);
                proptest::prop_assert!(!path.contains(char::is_control));
            }
        }
    }
}
