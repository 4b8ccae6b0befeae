//! Counts what an import did, and reports problems by file and line.

use std::{cell::RefCell, collections::BTreeMap, path::Path, time::Duration};

use indicatif::ProgressBar;

use super::{
    super::{
        json::Object,
        text::{count, printable, short_id, things},
    },
    feed::{FeedItem, ParsedConversation, SourceLine},
    find, note,
};
use treering_import::{DivergedBranch, ImportNote, ImportedConversation, format::Format};

/// Outcome of an import.
#[derive(Clone, Debug, Default)]
pub(crate) struct ImportCounts {
    /// Conversations that were read.
    pub(crate) conversations: u64,
    /// … and were not in the store before.
    pub(crate) new: u64,
    /// … and had grown.
    pub(crate) continued: u64,
    /// … and were already there completely.
    pub(crate) known: u64,
    /// … and are inconsistent, with `--strict`.
    pub(crate) refused: u64,
    /// Branches that were created because the past of a source changed.
    pub(crate) parted: u64,
    /// Files with a last line left for the next time.
    pub(crate) unfinished: u64,
    /// Files by format.
    pub(crate) files: BTreeMap<Format, u64>,
    /// Names of the first skipped files, by format.
    pub(crate) passed_over: BTreeMap<Format, Vec<String>>,
    /// Conversations and files that failed.
    pub(crate) failed: u64,
    /// Lines that are not conversations.
    pub(crate) bad_lines: u64,
    /// Appended events.
    pub(crate) events: u64,
    /// Number of oddities, by name.
    pub(crate) oddities: BTreeMap<&'static str, u64>,
    /// Descriptions of the oddities, for people.
    pub(crate) told: BTreeMap<&'static str, &'static str>,
    /// UUID of the conversation with the most events, and their number.
    pub(crate) largest: Option<(String, usize)>,
}

/// How a conversation was added to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It was new.
    New,
    /// Part of it was known.
    Continued,
    /// All of it was known.
    Known,
}

/// Counts, and prints problems to standard error.
#[derive(Debug)]
pub(crate) struct Report {
    counts: RefCell<ImportCounts>,
    bar: ProgressBar,
    strict: bool,
    took: Duration,
    /// The user interrupted it.
    pub(crate) is_interrupted: bool,
    /// Notes about skipped, empty and unfinished files are not printed, because a watch reads the
    /// files again.
    watches: bool,
}

/// Maximum number of skipped files of one format that are named.
const PASSED_OVER_NAMED_MAX: usize = 3;

impl Report {
    /// Returns an empty report.
    pub(crate) fn new(bar: ProgressBar, strict: bool) -> Self {
        Self {
            counts: RefCell::default(),
            bar,
            strict,
            took: Duration::ZERO,
            is_interrupted: false,
            watches: false,
        }
    }

    /// Returns the report of one pass of a watch. It prints no notes about files that the next pass
    /// will read again.
    pub(crate) fn of_watch(self) -> Self {
        Self {
            watches: true,
            ..self
        }
    }

    /// Sets the duration.
    pub(crate) fn timed(mut self, took: Duration) -> Self {
        self.took = took;
        self
    }

    /// Returns the progress bar.
    pub(crate) fn bar(&self) -> &ProgressBar {
        &self.bar
    }

    /// Returns true if inconsistent conversations are refused.
    pub(crate) fn is_strict(&self) -> bool {
        self.strict
    }

    /// Returns the counts so far.
    pub(crate) fn counts(&self) -> ImportCounts {
        self.counts.borrow().clone()
    }

