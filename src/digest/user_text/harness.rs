//! Recognises texts that a harness adds to messages and results.

use std::borrow::Cow;

use super::local_command;

/// Tags of texts that the user did not write.
const TAGS: [&str; 19] = [
    "system-reminder",
    "task-notification",
    "user-prompt-submit-hook",
    "ide_opened_file",
    "new-diagnostics",
    "local-command-caveat",
    "local-command-stdout",
    "local-command-stderr",
    "command-message",
    "environment_context",
    "user_instructions",
    "user_shell_command",
    "turn_aborted",
    "subagent_notification",
    "skill",
    "bash-input",
    "bash-stdout",
    "bash-stderr",
    "bash-status",
];
/// Tags from [`TAGS`] around program output, which may itself contain any tag.
const OUTPUTS: [&str; 8] = [
    "task-notification",
    "user_shell_command",
    "subagent_notification",
    "skill",
    "local-command-stdout",
    "local-command-stderr",
    "bash-stdout",
    "bash-stderr",
];
/// Blocks that a harness adds after a tool's text: temporary notices, and the cost of a sub-agent.
const BEHIND: [(&str, &str); 2] = [
    ("<system-reminder>", "</system-reminder>"),
    ("<usage>", "</usage>"),
];

/// Beginning and end of the text in which Codex gives the project's instructions.
const CODEX_INSTRUCTIONS: [&str; 2] = ["# AGENTS.md instructions", "</INSTRUCTIONS>"];

/// Returns a message without the harness's texts.
fn without_harness(text: &str) -> Cow<'_, str> {
    if is_codex_instructions(text) {
        return Cow::from("");
    }
    let mut told = Cow::from(text);
    for tag in TAGS {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        while let Some(start) = told.find(&open) {
            let rest = &told[start..];
            // The user is writing about the tag, so the text after it is the user's.
            if !rest.contains(&close) && !told[..start].trim().is_empty() {
                break;
            }
            let end = match OUTPUTS.contains(&tag) {
                true => rest.rfind(&close),
                false => rest.find(&close),
            };
            let end = end.map_or(told.len(), |end| start + end + close.len());
            told.to_mut().replace_range(start..end, "");
        }
    }
    if told
        .trim_start()
        .starts_with("[Request interrupted by user")
    {
        return Cow::from("");
    }
    match told {
        Cow::Borrowed(told) => Cow::from(told.trim()),
        Cow::Owned(told) => Cow::from(told.trim().to_owned()),
    }
}

/// Returns the user's words in a message. For a command, returns its name and arguments.
pub(crate) fn strip_harness(text: &str) -> Cow<'_, str> {
    let told = without_harness(text);
    let Some(command) = told.strip_prefix("<command-name>") else {
        return told;
    };
    let name = command.split("</command-name>").next().unwrap_or_default();
    let arguments = command.split_once("<command-args>");
    let arguments = arguments.and_then(|(_, rest)| rest.split("</command-args>").next());
    let said = format!("{name} {}", arguments.unwrap_or_default());
    Cow::from(said.trim().to_owned())
}

/// Whether a message has only tagged texts: notices, or commands that the user ran at the prompt
/// with their output.
pub(crate) fn is_harness_alone(text: &str) -> bool {
    let is_tagged = text.trim_start().starts_with('<') && without_harness(text).is_empty();
    is_tagged || is_codex_instructions(text)
}

fn is_codex_instructions(text: &str) -> bool {
    let [begin, end] = CODEX_INSTRUCTIONS;
    text.starts_with(begin) && text.trim_end().ends_with(end)
}

/// Whether the text is only a command (`/mode`) that the harness did not know and therefore sent to
/// the model unchanged.
fn is_unknown_command(text: &str) -> bool {
    let name = text.trim().strip_prefix('/').unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_:".contains(c);
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_plain)
}

