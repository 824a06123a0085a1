//! Which checkpoint in memory a group goes on from: the newest that every stage can have.

use serde::{Deserialize, Serialize};

use crate::plan::TrainerState;

/// What a stage has in memory, as it tells the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct HeldCopies {
    /// After which steps it has a copy of its own state, and the state of training then.
    pub(super) own: Vec<TrainerState>,
    /// After which steps it has a whole copy of the state of the stage before it.
    pub(super) previous: Vec<u64>,
}

/// Where a stage has its state from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Its own copy.
    Own,
    /// The copy that the next stage holds.
    Next,
}

/// A checkpoint in memory that every stage can have.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MemoryCheckpoint {
    /// The state of training, the step included.
    pub(super) state: TrainerState,
    /// By rank.
    pub(super) sources: Vec<Source>,
}

/// The newest checkpoint that every stage can have, from what each of them holds, by rank. A function of its argument alone, so
/// that all stages choose the same.
pub(super) fn newest_complete(held: &[HeldCopies]) -> Option<MemoryCheckpoint> {
    let ranks = held.len();
    let source = |rank: usize, step: u64| {
        let is_own = held[rank].own.iter().any(|state| state.step == step);
        let is_next = || held[(rank + 1) % ranks].previous.contains(&step);
        if is_own { Some(Source::Own) } else { is_next().then_some(Source::Next) }
    };
    let mut states: Vec<&TrainerState> = held.iter().flat_map(|held| &held.own).collect();
    // of one step, the first stage's, which has measured most
    states.sort_by_key(|state| std::cmp::Reverse(state.step));
    states.into_iter().find_map(|state| {
        let sources = (0..ranks).map(|rank| source(rank, state.step)).collect::<Option<_>>()?;
        Some(MemoryCheckpoint { state: state.clone(), sources })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn held(own: &[u64], previous: &[u64]) -> HeldCopies {
        let state = |&step| TrainerState { step, ..TrainerState::default() };
        HeldCopies { own: own.iter().map(state).collect(), previous: previous.to_vec() }
    }

    fn chosen(held: &[HeldCopies]) -> Option<(u64, Vec<Source>)> {
        newest_complete(held).map(|chosen| (chosen.state.step, chosen.sources))
    }

    #[test]
    fn a_lost_stage_has_the_copy_of_the_next_one() {
        use Source::{Next, Own};
        let whole = [held(&[6, 7], &[6, 7]), held(&[6, 7], &[6, 7]), held(&[6, 7], &[6, 7])];
        assert_eq!(chosen(&whole), Some((7, vec![Own; 3])));
        for lost in 0..3 {
            let mut group = whole.clone();
            group[lost] = HeldCopies::default();
            let mut sources = vec![Own; 3];
            sources[lost] = Next;
            assert_eq!(chosen(&group), Some((7, sources.clone())));
            // its last copy was on its way
            group[(lost + 1) % 3] = held(&[6, 7], &[6]);
            assert_eq!(chosen(&group), Some((6, sources)));
        }
        let mut neighbours = whole.clone();
        (neighbours[0], neighbours[1]) = (HeldCopies::default(), HeldCopies::default());
        assert_eq!(chosen(&neighbours), None);
        assert_eq!(chosen(&[held(&[6], &[6]), HeldCopies::default()]), Some((6, vec![Own, Next])));
        assert_eq!(chosen(&[HeldCopies::default(), HeldCopies::default()]), None);
        assert_eq!(chosen(&[]), None);
    }

    proptest! {
        /// Against all steps tried one by one.
        #[test]
        fn it_is_the_newest_of_all(
            steps in prop::collection::vec((prop::collection::vec(0u64..4, 0..3), prop::collection::vec(0u64..4, 0..3)), 1..6)
        ) {
            let group: Vec<_> = steps.iter().map(|(own, previous)| held(own, previous)).collect();
            let has = |rank: usize, step: u64| {
                steps[rank].0.contains(&step) || steps[(rank + 1) % steps.len()].1.contains(&step)
            };
            // somebody has to know the state of training
            let is_known = |step| steps.iter().any(|(own, _)| own.contains(&step));
            let newest = (0..4).rev().find(|&step| is_known(step) && (0..steps.len()).all(|rank| has(rank, step)));
            prop_assert_eq!(chosen(&group).map(|(step, _)| step), newest);
        }
    }
}
