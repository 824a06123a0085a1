//! Simulates hardware that computes wrong results: the stage flips one bit of a kernel's result. The linker replaces
//! two of the trainer's kernels by these functions (`--wrap`). Every decoder layer calls one of them in the forward
//! pass, and the other in the backward pass.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use stagecoach_tests::faulty::{BIT_FLIP_VARIABLE, BitFlip};
use torch_sys::{C_tensor, at_data_ptr, at_scalar_type};

unsafe extern "C" {
    fn __real_sc_rms_norm(
        x: *mut C_tensor,
        weight: *mut C_tensor,
        eps: f64,
        y: *mut *mut C_tensor,
        rstd: *mut *mut C_tensor,
    ) -> c_int;
    fn __real_sc_rms_norm_backward(
        dy: *mut C_tensor,
        x: *mut C_tensor,
        weight: *mut C_tensor,
        rstd: *mut C_tensor,
        residual_gradient: *mut C_tensor,
        dx: *mut *mut C_tensor,
        dweight: *mut *mut C_tensor,
        y: *mut *mut C_tensor,
    ) -> c_int;
}

/// # Safety
/// The requirements are those of the kernel.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_sc_rms_norm(
    x: *mut C_tensor,
    weight: *mut C_tensor,
    eps: f64,
    y: *mut *mut C_tensor,
    rstd: *mut *mut C_tensor,
) -> c_int {
    // SAFETY: the arguments are the caller's, and `y` is a tensor after the call.
    unsafe {
        let rc = __real_sc_rms_norm(x, weight, eps, y, rstd);
        flip_if_due("output", *y);
        rc
    }
}

/// # Safety
/// The requirements are those of the kernel.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_sc_rms_norm_backward(
    dy: *mut C_tensor,
    x: *mut C_tensor,
    weight: *mut C_tensor,
    rstd: *mut C_tensor,
    residual_gradient: *mut C_tensor,
    dx: *mut *mut C_tensor,
    dweight: *mut *mut C_tensor,
    y: *mut *mut C_tensor,
) -> c_int {
    // SAFETY: the arguments are the caller's, and `dx` and `dweight` are tensors after the call.
    unsafe {
        let rc = __real_sc_rms_norm_backward(dy, x, weight, rstd, residual_gradient, dx, dweight, y);
        flip_if_due("input-gradient", *dx);
        flip_if_due("weight-gradient", *dweight);
        rc
    }
}

/// Flips a bit of the first value of `tensor` if this process has a fault for `result` in this call.
///
/// # Safety
/// `tensor` is an fp32 or bf16 tensor in this process's memory that no other code uses.
unsafe fn flip_if_due(result: &str, tensor: *mut C_tensor) {
    static FAULT: OnceLock<Option<BitFlip>> = OnceLock::new();
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let fault = FAULT.get_or_init(|| {
        let fault: BitFlip = std::env::var(BIT_FLIP_VARIABLE).ok()?.parse().unwrap();
        let rank: u32 = std::env::var("RANK").ok()?.parse().unwrap();
        let is_first_attempt = std::env::var("STAGECOACH_ATTEMPT").is_ok_and(|attempt| attempt == "1");
        (fault.rank == rank && is_first_attempt).then_some(fault)
    });
    let Some(fault) = fault.as_ref().filter(|fault| fault.result == result) else { return };
    if !fault.calls.contains(&CALLS.fetch_add(1, Ordering::SeqCst)) {
        return;
    }
    const BFLOAT16: c_int = 15;
    // SAFETY: by the caller's contract the pointer is a tensor, whose first value has four or two bytes.
    unsafe {
        let bytes = if at_scalar_type(tensor) == BFLOAT16 { 2 } else { 4 };
        // the bit is in the mantissa, and is high enough to change a loss
        *at_data_ptr(tensor).cast::<u8>().add(bytes - 2) ^= 1 << 2;
    }
}
