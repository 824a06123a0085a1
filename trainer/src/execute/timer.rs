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

    /// The same, at the end.
    pub(crate) fn into_spans(self) -> Vec<(f64, f64)> {
        self.spans
    }
}

/// The index in `program` of the action before which a stage waited longest in a step, by the spans of its timed actions and the
/// second at which the step was decided: the wait for the verdict counts as one before EXCHANGE. None without spans.
pub(crate) fn longest_wait(program: &[Action], spans: &[(f64, f64)], decided: f64) -> Option<usize> {
    let timed: Vec<usize> = (0..program.len()).filter(|&index| is_timed(program[index])).collect();
    let ends = std::iter::once(0.0).chain(spans.iter().map(|&(_, end)| end));
    let begins = spans.iter().map(|&(begin, _)| begin).chain([decided]);
    let last = timed.last().copied();
    let waits = ends.zip(begins).map(|(end, begin)| begin - end);
    let longest = timed.into_iter().chain(last).zip(waits).max_by(|(_, one), (_, other)| one.total_cmp(other));
    longest.filter(|_| !spans.is_empty()).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_is_found_whatever_it_is_for() {
        let program: Vec<Action> = ["0F0", "0SEND_F0", "0RECV_B0", "0B0", "EXCHANGE", "UPDATE"]
            .into_iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let found = |spans: &[(f64, f64)], decided| longest_wait(&program, spans, decided);
        assert_eq!(found(&[(0.1, 1.0), (3.0, 4.0), (4.0, 4.1)], 4.5), Some(3)); // for the gradient
        assert_eq!(found(&[(2.5, 3.0), (4.0, 5.0), (5.0, 5.1)], 5.5), Some(0)); // for the input
        assert_eq!(found(&[(0.1, 1.0), (2.0, 3.0), (3.0, 3.1)], 9.0), Some(4)); // for the verdict
        assert_eq!(found(&[], 1.0), None);
    }
}
