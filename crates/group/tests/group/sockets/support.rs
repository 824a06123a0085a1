//! Helpers: members on threads, and a proxy that can close or freeze the connections of members.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use stagecoach_api::contract::Mesh;
use stagecoach_group::{
    Coordinator, GroupError, GroupFailure, GroupSecret, GroupTimeouts, Hello, Member, NotFound, Quorum, Rendezvous,
    Roster, StepRules,
};

/// The time after which a wait has failed. No operation in these tests takes nearly as long.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A timeout that is expected to expire. The timeout is long enough that a busy machine finishes all earlier work
/// first.
pub(crate) const SHORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeouts that only a dead peer exceeds, even on a busy machine.
pub(crate) fn timeouts() -> GroupTimeouts {
    GroupTimeouts {
        startup_timeout: TEST_TIMEOUT,
        heartbeat_interval: Duration::from_millis(20),
        heartbeat_timeout: Duration::from_secs(10),
        stall_timeout: TEST_TIMEOUT,
        shutdown_timeout: Duration::from_millis(500),
    }
}

pub(crate) fn hello(rank: usize, world_size: usize) -> Hello {
    Hello {
        job_uid: "job-1".to_owned(),
        attempt: 3,
        rank,
        world_size,
        pod_uid: format!("pod-{rank}"),
        version: "0.1.0".to_owned(),
        config: BTreeMap::from([("seed".to_owned(), "42".to_owned()), ("model".to_owned(), "Llama".to_owned())]),
        data_address: format!("127.0.0.1:{}", 40_000 + rank),
        host: format!("host-{rank}"),
        ..Hello::default()
    }
}

/// A stage that has joined.
#[derive(Debug)]
pub(crate) struct TestStage {
    pub(crate) member: Member,
    pub(crate) roster: Roster,
    pub(crate) plan: Vec<u8>,
    pub(crate) failures: Receiver<GroupFailure>,
}

impl TestStage {
    /// Waits for the failure of this stage, drops the member, and asserts that no other failure follows.
    pub(crate) fn only_failure(self) -> GroupFailure {
        let failure = self.failures.recv_timeout(TEST_TIMEOUT).expect("no failure was reported");
        drop(self.member);
        // the receiving thread drops the sender when it ends
        assert!(self.failures.recv_timeout(TEST_TIMEOUT).is_err(), "a second failure was reported");
        failure
    }
}

/// Returns the secret of all groups in these tests.
pub(crate) fn secret() -> GroupSecret {
    GroupSecret::from_key_hex(5, &"07".repeat(32)).unwrap()
}

/// Finds the coordinator at `address`.
pub(crate) fn find(address: &str) -> impl FnMut() -> Result<Rendezvous, NotFound> + use<> {
    let at = rendezvous(address);
    move || Ok(at.clone())
}

pub(crate) fn rendezvous(address: &str) -> Rendezvous {
    Rendezvous::new(address.to_owned(), secret())
}

/// Starts a coordinator on a free port, for `world_size` stages.
pub(crate) fn coordinator(world_size: usize, timeouts: GroupTimeouts) -> (Coordinator, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (
        Coordinator::start(listener, hello(0, world_size), timeouts, secret(), Quorum::all(world_size), || {}).unwrap(),
        address,
    )
}

/// Joins a group of one replica, and collects the failures.
pub(crate) fn join(address: &str, hello: Hello, timeouts: GroupTimeouts) -> Result<TestStage, GroupError> {
    let mesh = Mesh::pipeline(hello.world_size as u32);
    join_found(find(address), hello, mesh, timeouts)
}

/// Joins a group of one replica on another thread. The receiver gets the leader's progress reports.
pub(crate) fn join_on_thread(
    address: &str,
    hello: Hello,
    timeouts: GroupTimeouts,
) -> (JoinHandle<Result<TestStage, GroupError>>, Receiver<String>) {
    let (sender, reports) = channel();
    let (find, mesh) = (find(address), Mesh::pipeline(hello.world_size as u32));
    let on_preparing = move |report: &str| drop(sender.send(report.to_owned()));
    (thread::spawn(move || join_reporting(find, hello, mesh, timeouts, on_preparing)), reports)
}

/// Joins the group that `find` finds, and collects the failures.
pub(crate) fn join_found(
    find: impl FnMut() -> Result<Rendezvous, NotFound>,
    hello: Hello,
    mesh: Mesh,
    timeouts: GroupTimeouts,
) -> Result<TestStage, GroupError> {
    join_reporting(find, hello, mesh, timeouts, |_| {})
}

/// Like [`join_found`], and calls `on_preparing` with the leader's progress reports.
fn join_reporting(
    find: impl FnMut() -> Result<Rendezvous, NotFound>,
    hello: Hello,
    mesh: Mesh,
    timeouts: GroupTimeouts,
    on_preparing: impl FnMut(&str),
) -> Result<TestStage, GroupError> {
    let (sender, failures) = channel();
    let on_failure = move |failure| drop(sender.send(failure));
    let (member, roster, plan) = Member::join(find, hello, mesh, timeouts, on_preparing, on_failure)?;
    Ok(TestStage { member, roster, plan, failures })
}

