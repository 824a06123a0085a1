//! The functions of `shim.cpp`, for tensors on the CPU, and of `flash_attention.cpp`, for tensors on a GPU. A failing
//! operation panics with libtorch's message, as tch's own operations do. An operation can only fail by a defect of this
//! program, and the process's panic hook writes the termination message.

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::ptr::null_mut;

use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

use super::{AdamWOptions, AdamWParameter, CrossEntropy, Heads, RmsNormGradients, Rotation, Sequences};

/// A live tensor, as the shim takes it.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct TensorRef<'a>(*mut C_tensor, PhantomData<&'a Tensor>);

impl<'a> From<&'a Tensor> for TensorRef<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        TensorRef(tensor.as_ptr().cast_mut(), PhantomData)
    }
}

/// A live tensor, or null, where the shim allows that.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct OptionalTensorRef<'a>(*mut C_tensor, PhantomData<&'a Tensor>);

impl<'a> From<Option<&'a Tensor>> for OptionalTensorRef<'a> {
    fn from(tensor: Option<&'a Tensor>) -> Self {
        OptionalTensorRef(tensor.map_or(null_mut(), |tensor| TensorRef::from(tensor).0), PhantomData)
    }
}

/// A tensor that the shim returns: null, or a new reference that [`TensorOut::take`] takes over.
#[repr(transparent)]
struct TensorOut(*mut C_tensor);

impl TensorOut {
    const fn null() -> TensorOut {
        TensorOut(null_mut())
    }

    #[track_caller]
    #[allow(clippy::expect_used, reason = "an operation that succeeds returns its tensors")]
    fn take(self) -> Tensor {
        // SAFETY: only the shim writes to it, and it writes only a new reference.
        (!self.0.is_null()).then(|| unsafe { Tensor::from_ptr(self.0) }).expect("the shim returned no tensor")
    }
}

/// `CpuAdamWOptions` of `kernels.h`: hyperparameters of the update of one parameter.
#[derive(Clone, Copy)]
#[repr(C)]
struct CpuAdamWOptions {
    lr: f64,
    beta1: f64,
    beta2: f64,
    weight_decay: f64,
    eps: f64,
    step: f64,
    clip: f64,
}

// SAFETY: the signatures are those of shim.cpp and allocator.cpp. The functions need only what their types guarantee:
// tensors that are alive, and places to write results to. The functions check types, shapes and layouts themselves.
unsafe extern "C" {
    safe fn sc_use_malloc();
    safe fn sc_last_error() -> *const c_char;
    safe fn sc_cpu_capability() -> *const c_char;
    safe fn sc_torch_version() -> *const c_char;
    safe fn sc_mkl() -> *const c_char;
    safe fn sc_one_dnn() -> *const c_char;
    safe fn sc_peak_device_bytes(device: c_int, bytes: &mut u64) -> c_int;
    safe fn sc_pin_memory(tensor: TensorRef, pinned: &mut TensorOut) -> c_int;
    safe fn sc_pin_gpu_products();
    safe fn sc_deterministic() -> bool;
    safe fn sc_has_products(bf16: bool) -> bool;
    safe fn sc_column_sums(x: TensorRef, sums: &mut TensorOut) -> c_int;
    safe fn sc_rms_norm(x: TensorRef, weight: TensorRef, eps: f64, y: &mut TensorOut, rstd: &mut TensorOut) -> c_int;
    safe fn sc_rms_norm_backward(
        dy: TensorRef,
        x: TensorRef,
        weight: TensorRef,
        rstd: TensorRef,
        residual_gradient: OptionalTensorRef,
        dx: &mut TensorOut,
        dweight: &mut TensorOut,
        y: &mut TensorOut,
    ) -> c_int;
    safe fn sc_swiglu(gate_up: TensorRef, out: &mut TensorOut) -> c_int;
    safe fn sc_swiglu_backward(dout: TensorRef, gate_up: TensorRef, out: &mut TensorOut) -> c_int;
    safe fn sc_rotary(
        qkv: TensorRef,
        cos: TensorRef,
        sin: TensorRef,
        length: i64,
        heads: Heads,
        inverse: bool,
    ) -> c_int;
    safe fn sc_attention(
        qkv: TensorRef,
        cu_seqlens: TensorRef,
        heads: Heads,
        out: &mut TensorOut,
        lse: &mut TensorOut,
    ) -> c_int;
    safe fn sc_attention_backward(
        dout: TensorRef,
        qkv: TensorRef,
        out: TensorRef,
        lse: TensorRef,
        cu_seqlens: TensorRef,
        heads: Heads,
        dqkv: &mut TensorOut,
    ) -> c_int;
    safe fn sc_flash_attention(
        qkv: TensorRef,
        cu_seqlens: TensorRef,
        max_length: i64,
        heads: Heads,
        out: &mut TensorOut,
        lse: &mut TensorOut,
    ) -> c_int;
    safe fn sc_flash_attention_backward(
        dout: TensorRef,
        qkv: TensorRef,
        out: TensorRef,
        lse: TensorRef,
        cu_seqlens: TensorRef,
        max_length: i64,
        heads: Heads,
        is_deterministic: bool,
        dq: &mut TensorOut,
        dk: &mut TensorOut,
        dv: &mut TensorOut,
    ) -> c_int;
    safe fn sc_cross_entropy(
        logits: TensorRef,
        targets: TensorRef,
        dlogits: OptionalTensorRef,
        losses: TensorRef,
        scale: f64,
        loss: &mut f64,
    ) -> c_int;
    safe fn sc_squared_norm(values: TensorRef, sum: &mut f64) -> c_int;
    safe fn sc_adamw(
        value: TensorRef,
        gradient: TensorRef,
        exp_avg: TensorRef,
        exp_avg_sq: TensorRef,
        compute: OptionalTensorRef,
        options: CpuAdamWOptions,
    ) -> c_int;
    safe fn sc_linear(x: TensorRef, weight: TensorRef, residual: OptionalTensorRef, y: &mut TensorOut) -> c_int;
    safe fn sc_linear_to_float(x: TensorRef, weight: TensorRef, y: TensorRef) -> c_int;
    safe fn sc_linear_backward(dy: TensorRef, weight: TensorRef, dx: &mut TensorOut) -> c_int;
    safe fn sc_accumulate_linear(accumulator: TensorRef, dy: TensorRef, x: TensorRef) -> c_int;
}

