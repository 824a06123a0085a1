//! Types that the modules of `train` share.

use std::time::Duration;

use serde_json::Value;
use stagecoach_api::contract::StageEnv;
use stagecoach_checkpoint::Volume;
use stagecoach_group::{Hello, Member};

use super::carry_over::LastSnapshot;
use super::data_loader::DataLoader;
use super::monitor::StageMonitor;
use super::replayed::ReplayOptions;
use super::stale_fences::StaleFenceRemoval;
use crate::plan::{JobConfig, Plan, VerifiedPlan};
use stagecoach_engine::execute::Stage;
use stagecoach_telemetry::{EventWriter, TrainingEvent};
use stagecoach_transport::Links;

/// Context of a stage: its environment, its configuration, and the destinations of its reports.
#[derive(Clone, Copy)]
pub(super) struct StageContext<'a> {
    /// `env.rank` is the global rank: its rank among all stages of all replicas.
    pub(super) env: &'a StageEnv,
    /// Its rank in the group, which may lack whole replicas; before it is in a group, the global rank.
    pub(super) group_rank: usize,
    /// The job's configuration; in a group, with the group's number of replicas.
    pub(super) config: &'a JobConfig,
    pub(super) device: tch::Device,
    /// The facts besides the job that determine the last bits, as checkpoints record them.
    pub(super) environment: &'a Value,
    pub(super) volume: &'a dyn Volume,
    pub(super) stale_fences: &'a StaleFenceRemoval,
    pub(super) monitor: &'a StageMonitor,
    pub(super) event_writer: &'a EventWriter,
    /// The options of a replay.
    pub(super) replay: &'a ReplayOptions,
}

/// A stage ready to train.
pub(super) struct RunningStage<'a> {
    pub(super) context: StageContext<'a>,
    pub(super) plan: &'a Plan,
    /// The step of the newest checkpoint on the volume when the group began; 0 if there was none.
    pub(super) saved_step: u64,
    pub(super) verified: &'a VerifiedPlan,
    pub(super) member: &'a Member,
    /// The environments by group rank, as checkpoints record them.
    pub(super) environments: &'a [Value],
    pub(super) stage: Stage,
    pub(super) links: Links,
    /// Set on the first and the last stage.
    pub(super) data_loader: Option<DataLoader>,
    /// The last copy for a save, while no thread writes from it.
    pub(super) snapshot: Option<LastSnapshot>,
}

impl StageContext<'_> {
    /// The time for which this stage waits for a lost one; `None` if the attempt ends with the loss.
    pub(super) fn reform_timeout(&self) -> Option<Duration> {
        let seconds = self.config.job.spec.restart.reform_timeout_seconds;
        (seconds > 0 && self.env.mesh.ranks() > 1).then(|| Duration::from_secs(seconds.into()))
    }

    /// Whether this stage leads its group: it plans, records steps and commits checkpoints.
    pub(super) fn is_leader(&self) -> bool {
        self.group_rank == 0
    }

    /// A member of the group in words: `stage 1`, or `stage 1 of replica 0`.
    pub(super) fn name_of(&self, member: &Hello) -> String {
        self.env.mesh.name(member.rank as u32)
    }

    /// Whether a group may form without a replica, led by stage 0 of any replica.
    pub(super) fn may_lack_replicas(&self) -> bool {
        self.config.job.spec.may_lack_replicas(self.env.mesh.data_parallel)
    }
}

impl RunningStage<'_> {
    pub(super) fn emit(&self, event: &TrainingEvent) {
        emit(&self.context, event);
    }
}

/// Emits an event to the log and to `/status`.
pub(super) fn emit(context: &StageContext, event: &TrainingEvent) {
    context.monitor.telemetry().record(event);
    context.event_writer.emit(event);
}
