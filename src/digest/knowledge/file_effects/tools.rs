//! Effects of tools with one purpose.

use serde_json::Value;

use super::{
    FileEffect, FileEffectForm, FileEffects, OUTPUT_BYTES_MAX, ParsedCall, looks_like_file, output,
};
use crate::knowledge::read::below;

/// Names of arguments that contain a file, the most specific first.
const FILE_ARGUMENTS: [&str; 16] = [
    "file_path",
    "filePath",
    "filepath",
    "path",
    "filename",
    "file_name",
    "file",
    "target_file",
    "targetFile",
    "absolute_path",
    "AbsolutePath",
    "TargetFile",
    "notebook_path",
    "relative_path",
    "target",
    "uri",
];
/// Names of arguments that contain several files.
const LIST_ARGUMENTS: [&str; 4] = ["paths", "files", "file_paths", "edits"];

/// Records the files of a call.
pub(super) fn tool(form: FileEffectForm, spoken: ParsedCall<'_>, touched: &mut FileEffects) {
    let arguments = spoken.arguments;
    let output = &spoken.output[..spoken.output.floor_char_boundary(OUTPUT_BYTES_MAX)];
    match form {
        FileEffectForm::Read => named(arguments, output, FileEffect::Read, touched),
        FileEffectForm::Stat => named(arguments, output, FileEffect::Listed, touched),
        FileEffectForm::Write => named(arguments, output, written(output), touched),
        FileEffectForm::Edit => named(arguments, output, FileEffect::Edited, touched),
        FileEffectForm::Delete => named(arguments, output, FileEffect::Deleted, touched),
        FileEffectForm::Move => moved(arguments, touched),
        FileEffectForm::List => list(arguments, output, touched),
        FileEffectForm::Glob => {
            for path in lines(output).filter(|line| output::is_path(line)) {
                touched.add(None, path, FileEffect::Listed);
            }
        }
        FileEffectForm::Search => search(arguments, output, touched),
        FileEffectForm::Editor => editor(arguments, output, touched),
        FileEffectForm::Shell | FileEffectForm::Patch => {}
    }
}

/// Returns the effect of a write: edited, or created if the file is new.
fn written(output: &str) -> FileEffect {
    let head = &output[..output.floor_char_boundary(400)];
    let says = |words: &str| head.contains(words);
    if says("has been updated") || says("overwritten") || says("overwrote") {
        FileEffect::Edited
    } else {
        FileEffect::Created
    }
}

fn text<'a>(arguments: &'a Value, names: &[&str]) -> Option<&'a str> {
    let mut texts = names
        .iter()
        .filter_map(|name| arguments.get(*name)?.as_str());
    texts.find(|text| !text.trim().is_empty())
}

/// Records the files that the arguments name, or else the file that the result names.
fn named(arguments: &Value, output: &str, touch: FileEffect, touched: &mut FileEffects) {
    let file = match arguments {
        Value::String(path) => Some(path.as_str()),
        arguments => text(arguments, &FILE_ARGUMENTS),
    };
    if let Some(file) = file {
        return touched.add(None, file.strip_prefix("file://").unwrap_or(file), touch);
    }
    let lists = LIST_ARGUMENTS
        .iter()
        .filter_map(|name| arguments.get(*name)?.as_array());
    let mut any = false;
    for item in lists.flatten() {
        let file = item.as_str().or_else(|| text(item, &FILE_ARGUMENTS));
        if let Some(file) = file {
            any = true;
            touched.add(None, file, touch);
        }
    }
    if !any && let Some(path) = told(output) {
        touched.add(None, path, touch);
    }
}

/// Returns the file that a result is about.
fn told(output: &str) -> Option<&str> {
    let record = || {
        let mut names = output.lines().filter_map(|line| {
            let line = line.trim().trim_start_matches("- ");
            ["filename: ", "file_name: ", "path: "]
                .iter()
                .find_map(|key| line.strip_prefix(key))
        });
        let first = names.next()?;
        names
            .next()
            .is_none()
            .then(|| first.trim_matches(['"', '\'']))
    };
    output::shown_file(output).or_else(record)
}

fn moved(arguments: &Value, touched: &mut FileEffects) {
    let from = text(
        arguments,
        &[
            "source",
            "old_path",
            "from",
            "src",
            "oldPath",
            "source_path",
        ],
    );
    let to = text(
        arguments,
        &[
            "destination",
            "new_path",
            "to",
            "dst",
            "dest",
            "newPath",
            "target_path",
        ],
    );
    if let (Some(from), Some(to)) = (from, to) {
        touched.add(None, from, FileEffect::Deleted);
        touched.add(None, to, FileEffect::Created);
    }
}

fn lines(output: &str) -> impl Iterator<Item = &str> {
    output.lines().map(|line| {
        let line = line.trim();
        line.strip_prefix("[FILE] ")
            .or_else(|| line.strip_prefix("- "))
            .unwrap_or(line)
    })
}

fn list(arguments: &Value, output: &str, touched: &mut FileEffects) {
    let directory = text(
        arguments,
        &["path", "directory", "dir", "target_directory", "dir_path"],
    );
    let directory = directory.filter(|directory| *directory != ".");
    for line in lines(output) {
        // In "[FILE] a.txt   12 KB" the size is not part of the name.
        let name = line.split("  ").next().unwrap_or(line).trim();
        if line.starts_with("[DIR]") || name.contains(": ") || !looks_like_file(name) {
            continue;
        }
        match directory.filter(|_| !name.starts_with('/')) {
            Some(directory) => touched.add(None, &below(Some(directory), name), FileEffect::Listed),
            None => touched.add(None, name, FileEffect::Listed),
        }
    }
}

fn search(arguments: &Value, output: &str, touched: &mut FileEffects) {
    let path = text(arguments, &["path", "file", "file_path", "include_path"]);
    let mut any = false;
    for line in output.lines() {
        if let Some(path) = output::place(line) {
            any = true;
            touched.add(None, path, FileEffect::Read);
        } else if output::is_path(line.trim()) && !line.trim().contains(' ') {
            any = true;
            touched.add(None, line.trim(), FileEffect::Listed);
        }
    }
    // The output of a search in one file does not name the file.
    if !any && let Some(path) = path.filter(|path| looks_like_file(path)) {
        touched.add(None, path, FileEffect::Read);
    }
}

fn editor(arguments: &Value, output: &str, touched: &mut FileEffects) {
    let touch = match text(arguments, &["command", "action", "operation"]) {
        Some("view" | "read" | "open") => FileEffect::Read,
        Some("create" | "write") => written(output),
        Some("delete" | "remove") => FileEffect::Deleted,
        Some("rename" | "move") => return moved(arguments, touched),
        Some(_) => FileEffect::Edited,
        None => return,
    };
    // Viewing a directory lists it.
    if touch == FileEffect::Read && output.contains("files and directories up to 2 levels") {
        for path in lines(output).filter(|line| output::is_path(line)) {
            touched.add(None, path, FileEffect::Listed);
        }
        return;
    }
    named(arguments, output, touch, touched);
}
