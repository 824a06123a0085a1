//! Text generation with a trained model, in one process.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use jiff::civil::Date;
use serde_json::Value;
use stagecoach_api::job::{AdamWSpec, Precision, Recompute};
use stagecoach_chat::{Chat, Conversation};
use stagecoach_data::{Tokenizer, read_chat};
use stagecoach_model::{CuSeqlens, ForwardContext, SourceConfig};
use tch::{Device, Tensor};

use crate::execute::Stage;
use crate::state_dict::{InitialWeights, MergedWeights, find_model};

mod sampling;
mod stop;

pub use sampling::Sampling;
pub use stop::OnText;
use stop::TextOutput;

/// The settings of text generation.
#[derive(Clone, Debug)]
pub struct GenerationConfig {
    /// The maximum number of tokens to generate; an end-of-sequence token ends the text earlier.
    pub max_new_tokens: usize,
    /// The settings that choose each token.
    pub sampling: Sampling,
    /// The stop strings. The continuation ends before the first stop string.
    pub stop: Vec<String>,
    /// The seed of the random number generator. A prompt's continuation does not depend on earlier prompts.
    pub seed: u64,
}

impl Default for GenerationConfig {
    fn default() -> GenerationConfig {
        GenerationConfig { max_new_tokens: 120, sampling: Sampling::default(), stop: Vec::new(), seed: 0 }
    }
}

/// The continuation of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// The text, without the prompt.
    pub text: String,
    /// The reason for the end of the text.
    pub finish_reason: FinishReason,
}

/// The reason for the end of a continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The text ended at an end-of-sequence token or a stop string.
    Stop,
    /// The text has the maximum number of tokens.
    Length,
}

impl FinishReason {
    /// Returns the name of the reason in records.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        }
    }
}

/// A trained model and its tokenizer, in this process on the CPU.
pub struct TextGenerator {
    stage: Stage,
    tokenizer: Tokenizer,
    /// The maximum number of tokens that the model reads.
    context_length: usize,
}

/// The chat template of a model, which converts conversations to token ids.
pub struct ChatPrompts(Chat);

/// Returns the number of parameters of the model at `path`. Tied parameters count once.
///
/// # Errors
/// If there is no model, or its architecture is not supported.
pub fn parameter_count(path: &Path) -> Result<u64> {
    let SourceConfig { config, .. } = SourceConfig::read(&find_model(Path::new(""), path)?)?;
    Ok(config.architecture(Device::Cpu).parameter_count())
}

impl TextGenerator {
    /// Loads the model at `path`: a Hugging Face model directory, a checkpoint's folder, or a job's folder, whose
    /// newest checkpoint is used. The function verifies a checkpoint's weights by their hashes. If a checkpoint has
    /// only the trained weights, the function reads the frozen weights from the model directory `base`, or otherwise
    /// from the directory that the job recorded. With `parse_special_tokens`, text in a prompt that spells a special
    /// token becomes that token.
    ///
    /// # Errors
    /// If there is no model, the model is damaged, or its architecture is not supported.
    pub fn load(path: &Path, base: Option<&Path>, parse_special_tokens: bool) -> Result<TextGenerator> {
        let folder = find_model(Path::new(""), path)?;
        let SourceConfig { config, .. } = SourceConfig::read(&folder)?;
        let context_length = config.max_position_embeddings();
        let tokenizer = folder.join("tokenizer.json");
        ensure!(tokenizer.exists(), "{} is missing: generating text needs the model's tokenizer", tokenizer.display());
        let load = if parse_special_tokens { Tokenizer::load_parsing } else { Tokenizer::load };
        let tokenizer = load(&tokenizer)?;
        let architecture = config.architecture(Device::Cpu);
        let (tokens, rows) = (tokenizer.vocab_size(), architecture.vocab_size());
        ensure!(
            tokens <= rows,
            "{}: the tokenizer has {tokens} tokens, but the model's embedding has only {rows} rows: use the tokenizer \
             of this model",
            folder.display()
        );
        let stage = Stage::of_model(architecture.as_ref(), AdamWSpec::default(), Precision::Float32);
        match MergedWeights::of_checkpoint(&folder, base)? {
            Some(weights) => weights.load(&stage)?,
            None => {
                let weights = InitialWeights::open(&folder)?;
                weights.check(architecture.as_ref())?;
                weights.load(architecture.as_ref(), &stage, &mut |_| {})?;
            }
        }
        Ok(TextGenerator { stage, tokenizer, context_length })
    }

    /// Returns the maximum number of tokens that the model reads.
    pub fn context_length(&self) -> usize {
        self.context_length
    }

    /// Returns the special tokens whose names are in `prompt`, but which the tokenizer encodes as ordinary text.
    pub fn spelled(&self, prompt: &str) -> BTreeSet<String> {
        self.tokenizer.special_as_text(prompt).map(str::to_owned).collect()
    }

