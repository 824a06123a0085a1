//! Compares each CPU kernel with its reference, for unusual shapes, both types, and values that are not finite.

use proptest::prelude::*;

use super::*;

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Float), Just(Kind::BFloat16)]
}

/// Generates widths around the width of a SIMD vector, and larger widths.
fn widths() -> impl Strategy<Value = i64> {
    prop_oneof![1i64..70, Just(256), Just(1000)]
}

/// Overwrites up to three elements of `x` with non-finite values.
fn poison(x: &Tensor, seed: u64) {
    let flat = x.view([-1]);
    for (number, value) in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].into_iter().enumerate() {
        let at = (seed as i64 + 7 * number as i64) % flat.size()[0].max(1);
        let _ = flat.narrow(0, at, 1).fill_(value);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn rms_norm_is_as_the_reference(rows in 0i64..150, width in widths(), kind in kinds(), poisoned: bool, seed: u64) {
        let (x, weight) = (values(&[rows, width], kind, seed), values(&[width], Kind::Float, seed ^ 1));
        if poisoned && rows > 0 {
            poison(&x, seed % 1000);
        }
        let (y, rstd) = ffi::rms_norm(&x, &weight, 1e-5);
        let (expected_y, expected_rstd) = reference::rms_norm(&x, &weight, 1e-5);
        assert_close("y", &y, &expected_y, tolerance(kind));
        assert_close("rstd", &rstd, &expected_rstd, tolerance(Kind::Float));
        let (dy, residual) = (values(&[rows, width], kind, seed ^ 2), values(&[rows, width], kind, seed ^ 3));
        for residual in [None, Some(&residual)] {
            let kernel = ffi::rms_norm_backward(&dy, &x, &weight, &expected_rstd, residual);
            let expected = reference::rms_norm_backward(&dy, &x, &weight, &expected_rstd, residual);
            let largest = |tensor: &Tensor| list(tensor).into_iter().filter(|x| x.is_finite()).fold(0.0, |a: f64, b| a.max(b.abs()));
            let terms = largest(&dy) * largest(&weight) * largest(&expected_rstd);
            assert_close_to_scale("dx", &kernel.dx, &expected.dx, tolerance(kind), terms);
            assert_close_to_scale("dweight", &kernel.dweight, &expected.dweight, 2e-6, rows as f64);
            assert_close("y again", &kernel.y, &expected.y, tolerance(kind));
        }
    }

    #[test]
    fn column_sums_are_as_the_reference(rows in 0i64..300, width in widths(), kind in kinds(), seed: u64) {
        let x = values(&[rows, width], kind, seed);
        assert_close_to_scale("sums", &ffi::column_sums(&x), &reference::column_sums(&x), 1e-6, rows as f64);
    }

    #[test]
    fn swiglu_is_as_the_reference(rows in 0i64..40, width in widths(), kind in kinds(), poisoned: bool, seed: u64) {
        let gate_up = values(&[rows, 2 * width], kind, seed) * 3.0;
        if poisoned && rows > 0 {
            poison(&gate_up, seed % 1000);
        }
        assert_close("out", &ffi::swiglu(&gate_up), &reference::swiglu(&gate_up), tolerance(kind));
        let dout = values(&[rows, width], kind, seed ^ 1);
        let (kernel, reference) = (gate_up.copy(), gate_up.copy());
        let (out, expected_out) = (ffi::swiglu_backward(&dout, &kernel), reference::swiglu_backward(&dout, &reference));
        assert_close("out again", &out, &expected_out, tolerance(kind));
        // the terms are products of three values, two of which are scaled by 3
        assert_close_to_scale("dgate_up", &kernel, &reference, tolerance(kind), 10.0);
    }

    #[test]
    fn rotary_is_as_the_reference(
        rows in 0i64..4, length in 1i64..9, heads in 1i64..4, kv_heads in 1i64..3, half in 1i64..40, kind in kinds(),
        inverse: bool, seed: u64,
    ) {
        let heads = Heads { heads: heads * kv_heads, kv_heads, head_dim: 2 * half };
        let qkv = values(&[rows * length, (heads.heads + 2 * kv_heads) * heads.head_dim], kind, seed);
        let tables = RotationTables::new(length + 3, half, seed ^ 1, Device::Cpu);
        let rotation = Rotation { length, ..tables.rotation() };
        let (kernel, reference) = (qkv.copy(), qkv.copy());
        ffi::rotary(&kernel, rotation, heads, inverse);
        reference::rotary(&reference, rotation, heads, inverse);
        assert_close("qkv", &kernel, &reference, tolerance(kind));
    }

    #[test]
    fn attention_is_as_the_reference(
        lengths in prop::collection::vec(prop_oneof![0i64..20, 60i64..70, Just(150)], 1..5), group in 1i64..4,
        kv_heads in 1i64..3, half in 1i64..20, kind in kinds(), poisoned: bool, seed: u64,
    ) {
        let heads = Heads { heads: group * kv_heads, kv_heads, head_dim: 2 * half };
        let mut bounds = vec![0];
        lengths.iter().for_each(|length| bounds.push(bounds[bounds.len() - 1] + length));
        let (rows, cu_seqlens) = (bounds[bounds.len() - 1], CuSeqlens::new(&bounds, Device::Cpu));
        let sequences = VarlenSequences { cu_seqlens: &cu_seqlens, max_length: 150 };
        let qkv = values(&[rows, (heads.heads + 2 * kv_heads) * heads.head_dim], kind, seed);
        let tables = RotationTables::new(rows.max(1), half, seed ^ 2, Device::Cpu);
        if poisoned && rows > 0 {
            let bad = (seed % rows as u64) as i64;
            let _ = qkv.narrow(0, bad, 1).fill_(f64::NAN);
            let (out, lse) = ffi::attention(&qkv, sequences, heads);
            let dqkv = ffi::attention_backward(&out, &qkv, (&out, &lse), sequences, heads, tables.rotation());
            for tensor in [&out, &lse, &dqkv] {
                assert!(list(&tensor.narrow(0, bad, 1)).iter().all(|x| x.is_nan()));
            }
            return Ok(());
        }
        let (out, lse) = ffi::attention(&qkv, sequences, heads);
        let (expected_out, expected_lse) = reference::attention(&qkv, sequences, heads);
        // in bf16, the kernel rounds the attention weights before it multiplies them by the values
        assert_close("out", &out, &expected_out, 3.0 * tolerance(kind));
        assert_close("lse", &lse, &expected_lse, tolerance(Kind::Float));
        let dout = values(&[rows, heads.heads * heads.head_dim], kind, seed ^ 1);
        let saved = (&expected_out, &expected_lse);
        let rotation = tables.rotation();
        let dqkv = ffi::attention_backward(&dout, &qkv, saved, sequences, heads, rotation);
        let expected_dqkv = reference::attention_backward(&dout, &qkv, saved, sequences, heads, rotation);
        assert_close("dqkv", &dqkv, &expected_dqkv, 3.0 * tolerance(kind));
    }

    #[test]
    fn cross_entropy_is_as_the_reference(rows in 0i64..40, vocab in widths(), kind in kinds(), poisoned: bool, seed: u64) {
        let logits = values(&[rows, vocab], Kind::Float, seed) * 4.0;
        if poisoned && rows > 0 {
            poison(&logits, seed % 1000);
        }
        let target = |row: i64| if (row + seed as i64 % 3) % 3 == 0 { -100 } else { (row * 7919 + (seed % 97) as i64) % vocab };
        let targets = Tensor::from_slice(&(0..rows).map(target).collect::<Vec<_>>());
        let gradients = [(); 2].map(|()| Tensor::zeros([rows, vocab], (kind, Device::Cpu)));
        let losses = ffi::cross_entropy(&logits, &targets, Some(&gradients[0]), 0.25);
        let expected = reference::cross_entropy(&logits, &targets, Some(&gradients[1]), 0.25);
        // a loss is a difference of logits, whose magnitude is up to 10
        assert_close_to_scale("loss", &losses.sum, &expected.sum, tolerance(Kind::Float), 10.0);
        assert_close_to_scale("losses of rows", &losses.row_losses, &expected.row_losses, tolerance(Kind::Float), 10.0);
        assert_close("loss alone", &ffi::cross_entropy(&logits, &targets, None, 1.0).sum, &losses.sum, 0.0);
        for row in 0..rows {
            let [kernel, expected] = [0, 1].map(|at| gradients[at].narrow(0, row, 1));
            match list(&logits.narrow(0, row, 1)).iter().all(|x| x.is_finite() || *x == f64::NEG_INFINITY) {
                true => assert_close_to_scale("dlogits", &kernel, &expected, tolerance(kind), 0.25),
                // the kernel's non-finite values may be in other columns than in the reference, but a row whose target
                // counts must have one
                false => assert_eq!(list(&kernel).iter().all(|x| x.is_finite()), targets.int64_value(&[row]) < 0),
            }
        }
        if kind == Kind::Float {
            let (_, in_place) = cross_entropy_with_gradient(logits, &targets, 0.25, kind);
            assert_eq!(format!("{:?}", list(&in_place)), format!("{:?}", list(&gradients[0])));
        }
    }

    #[test]
    fn squared_norms_and_adamw_are_as_the_reference(size in prop_oneof![0i64..70, Just(70_000)], step in 1u32..2000, bf16: bool, seed: u64) {
        let gradient = values(&[size], Kind::Float, seed);
        let lists = [&gradient, &gradient];
        assert_close_to_scale("norms", &ffi::squared_norms(&lists), &reference::squared_norms(&lists), 1e-12, 1e-300);
        let compute = bf16.then(|| Tensor::zeros([size], (Kind::BFloat16, Device::Cpu)));
        let tensors = || (
            values(&[size], Kind::Float, seed ^ 1), values(&[size], Kind::Float, seed ^ 2) * 0.1,
            values(&[size], Kind::Float, seed ^ 3).square() * 0.1, compute.as_ref().map(Tensor::copy),
        );
        let (kernel, reference) = (tensors(), tensors());
        let step = f64::from(step);
        let options = AdamWOptions { lr: 1e-2, beta1: 0.9, beta2: 0.999, eps: 1e-8, step, clip: 0.7 };
        for (tensors, update) in [(&kernel, ffi::adamw as fn(&[AdamWParameter], AdamWOptions)), (&reference, reference::adamw)] {
            let (value, exp_avg, exp_avg_sq, compute) = tensors;
            let compute = compute.as_ref();
            update(&[AdamWParameter { value, gradient: &gradient, exp_avg, exp_avg_sq, compute, weight_decay: 0.1 }], options);
        }
        assert_close("value", &kernel.0, &reference.0, tolerance(Kind::Float));
        assert_close("exp_avg", &kernel.1, &reference.1, tolerance(Kind::Float));
        assert_close("exp_avg_sq", &kernel.2, &reference.2, tolerance(Kind::Float));
        if let Some(compute) = kernel.3 {
            assert_eq!(list(&compute), list(&kernel.0.to_kind(Kind::BFloat16)));
        }
    }

    #[test]
    fn linear_layers_are_as_the_reference(
        rows in prop_oneof![0i64..150, Just(600)], inputs in 1i64..150, outputs in 1i64..150, kind in kinds(), seed: u64,
    ) {
        let (x, weight) = (values(&[rows, inputs], kind, seed), values(&[outputs, inputs], kind, seed ^ 1));
        let (dy, residual) = (values(&[rows, outputs], kind, seed ^ 2), values(&[rows, outputs], kind, seed ^ 3));
        let (y, dx) = (crate::linear(&x, &weight, None), crate::linear_backward(&dy, &weight));
        let [forward_terms, backward_terms] = [inputs, outputs].map(|terms| terms as f64);
        // bf16 rounds the sum, whose magnitude is about the square root of the number of terms
        let scale = |terms: f64| if kind == Kind::Float { terms } else { terms.sqrt() };
        assert_close_to_scale("y", &y, &reference::linear(&x, &weight, None), tolerance(kind), scale(forward_terms));
        let expected = reference::linear_backward(&dy, &weight);
        assert_close_to_scale("dx", &dx, &expected, tolerance(kind), scale(backward_terms));
        let (with_residual, expected) = (crate::linear(&x, &weight, Some(&residual)), reference::linear(&x, &weight, Some(&residual)));
        assert_close_to_scale("y + residual", &with_residual, &expected, 2.0 * tolerance(kind), scale(forward_terms));
        let [in_fp32, exact] = [(); 2].map(|()| Tensor::zeros([rows, outputs], (Kind::Float, Device::Cpu)));
        reference::linear_to_float(&x, &weight, &exact);
        crate::linear_to_float(&x, &weight, &in_fp32);
        assert_close_to_scale("y in fp32", &in_fp32, &exact, tolerance(Kind::Float), forward_terms);
    }

    #[test]
    fn the_number_of_threads_changes_no_bit(
        rows in 1i64..1100, inputs in 1i64..100, outputs in 1i64..150, kind in kinds(), seed: u64,
    ) {
        let (inputs, outputs) = (2 * inputs, 2 * outputs);
        let (x, weight) = (values(&[rows, inputs], kind, seed), values(&[outputs, inputs], kind, seed ^ 1));
        let (dy, norm) = (values(&[rows, outputs], kind, seed ^ 2), values(&[inputs], Kind::Float, seed ^ 3));
        let all = || {
            let accumulator = Tensor::zeros([outputs, inputs], (Kind::Float, Device::Cpu));
            accumulate_linear(&accumulator, &dy, &x);
            let (normed, rstd) = rms_norm(&x, &norm, 1e-5);
            let RmsNormGradients { dx, dweight, .. } = rms_norm_backward(&x, &x, &norm, &rstd, None);
            let products = [linear(&x, &weight, None), linear_backward(&dy, &weight), accumulator];
            // without kernels, libtorch computes the products, and their bits depend on the number of threads
            let products = has_products(kind).then(|| products.map(|tensor| list(&tensor)));
            (products, [normed, dx, dweight, column_sums(&dy)].map(|tensor| list(&tensor)), list(&squared_norms(&[&x.to_kind(Kind::Float)], Device::Cpu)))
        };
        let threads = |threads| {
            tch::set_num_threads(threads);
            all()
        };
        let [one, two, three] = [1, 2, 3].map(threads);
        tch::set_num_threads(1);
        assert!(one == two && one == three);
    }

    #[test]
    fn weight_gradients_are_summed_in_fp32(rows in 1i64..300, inputs in 1i64..70, outputs in 1i64..70, kind in kinds(), seed: u64) {
        let (dy, x) = (values(&[rows, outputs], kind, seed), values(&[rows, inputs], kind, seed ^ 1));
        let start = values(&[outputs, inputs], Kind::Float, seed ^ 2);
        let exact = start.to_kind(Kind::Double) + dy.to_kind(Kind::Double).tr().matmul(&x.to_kind(Kind::Double));
        let accumulator = start.copy();
        accumulate_linear(&accumulator, &dy, &x);
        assert_close_to_scale("accumulator", &accumulator.to_kind(Kind::Double), &exact, 2e-6, rows as f64);
    }
}

