//! What an import did, counted, and said by file and line where it matters.

use std::{cell::RefCell, collections::BTreeMap, path::Path, time::Duration};

use indicatif::ProgressBar;

use super::{
    super::{
        json::Object,
        text::{count, printable, short_id, things},
    },
    feed::{FeedItem, Ready, SourceLine},
    find, note,
};
use treering_import::{ImportNote, ImportedConversation, Parted, format::Format};

/// What came of an import.
#[derive(Clone, Debug, Default)]
pub struct ImportCounts {
    /// Conversations that were read.
    pub conversations: u64,
    /// … and were not in the store before.
    pub new: u64,
    /// … and had grown.
    pub continued: u64,
    /// … and were there already, whole.
    pub known: u64,
    /// … and contradict themselves, with `--strict`.
    pub refused: u64,
    /// Branches that were opened because the past of a source changed.
    pub parted: u64,
    /// Files whose last line is left for the next time.
    pub unfinished: u64,
    /// Files, by what they hold.
    pub files: BTreeMap<Format, u64>,
    /// Names of the first files that were passed over, by what they hold.
    pub passed_over: BTreeMap<Format, Vec<String>>,
    /// Conversations and files that were not imported.
    pub failed: u64,
    /// Lines that are no conversation.
    pub bad_lines: u64,
    /// Events that were appended.
    pub events: u64,
    /// What was odd, by name.
    pub oddities: BTreeMap<&'static str, u64>,
    /// The same in words, for people.
    pub told: BTreeMap<&'static str, &'static str>,
    /// UUID of the conversation with the most events, and their number.
    pub largest: Option<(String, usize)>,
}

/// How a conversation got into the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It was not there.
    New,
    /// It was there in part.
    Continued,
    /// It was there whole.
    Known,
}

/// Counts, and tells standard error what is odd.
#[derive(Debug)]
pub struct Report {
    counts: RefCell<ImportCounts>,
    bar: ProgressBar,
    strict: bool,
    took: Duration,
    /// Somebody did not want to wait for its end.
    pub is_interrupted: bool,
    /// Nothing is said of last lines that are not whole: whoever watches looks again.
    watches: bool,
}

/// Files of one format that are named when they are passed over.
const PASSED_OVER_NAMED_MAX: usize = 3;

impl Report {
    /// Nothing yet.
    pub fn new(bar: ProgressBar, strict: bool) -> Self {
        Self {
            counts: RefCell::default(),
            bar,
            strict,
            took: Duration::ZERO,
            is_interrupted: false,
            watches: false,
        }
    }

    /// The same for one look of many: what will be there at the next one is not told.
    pub fn of_watch(self) -> Self {
        Self {
            watches: true,
            ..self
        }
    }

    /// How long it took.
    pub fn timed(mut self, took: Duration) -> Self {
        self.took = took;
        self
    }

    /// Where it shows how far it is.
    pub fn bar(&self) -> &ProgressBar {
        &self.bar
    }

    /// What contradicts itself is refused.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// The counts so far.
    pub fn counts(&self) -> ImportCounts {
        self.counts.borrow().clone()
    }

    /// Counts what reading brought, and tells what is odd. What is to be appended comes back.
    pub fn found(&self, found: FeedItem) -> Option<Box<Ready>> {
        match found {
            FeedItem::File(format) => self.file(format),
            FeedItem::PassedOver(origin, format) => self.passed_over(&origin, format),
            FeedItem::LeftOut(origin, why) => self.look_note(&origin, why),
            FeedItem::Blank(origin) => self.look_note(&origin, "it is empty"),
            FeedItem::Known => self.known(),
            FeedItem::BadLine(origin, why) => {
                self.counts.borrow_mut().bad_lines += 1;
                note(&self.bar, &format!("{origin}: {why}"));
            }
            FeedItem::Unfinished(origin) => {
                self.counts.borrow_mut().unfinished += 1;
                let left = "its last line is not whole yet; it is left for the next import";
                self.look_note(&origin, left);
            }
            FeedItem::BadFile(origin, why) => self.failed(&origin, &why),
            FeedItem::Conversation(ready) => return Some(ready),
        }
        None
    }

    /// Tells of a file, unless it is looked at again and again.
    fn look_note(&self, origin: &SourceLine, what: &str) {
        if !self.watches {
            note(&self.bar, &format!("{origin}: {what}"));
        }
    }

    /// A file holds this.
    fn file(&self, format: Format) {
        *self.counts.borrow_mut().files.entry(format).or_default() += 1;
    }

    /// A file of a folder holds something that is not imported.
    fn passed_over(&self, origin: &SourceLine, format: Format) {
        self.file(format);
        let mut counts = self.counts.borrow_mut();
        let named = counts.passed_over.entry(format).or_default();
        if named.len() < PASSED_OVER_NAMED_MAX {
            named.push(origin.file.clone());
        }
    }

    /// There is no file in a folder that is looked at.
    pub fn without_files(&self, folder: &Path) {
        let folder = printable(&folder.display().to_string());
        let line = format!(
            "{folder}: no file in it is looked at; such are {}",
            find::looked_at()
        );
        note(&self.bar, &line);
    }

    /// A conversation was imported before, word for word.
    fn known(&self) {
        let mut counts = self.counts.borrow_mut();
        counts.conversations += 1;
        counts.known += 1;
    }

