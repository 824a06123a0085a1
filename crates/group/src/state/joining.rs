//! Joining: a stage joins, reconnects, or is replaced by another process of its rank. This module is a pure part of the
//! state machine.

use std::time::Instant;

use crate::state::admission::{Succession, admit, succession};
use crate::state::{ConnectionId, Effect, GroupPhase, GroupState, MemberSlot};
use crate::wire::messages::CoordinatorMessage;
use crate::{GroupFailure, Hello, Refusal};

impl GroupState {
    pub(crate) fn on_hello(&mut self, now: Instant, conn: ConnectionId, hello: Hello) {
        let rank = hello.rank;
        if let Err(refusal) = admit(&self.expected, &hello) {
            return self.send_and_close(conn, CoordinatorMessage::Refused(refusal));
        }
        if self.is_ending() {
            let last = match &self.failure {
                // a refused stage retries, but the leader's process has no other group to join
                Some(failure) if rank == self.leader() => CoordinatorMessage::GroupEnded(failure.for_rank(rank)),
                _ => CoordinatorMessage::Refused(self.ended()),
            };
            return self.send_and_close(conn, last);
        }
        let name = self.name(rank);
        match succession(self.slots[rank].hello.as_ref(), &hello, &name, self.is_joining(rank)) {
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
            Succession::Restarted => {
                // the previous process is the root cause, and the new process may join the next group
                self.send_and_close(conn, CoordinatorMessage::Refused(Refusal::AlreadyFormed { rank }));
                return self.fail(now, Some(rank), format!("{name} has started again on {}", hello.host));
            }
            Succession::Conflict { message } => {
                let failure =
                    GroupFailure { root_cause_rank: Some(rank), rank, message: message.clone(), has_ended: false };
                self.send_and_close(conn, CoordinatorMessage::GroupEnded(failure));
                return self.fail(now, Some(rank), message);
            }
        }
        if self.phase == GroupPhase::Joining && self.expected.lost_ranks.is_none() {
            // the leader was in no earlier group, so the other stages' hellos determine the lost ranks
            self.quorum.lost.extend(hello.lost_ranks.iter().flatten());
        }
        self.slots[rank] =
            MemberSlot { hello: Some(hello), conn: Some(conn), last_heartbeat_at: Some(now), ..MemberSlot::default() };
        match self.phase {
            GroupPhase::Joining if self.is_prepared => self.release_if_complete(now),
            GroupPhase::Joining => self.send(vec![conn], CoordinatorMessage::Preparing(self.progress.clone())),
            _ => self.notify_waiting(),
        }
    }

    /// Whether a stage of this rank is joining this group, or waits to join the next group.
    pub(crate) fn is_joining(&self, rank: usize) -> bool {
        self.phase == GroupPhase::Joining || !self.has_member(rank)
    }

    /// Returns the refusal of a stage that tries to join after the end of the group.
    pub(crate) fn ended(&self) -> Refusal {
        let reason = self.failure.as_ref().map_or("all stages have left", |failure| &failure.message).to_owned();
        Refusal::GroupEnded { reason }
    }
}
