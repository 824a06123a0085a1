//! The leader's combination of the measurements of all stages in a step.

use stagecoach_engine::execute::StepMeasurements;
use stagecoach_group::Verdict;
use stagecoach_pipeline::{Action, ActionSpan, Programs, RankBreakdown, Timeline, breakdown};

/// A step as all stages measured it.
pub(in crate::train) struct MeasuredStep {
    /// The actions of each stage with their times. Time zero is the first computation, or the first gather of weights
    /// for which a computation waited.
    pub(in crate::train) timeline: Timeline,
    /// The parts of each stage's time.
    pub(in crate::train) breakdown: Vec<RankBreakdown>,
    /// The number of payload bytes that all stages have sent since they opened their links.
    pub(in crate::train) bytes_sent: u64,
    /// The peak resident bytes of each stage.
    pub(in crate::train) peak_bytes: Vec<u64>,
    /// The mean loss of each source's targets; `None` for a source without targets in the step. Empty in a job with one
    /// source.
    pub(in crate::train) source_losses: Vec<Option<f64>>,
}

impl MeasuredStep {
    /// Combines the measurements of all stages, which the verdict contains. A stage whose number of measured actions
    /// differs from `programs` counts as idle.
    pub(in crate::train) fn new(verdict: &Verdict, programs: &Programs) -> MeasuredStep {
        let stages: Vec<StepMeasurements> =
            verdict.measurements.iter().map(|numbers| StepMeasurements::from_slice(numbers)).collect();
        let begins = stages.iter().flat_map(|stage| &stage.spans).map(|(begin, _)| *begin);
        let first = begins.fold(f64::INFINITY, f64::min);
        let spans = |(program, stage): (&Vec<_>, &StepMeasurements)| {
            let timed = program.iter().copied().filter(|action: &Action| action.is_timed());
            if timed.clone().count() != stage.spans.len() {
                return Vec::new();
            }
            let span = |(action, (begin, end))| ActionSpan { action, start: begin - first, end: end - first };
            timed.zip(stage.spans.iter().copied()).map(span).collect::<Vec<ActionSpan>>()
        };
        let timeline = Timeline::new(programs.ranks.iter().zip(&stages).map(spans).collect(), Vec::new());
        MeasuredStep {
            breakdown: breakdown(&timeline, &programs.placement),
            timeline,
            bytes_sent: stages.iter().map(|stage| stage.bytes_sent as u64).sum(),
            peak_bytes: stages.iter().map(|stage| stage.peak_bytes as u64).collect(),
            source_losses: source_losses(&stages),
        }
    }

    /// Returns, for each stage, `seconds` as a share of the step's duration, from 0 to 1, rounded to four digits.
    pub(in crate::train) fn shares(&self, seconds: fn(&RankBreakdown) -> f64) -> Vec<f64> {
        let makespan = self.timeline.makespan.max(f64::MIN_POSITIVE);
        self.breakdown.iter().map(|rank| rounded(seconds(rank) / makespan)).collect()
    }

    /// Returns each stage's computation time relative to the mean of all stages, rounded to four digits.
    pub(in crate::train) fn imbalance(&self) -> Vec<f64> {
        self.breakdown.iter().map(|rank| rounded(rank.imbalance)).collect()
    }
}

/// Returns the mean loss of each source's targets. Adds the sums of all stages in the order of their ranks. Only stages
/// with the head have sums.
fn source_losses(stages: &[StepMeasurements]) -> Vec<Option<f64>> {
    let mut sums: Vec<(f64, f64)> = Vec::new();
    for stage in stages {
        sums.resize(sums.len().max(stage.source_losses.len()), (0.0, 0.0));
        for ((loss, targets), of_stage) in sums.iter_mut().zip(&stage.source_losses) {
            (*loss, *targets) = (*loss + of_stage.0, *targets + of_stage.1);
        }
    }
    sums.into_iter().map(|(loss, targets)| (targets > 0.0).then_some(loss / targets)).collect()
}

fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use stagecoach_group::{BlockLosses, StepRules, StepVote, decide_step};
    use stagecoach_pipeline::{gpipe, lower};

    use super::*;

    #[test]
    fn stages_are_put_on_one_clock_from_the_first_computation_on() {
        let programs = lower(&gpipe(2, 1), false).unwrap();
        // the actions are F, B and EXCHANGE; stage 1 begins half a second after the message was sent
        let measured =
            [(10.0, vec![(3.0, 4.0), (9.0, 11.0), (11.0, 11.5)]), (5.0, vec![(4.5, 5.5), (5.5, 8.5), (8.5, 8.75)])];
        let vote = |(rank, (bytes_sent, spans)): (usize, (f64, Vec<(f64, f64)>))| StepVote {
            step: 1,
            losses: (rank == 1).then(|| BlockLosses { blocks: 1, target_count: 1, sums: vec![(0, 1.0)] }),
            measurements: StepMeasurements { bytes_sent, peak_bytes: 7.0, source_losses: Vec::new(), spans }.to_vec(),
            ..StepVote::default()
        };
        let votes: Vec<StepVote> = measured.into_iter().enumerate().map(vote).collect();
        let verdict = decide_step(&votes, &StepRules::default(), &|_| String::new());
        let step = MeasuredStep::new(&verdict, &programs);
        let times: Vec<Vec<_>> = step
            .timeline
            .spans
            .iter()
            .map(|spans| spans.iter().map(|span| (span.action.to_string(), span.start, span.end)).collect())
            .collect();
        let expected = |spans: &[(&str, f64, f64)]| -> Vec<_> {
            spans.iter().map(|&(action, start, end)| (action.to_owned(), start, end)).collect()
        };
        assert_eq!(times[0], expected(&[("0F0", 0.0, 1.0), ("0B0", 6.0, 8.0), ("EXCHANGE", 8.0, 8.5)]));
        assert_eq!(times[1], expected(&[("1F0", 1.5, 2.5), ("1B0", 2.5, 5.5), ("EXCHANGE", 5.5, 5.75)]));
        assert_eq!((step.timeline.makespan, step.bytes_sent), (8.5, 15));
        assert_eq!(step.peak_bytes, [7, 7]);
        assert_eq!(step.shares(|rank| rank.bubble_seconds), [0.6471, 0.5294]);
        assert_eq!(step.shares(|rank| rank.exposed_communication_seconds), [0.0588, 0.0588]);
        assert_eq!(step.imbalance(), [0.8571, 1.1429]);
    }

    #[test]
    fn measurements_of_other_programs_are_ignored() {
        let programs = lower(&gpipe(2, 1), false).unwrap();
        let verdict =
            |measurements| Verdict { measurements, ..decide_step(&[], &StepRules::default(), &|_| String::new()) };
        for numbers in [vec![], vec![vec![], vec![1.0]], vec![vec![1.0, 2.0, 3.0, 4.0]; 2]] {
            let step = MeasuredStep::new(&verdict(numbers), &programs);
            assert_eq!((step.timeline.makespan, step.timeline.spans.concat().len()), (0.0, 0));
        }
    }
}
