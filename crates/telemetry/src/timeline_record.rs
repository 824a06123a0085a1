//! The timeline of a measured step in `metrics.jsonl`. The record contains all data that is needed to draw the step, to
//! simulate it, and to advise how to make steps shorter.

use serde::{Deserialize, Serialize};
use stagecoach_pipeline::{
    Action, ActionSpan, Advice, ModelCost, ModuleCost, Partition, Programs, RankSpeeds, Timeline, advise, from_csv,
    lower,
};

/// The actions of every stage in a step, with their times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TimelineRecord {
    /// The number of layers of each recorded chunk. A chunk is a group of consecutive layers on one stage.
    pub partition: Vec<usize>,
    /// For each chunk of the job's schedule, the number of recorded chunks into which the chunk is split. The list is
    /// empty if no chunk is split.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<usize>,
    /// FLOPs per microbatch of the actions F (forward), I (backward of the input) and W (backward of the weights). The
    /// first item is for the embedding, the last for the head with the loss, and the items between for the layers.
    pub work: Vec<[f64; 3]>,
    /// The actions and their times, by stage.
    pub stages: Vec<StageTimes>,
}

/// One stage's actions in a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StageTimes {
    /// The stage's timed actions in order: computations, REDUCE, GATHER, REDUCE_TIED and EXCHANGE.
    pub actions: Vec<String>,
    /// The begin and the end of each action, in seconds since the step's first computation began.
    pub seconds: Vec<(f64, f64)>,
}

/// Rounds a begin or end time to the microsecond.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

/// The work of the actions F, I and W.
type Work = [f64; 3];

impl TimelineRecord {
    /// Returns the record of a measured step.
    pub fn new(timeline: &Timeline, partition: &Partition, model: &ModelCost) -> TimelineRecord {
        let work = |module: &ModuleCost| -> Work { [module.forward, module.backward_input, module.backward_weight] };
        let modules = std::iter::once(&model.embedding).chain(&model.layers).chain(std::iter::once(&model.head));
        let stage = |spans: &Vec<ActionSpan>| StageTimes {
            actions: spans.iter().map(|span| span.action.to_string()).collect(),
            seconds: spans.iter().map(|span| (rounded(span.start), rounded(span.end))).collect(),
        };
        TimelineRecord {
            partition: partition.layers.clone(),
            parts: Vec::new(),
            work: modules.map(work).collect(),
            stages: timeline.spans.iter().map(stage).collect(),
        }
    }

    /// Returns the timeline of the measured step.
    ///
    /// # Errors
    /// Returns a description of the error if the record is not in the form that [`TimelineRecord::new`] creates.
    pub fn timeline(&self) -> Result<Timeline, String> {
        let stage = |times: &StageTimes| {
            if times.actions.len() != times.seconds.len() {
                return Err(format!("{} actions with {} times", times.actions.len(), times.seconds.len()));
            }
            let span = |(action, &(start, end)): (&String, &(f64, f64))| {
                Ok(ActionSpan { action: action.parse().map_err(|e| format!("{e}"))?, start, end })
            };
            times.actions.iter().zip(&times.seconds).map(span).collect()
        };
        let spans = self.stages.iter().map(stage).collect::<Result<Vec<Vec<ActionSpan>>, String>>()?;
        Ok(Timeline::new(spans, Vec::new()))
    }

    /// Reconstructs the programs that were executed. The recorded computations are the schedule, to which lowering adds
    /// the communication.
    ///
    /// # Errors
    /// Fails if the actions are not a schedule, or if the schedule does not have the partition's number of chunks.
    pub fn programs(&self) -> Result<Programs, String> {
        let is = |text: &String, wanted: fn(Action) -> bool| text.parse().is_ok_and(wanted);
        let computations = |times: &StageTimes| {
            let actions: Vec<&str> =
                times.actions.iter().filter(|action| is(action, Action::is_compute)).map(String::as_str).collect();
            actions.join(",")
        };
        let csv: Vec<String> = self.stages.iter().map(computations).collect();
        let schedule = from_csv(&csv.join("\n"), self.stages.len()).map_err(|e| e.to_string())?;
        let chunks = schedule.placement.chunks();
        if chunks != self.partition.len() {
            return Err(format!("{chunks} chunks with the partition {:?}", self.partition));
        }
        let has = |wanted: fn(Action) -> bool| {
            self.stages.iter().flat_map(|times| &times.actions).any(|action| is(action, wanted))
        };
        let programs = lower(&schedule, has(|action| action == Action::ReduceTied)).map_err(|e| e.to_string())?;
        Ok(if has(Action::is_between_replicas) { programs.replicate() } else { programs })
    }

