//! Opens the links of a group. Every stage listens; the sender of each link connects to its receiver and identifies the
//! link. Both ends agree on the carrier: NCCL if both can use it for this link, shared memory if the receiver can map
//! the sender's ring, otherwise the stream.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use stagecoach_api::job::Transport;

use super::accept::{Accepted, accept};
use super::config::{LinksConfig, LinksGpu};
use super::dial::Dialer;
use super::links::Links;
use super::nccl::{self, NewCommunicator};
use super::shm::remove_abandoned;
use super::{LinkError, Receiver, Sender};

/// Opens all of this stage's links. Returns when every link is connected at both ends.
pub fn open_links(config: LinksConfig) -> Result<Links, LinkError> {
    let deadline = Instant::now() + config.timeout;
    let expected = config.link_ids.iter().filter(|e| e.to == config.rank).count();
    if config.transport != Transport::Tcp
        && let Err(error) = remove_abandoned()
    {
        tracing::debug!("could not search for the shared memory of killed stages: {error}");
    }
    let gpu = config.gpu()?;
    let mut dialer =
        Dialer { config: &config, deadline, gpu: gpu.as_ref(), ids: BTreeMap::new(), links: Links::default() };
    // the first failure ends the wait of the other thread, whose error would only report the interrupt
    let first_failure = OnceLock::new();
    let fail = |error: &LinkError| {
        let _ = first_failure.set(error.clone());
        config.interrupt.trigger();
    };
    let (dialed, accepted) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| accept(&config, gpu.as_ref(), expected, deadline).inspect_err(fail));
        let mut outgoing = config.link_ids.iter().filter(|e| e.from == config.rank);
        let dialed: Result<Vec<NewCommunicator>, LinkError> = outgoing.try_fold(Vec::new(), |mut dialed, &link| {
            dialed.extend(dialer.dial(link)?);
            Ok(dialed)
        });
        (dialed.inspect_err(fail), join(accepting))
    });
    if let Some(error) = first_failure.into_inner() {
        return Err(error);
    }
    let Accepted { receivers, communicators } = accepted?;
    let mut links = dialer.links;
    links.receivers = receivers;
    let communicators: Vec<NewCommunicator> = dialed?.into_iter().chain(communicators).collect();
    let Some(LinksGpu { context, endpoint, without_nccl }) = gpu else { return Ok(links) };
    (links.gpu, links.without_nccl) = (Some(context), without_nccl);
    if let Some(endpoint) = endpoint {
        // this limit is shorter than the start-up timeout, because the error of that timeout would not name the missing
        // link
        let deadline = deadline.min(Instant::now() + config.timeout / 2);
        let channels = nccl::connect(endpoint, config.rank, communicators, &config.interrupt, deadline)?;
        for (link, channel) in channels {
            if link.from == config.rank {
                links.senders.insert(link, Sender::over(link, config.device, channel));
            } else {
                links.receivers.insert(link, Receiver::over(link, config.device, channel));
            }
        }
    }
    Ok(links)
}

fn join<T>(thread: ScopedJoinHandle<Result<T, LinkError>>) -> Result<T, LinkError> {
    thread.join().unwrap_or_else(|_| Err(LinkError::Broken("the accepting thread failed".into())))
}
