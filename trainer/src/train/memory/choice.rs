//! Which checkpoint in memory a group goes on from: the newest that every stage can have.

use serde::{Deserialize, Serialize};

use crate::links::CopyRing;
use crate::plan::TrainerState;

/// What a stage has in memory, as it tells the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct HeldCopies {
    /// The group whose ranks owned what is in the copies, and which of them this stage was. It may have had other replicas.
    pub(super) group: Option<(usize, CopyRing)>,
    /// After which steps it has a copy of its own state, and the state of training then.
    pub(super) own: Vec<TrainerState>,
    /// After which steps it has a whole copy of the state of the rank whose copies it holds.
    pub(super) previous: Vec<u64>,
}

impl HeldCopies {
    /// Without what is of later steps.
    pub(super) fn drop_after(&mut self, step: u64) {
        self.own.retain(|state| state.step <= step);
        self.previous.retain(|of| *of <= step);
    }
}

/// Where the copy of a rank's state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// The rank, in the group that begins, of the stage that has it.
    pub(super) rank: usize,
    /// Whether it is that stage's own copy, and not the one that it holds.
    pub(super) is_own: bool,
}

/// A checkpoint in memory that every stage can have.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MemoryCheckpoint {
    /// The state of training, the step included.
    pub(super) state: TrainerState,
    /// The group that it is of.
    pub(super) ring: CopyRing,
    /// By rank in that group.
    pub(super) sources: Vec<Source>,
    /// Whether every rank of the group that begins has its own copy, or the rank that holds its copies has it.
    pub(super) is_in_place: bool,
}

/// The newest checkpoint that every stage can have, from what each stage of a group `now` holds, by rank. A function of its arguments
/// alone, so that all stages choose the same.
pub(super) fn newest_complete(held: &[HeldCopies], now: CopyRing) -> Option<MemoryCheckpoint> {
    let candidates = held.iter().flat_map(|held| {
        let ring = held.group.map(|(_, ring)| ring);
        held.own.iter().filter_map(move |state| Some((state, ring?)))
    });
    let mut candidates: Vec<(&TrainerState, CopyRing)> = candidates.collect();
    // of one step, the first stage's, which has measured most
    candidates.sort_by_key(|(state, _)| std::cmp::Reverse(state.step));
    candidates.into_iter().find_map(|(state, ring)| {
        let checkpoint = |is_in_place, sources: Option<Vec<Source>>| {
            Some(MemoryCheckpoint { state: state.clone(), ring, sources: sources?, is_in_place })
        };
        let ranks = || 0..ring.ranks();
        let in_place = || ranks().map(|rank| source_in_place(held, ring, rank, state.step)).collect();
        let anywhere = || ranks().map(|rank| source(held, now, ring, rank, state.step)).collect();
        let found = if ring == now { checkpoint(true, in_place()) } else { None };
        found.or_else(|| checkpoint(false, anywhere()))
    })
}

/// Whether the stage that has rank `at` now was `rank` of the group `ring` and has a copy of its own state after `step`; or, if not
/// `is_own`, of the state that it held for another.
fn has(held: &[HeldCopies], ring: CopyRing, (at, rank): (usize, usize), is_own: bool, step: u64) -> bool {
    let of_step = match is_own {
        true => held[at].own.iter().any(|state| state.step == step),
        false => held[at].previous.contains(&step),
    };
    of_step && held[at].group == Some((rank, ring))
}

/// Who has the copy of `rank` after `step`, if that is this rank itself or the one that holds its copies.
fn source_in_place(held: &[HeldCopies], ring: CopyRing, rank: usize, step: u64) -> Option<Source> {
    let holder = ring.holder(rank);
    let own = has(held, ring, (rank, rank), true, step).then_some(Source { rank, is_own: true });
    own.or_else(|| has(held, ring, (holder, holder), false, step).then_some(Source { rank: holder, is_own: false }))
}

