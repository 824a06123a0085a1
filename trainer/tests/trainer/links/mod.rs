//! Tests of links over real sockets and real shared memory, with both ends in this process.

mod nccl;
mod shared_memory;
mod strangers;

use std::net::TcpListener;
use std::sync::LazyLock;
use std::time::Duration;

use stagecoach_api::job::{Encryption, Transport};
use stagecoach_group::GroupSecret;
use stagecoach_pipeline::{Placement, SENDS_IN_FLIGHT};
use stagecoach_transport::{Interrupt, LinkId, LinkPayload, Links, LinksConfig, link_ids, open_links};
use tch::{Device, Kind, Tensor};

const FORWARD: LinkId = LinkId { from: 0, to: 1, payload: LinkPayload::Forward { boundary: 0 } };
const BACKWARD: LinkId = LinkId { from: 1, to: 0, payload: LinkPayload::Backward { boundary: 0 } };
const REPLICAS: LinkId = LinkId { from: 0, to: 1, payload: LinkPayload::Replicas };

/// Opens the links of a group of `ranks` stages. `boundary_bytes` determines the size of the ring buffers in shared
/// memory.
fn group(ranks: usize, transport: Transport, boundary_bytes: usize, tied: bool) -> Vec<Links> {
    let tied_bytes = boundary_bytes;
    group_of(ranks, tied, |config| LinksConfig { transport, boundary_bytes, tied_bytes, ..config })
}

