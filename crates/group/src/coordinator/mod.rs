//! The coordinator's threads. One thread accepts connections. Each connection has a reader thread and a writer thread.
//! One thread runs the state machine of `state` and applies its effects.

mod accept;
mod connection;
mod state_thread;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::accept::{Gate, accept};
use self::state_thread::{Input, SharedState, run_state_machine};
use crate::state::{GroupEvent, GroupState};
use crate::sync::{lock, spawn};
use crate::{GroupError, GroupFailure, GroupSecret, GroupTimeouts, Hello, Quorum, StepRules};

/// The maximum number of queued events. If the queue is full, the reader threads wait, and TCP slows their peers.
const EVENT_QUEUE_LEN: usize = 1024;

/// The rendezvous and failure detector of a group, in its leader's process (the counterpart of torchelastic's
/// rendezvous store). Dropping the coordinator ends the group.
#[derive(Debug)]
pub struct Coordinator {
    inputs: SyncSender<Input>,
    shared: Arc<SharedState>,
    address: SocketAddr,
    timeouts: GroupTimeouts,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Coordinator {
    /// Starts to accept, on `listener`, members that have `secret`. The coordinator compares each stage's hello (its
    /// first message) with `expected`, the leader's hello. `quorum` decides which members are enough for a group. The
    /// coordinator calls `on_rejected` for every connection that it closes because the peer did not prove that it has
    /// the secret.
    ///
    /// # Errors
    /// Returns an error if the listener has no address, or no thread can be started.
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

    /// Returns the address on which the coordinator listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reports the leader's progress to the members. Each report restarts their start-up timeout.
    pub fn report_progress(&self, progress: &str) {
        self.send_event(GroupEvent::Preparing(progress.to_owned()));
    }

    /// Reports that the leader has finished its preparation, waits until the group's members are decided, and returns
    /// the members' global ranks by group rank. [`Member::join`](crate::Member::join) does not return before the leader
    /// calls `release`.
    ///
    /// # Errors
    /// Returns an error if the group has failed, for example because too few members joined in time.
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

    /// Reports that the leader is ready. Once all members have joined, the coordinator sends the roster and `plan` to
    /// every member. `plan` contains the job's identity, its plan and the programs, as bytes that this crate does not
    /// interpret.
    pub fn release(&self, plan: Vec<u8>, rules: StepRules) {
        self.send_event(GroupEvent::Release(plan, rules));
    }

    /// Ends the group with `reason` as the cause. Returns when the members have been notified, but at the latest after
    /// `shutdown_timeout` plus two heartbeat intervals.
    pub fn reject(&self, reason: impl ToString) {
        self.send_event(GroupEvent::Reject(reason.to_string()));
        let timeout = self.timeouts.shutdown_timeout + self.timeouts.heartbeat_interval * 2;
        let state = lock(&self.shared.state);
        drop(self.shared.changed.wait_timeout_while(state, timeout, |state| !state.is_closed));
    }

    /// Returns the failure that ended the group, if the group failed. The leader polls this method during a long
    /// preparation, because the group can fail during this time, for example if two pods claim to be the same stage.
    pub fn failure(&self) -> Option<GroupFailure> {
        lock(&self.shared.state).failure.clone()
    }

    /// Returns the global ranks that are connected but not in the group. The next group may include these ranks.
    pub fn waiting_ranks(&self) -> Vec<usize> {
        lock(&self.shared.state).waiting.clone()
    }

    fn send_event(&self, event: GroupEvent) {
        // the send succeeds, because the receiving thread lives as long as this value
        let _ = self.inputs.send(Input::Event(event));
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.inputs.send(Input::Stop);
        // `accept` has no timeout, so this function wakes it with a connection
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
