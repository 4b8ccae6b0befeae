//! Which items of the conversation stay, which are cut, and which go.
//!
//! Nothing is remembered from one request to the next, and yet what was decided stays for
//! many of them: whenever the growing conversation passes its budget, everything up to
//! there is laid out anew to [`TARGET_PERCENT`] of it, and what comes after that stands
//! behind it as it is. Where it passed is found by adding up, so the front of the next
//! request is the same until it passes again.

use super::{
    arguments,
    cut::{self, Of},
    note,
    pieces::{self, Form, Piece},
    rooms::Rooms,
    said::{is_answer, is_final, is_of_user, is_said, is_told},
};
use crate::{
    context::{
        draft::{Block, Draft, Fate, Item, Section, Step},
        enhancers::drop_reasoning,
        shared::SharedContent,
        steps,
        tokens::Tally,
    },
    domain::{ContentPart, ConversationId},
};

/// What a layout fills of the budget. The rest is room to grow in.
const TARGET_PERCENT: u64 = 82;
/// What stands beside the conversation counts in steps of this share of the budget, so
/// that a value that changes with each request does not move what gives way.
const STEADY_SHARE: u64 = 32;
/// A long result keeps this share of the budget when there is too little room, within
/// these tokens.
const SHORT_SHARE: u64 = 32;
const SHORT_TOKENS: (u64, u64) = (100, 600);
/// A long message that is not one of the newest keeps this share of the room.
const MESSAGE_SHARE: u64 = 8;
/// Bytes of a token, for a first guess: what comes out is counted.
const TOKEN_BYTES: f64 = 3.5;
/// Steps that are passed over because they alone would take much of what is left.
const PASSED_OVER_MAX: usize = 6;
/// Cuts that are tried again to fill what is left.
const REFITS_MAX: usize = 8;

/// What may give way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct May {
    pub finished_results: bool,
    pub open_results: bool,
    pub reasoning: bool,
    pub steps: bool,
}

impl May {
    fn cut(self, item: &Item) -> bool {
        match item.section {
            Section::OpenTurn => self.open_results,
            _ => self.finished_results,
        }
    }

    /// Its reasoning stays. That of an open turn always does: providers want it back.
    fn thinks(self, item: &Item) -> bool {
        item.section == Section::OpenTurn || !self.reasoning
    }
}

/// What the conversation becomes.
#[derive(Debug)]
pub(super) struct Plan {
    /// By the place of each item of the conversation, in order.
    forms: Vec<(usize, Form, u64)>,
    /// Tokens of the request, without its notes.
    pub tokens: u64,
    /// It is within the budget.
    pub fits: bool,
    /// What is left to the conversation.
    pub room: u64,
    /// Of its notes, in order.
    rooms: Vec<u64>,
    /// The request's.
    conversation: ConversationId,
}

