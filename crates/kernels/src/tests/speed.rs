//! Measures every kind of operation of a training step on a GPU, at the shapes of one microbatch of the benchmark model
//! with 1.2 billion parameters. `make gpu` prints and reports the time and the rate of each operation. The rate is the
//! smallest number of bytes that the operation can move, or its number of floating-point operations, per second. The
//! test asserts nothing.

use super::gpu::{GPU, begin, median_seconds, random};
use super::*;

const TOKENS: i64 = 8192;
const LENGTH: i64 = 2048;
const HIDDEN: i64 = 2048;
const INTERMEDIATE: i64 = 8192;
const VOCABULARY: i64 = 50_000;
const HEADS: Heads = Heads { heads: 16, kv_heads: 8, head_dim: 128 };
const ROUNDS: usize = 9;

fn zeros(shape: &[i64]) -> Tensor {
    Tensor::zeros(shape, (Kind::Float, GPU))
}

/// The smallest possible work of an operation.
enum Work {
    /// Bytes of its operands and results, each moved once.
    Bytes(i64),
    /// Floating-point operations.
    Flops(i64),
}

/// Prints the milliseconds of a call as a line of JSON.
fn time(what: &str, work: Work, call: impl Fn()) {
    let [seconds] = median_seconds(ROUNDS, [&call]);
    let mut line = serde_json::json!({ "what": what, "milliseconds": seconds * 1e3 });
    match work {
        Work::Bytes(bytes) => line["gigabytesPerSecond"] = (bytes as f64 / seconds / 1e9).into(),
        Work::Flops(flops) => line["teraflops"] = (flops as f64 / seconds / 1e12).into(),
    }
    println!("\n{line}");
}

#[test]
#[ignore = "needs a GPU: see `make gpu`"]
fn time_of_each_operation() {
    begin();
    tch::no_grad(|| {
        ceilings();
        elementwise();
        attention_and_products();
        head_and_update();
    });
}

/// Measures the rates that the GPU reaches with a large copy and a large product.
fn ceilings() {
    let (from, to) = (random(&[1 << 29]), random(&[1 << 29]));
    time("copy of 1 GiB", Work::Bytes(2 << 30), || to.shallow_clone().copy_(&from));
    let (a, b) = (random(&[8192, 8192]), random(&[8192, 8192]));
    time("product of 8192 x 8192 x 8192", Work::Flops(2 << 39), || drop(a.matmul(&b)));
}

fn elementwise() {
    let [x, dy, residual] = [0; 3].map(|_| random(&[TOKENS, HIDDEN]));
    let (weight, matrix) = (zeros(&[HIDDEN]) + 1.0, 2 * TOKENS * HIDDEN);
    let (_, rstd) = rms_norm(&x, &weight, 1e-5);
    time("RMSNorm", Work::Bytes(2 * matrix), || drop(rms_norm(&x, &weight, 1e-5)));
    let backward = || drop(rms_norm_backward(&dy, &x, &weight, &rstd, Some(&residual)));
    time("RMSNorm, backward", Work::Bytes(5 * matrix), backward);
    let gate_up = random(&[TOKENS, 2 * INTERMEDIATE]);
    let (dout, wide) = (random(&[TOKENS, INTERMEDIATE]), 2 * TOKENS * INTERMEDIATE);
    time("SwiGLU", Work::Bytes(3 * wide), || drop(swiglu(&gate_up)));
    let backward = || drop(swiglu_backward(&dout, gate_up.shallow_clone()));
    time("SwiGLU, backward", Work::Bytes(6 * wide), backward);
    let columns = HEADS.heads + 2 * HEADS.kv_heads;
    let qkv = random(&[TOKENS, columns * HEADS.head_dim]);
    let [cos, sin] = [0; 2].map(|_| zeros(&[LENGTH, HEADS.head_dim / 2]));
    let rotation = Rotation { cos: &cos, sin: &sin, length: LENGTH };
    let rotated = 2 * TOKENS * (HEADS.heads + HEADS.kv_heads) * HEADS.head_dim;
    time("rotary", Work::Bytes(2 * rotated), || rotary(&qkv, rotation, HEADS));
    let gradients =
        [HEADS.heads, HEADS.kv_heads, HEADS.kv_heads].map(|heads| random(&[TOKENS, heads * HEADS.head_dim]));
    let back = || drop(crate::cuda::rotate_back(crate::cuda::loaded(0), gradients.each_ref(), rotation, HEADS));
    time("rotary, backward", Work::Bytes(4 * TOKENS * columns * HEADS.head_dim), back);
    time("column sums", Work::Bytes(matrix), || drop(column_sums(&x)));
    let ids: Vec<i64> = (0..TOKENS).map(|token| token * token % 7919 * 31 % VOCABULARY).collect();
    let ids = Tensor::from_slice(&ids).to_device(GPU);
    let sum = zeros(&[VOCABULARY, HIDDEN]);
    let bytes = matrix + 8 * TOKENS * HIDDEN;
    time("embedding, backward", Work::Bytes(bytes), || accumulate_embedding(&sum, &ids, &dy));
    let few = Tensor::from_slice(&(0..TOKENS).map(|token| token * token % 97).collect::<Vec<_>>()).to_device(GPU);
    time("embedding of 97 tokens, backward", Work::Bytes(matrix), || accumulate_embedding(&sum, &few, &dy));
    let host = Tensor::from_slice(&vec![0i64; TOKENS as usize]);
    time("upload of token ids", Work::Bytes(8 * TOKENS), || drop(upload(&host, GPU)));
}

