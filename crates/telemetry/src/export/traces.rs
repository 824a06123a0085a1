//! Traces of a run. The stages of a group (the processes that train together) derive the IDs of a step's trace and
//! spans from facts that every stage has. The spans of all stages therefore share one trace without communication.

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stagecoach_api::contract::{StageEnv, StageStatus};
use stagecoach_otlp::{Exporter, Span, SpanId, SpanValue, TraceId};

use super::super::{SaveRecord, StepRecord, TimelineRecord, TrainingEvent};
use super::GroupRecovery;

/// The number of steps whose ends are remembered. The record of a step may be written after the end of the next step.
const MAX_REMEMBERED_STEPS: usize = 2;

/// The source of a stage's spans. It sends spans only after an exporter is set.
#[derive(Debug, Default)]
pub(super) struct Traces {
    job_uid: String,
    exporter: OnceLock<Exporter>,
    /// The ranks of the current group's members, by group rank. The leader is the first.
    ranks: Mutex<Vec<u32>>,
    /// The ends of the last steps, the newest last.
    steps: Mutex<VecDeque<StepEnd>>,
}

/// The end of a finished step.
#[derive(Clone, Copy, Debug)]
struct StepEnd {
    step: u64,
    trace: TraceId,
    at: SystemTime,
}

impl Traces {
    /// Returns the traces of the stage that `env` describes.
    pub(crate) fn new(env: &StageEnv) -> Traces {
        Traces { job_uid: env.job_uid.clone(), ..Traces::default() }
    }

    /// Sets the ranks of the group's members, by group rank.
    pub(super) fn set_ranks(&self, ranks: Vec<u32>) {
        *self.ranks.lock().unwrap_or_else(PoisonError::into_inner) = ranks;
    }

    fn ranks(&self) -> Vec<u32> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the stage that `status` describes.
    fn stage(&self, status: &StageStatus) -> SpanStage {
        SpanStage { rank: status.stage, leader: self.ranks().first().copied().unwrap_or(status.stage) }
    }

    /// Sets the exporter that sends all later spans. A second call has no effect.
    pub(super) fn send_to(&self, exporter: Exporter) {
        self.exporter.get_or_init(|| exporter);
    }

    pub(super) fn exporter(&self) -> Option<&Exporter> {
        self.exporter.get()
    }

    /// Records that the stage has finished a step. `took` is the duration of the step.
    pub(super) fn step(&self, status: &StageStatus, step: u64, took: Duration) {
        let Some(exporter) = self.exporter() else { return };
        let (trace, end) = (self.trace(status, "step", step), SystemTime::now());
        let attributes = vec![("step", step.into()), ("stage", u64::from(status.stage).into())];
        exporter.add(stage_span(trace, self.stage(status), "step", (end - took, end), attributes));
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.push_back(StepEnd { step, trace, at: end });
        let older = steps.len().saturating_sub(MAX_REMEMBERED_STEPS);
        steps.drain(..older);
    }

    /// Sends the spans of an event.
    pub(super) fn event(&self, status: &StageStatus, event: &TrainingEvent) {
        let Some(exporter) = self.exporter() else { return };
        match event {
            TrainingEvent::Step(StepRecord { step, timeline: Some(timeline), data_wait_seconds, .. }) => {
                let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
                // if another process has trained the step, the step's end is unknown here, and the step has no spans
                let end = steps.iter().find(|end| end.step == *step).copied();
                drop(steps);
                let ranks = self.ranks();
                let spans = |end| action_spans(end, &ranks, timeline, *data_wait_seconds);
                end.iter().flat_map(spans).for_each(|span| exporter.add(span));
            }
            TrainingEvent::Saved(save) | TrainingEvent::SaveFailed(save) => {
                exporter.add(save_span(self.trace(status, "checkpoint", save.step), self.stage(status), save));
            }
            _ => {}
        }
    }

    /// Sends the spans of a recovery after which the group trains again.
    pub(super) fn recovery(&self, status: &StageStatus, recovery: &GroupRecovery) {
        let Some(exporter) = self.exporter() else { return };
        let trace = self.trace(status, "recovery", recovery.group.fence);
        recovery_spans(trace, self.stage(status), recovery).into_iter().for_each(|span| exporter.add(span));
    }

    /// Returns the trace ID of the activity `what` with the number `number`. All stages of a group compute the same ID.
    fn trace(&self, status: &StageStatus, what: &str, number: u64) -> TraceId {
        let fence = status.group.as_ref().map_or(0, |group| group.fence);
        first_bytes(&format!("{} {} {fence} {what} {number}", self.job_uid, status.attempt))
    }
}