/// Lays a counted draft out.
pub(super) fn plan(
    draft: &Draft,
    conversation: ConversationId,
    tally: &Tally,
    may: May,
    budget: u64,
) -> Plan {
    let pieces = pieces::of(draft, conversation, tally, |item| may.cut(item));
    steps::note(pieces.len());
    let all: u64 = pieces.iter().map(|piece| piece.source.tokens).sum();
    let beside = draft.tokens().saturating_sub(all);
    let unit = (budget / STEADY_SHARE).max(1);
    let steady = beside.div_ceil(unit) * unit;
    let target = budget * TARGET_PERCENT / 100;
    let held = held(&pieces, steady, budget, target);
    let layout = |pieces, room, room_max| Layout {
        pieces,
        conversation,
        tally,
        may,
        budget,
        rooms: Rooms::new(budget, tally),
        room,
        room_max,
    };
    let front = pieces[..held].to_vec();
    let room = [target, budget].map(|tokens| tokens.saturating_sub(steady));
    let (mut laid, mut rooms) = layout(front, room[0], room[1]).run();
    laid.extend(pieces[held..].iter().cloned());
    let tokens = |pieces: &[Piece<'_>]| pieces.iter().map(|piece| piece.tokens).sum::<u64>();
    // Notes have their room, or what stands in front of them would change with each request.
    if beside + tokens(&laid) + rooms.iter().sum::<u64>() > budget {
        let room = budget.saturating_sub(beside);
        (laid, rooms) = layout(pieces, room, room).run();
    }
    let tokens = beside + tokens(&laid);
    Plan {
        forms: laid.into_iter().map(Piece::into_form).collect(),
        tokens,
        fits: tokens <= budget,
        room: budget.saturating_sub(beside),
        rooms,
        conversation,
    }
}

/// False where not even the least of everything fits: found without cutting anything.
pub(super) fn may_fit(draft: &Draft, tally: &Tally, may: May, budget: u64) -> bool {
    if may.steps {
        return true;
    }
    let pieces = pieces::whole(draft);
    steps::note(pieces.len());
    let all: u64 = pieces.iter().map(|piece| piece.tokens).sum();
    let least = pieces.iter().map(|piece| least(piece, tally, may));
    draft.tokens().saturating_sub(all) + least.sum::<u64>() <= budget
}

/// No form of a piece has fewer tokens, but none at all.
fn least(piece: &Piece<'_>, tally: &Tally, may: May) -> u64 {
    let is_thought = |block: &Block| matches!(block, Block::Part(part) if matches!(**part, ContentPart::Reasoning(_)));
    let thinks = |step: &Step| step.blocks.iter().any(is_thought);
    let item = &piece.item;
    if !may.thinks(item) && item.step().is_some_and(thinks) {
        // Reasoning is not counted apart: any of it may be.
        return 0;
    }
    if may.cut(item) && (is_told(item) || arguments::are_long(item)) {
        return 0;
    }
    let outcomes = match may.cut(item) {
        true => tally.outcomes(&piece.item.content),
        false => 0,
    };
    piece.tokens.saturating_sub(outcomes)
}

/// How many pieces there were when the conversation last passed its budget.
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

/// The first of these at which the user says something, or if there is none, speaks.
fn said<'p, 'a: 'p>(
    pieces: impl DoubleEndedIterator<Item = (usize, &'p Piece<'a>)> + Clone,
) -> Option<usize> {
    let mut by_user = pieces.filter(|(_, piece)| is_of_user(&piece.item));
    let first = by_user.clone().next();
    let found = by_user.find(|(_, piece)| is_said(&piece.item)).or(first);
    found.map(|(at, _)| at)
}

struct Layout<'a, 't> {
    pieces: Vec<Piece<'a>>,
    /// The request's.
    conversation: ConversationId,
    tally: &'t Tally,
    may: May,
    budget: u64,
    rooms: Rooms,
    /// Tokens for the pieces, and for notes.
    room: u64,
    /// What a large last message may make of it.
    room_max: u64,
}

