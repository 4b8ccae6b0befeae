//! Decides which items of the conversation stay, which are cut and which are dropped.
//!
//! No state is kept between requests, yet the decisions are stable. Whenever the growing
//! conversation exceeds its budget, everything up to that point is reduced to [`TARGET_PERCENT`] of
//! the budget, and later items follow unchanged. The point is found by adding up tokens, so the
//! front of the next request stays the same until the budget is exceeded again.

mod dropping;
mod filling;

use super::{
    Scope, arguments,
    conversation_layout::ConversationLayout,
    cut::{self, CutScope},
    note_allowance::NoteAllowance,
    pieces::{self, Piece, PieceForm},
};
use crate::{
    draft::{Block, Draft, Item, Section, Step},
    enhancers::drop_reasoning,
    shared::SharedContent,
    steps,
    tokens::Tally,
};
use treering_domain::ContentPart;

/// Percentage of the budget that a layout fills. The rest is room to grow.
const TARGET_PERCENT: u64 = 82;
/// Tokens of the other sections are rounded up to a multiple of 1/`STEADY_SHARE` of the budget, so
/// that small changes from request to request do not move the layout.
const STEADY_SHARE: u64 = 32;
/// A long result keeps 1/`SHORT_SHARE` of the budget when room is short, clamped to `SHORT_TOKENS`.
const SHORT_SHARE: u64 = 32;
const SHORT_TOKENS: (u64, u64) = (100, 600);
/// Estimated bytes per token, to choose the size of a cut. The tokens of the cut text are then
/// counted.
const TOKEN_BYTES: f64 = 3.5;

/// What may be cut or dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CutPermissions {
    pub finished_results: bool,
    pub open_results: bool,
    pub reasoning: bool,
    pub steps: bool,
}

impl CutPermissions {
    fn cut(self, item: &Item) -> bool {
        match item.section {
            Section::OpenTurn => self.open_results,
            _ => self.finished_results,
        }
    }

    /// Whether the item keeps its reasoning. An open turn always does, because providers require
    /// it.
    fn thinks(self, item: &Item) -> bool {
        item.section == Section::OpenTurn || !self.reasoning
    }
}

