//! The launcher's loop: builds `lifecycle`'s `Observed` from the stages' processes and carries out its decisions. It waits
//! on one channel, which a thread per stage and one for signals send to, until `lifecycle` wants to decide again.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use stagecoach_api::PipelineJob;
use stagecoach_api::contract::{ExitCode, MASTER_PORT, StageEnv};
use stagecoach_files::random_hex;
use stagecoach_lifecycle::{
    AttemptAction, AttemptFailure, AttemptPhase, Decision, Desired, InstanceId, JobFailureReason, JobOutcome,
    LostInstance, Observed, ObservedProgress, Policy, UnixMillis, decide,
};

use super::launcher_state::{Recovery, is_same_end};
use super::stage_process::StageProcess;
use super::stage_processes::StageProcesses;
use super::{LaunchError, LauncherState, StageExecutable, report};
use crate::folder::JobFolder;
use crate::observe::{ProgressDisplay, RunSummary, TrainingEvent};

/// A run's job, folders and executable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchConfig<'a> {
    /// The validated job; the folder has the same as its resolved job.
    pub(crate) job: &'a PipelineJob,
    /// The workspace, an absolute path.
    pub(crate) workspace: &'a Path,
    /// The job's folder, locked and prepared by `start_run`.
    pub(crate) folder: &'a JobFolder,
    /// The program that stages run.
    pub(crate) executable: &'a StageExecutable,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RunOutcome {
    /// All stages trained to the end; stage 0's result, if it reported one.
    Complete(Option<RunSummary>),
    /// Stopped by a signal; all stages have exited.
    Stopped,
    /// Stopped by a second signal; all stages were killed.
    Killed,
    /// The job failed; the root cause's exit code.
    Failed(i32),
}

/// A message to the loop.
#[derive(Debug)]
pub(super) enum SupervisorMessage {
    /// Stage 0 emitted an event.
    Event { attempt: u64, event: Box<TrainingEvent> },
    /// A process has exited; it is not reaped yet, so that its id is its own.
    Exited { pid: Pid },
    /// The launcher received a signal to stop.
    StopRequested,
}

/// Runs a job until it completes, fails, or is stopped by SIGINT, SIGTERM or SIGHUP; a second signal kills the stages. To be
/// called from a thread that lives as long as the process, since the stages die with it. `state` is updated, and saved
/// unless the volume fails.
///
/// # Errors
/// Failures of the launcher itself; the stages are killed.
pub(crate) fn supervise(
    config: LaunchConfig<'_>,
    state: &mut LauncherState,
    display: &mut ProgressDisplay,
) -> Result<RunOutcome, LaunchError> {
    let (sender, receiver) = channel();
    forward_signals(sender.clone())?;
    Supervisor::new(config, state, display, sender).run(&receiver)
}

