//! What each stage measures in a step, and its form in the vote, which carries numbers without names.

/// Measurements of one step on one stage, up to its vote.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StepMeasurements {
    /// Wall-clock seconds.
    pub(crate) elapsed_seconds: f64,
    /// Seconds of them spent waiting for other stages.
    pub(crate) waited_seconds: f64,
    /// Bytes sent over the links since they were opened.
    pub(crate) bytes_sent: f64,
}

impl StepMeasurements {
    /// The form in [`StepVote::measurements`](stagecoach_group::StepVote::measurements).
    pub(crate) fn to_vec(self) -> Vec<f64> {
        vec![self.elapsed_seconds, self.waited_seconds, self.bytes_sent]
    }

    /// The inverse of [`to_vec`](Self::to_vec); missing numbers are 0.
    pub(crate) fn from_slice(numbers: &[f64]) -> StepMeasurements {
        let number = |index: usize| numbers.get(index).copied().unwrap_or(0.0);
        StepMeasurements { elapsed_seconds: number(0), waited_seconds: number(1), bytes_sent: number(2) }
    }
}
