//! Content that requests share without copying it: an item's content with its cached counts and
//! descriptions, and the parts of recorded events.
//!
//! Shared content never changes: [`SharedContent::make_mut`] makes a copy without cached values. A
//! cached value therefore stays valid for any policy, provider or branch.

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, OnceLock},
};

use super::{
    draft::{Block, Content, Outcome},
    tokens::CountTarget,
    window::WindowEvent,
};
use treering_domain::{ContentPart, EventBody, EventRef};

/// Content of an item.
#[derive(Clone)]
pub struct SharedContent(Arc<CachedContent>);

/// A content with its cached values.
struct CachedContent {
    content: Content,
    counts: [OnceLock<TokenCounts>; CountTarget::COUNT],
    told: OnceLock<Caption>,
    /// Whether some texts have encoded data.
    encoded: OnceLock<bool>,
}

/// Tokens of a content, without scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenCounts {
    /// Everything that is sent, without reasoning.
    pub whole: u64,
    /// Outcomes of a step's calls.
    pub outcomes: u64,
    /// Whether it has reasoning, which is sent only to some models.
    pub thinks: bool,
}

impl TokenCounts {
    /// Counts of a content without calls.
    pub fn of(whole: u64) -> Self {
        Self {
            whole,
            outcomes: 0,
            thinks: false,
        }
    }
}

/// Description of a content for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caption {
    pub label: String,
    pub head: String,
}

impl SharedContent {
    /// Returns the content for modification. Makes a copy if it is shared, and clears the cached
    /// values.
    pub fn make_mut(&mut self) -> &mut Content {
        let noted = Arc::make_mut(&mut self.0);
        noted.counts = Default::default();
        noted.told = OnceLock::new();
        noted.encoded = OnceLock::new();
        &mut noted.content
    }

    /// Returns the cached counts, or else caches and returns the result of `count`. If that is
    /// none, returns 0 and caches nothing.
    pub(super) fn counts(
        &self,
        counted_for: CountTarget,
        count: impl FnOnce() -> Option<TokenCounts>,
    ) -> TokenCounts {
        let place = &self.0.counts[counted_for.index()];
        if let Some(known) = place.get() {
            return *known;
        }
        match count() {
            Some(counts) => *place.get_or_init(|| counts),
            None => TokenCounts::of(0),
        }
    }

    /// Returns the cached description, or caches the result of `tell`.
    pub(super) fn told(&self, tell: impl FnOnce() -> Caption) -> &Caption {
        self.0.told.get_or_init(tell)
    }

    /// Whether it has encoded data. Caches the result of `look`.
    pub(super) fn is_encoded(&self, look: impl FnOnce(&Content) -> bool) -> bool {
        *self.0.encoded.get_or_init(|| look(&self.0.content))
    }

    /// Estimated memory use in bytes, without recorded events that it refers to. Includes the
    /// description even if it is not computed yet.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        /// Size of a label and a head of 100 characters.
        const TOLD_BYTES: usize = 256;
        let own = match &self.0.content {
            Content::Instruction(text) => text.len(),
            Content::Message(message) => message.author.len() + message.parts.own_bytes(),
            Content::Step(step) => {
                let blocks = step.blocks.iter().map(|block| match block {
                    Block::Part(_) => 0,
                    Block::Call(call) => {
                        let ids = [&call.call_id, &call.wire_id, &call.tool, &call.item_id];
                        let ids: usize = ids.iter().map(|id| id.len()).sum();
                        ids + outcome_bytes(&call.outcome)
                    }
                });
                step.blocks.capacity() * size_of::<Block>() + blocks.sum::<usize>()
            }
        };
        (size_of::<CachedContent>() + TOLD_BYTES + own) as u64
    }
}

fn outcome_bytes(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Result(result) => result.error_message.len() + result.parts.own_bytes(),
        Outcome::Snapshot(snapshot) => snapshot.summary.len(),
        Outcome::Missing { why, .. } => why.len(),
    }
}

impl Clone for CachedContent {
    fn clone(&self) -> Self {
        Self::from(self.content.clone())
    }
}

impl From<Content> for CachedContent {
    fn from(content: Content) -> Self {
        Self {
            content,
            counts: Default::default(),
            told: OnceLock::new(),
            encoded: OnceLock::new(),
        }
    }
}

impl From<Content> for SharedContent {
    fn from(content: Content) -> Self {
        Self(Arc::new(CachedContent::from(content)))
    }
}

impl Deref for SharedContent {
    type Target = Content;

    fn deref(&self) -> &Content {
        &self.0.content
    }
}

impl PartialEq for SharedContent {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.content == other.0.content
    }
}

impl fmt::Debug for SharedContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.content.fmt(f)
    }
}

/// The parts of a message or result, either of a recorded event or made for the request.
#[derive(Clone)]
pub struct Parts(Source);

#[derive(Clone)]
enum Source {
    Made(Arc<Vec<ContentPart>>),
    Recorded(Arc<WindowEvent>),
}

impl Parts {
    /// The parts of a recorded message or result; empty for other events.
    #[must_use]
    pub fn recorded(event: &Arc<WindowEvent>) -> Self {
        Self(Source::Recorded(Arc::clone(event)))
    }

    /// Whether they belong to a recorded event.
    #[must_use]
    pub(crate) fn are_recorded(&self) -> bool {
        matches!(self.0, Source::Recorded(_))
    }

    /// Returns each part as an owned value.
    pub fn each(&self) -> impl Iterator<Item = Part> {
        (0..self.len()).map(|index| Part {
            of: self.clone(),
            index,
        })
    }

    /// Bytes of parts that do not belong to a recorded event.
    fn own_bytes(&self) -> usize {
        match &self.0 {
            Source::Recorded(_) => 0,
            Source::Made(parts) => {
                let texts = parts.iter().filter_map(ContentPart::text).map(str::len);
                parts.len() * size_of::<ContentPart>() + texts.sum::<usize>()
            }
        }
    }
}

impl Default for Parts {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl From<Vec<ContentPart>> for Parts {
    fn from(parts: Vec<ContentPart>) -> Self {
        Self(Source::Made(Arc::new(parts)))
    }
}

impl Deref for Parts {
    type Target = [ContentPart];

    fn deref(&self) -> &[ContentPart] {
        match &self.0 {
            Source::Made(parts) => parts,
            Source::Recorded(event) => match &event.body {
                EventBody::MessageAppended(message) => &message.parts,
                EventBody::ToolResultRecorded(result) => &result.parts,
                _ => &[],
            },
        }
    }
}

impl PartialEq for Parts {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// One part of [`Parts`].
#[derive(Clone)]
pub struct Part {
    of: Parts,
    /// Index in `of`.
    index: usize,
}

impl Part {
    /// The event of the part; none if it was made for the request.
    #[must_use]
    pub fn recorded_at(&self) -> Option<EventRef> {
        match &self.of.0 {
            Source::Recorded(event) => Some(event.at),
            Source::Made(_) => None,
        }
    }
}

impl From<ContentPart> for Part {
    fn from(part: ContentPart) -> Self {
        Self {
            of: vec![part].into(),
            index: 0,
        }
    }
}

impl Deref for Part {
    type Target = ContentPart;

    fn deref(&self) -> &ContentPart {
        &self.of[self.index]
    }
}

impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
