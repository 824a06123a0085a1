//! Which stages a group has: all, or whole replicas of the pipeline. Pure.

use std::collections::BTreeSet;

/// With how few replicas a group may train. Ranks are counted replica by replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quorum {
    /// Stages of a replica.
    pub stages: usize,
    /// How many replicas a group must have. The first is always one of them: stage 0 is in it.
    pub min_replicas: usize,
    /// Replicas that have lost a stage. Nobody waits for them if there are enough others; for a replica of which nothing is
    /// known, the group waits until the start-up timeout has passed.
    pub lost: BTreeSet<usize>,
}

impl Quorum {
    /// Of a group that needs all its stages.
    pub fn all(world_size: usize) -> Quorum {
        Quorum { stages: world_size, min_replicas: 1, lost: BTreeSet::new() }
    }

    /// The ranks of the group, if it need not wait any longer: those of the replicas all of whose stages are here. `has_waited`
    /// if the start-up timeout has passed.
    pub(crate) fn members(
        &self,
        world_size: usize,
        has_waited: bool,
        is_here: impl Fn(usize) -> bool,
    ) -> Option<Vec<usize>> {
        let replicas = world_size / self.stages.max(1);
        let ranks = |replica: usize| replica * self.stages..(replica + 1) * self.stages;
        let (whole, others): (Vec<usize>, Vec<usize>) =
            (0..replicas).partition(|&replica| ranks(replica).all(&is_here));
        let is_enough = whole.first() == Some(&0) && whole.len() >= self.min_replicas;
        let nobody_is_awaited = has_waited || others.iter().all(|replica| self.lost.contains(replica));
        (is_enough && nobody_is_awaited).then(|| whole.into_iter().flat_map(ranks).collect())
    }

    /// The replicas that are not among `members` and have all their stages here.
    pub(crate) fn returned(&self, world_size: usize, members: &[usize], is_here: impl Fn(usize) -> bool) -> Vec<usize> {
        let is_whole = |replica: usize| (replica * self.stages..(replica + 1) * self.stages).all(&is_here);
        let others = (0..world_size / self.stages.max(1)).filter(|replica| !members.contains(&(replica * self.stages)));
        others.filter(|&replica| is_whole(replica)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WORLD_SIZE: usize = 6;

    fn quorum(min_replicas: usize, lost: &[usize]) -> Quorum {
        Quorum { stages: 2, min_replicas, lost: lost.iter().copied().collect() }
    }

    fn members(quorum: &Quorum, has_waited: bool, missing: &[usize]) -> Option<Vec<usize>> {
        quorum.members(WORLD_SIZE, has_waited, |rank| !missing.contains(&rank))
    }

    #[test]
    fn a_lost_replica_is_not_waited_for_and_another_one_for_as_long_as_it_takes() {
        assert_eq!(members(&quorum(1, &[1]), false, &[]), Some((0..6).collect()));
        assert_eq!(members(&quorum(1, &[1]), false, &[3]), Some(vec![0, 1, 4, 5]));
        assert_eq!(members(&quorum(1, &[1]), false, &[3, 4]), None);
        assert_eq!(members(&quorum(1, &[1]), true, &[3, 4]), Some(vec![0, 1]));
        assert_eq!(members(&quorum(1, &[]), false, &[3]), None);
    }

    #[test]
    fn the_first_replica_and_enough_others_are_needed() {
        assert_eq!(members(&quorum(1, &[0]), true, &[1]), None);
        assert_eq!(members(&quorum(3, &[1]), true, &[2]), None);
        assert_eq!(members(&quorum(2, &[1]), true, &[2]), Some(vec![0, 1, 4, 5]));
        assert_eq!(Quorum::all(WORLD_SIZE).members(WORLD_SIZE, true, |rank| rank != 5), None);
    }

    proptest! {
        #[test]
        fn a_group_has_whole_replicas_that_are_here(
            here in prop::collection::vec(any::<bool>(), WORLD_SIZE),
            stages in prop::sample::select(vec![1usize, 2, 3, 6]),
            min_replicas in 1usize..4,
            lost in prop::collection::btree_set(0usize..6, 0..6),
            has_waited: bool,
        ) {
            let quorum = Quorum { stages, min_replicas, lost };
            let Some(members) = quorum.members(WORLD_SIZE, has_waited, |rank| here[rank]) else { return Ok(()) };
            prop_assert!(members.starts_with(&[0]) && members.is_sorted() && members.len().is_multiple_of(stages));
            prop_assert!(members.iter().all(|&rank| here[rank]) && members.len() >= stages * min_replicas);
            for replica in members.chunks(stages) {
                prop_assert!(replica[0].is_multiple_of(stages) && replica[stages - 1] == replica[0] + stages - 1);
            }
            prop_assert_eq!(quorum.returned(WORLD_SIZE, &members, |rank| here[rank]), [0; 0], "one that is here was left out");
        }
    }
}
