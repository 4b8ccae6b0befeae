//! The query language: parses a text into a tree of clauses. Knows neither the analyser nor the
//! index.
//!
//! ```text
//! words are joined by OR         disk full
//! "a phrase"                     "no space left"
//! prefixes                       conf*   src/sea*
//! AND, OR, NOT (in capitals)     disk AND NOT quota   disk NOT quota
//! must, must not                 +disk -quota
//! groups                         (disk OR volume) AND full
//! ```
//!
//! `AND` binds more tightly than `OR` and adjacency. Parsing is lenient: an unfinished quote or
//! group ends with the query, a stray bracket or operator is skipped, and brackets inside a word
//! (`main(argc)`) and options (`--all`) belong to the word. An error gives the place in the query
//! that cannot be searched.
//!
//! People and models mostly paste error messages, commands and code, in which `NOT` is a word and
//! `-v` an option. A text is therefore plain words unless all of it looks like a deliberate query
//! ([`is_meant`]) or the caller says that it is a query.

use std::ops::Range;

use super::stop_words::is_small;

/// Maximum length of a query, in bytes. An error message with its stack trace fits; longer ones are
/// pasted texts, not queries.
pub const QUERY_BYTES_MAX: usize = 16 << 10;
/// Maximum number of words, phrases and prefixes in a query.
pub(crate) const QUERY_CLAUSES_MAX: usize = 512;
/// Maximum nesting depth of groups.
pub(crate) const QUERY_DEPTH_MAX: usize = 32;

/// Why a query cannot be searched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The query has nothing to search for.
    #[error("the query has no words to search for")]
    Empty,
    /// The query is too long.
    #[error("the query has {bytes} bytes; the maximum is {max}")]
    TooLong {
        /// Its length, in bytes.
        bytes: usize,
        /// The largest allowed length, in bytes.
        max: usize,
    },
    /// The query has too many words or phrases.
    #[error("the query has more than {max} words and phrases; the next one begins at byte {at}")]
    TooManyClauses {
        /// The byte offset of the first one too many.
        at: usize,
        /// The largest allowed number.
        max: usize,
    },
    /// The query is not a valid regular expression.
    #[error("invalid regular expression: {message}")]
    Regex {
        /// What is wrong, and where.
        message: String,
    },
    /// Groups are nested too deep.
    #[error("groups are nested more than {max} levels deep at byte {at}")]
    TooDeep {
        /// The byte offset of the bracket that is one too many.
        at: usize,
        /// The largest allowed depth.
        max: usize,
    },
}

/// How a clause takes part in a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClauseRole {
    /// Adds to the score; one of these must match if there is no `Must` clause.
    Should,
    /// Must match.
    Must,
    /// Must not match.
    MustNot,
}

/// A clause of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// Text without blanks; may be an identifier or a path.
    Word(Range<usize>),
    /// The text between quotes.
    Phrase(Range<usize>),
    /// The text before a star.
    Prefix(Range<usize>),
    /// The clauses of a group.
    Group(Vec<(ClauseRole, Node)>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(Range<usize>),
    Phrase(Range<usize>),
    Prefix(Range<usize>),
    Open(usize),
    Close,
    And,
    Or,
    Not,
    Plus,
    Minus,
}

/// How a text is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum QuerySyntax {
    /// As words, unless all of it looks like a deliberate query.
    #[default]
    Guess,
    /// As words, without operators.
    Plain,
    /// As a query in the language of this module.
    Query,
}

/// Parses a text. Returns the tree and whether it was parsed as words or as a query. Ranges are
/// bytes of `text`.
///
/// # Errors
/// [`QueryError`] when it exceeds a limit or has nothing to search for.
pub fn read(text: &str, reading: QuerySyntax) -> Result<(Node, QuerySyntax), QueryError> {
    let is_query = match reading {
        QuerySyntax::Guess => is_meant(text),
        QuerySyntax::Plain => false,
        QuerySyntax::Query => true,
    };
    if is_query {
        return Ok((parse(text)?, QuerySyntax::Query));
    }
    Ok((plain(text)?, QuerySyntax::Plain))
}

