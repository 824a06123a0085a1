//! The ranks of the group, and the ranks that wait outside it. This module is a pure part of the state machine.
//!
//! Ranks in this file are global ranks, which count the processes of the attempt replica by replica. A group that lacks
//! replicas numbers its members separately, `0..group_size`: a member's number is its group rank.

use std::time::Instant;

use crate::state::collectives::Collectives;
use crate::state::{ConnectionId, GroupPhase, GroupState, MemberSlot};
use crate::wire::messages::CoordinatorMessage;
use crate::{Roster, StepRules};

impl GroupState {
    /// Records that the leader is prepared. The leader makes its plan once the members are decided.
    pub(crate) fn on_prepared(&mut self, now: Instant) {
        if !self.is_prepared {
            (self.is_prepared, self.last_progress_at) = (true, now);
        }
        self.decide_members(false);
    }

    /// Records the leader's plan for the members.
    pub(crate) fn on_release(&mut self, now: Instant, plan: Vec<u8>, rules: StepRules) {
        self.on_prepared(now);
        self.last_progress_at = now;
        (self.plan, self.rules) = (Some(plan), rules);
        self.release_if_complete(now);
    }

    /// Decides the members if the connected ranks are enough for a group, and the group has waited long enough
    /// (`has_waited`) or has no missing rank to wait for. The leader counts as connected, because it connects only
    /// after it has made its plan.
    pub(crate) fn decide_members(&mut self, has_waited: bool) {
        if self.members.is_some() || !self.is_prepared {
            return;
        }
        let leader = self.leader();
        let is_connected = |rank: usize| rank == leader || self.slots[rank].conn.is_some();
        self.members = self.quorum.members(leader, has_waited, is_connected);
        let Some(members) = &self.members else { return self.report_awaited_ranks() };
        self.group_ranks.fill(None);
        members.iter().enumerate().for_each(|(group_rank, &rank)| self.group_ranks[rank] = Some(group_rank));
    }

    /// Returns the missing ranks that the group waits for. The leader counts as missing only after it has made its
    /// plan, because it joins only then.
    pub(crate) fn awaited_ranks(&self) -> Vec<usize> {
        let has_planned = self.plan.is_some();
        let awaited = |&rank: &usize| self.has_member(rank) && (rank != self.leader() || has_planned);
        self.ranks(|slot| slot.conn.is_none()).into_iter().filter(awaited).collect()
    }

    /// Sets the progress text. The text is sent with the next heartbeat, because a thousand stages may join within a
    /// second.
    fn report_awaited_ranks(&mut self) {
        let (leader, awaited) = (self.name(self.leader()), self.names(&self.awaited_ranks()));
        self.progress = format!("{leader} is ready and waits for {awaited}");
        self.progress_is_unsent = true;
    }

    /// Sends the plan to all members once the leader has released it and all members have joined.
    pub(crate) fn release_if_complete(&mut self, now: Instant) {
        self.decide_members(false);
        let (Some(members), Some(_)) = (&self.members, &self.plan) else { return };
        if !self.awaited_ranks().is_empty() {
            return self.report_awaited_ranks();
        }
        self.collectives = Collectives::new(members.len());
        (self.phase, self.last_progress_at) = (GroupPhase::Forming, now);
        let message = self.release_message();
        self.send(self.spares.conns(), message.clone());
        self.send_all(message);
        self.notify_waiting();
    }

    /// Decides the members once waiting has ended: after the start-up timeout, or in an elastic job after the
    /// stabilization window. Returns true if this call decided the members.
    pub(crate) fn decide_members_after_waiting(&mut self, now: Instant) -> bool {
        if self.members.is_some() {
            return false;
        }
        self.decide_members(true);
        let is_enough = self.members.is_some();
        if is_enough {
            self.last_progress_at = now;
        }
        is_enough
    }

    pub(crate) fn release_message(&self) -> CoordinatorMessage {
        let members = self.group_slots().filter_map(|slot| slot.hello.clone()).collect();
        CoordinatorMessage::Released { roster: Roster { members }, plan: self.plan.clone().unwrap_or_default() }
    }

