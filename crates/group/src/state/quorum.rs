//! The ranks of a group: all ranks of the attempt, or the ranks of the complete replicas that the connected ranks can
//! form. This module is pure.

use std::collections::BTreeSet;
use std::time::Duration;

use stagecoach_api::contract::Mesh;

/// The rule that decides which ranks form a group. A group has a minimum number of replicas (like torchelastic's
/// `min_nodes`). Ranks of the same stage can substitute for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quorum {
    /// The attempt's stages and replicas.
    pub(crate) mesh: Mesh,
    /// The minimum number of replicas in a group.
    min_replicas: usize,
    waits_for_lost_ranks: bool,
    /// The time for which the stages of additional replicas must be connected before a group uses them. `None` for a
    /// job that is not elastic: its first group waits for all replicas, and a group adds a returned replica at once.
    pub(crate) stabilization_window: Option<Duration>,
    /// The lost ranks. The group does not wait for a lost rank if the other ranks are enough. For any other missing
    /// rank, the group waits until the start-up timeout or the stabilization window has passed.
    pub(crate) lost: BTreeSet<usize>,
}

impl Quorum {
    /// Returns the quorum of a group that trains with at least `min_replicas` of the mesh's replicas, and does not wait
    /// for lost ranks.
    pub fn new(mesh: Mesh, min_replicas: usize) -> Quorum {
        Quorum { mesh, min_replicas, waits_for_lost_ranks: false, stabilization_window: None, lost: BTreeSet::new() }
    }

    /// Sets whether the group also waits for lost ranks, because spares may replace them.
    pub fn awaiting_lost(self, waits_for_lost_ranks: bool) -> Quorum {
        Quorum { waits_for_lost_ranks, ..self }
    }

    /// Sets the stabilization window of an elastic job. The job's first group begins without the missing replicas once
    /// enough replicas have been connected for that time.
    pub fn stabilized_for(self, window: Option<Duration>) -> Quorum {
        Quorum { stabilization_window: window, ..self }
    }

    /// Returns the quorum of a group of one replica, which needs all its stages.
    pub fn all(stages: usize) -> Quorum {
        Quorum::new(Mesh::pipeline(stages as u32), 1)
    }

    /// Returns the number of stages of a replica.
    pub(crate) fn stages(&self) -> usize {
        self.mesh.stages as usize
    }

    /// Returns the members' ranks by group rank, replica by replica, the replica of `leader` first; `None` if the group
    /// has to wait longer. `has_waited` means that the start-up timeout or the stabilization window has passed.
    pub(crate) fn members(
        &self,
        leader: usize,
        has_waited: bool,
        is_connected: impl Fn(usize) -> bool,
    ) -> Option<Vec<usize>> {
        let count = self.replicas(&is_connected);
        let may_come = |rank: &usize| self.waits_for_lost_ranks || !self.lost.contains(rank);
        let is_all = count == self.replicas(|rank| is_connected(rank) || may_come(&rank));
        (self.is_enough(&is_connected) && (is_all || has_waited)).then(|| self.arranged(leader, count, is_connected))
    }

    /// Returns the number of complete replicas that the connected ranks can form.
    pub(crate) fn replicas(&self, is_connected: impl Fn(usize) -> bool) -> usize {
        self.mesh.complete_replicas(|rank| is_connected(rank as usize)) as usize
    }

    /// Whether the connected ranks are enough for a group.
    pub(crate) fn is_enough(&self, is_connected: impl Fn(usize) -> bool) -> bool {
        self.replicas(is_connected) >= self.min_replicas.max(1)
    }

