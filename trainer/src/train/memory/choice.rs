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
        let sources = (0..ring.ranks()).map(|rank| source(held, now, ring, rank, state.step)).collect::<Option<_>>()?;
        Some(MemoryCheckpoint { state: state.clone(), ring, sources })
    })
}

/// Who has the copy of `rank` of the group `ring` after `step`: that stage itself, or the one that holds its copies. With other
/// replicas than now it goes to other replicas of that stage, so one of them must have it.
fn source(held: &[HeldCopies], now: CopyRing, ring: CopyRing, rank: usize, step: u64) -> Option<Source> {
    let stage_of = |rank: usize| rank % now.stages.max(1);
    let is_reachable = |at: usize| ring == now || stage_of(at) == stage_of(rank);
    let was = |at: usize, rank: usize| held[at].group == Some((rank, ring));
    let own = (0..held.len()).find(|&at| was(at, rank) && held[at].own.iter().any(|state| state.step == step));
    let holder = || (0..held.len()).find(|&at| was(at, ring.holder(rank)) && held[at].previous.contains(&step));
    let own = own.map(|rank| Source { rank, is_own: true });
    own.or_else(|| holder().map(|rank| Source { rank, is_own: false })).filter(|source| is_reachable(source.rank))
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
