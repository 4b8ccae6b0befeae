//! A model in ONNX format, from files.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use rten::{Model, NodeId, RunOptions, ThreadPool, Value, ValueOrView};
use rten_tensor::{NdTensor, Tensor, prelude::*};
use serde::Deserialize;
use treering_meaning::{EmbedError, Embedder, TextRole};

use super::tokens::Tokens;

/// Number of texts that the model reads in one run. Larger batches need more memory and are not
/// faster.
const BATCH: usize = 16;
/// Tokens that a model reads when its files set no limit.
const TOKENS_DEFAULT: usize = 256;
/// Niceness of the thread that embeds passages, as in nice(2).
#[cfg(target_os = "linux")]
const NICE: i32 = 10;
/// Maximum number of tokens that a model reads. Passages are split into windows that have fewer.
const TOKENS_MAX: usize = 512;

/// Why a folder has no usable model.
#[derive(Debug, thiserror::Error)]
pub enum LocalModelError {
    /// A file is missing.
    #[error(
        "{} has no {file}: an embedder's folder has a model in ONNX format, model.onnx, and its \
         tokenizer.json",
        dir.display()
    )]
    Missing {
        /// The folder.
        dir: PathBuf,
        /// The file.
        file: &'static str,
    },
    /// A file cannot be read, or is not what its name says.
    #[error("{} cannot be used: {message}", file.display())]
    Unusable {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        message: String,
    },
}

/// A sentence-embedding model, run by this process: passages on one thread, queries on another.
///
/// Its folder has `model.onnx` and `tokenizer.json`, and may have the files of the
/// sentence-transformers library that say how to use it: `1_Pooling/config.json`,
/// `sentence_bert_config.json`, `config_sentence_transformers.json`. Without them, it reads 256
/// tokens and its vector is the mean over them.
pub struct LocalModel {
    name: String,
    model: Model,
    tokens: Tokens,
    inputs: Vec<(NodeId, Input)>,
    output: NodeId,
    pooling: Pooling,
    prompts: Prompts,
    /// Has low priority where the system supports that for threads: passages are many and not
    /// urgent.
    for_passages: Arc<ThreadPool>,
    /// A query does not wait for passages.
    for_queries: Arc<ThreadPool>,
}

#[derive(Clone, Copy, Debug)]
enum Input {
    Tokens,
    Mask,
    Types,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pooling {
    Mean,
    FirstToken,
}

/// The prefixes of texts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Prompts {
    query: String,
    #[serde(alias = "document")]
    passage: String,
}

impl fmt::Debug for LocalModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalModel").field(&self.name).finish()
    }
}

impl LocalModel {
    /// Reads a model from a folder.
    ///
    /// # Errors
    /// [`LocalModelError`].
    pub fn open(dir: &Path) -> Result<Self, LocalModelError> {
        let (model_bytes, model_path) = required(dir, "model.onnx")?;
        let (tokenizer_bytes, tokenizer_path) = required(dir, "tokenizer.json")?;
        let pooling: PoolingConfig = optional(dir, "1_Pooling/config.json")?;
        let reads: ReadsConfig = optional(dir, "sentence_bert_config.json")?;
        let used: UseConfig = optional(dir, "config_sentence_transformers.json")?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&model_bytes).update(&tokenizer_bytes);
        hasher.update(format!("{pooling:?}{reads:?}{used:?}").as_bytes());
        let folder = dir.file_name().unwrap_or(dir.as_os_str());
        let name = format!(
            "{}@{}",
            folder.to_string_lossy(),
            &hasher.finalize().to_hex()[..12]
        );
        let tokens_max = reads.max_seq_length.unwrap_or(TOKENS_DEFAULT);
        let tokenizer = String::from_utf8_lossy(&tokenizer_bytes).into_owned();
        let tokens = Tokens::start(tokenizer, tokens_max.clamp(8, TOKENS_MAX))
            .map_err(|error| unusable(&tokenizer_path, &error))?;
        let failed = |error: &dyn fmt::Display| unusable(&model_path, error);
        let model = Model::load(model_bytes).map_err(|error| failed(&error))?;
        let mut inputs = Vec::new();
        for id in model.input_ids() {
            let name = model.node_info(*id).and_then(|node| node.name());
            let input = match name {
                Some("input_ids") => Input::Tokens,
                Some("attention_mask") => Input::Mask,
                Some("token_type_ids") => Input::Types,
                other => {
                    let other = other.unwrap_or_default();
                    return Err(failed(&format!(
                        "it needs the input \"{other}\", which is not supported"
                    )));
                }
            };
            inputs.push((*id, input));
        }
        let output = model.output_ids().first().copied();
        let output = output.ok_or_else(|| failed(&"it has no output"))?;
        let this = Self {
            name,
            inputs,
            output,
            pooling: match pooling.pooling_mode_cls_token {
                true => Pooling::FirstToken,
                false => Pooling::Mean,
            },
            prompts: used.prompts,
            for_passages: Arc::new(ThreadPool::with_num_threads(1)),
            for_queries: Arc::new(ThreadPool::with_num_threads(1)),
            model,
            tokens,
        };
        this.for_passages.run(lower_priority);
        // A model that does not work should fail now, not in a search.
        let tried = this.embed(&["a text"], TextRole::Query);
        tried.map_err(|error| failed(&error))?;
        Ok(this)
    }

    /// Returns the vectors of texts of similar length.
    fn run(&self, texts: &[&[u32]], role: TextRole) -> Result<Vec<Vec<f32>>, EmbedError> {
        let length = texts.iter().map(|tokens| tokens.len()).max().unwrap_or(0);
        let shape = [texts.len(), length];
        let mut tokens = NdTensor::<i32, 2>::zeros(shape);
        let mut mask = NdTensor::<i32, 2>::zeros(shape);
        let types = NdTensor::<i32, 2>::zeros(shape);
        for (row, text) in texts.iter().enumerate() {
            for (at, token) in text.iter().enumerate() {
                tokens[[row, at]] = i32::try_from(*token).unwrap_or(0);
                mask[[row, at]] = 1;
            }
        }
        let inputs = self.inputs.iter().map(|(id, input)| {
            let value: ValueOrView = match input {
                Input::Tokens => tokens.view().into(),
                Input::Mask => mask.view().into(),
                Input::Types => types.view().into(),
            };
            (*id, value)
        });
        let thread = match role {
            TextRole::Passage => &self.for_passages,
            TextRole::Query => &self.for_queries,
        };
        let options = RunOptions::default().with_thread_pool(Some(Arc::clone(thread)));
        let ran = self
            .model
            .run_n(inputs.collect(), [self.output], Some(options));
        let [output] = ran.map_err(|error| cannot(&error))?;
        self.pooled(output, texts)
    }

    fn pooled(&self, output: Value, texts: &[&[u32]]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let output: Tensor<f32> = output.try_into().map_err(|error| cannot(&error))?;
        let shape = output.shape().to_vec();
        let pool = |row: usize, tokens: usize| match shape[..] {
            // Such a model does the pooling itself.
            [_, dimensions] => Ok((0..dimensions).map(|at| output[[row, at]]).collect()),
            [_, _, dimensions] => {
                let tokens = match self.pooling {
                    Pooling::Mean => tokens,
                    Pooling::FirstToken => 1,
                };
                // The sum has the direction of the mean, and the length of a vector does not
                // matter.
                let sum = |at| (0..tokens).map(|token| output[[row, token, at]]).sum();
                Ok((0..dimensions).map(sum).collect())
            }
            _ => Err(cannot(&format!(
                "the shape of its output, {shape:?}, is not supported"
            ))),
        };
        let rows = texts.iter().enumerate();
        rows.map(|(row, tokens)| pool(row, tokens.len())).collect()
    }
}