impl<'a> Layout<'a, '_> {
    /// The pieces, and the room of each note.
    fn run(mut self) -> (Vec<Piece<'a>>, Vec<u64>) {
        if self.tokens() > self.room {
            let may = self.may;
            pieces::tell_once(&mut self.pieces, self.conversation, self.tally, |item| {
                may.cut(item)
            });
        }
        if self.tokens() > self.room && !self.shorten() && self.may.steps {
            self.let_steps_go();
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

    /// Where the user said first what it is about. What he said before a summary was written
    /// is told in that.
    fn first_said(&self) -> Option<usize> {
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
        said(pieces.filter(|(_, piece)| is_behind(piece)))
    }

    /// Where the user said the last of it.
    fn last_said(&self) -> Option<usize> {
        said(self.pieces.iter().enumerate().rev())
    }

    /// What the model said last before a piece: `yes` and `the second` say nothing without
    /// it.
    fn answered(&self, before: usize) -> Option<usize> {
        self.pieces[..before]
            .iter()
            .rposition(|piece| is_answer(&piece.item))
    }

    /// Results are cut, the oldest first, until the rest has room. False: that is not
    /// enough.
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
                piece.form = Form::Cut(content);
            }
        }
        tokens <= self.room
    }

    /// The short form of a piece and its tokens, where that saves something.
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
        let mut short = item.clone().into_owned();
        if !self.may.thinks(item) {
            drop_reasoning(&mut short);
            if short.step().is_some_and(|step| step.blocks.is_empty()) {
                short = item.clone().into_owned();
            }
        }
        if (item.step().is_some() || is_told(item)) && self.may.cut(item) {
            if let Some(content) = cut::item(&short, self.conversation, bytes, Of::Results) {
                short.content = content;
            }
            if !is_last && let Some(content) = arguments::cut(&short, self.conversation, bytes) {
                short.content = content;
            }
        }
        let tokens = self.tally.item(&short);
        (tokens < piece.item.tokens).then_some((short.content, tokens))
    }

    /// Steps go, the oldest first, but neither the first message of the user nor the
    /// last, nor what that answers. The newest results stay as whole as half of the room
    /// allows, the older ones are cut, and what has no place after that goes.
    fn let_steps_go(&mut self) {
        let note = self.rooms.least;
        for piece in &mut self.pieces {
            piece.form = Form::Gone;
            piece.tokens = 0;
        }
        let last = self.last_said();
        let kept = self.kept_beside(last);
        let tokens = |at: usize| self.pieces[at].item.tokens;
        let of_last = last.map_or(0, tokens);
        let of_kept: u64 = kept.iter().map(|&at| tokens(at)).sum();
        // One where the oldest steps were, and one more when the last question is old.
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
        // Behind a large last message there is nothing newer that needs the room.
        let share = match is_large {
            true => left,
            false => left.saturating_sub(notes) / 2,
        };
        left = left.saturating_sub(self.keep_shared(&kept, share) + notes);
        self.fill_from_the_end(left, note);
    }

    /// What stays beside the last message: the summary, the first message, what the model
    /// said last before the last one, and what it said last of all: the next message answers
    /// that. The shortest first.
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

    /// Keeps these in so many tokens together: short ones leave theirs to the long ones.
    fn keep_shared(&mut self, kept: &[usize], tokens: u64) -> u64 {
        let mut taken = 0;
        for (done, &at) in kept.iter().enumerate() {
            let to_come = (kept.len() - done) as u64;
            taken += self.keep_within(at, tokens.saturating_sub(taken) / to_come);
        }
        taken
    }

    fn keep(&mut self, at: usize) -> u64 {
        let piece = &mut self.pieces[at];
        piece.form = Form::Whole;
        piece.tokens = piece.item.tokens;
        piece.tokens
    }

    /// Keeps a message whole, cut, or not at all.
    fn keep_within(&mut self, at: usize, tokens: u64) -> u64 {
        if self.pieces[at].item.tokens <= tokens {
            return self.keep(at);
        }
        match self.fitted(at, tokens, Of::All) {
            Some((content, cut)) => self.cut(at, content, cut),
            None => 0,
        }
    }

    fn cut(&mut self, at: usize, content: SharedContent, tokens: u64) -> u64 {
        let piece = &mut self.pieces[at];
        piece.form = Form::Cut(content);
        piece.tokens = tokens;
        tokens
    }

    /// A piece cut to so many tokens: a form that has no more; none when there is none.
    fn fitted(&self, at: usize, tokens: u64, of: Of) -> Option<(SharedContent, u64)> {
        let (item, source) = (&self.pieces[at].item, &self.pieces[at].source);
        let all = cut::bytes(item, of);
        if all == 0 || tokens >= item.tokens {
            return None;
        }
        let beside = match of {
            Of::Results => item
                .tokens
                .saturating_sub(self.tally.outcomes(&item.content)),
            Of::All => 0,
        };
        let room = tokens.checked_sub(beside)?;
        let of_texts = (item.tokens - beside).max(1);
        // Texts are no denser than the whole; a mark comes on top.
        for percent in [94, 85, 70, 50] {
            let bytes = all as u128 * u128::from(room) * percent / 100 / u128::from(of_texts);
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            if bytes < cut::LEAST_BYTES {
                return None;
            }
            let Some(content) = cut::item(source, self.conversation, bytes, of) else {
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

    fn fill_from_the_end(&mut self, mut left: u64, note: u64) {
        let share = self.room / 2;
        let (mut whole, mut is_recent) = (0, true);
        let (mut passed_over, mut after_gap) = (0, false);
        for at in (0..self.pieces.len()).rev() {
            if !self.pieces[at].is_gone() {
                after_gap = false;
                continue;
            }
            let tokens = self.pieces[at].item.tokens;
            if tokens == 0 {
                // Nothing of it is sent. It stays or goes with what comes after it.
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

    /// Takes one of the newest: whole, or where it is large, cut to what one may have.
    fn take_recent(&mut self, at: usize, most: u64, one_max: u64) -> u64 {
        if self.pieces[at].item.tokens <= most {
            return self.keep(at);
        }
        if !self.may.cut(&self.pieces[at].item) {
            return 0;
        }
        let of = match is_told(&self.pieces[at].item) {
            true => Of::All,
            false => Of::Results,
        };
        match self.fitted(at, most.min(one_max), of) {
            Some((content, tokens)) => self.cut(at, content, tokens),
            None => 0,
        }
    }

    fn take_short(&mut self, at: usize, most: u64) -> u64 {
        match self.short(at) {
            Some((content, tokens)) if tokens <= most => self.cut(at, content, tokens),
            None if self.pieces[at].item.tokens <= most => self.keep(at),
            // What somebody said at length says something in part, too: what is said next
            // makes no sense without an answer.
            _ if is_said_at_length(&self.pieces[at].item) => {
                self.keep_within(at, most.min(self.room / MESSAGE_SHARE))
            }
            _ => 0,
        }
    }

    /// Gives what is left to what was cut: the first question, what else the user said, then
    /// the newest first.
    fn fill(&mut self) {
        let note = self.rooms.least;
        let mut left = self.room.saturating_sub(self.tokens());
        left = left.saturating_sub(self.rooms.needed(&self.pieces));
        let newest_first = || (0..self.pieces.len()).rev();
        let by_user = newest_first().filter(|at| is_of_user(&self.pieces[*at].item));
        let order = self.first_said().into_iter().chain(by_user);
        let order: Vec<usize> = order.chain(newest_first()).collect();
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
                    true => Of::All,
                    false => Of::Results,
                };
                if let Some((content, tokens)) = self.fitted(at, now + left, of)
                    && tokens > now
                {
                    left -= self.cut(at, content, tokens) - now;
                }
            }
        }
        left = self.fill_with_parts(left, note);
        self.tell_again(left);
    }

    /// What was told once is told again where there is room: the newest first.
    fn tell_again(&mut self, mut left: u64) {
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

    /// Where much is left because what has no place is large, parts of it come in.
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
                false => self.keep_within(at, most),
            };
            if tokens > 0 {
                left = left.saturating_sub(tokens + note);
            }
        }
        left
    }
}

