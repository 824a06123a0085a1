//! Links over real sockets and real shared memory, both ends in this process.
#![allow(clippy::unwrap_used, reason = "tests may")]

use std::net::TcpListener;
use std::time::{Duration, Instant};

use stagecoach::links::{Edge, EdgeKind, Links, Opening, Transport, edges, open};
use stagecoach_pipeline::Placement;
use tch::{Device, Kind, Tensor};

const FORWARD: Edge = Edge { from: 0, to: 1, kind: EdgeKind::Forward { boundary: 0 } };
const BACKWARD: Edge = Edge { from: 1, to: 0, kind: EdgeKind::Backward { boundary: 0 } };

/// Opens a group of `ranks`; `boundary_bytes` decides the size of the rings.
fn group(ranks: usize, transport: Transport, boundary_bytes: usize, tied: bool) -> Vec<Links> {
    let placement = Placement::linear(ranks);
    let edges = edges(&placement, tied);
    let listeners: Vec<TcpListener> = (0..ranks).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<String> = listeners.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
    std::thread::scope(|scope| {
        let opening = listeners.into_iter().enumerate().map(|(rank, listener)| {
            let (edges, addresses) = (&edges, &addresses);
            scope.spawn(move || {
                open(Opening {
                    rank,
                    group: "test/1".into(),
                    listener,
                    addresses,
                    edges,
                    transport,
                    boundary_bytes,
                    tied_bytes: boundary_bytes,
                    timeout: Duration::from_secs(20),
                })
                .unwrap()
            })
        });
        let opening: Vec<_> = opening.collect();
        opening.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn tensor(seed: i64, rows: i64, length: i64) -> Tensor {
    (Tensor::arange(rows * length * 8, (Kind::Float, Device::Cpu)) + seed).view([rows, length, 8])
}

#[test]
fn tensors_of_changing_shape_arrive_as_they_were_sent() {
    for transport in [Transport::Tcp, Transport::Shm, Transport::Auto] {
        // 4 x 2,048 bytes of ring for tensors of up to 2,048 bytes: it wraps many times, and writers wait for room
        let mut links = group(2, transport, 2048, false);
        let (mut second, mut first) = (links.pop().unwrap(), links.pop().unwrap());
        let shape = |m: usize| (1 + m as i64 % 4, 5 + m as i64 % 12);
        for m in 0..100 {
            let (rows, length) = shape(m);
            first.senders[&FORWARD].send(m, tensor(m as i64, rows, length)).unwrap();
            first.receivers[&BACKWARD].post(m, &[rows, length, 8], Kind::Float);
        }
        for m in 0..100 {
            let (rows, length) = shape(m);
            let receiver = second.receivers.get_mut(&FORWARD).unwrap();
            receiver.post(m, &[rows, length, 8], Kind::Float);
            let got = receiver.wait(m).unwrap();
            assert_eq!(got, tensor(m as i64, rows, length));
            second.senders[&BACKWARD].send(m, got + 1.0).unwrap();
        }
        // asked for in another order than they arrive
        for m in (0..100).rev() {
            let (rows, length) = shape(m);
            let got = first.receivers.get_mut(&BACKWARD).unwrap().wait(m).unwrap();
            assert_eq!(got, tensor(m as i64, rows, length) + 1.0);
        }
        let bytes: i64 = (0..100).map(|m| shape(m).0 * shape(m).1 * 8 * 4).sum();
        assert_eq!(first.bytes_sent(), bytes as u64);
    }
}

#[test]
fn a_tied_embedding_has_links_between_the_ends() {
    let mut links = group(3, Transport::Auto, 4096, true);
    let (there, back) = (Edge { from: 0, to: 2, kind: EdgeKind::Tied }, Edge { from: 2, to: 0, kind: EdgeKind::Tied });
    links[0].senders[&there].send(0, tensor(1, 2, 3)).unwrap();
    links[2].senders[&back].send(0, tensor(2, 2, 3)).unwrap();
    for (rank, edge, seed) in [(2, there, 1), (0, back, 2)] {
        let receiver = links[rank].receivers.get_mut(&edge).unwrap();
        receiver.post(0, &[2, 3, 8], Kind::Float);
        assert_eq!(receiver.wait(0).unwrap(), tensor(seed, 2, 3));
    }
}

#[test]
fn another_shape_than_posted_is_an_error_that_names_both() {
    for transport in [Transport::Tcp, Transport::Shm] {
        let mut links = group(2, transport, 4096, false);
        links[0].senders[&FORWARD].send(3, tensor(0, 4, 5)).unwrap();
        let receiver = links[1].receivers.get_mut(&FORWARD).unwrap();
        receiver.post(3, &[4, 6, 8], Kind::Float);
        let error = receiver.wait(3).unwrap_err().to_string();
        for word in ["stage 1 expected f32[4,6,8]", "from stage 0, got f32[4,5,8]", "microbatch 3"] {
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

#[test]
fn no_name_is_left_in_shared_memory() {
    let _links = group(2, Transport::Shm, 4096, false);
    let mine = format!("stagecoach-{}-", std::process::id());
    // other tests of this process may be opening theirs right now
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::fs::read_dir("/dev/shm").unwrap().flatten().any(|e| e.file_name().to_string_lossy().starts_with(&mine)) {
        assert!(Instant::now() < deadline, "a ring still has its name");
        std::thread::sleep(Duration::from_millis(5));
    }
}
