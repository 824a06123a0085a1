//! Compares the GPU operations with the reference operations, without a GPU. The code that launches the kernels is the
//! same as for a GPU, but the kernels are compiled for the host, and `cuda/host.h` simulates the threads of a block.

use std::ffi::c_void;
use std::ptr::from_ref;

use super::host_kernels::{HostKernels, guarded};
use super::*;
use crate::cuda::{self as operations, Grid, Launcher};

/// Returns the results of an operation. Asserts that the order of threads and the number of blocks do not change the
/// results.
#[track_caller]
fn in_any_order<const N: usize>(operation: impl Fn(&dyn Launcher) -> [Tensor; N]) -> [Tensor; N] {
    let [results, others] = [HostKernels::forwards(), HostKernels::backwards()].map(|host| operation(&host));
    for (result, other) in results.iter().zip(&others) {
        let bits = |tensor: &Tensor| list(tensor).into_iter().map(f64::to_bits).collect::<Vec<_>>();
        assert!(bits(result) == bits(other), "another order gives other bits");
    }
    results
}

const KINDS: [Kind; 2] = [Kind::Float, Kind::BFloat16];

#[test]
fn swiglu_is_as_the_reference() {
    for kind in KINDS {
        for (rows, width) in [(1, 1), (7, 33), (5, 256), (0, 3), (9, 700), (2, 4500), (2, 4504)] {
            let gate_up = guarded(&(values(&[rows, 2 * width], kind, 1) * 3.0));
            let dout = guarded(&values(&[rows, width], kind, 2));
            let [out] = in_any_order(|on| [operations::swiglu(on, &gate_up)]);
            assert_close("out", &out, &reference::swiglu(&gate_up), tolerance(kind));
            let [out, dgate_up] = in_any_order(|on| {
                let gate_up = guarded(&gate_up);
                [operations::swiglu_backward(on, &dout, &gate_up), gate_up]
            });
            let reference = gate_up.copy();
            assert_close("out again", &out, &reference::swiglu_backward(&dout, &reference), tolerance(kind));
            assert_close("dgate_up", &dgate_up, &reference, tolerance(kind));
        }
    }
}

#[test]
fn rotary_is_as_the_reference() {
    for kind in KINDS {
        for (rows, length, half, inverse) in
            [(6i64, 3i64, 5i64, false), (9, 9, 32, true), (1, 1, 1, false), (4, 2, 20, false)]
        {
            let heads = Heads { heads: 4, kv_heads: 2, head_dim: 2 * half };
            let qkv = values(&[rows, 8 * heads.head_dim], kind, 3);
            let [cos, sin] = [4, 5].map(|seed| guarded(&values(&[length, half], Kind::Float, seed)));
            let rotation = Rotation { cos: &cos, sin: &sin, length };
            let [rotated] = in_any_order(|on| {
                let qkv = guarded(&qkv);
                operations::rotary(on, &qkv, rotation, heads, inverse);
                [qkv]
            });
            let parts = qkv.view([rows, 8, heads.head_dim]);
            let gradients = [(0, 4), (4, 2), (6, 2)].map(|(first, count)| guarded(&parts.narrow(1, first, count)));
            let [back] = in_any_order(|on| [operations::rotate_back(on, gradients.each_ref(), rotation, heads)]);
            let expected_back = qkv.copy();
            reference::rotary(&qkv, rotation, heads, inverse);
            assert_close("qkv", &rotated, &qkv, tolerance(kind));
            reference::rotary(&expected_back, rotation, heads, true);
            assert_close("dqkv", &back, &expected_back, tolerance(kind));
        }
    }
}

#[test]
fn rms_norm_is_as_the_reference() {
    let shapes = [(11, 77), (5, 64), (1, 1), (0, 4), (150, 33), (3, 2500), (34, 4500), (2, 9000)];
    for (kind, (rows, width)) in KINDS.into_iter().flat_map(|kind| shapes.map(|shape| (kind, shape))) {
        let [dy, x, residual] = [1, 2, 3].map(|seed| guarded(&values(&[rows, width], kind, seed)));
        let weight = guarded(&values(&[width], Kind::Float, 4));
        let [y, rstd] = in_any_order(|on| operations::rms_norm(on, &x, &weight, 1e-5).into());
        let (expected_y, expected_rstd) = reference::rms_norm(&x, &weight, 1e-5);
        assert_close("y", &y, &expected_y, tolerance(kind));
        assert_close("rstd", &rstd, &expected_rstd, tolerance(Kind::Float));
        for residual in [None, Some(&residual)] {
            let [dx, dweight, y] = in_any_order(|on| {
                let RmsNormGradients { dx, dweight, y } =
                    operations::rms_norm_backward(on, &dy, &x, &weight, &rstd, residual);
                [dx, dweight, y]
            });
            let expected = reference::rms_norm_backward(&dy, &x, &weight, &rstd, residual);
            // an element of dx is a difference of terms whose magnitude is about the row's `rstd`
            let scale = expected_rstd.numel().min(1) as f64 * list(&expected_rstd).into_iter().fold(1.0, f64::max);
            assert_close_to_scale("dx", &dx, &expected.dx, tolerance(kind), 4.0 * scale);
            assert_close("y again", &y, &expected.y, tolerance(kind));
            assert_close_to_scale("dweight", &dweight, &expected.dweight, 1e-5, (rows as f64).sqrt());
        }
    }
}

