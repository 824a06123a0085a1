//! Compares GPU results with the reference operations on the same GPU: kernels, flash attention and matrix products.
//! The tests call the same functions as the layers of a model. `make gpu` runs these tests. Only the test of an error
//! message runs without a GPU.

use std::os::unix::fs::symlink;
use std::time::Instant;

use super::*;

pub(super) const GPU: Device = Device::Cuda(0);
/// The number of calls in a round, so that the host's overhead does not dominate the measurement.
const CALLS: u32 = 10;
const KINDS: [Kind; 2] = [Kind::Float, Kind::BFloat16];

/// Loads CUDA and the kernels on the GPU.
///
/// # Panics
/// If there is no usable GPU.
pub(super) fn begin() {
    crate::device::cuda_devices().unwrap();
    load_on_gpu(0).unwrap();
}

fn on_gpu(shape: &[i64], kind: Kind, seed: u64) -> Tensor {
    values(shape, kind, seed).to_device(GPU)
}

/// Returns a bf16 tensor of this shape whose values differ from run to run.
pub(super) fn random(shape: &[i64]) -> Tensor {
    Tensor::randn(shape, (Kind::BFloat16, GPU))
}

/// Returns the seconds of each call. The rounds of the calls alternate. The time of a call is the median of its rounds,
/// after one warm-up round.
pub(super) fn median_seconds<const N: usize>(rounds: usize, calls: [&dyn Fn(); N]) -> [f64; N] {
    let seconds = |call: &dyn Fn()| {
        tch::Cuda::synchronize(0);
        let started = Instant::now();
        (0..CALLS).for_each(|_| call());
        tch::Cuda::synchronize(0);
        started.elapsed().as_secs_f64() / f64::from(CALLS)
    };
    let measured: Vec<[f64; N]> = (0..=rounds).map(|_| calls.map(seconds)).skip(1).collect();
    std::array::from_fn(|which| {
        let mut times: Vec<f64> = measured.iter().map(|round| round[which]).collect();
        times.sort_by(f64::total_cmp);
        times[rounds / 2]
    })
}

#[test]
#[ignore = "needs a GPU: see `make gpu`"]
fn kernels_are_as_the_reference() {
    begin();
    for (kind, (rows, width)) in
        KINDS.into_iter().flat_map(|kind| [(1, 1), (288, 32), (1000, 333), (4096, 2048)].map(|s| (kind, s)))
    {
        let [x, dy, residual] = [1, 2, 3].map(|seed| on_gpu(&[rows, width], kind, seed));
        let weight = on_gpu(&[width], Kind::Float, 4);
        let ((y, rstd), (expected_y, expected_rstd)) =
            (rms_norm(&x, &weight, 1e-5), reference::rms_norm(&x, &weight, 1e-5));
        assert_close("y", &y, &expected_y, tolerance(kind));
        assert_close("rstd", &rstd, &expected_rstd, tolerance(Kind::Float));
        let kernel = rms_norm_backward(&dy, &x, &weight, &rstd, Some(&residual));
        let reference = reference::rms_norm_backward(&dy, &x, &weight, &rstd, Some(&residual));
        // in a row of one column, the terms of dx cancel
        assert_close_to_scale("dx", &kernel.dx, &reference.dx, tolerance(kind), 1.0);
        assert_close("y again", &kernel.y, &reference.y, tolerance(kind));
        assert_close_to_scale("dweight", &kernel.dweight, &reference.dweight, 1e-5, (rows as f64).sqrt());
        assert_close_to_scale("column sums", &column_sums(&x), &reference::column_sums(&x), 1e-6, rows as f64);
        let gate_up = on_gpu(&[rows, 2 * width], kind, 5);
        assert_close("SwiGLU", &swiglu(&gate_up), &reference::swiglu(&gate_up), tolerance(kind));
        let again = gate_up.copy();
        let (expected_out, (dgate_up, out)) = (reference::swiglu_backward(&dy, &again), swiglu_backward(&dy, gate_up));
        assert_close("SwiGLU again", &out, &expected_out, tolerance(kind));
        assert_close("dgate_up", &dgate_up, &again, tolerance(kind));
        let targets = Tensor::from_slice(
            &(0..rows).map(|row| if row % 3 == 1 { -100 } else { row % width }).collect::<Vec<i64>>(),
        );
        let (logits, targets) = (x.to_kind(Kind::Float), targets.to_device(GPU));
        let dlogits = Tensor::zeros([rows, width], (kind, GPU));
        let expected = reference::cross_entropy(&logits, &targets, Some(&dlogits), 0.25);
        let (losses, gradient) = cross_entropy_with_gradient(logits, &targets, 0.25, kind);
        assert_close_to_scale("loss", &losses.sum, &expected.sum, tolerance(Kind::Float), 10.0 * rows as f64);
        assert_close_to_scale("losses of rows", &losses.row_losses, &expected.row_losses, tolerance(Kind::Float), 10.0);
        assert_close_to_scale("dlogits", &gradient, &dlogits, tolerance(kind), 0.25);
        let ids = Tensor::from_slice(&(0..rows).map(|row| row * 7919 % 50).collect::<Vec<i64>>()).to_device(GPU);
        let [sum, expected_sum] = [6, 6].map(|seed| on_gpu(&[50, width], Kind::Float, seed));
        accumulate_embedding(&sum, &ids, &dy);
        reference::accumulate_embedding(&expected_sum, &ids, &dy);
        assert_close_to_scale("embedding", &sum, &expected_sum, 1e-5, (rows as f64).sqrt());
        let lists = [&sum, &weight];
        assert_close("norms", &squared_norms(&lists, GPU), &reference::squared_norms(&lists), 1e-12);
    }
}

