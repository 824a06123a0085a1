//! The receiving end of a link: posted receives, which are filled in order. From a stream a thread fills them.

use std::collections::HashMap;
use std::io::Read;
use std::net::TcpStream;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use tch::{Device, Kind, Tensor, no_grad};

use super::carrier::Incoming;
use super::header::{HEADER_BYTES, Header, parts};
use super::nccl::{Channel, Message, ReceivedTensor};
use super::stream::LinkStream;
use super::{LinkError, LinkId};
use crate::tensor_bytes::bytes_of;

/// Receives tensors over one link, in the order in which they were posted.
#[derive(Debug)]
pub struct Receiver {
    link: LinkId,
    /// Where its tensors are used.
    device: Device,
    /// Where what arrives goes from there, if it was posted elsewhere.
    destinations: HashMap<usize, Tensor>,
    backend: Backend,
}

#[derive(Debug)]
enum Backend {
    Stream(StreamReceiver),
    Nccl(Arc<Channel>, Arrivals<ReceivedTensor>, mpsc::Sender<Result<ReceivedTensor, LinkError>>),
}

impl Receiver {
    /// Starts to receive from `stream`, which is the connection `socket`, what is used on `device`.
    pub(super) fn start(
        link: LinkId,
        device: Device,
        socket: TcpStream,
        stream: LinkStream,
        carrier: Incoming,
    ) -> Receiver {
        let backend = Backend::Stream(StreamReceiver::start(link, socket, stream, carrier));
        Receiver { link, device, destinations: HashMap::new(), backend }
    }

    /// Receives into the memory of a GPU.
    pub(super) fn over(link: LinkId, device: Device, channel: Arc<Channel>) -> Receiver {
        let (sender, arrived) = mpsc::channel();
        let backend = Backend::Nccl(channel, Arrivals::new(arrived), sender);
        Receiver { link, device, destinations: HashMap::new(), backend }
    }

    /// Posts a receive: allocates the tensor (by libtorch, so that its alignment is what kernels see elsewhere) and
    /// returns at once. `shape` and `kind` are what the sender must send.
    pub fn post(&mut self, microbatch: usize, shape: &[i64], kind: Kind) {
        self.post_into(microbatch, Tensor::empty(shape, (kind, self.device)));
    }

    /// Posts a receive into a contiguous tensor that nobody uses until it has arrived.
    pub(crate) fn post_into(&mut self, microbatch: usize, mut tensor: Tensor) {
        let arrives_on = match self.backend {
            Backend::Stream(_) => Device::Cpu,
            Backend::Nccl(..) => self.device,
        };
        if tensor.device() != arrives_on {
            let here = Tensor::empty(tensor.size(), (tensor.kind(), arrives_on));
            self.destinations.insert(microbatch, std::mem::replace(&mut tensor, here));
        }
        // what has failed has left its error for `wait`
        match &mut self.backend {
            Backend::Stream(posts) => posts.post(microbatch, tensor),
            Backend::Nccl(channel, _, sender) => {
                let message = Message { link: self.link, microbatch, tensor, arrivals: Some(sender.clone()) };
                if let Err(error) = channel.enqueue(message) {
                    let _ = sender.send(Err(error));
                }
            }
        }
    }

    /// Waits for the tensor posted for `microbatch`. If it comes from a GPU, it is not there yet: libtorch's computations that are
    /// begun from now on run when it is.
    pub fn wait(&mut self, microbatch: usize) -> Result<Tensor, LinkError> {
        self.wait_for_arrival(microbatch).map(|(tensor, _)| tensor)
    }

    /// The same, and when it arrived. Of what comes from a GPU the host does not know that.
    pub(crate) fn wait_for_arrival(&mut self, microbatch: usize) -> Result<(Tensor, Option<Instant>), LinkError> {
        let (arrived, at) = match &mut self.backend {
            Backend::Stream(posts) => {
                let arrival = posts.arrivals.wait(self.link, microbatch)?;
                (arrival.tensor, Some(arrival.at))
            }
            Backend::Nccl(_, arrivals, _) => (arrivals.wait(self.link, microbatch)?.into_tensor()?, None),
        };
        let tensor = match self.destinations.remove(&microbatch) {
            None => arrived,
            Some(destination) => {
                no_grad(|| destination.shallow_clone().copy_(&arrived));
                destination
            }
        };
        Ok((tensor, at))
    }

