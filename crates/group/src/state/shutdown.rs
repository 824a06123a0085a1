//! The end of a group: lost connections, leaving members, and final messages. This module is a pure part of the state
//! machine.

use std::collections::BTreeSet;
use std::time::Instant;

use stagecoach_api::contract::ExitCode;

use crate::state::{ConnectionId, Effect, GroupPhase, GroupState, MemberSlot};
use crate::wire::connection::Disconnect;
use crate::wire::messages::{CoordinatorMessage, ENDS_GROUP, JOINS_NEXT_GROUP};
use crate::{GroupFailure, Refusal};

/// The codes of a graceful leave: the job is done, the process was drained (asked to stop, and stopped with a
/// checkpoint), or the process joins the next group.
const GRACEFUL: [i32; 3] = [ExitCode::Done.code(), ExitCode::Drained.code(), JOINS_NEXT_GROUP];

impl GroupState {
    pub(crate) fn on_disconnect(&mut self, now: Instant, conn: ConnectionId, disconnect: Disconnect) {
        if let GroupPhase::ShuttingDown { waiting_for, .. } = &mut self.phase {
            waiting_for.remove(&conn);
            if waiting_for.is_empty() {
                self.finish_shutdown();
            }
            return;
        }
        let Some(rank) = self.rank_of(conn) else { return self.on_spare_disconnected(conn, &disconnect) };
        let may_be_replaced = self.is_joining(rank) && rank != self.leader();
        let slot = &mut self.slots[rank];
        match disconnect {
            Disconnect::Closed | Disconnect::Lost(_) => slot.conn = None,
            // the connection stays open, because the final message may still reach the stage
            Disconnect::TimedOut | Disconnect::Malformed(_) => {}
        }
        if slot.leave_code.is_some() {
            return;
        }
        // a stage that is still joining has no training state, so its loss does not end the group: the stage
        // reconnects, or another process replaces it
        if may_be_replaced {
            if let Some(silent) = slot.conn.take() {
                // without a message, a stage that wakes up would mistake the closed connection for the end of the
                // leader's process
                let reason = "this stage was silent for too long".to_owned();
                self.send_and_close(silent, CoordinatorMessage::Refused(Refusal::GroupEnded { reason }));
            }
            // a stage whose process has ended is lost if no spare replaces it
            if disconnect == Disconnect::Closed && self.hand_over(rank).is_none() {
                self.quorum.lost.insert(rank);
                self.decide_members(false);
            }
            return;
        }
        let failure =
            disconnect.failure(rank, &self.name(rank), &self.last_activity(rank), self.timeouts.heartbeat_timeout);
        self.end(now, failure);
    }

    pub(crate) fn on_leave(&mut self, now: Instant, rank: usize, code: i32) {
        self.slots[rank].leave_code = Some(code);
        let name = self.name(rank);
        if code == ENDS_GROUP {
            return self.fail(now, None, format!("{name} ended the group"));
        }
        if !GRACEFUL.contains(&code) {
            let root_cause_rank = Some(rank).filter(|_| code != ExitCode::PeerLost.code());
            let message = format!("{name} left with exit code {code} {}", self.last_activity(rank));
            return self.fail(now, root_cause_rank, message);
        }
        if let Some((waiting, what)) = self.first_waiting() {
            let message = format!("{name} left with exit code {code} while {} waits for {what}", self.name(waiting));
            return self.fail(now, Some(rank), message);
        }
        if self.group_slots().all(|slot| slot.leave_code.is_some()) {
            self.dismiss_all(now);
        }
    }

    /// Returns the first member that waits for the other members, and a description of what it waits for.
    fn first_waiting(&self) -> Option<(usize, String)> {
        let mut group_ranks = 0..self.group_slots().count();
        let waiting = group_ranks.find_map(|other| Some((other, self.collectives.waiting_for(other)?.0)));
        let formed = self.group_slots().position(|slot| self.phase == GroupPhase::Forming && slot.formed);
        let first = waiting.or(formed.map(|other| (other, "the group to form".to_owned())));
        first.map(|(group_rank, what)| (self.global_rank(group_rank), what))
    }

    /// Ends the group after all members have left: notifies the members, the waiting stages and the spares.
    fn dismiss_all(&mut self, now: Instant) {
        let leader = self.leader();
        let mut others = self.conns(|rank| rank != leader);
        self.send(others.clone(), CoordinatorMessage::LeaveAcknowledged);
        let left_with = |code| move |slot: &MemberSlot| slot.leave_code == Some(code);
        let last = |is_over: bool| match is_over {
            true => CoordinatorMessage::LeaveAcknowledged,
            false => CoordinatorMessage::Refused(self.ended()),
        };
        // after a drain, a stage that waits outside the group is not done: the stage exits by itself, or joins the next
        // group
        let to_waiting = last(self.group_slots().all(left_with(ExitCode::Done.code())));
        let to_spares = last(!self.group_slots().any(left_with(JOINS_NEXT_GROUP)));
        for (conns, last) in [(self.waiting_conns(), to_waiting), (self.spares.take_all(), to_spares)] {
            self.send(conns.clone(), last);
            others.extend(conns);
        }
        self.effects.extend(others.iter().copied().map(Effect::Close));
        self.begin_shutdown(now, CoordinatorMessage::LeaveAcknowledged, others.into_iter().collect());
    }

