//! Splits a command line into words, with enough shell grammar to identify the words that are file
//! names. Nothing is expanded; words that a shell would expand are marked.

/// Maximum number of bytes of a command line that are read.
const COMMAND_BYTES_MAX: usize = 64 << 10;
/// Maximum number of simple commands of one line.
const COMMANDS_MAX: usize = 256;

/// A word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShellWord {
    pub text: String,
    /// Whether there is nothing to expand: no variable, wildcard or command.
    pub is_plain: bool,
}

/// One program with its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SimpleCommand {
    pub words: Vec<ShellWord>,
    /// Operator (`>`, `>>`, `<`) and target.
    pub redirects: Vec<(&'static str, ShellWord)>,
    /// Whether it reads the output of the previous command.
    pub is_piped: bool,
    /// Whether the next command reads its output.
    pub pipes_on: bool,
    /// Nesting depth of parentheses.
    pub depth: usize,
}

impl SimpleCommand {
    /// Name of the program, without its directory.
    pub fn name(&self) -> &str {
        let name = self.words.first().map_or("", |word| word.text.as_str());
        name.rsplit('/').next().unwrap_or(name)
    }
}

/// Returns the simple commands of a line, in order.
pub(super) fn commands(line: &str) -> Vec<SimpleCommand> {
    let line = &line[..line.floor_char_boundary(COMMAND_BYTES_MAX)];
    let mut lexer = Lexer {
        rest: line.char_indices().peekable(),
        line,
        commands: Vec::new(),
        current: SimpleCommand::default(),
        redirect: None,
        heredocs: Vec::new(),
        depth: 0,
    };
    lexer.run();
    lexer.commands
}

struct Lexer<'a> {
    rest: std::iter::Peekable<std::str::CharIndices<'a>>,
    line: &'a str,
    commands: Vec<SimpleCommand>,
    current: SimpleCommand,
    redirect: Option<&'static str>,
    heredocs: Vec<String>,
    depth: usize,
}