/// A message, or an answer of the model with which it calls nothing.
fn is_said_at_length(item: &Item) -> bool {
    item.step().is_none() || is_final(item)
}

pub(super) fn scaled(tokens: u64, factor: f64) -> usize {
    // Budgets are far below 2^52.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    let bytes = (tokens as f64 * factor) as usize;
    bytes
}

impl Plan {
    /// Makes the draft what was planned. Where something went comes a note, as long as
    /// there is room for it.
    pub fn apply(self, draft: &mut Draft, tally: &Tally, budget: u64) {
        let mut left = budget.saturating_sub(self.tokens);
        let mut rooms = self.rooms.iter().copied();
        let mut notes: Vec<(usize, Item)> = Vec::new();
        let mut run: Vec<usize> = Vec::new();
        let places = self.forms.iter().map(|(place, form, _)| (*place, form));
        let ended = [(usize::MAX, &Form::Whole)];
        let stays = self
            .forms
            .iter()
            .filter(|(_, form, _)| !matches!(form, Form::Gone));
        let stays = stays.flat_map(|(place, ..)| draft.items[*place].events.iter().copied());
        let stays = stays.collect();
        for (place, form) in places.chain(ended) {
            if matches!(form, Form::Gone) {
                run.push(place);
                continue;
            }
            let Some(first) = run.first().copied() else {
                continue;
            };
            let gone = run.drain(..).map(|place| &draft.items[place]);
            // What is not sent anyhow leaves nothing behind.
            let gone: Vec<_> = gone.filter(|item| item.tokens > 0).collect();
            let most = rooms.next().unwrap_or_default().min(left);
            if let Some(note) = note::note(&gone, self.conversation, tally, most, &stays) {
                left -= note.tokens;
                notes.push((first, note));
            }
        }
        for (place, form, tokens) in self.forms {
            change(&mut draft.items[place], form, tokens);
        }
        insert(draft, notes);
    }
}

fn change(item: &mut Item, form: Form, tokens: u64) {
    match form {
        Form::Whole => {}
        Form::Cut(content) => {
            item.content = content;
            item.tokens = tokens;
            item.fate = Fate::Shortened;
            item.reason = match item.step() {
                Some(_) => "over the budget: results in short",
                None => "over the budget: cut to head and tail",
            }
            .into();
        }
        Form::Gone => super::drop(item, "over the budget: the oldest steps go first"),
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
