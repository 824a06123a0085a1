//! What the modules of `train` share.

use stagecoach_api::contract::StageEnv;
use stagecoach_checkpoint::Volume;
use stagecoach_group::Member;

use super::data_loader::DataLoader;
use super::monitor::StageMonitor;
use crate::execute::Stage;
use crate::links::Links;
use crate::observe::{EventWriter, TrainingEvent};
use crate::plan::{JobConfig, Plan, VerifiedPlan};

/// Context of a stage: its environment and configuration, and where it reports to.
#[derive(Clone, Copy)]
pub(super) struct StageContext<'a> {
    pub(super) env: &'a StageEnv,
    pub(super) config: &'a JobConfig,
    pub(super) device: tch::Device,
    pub(super) volume: &'a dyn Volume,
    pub(super) monitor: &'a StageMonitor,
    pub(super) event_writer: &'a EventWriter,
}

/// A stage ready to train.
pub(super) struct RunningStage<'a> {
    pub(super) context: StageContext<'a>,
    pub(super) plan: &'a Plan,
    pub(super) verified: &'a VerifiedPlan,
    pub(super) member: &'a Member,
    pub(super) stage: Stage,
    pub(super) links: Links,
    /// On the first and the last stage.
    pub(super) data_loader: Option<DataLoader>,
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
