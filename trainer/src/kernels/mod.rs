//! The operations of training, forward and backward, without autograd: the layers of `model` call each where it belongs.
//! On the CPU each is one pass over memory (`cpu/`); elsewhere it is composed of libtorch's operations ([`plain`]), which
//! is also the reference for the kernels' tests. Matrices are `[rows, columns]` and contiguous. Activations have the type
//! of their input, fp32 or bf16; statistics, norms' weights and sums are fp32 either way.

mod ffi;
mod plain;
#[cfg(test)]
mod tests;

use tch::{Device, Kind, Tensor};

pub(crate) use ffi::{cpu_capability, has_products, is_deterministic, mkl, one_dnn, torch_version, use_malloc};

/// Version of the kernels' numbers: raised with every change that changes bits, so that a resume can say that it crosses
/// one.
pub(crate) const VERSION: u32 = 1;

/// Number of heads of one token, whose queries, keys and values lie side by side:
/// `[(heads + 2 kv_heads) * head_dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Heads {
    /// Heads of queries, a multiple of `kv_heads`: consecutive ones share a head of keys and values.
    pub(crate) heads: i64,
    /// Heads of keys and of values.
    pub(crate) kv_heads: i64,
    /// Width of a head, an even number.
    pub(crate) head_dim: i64,
}

/// Hyperparameters of one AdamW update of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct AdamWOptions {
    /// Learning rate.
    pub(crate) lr: f64,
    /// Decay of the gradient's running average.
    pub(crate) beta1: f64,
    /// Decay of the squared gradient's running average.
    pub(crate) beta2: f64,
    /// Decoupled weight decay.
    pub(crate) weight_decay: f64,
    /// Added to the denominator.
    pub(crate) eps: f64,
    /// Number of this update, from 1.
    pub(crate) step: f64,
    /// The gradient is multiplied by it first.
    pub(crate) clip: f64,
}

/// Results of [`rms_norm_backward`].
#[derive(Debug)]
pub(crate) struct RmsNormGradients {
    /// Gradient of the input.
    pub(crate) dx: Tensor,
    /// `f32[width]`: gradient of the weight.
    pub(crate) dweight: Tensor,
    /// The norm's output, computed again.
    pub(crate) y: Tensor,
}

/// Calls an operation's CPU kernel or its plain form, by the device of the first argument.
macro_rules! by_device {
    ($operation:ident($first:expr $(, $argument:expr)*)) => {
        match $first.device() {
            Device::Cpu => ffi::$operation($first $(, $argument)*),
            _ => plain::$operation($first $(, $argument)*),
        }
    };
}

/// The same for a product with `weight[out, in]`: its plain form also where the processor has no products of this type, or
/// none of these sizes.
macro_rules! by_product {
    ($operation:ident($($argument:expr),*), $rows:expr, $weight:expr) => {
        match multiplies($rows, $weight) {
            true => ffi::$operation($($argument),*),
            false => plain::$operation($($argument),*),
        }
    };
}

/// Whether there is a kernel that multiplies `rows` with `weight`, or with a matrix of its shape. Bf16 is multiplied in
/// pairs.
fn multiplies(rows: &Tensor, weight: &Tensor) -> bool {
    let kind = rows.kind();
    let sizes_fit = kind == Kind::Float || weight.size().iter().all(|size| size % 2 == 0);
    rows.device() == Device::Cpu && sizes_fit && rows.numel() > 0 && has_products(kind)
}

/// The sum of all rows of `x[rows, width]`, `f32[width]`: the gradient of what is added to each.
pub(crate) fn column_sums(x: &Tensor) -> Tensor {
    by_device!(column_sums(x))
}

/// Root-mean-square norm of each row, times `weight`, `f32[width]` (Zhang and Sennrich 2019). Returns the result and, for
/// the backward pass, the factor of each row, `f32[rows]`.
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> (Tensor, Tensor) {
    by_device!(rms_norm(x, weight, eps))
}

/// Gradients of [`rms_norm`]; `residual_gradient` is added to that of the input, which also flows around the norm.
pub(crate) fn rms_norm_backward(
    dy: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    rstd: &Tensor,
    residual_gradient: Option<&Tensor>,
) -> RmsNormGradients {
    by_device!(rms_norm_backward(dy, x, weight, rstd, residual_gradient))
}

/// `silu(gate) * up` (Shazeer 2020) of `gate_up[rows, 2 width]`, which holds both side by side.
pub(crate) fn swiglu(gate_up: &Tensor) -> Tensor {
    by_device!(swiglu(gate_up))
}

