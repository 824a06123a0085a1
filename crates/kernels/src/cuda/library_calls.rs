//! The operations for which libtorch has better GPU code than the `reference` module: flash attention, and products of
//! bf16 matrices that are summed in fp32.

use tch::{Kind, Tensor};

use super::gpu::Gpu;
use super::operations::{rotary, rotate_back};
use crate::{Heads, Rotation, VarlenSequences, ffi, reference};

/// The largest head size that flash attention supports. The head size must also be a multiple of 8.
const WIDEST_HEAD: i64 = 256;

fn is_flash(on: &Gpu, qkv: &Tensor, heads: Heads) -> bool {
    let head_fits = heads.head_dim <= WIDEST_HEAD && heads.head_dim % 8 == 0;
    on.has_flash_attention() && qkv.kind() == Kind::BFloat16 && head_fits && qkv.numel() > 0
}

pub(crate) fn attention(on: &Gpu, qkv: &Tensor, sequences: VarlenSequences, heads: Heads) -> (Tensor, Tensor) {
    match is_flash(on, qkv, heads) {
        true => ffi::flash_attention(qkv, sequences, heads),
        false => reference::attention(qkv, sequences, heads),
    }
}

pub(crate) fn attention_backward(
    on: &Gpu,
    dout: &Tensor,
    qkv: &Tensor,
    saved: (&Tensor, &Tensor),
    sequences: VarlenSequences,
    heads: Heads,
    rotation: Rotation,
) -> Tensor {
    if is_flash(on, qkv, heads) {
        let gradients = ffi::flash_attention_backward(dout, qkv, saved, sequences, heads, true);
        return rotate_back(on, gradients.each_ref(), rotation, heads);
    }
    let dqkv = reference::rotated_gradients(dout, qkv, saved, sequences, heads);
    rotary(on, &dqkv, rotation, heads, true);
    dqkv
}

pub(crate) fn linear_to_float(x: &Tensor, weight: &Tensor, y: &Tensor) {
    match x.kind() {
        Kind::BFloat16 => drop(x.mm_dtype_out(y, &weight.tr(), Kind::Float)),
        _ => reference::linear_to_float(x, weight, y),
    }
}

/// Adds `dy^T x` to the accumulator. For bf16, the GEMM itself adds the product in fp32.
pub(crate) fn accumulate_linear(accumulator: &Tensor, dy: &Tensor, x: &Tensor) {
    match x.kind() {
        Kind::BFloat16 => drop(accumulator.addmm_dtype_out(accumulator, &dy.tr(), x, Kind::Float)),
        _ => reference::accumulate_linear(accumulator, dy, x),
    }
}
