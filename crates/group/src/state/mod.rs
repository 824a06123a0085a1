//! The group as a pure state machine. Its inputs are events and the current time, and its outputs are effects. The
//! files of this folder contain the parts of the state machine, as methods of [`GroupState`].
//!
//! ```text
//! Joining --joined, released--> Forming --all formed--> Running --all left--> ShuttingDown --others closed--> Closed
//!    `--------------------'---------------------'------any failure-------^
//! ```

use std::collections::BTreeSet;
use std::time::Instant;

pub(crate) mod admission;
mod collectives;
mod growth;
pub(crate) mod hang;
mod joining;
mod membership;
mod messages;
#[cfg(test)]
mod property_tests;
pub(crate) mod quorum;
mod shutdown;
mod spares;
mod timeouts;

use self::collectives::Collectives;
use self::spares::Spares;
use crate::activity::Heartbeat;
use crate::names::names;
use crate::wire::connection::Disconnect;
use crate::wire::messages::{CoordinatorMessage, MemberMessage};
use crate::{GroupFailure, GroupTimeouts, Hello, Quorum, StepRules};

/// The identifier of a control connection, which is never reused.
pub(crate) type ConnectionId = u64;

/// Inputs of the state machine.
#[derive(Debug, Clone)]
pub(crate) enum GroupEvent {
    /// A connection sent its hello.
    Hello(ConnectionId, Hello),
    /// A spare has connected.
    WaitAsSpare(ConnectionId, Hello),
    /// A member sent a message after its hello.
    Message(ConnectionId, MemberMessage),
    /// A connection ended.
    Disconnected(ConnectionId, Disconnect),
    /// The leader reports progress of its preparation.
    Preparing(String),
    /// The leader has finished its preparation. It makes its plan once the members are decided.
    Prepared,
    /// The leader has a plan.
    Release(Vec<u8>, StepRules),
    /// The leader ends the group.
    Reject(String),
    /// A heartbeat interval has passed.
    Tick,
}

/// Outputs of the state machine.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Effect {
    Send(Vec<ConnectionId>, CoordinatorMessage),
    /// Close the connection after all sent messages have been written.
    Close(ConnectionId),
}

/// The state of a group: its phase, its members and the pending effects.
#[derive(Debug)]
pub(crate) struct GroupState {
    /// The leader's hello, with which all other hellos are compared.
    pub(crate) expected: Hello,
    pub(crate) timeouts: GroupTimeouts,
    pub(crate) phase: GroupPhase,
    /// The slots by rank, for all ranks of the attempt, including ranks outside the group.
    pub(crate) slots: Vec<MemberSlot>,
    pub(crate) quorum: Quorum,
    /// The members' global ranks by group rank, once the members are decided.
    pub(crate) members: Option<Vec<usize>>,
    /// The group rank of each global rank. Before the members are decided, both ranks are equal.
    pub(crate) group_ranks: Vec<Option<usize>>,
    pub(crate) spares: Spares,
    /// The leader's last progress report.
    pub(crate) progress: String,
    /// Whether the newest progress has not been sent to the members yet.
    pub(crate) progress_is_unsent: bool,
    pub(crate) is_prepared: bool,
    pub(crate) plan: Option<Vec<u8>>,
    pub(crate) rules: StepRules,
    pub(crate) collectives: Collectives,
    /// The time since which the connected ranks could form a larger group than the present one. While no members are
    /// decided, any group that is large enough counts as a larger group.
    pub(crate) can_grow_since: Option<Instant>,
    /// The time of the last progress, at which the start-up and stall timeouts begin.
    pub(crate) last_progress_at: Instant,
    /// The failure that ended the group.
    pub(crate) failure: Option<GroupFailure>,
    pub(crate) effects: Vec<Effect>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum GroupPhase {
    Joining,
    Forming,
    Running,
    /// The coordinator has sent the final message to all ranks except the leader. The leader gets `final_message` after
    /// the other ranks have disconnected, because the coordinator ends with the leader's process.
    ShuttingDown {
        final_message: CoordinatorMessage,
        waiting_for: BTreeSet<ConnectionId>,
        deadline: Instant,
    },
    Closed,
}

/// The state of one rank.
#[derive(Debug, Default)]
pub(crate) struct MemberSlot {
    pub(crate) hello: Option<Hello>,
    pub(crate) conn: Option<ConnectionId>,
    pub(crate) activity: Heartbeat,
    /// The time at which `activity` was received.
    pub(crate) last_heartbeat_at: Option<Instant>,
    pub(crate) formed: bool,
    /// The exit code with which the member left.
    pub(crate) leave_code: Option<i32>,
}

impl GroupState {
    pub(crate) fn new(expected: Hello, timeouts: GroupTimeouts, mut quorum: Quorum, now: Instant) -> Self {
        quorum.lost.extend(expected.lost_ranks.iter().flatten());
        GroupState {
            phase: GroupPhase::Joining,
            slots: (0..expected.world_size).map(|_| MemberSlot::default()).collect(),
            quorum,
            members: None,
            group_ranks: (0..expected.world_size).map(Some).collect(),
            spares: Spares::default(),
            progress: "starting".to_owned(),
            progress_is_unsent: false,
            is_prepared: false,
            plan: None,
            rules: StepRules::default(),
            collectives: Collectives::new(expected.world_size),
            can_grow_since: None,
            last_progress_at: now,
            failure: None,
            effects: Vec::new(),
            expected,
            timeouts,
        }
    }