/// Sends SIGINT, SIGTERM and SIGHUP to the run that goes on. A process may have several runs, one after the other: all are
/// served by one thread.
fn forward_signals(sender: Sender<SupervisorMessage>) -> Result<(), LaunchError> {
    static RUNNING: Mutex<Option<Sender<SupervisorMessage>>> = Mutex::new(None);
    if RUNNING.lock().unwrap_or_else(PoisonError::into_inner).replace(sender).is_some() {
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(LaunchError::system("handle signals"))?;
    let forward = move || {
        for signal in signals.forever() {
            let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            if running.as_ref().is_none_or(|sender| sender.send(SupervisorMessage::StopRequested).is_err()) {
                // no run goes on: the signal has its default effect
                let _ = emulate_default_handler(signal);
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(forward).map_err(LaunchError::system("start a thread"))?;
    Ok(())
}

struct Supervisor<'a> {
    config: LaunchConfig<'a>,
    stored: &'a mut LauncherState,
    display: &'a mut ProgressDisplay,
    sender: Sender<SupervisorMessage>,
    policy: Policy,
    clock: Clock,
    processes: StageProcesses,
    observed_progress: ObservedProgress,
    stop_requested: bool,
    summary: Option<RunSummary>,
    /// The last save of the state failed, and that was reported.
    state_unsaved: bool,
    /// The state has a recovery that was not saved yet.
    recovery_unsaved: bool,
    /// When training started last.
    last_start: Option<LastStart>,
}

/// When training started.
#[derive(Clone, Copy, Debug)]
struct LastStart {
    at: UnixMillis,
    /// The last step that was finished before.
    finished_step: Option<u64>,
    first_step: u64,
}

impl<'a> Supervisor<'a> {
    fn new(
        config: LaunchConfig<'a>,
        stored: &'a mut LauncherState,
        display: &'a mut ProgressDisplay,
        sender: Sender<SupervisorMessage>,
    ) -> Self {
        Self {
            policy: Policy::for_processes(&config.job.spec),
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
                // it is time to decide again; the channel can't be disconnected, since `self` has a sender
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Saves the state. A failure does not end the job: it is reported once, and the save is tried again at the next message,
    /// which comes at the next step at the latest.
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
            desired: Desired { mesh: self.config.job.spec.mesh(), revision: 0, suspend: self.stop_requested },
            policy: self.policy.clone(),
            state: self.stored.state.clone(),
            instances: self.processes.instances(self.stored.state.attempt.number),
            spares: self.processes.spares(),
            refusal: None,
            progress: self.observed_progress,
        }
    }

    /// Prints what a new state means for the user.
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

    /// Where training stood at a failure that is new, or of which more is known, and where it went on if it has.
    fn recovery(&self, failure: &AttemptFailure) -> Recovery {
        let known = self.stored.state.last_failure.as_ref().is_some_and(|known| is_same_end(known, failure));
        if let Some(recovery) = self.stored.recovery.filter(|_| known) {
            return Recovery { failed_at: failure.failed_at, ..recovery };
        }
        // how a stage ended may be known only after a spare has taken its place and training has started
        let went_on = |start: &LastStart| {
            start.at >= failure.failed_at
                || failure.instance_id().is_some_and(|instance| self.processes.is_replaced(failure.attempt, instance))
        };
        let finished = self.observed_progress.finished_steps.or(self.stored.state.best_step);
        let begun = Recovery { failed_at: failure.failed_at, finished_step: finished, ..Recovery::default() };
        match self.last_start.filter(went_on) {
            Some(LastStart { at, finished_step, first_step }) => {
                Recovery { finished_step, first_step: Some(first_step), loaded_at: Some(at), ..begun }
            }
            None => begun,
        }
    }

    /// Notes how far the recovery is that is under way, if there is one.
    fn note_recovery(&mut self, note: impl FnOnce(&mut Recovery)) {
        let Some(recovery) = self.stored.recovery.as_mut().filter(|recovery| recovery.first_step_at.is_none()) else {
            return;
        };
        let before = *recovery;
        note(recovery);
        self.recovery_unsaved |= *recovery != before;
    }

    /// Carries out an action. True if `observe` returns something else afterwards.
    fn apply_action(&mut self, action: AttemptAction) -> Result<bool, LaunchError> {
        let now = self.clock.now();
        match action {
            AttemptAction::StartAttempt { number, mesh } => {
                self.processes.forget_all_exited();
                self.observed_progress = ObservedProgress {
                    checkpoint_step: self.observed_progress.checkpoint_step,
                    ..ObservedProgress::default()
                };
                let instances = (0..mesh.ranks()).map(|rank| InstanceId { rank, incarnation: 0 });
                instances.into_iter().try_for_each(|instance| self.start_stage(number, instance)).map(|()| true)
            }
            AttemptAction::ReplaceStages { attempt, incarnations } => {
                let mut instances =
                    incarnations.into_iter().map(|(rank, incarnation)| InstanceId { rank, incarnation });
                instances.try_for_each(|instance| self.start_stage(attempt, instance)).map(|()| true)
            }
            AttemptAction::StartSpares { attempt, numbers } => {
                numbers.into_iter().try_for_each(|number| self.start_spare(attempt, number)).map(|()| true)
            }
            AttemptAction::RemoveSpares { attempt, numbers } => Ok(self.processes.forget_spares(attempt, &numbers)),
            AttemptAction::RemoveReplaced { attempt, incarnations } => {
                Ok(self.processes.forget_replaced(attempt, &incarnations))
            }
            AttemptAction::DeleteInstances { attempt, .. } => {
                let terminated = self.processes.terminate(attempt, now);
                // while draining, the exits of stages show that they have saved; otherwise exited ones are not needed
                let needless =
                    matches!(self.stored.state.attempt_phase, AttemptPhase::Idle | AttemptPhase::Running { .. });
                let forgotten = needless && self.processes.forget_exited(attempt);
                Ok(terminated || forgotten)
            }
            AttemptAction::KillInstances { attempt } => {
                self.processes.kill_terminating(attempt);
                // observed when the processes have exited
                Ok(false)
            }
        }
    }

    /// Starts a stage, unless it has been.
    fn start_stage(&mut self, attempt: u64, instance: InstanceId) -> Result<(), LaunchError> {
        self.summary = None;
        match self.processes.contains(attempt, instance) {
            true => Ok(()),
            false => self.start(attempt, instance, None),
        }
    }

    /// Starts a spare, unless it has been.
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
        self.processes.push(StageProcess::start(executable, &stage_env, folder, self.sender.clone(), now)?);
        if spare.is_none() {
            self.note_recovery(|recovery| recovery.note_started(now));
        }
        Ok(())
    }

    fn handle_message(&mut self, message: SupervisorMessage) {
        let now = self.clock.now();
        match message {
            SupervisorMessage::StopRequested => {
                self.stop_requested = true;
                self.display
                    .print_line("stopping: the stages finish their step, save and exit; a second signal kills them");
            }
            SupervisorMessage::Exited { pid } => self.processes.reap(pid, now),
            SupervisorMessage::Event { attempt, event } if attempt == self.stored.state.attempt.number => {
                self.handle_event(*event, now)
            }
            // of an earlier attempt
            SupervisorMessage::Event { .. } => {}
        }
    }

    fn handle_event(&mut self, event: TrainingEvent, now: UnixMillis) {
        let is_known_loss = self.observed_progress.lost.is_some_and(
            |lost| matches!(event, TrainingEvent::StageLost { stage, incarnation, .. } if (stage, incarnation) == (lost.rank, lost.incarnation)),
        );
        if !is_known_loss {
            self.display.update(&event);
        }
        let attempt = self.stored.state.attempt.number;
        match event {
            TrainingEvent::Preparing { .. } => self.observed_progress.last_preparation_at = Some(now),
            TrainingEvent::Started(start) => {
                self.observed_progress.lost = None;
                let finished_step = self.observed_progress.finished_steps;
                self.last_start = Some(LastStart { at: now, finished_step, first_step: start.first_step });
                self.note_recovery(|recovery| {
                    recovery.first_step.get_or_insert(start.first_step);
                    recovery.loaded_at.get_or_insert(now);
                });
                self.processes.set_ready(attempt, &start.incarnations, now);
            }
            TrainingEvent::StageLost { stage, incarnation, .. } => {
                // how a process of this machine has ended is known as early
                let lost = LostInstance { rank: stage, incarnation, since: now, has_ended: false };
                self.observed_progress.lost.get_or_insert(lost);
            }
            // `ObservedProgress::progressed` stays None: the stages detect stalls themselves, and know which stage hangs
            TrainingEvent::Step(record) => {
                self.observed_progress.finished_steps = Some(record.step);
                self.note_recovery(|recovery| recovery.first_step_at = recovery.loaded_at.map(|_| now));
            }
            TrainingEvent::Saved(save) => self.observed_progress.checkpoint_step = Some(save.step),
            TrainingEvent::StandingBy { spare } => self.processes.set_standing_by(attempt, spare, now),
            TrainingEvent::TookPlace { spare, stage, incarnation } => {
                self.processes.take_place(attempt, spare, InstanceId { rank: stage, incarnation }, now);
                self.note_recovery(|recovery| recovery.note_started(now));
            }
            TrainingEvent::SaveFailed(_) | TrainingEvent::AuditDiffers(_) | TrainingEvent::Note { .. } => {}
            TrainingEvent::Finished(summary) => self.summary = Some(summary),
        }
    }

    /// The outcome, if the run is over and all stages have exited.
    fn outcome(&mut self) -> Option<RunOutcome> {
        if self.processes.any_alive() {
            return None;
        }
        let state = &self.stored.state;
        match &state.attempt_phase {
            AttemptPhase::Finished(JobOutcome::Complete) => Some(RunOutcome::Complete(self.summary.take())),
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

/// Unix time that is monotonic while the launcher lives, even if the system's clock is changed.
struct Clock {
    epoch: Duration,
    started: Instant,
}

impl Clock {
    fn new() -> Self {
        Self { epoch: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), started: Instant::now() }
    }

    fn now(&self) -> UnixMillis {
        UnixMillis((self.epoch + self.started.elapsed()).as_millis() as u64)
    }
}

#[cfg(test)]
pub(super) mod tests;