/// Splits a text into words at blanks. Uses only the first [`QUERY_CLAUSES_MAX`] words, which
/// suffice to find a pasted text.
fn plain(text: &str) -> Result<Node, QueryError> {
    check_length(text)?;
    let start_of = |word: &str| word.as_ptr().addr() - text.as_ptr().addr();
    let words: Vec<(ClauseRole, Node)> = text
        .split_whitespace()
        .filter(|word| word.chars().any(char::is_alphanumeric))
        .take(QUERY_CLAUSES_MAX)
        .map(|word| {
            let start = start_of(word);
            (ClauseRole::Should, Node::Word(start..start + word.len()))
        })
        .collect();
    if words.is_empty() {
        return Err(QueryError::Empty);
    }
    Ok(Node::Group(words))
}

/// Characters that occur in code, commands and logs but not in queries.
const NOT_IN_QUERIES: [char; 14] = [
    ';', '{', '}', '=', '<', '>', '$', '|', '`', '[', ']', '\\', '\'', '%',
];

/// Maximum number of tokens in a query with `NOT` but no `AND` or `OR`; longer texts are sentences.
const WITHOUT_TOKENS_MAX: usize = 8;
/// Words that follow an emphatic `NOT` in prose.
const AFTER_EMPHATIC_NOT: [&str; 21] = [
    "allowed",
    "available",
    "change",
    "delete",
    "edit",
    "enough",
    "exist",
    "exists",
    "found",
    "implemented",
    "installed",
    "modify",
    "null",
    "ok",
    "permitted",
    "ready",
    "set",
    "supported",
    "use",
    "work",
    "working",
];

/// Returns true when all of a text looks like a deliberate query:
///
/// - phrases and prefixes only: `"no space left"`, `"a b" conf*`;
/// - operands with `AND` or `OR` between all of them: `disk AND NOT quota`, `(EACCES OR "permission
///   denied") AND open*`;
/// - few words with `NOT` between them: `disk NOT quota`, but not `do NOT edit`;
/// - signs, at least one of them a `+`: `+disk -quota full`;
/// - words and a prefix: `parse* config`.
#[must_use]
pub fn is_meant(text: &str) -> bool {
    let quotes = text.matches('"').count();
    let outside = text.split('"').step_by(2).collect::<String>();
    if !quotes.is_multiple_of(2) || outside.contains(NOT_IN_QUERIES) || text.contains('\n') {
        return false;
    }
    let Ok(tokens) = tokenize(text) else {
        return false;
    };
    let count = |wanted: fn(&Token) -> bool| tokens.iter().filter(|token| wanted(token)).count();
    let joints = count(|token| matches!(token, Token::And | Token::Or));
    let words = count(|token| matches!(token, Token::Word(_)));
    let beginnings = count(|token| matches!(token, Token::Prefix(_)));
    let phrases = count(|token| matches!(token, Token::Phrase(_)));
    let brackets = count(|token| matches!(token, Token::Open(_) | Token::Close));
    let signs = count(|token| matches!(token, Token::Plus | Token::Minus));
    let nots = count(|token| matches!(token, Token::Not));
    let has_option = || {
        let mut words = text.split_whitespace();
        words.any(|word| word.starts_with("--") || (word.starts_with('-') && word.len() == 2))
    };
    if joints > 0 {
        return is_joined(&tokens, text);
    }
    if nots > 0 && brackets + signs == 0 {
        return is_exclusion_query(&tokens, text);
    }
    if brackets + nots > 0 || has_option() {
        return false;
    }
    if signs > 0 {
        // A line of a diff begins with a sign and has no other.
        let is_of_diff = signs == 1 && words + phrases + beginnings > 2;
        return tokens.contains(&Token::Plus) && !is_of_diff;
    }
    words == 0 && phrases + beginnings > 0 || beginnings > 0 && phrases == 0
}