    /// Counts an item and reports problems. Returns a conversation that is to be appended.
    pub(crate) fn found(&self, found: FeedItem) -> Option<Box<ParsedConversation>> {
        match found {
            FeedItem::File(format) => self.file(format),
            FeedItem::PassedOver(origin, format) => self.passed_over(&origin, format),
            FeedItem::LeftOut(origin, why) => self.print_file_note(&origin, why),
            FeedItem::Blank(origin) => self.print_file_note(&origin, "it is empty"),
            FeedItem::Known => self.known(),
            FeedItem::BadLine(origin, why) => {
                self.counts.borrow_mut().bad_lines += 1;
                note(&self.bar, &format!("{origin}: {why}"));
            }
            FeedItem::Unfinished(origin) => {
                self.counts.borrow_mut().unfinished += 1;
                let left = "its last line is incomplete and is left for the next import";
                self.print_file_note(&origin, left);
            }
            FeedItem::BadFile(origin, why) => self.failed(&origin, &why),
            FeedItem::Conversation(ready) => return Some(ready),
        }
        None
    }

    /// Reports a file, except in a watch.
    fn print_file_note(&self, origin: &SourceLine, what: &str) {
        if !self.watches {
            note(&self.bar, &format!("{origin}: {what}"));
        }
    }

    /// Counts a file of this format.
    fn file(&self, format: Format) {
        *self.counts.borrow_mut().files.entry(format).or_default() += 1;
    }

    /// Counts a skipped file in a folder.
    fn passed_over(&self, origin: &SourceLine, format: Format) {
        self.file(format);
        let mut counts = self.counts.borrow_mut();
        let named = counts.passed_over.entry(format).or_default();
        if named.len() < PASSED_OVER_NAMED_MAX {
            named.push(origin.file.clone());
        }
    }

    /// Reports a folder without candidate files.
    pub(crate) fn without_files(&self, folder: &Path) {
        let folder = printable(&folder.display().to_string());
        let line = format!(
            "{folder}: it has no importable files; supported are {}",
            find::looked_at()
        );
        note(&self.bar, &line);
    }

    /// Counts a conversation that was imported before, unchanged.
    fn known(&self) {
        let mut counts = self.counts.borrow_mut();
        counts.conversations += 1;
        counts.known += 1;
    }

    /// Reports a source that differs from its stored events.
    pub(crate) fn parted(
        &self,
        origin: &SourceLine,
        imported: &ImportedConversation,
        parted: &DivergedBranch,
    ) {
        self.counts.borrow_mut().parted += 1;
        let id = imported.conversation.to_string();
        let id = short_id("", &id);
        let DivergedBranch { branch, after } = parted;
        note(
            &self.bar,
            &format!(
                "{origin}: events of {id} after #{after} differ from the source now; the new ones \
                 are on branch {branch}"
            ),
        );
    }

    /// Reports a file or a conversation that was not imported.
    pub(crate) fn failed(&self, origin: &SourceLine, why: &str) {
        self.counts.borrow_mut().failed += 1;
        note(&self.bar, &format!("{origin}: not imported: {why}"));
    }

    /// Counts a conversation that was read. Returns false if it is not to be imported.
    pub(crate) fn read(&self, origin: &SourceLine, notes: &[ImportNote]) -> bool {
        let mut counts = self.counts.borrow_mut();
        counts.conversations += 1;
        let mut faults = 0;
        for odd in notes {
            *counts.oddities.entry(odd.what.name()).or_default() += 1;
            counts.told.insert(odd.what.name(), odd.what.describe());
            // Inconsistencies are named; missing details are only counted.
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

    /// Counts a conversation that is in the store.
    pub(crate) fn arrived(&self, imported: &ImportedConversation, how: Arrival, events: u64) {
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

    /// Returns a summary for people: the formats, the counts, and a line for each kind of problem.
    pub(crate) fn summary(&self) -> String {
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
                "added as branches because their past has changed",
            ),
            (
                counts.unfinished,
                "incomplete last lines, left for the next import",
            ),
            (counts.refused, "refused because they are inconsistent"),
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

    /// Returns a line about one pass of a watch, or `None` if nothing was appended.
    pub(crate) fn news(&self) -> Option<String> {
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

    /// Returns the counts as JSON for scripts.
    pub(crate) fn json(&self) -> String {
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

/// Returns a line for each format, with the number of files and the first skipped ones.
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
                format!(": skipped: {}{more}", names.join(", "))
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
