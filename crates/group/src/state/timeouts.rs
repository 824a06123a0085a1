//! The passing of time: heartbeats, timeouts, and each member's activity at a timeout. This module is a pure part of
//! the state machine.

use std::time::{Duration, Instant};

use crate::state::hang::{StageActivity, find_hang};
use crate::state::{GroupPhase, GroupState, MemberSlot};
use crate::wire::connection::format_seconds;
use crate::wire::messages::CoordinatorMessage;

impl GroupState {
    /// Sends heartbeats and checks timeouts.
    pub(crate) fn on_tick(&mut self, now: Instant) {
        if let GroupPhase::ShuttingDown { deadline, .. } = self.phase {
            if now >= deadline {
                self.finish_shutdown();
            }
            return;
        }
        if self.is_closed() {
            return;
        }
        // while stages wait for other stages to join, each tick sends the progress, because the start-up timeout of a
        // waiting stage may be shorter than the leader's
        let waits = self.is_prepared && self.members.is_none();
        match (std::mem::take(&mut self.progress_is_unsent) || waits) && self.phase == GroupPhase::Joining {
            true => self.send_all(CoordinatorMessage::Preparing(self.progress.clone())),
            false => self.send_all(CoordinatorMessage::Heartbeat),
        }
        self.send(self.spares.conns(), CoordinatorMessage::Heartbeat);
        self.notify_waiting();
        let idle_time = now.saturating_duration_since(self.last_progress_at);
        let startup_expired = idle_time >= self.timeouts.startup_timeout;
        let has_waited = startup_expired || self.may_begin(now);
        if has_waited && self.phase == GroupPhase::Joining && self.decide_members_after_waiting(now) {
            return;
        }
        match self.phase {
            GroupPhase::Joining if startup_expired && (!self.is_prepared || self.awaited_ranks().is_empty()) => {
                let leader = self.leader();
                let message = format!(
                    "{} has shown no progress for {} while preparing; the last progress was: {}",
                    self.name(leader),
                    format_seconds(idle_time),
                    self.progress
                );
                self.fail(now, Some(leader), message);
            }
            GroupPhase::Joining if startup_expired => {
                let missing = self.awaited_ranks();
                let root_cause_rank = Some(missing[0]).filter(|_| missing.len() == 1);
                let message = format!("{} did not join within {}", self.names(&missing), format_seconds(idle_time));
                self.fail(now, root_cause_rank, message);
            }
            GroupPhase::Forming if startup_expired => {
                let found = find_hang(&self.activities(now), self.quorum.mesh);
                let message = format!("the group did not form for {}: {}", format_seconds(idle_time), found.report);
                self.fail(now, found.root_cause_rank, message);
            }
            GroupPhase::Running if idle_time >= self.timeouts.stall_timeout => {
                let found = find_hang(&self.activities(now), self.quorum.mesh);
                let message = format!("nothing has moved for {}: {}", format_seconds(idle_time), found.report);
                self.fail(now, found.root_cause_rank, message);
            }
            _ => {}
        }
    }

    /// Returns the activity of each process, by rank. A process that has contributed to a collective waits for the
    /// first member that has not contributed, regardless of the activity that the process reports.
    fn activities(&self, now: Instant) -> Vec<StageActivity> {
        let describe = |rank: usize| {
            let slot = &self.slots[rank];
            let age = slot
                .last_heartbeat_at
                .map_or(slot.activity.age, |at| slot.activity.age + now.saturating_duration_since(at));
            let first = |predicate: &dyn Fn(&MemberSlot) -> bool| self.group_slots().position(predicate);
            let Some(group_rank) = self.group_rank(rank) else {
                return StageActivity { text: "no group".to_owned(), waits_for: None, age: Duration::ZERO };
            };
            let waits = if slot.leave_code.is_some() {
                first(&|slot| slot.leave_code.is_none()).map(|other| ("all stages to leave".to_owned(), other))
            } else if self.phase == GroupPhase::Forming && slot.formed {
                first(&|slot| !slot.formed).map(|other| ("the group to form".to_owned(), other))
            } else {
                self.collectives.waiting_for(group_rank)
            };
            let (text, waits_for) = match waits {
                Some((text, other)) => (text, Some(other)),
                None => (slot.activity.text.clone(), slot.activity.waits_for),
            };
            StageActivity { text, waits_for: waits_for.map(|other| self.global_rank(other)), age }
        };
        (0..self.slots.len()).map(describe).collect()
    }

    /// Returns the last activity of a process, for example `while in F 5`.
    pub(crate) fn last_activity(&self, rank: usize) -> String {
        let activity = &self.slots[rank].activity;
        match activity.waits_for {
            Some(from) => {
                format!("while it waited for {} from {}", activity.text, self.name(self.global_rank(from)))
            }
            None if activity.text.is_empty() => "while it joined".to_owned(),
            None => format!("while in {}", activity.text),
        }
    }
}
