//! When the actions of a step began and ended on this stage.

use std::time::Instant;

use stagecoach_pipeline::Action;

/// Whether the time of an action is recorded: computations, and what ends the step. Messages are sent and received by other
/// threads; UPDATE comes after the vote that carries the times.
pub(crate) fn is_timed(action: Action) -> bool {
    action.is_compute() || matches!(action, Action::Reduce | Action::ReduceTied | Action::Exchange)
}

/// Records the timed actions of one step, in the order of the program.
#[derive(Clone, Debug)]
pub(crate) struct StepTimer {
    origin: Instant,
    begin_seconds: f64,
    spans: Vec<(f64, f64)>,
}

impl StepTimer {
    /// Times count from `origin`.
    pub(crate) fn new(origin: Instant) -> StepTimer {
        StepTimer { origin, begin_seconds: 0.0, spans: Vec::new() }
    }

    /// An action begins: its input is there.
    pub(crate) fn begin(&mut self) {
        self.begin_seconds = self.origin.elapsed().as_secs_f64();
    }

    /// The action that began last ends.
    pub(crate) fn end(&mut self) {
        self.spans.push((self.begin_seconds, self.origin.elapsed().as_secs_f64()));
    }

    /// Begin and end of each timed action so far, in seconds.
    pub(crate) fn spans(&self) -> &[(f64, f64)] {
        &self.spans
    }
}