/// Opens the links of a group of `ranks` stages, with each stage's configuration modified by `change`.
fn group_of(ranks: usize, tied: bool, change: impl Fn(LinksConfig) -> LinksConfig + Sync) -> Vec<Links> {
    let placement = Placement::linear(ranks);
    let link_ids = link_ids(&placement, tied);
    let listeners: Vec<TcpListener> = (0..ranks).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<String> = listeners.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
    std::thread::scope(|scope| {
        let opening = listeners.into_iter().enumerate().map(|(rank, listener)| {
            let (link_ids, addresses, change) = (&link_ids, &addresses, &change);
            scope.spawn(move || {
                open_links(change(config(rank, listener, addresses, link_ids, Transport::Auto))).unwrap()
            })
        });
        let opening: Vec<_> = opening.collect();
        opening.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The secret of all groups in these tests.
static SECRET: LazyLock<GroupSecret> = LazyLock::new(|| GroupSecret::from_key_hex(1, &"07".repeat(32)).unwrap());

fn config<'a>(
    rank: usize,
    listener: TcpListener,
    addresses: &'a [String],
    link_ids: &'a [LinkId],
    transport: Transport,
) -> LinksConfig<'a> {
    LinksConfig {
        rank,
        group: "test/1".to_owned(),
        secret: &SECRET,
        on_rejected: &|| {},
        listener,
        addresses,
        link_ids,
        transport,
        device: Device::Cpu,
        encryption: Encryption::None,
        boundary_bytes: 4096,
        tied_bytes: 4096,
        interrupt: Interrupt::default(),
        timeout: Duration::from_secs(20),
    }
}

fn tensor(seed: i64, rows: i64, length: i64) -> Tensor {
    (Tensor::arange(rows * length * 8, (Kind::Float, Device::Cpu)) + seed).view([rows, length, 8])
}

#[test]
fn tensors_of_changing_shape_arrive_as_they_were_sent() {
    let transports = [Transport::Tcp, Transport::Shm, Transport::Auto].map(|transport| (transport, Encryption::None));
    for (transport, encryption) in transports.into_iter().chain([(Transport::Tcp, Encryption::Required)]) {
        // a ring of 4,096 bytes carries tensors of up to 2,048 bytes: the ring wraps many times, and a writer that is
        // two tensors ahead of the reader waits
        let mut links =
            group_of(2, false, |config| LinksConfig { transport, encryption, boundary_bytes: 512, ..config });
        let (mut second, mut first) = (links.pop().unwrap(), links.pop().unwrap());
        let shape = |m: usize| (1 + m as i64 % 4, 5 + m as i64 % 12);
        let mut send = |m: usize| {
            let (rows, length) = shape(m);
            first.senders[&FORWARD].send(m, tensor(m as i64, rows, length)).unwrap();
            first.receivers.get_mut(&BACKWARD).unwrap().post(m, &[rows, length, 8], Kind::Float);
        };
        (0..2).for_each(&mut send);
        for m in 0..100 {
            if m + 2 < 100 {
                send(m + 2);
            }
            let (rows, length) = shape(m);
            let receiver = second.receivers.get_mut(&FORWARD).unwrap();
            receiver.post(m, &[rows, length, 8], Kind::Float);
            let got = receiver.wait(m).unwrap();
            assert_eq!(got, tensor(m as i64, rows, length));
            second.senders[&BACKWARD].send(m, got + 1.0).unwrap();
        }
        // the test requests the tensors in another order than that of their arrival
        for m in (0..100).rev() {
            let (rows, length) = shape(m);
            let got = first.receivers.get_mut(&BACKWARD).unwrap().wait(m).unwrap();
            assert_eq!(got, tensor(m as i64, rows, length) + 1.0);
        }
        let bytes: i64 = (0..100).map(|m| shape(m).0 * shape(m).1 * 8 * 4).sum();
        assert_eq!(first.bytes_sent(), bytes as u64);
    }
}

/// A stage sends the copy of its state even if the stage has no layers. The tensor is then empty and has no memory.
#[test]
fn an_empty_tensor_arrives() {
    for transport in [Transport::Tcp, Transport::Shm] {
        let mut links = group(2, transport, 512, false);
        let (mut second, first) = (links.pop().unwrap(), links.pop().unwrap());
        first.senders[&FORWARD].send(0, tensor(0, 0, 4)).unwrap();
        let receiver = second.receivers.get_mut(&FORWARD).unwrap();
        receiver.post(0, &[0, 4, 8], Kind::Float);
        assert_eq!(receiver.wait(0).unwrap().size(), [0, 4, 8]);
    }
}

/// A gradient or a weight has the size of its parameter, which may exceed the capacity of the carrier (a TCP connection
/// or a ring). The test also sends an empty tensor and a scalar.
#[test]
fn what_replicas_send_may_be_larger_than_what_carries_it() {
    let matrix = Tensor::arange(1024 * 2816, (Kind::Float, Device::Cpu)).view([1024, 2816]);
    let tensors = [matrix, tensor(1, 0, 3), tensor(2, 3, 1), Tensor::from(7f32)];
    for transport in [Transport::Tcp, Transport::Shm] {
        let ids = &[FORWARD, REPLICAS];
        let mut links = group_of(2, false, |config| LinksConfig { transport, link_ids: ids, ..config });
        for (message, tensor) in tensors.iter().enumerate() {
            let receiver = links[1].receivers.get_mut(&REPLICAS).unwrap();
            receiver.post(message, &tensor.size(), Kind::Float);
            links[0].senders[&REPLICAS].send(message, tensor.shallow_clone()).unwrap();
            let arrived = links[1].receivers.get_mut(&REPLICAS).unwrap().wait(message).unwrap();
            assert_eq!(arrived, *tensor, "over {transport:?}");
        }
    }
}

/// Tensors of 32 MiB exceed TCP's buffers by far, so no tensor is sent completely before its receive is posted.
#[test]
fn a_send_blocks_while_as_many_as_the_verifier_reckons_with_have_not_left() {
    const LENGTH: i64 = 1 << 20;
    let mut links = group(2, Transport::Tcp, 4096, false);
    let mut second = links.pop().unwrap();
    let sender = links[0].senders.remove(&FORWARD).unwrap();
    let (sent, returned) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let big = tensor(0, 1, LENGTH);
        (0..8).try_for_each(|m| sender.send(m, big.shallow_clone()).map(|()| sent.send(m).unwrap()))
    });
    let receiver = second.receivers.get_mut(&FORWARD).unwrap();
    (0..SENDS_IN_FLIGHT).for_each(|m| assert_eq!(returned.recv(), Ok(m)));
    for posted in 0..8 {
        // as many sends as allowed have returned; one more returns only if the bound is too high
        assert!(returned.try_recv().is_err(), "too many sends returned after {posted} receives");
        receiver.post(posted, &[1, LENGTH, 8], Kind::Float);
        assert_eq!(receiver.wait(posted).unwrap().size(), [1, LENGTH, 8]);
        if posted + SENDS_IN_FLIGHT < 8 {
            assert_eq!(returned.recv(), Ok(posted + SENDS_IN_FLIGHT));
        }
    }
}

#[test]
fn what_replicas_exchange_never_blocks() {
    const LENGTH: i64 = 1 << 20;
    for transport in [Transport::Tcp, Transport::Shm] {
        let mut links = group_of(2, false, |config| LinksConfig { transport, link_ids: &[REPLICAS], ..config });
        let mut second = links.pop().unwrap();
        let sender = links[0].senders.remove(&REPLICAS).unwrap();
        // no receive is posted yet
        let flat = |m: usize| tensor(m as i64, 1, LENGTH).view([-1]);
        (0..8).for_each(|m| sender.send(m, flat(m)).unwrap());
        let receiver = second.receivers.get_mut(&REPLICAS).unwrap();
        (0..8).for_each(|m| receiver.post(m, &[LENGTH * 8], Kind::Float));
        // the test requests the tensors in another order
        (0..8).rev().for_each(|m| assert_eq!(receiver.wait(m).unwrap(), flat(m)));
    }
}