/// Makes `malloc` the allocator of all tensors on the CPU that are created from now on. A freed tensor then makes room
/// for another of its size, which libtorch's own allocator does not ensure (`allocator.cpp`).
pub fn use_malloc() {
    sc_use_malloc();
}

/// Copies a string of the shim.
fn text(string: *const c_char) -> String {
    // SAFETY: a string of the shim ends with a null byte and is valid until the next call on this thread.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

#[track_caller]
#[allow(clippy::panic, reason = "libtorch's failures panic everywhere, as in tch")]
fn check(rc: c_int) {
    if rc != 0 {
        panic!("libtorch: {}", text(sc_last_error()));
    }
}

/// The instruction sets that products and kernels use, such as `AVX512 Intel AMX`. Results on another processor may
/// differ in their last bits.
pub fn cpu_capability() -> String {
    text(sc_cpu_capability())
}

/// Version of libtorch.
pub fn torch_version() -> String {
    text(sc_torch_version())
}

/// Version of MKL, and the branch that it dispatches to.
pub fn mkl() -> String {
    text(sc_mkl())
}

/// The peak bytes of a GPU's memory that tensors have used so far; 0 if libtorch's allocator does not report it.
pub fn peak_device_bytes(gpu: usize) -> u64 {
    let mut bytes = 0;
    if sc_peak_device_bytes(gpu as c_int, &mut bytes) == 0 { bytes } else { 0 }
}

/// Version of oneDNN.
pub fn one_dnn() -> String {
    text(sc_one_dnn())
}

/// Makes products on GPUs sum in fp32, and multiply fp32 values without rounding them to TF32.
pub(super) fn pin_gpu_products() {
    sc_pin_gpu_products();
}

/// Whether libtorch may only use deterministic algorithms.
pub fn is_deterministic() -> bool {
    sc_deterministic()
}

/// Whether this project's own kernels multiply matrices of `kind` on this processor. These kernels are fast, and give
/// the same bits for any number of threads and on AMD and Intel processors.
pub fn has_products(kind: Kind) -> bool {
    sc_has_products(kind == Kind::BFloat16)
}

/// A copy of a host tensor in pinned memory, as an asynchronous copy to a GPU requires.
pub(super) fn pin_memory(tensor: &Tensor) -> Tensor {
    let mut pinned = TensorOut::null();
    check(sc_pin_memory(tensor.into(), &mut pinned));
    pinned.take()
}

pub(super) fn column_sums(x: &Tensor) -> Tensor {
    let mut sums = TensorOut::null();
    check(sc_column_sums(x.into(), &mut sums));
    sums.take()
}

pub(super) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> (Tensor, Tensor) {
    let (mut y, mut rstd) = (TensorOut::null(), TensorOut::null());
    check(sc_rms_norm(x.into(), weight.into(), eps, &mut y, &mut rstd));
    (y.take(), rstd.take())
}

pub(super) fn rms_norm_backward(
    dy: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    rstd: &Tensor,
    residual_gradient: Option<&Tensor>,
) -> RmsNormGradients {
    let (mut dx, mut dweight, mut y) = (TensorOut::null(), TensorOut::null(), TensorOut::null());
    let (dy, x, weight, rstd) = (dy.into(), x.into(), weight.into(), rstd.into());
    check(sc_rms_norm_backward(dy, x, weight, rstd, residual_gradient.into(), &mut dx, &mut dweight, &mut y));
    RmsNormGradients { dx: dx.take(), dweight: dweight.take(), y: y.take() }
}

pub(super) fn swiglu(gate_up: &Tensor) -> Tensor {
    let mut out = TensorOut::null();
    check(sc_swiglu(gate_up.into(), &mut out));
    out.take()
}

pub(super) fn swiglu_backward(dout: &Tensor, gate_up: &Tensor) -> Tensor {
    let mut out = TensorOut::null();
    check(sc_swiglu_backward(dout.into(), gate_up.into(), &mut out));
    out.take()
}

pub(super) fn rotary(qkv: &Tensor, Rotation { cos, sin, length }: Rotation, heads: Heads, inverse: bool) {
    check(sc_rotary(qkv.into(), cos.into(), sin.into(), length, heads, inverse));
}

pub(super) fn attention(qkv: &Tensor, sequences: Sequences, heads: Heads) -> (Tensor, Tensor) {
    let (mut out, mut lse) = (TensorOut::null(), TensorOut::null());
    check(sc_attention(qkv.into(), (&sequences.cu_seqlens.on_device).into(), heads, &mut out, &mut lse));
    (out.take(), lse.take())
}

pub(super) fn attention_backward(
    dout: &Tensor,
    qkv: &Tensor,
    (out, lse): (&Tensor, &Tensor),
    sequences: Sequences,
    heads: Heads,
    rotation: Rotation,
) -> Tensor {
    let mut dqkv = TensorOut::null();
    let (out, lse, cu_seqlens) = (out.into(), lse.into(), (&sequences.cu_seqlens.on_device).into());
    check(sc_attention_backward(dout.into(), qkv.into(), out, lse, cu_seqlens, heads, &mut dqkv));
    let dqkv = dqkv.take();
    rotary(&dqkv, rotation, heads, true);
    dqkv
}

/// Flash attention for bf16 on a GPU.
pub(super) fn flash_attention(qkv: &Tensor, sequences: Sequences, heads: Heads) -> (Tensor, Tensor) {
    let (Sequences { cu_seqlens, max_length }, mut out, mut lse) = (sequences, TensorOut::null(), TensorOut::null());
    check(sc_flash_attention(qkv.into(), (&cu_seqlens.on_device).into(), max_length, heads, &mut out, &mut lse));
    (out.take(), lse.take())
}

/// The gradients of queries, keys and values, for bf16 on a GPU. Sums are in a fixed order if `is_deterministic`, as in
/// training, otherwise in any order.
pub(super) fn flash_attention_backward(
    dout: &Tensor,
    qkv: &Tensor,
    (out, lse): (&Tensor, &Tensor),
    Sequences { cu_seqlens, max_length }: Sequences,
    heads: Heads,
    is_deterministic: bool,
) -> [Tensor; 3] {
    let [mut dq, mut dk, mut dv] = [TensorOut::null(), TensorOut::null(), TensorOut::null()];
    check(sc_flash_attention_backward(
        dout.into(),
        qkv.into(),
        out.into(),
        lse.into(),
        (&cu_seqlens.on_device).into(),
        max_length,
        heads,
        is_deterministic,
        &mut dq,
        &mut dk,
        &mut dv,
    ));
    [dq.take(), dk.take(), dv.take()]
}

pub(super) fn cross_entropy(logits: &Tensor, targets: &Tensor, dlogits: Option<&Tensor>, scale: f64) -> CrossEntropy {
    let row_losses = Tensor::empty([targets.numel() as i64], (Kind::Double, Device::Cpu));
    let mut sum = 0.0;
    check(sc_cross_entropy(logits.into(), targets.into(), dlogits.into(), (&row_losses).into(), scale, &mut sum));
    CrossEntropy { sum: sum.into(), row_losses }
}

pub(super) fn squared_norms(tensors: &[&Tensor]) -> Tensor {
    let norm = |list: &&Tensor| {
        let mut sum = 0.0;
        check(sc_squared_norm((*list).into(), &mut sum));
        sum
    };
    Tensor::from_slice(&tensors.iter().map(norm).collect::<Vec<f64>>())
}

pub(super) fn adamw(parameters: &[AdamWParameter], options: AdamWOptions) {
    let AdamWOptions { lr, beta1, beta2, eps, step, clip } = options;
    for AdamWParameter { value, gradient, exp_avg, exp_avg_sq, compute, weight_decay } in parameters.iter().copied() {
        let options = CpuAdamWOptions { lr, beta1, beta2, weight_decay, eps, step, clip };
        let (exp_avg, exp_avg_sq) = (exp_avg.into(), exp_avg_sq.into());
        check(sc_adamw(value.into(), gradient.into(), exp_avg, exp_avg_sq, compute.into(), options));
    }
}

pub(super) fn linear(x: &Tensor, weight: &Tensor, residual: Option<&Tensor>) -> Tensor {
    let mut y = TensorOut::null();
    check(sc_linear(x.into(), weight.into(), residual.into(), &mut y));
    y.take()
}

pub(super) fn linear_to_float(x: &Tensor, weight: &Tensor, y: &Tensor) {
    check(sc_linear_to_float(x.into(), weight.into(), y.into()));
}

pub(super) fn linear_backward(dy: &Tensor, weight: &Tensor) -> Tensor {
    let mut dx = TensorOut::null();
    check(sc_linear_backward(dy.into(), weight.into(), &mut dx));
    dx.take()
}

pub(super) fn accumulate_linear(accumulator: &Tensor, dy: &Tensor, x: &Tensor) {
    check(sc_accumulate_linear(accumulator.into(), dy.into(), x.into()));
}
