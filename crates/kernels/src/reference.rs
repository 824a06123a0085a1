//! Implements the operations with libtorch's operations. The tests compare the kernels with this module. Training uses
//! it where no kernel exists.

use tch::{Device, Kind, Tensor};

use super::{AdamWOptions, AdamWParameter, CrossEntropy, Heads, RmsNormGradients, Rotation, VarlenSequences};

fn float(tensor: &Tensor) -> Tensor {
    tensor.to_kind(Kind::Float)
}

pub(super) fn column_sums(x: &Tensor) -> Tensor {
    float(x).sum_dim_intlist([0i64].as_slice(), false, Kind::Float)
}

pub(super) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> (Tensor, Tensor) {
    let xf = float(x);
    let rstd = (xf.square().mean_dim([-1i64].as_slice(), true, Kind::Float) + eps).rsqrt();
    let y = (xf * &rstd * weight).to_kind(x.kind());
    (y, rstd.view([-1]))
}

pub(super) fn rms_norm_backward(
    dy: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    rstd: &Tensor,
    residual_gradient: Option<&Tensor>,
) -> RmsNormGradients {
    let (dy, rstd) = (float(dy), rstd.view([-1, 1]));
    let xhat = float(x).view([-1, weight.numel() as i64]) * &rstd;
    let dy = dy.view_as(&xhat);
    let dweight = (&dy * &xhat).sum_dim_intlist([0i64].as_slice(), false, Kind::Float);
    let g = dy * weight;
    let mean = (&g * &xhat).mean_dim([-1i64].as_slice(), true, Kind::Float);
    let mut dx = (g - &xhat * mean) * rstd;
    if let Some(residual) = residual_gradient {
        dx += float(residual).view_as(&dx);
    }
    let like_x = |tensor: Tensor| tensor.view_as(x).to_kind(x.kind());
    RmsNormGradients { dx: like_x(dx), dweight, y: like_x(xhat * weight) }
}

/// Splits `[rows, 2 width]` into gate and up, `f32[rows, width]`.
fn gate_and_up(gate_up: &Tensor) -> (Tensor, Tensor) {
    let halves = float(gate_up).chunk(2, -1);
    (halves[0].shallow_clone(), halves[1].shallow_clone())
}

pub(super) fn swiglu(gate_up: &Tensor) -> Tensor {
    let (gate, up) = gate_and_up(gate_up);
    (gate.silu() * up).to_kind(gate_up.kind())
}

pub(super) fn swiglu_backward(dout: &Tensor, gate_up: &Tensor) -> Tensor {
    let (gate, up) = gate_and_up(gate_up);
    let (dout, sigmoid) = (float(dout), gate.sigmoid());
    let silu = &gate * &sigmoid;
    let out = (&silu * &up).to_kind(gate_up.kind());
    let dgate = &dout * up * (&sigmoid + &silu * (1.0 - &sigmoid));
    gate_up.shallow_clone().copy_(&Tensor::cat(&[dgate, dout * silu], -1));
    out
}

pub(super) fn rotary(qkv: &Tensor, Rotation { cos, sin, length }: Rotation, heads: Heads, inverse: bool) {
    let Heads { heads, kv_heads, head_dim } = heads;
    let table = |table: &Tensor| table.narrow(0, 0, length).view([1, length, 1, head_dim / 2]);
    let (cos, sin) = (table(cos), if inverse { -table(sin) } else { table(sin) });
    let rotated = qkv.view([-1, length, heads + 2 * kv_heads, head_dim]).narrow(2, 0, heads + kv_heads);
    let (mut first, mut second) = (rotated.narrow(3, 0, head_dim / 2), rotated.narrow(3, head_dim / 2, head_dim / 2));
    let (x1, x2) = (float(&first).copy(), float(&second).copy());
    first.copy_(&(&x1 * &cos - &x2 * &sin));
    second.copy_(&(x2 * cos + x1 * sin));
}

