//! The operations of `shim.cpp` and `flash_attention.cpp` as functions of tensors.

use tch::{Device, Kind, Tensor};

use super::{
    CpuAdamWOptions, TensorOut, check, sc_accumulate_linear, sc_adamw, sc_attention, sc_attention_backward,
    sc_column_sums, sc_cross_entropy, sc_flash_attention, sc_flash_attention_backward, sc_linear, sc_linear_backward,
    sc_linear_to_float, sc_rms_norm, sc_rms_norm_backward, sc_rotary, sc_squared_norm, sc_swiglu, sc_swiglu_backward,
};
use crate::{AdamWOptions, AdamWParameter, CrossEntropy, Heads, RmsNormGradients, Rotation, VarlenSequences};

pub(crate) fn column_sums(x: &Tensor) -> Tensor {
    let mut sums = TensorOut::null();
    check(sc_column_sums(x.into(), &mut sums));
    sums.take()
}

pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> (Tensor, Tensor) {
    let (mut y, mut rstd) = (TensorOut::null(), TensorOut::null());
    check(sc_rms_norm(x.into(), weight.into(), eps, &mut y, &mut rstd));
    (y.take(), rstd.take())
}

pub(crate) fn rms_norm_backward(
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

pub(crate) fn swiglu(gate_up: &Tensor) -> Tensor {
    let mut out = TensorOut::null();
    check(sc_swiglu(gate_up.into(), &mut out));
    out.take()
}

pub(crate) fn swiglu_backward(dout: &Tensor, gate_up: &Tensor) -> Tensor {
    let mut out = TensorOut::null();
    check(sc_swiglu_backward(dout.into(), gate_up.into(), &mut out));
    out.take()
}

pub(crate) fn rotary(qkv: &Tensor, Rotation { cos, sin, length }: Rotation, heads: Heads, inverse: bool) {
    check(sc_rotary(qkv.into(), cos.into(), sin.into(), length, heads, inverse));
}

pub(crate) fn attention(qkv: &Tensor, sequences: VarlenSequences, heads: Heads) -> (Tensor, Tensor) {
    let (mut out, mut lse) = (TensorOut::null(), TensorOut::null());
    check(sc_attention(qkv.into(), (&sequences.cu_seqlens.on_device).into(), heads, &mut out, &mut lse));
    (out.take(), lse.take())
}

pub(crate) fn attention_backward(
    dout: &Tensor,
    qkv: &Tensor,
    (out, lse): (&Tensor, &Tensor),
    sequences: VarlenSequences,
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

/// Computes flash attention for bf16 on a GPU.
pub(crate) fn flash_attention(qkv: &Tensor, sequences: VarlenSequences, heads: Heads) -> (Tensor, Tensor) {
    let (VarlenSequences { cu_seqlens, max_length }, mut out, mut lse) =
        (sequences, TensorOut::null(), TensorOut::null());
    check(sc_flash_attention(qkv.into(), (&cu_seqlens.on_device).into(), max_length, heads, &mut out, &mut lse));
    (out.take(), lse.take())
}

/// Returns the gradients of queries, keys and values, for bf16 on a GPU. If `is_deterministic` is set, as in training,
/// the gradients are summed in a fixed order; otherwise the order may vary.
pub(crate) fn flash_attention_backward(
    dout: &Tensor,
    qkv: &Tensor,
    (out, lse): (&Tensor, &Tensor),
    VarlenSequences { cu_seqlens, max_length }: VarlenSequences,
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

pub(crate) fn cross_entropy(logits: &Tensor, targets: &Tensor, dlogits: Option<&Tensor>, scale: f64) -> CrossEntropy {
    let row_losses = Tensor::empty([targets.numel() as i64], (Kind::Double, Device::Cpu));
    let mut sum = 0.0;
    check(sc_cross_entropy(logits.into(), targets.into(), dlogits.into(), (&row_losses).into(), scale, &mut sum));
    CrossEntropy { sum: sum.into(), row_losses }
}

pub(crate) fn squared_norms(tensors: &[&Tensor]) -> Tensor {
    let norm = |list: &&Tensor| {
        let mut sum = 0.0;
        check(sc_squared_norm((*list).into(), &mut sum));
        sum
    };
    Tensor::from_slice(&tensors.iter().map(norm).collect::<Vec<f64>>())
}

pub(crate) fn adamw(parameters: &[AdamWParameter], options: AdamWOptions) {
    let AdamWOptions { lr, beta1, beta2, eps, step, clip } = options;
    for AdamWParameter { value, gradient, exp_avg, exp_avg_sq, compute, weight_decay } in parameters.iter().copied() {
        let options = CpuAdamWOptions { lr, beta1, beta2, weight_decay, eps, step, clip };
        let (exp_avg, exp_avg_sq) = (exp_avg.into(), exp_avg_sq.into());
        check(sc_adamw(value.into(), gradient.into(), exp_avg, exp_avg_sq, compute.into(), options));
    }
}

pub(crate) fn linear(x: &Tensor, weight: &Tensor, residual: Option<&Tensor>) -> Tensor {
    let mut y = TensorOut::null();
    check(sc_linear(x.into(), weight.into(), residual.into(), &mut y));
    y.take()
}

pub(crate) fn linear_to_float(x: &Tensor, weight: &Tensor, y: &Tensor) {
    check(sc_linear_to_float(x.into(), weight.into(), y.into()));
}

pub(crate) fn linear_backward(dy: &Tensor, weight: &Tensor) -> Tensor {
    let mut dx = TensorOut::null();
    check(sc_linear_backward(dy.into(), weight.into(), &mut dx));
    dx.take()
}

pub(crate) fn accumulate_linear(accumulator: &Tensor, dy: &Tensor, x: &Tensor) {
    check(sc_accumulate_linear(accumulator.into(), dy.into(), x.into()));
}
