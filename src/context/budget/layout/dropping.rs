//! Decides which steps are dropped and how much room the others get.

use super::{CutScope, Layout, Piece, PieceForm, is_said_at_length};
use crate::{
    budget::authorship::{is_bare_command, is_said},
    draft::Section,
    heuristics::Heuristics,
};

/// Share of the room for a long message that is not among the newest.
const MESSAGE_SHARE: u64 = 8;
/// Largest share of the room for a step that fits only if all its parts are cut. The newest step
/// may use all the room that is left.
const PARED_SHARE: u64 = 4;
/// Maximum number of large steps that are skipped before the search for older ones ends.
const PASSED_OVER_MAX: usize = 6;

impl Layout<'_, '_> {
    /// Drops steps, oldest first. Always keeps the user's first and last message and the answer
    /// before the last one. The newest steps share half of the room, and are cut if they exceed it.
    /// Older ones are cut, and dropped if they do not fit.
    pub(super) fn drop_steps(&mut self) {
        let note = self.rooms.least;
        for piece in &mut self.pieces {
            piece.form = PieceForm::Gone;
            piece.tokens = 0;
        }
        let last = self.last_said();
        let kept = self.kept_beside(last);
        let tokens = |at: usize| self.pieces[at].item.tokens;
        let of_last = last.map_or(0, tokens);
        let of_kept: u64 = kept.iter().map(|&at| tokens(at)).sum();
        // One note for the oldest steps, and one if the user's last message is not near the end.
        let stays: Vec<usize> = kept.iter().copied().chain(last).collect();
        let notes = 2 * note + self.rooms.words_beside(&self.pieces, &stays);
        let is_large = of_last > self.room / 2;
        if is_large {
            let needed = of_last + of_kept + notes;
            self.room = needed.min(self.room_max).max(self.room);
        }
        let mut left = self.room;
        if let Some(last) = last {
            left = left.saturating_sub(self.keep(last));
        }
        // A large last message ends the conversation, so no newer item needs the room.
        let share = match is_large {
            true => left,
            false => left.saturating_sub(notes) / 2,
        };
        left = left.saturating_sub(self.keep_shared(&kept, share) + notes);
        self.fill_from_the_end(left, note);
    }

    /// Items that are kept in addition to the user's last message, shortest first: the summary, the
    /// user's first message, the model's last text before the user's last message, and the model's
    /// last text in the conversation, which the user will answer next.
    fn kept_beside(&self, last: Option<usize>) -> Vec<usize> {
        let summary = self
            .pieces
            .iter()
            .position(|piece| piece.item.section == Section::Compaction);
        let answered = last.and_then(|last| self.answered(last));
        let newest = self.answered(self.pieces.len());
        let kept = [summary, self.first_said(), answered, newest];
        let kept = kept.into_iter().flatten().filter(|at| Some(*at) != last);
        let mut kept: Vec<usize> = kept.collect();
        kept.sort_by_key(|&at| (self.pieces[at].item.tokens, at));
        kept.dedup();
        kept
    }

    /// Keeps these pieces in `tokens` tokens in total. Room that short ones do not use goes to the
    /// long ones. Returns the tokens used.
    fn keep_shared(&mut self, kept: &[usize], tokens: u64) -> u64 {
        let mut taken = 0;
        for (done, &at) in kept.iter().enumerate() {
            let to_come = (kept.len() - done) as u64;
            taken += self.keep_within(at, tokens.saturating_sub(taken) / to_come);
        }
        taken
    }

    /// The user's first message with content. Messages before a summary are covered by it and do
    /// not count.
    pub(super) fn first_said(&self) -> Option<usize> {
        let mut summaries = self.pieces.iter();
        let summary = summaries.find(|piece| piece.item.section == Section::Compaction);
        let summary = summary.and_then(|piece| piece.item.events.first());
        let is_behind = |piece: &Piece<'_>| {
            let at = piece.item.events.first();
            summary.is_none_or(|summary| {
                at.is_some_and(|at| at.conversation != summary.conversation || at > summary)
            })
        };
        let pieces = self.pieces.iter().enumerate();
        let pieces = pieces.filter(|(_, piece)| is_behind(piece));
        let is_followed = |(at, _): &(usize, &Piece<'_>)| !self.is_broken_off(*at);
        let heuristics = self.scope.heuristics;
        said(pieces.clone().filter(is_followed), heuristics).or_else(|| said(pieces, heuristics))
    }

    /// Whether the item is a command without text that the user interrupted and followed with
    /// another message, which is the actual task.
    fn is_broken_off(&self, at: usize) -> bool {
        if !is_bare_command(&self.pieces[at].item, self.scope.heuristics) {
            return false;
        }
        let mut behind = self.pieces[at + 1..].iter().map(|piece| &piece.item);
        let next = behind.find(|item| {
            item.step().is_some() || item.is_of_user() && is_said(item, self.scope.heuristics)
        });
        next.is_some_and(|item| item.step().is_none())
    }

