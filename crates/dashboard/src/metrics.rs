//! The part of `metrics.jsonl` that a page keeps: curves in bounded memory, the last step, and the newest timelines
//! (the measured times of a step's actions on each stage). The module does no I/O.

use std::collections::{BTreeMap, VecDeque};

use serde::Deserialize;
use serde_json::value::RawValue;
use stagecoach_telemetry::{DataWait, TimelineRecord};

use super::series::Series;

/// The number of newest timelines that are stored. The page computes its advice from these timelines.
const MAX_TIMELINES: usize = 10;
/// The largest number of data sources with a stored curve. A valid job has at most this number of sources.
const MAX_SOURCES: usize = 32;
/// The largest number of held-out sets with a stored curve.
const MAX_SETS: usize = 16;
/// The number of last steps from which a page computes the mean time of a step and the wait for data.
const RECENT_STEPS: usize = 20;

/// The fields of a line of `metrics.jsonl` that a page needs. The timeline is the largest part of the line, and is
/// parsed only when the page shows it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct StepLine {
    /// The number of the step, from 1.
    pub(super) step: u64,
    /// The training loss, in nats per token.
    pub(super) loss: Option<f64>,
    /// The held-out loss, in nats per token.
    pub(super) evaluation_loss: Option<f64>,
    /// The loss on each held-out set, in nats per token.
    pub(super) evaluation_set_losses: BTreeMap<String, f64>,
    /// The training loss of each source, in nats per token.
    pub(super) source_losses: BTreeMap<String, f64>,
    /// The gradient norm before clipping.
    pub(super) gradient_norm: Option<f64>,
    pub(super) learning_rate: f64,
    /// Target tokens (tokens that the model is trained to predict) per second.
    pub(super) tokens_per_second: f64,
    /// Wall seconds of the step.
    pub(super) seconds: f64,
    /// Wall seconds that the leader waited for the step's data.
    pub(super) data_wait_seconds: Option<f64>,
    /// The pipeline bubble of each stage, as a share of the step from 0 to 1.
    pub(super) bubble: Vec<f64>,
    /// The peak memory of each stage, in bytes.
    pub(super) peak_bytes: Vec<u64>,
    /// Whether the optimizer skipped the update of this step.
    pub(super) skipped: bool,
    timeline: Option<Box<RawValue>>,
}

/// The metrics of a run up to the last line that was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Metrics {
    /// The training loss, in nats per token.
    pub(super) loss: Series,
    /// The held-out loss, in nats per token.
    pub(super) held_out: Series,
    /// The loss on each held-out set, in nats per token.
    pub(super) held_out_sets: BTreeMap<String, Series>,
    /// The training loss of each source, in nats per token.
    pub(super) sources: BTreeMap<String, Series>,
    /// Target tokens per second.
    pub(super) speed: Series,
    /// The last step.
    pub(super) last: Option<StepLine>,
    /// The last step after which the held-out loss was computed, and this loss.
    pub(super) last_held_out: Option<(u64, f64)>,
    /// The number of steps whose update was skipped.
    pub(super) skipped: u64,
    /// The number of lines that are not the record of a step.
    pub(super) unreadable: u64,
    /// Two durations of each of the last steps, in wall seconds: the wait for data, if it was measured, and the whole
    /// step.
    recent: VecDeque<(Option<f64>, f64)>,
    /// The last steps that have a timeline, in ascending order, each with its timeline as JSON.
    timelines: VecDeque<(u64, Box<RawValue>)>,
    /// Wall seconds that the leader waited for data in the step of the last timeline.
    pub(super) timeline_wait: Option<f64>,
}

impl Metrics {
    /// Adds a line, without its line feed.
    pub(super) fn add(&mut self, line: &[u8]) {
        if line.is_empty() {
            return;
        }
        let parsed = serde_json::from_slice::<StepLine>(line).ok();
        let Some(mut record) = parsed.filter(|record| record.step > 0) else {
            self.unreadable += 1;
            return;
        };
        self.loss.push(record.step, record.loss.unwrap_or(f64::NAN));
        self.speed.push(record.step, record.tokens_per_second);
        push_named(&mut self.sources, record.step, &record.source_losses, MAX_SOURCES);
        push_named(&mut self.held_out_sets, record.step, &record.evaluation_set_losses, MAX_SETS);
        if let Some(loss) = record.evaluation_loss {
            self.held_out.push(record.step, loss);
            self.last_held_out = Some((record.step, loss));
        }
        self.skipped += u64::from(record.skipped);
        push_bounded(&mut self.recent, (record.data_wait_seconds, record.seconds), RECENT_STEPS);
        if let Some(timeline) = record.timeline.take() {
            push_bounded(&mut self.timelines, (record.step, timeline), MAX_TIMELINES);
            self.timeline_wait = record.data_wait_seconds;
        }
        self.last = Some(record);
    }