impl Embedder for LocalModel {
    fn model(&self) -> &str {
        &self.name
    }

    fn embed(&self, texts: &[&str], role: TextRole) -> Result<Vec<Vec<f32>>, EmbedError> {
        let prompt = match role {
            TextRole::Query => &self.prompts.query,
            TextRole::Passage => &self.prompts.passage,
        };
        let tokens = texts
            .iter()
            .map(|text| self.tokens.of(format!("{prompt}{text}")));
        let tokens = tokens.collect::<Result<Vec<_>, _>>();
        let tokens = tokens.map_err(|message| EmbedError::Refused { message })?;
        // Texts of similar length go together, because each is padded to the longest.
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|at| tokens[*at].len());
        let mut vectors = vec![Vec::new(); texts.len()];
        for batch in order.chunks(BATCH) {
            let batch_tokens: Vec<&[u32]> = batch.iter().map(|at| &tokens[*at][..]).collect();
            for (at, vector) in batch.iter().zip(self.run(&batch_tokens, role)?) {
                vectors[*at] = vector;
            }
        }
        Ok(vectors)
    }
}

/// Lowers the priority of the calling thread.
fn lower_priority() {
    // On Linux, this call sets the priority of the calling thread. Lowering it needs no privilege.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICE);
}

fn cannot(error: &dyn fmt::Display) -> EmbedError {
    EmbedError::Failed {
        message: error.to_string(),
    }
}

fn unusable(file: &Path, error: &dyn fmt::Display) -> LocalModelError {
    LocalModelError::Unusable {
        file: file.to_owned(),
        message: error.to_string(),
    }
}

fn required(dir: &Path, file: &'static str) -> Result<(Vec<u8>, PathBuf), LocalModelError> {
    let path = dir.join(file);
    match std::fs::read(&path) {
        Ok(bytes) => Ok((bytes, path)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let dir = dir.to_owned();
            Err(LocalModelError::Missing { dir, file })
        }
        Err(error) => Err(unusable(&path, &error)),
    }
}

fn optional<T: Default + for<'a> Deserialize<'a>>(
    dir: &Path,
    file: &str,
) -> Result<T, LocalModelError> {
    let path = dir.join(file);
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| unusable(&path, &error)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(unusable(&path, &error)),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PoolingConfig {
    pooling_mode_cls_token: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReadsConfig {
    max_seq_length: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct UseConfig {
    prompts: Prompts,
}

#[cfg(test)]
mod tests {
    use super::*;

    // The error must name the missing file, so that no server starts without search by meaning.
    #[test]
    fn folder_without_a_model_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let refused = LocalModel::open(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("has no model.onnx"), "{refused}");
        std::fs::write(dir.path().join("model.onnx"), "not a model").unwrap();
        let refused = LocalModel::open(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("has no tokenizer.json"), "{refused}");
        std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
        let refused = LocalModel::open(dir.path()).unwrap_err().to_string();
        assert!(
            refused.contains("tokenizer.json cannot be used"),
            "{refused}"
        );
    }
}