/// Returns, for each sequence, the first row, the length, and the queries, keys and values,
/// `f32[heads, length, head_dim]` each. Keys and values are repeated for the query heads that share them.
fn by_sequence(qkv: &Tensor, sequences: VarlenSequences, heads: Heads) -> Vec<(i64, i64, [Tensor; 3])> {
    let (VarlenSequences { cu_seqlens, .. }, Heads { heads, kv_heads, head_dim }) = (sequences, heads);
    let part = |first: i64, count: i64, row: i64, length: i64| {
        let all = float(&qkv.view([-1, heads + 2 * kv_heads, head_dim]));
        let part = all.narrow(0, row, length).narrow(1, first, count).transpose(0, 1);
        part.repeat_interleave_self_int(heads / count, 0, None)
    };
    let sequence = |pair: &[i64]| {
        let (row, length) = (pair[0], pair[1] - pair[0]);
        let qkv = [(0, heads), (heads, kv_heads), (heads + kv_heads, kv_heads)];
        (row, length, qkv.map(|(first, count)| part(first, count, row, length)))
    };
    cu_seqlens.on_host.windows(2).map(sequence).collect()
}

/// Returns causal scores, `f32[heads, length, length]`: minus infinity where a key is masked.
fn scores(q: &Tensor, k: &Tensor) -> Tensor {
    let length = q.size()[1];
    let visible = Tensor::ones([length, length], (Kind::Bool, q.device())).tril(0);
    let scores = q.matmul(&k.transpose(1, 2)) / (q.size()[2] as f64).sqrt();
    scores.masked_fill(&visible.logical_not(), f64::NEG_INFINITY)
}

/// Converts `[heads, length, head_dim]` to `[length, heads * head_dim]`.
fn merge_heads(x: &Tensor) -> Tensor {
    let size = x.size();
    x.transpose(0, 1).reshape([size[1], size[0] * size[2]])
}

pub(super) fn attention(qkv: &Tensor, sequences: VarlenSequences, heads: Heads) -> (Tensor, Tensor) {
    let (mut outs, mut lses) = (Vec::new(), Vec::new());
    for (_, _, [q, k, v]) in by_sequence(qkv, sequences, heads) {
        let scores = scores(&q, &k);
        outs.push(merge_heads(&scores.softmax(-1, Kind::Float).matmul(&v)).to_kind(qkv.kind()));
        lses.push(scores.logsumexp([-1i64].as_slice(), false).transpose(0, 1));
    }
    (Tensor::cat(&outs, 0), Tensor::cat(&lses, 0))
}

pub(super) fn attention_backward(
    dout: &Tensor,
    qkv: &Tensor,
    (out, lse): (&Tensor, &Tensor),
    sequences: VarlenSequences,
    heads: Heads,
    rotation: Rotation,
) -> Tensor {
    let dqkv = rotated_gradients(dout, qkv, (out, lse), sequences, heads);
    rotary(&dqkv, rotation, heads, true);
    dqkv
}

/// Returns the gradients of the rotated queries and keys, and of the values, side by side.
pub(super) fn rotated_gradients(
    dout: &Tensor,
    qkv: &Tensor,
    (out, lse): (&Tensor, &Tensor),
    sequences: VarlenSequences,
    heads: Heads,
) -> Tensor {
    let Heads { heads: query_heads, kv_heads, head_dim } = heads;
    let by_head = |x: &Tensor, row: i64, length: i64| {
        float(x).narrow(0, row, length).view([length, query_heads, head_dim]).transpose(0, 1)
    };
    // sums over the query heads that share a head of keys and values
    let sum_group = |x: Tensor| {
        let length = x.size()[1];
        x.view([kv_heads, query_heads / kv_heads, length, head_dim]).sum_dim_intlist(
            [1i64].as_slice(),
            false,
            Kind::Float,
        )
    };
    let mut rows = Vec::new();
    for (row, length, [q, k, v]) in by_sequence(qkv, sequences, heads) {
        let (dout, out) = (by_head(dout, row, length), by_head(out, row, length));
        let lse = lse.narrow(0, row, length).transpose(0, 1).unsqueeze(-1);
        let weights = (scores(&q, &k) - lse).exp();
        let delta = (&dout * out).sum_dim_intlist([-1i64].as_slice(), true, Kind::Float);
        let dscores = (dout.matmul(&v.transpose(1, 2)) - delta) * &weights / (head_dim as f64).sqrt();
        let dq = dscores.matmul(&k);
        let (dk, dv) =
            (sum_group(dscores.transpose(1, 2).matmul(&q)), sum_group(weights.transpose(1, 2).matmul(&dout)));
        rows.push(merge_heads(&Tensor::cat(&[dq, dk, dv], 0)));
    }
    Tensor::cat(&rows, 0).to_kind(qkv.kind())
}

