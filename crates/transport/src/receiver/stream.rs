//! Receives tensors from a TCP stream or shared memory. A thread fills the tensors.

use std::io::Read;
use std::net::TcpStream;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use stagecoach_kernels::bytes_of;
use stagecoach_kernels::device::{CudaContext, CudaError, CudaEvent, Timestamp};
use tch::Tensor;

use super::super::carrier::Incoming;
use super::super::header::{HEADER_BYTES, Header, parts};
use super::super::pinned_buffer::PinnedBuffer;
use super::super::stream::LinkStream;
use super::super::{LinkError, LinkId};
use crate::arrivals::{Arrivals, ArrivedTensor};

/// A posted receive: a tensor that the thread must fill.
#[derive(Debug)]
struct Posted {
    tag: u32,
    tensor: Tensor,
    /// For a tensor in GPU memory, an event that completes after all earlier uses of this memory.
    free: Option<Result<CudaEvent, CudaError>>,
}

/// The posted receives of a link over a TCP stream or shared memory. The thread receives the bytes of a tensor in host
/// memory. For a tensor in GPU memory, the thread then copies the bytes there.
#[derive(Debug)]
pub(super) struct StreamReceiver {
    gpu: Option<CudaContext>,
    socket: TcpStream,
    posts: Option<mpsc::Sender<Posted>>,
    arrivals: Arrivals,
    thread: Option<JoinHandle<()>>,
}

impl StreamReceiver {
    pub(super) fn start(
        link: LinkId,
        socket: TcpStream,
        stream: LinkStream,
        carrier: Incoming,
        gpu: Option<CudaContext>,
    ) -> StreamReceiver {
        let (posts, posted) = mpsc::channel::<Posted>();
        let (done, arrived) = mpsc::channel();
        let work = move || {
            let mut filler = Filler { link, stream, carrier, gpu, buffer: None };
            for Posted { tag, tensor, free } in posted {
                let free = free.transpose().map_err(LinkError::from);
                let result = free.and_then(|free| filler.fill(tag, &tensor, free.as_ref()));
                let stop = result.is_err();
                let filled = |at| ArrivedTensor { tag: tag as usize, tensor, at };
                if done.send(result.map(filled)).is_err() || stop {
                    return;
                }
            }
        };
        let thread = Some(std::thread::spawn(work));
        let arrivals = Arrivals::new(arrived);
        StreamReceiver { gpu, socket, posts: Some(posts), arrivals, thread }
    }

    pub(super) fn post(&self, tag: usize, tensor: Tensor) {
        let Some(posts) = &self.posts else { return };
        let free = self.gpu.filter(|gpu| gpu.holds(&tensor)).map(|gpu| gpu.record_default_stream());
        let _ = posts.send(Posted { tag: tag as u32, tensor, free });
    }

    pub(crate) fn wait(&mut self, link: LinkId, tag: usize) -> Result<(Tensor, Timestamp), LinkError> {
        self.arrivals.wait(link, tag)
    }
}

/// The source from which a receiver's thread fills tensors.
struct Filler {
    link: LinkId,
    stream: LinkStream,
    carrier: Incoming,
    gpu: Option<CudaContext>,
    buffer: Option<PinnedBuffer>,
}

impl Filler {
    /// Fills a tensor. With the event `free`, the tensor is on the GPU, and its memory is free after this event.
    /// Without an event, the tensor is on the host. Returns the time at which the tensor is filled.
    fn fill(&mut self, tag: u32, tensor: &Tensor, free: Option<&CudaEvent>) -> Result<Timestamp, LinkError> {
        let mut filled = None;
        for part in parts(tensor, self.link.payload) {
            match (self.gpu, free) {
                (Some(gpu), Some(free)) => filled = Some(self.fill_on_gpu(gpu, tag, &part, free)?),
                _ => self.receive(tag, &part)?,
            }
        }
        Ok(filled.map_or_else(Timestamp::now, Timestamp::Device))
    }

    fn fill_on_gpu(
        &mut self,
        gpu: CudaContext,
        tag: u32,
        part: &Tensor,
        free: &CudaEvent,
    ) -> Result<Arc<CudaEvent>, LinkError> {
        let mut buffer = match self.buffer.take() {
            Some(buffer) => buffer,
            None => PinnedBuffer::new(gpu)?,
        };
        let on_host = buffer.memory_for(part)?;
        self.receive(tag, &on_host)?;
        let filled = buffer.write(part, &on_host, free)?;
        self.buffer = Some(buffer);
        Ok(filled)
    }

    /// Fills a host tensor with the next payload.
    fn receive(&mut self, tag: u32, tensor: &Tensor) -> Result<(), LinkError> {
        let Filler { link, stream, carrier, .. } = self;
        let expected = Header::of(tag, tensor);
        let broken = |error| LinkError::from_io(format_args!("could not receive {expected}, {link}"), &error);
        let mut bytes = [0; HEADER_BYTES];
        stream.read_exact(&mut bytes).map_err(broken)?;
        let found = Header::decode(&bytes)?;
        if found != expected {
            let LinkId { from, to, .. } = link;
            return Err(LinkError::Mismatch(format!(
                "stage {to} expected {expected} from stage {from}, got {found}: both must run the same plan"
            )));
        }
        // SAFETY: the tensor belongs to this receive, and no other code uses it before it is filled.
        carrier.take(stream, unsafe { &mut *bytes_of(tensor) }).map_err(broken)
    }
}

impl Drop for StreamReceiver {
    fn drop(&mut self) {
        self.posts = None;
        // the shutdown wakes the thread if it still waits for bytes
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