/// Lets every stage join at its address, each on a separate thread. Returns the stages by rank.
pub(crate) fn join_at(addresses: &[String], timeouts: GroupTimeouts) -> Vec<TestStage> {
    let hello_of = |rank| hello(rank, addresses.len());
    join_as(addresses.iter().enumerate().map(|(rank, address)| (address.clone(), hello_of(rank))), timeouts)
}

/// Like [`join_at`], with the hello of each stage.
pub(crate) fn join_as(stages: impl Iterator<Item = (String, Hello)>, timeouts: GroupTimeouts) -> Vec<TestStage> {
    thread::scope(|scope| {
        let joining: Vec<_> =
            stages.map(|(address, hello)| scope.spawn(move || join(&address, hello, timeouts).unwrap())).collect();
        joining.into_iter().map(|stage| stage.join().unwrap()).collect()
    })
}

/// Returns a formed group.
pub(crate) fn formed_group(
    world_size: usize,
    timeouts: GroupTimeouts,
    rules: StepRules,
) -> (Coordinator, Vec<TestStage>) {
    let (coordinator, address) = coordinator(world_size, timeouts);
    coordinator.release(b"the plan".to_vec(), rules);
    let stages = join_at(&vec![address; world_size], timeouts);
    form(&stages);
    (coordinator, stages)
}

/// Returns a formed group whose stage `through` connects through a proxy.
pub(crate) fn formed_group_through_proxy(
    world_size: usize,
    through: usize,
    timeouts: GroupTimeouts,
) -> (Coordinator, Vec<TestStage>, ControlProxy) {
    let (coordinator, address) = coordinator(world_size, timeouts);
    let proxy = ControlProxy::start(&address);
    coordinator.release(Vec::new(), StepRules::default());
    let mut addresses = vec![address; world_size];
    addresses[through] = proxy.address.clone();
    let stages = join_at(&addresses, timeouts);
    form(&stages);
    (coordinator, stages, proxy)
}

pub(crate) fn form(stages: &[TestStage]) {
    on_all(stages, |_, member| member.form().unwrap());
}

/// Calls `work` for every stage at the same time. Returns the results by rank.
pub(crate) fn on_all<T: Send>(stages: &[TestStage], work: impl Fn(usize, &Member) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let members = stages.iter().map(|stage| &stage.member).enumerate();
        let running: Vec<_> = members.map(|(rank, member)| scope.spawn(move || work(rank, member))).collect();
        running.into_iter().map(|running| running.join().unwrap()).collect()
    })
}

/// Lets all stages leave with `code`. Returns one result for each stage.
pub(crate) fn leave(stages: Vec<TestStage>, code: i32) -> Vec<Result<(), GroupError>> {
    let leaving: Vec<_> = stages.into_iter().map(|stage| thread::spawn(move || stage.member.leave(code))).collect();
    leaving.into_iter().map(|leaving| leaving.join().unwrap()).collect()
}

/// A TCP proxy between members and their coordinator.
#[derive(Debug)]
pub(crate) struct ControlProxy {
    pub(crate) address: String,
    state: Arc<ProxyState>,
}

#[derive(Debug, Default)]
struct ProxyState {
    /// Whether the proxy has stopped forwarding. A frozen proxy keeps all connections open.
    frozen: AtomicBool,
    closed: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
    ended: (Mutex<bool>, Condvar),
}

impl ControlProxy {
    pub(crate) fn start(to: &str) -> ControlProxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let to: SocketAddr = to.parse().unwrap();
        let state = Arc::new(ProxyState::default());
        let shared = Arc::clone(&state);
        // the thread ends with the test's process
        thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                if shared.closed.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(to) else { continue };
                for (from, into) in [(&near, &far), (&far, &near)] {
                    let (from, into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
                    shared.streams.lock().unwrap().push(from.try_clone().unwrap());
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || forward(from, into, &shared));
                }
            }
        });
        ControlProxy { address, state }
    }

    /// Closes all connections, as the death of a process does.
    pub(crate) fn disconnect(&self) {
        for stream in self.state.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Closes all current and later connections.
    pub(crate) fn disconnect_for_good(&self) {
        self.state.closed.store(true, Ordering::SeqCst);
        self.disconnect();
    }

    /// Stops forwarding, as `SIGSTOP` or a lost network does.
    pub(crate) fn freeze(&self) {
        self.state.frozen.store(true, Ordering::SeqCst);
    }
}

impl Drop for ControlProxy {
    fn drop(&mut self) {
        *self.state.ended.0.lock().unwrap() = true;
        self.state.ended.1.notify_all();
        self.disconnect();
    }
}

fn forward(mut from: TcpStream, mut into: TcpStream, state: &ProxyState) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if state.frozen.load(Ordering::SeqCst) {
            let ended = state.ended.0.lock().unwrap();
            drop(state.ended.1.wait_while(ended, |ended| !*ended).unwrap());
            return;
        }
        if into.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = into.shutdown(Shutdown::Both);
}
