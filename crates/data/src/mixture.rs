//! Divides a job's positions among its sources. A position is the index of a sequence in the training order. After any
//! number of positions, a source's number of sequences differs from its share of the positions by less than one, also
//! across changes of the weights.
//!
//! The target of a source at a position is the sum of its shares at all earlier positions. A source with n sequences
//! may get its next sequence only if the target exceeds n, and must get it by its deadline, at which the target reaches
//! n + 1. Each position goes to the source with the earliest deadline among the sources that may get the position. This
//! schedule misses no deadline, because the shares add up to one (proportionate fairness; Baruah, Cohen, Plaxton and
//! Varvel, 1996). All arithmetic is exact on integers, except for a rounding by less than 2^-32 where weights change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use crate::config::CorpusSource;

/// Fractions of a sequence are counted in units of 1 / (sum of the weights << `SCALE`).
const SCALE: u32 = 32;

/// The distance between two stored states, in positions. Stored states make any position quick to find.
const STRIDE: u64 = 1 << 14;

/// The weights that apply from the position `from` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MixturePhase {
    pub(crate) from: u64,
    /// The weight of each source. At least one weight is not 0, and their sum is below 2^30.
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
    /// The number of units in one sequence.
    unit: u128,
    /// The targets at `from`, each as whole sequences and units of a further sequence.
    bases: Vec<(u64, u128)>,
    /// The number of units by which each target grows per position.
    growth: Vec<u128>,
    /// The number of positions after which the targets have grown by whole sequences.
    period: u64,
    /// The growth of each target in a period, in sequences.
    per_period: Vec<u64>,
}

/// The number of sequences of each source before a position.
#[derive(Clone, Debug)]
struct State {
    position: u64,
    counts: Vec<u64>,
    deadlines: Vec<u64>,
}

#[derive(Debug)]
struct States {
    /// The stored states by position: at multiples of [`STRIDE`], and after skipped periods.
    kept: BTreeMap<u64, State>,
    current: State,
}

impl Mixture {
    /// Returns the division among `sources` by their weights.
    pub(crate) fn of(sources: &[CorpusSource]) -> Mixture {
        let changes: BTreeSet<u64> = sources.iter().flat_map(|source| &source.weights).map(|(from, _)| *from).collect();
        let weight = |source: &CorpusSource, from: u64| {
            let latest = source.weights.iter().rev().find(|(of_weight, _)| *of_weight <= from);
            latest.map_or(0, |(_, weight)| *weight)
        };
        let phase = |from| MixturePhase { from, weights: sources.iter().map(|source| weight(source, from)).collect() };
        Mixture::new(&changes.into_iter().map(phase).collect::<Vec<_>>())
    }

    /// Returns the division by `phases`, which are in ascending order. The first phase begins at 0.
    pub(crate) fn new(phases: &[MixturePhase]) -> Mixture {
        let mut targets: Vec<PhaseTargets> = Vec::new();
        for phase in phases {
            targets.push(PhaseTargets::new(phase, targets.last()));
        }
        let sources = phases.first().map_or(0, |phase| phase.weights.len());
        let mut start = State { position: 0, counts: vec![0; sources], deadlines: vec![0; sources] };
        start.deadlines = (0..sources).map(|source| deadline(&targets, source, 0)).collect();
        let states = States { kept: BTreeMap::from([(0, start.clone())]), current: start };
        Mixture { targets, states: Mutex::new(states) }
    }

    /// Returns the source of the sequence at `position`, and the number of sequences of that source before `position`.
    pub(crate) fn at(&self, position: u64) -> (usize, u64) {
        self.with_state(position, |state| {
            let source = self.next_source(state);
            (source, state.counts[source])
        })
    }

    /// Returns the number of sequences of each source before `position`.
    pub(crate) fn counts(&self, position: u64) -> Vec<u64> {
        self.with_state(position, |state| state.counts.clone())
    }

    /// Returns a position before which `source` has more than `count` sequences, or `u64::MAX` if no such position is
    /// certain.
    pub(crate) fn exceeds_before(&self, source: usize, count: u64) -> u64 {
        deadline(&self.targets, source, count)
    }

    fn with_state<T>(&self, position: u64, read: impl FnOnce(&State) -> T) -> T {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let States { kept, current } = &mut *states;
        let nearest = kept.range(..=position).next_back().map(|(_, state)| state);
        if let Some(nearest) = nearest.filter(|kept| !(kept.position..=position).contains(&current.position)) {
            current.clone_from(nearest);
        }
        let mut anchor = current.clone();
        while current.position < position {
            self.advance(current);
            if self.skip_periods(&mut anchor, current, position) || current.position.is_multiple_of(STRIDE) {
                kept.insert(current.position, current.clone());
            }
        }
        read(current)
    }

    fn advance(&self, state: &mut State) {
        let source = self.next_source(state);
        state.counts[source] += 1;
        state.deadlines[source] = deadline(&self.targets, source, state.counts[source]);
        state.position += 1;
    }