    /// Whether a thread of this process fills what was posted.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self.backend, Backend::Stream(_))
    }

    /// Fails if anything received so far did, as far as is known: then what was returned is not what was sent.
    pub(super) fn check(&self) -> Result<(), LinkError> {
        match &self.backend {
            Backend::Stream(_) => Ok(()),
            Backend::Nccl(channel, ..) => channel.check(),
        }
    }
}

/// What arrives, by microbatch.
trait Arrived {
    fn microbatch(&self) -> usize;
}

impl Arrived for ReceivedTensor {
    fn microbatch(&self) -> usize {
        self.microbatch
    }
}

/// A tensor that is filled.
#[derive(Debug)]
struct FilledTensor {
    microbatch: usize,
    tensor: Tensor,
    at: Instant,
}

impl Arrived for FilledTensor {
    fn microbatch(&self) -> usize {
        self.microbatch
    }
}

/// Arrivals, which may be asked for in another order.
#[derive(Debug)]
struct Arrivals<T> {
    arrived: mpsc::Receiver<Result<T, LinkError>>,
    /// Arrived before somebody asked for them.
    early: Vec<T>,
}

impl<T: Arrived> Arrivals<T> {
    fn new(arrived: mpsc::Receiver<Result<T, LinkError>>) -> Arrivals<T> {
        Arrivals { arrived, early: Vec::new() }
    }

    fn wait(&mut self, link: LinkId, microbatch: usize) -> Result<T, LinkError> {
        if let Some(at) = self.early.iter().position(|early| early.microbatch() == microbatch) {
            return Ok(self.early.swap_remove(at));
        }
        loop {
            match self.arrived.recv() {
                Ok(Ok(arrival)) if arrival.microbatch() == microbatch => return Ok(arrival),
                Ok(Ok(other)) => self.early.push(other),
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(LinkError::Broken(format!("the link for {link} is closed"))),
            }
        }
    }
}

/// Receives posted on a stream, whose bytes arrive in the CPU's memory.
#[derive(Debug)]
struct StreamReceiver {
    socket: TcpStream,
    posts: Option<mpsc::Sender<(u32, Tensor)>>,
    arrivals: Arrivals<FilledTensor>,
    thread: Option<JoinHandle<()>>,
}

impl StreamReceiver {
    fn start(link: LinkId, socket: TcpStream, mut stream: LinkStream, mut carrier: Incoming) -> StreamReceiver {
        let (posts, posted) = mpsc::channel::<(u32, Tensor)>();
        let (done, arrived) = mpsc::channel();
        let work = move || {
            for (microbatch, tensor) in posted {
                let mut parts = parts(&tensor, link.payload).into_iter();
                let result = parts.try_for_each(|part| receive(&mut stream, &mut carrier, microbatch, &part, link));
                let stop = result.is_err();
                let filled = |()| FilledTensor { microbatch: microbatch as usize, tensor, at: Instant::now() };
                if done.send(result.map(filled)).is_err() || stop {
                    return;
                }
            }
        };
        let thread = Some(std::thread::spawn(work));
        let arrivals = Arrivals::new(arrived);
        StreamReceiver { socket, posts: Some(posts), arrivals, thread }
    }

    fn post(&self, microbatch: usize, tensor: Tensor) {
        if let Some(posts) = &self.posts {
            let _ = posts.send((microbatch as u32, tensor));
        }
    }
}

fn receive(
    stream: &mut LinkStream,
    carrier: &mut Incoming,
    microbatch: u32,
    tensor: &Tensor,
    link: LinkId,
) -> Result<(), LinkError> {
    let expected = Header::of(microbatch, tensor);
    let broken = |error| LinkError::Broken(format!("could not receive {expected}, {link}: {error}"));
    let mut bytes = [0; HEADER_BYTES];
    stream.read_exact(&mut bytes).map_err(broken)?;
    let found = Header::decode(&bytes)?;
    if found != expected {
        let LinkId { from, to, .. } = link;
        return Err(LinkError::Mismatch(format!(
            "stage {to} expected {expected} from stage {from}, got {found}: both must run the same plan"
        )));
    }
    // SAFETY: the tensor was allocated for this receive and is handed on only after it is filled.
    carrier.take(stream, unsafe { &mut *bytes_of(tensor) }).map_err(broken)
}

impl Drop for StreamReceiver {
    fn drop(&mut self) {
        self.posts = None;
        // wakes the thread if it still waits for bytes
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
