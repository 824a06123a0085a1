//! Carries out the decisions of `lifecycle`: starts, stops and forgets processes.

use stagecoach_api::contract::{MASTER_PORT, StageEnv};
use stagecoach_files::random_hex;
use stagecoach_lifecycle::{AttemptAction, AttemptPhase, InstanceId, ObservedProgress};

use super::super::LaunchError;
use super::super::nccl_host::nccl_host_id;
use super::super::stage_process::StageProcess;
use super::{LaunchConfig, Supervisor};

impl Supervisor<'_> {
    /// Carries out an action. Returns whether the action immediately changes the result of `observe`.
    pub(super) fn apply_action(&mut self, action: AttemptAction) -> Result<bool, LaunchError> {
        let now = self.clock.now();
        match action {
            AttemptAction::StartAttempt { number, instances, .. } => {
                self.processes.forget_all_exited();
                self.observed_progress = ObservedProgress {
                    checkpoint_step: self.observed_progress.checkpoint_step,
                    ..ObservedProgress::default()
                };
                let mut instances = (0..instances).map(|rank| InstanceId { rank, incarnation: 0 });
                instances.try_for_each(|instance| self.start_stage(number, instance)).map(|()| true)
            }
            AttemptAction::ReplaceStages { attempt, incarnations } => {
                let mut instances =
                    incarnations.into_iter().map(|(rank, incarnation)| InstanceId { rank, incarnation });
                instances.try_for_each(|instance| self.start_stage(attempt, instance)).map(|()| true)
            }
            AttemptAction::StartSpares { attempt, numbers } => {
                numbers.into_iter().try_for_each(|number| self.start_spare(attempt, number)).map(|()| true)
            }
            AttemptAction::RemoveSpares { attempt, numbers } => Ok(self.processes.kill_spares(attempt, &numbers)),
            AttemptAction::RemoveReplaced { attempt, incarnations } => {
                Ok(self.processes.kill_replaced(attempt, &incarnations))
            }
            AttemptAction::DeleteInstances { attempt, .. } => {
                let terminated = self.processes.terminate(attempt, now);
                // While the attempt drains, the exit of a stage shows that the stage has saved its state. In the phases
                // Idle and Running, `lifecycle` does not need the exited processes.
                let needless =
                    matches!(self.stored.state.attempt_phase, AttemptPhase::Idle | AttemptPhase::Running { .. });
                let forgotten = needless && self.processes.forget_exited(attempt);
                Ok(terminated || forgotten)
            }
            AttemptAction::KillInstances { attempt } => {
                self.processes.kill_terminating(attempt);
                // `observe` reports the exits of the processes later
                Ok(false)
            }
        }
    }

    /// Starts a stage, unless the list of processes already has it.
    fn start_stage(&mut self, attempt: u64, instance: InstanceId) -> Result<(), LaunchError> {
        self.summary = None;
        match self.processes.contains(attempt, instance) {
            true => Ok(()),
            false => self.start(attempt, instance, None),
        }
    }

    /// Starts a spare, unless the list of processes already has it.
    fn start_spare(&mut self, attempt: u64, number: u32) -> Result<(), LaunchError> {
        match self.processes.contains_spare(attempt, number) {
            true => Ok(()),
            false => self.start(attempt, InstanceId { rank: 0, incarnation: 0 }, Some(number)),
        }
    }

    fn start(&mut self, attempt: u64, instance: InstanceId, spare: Option<u32>) -> Result<(), LaunchError> {
        let stage_env = StageEnv {
            rank: instance.rank,
            mesh: self.stored.state.attempt.mesh,
            job: self.config.job.metadata.name.clone(),
            job_uid: self.stored.job_uid.clone(),
            attempt,
            incarnation: instance.incarnation,
            spare,
            config: self.config.folder.resolved_job().display().to_string(),
            workspace: self.config.workspace.display().to_string(),
            master_addr: "127.0.0.1".into(),
            master_port: MASTER_PORT,
            pod_ip: "127.0.0.1".into(),
            pod_uid: random_hex(),
        };
        let LaunchConfig { executable, folder, .. } = self.config;
        let now = self.clock.now();
        let nccl_host = nccl_host_id(&stage_env, &self.config.job.spec, self.config.count_gpus);
        self.processes.push(StageProcess::start(executable, &stage_env, nccl_host, folder, self.sender.clone(), now)?);
        if spare.is_none() {
            self.note_recovery(|recovery| recovery.note_started(now));
        }
        Ok(())
    }
}
