//! The CUDA kernels against the plain operations, on the host: `cuda/host.h` plays a block's threads.

use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::process::Command;
use std::ptr::{from_ref, null_mut};
use std::sync::{Mutex, PoisonError};

use libloading::Library;

use super::*;

type Kernel = unsafe extern "C" fn(u32, u32, u32, *const *mut c_void, bool) -> *const c_char;

/// Fewer blocks than rows: each takes several.
const BLOCKS: u32 = 3;
const THREADS: u32 = 64;

/// One source, compiled for the host.
struct Source(Library);

impl Source {
    /// Compiles the source `name` with its `removed`-th barrier taken out, if it says one; none if it has fewer.
    fn compile(name: &str, removed: Option<usize>) -> Option<Source> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/kernels/cuda");
        let folder = tempfile::tempdir().unwrap();
        for file in ["block.cuh", "host.h", name] {
            std::fs::copy(sources.join(file), folder.path().join(file)).unwrap();
        }
        if let Some(removed) = removed {
            let block = folder.path().join("block.cuh");
            let text = std::fs::read_to_string(&block).unwrap();
            let (at, barrier) = text.match_indices("__syncthreads();").nth(removed)?;
            std::fs::write(&block, format!("{}{}", &text[..at], &text[at + barrier.len()..])).unwrap();
        }
        let library = folder.path().join("kernels.so");
        let flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-x", "c++"];
        let mut compiler = Command::new("c++");
        let compiler = compiler.args(flags).arg(folder.path().join(name)).arg("-o").arg(&library);
        assert!(compiler.status().unwrap().success());
        // SAFETY: a library of functions without initialisers.
        Some(Source(unsafe { Library::new(&library) }.unwrap()))
    }

    fn new(name: &str) -> Source {
        Source::compile(name, None).unwrap()
    }

    /// Runs a kernel in one order of its threads, or the opposite one.
    fn launch(&self, name: &str, blocks: (u32, u32), arguments: &[*mut c_void], backwards: bool) -> Result<(), String> {
        // a fault is handled by the process, for one kernel at a time
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _lock = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: every kernel has this type on the host, and its arguments are those that the test passes.
        unsafe {
            let kernel = self.0.get::<Kernel>(name.as_bytes()).unwrap();
            let failure = kernel(blocks.0, blocks.1, THREADS, arguments.as_ptr(), backwards);
            if failure.is_null() { Ok(()) } else { Err(CStr::from_ptr(failure).to_string_lossy().into_owned()) }
        }
    }
}

/// A copy of `tensor` that ends where memory does: what is read or written after it is a fault. Stays for the whole test.
fn guarded(tensor: &Tensor) -> Tensor {
    let (page, bytes) = (4096, tensor.numel() * tensor.kind().elt_size_in_bytes());
    let data = bytes.next_multiple_of(page);
    // SAFETY: the mapping is new and stays; the tensor has the last `bytes` of its accessible part.
    unsafe {
        let map =
            libc::mmap(null_mut(), data + 2 * page, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        let begin = map.cast::<u8>().add(page);
        assert!(map != libc::MAP_FAILED && (data == 0 || libc::mprotect(begin.cast(), data, 3) == 0));
        let at = begin.add(data - bytes);
        let options = (tensor.kind(), Device::Cpu);
        let strides: Vec<i64> = (0..tensor.dim()).map(|d| tensor.size()[d + 1..].iter().product()).collect();
        let mut copy = Tensor::from_blob(at, &tensor.size(), &strides, options.0, options.1);
        copy.copy_(tensor);
        copy
    }
}

fn pointer<T>(value: &T) -> *mut c_void {
    from_ref(value).cast_mut().cast()
}

/// Launches with arguments of any types: a kernel takes their addresses. Tensors are passed as their data's.
macro_rules! launch {
    ($source:expr, $name:expr, $blocks:expr, $backwards:expr; $($argument:expr),*) => {
        $source.launch($name, $blocks, &[$(pointer(&$argument)),*], $backwards)
    };
}

fn suffix(kind: Kind) -> &'static str {
    if kind == Kind::Float { "f32" } else { "bf16" }
}