    /// A source goes on otherwise than what is stored of it.
    pub fn parted(&self, origin: &SourceLine, imported: &ImportedConversation, parted: &Parted) {
        self.counts.borrow_mut().parted += 1;
        let id = imported.conversation.to_string();
        let id = short_id("", &id);
        let Parted { branch, after } = parted;
        note(
            &self.bar,
            &format!(
                "{origin}: what {id} has after #{after} is not what the source says now; that is \
                 on the branch {branch}"
            ),
        );
    }

    /// A file, or a conversation, was not imported.
    pub fn failed(&self, origin: &SourceLine, why: &str) {
        self.counts.borrow_mut().failed += 1;
        note(&self.bar, &format!("{origin}: not imported: {why}"));
    }

    /// A conversation was read. False: it is not to be imported.
    pub fn read(&self, origin: &SourceLine, notes: &[ImportNote]) -> bool {
        let mut counts = self.counts.borrow_mut();
        counts.conversations += 1;
        let mut faults = 0;
        for odd in notes {
            *counts.oddities.entry(odd.what.name()).or_default() += 1;
            counts.told.insert(odd.what.name(), odd.what.told());
            // What contradicts itself is named; what merely lacks something is
            // counted.
            if odd.what.is_fault() {
                faults += 1;
                let message = odd.message_index;
                note(
                    &self.bar,
                    &format!("{origin}: message {message}: {}", odd.what),
                );
            }
        }
        let refused = self.strict && faults > 0;
        if refused {
            counts.refused += 1;
        }
        !refused
    }

    /// A conversation is in the store.
    pub fn arrived(&self, imported: &ImportedConversation, how: Arrival, events: u64) {
        let mut counts = self.counts.borrow_mut();
        match how {
            Arrival::New => counts.new += 1,
            Arrival::Continued => counts.continued += 1,
            Arrival::Known => counts.known += 1,
        }
        counts.events += events;
        let size = imported.events.len();
        if counts.largest.as_ref().is_none_or(|(_, most)| size > *most) {
            counts.largest = Some((imported.conversation.to_string(), size));
        }
        self.bar
            .set_message(format!("import {} conversations", count(counts.new)));
    }

    /// One sentence or two for people.
    pub fn summary(&self) -> String {
        let counts = self.counts.borrow();
        let mut text = found(&counts);
        text.push_str(&format!(
            "{} read in {:.1} s: {} new, {} continued, {} already there; {} appended",
            things(counts.conversations, "conversation", "conversations"),
            self.took.as_secs_f64(),
            count(counts.new),
            count(counts.continued),
            count(counts.known),
            things(counts.events, "event", "events")
        ));
        for (number, what) in [
            (
                counts.parted,
                "opened as branches, where a past has changed",
            ),
            (
                counts.unfinished,
                "left for the next import: last lines that are not whole",
            ),
            (counts.refused, "refused: contradicting themselves"),
            (counts.failed, "not imported"),
            (counts.bad_lines, "not a conversation (lines)"),
        ] {
            if number > 0 {
                text.push_str(&format!("\n  {:>8}  {what}", count(number)));
            }
        }
        for (what, number) in &counts.oddities {
            let told = counts.told.get(what).unwrap_or(what);
            text.push_str(&format!("\n  {:>8}  {told}", count(*number)));
        }
        text
    }

    /// What one look of many brought, in a line; none when that is nothing.
    pub fn news(&self) -> Option<String> {
        let counts = self.counts.borrow();
        (counts.events > 0).then(|| {
            format!(
                "{} appended: {} new, {} continued",
                things(counts.events, "event", "events"),
                count(counts.new),
                count(counts.continued),
            )
        })
    }

    /// The same for scripts.
    pub fn json(&self) -> String {
        let counts = self.counts.borrow();
        let mut object = Object::new();
        object
            .number("conversations", counts.conversations)
            .number("new", counts.new)
            .number("continued", counts.continued)
            .number("known", counts.known)
            .number("branches", counts.parted)
            .number("unfinished", counts.unfinished)
            .number("refused", counts.refused)
            .number("failed", counts.failed)
            .number("bad_lines", counts.bad_lines)
            .number("events", counts.events)
            .float("seconds", self.took.as_secs_f64());
        let mut oddities = Object::new();
        for (what, number) in &counts.oddities {
            oddities.number(&what.replace(' ', "_"), *number);
        }
        object.raw("oddities", &oddities.finish());
        let mut files = Object::new();
        for (format, number) in &counts.files {
            files.number(format.name(), *number);
        }
        object.raw("files", &files.finish());
        object.finish()
    }
}

/// What the files hold, a line for what is imported and one for each other thing.
fn found(counts: &ImportCounts) -> String {
    let mut text = String::new();
    for (format, number) in &counts.files {
        let what = match counts.passed_over.get(format) {
            None => String::new(),
            Some(named) => {
                let names: Vec<_> = named.iter().map(|name| printable(name)).collect();
                let more = match *number > named.len() as u64 {
                    true => " …",
                    false => "",
                };
                format!(": passed over: {}{more}", names.join(", "))
            }
        };
        text.push_str(&format!(
            "{} of {}{what}\n",
            things(*number, "file", "files"),
            format.name()
        ));
    }
    text
}
