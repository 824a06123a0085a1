//! Tensors of a GPU on their way through the memory of the host, for carriers that know no other. A link's thread copies them, by a
//! stream of its own: the host, which computes, waits for no copy.

use std::sync::Arc;

use tch::{Kind, Tensor};

use crate::sys::{CudaContext, CudaError, CudaEvent, CudaStream, HostTensor};

/// Pinned memory for one tensor at a time, and the stream of its copies.
#[derive(Debug)]
pub(super) struct PinnedBuffer {
    context: CudaContext,
    stream: CudaStream,
    /// Of bytes; as large as the largest tensor so far.
    memory: HostTensor,
    /// Behind the last copy from or to the memory.
    in_use: Option<Arc<CudaEvent>>,
}

impl PinnedBuffer {
    /// An empty one.
    pub(super) fn new(context: CudaContext) -> Result<PinnedBuffer, CudaError> {
        let memory = HostTensor::zeros(&[0], Kind::Uint8, None)?;
        Ok(PinnedBuffer { context, stream: context.stream()?, memory, in_use: None })
    }

    /// Copies a tensor of the GPU to the host once it is `ready`. What is returned is used before the next call.
    pub(super) fn read(&mut self, tensor: &Tensor, ready: &CudaEvent) -> Result<Tensor, CudaError> {
        let on_host = self.memory_for(tensor)?;
        if tensor.numel() > 0 {
            self.stream.wait(ready)?;
            self.stream.copy_to_host(&on_host, tensor)?;
            self.in_use = Some(Arc::new(self.record()?));
            self.wait()?;
        }
        Ok(on_host)
    }

    /// A tensor like this one in the host's memory, to be filled, and then copied by [`write`](Self::write).
    pub(super) fn memory_for(&mut self, tensor: &Tensor) -> Result<Tensor, CudaError> {
        self.wait()?;
        let bytes = (tensor.numel() * tensor.kind().elt_size_in_bytes()) as i64;
        if bytes > self.memory.numel() as i64 {
            self.memory = HostTensor::zeros(&[bytes], Kind::Uint8, Some(self.context))?;
        }
        Ok(self.memory.narrow(0, 0, bytes).view_dtype(tensor.kind()).view_as(tensor))
    }

    /// Copies what is there to a tensor of the GPU, once that is `free`; an event behind the copy.
    pub(super) fn write(
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

    /// An event behind the last copy. Without one nobody could wait for it, so that it is waited for now.
    fn record(&self) -> Result<CudaEvent, CudaError> {
        self.stream.record().inspect_err(|_| drop(self.stream.synchronize()))
    }

    /// Waits for the last copy.
    fn wait(&mut self) -> Result<(), CudaError> {
        self.in_use.take().map_or(Ok(()), |event| event.synchronize())
    }
}

/// The copies from or to the memory are done before it is given back.
impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        let _ = self.wait();
    }
}
