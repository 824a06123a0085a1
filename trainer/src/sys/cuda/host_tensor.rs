//! Memory of the host from and to which a GPU copies while both go on.

use std::ffi::c_void;
use std::ops::Deref;

use tch::{Device, Kind, Tensor};

use super::driver::{CudaContext, CudaError};

/// The size of a page; of large pages it is a divisor.
const PAGE_BYTES: usize = 4096;

/// A tensor on the CPU, pinned if it is for a GPU: its pages stay where they are, so that copies run beside the host.
#[derive(Debug)]
pub(crate) struct HostTensor {
    tensor: Tensor,
    pinned_for: Option<CudaContext>,
}

impl HostTensor {
    /// A new one, of zeros: its memory is written once, so that the first copy into it causes no page faults. It begins at a page, and no
    /// other pinned tensor is on its pages, which the driver would refuse.
    ///
    /// # Errors
    /// If the driver can't pin its memory.
    pub(crate) fn zeros(size: &[i64], kind: Kind, gpu: Option<CudaContext>) -> Result<HostTensor, CudaError> {
        let numel = size.iter().product::<i64>();
        let Some(context) = gpu.filter(|_| numel > 0) else {
            return Ok(HostTensor::from(Tensor::zeros(size, (kind, Device::Cpu))));
        };
        let element_bytes = kind.elt_size_in_bytes();
        let pinned_bytes = (numel as usize * element_bytes).next_multiple_of(PAGE_BYTES);
        let all = Tensor::zeros([((pinned_bytes + PAGE_BYTES) / element_bytes) as i64], (kind, Device::Cpu));
        let offset = (all.data_ptr() as usize).next_multiple_of(PAGE_BYTES) - all.data_ptr() as usize;
        let tensor = all.narrow(0, (offset / element_bytes) as i64, numel).view(size);
        let driver = context.current()?;
        // SAFETY: whole pages of a tensor that is kept until they are unregistered.
        let result = unsafe { (driver.host_register)(start(&tensor), pinned_bytes, 0) };
        driver.check("cuMemHostRegister", result).map_err(|error| match error {
            CudaError::Failed { call, why } => {
                CudaError::Failed { call, why: format!("{why}: {pinned_bytes} bytes of the host can't be pinned") }
            }
            other => other,
        })?;
        Ok(HostTensor { tensor, pinned_for: Some(context) })
    }
}

/// Where a tensor's memory begins.
fn start(tensor: &Tensor) -> *mut c_void {
    tensor.data_ptr().cast()
}

/// A tensor on the CPU as it is.
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
        let Some(driver) = self.pinned_for.and_then(|context| context.current().ok()) else { return };
        // SAFETY: registered at this address, and not unregistered before; who has a copy under way keeps the tensor.
        unsafe { (driver.host_unregister)(start(&self.tensor)) };
    }
}
