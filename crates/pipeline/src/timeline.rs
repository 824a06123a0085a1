//! Start and end of each action of a step, simulated here or measured by the trainer.

use crate::action::Action;

/// One action's time, in seconds since the step began.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct ActionSpan {
    /// The action.
    pub action: Action,
    /// Seconds. A message's span is its transfer, which overlaps computation.
    pub start: f64,
    /// Seconds, not before `start`.
    pub end: f64,
}

/// A step of the whole pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// One list per rank, in the order of its program.
    pub spans: Vec<Vec<ActionSpan>>,
    /// Seconds until the last rank is done.
    pub makespan: f64,
    /// For each rank, the part of the makespan in which it neither computes nor updates, 0 to 1.
    pub bubble: Vec<f64>,
    /// For each rank, the peak number of bytes held: weights with their state, and activations.
    pub peak_bytes: Vec<u64>,
}

impl Timeline {
    /// Computes makespan and bubbles of the spans.
    pub fn new(spans: Vec<Vec<ActionSpan>>, peak_bytes: Vec<u64>) -> Self {
        let makespan = spans.iter().flatten().map(|span| span.end).fold(0.0, f64::max);
        let bubble = |spans: &Vec<ActionSpan>| {
            let is_work = |action: Action| action.is_compute() || matches!(action, Action::Update | Action::Snapshot);
            let busy: f64 = spans.iter().filter(|span| is_work(span.action)).map(|span| span.end - span.start).sum();
            if makespan > 0.0 { (1.0 - busy / makespan).max(0.0) } else { 0.0 }
        };
        Timeline { bubble: spans.iter().map(bubble).collect(), spans, makespan, peak_bytes }
    }

    /// The mean of the ranks' bubbles.
    pub fn mean_bubble(&self) -> f64 {
        self.bubble.iter().sum::<f64>() / self.bubble.len().max(1) as f64
    }
}
