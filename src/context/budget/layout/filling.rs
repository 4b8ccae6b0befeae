//! Distributes the remaining room.

use super::{CutScope, Layout, is_said_at_length};

/// Maximum number of pieces that are cut again to fill the room.
const REFITS_MAX: usize = 8;

impl Layout<'_, '_> {
    /// Gives the remaining room to pieces that were cut: first the user's first message, then the
    /// user's other messages, then the newest other pieces.
    pub(super) fn fill(&mut self) {
        let note = self.rooms.least;
        let mut left = self.room.saturating_sub(self.tokens());
        left = left.saturating_sub(self.rooms.needed(&self.pieces));
        let newest_first = || (0..self.pieces.len()).rev();
        let by_user = newest_first().filter(|at| self.pieces[*at].item.is_of_user());
        let order = self.first_said().into_iter().chain(by_user);
        let is_told = |at: &usize| self.pieces[*at].item.is_told();
        let (told, others): (Vec<_>, Vec<_>) = newest_first().partition(is_told);
        let order: Vec<usize> = order.chain(others).collect();
        left = self.refit(order, left);
        left = self.fill_with_parts(left, note);
        left = self.refit(told, left);
        self.restore_repeats(left);
    }

    /// Restores or lengthens pieces that were cut, in the given order. Returns the remaining
    /// tokens.
    fn refit(&mut self, order: Vec<usize>, mut left: u64) -> u64 {
        let mut tries = 0;
        for at in order {
            let (now, whole) = (self.pieces[at].tokens, self.pieces[at].item.tokens);
            if !self.pieces[at].is_cut() {
                continue;
            }
            if whole.saturating_sub(now) <= left {
                left -= self.keep(at).saturating_sub(now);
            } else if left > self.budget / 50 && tries < REFITS_MAX {
                tries += 1;
                let of = match is_said_at_length(&self.pieces[at].item) {
                    true => CutScope::All,
                    false => CutScope::Results,
                };
                if let Some((content, tokens)) = self.fit_piece(at, now + left, of)
                    && tokens > now
                {
                    left -= self.cut(at, content, tokens) - now;
                }
            }
        }
        left
    }

    /// Restores repeated results in full while there is room, newest first.
    fn restore_repeats(&mut self, mut left: u64) {
        for piece in self.pieces.iter_mut().rev() {
            if piece.is_gone() {
                continue;
            }
            if let Some(in_full) = piece.in_full.take()
                && in_full.tokens.saturating_sub(piece.tokens) <= left
            {
                left -= in_full.tokens.saturating_sub(piece.tokens);
                *piece = *in_full;
            }
        }
    }

    /// If much room is left, adds dropped pieces again, newest first: whole, or in part if they are
    /// too large.
    fn fill_with_parts(&mut self, mut left: u64, note: u64) -> u64 {
        let mut tries = 0;
        for at in (0..self.pieces.len()).rev() {
            if left <= self.budget / 12 + note || tries >= REFITS_MAX {
                break;
            }
            if !self.pieces[at].is_gone() || self.pieces[at].item.tokens == 0 {
                continue;
            }
            tries += 1;
            let most = left - note;
            let tokens = match self.pieces[at].item.tokens <= most {
                true => self.keep(at),
                false => match self.keep_within(at, most) {
                    0 => self.take_pared(at, most),
                    tokens => tokens,
                },
            };
            if tokens > 0 {
                left = left.saturating_sub(tokens + note);
            }
        }
        left
    }
}