impl Lexer<'_> {
    fn run(&mut self) {
        while let Some(&(at, c)) = self.rest.peek() {
            if self.commands.len() >= COMMANDS_MAX {
                return;
            }
            match c {
                '\n' => {
                    self.rest.next();
                    self.end(false);
                    self.skip_heredocs();
                }
                c if c.is_whitespace() => {
                    self.rest.next();
                }
                '#' => while self.rest.next_if(|(_, c)| *c != '\n').is_some() {},
                '\\' if self.line[at..].starts_with("\\\n") => {
                    self.rest.next();
                    self.rest.next();
                }
                '|' => {
                    self.rest.next();
                    let is_or = self.rest.next_if(|(_, c)| *c == '|').is_some();
                    self.rest.next_if(|(_, c)| *c == '&');
                    self.end(!is_or);
                }
                '&' => self.ampersand(),
                ';' => {
                    self.rest.next();
                    self.end(false);
                }
                '(' => {
                    self.rest.next();
                    self.end(false);
                    self.depth += 1;
                }
                ')' => {
                    self.rest.next();
                    self.end(false);
                    self.depth = self.depth.saturating_sub(1);
                }
                '>' | '<' => self.angle(),
                _ => self.word(),
            }
        }
        self.end(false);
    }

    /// Reads `&&`, `&` or `&>`.
    fn ampersand(&mut self) {
        self.rest.next();
        if self.rest.next_if(|(_, c)| *c == '>').is_some() {
            self.rest.next_if(|(_, c)| *c == '>');
            self.redirect = Some(">");
        } else {
            self.rest.next_if(|(_, c)| *c == '&');
            self.end(false);
        }
    }

    /// Reads `>`, `>>`, `>|`, `>&`, `<`, `<<`, `<<<` or `<(`.
    fn angle(&mut self) {
        let Some((_, first)) = self.rest.next() else {
            return;
        };
        let second = self.rest.peek().map(|(_, c)| *c);
        match (first, second) {
            ('>', Some('>')) => {
                self.rest.next();
                self.redirect = Some(">>");
            }
            ('>' | '<', Some('&')) => {
                // The target is a stream number or `-`.
                self.rest.next();
                while self
                    .rest
                    .next_if(|(_, c)| c.is_ascii_digit() || *c == '-')
                    .is_some()
                {}
            }
            ('>', Some('|')) => {
                self.rest.next();
                self.redirect = Some(">");
            }
            ('<', Some('<')) => {
                self.rest.next();
                if self.rest.next_if(|(_, c)| *c == '<').is_some() {
                    self.redirect = Some("<<<");
                } else {
                    self.rest.next_if(|(_, c)| *c == '-');
                    self.redirect = Some("<<");
                }
            }
            ('>', _) => self.redirect = Some(">"),
            _ => self.redirect = Some("<"),
        }
    }

    fn word(&mut self) {
        let mut word = ShellWord {
            text: String::new(),
            is_plain: true,
        };
        while let Some(&(at, c)) = self.rest.peek() {
            match c {
                '\'' => {
                    self.rest.next();
                    // An unterminated quote is not valid shell syntax.
                    let mut ends = false;
                    for (_, c) in self.rest.by_ref() {
                        ends = c == '\'';
                        if ends {
                            break;
                        }
                        word.text.push(c);
                    }
                    word.is_plain &= ends;
                }
                '"' => self.double_quoted(&mut word),
                '\\' => {
                    self.rest.next();
                    if let Some((_, c)) = self.rest.next()
                        && c != '\n'
                    {
                        word.text.push(c);
                    }
                }
                '$' if self.line[at..].starts_with("$(") => self.substitution(&mut word),
                '`' => {
                    word.is_plain = false;
                    self.rest.next();
                    while self.rest.next_if(|(_, c)| *c != '`').is_some() {}
                    self.rest.next();
                }
                c if c.is_whitespace() || "|&;()<>".contains(c) => break,
                c => {
                    word.is_plain &= !"$*?[{".contains(c);
                    word.text.push(c);
                    self.rest.next();
                }
            }
        }
        self.put(word);
    }

    fn double_quoted(&mut self, word: &mut ShellWord) {
        self.rest.next();
        while let Some((at, c)) = self.rest.next() {
            match c {
                '"' => return,
                '\\' => {
                    if let Some((_, c)) = self.rest.next() {
                        if !matches!(c, '"' | '\\' | '$' | '`' | '\n') {
                            word.text.push('\\');
                        }
                        word.text.push(c);
                    }
                }
                '$' if self.line[at..].starts_with("$(") => {
                    word.is_plain = false;
                    self.skip_parentheses();
                }
                c => {
                    word.is_plain &= !matches!(c, '$' | '`');
                    word.text.push(c);
                }
            }
        }
        word.is_plain = false;
    }

    fn substitution(&mut self, word: &mut ShellWord) {
        word.is_plain = false;
        self.rest.next();
        self.skip_parentheses();
    }

    /// Skips `( … )`, which begins here.
    fn skip_parentheses(&mut self) {
        let mut depth = 0_usize;
        for (_, c) in self.rest.by_ref() {
            match c {
                '(' => depth += 1,
                ')' if depth <= 1 => return,
                ')' => depth -= 1,
                _ => {}
            }
        }
    }

    fn put(&mut self, word: ShellWord) {
        match self.redirect.take() {
            None => {
                // In `2>` and similar redirects, the number is not a word.
                let before_angle = self
                    .rest
                    .peek()
                    .is_some_and(|(_, c)| matches!(c, '>' | '<'));
                let is_stream =
                    word.text.len() == 1 && word.text.bytes().all(|b| b.is_ascii_digit());
                if !(before_angle && is_stream) {
                    self.current.words.push(word);
                }
            }
            Some("<<") => self.heredocs.push(word.text),
            Some("<<<") => {}
            Some(operator) => self.current.redirects.push((operator, word)),
        }
    }

    fn end(&mut self, pipes_on: bool) {
        self.redirect = None;
        let mut command = std::mem::take(&mut self.current);
        self.current.is_piped = pipes_on;
        command.pipes_on = pipes_on;
        command.depth = self.depth;
        if !command.words.is_empty() || !command.redirects.is_empty() {
            self.commands.push(command);
        }
    }

    fn skip_heredocs(&mut self) {
        for end in std::mem::take(&mut self.heredocs) {
            while let Some(&(at, _)) = self.rest.peek() {
                let text = &self.line[at..];
                let length = text.find('\n').map_or(text.len(), |newline| newline + 1);
                let is_end = text[..length].trim() == end;
                while self
                    .rest
                    .next_if(|(place, _)| *place < at + length)
                    .is_some()
                {}
                if is_end {
                    break;
                }
            }
        }
    }
}
