//! The operations of training, forward and backward, without autograd. The layers of models call these operations. Each
//! operation has a kernel for the CPU (`cpu/`) and one for GPUs (`cuda/`), or is composed of libtorch's operations
//! (`reference`). The tests compare the kernels with `reference`. Matrices are `[rows, columns]` and contiguous.
//! Activations have the type of their input, fp32 or bf16; statistics, weights of norms, and sums are always fp32.
//! Losses and squared norms are f64 tensors on the device that computed them, so the host waits for a GPU when it reads
//! them.

mod cuda;
pub mod device;
mod ffi;
pub mod library;
mod reference;
mod tensor_bytes;
#[cfg(test)]
mod tests;

use tch::{Device, Kind, Tensor};

pub use cuda::{compiler_version, load as load_on_gpu};
pub use ffi::{
    cpu_capability, has_products, is_deterministic, mkl, one_dnn, peak_device_bytes, torch_version, use_malloc,
};
pub use tensor_bytes::bytes_of;

/// Returns the version of the kernels' results on a device. Every change of the results' bits increments the version,
/// so that a resume can report the change.
pub fn version(device: Device) -> u32 {
    if device.is_cuda() { 3 } else { 1 }
}

/// The numbers and the width of attention heads. The queries, keys and values of a token are adjacent in a row of
/// `qkv`, so the row has the width `(heads + 2 kv_heads) * head_dim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Heads {
    /// Number of query heads, a multiple of `kv_heads`: consecutive query heads share a head of keys and values.
    pub heads: i64,
    /// Number of heads of keys and of values.
    pub kv_heads: i64,
    /// Width of a head, an even number.
    pub head_dim: i64,
}

/// The bounds of sequences, `i64[sequences + 1]`: sequence i has the rows from bound i to bound i + 1, exclusive.
/// Kernels read the bounds on the device. Code that loops over sequences reads the bounds on the host, without a wait
/// for the device.
#[derive(Debug)]
pub struct CuSeqlens {
    on_host: Vec<i64>,
    on_device: Tensor,
}

impl CuSeqlens {
    /// Creates the bounds on the host and on `device`.
    pub fn new(bounds: &[i64], device: Device) -> CuSeqlens {
        CuSeqlens { on_host: bounds.to_vec(), on_device: upload(&Tensor::from_slice(bounds), device) }
    }

    /// Returns the same bounds, which share the memory on the device.
    pub fn shallow_clone(&self) -> CuSeqlens {
        CuSeqlens { on_host: self.on_host.clone(), on_device: self.on_device.shallow_clone() }
    }
}

/// The sequences into which rows are divided. A row attends only to rows of its own sequence.
#[derive(Clone, Copy, Debug)]
pub struct VarlenSequences<'a> {
    /// The bounds of each sequence.
    pub cu_seqlens: &'a CuSeqlens,
    /// The length of the longest sequence, or more.
    pub max_length: i64,
}

/// The rotation of queries and keys by their position, which is the index of the row modulo `length`.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// `f32[length, head_dim / 2]`: cosines of the angles by position.
    pub cos: &'a Tensor,
    /// The sines of the same angles.
    pub sin: &'a Tensor,
    /// Number of positions.
    pub length: i64,
}

/// A parameter that AdamW updates. All tensors have the parameter's shape, and all except `compute` are fp32.
#[derive(Clone, Copy, Debug)]
pub struct AdamWParameter<'a> {
    /// The weights.
    pub value: &'a Tensor,
    /// The gradient of the weights.
    pub gradient: &'a Tensor,
    /// Running average of the gradient.
    pub exp_avg: &'a Tensor,
    /// Running average of the squared gradient.
    pub exp_avg_sq: &'a Tensor,
    /// The tensor that receives a copy of the weights in bf16; `None` if training computes with the fp32 weights.
    pub compute: Option<&'a Tensor>,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

/// Hyperparameters of one AdamW update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the gradient's running average.
    pub beta1: f64,
    /// Decay of the squared gradient's running average.
    pub beta2: f64,
    /// The constant that is added to the denominator.
    pub eps: f64,
    /// The number of this update, counted from 1.
    pub step: f64,
    /// The factor that clips the gradient: AdamW first multiplies the gradient by this factor.
    pub clip: f64,
}

/// Results of [`rms_norm_backward`].
#[derive(Debug)]
pub struct RmsNormGradients {
    /// Gradient of the input.
    pub dx: Tensor,
    /// `f32[width]`: gradient of the weight.
    pub dweight: Tensor,
    /// The norm's output, recomputed.
    pub y: Tensor,
}

