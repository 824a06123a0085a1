//! Defines timelines: the start and end of each action of a step, simulated here or measured by the trainer.

use crate::action::Action;

/// The time of one action, in seconds since the step began.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct ActionSpan {
    /// The action.
    pub action: Action,
    /// The start in seconds. The span of a message is its transfer, which overlaps computation.
    pub start: f64,
    /// The end in seconds, not before `start`.
    pub end: f64,
}

/// A step of the whole pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// The spans of each rank, in the order of its program.
    pub spans: Vec<Vec<ActionSpan>>,
    /// The seconds until the last rank has finished.
    pub makespan: f64,
    /// The part of the makespan, 0 to 1, in which each rank runs no computation, UPDATE or SNAPSHOT.
    pub bubble: Vec<f64>,
    /// The peak number of bytes that each rank holds: weights with their state, and activations.
    pub peak_bytes: Vec<u64>,
}

impl Timeline {
    /// Creates a timeline, and computes the makespan and the bubbles of the spans.
    pub fn new(spans: Vec<Vec<ActionSpan>>, peak_bytes: Vec<u64>) -> Self {
        let makespan = spans.iter().flatten().map(|span| span.end).fold(0.0, f64::max);
        let bubble = |spans: &Vec<ActionSpan>| {
            let is_work = |action: Action| action.is_compute() || matches!(action, Action::Update | Action::Snapshot);
            let busy: f64 = spans.iter().filter(|span| is_work(span.action)).map(|span| span.end - span.start).sum();
            if makespan > 0.0 { (1.0 - busy / makespan).max(0.0) } else { 0.0 }
        };
        Timeline { bubble: spans.iter().map(bubble).collect(), spans, makespan, peak_bytes }
    }

    /// Returns the mean of the ranks' bubbles.
    pub fn mean_bubble(&self) -> f64 {
        self.bubble.iter().sum::<f64>() / self.bubble.len().max(1) as f64
    }
}
