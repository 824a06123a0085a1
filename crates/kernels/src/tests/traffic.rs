//! Counts the bytes that each kernel reads and writes, on the host. A kernel moves the fewest bytes if it reads each
//! byte of its input once and writes each byte of its results once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;

use super::host_kernels::{HostKernels, guarded};
use super::*;
use crate::cuda::{self as operations, Grid, KERNELS, Launcher};

/// The largest accepted number of bytes that a kernel moves, as a multiple of the fewest bytes. The multiple is close
/// to 1, because statistics, tables and weights, which may be read repeatedly, are small compared with the rows.
const USUAL_SHARE: f64 = 1.07;
/// The kernels that read some bytes repeatedly, each with its accepted multiple and a description of the repeated
/// reads. A GPU's caches serve these reads.
const READ_AGAIN: [(&str, f64, &str); 8] = [
    ("adamw", 1.13, "each thread the addresses of its parameter"),
    ("cross_entropy_bf16", 1.88, "each row of logits, for the gradient"),
    ("cross_entropy_f32", 1.66, "each row of logits, for the gradient"),
    ("rms_norm_bf16", 2.49, "each row after its sum, and the weight for each row: faster than from registers"),
    ("rms_norm_f32", 2.0, "each row after its sum, and the weight for each row: faster than from registers"),
    ("rotary_bf16", 1.74, "cosines and sines of a row for each of its heads"),
    ("rotary_f32", 1.38, "cosines and sines of a row for each of its heads"),
    ("squared_norms", 3.18, "each thread the address of its list, which is short here"),
];

/// The bytes that all launches of one kernel move, and the fewest bytes that they must move.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    moved: i64,
    least: i64,
}

/// A launcher on the host that counts the bytes that kernels read and write.
struct Counting {
    host: HostKernels,
    kernels: RefCell<BTreeMap<String, Traffic>>,
}

impl Counting {
    fn new() -> Counting {
        let library = Box::leak(Box::new(HostKernels::compile(None, true)));
        Counting { host: HostKernels { library, max_blocks: 16, backwards: false }, kernels: RefCell::default() }
    }

    /// Counts accesses to the tensor's memory from this call on. Returns the tensor.
    fn watched(&self, tensor: Tensor) -> Tensor {
        let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
        // SAFETY: the type is that of `host_watch`; the memory stays allocated, as all memory of `HostKernels` does.
        unsafe {
            let watch = self.host.library.get::<unsafe extern "C" fn(*const c_void, usize)>(b"host_watch").unwrap();
            watch(tensor.data_ptr(), bytes);
        }
        tensor
    }

    /// Returns random values, for an operand or for a result that a kernel updates.
    fn values(&self, shape: &[i64], kind: Kind, seed: u64) -> Tensor {
        self.watched(guarded(&values(shape, kind, seed)))
    }
}

impl Launcher for Counting {
    fn device(&self) -> Device {
        self.host.device()
    }

    fn max_blocks(&self) -> u32 {
        self.host.max_blocks()
    }

    fn empty(&self, size: &[i64], kind: Kind) -> Tensor {
        self.watched(self.host.empty(size, kind))
    }

    fn upload(&self, table: &[i64]) -> Tensor {
        self.watched(self.host.upload(table))
    }

    unsafe fn launch(&self, kernel: &str, grid: Grid, arguments: &mut [*mut c_void]) {
        let (mut moved, mut least) = (0, 0);
        // SAFETY: the caller guarantees the arguments; the type is that of `host_traffic`.
        unsafe {
            self.host.launch(kernel, grid, arguments);
            let traffic = self.host.library.get::<unsafe extern "C" fn(&mut i64, &mut i64)>(b"host_traffic").unwrap();
            traffic(&mut moved, &mut least);
        }
        let mut kernels = self.kernels.borrow_mut();
        let of_kernel = kernels.entry(kernel.to_owned()).or_default();
        *of_kernel = Traffic { moved: of_kernel.moved + moved, least: of_kernel.least + least };
    }
}

/// Runs every kernel. The threads of one block cover a row at these shapes, except a row of logits.
fn run_all(on: &Counting) {
    let (rows, width) = (200, 2048);
    let ids: Vec<i64> = (0..rows).map(|row| if row < 150 { 7 } else { row }).collect();
    let ids = on.watched(guarded(&Tensor::from_slice(&ids)));
    for kind in [Kind::Float, Kind::BFloat16] {
        let [dy, x, residual] = [1, 2, 3].map(|seed| on.values(&[rows, width], kind, seed));
        let weight = on.values(&[width], Kind::Float, 4);
        let (_, rstd) = operations::rms_norm(on, &x, &weight, 1e-5);
        let _ = operations::rms_norm_backward(on, &dy, &x, &weight, &rstd, Some(&residual));
        let gate_up = on.values(&[rows, 2 * width], kind, 5);
        let _ = operations::swiglu(on, &gate_up);
        let _ = operations::swiglu_backward(on, &dy, &gate_up);
        let heads = Heads { heads: 8, kv_heads: 4, head_dim: 128 };
        let [cos, sin] = [6, 7].map(|seed| on.values(&[rows, 64], Kind::Float, seed));
        let rotation = Rotation { cos: &cos, sin: &sin, length: rows };
        operations::rotary(on, &dy, rotation, heads, false);
        let gradients = [8, 4, 4].map(|heads| on.values(&[rows, heads * 128], kind, 8));
        let _ = operations::rotate_back(on, gradients.each_ref(), rotation, heads);
        let _ = operations::column_sums(on, &x);
        let logits = on.values(&[rows, 5000], Kind::Float, 9);
        let dlogits = on.empty(&[rows, 5000], kind);
        let _ = operations::cross_entropy(on, &logits, &ids, Some(&dlogits), 1.0);
        let sums = on.values(&[rows, width], Kind::Float, 10);
        operations::accumulate_embedding(on, &sums, &ids, &dy);
    }
    let lists = [11, 12, 13, 14].map(|seed| on.values(&[60_000], Kind::Float, seed));
    let _ = operations::squared_norms(on, &lists.each_ref());
    let compute = on.empty(&[60_000], Kind::BFloat16);
    let [value, gradient, exp_avg, exp_avg_sq] = &lists;
    let parameter = AdamWParameter { value, gradient, exp_avg, exp_avg_sq, compute: Some(&compute), weight_decay: 0.1 };
    let options = AdamWOptions { lr: 1e-2, beta1: 0.9, beta2: 0.95, eps: 1e-8, step: 3.0, clip: 0.5 };
    operations::adamw(on, &[parameter], options);
}

#[test]
fn kernels_read_and_write_what_they_must() {
    let on = Counting::new();
    run_all(&on);
    let kernels = on.kernels.take();
    assert!(kernels.keys().eq(KERNELS.iter()), "{:?}", kernels.keys());
    let mut too_many = Vec::new();
    for (kernel, Traffic { moved, least }) in &kernels {
        let (most, again) = (READ_AGAIN.iter().find(|(name, ..)| name == kernel))
            .map_or((USUAL_SHARE, ""), |(_, most, again)| (*most, *again));
        let share = *moved as f64 / *least as f64;
        println!("{kernel:24} {share:.3} of the fewest bytes  {again}");
        if share.is_nan() || share > most {
            too_many.push(format!("{kernel}: {share:.3}, at most {most}"));
        }
    }
    assert!(too_many.is_empty(), "{too_many:#?}");
}
