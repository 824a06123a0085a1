//! The operating system and the GPU driver.

mod allocator;
mod cuda;
mod library;
mod memory;
mod portable;
mod processor;
mod signals;

pub(crate) use allocator::keep_freed_memory;
pub(crate) use cuda::{
    CudaContext, CudaError, CudaEvent, CudaFunction, CudaModule, CudaStream, NoGpu, cuda_devices, gpu_model,
};
pub(crate) use library::{LibraryError, c_functions, open as open_library};
pub(crate) use memory::{memory_bytes, peak_resident_bytes};
pub(crate) use portable::pin_instruction_set;
pub(crate) use processor::processor_model;
pub(crate) use signals::on_terminate;
