//! The measurements of a stage in a step, and their form in the vote, which carries numbers without names.

/// Measurements of one step on one stage, up to its vote.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepMeasurements {
    /// Bytes sent over the links since they were opened.
    pub bytes_sent: f64,
    /// The peak number of bytes that the stage has held: on a GPU its tensors, otherwise the resident memory of this
    /// process.
    pub peak_bytes: f64,
    /// Begin and end of each timed action, in seconds since the origin that all stages share; only of the first
    /// replica.
    pub spans: Vec<(f64, f64)>,
}

impl StepMeasurements {
    /// The form in [`StepVote::measurements`](stagecoach_group::StepVote::measurements).
    pub fn to_vec(&self) -> Vec<f64> {
        let spans = self.spans.iter().flat_map(|&(begin, end)| [begin, end]);
        [self.bytes_sent, self.peak_bytes].into_iter().chain(spans).collect()
    }

    /// The inverse of [`to_vec`](Self::to_vec); a missing number is 0.
    pub fn from_slice(numbers: &[f64]) -> StepMeasurements {
        let number = |index: usize| numbers.get(index).copied().unwrap_or(0.0);
        let spans = numbers.get(2..).unwrap_or_default().chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        StepMeasurements { bytes_sent: number(0), peak_bytes: number(1), spans }
    }
}
