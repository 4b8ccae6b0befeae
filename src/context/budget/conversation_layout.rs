//! The result of a layout, and how it is applied to the draft.

use super::{Scope, note::Notes, pieces::PieceForm};
use crate::{
    draft::{Draft, Fate, Item},
    tokens::Tally,
};

/// The new form of the conversation.
#[derive(Debug)]
pub(super) struct ConversationLayout {
    /// Index in the draft, form and tokens of each item, in order.
    pub forms: Vec<(usize, PieceForm, u64)>,
    /// Tokens of the request without its notes.
    pub tokens: u64,
    /// Whether the request is within the budget.
    pub fits: bool,
    /// Tokens of the budget left for the conversation.
    pub room: u64,
    /// Tokens for each note, in order.
    pub rooms: Vec<u64>,
}

impl ConversationLayout {
    /// Applies the layout to the draft, and inserts a note into each gap while there is room.
    pub fn apply(self, draft: &mut Draft, scope: Scope<'_>, tally: &Tally, budget: u64) {
        let mut left = budget.saturating_sub(self.tokens);
        let mut rooms = self.rooms.iter().copied();
        let mut notes: Vec<(usize, Item)> = Vec::new();
        let mut run: Vec<usize> = Vec::new();
        let places = self.forms.iter().map(|(place, form, _)| (*place, form));
        let ended = [(usize::MAX, &PieceForm::Whole)];
        let stays = self
            .forms
            .iter()
            .filter(|(_, form, _)| !matches!(form, PieceForm::Gone));
        let stays = stays.flat_map(|(place, ..)| draft.items[*place].events.iter().copied());
        let mut writer = Notes {
            writer: scope.heuristics.notes(),
            conversation: scope.conversation,
            tally,
            stays: stays.collect(),
        };
        for (place, form) in places.chain(ended) {
            if matches!(form, PieceForm::Gone) {
                run.push(place);
                continue;
            }
            let (Some(first), Some(last)) = (run.first().copied(), run.last().copied()) else {
                continue;
            };
            let gone = run.drain(..).map(|place| &draft.items[place]);
            // Items without tokens are not sent, so a note does not mention them.
            let gone: Vec<_> = gone.filter(|item| item.tokens > 0).collect();
            let most = rooms.next().unwrap_or_default().min(left);
            if let Some(note) = writer.note(draft, first..last + 1, &gone, most) {
                left -= note.tokens;
                notes.push((first, note));
            }
        }
        // An item dropped after a step that stays was dropped for its size, not for its age.
        let mut is_behind = false;
        for (place, form, tokens) in self.forms {
            let item = &mut draft.items[place];
            let stays = !matches!(form, PieceForm::Gone) && tokens > 0;
            is_behind |= stays
                && item
                    .step()
                    .is_some_and(|step| step.calls().next().is_some());
            change(item, form, tokens, is_behind);
        }
        insert(draft, notes);
    }
}

fn change(item: &mut Item, form: PieceForm, tokens: u64, is_behind: bool) {
    match form {
        PieceForm::Whole => {}
        PieceForm::Cut(content) => {
            item.content = content;
            item.tokens = tokens;
            item.fate = Fate::Shortened;
            item.reason = match item.step() {
                Some(_) => "over the budget: results shortened",
                None => "over the budget: cut to head and tail",
            }
            .into();
        }
        PieceForm::Gone if is_behind => {
            super::drop(item, "over the budget: larger than the remaining room");
        }
        PieceForm::Gone => super::drop(item, "over the budget: the oldest steps are dropped first"),
    }
}

/// Inserts each note before the item at its index.
fn insert(draft: &mut Draft, notes: Vec<(usize, Item)>) {
    if notes.is_empty() {
        return;
    }
    let items = std::mem::take(&mut draft.items);
    draft.items.reserve(items.len() + notes.len());
    let mut notes = notes.into_iter().peekable();
    for (place, item) in items.into_iter().enumerate() {
        while let Some((_, note)) = notes.next_if(|(at, _)| *at == place) {
            draft.items.push(note);
        }
        draft.items.push(item);
    }
}