#[test]
fn elementwise_kernels_are_the_plain_operations() {
    let (rotary, swiglu) = (Source::new("rotary.cu"), Source::new("swiglu.cu"));
    for kind in [Kind::Float, Kind::BFloat16] {
        for (rows, width, backwards) in [(1, 1, false), (7, 33, true), (5, 256, false), (0, 3, false)] {
            let gate_up = guarded(&(values(&[rows, 2 * width], kind, 1) * 3.0));
            let dout = guarded(&values(&[rows, width], kind, 2));
            let out = guarded(&Tensor::full([rows, width], f64::NAN, (kind, Device::Cpu)));
            let name = format!("swiglu_{}", suffix(kind));
            launch!(swiglu, &name, (BLOCKS, 1), backwards; gate_up.data_ptr(), out.data_ptr(), rows, width).unwrap();
            assert_close("out", &out, &plain::swiglu(&gate_up), tolerance(kind));
            let reference = gate_up.copy();
            let plain_out = plain::swiglu_backward(&dout, &reference);
            let name = format!("swiglu_backward_{}", suffix(kind));
            launch!(swiglu, &name, (BLOCKS, 1), backwards;
                dout.data_ptr(), gate_up.data_ptr(), out.data_ptr(), rows, width)
            .unwrap();
            assert_close("out again", &out, &plain_out, tolerance(kind));
            assert_close("dgate_up", &gate_up, &reference, tolerance(kind));
        }
        for (rows, length, half, inverse) in [(6i64, 3i64, 5i64, false), (9, 9, 32, true), (1, 1, 1, false)] {
            let heads = Heads { heads: 4, kv_heads: 2, head_dim: 2 * half };
            let qkv = guarded(&values(&[rows, 8 * heads.head_dim], kind, 3));
            let [cos, sin] = [4, 5].map(|seed| guarded(&values(&[length, half], Kind::Float, seed)));
            let reference = qkv.copy();
            plain::rotary(&reference, &cos, &sin, length, heads, inverse);
            let name = format!("rotary_{}", suffix(kind));
            launch!(rotary, &name, (BLOCKS, 1), false; qkv.data_ptr(), cos.data_ptr(), sin.data_ptr(), rows, length, 6i64,
                8i64, half, if inverse { -1f32 } else { 1f32 }).unwrap();
            assert_close("qkv", &qkv, &reference, tolerance(kind));
        }
    }
}

/// Both results of the norm of some rows, or what went wrong.
fn norm(source: &Source, backwards: bool) -> Result<[Vec<f64>; 2], String> {
    let (rows, width) = (11i64, 77i64);
    let (x, weight) = (guarded(&values(&[rows, width], Kind::Float, 1)), guarded(&values(&[width], Kind::Float, 2)));
    let y = guarded(&x.zeros_like());
    let rstd = guarded(&Tensor::zeros([rows], (Kind::Float, Device::Cpu)));
    launch!(source, "rms_norm_f32", (BLOCKS, 1), backwards;
        x.data_ptr(), weight.data_ptr(), y.data_ptr(), rstd.data_ptr(), rows, width, 1e-5f32)?;
    let (plain_y, plain_rstd) = plain::rms_norm(&x, &weight, 1e-5);
    let far =
        |a: &Tensor, b: &Tensor| list(a).iter().zip(list(b)).any(|(a, b)| (a - b).is_nan() || (a - b).abs() >= 1e-5);
    if far(&y, &plain_y) || far(&rstd, &plain_rstd) {
        return Err("another result".to_owned());
    }
    Ok([list(&y), list(&rstd)])
}

#[test]
fn rms_norm_is_the_plain_one_and_needs_each_barrier() {
    let source = Source::new("rms_norm.cu");
    assert_eq!(norm(&source, false).unwrap(), norm(&source, true).unwrap());
    for barrier in 0..2 {
        let source = Source::compile("rms_norm.cu", Some(barrier)).unwrap();
        assert!(norm(&source, false).is_err() || norm(&source, true).is_err(), "barrier {barrier} is not missed");
    }
}

#[test]
fn an_access_outside_of_a_buffer_is_told() {
    let source = Source::new("swiglu.cu");
    let (gate_up, out) = (guarded(&values(&[2, 6], Kind::Float, 1)), guarded(&values(&[2, 3], Kind::Float, 1)));
    let told = launch!(source, "swiglu_f32", (BLOCKS, 1), false; gate_up.data_ptr(), out.data_ptr(), 3i64, 3i64);
    assert!(told.unwrap_err().starts_with("swiglu_f32: a thread reads or writes outside of a buffer"));
}

#[test]
fn cross_entropy_is_the_plain_one() {
    let source = Source::new("cross_entropy.cu");
    for (kind, rows, vocab) in [(Kind::Float, 7i64, 1i64), (Kind::Float, 8, 99), (Kind::BFloat16, 5, 300)] {
        let logits = guarded(&(values(&[rows, vocab], Kind::Float, 1) * 4.0));
        let target = |row: i64| if row % 3 == 1 { -100 } else { row * 7919 % vocab };
        let targets = guarded(&Tensor::from_slice(&(0..rows).map(target).collect::<Vec<_>>()));
        let losses = guarded(&Tensor::full([rows], f64::NAN, (Kind::Double, Device::Cpu)));
        let [gradient, reference] = [(); 2].map(|()| guarded(&Tensor::zeros([rows, vocab], (kind, Device::Cpu))));
        let name = format!("cross_entropy_{}", suffix(kind));
        launch!(source, &name, (BLOCKS, 1), true; logits.data_ptr(), targets.data_ptr(), gradient.data_ptr(),
            losses.data_ptr(), rows, vocab, 0.25f64)
        .unwrap();
        let loss = plain::cross_entropy(&logits, &targets, Some(&reference), 0.25);
        assert_close_to_scale("loss", &losses.sum(Kind::Double), &Tensor::from(loss), tolerance(Kind::Float), 10.0);
        assert_close_to_scale("dlogits", &gradient, &reference, tolerance(kind), 0.25);
    }
}

