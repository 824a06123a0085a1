//! Copies a GPU's tensors through host memory, for carriers that can't access GPU memory. A link's thread uses a
//! separate stream for the copies, so that the computing thread does not wait for them.

use std::sync::Arc;

use stagecoach_kernels::device::{CudaContext, CudaError, CudaEvent, CudaStream, HostTensor};
use tch::{Kind, Tensor};

/// Pinned memory for one tensor at a time, and the stream of its copies.
#[derive(Debug)]
pub(super) struct PinnedBuffer {
    context: CudaContext,
    stream: CudaStream,
    /// The pinned memory, as large as the largest tensor so far.
    memory: HostTensor,
    /// The event that completes after the last copy from or to the memory.
    in_use: Option<Arc<CudaEvent>>,
}

impl PinnedBuffer {
    /// Creates an empty buffer.
    pub(crate) fn new(context: CudaContext) -> Result<PinnedBuffer, CudaError> {
        let memory = HostTensor::zeros(&[0], Kind::Uint8, None)?;
        Ok(PinnedBuffer { context, stream: context.stream()?, memory, in_use: None })
    }

    /// Copies a GPU tensor to the host once the event `ready` is complete. The result is valid until the next call.
    pub(crate) fn read(&mut self, tensor: &Tensor, ready: &CudaEvent) -> Result<Tensor, CudaError> {
        let on_host = self.memory_for(tensor)?;
        if tensor.numel() > 0 {
            self.stream.wait(ready)?;
            self.stream.copy_to_host(&on_host, tensor)?;
            self.in_use = Some(Arc::new(self.record()?));
            self.wait()?;
        }
        Ok(on_host)
    }

    /// Returns a tensor in host memory, with the shape and dtype of `tensor`. The caller fills the returned tensor and
    /// passes it to [`write`](Self::write).
    pub(super) fn memory_for(&mut self, tensor: &Tensor) -> Result<Tensor, CudaError> {
        self.wait()?;
        let bytes = (tensor.numel() * tensor.kind().elt_size_in_bytes()) as i64;
        if bytes > self.memory.numel() as i64 {
            self.memory = HostTensor::zeros(&[bytes], Kind::Uint8, Some(self.context))?;
        }
        Ok(self.memory.narrow(0, 0, bytes).view_dtype(tensor.kind()).view_as(tensor))
    }

    /// Copies `on_host` to the GPU tensor `tensor` once the event `free` is complete. Returns an event that completes
    /// after the copy.
    pub(crate) fn write(
        &mut self,
        tensor: &Tensor,
        on_host: &Tensor,
        free: &CudaEvent,
    ) -> Result<Arc<CudaEvent>, CudaError> {
        self.stream.wait(free)?;
        if tensor.numel() > 0 {
            self.stream.copy_to_device(tensor, on_host)?;
        }
        let copied = Arc::new(self.record()?);
        self.in_use = Some(Arc::clone(&copied));
        Ok(copied)
    }

    /// Records an event after the last copy. If recording fails, waits for the copy at once, because no later wait
    /// would be possible.
    fn record(&self) -> Result<CudaEvent, CudaError> {
        self.stream.record().inspect_err(|_| drop(self.stream.synchronize()))
    }

    /// Waits for the last copy.
    fn wait(&mut self) -> Result<(), CudaError> {
        self.in_use.take().map_or(Ok(()), |event| event.synchronize())
    }
}

/// Waits for the last copy from or to the memory before the memory is freed.
impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let _ = self.wait();
    }
}