/// Kernels reuse buffers between calls. A NaN in one call must not reach the results of a later call through a buffer.
#[test]
fn nothing_is_left_of_values_that_are_not_finite() {
    for kind in [Kind::Float, Kind::BFloat16] {
        let products = |tokens: i64, fill: f64| {
            let (dy, x) = (Tensor::full([tokens, 70], fill, (kind, Device::Cpu)), values(&[tokens, 66], kind, 1));
            let accumulator = Tensor::zeros([70, 66], (Kind::Float, Device::Cpu));
            accumulate_linear(&accumulator, &dy, &x);
            let heads = Heads { heads: 2, kv_heads: 1, head_dim: 4 };
            let (qkv, cu_seqlens) = (Tensor::full([tokens, 16], fill, (kind, Device::Cpu)), [0, tokens]);
            let cu_seqlens = CuSeqlens::new(&cu_seqlens, Device::Cpu);
            let sequences = VarlenSequences { cu_seqlens: &cu_seqlens, max_length: tokens };
            let (out, lse) = attention(&qkv, sequences, heads);
            let tables = RotationTables::new(tokens, 2, 3, Device::Cpu);
            let dqkv = attention_backward(&out, &qkv, (&out, &lse), sequences, heads, tables.rotation());
            [accumulator, out, lse, dqkv, linear(&dy, &values(&[34, 70], kind, 2), None)]
        };
        assert!(products(48, f64::NAN).iter().all(|tensor| list(tensor).iter().any(|x| x.is_nan())));
        for tokens in [1, 15, 31, 47] {
            assert!(products(tokens, 1.0).iter().all(|tensor| list(tensor).iter().all(|x| x.is_finite())), "{tokens}");
        }
    }
}