/// Returns true for a few operands with a `NOT` between them that is not emphasis in a sentence.
fn is_exclusion_query(tokens: &[Token], text: &str) -> bool {
    let is_operand = |token: Option<&Token>| {
        matches!(
            token,
            Some(Token::Word(_) | Token::Phrase(_) | Token::Prefix(_))
        )
    };
    let is_ordinary = |token: &Token| match token {
        Token::Word(range) => {
            let word = &text[range.clone()];
            let ends = word.ends_with([':', ',', '.', '!', '?']);
            !ends && !is_small(word) && !follows_emphatic_not(word)
        }
        _ => true,
    };
    let mut pairs = (0..tokens.len()).filter(|at| tokens[*at] == Token::Not);
    let are_between = pairs.all(|at| {
        is_operand(at.checked_sub(1).and_then(|before| tokens.get(before)))
            && is_operand(tokens.get(at + 1))
    });
    are_between && tokens.len() <= WITHOUT_TOKENS_MAX && tokens.iter().all(is_ordinary)
}

/// Returns true for a word that follows an emphatic `NOT`, as in `file NOT found`.
fn follows_emphatic_not(word: &str) -> bool {
    AFTER_EMPHATIC_NOT.contains(&word.to_lowercase().as_str())
}

/// Returns true for operands with `AND` or `OR` between all of them, without shell operators.
fn is_joined(tokens: &[Token], text: &str) -> bool {
    let mut depth = 0_usize;
    let mut wants_operand = true;
    for token in tokens {
        match token {
            Token::And | Token::Or if wants_operand => return false,
            Token::And | Token::Or => wants_operand = true,
            Token::Not | Token::Plus | Token::Minus | Token::Open(_) if !wants_operand => {
                return false;
            }
            Token::Open(_) => depth += 1,
            Token::Close if wants_operand || depth == 0 => return false,
            Token::Close => depth -= 1,
            Token::Word(_) | Token::Phrase(_) | Token::Prefix(_) if !wants_operand => {
                return false;
            }
            Token::Word(_) | Token::Phrase(_) | Token::Prefix(_) => wants_operand = false,
            Token::Not | Token::Plus | Token::Minus => {}
        }
    }
    let shell = text
        .split_whitespace()
        .any(|word| matches!(word, "&&" | "||"));
    !wants_operand && depth == 0 && !shell
}

fn check_length(text: &str) -> Result<(), QueryError> {
    if text.len() > QUERY_BYTES_MAX {
        return Err(QueryError::TooLong {
            bytes: text.len(),
            max: QUERY_BYTES_MAX,
        });
    }
    Ok(())
}

/// Parses a query. Ranges are bytes of `text`.
///
/// # Errors
/// [`QueryError`] when it exceeds a limit or has nothing to search for.
pub fn parse(text: &str) -> Result<Node, QueryError> {
    check_length(text)?;
    let tokens = tokenize(text)?;
    let mut parser = Parser {
        tokens: &tokens,
        next: 0,
    };
    let mut clauses = Vec::new();
    while parser.next < tokens.len() {
        // An unmatched closing bracket ends an iteration of this loop.
        clauses.extend(parser.clauses(0)?);
        parser.next += 1;
    }
    if clauses.is_empty() {
        return Err(QueryError::Empty);
    }
    Ok(Node::Group(clauses))
}

fn tokenize(text: &str) -> Result<Vec<Token>, QueryError> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut clauses = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let Some(c) = rest.chars().next() else { break };
        let (token, end) = match c {
            c if c.is_whitespace() => (None, at + c.len_utf8()),
            '"' => phrase(text, at),
            '(' => (Some(Token::Open(at)), at + 1),
            ')' => (Some(Token::Close), at + 1),
            '+' if starts_operand(bytes, at + 1) => (Some(Token::Plus), at + 1),
            '-' if starts_operand(bytes, at + 1) => (Some(Token::Minus), at + 1),
            _ => word(text, at),
        };
        if matches!(
            token,
            Some(Token::Word(_) | Token::Phrase(_) | Token::Prefix(_))
        ) {
            clauses += 1;
            if clauses > QUERY_CLAUSES_MAX {
                return Err(QueryError::TooManyClauses {
                    at,
                    max: QUERY_CLAUSES_MAX,
                });
            }
        }
        tokens.extend(token);
        at = end;
    }
    Ok(tokens)
}

/// Returns true when the `+` or `-` just before `at` is an operator. In `--all`, `->`, `+=` and a
/// lone dash it is not.
fn starts_operand(bytes: &[u8], at: usize) -> bool {
    bytes.get(at).is_some_and(|&b| {
        b.is_ascii_alphanumeric() || !b.is_ascii() || matches!(b, b'"' | b'(' | b'_' | b'/' | b'.')
    })
}

