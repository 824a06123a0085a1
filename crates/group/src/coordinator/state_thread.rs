//! The thread that runs the state machine and applies its effects.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use super::connection::Connection;
use crate::GroupFailure;
use crate::state::{ConnectionId, Effect, GroupEvent, GroupState};
use crate::sync::lock;
use crate::wire::connection::Disconnect;
use crate::wire::handshake::FirstMessage;
use crate::wire::messages::encode_message;

/// Inputs of the state machine's thread.
#[derive(Debug)]
pub(super) enum Input {
    Connected(ConnectionId, FirstMessage, Connection),
    Event(GroupEvent),
    Stop,
}

/// The state of the group that other threads see.
#[derive(Debug, Default)]
pub(super) struct SharedState {
    pub(super) state: Mutex<PublishedState>,
    pub(super) changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct PublishedState {
    /// The members' global ranks by group rank, once the members are decided.
    pub(super) members: Option<Vec<usize>>,
    /// The global ranks that are connected but not members.
    pub(super) waiting: Vec<usize>,
    pub(super) failure: Option<GroupFailure>,
    /// Whether every final message has been sent.
    pub(super) is_closed: bool,
}

/// Runs the state machine until `Input::Stop`.
pub(super) fn run_state_machine(
    mut group: GroupState,
    inputs: &Receiver<Input>,
    heartbeat: Duration,
    shared: &SharedState,
) {
    let mut connections: HashMap<ConnectionId, Connection> = HashMap::new();
    let mut events = VecDeque::new();
    let mut tick = Instant::now() + heartbeat;
    loop {
        match inputs.recv_timeout(tick.saturating_duration_since(Instant::now())) {
            Ok(Input::Connected(conn, arrival, connection)) => {
                connections.insert(conn, connection);
                events.push_back(match arrival {
                    FirstMessage::Stage(hello) => GroupEvent::Hello(conn, hello),
                    FirstMessage::Spare(hello) => GroupEvent::WaitAsSpare(conn, hello),
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
            // other threads see the failure before any member is notified
            shared.update(|state| {
                (state.failure, state.waiting) = (group.failure.clone(), group.waiting_ranks());
                // the members never change once they are decided, so only the first event after that copies them
                if state.members.is_none() {
                    state.members.clone_from(&group.members);
                }
            });
            for effect in effects {
                apply_effect(effect, &mut connections, &mut events);
            }
            // A connection that receives nothing more may still deliver a final message, which an effect may send. It
            // is therefore removed after the effects.
            closed.map(|conn| connections.remove(&conn));
        }
        if group.is_closed() {
            shared.update(|state| state.is_closed = true);
        }
    }
    connections.values().for_each(Connection::shut_down);
}

impl SharedState {
    fn update(&self, change: impl FnOnce(&mut PublishedState)) {
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
