//! Which ranks the group has, and those that wait beside it: the part of the state machine that decides about replicas; also
//! pure.

use std::time::Instant;

use crate::exchange::Exchange;
use crate::group_state::{ConnectionId, GroupPhase, GroupState, MemberSlot, stages};
use crate::messages::CoordinatorMessage;
use crate::{Roster, StepRules};

impl GroupState {
    /// Stage 0 is prepared: it needs to know who is in the group, and then plans for them.
    pub(crate) fn on_prepared(&mut self, now: Instant) {
        if !self.is_prepared {
            (self.is_prepared, self.last_progress_at) = (true, now);
        }
        self.decide_members(false);
    }

    /// Stage 0 has a plan for the members.
    pub(crate) fn on_release(&mut self, now: Instant, plan: Vec<u8>, rules: StepRules) {
        self.on_prepared(now);
        self.last_progress_at = now;
        (self.plan, self.rules) = (Some(plan), rules);
        self.release_if_complete(now);
    }

    /// Decides who is in the group, once all are here or nobody else is waited for. The leader is: it connects after it has
    /// planned.
    pub(crate) fn decide_members(&mut self, has_waited: bool) {
        if self.members.is_some() || !self.is_prepared {
            return;
        }
        let leader = self.leader();
        let is_here = |rank: usize| rank == leader || self.slots[rank].conn.is_some();
        self.members = self.quorum.members(self.slots.len(), leader, has_waited, is_here);
        let Some(members) = &self.members else { return self.set_who_is_awaited() };
        self.places.fill(None);
        (0..).zip(members).for_each(|(place, &rank)| self.places[rank] = Some(place));
    }

    /// The ranks that the group waits for. The leader joins by itself once it has planned.
    pub(crate) fn awaited_ranks(&self) -> Vec<usize> {
        let has_planned = self.plan.is_some();
        let awaited = |&rank: &usize| self.has_member(rank) && (rank != self.leader() || has_planned);
        self.ranks(|slot| slot.conn.is_none()).into_iter().filter(awaited).collect()
    }

    /// Sent with the next heartbeat: a thousand stages may join within a second.
    fn set_who_is_awaited(&mut self) {
        self.progress = format!("stage {} is ready and waits for {}", self.leader(), stages(&self.awaited_ranks()));
        self.progress_is_unsent = true;
    }

    /// Sends the plan to all members once stage 0 has released it and all have joined.
    pub(crate) fn release_if_complete(&mut self, now: Instant) {
        self.decide_members(false);
        let (Some(members), Some(_)) = (&self.members, &self.plan) else { return };
        if !self.awaited_ranks().is_empty() {
            return self.set_who_is_awaited();
        }
        self.exchange = Exchange::new(members.len(), self.rules.clone());
        (self.phase, self.last_progress_at) = (GroupPhase::Forming, now);
        let message = self.release_message();
        self.send(self.spares.conns(), message.clone());
        self.send_all(message);
        self.tell_waiting();
    }

