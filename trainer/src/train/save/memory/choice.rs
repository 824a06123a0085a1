//! The choice of the memory checkpoint from which a group resumes: the newest one that is available for every stage. A
//! memory checkpoint consists of the copies of all stages' state after one step.

use serde::{Deserialize, Serialize};
use stagecoach_planner::TrainerState;
use stagecoach_transport::PeerRing;

/// The report of a stage to the other stages about its copies in memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct HeldCopies {
    /// This stage's rank in the group that made the copies, and the ring of that group; `None` if this process has been
    /// in no group. The new group, which chooses a checkpoint, may have other replicas.
    pub(super) group: Option<(usize, PeerRing)>,
    /// The trainer states, each with its step, for which the stage has a copy of its own tensors.
    pub(super) own: Vec<TrainerState>,
    /// The steps for which the stage has a complete copy of the state of the previous rank in the [`PeerRing`].
    pub(super) previous: Vec<u64>,
}

impl HeldCopies {
    /// Drops the copies of steps after `step`.
    pub(super) fn drop_after(&mut self, step: u64) {
        self.own.retain(|state| state.step <= step);
        self.previous.retain(|of| *of <= step);
    }
}

/// The location of the copy of a rank's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopySource {
    /// The rank, in the new group, of the stage that has the copy.
    pub(super) rank: usize,
    /// Whether the copy has that stage's own tensors, as opposed to the tensors of another rank.
    pub(super) is_own: bool,
}

/// A checkpoint in memory that is available for every stage.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MemoryCheckpoint {
    /// The state of training, including the step.
    pub(super) state: TrainerState,
    /// The group that made the checkpoint.
    pub(super) ring: PeerRing,
    /// The source of each rank's copy, by rank in that group.
    pub(super) sources: Vec<CopySource>,
    /// Whether the new group can load the copies without moving parameters between replicas. If so, each source has the
    /// rank of the copied state, or is the holder of that rank in the ring.
    pub(super) is_in_place: bool,
}

/// Returns the newest checkpoint that is available for every stage. `held` has the reports of the stages of the group
/// `now`, by rank. The result depends on the arguments alone, so that all stages make the same choice.
pub(super) fn newest_complete(held: &[HeldCopies], now: PeerRing) -> Option<MemoryCheckpoint> {
    let candidates = held.iter().flat_map(|held| {
        let ring = held.group.map(|(_, ring)| ring);
        held.own.iter().filter_map(move |state| Some((state, ring?)))
    });
    let mut candidates: Vec<(&TrainerState, PeerRing)> = candidates.collect();
    // The sort is stable: of several states after the same step, the state that the lowest rank reports stays first. If
    // this rank led the group, its state has the measurements of all stages.
    candidates.sort_by_key(|(state, _)| std::cmp::Reverse(state.step));
    candidates.into_iter().find_map(|(state, ring)| {
        let checkpoint = |is_in_place, sources: Option<Vec<CopySource>>| {
            Some(MemoryCheckpoint { state: state.clone(), ring, sources: sources?, is_in_place })
        };
        let ranks = || 0..ring.ranks();
        let in_place = || ranks().map(|rank| source_in_place(held, ring, rank, state.step)).collect();
        let anywhere = || ranks().map(|rank| source(held, now, ring, rank, state.step)).collect();
        let found = if ring == now { checkpoint(true, in_place()) } else { None };
        found.or_else(|| checkpoint(false, anywhere()))
    })
}

/// Whether the stage with rank `at` in the new group had rank `rank` in the group `ring`, and has a copy of the state
/// after `step`. With `is_own`, the copy has the stage's own tensors, otherwise the tensors of the rank before `rank`
/// in that ring.
fn has(held: &[HeldCopies], ring: PeerRing, (at, rank): (usize, usize), is_own: bool, step: u64) -> bool {
    let has_step = match is_own {
        true => held[at].own.iter().any(|state| state.step == step),
        false => held[at].previous.contains(&step),
    };
    has_step && held[at].group == Some((rank, ring))
}

/// Returns the source of the state of `rank` after `step`: the stage with this rank, or else the holder of its copies.
/// Returns `None` if neither has a copy.
fn source_in_place(held: &[HeldCopies], ring: PeerRing, rank: usize, step: u64) -> Option<CopySource> {
    let holder = ring.holder(rank);
    let own = has(held, ring, (rank, rank), true, step).then_some(CopySource { rank, is_own: true });
    own.or_else(|| has(held, ring, (holder, holder), false, step).then_some(CopySource { rank: holder, is_own: false }))
}