#[test]
#[ignore = "needs a GPU: see `make gpu`"]
fn adamw_and_rotary_are_as_the_reference() {
    begin();
    let update = |update: &dyn Fn(&[AdamWParameter], AdamWOptions)| {
        let [value, gradient, exp_avg] = [1, 2, 3].map(|seed| on_gpu(&[300, 70], Kind::Float, seed));
        let (exp_avg_sq, compute) =
            (on_gpu(&[300, 70], Kind::Float, 4).square(), Tensor::zeros([300, 70], (Kind::BFloat16, GPU)));
        let (value, gradient, exp_avg, exp_avg_sq) = (&value, &gradient, &exp_avg, &exp_avg_sq);
        let parameter =
            AdamWParameter { value, gradient, exp_avg, exp_avg_sq, compute: Some(&compute), weight_decay: 0.1 };
        update(&[parameter], AdamWOptions { lr: 1e-2, beta1: 0.9, beta2: 0.95, eps: 1e-8, step: 3.0, clip: 0.5 });
        [value.copy(), exp_avg.copy(), exp_avg_sq.copy(), compute]
    };
    let (kernel, reference) = (update(&|list, options| adamw(list, options, GPU)), update(&reference::adamw));
    for (kernel, reference) in kernel.iter().zip(&reference) {
        assert_close("update", kernel, reference, tolerance(kernel.kind()));
    }
    for kind in KINDS {
        let heads = Heads { heads: 4, kv_heads: 2, head_dim: 64 };
        let [qkv, reference] = [1, 1].map(|seed| on_gpu(&[60, 512], kind, seed));
        let tables = RotationTables::new(30, 32, 2, GPU);
        rotary(&qkv, tables.rotation(), heads);
        reference::rotary(&reference, tables.rotation(), heads, false);
        assert_close("qkv", &qkv, &reference, tolerance(kind));
    }
}

#[test]
#[ignore = "needs a GPU: see `make gpu`"]
fn attention_is_as_the_reference_and_has_the_same_bits_again() {
    begin();
    let bounds = CuSeqlens::new(&[0, 1, 200, 200, 712], GPU);
    let sequences = VarlenSequences { cu_seqlens: &bounds, max_length: 600 };
    let dims =
        [(Kind::BFloat16, 8), (Kind::BFloat16, 64), (Kind::BFloat16, 128), (Kind::BFloat16, 12), (Kind::Float, 64)];
    for (kind, head_dim) in dims {
        let heads = Heads { heads: 8, kv_heads: 2, head_dim };
        let (qkv, dout) = (on_gpu(&[712, 12 * head_dim], kind, 1), on_gpu(&[712, 8 * head_dim], kind, 2));
        let tables = RotationTables::new(712, head_dim / 2, 3, GPU);
        let rotation = tables.rotation();
        let both = || {
            let (out, lse) = attention(&qkv, sequences, heads);
            let dqkv = attention_backward(&dout, &qkv, (&out, &lse), sequences, heads, rotation);
            [out, lse, dqkv]
        };
        let (out, lse) = reference::attention(&qkv, sequences, heads);
        let dqkv = reference::attention_backward(&dout, &qkv, (&out, &lse), sequences, heads, rotation);
        let ([ours, lses, gradient], again) = (both(), both());
        assert_close("out", &ours, &out, 3.0 * tolerance(kind));
        assert_close("lse", &lses, &lse, 1e-4);
        assert_close("dqkv", &gradient, &dqkv, 3.0 * tolerance(kind));
        for (first, again) in [ours, lses, gradient].iter().zip(&again) {
            assert!(list(first) == list(again), "the second call gives other bits");
        }
    }
}

#[test]
#[ignore = "needs a GPU: see `make gpu`"]
fn products_are_summed_in_fp32() {
    begin();
    for kind in KINDS {
        let (dy, x) = (on_gpu(&[1000, 192], kind, 1), on_gpu(&[1000, 320], kind, 2));
        let accumulator = on_gpu(&[192, 320], Kind::Float, 3);
        let double = |tensor: &Tensor| tensor.to_kind(Kind::Double);
        let exact = double(&accumulator) + double(&dy).tr().matmul(&double(&x));
        accumulate_linear(&accumulator, &dy, &x);
        assert_close("accumulator", &double(&accumulator), &exact, 2e-6);
        let (weight, y) = (on_gpu(&[500, 320], kind, 4), Tensor::zeros([1000, 500], (Kind::Float, GPU)));
        linear_to_float(&x, &weight, &y);
        assert_close("y", &double(&y), &double(&x).matmul(&double(&weight).tr()), 2e-6);
    }
}

/// The test runs itself in a child process whose loader finds the C library under the name of the driver's library.
#[test]
fn a_gpu_that_can_t_get_the_kernels_is_reported() {
    const IN_CHILD: &str = "STAGECOACH_WITHOUT_DRIVER";
    if std::env::var_os(IN_CHILD).is_some() {
        let reported = load_on_gpu(0).unwrap_err().to_string();
        assert_eq!(reported, "there is no usable NVIDIA driver: libcuda.so.1 has no cuInit");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    symlink(c_library(), folder.path().join("libcuda.so.1")).unwrap();
    let test = "tests::gpu::a_gpu_that_can_t_get_the_kernels_is_reported";
    run_in_child(test, [(IN_CHILD, folder.path()), ("LD_LIBRARY_PATH", folder.path())]);
}