/// Gradient of [`swiglu`], and its output again. The gradient takes the memory of `gate_up`.
pub(crate) fn swiglu_backward(dout: &Tensor, gate_up: Tensor) -> (Tensor, Tensor) {
    let out = by_device!(swiglu_backward(dout, &gate_up));
    (gate_up, out)
}

/// Rotates the queries and keys of `qkv[rows, width]` in place by their position (Su et al. 2021), which is the row modulo
/// `length`; `cos` and `sin` are `f32[positions, head_dim / 2]`. The pairs are those of Hugging Face: `(x[i], x[i +
/// head_dim / 2])`. `inverse` rotates back, which is what a gradient needs.
pub(crate) fn rotary(qkv: &Tensor, cos: &Tensor, sin: &Tensor, length: i64, heads: Heads, inverse: bool) {
    by_device!(rotary(qkv, cos, sin, length, heads, inverse));
}

/// Causal attention of every sequence to itself; sequence i has the rows from `cu_seqlens[i]` to `cu_seqlens[i + 1]`.
/// Returns `[rows, heads * head_dim]` and the logarithms of the softmax's denominators, `f32[rows, heads]`. Memory is linear
/// in the length of a sequence.
pub(crate) fn attention(qkv: &Tensor, cu_seqlens: &Tensor, heads: Heads) -> (Tensor, Tensor) {
    by_device!(attention(qkv, cu_seqlens, heads))
}

/// Gradient of `qkv` through [`attention`], whose results are `out` and `lse`.
pub(crate) fn attention_backward(
    dout: &Tensor,
    qkv: &Tensor,
    (out, lse): (&Tensor, &Tensor),
    cu_seqlens: &Tensor,
    heads: Heads,
) -> Tensor {
    by_device!(attention_backward(dout, qkv, (out, lse), cu_seqlens, heads))
}

/// The sum of the cross-entropies, in nats, of `logits`, `f32[rows, vocab]`, where `targets[rows]` is not negative.
pub(crate) fn cross_entropy(logits: &Tensor, targets: &Tensor) -> f64 {
    by_device!(cross_entropy(logits, targets, None, 1.0))
}

/// [`cross_entropy`], and the gradient of that sum times `scale` as `kind`; fp32 gradients take the memory of `logits`.
pub(crate) fn cross_entropy_with_gradient(logits: Tensor, targets: &Tensor, scale: f64, kind: Kind) -> (f64, Tensor) {
    let gradient = match kind {
        Kind::Float => logits.shallow_clone(),
        _ => Tensor::empty(logits.size(), (kind, logits.device())),
    };
    let loss = by_device!(cross_entropy(&logits, targets, Some(&gradient), scale));
    (loss, gradient)
}

/// The sum of the squares, in f64.
pub(crate) fn squared_norm(values: &Tensor) -> f64 {
    by_device!(squared_norm(values))
}

/// Updates `value` and the moments in place (Loshchilov and Hutter 2019); all are fp32. `compute`, if there is one, becomes
/// a copy of `value`.
pub(crate) fn adamw(
    value: &Tensor,
    gradient: &Tensor,
    moments: (&Tensor, &Tensor),
    compute: Option<&Tensor>,
    options: AdamWOptions,
) {
    by_device!(adamw(value, gradient, moments, compute, options));
}

/// Bytes that a thread keeps for the operands of products with a weight `[outputs, inputs]` and its gradient: tiles of 64
/// columns of the weight, and 1,024 tokens of the input (`cpu/gemm.h`).
pub(crate) fn packed_bytes(inputs: usize, outputs: usize, element: usize) -> usize {
    (64 * inputs.max(outputs) + 1024 * (inputs + 64)) * element
}

/// `x[rows, in] weight[out, in]^T + residual[rows, out]`.
pub(crate) fn linear(x: &Tensor, weight: &Tensor, residual: Option<&Tensor>) -> Tensor {
    by_product!(linear(x, weight, residual), x, weight)
}

/// Writes `x weight^T` to `y`, `f32[rows, out]`, whatever the type of both.
pub(crate) fn linear_to_float(x: &Tensor, weight: &Tensor, y: &Tensor) {
    by_product!(linear_to_float(x, weight, y), x, weight);
}

/// Gradient of a linear layer's input: `dy[rows, out] weight[out, in]`.
pub(crate) fn linear_backward(dy: &Tensor, weight: &Tensor) -> Tensor {
    by_product!(linear_backward(dy, weight), dy, weight)
}

/// `accumulator[out, in] += dy[rows, out]^T x[rows, in]`, summed in fp32 whatever the type of `dy` and `x`: every gradient
/// of a linear layer's weight is summed by this function.
pub(crate) fn accumulate_linear(accumulator: &Tensor, dy: &Tensor, x: &Tensor) {
    by_product!(accumulate_linear(accumulator, dy, x), x, accumulator)
}
