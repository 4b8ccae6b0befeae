//! The fields of the index and the terms written into them.
//!
//! Every term begins with its namespace. A search in one namespace therefore cannot reach postings
//! of another, and the statistics used for ranking (how many passages have a word) are per
//! namespace too.

use tantivy::{
    Term,
    schema::{FAST, Field, IndexRecordOption, Schema, TextFieldIndexing, TextOptions},
    tokenizer::{Token, TokenStream, Tokenizer},
};

use super::{
    analyser::{Analyser, Analysis},
    document::SearchableEvent,
};
use treering_domain::{ConversationId, EventKind, Namespace, Role};

/// Separates the namespace from what follows. Occurs in no namespace and no analysed term.
const SEPARATOR: char = '\u{1F}';
/// The registered name of [`PassageTokenizer`].
pub(super) const TOKENIZER: &str = "passage";

/// Names of the columns from which a hit is read.
pub(super) mod column {
    pub(crate) const CONVERSATION: &str = "conversation";
    pub(crate) const BRANCH: &str = "branch";
    pub(crate) const REVISION: &str = "revision";
    pub(crate) const SHARD: &str = "shard";
    pub(crate) const OFFSET: &str = "offset";
    pub(crate) const RECORDED_AT: &str = "recorded_at";
    pub(crate) const HAPPENED_AT: &str = "happened_at";
    pub(crate) const KIND: &str = "kind";
    pub(crate) const OUTCOME: &str = "outcome";
    pub(crate) const BYTE_START: &str = "byte_start";
    pub(crate) const TEXT_HASH: &str = "text_hash";
    pub(crate) const TOOL: &str = "tool";
}

/// Handles of the fields.
#[derive(Clone, Debug)]
pub(super) struct Fields {
    pub(crate) schema: Schema,
    /// Analysed terms with positions.
    pub(crate) text: Field,
    /// Exact terms for filters.
    pub(crate) tags: Field,
    pub(crate) conversation: Field,
    pub(crate) branch: Field,
    pub(crate) revision: Field,
    pub(crate) shard: Field,
    pub(crate) offset: Field,
    pub(crate) recorded_at: Field,
    pub(crate) happened_at: Field,
    pub(crate) kind: Field,
    pub(crate) outcome: Field,
    pub(crate) byte_start: Field,
    pub(crate) text_hash: Field,
    pub(crate) tool: Field,
}

impl Fields {
    pub(crate) fn new() -> Self {
        let mut builder = Schema::builder();
        let indexed = |tokenizer: &str, record, norms| {
            let indexing = TextFieldIndexing::default()
                .set_tokenizer(tokenizer)
                .set_index_option(record)
                .set_fieldnorms(norms);
            TextOptions::default().set_indexing_options(indexing)
        };
        let text = indexed(TOKENIZER, IndexRecordOption::WithFreqsAndPositions, true);
        let tags = indexed("raw", IndexRecordOption::Basic, false);
        let label = TextOptions::default().set_fast("raw");
        Self {
            text: builder.add_text_field("text", text),
            tags: builder.add_text_field("tags", tags),
            conversation: builder.add_bytes_field(column::CONVERSATION, FAST),
            branch: builder.add_u64_field(column::BRANCH, FAST),
            revision: builder.add_u64_field(column::REVISION, FAST),
            shard: builder.add_u64_field(column::SHARD, FAST),
            offset: builder.add_u64_field(column::OFFSET, FAST),
            recorded_at: builder.add_i64_field(column::RECORDED_AT, FAST),
            happened_at: builder.add_i64_field(column::HAPPENED_AT, FAST),
            kind: builder.add_u64_field(column::KIND, FAST),
            outcome: builder.add_u64_field(column::OUTCOME, FAST),
            byte_start: builder.add_u64_field(column::BYTE_START, FAST),
            text_hash: builder.add_u64_field(column::TEXT_HASH, FAST),
            tool: builder.add_text_field(column::TOOL, label),
            schema: builder.build(),
        }
    }

    /// Returns the tags of an event's passages.
    pub(crate) fn tags_of(&self, event: &SearchableEvent) -> Vec<String> {
        let namespace = &event.namespace;
        let mut tags = vec![
            namespace_tag(namespace),
            conversation_tag(namespace, event.conversation),
            kind_tag(namespace, event.kind),
        ];
        if !event.tool.is_empty() {
            tags.push(tool_tag(namespace, &event.tool));
        }
        tags.extend(event.paths.iter().map(|path| path_tag(namespace, path)));
        tags.extend(event.role.map(|role| role_tag(namespace, role)));
        tags.extend(event.success.map(|success| success_tag(namespace, success)));
        tags.extend(event.recalled.then(|| recalled_tag(namespace)));
        tags
    }

