//! What a reader may move: read from a query, put into the job, and written as lines of a job file. Pure.

use std::ops::RangeInclusive;

use serde::Deserialize;
use stagecoach_api::PipelineJob;
use stagecoach_api::job::{PipelineSpec, Recompute, ScheduleSpec};
use stagecoach_pipeline::RankSpeeds;

use crate::plan::{JobConfig, Machines};

/// How much faster or slower than it is a stage may be made.
const SPEEDS: RangeInclusive<f64> = 0.01..=100.0;
/// Of a link, in Gbit/s.
const BANDWIDTHS: RangeInclusive<f64> = 0.001..=100_000.0;
/// Bytes a second.
const GIGABIT: f64 = 1e9 / 8.0;

/// The query as it comes; empty fields are as in the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PlannerQuery {
    pub(super) stages: String,
    pub(super) microbatches: String,
    pub(super) schedule: String,
    pub(super) virtual_stages: String,
    pub(super) recompute: String,
    /// The stage that has another speed.
    pub(super) stage: String,
    pub(super) speed: String,
    pub(super) bandwidth: String,
}

impl PlannerQuery {
    /// The fields with their names.
    fn fields(&mut self) -> [(&'static str, &mut String); 8] {
        let PlannerQuery { stages, microbatches, schedule, virtual_stages, recompute, stage, speed, bandwidth } = self;
        [
            ("stages", stages),
            ("microbatches", microbatches),
            ("schedule", schedule),
            ("virtualStages", virtual_stages),
            ("recompute", recompute),
            ("stage", stage),
            ("speed", speed),
            ("bandwidth", bandwidth),
        ]
    }

    /// The same with the fields of `own` where it has none.
    pub(super) fn or(&self, own: &Choice) -> PlannerQuery {
        let (mut all, mut own) = (self.clone(), PlannerQuery::from(own));
        for ((_, field), (_, own)) in all.fields().into_iter().zip(own.fields()) {
            if field.trim().is_empty() {
                *field = std::mem::take(own);
            }
        }
        all
    }
}

impl From<&Choice> for PlannerQuery {
    fn from(choice: &Choice) -> PlannerQuery {
        let Choice { stages, microbatches, schedule, virtual_stages, recompute, stage, speed, bandwidth } = choice;
        PlannerQuery {
            stages: stages.to_string(),
            microbatches: microbatches.to_string(),
            schedule: schedule.tag().to_string(),
            virtual_stages: virtual_stages.to_string(),
            recompute: recompute.to_string(),
            stage: stage.to_string(),
            speed: speed.to_string(),
            bandwidth: bandwidth.map_or_else(String::new, |gigabits| gigabits.to_string()),
        }
    }
}

/// A plan's fields of the job, and what its machines are assumed to be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Choice {
    pub(super) stages: u32,
    pub(super) microbatches: u32,
    pub(super) schedule: ScheduleSpec,
    pub(super) virtual_stages: u32,
    pub(super) recompute: Recompute,
    /// The stage that is `speed` times as fast as it is.
    pub(super) stage: u32,
    pub(super) speed: f64,
    /// Of every link, in Gbit/s; as measured or assumed if None.
    pub(super) bandwidth: Option<f64>,
}

impl Choice {
    /// A job as it is.
    pub(super) fn of(config: &JobConfig) -> Choice {
        let spec = &config.job.spec;
        Choice {
            stages: spec.stages,
            microbatches: config.training.microbatches,
            schedule: spec.pipeline.schedule.clone(),
            virtual_stages: spec.pipeline.virtual_stages(),
            recompute: spec.pipeline.recompute,
            stage: 0,
            speed: 1.0,
            bandwidth: None,
        }
    }

    /// What a query without empty fields says, of a job that is `own`.
    ///
    /// # Errors
    /// The first field that says nothing of its kind.
    pub(super) fn read(query: &PlannerQuery, own: &Choice) -> Result<Choice, String> {
        let named = |name: &str, text: &str| format!("{name}: `{text}` is none of those that can be chosen");
        let schedule = own.schedules().into_iter().find(|schedule| schedule.tag().as_str() == query.schedule);
        let recompute = RECOMPUTES.into_iter().find(|recompute| recompute.as_str() == query.recompute);
        Ok(Choice {
            stages: whole("stages", &query.stages)?,
            microbatches: whole("microbatches", &query.microbatches)?,
            schedule: schedule.ok_or_else(|| named("schedule", &query.schedule))?,
            virtual_stages: whole("chunks a stage", &query.virtual_stages)?,
            recompute: recompute.ok_or_else(|| named("recompute", &query.recompute))?,
            stage: whole("stage", &query.stage)?,
            speed: within("speed of a stage", &query.speed, &SPEEDS)?,
            bandwidth: match query.bandwidth.trim() {
                "" => None,
                text => Some(within("link bandwidth", text, &BANDWIDTHS)?),
            },
        })
    }