/// Whether a message has a request or statement of the user. A bare command that the harness runs
/// itself (`/clear`) does not count. A prompt command (`/review`) does: it begins with
/// `<command-message>`, and its text follows as a notice.
pub(crate) fn is_said(text: &str) -> bool {
    if is_unknown_command(text) || local_command::read(text).is_some() {
        return false;
    }
    if text.trim_start().starts_with("<command-message>") && text.contains("<command-name>/") {
        return true;
    }
    let told = without_harness(text);
    let is_command = told.starts_with("<command-name>");
    match told.split_once("<command-args>") {
        _ if told.is_empty() => false,
        Some((_, rest)) if is_command => !rest.trim_start().starts_with("</command-args>"),
        _ => !is_command,
    }
}

/// Returns a tool's text without the harness's texts at its end.
pub(crate) fn without_reminders(text: &str) -> &str {
    let mut rest = text;
    loop {
        let told = rest.trim_end();
        let block = BEHIND.iter().find(|(_, close)| told.ends_with(close));
        let start = block.and_then(|(open, _)| told.rfind(open));
        match start {
            Some(start) if !told[..start].trim().is_empty() => rest = told[..start].trim_end(),
            _ => return rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A session that began with `/clear` kept that as its task, and dropped the actual task.
    #[test]
    fn bare_commands_and_notices_are_not_user_text() {
        for silent in [
            "",
            "<command-name>/clear</command-name>\n  <command-message>clear</command-message>\n  \
             <command-args></command-args>",
            "<command-message>x is running</command-message>",
            "<local-command-stdout>See ya!</local-command-stdout>",
            "[Request interrupted by user for tool use]",
            "<system-reminder>\nBe brief.\n</system-reminder>\n",
            "<bash-input>ls</bash-input>",
            "<user_shell_command>\n<command>\nls\n</command>\n<result>\nfix it\n</result>\n\
             </user_shell_command>",
            "<turn_aborted>\nThe user interrupted the turn.\n</turn_aborted>",
            "# AGENTS.md instructions for /work\n\n<INSTRUCTIONS>\nBe brief.\n</INSTRUCTIONS>",
            "/mode",
            r#"{"command": "ls", "output": "fix it", "cancelled": false, "truncated": false}"#,
            "<bash-input>cat a.xml</bash-input>\n<bash-stdout><b>fix it</b></bash-stdout> now \
             </bash-stdout>\n<bash-status>exit code 1</bash-status>",
            "<bash-stdout>a.rs</bash-stdout><bash-stderr></bash-stderr>",
            "<task-notification>\n<task-id>b4</task-id>\n<result><b>ok</b></result>\n\
             </task-notification>",
        ] {
            assert!(!is_said(silent), "{silent}");
            let is_alone = silent.starts_with(['<', '#']) && !silent.contains("<command-name>");
            assert_eq!(is_harness_alone(silent), is_alone, "{silent}");
        }
        for said in [
            "fix it",
            "<command-name>/review</command-name><command-args>123</command-args>",
            "<command-message>x is running</command-message>\n<command-name>/x</command-name>",
            "<system-reminder>x</system-reminder> and now?",
            "/etc/hosts",
            "/mode plan",
            "what does <command-args></command-args> mean?",
        ] {
            assert!(is_said(said) && !is_harness_alone(said), "{said}");
        }
    }

    #[test]
    fn command_tags_are_removed() {
        let command = "<command-message>review is running</command-message>\n\
                       <command-name>/review</command-name>\n<command-args>167 </command-args>";
        assert_eq!(strip_harness(command), "/review 167");
        assert_eq!(strip_harness("<command-name>/pr</command-name>"), "/pr");
        assert_eq!(strip_harness("mend <it>"), "mend <it>");
        // If the user writes about a tag, all of the text stays.
        let about = "why does <system-reminder> stand in the answer?";
        assert_eq!(strip_harness(about), about);
    }

    #[test]
    fn trailing_reminders_are_removed_from_results() {
        let reminder = "\n\n<system-reminder>\nMind it.\n</system-reminder>\n";
        let cost = "\n<usage>tokens: 1\nms: 2</usage>";
        let text = format!("one\ntwo{cost}{reminder}{reminder}");
        assert_eq!(without_reminders(&text), "one\ntwo");
        for whole in ["one\n", reminder, "<system-reminder>\nx"] {
            assert_eq!(without_reminders(whole), whole);
        }
    }
}