    /// Arranges `count` replicas from connected ranks: first the leader's replica, then complete replicas, then
    /// incomplete ones. In an incomplete replica, a rank of the same stage from an unselected replica substitutes for
    /// each missing rank.
    fn arranged(&self, leader: usize, count: usize, is_connected: impl Fn(usize) -> bool) -> Vec<usize> {
        let stages = self.stages();
        let lacks = |replica: usize| !(replica * stages..(replica + 1) * stages).all(&is_connected);
        let mut replicas: Vec<usize> = (0..self.mesh.data_parallel as usize).collect();
        replicas.sort_by_key(|&replica| (replica != leader / stages, lacks(replica), replica));
        let (taken, others) = replicas.split_at(count);
        let mut substitutes: Vec<usize> = others
            .iter()
            .flat_map(|replica| replica * stages..(replica + 1) * stages)
            .filter(|&rank| is_connected(rank))
            .collect();
        let mut present_or_substitute = |rank: usize| {
            let is_same_stage = |other: &usize| other % stages == rank % stages;
            match is_connected(rank) {
                true => Some(rank),
                false => substitutes.iter().rposition(is_same_stage).map(|at| substitutes.remove(at)),
            }
        };
        let ranks = taken.iter().flat_map(|replica| replica * stages..(replica + 1) * stages);
        ranks.filter_map(&mut present_or_substitute).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MESH: Mesh = Mesh { stages: 2, data_parallel: 3 };
    const WORLD_SIZE: usize = 6;

    fn quorum(min_replicas: usize, lost: &[usize]) -> Quorum {
        Quorum { lost: lost.iter().copied().collect(), ..Quorum::new(MESH, min_replicas) }
    }

    fn members(quorum: &Quorum, has_waited: bool, missing: &[usize]) -> Option<Vec<usize>> {
        quorum.members(0, has_waited, |rank| !missing.contains(&rank))
    }

    #[test]
    fn a_lost_stage_is_not_waited_for_and_another_one_for_as_long_as_it_takes() {
        assert_eq!(members(&quorum(1, &[3]), false, &[]), Some((0..6).collect()));
        assert_eq!(members(&quorum(1, &[3]), false, &[3]), Some(vec![0, 1, 4, 5]));
        assert_eq!(members(&quorum(1, &[3]), false, &[3, 5]), None);
        assert_eq!(members(&quorum(1, &[3]), true, &[3, 5]), Some(vec![0, 1]));
        assert_eq!(members(&quorum(1, &[]), false, &[3]), None);
        let with_spares = quorum(1, &[3]).awaiting_lost(true);
        assert_eq!(members(&with_spares, false, &[3]), None);
        assert_eq!(members(&with_spares, true, &[3]), Some(vec![0, 1, 4, 5]));
        // rank 3 is lost, so stage 1 has only two processes, and waiting for rank 2 would gain nothing
        assert_eq!(members(&quorum(1, &[3]), false, &[3, 2]), Some(vec![0, 1, 4, 5]));
    }

    #[test]
    fn a_stage_stands_in_for_that_of_another_replica() {
        assert_eq!(members(&quorum(1, &[1]), false, &[1]), Some(vec![0, 5, 2, 3]));
        assert_eq!(members(&quorum(1, &[1, 2]), false, &[1, 2]), Some(vec![0, 3, 4, 5]));
        let led_by =
            |leader, missing: &[usize]| quorum(1, missing).members(leader, false, |rank| !missing.contains(&rank));
        assert_eq!(led_by(2, &[0]), Some(vec![2, 3, 4, 5]));
        assert_eq!(led_by(2, &[0, 3]), Some(vec![2, 1, 4, 5]));
        assert_eq!(led_by(4, &[]), Some(vec![4, 5, 0, 1, 2, 3]));
    }

    #[test]
    fn enough_replicas_are_needed() {
        assert_eq!(members(&quorum(1, &[1, 3, 5]), true, &[1, 3, 5]), None);
        assert_eq!(members(&quorum(3, &[2]), true, &[2]), None);
        assert_eq!(members(&quorum(2, &[2]), true, &[2]), Some(vec![0, 1, 4, 5]));
        assert_eq!(Quorum::all(WORLD_SIZE).members(0, true, |rank| rank != 5), None);
    }

    proptest! {
        #[test]
        fn a_group_has_as_many_replicas_as_are_here(
            here in prop::collection::vec(any::<bool>(), WORLD_SIZE),
            stages in prop::sample::select(vec![1usize, 2, 3, 6]),
            leader in 0usize..6,
            min_replicas in 1usize..4,
            lost in prop::collection::btree_set(0usize..6, 0..6),
            has_waited: bool,
        ) {
            let leader = leader % (WORLD_SIZE / stages) * stages;
            let is_connected = |rank| rank == leader || here[rank];
            let mesh = Mesh { stages: stages as u32, data_parallel: (WORLD_SIZE / stages) as u32 };
            let quorum = Quorum { lost, ..Quorum::new(mesh, min_replicas) };
            let Some(members) = quorum.members(leader, has_waited, is_connected) else { return Ok(()) };
            prop_assert_eq!(members[0], leader);
            prop_assert_eq!(members.len(), stages * quorum.replicas(is_connected));
            prop_assert!(members.iter().all(|&rank| is_connected(rank)) && members.len() >= stages * min_replicas);
            prop_assert!(members.iter().enumerate().all(|(at, rank)| at % stages == rank % stages));
            let distinct: BTreeSet<_> = members.iter().collect();
            prop_assert_eq!(distinct.len(), members.len());
            // a complete replica stays together
            for replica in 0..WORLD_SIZE / stages {
                let ranks: Vec<usize> = (replica * stages..(replica + 1) * stages).collect();
                if members.contains(&ranks[0]) && ranks.iter().all(|&rank| is_connected(rank)) {
                    prop_assert!(members.chunks(stages).any(|found| found == ranks));
                }
            }
        }
    }
}