    /// Notifies the stages that wait outside the group, and names the missing stages in the notice. Each notice
    /// restarts the start-up timeout of the waiting stages. If the group has only one replica, every waiting stage 0
    /// may lead the next group. The first of these stages that acquires the fence (the right to lead) becomes the
    /// leader.
    pub(crate) fn notify_waiting(&mut self) {
        let missing = self.ranks(|slot| slot.conn.is_none());
        let progress = match missing.as_slice() {
            [] => "the group has begun without this stage, and adds it after a step".to_owned(),
            missing => {
                let missing = self.names(missing);
                format!("the group has begun without this stage, and needs {missing} to form another replica")
            }
        };
        let stages = self.quorum.stages();
        let has_one_replica = self.group_size() == stages;
        for rank in self.waiting_ranks() {
            let succeeds_leader = has_one_replica && rank.is_multiple_of(stages);
            let message = CoordinatorMessage::Waiting { progress: progress.clone(), succeeds_leader };
            self.send(self.slots[rank].conn.into_iter().collect(), message);
        }
    }

    /// Whether a rank is in the group. Until the members are decided, the group has every rank.
    pub(crate) fn has_member(&self, rank: usize) -> bool {
        self.group_rank(rank).is_some()
    }

    /// Returns the members' slots, by group rank.
    pub(crate) fn group_slots(&self) -> impl Iterator<Item = &MemberSlot> {
        (0..self.group_size()).map(|group_rank| &self.slots[self.global_rank(group_rank)])
    }

    /// Returns the rank of the stage whose process runs the coordinator.
    pub(crate) const fn leader(&self) -> usize {
        self.expected.rank
    }

    /// Returns the group rank of a global rank, if the rank is in the group.
    pub(crate) fn group_rank(&self, rank: usize) -> Option<usize> {
        self.group_ranks.get(rank).copied().flatten()
    }

    /// Returns the global rank of a group rank. Members name each other by group rank.
    pub(crate) fn global_rank(&self, group_rank: usize) -> usize {
        self.members.as_ref().and_then(|members| members.get(group_rank).copied()).unwrap_or(group_rank)
    }

    /// Returns the connections of [`GroupState::waiting_ranks`].
    pub(crate) fn waiting_conns(&self) -> Vec<ConnectionId> {
        self.waiting_ranks().into_iter().filter_map(|rank| self.slots[rank].conn).collect()
    }

    /// Returns the ranks that are connected but not in the group.
    pub(crate) fn waiting_ranks(&self) -> Vec<usize> {
        if !self.lacks_ranks() {
            return Vec::new();
        }
        (0..self.slots.len()).filter(|&rank| !self.has_member(rank) && self.slots[rank].conn.is_some()).collect()
    }

    /// Whether the decided group lacks some ranks.
    pub(crate) fn lacks_ranks(&self) -> bool {
        self.group_size() < self.slots.len()
    }

    pub(crate) fn group_size(&self) -> usize {
        self.members.as_ref().map_or(self.slots.len(), Vec::len)
    }
}

#[cfg(test)]
mod tests {
    use stagecoach_api::contract::Mesh;

    use crate::state::property_tests::hello_of;
    use crate::state::{Effect, GroupEvent};
    use crate::wire::connection::Disconnect;
    use crate::wire::messages::MemberMessage;
    use crate::{BlockLosses, GroupTimeouts, Hello, Quorum, StepOutcome, StepVote};

    use super::*;

    const MESH: Mesh = Mesh { stages: 2, data_parallel: 2 };
    const WORLD_SIZE: usize = 4;

    /// Returns a group of two replicas of two stages, whose leader is prepared. `leader` has the ranks that the leader
    /// reports as lost. `others` has the connected stages, each with the ranks that the stage reports as lost.
    fn prepared(leader: Option<Vec<usize>>, others: &[(usize, Option<Vec<usize>>)]) -> GroupState {
        let now = Instant::now();
        let hello = |rank, lost_ranks| Hello { lost_ranks, ..hello_of(rank, WORLD_SIZE) };
        let mut group = GroupState::new(hello(0, leader), GroupTimeouts::default(), Quorum::new(MESH, 1), now);
        for (rank, lost) in others {
            group.handle(now, GroupEvent::Hello(*rank as ConnectionId, hello(*rank, lost.clone())));
        }
        group.handle(now, GroupEvent::Prepared);
        group
    }

    #[test]
    fn a_leader_that_was_in_no_group_learns_what_is_lost() {
        assert_eq!(prepared(None, &[(1, None)]).members, None);
        assert_eq!(prepared(None, &[(1, Some(vec![0]))]).members, None);
        assert_eq!(prepared(None, &[(1, Some(vec![0, 2, 3]))]).members, Some(vec![0, 1]));
        // the leader was in an earlier group, so only its list counts: the lists of other members also contain stages
        // that wait outside the group
        assert_eq!(prepared(Some(vec![]), &[(1, Some(vec![2, 3]))]).members, None);
        assert_eq!(prepared(Some(vec![3]), &[(1, Some(vec![2, 3])), (2, None)]).members, Some(vec![0, 1]));
    }

