//! Tests of links over NCCL's stand-in (`tests/nccl`). Both ends are in a process whose loader finds the stand-in.

use std::sync::{LazyLock, mpsc};
use std::time::Duration;

use stagecoach_api::job::Transport;
use stagecoach_pipeline::Placement;
use stagecoach_tests::nccl::{is_here, is_here_with};
use stagecoach_transport::{LinkId, LinkPayload, Links, LinksConfig, link_ids};
use tch::Kind;

use super::{BACKWARD, FORWARD, group, group_of, tensor};

const COPY: LinkId = LinkId { from: 0, to: 1, payload: LinkPayload::PeerCopy };

/// Returns the links of two stages over NCCL.
fn pair() -> [Links; 2] {
    let mut links = group(2, Transport::Nccl, 4096, true);
    let second = links.pop().unwrap();
    [links.pop().unwrap(), second]
}

/// The test repeats the messages, because delays and memory differ each time.
#[test]
fn tensors_arrive_as_they_were_sent_without_a_waiting_receiver() {
    if !is_here("links::nccl::tensors_arrive_as_they_were_sent_without_a_waiting_receiver") {
        return;
    }
    let [mut first, mut second] = pair();
    let shape = |m: usize| (1 + m as i64 % 4, 5 + m as i64 % 12);
    for round in 0..4 {
        for m in 0..100 {
            let (rows, length) = shape(m);
            // the test sends all tensors before it receives one, and drops them here: the link keeps them
            first.senders[&FORWARD].send(m, tensor(round + m as i64, rows, length)).unwrap();
            first.receivers.get_mut(&BACKWARD).unwrap().post(m, &[rows, length, 8], Kind::Float);
            second.receivers.get_mut(&FORWARD).unwrap().post(m, &[rows, length, 8], Kind::Float);
        }
        for m in 0..100 {
            let (rows, length) = shape(m);
            let got = second.receivers.get_mut(&FORWARD).unwrap().wait(m).unwrap();
            assert_eq!(got, tensor(round + m as i64, rows, length));
            second.senders[&BACKWARD].send(m, got + 1.0).unwrap();
        }
        // the test requests the tensors in another order than that of their arrival
        for m in (0..100).rev() {
            let (rows, length) = shape(m);
            let got = first.receivers.get_mut(&BACKWARD).unwrap().wait(m).unwrap();
            assert_eq!(got, tensor(round + m as i64, rows, length) + 1.0);
        }
    }
    let bytes: i64 = (0..100).map(|m| shape(m).0 * shape(m).1 * 8 * 4).sum();
    assert_eq!(first.bytes_sent(), 4 * bytes as u64);
}

/// Three boundaries and a tied weight between two stages share one communicator in each direction.
#[test]
fn all_links_between_two_stages_keep_the_order_of_the_program() {
    if !is_here("links::nccl::all_links_between_two_stages_keep_the_order_of_the_program") {
        return;
    }
    static IDS: LazyLock<Vec<LinkId>> = LazyLock::new(|| link_ids(&Placement::looped(2, 2), true));
    let ids = &**IDS;
    let mut links = group_of(2, true, |config| LinksConfig { transport: Transport::Nccl, link_ids: ids, ..config });
    let (mut second, first) = (links.pop().unwrap(), links.pop().unwrap());
    let there: Vec<LinkId> = ids.iter().copied().filter(|link| link.from == 0).collect();
    assert_eq!((there.len(), second.receivers.len(), first.receivers.len()), (4, 4, 4));
    let order: Vec<(usize, LinkId)> = (0..50).map(|m| (m, there[m * 7 % there.len()])).collect();
    for &(m, link) in &order {
        first.senders[&link].send(m, tensor(m as i64, 1, 3 + m as i64 % 5)).unwrap();
        second.receivers.get_mut(&link).unwrap().post(m, &[1, 3 + m as i64 % 5, 8], Kind::Float);
    }
    for &(m, link) in order.iter().rev() {
        let got = second.receivers.get_mut(&link).unwrap().wait(m).unwrap();
        assert_eq!(got, tensor(m as i64, 1, 3 + m as i64 % 5));
    }
}

#[test]
fn an_empty_tensor_arrives_over_nccl() {
    if !is_here("links::nccl::an_empty_tensor_arrives_over_nccl") {
        return;
    }
    let [first, mut second] = pair();
    first.senders[&FORWARD].send(0, tensor(0, 0, 4)).unwrap();
    let receiver = second.receivers.get_mut(&FORWARD).unwrap();
    receiver.post(0, &[0, 4, 8], Kind::Float);
    assert_eq!(receiver.wait(0).unwrap().size(), [0, 4, 8]);
}

