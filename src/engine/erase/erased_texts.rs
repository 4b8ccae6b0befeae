//! Finds titles and sub-context purposes that repeat erased content.
//!
//! An import titles a conversation after its first prompt, and a fork takes its parent's title.
//! Erasing only the message would leave its most revealing line.

use std::borrow::Cow;

use super::{
    EraseError,
    plan::{ConversationFacts, ErasePlan},
};
use crate::{Inner, error::ReadError, history::decode_body};
use treering_domain::{ConversationId, EventBody, Revision};
use treering_log::Record;
use treering_search::searchable_text;

/// Maximum size of erased texts kept for comparison with later titles, in bytes: per text, per
/// conversation, and in total. Titles are made from the beginning of the first texts.
const TEXT_BYTES_MAX: usize = 2 << 10;
const SAID_BYTES_MAX: usize = 8 << 10;
pub(super) const ALL_BYTES_MAX: usize = 64 << 20;
/// Minimum length, in characters, for a title to match inside a line. A shorter title matches only
/// a whole line, because its words occur in many texts.
const PART_CHARS_MIN: usize = 12;

/// Erased texts of a conversation, for comparison with later titles.
#[derive(Debug, Default)]
pub(super) struct ErasedTexts {
    /// The title that it was created with; the outer `None` if it was not looked up.
    created: Option<Option<(u64, String)>>,
    said: Vec<String>,
    said_bytes: usize,
    titles: Vec<String>,
}

impl ErasedTexts {
    /// Returns true when a title repeats erased content.
    pub(crate) fn is_in_title(&self, title: &str) -> bool {
        let names = |gone: &String| title.starts_with(gone.as_str());
        !title.is_empty()
            && (self.titles.iter().any(names)
                || self.said.iter().any(|text| is_made_from(title, text)))
    }

    fn add_title(&mut self, title: &str) {
        if !title.is_empty() {
            self.titles.push(title.to_owned());
        }
    }

    /// Adds a text. `room` is the space left for all conversations, in bytes.
    fn add(&mut self, text: &str, room: &mut usize) {
        let own = SAID_BYTES_MAX - self.said_bytes;
        let kept = &text[..text.floor_char_boundary(own.min(*room).min(TEXT_BYTES_MAX))];
        if !kept.is_empty() {
            self.said_bytes += kept.len();
            *room -= kept.len();
            self.said.push(kept.to_owned());
        }
    }
}

/// The revision of a conversation's first title.
const CREATED: Revision = Revision(1);

impl ErasePlan {
    /// Finds events that precede an erased body and repeat it.
    pub(super) async fn find_repetitions(
        &mut self,
        inner: &Inner,
        id: ConversationId,
        body: &EventBody,
    ) -> Result<(), EraseError> {
        if let Some(answers) = self.answers.remove(&id) {
            self.also.extend(answers);
        }
        match body {
            EventBody::ConversationCreated(created) => {
                self.of(id).echo.add_title(&created.title);
                return Ok(());
            }
            EventBody::ConversationChanged(changed) => {
                let title = changed.title.as_deref().unwrap_or_default();
                self.of(id).echo.add_title(title);
                return Ok(());
            }
            EventBody::SubContextSpawned(spawned) => {
                let child = spawned.conversation;
                return self.check_title(inner, child, &spawned.purpose).await;
            }
            _ => {}
        }
        let Some(text) = searchable_text(body) else {
            return Ok(());
        };
        self.check_purpose(inner, id, &text).await?;
        // If the first event is erased, so is its title.
        if self.of(id).gone.contains_key(&CREATED) {
            return Ok(());
        }
        self.check_title(inner, id, &text).await?;
        let known = self.known.entry(id).or_default();
        known.echo.add(&text, &mut self.echo_room);
        Ok(())
    }

    fn of(&mut self, id: ConversationId) -> &mut ConversationFacts {
        self.known.entry(id).or_default()
    }

    /// Checks the title that a conversation was created with.
    async fn check_title(
        &mut self,
        inner: &Inner,
        id: ConversationId,
        text: &str,
    ) -> Result<(), EraseError> {
        let known = self.of(id);
        if known.gone.contains_key(&CREATED) || text.trim().is_empty() {
            return Ok(());
        }
        let created = match &known.echo.created {
            Some(created) => created.clone(),
            None => {
                let key = self.namespace.clone().unwrap_or_default().key(id);
                let offset = inner.reads.projections.load().offset(key, CREATED);
                let created = match offset.map_err(ReadError::from)? {
                    Some(offset) => self.title_at(inner, offset).await?,
                    None => None,
                };
                self.of(id).echo.created = Some(created.clone());
                created
            }
        };
        if let Some((offset, title)) = created
            && is_made_from(&title, text)
        {
            self.also.insert(offset);
        }
        Ok(())
    }