fn attention_and_products() {
    let bounds: Vec<i64> = (0..=TOKENS / LENGTH).map(|sequence| sequence * LENGTH).collect();
    let bounds = CuSeqlens::new(&bounds, GPU);
    let sequences = VarlenSequences { cu_seqlens: &bounds, max_length: LENGTH };
    let qkv = random(&[TOKENS, (HEADS.heads + 2 * HEADS.kv_heads) * HEADS.head_dim]);
    let dout = random(&[TOKENS, HEADS.heads * HEADS.head_dim]);
    let (out, lse) = attention(&qkv, sequences, HEADS);
    // half of the FLOPs of two products, because attention is causal
    let flops = 2 * TOKENS * LENGTH * HEADS.heads * HEADS.head_dim;
    time("attention", Work::Flops(flops), || drop(attention(&qkv, sequences, HEADS)));
    let saved = (&out, &lse);
    let backward = || drop(ffi::flash_attention_backward(&dout, &qkv, saved, sequences, HEADS, true));
    time("attention, backward", Work::Flops(5 * flops / 2), backward);
    for (inputs, outputs) in [(HIDDEN, 4096), (HIDDEN, HIDDEN), (HIDDEN, 2 * INTERMEDIATE), (INTERMEDIATE, HIDDEN)] {
        let (x, dy, weight) = (random(&[TOKENS, inputs]), random(&[TOKENS, outputs]), random(&[outputs, inputs]));
        let (accumulator, flops) = (zeros(&[outputs, inputs]), 2 * TOKENS * inputs * outputs);
        let named = |what: &str| format!("{what} of {inputs} to {outputs}");
        time(&named("product"), Work::Flops(flops), || drop(linear(&x, &weight, None)));
        time(&named("input's gradient"), Work::Flops(flops), || drop(linear_backward(&dy, &weight)));
        time(&named("weight's gradient"), Work::Flops(flops), || accumulate_linear(&accumulator, &dy, &x));
    }
}

fn head_and_update() {
    let weight = random(&[VOCABULARY, HIDDEN]);
    let accumulator = zeros(&[VOCABULARY, HIDDEN]);
    for tokens in [1024, 4096, TOKENS] {
        let x = random(&[tokens, HIDDEN]);
        let (flops, logit_count) = (2 * tokens * HIDDEN * VOCABULARY, tokens * VOCABULARY);
        let targets = Tensor::from_slice(&(0..tokens).collect::<Vec<_>>()).to_device(GPU);
        let logits = zeros(&[tokens, VOCABULARY]);
        let named = |what: &str| format!("{what} of {tokens} tokens");
        time(&named("logits"), Work::Flops(flops), || linear_to_float(&x, &weight, &logits));
        let loss = || drop(cross_entropy_with_gradient(logits.shallow_clone(), &targets, 1.0, Kind::BFloat16));
        time(&named("cross-entropy and gradient"), Work::Bytes(6 * logit_count), loss);
        let (_, dlogits) = cross_entropy_with_gradient(logits.shallow_clone(), &targets, 1.0, Kind::BFloat16);
        time(&named("head's input gradient"), Work::Flops(flops), || drop(linear_backward(&dlogits, &weight)));
        time(&named("head's weight gradient"), Work::Flops(flops), || accumulate_linear(&accumulator, &dlogits, &x));
    }
    drop((weight, accumulator));
    let lists: Vec<[Tensor; 4]> = (0..16).map(|_| [0; 4].map(|_| zeros(&[16 * 1024 * 1024]))).collect();
    let compute: Vec<Tensor> = lists.iter().map(|list| list[0].to_kind(Kind::BFloat16)).collect();
    let parameters: Vec<AdamWParameter> = (lists.iter().zip(&compute))
        .map(|([value, gradient, exp_avg, exp_avg_sq], compute)| AdamWParameter {
            value,
            gradient,
            exp_avg,
            exp_avg_sq,
            compute: Some(compute),
            weight_decay: 0.1,
        })
        .collect();
    let options = AdamWOptions { lr: 1e-2, beta1: 0.9, beta2: 0.95, eps: 1e-8, step: 3.0, clip: 0.5 };
    let count = 16 * 16 * 1024 * 1024;
    time("AdamW of 268 million", Work::Bytes(30 * count), || adamw(&parameters, options, GPU));
    let gradients: Vec<&Tensor> = lists.iter().map(|list| &list[1]).collect();
    time("squared norms of 268 million", Work::Bytes(4 * count), || drop(squared_norms(&gradients, GPU)));
}
