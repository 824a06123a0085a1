//! What the modules of `train` share.

use std::time::Duration;

use serde_json::Value;
use stagecoach_api::contract::StageEnv;
use stagecoach_checkpoint::Volume;
use stagecoach_group::{Hello, Member};

use super::data_loader::DataLoader;
use super::kept::HeldSnapshot;
use super::monitor::StageMonitor;
use super::replayed::ReplayOptions;
use super::stale_fences::StaleFenceRemoval;
use crate::execute::Stage;
use crate::links::Links;
use crate::observe::{EventWriter, TrainingEvent};
use crate::plan::{JobConfig, Plan, VerifiedPlan};

/// Context of a stage: its environment and configuration, and where it reports to.
#[derive(Clone, Copy)]
pub(super) struct StageContext<'a> {
    /// `env.rank` is the global rank: its rank among all stages of all replicas.
    pub(super) env: &'a StageEnv,
    /// Its rank in the group, of which whole replicas may be missing; before it is in one, the global rank.
    pub(super) group_rank: usize,
    /// In a group, with the replicas that the group has.
    pub(super) config: &'a JobConfig,
    pub(super) device: tch::Device,
    /// What decides the last bits besides the job, as checkpoints record it.
    pub(super) environment: &'a Value,
    pub(super) volume: &'a dyn Volume,
    pub(super) stale_fences: &'a StaleFenceRemoval,
    pub(super) monitor: &'a StageMonitor,
    pub(super) event_writer: &'a EventWriter,
    /// What is asked of it if this is a replay.
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
    /// By group rank, as checkpoints record them.
    pub(super) environments: &'a [Value],
    pub(super) stage: Stage,
    pub(super) links: Links,
    /// On the first and the last stage.
    pub(super) data_loader: Option<DataLoader>,
    /// What was last copied to be saved, while no thread writes from it.
    pub(super) snapshot: Option<HeldSnapshot>,
}

impl StageContext<'_> {
    /// How long this stage waits for one that was lost; none if the attempt ends with it.
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

    /// Whether a group may form without a replica, led by any stage 0.
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
