//! The operations on GPUs. Stagecoach's own kernels implement most of them. The binary contains the kernels' sources. A
//! stage compiles the sources for its GPU when it starts ([`load`]). The tests compile the same sources for the host.
//! The operations launch kernels through the trait [`Launcher`], which has one implementation for a GPU and others for
//! the host.

mod gpu;
mod library_calls;
mod nvrtc;
mod operations;

use std::ffi::c_void;

use tch::{Device, Kind, Tensor};

pub(super) use nvrtc::KernelSource;

pub(super) use gpu::loaded;
pub use gpu::{compiler_version, load};
pub(super) use library_calls::{accumulate_linear, attention, attention_backward, linear_to_float};
#[cfg(test)]
pub(super) use nvrtc::{FUNCTIONS as NVRTC_FUNCTIONS, Nvrtc, NvrtcError};
pub(super) use operations::*;

macro_rules! source_files {
    ($($name:literal),*) => { [$(KernelSource { name: $name, text: include_str!($name) }),*] };
}

/// All source files of the kernels.
pub(super) const SOURCES: [KernelSource; 8] = source_files!(
    "block.cuh",
    "adamw.cu",
    "cross_entropy.cu",
    "embedding.cu",
    "rms_norm.cu",
    "rotary.cu",
    "sums.cu",
    "swiglu.cu"
);

/// The names of all kernels, as [`Launcher::launch`] accepts them.
pub(super) const KERNELS: [&str; 21] = [
    "adamw",
    "column_sums_bf16",
    "column_sums_f32",
    "cross_entropy_bf16",
    "cross_entropy_f32",
    "embedding_backward_bf16",
    "embedding_backward_f32",
    "embedding_pieces",
    "rms_norm_backward_bf16",
    "rms_norm_backward_f32",
    "rms_norm_bf16",
    "rms_norm_f32",
    "rotary_bf16",
    "rotary_f32",
    "row_sums_f64",
    "squared_norms",
    "sum_pieces",
    "swiglu_backward_bf16",
    "swiglu_backward_f32",
    "swiglu_bf16",
    "swiglu_f32",
];

/// The number of blocks of a launch, in two dimensions, and the number of threads of each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    pub(super) x: u32,
    pub(super) y: u32,
    /// The number of threads of each block: a multiple of 32, at most 512. With more threads, some kernels would have
    /// too few registers.
    pub(super) threads: u32,
}

/// Runs kernels, in the order of their launches.
pub(super) trait Launcher {
    /// The device of the tensors that kernels read and write.
    fn device(&self) -> Device;

    /// Returns the largest useful number of blocks in one dimension for a kernel whose blocks can process several items
    /// each. This number does not change any bit of the results.
    fn max_blocks(&self) -> u32;

    /// Allocates uninitialised memory for results.
    fn empty(&self, size: &[i64], kind: Kind) -> Tensor;

    /// Copies a table to the device, where a kernel reads it. The host does not wait for the copy.
    fn upload(&self, table: &[i64]) -> Tensor;

    /// Launches a kernel with the addresses of its arguments. The method reads the arguments before it returns.
    ///
    /// # Safety
    /// The arguments have the types of the kernel's parameters, and the device memory to which they point is large
    /// enough.
    unsafe fn launch(&self, kernel: &str, grid: Grid, arguments: &mut [*mut c_void]);
}