/// Who has the copy of `rank` of the group `ring` after `step`, whichever rank it has now. It goes to other replicas of that stage, so
/// one of them must have it.
fn source(held: &[HeldCopies], now: CopyRing, ring: CopyRing, rank: usize, step: u64) -> Option<Source> {
    let of_stage = || (0..held.len()).filter(|at| at % now.stages.max(1) == rank % now.stages.max(1));
    let own = of_stage().find(|&at| has(held, ring, (at, rank), true, step)).map(|rank| Source { rank, is_own: true });
    let holder = || of_stage().find(|&at| has(held, ring, (at, ring.holder(rank)), false, step));
    own.or_else(|| holder().map(|rank| Source { rank, is_own: false }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PIPELINE: CopyRing = CopyRing { stages: 3, replicas: 1 };

    fn held(group: (usize, CopyRing), own: &[u64], previous: &[u64]) -> HeldCopies {
        let state = |&step| TrainerState { step, ..TrainerState::default() };
        HeldCopies { group: Some(group), own: own.iter().map(state).collect(), previous: previous.to_vec() }
    }

    /// The step, and of each rank the rank that has its copy.
    fn chosen(held: &[HeldCopies], now: CopyRing) -> Option<(u64, Vec<usize>)> {
        let ranks = |sources: Vec<Source>| sources.into_iter().map(|source| source.rank).collect();
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
            // its last copy was on its way
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
        let (two, three) = (CopyRing { stages: 2, replicas: 2 }, CopyRing { stages: 2, replicas: 3 });
        let of =
            |ring, ranks: &[usize]| -> Vec<_> { ranks.iter().map(|&rank| held((rank, ring), &[7], &[7])).collect() };
        // ranks 2 and 3 are lost: those of the third replica have their copies, and are the second now
        assert_eq!(chosen(&of(three, &[0, 1, 4, 5]), two), Some((7, vec![0, 1, 2, 3, 2, 3])));
        // what is lost of two neighbours is gone
        let one = CopyRing { stages: 2, replicas: 1 };
        assert_eq!(chosen(&of(three, &[0, 1]), one), None);
        // a replica comes back to one that went on alone; its own copies are older
        let mut group = of(one, &[0, 1]);
        group.extend([held((2, two), &[5], &[5]), HeldCopies::default()]);
        assert_eq!(chosen(&group, two), Some((7, vec![0, 1])));
        // the copies of a stage that was alone are at the next stage, which does not send them to another
        group[0] = HeldCopies::default();
        assert_eq!(chosen(&group, two), None);
        assert_eq!(chosen(&group[..2], one), Some((7, vec![1, 1])));
    }

    /// As many replicas, and not the same: the first of three was followed by two that now have other ranks.
    #[test]
    fn a_copy_is_of_the_rank_that_its_stage_had() {
        let three = CopyRing { stages: 1, replicas: 3 };
        let was = |rank| held((rank, three), &[7], &[7]);
        let group = [was(0), HeldCopies::default(), was(1)];
        let chosen = newest_complete(&group, three).unwrap();
        let found: Vec<_> = chosen.sources.iter().map(|source| (source.rank, source.is_own)).collect();
        // the third one's are with the first
        assert_eq!((found, chosen.is_in_place), (vec![(0, true), (2, true), (0, false)], false));
        assert!(newest_complete(&[was(0), was(1), HeldCopies::default()], three).unwrap().is_in_place);
    }

    proptest! {
        /// Against all steps tried one by one.
        #[test]
        fn it_is_the_newest_of_all(
            steps in prop::collection::vec((prop::collection::vec(0u64..4, 0..3), prop::collection::vec(0u64..4, 0..3)), 1..6)
        ) {
            let ring = CopyRing { stages: steps.len(), replicas: 1 };
            let group: Vec<_> =
                steps.iter().enumerate().map(|(rank, (own, previous))| held((rank, ring), own, previous)).collect();
            let has = |rank: usize, step: u64| {
                steps[rank].0.contains(&step) || steps[(rank + 1) % steps.len()].1.contains(&step)
            };
            // somebody has to know the state of training
            let is_known = |step| steps.iter().any(|(own, _)| own.contains(&step));
            let newest = (0..4).rev().find(|&step| is_known(step) && (0..steps.len()).all(|rank| has(rank, step)));
            prop_assert_eq!(chosen(&group, ring).map(|(step, _)| step), newest);
        }
    }
}
