//! Safe functions over `shim.cpp`. A failing operation panics with libtorch's message, as tch's own operations do:
//! shapes are ours, and the process's panic hook turns it into a termination message.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use tch::Tensor;
use torch_sys::C_tensor;

type Raw = *mut C_tensor;

#[repr(C)]
struct RawTape {
    _opaque: [u8; 0],
}

// SAFETY: the signatures mirror shim.cpp; every pointer passed is a live tensor or tape, and a tensor handed back is
// a fresh reference that `owned` takes over.
unsafe extern "C" {
    fn sc_last_error() -> *const c_char;
    fn sc_cpu_capability(into: *mut c_char, bytes: usize);
    fn sc_tape_new() -> *mut RawTape;
    fn sc_tape_free(tape: *mut RawTape);
    fn sc_tape_pop(tape: *mut RawTape, found: *mut c_int, parameter: *mut i64, dy: *mut Raw, x: *mut Raw) -> c_int;
    fn sc_linear(x: Raw, w: Raw, tape: *mut RawTape, parameter: i64, out: *mut Raw) -> c_int;
    fn sc_rms_norm(x: Raw, w: Raw, eps: f64, tape: *mut RawTape, parameter: i64, out: *mut Raw) -> c_int;
    fn sc_rotary(x: Raw, cos: Raw, sin: Raw, out: *mut Raw) -> c_int;
    fn sc_grad(output: Raw, grad_output: Raw, input: Raw, grad_input: *mut Raw) -> c_int;
    fn sc_accumulate(accumulator: Raw, dy: Raw, x: Raw) -> c_int;
    fn sc_adamw(
        value: Raw,
        gradient: Raw,
        exp_avg: Raw,
        exp_avg_sq: Raw,
        step: Raw,
        lr: f64,
        beta1: f64,
        beta2: f64,
        weight_decay: f64,
        eps: f64,
    ) -> c_int;
}

fn raw(tensor: &Tensor) -> Raw {
    tensor.as_ptr().cast_mut()
}

#[track_caller]
#[allow(clippy::panic, reason = "libtorch's failures panic everywhere, as in tch")]
fn check(rc: c_int) {
    if rc != 0 {
        // SAFETY: the shim keeps the message alive until the next failing call on this thread.
        let message = unsafe { CStr::from_ptr(sc_last_error()) };
        panic!("libtorch: {}", message.to_string_lossy());
    }
}

#[track_caller]
fn produced(call: impl FnOnce(*mut Raw) -> c_int) -> Tensor {
    let mut out = null_mut();
    check(call(&mut out));
    // SAFETY: the call succeeded, so `out` is a fresh reference.
    unsafe { Tensor::from_ptr(out) }
}

/// The instruction set of libtorch's CPU kernels, such as `AVX512`: results on another may differ in their last bits.
pub fn cpu_capability() -> String {
    let mut name: [c_char; 32] = [0; 32];
    // SAFETY: writes at most 32 bytes, the last of them 0.
    unsafe {
        sc_cpu_capability(name.as_mut_ptr(), name.len());
        CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
    }
}

/// Where backward passes leave the weight gradients they owe. It must outlive every graph that was recorded on it.
#[derive(Debug)]
pub struct Tape(*mut RawTape);

/// What a weight is owed: `parameter`'s gradient is `dy[n, out]^T x[n, in]`, or `dy` itself where `x` is `None`.
#[derive(Debug)]
pub(super) struct Owed {
    pub(super) parameter: usize,
    pub(super) dy: Tensor,
    pub(super) x: Option<Tensor>,
}

impl Tape {
    /// An empty tape.
    pub fn new() -> Tape {
        // SAFETY: allocates; freed in drop.
        Tape(unsafe { sc_tape_new() })
    }

    /// The oldest gradient owed, if any.
    pub(super) fn pop(&self) -> Option<Owed> {
        let (mut found, mut parameter, mut dy, mut x) = (0, 0, null_mut(), null_mut());
        // SAFETY: the tape is alive and the out-pointers are valid for writes.
        check(unsafe { sc_tape_pop(self.0, &mut found, &mut parameter, &mut dy, &mut x) });
        if found == 0 {
            return None;
        }
        // SAFETY: both are fresh references (x may be absent).
        let (dy, x) = unsafe { (Tensor::from_ptr(dy), (!x.is_null()).then(|| Tensor::from_ptr(x))) };
        Some(Owed { parameter: parameter as usize, dy, x })
    }
}

impl Default for Tape {
    fn default() -> Tape {
        Tape::new()
    }
}

impl Drop for Tape {
    fn drop(&mut self) {
        // SAFETY: made by sc_tape_new and freed once.
        unsafe { sc_tape_free(self.0) }
    }
}

/// `x[.., in] w[out, in]^T`; backward leaves `w`'s gradient on the tape under `parameter`.
pub fn linear(x: &Tensor, w: &Tensor, tape: &Tape, parameter: usize) -> Tensor {
    // SAFETY: live tensors and tape.
    produced(|out| unsafe { sc_linear(raw(x), raw(w), tape.0, parameter as i64, out) })
}

/// Root-mean-square norm over the last dimension, scaled by `w[hidden]`; backward leaves `w`'s gradient on the tape.
pub fn rms_norm(x: &Tensor, w: &Tensor, eps: f64, tape: &Tape, parameter: usize) -> Tensor {
    // SAFETY: live tensors and tape.
    produced(|out| unsafe { sc_rms_norm(raw(x), raw(w), eps, tape.0, parameter as i64, out) })
}

/// Rotary position embedding of `x[.., length, dim]` with `cos` and `sin` of shape `[length, dim / 2]`.
pub fn rotary(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Tensor {
    // SAFETY: live tensors.
    produced(|out| unsafe { sc_rotary(raw(x), raw(cos), raw(sin), out) })
}

/// The gradient of `output` with respect to `input`, seeded with `grad_output`. Frees the graph between them.
pub fn gradient(output: &Tensor, grad_output: &Tensor, input: &Tensor) -> Tensor {
    // SAFETY: live tensors.
    produced(|out| unsafe { sc_grad(raw(output), raw(grad_output), raw(input), out) })
}

/// `accumulator[out, in] += dy[n, out]^T x[n, in]` in fp32: the only way a matrix's gradient is ever summed.
pub fn accumulate(accumulator: &Tensor, dy: &Tensor, x: &Tensor) {
    // SAFETY: live tensors.
    check(unsafe { sc_accumulate(raw(accumulator), raw(dy), raw(x)) });
}

/// One AdamW update (Loshchilov and Hutter 2019) of `value` in place by torch's fused kernel; `step` is a float scalar
/// that counts updates from 1.
#[allow(clippy::too_many_arguments, reason = "mirrors the kernel")]
pub fn adamw(
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
    // SAFETY: live tensors.
    check(unsafe {
        sc_adamw(
            raw(value),
            raw(gradient),
            raw(exp_avg),
            raw(exp_avg_sq),
            raw(step),
            lr,
            beta1,
            beta2,
            weight_decay,
            eps,
        )
    });
}
