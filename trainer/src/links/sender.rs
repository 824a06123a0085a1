//! The sending end of a link: a short queue and the thread that empties it.

use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use stagecoach_pipeline::SENDS_IN_FLIGHT;
use tch::Tensor;

use super::carrier::Outgoing;
use super::header::{Header, parts};
use super::stream::LinkStream;
use super::{LinkError, LinkId};
use crate::tensor_bytes::bytes_of;

/// Sends tensors over one link, in order.
#[derive(Debug)]
pub struct Sender {
    link: LinkId,
    queue: Option<mpsc::SyncSender<(u32, Tensor)>>,
    thread: Option<JoinHandle<()>>,
    failure: Arc<Mutex<Option<LinkError>>>,
    bytes: Arc<AtomicU64>,
}

impl Sender {
    /// Starts to send on `stream`, which is the connection `socket`.
    pub(super) fn start(link: LinkId, socket: TcpStream, mut stream: LinkStream, mut carrier: Outgoing) -> Sender {
        // one more is in the hands of the thread
        let (queue, jobs) = mpsc::sync_channel::<(u32, Tensor)>(SENDS_IN_FLIGHT - 1);
        let failure: Arc<Mutex<Option<LinkError>>> = Arc::default();
        let bytes = Arc::new(AtomicU64::new(0));
        let (failed, sent) = (failure.clone(), bytes.clone());
        let work = move || {
            for (microbatch, tensor) in jobs {
                for part in parts(&tensor, link.payload) {
                    let header = Header::of(microbatch, &part);
                    // SAFETY: a boundary tensor is never written again once it has been handed over, and a copy of a state
                    // not before its receiver has it.
                    let result = carrier.put(&mut stream, &header.encode(), unsafe { &*bytes_of(&part) });
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
        Sender { link, queue: Some(queue), thread: Some(std::thread::spawn(work)), failure, bytes }
    }

    /// Hands over a contiguous CPU tensor, which the link keeps alive until it is sent. Blocks while
    /// [`SENDS_IN_FLIGHT`] earlier ones have not left this stage: TCP's buffers or shared memory are full, and the receiver
    /// has not posted their receives. Fails if an earlier send did.
    pub fn send(&self, microbatch: usize, tensor: Tensor) -> Result<(), LinkError> {
        let sent = self.queue.as_ref().map(|queue| queue.send((microbatch as u32, tensor)));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(self
                .failure
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone()
                .unwrap_or_else(|| LinkError::Broken(format!("the link for {} is closed", self.link)))),
        }
    }

    /// Payload bytes that have left so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
