//! The division of a job's positions among its sources. After any number of positions, each source has had its share of
//! them to within one sequence, also across changes of the weights.
//!
//! A source has a target: the integral of its share over the positions. The number of its sequences follows the target,
//! so the source can't have its next sequence before the target exceeds their number, and must have it by the time the
//! target reaches the next whole number. The position goes to the source with the earliest such deadline. This schedule
//! misses no deadline, because the shares add up to one (proportionate fairness; Baruah, Cohen, Plaxton and Varvel,
//! 1996). All arithmetic is exact on integers, but for a rounding by 2^-32 where weights change.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::config::CorpusSource;

/// Fractions of a sequence are counted in units of 1 / (sum of the weights << `SCALE`).
const SCALE: u32 = 32;

/// Positions between two of the states that are kept, from which any position is found quickly.
const STRIDE: u64 = 1 << 14;

/// Weights that apply from a position on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    pub(crate) from: u64,
    /// One for each source. At least one is not 0. Their sum is below 2^30.
    pub(crate) weights: Vec<u64>,
}

/// The division of all positions among the sources.
#[derive(Debug)]
pub(crate) struct Mixture {
    targets: Vec<PhaseTargets>,
    states: Mutex<States>,
}

/// The targets of all sources within a phase.
#[derive(Debug)]
struct PhaseTargets {
    from: u64,
    /// Units of one sequence.
    unit: u128,
    /// The targets at `from`: whole sequences, and units of a further one.
    bases: Vec<(u64, u128)>,
    /// Units by which the targets grow with each position.
    growth: Vec<u128>,
}

/// The sources' numbers of sequences before a position.
#[derive(Clone, Debug)]
struct State {
    position: u64,
    counts: Vec<u64>,
    deadlines: Vec<u64>,
}

#[derive(Debug)]
struct States {
    /// The states at the multiples of [`STRIDE`], as far as they have been needed.
    kept: Vec<State>,
    current: State,
}

impl Mixture {
    /// The division among `sources` by their weights.
    pub(crate) fn of(sources: &[CorpusSource]) -> Mixture {
        let changes: BTreeSet<u64> = sources.iter().flat_map(|source| &source.weights).map(|(from, _)| *from).collect();
        let weight = |source: &CorpusSource, from: u64| {
            let latest = source.weights.iter().rev().find(|(of_weight, _)| *of_weight <= from);
            latest.map_or(0, |(_, weight)| *weight)
        };
        let phase = |from| Phase { from, weights: sources.iter().map(|source| weight(source, from)).collect() };
        Mixture::new(&changes.into_iter().map(phase).collect::<Vec<_>>())
    }

    /// The division by `phases`, of which the first begins at 0, in ascending order.
    pub(crate) fn new(phases: &[Phase]) -> Mixture {
        let mut targets: Vec<PhaseTargets> = Vec::new();
        for phase in phases {
            targets.push(PhaseTargets::new(phase, targets.last()));
        }
        let sources = phases.first().map_or(0, |phase| phase.weights.len());
        let mut start = State { position: 0, counts: vec![0; sources], deadlines: vec![0; sources] };
        start.deadlines = (0..sources).map(|source| deadline(&targets, source, 0)).collect();
        Mixture { targets, states: Mutex::new(States { kept: vec![start.clone()], current: start }) }
    }

    /// The source of the sequence at `position`, and the number of sequences of that source before it.
    pub(crate) fn at(&self, position: u64) -> (usize, u64) {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = |state: &State| {
            let source = self.next_source(state);
            (source, state.counts[source])
        };
        counts(states.at(position, |state| self.advance(state)))
    }

    /// The sources' numbers of sequences before `position`.
    pub(crate) fn counts(&self, position: u64) -> Vec<u64> {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.at(position, |state| self.advance(state)).counts.clone()
    }

    fn advance(&self, state: &mut State) {
        let source = self.next_source(state);
        state.counts[source] += 1;
        state.deadlines[source] = deadline(&self.targets, source, state.counts[source]);
        state.position += 1;
    }

    /// The source with the earliest deadline among those that may have a sequence at the state's position.
    fn next_source(&self, state: &State) -> usize {
        let end = state.position + 1;
        let phase = self.targets.partition_point(|phase| phase.from < end).saturating_sub(1);
        let targets = &self.targets[phase];
        let may = |&source: &usize| targets.exceeds(source, end, state.counts[source]);
        (0..state.counts.len()).filter(may).min_by_key(|&source| state.deadlines[source]).unwrap_or(0)
    }
}

impl States {
    /// The state at `position`.
    fn at(&mut self, position: u64, advance: impl Fn(&mut State)) -> &State {
        let kept = (position / STRIDE).min(self.kept.len() as u64 - 1) as usize;
        if self.current.position > position || self.current.position < self.kept[kept].position {
            self.current = self.kept[kept].clone();
        }
        while self.current.position < position {
            advance(&mut self.current);
            if self.current.position == self.kept.len() as u64 * STRIDE {
                self.kept.push(self.current.clone());
            }
        }
        &self.current
    }
}