    /// The user's last message with content.
    fn last_said(&self) -> Option<usize> {
        said(self.pieces.iter().enumerate().rev(), self.scope.heuristics)
    }

    /// The model's last text before a piece. Answers like `yes` or `the second` make no sense
    /// without it.
    fn answered(&self, before: usize) -> Option<usize> {
        self.pieces[..before]
            .iter()
            .rposition(|piece| piece.item.is_answer())
    }

    fn fill_from_the_end(&mut self, mut left: u64, note: u64) {
        let share = self.room / 2;
        let (mut whole, mut is_recent) = (0, true);
        let (mut passed_over, mut after_gap) = (0, false);
        let newest_step = self.pieces.iter().rposition(|piece| {
            let step = piece.item.step();
            piece.item.tokens > 0 && step.is_some_and(|step| step.calls().next().is_some())
        });
        for at in (0..self.pieces.len()).rev() {
            if !self.pieces[at].is_gone() {
                after_gap = false;
                continue;
            }
            let tokens = self.pieces[at].item.tokens;
            if tokens == 0 {
                // The item adds nothing to the request. It stays or is dropped together with the
                // item after it.
                if !after_gap {
                    self.keep(at);
                }
                continue;
            }
            let gap = if after_gap { note } else { 0 };
            let is_newest = at + 1 == self.pieces.len();
            let most = share.saturating_sub(whole).min(left.saturating_sub(gap));
            let mut taken = 0;
            if is_recent {
                taken = self.take_recent(at, most, if is_newest { most } else { share / 3 });
                whole += taken;
                is_recent = taken > 0;
            }
            if taken == 0 {
                taken = self.take_short(at, left.saturating_sub(gap));
            }
            if taken == 0 {
                // The newest step takes precedence over older ones.
                let most = left.saturating_sub(gap);
                let is_newest = newest_step == Some(at);
                let one_max = if is_newest {
                    most
                } else {
                    self.room / PARED_SHARE
                };
                taken = self.take_pared(at, most.min(one_max));
            }
            if taken > 0 {
                left = left.saturating_sub(taken + gap);
                after_gap = false;
                continue;
            }
            after_gap = true;
            let is_large = tokens > self.room / 8;
            passed_over += 1;
            if !is_large || passed_over > PASSED_OVER_MAX || left < self.room / 16 {
                break;
            }
        }
    }

    /// Takes one of the newest pieces: whole, or cut to `one_max` if it is large. Returns its
    /// tokens.
    fn take_recent(&mut self, at: usize, most: u64, one_max: u64) -> u64 {
        // Output that a program printed for the user is not a request by the user.
        let is_told = self.pieces[at].item.is_told();
        let most = match is_told && self.may.cut(&self.pieces[at].item) {
            true => most.min(self.room / MESSAGE_SHARE),
            false => most,
        };
        if self.pieces[at].item.tokens <= most {
            return self.keep(at);
        }
        if !self.may.cut(&self.pieces[at].item) {
            return 0;
        }
        let of = match is_told {
            true => CutScope::All,
            false => CutScope::Results,
        };
        match self.fit_piece(at, most.min(one_max), of) {
            Some((content, tokens)) => self.cut(at, content, tokens),
            None => 0,
        }
    }

    /// Takes a step with everything cut, to at most `most` tokens. Returns its tokens.
    pub(super) fn take_pared(&mut self, at: usize, most: u64) -> u64 {
        let bytes = self.bytes_of(most);
        for percent in [80, 50, 30, 15] {
            if let Some((content, tokens)) = self.cut_step(at, bytes * percent / 100)
                && tokens <= most
            {
                return self.cut(at, content, tokens);
            }
        }
        0
    }

    fn take_short(&mut self, at: usize, most: u64) -> u64 {
        match self.short(at) {
            Some((content, tokens)) if tokens <= most => self.cut(at, content, tokens),
            None if self.pieces[at].item.tokens <= most => self.keep(at),
            // Part of a long message is still useful: the next message makes no sense without the
            // answer before it.
            _ if is_said_at_length(&self.pieces[at].item) => {
                self.keep_within(at, most.min(self.room / MESSAGE_SHARE))
            }
            _ => 0,
        }
    }
}

/// The first of these pieces that is a message of the user with content. If there is none, the
/// first that is a message of the user.
fn said<'p, 'a: 'p>(
    pieces: impl DoubleEndedIterator<Item = (usize, &'p Piece<'a>)> + Clone,
    heuristics: &dyn Heuristics,
) -> Option<usize> {
    let mut by_user = pieces.filter(|(_, piece)| piece.item.is_of_user());
    let first = by_user.clone().next();
    let found = by_user
        .find(|(_, piece)| is_said(&piece.item, heuristics))
        .or(first);
    found.map(|(at, _)| at)
}