/// `[pieces, columns]` of the sums of rows, added up by `sum_pieces`.
fn sum_pieces(sums: &Source, partial: &Tensor) -> Tensor {
    let (pieces, width) = (partial.size()[0], partial.size()[1]);
    let total = guarded(&Tensor::full([width], f64::NAN, (Kind::Float, Device::Cpu)));
    launch!(sums, "sum_pieces", (BLOCKS, 1), false; partial.data_ptr(), total.data_ptr(), pieces, width).unwrap();
    total
}

fn nothing(size: &[i64], kind: Kind) -> Tensor {
    guarded(&Tensor::full(size, f64::NAN, (kind, Device::Cpu)))
}

#[test]
fn the_gradients_of_rms_norm_are_the_plain_ones() {
    let (source, sums) = (Source::new("rms_norm.cu"), Source::new("sums.cu"));
    for (kind, rows, width) in [(Kind::Float, 11i64, 77i64), (Kind::BFloat16, 5, 64), (Kind::Float, 1, 1)] {
        let [dy, x, residual] = [1, 2, 3].map(|seed| guarded(&values(&[rows, width], kind, seed)));
        let weight = guarded(&values(&[width], Kind::Float, 4));
        let (_, rstd) = plain::rms_norm(&x, &weight, 1e-5);
        let rstd = guarded(&rstd);
        for residual in [None, Some(&residual)] {
            let [dx, y] = [(); 2].map(|()| nothing(&[rows, width], kind));
            let added = residual.map_or(null_mut(), Tensor::data_ptr);
            launch!(source, &format!("rms_norm_backward_{}", suffix(kind)), (BLOCKS, 1), true; dy.data_ptr(), x.data_ptr(),
                weight.data_ptr(), rstd.data_ptr(), added, dx.data_ptr(), y.data_ptr(), rows, width)
            .unwrap();
            // the last piece has fewer rows, or none
            let (pieces, rows_per_piece) = (4u32, 3i64);
            let partial = nothing(&[pieces.into(), width], Kind::Float);
            launch!(source, &format!("rms_norm_dweight_{}", suffix(kind)), (BLOCKS, pieces), false; dy.data_ptr(),
                x.data_ptr(), rstd.data_ptr(), partial.data_ptr(), rows, width, rows_per_piece)
            .unwrap();
            let plain = plain::rms_norm_backward(&dy, &x, &weight, &rstd, residual);
            assert_close("dx", &dx, &plain.dx, tolerance(kind));
            assert_close("y", &y, &plain.y, tolerance(kind));
            assert_close("dweight", &sum_pieces(&sums, &partial), &plain.dweight, tolerance(kind));
        }
    }
}

#[test]
fn sums_are_the_plain_ones() {
    let source = Source::new("sums.cu");
    for (kind, rows, width) in [(Kind::Float, 10i64, 70i64), (Kind::BFloat16, 3, 5)] {
        let x = guarded(&values(&[rows, width], kind, 1));
        let (pieces, rows_per_piece) = (4u32, 3i64);
        let partial = nothing(&[pieces.into(), width], Kind::Float);
        launch!(source, &format!("column_sums_{}", suffix(kind)), (BLOCKS, pieces), true; x.data_ptr(), partial.data_ptr(),
            rows, width, rows_per_piece)
        .unwrap();
        assert_close("column sums", &sum_pieces(&source, &partial), &plain::column_sums(&x), tolerance(kind));
    }
    let lists = [1000, 0, 1, 65].map(|size| guarded(&values(&[size], Kind::Float, 2)));
    let pointers = lists.iter().map(|list| [list.data_ptr() as i64, list.numel() as i64]);
    let pointers: Vec<i64> = pointers.flatten().collect();
    let pieces = 5i64;
    let partial = nothing(&[lists.len() as i64, pieces], Kind::Double);
    let sums = nothing(&[lists.len() as i64], Kind::Double);
    let count = lists.len() as u32;
    launch!(source, "squared_norms", (pieces as u32, count), false; pointers.as_ptr(), partial.data_ptr()).unwrap();
    launch!(source, "row_sums_f64", (count, 1), true; partial.data_ptr(), sums.data_ptr(), pieces).unwrap();
    for (list, sum) in lists.iter().zip(super::list(&sums)) {
        let expected = plain::squared_norm(list);
        assert!((sum - expected).abs() <= 1e-12 * expected, "{sum} instead of {expected}");
    }
}

