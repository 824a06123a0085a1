//! Text from a trained model, on one process.

use std::path::Path;

use anyhow::{Result, ensure};
use stagecoach_api::job::AdamWSpec;
use stagecoach_data::Tokenizer;
use stagecoach_pipeline::{Partition, Placement};
use tch::{Device, Kind, Tensor};

use crate::execute::{Stage, StageConfig};
use crate::model::{Architecture, Llama, LlamaConfig};
use crate::state_dict::{InitialWeights, find_model};

/// How the next token is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Tokens to add at most; an end-of-text token ends earlier.
    pub max_tokens: usize,
    /// Divides the logits; 0 always takes the likeliest.
    pub temperature: f64,
    /// Only this many of the likeliest tokens are drawn from.
    pub top_k: usize,
    /// Keys the draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { max_tokens: 120, temperature: 0.8, top_k: 40, seed: 0 }
    }
}

/// `prompt` and what the model at `path` makes of it: a Hugging Face model directory, a checkpoint's folder, or a job's,
/// whose newest checkpoint it is then. A checkpoint's weights are verified by their hashes.
///
/// # Errors
/// If there is no model there, it is damaged, or it is none that this trainer computes.
pub fn sample(path: &Path, prompt: &str, sampling: Sampling) -> Result<String> {
    let folder = find_model(Path::new(""), path)?;
    let config = LlamaConfig::from_hugging_face(&folder)?;
    let longest = config.max_position_embeddings;
    let tokenizer = folder.join("tokenizer.json");
    ensure!(tokenizer.exists(), "{} is missing: text needs the model's tokenizer", tokenizer.display());
    let tokenizer = Tokenizer::load(&tokenizer)?;
    let (words, rows) = (tokenizer.vocab_size(), config.vocab_size);
    ensure!(words <= rows, "{}: the tokenizer has {words} words, the model {rows}", folder.display());
    let architecture = Llama::new(config, Device::Cpu);
    let stage = Stage::build(
        0,
        &StageConfig {
            architecture: &architecture,
            placement: &Placement::linear(1),
            partition: &Partition { layers: vec![architecture.num_layers()] },
            seed: 0,
            optimizer: AdamWSpec::default(),
            recompute: false,
            device: Device::Cpu,
        },
    );
    InitialWeights::open(&folder)?.load(&architecture, &stage)?;
    let mut ids: Vec<i64> = tokenizer.bos_token_id().into_iter().map(i64::from).collect();
    ids.extend(tokenizer.encode(prompt)?.into_iter().map(i64::from));
    ensure!(!ids.is_empty(), "this tokenizer has no token that begins a text: give a --prompt");
    let mut draws =
        blake3::Hasher::new_derive_key("stagecoach sampling v1").update(&sampling.seed.to_le_bytes()).finalize_xof();
    for _ in 0..sampling.max_tokens {
        let context = &ids[ids.len().saturating_sub(longest)..];
        let mut draw = [0; 8];
        draws.fill(&mut draw);
        let next = next_token(&stage, context, sampling, (u64::from_le_bytes(draw) >> 11) as f64 / (1u64 << 53) as f64);
        if tokenizer.eos_token_id().is_some_and(|eos| i64::from(eos) == next) {
            break;
        }
        ids.push(next);
    }
    let text_ids: Vec<u32> =
        ids.iter().map(|&id| id as u32).filter(|id| Some(*id) != tokenizer.bos_token_id()).collect();
    Ok(tokenizer.decode(&text_ids)?)
}

/// The token after `context`; `draw` is uniform in [0, 1).
fn next_token(stage: &Stage, context: &[i64], sampling: Sampling, draw: f64) -> i64 {
    let input = Tensor::from_slice(context).unsqueeze(0);
    let Some((chunk, head)) = stage.chunks.get(&0).and_then(|chunk| Some((chunk, chunk.head.as_ref()?))) else {
        return 0;
    };
    let hidden = chunk.hidden_states(input, None, &stage.parameters, &stage.gradient_sink);
    let logits = head.logits(&hidden.select(1, -1), &stage.parameters).squeeze().to_kind(Kind::Double);
    if sampling.temperature <= 0.0 {
        return logits.argmax(0, false).int64_value(&[]);
    }
    let k = (sampling.top_k.max(1) as i64).min(logits.size()[0]);
    let (values, indices) = logits.topk(k, 0, true, true);
    let below = (values / sampling.temperature).softmax(0, Kind::Double).cumsum(0, Kind::Double);
    let at = below.le(draw).to_kind(Kind::Int64).sum(Kind::Int64).int64_value(&[]).min(k - 1);
    indices.int64_value(&[at])
}
