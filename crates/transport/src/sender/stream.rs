//! Sends tensors over a TCP stream or shared memory, with a queue and a thread that empties it.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;

use stagecoach_kernels::bytes_of;
use stagecoach_kernels::device::{CudaContext, CudaError, CudaEvent};
use stagecoach_pipeline::SENDS_IN_FLIGHT;
use tch::Tensor;

use super::super::carrier::Outgoing;
use super::super::header::{Header, parts};
use super::super::pinned_buffer::PinnedBuffer;
use super::super::stream::LinkStream;
use super::super::{LinkError, LinkId, LinkPayload};

/// A queue of tensors to send, and the thread that sends them.
#[derive(Debug)]
pub(super) struct StreamSender {
    gpu: Option<CudaContext>,
    tensors: Option<TensorQueue>,
    thread: Option<JoinHandle<()>>,
    failure: Arc<OnceLock<LinkError>>,
}

/// A queued tensor.
#[derive(Debug)]
struct Outbound {
    tag: u32,
    tensor: Tensor,
    /// The GPU in whose memory the tensor is; `None` if the tensor is in host memory.
    gpu: Option<CudaContext>,
    /// The event that completes when the tensor is complete; `None` if the tensor is complete already.
    complete: Option<Arc<CudaEvent>>,
}

/// The queue of the writing thread: unbounded for tensors between replicas, bounded for all other tensors.
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
                // the thread itself has one more tensor, so that `SENDS_IN_FLIGHT` tensors are in flight
                let (sender, jobs) = mpsc::sync_channel(SENDS_IN_FLIGHT - 1);
                (TensorQueue::Bounded(sender), jobs)
            }
        }
    }

    /// Queues a tensor. Returns `None` if the thread has ended.
    fn send(&self, job: Outbound) -> Option<()> {
        match self {
            TensorQueue::Bounded(jobs) => jobs.send(job).ok(),
            TensorQueue::Unbounded(jobs) => jobs.send(job).ok(),
        }
    }
}

/// The destination to which a sender's thread writes tensors.
struct Writer {
    link: LinkId,
    stream: LinkStream,
    carrier: Outgoing,
    buffer: Option<PinnedBuffer>,
    /// The number of payload bytes sent so far.
    sent: Arc<AtomicU64>,
}

impl Writer {
    fn write(&mut self, outbound: &Outbound) -> Result<(), LinkError> {
        for part in parts(&outbound.tensor, self.link.payload) {
            let header = Header::of(outbound.tag, &part);
            let part = self.on_host(outbound, part)?;
            // SAFETY: the stage never writes to a boundary tensor after it has sent the tensor. The stage writes to
            // copies of state and to tensors between replicas only after the receiver has received them.
            let written = self.carrier.put(&mut self.stream, &header.encode(), unsafe { &*bytes_of(&part) });
            let link = self.link;
            written.map_err(|error| LinkError::from_io(format_args!("could not send {header}, {link}"), &error))?;
            self.sent.fetch_add(header.bytes() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits until the tensor of `outbound` is complete, and returns `part`, a part of this tensor, in host memory.
    fn on_host(&mut self, outbound: &Outbound, part: Tensor) -> Result<Tensor, CudaError> {
        let Some(complete) = &outbound.complete else { return Ok(part) };
        let Some(gpu) = outbound.gpu else {
            complete.synchronize()?;
            return Ok(part);
        };
        let buffer = match &mut self.buffer {
            Some(buffer) => buffer,
            none => none.insert(PinnedBuffer::new(gpu)?),
        };
        buffer.read(&part, complete)
    }
}

impl StreamSender {
    pub(super) fn start(
        link: LinkId,
        socket: TcpStream,
        stream: LinkStream,
        carrier: Outgoing,
        sent: Arc<AtomicU64>,
        gpu: Option<CudaContext>,
    ) -> StreamSender {
        let (tensors, jobs) = TensorQueue::new(link.payload);
        let failure: Arc<OnceLock<LinkError>> = Arc::default();
        let failed = failure.clone();
        let work = move || {
            let mut writer = Writer { link, stream, carrier, buffer: None, sent };
            for outbound in jobs {
                if let Err(error) = writer.write(&outbound) {
                    let _ = failed.set(error);
                    // the shutdown notifies the receiver, which waits for the remaining tensors
                    let _ = socket.shutdown(Shutdown::Both);
                    return;
                }
            }
            let _ = socket.shutdown(Shutdown::Write);
        };
        StreamSender { gpu, tensors: Some(tensors), thread: Some(std::thread::spawn(work)), failure }
    }

    pub(super) fn send(
        &self,
        link: LinkId,
        tag: usize,
        tensor: Tensor,
        complete: Option<Arc<CudaEvent>>,
    ) -> Result<(), LinkError> {
        let gpu = self.gpu.filter(|gpu| gpu.holds(&tensor));
        let complete = match (complete, gpu) {
            (None, Some(gpu)) => Some(Arc::new(gpu.record_default_stream()?)),
            (complete, _) => complete,
        };
        let outbound = Outbound { tag: tag as u32, tensor, gpu, complete };
        match self.tensors.as_ref().and_then(|tensors| tensors.send(outbound)) {
            Some(()) => Ok(()),
            None => Err(self.failure().unwrap_or_else(|| LinkError::Broken(format!("the link for {link} is closed")))),
        }
    }

    /// Returns the error that ended the thread early, if any.
    pub(super) fn failure(&self) -> Option<LinkError> {
        self.failure.get().cloned()
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
