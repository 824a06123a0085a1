//! A group as a pure state machine: events in, effects out, the time an argument. Its parts are methods of
//! [`GroupState`] in the files of this folder.
//!
//! ```text
//! Joining --all members joined, released--> Forming --all formed--> Running --all left--> ShuttingDown --others closed--> Closed
//!    `--------------------------------'---------------------'------any failure-------^
//! ```

use std::collections::BTreeSet;
use std::time::Instant;

pub(crate) mod admission;
mod collectives;
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
use crate::wire::disconnect::Disconnect;
use crate::wire::messages::{CoordinatorMessage, MemberMessage};
use crate::{GroupFailure, GroupTimeouts, Hello, Quorum, StepRules};

/// Identifies a control connection; never reused.
pub(crate) type ConnectionId = u64;

/// Inputs of the state machine.
#[derive(Debug, Clone)]
pub(crate) enum GroupEvent {
    /// A connection sent its hello.
    Hello(ConnectionId, Hello),
    /// A spare has connected.
    StandBy(ConnectionId, Hello),
    /// A member sent another message.
    Message(ConnectionId, MemberMessage),
    /// A connection ended.
    Disconnected(ConnectionId, Disconnect),
    /// The leader reports progress of its preparation.
    Preparing(String),
    /// The leader has prepared, and plans when it knows who is in the group.
    Prepared,
    /// The leader has a plan.
    Release(Vec<u8>, StepRules),
    /// The leader gives up.
    Reject(String),
    /// Time has passed.
    Tick,
}

/// Outputs of the state machine.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Effect {
    Send(Vec<ConnectionId>, CoordinatorMessage),
    /// Close the connection after everything sent has been written.
    Close(ConnectionId),
}

/// The members of the group and its phase.
#[derive(Debug)]
pub(crate) struct GroupState {
    /// The leader's own hello, with which all others are compared.
    pub(crate) expected: Hello,
    pub(crate) timeouts: GroupTimeouts,
    pub(crate) phase: GroupPhase,
    /// By rank: of the whole attempt, also of processes that the group does not have.
    pub(crate) slots: Vec<MemberSlot>,
    pub(crate) quorum: Quorum,
    /// The ranks in the group, by group rank, once that is decided.
    pub(crate) members: Option<Vec<usize>>,
    /// By rank, its group rank: until it is decided who is in the group, all are.
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
    /// The start-up and the stall timeout count from here.
    pub(crate) last_progress_at: Instant,
    pub(crate) failure: Option<GroupFailure>,
    pub(crate) effects: Vec<Effect>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum GroupPhase {
    Joining,
    Forming,
    Running,
    /// The other ranks have received their final message; the leader gets `final_message` after they have disconnected,
    /// because the coordinator ends with its process.
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
    /// When `activity` was received.
    pub(crate) last_heartbeat_at: Option<Instant>,
    pub(crate) formed: bool,
    /// The exit code with which it left.
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
            last_progress_at: now,
            failure: None,
            effects: Vec::new(),
            expected,
            timeouts,
        }
    }

    /// The failure that ended the group, if it failed.
    pub(crate) fn failure(&self) -> Option<&GroupFailure> {
        self.failure.as_ref()
    }

    /// Whether every final message has been sent.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.phase, GroupPhase::Closed)
    }

    /// Handles one event.
    pub(crate) fn handle(&mut self, now: Instant, event: GroupEvent) -> Vec<Effect> {
        match event {
            GroupEvent::Hello(conn, hello) => self.on_hello(now, conn, hello),
            GroupEvent::StandBy(conn, hello) => self.on_stand_by(conn, hello),
            GroupEvent::Message(conn, message) => {
                // Messages of a replaced connection, or after the final message, are ignored.
                if let Some(rank) = self.rank_of(conn).filter(|_| !self.is_ending()) {
                    self.on_message(now, rank, message);
                }
            }
            GroupEvent::Disconnected(conn, disconnect) => self.on_disconnect(now, conn, disconnect),
            GroupEvent::Preparing(progress) if self.phase == GroupPhase::Joining => {
                self.last_progress_at = now;
                // Sent with the next heartbeat: the leader may report a thousand times per second.
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
        std::mem::take(&mut self.effects)
    }

    /// The rank of the stage that a connection is of.
    pub(crate) fn rank_of(&self, conn: ConnectionId) -> Option<usize> {
        self.slots.iter().position(|slot| slot.conn == Some(conn))
    }

    /// A process as messages name it.
    pub(crate) fn name(&self, rank: usize) -> String {
        self.quorum.mesh.name(rank as u32)
    }

    /// Several of them.
    pub(crate) fn names(&self, ranks: &[usize]) -> String {
        names(self.quorum.mesh, ranks)
    }

    /// The ranks whose slots are as wanted.
    pub(crate) fn ranks(&self, predicate: impl Fn(&MemberSlot) -> bool) -> Vec<usize> {
        (0..self.slots.len()).filter(|&rank| predicate(&self.slots[rank])).collect()
    }

    /// The connections of the members whose rank is as wanted.
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

    /// Sends a message after which the connection is closed.
    pub(crate) fn send_and_close(&mut self, conn: ConnectionId, message: CoordinatorMessage) {
        self.send(vec![conn], message);
        self.effects.push(Effect::Close(conn));
    }
}