#[test]
fn cross_entropy_is_as_the_reference() {
    for (kind, rows, vocab) in [
        (Kind::Float, 7, 1),
        (Kind::Float, 8, 99),
        (Kind::BFloat16, 5, 3000),
        (Kind::Float, 0, 4),
        (Kind::BFloat16, 4, 9000),
    ] {
        let logits = guarded(&(values(&[rows, vocab], Kind::Float, 1) * 4.0));
        let target = |row: i64| if row % 3 == 1 { -100 } else { row * 7919 % vocab };
        let targets = guarded(&Tensor::from_slice(&(0..rows).map(target).collect::<Vec<_>>()));
        let nothing = guarded(&Tensor::full([rows, vocab], f64::NAN, (kind, Device::Cpu)));
        let [loss, row_losses, gradient] = in_any_order(|on| {
            let gradient = guarded(&nothing);
            let losses = operations::cross_entropy(on, &logits, &targets, Some(&gradient), 0.25);
            [losses.sum, losses.row_losses, gradient]
        });
        let reference = Tensor::zeros([rows, vocab], (kind, Device::Cpu));
        let expected = reference::cross_entropy(&logits, &targets, Some(&reference), 0.25);
        assert_close_to_scale("loss", &loss, &expected.sum, tolerance(Kind::Float), 10.0);
        assert_close_to_scale("losses of rows", &row_losses, &expected.row_losses, tolerance(Kind::Float), 10.0);
        assert_close_to_scale("dlogits", &gradient, &reference, tolerance(kind), 0.25);
        let [alone] = in_any_order(|on| [operations::cross_entropy(on, &logits, &targets, None, 1.0).sum]);
        assert_eq!(list(&alone), list(&loss));
        if kind == Kind::Float {
            let [in_place] = in_any_order(|on| {
                let logits = guarded(&logits);
                let _ = operations::cross_entropy(on, &logits, &targets, Some(&logits), 0.25);
                [logits]
            });
            assert_eq!(list(&in_place), list(&gradient));
        }
    }
}

/// The logits have whole groups (the elements that a thread reads at a time) of minus infinity, and one NaN.
#[test]
fn cross_entropy_of_logits_that_are_not_finite_is_as_the_reference() {
    let (rows, vocab) = (3, 40);
    let logits = values(&[rows, vocab], Kind::Float, 1);
    let _ = logits.narrow(0, 0, 2).narrow(1, 8, 24).fill_(f64::NEG_INFINITY);
    let _ = logits.narrow(0, 1, 1).narrow(1, 9, 1).fill_(f64::NAN);
    let (logits, targets) = (guarded(&logits), guarded(&Tensor::from_slice(&[0i64, 1, 2])));
    let [gradient, expected] = [0; 2].map(|_| Tensor::zeros([rows, vocab], (Kind::Float, Device::Cpu)));
    let [loss, gradient] = in_any_order(|on| {
        let gradient = guarded(&gradient);
        [operations::cross_entropy(on, &logits, &targets, Some(&gradient), 0.25).sum, gradient]
    });
    let expected_loss = reference::cross_entropy(&logits, &targets, Some(&expected), 0.25).sum;
    assert_close("loss", &loss, &expected_loss, 1e-6);
    assert_close_to_scale("dlogits", &gradient, &expected, tolerance(Kind::Float), 0.25);
}