    /// The start-up timeout has passed: whether the stages that are here are now enough for a group, as they were not before.
    pub(crate) fn is_enough_after_waiting(&mut self, now: Instant) -> bool {
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

    /// Tells those that wait beside the group what they wait for, which extends their start-up timeout. If the group has but one
    /// replica, one of them succeeds its leader: whichever stage 0 is the first to take the fence.
    pub(crate) fn tell_waiting(&mut self) {
        let missing = self.ranks(|slot| slot.conn.is_none());
        let progress = match missing.as_slice() {
            [] => "the group has begun without this stage, and takes it in after a step".to_owned(),
            missing => {
                format!("the group has begun without this stage, and lacks {} for another replica", stages(missing))
            }
        };
        let stages = self.quorum.stages;
        let has_one_replica = self.group_size() == stages;
        for rank in self.waiting_ranks() {
            let succeeds_leader = has_one_replica && rank.is_multiple_of(stages);
            let message = CoordinatorMessage::Waiting { progress: progress.clone(), succeeds_leader };
            self.send(self.slots[rank].conn.into_iter().collect(), message);
        }
    }

    /// Whether a rank is in the group: while nobody has decided, all are.
    pub(crate) fn has_member(&self, rank: usize) -> bool {
        self.place_of(rank).is_some()
    }

    /// The slots of the ranks in the group, by rank in the group.
    pub(crate) fn group_slots(&self) -> impl Iterator<Item = &MemberSlot> {
        (0..self.group_size()).map(|place| &self.slots[self.rank_at(place)])
    }

    /// The rank of the stage in whose process the coordinator is.
    pub(crate) const fn leader(&self) -> usize {
        self.expected.rank
    }

    /// The rank in the group of one of the job's.
    pub(crate) fn place_of(&self, rank: usize) -> Option<usize> {
        self.places.get(rank).copied().flatten()
    }

    /// The job's rank of a rank in the group, which is what the stages name each other by.
    pub(crate) fn rank_at(&self, place: usize) -> usize {
        self.members.as_ref().and_then(|members| members.get(place).copied()).unwrap_or(place)
    }

    /// The job's ranks that are not in the group and are connected.
    pub(crate) fn waiting_conns(&self) -> Vec<ConnectionId> {
        self.waiting_ranks().into_iter().filter_map(|rank| self.slots[rank].conn).collect()
    }

    /// The ranks that are here and not in the group.
    pub(crate) fn waiting_ranks(&self) -> Vec<usize> {
        if !self.lacks_ranks() {
            return Vec::new();
        }
        (0..self.slots.len()).filter(|&rank| !self.has_member(rank) && self.slots[rank].conn.is_some()).collect()
    }

    /// Whether it was decided that the group has not all of the job's ranks.
    fn lacks_ranks(&self) -> bool {
        self.group_size() < self.slots.len()
    }

    fn group_size(&self) -> usize {
        self.members.as_ref().map_or(self.slots.len(), Vec::len)
    }

    /// Whether the next group could have more replicas, with those that are here.
    pub(crate) fn may_grow(&self) -> bool {
        let is_here = |rank: usize| self.slots[rank].conn.is_some();
        self.lacks_ranks() && self.quorum.replicas(self.slots.len(), is_here) * self.quorum.stages > self.group_size()
    }
}

#[cfg(test)]
mod tests {
    use crate::disconnect::Disconnect;
    use crate::group_state::GroupEvent;
    use crate::property_tests::hello_of;
    use crate::{GroupTimeouts, Hello, Quorum};

    use super::*;

    const WORLD_SIZE: usize = 4;

    /// Two replicas of two stages, whose stage 0 has prepared; it and the others say which ranks are lost.
    fn prepared(leader: Option<Vec<usize>>, others: &[(usize, Option<Vec<usize>>)]) -> GroupState {
        let now = Instant::now();
        let hello = |rank, lost_ranks| Hello { lost_ranks, ..hello_of(rank, WORLD_SIZE) };
        let mut group = GroupState::new(hello(0, leader), GroupTimeouts::default(), Quorum::new(2, 1), now);
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
        // one that was knows better: who waits beside a group is lost for its other members
        assert_eq!(prepared(Some(vec![]), &[(1, Some(vec![2, 3]))]).members, None);
        assert_eq!(prepared(Some(vec![3]), &[(1, Some(vec![2, 3])), (2, None)]).members, Some(vec![0, 1]));
    }

    #[test]
    fn nobody_waits_for_a_stage_whose_process_has_ended_while_it_joined() {
        let now = Instant::now();
        // one that has lost its connection may come back, and of stage 2 nothing is known
        for (disconnect, members) in [(Disconnect::Closed, Some(vec![0, 1])), (Disconnect::TimedOut, None)] {
            let mut group = prepared(None, &[(1, None), (3, None)]);
            assert_eq!(group.members, None);
            group.handle(now, GroupEvent::Disconnected(3, disconnect));
            assert_eq!(group.members, members);
        }
        // also if there are not enough others yet
        let mut group = prepared(None, &[(3, None)]);
        group.handle(now, GroupEvent::Disconnected(3, Disconnect::Closed));
        assert_eq!(group.members, None);
        group.handle(now, GroupEvent::Hello(1, hello_of(1, WORLD_SIZE)));
        assert_eq!(group.members, Some(vec![0, 1]));
    }
}