pub(super) fn cross_entropy(logits: &Tensor, targets: &Tensor, dlogits: Option<&Tensor>, scale: f64) -> CrossEntropy {
    let counts = targets.ge(0).to_kind(Kind::Float).unsqueeze(1);
    let targets = targets.clamp_min(0).unsqueeze(1);
    let log_sum_exp = logits.logsumexp([-1i64].as_slice(), true);
    let losses = (&log_sum_exp - logits.gather(1, &targets, false)).where_self(&counts.gt(0.0), &counts.zeros_like());
    if let Some(dlogits) = dlogits {
        let mut gradient = (logits - &log_sum_exp).exp();
        let _ = gradient.scatter_add_(1, &targets, &Tensor::full_like(&log_sum_exp, -1.0));
        let gradient = (gradient * scale).where_self(&counts.gt(0.0), &counts.zeros_like());
        dlogits.shallow_clone().copy_(&gradient);
    }
    CrossEntropy { sum: losses.sum(Kind::Double), row_losses: losses.to_kind(Kind::Double).squeeze_dim(1) }
}

pub(super) fn squared_norms(tensors: &[&Tensor]) -> Tensor {
    let square = |list: &&Tensor| list.to_kind(Kind::Double).square().sum(Kind::Double);
    match tensors {
        [] => Tensor::zeros([0], (Kind::Double, Device::Cpu)),
        tensors => Tensor::stack(&tensors.iter().map(square).collect::<Vec<_>>(), 0),
    }
}

pub(super) fn adamw(parameters: &[AdamWParameter], options: AdamWOptions) {
    let AdamWOptions { lr, beta1, beta2, eps, step, clip } = options;
    for AdamWParameter { value, gradient, exp_avg, exp_avg_sq, compute, weight_decay } in parameters {
        let gradient = *gradient * clip;
        exp_avg.shallow_clone().copy_(&(*exp_avg * beta1 + &gradient * (1.0 - beta1)));
        exp_avg_sq.shallow_clone().copy_(&(*exp_avg_sq * beta2 + gradient.square() * (1.0 - beta2)));
        let denominator = exp_avg_sq.sqrt() / (1.0 - beta2.powf(step)).sqrt() + eps;
        let update = *exp_avg / denominator * (lr / (1.0 - beta1.powf(step)));
        value.shallow_clone().copy_(&(*value * (1.0 - lr * weight_decay) - update));
        if let Some(compute) = compute {
            compute.shallow_clone().copy_(value);
        }
    }
}

pub(super) fn accumulate_embedding(accumulator: &Tensor, token_ids: &Tensor, dy: &Tensor) {
    let _ = accumulator.shallow_clone().index_add_(0, token_ids, &float(dy));
}

pub(super) fn linear(x: &Tensor, weight: &Tensor, residual: Option<&Tensor>) -> Tensor {
    residual.map_or_else(|| x.mm(&weight.tr()), |residual| residual.addmm(x, &weight.tr()))
}

pub(super) fn linear_to_float(x: &Tensor, weight: &Tensor, y: &Tensor) {
    let _ = float(x).mm_out(y, &float(weight).tr());
}

pub(super) fn linear_backward(dy: &Tensor, weight: &Tensor) -> Tensor {
    dy.mm(weight)
}

pub(super) fn accumulate_linear(accumulator: &Tensor, dy: &Tensor, x: &Tensor) {
    // the product of two bf16 values is exact in fp32
    let _ = accumulator.shallow_clone().addmm_(&float(dy).tr(), &float(x));
}
