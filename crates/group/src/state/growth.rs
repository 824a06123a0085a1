//! Growth: decides when a group may add replicas. The decision depends on the time for which the stages of these
//! replicas have been connected. This module is a pure part of the state machine.
//!
//! An elastic job has a stabilization window, so that a node that connects and disconnects repeatedly does not
//! interrupt the other replicas each time. The job's first group begins with the replicas that have been connected for
//! the whole window. A group adds further replicas after they have been connected for the whole window.

use std::time::Instant;

use crate::state::GroupState;

impl GroupState {
    /// Whether the connected ranks could form a larger group than the present one. While no members are decided, any
    /// group that is large enough counts as a larger group.
    fn could_be_larger(&self) -> bool {
        let is_connected = |rank: usize| rank == self.leader() || self.slots[rank].conn.is_some();
        match self.members {
            None => self.is_prepared && self.quorum.is_enough(is_connected),
            Some(_) => {
                self.lacks_ranks() && self.quorum.replicas(is_connected) * self.quorum.stages() > self.group_size()
            }
        }
    }

    /// Records the time since which the connected ranks could form a larger group.
    pub(crate) fn record_growth(&mut self, now: Instant) {
        self.can_grow_since = self.could_be_larger().then(|| self.can_grow_since.unwrap_or(now));
    }

    /// Whether the connected ranks could have formed a larger group for the whole stabilization window.
    pub(crate) fn may_grow(&self, now: Instant) -> bool {
        let window = self.quorum.stabilization_window.unwrap_or_default();
        let is_over = self.can_grow_since.is_some_and(|since| now.saturating_duration_since(since) >= window);
        is_over && self.could_be_larger()
    }

    /// Whether the first group of an elastic job may begin without the missing replicas.
    pub(crate) fn may_begin(&self, now: Instant) -> bool {
        self.quorum.stabilization_window.is_some() && self.members.is_none() && self.may_grow(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use stagecoach_api::contract::Mesh;

    use super::*;
    use crate::state::property_tests::hello_of;
    use crate::state::{ConnectionId, Effect, GroupEvent, GroupPhase};
    use crate::wire::connection::Disconnect;
    use crate::wire::messages::{CoordinatorMessage, MemberMessage};
    use crate::{BlockLosses, GroupTimeouts, Quorum, StepOutcome, StepRules, StepVote};

    const MESH: Mesh = Mesh { stages: 2, data_parallel: 3 };
    const WORLD_SIZE: usize = 6;
    const WINDOW: Duration = Duration::from_secs(60);

    /// The coordinator's state in a job of three replicas, of which one is enough to train.
    struct Group {
        state: GroupState,
        now: Instant,
    }

    impl Group {
        fn new(window: Option<Duration>) -> Group {
            let now = Instant::now();
            let quorum = Quorum::new(MESH, 1).stabilized_for(window);
            let state = GroupState::new(hello_of(0, WORLD_SIZE), GroupTimeouts::default(), quorum, now);
            let mut group = Group { state, now };
            group.handle(GroupEvent::Prepared);
            group
        }

        fn handle(&mut self, event: GroupEvent) -> Vec<Effect> {
            self.state.handle(self.now, event)
        }

        fn connect(&mut self, ranks: &[usize]) {
            for &rank in ranks {
                self.handle(GroupEvent::Hello(rank as ConnectionId, hello_of(rank, WORLD_SIZE)));
            }
        }

        fn disconnect(&mut self, rank: usize) {
            self.handle(GroupEvent::Disconnected(rank as ConnectionId, Disconnect::Closed));
        }

        fn wait(&mut self, time: Duration) {
            self.now += time;
            self.handle(GroupEvent::Tick);
        }

        /// Releases the plan, connects the leader, and lets the decided members form the group.
        fn form(&mut self) {
            self.handle(GroupEvent::Release(Vec::new(), StepRules::default()));
            self.connect(&[0]);
            for rank in self.state.members.clone().unwrap() {
                self.handle(GroupEvent::Message(rank as ConnectionId, MemberMessage::Formed));
            }
            assert_eq!(self.state.phase, GroupPhase::Running);
        }

        /// Whether the verdict on the next step lets the members regroup.
        fn regroups(&mut self) -> bool {
            let mut effects = Vec::new();
            for rank in self.state.members.clone().unwrap() {
                let losses = (rank == 0).then(|| BlockLosses { blocks: 1, target_count: 1, sums: vec![(0, 1.0)] });
                let vote = StepVote { step: 1, losses, all_finite: true, ..StepVote::default() };
                effects.extend(self.handle(GroupEvent::Message(rank as ConnectionId, MemberMessage::Vote(vote))));
            }
            let regroup = |effect: &Effect| match effect {
                Effect::Send(_, CoordinatorMessage::Verdict(verdict)) => {
                    assert!(matches!(verdict.outcome, StepOutcome::Apply { .. }), "{verdict:?}");
                    Some(verdict.regroup)
                }
                _ => None,
            };
            effects.iter().find_map(regroup).unwrap()
        }
    }

    #[test]
    fn the_first_group_of_an_elastic_job_begins_with_the_replicas_of_the_whole_window() {
        let mut group = Group::new(Some(WINDOW));
        group.connect(&[1]);
        group.wait(WINDOW / 2);
        // stage 1 disconnects for a moment, so the window begins again
        group.disconnect(1);
        group.connect(&[1, 2, 3]);
        group.wait(WINDOW * 3 / 4);
        assert_eq!(group.state.members, None);
        group.wait(WINDOW / 4);
        assert_eq!(group.state.members, Some(vec![0, 1, 2, 3]));
        assert_eq!(group.state.failure, None);

        let mut complete = Group::new(Some(WINDOW));
        complete.connect(&[1, 2, 3, 4, 5]);
        assert_eq!(complete.state.members, Some((0..6).collect()), "no replica is missing");
        let mut inelastic = Group::new(None);
        inelastic.connect(&[1, 2, 3]);
        inelastic.wait(WINDOW * 2);
        assert_eq!(inelastic.state.members, None, "the start-up timeout has not passed");
    }

    #[test]
    fn a_group_takes_a_replica_in_after_the_window_and_a_flapping_one_never() {
        let mut group = Group::new(Some(WINDOW));
        group.connect(&[1]);
        group.wait(WINDOW);
        group.form();
        assert!(!group.regroups());
        for _ in 0..5 {
            group.connect(&[2, 3]);
            group.wait(WINDOW * 3 / 4);
            assert!(!group.regroups());
            group.disconnect(3);
            group.wait(WINDOW * 3 / 4);
            assert!(!group.regroups());
        }
        group.connect(&[3]);
        group.wait(WINDOW / 2);
        // the replica of ranks 4 and 5 connects and disconnects, which does not restart the window of ranks 2 and 3
        group.connect(&[4, 5]);
        group.wait(WINDOW / 4);
        group.disconnect(5);
        assert!(!group.regroups());
        group.wait(WINDOW / 4);
        assert!(group.regroups());

        let mut inelastic = Group::new(None);
        inelastic.connect(&[1]);
        inelastic.wait(GroupTimeouts::default().startup_timeout);
        inelastic.form();
        assert!(!inelastic.regroups());
        inelastic.connect(&[2, 3]);
        assert!(inelastic.regroups());
    }
}