fn phrase(text: &str, at: usize) -> (Option<Token>, usize) {
    let start = at + 1;
    let end = text[start..]
        .find('"')
        .map_or(text.len(), |length| start + length);
    let token = (!text[start..end].trim().is_empty()).then_some(Token::Phrase(start..end));
    (token, (end + 1).min(text.len()))
}

/// Reads a word up to the next blank or quote, or a bracket that the word did not open.
fn word(text: &str, at: usize) -> (Option<Token>, usize) {
    let mut open = 0_usize;
    let mut end = text.len();
    for (offset, c) in text[at..].char_indices() {
        match c {
            '(' => open += 1,
            ')' if open == 0 => end = at + offset,
            ')' => open -= 1,
            '"' => end = at + offset,
            c if c.is_whitespace() => end = at + offset,
            _ => continue,
        }
        if end < text.len() {
            break;
        }
    }
    let word = &text[at..end];
    let token = match word {
        "AND" | "&&" => Token::And,
        "OR" | "||" => Token::Or,
        "NOT" => Token::Not,
        _ => return (searchable(word, at), end),
    };
    (Some(token), end)
}

fn searchable(word: &str, at: usize) -> Option<Token> {
    let stem = word.trim_end_matches('*');
    let has_text = stem.chars().any(char::is_alphanumeric);
    if !has_text {
        return None;
    }
    let range = at..at + stem.len();
    let ends_in_text = stem.ends_with(char::is_alphanumeric);
    let is_prefix = stem.len() + 1 == word.len() && ends_in_text;
    Some(if is_prefix {
        Token::Prefix(range)
    } else {
        Token::Word(range)
    })
}

struct Parser<'a> {
    tokens: &'a [Token],
    next: usize,
}

