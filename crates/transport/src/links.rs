//! The open links of a stage, by their ids.

use std::collections::BTreeMap;

use stagecoach_kernels::device::{CudaContext, CudaError};

use super::{LinkError, LinkId, Receiver, Sender};

/// This stage's open links, by their ids.
#[derive(Debug, Default)]
pub struct Links {
    /// The links that leave this stage.
    pub senders: BTreeMap<LinkId, Sender>,
    /// The links that end at this stage.
    pub receivers: BTreeMap<LinkId, Receiver>,
    /// The outgoing links that use a stream because this stage could not create their shared memory, and the reasons.
    pub without_ring: BTreeMap<LinkId, String>,
    /// The reason why NCCL could not be opened with the transport Auto; `None` if NCCL was opened or is not needed.
    pub without_nccl: Option<String>,
    /// The GPU in whose memory the stage's tensors are; `None` if they are in host memory.
    pub gpu: Option<CudaContext>,
}

impl Links {
    /// Returns the sending end of a link that leaves this stage.
    ///
    /// # Errors
    /// If this stage has no such link.
    pub fn sender(&self, link: LinkId) -> Result<&Sender, LinkError> {
        self.senders.get(&link).ok_or_else(|| no_link(link))
    }

    /// Returns the receiving end of a link that ends at this stage.
    ///
    /// # Errors
    /// If this stage has no such link.
    pub fn receiver(&mut self, link: LinkId) -> Result<&mut Receiver, LinkError> {
        self.receivers.get_mut(&link).ok_or_else(|| no_link(link))
    }

    /// Returns the number of payload bytes that this stage has sent so far.
    pub fn bytes_sent(&self) -> u64 {
        self.senders.values().map(Sender::bytes).sum()
    }

    /// Returns an error if any earlier send or receive has failed. A failed transfer between GPUs is detected only
    /// after the GPU has finished its queued work. The caller must wait for the GPU and then call this method before it
    /// uses a result that depends on received tensors.
    pub fn check(&self) -> Result<(), LinkError> {
        self.check_device()?;
        self.failures().next().map_or(Ok(()), Err)
    }

    /// Returns an error if this stage's GPU has failed. A failed GPU breaks the stage's links without a fault of
    /// another stage.
    pub fn check_device(&self) -> Result<(), CudaError> {
        let device_error = |failure| if let LinkError::Device(error) = failure { Some(error) } else { None };
        self.failures().find_map(device_error).map_or(Ok(()), Err)
    }

    fn failures(&self) -> impl Iterator<Item = LinkError> {
        let sender_failures = self.senders.values().filter_map(Sender::failure);
        sender_failures.chain(self.receivers.values().filter_map(Receiver::failure))
    }

    /// Closes all links, so that every wait at the peers fails. A background thread sends the tensors that are still
    /// queued. This thread may block until the receivers notice the end of the group. After this call, no stream fills
    /// a posted tensor, so that the next group may use the tensor's memory.
    pub fn close(&mut self) {
        let (streams, receivers) =
            std::mem::take(&mut self.receivers).into_iter().partition(|(_, receiver)| receiver.is_stream());
        let mut closed = std::mem::take(self);
        closed.receivers = receivers;
        // the links over NCCL begin to close first: their receives may block the GPU, which then does not run the
        // copies of the links over streams
        std::thread::spawn(move || drop(closed));
        drop::<BTreeMap<_, _>>(streams);
    }
}

fn no_link(link: LinkId) -> LinkError {
    LinkError::Broken(format!("no link for {link}"))
}

/// Drops all links concurrently. NCCL frees a communicator only when both of its stages free it, so that two stages
/// that drop their links one by one could wait for each other.
impl Drop for Links {
    fn drop(&mut self) {
        let (receivers, senders) = (std::mem::take(&mut self.receivers), std::mem::take(&mut self.senders));
        std::thread::scope(|scope| {
            senders.into_values().for_each(|sender| drop(scope.spawn(|| drop(sender))));
            receivers.into_values().for_each(|receiver| drop(scope.spawn(|| drop(receiver))));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use stagecoach_tests::nccl::is_here_with;
    use tch::{Device, Kind, Tensor};

    use super::super::carrier::Outgoing;
    use super::super::stream::LinkStream;
    use super::*;

    /// Returns a sender whose receiver has disconnected.
    fn sender(link: LinkId, gpu: Option<CudaContext>) -> Sender {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        let stream = LinkStream::Clear(socket.try_clone().unwrap());
        Sender::start(link, socket, stream, Outgoing::Stream, gpu)
    }

    /// If the GPU of a stage fails, the stage's peers break their links, so the stage observes both errors. The
    /// stand-in for the GPU driver (`tests/nccl`) treats all memory as GPU memory.
    #[test]
    fn a_failure_of_the_own_gpu_is_reported_before_broken_links() {
        let folder = tempfile::tempdir().unwrap();
        let fault = format!("0:pin:1:{}", folder.path().join("struck").display());
        let environment = [("RANK", "0"), ("NCCL_STAND_IN_FAULT", fault.as_str())];
        let name = "links::tests::a_failure_of_the_own_gpu_is_reported_before_broken_links";
        if !is_here_with(name, &environment) {
            return;
        }
        let mut links = Links::default();
        let gpu = CudaContext::of_device(0).unwrap();
        for (link, gpu) in [(LinkId::tied(0, 1), None), (LinkId::tied(0, 2), Some(gpu))] {
            let sender = sender(link, gpu);
            let tensor = || Tensor::zeros([1 << 16], (Kind::Float, Device::Cpu));
            (0..).find_map(|message| sender.send(message, tensor()).err()).unwrap();
            links.senders.insert(link, sender);
            let is_device = matches!(links.check(), Err(LinkError::Device(_)));
            assert_eq!((is_device, links.check_device().is_err()), (gpu.is_some(), gpu.is_some()));
        }
        let failure = links.check().unwrap_err().to_string();
        assert!(failure.starts_with("cuMemHostRegister: "), "{failure}");
    }
}
