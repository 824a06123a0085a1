//! Tests of memory. The last stage's peak does not grow with vocabulary x microbatch, because the stage never holds
//! full logits. Between its forward pass and the two parts of its backward pass, a layer holds the memory that the cost
//! model predicts.

use std::process::Command;

use stagecoach_api::job::{AdamWSpec, ModelType, Precision, Recompute};
use stagecoach_engine::execute::{LossInputs, Stage, StageConfig};
use stagecoach_model::{
    CuSeqlens, ForwardContext, LlamaConfig, MicrobatchCost, ModelConfig, ParameterCopies, WeightGradient,
};
use stagecoach_pipeline::{Partition, Placement, Replica};
use tch::{Device, Kind, Tensor};

const HIDDEN: usize = 32;
const LENGTH: i64 = 128;
/// The environment variable with which the parent process selects the measurement of the child process.
const MEASURE: &str = "STAGECOACH_TEST_MEASURE";

#[test]
fn the_last_stages_peak_does_not_grow_with_vocabulary_times_tokens() {
    if let Ok(what) = std::env::var(MEASURE) {
        let (vocab_size, tokens) = what.split_once('x').unwrap();
        return measure(vocab_size.parse().unwrap(), tokens.parse().unwrap());
    }
    let (vocab_size, tokens) = (8_000, [1_024, 4_096, 16_384]);
    let peaks = tokens.map(|tokens| peak(vocab_size, tokens));
    let twice = [tokens[0], tokens[2]].map(|tokens| peak(2 * vocab_size, tokens));
    let per_token = |few: u64, many: u64| many.saturating_sub(few) as f64 / (tokens[2] - tokens[0]) as f64;
    let (growth, growth_twice) = (per_token(peaks[0], peaks[2]), per_token(twice[0], twice[1]));
    let logits = (vocab_size * 4) as f64;
    println!("last stage, hidden {HIDDEN}, peak in MiB by tokens of the microbatch:");
    println!("  vocabulary {vocab_size}: {tokens:?} {:?}, {growth:.0} bytes a token", peaks.map(|b| b >> 20));
    println!("  vocabulary {}: {:?}, {growth_twice:.0} bytes a token", 2 * vocab_size, twice.map(|b| b >> 20));
    println!("  one copy of the logits would take {logits:.0} bytes a token");

    // At the peak, in the norm's backward pass, a token costs its input, its output, their gradients, a few temporaries
    // and its target. Each of these, except the target, has the width of the model and is in fp32. A block of logits
    // has the same size for any number of tokens.
    let hidden_states = (8 * HIDDEN * 4 + 16) as f64;
    assert!(hidden_states < logits / 8.0, "the bound would not detect full logits");
    assert!(growth < hidden_states, "{growth} bytes a token, at most {hidden_states} expected");
    assert!(growth_twice < hidden_states, "{growth_twice} bytes a token at twice the vocabulary");
}

/// Returns the peak resident bytes of a process that runs the last stage over one microbatch.
fn peak(vocab_size: usize, tokens: usize) -> u64 {
    let test = "memory::the_last_stages_peak_does_not_grow_with_vocabulary_times_tokens";
    let text = measured_by_child(test, &format!("{vocab_size}x{tokens}"));
    resident_bytes(&text, "VmHWM:")
}

/// Returns the output of a process that runs only `test`, to measure `what`.
fn measured_by_child(test: &str, what: &str) -> String {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(MEASURE, what)
        // glibc then returns freed memory at once, so that the peak counts tensors and not holes in the heap
        .env("MALLOC_MMAP_THRESHOLD_", "65536")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{text}{}", String::from_utf8_lossy(&child.stderr));
    text.into_owned()
}

/// Reads the bytes in a line of `/proc/self/status`, such as `VmRSS:   1024 kB`.
fn resident_bytes(status: &str, name: &str) -> u64 {
    let kib = status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix("kB"));
    kib.unwrap().trim().parse::<u64>().unwrap() << 10
}

/// Runs forward, loss and backward of the last stage in the child. Then prints the kernel's value of the peak.
fn measure(vocab_size: usize, tokens: i64) {
    tch::set_num_threads(1);
    let config = LlamaConfig {
        hidden_size: HIDDEN,
        num_hidden_layers: 0,
        num_attention_heads: 1,
        num_key_value_heads: 1,
        head_dim: HIDDEN,
        intermediate_size: HIDDEN,
        vocab_size,
        ..layer_config()
    };
    let stage = second_stage(config, vec![0, 0]);
    let chunk = &stage.chunks[&1];
    let hidden = Tensor::ones([tokens, HIDDEN as i64], (Kind::Float, Device::Cpu));
    let targets = Tensor::arange(tokens, (Kind::Int64, Device::Cpu)).remainder(vocab_size as i64);
    let ctx = context(&[0, tokens]);
    let loss_inputs = LossInputs { targets: &targets, scale: 1.0 / tokens as f64 };
    let (_, saved) = chunk.forward(hidden, ctx, Some(loss_inputs));
    let gradient = chunk.backward(saved, None, &mut WeightGradient::accumulate).unwrap();
    assert_eq!(gradient.numel(), tokens as usize * HIDDEN);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    // the line feed ends the unfinished line of the test harness
    println!("\n{}", status.lines().find(|line| line.starts_with("VmHWM:")).unwrap());
}

