//! Text generation with a trained model, in one process.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, ensure};
use stagecoach_api::job::{AdamWSpec, Precision, Recompute};
use stagecoach_data::Tokenizer;
use stagecoach_model::{CuSeqlens, ForwardContext, SourceConfig};
use stagecoach_pipeline::{Partition, Placement, Replica};
use tch::{Device, Kind, Tensor};

use crate::execute::{Stage, StageConfig};
use crate::state_dict::{InitialWeights, find_model};

/// The settings of text generation.
#[derive(Clone, Copy, Debug)]
pub struct GenerationConfig {
    /// The maximum number of tokens to generate; an end-of-sequence token ends the text earlier.
    pub max_new_tokens: usize,
    /// Divides the logits; 0 always takes the most likely token.
    pub temperature: f64,
    /// Sample from this many of the most likely tokens.
    pub top_k: usize,
    /// Seed of the random number generator.
    pub seed: u64,
    /// Whether text of the prompt that looks like a special token is that token.
    pub parse_special_tokens: bool,
}

/// A prompt and its continuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedText {
    /// The text.
    pub text: String,
    /// Special tokens that the prompt spells, but that the model reads as text.
    pub spelled: BTreeSet<String>,
}

impl Default for GenerationConfig {
    fn default() -> GenerationConfig {
        GenerationConfig { max_new_tokens: 120, temperature: 0.8, top_k: 40, seed: 0, parse_special_tokens: false }
    }
}

/// The number of parameters of the model at `path`; tied ones count once.
///
/// # Errors
/// If there is no model, or its architecture is not supported.
pub fn parameter_count(path: &Path) -> Result<u64> {
    let SourceConfig { config, .. } = SourceConfig::read(&find_model(Path::new(""), path)?)?;
    Ok(config.architecture(Device::Cpu).parameter_count())
}

/// Returns `prompt` and its continuation by the model at `path`: a Hugging Face model directory, a checkpoint's folder,
/// or a job's folder, whose newest checkpoint is used. A checkpoint's weights are verified by their hashes.
///
/// # Errors
/// If there is no model, it is damaged, or its architecture is not supported.
pub fn generate_text(path: &Path, prompt: &str, generation: GenerationConfig) -> Result<GeneratedText> {
    let folder = find_model(Path::new(""), path)?;
    let SourceConfig { config, .. } = SourceConfig::read(&folder)?;
    let context_length = config.max_position_embeddings();
    let tokenizer = folder.join("tokenizer.json");
    ensure!(tokenizer.exists(), "{} is missing: generating text needs the model's tokenizer", tokenizer.display());
    let load = if generation.parse_special_tokens { Tokenizer::load_parsing } else { Tokenizer::load };
    let tokenizer = load(&tokenizer)?;
    let spelled: BTreeSet<String> = tokenizer.special_as_text(prompt).map(str::to_owned).collect();
    let architecture = config.architecture(Device::Cpu);
    let (tokens, rows) = (tokenizer.vocab_size(), architecture.vocab_size());
    ensure!(tokens <= rows, "{}: the tokenizer's vocabulary has {tokens} tokens, the model's {rows}", folder.display());
    let stage = Stage::build(
        0,
        &StageConfig {
            architecture: architecture.as_ref(),
            placement: &Placement::linear(1),
            partition: &Partition { layers: vec![architecture.num_layers()] },
            seed: None,
            optimizer: AdamWSpec::default(),
            recompute: Recompute::None,
            precision: Precision::Float32,
            device: Device::Cpu,
            replica: Replica::ONLY,
        },
    );
    let weights = InitialWeights::open(&folder)?;
    weights.check(architecture.as_ref())?;
    weights.load(architecture.as_ref(), &stage, &mut |_| {})?;
    let special = tokenizer.special_tokens();
    let prompt = tokenizer.encode(prompt)?;
    let bos = tokenizer.bos_before(&prompt);
    let mut ids: Vec<i64> = bos.into_iter().chain(prompt).map(i64::from).collect();
    ensure!(!ids.is_empty(), "this tokenizer has no beginning-of-sequence token: give a --prompt");
    let mut random =
        blake3::Hasher::new_derive_key("stagecoach sampling v1").update(&generation.seed.to_le_bytes()).finalize_xof();
    for _ in 0..generation.max_new_tokens {
        let context = &ids[ids.len().saturating_sub(context_length)..];
        let mut bytes = [0; 8];
        random.fill(&mut bytes);
        let next =
            next_token(&stage, context, generation, (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64);
        if special.eos.iter().any(|&eos| i64::from(eos) == next) {
            break;
        }
        ids.push(next);
    }
    let text_ids: Vec<u32> = ids.iter().map(|&id| id as u32).filter(|id| Some(*id) != special.bos).collect();
    Ok(GeneratedText { text: tokenizer.decode(&text_ids)?, spelled })
}

/// Samples the token after `context` by inverting the cumulative distribution at `uniform`, in [0, 1).
fn next_token(stage: &Stage, context: &[i64], generation: GenerationConfig, uniform: f64) -> i64 {
    let input = Tensor::from_slice(context);
    let length = context.len() as i64;
    let cu_seqlens = CuSeqlens::new(&[0, length], Device::Cpu);
    let ctx = ForwardContext { length, first_position: 0, cu_seqlens, recompute: Recompute::None };
    let Some((chunk, head)) = stage.chunks.get(&0).and_then(|chunk| Some((chunk, chunk.head.as_ref()?))) else {
        return 0;
    };
    let hidden = chunk.hidden_states(&input, &ctx);
    let logits = head.logits(&hidden.narrow(0, length - 1, 1)).squeeze().to_kind(Kind::Double);
    if generation.temperature <= 0.0 {
        return logits.argmax(0, false).int64_value(&[]);
    }
    let k = (generation.top_k.max(1) as i64).min(logits.size()[0]);
    let (values, indices) = logits.topk(k, 0, true, true);
    let cumulative = (values / generation.temperature).softmax(0, Kind::Double).cumsum(0, Kind::Double);
    let index = cumulative.le(uniform).to_kind(Kind::Int64).sum(Kind::Int64).int64_value(&[]).min(k - 1);
    indices.int64_value(&[index])
}
