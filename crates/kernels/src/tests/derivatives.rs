//! Compares the gradients of the kernels with difference quotients of the formulas in f64.

use tch::{Device, Kind, Tensor};

use super::values;
use crate::*;

/// Returns the derivative of `f` at `x` along `direction`, by a difference quotient in f64.
fn quotient(f: impl Fn(&Tensor) -> Tensor, x: &Tensor, direction: &Tensor) -> f64 {
    let h = 1e-5;
    let at = |h: f64| f(&(x + direction * h)).sum(Kind::Double).double_value(&[]);
    (at(h) - at(-h)) / (2.0 * h)
}

/// Checks the gradient of the inner product of `f(x)` and `dy` with respect to `x`, along one direction. `f` computes
/// in f64.
#[track_caller]
fn assert_derivative(what: &str, f: impl Fn(&Tensor) -> Tensor, x: &Tensor, dy: &Tensor, gradient: &Tensor) {
    let direction = values(&x.size(), Kind::Double, 77);
    let expected = quotient(|x| f(x) * dy.to_kind(Kind::Double), &x.to_kind(Kind::Double), &direction);
    let actual = (gradient.to_kind(Kind::Double) * direction).sum(Kind::Double).double_value(&[]);
    assert!(expected.abs() > 0.1, "{what}: the direction is nearly orthogonal to the gradient, {expected}");
    assert!(
        (actual - expected).abs() < 1e-5 * expected.abs().max(1.0),
        "{what}: derivative {actual}, difference quotient {expected}"
    );
}

/// Returns `x[tokens, heads, 2 * pairs]` with each pair rotated by its token's angle, `angles[tokens, pairs]`.
fn rotated(x: &Tensor, angles: &Tensor) -> Tensor {
    let (cos, sin) = (angles.cos().unsqueeze(1), angles.sin().unsqueeze(1));
    let halves = x.chunk(2, -1);
    Tensor::cat(&[&halves[0] * &cos - &halves[1] * &sin, &halves[1] * &cos + &halves[0] * &sin], -1)
}

fn last(tensor: &Tensor, keep: bool) -> Tensor {
    tensor.mean_dim([-1i64].as_slice(), keep, Kind::Double)
}

#[test]
fn gradients_are_the_derivatives_of_the_formulas() {
    let value = |shape: &[i64], seed| values(shape, Kind::Float, seed);
    let (x, weight, dy) = (value(&[7, 50], 1), value(&[50], 2), value(&[7, 50], 3));
    let norm = |x: &Tensor, w: &Tensor| x * (last(&x.square(), true) + 1e-5).rsqrt() * w;
    let (_, rstd) = rms_norm(&x, &weight, 1e-5);
    let RmsNormGradients { dx, dweight, .. } = rms_norm_backward(&dy, &x, &weight, &rstd, None);
    assert_derivative("RMSNorm", |x| norm(x, &weight.to_kind(Kind::Double)), &x, &dy, &dx);
    assert_derivative("RMSNorm's weight", |w| norm(&x.to_kind(Kind::Double), w), &weight, &dy, &dweight);

    let (gate_up, dy) = (value(&[7, 60], 4), value(&[7, 30], 5));
    let formula = |gate_up: &Tensor| gate_up.narrow(1, 0, 30).silu() * gate_up.narrow(1, 30, 30);
    let (gradient, _) = swiglu_backward(&dy, gate_up.copy());
    assert_derivative("SwiGLU", formula, &gate_up, &dy, &gradient);

    let heads = Heads { heads: 4, kv_heads: 2, head_dim: 6 };
    let (qkv, dy) = (value(&[20, 48], 6), value(&[20, 24], 7));
    let angles = value(&[20, 3], 8);
    let (cos, sin) = (angles.cos(), angles.sin());
    let rotation = Rotation { cos: &cos, sin: &sin, length: 20 };
    let formula = |qkv: &Tensor| {
        let part = |first: i64, count: i64| {
            let x = qkv.view([20, 8, 6]).narrow(1, first, count);
            let x = if first < 6 { rotated(&x, &angles) } else { x }.transpose(0, 1);
            x.repeat_interleave_self_int(4 / count, 0, None)
        };
        let hidden = Tensor::ones([20, 20], (Kind::Bool, Device::Cpu)).triu(1);
        let scores = part(0, 4).matmul(&part(4, 2).transpose(1, 2)) / 6f64.sqrt();
        let weights = scores.masked_fill(&hidden, f64::NEG_INFINITY).softmax(-1, Kind::Double);
        weights.matmul(&part(6, 2)).transpose(0, 1).reshape([20, 24])
    };
    let cu_seqlens = CuSeqlens::new(&[0, 20], Device::Cpu);
    let sequences = VarlenSequences { cu_seqlens: &cu_seqlens, max_length: 20 };
    let in_attention = qkv.copy();
    rotary(&in_attention, rotation, heads);
    let (out, lse) = attention(&in_attention, sequences, heads);
    let gradient = attention_backward(&dy, &in_attention, (&out, &lse), sequences, heads, rotation);
    assert_derivative("attention", formula, &qkv, &dy, &gradient);

    let (logits, targets) = (value(&[6, 40], 10), Tensor::from_slice(&[3i64, -100, 39, 0, 7, 7]));
    let formula = |logits: &Tensor| {
        let counts = targets.ge(0).to_kind(Kind::Double);
        let target = logits.gather(1, &targets.clamp_min(0).unsqueeze(1), false).squeeze_dim(1);
        (logits.logsumexp([-1i64].as_slice(), false) - target) * counts
    };
    let (_, gradient) = cross_entropy_with_gradient(logits.copy(), &targets, 1.0, Kind::Float);
    assert_derivative("cross-entropy", formula, &logits, &Tensor::ones([6], (Kind::Float, Device::Cpu)), &gradient);
}