    #[test]
    fn the_group_does_not_await_a_stage_whose_process_ended_while_it_joined() {
        let now = Instant::now();
        // rank 2 has not joined yet, and rank 3 may reconnect unless its process has ended
        for (disconnect, members) in [(Disconnect::Closed, Some(vec![0, 1])), (Disconnect::TimedOut, None)] {
            let mut group = prepared(None, &[(1, None), (3, None)]);
            assert_eq!(group.members, None);
            group.handle(now, GroupEvent::Disconnected(3, disconnect));
            assert_eq!(group.members, members);
        }
        // a process that ends is lost even before enough other stages have joined
        let mut group = prepared(None, &[(3, None)]);
        group.handle(now, GroupEvent::Disconnected(3, Disconnect::Closed));
        assert_eq!(group.members, None);
        group.handle(now, GroupEvent::Hello(1, hello_of(1, WORLD_SIZE)));
        assert_eq!(group.members, Some(vec![0, 1]));
    }

    /// The group of ranks 2 and 3, led by rank 2: the second replica without the first one.
    fn second_replica(now: Instant) -> GroupState {
        let hello = |rank, lost_ranks| Hello { lost_ranks, ..hello_of(rank, WORLD_SIZE) };
        let leader = hello(2, Some(vec![0, 1]));
        let mut group = GroupState::new(leader.clone(), GroupTimeouts::default(), Quorum::new(MESH, 1), now);
        group.handle(now, GroupEvent::Hello(3, hello(3, None)));
        group.handle(now, GroupEvent::Release(vec![], StepRules::default()));
        group.handle(now, GroupEvent::Hello(2, leader));
        for conn in [2, 3] {
            group.handle(now, GroupEvent::Message(conn, MemberMessage::Formed));
        }
        assert_eq!(group.members, Some(vec![2, 3]));
        group
    }

    #[test]
    fn messages_name_stage_and_replica_and_not_the_rank_in_the_group() {
        let now = Instant::now();
        let voted = |votes: [StepVote; 2]| {
            let mut group = second_replica(now);
            let effects = [2, 3]
                .into_iter()
                .zip(votes)
                .flat_map(|(conn, vote)| group.handle(now, GroupEvent::Message(conn, MemberMessage::Vote(vote))));
            let abort = |effect| match effect {
                Effect::Send(_, CoordinatorMessage::Verdict(verdict)) => match verdict.outcome {
                    StepOutcome::Abort { reason, .. } => Some(reason),
                    _ => None,
                },
                _ => None,
            };
            effects.filter_map(abort).next().unwrap()
        };
        let vote = |step| StepVote { step, ..StepVote::default() };
        assert_eq!(
            voted([vote(5), vote(6)]),
            "the stages voted on different steps: stage 0 of replica 1 on step 5, stage 1 of replica 1 on step 6"
        );
        let losses = Some(BlockLosses { blocks: 1, target_count: 1, sums: vec![(0, 1.0)] });
        let twice = StepVote { losses, ..vote(5) };
        assert_eq!(
            voted([twice.clone(), twice]),
            "the loss of block 0 of step 5 was voted twice, by stages 0 of replica 1 and 1 of replica 1"
        );
        let failure = |event| {
            let mut group = second_replica(now);
            group.handle(now, event);
            group.failure.unwrap().message
        };
        assert_eq!(
            failure(GroupEvent::Disconnected(3, Disconnect::Closed)),
            "stage 1 of replica 1 closed its control connection while it joined: its process has died"
        );
        assert_eq!(
            failure(GroupEvent::Message(3, MemberMessage::Leave { code: 74 })),
            "stage 1 of replica 1 left with exit code 74 while it joined"
        );
        assert_eq!(
            failure(GroupEvent::Message(3, MemberMessage::Hello(hello_of(3, WORLD_SIZE)))),
            "stage 1 of replica 1 sent a message that this rank may not send: this is a bug of the trainer"
        );
        let restarted = Hello { incarnation: 1, host: "h".to_owned(), ..hello_of(3, WORLD_SIZE) };
        assert_eq!(failure(GroupEvent::Hello(9, restarted)), "stage 1 of replica 1 has started again on h");
        let mut group = second_replica(now);
        group.handle(now, GroupEvent::Message(2, MemberMessage::Vote(vote(5))));
        group.handle(now + GroupTimeouts::default().stall_timeout, GroupEvent::Tick);
        assert_eq!(
            group.failure.unwrap().message,
            "nothing has moved for 600 s: stage 0 of replica 1 waits for the vote on step 5 from stage 1 of replica \
             1, which has reported no activity for 600 s"
        );
    }
}
