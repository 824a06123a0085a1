//! Suggests how to balance the work of the ranks, so that a step becomes shorter than the measured one.

use std::fmt;

use crate::costs::Costs;
use crate::measured::breakdown;
use crate::partition::{ModelCost, Partition};
use crate::program::Programs;
use crate::simulate::simulate;
use crate::timeline::Timeline;

/// The slowest rank and a remedy. The `Display` form is one sentence.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The slowest rank.
    pub rank: usize,
    /// The computation time of the rank divided by the mean of all ranks.
    pub imbalance: f64,
    /// The share of the step, 0 to 1, that would be saved if the rank computed for the mean time of all ranks.
    pub saving: f64,
    /// The partition that was measured.
    pub partition: Partition,
    /// A partition with a shorter step, and the share of the step, 0 to 1, that it saves. `None` if the search found no
    /// partition that saves 1 %.
    pub better: Option<(Partition, f64)>,
}

/// The minimal saving that justifies a change. A smaller saving is within the noise of a measurement.
const MIN_SAVING: f64 = 0.01;

/// Returns the advice for the measured steps. The function simulates two steps with the measured times: a step in which
/// the slowest rank computes for the mean time of all ranks, and a step with the best partition that the search finds.
/// Returns `None` if no step was measured or no rank computed anything.
///
/// `model` gives the modules' work in any unit. The function divides each rank's measured seconds by the work of the
/// rank's modules. The quotients differ between unequal machines, and convert the work of other partitions to seconds.
pub fn advise(programs: &Programs, measured: &[Timeline], model: &ModelCost, partition: &Partition) -> Option<Advice> {
    let placement = &programs.placement;
    let costs = Costs::measured(measured, placement);
    let ranks = breakdown(measured.last()?, placement);
    let (rank, slowest) =
        ranks.iter().enumerate().max_by(|(_, a), (_, b)| a.compute_seconds.total_cmp(&b.compute_seconds))?;
    if slowest.compute_seconds <= 0.0 {
        return None;
    }
    let makespan = simulate(programs, &costs).makespan;
    let mut balanced = costs.clone();
    for chunk in placement.chunks_of(rank) {
        balanced.scale(chunk, 1.0 / slowest.imbalance);
    }
    let saving = 1.0 - simulate(programs, &balanced).makespan / makespan;
    let better = better_partition(programs, &costs, model, partition);
    Some(Advice { rank, imbalance: slowest.imbalance, saving, partition: partition.clone(), better })
}

/// Searches for a better partition. Each round moves one layer over a chunk boundary, and chooses the move that
/// shortens the step most. The search ends when no such move shortens the step.
fn better_partition(
    programs: &Programs,
    costs: &Costs,
    model: &ModelCost,
    partition: &Partition,
) -> Option<(Partition, f64)> {
    let placement = &programs.placement;
    // a slower rank has a larger number
    let seconds_per_work = |rank: usize| {
        let seconds: f64 = placement.chunks_of(rank).map(|chunk| costs.chunk(chunk).compute_seconds()).sum();
        let work: f64 = placement.chunks_of(rank).map(|chunk| partition.work(model, chunk)).sum();
        (work > 0.0).then_some(seconds / work)
    };
    let seconds_per_work: Vec<f64> = (0..placement.ranks()).map(seconds_per_work).collect::<Option<_>>()?;
    let makespan = |partition: &Partition| {
        let mut estimate = Costs {
            link_seconds: costs.link_seconds,
            exchange_seconds: costs.exchange_seconds,
            reduce_seconds: costs.reduce_seconds.clone(),
            gather_seconds: costs.gather_seconds.clone(),
            ..Costs::estimate(model, partition, 1.0, f64::INFINITY)
        };
        for (chunk, &rank) in placement.as_slice().iter().enumerate() {
            estimate.scale(chunk, seconds_per_work[rank]);
        }
        simulate(programs, &estimate).makespan
    };
    let before = makespan(partition);
    let mut best = (partition.clone(), before);
    loop {
        let moved = |from: usize, to: usize| {
            let mut layers = best.0.layers.clone();
            layers[from] = layers[from].checked_sub(1)?;
            layers[to] += 1;
            let candidate = Partition { layers };
            let seconds = makespan(&candidate);
            Some((candidate, seconds))
        };
        let boundaries = 1..partition.layers.len();
        let candidates = boundaries.flat_map(|right| [(right - 1, right), (right, right - 1)]);
        let next = candidates.filter_map(|(from, to)| moved(from, to)).min_by(|a, b| a.1.total_cmp(&b.1));
        match next {
            Some(next) if next.1 < best.1 => best = next,
            _ => break,
        }
    }
    let saving = 1.0 - best.1 / before;
    (saving >= MIN_SAVING).then_some((best.0, saving))
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Advice { rank, imbalance, saving, partition, better } = self;
        if *saving < MIN_SAVING && better.is_none() {
            return write!(
                f,
                "the stages are balanced: the slowest stage, stage {rank}, computes {imbalance:.2} times as long as \
                 the mean stage"
            );
        }
        write!(
            f,
            "stage {rank} computes {imbalance:.2} times as long as the mean stage: with the mean time, the step would \
             be {:.0} % shorter",
            100.0 * saving
        )?;
        match better {
            Some((better, saving)) => {
                write!(f, "; {} -> {} would save {:.0} %", layers(partition), layers(better), 100.0 * saving)
            }
            None => write!(f, "; no other partition saves 1 %"),
        }
    }
}

fn layers(partition: &Partition) -> String {
    partition.layers.iter().map(usize::to_string).collect::<Vec<_>>().join("/")
}