    async fn title_at(
        &self,
        inner: &Inner,
        offset: u64,
    ) -> Result<Option<(u64, String)>, EraseError> {
        Ok(match self.body_at(inner, offset).await? {
            Some(EventBody::ConversationCreated(created)) => Some((offset, created.title)),
            _ => None,
        })
    }

    /// Checks the purpose that the parent of a sub-context states.
    async fn check_purpose(
        &mut self,
        inner: &Inner,
        child: ConversationId,
        text: &str,
    ) -> Result<(), EraseError> {
        let Some(&offset) = self.spawned.get(&child) else {
            return Ok(());
        };
        if let Some(EventBody::SubContextSpawned(spawned)) = self.body_at(inner, offset).await?
            && is_made_from(&spawned.purpose, text)
        {
            self.also.insert(offset);
        }
        Ok(())
    }

    /// Returns a body of the same tenant that was not erased.
    async fn body_at(&self, inner: &Inner, offset: u64) -> Result<Option<EventBody>, EraseError> {
        let record: Record = inner
            .reads
            .reader
            .record(offset)
            .await
            .map_err(ReadError::from)?;
        let ours = self.namespace.as_ref();
        if record.is_erased() || ours.is_some_and(|ours| *ours != record.header.namespace) {
            return Ok(None);
        }
        let bytes = inner
            .reads
            .reader
            .body(&record)
            .await
            .map_err(ReadError::from)?;
        Ok(Some(decode_body(offset, record.header.kind, &bytes)?))
    }
}

/// Returns true when a short text was made from a longer one: it equals a line of the longer text,
/// or it is long enough and occurs in it, possibly truncated.
fn is_made_from(short: &str, text: &str) -> bool {
    let stem = short.trim().trim_end_matches(['…', '.']);
    let stem = plain(stem);
    if stem.is_empty() {
        return false;
    }
    let is_line = |line: &str| {
        let line = line.trim_end_matches('.');
        plain(line) == stem || plain(line.trim_start_matches(['#', '*', '-', ' '])) == stem
    };
    text.lines().map(str::trim).any(is_line)
        || (stem.chars().count() >= PART_CHARS_MIN
            && (plain(text).contains(&stem) || plain(&without_tags(text)).contains(&stem)))
}

/// Normalizes whitespace to single blanks.
fn plain(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let words = words.filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// Removes tags; commands are recorded with tags around their name and arguments.
fn without_tags(text: &str) -> Cow<'_, str> {
    if !text.contains("</") {
        return text.into();
    }
    let mut left = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, tag)) = rest.split_once('<') {
        left.push_str(before);
        let Some((_, behind)) = tag.split_once('>') else {
            break;
        };
        left.push(' ');
        rest = behind;
    }
    left.push_str(rest);
    left.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    // An erasure must not leave an import's title with the secret in it. But a title "Hi" must not
    // be erased with every text that contains these letters.
    #[test]
    fn title_made_from_a_text_is_detected() {
        let prompt =
            "# The key of the boat:\n\n the key   is hunter2 in the\tharbour office\nand so on";
        for made in [
            "the key is hunter2 in the harbour office",
            "the key   is hunter2 in the h…",
            "The key of the boat:",
            "key is hunter2 in...",
        ] {
            assert!(is_made_from(made, prompt), "{made}");
        }
        let command = "<command-message>plan</command-message>\n<command-name>/plan</command-name>\
                       <command-args>the tides</command-args>";
        assert!(is_made_from("/plan the tides", command));
        for other in ["", "…", "the key", "The tides of the harbour", "boat"] {
            assert!(!is_made_from(other, prompt), "{other}");
        }
        assert!(is_made_from("Hi", "Hi\nthere") && !is_made_from("Hi", "High tide. This"));
        let mut echo = ErasedTexts::default();
        echo.add_title("Boats");
        assert!(echo.is_in_title("Boats (from #7)") && !echo.is_in_title("My boats"));
        assert!(!ErasedTexts::default().is_in_title(""));
        let mut room = SAID_BYTES_MAX + 1;
        for _ in 0..9 {
            echo.add(&"ä".repeat(TEXT_BYTES_MAX), &mut room);
        }
        assert_eq!((echo.said_bytes, room), (SAID_BYTES_MAX, 1));
        ErasedTexts::default().add("ä", &mut room);
        assert_eq!(room, 1);
    }
}