/// Returns the second stage of a model, with these numbers of layers on the stages.
fn second_stage(config: LlamaConfig, layers: Vec<usize>) -> Stage {
    let architecture = config.architecture(Device::Cpu);
    let stage_config = StageConfig {
        architecture: architecture.as_ref(),
        placement: &Placement::linear(layers.len()),
        partition: &Partition { layers },
        seed: Some(1),
        optimizer: AdamWSpec::default(),
        recompute: Recompute::None,
        precision: Precision::Float32,
        device: Device::Cpu,
        replica: Replica::ONLY,
    };
    Stage::build(1, &stage_config)
}

/// The number of tokens in a microbatch, and the number of microbatches that the layer holds at the same time.
const TOKENS: usize = 4096;
const HELD: usize = 6;

fn layer_config() -> LlamaConfig {
    LlamaConfig {
        model_type: ModelType::Llama,
        hidden_size: 64,
        num_hidden_layers: 1,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 16,
        intermediate_size: 160,
        vocab_size: 100,
        max_position_embeddings: LENGTH as usize,
        rope_theta: 10_000.0,
        rope_scaling: None,
        rms_norm_eps: 1e-5,
        tie_word_embeddings: false,
        initializer_range: 0.02,
    }
}

/// From the forward (F) to the gradient of the input (I), a layer holds its activations. From I to the gradients of the
/// weights (W), the layer holds only the inputs of these gradients.
#[test]
fn a_layer_holds_what_the_cost_model_says_between_f_and_i_and_between_i_and_w() {
    const TEST: &str = "memory::a_layer_holds_what_the_cost_model_says_between_f_and_i_and_between_i_and_w";
    if std::env::var(MEASURE).is_ok() {
        return measure_layer();
    }
    let text = measured_by_child(TEST, "layer");
    let [before, after_f, after_i] = ["before:", "F:", "I:"].map(|name| resident_bytes(&text, name));
    let each = |bytes: u64| (bytes - before) as f64 / HELD as f64;
    let microbatch = MicrobatchCost {
        tokens: TOKENS,
        length: LENGTH as usize,
        precision: Precision::Float32,
        on_gpu: false,
        recompute: Recompute::None,
        copies: ParameterCopies::default(),
    };
    let model = layer_config().architecture(Device::Cpu).cost(microbatch);
    let layer = &model.layers[0];
    let (activations, inputs) = (layer.activation_bytes as f64, layer.weight_gradient_bytes as f64);
    println!(
        "bytes a microbatch: {} after F, expected {activations}; {} after I, expected {inputs}",
        each(after_f),
        each(after_i)
    );
    assert!((each(after_f) / activations - 1.0).abs() < 0.05);
    assert!((each(after_i) / inputs - 1.0).abs() < 0.05);
}

/// Returns a context for rows of [`LENGTH`] tokens, with these sequence bounds.
fn context(bounds: &[i64]) -> ForwardContext {
    let cu_seqlens = CuSeqlens::new(bounds, Device::Cpu);
    ForwardContext { length: LENGTH, first_position: 0, cu_seqlens, recompute: Recompute::None }
}

/// Measures, in the child, a chunk with one layer and nothing else.
fn measure_layer() {
    tch::set_num_threads(1);
    let stage = second_stage(layer_config(), vec![0, 1, 0]);
    let chunk = &stage.chunks[&1];
    let bounds: Vec<i64> = (0..=TOKENS as i64 / LENGTH).map(|row| row * LENGTH).collect();
    let hidden = || Tensor::ones([TOKENS as i64, 64], (Kind::Float, Device::Cpu));
    let forward = || chunk.forward(hidden(), context(&bounds), None).1;
    let backward = |saved| {
        let mut gradients = Vec::new();
        let _ = chunk.backward(saved, Some(hidden()), &mut |gradient| gradients.push(gradient));
        gradients
    };
    let report = |name: &str| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        println!("\n{name}: {} kB", resident_bytes(&status, "VmRSS:") >> 10);
    };
    // the first run allocates the memory that the kernels keep
    backward(forward()).into_iter().for_each(WeightGradient::accumulate);
    report("before");
    let saved: Vec<_> = (0..HELD).map(|_| forward()).collect();
    report("F");
    let gradients: Vec<_> = saved.into_iter().map(backward).collect();
    report("I");
    gradients.into_iter().flatten().for_each(WeightGradient::accumulate);
}