#[test]
fn sums_are_as_the_reference() {
    for (kind, rows, width) in
        [(Kind::Float, 10, 70), (Kind::BFloat16, 200, 5), (Kind::Float, 0, 3), (Kind::Float, 40_000, 3)]
    {
        let x = guarded(&values(&[rows, width], kind, 1));
        let [sums] = in_any_order(|on| [operations::column_sums(on, &x)]);
        assert_close_to_scale("column sums", &sums, &reference::column_sums(&x), 1e-6, rows as f64);
    }
    let lists = [1000, 0, 1, 65, 40_000].map(|size| guarded(&values(&[size], Kind::Float, 2)));
    let lists = lists.each_ref();
    let [norms] = in_any_order(|on| [operations::squared_norms(on, &lists)]);
    assert_close("norms", &norms, &reference::squared_norms(&lists), 1e-14);
    let [alone] = in_any_order(|on| [operations::squared_norms(on, &[lists[3]])]);
    assert_eq!(list(&alone)[0], list(&norms)[3], "a norm depends on the lists beside it");
    assert_eq!(operations::squared_norms(&HostKernels::forwards(), &[]).size(), [0]);
}

#[test]
fn an_update_of_a_list_of_parameters_is_as_the_reference() {
    type Stored = ([Tensor; 4], Option<Tensor>, f64);
    let stored = || -> Vec<Stored> {
        let sizes = [(200i64, 0.1, true), (1, 0.0, false), (0, 0.1, true), (3300, 0.1, false)];
        let parameter = |(size, weight_decay, has_compute): (i64, f64, bool)| {
            let [value, gradient, exp_avg] = [1, 2, 3].map(|seed| guarded(&values(&[size], Kind::Float, seed)));
            let exp_avg_sq = guarded(&values(&[size], Kind::Float, 4).square());
            let compute = guarded(&Tensor::zeros([size], (Kind::BFloat16, Device::Cpu)));
            ([value, gradient, exp_avg, exp_avg_sq], has_compute.then_some(compute), weight_decay)
        };
        sizes.map(parameter).into()
    };
    fn parameter(([value, gradient, exp_avg, exp_avg_sq], compute, weight_decay): &Stored) -> AdamWParameter<'_> {
        let compute = compute.as_ref();
        AdamWParameter { value, gradient, exp_avg, exp_avg_sq, compute, weight_decay: *weight_decay }
    }
    let parameters = |stored: &'_ [Stored], update: &dyn Fn(&[AdamWParameter])| {
        update(&stored.iter().map(parameter).collect::<Vec<_>>());
    };
    let options = AdamWOptions { lr: 1e-2, beta1: 0.9, beta2: 0.95, eps: 1e-8, step: 3.0, clip: 0.5 };
    let all = |stored: &[Stored], kind: Kind| {
        let tensors = stored.iter().flat_map(|(tensors, compute, _)| tensors.iter().chain(compute));
        Tensor::cat(&tensors.filter(|tensor| tensor.kind() == kind).collect::<Vec<_>>(), 0)
    };
    let updated = in_any_order(|on| {
        let stored = stored();
        parameters(&stored, &|list| operations::adamw(on, list, options));
        KINDS.map(|kind| all(&stored, kind))
    });
    let expected = stored();
    parameters(&expected, &|list| reference::adamw(list, options));
    for (kind, updated) in KINDS.into_iter().zip(updated) {
        assert_close("update", &updated, &all(&expected, kind), tolerance(kind));
    }
    operations::adamw(&HostKernels::forwards(), &[], options);
}

#[test]
fn the_gradient_of_an_embedding_is_as_the_reference() {
    for (kind, width) in [(Kind::Float, 70), (Kind::BFloat16, 70), (Kind::Float, 1), (Kind::BFloat16, 2500)] {
        let ids = guarded(&Tensor::from_slice(&[3i64, 0, 3, 5, 3, 0, 1, 5, 3]));
        let dy = guarded(&values(&[9, width], kind, 1));
        let start = values(&[6, width], Kind::Float, 2);
        let [sum] = in_any_order(|on| {
            let accumulator = guarded(&start);
            operations::accumulate_embedding(on, &accumulator, &ids, &dy);
            [accumulator]
        });
        reference::accumulate_embedding(&start, &ids, &dy);
        // with one thread, libtorch also adds in the order of the rows
        assert_eq!(list(&sum), list(&start));
    }
}

