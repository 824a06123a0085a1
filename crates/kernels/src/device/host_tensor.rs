//! Host memory for copies to and from a GPU. The copies run concurrently with the host and with the GPU.

use std::ops::Deref;

use cudarc::driver::sys;
use tch::{Device, Kind, Tensor};

use super::driver::{CudaContext, CudaError};

/// The size of a page of host memory, in bytes. The sizes of large pages are multiples of it.
const PAGE_BYTES: usize = 4096;

/// A tensor on the CPU, with pinned memory if it is for copies to or from a GPU. The operating system does not move
/// pinned pages, so copies can run concurrently with the host.
#[derive(Debug)]
pub struct HostTensor {
    tensor: Tensor,
    pinned_for: Option<CudaContext>,
}

impl HostTensor {
    /// Allocates a tensor of zeros. Writing the zeros avoids page faults in the first copy into the tensor. If `gpu` is
    /// set, the memory is pinned for copies to and from this GPU. A pinned tensor begins at a page boundary and shares
    /// no page with another pinned tensor, because the driver refuses to pin a page twice.
    ///
    /// # Errors
    /// If the driver can't pin the tensor's memory.
    pub fn zeros(size: &[i64], kind: Kind, gpu: Option<CudaContext>) -> Result<HostTensor, CudaError> {
        let numel = size.iter().product::<i64>();
        let Some(context) = gpu.filter(|_| numel > 0) else {
            return Ok(HostTensor::from(Tensor::zeros(size, (kind, Device::Cpu))));
        };
        let element_bytes = kind.elt_size_in_bytes();
        let pinned_bytes = (numel as usize * element_bytes).next_multiple_of(PAGE_BYTES);
        let all = Tensor::zeros([((pinned_bytes + PAGE_BYTES) / element_bytes) as i64], (kind, Device::Cpu));
        let offset = (all.data_ptr() as usize).next_multiple_of(PAGE_BYTES) - all.data_ptr() as usize;
        let tensor = all.narrow(0, (offset / element_bytes) as i64, numel).view(size);
        context.current()?;
        // SAFETY: these are whole pages of the memory of `all`, which `tensor` shares and keeps until `drop`
        // unregisters them.
        let result = unsafe { sys::cuMemHostRegister_v2(tensor.data_ptr(), pinned_bytes, 0) };
        result.result().map_err(CudaError::of("cuMemHostRegister")).map_err(|error| match error {
            CudaError::Failed { call, why } => {
                CudaError::Failed { call, why: format!("{why}: {pinned_bytes} bytes of the host can't be pinned") }
            }
            other => other,
        })?;
        Ok(HostTensor { tensor, pinned_for: Some(context) })
    }
}

/// Wraps a tensor on the CPU without pinning it.
impl From<Tensor> for HostTensor {
    fn from(tensor: Tensor) -> HostTensor {
        debug_assert!(tensor.device() == Device::Cpu);
        HostTensor { tensor, pinned_for: None }
    }
}

impl Deref for HostTensor {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

impl Drop for HostTensor {
    fn drop(&mut self) {
        let Some(context) = self.pinned_for else { return };
        if context.current().is_ok() {
            // SAFETY: `zeros` registered the memory at this address, and only this call unregisters it. The caller of a
            // copy keeps the tensor until the copy is done.
            let _ = unsafe { sys::cuMemHostUnregister(self.tensor.data_ptr()) };
        }
    }
}