impl PhaseTargets {
    fn new(phase: &Phase, before: Option<&PhaseTargets>) -> PhaseTargets {
        let unit = u128::from(phase.weights.iter().sum::<u64>()) << SCALE;
        let growth: Vec<u128> = phase.weights.iter().map(|&weight| u128::from(weight) << SCALE).collect();
        let Some(before) = before else {
            return PhaseTargets { from: phase.from, unit, bases: vec![(0, 0); growth.len()], growth };
        };
        let exact: Vec<(u64, u128)> = (0..growth.len()).map(|source| before.target(source, phase.from)).collect();
        let mut bases: Vec<(u64, u128)> =
            exact.iter().map(|(whole, units)| (*whole, units * unit / before.unit)).collect();
        // rounding down loses less than a unit of each source that has a fraction: the targets add up to the position
        // again
        let lost = (unit - bases.iter().map(|(_, units)| units).sum::<u128>() % unit) % unit;
        let rounded =
            bases.iter_mut().zip(&exact).filter(|(_, (_, units))| !(units * unit).is_multiple_of(before.unit));
        rounded.take(lost as usize).for_each(|((_, units), _)| *units += 1);
        PhaseTargets { from: phase.from, unit, bases, growth }
    }

    /// The target of a source at `position`: whole sequences, and units of a further one.
    fn target(&self, source: usize, position: u64) -> (u64, u128) {
        let (whole, units) = self.bases[source];
        let units = units + self.growth[source] * u128::from(position - self.from);
        (whole + (units / self.unit) as u64, units % self.unit)
    }

    /// Whether the target of a source at `position` exceeds `count`.
    fn exceeds(&self, source: usize, position: u64, count: u64) -> bool {
        let (whole, units) = self.target(source, position);
        whole > count || whole == count && units > 0
    }
}

/// The first position at which the target of `source` is above `count` by one. `u64::MAX` if that never happens.
fn deadline(targets: &[PhaseTargets], source: usize, count: u64) -> u64 {
    for (index, phase) in targets.iter().enumerate() {
        let end = targets.get(index + 1).map_or(u64::MAX, |next| next.from);
        let (whole, units) = phase.bases[source];
        let missing = u128::from((count + 1).saturating_sub(whole)) * phase.unit;
        let Some(missing) = missing.checked_sub(units).filter(|&missing| missing > 0) else { return phase.from };
        if phase.growth[source] > 0 {
            let positions = missing.div_ceil(phase.growth[source]);
            let reached = u128::from(phase.from).saturating_add(positions);
            if reached <= u128::from(end) {
                return reached as u64;
            }
        }
    }
    u64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mixture(phases: &[(u64, Vec<u64>)]) -> Mixture {
        let phases = phases.iter().map(|(from, weights)| Phase { from: *from, weights: weights.clone() });
        Mixture::new(&phases.collect::<Vec<_>>())
    }

    /// Phases of up to 12 sources.
    fn phases() -> impl Strategy<Value = Vec<(u64, Vec<u64>)>> {
        let weight = || prop_oneof![Just(0u64), 1u64..5, 1u64..1000, 1u64..1_000_000];
        (1usize..12).prop_flat_map(move |sources| {
            let weights = prop::collection::vec(weight(), sources).prop_map(|mut weights| {
                weights[0] += u64::from(weights.iter().all(|&weight| weight == 0));
                weights
            });
            prop::collection::vec((1u64..200, weights), 1..4).prop_map(|phases| {
                let mut from = 0;
                let phases = phases.into_iter().map(|(length, weights)| {
                    let begin = from;
                    from += length;
                    (begin, weights)
                });
                phases.collect()
            })
        })
    }

    proptest! {
        #[test]
        fn every_source_has_its_share_within_one_sequence(phases in phases()) {
            let mixture = mixture(&phases);
            let sources = phases[0].1.len();
            let (mut targets, mut counts) = (vec![0.0; sources], vec![0u64; sources]);
            for position in 0..900 {
                let (_, weights) = phases.iter().rev().find(|(from, _)| *from <= position).unwrap();
                let (source, before) = mixture.at(position);
                prop_assert_eq!(before, counts[source]);
                prop_assert!(weights[source] > 0 || targets[source] > counts[source] as f64, "no share, no sequence");
                counts[source] += 1;
                let sum = weights.iter().sum::<u64>() as f64;
                for (target, &weight) in targets.iter_mut().zip(weights) {
                    *target += weight as f64 / sum;
                }
                for (target, &count) in targets.iter().zip(&counts) {
                    prop_assert!((target - count as f64).abs() < 1.0 + 1e-9, "{position}: {targets:?} {counts:?}");
                }
            }
            prop_assert_eq!(mixture.counts(900), counts);
        }

        #[test]
        fn any_position_is_found_without_the_others(phases in phases(), mut positions in prop::collection::vec(0u64..60_000, 4)) {
            let walked = mixture(&phases);
            let jumped = mixture(&phases);
            let expected: Vec<_> = {
                let mut sorted = positions.clone();
                sorted.sort_unstable();
                sorted.into_iter().map(|position| (position, walked.at(position))).collect()
            };
            for position in positions.drain(..) {
                let (_, expected) = expected.iter().find(|(at, _)| *at == position).unwrap();
                prop_assert_eq!(&jumped.at(position), expected);
            }
        }
    }

    /// Checkpoints resume in this order, so it must never change.
    #[test]
    fn the_division_is_stable_across_versions() {
        let text = |mixture: &Mixture, positions| -> String {
            (0..positions).map(|position| char::from(b'a' + mixture.at(position).0 as u8)).collect()
        };
        assert_eq!(text(&mixture(&[(0, vec![3, 1])]), 12), "aaabaaabaaab");
        assert_eq!(text(&mixture(&[(0, vec![5, 3, 2]), (10, vec![0, 1, 1])]), 16), "abacababacbcbcbc");
    }

    #[test]
    fn a_position_far_away_is_found_in_a_moment() {
        let mixture = mixture(&[(0, vec![700_000, 299_999, 1])]);
        let counts = mixture.counts(3_000_000);
        assert_eq!(counts, [2_100_000, 899_997, 3]);
    }
}