/// Returns the ID of a span in its trace.
fn span_id(trace: TraceId, name: &str) -> SpanId {
    first_bytes(&format!("{trace:?} {name}"))
}

fn first_bytes<const N: usize>(text: &str) -> [u8; N] {
    let hash = blake3::hash(text.as_bytes());
    std::array::from_fn(|at| hash.as_bytes()[at])
}

/// A stage, and the leader of its group, by rank.
#[derive(Clone, Copy, Debug)]
struct SpanStage {
    rank: u32,
    leader: u32,
}

/// Returns the ID of a stage's span in a trace.
fn stage_span_id(trace: TraceId, rank: u32) -> SpanId {
    span_id(trace, &format!("stage {rank}"))
}

/// Returns the span of a stage in an activity that all stages share. The span of the leader is the root.
fn stage_span(
    trace: TraceId,
    SpanStage { rank, leader }: SpanStage,
    name: &str,
    (start, end): (SystemTime, SystemTime),
    attributes: Vec<(&'static str, SpanValue)>,
) -> Span {
    Span {
        trace,
        id: stage_span_id(trace, rank),
        parent: (rank != leader).then(|| stage_span_id(trace, leader)),
        name: name.to_owned(),
        start,
        end,
        attributes,
        error: None,
    }
}

/// Returns the spans of every stage's actions. `ranks` has the ranks of the stages in the timeline, the leader first.
/// The parent of an action's span is the span of the action's stage. The last action ends when the step ends. The
/// leader's wait for data, if it was measured, ends when the first action begins.
fn action_spans(end: &StepEnd, ranks: &[u32], timeline: &TimelineRecord, data_wait_seconds: Option<f64>) -> Vec<Span> {
    let last = timeline.stages.iter().flat_map(|stage| &stage.seconds).fold(0.0, |last: f64, (_, end)| last.max(*end));
    let at = |seconds: f64| end.at - Duration::try_from_secs_f64(last - seconds).unwrap_or_default();
    let wait = ranks.first().zip(data_wait_seconds).map(|(&leader, seconds)| Span {
        trace: end.trace,
        id: span_id(end.trace, "data"),
        parent: Some(stage_span_id(end.trace, leader)),
        name: "DATA".to_owned(),
        start: at(0.0) - Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        end: at(0.0),
        attributes: vec![("action", "DATA".to_owned().into()), ("stage", u64::from(leader).into())],
        error: None,
    });
    let mut spans = Vec::from_iter(wait);
    for (&stage, times) in ranks.iter().zip(&timeline.stages) {
        for (number, (action, (start, end_seconds))) in times.actions.iter().zip(&times.seconds).enumerate() {
            spans.push(Span {
                trace: end.trace,
                id: span_id(end.trace, &format!("stage {stage} action {number}")),
                parent: Some(stage_span_id(end.trace, stage)),
                // the kind of the action, without the numbers of chunk and microbatch
                name: action.trim_matches(|character: char| character.is_ascii_digit()).to_owned(),
                start: at(*start),
                end: at(*end_seconds),
                attributes: vec![("action", action.clone().into()), ("stage", u64::from(stage).into())],
                error: None,
            });
        }
    }
    spans
}

/// Returns the span of a save that has just ended.
fn save_span(trace: TraceId, stage: SpanStage, save: &SaveRecord) -> Span {
    let end = SystemTime::now();
    let start = end - Duration::try_from_secs_f64(save.seconds).unwrap_or_default();
    let attributes =
        vec![("step", save.step.into()), ("bytes", save.bytes.into()), ("stall_seconds", save.stall_seconds.into())];
    Span { error: save.error.clone(), ..stage_span(trace, stage, "checkpoint", (start, end), attributes) }
}

/// Returns the span of a recovery, and the spans of its phases as children.
fn recovery_spans(trace: TraceId, stage: SpanStage, recovery: &GroupRecovery) -> Vec<Span> {
    let at = |millis: u64| UNIX_EPOCH + Duration::from_millis(millis);
    let group = &recovery.group;
    let whole = (at(recovery.lost_at), at(group.first_step_at));
    let attributes = vec![
        ("stage", u64::from(stage.rank).into()),
        ("cause", recovery.cause.clone().into()),
        ("fence", group.fence.into()),
    ];
    let root = stage_span(trace, stage, "recovery", whole, attributes);
    let parent = root.id;
    let mut spans = vec![root];
    let mut start = recovery.lost_at;
    for (phase, end) in [("joined", group.joined_at), ("loaded", group.loaded_at), ("first_step", group.first_step_at)]
    {
        let id = span_id(trace, &format!("stage {} {phase}", stage.rank));
        let attributes = vec![("stage", u64::from(stage.rank).into())];
        let span = stage_span(trace, stage, phase, (at(start), at(end)), attributes);
        spans.push(Span { id, parent: Some(parent), ..span });
        start = end;
    }
    spans
}

#[cfg(test)]
mod tests {
    use stagecoach_api::contract::GroupStatus;

    use super::super::super::timeline_record::StageTimes;
    use super::*;

    const TRACE: TraceId = [7; 16];

    fn after(span: &Span, epoch: SystemTime) -> (u128, u128) {
        let millis = |time: SystemTime| time.duration_since(epoch).unwrap().as_millis();
        (millis(span.start), millis(span.end))
    }

    #[test]
    fn actions_are_below_their_stage_and_end_with_the_step() {
        let times = |actions: &[&str], seconds: &[(f64, f64)]| StageTimes {
            actions: actions.iter().map(|action| (*action).to_owned()).collect(),
            seconds: seconds.to_vec(),
        };
        let timeline = TimelineRecord {
            stages: vec![
                times(&["0F0", "0B0", "EXCHANGE"], &[(0.0, 1.0), (4.0, 6.0), (6.0, 6.5)]),
                times(&["1F0"], &[(1.5, 2.5)]),
            ],
            ..TimelineRecord::default()
        };
        let at = UNIX_EPOCH + Duration::from_millis(16_500);
        let end = StepEnd { step: 10, trace: TRACE, at };
        // the group lacks its first replica, so it has ranks 2 and 3, and rank 2 leads
        let ranks = [2, 3];
        let spans = action_spans(&end, &ranks, &timeline, None);
        let names: Vec<&str> = spans.iter().map(|span| &*span.name).collect();
        assert_eq!(names, ["F", "B", "EXCHANGE", "F"]);
        let epoch = UNIX_EPOCH + Duration::from_secs(10);
        assert_eq!(after(&spans[0], epoch), (0, 1000));
        assert_eq!(after(&spans[2], epoch), (6000, 6500));
        assert_eq!(after(&spans[3], epoch), (1500, 2500));
        let parents: Vec<_> = spans.iter().map(|span| span.parent).collect();
        let [first, second] = ranks.map(|rank| Some(stage_span_id(TRACE, rank)));
        assert_eq!(parents, [first, first, first, second]);
        let ids: std::collections::BTreeSet<_> = spans.iter().map(|span| span.id).collect();
        assert_eq!(ids.len(), spans.len());
        let waited = action_spans(&end, &ranks, &timeline, Some(0.25));
        assert_eq!((&*waited[0].name, waited[0].parent, waited.len()), ("DATA", first, spans.len() + 1));
        assert_eq!(after(&waited[0], epoch - Duration::from_secs(1)), (750, 1000));
    }

    #[test]
    fn the_span_of_the_leader_is_the_root() {
        let traces = Traces::default();
        let span = |stage: u32| {
            let stage = traces.stage(&StageStatus { stage, ..StageStatus::default() });
            stage_span(TRACE, stage, "step", (UNIX_EPOCH, UNIX_EPOCH), Vec::new())
        };
        for (leader, other) in [(0, 2), (2, 0)] {
            traces.set_ranks(vec![leader, 3, other, 1]);
            let (root, other) = (span(leader), span(other));
            assert_eq!((root.parent, other.parent), (None, Some(root.id)));
            assert_ne!(root.id, other.id);
        }
    }

    #[test]
    fn a_recovery_has_its_phases() {
        let group =
            GroupStatus { fence: 3, joined_at: 1500, loaded_at: 1700, first_step_at: 2000, ..GroupStatus::default() };
        let recovery = GroupRecovery { lost_at: 1000, cause: "lost stage 1".into(), group };
        let spans = recovery_spans(TRACE, SpanStage { rank: 2, leader: 0 }, &recovery);
        let reported: Vec<_> = spans.iter().map(|span| (&*span.name, after(span, UNIX_EPOCH))).collect();
        let expected = [
            ("recovery", (1000, 2000)),
            ("joined", (1000, 1500)),
            ("loaded", (1500, 1700)),
            ("first_step", (1700, 2000)),
        ];
        assert_eq!(reported, expected);
        assert!(spans[1..].iter().all(|span| span.parent == Some(spans[0].id)));
    }
}
