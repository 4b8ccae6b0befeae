//! Items of the conversation during a layout.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use super::{Scope, cut, repeats};
use crate::{
    draft::{Draft, Fate, Item, Outcome, Section},
    heuristics::Heuristics,
    shared::SharedContent,
    tokens::Tally,
};
use treering_domain::EventRef;

/// Form of an item in the request.
#[derive(Clone, Debug)]
pub(super) enum PieceForm {
    Whole,
    Cut(SharedContent),
    Gone,
}

/// An item of the conversation.
#[derive(Clone, Debug)]
pub(super) struct Piece<'a> {
    /// Index in the draft.
    pub place: usize,
    /// The item in its longest form.
    pub item: Cow<'a, Item>,
    /// The item from which cuts are made.
    pub source: Cow<'a, Item>,
    pub form: PieceForm,
    /// Tokens in the current form.
    pub tokens: u64,
    /// The short form, cached: outer `None` if not computed yet, inner `None` if there is no short
    /// form.
    pub short: Option<Option<(SharedContent, u64)>>,
    /// The piece before a repeated result was replaced by a note.
    pub in_full: Option<Box<Piece<'a>>>,
}

impl<'a> Piece<'a> {
    fn new(place: usize, item: &'a Item) -> Self {
        Self {
            place,
            item: Cow::Borrowed(item),
            source: Cow::Borrowed(item),
            form: PieceForm::Whole,
            tokens: item.tokens,
            short: None,
            in_full: None,
        }
    }

    pub fn is_gone(&self) -> bool {
        matches!(self.form, PieceForm::Gone)
    }

    pub fn is_cut(&self) -> bool {
        matches!(self.form, PieceForm::Cut(_))
    }

    /// Replaces the content. Returns false and changes nothing if that saves no tokens.
    fn replace_if_shorter(&mut self, content: SharedContent, tally: &Tally) -> bool {
        let mut item = self.item.clone().into_owned();
        item.content = content;
        item.tokens = tally.item(&item);
        let saves = item.tokens < self.item.tokens;
        if saves {
            self.tokens = item.tokens;
            self.item = Cow::Owned(item);
        }
        saves
    }

    /// Index in the draft, form and tokens.
    pub(crate) fn into_form(self) -> (usize, PieceForm, u64) {
        let form = match (self.form, self.item) {
            (PieceForm::Whole, Cow::Owned(item)) => PieceForm::Cut(item.content),
            (form, _) => form,
        };
        (self.place, form, self.tokens)
    }
}

/// The pieces of a draft.
pub(super) fn whole(draft: &Draft) -> Vec<Piece<'_>> {
    let items = draft.items.iter().enumerate();
    let said = items.filter(|(_, item)| {
        item.fate != Fate::Dropped
            && matches!(
                item.section,
                Section::Messages | Section::OpenTurn | Section::Compaction
            )
    });
    said.map(|(place, item)| Piece::new(place, item)).collect()
}

/// The pieces of a draft, without encoded data in results that may be cut.
pub(super) fn of<'a>(
    draft: &'a Draft,
    scope: Scope<'_>,
    tally: &Tally,
    may_cut: impl Fn(&Item) -> bool,
) -> Vec<Piece<'a>> {
    let mut pieces = whole(draft);
    for piece in &mut pieces {
        if may_cut(&piece.item)
            && let Some(content) = cut::without_blobs(&piece.item, scope)
        {
            piece.replace_if_shorter(content, tally);
        }
    }
    pieces
}

/// Replaces earlier copies of repeated results and notices with a note. Removes earlier copies of
/// repeated reminders.
pub(super) fn collapse_repeats(
    pieces: &mut [Piece<'_>],
    scope: Scope<'_>,
    tally: &Tally,
    may_cut: impl Fn(&Item) -> bool,
) {
    let later = later_occurrences(pieces, scope.heuristics);
    let mut reminders = HashSet::new();
    for piece in pieces.iter_mut().rev() {
        let told = repeats::item(&piece.source, scope, &later).filter(|_| may_cut(&piece.item));
        let content = told.as_ref().unwrap_or(&piece.source.content);
        let bare = repeats::without_told_reminders(content, &mut reminders, scope.heuristics);
        // One copy of a notice or reminder is enough, however much room is left.
        let may_come_back = told.is_some() && piece.item.step().is_some();
        if let Some(content) = bare.filter(|_| may_cut(&piece.item)).or(told) {
            let before = may_come_back.then(|| Box::new(piece.clone()));
            if piece.replace_if_shorter(content, tally) {
                piece.source = piece.item.clone();
                piece.in_full = before;
            }
        }
    }
}

/// Maps each result or notice that is repeated later to its last occurrence.
fn later_occurrences(
    pieces: &[Piece<'_>],
    heuristics: &dyn Heuristics,
) -> HashMap<EventRef, EventRef> {
    let mut newest: HashMap<Cow<'_, str>, EventRef> = HashMap::new();
    let mut later = HashMap::new();
    let mut seen = HashSet::new();
    for piece in pieces.iter().rev() {
        if let Some((text, at)) = repeats::notice(&piece.source) {
            match newest.get(text) {
                Some(newest) => {
                    later.insert(at, *newest);
                }
                None => {
                    newest.insert(Cow::Borrowed(text), at);
                }
            }
            continue;
        }
        let Some(step) = piece.source.step() else {
            continue;
        };
        let mut here = Vec::new();
        for call in step.calls() {
            let Outcome::Result(result) = &call.outcome else {
                continue;
            };
            let Some(text) = repeats::repeatable(result, heuristics) else {
                continue;
            };
            match newest.get(&text) {
                Some(at) => {
                    later.insert(result.event, *at);
                }
                None if seen.insert(text.clone()) => here.push((text, result.event)),
                None => {}
            }
        }
        // Equal results in one step are next to each other, and all stay.
        newest.extend(here);
    }
    later
}
