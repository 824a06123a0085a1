//! Safe functions over `shim.cpp`. A failing operation panics with libtorch's message, as tch's own operations do: it can
//! only fail by a defect of this program, and the process's panic hook writes the termination message.

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::ptr::null_mut;

use tch::Tensor;
use torch_sys::C_tensor;

/// A live tensor, as the shim takes it.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct TensorRef<'a>(*mut C_tensor, PhantomData<&'a Tensor>);

impl<'a> From<&'a Tensor> for TensorRef<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        TensorRef(tensor.as_ptr().cast_mut(), PhantomData)
    }
}

/// A tensor that the shim returns: null, or a new reference that [`TensorOut::take`] takes over.
#[repr(transparent)]
struct TensorOut(*mut C_tensor);

impl TensorOut {
    const fn null() -> TensorOut {
        TensorOut(null_mut())
    }

    fn take(self) -> Option<Tensor> {
        // SAFETY: only the shim writes to it, and what it writes is a new reference.
        (!self.0.is_null()).then(|| unsafe { Tensor::from_ptr(self.0) })
    }
}

#[repr(C)]
struct RawGradientSink {
    _opaque: [u8; 0],
}

/// A live sink, as the shim takes it.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct SinkRef<'a>(*mut RawGradientSink, PhantomData<&'a GradientSink>);

// SAFETY: the signatures are those of shim.cpp. The functions marked safe need only what their types guarantee: tensors
// and sinks that are alive, and places to write results to.
unsafe extern "C" {
    safe fn sc_last_error() -> *const c_char;
    safe fn sc_cpu_capability() -> *const c_char;
    safe fn sc_gradient_sink_new() -> *mut RawGradientSink;
    fn sc_gradient_sink_free(sink: *mut RawGradientSink);
    safe fn sc_gradient_sink_pop(sink: SinkRef, parameter: &mut i64, dy: &mut TensorOut, x: &mut TensorOut) -> c_int;
    safe fn sc_linear(x: TensorRef, w: TensorRef, sink: SinkRef, parameter: i64, out: &mut TensorOut) -> c_int;
    safe fn sc_rms_norm(
        x: TensorRef,
        w: TensorRef,
        eps: f64,
        sink: SinkRef,
        parameter: i64,
        out: &mut TensorOut,
    ) -> c_int;
    safe fn sc_rotary(x: TensorRef, cos: TensorRef, sin: TensorRef, out: &mut TensorOut) -> c_int;
    safe fn sc_grad(output: TensorRef, grad_output: TensorRef, input: TensorRef, grad_input: &mut TensorOut) -> c_int;
    safe fn sc_accumulate_linear(accumulator: TensorRef, dy: TensorRef, x: TensorRef) -> c_int;
    safe fn sc_adamw(
        value: TensorRef,
        gradient: TensorRef,
        exp_avg: TensorRef,
        exp_avg_sq: TensorRef,
        step: TensorRef,
        lr: f64,
        beta1: f64,
        beta2: f64,
        weight_decay: f64,
        eps: f64,
    ) -> c_int;
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

/// The tensor that `call` returns.
#[track_caller]
#[allow(clippy::expect_used, reason = "an operation that succeeds returns a tensor")]
fn output(call: impl FnOnce(&mut TensorOut) -> c_int) -> Tensor {
    let mut out = TensorOut::null();
    check(call(&mut out));
    out.take().expect("an operation that succeeds returns a tensor")
}

/// The instruction set of libtorch's CPU kernels, such as `AVX512`: results on another may differ in their last bits.
pub(crate) fn cpu_capability() -> String {
    text(sc_cpu_capability())
}

/// Receives the inputs of weight gradients during backward passes. It must outlive every autograd graph that was created
/// with it.
#[derive(Debug)]
pub struct GradientSink(*mut RawGradientSink);

/// The inputs of a weight gradient that is computed later: the gradient of `parameter` is `dy[n, out]^T x[n, in]`, or `dy`
/// itself if `x` is `None`.
#[derive(Debug)]
pub(super) struct DeferredGradient {
    pub(super) parameter: usize,
    pub(super) dy: Tensor,
    pub(super) x: Option<Tensor>,
}

impl GradientSink {
    /// Creates an empty sink.
    pub(crate) fn new() -> GradientSink {
        GradientSink(sc_gradient_sink_new())
    }

    /// Removes the oldest gradient, if there is one.
    pub(super) fn pop(&self) -> Option<DeferredGradient> {
        let (mut parameter, mut dy, mut x) = (0, TensorOut::null(), TensorOut::null());
        check(sc_gradient_sink_pop(self.as_ref(), &mut parameter, &mut dy, &mut x));
        Some(DeferredGradient { parameter: parameter as usize, dy: dy.take()?, x: x.take() })
    }

    fn as_ref(&self) -> SinkRef<'_> {
        SinkRef(self.0, PhantomData)
    }
}

impl Drop for GradientSink {
    fn drop(&mut self) {
        // SAFETY: created by sc_gradient_sink_new, freed only here.
        unsafe { sc_gradient_sink_free(self.0) }
    }
}

/// `x[.., in] w[out, in]^T`; backward puts the gradient of `w` into `sink` under `parameter`.
pub(crate) fn linear(x: &Tensor, w: &Tensor, sink: &GradientSink, parameter: usize) -> Tensor {
    output(|out| sc_linear(x.into(), w.into(), sink.as_ref(), parameter as i64, out))
}

/// Root-mean-square norm over the last dimension, scaled by `w[hidden]`; backward puts the gradient of `w` into `sink`
/// under `parameter`.
pub(crate) fn rms_norm(x: &Tensor, w: &Tensor, eps: f64, sink: &GradientSink, parameter: usize) -> Tensor {
    output(|out| sc_rms_norm(x.into(), w.into(), eps, sink.as_ref(), parameter as i64, out))
}

/// Rotary position embedding of `x[.., length, dim]` with `cos` and `sin` of shape `[length, dim / 2]`.
pub(crate) fn rotary(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Tensor {
    output(|out| sc_rotary(x.into(), cos.into(), sin.into(), out))
}

/// `torch.autograd.grad`: the gradient of `output` with respect to `input`, given `grad_output`. Frees the graph between
/// them.
pub(crate) fn grad(output: &Tensor, grad_output: &Tensor, input: &Tensor) -> Tensor {
    self::output(|out| sc_grad(output.into(), grad_output.into(), input.into(), out))
}

/// `accumulator[out, in] += dy[n, out]^T x[n, in]` in fp32: every gradient of a linear layer's weight is summed by this
/// function.
pub(crate) fn accumulate_linear(accumulator: &Tensor, dy: &Tensor, x: &Tensor) {
    check(sc_accumulate_linear(accumulator.into(), dy.into(), x.into()));
}

/// AdamW update (Loshchilov and Hutter 2019) of `value` in place by torch's fused kernel; `step` is a float scalar that
/// counts updates from 1.
#[allow(clippy::too_many_arguments, reason = "mirrors the kernel")]
pub(crate) fn adamw(
    value: &Tensor,
    gradient: &Tensor,
    exp_avg: &Tensor,
    exp_avg_sq: &Tensor,
    step: &Tensor,
    lr: f64,
    (beta1, beta2): (f64, f64),
    weight_decay: f64,
    eps: f64,
) {
    let (value, gradient, exp_avg, exp_avg_sq) = (value.into(), gradient.into(), exp_avg.into(), exp_avg_sq.into());
    check(sc_adamw(value, gradient, exp_avg, exp_avg_sq, step.into(), lr, beta1, beta2, weight_decay, eps));
}