/// Returns the stage of the new group `now` that has a copy of one state: the state of the stage with rank `rank` in
/// the group `ring`, after `step`. The source may be in any replica of the new group, but at the same position in the
/// pipeline, because `load_resharded` uses only the links between a stage's replicas.
fn source(held: &[HeldCopies], now: PeerRing, ring: PeerRing, rank: usize, step: u64) -> Option<CopySource> {
    let same_stage = || (0..held.len()).filter(|at| at % now.stages.max(1) == rank % now.stages.max(1));
    let own =
        same_stage().find(|&at| has(held, ring, (at, rank), true, step)).map(|rank| CopySource { rank, is_own: true });
    let holder = || same_stage().find(|&at| has(held, ring, (at, ring.holder(rank)), false, step));
    own.or_else(|| holder().map(|rank| CopySource { rank, is_own: false }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PIPELINE: PeerRing = PeerRing { stages: 3, replicas: 1 };

    fn held(group: (usize, PeerRing), own: &[u64], previous: &[u64]) -> HeldCopies {
        let state = |&step| TrainerState { step, ..TrainerState::default() };
        HeldCopies { group: Some(group), own: own.iter().map(state).collect(), previous: previous.to_vec() }
    }

    /// Returns the step, and for each rank the rank that has its copy.
    fn chosen(held: &[HeldCopies], now: PeerRing) -> Option<(u64, Vec<usize>)> {
        let ranks = |sources: Vec<CopySource>| sources.into_iter().map(|source| source.rank).collect();
        newest_complete(held, now).map(|chosen| (chosen.state.step, ranks(chosen.sources)))
    }

    #[test]
    fn a_lost_stage_has_the_copy_of_the_next_one() {
        let whole: Vec<_> = (0..3).map(|rank| held((rank, PIPELINE), &[6, 7], &[6, 7])).collect();
        assert_eq!(chosen(&whole, PIPELINE), Some((7, vec![0, 1, 2])));
        for lost in 0..3 {
            let mut group = whole.clone();
            group[lost] = HeldCopies::default();
            let mut sources = vec![0, 1, 2];
            sources[lost] = (lost + 1) % 3;
            assert_eq!(chosen(&group, PIPELINE), Some((7, sources.clone())));
            // the last copy of the lost stage was in transit
            let next = (lost + 1) % 3;
            group[next] = held((next, PIPELINE), &[6, 7], &[6]);
            assert_eq!(chosen(&group, PIPELINE), Some((6, sources)));
        }
        let mut neighbours = whole.clone();
        (neighbours[0], neighbours[1]) = (HeldCopies::default(), HeldCopies::default());
        assert_eq!(chosen(&neighbours, PIPELINE), None);
        assert_eq!(chosen(&[HeldCopies::default(), HeldCopies::default(), HeldCopies::default()], PIPELINE), None);
    }

    #[test]
    fn the_others_have_the_copies_of_a_lost_replica_and_those_of_fewer_serve_more() {
        let (two, three) = (PeerRing { stages: 2, replicas: 2 }, PeerRing { stages: 2, replicas: 3 });
        let of =
            |ring, ranks: &[usize]| -> Vec<_> { ranks.iter().map(|&rank| held((rank, ring), &[7], &[7])).collect() };
        // Ranks 2 and 3 are lost. The third replica, which has become the second, has their copies.
        assert_eq!(chosen(&of(three, &[0, 1, 4, 5]), two), Some((7, vec![0, 1, 2, 3, 2, 3])));
        // the second replica is lost, and the third one, which held the copies of the second, is lost too
        let one = PeerRing { stages: 2, replicas: 1 };
        assert_eq!(chosen(&of(three, &[0, 1]), one), None);
        // a replica returns to a replica that continued alone; the copies of the returned replica are older
        let mut group = of(one, &[0, 1]);
        group.extend([held((2, two), &[5], &[5]), HeldCopies::default()]);
        assert_eq!(chosen(&group, two), Some((7, vec![0, 1])));
        // In a group of one replica, the next stage holds the copies of a stage. Only a group of one replica can load
        // these copies, because `load_resharded` uses only the links between a stage's replicas.
        group[0] = HeldCopies::default();
        assert_eq!(chosen(&group, two), None);
        assert_eq!(chosen(&group[..2], one), Some((7, vec![1, 1])));
    }

    /// The new group has as many replicas as the last group, but not the same ones: rank 1 of the last group has become
    /// rank 2, and rank 1 is new.
    #[test]
    fn a_copy_is_of_the_rank_that_its_stage_had() {
        let three = PeerRing { stages: 1, replicas: 3 };
        let was = |rank| held((rank, three), &[7], &[7]);
        let group = [was(0), HeldCopies::default(), was(1)];
        let chosen = newest_complete(&group, three).unwrap();
        let found: Vec<_> = chosen.sources.iter().map(|source| (source.rank, source.is_own)).collect();
        // rank 0 has the copies of the lost replica
        assert_eq!((found, chosen.is_in_place), (vec![(0, true), (2, true), (0, false)], false));
        assert!(newest_complete(&[was(0), was(1), HeldCopies::default()], three).unwrap().is_in_place);
    }

    proptest! {
        /// Compares the choice with a search over all steps.
        #[test]
        fn it_is_the_newest_of_all(
            steps in prop::collection::vec((prop::collection::vec(0u64..4, 0..3), prop::collection::vec(0u64..4, 0..3)), 1..6)
        ) {
            let ring = PeerRing { stages: steps.len(), replicas: 1 };
            let group: Vec<_> =
                steps.iter().enumerate().map(|(rank, (own, previous))| held((rank, ring), own, previous)).collect();
            let has = |rank: usize, step: u64| {
                steps[rank].0.contains(&step) || steps[(rank + 1) % steps.len()].1.contains(&step)
            };
            // the trainer state is only in a stage's copies of its own tensors
            let is_known = |step| steps.iter().any(|(own, _)| own.contains(&step));
            let newest = (0..4).rev().find(|&step| is_known(step) && (0..steps.len()).all(|rank| has(rank, step)));
            prop_assert_eq!(chosen(&group, ring).map(|(step, _)| step), newest);
        }
    }
}
