//! The execution of this stage's program on the inputs of a step, and the control of the program during training.

use std::time::Instant;

use stagecoach_engine::execute::{Executor, StepControl, StepError, StepInputs, StepOutput, StepProbe, StopRequest};
use stagecoach_pipeline::Programs;
use stagecoach_transport::LinkError;

use crate::train::context::RunningStage;
use crate::train::leave::LeaveReason;
use crate::train::monitor::StageMonitor;
use crate::train::recover::link_failure;
use crate::train::save::drain::DrainEstimate;
use crate::train::save::memory::MemoryCheckpoints;
use crate::train::step::audit::Audits;

/// Controls the program of a step.
pub(super) struct RunningStep<'t, 'g> {
    pub(super) monitor: &'t StageMonitor,
    pub(super) drain: DrainEstimate,
    /// Whether this is the last step for which there is data.
    pub(super) has_no_data: bool,
    pub(super) memory: Option<&'t mut MemoryCheckpoints<'g>>,
    pub(super) audits: Option<&'t mut Audits<'g>>,
    pub(super) idle_before: Option<usize>,
}

impl StepControl for RunningStep<'_, '_> {
    fn stop(&self) -> StopRequest {
        match self.drain.stop(self.monitor.stop_requested_at(), Instant::now()) {
            StopRequest::None if self.has_no_data => StopRequest::AfterStep,
            request => request,
        }
    }

    /// Recomputes the audited item, if this stage is its auditor and has not recomputed it yet. Also waits for the copy
    /// of another stage's state. A stage votes only when both are complete.
    fn before_vote(&mut self) -> Result<(), LinkError> {
        self.when_idle()?;
        self.memory.as_mut().map_or(Ok(()), |memory| memory.wait())
    }

    fn idle_before(&self) -> Option<usize> {
        self.idle_before
    }

    fn when_idle(&mut self) -> Result<(), LinkError> {
        self.audits.as_mut().map_or(Ok(()), |audits| audits.compute())
    }
}

/// Executes this stage's program on `inputs`.
pub(super) fn run_programs(
    running: &mut RunningStage,
    programs: &Programs,
    inputs: &StepInputs,
    control: &mut dyn StepControl,
    probes: Vec<&mut dyn StepProbe>,
) -> Result<StepOutput, LeaveReason> {
    let program = &programs.ranks[running.stage.index];
    let activity = &running.member.activity();
    let (stage, links, placement) = (&mut running.stage, &mut running.links, &programs.placement);
    let mut executor = Executor { stage, links, member: running.member, activity, placement, control, probes };
    let ran = executor.run(program, inputs);
    ran.map_err(|error| match error {
        StepError::Link(error) => link_failure(running.member, error),
        other => other.into(),
    })
}