    /// Fails the group, because `rank` continues although another member has left.
    pub(crate) fn fail_early_leave(&mut self, now: Instant, rank: usize) {
        let Some((leaver, code)) = self.first_leaver() else { return };
        let message = format!("{} left with exit code {code}, but {} continues", self.name(leaver), self.name(rank));
        self.fail(now, Some(leaver), message);
    }

    /// Returns the lowest rank that has left, and its exit code.
    pub(crate) fn first_leaver(&self) -> Option<(usize, i32)> {
        self.slots.iter().enumerate().find_map(|(rank, slot)| Some((rank, slot.leave_code?)))
    }

    /// Ends the group with a failure; see [`GroupState::end`].
    pub(crate) fn fail(&mut self, now: Instant, root_cause_rank: Option<usize>, message: String) {
        self.end(now, GroupFailure { root_cause_rank, rank: 0, message, has_ended: false });
    }

    /// Ends the group with `failure`, unless the group is already ending. The leader is notified last, because the
    /// coordinator ends with the leader's process.
    fn end(&mut self, now: Instant, failure: GroupFailure) {
        if self.is_ending() {
            return;
        }
        let root_cause_rank = failure.root_cause_rank;
        self.failure = Some(failure.clone());
        let vacant = root_cause_rank.filter(|rank| self.is_replaced_by_spare(*rank, &failure));
        let mut waiting_for: BTreeSet<_> = vacant.and_then(|rank| self.hand_over(rank)).into_iter().collect();
        for conn in self.spares.take_all() {
            self.send_and_close(conn, CoordinatorMessage::GroupEnded(failure.clone()));
            waiting_for.insert(conn);
        }
        let leader = self.leader();
        for rank in (0..self.slots.len()).filter(|&rank| rank != leader) {
            let Some(conn) = self.slots[rank].conn else { continue };
            let last = match self.has_member(rank) {
                true => self.final_message_for(rank, &failure),
                // a stage that is not in this group joins the next group
                false => CoordinatorMessage::Refused(self.ended()),
            };
            self.send_and_close(conn, last);
            if root_cause_rank != Some(rank) {
                waiting_for.insert(conn);
            }
        }
        self.begin_shutdown(now, self.final_message_for(leader, &failure), waiting_for);
    }

    /// Whether a spare replaces the stage that ended the group. The stage's process must have ended, or must have
    /// announced its end.
    fn is_replaced_by_spare(&self, rank: usize, failure: &GroupFailure) -> bool {
        match self.slots[rank].leave_code {
            // a spare would fail with the same invalid configuration
            Some(code) => !GRACEFUL.contains(&code) && code != ExitCode::InvalidConfig.code(),
            None => failure.has_ended && rank != self.leader(),
        }
    }

    /// Returns the final message for a rank: an acknowledgement for a stage that ended the group by leaving, and the
    /// failure for any other stage.
    fn final_message_for(&self, rank: usize, failure: &GroupFailure) -> CoordinatorMessage {
        match self.slots.get(rank).and_then(|slot| slot.leave_code) {
            Some(code) if !GRACEFUL.contains(&code) => CoordinatorMessage::LeaveAcknowledged,
            _ => CoordinatorMessage::GroupEnded(failure.for_rank(rank)),
        }
    }

    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.phase, GroupPhase::ShuttingDown { .. } | GroupPhase::Closed)
    }

    fn begin_shutdown(&mut self, now: Instant, final_message: CoordinatorMessage, waiting_for: BTreeSet<ConnectionId>) {
        let done = waiting_for.is_empty();
        self.phase =
            GroupPhase::ShuttingDown { final_message, waiting_for, deadline: now + self.timeouts.shutdown_timeout };
        if done {
            self.finish_shutdown();
        }
    }

    pub(crate) fn finish_shutdown(&mut self) {
        let GroupPhase::ShuttingDown { final_message, .. } = std::mem::replace(&mut self.phase, GroupPhase::Closed)
        else {
            return;
        };
        if let Some(conn) = self.slots.get(self.leader()).and_then(|slot| slot.conn) {
            self.send_and_close(conn, final_message);
        }
    }
}
