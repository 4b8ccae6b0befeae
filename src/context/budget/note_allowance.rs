//! Token allowance of notes: a minimum for each, and more for dropped messages of the user and
//! dropped answers.

use super::{
    authorship::{is_said, reply},
    layout::scaled,
    pieces::Piece,
};
use crate::{heuristics::Heuristics, tokens::Tally};

/// The minimum size of a note is 1/`NOTE_SHARE` of the budget, clamped to `NOTE_TOKENS`. These
/// limits are multiplied by the calibration factor, because the text of a note is the same for
/// every model.
const NOTE_SHARE: u64 = 32;
const NOTE_TOKENS: (u64, u64) = (60, 400);
/// Quotes in all notes together may use 1/`WORDS_SHARE` of the budget.
const WORDS_SHARE: u64 = 10;
/// Minimum tokens for one message of the user, and the maximum if there is room.
const WORD_TOKENS: (u64, u64) = (160, 1_200);
/// As [`WORD_TOKENS`], for one answer.
const ANSWER_TOKENS: (u64, u64) = (30, 80);
/// Tokens for a call with its outcome.
const CALL_TOKENS: u64 = 50;
/// Maximum number of calls for which a note gets tokens.
const CALLS_TOLD: u64 = 24;
/// Tokens for a user's comment on a call, in addition to its text.
const REPLY_TOKENS: u64 = 40;
/// Estimated bytes per token of a user's comment.
const TOKEN_BYTES: u64 = 3;

/// Room for notes, in tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoteAllowance<'h> {
    heuristics: &'h dyn Heuristics,
    /// Minimum for each note.
    pub least: u64,
    /// Additional room for quotes in all notes together.
    words_max: u64,
}

/// Tokens that a note could use beyond the minimum.
#[derive(Clone, Copy, Debug, Default)]
struct NoteDemand {
    some: u64,
    all: u64,
    calls: u64,
}

impl NoteDemand {
    fn add(&mut self, piece: &Piece<'_>, heuristics: &dyn Heuristics) {
        let item = &piece.item;
        if item.is_of_user() && is_said(item, heuristics) {
            self.some += item.tokens.min(WORD_TOKENS.0);
            self.all += item.tokens.min(WORD_TOKENS.1);
        } else if item.is_final() {
            self.some += item.tokens.min(ANSWER_TOKENS.0);
            self.all += item.tokens.min(ANSWER_TOKENS.1);
        } else if let Some(step) = item.step() {
            self.calls += 1;
            for (_, reply) in step.calls().filter_map(|call| reply(call, heuristics)) {
                let told = reply.told("");
                let words: usize = told.iter().map(|(to, said)| to.len() + said.len()).sum();
                if words > 0 {
                    let tokens = words as u64 / TOKEN_BYTES + REPLY_TOKENS;
                    self.some += tokens.min(WORD_TOKENS.0);
                    self.all += tokens.min(WORD_TOKENS.1);
                }
            }
            if item.is_answer() {
                self.all += ANSWER_TOKENS.1;
            }
        }
    }

    fn whole(self) -> u64 {
        self.all + self.calls.min(CALLS_TOLD) * CALL_TOKENS
    }
}

impl<'h> NoteAllowance<'h> {
    pub fn new(budget: u64, tally: &Tally, heuristics: &'h dyn Heuristics) -> Self {
        let (least, most) = NOTE_TOKENS;
        let scaled = |tokens| scaled(tokens, tally.factor().max(1.0)) as u64;
        Self {
            heuristics,
            least: (budget / NOTE_SHARE).clamp(scaled(least), scaled(most)),
            words_max: budget / WORDS_SHARE,
        }
    }

    /// Tokens for quotes from all pieces except `stays`.
    pub(crate) fn words_beside(&self, pieces: &[Piece<'_>], stays: &[usize]) -> u64 {
        let mut wants = NoteDemand::default();
        let goes = pieces.iter().enumerate();
        goes.filter(|(at, _)| !stays.contains(at))
            .for_each(|(_, piece)| wants.add(piece, self.heuristics));
        wants.some.min(self.words_max)
    }

    /// Tokens that the notes for these pieces need.
    pub fn needed(&self, pieces: &[Piece<'_>]) -> u64 {
        let gaps = gaps(pieces, self.heuristics);
        let words: u64 = gaps.iter().map(|wants| wants.some).sum();
        gaps.len() as u64 * self.least + words.min(self.words_max)
    }

    /// Returns the tokens for each note, in order: the minimum, and a share of the rest in
    /// proportion to its demand.
    pub fn of(&self, pieces: &[Piece<'_>], left: u64) -> Vec<u64> {
        let gaps = gaps(pieces, self.heuristics);
        let left = left.saturating_sub(gaps.len() as u64 * self.least);
        let wanted: u64 = gaps.iter().map(|wants| wants.whole()).sum();
        let shared = left.min(wanted);
        let share = |wants: &NoteDemand| match wanted {
            0 => 0,
            wanted => wants.whole() * shared / wanted,
        };
        gaps.iter().map(|wants| self.least + share(wants)).collect()
    }
}

/// Returns the demand of each run of dropped pieces.
fn gaps(pieces: &[Piece<'_>], heuristics: &dyn Heuristics) -> Vec<NoteDemand> {
    let mut gaps: Vec<NoteDemand> = Vec::new();
    let mut in_gap = false;
    for piece in pieces {
        if piece.is_gone() {
            if !in_gap {
                gaps.push(NoteDemand::default());
            }
            if let Some(wants) = gaps.last_mut() {
                wants.add(piece, heuristics);
            }
        }
        in_gap = piece.is_gone();
    }
    gaps
}
