//! The functions of `shim.cpp`, for tensors on the CPU, and of `flash_attention.cpp`, for tensors on a GPU. If an
//! operation fails, it panics with libtorch's message, as tch's operations do. The process's panic hook then writes the
//! termination message. An operation fails only because of a defect of this program or a lack of memory.

mod operations;

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::ptr::null_mut;

use tch::{Kind, Tensor};
use torch_sys::C_tensor;

use super::Heads;
pub(super) use operations::{
    accumulate_linear, adamw, attention, attention_backward, column_sums, cross_entropy, flash_attention,
    flash_attention_backward, linear, linear_backward, linear_to_float, rms_norm, rms_norm_backward, rotary,
    squared_norms, swiglu, swiglu_backward,
};

/// A pointer to a live tensor, as the functions of the shim expect it.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct TensorRef<'a>(*mut C_tensor, PhantomData<&'a Tensor>);

impl<'a> From<&'a Tensor> for TensorRef<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        TensorRef(tensor.as_ptr().cast_mut(), PhantomData)
    }
}

/// A pointer to a live tensor, or a null pointer where the shim allows it.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct OptionalTensorRef<'a>(*mut C_tensor, PhantomData<&'a Tensor>);

impl<'a> From<Option<&'a Tensor>> for OptionalTensorRef<'a> {
    fn from(tensor: Option<&'a Tensor>) -> Self {
        OptionalTensorRef(tensor.map_or(null_mut(), |tensor| TensorRef::from(tensor).0), PhantomData)
    }
}

/// A tensor that the shim returns: null, or a new reference that [`TensorOut::take`] turns into a tensor.
#[repr(transparent)]
struct TensorOut(*mut C_tensor);

impl TensorOut {
    const fn null() -> TensorOut {
        TensorOut(null_mut())
    }

    #[track_caller]
    #[allow(clippy::expect_used, reason = "an operation that succeeds returns its tensors")]
    fn take(self) -> Tensor {
        // SAFETY: only the shim writes this pointer, and it writes only a new reference.
        (!self.0.is_null()).then(|| unsafe { Tensor::from_ptr(self.0) }).expect("the shim returned no tensor")
    }
}

/// The struct `CpuAdamWOptions` of `kernels.h`: the hyperparameters of the update of one parameter.
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

// SAFETY: the signatures are those of shim.cpp, flash_attention.cpp and allocator.cpp. The functions need only what
// their types guarantee: live tensors, and memory for the results. The functions check types, shapes and layouts
// themselves.
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

/// Makes `malloc` the allocator of all tensors on the CPU that are created after this call. With `malloc`, a new tensor
/// fits into the memory of a freed tensor of the same size. With libtorch's allocator, it may not fit
/// (`allocator.cpp`).
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

/// Returns the instruction sets that matrix products and kernels use, such as `AVX512 Intel AMX`. Results on another
/// processor may differ in their last bits.
pub fn cpu_capability() -> String {
    text(sc_cpu_capability())
}

/// Returns the version of libtorch.
pub fn torch_version() -> String {
    text(sc_torch_version())
}

/// Returns the version of MKL, and the code branch that MKL uses on this processor.
pub fn mkl() -> String {
    text(sc_mkl())
}

/// Returns the largest number of bytes of a GPU's memory that tensors have used at one time; 0 if libtorch's allocator
/// does not report the number.
pub fn peak_device_bytes(gpu: usize) -> u64 {
    let mut bytes = 0;
    if sc_peak_device_bytes(gpu as c_int, &mut bytes) == 0 { bytes } else { 0 }
}

/// Returns the version of oneDNN.
pub fn one_dnn() -> String {
    text(sc_one_dnn())
}

/// Makes matrix products on GPUs sum in fp32, and multiply fp32 values without rounding them to TF32.
pub(super) fn pin_gpu_products() {
    sc_pin_gpu_products();
}

/// Whether libtorch is restricted to deterministic algorithms.
pub fn is_deterministic() -> bool {
    sc_deterministic()
}

/// Whether Stagecoach's kernels multiply matrices of `kind` on this processor. These kernels are fast, and give the
/// same bits for any number of threads and on AMD and Intel processors.
pub fn has_products(kind: Kind) -> bool {
    sc_has_products(kind == Kind::BFloat16)
}

/// Copies a host tensor to pinned memory, which an asynchronous copy to a GPU requires.
pub(super) fn pin_memory(tensor: &Tensor) -> Tensor {
    let mut pinned = TensorOut::null();
    check(sc_pin_memory(tensor.into(), &mut pinned));
    pinned.take()
}