    pub(crate) fn tag(&self, tag: &str) -> Term {
        Term::from_field_text(self.tags, tag)
    }
}

pub(super) fn namespace_tag(namespace: &Namespace) -> String {
    format!("{namespace}{SEPARATOR}")
}

pub(super) fn conversation_tag(namespace: &Namespace, conversation: ConversationId) -> String {
    format!("{namespace}{SEPARATOR}c{}", conversation.0.simple())
}

pub(super) fn kind_tag(namespace: &Namespace, kind: EventKind) -> String {
    format!("{namespace}{SEPARATOR}k{}", kind.number())
}

pub(super) fn tool_tag(namespace: &Namespace, tool: &str) -> String {
    format!("{namespace}{SEPARATOR}t{tool}")
}

pub(super) fn path_tag(namespace: &Namespace, path: &str) -> String {
    format!("{namespace}{SEPARATOR}p{path}")
}

pub(super) fn success_tag(namespace: &Namespace, success: bool) -> String {
    format!("{namespace}{SEPARATOR}s{}", u8::from(success))
}

/// Returns the tag of the first passages of events with this text.
pub(super) fn text_tag(namespace: &Namespace, text_hash: u64) -> String {
    format!("{namespace}{SEPARATOR}x{text_hash:016x}")
}

pub(super) fn role_tag(namespace: &Namespace, role: Role) -> String {
    format!("{namespace}{SEPARATOR}r{}", role.as_str())
}

pub(super) fn recalled_tag(namespace: &Namespace) -> String {
    format!("{namespace}{SEPARATOR}q")
}

/// Added to the `outcome` of passages that quote a memory.
pub(super) const RECALLED: u64 = 4;

/// Returns the value of the `outcome` column.
pub(super) fn outcome_number(success: Option<bool>, recalled: bool) -> u64 {
    let outcome = match success {
        None => 0,
        Some(false) => 1,
        Some(true) => 2,
    };
    outcome + if recalled { RECALLED } else { 0 }
}

pub(super) fn outcome_of(number: u64) -> Option<bool> {
    match number & !RECALLED {
        1 => Some(false),
        2 => Some(true),
        _ => None,
    }
}

/// Returns the text field's term for an analysed term.
pub(super) fn text_term(namespace: &Namespace, term: &str) -> String {
    format!("{namespace}{SEPARATOR}{term}")
}

/// Returns the text field's value: the namespace, then the passage.
pub(super) fn text_value(namespace: &Namespace, passage: &str) -> String {
    text_term(namespace, passage)
}

/// Tokenizes a [`text_value`] into the passage's terms, each with its namespace.
#[derive(Clone, Default)]
pub(super) struct PassageTokenizer {
    analyser: Analyser,
    analysis: Analysis,
}

impl Tokenizer for PassageTokenizer {
    type TokenStream<'a> = PassageTokens<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> PassageTokens<'a> {
        let prefix_len = text
            .find(SEPARATOR)
            .map_or(0, |at| at + SEPARATOR.len_utf8());
        let (prefix, passage) = text.split_at(prefix_len);
        self.analyser.analyse_into(passage, &mut self.analysis);
        let token = Token {
            text: prefix.to_owned(),
            ..Token::default()
        };
        PassageTokens {
            analysis: &self.analysis,
            prefix_len,
            next: 0,
            token,
        }
    }
}

/// The terms of one passage.
pub(super) struct PassageTokens<'a> {
    analysis: &'a Analysis,
    prefix_len: usize,
    next: usize,
    token: Token,
}

impl TokenStream for PassageTokens<'_> {
    fn advance(&mut self) -> bool {
        let Some(term) = self.analysis.get(self.next) else {
            return false;
        };
        self.next += 1;
        self.token.text.truncate(self.prefix_len);
        self.token.text.push_str(term.term);
        self.token.position = term.position;
        self.token.offset_from = term.start;
        self.token.offset_to = term.end;
        true
    }

    fn token(&self) -> &Token {
        &self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        &mut self.token
    }
}
