//! What each stage measures in a step, and its form in the vote, which carries numbers without names.

/// Measurements of one step on one stage, up to its vote.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StepMeasurements {
    /// Bytes sent over the links since they were opened.
    pub(crate) bytes_sent: f64,
    /// Begin and end of each timed action, in seconds since the origin that all stages share.
    pub(crate) spans: Vec<(f64, f64)>,
}

impl StepMeasurements {
    /// The form in [`StepVote::measurements`](stagecoach_group::StepVote::measurements).
    pub(crate) fn to_vec(&self) -> Vec<f64> {
        let spans = self.spans.iter().flat_map(|&(begin, end)| [begin, end]);
        std::iter::once(self.bytes_sent).chain(spans).collect()
    }

    /// The inverse of [`to_vec`](Self::to_vec); a missing number is 0.
    pub(crate) fn from_slice(numbers: &[f64]) -> StepMeasurements {
        let (bytes_sent, spans) = numbers.split_first().map_or((0.0, &[][..]), |(bytes, spans)| (*bytes, spans));
        StepMeasurements { bytes_sent, spans: spans.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect() }
    }
}
