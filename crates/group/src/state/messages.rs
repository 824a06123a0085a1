//! The messages of members after their hello: heartbeats, votes, gathers, broadcasts. This module is a pure part of the
//! state machine.

use std::time::Instant;

use crate::StepVote;
use crate::state::{GroupPhase, GroupState};
use crate::verdict::decide_step;
use crate::wire::messages::{CoordinatorMessage, MemberMessage};

impl GroupState {
    pub(crate) fn on_message(&mut self, now: Instant, rank: usize, message: MemberMessage) {
        if let MemberMessage::Heartbeat(activity) = message {
            let slot = &mut self.slots[rank];
            if activity.sequence != slot.activity.sequence {
                self.last_progress_at = now;
            }
            (slot.activity, slot.last_heartbeat_at) = (activity, Some(now));
            return;
        }
        // from a stage outside the group, the coordinator ignores all messages except heartbeats
        let Some(group_rank) = self.group_rank(rank) else { return };
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
                self.collectives.gather(topic, group_rank, bytes).map_err(|_| duplicate()).map(|parts| {
                    parts.into_iter().for_each(|parts| self.send_all(CoordinatorMessage::Gathered { topic, parts }));
                })
            }
            MemberMessage::Vote(vote) => self
                .collectives
                .vote(group_rank, vote)
                .map_err(|_| duplicate())
                .map(|votes| votes.into_iter().for_each(|votes| self.decide(now, &votes))),
            MemberMessage::Hello(_)
            | MemberMessage::WaitAsSpare(_)
            | MemberMessage::Broadcast { .. }
            | MemberMessage::Heartbeat(_) => Err("sent a message that this rank may not send".to_owned()),
        };
        if let Err(what) = result {
            self.fail(now, Some(rank), format!("{} {what}: this is a bug of the trainer", self.name(rank)));
        }
    }

    /// Sends the verdict on a step to all members, and the measurements only to the leader.
    fn decide(&mut self, now: Instant, votes: &[StepVote]) {
        let mut verdict = decide_step(votes, &self.rules, &|group_rank| self.name(self.global_rank(group_rank)));
        verdict.regroup = !verdict.stop && self.may_grow(now);
        let leader = self.leader();
        self.send(self.conns(|rank| rank == leader), CoordinatorMessage::Verdict(verdict.clone()));
        verdict.measurements.clear();
        self.send(self.conns(|rank| rank != leader), CoordinatorMessage::Verdict(verdict));
    }
}
