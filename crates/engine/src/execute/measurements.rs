//! The measurements of a stage in a step, and their form in the vote: numbers without names.

/// Measurements of one step on one stage, up to its vote.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepMeasurements {
    /// Bytes sent over the links since they were opened.
    pub bytes_sent: f64,
    /// The peak number of bytes that the stage has held: on a GPU its tensors, otherwise the resident memory of this
    /// process.
    pub peak_bytes: f64,
    /// The sum of the losses of each source's targets in nats, and the number of these targets; only of stages with the
    /// head, in a job with several sources.
    pub source_losses: Vec<(f64, f64)>,
    /// Begin and end of each timed action, in seconds since the origin that all stages share; only of the first
    /// replica.
    pub spans: Vec<(f64, f64)>,
}

impl StepMeasurements {
    /// The form in [`StepVote::measurements`](stagecoach_group::StepVote::measurements).
    pub fn to_vec(&self) -> Vec<f64> {
        let pairs = self.source_losses.iter().chain(&self.spans).flat_map(|&(first, second)| [first, second]);
        [self.bytes_sent, self.peak_bytes, self.source_losses.len() as f64].into_iter().chain(pairs).collect()
    }

    /// The inverse of [`to_vec`](Self::to_vec); a missing number is 0.
    pub fn from_slice(numbers: &[f64]) -> StepMeasurements {
        let number = |index: usize| numbers.get(index).copied().unwrap_or(0.0);
        let pairs = numbers.get(3..).unwrap_or_default().chunks_exact(2);
        let mut source_losses: Vec<(f64, f64)> = pairs.map(|pair| (pair[0], pair[1])).collect();
        let spans = source_losses.split_off((number(2) as usize).min(source_losses.len()));
        StepMeasurements { bytes_sent: number(0), peak_bytes: number(1), source_losses, spans }
    }
}
