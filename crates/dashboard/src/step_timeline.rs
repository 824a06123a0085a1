//! Draws a measured step above its simulation, and divides each stage's time into computation and bubble. The module
//! does no I/O.

use stagecoach_pipeline::{Costs, Panel, breakdown, simulate, timeline_svg_unstyled};
use stagecoach_telemetry::{DataWait, TimelineRecord, advice};

/// The largest number of bars in a picture. For a larger pipeline, the page shows only the table of stages.
const MAX_BARS: usize = 1500;

/// Returns the timelines as SVG, without the style sheet; `None` if the picture would have more than `max_bars` bars.
pub(super) fn picture(panels: &[Panel], title: &str, max_bars: usize) -> Option<String> {
    let bars: usize = panels.iter().flat_map(|panel| &panel.timeline.spans).map(Vec::len).sum();
    (bars <= max_bars).then(|| timeline_svg_unstyled(panels, title))
}

/// The timeline of every stage in a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StepTimeline {
    pub(super) step: u64,
    /// The measured timeline above the simulated timeline, as SVG without the style sheet; `None` if the picture would
    /// have too many bars.
    pub(super) picture: Option<String>,
    pub(super) stages: Vec<StageShare>,
    /// The sentence about the wait for data, if the wait was measured.
    pub(super) data_wait: Option<String>,
    /// The sentence about the slowest stage, if there is advice.
    pub(super) advice: Option<String>,
    /// The reason why the step can't be shown; `None` if it can.
    pub(super) problem: Option<String>,
}

/// The parts of a stage's time, as shares of the step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StageShare {
    /// The number of layers in each of the stage's chunks. A chunk is a group of consecutive layers.
    pub(super) layers: Vec<usize>,
    pub(super) computation: f64,
    pub(super) bubble: f64,
    /// The part of the bubble in which the stage's next input was in transit.
    pub(super) messages: f64,
    /// The stage's computation time relative to the mean of all stages.
    pub(super) imbalance: f64,
}

impl StepTimeline {
    /// Returns the timeline of the last record in `records`; `None` if there are no records. `records` are in the order
    /// of their steps. `data_wait` is the time that the leader waited for the data of the last step, in seconds.
    pub(super) fn new(records: &[(u64, TimelineRecord)], data_wait: Option<f64>) -> Option<StepTimeline> {
        let (step, record) = records.last()?;
        let empty = StepTimeline {
            step: *step,
            picture: None,
            stages: Vec::new(),
            data_wait: data_wait.map(DataWait::in_step),
            advice: None,
            problem: None,
        };
        let (measured, programs) = match (record.timeline(), record.programs()) {
            (Ok(measured), Ok(programs)) => (measured, programs),
            (Err(problem), _) | (_, Err(problem)) => return Some(StepTimeline { problem: Some(problem), ..empty }),
        };
        let costs = Costs::measured(std::slice::from_ref(&measured), &programs.placement);
        let simulated = simulate(&programs, &costs);
        let panels = [
            Panel { heading: "measured", timeline: &measured },
            Panel { heading: "simulated with the measured costs", timeline: &simulated },
        ];
        let shares =
            breakdown(&measured, &programs.placement).into_iter().enumerate().map(|(rank, times)| StageShare {
                layers: programs
                    .placement
                    .chunks_of(rank)
                    .filter_map(|chunk| record.partition.get(chunk).copied())
                    .collect(),
                computation: times.compute_seconds / measured.makespan,
                bubble: times.bubble_seconds / measured.makespan,
                messages: times.exposed_communication_seconds / measured.makespan,
                imbalance: times.imbalance,
            });
        Some(StepTimeline {
            picture: picture(&panels, &format!("step {step}"), MAX_BARS),
            stages: shares.collect(),
            advice: advice(records.iter().map(|(_, record)| record)).map(|advice| advice.to_string()),
            ..empty
        })
    }
}

#[cfg(test)]
mod tests {
    use stagecoach_pipeline::{ModelCost, ModuleCost, Partition, Timeline, lower, one_f_one_b};

    use super::*;

    fn module(work: f64) -> ModuleCost {
        ModuleCost { forward: work, backward_input: work, backward_weight: work, ..ModuleCost::default() }
    }

    fn record(stages: usize, microbatches: usize) -> TimelineRecord {
        let programs = lower(&one_f_one_b(stages, microbatches), false).unwrap();
        let mut timeline = simulate(&programs, &Costs::uniform(stages));
        timeline.spans.iter_mut().for_each(|spans| spans.retain(|span| span.action.is_timed()));
        let model = ModelCost {
            embedding: module(0.0),
            layers: vec![module(1.0); 2 * stages],
            head: module(1.0),
            ..ModelCost::default()
        };
        let timeline = Timeline::new(timeline.spans, Vec::new());
        TimelineRecord::new(&timeline, &Partition { layers: vec![2; stages] }, &model)
    }

    #[test]
    fn a_step_has_a_picture_without_style_and_shares_that_add_up() {
        let shown = StepTimeline::new(&[(10, record(3, 6)), (20, record(3, 6))], Some(0.3)).unwrap();
        let picture = shown.picture.unwrap();
        assert!(picture.contains("simulated with the measured costs") && !picture.contains("style"), "{picture}");
        assert_eq!((shown.step, shown.stages.len(), shown.stages[1].layers.clone()), (20, 3, vec![2]));
        assert!(shown.stages.iter().all(|stage| (stage.computation + stage.bubble - 1.0).abs() < 1e-6));
        assert!(shown.advice.is_some() && shown.problem.is_none());
        assert!(shown.data_wait.unwrap().starts_with("stage 0 waited 0.3s for data"));
        assert_eq!(StepTimeline::new(&[], None), None);
    }

    #[test]
    fn a_large_pipeline_has_the_table_alone_and_a_broken_record_its_problem() {
        let large = StepTimeline::new(&[(1, record(8, 64))], None).unwrap();
        assert!(large.picture.is_none() && large.stages.len() == 8);
        let mut broken = record(2, 2);
        broken.stages[1].actions[0] = "<script>".into();
        assert!(StepTimeline::new(&[(1, broken)], None).unwrap().problem.unwrap().contains("is not an action"));
    }
}