    /// Returns the mean wall seconds of the last steps; `None` before the first step.
    pub(super) fn seconds_per_step(&self) -> Option<f64> {
        let sum: f64 = self.recent.iter().map(|(_, seconds)| seconds).sum();
        (!self.recent.is_empty()).then(|| sum / self.recent.len() as f64)
    }

    /// Returns the time that the last steps waited for their data; `None` if no step measured its wait.
    pub(super) fn data_wait(&self) -> Option<DataWait> {
        DataWait::of_steps(self.recent.iter().copied())
    }

    /// Returns the last step that has a timeline.
    pub(super) fn timeline_step(&self) -> Option<u64> {
        self.timelines.back().map(|(step, _)| *step)
    }

    /// Returns the newest timelines that can be parsed, by ascending steps.
    pub(super) fn timelines(&self) -> Vec<(u64, TimelineRecord)> {
        let parse = |(step, raw): &(u64, Box<RawValue>)| Some((*step, serde_json::from_str(raw.get()).ok()?));
        self.timelines.iter().filter_map(parse).collect()
    }
}

/// Adds each loss of a step to the curve of its name. A new name gets a curve only while there are fewer than `most`
/// curves.
fn push_named(curves: &mut BTreeMap<String, Series>, step: u64, losses: &BTreeMap<String, f64>, most: usize) {
    for (name, loss) in losses {
        if curves.contains_key(name) || curves.len() < most {
            curves.entry(name.clone()).or_default().push(step, *loss);
        }
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, value: T, most: usize) {
    if queue.len() == most {
        queue.pop_front();
    }
    queue.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_curves_and_what_is_no_line_is_counted() {
        let mut metrics = Metrics::default();
        for step in 1..=50u64 {
            let evaluation = if step % 10 == 0 { ",\"evaluationLoss\":4.5" } else { "" };
            let line = format!(
                "{{\"step\":{step},\"loss\":{},\"tokensPerSecond\":100.5,\"seconds\":0.5,\"peakBytes\":[7,8]{evaluation},\"timeline\":{{\"partition\":[{step}],\"work\":[],\"stages\":[]}}}}",
                5.0 - step as f64 / 100.0
            );
            metrics.add(line.as_bytes());
        }
        for line in [&b"{\"step\":51,\"loss\":null}"[..], b"", b"{\"step\":5", b"<script>", b"{}", b"\xff"] {
            metrics.add(line);
        }
        assert_eq!((metrics.unreadable, metrics.last_held_out), (4, Some((50, 4.5))));
        assert_eq!(metrics.loss.columns(1, 99, 100).len(), 50);
        assert_eq!(metrics.held_out.columns(1, 99, 100).len(), 5);
        let timelines = metrics.timelines();
        assert_eq!(
            (timelines.len(), timelines[9].1.partition[0], metrics.timeline_step()),
            (MAX_TIMELINES, 50, Some(50))
        );
        assert!((metrics.seconds_per_step().unwrap() - 0.475).abs() < 1e-9);
    }

    #[test]
    fn the_wait_for_data_is_that_of_the_recent_steps() {
        let mut metrics = Metrics::default();
        let add = |metrics: &mut Metrics, wait: &str| {
            metrics.add(format!("{{\"step\":1,\"seconds\":0.5{wait}}}").as_bytes());
        };
        add(&mut metrics, "");
        assert_eq!(metrics.data_wait(), None);
        add(&mut metrics, ",\"dataWaitSeconds\":0.5");
        assert_eq!(metrics.data_wait(), Some(DataWait { seconds: 0.5, share: 1.0 }));
        (0..RECENT_STEPS).for_each(|_| add(&mut metrics, ",\"dataWaitSeconds\":0.125"));
        assert_eq!(metrics.data_wait(), Some(DataWait { seconds: 2.5, share: 0.25 }));
        (0..RECENT_STEPS).for_each(|_| add(&mut metrics, ""));
        assert_eq!(metrics.data_wait(), None);
    }

    #[test]
    fn sources_and_held_out_sets_have_curves_up_to_a_number() {
        let mut metrics = Metrics::default();
        for step in 1..=100u64 {
            let losses = format!("{{\"a\":2.5,\"name-{step}\":3.5}}");
            let line = format!("{{\"step\":{step},\"sourceLosses\":{losses},\"evaluationSetLosses\":{losses}}}");
            metrics.add(line.as_bytes());
        }
        assert_eq!((metrics.unreadable, metrics.sources.len()), (0, MAX_SOURCES));
        assert_eq!(metrics.held_out_sets.len(), MAX_SETS);
        let columns = metrics.held_out_sets["a"].columns(1, 100, 200);
        assert_eq!((columns.len(), columns[99].mean), (100, 2.5));
    }
}
