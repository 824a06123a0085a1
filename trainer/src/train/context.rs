//! Types that the modules of `train` share.

use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use stagecoach_api::contract::StageEnv;
use stagecoach_checkpoint::Volume;
use stagecoach_engine::execute::{Stage, TensorDump};
use stagecoach_group::{Hello, Member};
use stagecoach_planner::{JobConfig, Plan, TrainerState, VerifiedPlan};
use stagecoach_replay::ReplayOptions;
use stagecoach_telemetry::TrainingEvent;
use stagecoach_transport::Links;

use crate::train::join::stale_fences::StaleFenceRemoval;
use crate::train::monitor::StageMonitor;
use crate::train::recover::carry_over::LastSnapshot;
use crate::train::step::data_loader::DataLoader;

/// The context of a stage: its environment, its configuration, and the state that its threads share.
#[derive(Clone, Copy)]
pub(in crate::train) struct StageContext<'a> {
    /// The stage's environment. Its `rank` is the global rank: the rank among all stages of all replicas.
    pub(in crate::train) env: &'a StageEnv,
    /// The rank among the members of the group, which may lack replicas. Before the stage joins a group, the global
    /// rank.
    pub(in crate::train) group_rank: usize,
    /// The job's configuration. Within a group, the configuration has the number of replicas of the group.
    pub(in crate::train) config: &'a JobConfig,
    pub(in crate::train) device: tch::Device,
    /// The facts besides the job, such as the processor, on which the last bits of results depend. Checkpoints record
    /// them.
    pub(in crate::train) environment: &'a Value,
    pub(in crate::train) volume: &'a dyn Volume,
    pub(in crate::train) stale_fences: &'a StaleFenceRemoval,
    pub(in crate::train) monitor: &'a StageMonitor,
    /// The options of a replay.
    pub(in crate::train) replay: &'a ReplayOptions,
}

/// A stage that is ready to train, with the plan of its group.
pub(in crate::train) struct RunningStage<'a> {
    pub(in crate::train) context: StageContext<'a>,
    pub(in crate::train) plan: &'a Plan,
    /// The step of the newest intact checkpoint on the volume when the group began; 0 if there was none.
    pub(in crate::train) saved_step: u64,
    pub(in crate::train) verified: &'a VerifiedPlan,
    pub(in crate::train) member: &'a Member,
    /// The environments of all stages by group rank, as checkpoints record them.
    pub(in crate::train) environments: &'a [Value],
    pub(in crate::train) stage: Stage,
    /// The dump of the tensors that a replay writes to a file; `None` if no replay requests a dump.
    pub(in crate::train) dump: Option<Rc<TensorDump>>,
    pub(in crate::train) links: Links,
    /// The data loader of the first and the last stage; `None` on the stages between them.
    pub(in crate::train) data_loader: Option<DataLoader>,
    /// The last snapshot for a checkpoint; `None` during training, when the save schedule has the snapshot.
    pub(in crate::train) snapshot: Option<LastSnapshot>,
}

impl StageContext<'_> {
    /// Returns the time for which this stage waits for the replacement of a lost stage, or `None` if the attempt ends
    /// with the loss.
    pub(in crate::train) fn reform_timeout(&self) -> Option<Duration> {
        let seconds = self.config.job.spec.restart.reform_timeout_seconds;
        (seconds > 0 && self.env.mesh.ranks() > 1).then(|| Duration::from_secs(seconds.into()))
    }

    /// Whether this stage leads its group: it plans, records steps and commits checkpoints.
    pub(in crate::train) fn is_leader(&self) -> bool {
        self.group_rank == 0
    }

    /// Returns the name of a member of the group: `stage 1`, or `stage 1 of replica 0`.
    pub(in crate::train) fn name_of(&self, member: &Hello) -> String {
        self.env.mesh.name(member.rank as u32)
    }

    /// Whether a group may form without some replicas. Stage 0 of any replica may lead such a group.
    pub(in crate::train) fn may_lack_replicas(&self) -> bool {
        self.config.job.spec.may_lack_replicas(self.env.mesh.data_parallel)
    }
}

impl RunningStage<'_> {
    /// Whether no step remains to train after `state`.
    pub(in crate::train) fn has_trained(&self, state: &TrainerState) -> bool {
        state.step >= self.plan.steps || self.context.config.has_stopped_improving(state)
    }

    pub(in crate::train) fn emit(&self, event: &TrainingEvent) {
        self.context.monitor.emit(event);
    }

    pub(in crate::train) fn note(&self, message: impl Into<String>) {
        self.context.monitor.note(message);
    }
}