    /// The schedules that a job may be given: one in a file only if it has one.
    pub(super) fn schedules(&self) -> Vec<ScheduleSpec> {
        let mut all = SCHEDULES.to_vec();
        if let ScheduleSpec::Csv(_) = self.schedule {
            all.push(self.schedule.clone());
        }
        all
    }

    /// Puts it into the job.
    pub(super) fn apply(&self, job: &mut PipelineJob) {
        job.spec.stages = self.stages;
        if let Some(training) = &mut job.spec.training {
            training.microbatches = self.microbatches;
        }
        let pipeline = &mut job.spec.pipeline;
        pipeline.schedule = self.schedule.clone();
        pipeline.virtual_stages = Some(self.virtual_stages);
        pipeline.recompute = self.recompute;
    }

    /// The machines, of which these speeds are known.
    ///
    /// # Errors
    /// If the stage whose speed is chosen is none of the stages.
    pub(super) fn machines(&self, known: &RankSpeeds) -> Result<Machines, String> {
        let mut speeds: Vec<f64> = (0..self.stages as usize).map(|rank| known.of(rank)).collect();
        match speeds.get_mut(self.stage as usize) {
            Some(speed) => *speed *= self.speed,
            None if self.speed == 1.0 => {}
            None => {
                return Err(format!("stage: there is no stage {}, the last one is {}", self.stage, self.stages - 1));
            }
        }
        let bandwidth = self.bandwidth.map(|gigabits| gigabits * GIGABIT);
        Machines::new(&speeds, bandwidth).map_err(|error| error.to_string())
    }

    /// The lines of a job file that make a job that is `own` this one; None if there is nothing to change. Machines are in no job.
    pub(super) fn yaml(&self, own: &Choice) -> Option<String> {
        let line =
            |differs: bool, name: &str, value: &dyn std::fmt::Display| differs.then(|| format!("{name}: {value}"));
        let schedule = format!("{{type: {}}}", self.schedule.tag());
        let is_other_number = self.virtual_stages != own.virtual_stages;
        // the job may have no number of its own: then the schedule decides
        let without_number = PipelineSpec { schedule: self.schedule.clone(), ..PipelineSpec::default() };
        let is_other_without = self.schedule != own.schedule && self.virtual_stages != without_number.virtual_stages();
        let pipeline: Vec<String> = [
            line(self.schedule != own.schedule, "    schedule", &schedule),
            line(is_other_number || is_other_without, "    virtualStages", &self.virtual_stages),
            line(self.recompute != own.recompute, "    recompute", &self.recompute),
        ]
        .into_iter()
        .flatten()
        .collect();
        let microbatches = line(self.microbatches != own.microbatches, "    microbatches", &self.microbatches);
        let mut lines = vec!["spec:".to_owned()];
        lines.extend(line(self.stages != own.stages, "  stages", &self.stages));
        lines.extend(microbatches.into_iter().flat_map(|line| ["  training:".to_owned(), line]));
        if !pipeline.is_empty() {
            lines.push("  pipeline:".to_owned());
            lines.extend(pipeline);
        }
        (lines.len() > 1).then(|| lines.join("\n") + "\n")
    }

    /// The query of its address, with the question mark. Numbers and names of schedules are as they are in one.
    pub(super) fn address(&self) -> String {
        let mut query = PlannerQuery::from(self);
        let parts: Vec<String> = query.fields().into_iter().map(|(name, text)| format!("{name}={text}")).collect();
        format!("?{}", parts.join("&"))
    }
}

const SCHEDULES: [ScheduleSpec; 6] = [
    ScheduleSpec::GPipe,
    ScheduleSpec::OneFOneB,
    ScheduleSpec::InterleavedOneFOneB,
    ScheduleSpec::InterleavedZeroBubble,
    ScheduleSpec::ZbvZeroBubble,
    ScheduleSpec::Auto,
];

pub(super) const RECOMPUTES: [Recompute; 3] = [Recompute::None, Recompute::Selective, Recompute::Full];

fn whole(name: &str, text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| format!("{name}: `{}` is no whole number", text.trim()))
}

fn within(name: &str, text: &str, range: &RangeInclusive<f64>) -> Result<f64, String> {
    let number = text.trim().parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("{name}: `{}` is no number from {} to {}", text.trim(), range.start(), range.end()))
}
