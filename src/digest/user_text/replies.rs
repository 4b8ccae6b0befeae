//! Reads the user's words that are recorded as a call's result: reasons for a refusal, and answers
//! to the call's questions.

use treering_context::heuristics::Reply;

/// Beginnings of results of calls that the user refused.
const REFUSED: [&str; 3] = [
    "The user doesn't want to proceed with this tool use",
    "The user doesn't want to take this action right now",
    "User rejected",
];
/// Text before the user's reason, and the harness's text after it.
const SAID: &str = "the user said:";
const BEHIND: [&str; 2] = ["\n\nNote: The user's next message", "\n\n<system-reminder>"];
/// Beginning of the harness's text in place of a reason, when the user gave none but wants to
/// discuss the questions.
const NOTHING_SAID: &str = "The user wants to clarify these questions";
/// Texts before the answers, and the text after them.
const ANSWERED: [&str; 2] = [
    "User has answered your questions:",
    "Your questions have been answered:",
];
const GO_ON: &str = ". You can now continue";
/// Beginnings of results of plans that the user approved.
const APPROVED: [&str; 2] = [
    "User has approved your plan",
    "User has approved exiting plan mode",
];

/// Reads a result. None if it is the output of a tool.
pub(crate) fn reply(text: &str) -> Option<Reply<'_>> {
    let text = text.trim_start();
    let begins = |with: &[&str]| with.iter().any(|begin| text.starts_with(begin));
    if begins(&REFUSED) {
        return Some(Reply::Refused(reason(text)));
    }
    if begins(&APPROVED) {
        return Some(Reply::Approved);
    }
    let answers = ANSWERED.iter().find_map(|begin| text.strip_prefix(begin))?;
    Some(Reply::Answered(pairs(answers)))
}

fn reason(text: &str) -> &str {
    let Some((_, said)) = text.split_once(SAID) else {
        return "";
    };
    let end = BEHIND.iter().filter_map(|behind| said.find(behind)).min();
    let said = said[..end.unwrap_or(said.len())].trim();
    match said.starts_with(NOTHING_SAID) {
        true => "",
        false => said,
    }
}

/// Parses `"question"="answer", "question"="answer"`.
fn pairs(text: &str) -> Vec<(&str, &str)> {
    let end = text.rfind(GO_ON).unwrap_or(text.len());
    let text = text[..end].trim();
    let text = text.strip_prefix('"').unwrap_or(text);
    let text = text.strip_suffix('"').unwrap_or(text);
    let mut pieces = text.split("\"=\"");
    let mut question = pieces.next().unwrap_or_default();
    let mut pairs = Vec::new();
    let mut pieces = pieces.peekable();
    while let Some(piece) = pieces.next() {
        let is_last = pieces.peek().is_none();
        match piece.rsplit_once("\", \"").filter(|_| !is_last) {
            Some((answer, next)) => {
                pairs.push((question, answer));
                question = next;
            }
            None => pairs.push((question, piece)),
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    // A user's answer to a question is a decision, but is recorded as a result. Requests and
    // extracts must contain the answer, not only the question.
    #[test]
    fn answers_to_questions_are_parsed() {
        let text = "User has answered your questions: \"Embedded or inline?\"=\"Inline \
                    (Recommended)\", \"Which \"repos\", old or new?\"=\"Only new\". You can now \
                    continue with the user's answers in mind.";
        let expected = vec![
            ("Embedded or inline?", "Inline (Recommended)"),
            ("Which \"repos\", old or new?", "Only new"),
        ];
        let reply = reply(text);
        assert_eq!(reply, Some(Reply::Answered(expected)));
        let told = reply.unwrap().told("AskUserQuestion");
        let first = (
            "asked “Embedded or inline?”".to_owned(),
            "Inline (Recommended)",
        );
        assert_eq!(told[0], first);
    }

    // `refused: I want the formula to be called x` would say the opposite: the user refused a plan,
    // and wants this instead.
    #[test]
    fn refusal_is_parsed_with_its_reason() {
        let refused = "The user doesn't want to proceed with this tool use. The tool use was \
                       rejected (eg. if it was a file edit, the new_string was NOT written).";
        let said = format!("{refused} To tell you how to proceed, the user said:\nuse the other");
        let told = |text: &str| {
            let told = reply(text)?.told("Write a.rs").into_iter();
            let told = told.map(|(to, said)| format!("{to}: {said}"));
            Some(told.collect::<String>())
        };
        assert_eq!(
            told(&said).as_deref(),
            Some("refused Write a.rs: use the other")
        );
        let noted = format!("{said}\n\nNote: The user's next message may contain a correction.");
        assert_eq!(told(&noted), told(&said));
        let clarify = "To tell you how to proceed, the user said:\nThe user wants to clarify \
                       these questions.\n  This means they may have additional information.";
        for silent in [refused.to_owned(), format!("{refused} {clarify}")] {
            assert_eq!(
                told(&silent).as_deref(),
                Some("refused Write a.rs: "),
                "{silent}"
            );
        }
        // A file that quotes such a text is still a file.
        assert_eq!(told(&format!("1: {refused}")), None);
        assert_eq!(told("ok"), None);
    }
}