/// A receive begins only when the peer sends. The receive that waits for the peer when the peer goes fails, and so does
/// the next one.
#[test]
fn what_has_not_arrived_when_the_peer_goes_is_known_to_be_wrong() {
    if !is_here("links::nccl::what_has_not_arrived_when_the_peer_goes_is_known_to_be_wrong") {
        return;
    }
    let [first, mut second] = pair();
    let receiver = second.receivers.get_mut(&FORWARD).unwrap();
    receiver.post(0, &[1, 4, 8], Kind::Float);
    drop(first);
    assert!(receiver.wait(0).is_err());
    receiver.post(1, &[1, 4, 8], Kind::Float);
    let error = receiver.wait(1).unwrap_err().to_string();
    // the error is that of the link that failed first
    assert!(error.contains("from stage 0 to stage 1") || error.contains("from stage 1 to stage 0"), "{error}");
    assert!(error.contains("stage 0 has closed its connection") || error.contains("network error"), "{error}");
}

/// Sends do not wait for their receives. A stage that ends, or whose group has ended, does not wait for its sends.
#[test]
fn a_sender_ends_with_its_peer_and_with_the_group() {
    if !is_here("links::nccl::a_sender_ends_with_its_peer_and_with_the_group") {
        return;
    }
    for by_interrupt in [false, true] {
        let interrupt = stagecoach_transport::Interrupt::default();
        let mut links = group_of(2, false, |config| LinksConfig {
            transport: Transport::Nccl,
            interrupt: interrupt.clone(),
            ..config
        });
        let (second, mut first) = (links.pop().unwrap(), links.pop().unwrap());
        let sender = first.senders.remove(&FORWARD).unwrap();
        // these sends exceed the stand-in's buffers
        (0..4).for_each(|m| sender.send(m, tensor(0, 1, 1 << 18)).unwrap());
        let (ended, end) = mpsc::channel();
        if by_interrupt {
            interrupt.trigger();
        } else {
            drop(second);
        }
        std::thread::spawn(move || {
            drop(sender);
            let _ = ended.send(());
        });
        end.recv_timeout(Duration::from_secs(60)).expect("the sender hangs");
    }
}

/// A copy of a state is in host memory for every transport, and goes over shared memory or the TCP stream. The stand-in
/// treats all memory as the device's. The copy therefore passes through pinned memory at both ends, as the activations
/// between GPUs without NCCL do.
#[test]
fn what_does_not_go_over_nccl_passes_through_pinned_memory() {
    if !is_here("links::nccl::what_does_not_go_over_nccl_passes_through_pinned_memory") {
        return;
    }
    let ids = &[FORWARD, COPY];
    let mut links = group_of(2, false, |config| LinksConfig { transport: Transport::Nccl, link_ids: ids, ..config });
    let [sending, receiving] = &mut links[..] else { unreachable!() };
    let (sender, receiver) = (&sending.senders[&COPY], receiving.receivers.get_mut(&COPY).unwrap());
    // the lengths range from empty tensors to tensors that are sent in two parts, in an order that makes the pinned
    // memory grow
    let lengths = [3, 0, 1 << 17, 5, 1 << 15, 0, 1 << 17, 1 << 17, 1 << 16, 9, 1 << 17];
    let sent = |m: usize| tensor(m as i64, 1, lengths[m % lengths.len()]).view([-1]);
    for begin in (0..66).step_by(3) {
        for m in begin..begin + 3 {
            sender.send(m, sent(m)).unwrap();
            receiver.post(m, &sent(m).size(), Kind::Float);
        }
        for m in begin..begin + 3 {
            // the test reads at once, because values that are not copied yet are NaN
            let received = receiver.wait(m).unwrap().copy();
            assert_eq!(received, sent(m), "{m}");
        }
    }
    sender.send(99, tensor(7, 1, 4)).unwrap();
    // the carrier compares sizes, unlike NCCL
    receiver.post(99, &[1, 5, 8], Kind::Float);
    let error = receiver.wait(99).unwrap_err().to_string();
    assert!(error.contains("stage 1 expected f32[40] with tag 99 from stage 0"), "{error}");
}

/// Both ends detect the failure, although no more sends follow.
#[test]
fn a_failed_sender_leaves_no_receiver_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let fault = format!("0:pin:1:{}", folder.path().join("struck").display());
    let environment = [("RANK", "0"), ("NCCL_STAND_IN_FAULT", fault.as_str())];
    if !is_here_with("links::nccl::a_failed_sender_leaves_no_receiver_waiting", &environment) {
        return;
    }
    let ids = &[FORWARD, COPY];
    let mut links = group_of(2, false, |config| LinksConfig { transport: Transport::Nccl, link_ids: ids, ..config });
    // the sender's thread takes the first tensor and fails; later sends block until then, and one of them returns the
    // error
    let error = (0..).find_map(|m| links[0].senders[&COPY].send(m, tensor(0, 1, 4)).err()).unwrap().to_string();
    assert!(
        error.contains("cuMemHostRegister: ") && error.contains("4096 bytes of the host can't be pinned"),
        "{error}"
    );
    let mut receiver = links[1].receivers.remove(&COPY).unwrap();
    receiver.post(0, &[1, 4, 8], Kind::Float);
    let (waited, wait) = mpsc::channel();
    std::thread::spawn(move || waited.send(receiver.wait(0).map(drop)));
    let error = wait.recv_timeout(Duration::from_secs(60)).expect("the receiver hangs").unwrap_err().to_string();
    assert!(error.contains("could not receive f32[32] with tag 0"), "{error}");
}
