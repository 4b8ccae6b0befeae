//! The tokenizer of a local model, on its own thread, because it cannot be shared between threads.
//!
//! `rten-text` 0.24 to 0.27 panics on a text that is mainly one long word, such as a hash: the
//! offsets that it computes for parts of a word are two bytes too large for each part before, and it
//! looks them up in the text. Blanks at the end have no tokens, and make the text long enough.

use std::{
    sync::mpsc::{Sender, channel},
    thread,
};

use rten_text::{Tokenizer, tokenizer::EncodeOptions};
use treering_base::catch_panics::catch_panics;

/// Number of blanks after each text: two for each part of a word, which has at most 100. A longer word
/// is one token.
const BLANKS: usize = 200;

struct Job {
    text: String,
    answer: Sender<Result<Vec<u32>, String>>,
}

/// Turns texts into tokens. The thread ends when this is dropped.
pub(super) struct Tokens {
    jobs: Sender<Job>,
}

impl Tokens {
    /// Starts the tokenizer that `json` describes. Texts are truncated to `tokens_max` tokens,
    /// including those that the tokenizer adds.
    pub(crate) fn start(json: String, tokens_max: usize) -> Result<Self, String> {
        let (jobs, asked) = channel::<Job>();
        let (ready, is_ready) = channel();
        let run = move || {
            let tokenizer = match Tokenizer::from_json(&json) {
                Ok(tokenizer) => tokenizer,
                Err(error) => return drop(ready.send(Err(error.to_string()))),
            };
            drop(json);
            drop(ready.send(Ok(())));
            for job in asked {
                let options = EncodeOptions {
                    max_chunk_len: Some(tokens_max),
                    overlap: 0,
                };
                let text = format!("{}{:BLANKS$}", job.text, "");
                let encoded = catch_panics(|| tokenizer.encode(text.as_str(), Some(options)));
                let tokens = match encoded {
                    Ok(Ok(encoded)) => Ok(encoded.token_ids().to_vec()),
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(_) => Err("the tokenizer panicked".to_owned()),
                };
                // Fails if the caller no longer waits.
                drop(job.answer.send(tokens));
            }
        };
        let thread = thread::Builder::new().name("tokenizer".to_owned());
        thread.spawn(run).map_err(|error| error.to_string())?;
        let started = is_ready.recv();
        started.unwrap_or_else(|_| Err(STOPPED.to_owned()))?;
        Ok(Self { jobs })
    }

    /// Returns the tokens of a text.
    pub(crate) fn of(&self, text: String) -> Result<Vec<u32>, String> {
        let (answer, answered) = channel();
        let asked = self.jobs.send(Job { text, answer });
        asked.map_err(|_| STOPPED.to_owned())?;
        answered.recv().unwrap_or_else(|_| Err(STOPPED.to_owned()))
    }
}

const STOPPED: &str = "the tokenizer has stopped";

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> Tokens {
        let package = "../../clients/python/src/treering/semantic/tokenizer.json";
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(package);
        Tokens::start(std::fs::read_to_string(path).unwrap(), 256).unwrap()
    }

    // Somebody searches for a hash. The tokenizer panicked, and nothing was embedded any more.
    #[test]
    fn long_words_are_tokenized() {
        let tokens = tokens();
        let first = |text: &str| tokens.of(text.to_owned()).unwrap();
        for length in [1, 2, 7, 40, 64, 99, 100, 101, 5_000] {
            for word in ["q", "0f3b", "ö", "汉"] {
                let word: String = word.chars().cycle().take(length).collect();
                for text in [word.clone(), format!("see {word}"), format!("{word}\n")] {
                    assert!(first(&text).len() > 2, "{text}");
                }
            }
        }
    }

    // The blanks must not change what a text means.
    #[test]
    fn blanks_have_no_tokens() {
        let tokens = tokens();
        let short = tokens.of("a b c".to_owned()).unwrap();
        assert_eq!(tokens.of("a b c   ".to_owned()).unwrap(), short);
        assert_eq!(short.len(), 5, "three words between a start and an end");
    }
}
