//! The coordinator's threads: one accepts, two per connection read and write, and one runs the state machine of
//! `group_state` and applies its effects.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::connection::{self, Connection};
use crate::disconnect::Disconnect;
use crate::group_state::{ConnectionId, Effect, GroupEvent, GroupState};
use crate::handshake::Arrival;
use crate::messages::encode_message;
use crate::sync::lock;
use crate::{GroupError, GroupFailure, GroupSecret, GroupTimeouts, Hello, Quorum, SecureReader, StepRules, handshake};

/// How many events may wait; readers then wait, and TCP slows their peers.
const EVENT_QUEUE_LEN: usize = 1024;
/// Limit of connections that have not said hello; beyond it the oldest is closed. A stage says hello at once, others may
/// never.
const MAX_PENDING_CONNECTIONS: usize = 256;

/// The rendezvous and failure detector of a group, in its leader's process: a stage 0. Dropping it ends the group.
#[derive(Debug)]
pub struct Coordinator {
    inputs: SyncSender<Input>,
    shared: Arc<SharedState>,
    address: SocketAddr,
    timeouts: GroupTimeouts,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Inputs of the state machine's thread.
#[derive(Debug)]
enum Input {
    Connected(ConnectionId, Arrival, Connection),
    Event(GroupEvent),
    Stop,
}

/// What the threads outside know of the group.
#[derive(Debug, Default)]
struct SharedState {
    state: Mutex<KnownState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct KnownState {
    /// Once that is decided.
    members: Option<Vec<usize>>,
    /// The ranks that are here and not among them.
    waiting: Vec<usize>,
    failure: Option<GroupFailure>,
    /// Whether every final message has been sent.
    is_closed: bool,
}

impl Coordinator {
    /// Starts to accept members that have `secret` on `listener`. They are compared with `expected`, the leader's own hello.
    /// `quorum` says which of them are enough for a group.
    /// `on_rejected` is called for every connection that was closed because its peer did not prove that it has the secret.
    ///
    /// # Errors
    /// If the listener has no address, or no thread can be started.
    pub fn start(
        listener: TcpListener,
        expected: Hello,
        timeouts: GroupTimeouts,
        secret: GroupSecret,
        quorum: Quorum,
        on_rejected: impl Fn() + Send + Sync + 'static,
    ) -> Result<Coordinator, GroupError> {
        let address = listener.local_addr().map_err(GroupError::io("the control port has no address"))?;
        let (inputs, waiting) = sync_channel(EVENT_QUEUE_LEN);
        let shared = Arc::new(SharedState::default());
        let stop = Arc::new(AtomicBool::new(false));
        let group = GroupState::new(expected, timeouts, quorum, Instant::now());
        let state_thread = {
            let shared = Arc::clone(&shared);
            spawn("group-state", move || run_state_machine(group, &waiting, timeouts.heartbeat_interval, &shared))?
        };
        let acceptor = {
            let (inputs, stop) = (inputs.clone(), Arc::clone(&stop));
            let pending = Mutex::default();
            let gate = Arc::new(Gate { inputs, timeouts, secret, pending, on_rejected: Box::new(on_rejected) });
            spawn("group-accept", move || accept(&listener, &gate, &stop))?
        };
        Ok(Coordinator { inputs, shared, address, timeouts, stop, threads: vec![state_thread, acceptor] })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reports preparation progress to the members; extends the start-up timeout.
    pub fn report_progress(&self, progress: &str) {
        self.send_event(GroupEvent::Preparing(progress.to_owned()));
    }

    /// Stage 0 has prepared: waits until it is decided who is in the group, and returns their ranks. Nobody joins before
    /// `release`.
    ///
    /// # Errors
    /// When the group has failed: too few have joined in time.
    pub fn wait_for_members(&self) -> Result<Vec<usize>, GroupError> {
        self.send_event(GroupEvent::Prepared);
        let mut state = lock(&self.shared.state);
        loop {
            if let Some(failure) = &state.failure {
                return Err(GroupError::GroupFailed(Box::new(failure.clone())));
            }
            if let Some(members) = &state.members {
                return Ok(members.clone());
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Stage 0 is ready: sends `plan` (identity, plan and programs, opaque here) and the roster to every member once
    /// all of them have joined.
    pub fn release(&self, plan: Vec<u8>, rules: StepRules) {
        self.send_event(GroupEvent::Release(plan, rules));
    }

    /// Stage 0 gives up: the group ends with this reason. Returns when the members have been notified, or after
    /// `shutdown_timeout` and two heartbeats.
    pub fn reject(&self, reason: impl ToString) {
        self.send_event(GroupEvent::Reject(reason.to_string()));
        let timeout = self.timeouts.shutdown_timeout + self.timeouts.heartbeat_interval * 2;
        let state = lock(&self.shared.state);
        drop(self.shared.changed.wait_timeout_while(state, timeout, |state| !state.is_closed));
    }

    /// What ended the group, if it failed. Stage 0 polls it during a long preparation, in which a lost member ends the
    /// group too.
    pub fn failure(&self) -> Option<GroupFailure> {
        lock(&self.shared.state).failure.clone()
    }

    /// The ranks that are here and not in the group: they could be in the next one.
    pub fn waiting_ranks(&self) -> Vec<usize> {
        lock(&self.shared.state).waiting.clone()
    }

    fn send_event(&self, event: GroupEvent) {
        // Never fails: the receiving thread lives as long as this value.
        let _ = self.inputs.send(Input::Event(event));
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.inputs.send(Input::Stop);
        // `accept` has no timeout: a connection of our own wakes it.
        let host = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let woken = TcpStream::connect_timeout(&SocketAddr::new(host, self.address.port()), Duration::from_secs(1));
        let joinable = if woken.is_ok() { 2 } else { 1 };
        for thread in self.threads.drain(..).take(joinable) {
            let _ = thread.join();
        }
    }
}

/// Runs the state machine until `Input::Stop`.
fn run_state_machine(mut group: GroupState, inputs: &Receiver<Input>, heartbeat: Duration, shared: &SharedState) {
    let mut connections: HashMap<ConnectionId, Connection> = HashMap::new();
    let mut events = VecDeque::new();
    let mut tick = Instant::now() + heartbeat;
    loop {
        match inputs.recv_timeout(tick.saturating_duration_since(Instant::now())) {
            Ok(Input::Connected(conn, arrival, connection)) => {
                connections.insert(conn, connection);
                events.push_back(match arrival {
                    Arrival::Stage(hello) => GroupEvent::Hello(conn, hello),
                    Arrival::Spare(hello) => GroupEvent::StandBy(conn, hello),
                });
            }
            Ok(Input::Event(event)) => events.push_back(event),
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => break,
        }
        if Instant::now() >= tick {
            tick = Instant::now() + heartbeat;
            events.push_back(GroupEvent::Tick);
        }
        while let Some(event) = events.pop_front() {
            let closed = match event {
                GroupEvent::Disconnected(conn, _) => Some(conn),
                _ => None,
            };
            let effects = group.handle(Instant::now(), event);
            // Set before any member is notified.
            shared.update(|state| {
                (state.failure, state.waiting) = (group.failure().cloned(), group.waiting_ranks());
                // decided once; there is an event for every heartbeat
                if state.members.is_none() {
                    state.members.clone_from(&group.members);
                }
            });
            for effect in effects {
                apply_effect(effect, &mut connections, &mut events);
            }
            // Removed only after the effects: its final message may still be deliverable.
            closed.map(|conn| connections.remove(&conn));
        }
        if group.is_closed() {
            shared.update(|state| state.is_closed = true);
        }
    }
    connections.values().for_each(Connection::shut_down);
}

impl SharedState {
    fn update(&self, change: impl FnOnce(&mut KnownState)) {
        change(&mut lock(&self.state));
        self.changed.notify_all();
    }
}

fn apply_effect(
    effect: Effect,
    connections: &mut HashMap<ConnectionId, Connection>,
    events: &mut VecDeque<GroupEvent>,
) {
    match effect {
        Effect::Send(conns, message) => match encode_message(&message) {
            Ok(frame) => {
                let receivers = conns.into_iter().filter_map(|conn| Some((conn, connections.get(&conn)?)));
                let full = receivers.filter(|(_, connection)| connection.send(&frame).is_err());
                events.extend(full.map(|(conn, _)| GroupEvent::Disconnected(conn, Disconnect::TimedOut)));
            }
            Err(error) => events.push_back(GroupEvent::Reject(error.to_string())),
        },
        Effect::Close(conn) => {
            if let Some(connection) = connections.get_mut(&conn) {
                connection.close_after_flush();
            }
        }
    }
}

/// What lets connections in, or closes them.
struct Gate {
    inputs: SyncSender<Input>,
    timeouts: GroupTimeouts,
    secret: GroupSecret,
    /// Connections that have not said hello, oldest first.
    pending: Mutex<VecDeque<(ConnectionId, Arc<TcpStream>)>>,
    on_rejected: Box<dyn Fn() + Send + Sync>,
}

fn accept(listener: &TcpListener, gate: &Arc<Gate>, stop: &AtomicBool) {
    for conn in 0.. {
        let accepted = listener.accept();
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let (stream, from) = match accepted {
            Ok((stream, from)) => (Arc::new(stream), from),
            Err(error) => {
                tracing::warn!(%error, "a control connection could not be accepted");
                // For example out of file descriptors: retrying at once would fail again.
                thread::sleep(gate.timeouts.heartbeat_interval);
                continue;
            }
        };
        gate.add(conn, &stream);
        let shared = Arc::clone(gate);
        if let Err(error) = spawn("group-read", move || shared.serve(conn, stream, from)) {
            gate.remove(conn);
            tracing::warn!(%error, %from, "a control connection can't be served");
        }
    }
}

impl Gate {
    /// Adds a connection, which closes the oldest if there are too many.
    fn add(&self, conn: ConnectionId, stream: &Arc<TcpStream>) {
        let mut pending = lock(&self.pending);
        if pending.len() == MAX_PENDING_CONNECTIONS
            && let Some((_, oldest)) = pending.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        pending.push_back((conn, Arc::clone(stream)));
    }

    fn remove(&self, conn: ConnectionId) {
        lock(&self.pending).retain(|(pending, _)| *pending != conn);
    }

    /// Serves one connection until it ends.
    fn serve(&self, conn: ConnectionId, stream: Arc<TcpStream>, from: SocketAddr) {
        let admitted = self.admit(&stream);
        self.remove(conn);
        let (arrival, connection, reader) = match admitted {
            Ok(admitted) => admitted,
            Err(error) => {
                (self.on_rejected)();
                return tracing::debug!(%error, %from, "rejected a control connection");
            }
        };
        if self.inputs.send(Input::Connected(conn, arrival, connection)).is_err() {
            return;
        }
        let send = |event| self.inputs.send(Input::Event(event)).is_ok();
        let disconnect = connection::read_frames(reader, |message| send(GroupEvent::Message(conn, message)));
        send(GroupEvent::Disconnected(conn, disconnect));
    }

    /// The handshake, and the hello of a stage or spare that has the secret.
    fn admit(&self, stream: &Arc<TcpStream>) -> io::Result<(Arrival, Connection, SecureReader<TcpStream>)> {
        connection::configure(stream, self.timeouts.heartbeat_timeout)?;
        let session = handshake::server_handshake(&mut &**stream, &self.secret)?;
        let mut reader = session.reader(stream.try_clone()?);
        let arrival = handshake::read_arrival(&mut reader)?;
        Ok((arrival, Connection::open(stream, &session)?, reader))
    }
}

pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, GroupError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(GroupError::io(format!("the thread {name} can't be started")))
}