/// The peer disconnects while the sender blocks in a send.
#[test]
fn a_send_that_blocks_ends_with_its_peer() {
    // the tensors exceed TCP's buffers, or a ring holds only a few of them
    for (transport, length) in [(Transport::Tcp, 1 << 20), (Transport::Shm, 128)] {
        let mut links = group(2, transport, 4096, false);
        let second = links.pop().unwrap();
        let sender = links[0].senders.remove(&FORWARD).unwrap();
        let (sent, returned) = std::sync::mpsc::channel();
        let sending = std::thread::spawn(move || {
            let mut sends = (0..100).map(|m| sender.send(m, tensor(0, 1, length)));
            sends.find_map(|result| {
                sent.send(()).ok();
                result.err()
            })
        });
        (0..SENDS_IN_FLIGHT).for_each(|_| returned.recv().unwrap());
        drop(second);
        let error = sending.join().unwrap().expect("nobody receives").to_string();
        assert!(error.contains("activations of chunk 0 from stage 0 to stage 1"), "{error}");
    }
}

#[test]
fn a_tied_embedding_has_links_between_the_ends() {
    let mut links = group(3, Transport::Auto, 4096, true);
    let (there, back) =
        (LinkId { from: 0, to: 2, payload: LinkPayload::Tied }, LinkId { from: 2, to: 0, payload: LinkPayload::Tied });
    links[0].senders[&there].send(0, tensor(1, 2, 3)).unwrap();
    links[2].senders[&back].send(0, tensor(2, 2, 3)).unwrap();
    for (rank, link, seed) in [(2, there, 1), (0, back, 2)] {
        let receiver = links[rank].receivers.get_mut(&link).unwrap();
        receiver.post(0, &[2, 3, 8], Kind::Float);
        assert_eq!(receiver.wait(0).unwrap(), tensor(seed, 2, 3));
    }
}

#[test]
fn every_edge_between_stages_has_a_link_of_its_own() {
    let names = |placement: &Placement, tied| -> Vec<String> {
        link_ids(placement, tied).iter().map(LinkId::to_string).collect()
    };
    // two stages share three boundaries
    assert_eq!(
        names(&Placement::looped(2, 2), true),
        [
            "activations of chunk 0 from stage 0 to stage 1",
            "gradients for chunk 0 from stage 1 to stage 0",
            "activations of chunk 1 from stage 1 to stage 0",
            "gradients for chunk 1 from stage 0 to stage 1",
            "activations of chunk 2 from stage 0 to stage 1",
            "gradients for chunk 2 from stage 1 to stage 0",
            "the tied embedding's gradient from stage 0 to stage 1",
            "the tied embedding's gradient from stage 1 to stage 0",
        ]
    );
    // both chunks at the turn of a V are on one stage, and so are the first and the last chunk
    assert_eq!(
        names(&Placement::v_shaped(2), true),
        [
            "activations of chunk 0 from stage 0 to stage 1",
            "gradients for chunk 0 from stage 1 to stage 0",
            "activations of chunk 2 from stage 1 to stage 0",
            "gradients for chunk 2 from stage 0 to stage 1",
        ]
    );
}

#[test]
fn another_shape_than_posted_is_an_error_that_names_both() {
    for transport in [Transport::Tcp, Transport::Shm] {
        let mut links = group(2, transport, 4096, false);
        links[0].senders[&FORWARD].send(3, tensor(0, 4, 5)).unwrap();
        let receiver = links[1].receivers.get_mut(&FORWARD).unwrap();
        receiver.post(3, &[4, 6, 8], Kind::Float);
        let error = receiver.wait(3).unwrap_err().to_string();
        for word in ["stage 1 expected f32[4,6,8]", "from stage 0, got f32[4,5,8] with tag 3"] {
            assert!(error.contains(word), "{error}");
        }
    }
}

#[test]
fn a_dead_neighbour_is_an_error_and_not_a_hang() {
    for transport in [Transport::Tcp, Transport::Shm] {
        let mut links = group(2, transport, 4096, false);
        drop(links.remove(0));
        let receiver = links[0].receivers.get_mut(&FORWARD).unwrap();
        receiver.post(0, &[1, 1, 8], Kind::Float);
        assert!(receiver.wait(0).unwrap_err().to_string().contains("activations of chunk 0 from stage 0 to stage 1"));
    }
}