/// Calls an operation's kernel for a device, or the reference on a device without kernels.
macro_rules! on_device {
    ($device:expr, $operation:ident($($argument:expr),*)) => {
        match $device {
            Device::Cpu => ffi::$operation($($argument),*),
            Device::Cuda(index) => cuda::$operation(cuda::loaded(index), $($argument),*),
            _ => reference::$operation($($argument),*),
        }
    };
}

/// Like `on_device`, but uses the device of the first argument.
macro_rules! by_device {
    ($operation:ident($first:expr $(, $argument:expr)*)) => {
        on_device!($first.device(), $operation($first $(, $argument)*))
    };
}

/// Calls the CPU kernel of a matrix product with `weight[out, in]`. Calls the reference on other devices, and if the
/// processor has no kernel for this type or these sizes.
macro_rules! dispatch_gemm {
    ($operation:ident($($argument:expr),*), $rows:expr, $weight:expr) => {
        match multiplies($rows, $weight) {
            true => ffi::$operation($($argument),*),
            false => reference::$operation($($argument),*),
        }
    };
}

/// Whether a CPU kernel multiplies `rows` by `weight` or by a matrix of the same shape. The kernel multiplies bf16
/// values in pairs, so the sizes of a bf16 weight must be even.
fn multiplies(rows: &Tensor, weight: &Tensor) -> bool {
    let kind = rows.kind();
    let sizes_fit = kind == Kind::Float || weight.size().iter().all(|size| size % 2 == 0);
    rows.device() == Device::Cpu && sizes_fit && rows.numel() > 0 && has_products(kind)
}

/// Returns the sum of all rows of `x[rows, width]`, `f32[width]`: the gradient of a vector that is added to each row.
pub fn column_sums(x: &Tensor) -> Tensor {
    by_device!(column_sums(x))
}

/// Computes the root-mean-square norm of each row, times `weight`, `f32[width]` (Zhang and Sennrich 2019). Returns the
/// result and, for the backward pass, the reciprocal of each row's root mean square (`rstd`), `f32[rows]`.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> (Tensor, Tensor) {
    by_device!(rms_norm(x, weight, eps))
}

/// Returns the gradients of [`rms_norm`]. Adds `residual_gradient`, the gradient of the path around the norm, to the
/// input's gradient.
pub fn rms_norm_backward(
    dy: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    rstd: &Tensor,
    residual_gradient: Option<&Tensor>,
) -> RmsNormGradients {
    by_device!(rms_norm_backward(dy, x, weight, rstd, residual_gradient))
}

/// Returns `silu(gate) * up` (Shazeer 2020) of `gate_up[rows, 2 width]`, which holds gate and up side by side.
pub fn swiglu(gate_up: &Tensor) -> Tensor {
    by_device!(swiglu(gate_up))
}

/// Returns the gradient of [`swiglu`], and the recomputed output of `swiglu`. The gradient reuses the memory of
/// `gate_up`.
pub fn swiglu_backward(dout: &Tensor, gate_up: Tensor) -> (Tensor, Tensor) {
    let out = by_device!(swiglu_backward(dout, &gate_up));
    (gate_up, out)
}

/// Rotates the queries and keys of `qkv[rows, width]` in place by their position (Su et al. 2021). The pairs are
/// `(x[i], x[i + head_dim / 2])`, as in Hugging Face's models.
pub fn rotary(qkv: &Tensor, rotation: Rotation, heads: Heads) {
    by_device!(rotary(qkv, rotation, heads, false));
}

/// Computes the causal attention within every sequence. Returns `[rows, heads * head_dim]` and the logarithms of the
/// softmax's denominators, `f32[rows, heads]`. The memory for the computation is linear in the length of a sequence,
/// except on a GPU if flash attention does not support the type, the head size or the GPU.
pub fn attention(qkv: &Tensor, sequences: VarlenSequences, heads: Heads) -> (Tensor, Tensor) {
    by_device!(attention(qkv, sequences, heads))
}

/// Backpropagates `dout` through [`attention`] and [`rotary`]. Returns the gradient of the queries, keys and values
/// before their rotation. `qkv` is the result of `rotary`, and `saved` is the result of `attention`.
pub fn attention_backward(
    dout: &Tensor,
    qkv: &Tensor,
    saved: (&Tensor, &Tensor),
    sequences: VarlenSequences,
    heads: Heads,
    rotation: Rotation,
) -> Tensor {
    by_device!(attention_backward(dout, qkv, saved, sequences, heads, rotation))
}

