//! The launcher's loop. The loop builds an `Observed` from the stages' processes, passes the `Observed` to `lifecycle`
//! (the job's state machine), and carries out the decisions of `lifecycle`. The loop receives messages from one
//! channel, and waits at most until the next time at which `lifecycle` must decide. One thread for each stage and one
//! thread for signals send the messages.

mod actions;
mod clock;
mod messages;
mod recovery;
mod signals;
#[cfg(test)]
pub(super) mod tests;

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use stagecoach_api::PipelineJob;
use stagecoach_api::contract::ExitCode;
use stagecoach_lifecycle::{
    Admission, AttemptPhase, Decision, Desired, FailurePolicy, JobFailureReason, JobOutcome, Observed,
    ObservedProgress, UnixMillis, decide,
};
use stagecoach_telemetry::{ProgressDisplay, RunSummary};

use super::stage_processes::StageProcesses;
use super::{LaunchError, LauncherState, StageExecutable, report};
use crate::folder::JobFolder;
use crate::supervisor_message::SupervisorMessage;
use clock::Clock;
use recovery::LastStart;
use signals::forward_signals;

/// A run's job, folders and executable.
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig<'a> {
    /// The validated job. It equals the resolved job in the folder.
    pub job: &'a PipelineJob,
    /// The workspace, an absolute path.
    pub workspace: &'a Path,
    /// The job's folder, locked and prepared by `start_run`.
    pub folder: &'a JobFolder,
    /// Counts the GPUs of this machine.
    pub count_gpus: fn() -> usize,
    /// The program of the stages.
    pub executable: &'a StageExecutable,
}

/// The way in which a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum RunOutcome {
    /// The job trained to the end. The value is the result of the leader, if the leader reported a result.
    Complete(Option<Box<RunSummary>>),
    /// A signal stopped the run, and all stages have exited.
    Stopped,
    /// A second signal stopped the run, and the launcher killed all stages.
    Killed,
    /// The job failed. The value is the exit code of the root cause, or of `ExitCode::Failure` if the root cause has no
    /// exit code.
    Failed(i32),
}

/// Runs a job until it completes or fails, or until SIGINT, SIGTERM or SIGHUP stops it. A second signal kills the
/// stages. Call this from a thread that lives as long as the process, since the stages die with the thread. Updates
/// `state`, and saves it unless the volume fails.
///
/// # Errors
/// Returns an error if the launcher itself fails. In this case, the launcher kills the stages.
pub fn supervise(
    config: LaunchConfig<'_>,
    state: &mut LauncherState,
    display: &mut ProgressDisplay,
) -> Result<RunOutcome, LaunchError> {
    let (sender, receiver) = channel();
    forward_signals(sender.clone())?;
    Supervisor::new(config, state, display, sender).run(&receiver)
}

struct Supervisor<'a> {
    config: LaunchConfig<'a>,
    stored: &'a mut LauncherState,
    display: &'a mut ProgressDisplay,
    sender: Sender<SupervisorMessage>,
    policy: FailurePolicy,
    clock: Clock,
    processes: StageProcesses,
    observed_progress: ObservedProgress,
    stop_requested: bool,
    summary: Option<RunSummary>,
    /// Whether the last save of the state failed and the failure was reported.
    state_unsaved: bool,
    /// Whether the recovery in the state has changed since the last save.
    recovery_unsaved: bool,
    /// The last start of training.
    last_start: Option<LastStart>,
}

impl<'a> Supervisor<'a> {
    fn new(
        config: LaunchConfig<'a>,
        stored: &'a mut LauncherState,
        display: &'a mut ProgressDisplay,
        sender: Sender<SupervisorMessage>,
    ) -> Self {
        Self {
            policy: FailurePolicy::for_processes(&config.job.spec),
            config,
            stored,
            display,
            sender,
            clock: Clock::new(),
            processes: StageProcesses::default(),
            observed_progress: ObservedProgress::default(),
            stop_requested: false,
            summary: None,
            state_unsaved: false,
            recovery_unsaved: false,
            last_start: None,
        }
    }

    fn run(mut self, receiver: &Receiver<SupervisorMessage>) -> Result<RunOutcome, LaunchError> {
        let outcome = self.run_loop(receiver);
        if self.state_unsaved {
            self.save_state();
        }
        outcome
    }

