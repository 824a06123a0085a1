//! A group whose stages are threads of this process, with the real coordinator and heartbeats.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use stagecoach_api::contract::Mesh;
use stagecoach_group::{Coordinator, GroupSecret, GroupTimeouts, Hello, Member, Quorum, Rendezvous, StepRules};

/// A time limit far above the duration of any test.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The state of a stage that has joined.
#[derive(Debug)]
pub struct InProcessStage<'a> {
    /// The rank.
    pub rank: usize,
    /// The membership. The stage calls [`Member::form`] after it has opened its links.
    pub member: Member,
    /// The socket at which the other stages reach the stage.
    pub listener: TcpListener,
    /// The addresses of all stages, by rank.
    pub addresses: &'a [String],
}

/// Runs `stage` on one thread for each of `ranks` ranks, and returns the results by rank. A member leaves the group
/// when its `stage` returns.
///
/// # Panics
/// If the group does not form, or a stage panics.
pub fn in_process_group<T: Send>(
    ranks: usize,
    rules: StepRules,
    stage: impl Fn(&mut InProcessStage) -> T + Sync,
) -> Vec<T> {
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    let control = listen();
    let address = control.local_addr().unwrap().to_string();
    let secret = GroupSecret::generate(1).unwrap();
    let coordinator =
        Coordinator::start(control, hello(0, ranks), timeouts(), secret.clone(), Quorum::all(ranks), || {}).unwrap();
    let at = &Rendezvous::new(address, secret);
    coordinator.release(Vec::new(), rules);
    let listeners: Vec<TcpListener> = (0..ranks).map(|_| listen()).collect();
    let addresses: &Vec<String> = &listeners.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
    let run = |rank: usize, listener: TcpListener| {
        let (find, mesh) = (|| Ok(at.clone()), Mesh::pipeline(ranks as u32));
        let (member, ..) = Member::join(find, hello(rank, ranks), mesh, timeouts(), |_| {}, |_| {}).unwrap();
        let mut joined = InProcessStage { rank, member, listener, addresses };
        let result = stage(&mut joined);
        joined.member.leave(0).unwrap();
        result
    };
    thread::scope(|scope| {
        let run = &run;
        let stages = listeners.into_iter().enumerate().map(|(rank, listener)| scope.spawn(move || run(rank, listener)));
        let stages: Vec<_> = stages.collect();
        stages.into_iter().map(|stage| stage.join().unwrap()).collect()
    })
}

fn timeouts() -> GroupTimeouts {
    let heartbeat_timeout = TIMEOUT; // stages on a busy machine may send no heartbeat for a long time
    GroupTimeouts { startup_timeout: TIMEOUT, heartbeat_timeout, stall_timeout: TIMEOUT, ..GroupTimeouts::default() }
}

fn hello(rank: usize, world_size: usize) -> Hello {
    Hello {
        job_uid: "job".into(),
        attempt: 1,
        rank,
        world_size,
        pod_uid: format!("pod-{rank}"),
        version: "test".into(),
        ..Hello::default()
    }
}
