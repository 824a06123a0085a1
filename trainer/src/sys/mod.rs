//! The operating system and the GPU driver.

mod allocator;
mod cuda;
mod library;
mod machine;
mod memory;
mod portable;
mod signals;
mod termination_mask;

pub(crate) use allocator::keep_freed_memory;
pub(crate) use cuda::{
    CudaContext, CudaError, CudaEvent, CudaFunction, CudaModule, CudaStream, DeviceClock, HostTensor, NoGpu, Timestamp,
    cublas_version, cuda_devices, driver_devices, gpu_model, gpu_multiprocessors,
};
pub(crate) use library::{LibraryError, c_functions, check_functions, open as open_library};
pub(crate) use machine::{hostname, is_in_cluster, processor_model};
pub(crate) use memory::{memory_bytes, peak_resident_bytes};
pub(crate) use portable::pin_instruction_set;
pub(crate) use signals::{hold_termination, on_terminate};
