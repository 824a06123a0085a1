//! Plans a job with a user's choices, as `stagecoach plan` does.

use indicatif::HumanCount;
use stagecoach_api::job::ScheduleSpec;
use stagecoach_pipeline::{Limits, RankSpeeds, verify};
use stagecoach_planner::{JobConfig, PipelineLayout, plan_pipeline_on};

use super::choice::{Choice, PlannerQuery};

/// The largest number of work items (chunks times microbatches) that the page simulates while a user waits.
const MAX_WORK_ITEMS: u64 = 1 << 16;

/// A job, and the data for its plan.
#[derive(Debug)]
pub struct Planner {
    config: JobConfig,
    vocab_size: usize,
    /// The measured speeds of the job's stages.
    speeds: RankSpeeds,
    /// The choice that matches the job.
    pub(super) own: Choice,
    /// The simulated step of the unchanged job, or the reason that the job can't be planned.
    pub(super) own_step: Result<SimulatedStep, String>,
}

/// A simulated step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SimulatedStep {
    pub(super) seconds: f64,
    /// The mean bubble of all stages, as a share of the step from 0 to 1.
    pub(super) bubble: f64,
    /// The peak memory of the stage that needs the most memory, in bytes.
    pub(super) bytes: u64,
}

impl SimulatedStep {
    pub(super) fn of(layout: &PipelineLayout) -> SimulatedStep {
        SimulatedStep { seconds: layout.timeline.makespan, bubble: layout.bubble(), bytes: layout.largest_stage() }
    }
}

/// The content of the planner's page: the values of the form, and the plan.
#[derive(Debug)]
pub(super) struct PlannerModel {
    /// The fields of the query. A missing field has the value of the job.
    pub(super) fields: PlannerQuery,
    /// The plan, or the reason why it is impossible.
    pub(super) planned: Result<Planned, String>,
}

/// A choice whose plan is possible, and the layout of the pipeline.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) choice: Choice,
    pub(super) layout: PipelineLayout,
}

impl Planner {
    /// Returns the planner of a job. `vocab_size` is the size of the model's vocabulary, and `speeds` are the measured
    /// speeds of the stages.
    pub fn new(config: JobConfig, vocab_size: usize, speeds: RankSpeeds) -> Planner {
        let own = Choice::of(&config);
        let mut planner = Planner { config, vocab_size, speeds, own, own_step: Err(String::new()) };
        planner.own_step = planner.plan(&planner.own).map(|layout| SimulatedStep::of(&layout));
        planner
    }

    /// Returns the job's name.
    pub(super) fn name(&self) -> &str {
        &self.config.job.metadata.name
    }

    /// Returns `pipeline.memoryLimit`, in bytes, or `None` if the job sets no limit.
    pub(super) fn memory_limit(&self) -> Option<u64> {
        self.config.job.spec.pipeline.memory_limit.as_ref()?.bytes()
    }

    /// Returns the number of tokens in a step. The number is the same for every choice.
    pub(super) fn tokens(&self) -> u64 {
        u64::from(self.config.training.global_batch_size) * u64::from(self.config.data.sequence_length)
    }

    /// Returns the plan for a query.
    pub(super) fn model(&self, query: &PlannerQuery) -> PlannerModel {
        let planned = self.choice(query).and_then(|choice| self.planned(choice));
        PlannerModel { fields: query.or(&self.own), planned }
    }

    /// Returns the plan of a query with the schedule `Auto` instead of the query's schedule.
    pub(super) fn auto(&self, query: &PlannerQuery) -> Result<Planned, String> {
        self.planned(Choice { schedule: ScheduleSpec::Auto, virtual_stages: 1, ..self.choice(query)? })
    }

    /// Returns the choice of a query. A missing field has the value of the job.
    pub(super) fn choice(&self, query: &PlannerQuery) -> Result<Choice, String> {
        Choice::read(&query.or(&self.own), &self.own)
    }

    fn planned(&self, choice: Choice) -> Result<Planned, String> {
        self.plan(&choice).map(|layout| Planned { choice, layout })
    }

    fn plan(&self, choice: &Choice) -> Result<PipelineLayout, String> {
        let mut job = self.config.job.clone();
        choice.apply(&mut job);
        let models = self.config.remote_models.clone();
        let config = JobConfig::with_models(job, &self.config.workspace, models).map_err(|error| error.message)?;
        let Choice { stages, microbatches, virtual_stages, .. } = *choice;
        let work_items = u64::from(stages) * u64::from(virtual_stages) * u64::from(microbatches);
        if work_items > MAX_WORK_ITEMS {
            return Err(format!(
                "this page simulates at most {} work items (chunks times microbatches), and this choice has {}: \
                 choose fewer, or let `stagecoach plan` simulate them",
                HumanCount(MAX_WORK_ITEMS),
                HumanCount(work_items)
            ));
        }
        // the measured speeds apply only to the job's number of stages
        let equal = RankSpeeds::default();
        let machines = choice.machines(if stages == self.own.stages { &self.speeds } else { &equal })?;
        let architecture = config.architecture(self.vocab_size, tch::Device::Cpu);
        let layout = plan_pipeline_on(&config, architecture.as_ref(), stages as usize, &machines);
        let layout = layout.map_err(|error| error.message)?;
        verify(&layout.programs, &Limits::default()).map_err(|error| error.to_string())?;
        Ok(layout)
    }
}
