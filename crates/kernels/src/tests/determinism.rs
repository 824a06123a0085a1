//! Measures the cost of sums in a fixed order on a GPU, compared with the same sums in any order. `make gpu` prints and
//! reports the result. The tests assert nothing.

use super::gpu::{GPU, begin, median_seconds, random};
use super::*;

/// The number of tokens of each call.
const TOKENS: i64 = 16_384;
const VOCABULARY: i64 = 50_000;
const ROUNDS: usize = 15;

/// Prints the milliseconds of both calls as a line of JSON.
fn compare(what: &str, calls: [&dyn Fn(); 2]) {
    let [deterministic, other] = median_seconds(ROUNDS, calls).map(|seconds| seconds * 1e3);
    let time = serde_json::json!({ "what": what, "milliseconds": deterministic, "otherMilliseconds": other,
                                   "ratio": deterministic / other });
    println!("\n{time}");
}

#[test]
#[ignore = "needs a GPU: see `make gpu`"]
fn time_of_flash_attention_s_backward() {
    begin();
    for length in [512, 2048] {
        let heads = Heads { heads: 16, kv_heads: 8, head_dim: 128 };
        let bounds: Vec<i64> = (0..=TOKENS / length).map(|sequence| sequence * length).collect();
        let bounds = CuSeqlens::new(&bounds, GPU);
        let sequences = VarlenSequences { cu_seqlens: &bounds, max_length: length };
        let qkv = random(&[TOKENS, 32 * 128]);
        let dout = random(&[TOKENS, 16 * 128]);
        let (out, lse) = ffi::flash_attention(&qkv, sequences, heads);
        let backward = |is_deterministic| {
            drop(ffi::flash_attention_backward(&dout, &qkv, (&out, &lse), sequences, heads, is_deterministic));
        };
        let what = format!("flash attention, backward, sequences of {length}");
        compare(&what, [&|| backward(true), &|| backward(false)]);
    }
}

#[test]
#[ignore = "needs a GPU: see `make gpu`"]
fn time_of_the_embedding_s_gradient() {
    begin();
    let ids: Vec<i64> = (0..TOKENS).map(|token| token * token % 7919 * 31 % VOCABULARY).collect();
    let ids = Tensor::from_slice(&ids).to_device(GPU);
    let dy = random(&[TOKENS, 2048]);
    let sum = Tensor::zeros([VOCABULARY, 2048], (Kind::Float, GPU));
    let ours = || accumulate_embedding(&sum, &ids, &dy);
    let libtorch = || reference::accumulate_embedding(&sum, &ids, &dy);
    compare("embedding's gradient, sorted, beside index_add_", [&ours, &libtorch]);
}
