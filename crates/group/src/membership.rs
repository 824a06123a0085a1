//! Which ranks the group has, and those that wait beside it: the part of the state machine that decides about replicas; also
//! pure.

use std::time::Instant;

use crate::exchange::Exchange;
use crate::group_state::{ConnectionId, GroupPhase, GroupState, stages};
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

    /// Decides who is in the group, once all are here or nobody else is waited for. Stage 0 is: it connects after it has
    /// planned.
    pub(crate) fn decide_members(&mut self, has_waited: bool) {
        if self.members.is_some() || !self.is_prepared {
            return;
        }
        let is_here = |rank: usize| rank == 0 || self.slots[rank].conn.is_some();
        self.members = self.quorum.members(self.slots.len(), has_waited, is_here);
        if self.members.is_none() {
            self.tell_who_is_awaited();
        }
    }

    /// The ranks that the group waits for. Stage 0 joins by itself once it has planned.
    pub(crate) fn awaited_ranks(&self) -> Vec<usize> {
        let has_planned = self.plan.is_some();
        let awaited = |&rank: &usize| self.has_member(rank) && (rank != 0 || has_planned);
        self.ranks(|slot| slot.conn.is_none()).into_iter().filter(awaited).collect()
    }

    fn tell_who_is_awaited(&mut self) {
        self.progress = format!("stage 0 is ready and waits for {}", stages(&self.awaited_ranks()));
        self.send_all(CoordinatorMessage::Preparing(self.progress.clone()));
    }

    /// Sends the plan to all members once stage 0 has released it and all have joined.
    pub(crate) fn release_if_complete(&mut self, now: Instant) {
        self.decide_members(false);
        let (Some(members), Some(_)) = (&self.members, &self.plan) else { return };
        if !self.awaited_ranks().is_empty() {
            return self.tell_who_is_awaited();
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

    /// Tells those that wait beside the group what they wait for, which extends their start-up timeout.
    pub(crate) fn tell_waiting(&mut self) {
        let waiting = self.waiting_conns();
        if !waiting.is_empty() {
            let missing = self.ranks(|slot| slot.conn.is_none());
            let message = match missing.as_slice() {
                [] => "the group has begun without this replica, and takes it in at the end of a step".to_owned(),
                missing => format!("the group has begun without this replica, which lacks {}", stages(missing)),
            };
            self.send(waiting, CoordinatorMessage::Preparing(message));
        }
    }

    /// Whether a rank is in the group: while nobody has decided, all are.
    pub(crate) fn has_member(&self, rank: usize) -> bool {
        self.place_of(rank).is_some()
    }

    /// The rank in the group of one of the job's.
    pub(crate) fn place_of(&self, rank: usize) -> Option<usize> {
        match &self.members {
            None => Some(rank),
            Some(members) => members.binary_search(&rank).ok(),
        }
    }

    /// The job's rank of a rank in the group, which is what the stages name each other by.
    pub(crate) fn rank_at(&self, place: usize) -> usize {
        self.members.as_ref().and_then(|members| members.get(place).copied()).unwrap_or(place)
    }

    /// The job's ranks that are not in the group and are connected.
    pub(crate) fn waiting_conns(&self) -> Vec<ConnectionId> {
        let ranks = (0..self.slots.len()).filter(|&rank| !self.has_member(rank));
        ranks.filter_map(|rank| self.slots[rank].conn).collect()
    }

    /// The replicas that the group does not have and that could be in the next one.
    pub(crate) fn returned_replicas(&self) -> Vec<usize> {
        let is_here = |rank: usize| self.slots[rank].conn.is_some();
        let Some(members) = self.members.as_ref().filter(|members| members.len() < self.slots.len()) else {
            return Vec::new();
        };
        self.quorum.returned(self.slots.len(), members, is_here)
    }
}
