//! What a layout makes of a conversation, and how the draft becomes that.

use super::{Scope, note::Notes, pieces::PieceForm};
use crate::{
    draft::{Draft, Fate, Item},
    tokens::Tally,
};

/// What the conversation becomes.
#[derive(Debug)]
pub(super) struct LaidOut {
    /// By the place of each item of the conversation, in order.
    pub forms: Vec<(usize, PieceForm, u64)>,
    /// Tokens of the request, without its notes.
    pub tokens: u64,
    /// It is within the budget.
    pub fits: bool,
    /// What is left to the conversation.
    pub room: u64,
    /// Of its notes, in order.
    pub rooms: Vec<u64>,
}

impl LaidOut {
    /// Makes the draft what was laid out. Where something went comes a note, as long as
    /// there is room for it.
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
            // What is not sent anyhow leaves nothing behind.
            let gone: Vec<_> = gone.filter(|item| item.tokens > 0).collect();
            let most = rooms.next().unwrap_or_default().min(left);
            if let Some(note) = writer.note(draft, first..last + 1, &gone, most) {
                left -= note.tokens;
                notes.push((first, note));
            }
        }
        // What goes behind a step that stays goes because it has no room, not for its age.
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
                Some(_) => "over the budget: results in short",
                None => "over the budget: cut to head and tail",
            }
            .into();
        }
        PieceForm::Gone if is_behind => {
            super::drop(
                item,
                "over the budget: too large for the room that was left",
            );
        }
        PieceForm::Gone => super::drop(item, "over the budget: the oldest steps go first"),
    }
}

/// Puts items in before others, by their places.
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