    /// Returns the work of the model.
    ///
    /// # Errors
    /// Fails if the work of the embedding, of a layer or of the head is missing.
    pub fn model(&self) -> Result<ModelCost, String> {
        let module = |&[forward, backward_input, backward_weight]: &Work| ModuleCost {
            forward,
            backward_input,
            backward_weight,
            ..ModuleCost::default()
        };
        match &self.work[..] {
            [embedding, layers @ .., head] if layers.len() == self.partition.iter().sum::<usize>() => Ok(ModelCost {
                embedding: module(embedding),
                layers: layers.iter().map(module).collect(),
                head: module(head),
                ..ModelCost::default()
            }),
            work => Err(format!("the work of {} modules with the partition {:?}", work.len(), self.partition)),
        }
    }
}

/// The largest number of records on which advice is based. The advice uses the newest records, and averages over
/// several steps because single steps are noisy.
const ADVICE_RECORDS: usize = 10;

/// The fewest records from which the stages' speeds are computed.
const MIN_SPEED_RECORDS: usize = 3;

/// Returns the advice for a shorter step, or `None` if there is no usable record. `records` are in the order of their
/// steps. The advice uses the newest records, without the records of an earlier partition or schedule.
pub fn advice<'a>(records: impl DoubleEndedIterator<Item = &'a TimelineRecord>) -> Option<Advice> {
    let Newest { programs, timelines, model, partition, parts } = newest(records)?;
    let advice = advise(&programs, &timelines, &model, &partition)?;
    // the recorded chunks are merged into the chunks of the job's schedule
    let partition = advice.partition.merge(&parts);
    let better = advice.better.map(|(better, saving)| (better.merge(&parts), saving));
    let better = better.filter(|(better, _)| *better != partition);
    Some(Advice { partition, better, ..advice })
}

/// Returns the relative speeds of the stages, from the newest of `records`. `records` are in the order of their steps.
/// Returns `None` if there are too few records, or if the number of their stages is not `stages`.
pub fn speeds<'a>(records: impl DoubleEndedIterator<Item = &'a TimelineRecord>, stages: usize) -> Option<RankSpeeds> {
    let Newest { programs, timelines, model, partition, parts: _ } = newest(records)?;
    let is_usable = programs.placement.ranks() == stages && timelines.len() >= MIN_SPEED_RECORDS;
    is_usable.then(|| RankSpeeds::measured(&timelines, &partition.rank_work(&model, &programs.placement)))?
}

/// The newest measured steps of one partition and schedule.
struct Newest {
    programs: Programs,
    /// The timelines, in the order of their steps.
    timelines: Vec<Timeline>,
    model: ModelCost,
    partition: Partition,
    parts: Vec<usize>,
}

fn newest<'a>(records: impl DoubleEndedIterator<Item = &'a TimelineRecord>) -> Option<Newest> {
    let mut records = records.rev();
    let newest = records.next()?;
    let programs = newest.programs().ok()?;
    let actions = |record: &'a TimelineRecord| record.stages.iter().map(|times| &times.actions);
    let is_same =
        |record: &&'a TimelineRecord| record.partition == newest.partition && actions(record).eq(actions(newest));
    let same = std::iter::once(newest).chain(records.take_while(is_same)).take(ADVICE_RECORDS);
    let mut timelines: Vec<Timeline> = same.filter_map(|record| record.timeline().ok()).collect();
    timelines.reverse();
    let partition = Partition { layers: newest.partition.clone() };
    Some(Newest { programs, timelines, model: newest.model().ok()?, partition, parts: newest.parts.clone() })
}

#[cfg(test)]
mod tests {
    use stagecoach_pipeline::{Costs, gpipe, interleaved_zero_bubble, one_f_one_b, simulate, zbv_zero_bubble};

    use super::*;

    fn module(work: f64) -> ModuleCost {
        ModuleCost { forward: work, backward_input: work, backward_weight: 2.0 * work, ..ModuleCost::default() }
    }