    fn run_loop(&mut self, receiver: &Receiver<SupervisorMessage>) -> Result<RunOutcome, LaunchError> {
        loop {
            let now = self.clock.now();
            let decision = decide(&self.observe(), now);
            let changed = decision.state != self.stored.state;
            if changed {
                self.report_transition(&decision, now);
                self.stored.state = decision.state;
            }
            let replicas = std::mem::replace(&mut self.stored.training_replicas, decision.training_replicas);
            let other_replicas = replicas != decision.training_replicas;
            if changed || other_replicas || self.state_unsaved || self.recovery_unsaved {
                self.save_state();
            }
            let mut acted = false;
            for action in decision.actions {
                acted |= self.apply_action(action)?;
            }
            if changed || acted {
                continue;
            }
            if let Some(outcome) = self.outcome() {
                return Ok(outcome);
            }
            let message = match decision.wake_at {
                Some(wake_at) => receiver.recv_timeout(Duration::from_millis(wake_at.0.saturating_sub(now.0).max(1))),
                None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match message {
                Ok(SupervisorMessage::StopRequested) if self.stop_requested => return Ok(self.kill_all()),
                Ok(message) => self.handle_message(message),
                // The time of the next decision has come. The channel can't be disconnected, since `self` has a sender.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Saves the state. A failed save does not end the job. The launcher reports the failure once, and the loop tries
    /// to save again after the next message, which arrives at the next step at the latest.
    fn save_state(&mut self) {
        let saved = self.stored.save(self.config.folder);
        self.recovery_unsaved = false;
        match (&saved, self.state_unsaved) {
            (Err(error), false) => self.display.print_line(&report::state_not_saved(error)),
            (Ok(()), true) => self.display.print_line(&report::state_saved(&self.config.folder.launcher_state())),
            _ => {}
        }
        self.state_unsaved = saved.is_err();
    }

    fn observe(&self) -> Observed {
        Observed {
            desired: Desired {
                mesh: self.config.job.spec.mesh(),
                revision: 0,
                suspend: self.stop_requested,
                admission: Admission::NotRequired,
                admitted_replicas: None,
            },
            policy: self.policy.clone(),
            state: self.stored.state.clone(),
            instances: self.processes.instances(self.stored.state.attempt.number),
            spares: self.processes.spares(),
            refusal: None,
            progress: self.observed_progress,
        }
    }

    /// Prints the change of the state for the user, and begins the recovery from a new failure.
    fn report_transition(&mut self, decision: &Decision, now: UnixMillis) {
        let (old, state) = (&self.stored.state, &decision.state);
        let new_failure = state.last_failure.as_ref().filter(|failure| old.last_failure.as_ref() != Some(*failure));
        let gave_up =
            matches!(state.attempt_phase, AttemptPhase::Finished(JobOutcome::Failed(_))) && old.outcome().is_none();
        if let Some(failure) = new_failure {
            let log = self.processes.log_tail(failure.attempt, failure.rank);
            self.display.print_line(&report::attempt_failed(failure, &log));
            let recovery = self.recovery(failure);
            self.stored.begin_recovery(failure, recovery);
        }
        if new_failure.is_some() || gave_up {
            let is_in_memory = self.config.job.spec.memory_checkpoints().is_some();
            self.display.print_line(&report::restarting_or_giving_up(decision, &self.policy, is_in_memory, now));
            self.display.set_restarts(state.budget.total);
        }
    }

    /// Returns the outcome if the run is over and all stages have exited.
    fn outcome(&mut self) -> Option<RunOutcome> {
        if self.processes.any_alive() {
            return None;
        }
        let state = &self.stored.state;
        match &state.attempt_phase {
            AttemptPhase::Finished(JobOutcome::Complete) => {
                Some(RunOutcome::Complete(self.summary.take().map(Box::new)))
            }
            AttemptPhase::Finished(JobOutcome::Failed(JobFailureReason::DeadlineExceeded)) => {
                Some(RunOutcome::Failed(ExitCode::Failure.code()))
            }
            AttemptPhase::Finished(JobOutcome::Failed(_)) => {
                let code = state.last_failure.as_ref().and_then(|failure| failure.exit_code);
                Some(RunOutcome::Failed(code.filter(|code| *code != 0).unwrap_or(ExitCode::Failure.code())))
            }
            AttemptPhase::Idle if self.stop_requested => {
                self.display.print_line(&format!("stopped; in the next run {}", report::starting_point(state)));
                Some(RunOutcome::Stopped)
            }
            _ => None,
        }
    }

    fn kill_all(&mut self) -> RunOutcome {
        self.display.print_line("killing the stages");
        self.processes.kill_all();
        RunOutcome::Killed
    }
}