#[test]
fn an_update_of_a_list_of_parameters_is_the_plain_one() {
    #[repr(C)]
    struct Parameter {
        tensors: [*mut c_void; 5],
        size: i64,
        weight_decay: f64,
    }
    #[repr(C)]
    struct Options {
        floats: [f32; 8],
        lr: f64,
    }
    let source = Source::new("adamw.cu");
    let (lr, beta1, beta2, eps, step, clip) = (1e-2, 0.9, 0.95, 1e-8, 3.0, 0.5);
    let mut parameters = Vec::new();
    let mut expected = Vec::new();
    for (size, weight_decay, has_compute) in [(200i64, 0.1, true), (1, 0.0, false), (0, 0.1, true), (33, 0.1, false)] {
        let [value, gradient, exp_avg] = [1, 2, 3].map(|seed| guarded(&values(&[size], Kind::Float, seed)));
        let exp_avg_sq = guarded(&values(&[size], Kind::Float, 4).square());
        let compute = has_compute.then(|| nothing(&[size], Kind::BFloat16));
        let plain = [&value, &gradient, &exp_avg, &exp_avg_sq].map(Tensor::copy);
        let plain_compute = compute.as_ref().map(Tensor::copy);
        let options = AdamWOptions { lr, beta1, beta2, weight_decay, eps, step, clip };
        plain::adamw(&plain[0], &plain[1], (&plain[2], &plain[3]), plain_compute.as_ref(), options);
        expected.push((plain, plain_compute));
        parameters.push(([value, gradient, exp_avg, exp_avg_sq], compute, weight_decay));
    }
    let raw = |(tensors, compute, weight_decay): &([Tensor; 4], Option<Tensor>, f64)| {
        let [value, gradient, exp_avg, exp_avg_sq] = [0, 1, 2, 3].map(|at: usize| tensors[at].data_ptr());
        let compute = compute.as_ref().map_or(null_mut(), Tensor::data_ptr);
        let tensors_of = [value, gradient, exp_avg, exp_avg_sq, compute];
        Parameter { tensors: tensors_of, size: tensors[0].numel() as i64, weight_decay: *weight_decay }
    };
    let list: Vec<Parameter> = parameters.iter().map(raw).collect();
    let (bias1, bias2) = (1.0 - f64::powf(beta1, step), 1.0 - f64::powf(beta2, step));
    let floats = [lr / bias1, 1.0 / bias2.sqrt(), beta1, 1.0 - beta1, beta2, 1.0 - beta2, eps, clip];
    let options = Options { floats: floats.map(|number: f64| number as f32), lr };
    launch!(source, "adamw", (BLOCKS, list.len() as u32), true; list.as_ptr(), options).unwrap();
    for ((tensors, compute, _), (plain, plain_compute)) in parameters.iter().zip(&expected) {
        for (name, at) in [("value", 0), ("exp_avg", 2), ("exp_avg_sq", 3)] {
            assert_close(name, &tensors[at], &plain[at], tolerance(Kind::Float));
        }
        if let (Some(compute), Some(plain)) = (compute, plain_compute) {
            assert_close("compute", compute, plain, tolerance(Kind::BFloat16));
        }
    }
}

#[test]
fn the_gradient_of_an_embedding_adds_the_rows_of_each_token_in_their_order() {
    let source = Source::new("embedding.cu");
    for kind in [Kind::Float, Kind::BFloat16] {
        let (tokens, width, vocab) = (9i64, 70i64, 6i64);
        let ids = [3i64, 0, 3, 5, 3, 0, 1, 5, 3];
        let mut order: Vec<i64> = (0..tokens).collect();
        order.sort_by_key(|&row| ids[row as usize]);
        let sorted: Vec<i64> = order.iter().map(|&row| ids[row as usize]).collect();
        let [sorted, order] = [sorted, order].map(|list| guarded(&Tensor::from_slice(&list)));
        let dy = guarded(&values(&[tokens, width], kind, 1));
        let accumulator = guarded(&values(&[vocab, width], Kind::Float, 2));
        let expected = accumulator.index_add(0, &Tensor::from_slice(&ids), &dy.to_kind(Kind::Float));
        launch!(source, &format!("embedding_backward_{}", suffix(kind)), (BLOCKS, 1), true; accumulator.data_ptr(),
            sorted.data_ptr(), order.data_ptr(), dy.data_ptr(), tokens, width)
        .unwrap();
        assert_close("accumulator", &accumulator, &expected, tolerance(Kind::Float));
    }
}