/// Computes the layout of a counted draft.
pub(super) fn compute_layout(
    draft: &Draft,
    scope: Scope<'_>,
    tally: &Tally,
    may: CutPermissions,
    budget: u64,
) -> ConversationLayout {
    let pieces = pieces::of(draft, scope, tally, |item| may.cut(item));
    steps::note(pieces.len());
    let all: u64 = pieces.iter().map(|piece| piece.source.tokens).sum();
    let beside = draft.tokens().saturating_sub(all);
    let unit = (budget / STEADY_SHARE).max(1);
    let steady = beside.div_ceil(unit) * unit;
    let target = budget * TARGET_PERCENT / 100;
    let held = held(&pieces, steady, budget, target);
    let layout = |pieces, room, room_max| Layout {
        pieces,
        scope,
        tally,
        may,
        budget,
        rooms: NoteAllowance::new(budget, tally, scope.heuristics),
        room,
        room_max,
    };
    let front = pieces[..held].to_vec();
    let room = [target, budget].map(|tokens| tokens.saturating_sub(steady));
    let (mut laid, mut rooms) = layout(front, room[0], room[1]).run();
    laid.extend(pieces[held..].iter().cloned());
    let tokens = |pieces: &[Piece<'_>]| pieces.iter().map(|piece| piece.tokens).sum::<u64>();
    // Each note has a reserved size. Otherwise the text before it would change with each request.
    if beside + tokens(&laid) + rooms.iter().sum::<u64>() > budget {
        let room = budget.saturating_sub(beside);
        (laid, rooms) = layout(pieces, room, room).run();
    }
    let tokens = beside + tokens(&laid);
    ConversationLayout {
        forms: laid.into_iter().map(Piece::into_form).collect(),
        tokens,
        fits: tokens <= budget,
        room: budget.saturating_sub(beside),
        rooms,
    }
}

/// Whether the request may fit, estimated from lower bounds without cutting anything.
pub(super) fn may_fit(draft: &Draft, tally: &Tally, may: CutPermissions, budget: u64) -> bool {
    if may.steps {
        return true;
    }
    let pieces = pieces::whole(draft);
    steps::note(pieces.len());
    let all: u64 = pieces.iter().map(|piece| piece.tokens).sum();
    let least = pieces.iter().map(|piece| least(piece, tally, may));
    draft.tokens().saturating_sub(all) + least.sum::<u64>() <= budget
}

/// Lower bound of the tokens of a piece that stays.
fn least(piece: &Piece<'_>, tally: &Tally, may: CutPermissions) -> u64 {
    let is_thought = |block: &Block| matches!(block, Block::Part(part) if matches!(**part, ContentPart::Reasoning(_)));
    let thinks = |step: &Step| step.blocks.iter().any(is_thought);
    let item = &piece.item;
    if !may.thinks(item) && item.step().is_some_and(thinks) {
        // Reasoning is not counted separately: it may be the whole item.
        return 0;
    }
    if may.cut(item) && (item.is_told() || arguments::are_long(item)) {
        return 0;
    }
    let outcomes = match may.cut(item) {
        true => tally.outcomes(&piece.item.content),
        false => 0,
    };
    piece.tokens.saturating_sub(outcomes)
}

/// Returns the number of pieces at the point where the conversation last exceeded its budget.
fn held(pieces: &[Piece<'_>], steady: u64, budget: u64, target: u64) -> usize {
    let (mut tokens, mut held) = (steady, 0);
    for (at, piece) in pieces.iter().enumerate() {
        tokens += piece.tokens;
        if tokens > budget {
            held = at + 1;
            tokens = target;
        }
    }
    held
}

struct Layout<'a, 't> {
    pieces: Vec<Piece<'a>>,
    scope: Scope<'t>,
    tally: &'t Tally,
    may: CutPermissions,
    budget: u64,
    rooms: NoteAllowance<'t>,
    /// Tokens for the pieces and notes.
    room: u64,
    /// Limit up to which a large last message may raise `room`.
    room_max: u64,
}

impl<'a> Layout<'a, '_> {
    /// Returns the pieces and the tokens for each note.
    fn run(mut self) -> (Vec<Piece<'a>>, Vec<u64>) {
        if self.tokens() > self.room {
            let may = self.may;
            pieces::collapse_repeats(&mut self.pieces, self.scope, self.tally, |item| {
                may.cut(item)
            });
        }
        if self.tokens() > self.room && !self.shorten() && self.may.steps {
            self.drop_steps();
        }
        self.fill();
        let tokens = self.tokens();
        let rooms = self
            .rooms
            .of(&self.pieces, self.room.saturating_sub(tokens));
        (self.pieces, rooms)
    }

    fn tokens(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.tokens).sum()
    }

    /// Shortens pieces, oldest first, until all pieces fit. Returns false if that is not enough.
    fn shorten(&mut self) -> bool {
        let mut tokens = self.tokens();
        let pieces = self.pieces.iter();
        let needed = pieces.map(|piece| least(piece, self.tally, self.may));
        if self.may.steps && needed.sum::<u64>() > self.room {
            return false;
        }
        for at in 0..self.pieces.len() {
            if tokens <= self.room {
                break;
            }
            if let Some((content, short)) = self.short(at) {
                let piece = &mut self.pieces[at];
                tokens -= piece.tokens - short;
                piece.tokens = short;
                piece.form = PieceForm::Cut(content);
            }
        }
        tokens <= self.room
    }

    /// Returns the short form of a piece and its tokens. None if it saves nothing.
    fn short(&mut self, at: usize) -> Option<(SharedContent, u64)> {
        if self.pieces[at].short.is_none() {
            let (low, high) = SHORT_TOKENS;
            let tokens = (self.budget / SHORT_SHARE).clamp(low, high);
            let is_last = at + 1 == self.pieces.len();
            let short = self.cut_to(&self.pieces[at], self.bytes_of(tokens), is_last);
            self.pieces[at].short = Some(short);
        }
        self.pieces[at].short.clone().flatten()
    }

    fn bytes_of(&self, tokens: u64) -> usize {
        scaled(tokens, TOKEN_BYTES / self.tally.factor())
    }

    fn cut_to(
        &self,
        piece: &Piece<'_>,
        bytes: usize,
        is_last: bool,
    ) -> Option<(SharedContent, u64)> {
        let item = &piece.source;
        let mut short = self.without_thoughts(item);
        if (item.step().is_some() || item.is_told()) && self.may.cut(item) {
            if let Some(content) = cut::item(&short, self.scope, bytes, CutScope::Results) {
                short.content = content;
            }
            if !is_last
                && let Some(content) = arguments::cut(&short, self.scope.conversation, bytes)
            {
                short.content = content;
            }
        }
        let tokens = self.tally.item(&short);
        (tokens < piece.item.tokens).then_some((short.content, tokens))
    }

    /// The item without its reasoning, if that may be dropped and something else is left.
    fn without_thoughts(&self, item: &Item) -> Item {
        let mut short = item.clone();
        if !self.may.thinks(item) {
            drop_reasoning(&mut short);
            if short.step().is_some_and(|step| step.blocks.is_empty()) {
                return item.clone();
            }
        }
        short
    }

    /// Returns the step with results, texts and arguments cut. The rest still shows what the step
    /// did.
    fn cut_step(&self, at: usize, bytes: usize) -> Option<(SharedContent, u64)> {
        let piece = &self.pieces[at];
        let step = piece.source.step()?;
        if arguments::thinks(step) || step.calls().next().is_none() || !self.may.cut(&piece.item) {
            return None;
        }
        let mut pared = self.without_thoughts(&piece.source);
        if let Some(content) = cut::item(&pared, self.scope, bytes, CutScope::All) {
            pared.content = content;
        }
        if let Some(content) = arguments::pare(&pared, self.scope.conversation, bytes) {
            pared.content = content;
        }
        let tokens = self.tally.item(&pared);
        (tokens < piece.item.tokens).then_some((pared.content, tokens))
    }

    fn keep(&mut self, at: usize) -> u64 {
        let piece = &mut self.pieces[at];
        piece.form = PieceForm::Whole;
        piece.tokens = piece.item.tokens;
        piece.tokens
    }

    /// Keeps a message whole, cuts it to `tokens`, or drops it. Returns its tokens.
    fn keep_within(&mut self, at: usize, tokens: u64) -> u64 {
        if self.pieces[at].item.tokens <= tokens {
            return self.keep(at);
        }
        match self.fit_piece(at, tokens, CutScope::All) {
            Some((content, cut)) => self.cut(at, content, cut),
            None => 0,
        }
    }

    fn cut(&mut self, at: usize, content: SharedContent, tokens: u64) -> u64 {
        let piece = &mut self.pieces[at];
        piece.form = PieceForm::Cut(content);
        piece.tokens = tokens;
        tokens
    }

    /// The piece cut to at most `tokens` tokens. None if it cannot be cut that far.
    fn fit_piece(&self, at: usize, tokens: u64, of: CutScope) -> Option<(SharedContent, u64)> {
        let (item, source) = (&self.pieces[at].item, &self.pieces[at].source);
        let all = cut::bytes(item, of);
        if all == 0 || tokens >= item.tokens {
            return None;
        }
        let beside = match of {
            CutScope::Results => item
                .tokens
                .saturating_sub(self.tally.outcomes(&item.content)),
            CutScope::All => 0,
        };
        let room = tokens.checked_sub(beside)?;
        let of_texts = (item.tokens - beside).max(1);
        // Try again with less: the cut text may be denser in tokens, and the mark adds some.
        for percent in [94, 85, 70, 50] {
            let bytes = all as u128 * u128::from(room) * percent / 100 / u128::from(of_texts);
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            if bytes < cut::LEAST_BYTES {
                return None;
            }
            let Some(content) = cut::item(source, self.scope, bytes, of) else {
                continue;
            };
            let cut = self.tally.item(&Item {
                content: content.clone(),
                ..Item::clone(item)
            });
            if cut <= tokens {
                return Some((content, cut));
            }
        }
        None
    }
}

/// Whether the item is a message, or an answer of the model without calls.
fn is_said_at_length(item: &Item) -> bool {
    item.step().is_none() || item.is_final()
}

pub(super) fn scaled(tokens: u64, factor: f64) -> usize {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    let bytes = (tokens as f64 * factor) as usize;
    bytes
}
