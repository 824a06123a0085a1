//! Analyses the timeline of a step, usually a measured one: the use of each rank's time, and the costs of each chunk
//! and link.

use std::collections::HashMap;

use crate::action::Action;
use crate::costs::{ChunkCosts, Costs};
use crate::placement::Placement;
use crate::timeline::{ActionSpan, Timeline};
use crate::work_item::WorkItem;

/// The use of a rank's time in a step. `compute_seconds` and `bubble_seconds` add up to the timeline's makespan.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RankBreakdown {
    /// The seconds of computation.
    pub compute_seconds: f64,
    /// The seconds without computation.
    pub bubble_seconds: f64,
    /// The seconds of the bubble in which the next computation's input was ready on another rank and had not arrived.
    /// No computation hid this communication.
    pub exposed_communication_seconds: f64,
    /// The seconds of REDUCE and GATHER, in which the replicas of the pipeline exchange gradients and weights.
    pub data_parallel_seconds: f64,
    /// The part of `data_parallel_seconds` in which the rank computed.
    pub hidden_data_parallel_seconds: f64,
    /// The rank's computation divided by the mean of all ranks. The value is 1 on every rank if the ranks are balanced.
    pub imbalance: f64,
}

/// Whether the input of a work item is an activation (`true`) or a gradient (`false`), and the work item.
type Input = (bool, WorkItem);

/// Returns the times at which the inputs of computations were ready.
fn ready_times(timeline: &Timeline, placement: &Placement) -> HashMap<Input, f64> {
    let result = |span: &ActionSpan| {
        let consumer = span.action.consumer(placement).filter(|_| span.action.is_compute())?;
        Some(((matches!(span.action, Action::Forward(_)), consumer), span.end))
    };
    timeline.spans.iter().flatten().filter_map(result).collect()
}

/// Returns three values for each computation of a rank: the time at which the rank was free, the time at which the
/// input was ready, and the computation's span.
fn computations<'a>(
    spans: &'a [ActionSpan],
    ready: &'a HashMap<Input, f64>,
) -> impl Iterator<Item = (f64, Option<f64>, &'a ActionSpan)> + 'a {
    let mut free_at = 0.0;
    spans.iter().filter(|span| span.action.is_compute()).map(move |span| {
        let input = match span.action {
            Action::Forward(item) => Some((true, item)),
            Action::FullBackward(item) | Action::BackwardInput(item) => Some((false, item)),
            _ => None,
        };
        let free = std::mem::replace(&mut free_at, span.end);
        (free, input.and_then(|input| ready.get(&input).copied()), span)
    })
}

/// Returns the use of each rank's time. Ignores the spans of messages, which only simulated timelines have.
pub fn breakdown(timeline: &Timeline, placement: &Placement) -> Vec<RankBreakdown> {
    let ready = ready_times(timeline, placement);
    let rank = |spans: &Vec<ActionSpan>| {
        let exposed = |(free, ready, span): (f64, Option<f64>, &ActionSpan)| match ready {
            // times of a damaged record may be negative or no numbers
            Some(ready) => (span.start - free.max(ready)).min(span.start).max(0.0),
            None => 0.0,
        };
        let compute_seconds = compute_seconds(spans);
        let (data_parallel_seconds, hidden_data_parallel_seconds) = data_parallel_seconds(spans);
        RankBreakdown {
            compute_seconds,
            data_parallel_seconds,
            hidden_data_parallel_seconds,
            bubble_seconds: (timeline.makespan - compute_seconds).max(0.0),
            exposed_communication_seconds: computations(spans, &ready).map(exposed).sum(),
            imbalance: 1.0,
        }
    };
    let mut ranks: Vec<RankBreakdown> = timeline.spans.iter().map(rank).collect();
    let mean = ranks.iter().map(|rank| rank.compute_seconds).sum::<f64>() / ranks.len().max(1) as f64;
    if mean > 0.0 {
        ranks.iter_mut().for_each(|rank| rank.imbalance = rank.compute_seconds / mean);
    }
    ranks
}

/// Returns the seconds of REDUCE and GATHER, which never overlap each other, and the part of these seconds in which the
/// rank computed.
fn data_parallel_seconds(spans: &[ActionSpan]) -> (f64, f64) {
    let (mut all, mut hidden) = (0.0, 0.0);
    for exchange in spans.iter().filter(|span| span.action.is_between_replicas()) {
        let common = |span: &ActionSpan| (exchange.end.min(span.end) - exchange.start.max(span.start)).max(0.0);
        all += exchange.end - exchange.start;
        hidden += spans.iter().filter(|span| span.action.is_compute()).map(common).sum::<f64>();
    }
    (all, hidden)
}

/// Returns the seconds of all computations.
pub(crate) fn compute_seconds(spans: &[ActionSpan]) -> f64 {
    spans.iter().filter(|span| span.action.is_compute()).map(|span| span.end - span.start).sum()
}

impl Costs {
    /// Returns the costs of measured steps. The cost of a chunk's action is the mean over the actions of its kind. The
    /// cost of a link is the median time from the end of a computation to the start of a computation that waited for
    /// its result. All bytes and the seconds of UPDATE are 0.
    ///
    /// If a chunk ran full backward passes (B), each part of a split backward pass (I and W) gets half of B's time. A
    /// simulation of the same schedule uses only the sum of the two parts.
    pub fn measured(timelines: &[Timeline], placement: &Placement) -> Costs {
        let mut sums: HashMap<(Option<usize>, &str), (f64, usize)> = HashMap::new();
        for span in timelines.iter().flat_map(|timeline| timeline.spans.iter().flatten()) {
            let chunk = span.action.chunk();
            let (seconds, count) = sums.entry((chunk, span.action.computation_type())).or_default();
            *seconds += span.end - span.start;
            *count += 1;
        }
        let mean = |chunk: Option<usize>, kind: &'static str| {
            sums.get(&(chunk, kind)).map_or(0.0, |(seconds, count)| seconds / *count as f64)
        };
        let chunk = |chunk: usize| {
            let mean_seconds = |kind| mean(Some(chunk), kind);
            let full_backward = mean_seconds("B");
            ChunkCosts {
                forward_seconds: mean_seconds("F"),
                backward_input_seconds: mean_seconds("I") + full_backward / 2.0,
                backward_weight_seconds: mean_seconds("W") + full_backward / 2.0,
                ..ChunkCosts::default()
            }
        };
        let mut latencies: Vec<f64> = Vec::new();
        for timeline in timelines {
            let ready = ready_times(timeline, placement);
            for spans in &timeline.spans {
                let waited = |(free, ready, span): (f64, Option<f64>, &ActionSpan)| {
                    ready.filter(|ready| *ready > free).map(|ready| (span.start - ready).max(0.0))
                };
                latencies.extend(computations(spans, &ready).filter_map(waited));
            }
        }
        latencies.sort_by(f64::total_cmp);
        let by_chunk = |kind| (0..placement.chunks()).map(|chunk| mean(Some(chunk), kind)).collect();
        Costs {
            chunks: (0..placement.chunks()).map(chunk).collect(),
            link_seconds: latencies.get(latencies.len() / 2).copied().unwrap_or(0.0),
            exchange_seconds: mean(None, Action::Exchange.computation_type()),
            reduce_seconds: by_chunk("REDUCE"),
            gather_seconds: by_chunk("GATHER"),
            ..Costs::uniform(0)
        }
    }
}