    /// Returns the ids of a prompt, with the begin-of-text token if the tokenizer has one.
    ///
    /// # Errors
    /// If the prompt has no tokens, or the tokenizer fails.
    pub fn prompt_ids(&self, prompt: &str) -> Result<Vec<u32>> {
        let ids = self.tokenizer.encode(prompt)?;
        let bos = self.tokenizer.bos_before(&ids);
        let ids: Vec<u32> = bos.into_iter().chain(ids).collect();
        ensure!(!ids.is_empty(), "this tokenizer has no beginning-of-sequence token: give a --prompt");
        Ok(ids)
    }

    /// Returns the model's chat template. `date` is the date for templates that write a date.
    ///
    /// # Errors
    /// If the template can't be read or compiled.
    pub fn chat_prompts(&self, date: Date) -> Result<ChatPrompts> {
        let chat = read_chat(&self.tokenizer, Some(date))?;
        let chat = chat.ok_or_else(|| {
            let tokenizer = self.tokenizer.path().display();
            anyhow!(
                "the model has no chat template: expected chat_template.jinja, or chat_template in tokenizer_config.json, \
                 beside {tokenizer}"
            )
        })?;
        Ok(ChatPrompts(chat))
    }

    /// Returns the token ids of a conversation, up to the point at which the assistant's next message begins. `record`
    /// is `{messages: [{role, content}]}`, as in a data set.
    ///
    /// # Errors
    /// If the record is not a conversation, the template refuses it or writes no text, or the conversation leaves no
    /// room for an answer in the model's context.
    pub fn conversation_ids(&self, prompts: &ChatPrompts, record: &Value) -> Result<Vec<u32>> {
        let ids = prompts.0.prompt(&Conversation::chat(record)?)?;
        let (tokens, most) = (ids.len(), self.context_length);
        ensure!(tokens > 0, "the chat template writes no text for this conversation: the model needs a prompt");
        ensure!(
            tokens < most,
            "the conversation has {tokens} tokens, but the conversation and its answer together may have at most \
             {most}: shorten the conversation"
        );
        Ok(ids)
    }

    /// Continues `prompt`, a list of token ids. `on_text` receives each new part of the continuation's text.
    ///
    /// # Errors
    /// If the tokenizer can't decode the text, or `on_text` fails.
    pub fn continue_from(
        &self,
        prompt: &[u32],
        config: &GenerationConfig,
        on_text: &mut OnText,
    ) -> Result<Continuation> {
        let mut random =
            blake3::Hasher::new_derive_key("stagecoach sampling v1").update(&config.seed.to_le_bytes()).finalize_xof();
        let prompt_text = self.decode(prompt)?;
        let (mut ids, mut text) = (prompt.to_vec(), String::new());
        let mut output = TextOutput::new(&config.stop);
        for _ in 0..config.max_new_tokens {
            let mut bytes = [0; 8];
            random.fill(&mut bytes);
            let uniform = (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64;
            let next = self.next_token(&ids, config.sampling, uniform);
            if self.tokenizer.special_tokens().eos.contains(&next) {
                output.finish(&text, on_text)?;
                return Ok(Continuation { text, finish_reason: FinishReason::Stop });
            }
            ids.push(next);
            // the ids are decoded with the prompt, because a tokenizer may omit the space before the first word of a
            // text
            text = match self.decode(&ids)?.strip_prefix(&prompt_text) {
                Some(text) => text.to_owned(),
                None => self.decode(&ids[prompt.len()..])?,
            };
            if let Some(end) = output.grow(&text, on_text)? {
                text.truncate(end);
                return Ok(Continuation { text, finish_reason: FinishReason::Stop });
            }
        }
        output.finish(&text, on_text)?;
        Ok(Continuation { text, finish_reason: FinishReason::Length })
    }

    /// Returns the text of `ids`, without special tokens.
    ///
    /// # Errors
    /// If the tokenizer can't decode the ids.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        Ok(self.tokenizer.decode(ids)?)
    }

    /// Samples the token after `ids`. `uniform` is the random number, in [0, 1).
    fn next_token(&self, ids: &[u32], sampling: Sampling, uniform: f64) -> u32 {
        let context: Vec<i64> =
            ids[ids.len().saturating_sub(self.context_length)..].iter().copied().map(i64::from).collect();
        let length = context.len() as i64;
        let cu_seqlens = CuSeqlens::new(&[0, length], Device::Cpu);
        let ctx = ForwardContext { length, first_position: 0, cu_seqlens, recompute: Recompute::None };
        let chunk = self.stage.chunks.get(&0);
        let Some((chunk, head)) = chunk.and_then(|chunk| Some((chunk, chunk.head.as_ref()?))) else {
            return 0;
        };
        let hidden = chunk.hidden_states(&Tensor::from_slice(&context), &ctx);
        let logits = head.logits(&hidden.narrow(0, length - 1, 1)).squeeze();
        sampling.token(&logits, uniform) as u32
    }
}