/// The kernel sorts the rows by token id and divides them into pieces. The rows of a frequent token span several
/// pieces. The rows of some tokens begin or end at the bound of a piece, and the rows of other tokens begin or end
/// within a piece.
#[test]
fn frequent_tokens_add_to_an_embedding_by_pieces() {
    let counts: [usize; 8] = [64, 1, 63, 200, 20, 108, 0, 3];
    let ids: Vec<i64> = counts.iter().zip(0..).flat_map(|(&count, id)| vec![id; count]).collect();
    let shuffled: Vec<i64> = (0..ids.len()).map(|at| ids[at * 7919 % ids.len()]).collect();
    for (ids, (kind, width)) in [&ids, &shuffled].into_iter().flat_map(|ids| KINDS.map(|kind| (ids, (kind, 21)))) {
        let (tokens, rows) = (ids.len() as i64, counts.len() as i64);
        let (token_ids, dy) = (guarded(&Tensor::from_slice(ids)), guarded(&values(&[tokens, width], kind, 1)));
        let start = values(&[rows, width], Kind::Float, 2);
        let [sum] = in_any_order(|on| {
            let accumulator = guarded(&start);
            operations::accumulate_embedding(on, &accumulator, &token_ids, &dy);
            [accumulator]
        });
        reference::accumulate_embedding(&start, &token_ids, &dy);
        assert_close_to_scale("sum", &sum, &start, 1e-6, 20.0);
    }
}

/// Returns the panic message of a computation.
fn failure(run: impl FnOnce()) -> Option<String> {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).err()?;
    panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
}

#[test]
fn an_access_outside_of_a_buffer_is_reported() {
    let (gate_up, out) = (guarded(&values(&[2, 6], Kind::Float, 1)), guarded(&values(&[2, 3], Kind::Float, 1)));
    let (gate_up, out, rows, width) = (gate_up.data_ptr(), out.data_ptr(), 3i64, 3i64);
    let address = |value: *const c_void| value.cast_mut();
    let arguments = [from_ref(&gate_up).cast(), from_ref(&out).cast(), from_ref(&rows).cast(), from_ref(&width).cast()];
    let grid = Grid { x: 1, y: 1, threads: 64 };
    // SAFETY: the memory has one row too few. An access after the memory faults, and the launcher reports the fault.
    let message =
        failure(|| unsafe { HostKernels::forwards().launch("swiglu_f32", grid, &mut arguments.map(address)) });
    let message = message.expect("the launch fails");
    assert!(message.starts_with("swiglu_f32: a thread reads or writes outside of a buffer"), "{message}");
}

#[test]
fn what_does_not_fit_is_not_launched() {
    let host = HostKernels::forwards();
    let (x, weight) = (values(&[3, 4], Kind::Float, 1), values(&[5], Kind::Float, 1));
    assert!(
        failure(|| drop(operations::rms_norm(&host, &x, &weight, 1e-5)))
            .unwrap()
            .starts_with("shapes do not fit [3, 4]")
    );
    assert!(
        failure(|| drop(operations::swiglu(&host, &x.tr())))
            .unwrap()
            .starts_with("a kernel takes contiguous Float tensors")
    );
}

/// Removes each barrier in turn, and asserts that the kernels then fail or that their results are wrong for at least
/// one of the two orders of threads. The test keeps the last barrier of `block.cuh`, which separates two consecutive
/// maxima, because no kernel computes two maxima.
#[test]
fn each_barrier_is_needed() {
    let (x, weight) = (values(&[11, 770], Kind::Float, 1), values(&[770], Kind::Float, 2));
    let targets = Tensor::from_slice(&(0..11).collect::<Vec<i64>>());
    for removed in 0..3 {
        let library = Box::leak(Box::new(HostKernels::compile(Some(removed), false)));
        let results = |backwards| {
            let host = HostKernels { library, max_blocks: 3, backwards };
            let mut results = Vec::new();
            let reported = failure(|| {
                let (y, rstd) = operations::rms_norm(&host, &x, &weight, 1e-5);
                let dlogits = x.zeros_like();
                let loss = operations::cross_entropy(&host, &(&x * 4.0), &targets, Some(&dlogits), 1.0).sum;
                results.extend([y, rstd, loss, dlogits]);
            });
            (reported, results)
        };
        let dlogits = x.zeros_like();
        let (y, rstd) = reference::rms_norm(&x, &weight, 1e-5);
        let loss = reference::cross_entropy(&(&x * 4.0), &targets, Some(&dlogits), 1.0).sum;
        let expected = [y, rstd, loss, dlogits];
        let is_right = |(reported, results): (Option<String>, Vec<Tensor>)| {
            let near = |(a, b): (f64, f64)| (a - b).abs() <= 1e-4;
            reported.is_none() && results.iter().zip(&expected).all(|(a, b)| list(a).into_iter().zip(list(b)).all(near))
        };
        assert!(
            ![false, true].into_iter().all(|backwards| is_right(results(backwards))),
            "the results are right without barrier {removed}"
        );
    }
}
