//! The tokenizer of a local model, on its own thread, because it cannot be shared between threads.

use std::{
    sync::mpsc::{Sender, channel},
    thread,
};

use rten_text::{Tokenizer, tokenizer::EncodeOptions};

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
                let encoded = tokenizer.encode(job.text.as_str(), Some(options));
                let tokens = encoded.map(|encoded| encoded.token_ids().to_vec());
                // Fails if the caller no longer waits.
                drop(job.answer.send(tokens.map_err(|error| error.to_string())));
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