impl Parser<'_> {
    /// Parses clauses up to the end or to a closing bracket, which is not consumed.
    fn clauses(&mut self, depth: usize) -> Result<Vec<(ClauseRole, Node)>, QueryError> {
        let mut clauses = Vec::new();
        loop {
            match self.tokens.get(self.next) {
                None | Some(Token::Close) => return Ok(clauses),
                Some(Token::Or | Token::And) => self.next += 1,
                Some(_) => clauses.extend(self.conjunction(depth)?),
            }
        }
    }

    /// Parses operands with `AND` between them.
    fn conjunction(&mut self, depth: usize) -> Result<Option<(ClauseRole, Node)>, QueryError> {
        let mut operands: Vec<(ClauseRole, Node)> = self.operand(depth)?.into_iter().collect();
        let mut joined = false;
        while self.tokens.get(self.next) == Some(&Token::And) {
            self.next += 1;
            if let Some(operand) = self.operand(depth)? {
                joined |= !operands.is_empty();
                operands.push(operand);
            }
        }
        if !joined {
            return Ok(operands.pop());
        }
        for (role, _) in &mut operands {
            if *role == ClauseRole::Should {
                *role = ClauseRole::Must;
            }
        }
        Ok(Some((ClauseRole::Should, Node::Group(operands))))
    }

    fn operand(&mut self, depth: usize) -> Result<Option<(ClauseRole, Node)>, QueryError> {
        let mut role = ClauseRole::Should;
        loop {
            let Some(token) = self.tokens.get(self.next) else {
                return Ok(None);
            };
            let node = match token {
                Token::Not | Token::Minus => {
                    role = if role == ClauseRole::MustNot {
                        ClauseRole::Must
                    } else {
                        ClauseRole::MustNot
                    };
                    self.next += 1;
                    continue;
                }
                Token::Plus => {
                    role = if role == ClauseRole::MustNot {
                        role
                    } else {
                        ClauseRole::Must
                    };
                    self.next += 1;
                    continue;
                }
                Token::And | Token::Or | Token::Close => return Ok(None),
                Token::Word(range) => Node::Word(range.clone()),
                Token::Phrase(range) => Node::Phrase(range.clone()),
                Token::Prefix(range) => Node::Prefix(range.clone()),
                Token::Open(at) => return self.group(*at, role, depth + 1),
            };
            self.next += 1;
            return Ok(Some((role, node)));
        }
    }

    fn group(
        &mut self,
        at: usize,
        role: ClauseRole,
        depth: usize,
    ) -> Result<Option<(ClauseRole, Node)>, QueryError> {
        if depth > QUERY_DEPTH_MAX {
            return Err(QueryError::TooDeep {
                at,
                max: QUERY_DEPTH_MAX,
            });
        }
        self.next += 1;
        let clauses = self.clauses(depth)?;
        if self.tokens.get(self.next) == Some(&Token::Close) {
            self.next += 1;
        }
        Ok((!clauses.is_empty()).then_some((role, Node::Group(clauses))))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the tree in short form: `a` is a `Should` clause, `+a` a `Must` clause, `-a` a
    /// `MustNot` clause, and `[...]` a group.
    fn shown(text: &str) -> String {
        fn one(text: &str, node: &Node) -> String {
            match node {
                Node::Word(range) => text[range.clone()].to_owned(),
                Node::Phrase(range) => format!("\"{}\"", &text[range.clone()]),
                Node::Prefix(range) => format!("{}*", &text[range.clone()]),
                Node::Group(clauses) => format!("[{}]", all(text, clauses)),
            }
        }
        fn all(text: &str, clauses: &[(ClauseRole, Node)]) -> String {
            let shown = clauses.iter().map(|(role, node)| {
                let mark = match role {
                    ClauseRole::Should => "",
                    ClauseRole::Must => "+",
                    ClauseRole::MustNot => "-",
                };
                format!("{mark}{}", one(text, node))
            });
            shown.collect::<Vec<_>>().join(" ")
        }
        match parse(text) {
            Ok(Node::Group(clauses)) => all(text, &clauses),
            Ok(node) => one(text, &node),
            Err(error) => format!("{error:?}"),
        }
    }

    // A pasted line must be found: its `-v` or `NOT` must not exclude it.
    #[test]
    fn pasted_lines_are_not_parsed_as_queries() {
        for pasted in [
            "go test ./... -run TestExplain -v",
            "go test -v -run Overlap ./cmd/entire/cli/strategy/",
            "disk -quota",
            "ERROR: file NOT found AND no backup",
            "NOT NULL",
            "NOT session",
            "file NOT found",
            "do NOT edit",
            "Error: module NOT loaded",
            "column may NOT be empty",
            "index NOT",
            "a NOT NOT b",
            "cache miss NOT hit -v",
            "the build says that tests NOT run were skipped",
            "SELECT a FROM t WHERE b = 1 AND c = 2",
            "cd /tmp && ls -la || true",
            "Found 1 matches for \"missing.py\" in /repo:",
            "fmt.Errorf(\"failed: %w\", err)",
            "+func GetGitAuthor(repo) (name, email)",
            "+import os from path",
            "git commit -m \"a b\"",
            "grep -rn \"foo bar\" -A 3",
            "files: -c: line 1: unexpected EOF while looking for matching ``'",
            "md5sum: '*.py': No such file",
            "a (b) c",
            "either OR",
            "a AND b c",
        ] {
            assert!(!is_meant(pasted), "{pasted}");
        }
        for query in [
            "\"no space left\"",
            "\"permission denied\" OR EACCES",
            "parse* AND config",
            "disk AND NOT quota",
            // A `NOT` without an `AND` must exclude, not be ignored.
            "telemetry NOT posthog",
            "session NOT session",
            "disk full NOT \"no space left\" NOT quot*",
            "(disk OR volume) AND full",
            "NOT disk AND full",
            "+disk -quota",
            "+disk -quota full",
            "+parse_config",
            "conf*",
            "parse* config",
            "\"a b\" \"c d\"",
        ] {
            assert!(is_meant(query), "{query}");
        }
        let (node, reading) = read("run -v NOT x -- y", QuerySyntax::Guess).unwrap();
        assert_eq!(reading, QuerySyntax::Plain);
        let Node::Group(words) = node else { panic!() };
        assert!(words.iter().all(|(role, _)| *role == ClauseRole::Should));
        assert_eq!(words.len(), 5);
        let (_, reading) = read("a -v", QuerySyntax::Query).unwrap();
        assert_eq!(reading, QuerySyntax::Query);
        assert_eq!(read("-- !", QuerySyntax::Plain), Err(QueryError::Empty));
        assert!(read(&"x ".repeat(513), QuerySyntax::Plain).is_ok());
    }

    // People and models paste anything: how each text is parsed is fixed here.
    #[test]
    fn queries_are_parsed() {
        let cases = [
            ("disk full", "disk full"),
            ("\"no space left\" disk", "\"no space left\" disk"),
            ("conf* src/sea*", "conf* src/sea*"),
            ("+a -b c", "+a -b c"),
            ("a OR b", "a b"),
            ("a AND b", "[+a +b]"),
            ("a AND b OR c", "[+a +b] c"),
            ("a b AND c d", "a [+b +c] d"),
            ("a AND NOT b", "[+a -b]"),
            ("a b NOT c", "a b -c"),
            ("NOT a", "-a"),
            ("NOT NOT a", "+a"),
            ("a && b || c", "[+a +b] c"),
            ("(a OR b) AND +(c d)", "[+[a b] +[c d]]"),
            ("-(a b) c", "-[a b] c"),
            ("((a))", "[[a]]"),
            // Lenient cases.
            ("\"unfinished phrase", "\"unfinished phrase\""),
            ("(a b", "[a b]"),
            ("a) b", "a b"),
            (")a( ()", "a("),
            ("AND a OR", "a"),
            ("a AND", "a"),
            ("and or not", "and or not"),
            ("main(argc, argv)", "main(argc, argv"),
            ("(main(argc))", "[main(argc)]"),
            ("ls --all -> x", "ls --all x"),
            ("a - b + c", "a b c"),
            ("SELECT * FROM t", "SELECT FROM t"),
            ("foo** *bar", "foo *bar"),
            ("error[E0502]: *x", "error[E0502]: *x"),
            ("say\"hi\"there", "say \"hi\" there"),
            // Errors.
            ("", "Empty"),
            (" \t\n ()", "Empty"),
            ("*", "Empty"),
            ("\"\"", "Empty"),
        ];
        for (text, expected) in cases {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn query_limits_are_enforced() {
        assert!(matches!(
            parse(&"x".repeat(16_385)),
            Err(QueryError::TooLong { bytes: 16_385, .. })
        ));
        assert!(parse(&"x ".repeat(512)).is_ok());
        assert!(matches!(
            parse(&"x ".repeat(513)),
            Err(QueryError::TooManyClauses { at: 1_024, .. })
        ));
        let nested = |depth: usize| format!("{}a", "(".repeat(depth));
        assert!(parse(&nested(32)).is_ok());
        assert!(matches!(
            parse(&nested(33)),
            Err(QueryError::TooDeep { at: 32, .. })
        ));
    }

    // Inputs that have broken other query parsers must not panic.
    #[test]
    fn hostile_queries_do_not_panic() {
        for text in [
            "\0",
            "\u{1F}",
            "a\u{0}b",
            "+",
            "-",
            "+-+-",
            "\"",
            "\"\"\"",
            "(((",
            ")))",
            "()()",
            "AND",
            "NOT",
            "NOT NOT",
            "AND NOT OR",
            "(AND)",
            "+(",
            "-(",
            "a:b:c",
            "a^2~3",
            "[a TO b]",
            "{!func}",
            "/re.*gex/",
            "\\\"",
            "\\",
            "é*",
            "🌲*",
            "東*",
            "*",
            "**",
            "a* *",
            "\u{202E}abc",
            "\u{FEFF}a",
            "a\u{301}*",
            "+\"",
            "-\"a",
            "NOT \"a",
            "((a AND) OR (b NOT))",
        ] {
            let _ = parse(text);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,120}|[ab\"()+*東 -]{0,80}|(AND |OR |NOT |a |\\(|\\)|\"){0,40}") {
            fn check(text: &str, node: &Node) -> bool {
                match node {
                    Node::Word(range) | Node::Phrase(range) | Node::Prefix(range) => {
                        text.get(range.clone()).is_some_and(|text| !text.is_empty())
                    }
                    Node::Group(clauses) => {
                        !clauses.is_empty() && clauses.iter().all(|(_, node)| check(text, node))
                    }
                }
            }
            if let Ok(node) = parse(&text) {
                prop_assert!(check(&text, &node));
            }
        }
    }
}