    /// Whether every final message has been sent.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.phase, GroupPhase::Closed)
    }

    /// Handles one event. Returns the effects that the caller applies.
    pub(crate) fn handle(&mut self, now: Instant, event: GroupEvent) -> Vec<Effect> {
        match event {
            GroupEvent::Hello(conn, hello) => self.on_hello(now, conn, hello),
            GroupEvent::WaitAsSpare(conn, hello) => self.on_wait_as_spare(conn, hello),
            GroupEvent::Message(conn, message) => {
                // messages of a replaced connection, and messages after the final message, are ignored
                if let Some(rank) = self.rank_of(conn).filter(|_| !self.is_ending()) {
                    self.on_message(now, rank, message);
                }
            }
            GroupEvent::Disconnected(conn, disconnect) => self.on_disconnect(now, conn, disconnect),
            GroupEvent::Preparing(progress) if self.phase == GroupPhase::Joining => {
                self.last_progress_at = now;
                // the progress is sent with the next heartbeat, because the leader may report a thousand times per
                // second
                (self.progress, self.progress_is_unsent) = (progress, true);
            }
            GroupEvent::Prepared if self.phase == GroupPhase::Joining => self.on_prepared(now),
            GroupEvent::Release(plan, rules) if self.phase == GroupPhase::Joining => self.on_release(now, plan, rules),
            GroupEvent::Reject(reason) => {
                let leader = self.leader();
                self.fail(now, Some(leader), format!("{} gave up: {reason}", self.name(leader)));
            }
            GroupEvent::Preparing(_) | GroupEvent::Prepared | GroupEvent::Release(..) => {}
            GroupEvent::Tick => self.on_tick(now),
        }
        self.record_growth(now);
        std::mem::take(&mut self.effects)
    }

    /// Returns the rank of the stage that uses a connection.
    pub(crate) fn rank_of(&self, conn: ConnectionId) -> Option<usize> {
        self.slots.iter().position(|slot| slot.conn == Some(conn))
    }

    /// Returns the name of a process in messages.
    pub(crate) fn name(&self, rank: usize) -> String {
        self.quorum.mesh.name(rank as u32)
    }

    /// Returns the names of several processes in messages.
    pub(crate) fn names(&self, ranks: &[usize]) -> String {
        names(self.quorum.mesh, ranks)
    }

    /// Returns the ranks whose slots satisfy `predicate`.
    pub(crate) fn ranks(&self, predicate: impl Fn(&MemberSlot) -> bool) -> Vec<usize> {
        (0..self.slots.len()).filter(|&rank| predicate(&self.slots[rank])).collect()
    }

    /// Returns the connections of the members whose ranks satisfy `predicate`.
    pub(crate) fn conns(&self, predicate: impl Fn(usize) -> bool) -> Vec<ConnectionId> {
        let ranks = (0..self.slots.len()).filter(|&rank| self.has_member(rank) && predicate(rank));
        ranks.filter_map(|rank| self.slots[rank].conn).collect()
    }

    pub(crate) fn send_all(&mut self, message: CoordinatorMessage) {
        self.send(self.conns(|_| true), message);
    }

    pub(crate) fn send(&mut self, conns: Vec<ConnectionId>, message: CoordinatorMessage) {
        self.effects.push(Effect::Send(conns, message));
    }

    /// Sends a message, then closes the connection.
    pub(crate) fn send_and_close(&mut self, conn: ConnectionId, message: CoordinatorMessage) {
        self.send(vec![conn], message);
        self.effects.push(Effect::Close(conn));
    }
}