/// Cross-entropies, in nats.
#[derive(Debug)]
pub struct CrossEntropy {
    /// The sum of the cross-entropies, `f64[]`.
    pub sum: Tensor,
    /// The cross-entropy of each row, `f64[rows]`; 0 for a row whose target is negative.
    pub row_losses: Tensor,
}

/// Returns the cross-entropies of `logits`, `f32[rows, vocab]`. Rows with a negative target in `targets[rows]` do not
/// count.
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> CrossEntropy {
    by_device!(cross_entropy(logits, targets, None, 1.0))
}

/// Returns the [`cross_entropy`], and the gradient of the logits: the derivative of the sum, times `scale`. The
/// gradient has the type `kind`. An fp32 gradient reuses the memory of `logits`.
pub fn cross_entropy_with_gradient(logits: Tensor, targets: &Tensor, scale: f64, kind: Kind) -> (CrossEntropy, Tensor) {
    let gradient = match kind {
        Kind::Float => logits.shallow_clone(),
        _ => Tensor::empty(logits.size(), (kind, logits.device())),
    };
    let loss = by_device!(cross_entropy(&logits, targets, Some(&gradient), scale));
    (loss, gradient)
}

/// Returns the sum of the squares of each tensor, `f64[tensors]`. The tensors are fp32 on `device`.
pub fn squared_norms(tensors: &[&Tensor], device: Device) -> Tensor {
    on_device!(device, squared_norms(tensors))
}

/// Updates values and moments of parameters on `device` in place (Loshchilov and Hutter 2019).
pub fn adamw(parameters: &[AdamWParameter], options: AdamWOptions, device: Device) {
    on_device!(device, adamw(parameters, options));
}

/// Computes `accumulator[token_ids[i]] += dy[i]` with sums in fp32: the gradient of an embedding's weight.
pub fn accumulate_embedding(accumulator: &Tensor, token_ids: &Tensor, dy: &Tensor) {
    match accumulator.device() {
        Device::Cuda(index) => cuda::accumulate_embedding(cuda::loaded(index), accumulator, token_ids, dy),
        _ => reference::accumulate_embedding(accumulator, token_ids, dy),
    }
}

/// Copies a host tensor to `device`. On a GPU, the copy follows the work that is already queued there. The host does
/// not wait for the copy.
pub fn upload(tensor: &Tensor, device: Device) -> Tensor {
    match device {
        // libtorch keeps the pinned memory until the copy is done
        Device::Cuda(_) => ffi::pin_memory(tensor).to_device_(device, tensor.kind(), true, false),
        _ => tensor.to_device(device),
    }
}

/// Returns the number of bytes that each thread keeps for packed operands, in the matrix products of a linear layer
/// with a weight `[outputs, inputs]`, forward and backward. A thread packs 64 columns of the weight, and 1,024 tokens
/// of the input (`cpu/gemm.h`). `element` is the size of an element in bytes.
pub fn packed_bytes(inputs: usize, outputs: usize, element: usize) -> usize {
    (64 * inputs.max(outputs) + 1024 * (inputs + 64)) * element
}

/// Returns `x[rows, in] weight[out, in]^T + residual[rows, out]`.
pub fn linear(x: &Tensor, weight: &Tensor, residual: Option<&Tensor>) -> Tensor {
    dispatch_gemm!(linear(x, weight, residual), x, weight)
}

/// Writes `x weight^T` to `y`, `f32[rows, out]`. The operands are fp32 or bf16.
pub fn linear_to_float(x: &Tensor, weight: &Tensor, y: &Tensor) {
    match x.device() {
        Device::Cuda(_) => cuda::linear_to_float(x, weight, y),
        _ => dispatch_gemm!(linear_to_float(x, weight, y), x, weight),
    }
}

/// Returns the gradient of a linear layer's input: `dy[rows, out] weight[out, in]`.
pub fn linear_backward(dy: &Tensor, weight: &Tensor) -> Tensor {
    dispatch_gemm!(linear_backward(dy, weight), dy, weight)
}

/// Computes `accumulator[out, in] += dy[rows, out]^T x[rows, in]` with sums in fp32; `dy` and `x` are fp32 or bf16.
/// Training uses this function for every gradient of a linear layer's weight.
pub fn accumulate_linear(accumulator: &Tensor, dy: &Tensor, x: &Tensor) {
    match x.device() {
        Device::Cuda(_) => cuda::accumulate_linear(accumulator, dy, x),
        _ => dispatch_gemm!(accumulate_linear(accumulator, dy, x), x, accumulator),
    }
}
