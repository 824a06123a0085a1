//! Sends to a stream: a short queue, and the thread that empties it.

use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use stagecoach_pipeline::SENDS_IN_FLIGHT;
use tch::Tensor;

use super::super::carrier::Outgoing;
use super::super::header::{Header, parts};
use super::super::pinned_buffer::PinnedBuffer;
use super::super::stream::LinkStream;
use super::super::{LinkError, LinkId, LinkPayload};
use crate::sys::{CudaContext, CudaError, CudaEvent};
use crate::tensor_bytes::bytes_of;

/// Tensors that wait to be written to a stream, and the thread that does it.
#[derive(Debug)]
pub(super) struct StreamSender {
    gpu: Option<CudaContext>,
    tensors: Option<TensorQueue>,
    thread: Option<JoinHandle<()>>,
    failure: Arc<Mutex<Option<LinkError>>>,
}

/// A tensor to be written.
#[derive(Debug)]
struct Outbound {
    microbatch: u32,
    tensor: Tensor,
    /// Whether it is in the memory of the GPU.
    is_on_gpu: bool,
    /// Before this event is complete it is not either.
    complete: Option<Arc<CudaEvent>>,
}

/// The queue to the thread: a bounded one, or one for all that a step has.
#[derive(Debug)]
enum TensorQueue {
    Bounded(mpsc::SyncSender<Outbound>),
    Unbounded(mpsc::Sender<Outbound>),
}

impl TensorQueue {
    fn new(payload: LinkPayload) -> (TensorQueue, mpsc::Receiver<Outbound>) {
        match payload {
            LinkPayload::Replicas => {
                let (sender, jobs) = mpsc::channel();
                (TensorQueue::Unbounded(sender), jobs)
            }
            _ => {
                // one more is in the hands of the thread
                let (sender, jobs) = mpsc::sync_channel(SENDS_IN_FLIGHT - 1);
                (TensorQueue::Bounded(sender), jobs)
            }
        }
    }

    /// None if the thread has ended.
    fn send(&self, job: Outbound) -> Option<()> {
        match self {
            TensorQueue::Bounded(jobs) => jobs.send(job).ok(),
            TensorQueue::Unbounded(jobs) => jobs.send(job).ok(),
        }
    }
}

impl Outbound {
    /// A part of the tensor in the memory of the host, once it is complete.
    fn on_host(&self, part: Tensor, gpu: Option<CudaContext>, buffer: &mut Option<PinnedBuffer>) -> io::Result<Tensor> {
        let (Some(gpu), Some(complete)) = (gpu, &self.complete) else { return Ok(part) };
        let staged = || {
            if !self.is_on_gpu {
                complete.synchronize()?;
                return Ok(part);
            }
            let buffer = match buffer {
                Some(buffer) => buffer,
                none => none.insert(PinnedBuffer::new(gpu)?),
            };
            buffer.read(&part, complete)
        };
        staged().map_err(|error: CudaError| io::Error::other(error.to_string()))
    }
}

impl StreamSender {
    pub(super) fn start(
        link: LinkId,
        socket: TcpStream,
        mut stream: LinkStream,
        mut carrier: Outgoing,
        sent: Arc<AtomicU64>,
        gpu: Option<CudaContext>,
    ) -> StreamSender {
        let (tensors, jobs) = TensorQueue::new(link.payload);
        let failure: Arc<Mutex<Option<LinkError>>> = Arc::default();
        let failed = failure.clone();
        let work = move || {
            let mut buffer = None;
            for outbound in jobs {
                for part in parts(&outbound.tensor, link.payload) {
                    let header = Header::of(outbound.microbatch, &part);
                    let result = outbound.on_host(part, gpu, &mut buffer).and_then(|part| {
                        // SAFETY: a boundary tensor is never written again once it has been handed over, and a copy of a state, or
                        // what replicas exchange, not before its receiver has it.
                        carrier.put(&mut stream, &header.encode(), unsafe { &*bytes_of(&part) })
                    });
                    if let Err(error) = result {
                        let error = LinkError::Broken(format!("could not send {header}, {link}: {error}"));
                        *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        return;
                    }
                    sent.fetch_add(header.bytes() as u64, Ordering::Relaxed);
                }
            }
            let _ = socket.shutdown(std::net::Shutdown::Write);
        };
        StreamSender { gpu, tensors: Some(tensors), thread: Some(std::thread::spawn(work)), failure }
    }

    pub(super) fn send(
        &self,
        link: LinkId,
        microbatch: usize,
        tensor: Tensor,
        complete: Option<Arc<CudaEvent>>,
    ) -> Result<(), LinkError> {
        let holder = self.gpu.filter(|gpu| gpu.holds(&tensor));
        let complete = match (complete, holder) {
            (None, Some(gpu)) => Some(Arc::new(gpu.record_default_stream()?)),
            (complete, _) => complete,
        };
        let outbound = Outbound { microbatch: microbatch as u32, tensor, is_on_gpu: holder.is_some(), complete };
        match self.tensors.as_ref().and_then(|tensors| tensors.send(outbound)) {
            Some(()) => Ok(()),
            None => Err(self
                .failure
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone()
                .unwrap_or_else(|| LinkError::Broken(format!("the link for {link} is closed")))),
        }
    }
}

impl Drop for StreamSender {
    fn drop(&mut self) {
        self.tensors = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
