//! The choices that a user makes in the planner's form. This module parses choices from a query, applies them to the
//! job, and writes them as lines of a job file. The module does no I/O.

use std::ops::RangeInclusive;

use serde::Deserialize;
use stagecoach_api::PipelineJob;
use stagecoach_api::job::{PipelineSpec, Recompute, ScheduleSpec};
use stagecoach_pipeline::RankSpeeds;

use stagecoach_planner::{JobConfig, Machines};

/// The range of factors by which a user may multiply the speed of a stage.
pub(super) const SPEEDS: RangeInclusive<f64> = 0.01..=100.0;
/// The range of link bandwidths, in Gbit/s.
pub(super) const BANDWIDTHS: RangeInclusive<f64> = 0.001..=100_000.0;
/// A gigabit per second, in bytes per second.
const GIGABIT: f64 = 1e9 / 8.0;

/// The fields of the page's URL query, as received. An empty field means the job's own value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PlannerQuery {
    pub(super) stages: String,
    pub(super) microbatches: String,
    pub(super) schedule: String,
    pub(super) virtual_stages: String,
    pub(super) recompute: String,
    /// The stage with a changed speed.
    pub(super) stage: String,
    pub(super) speed: String,
    pub(super) bandwidth: String,
}

impl PlannerQuery {
    /// Returns the fields with their names.
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

    /// Returns the query with each empty field replaced by the value from `own`.
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
            schedule: schedule.name().to_owned(),
            virtual_stages: virtual_stages.to_string(),
            recompute: recompute.to_string(),
            stage: stage.to_string(),
            speed: speed.to_string(),
            bandwidth: bandwidth.map_or_else(String::new, |gigabits| gigabits.to_string()),
        }
    }
}

/// The fields of the job that a user can change, and the assumptions about the machines.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Choice {
    pub(super) stages: u32,
    pub(super) microbatches: u32,
    pub(super) schedule: ScheduleSpec,
    pub(super) virtual_stages: u32,
    pub(super) recompute: Recompute,
    /// The stage whose assumed speed is `speed` times its known speed.
    pub(super) stage: u32,
    pub(super) speed: f64,
    /// The bandwidth of every link, in Gbit/s. `None` means the measured or assumed bandwidth.
    pub(super) bandwidth: Option<f64>,
}

impl Choice {
    /// Returns the choice that matches the job.
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

    /// Parses a query without empty fields. `own` is the choice that matches the job.
    ///
    /// # Errors
    /// The error names the first field whose value is invalid.
    pub(super) fn read(query: &PlannerQuery, own: &Choice) -> Result<Choice, String> {
        let named = |name: &str, text: &str| format!("{name}: `{text}` is not one of the choices");
        let schedule = own.schedules().into_iter().find(|schedule| schedule.name() == query.schedule);
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

    /// Returns the schedules that the form offers. The list contains a schedule from a CSV file only if the job has
    /// such a schedule.
    pub(super) fn schedules(&self) -> Vec<ScheduleSpec> {
        let mut all: Vec<ScheduleSpec> = ScheduleSpec::all().collect();
        if let ScheduleSpec::Csv(_) = self.schedule {
            all.push(self.schedule.clone());
        }
        all
    }

    /// Applies the choice to the job.
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

    /// Returns the machines that the choice assumes. `known` has the known speeds of the stages.
    ///
    /// # Errors
    /// Fails if the stage whose speed is changed does not exist, or if the machines are invalid.
    pub(super) fn machines(&self, known: &RankSpeeds) -> Result<Machines, String> {
        let mut speeds: Vec<f64> = (0..self.stages as usize).map(|rank| known.of(rank)).collect();
        match speeds.get_mut(self.stage as usize) {
            Some(speed) => *speed *= self.speed,
            None if self.speed == 1.0 => {}
            None => {
                return Err(format!("stage: there is no stage {}: the last stage is {}", self.stage, self.stages - 1));
            }
        }
        let bandwidth = self.bandwidth.map(|gigabits| gigabits * GIGABIT);
        Machines::new(&speeds, bandwidth).map_err(|error| error.to_string())
    }

    /// Returns the lines of a job file that change the job from `own` to this choice; `None` if the choice changes
    /// nothing. The lines do not contain the machines, because a job has no field for them.
    pub(super) fn yaml(&self, own: &Choice) -> Option<String> {
        let line =
            |differs: bool, name: &str, value: &dyn std::fmt::Display| differs.then(|| format!("{name}: {value}"));
        let schedule = format!("{{type: {}}}", self.schedule.name());
        let is_other_number = self.virtual_stages != own.virtual_stages;
        // if a job does not set `virtualStages`, its schedule determines the number
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

    /// Returns the URL query for this choice, with the question mark. Numbers and names of schedules need no escapes.
    pub(super) fn address(&self) -> String {
        let mut query = PlannerQuery::from(self);
        let parts: Vec<String> = query.fields().into_iter().map(|(name, text)| format!("{name}={text}")).collect();
        format!("?{}", parts.join("&"))
    }
}

pub(super) const RECOMPUTES: [Recompute; 3] = [Recompute::None, Recompute::Selective, Recompute::Full];

fn whole(name: &str, text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| format!("{name}: `{}` is not a whole number", text.trim()))
}

fn within(name: &str, text: &str, range: &RangeInclusive<f64>) -> Result<f64, String> {
    let number = text.trim().parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("{name}: `{}` is not a number from {} to {}", text.trim(), range.start(), range.end()))
}
