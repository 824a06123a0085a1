//! The membership of a group as a pure state machine: events in, effects out, the time an argument.
//!
//! ```text
//! Joining --all members joined, released--> Forming --all formed--> Running --all left--> ShuttingDown --others closed--> Closed
//!    `--------------------------------'---------------------'------any failure-------^
//! ```

use std::collections::BTreeSet;
use std::time::Instant;

use crate::activity::Heartbeat;
use crate::admission::{Succession, admit, succession};
use crate::disconnect::Disconnect;
use crate::exchange::Exchange;
use crate::messages::{CoordinatorMessage, MemberMessage};
use crate::spares::Spares;
use crate::{GroupFailure, GroupTimeouts, Hello, Quorum, Refusal, StepRules};

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
    /// Stage 0 reports progress of its preparation.
    Preparing(String),
    /// Stage 0 has prepared, and plans when it knows who is in the group.
    Prepared,
    /// Stage 0 has a plan.
    Release(Vec<u8>, StepRules),
    /// Stage 0 gives up.
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
    pub(crate) expected: Hello,
    pub(crate) timeouts: GroupTimeouts,
    pub(crate) phase: GroupPhase,
    /// By the job's ranks, of which the group may lack some.
    pub(crate) slots: Vec<MemberSlot>,
    pub(crate) quorum: Quorum,
    /// The ranks that the group has, by rank in the group, once that is decided.
    pub(crate) members: Option<Vec<usize>>,
    /// By the job's ranks, the rank in the group: while nobody has decided, all are in it.
    pub(crate) places: Vec<Option<usize>>,
    pub(crate) spares: Spares,
    /// The last progress report of stage 0.
    pub(crate) progress: String,
    /// Whether the newest progress has not been sent to the members yet.
    pub(crate) progress_is_unsent: bool,
    pub(crate) is_prepared: bool,
    pub(crate) plan: Option<Vec<u8>>,
    pub(crate) rules: StepRules,
    /// By rank in the group.
    pub(crate) exchange: Exchange,
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
            places: (0..expected.world_size).map(Some).collect(),
            spares: Spares::default(),
            progress: "starting".to_owned(),
            progress_is_unsent: false,
            is_prepared: false,
            plan: None,
            rules: StepRules::default(),
            exchange: Exchange::new(expected.world_size, StepRules::default()),
            last_progress_at: now,
            failure: None,
            effects: Vec::new(),
            expected,
            timeouts,
        }
    }

    /// What ended the group, if it failed.
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
                // Sent with the next heartbeat: stage 0 may report a thousand times per second.
                (self.progress, self.progress_is_unsent) = (progress, true);
            }
            GroupEvent::Prepared if self.phase == GroupPhase::Joining => self.on_prepared(now),
            GroupEvent::Release(plan, rules) if self.phase == GroupPhase::Joining => self.on_release(now, plan, rules),
            GroupEvent::Reject(reason) => {
                let leader = self.leader();
                self.fail(now, Some(leader), format!("stage {leader} gave up: {reason}"));
            }
            GroupEvent::Preparing(_) | GroupEvent::Prepared | GroupEvent::Release(..) => {}
            GroupEvent::Tick => self.on_tick(now),
        }
        std::mem::take(&mut self.effects)
    }

    fn on_hello(&mut self, now: Instant, conn: ConnectionId, hello: Hello) {
        let rank = hello.rank;
        if let Err(refusal) = admit(&self.expected, &hello) {
            return self.send_and_close(conn, CoordinatorMessage::Refused(refusal));
        }
        if self.is_ending() {
            let last = match &self.failure {
                // it is the one that gave up: there is no other group to wait for
                Some(failure) if rank == self.leader() => CoordinatorMessage::GroupEnded(failure.for_rank(rank)),
                _ => CoordinatorMessage::Refused(self.ended()),
            };
            return self.send_and_close(conn, last);
        }
        let is_joining = self.is_joining(rank);
        match succession(self.slots[rank].hello.as_ref(), &hello, is_joining) {
            Succession::First => {}
            Succession::Follows { is_same } => {
                if let Some(older) = self.slots[rank].conn.take() {
                    match is_same {
                        true => self.effects.push(Effect::Close(older)),
                        false => self.send_and_close(older, CoordinatorMessage::Refused(Refusal::Replaced { rank })),
                    }
                }
            }
            Succession::Refused(refusal) => return self.send_and_close(conn, CoordinatorMessage::Refused(refusal)),
            Succession::StartedAnew => {
                // the one before is the cause, and this one may join the next group
                self.send_and_close(conn, CoordinatorMessage::Refused(Refusal::AlreadyFormed { rank }));
                return self.fail(now, Some(rank), format!("stage {rank} has started anew on {}", hello.host));
            }
            Succession::TwoPods { message } => {
                let failure =
                    GroupFailure { root_cause_rank: Some(rank), rank, message: message.clone(), has_ended: false };
                self.send_and_close(conn, CoordinatorMessage::GroupEnded(failure));
                return self.fail(now, Some(rank), message);
            }
        }
        if self.phase == GroupPhase::Joining && self.expected.lost_ranks.is_none() {
            // the leader was in no group before: it knows what the others know
            self.quorum.lost.extend(hello.lost_ranks.iter().flatten());
        }
        self.slots[rank] =
            MemberSlot { hello: Some(hello), conn: Some(conn), last_heartbeat_at: Some(now), ..MemberSlot::default() };
        match self.phase {
            GroupPhase::Joining if self.is_prepared => self.release_if_complete(now),
            GroupPhase::Joining => self.send(vec![conn], CoordinatorMessage::Preparing(self.progress.clone())),
            _ => self.tell_waiting(),
        }
    }

    /// Whether a stage of this rank joins, now or when the next group forms.
    pub(crate) fn is_joining(&self, rank: usize) -> bool {
        self.phase == GroupPhase::Joining || !self.has_member(rank)
    }

    /// Why nobody can join any more.
    pub(crate) fn ended(&self) -> Refusal {
        let reason = self.failure.as_ref().map_or("all stages have left", |failure| &failure.message).to_owned();
        Refusal::GroupEnded { reason }
    }

    fn on_message(&mut self, now: Instant, rank: usize, message: MemberMessage) {
        if let MemberMessage::Heartbeat(activity) = message {
            let slot = &mut self.slots[rank];
            if activity.sequence != slot.activity.sequence {
                self.last_progress_at = now;
            }
            (slot.activity, slot.last_heartbeat_at) = (activity, Some(now));
            return;
        }
        // what joins only waits
        let Some(place) = self.place_of(rank) else { return };
        self.last_progress_at = now;
        let duplicate = || "contributed twice to the same vote or gather".to_owned();
        let result = match message {
            _ if self.phase == GroupPhase::Joining => Err("acted before the group was released".to_owned()),
            MemberMessage::Leave { code } => return self.on_leave(now, rank, code),
            MemberMessage::Formed | MemberMessage::Gather { .. } | MemberMessage::Vote(_)
                if self.first_leaver().is_some() =>
            {
                return self.fail_early_leave(now, rank);
            }
            MemberMessage::Formed => {
                self.slots[rank].formed = true;
                if self.phase == GroupPhase::Forming && self.group_slots().all(|slot| slot.formed) {
                    self.phase = GroupPhase::Running;
                    self.send_all(CoordinatorMessage::Formed);
                }
                Ok(())
            }
            MemberMessage::Broadcast { topic, bytes } if rank == self.leader() => {
                self.send_all(CoordinatorMessage::Broadcast { topic, bytes });
                Ok(())
            }
            MemberMessage::Gather { topic, bytes } => {
                self.exchange.gather(topic, place, bytes).map_err(|_| duplicate()).map(|parts| {
                    parts.into_iter().for_each(|parts| self.send_all(CoordinatorMessage::Gathered { topic, parts }));
                })
            }
            MemberMessage::Vote(vote) => self.exchange.vote(place, vote).map_err(|_| duplicate()).map(|verdict| {
                let Some(mut verdict) = verdict else { return };
                verdict.form_again = !verdict.stop && self.may_grow();
                let leader = self.leader();
                self.send(self.conns(|rank| rank == leader), CoordinatorMessage::Verdict(verdict.clone()));
                verdict.measurements.clear();
                self.send(self.conns(|rank| rank != leader), CoordinatorMessage::Verdict(verdict));
            }),
            MemberMessage::Hello(_)
            | MemberMessage::StandBy(_)
            | MemberMessage::Broadcast { .. }
            | MemberMessage::Heartbeat(_) => Err("sent a message that this rank may not send".to_owned()),
        };
        if let Err(what) = result {
            self.fail(now, Some(rank), format!("stage {rank} {what}: this is a bug of the trainer"));
        }
    }

    pub(crate) fn rank_of(&self, conn: ConnectionId) -> Option<usize> {
        self.slots.iter().position(|slot| slot.conn == Some(conn))
    }

    pub(crate) fn ranks(&self, predicate: impl Fn(&MemberSlot) -> bool) -> Vec<usize> {
        (0..self.slots.len()).filter(|&rank| predicate(&self.slots[rank])).collect()
    }

    /// The connections of those in the group whose rank is as wanted.
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

/// How many stages a message names.
const MAX_NAMED_STAGES: usize = 16;

/// `stage 2`, `stages 1, 2`, or of many the first ones and how many more.
pub(crate) fn stages(ranks: &[usize]) -> String {
    let names: Vec<String> = ranks.iter().take(MAX_NAMED_STAGES).map(usize::to_string).collect();
    let more = match ranks.len().saturating_sub(MAX_NAMED_STAGES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("stage{} {}{more}", if ranks.len() == 1 { "" } else { "s" }, names.join(", "))
}
