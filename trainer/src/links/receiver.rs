//! The receiving end of a link: posted receives, and the thread that fills them in order.

use std::io::Read;
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread::JoinHandle;

use tch::{Device, Kind, Tensor};

use super::carrier::Incoming;
use super::header::{HEADER, Header, parts};
use super::stream::LinkStream;
use super::{LinkError, LinkId};
use crate::tensor_bytes::bytes_of;

/// Receives tensors over one link, in the order in which they were posted.
#[derive(Debug)]
pub struct Receiver {
    link: LinkId,
    socket: TcpStream,
    posts: Option<mpsc::Sender<(u32, Tensor)>>,
    arrived: mpsc::Receiver<Result<(usize, Tensor), LinkError>>,
    /// Arrived before somebody asked for them.
    early: Vec<(usize, Tensor)>,
    thread: Option<JoinHandle<()>>,
}

impl Receiver {
    /// Starts to receive from `stream`, which is the connection `socket`.
    pub(super) fn start(link: LinkId, socket: TcpStream, mut stream: LinkStream, mut carrier: Incoming) -> Receiver {
        let (posts, posted) = mpsc::channel::<(u32, Tensor)>();
        let (done, arrived) = mpsc::channel();
        let work = move || {
            for (microbatch, tensor) in posted {
                let mut parts = parts(&tensor, link.payload).into_iter();
                let result = parts.try_for_each(|part| receive(&mut stream, &mut carrier, microbatch, &part, link));
                let stop = result.is_err();
                if done.send(result.map(|()| (microbatch as usize, tensor))).is_err() || stop {
                    return;
                }
            }
        };
        let thread = Some(std::thread::spawn(work));
        Receiver { link, socket, posts: Some(posts), arrived, early: Vec::new(), thread }
    }

    /// Posts a receive: allocates the tensor (by libtorch, so that its alignment is what kernels see elsewhere) and
    /// returns at once. `shape` and `kind` are what the sender must send.
    pub fn post(&self, microbatch: usize, shape: &[i64], kind: Kind) {
        self.post_into(microbatch, Tensor::empty(shape, (kind, Device::Cpu)));
    }

    /// Posts a receive into a contiguous CPU tensor that nobody uses until it has arrived.
    pub(crate) fn post_into(&self, microbatch: usize, tensor: Tensor) {
        if let Some(posts) = &self.posts {
            // a dead thread has left its error for `wait`
            let _ = posts.send((microbatch as u32, tensor));
        }
    }

    /// Waits for the tensor posted for `microbatch`.
    pub fn wait(&mut self, microbatch: usize) -> Result<Tensor, LinkError> {
        if let Some(at) = self.early.iter().position(|(m, _)| *m == microbatch) {
            return Ok(self.early.swap_remove(at).1);
        }
        loop {
            match self.arrived.recv() {
                Ok(Ok((m, tensor))) if m == microbatch => return Ok(tensor),
                Ok(Ok(other)) => self.early.push(other),
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(LinkError::Broken(format!("the link for {} is closed", self.link))),
            }
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
    let mut bytes = [0; HEADER];
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

impl Drop for Receiver {
    fn drop(&mut self) {
        self.posts = None;
        // wakes the thread if it still waits for bytes
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