    /// Returns the record of a simulated step, with its timeline and model.
    fn record(programs: &Programs) -> (TimelineRecord, Timeline, ModelCost) {
        let chunks = programs.placement.chunks();
        let costs = Costs { link_seconds: 0.125, ..Costs::uniform(chunks) };
        let mut timeline = simulate(programs, &costs);
        timeline.spans.iter_mut().for_each(|spans| {
            spans.retain(|span| span.action.is_timed());
        });
        let timeline = Timeline::new(timeline.spans, Vec::new());
        let partition = Partition { layers: vec![2; chunks] };
        let model = ModelCost {
            embedding: module(0.0),
            layers: vec![module(1.0); 2 * chunks],
            head: module(3.0),
            ..ModelCost::default()
        };
        (TimelineRecord::new(&timeline, &partition, &model), timeline, model)
    }

    #[test]
    fn a_record_gives_back_step_programs_and_work() {
        for (schedule, tied) in [
            (gpipe(1, 3), false),
            (one_f_one_b(3, 8), true),
            (interleaved_zero_bubble(2, 4, 2), false),
            (zbv_zero_bubble(3, 6), true),
        ] {
            let programs = lower(&schedule, tied).unwrap();
            let programs = if tied { programs.replicate() } else { programs };
            let (record, timeline, model) = record(&programs);
            let read: TimelineRecord = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
            assert_eq!(read, record);
            assert_eq!(read.timeline().unwrap(), timeline);
            assert_eq!(read.programs().unwrap(), programs);
            assert_eq!(read.model().unwrap(), model);
        }
    }

    #[test]
    fn advice_is_about_the_chunks_of_the_schedule() {
        let parts = [2, 2, 2];
        let whole = lower(&one_f_one_b(3, 8), true).unwrap();
        // in the programs with parts, each stage has four layers
        let (whole_record, ..) = record(&whole);
        let (mut in_parts, ..) = record(&whole.split(&parts).replicate());
        in_parts.parts = parts.to_vec();
        let found = advice([&in_parts].into_iter()).unwrap();
        assert_eq!(found.partition.layers, [4, 4, 4]);
        assert!(found.better.is_none_or(|(better, _)| better.layers.len() == 3 && better.layers != [4, 4, 4]));
        assert_eq!(advice([&whole_record].into_iter()).unwrap().partition.layers, [2, 2, 2]);
    }

    #[test]
    fn speeds_are_those_of_several_steps_with_as_many_stages() {
        let (record, ..) = record(&lower(&one_f_one_b(3, 8), true).unwrap());
        // all stages took the same time, and the last stage also has the head's work
        let expected = RankSpeeds::new(&[2.0, 2.0, 5.0]).unwrap();
        let records = |count| vec![record.clone(); count];
        assert_eq!(speeds(records(MIN_SPEED_RECORDS).iter(), 3), Some(expected));
        assert_eq!(speeds(records(MIN_SPEED_RECORDS - 1).iter(), 3), None);
        assert_eq!(speeds(records(MIN_SPEED_RECORDS).iter(), 2), None);
        let mut other = records(MIN_SPEED_RECORDS);
        other[0].partition = vec![1, 3, 2];
        assert_eq!(speeds(other.iter(), 3), None, "of another partition");
    }

    #[test]
    fn a_broken_record_is_refused() {
        let (good, ..) = record(&lower(&one_f_one_b(2, 2), false).unwrap());
        let broken = |change: fn(&mut TimelineRecord)| {
            let mut record = good.clone();
            change(&mut record);
            record
        };
        let action = broken(|record| record.stages[1].actions[0] = "0Q0".into());
        assert!(action.timeline().unwrap_err().contains("`0Q0` is not an action"));
        let times = broken(|record| record.stages[1].seconds.truncate(2));
        assert_eq!(times.timeline().unwrap_err(), "5 actions with 2 times");
        let missing = broken(|record| drop(record.stages[0].actions.remove(0)));
        assert!(missing.programs().unwrap_err().starts_with("line 1"), "{:?}", missing.programs());
        let partition = broken(|record| record.partition.push(1));
        assert_eq!(partition.programs().unwrap_err(), "2 chunks with the partition [2, 2, 1]");
        assert_eq!(partition.model().unwrap_err(), "the work of 6 modules with the partition [2, 2, 1]");
    }
}