    /// Skips whole periods, up to `position`, if the division repeats. The division repeats if `state` is one period
    /// after `anchor` and the counts have grown by as much as the targets. The new state becomes the next anchor.
    /// Returns whether the function skipped a period.
    fn skip_periods(&self, anchor: &mut State, state: &mut State, position: u64) -> bool {
        let phase = self.phase(anchor.position);
        let PhaseTargets { period, per_period, .. } = &self.targets[phase];
        let end = self.targets.get(phase + 1).map_or(u64::MAX, |next| next.from);
        if state.position - anchor.position != *period {
            return false;
        }
        let mut grown = anchor.counts.iter().zip(per_period).zip(&state.counts);
        let repeats = state.position <= end && grown.all(|((before, growth), now)| before + growth == *now);
        // deadlines after the phase don't repeat, so the last period of a phase is not skipped
        let periods = position.min(end.saturating_sub(*period)).saturating_sub(state.position) / period;
        if repeats && periods > 0 {
            state.position += periods * period;
            state.counts.iter_mut().zip(per_period).for_each(|(count, growth)| *count += periods * growth);
            let deadline = |(source, count): (usize, &u64)| deadline(&self.targets, source, *count);
            state.deadlines = state.counts.iter().enumerate().map(deadline).collect();
        }
        anchor.clone_from(state);
        repeats && periods > 0
    }

    /// Returns the index of the phase of a position.
    fn phase(&self, position: u64) -> usize {
        self.targets.partition_point(|phase| phase.from <= position).saturating_sub(1)
    }

    /// Returns the source with the earliest deadline among the sources that may have a sequence at the state's
    /// position.
    fn next_source(&self, state: &State) -> usize {
        let targets = &self.targets[self.phase(state.position)];
        let may = |&source: &usize| targets.exceeds(source, state.position + 1, state.counts[source]);
        (0..state.counts.len()).filter(may).min_by_key(|&source| state.deadlines[source]).unwrap_or(0)
    }
}

impl PhaseTargets {
    fn new(phase: &MixturePhase, before: Option<&PhaseTargets>) -> PhaseTargets {
        let unit = u128::from(phase.weights.iter().sum::<u64>()) << SCALE;
        let growth: Vec<u128> = phase.weights.iter().map(|&weight| u128::from(weight) << SCALE).collect();
        let divisor = phase.weights.iter().fold(0, |divisor, &weight| greatest_common_divisor(divisor, weight)).max(1);
        let per_period: Vec<u64> = phase.weights.iter().map(|weight| weight / divisor).collect();
        let period = per_period.iter().sum();
        let Some(before) = before else {
            return PhaseTargets { from: 0, unit, bases: vec![(0, 0); growth.len()], growth, period, per_period };
        };
        let exact: Vec<(u64, u128)> = (0..growth.len()).map(|source| before.target(source, phase.from)).collect();
        let mut bases: Vec<(u64, u128)> =
            exact.iter().map(|(whole, units)| (*whole, units * unit / before.unit)).collect();
        // rounding down takes less than a unit from each rounded source, so adding one unit to some of these sources
        // restores the sum of the targets
        let lost = (unit - bases.iter().map(|(_, units)| units).sum::<u128>() % unit) % unit;
        let rounded =
            bases.iter_mut().zip(&exact).filter(|(_, (_, units))| !(units * unit).is_multiple_of(before.unit));
        rounded.take(lost as usize).for_each(|((_, units), _)| *units += 1);
        PhaseTargets { from: phase.from, unit, bases, growth, period, per_period }
    }

    /// Returns the target of a source at `position`, as whole sequences and units of a further sequence.
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

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

/// Returns the first position at which the target of `source` is at least `count + 1`, or `u64::MAX` if there is none.
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
        let phases = phases.iter().map(|(from, weights)| MixturePhase { from: *from, weights: weights.clone() });
        Mixture::new(&phases.collect::<Vec<_>>())
    }

    /// Returns a strategy for phases of up to 11 sources.
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
        fn any_position_is_found_without_the_others(phases in phases(), positions in prop::collection::vec(0usize..3000, 8)) {
            // requests for all positions in order never skip a period
            let walked = mixture(&phases);
            let walked: Vec<_> = (0..3000).map(|position| walked.at(position)).collect();
            let jumped = mixture(&phases);
            for position in positions {
                prop_assert_eq!(jumped.at(position as u64), walked[position]);
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
        let far = mixture(&[(0, vec![700, 299, 1])]);
        assert_eq!(far.counts(1000 << 40), [700 << 40, 299 << 40, 1 << 40]);
        let changed = mixture(&[(0, vec![5, 3, 2]), (1 << 50, vec![1, 1, 0])]);
        let (first, last) = (changed.counts(1 << 50), changed.counts(1 << 51));
        for (count, share) in first.iter().zip([5, 3, 2]) {
            assert!((count * 10).abs_diff(share << 50) < 10, "{first:?}");
        }
        assert!((first[0] + (1 << 49)).abs_diff(last[0]) <= 1 && first[2].abs_diff(last[2]) <= 1, "{last:?}");
    }
}
