//! The loop: what happens to the stages becomes `lifecycle`'s `Observed`, and its decisions become signals and processes.
//! It waits on one channel, fed by a thread per stage and one for signals, and never longer than `lifecycle` wants.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use stagecoach_api::PipelineJob;
use stagecoach_api::contract::{ExitCode, StageEnv};
use stagecoach_lifecycle::{
    AttemptAction, AttemptPhase, Desired, InstanceState, JobFailureReason, JobOutcome, Observed, ObservedProgress,
    Policy, StageInstance, UnixMillis, decide,
};

use super::process::Process;
use super::record::fresh_uid;
use super::{LaunchError, Program, Record, port, report};
use crate::folder::JobFolder;
use crate::observe::{Event, Progress, Summary};

/// What is to be run, and where.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The job, validated; the folder's copy of it holds the same.
    pub job: &'a PipelineJob,
    /// The volume, as an absolute path.
    pub workspace: &'a Path,
    /// The job's folder, begun and locked.
    pub folder: &'a JobFolder,
    /// What a stage runs.
    pub program: &'a Program,
    /// Stage 0's port; a free one for every attempt if none.
    pub master_port: Option<u16>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// All stages trained to the end; what stage 0 said last.
    Complete(Option<Summary>),
    /// Asked to stop, and all stages have left.
    Stopped,
    /// Asked to stop again, and all stages were killed.
    Killed,
    /// Given up: the root cause's exit code.
    Failed(i32),
}

/// What the loop is told.
#[derive(Debug)]
pub(super) enum Message {
    /// Stage 0 told something.
    Event { attempt: u64, event: Box<Event> },
    /// A stage's process has ended.
    Ended { attempt: u64, stage: u32 },
    /// Someone wants the run to stop.
    Stop,
}

/// Runs a job until it is done, given up, or stopped by SIGINT, SIGTERM or SIGHUP; a second signal kills at once.
/// To be called from the thread that lives as long as the process: stages die with it. `record` is kept up to date, and
/// in the folder as far as the volume takes it.
///
/// # Errors
/// The launcher's own; the stages are killed then.
pub fn supervise(launch: Launch<'_>, record: &mut Record, progress: &mut Progress) -> Result<End, LaunchError> {
    let (outbox, inbox) = channel();
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(LaunchError::system("handle signals"))?;
    let stop = outbox.clone();
    let listen = move || {
        for signal in signals.forever() {
            if stop.send(Message::Stop).is_err() {
                // The run is over: the signal does what it always does.
                let _ = emulate_default_handler(signal);
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(listen).map_err(LaunchError::system("start a thread"))?;
    Supervisor::new(launch, record, progress, outbox).run(&inbox)
}

struct Supervisor<'a> {
    launch: Launch<'a>,
    record: &'a mut Record,
    progress: &'a mut Progress,
    outbox: Sender<Message>,
    policy: Policy,
    clock: Clock,
    processes: Vec<Process>,
    observed_progress: ObservedProgress,
    suspend: bool,
    summary: Option<Summary>,
    /// The folder doesn't hold the record as it is, and that has been told.
    record_fails: bool,
}

impl<'a> Supervisor<'a> {
    fn new(launch: Launch<'a>, record: &'a mut Record, progress: &'a mut Progress, outbox: Sender<Message>) -> Self {
        Self {
            policy: Policy::for_processes(&launch.job.spec),
            launch,
            record,
            progress,
            outbox,
            clock: Clock::new(),
            processes: Vec::new(),
            observed_progress: ObservedProgress::default(),
            suspend: false,
            summary: None,
            record_fails: false,
        }
    }

    fn run(mut self, inbox: &Receiver<Message>) -> Result<End, LaunchError> {
        let end = self.run_to_the_end(inbox);
        if self.record_fails {
            self.save_record();
        }
        end
    }

    fn run_to_the_end(&mut self, inbox: &Receiver<Message>) -> Result<End, LaunchError> {
        loop {
            let now = self.clock.now();
            let decision = decide(&self.observed(), now);
            let changed = decision.state != self.record.state;
            if changed {
                self.tell(&decision.state, now);
                self.record.state = decision.state;
            }
            if changed || self.record_fails {
                self.save_record();
            }
            let mut acted = false;
            for action in decision.actions {
                acted |= self.act(action)?;
            }
            if changed || acted {
                continue;
            }
            if let Some(end) = self.end() {
                return Ok(end);
            }
            let message = match decision.wake_at {
                Some(wake_at) => inbox.recv_timeout(Duration::from_millis(wake_at.0.saturating_sub(now.0).max(1))),
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match message {
                Ok(Message::Stop) if self.suspend => return Ok(self.kill()),
                Ok(message) => self.hear(message),
                // A deadline has come. The channel can't close: this struct holds one of its ends.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    /// Writes the record. A volume that doesn't take it costs no job: the record stays in memory, people are told once,
    /// and the next message, which every step brings, is the next try.
    fn save_record(&mut self) {
        let saved = self.record.save(self.launch.folder);
        match (&saved, self.record_fails) {
            (Err(error), false) => self.progress.say(&report::record_fails(error)),
            (Ok(()), true) => self.progress.say(&report::record_written(&self.launch.folder.record())),
            _ => {}
        }
        self.record_fails = saved.is_err();
    }

    fn observed(&self) -> Observed {
        let current = self.record.state.attempt.number;
        let listed = |process: &&Process| process.is_alive() || process.attempt == current;
        let instance = |process: &Process| StageInstance {
            stage: process.stage,
            attempt: process.attempt,
            state: process.state.clone(),
            since: process.at,
        };
        Observed {
            desired: Desired { stages: self.launch.job.spec.stages, revision: 0, suspend: self.suspend },
            policy: self.policy.clone(),
            state: self.record.state.clone(),
            instances: self.processes.iter().filter(listed).map(instance).collect(),
            progress: self.observed_progress,
        }
    }

    /// Says what a new state means, if it means anything to a person.
    fn tell(&mut self, state: &stagecoach_lifecycle::JobState, now: UnixMillis) {
        let old = &self.record.state;
        let failed_anew = state.last_failure.as_ref().filter(|failure| old.last_failure.as_ref() != Some(*failure));
        if let Some(failure) = failed_anew {
            let is_it = |process: &&Process| process.attempt == failure.attempt && Some(process.stage) == failure.stage;
            let log = self.processes.iter().find(is_it).map(Process::log_tail).unwrap_or_default();
            self.progress.say(&report::failure(failure, &log));
        }
        let gave_up =
            matches!(state.attempt_phase, AttemptPhase::Finished(JobOutcome::Failed(_))) && old.outcome().is_none();
        if failed_anew.is_some() || gave_up {
            self.progress.say(&report::next(state, &self.policy, now));
            self.progress.restarted(state.budget.total);
        }
    }

    /// Carries out an action; whether that changed what is observed.
    fn act(&mut self, action: AttemptAction) -> Result<bool, LaunchError> {
        let now = self.clock.now();
        match action {
            AttemptAction::StartAttempt { number, stages } => self.start(number, stages),
            AttemptAction::DeleteInstances { attempt, .. } => {
                let asked = self.processes.iter_mut().filter(|process| process.attempt == attempt);
                let asked = asked.filter_map(|process| process.ask_to_leave(now).then_some(())).count();
                let before = self.processes.len();
                // Who has left a drain on time still counts as done; otherwise the dead are of no more use.
                if matches!(self.record.state.attempt_phase, AttemptPhase::Idle | AttemptPhase::Running { .. }) {
                    self.processes.retain(|process| process.is_alive() || process.attempt != attempt);
                }
                Ok(asked > 0 || self.processes.len() < before)
            }
            AttemptAction::KillInstances { attempt } => {
                let leaving = |p: &&Process| p.attempt == attempt && p.state == InstanceState::Terminating;
                self.processes.iter().filter(leaving).for_each(Process::kill);
                // Its effect is seen when the processes have ended.
                Ok(false)
            }
        }
    }

    fn start(&mut self, attempt: u64, stages: u32) -> Result<bool, LaunchError> {
        self.processes.retain(Process::is_alive);
        self.observed_progress =
            ObservedProgress { checkpoint_step: self.observed_progress.checkpoint_step, ..ObservedProgress::default() };
        self.summary = None;
        let port = match self.launch.master_port {
            Some(port) => port,
            None => port::free()?,
        };
        for rank in 0..stages {
            let env = StageEnv {
                rank,
                world_size: stages,
                job: self.launch.job.metadata.name.clone(),
                job_uid: self.record.job_uid.clone(),
                attempt,
                config: self.launch.folder.job().display().to_string(),
                workspace: self.launch.workspace.display().to_string(),
                master_addr: "127.0.0.1".into(),
                master_port: port,
                pod_ip: "127.0.0.1".into(),
                pod_uid: fresh_uid(),
            };
            let (program, folder) = (self.launch.program, self.launch.folder);
            let process = Process::start(program, &env, folder, self.outbox.clone(), self.clock.now())?;
            self.processes.push(process);
        }
        Ok(true)
    }

    fn hear(&mut self, message: Message) {
        let now = self.clock.now();
        match message {
            Message::Stop => {
                self.suspend = true;
                self.progress.say("stopping: the stages finish their step and leave; once more kills them at once");
            }
            Message::Ended { attempt, stage } => {
                let is_it = |process: &&mut Process| process.attempt == attempt && process.stage == stage;
                self.processes.iter_mut().filter(is_it).for_each(|process| process.ended(now));
            }
            Message::Event { attempt, event } if attempt == self.record.state.attempt.number => {
                self.hear_event(*event, now)
            }
            // From an attempt that is over.
            Message::Event { .. } => {}
        }
    }

    fn hear_event(&mut self, event: Event, now: UnixMillis) {
        self.progress.event(&event);
        match event {
            Event::Preparing { .. } => self.observed_progress.last_preparation_at = Some(now),
            Event::Started(_) => {
                let current = self.record.state.attempt.number;
                for process in self.processes.iter_mut().filter(|process| process.attempt == current) {
                    if process.state == InstanceState::Starting {
                        (process.state, process.at) = (InstanceState::Ready, now);
                    }
                }
            }
            // `ObservedProgress::progressed` stays none: stalls are the stages' to detect, and they say who hangs.
            Event::Step(record) => self.observed_progress.finished_steps = Some(record.step),
            Event::Saved(save) => self.observed_progress.checkpoint_step = Some(save.step),
            Event::SaveFailed(_) | Event::Note { .. } => {}
            Event::Finished(summary) => self.summary = Some(summary),
        }
    }

    /// The end, once nothing runs any more.
    fn end(&mut self) -> Option<End> {
        if self.processes.iter().any(Process::is_alive) {
            return None;
        }
        let state = &self.record.state;
        match &state.attempt_phase {
            AttemptPhase::Finished(JobOutcome::Complete) => Some(End::Complete(self.summary.take())),
            AttemptPhase::Finished(JobOutcome::Failed(JobFailureReason::DeadlineExceeded)) => {
                Some(End::Failed(ExitCode::Failure.code()))
            }
            AttemptPhase::Finished(JobOutcome::Failed(_)) => {
                let code = state.last_failure.as_ref().and_then(|failure| failure.exit_code);
                Some(End::Failed(code.filter(|code| *code != 0).unwrap_or(ExitCode::Failure.code())))
            }
            AttemptPhase::Idle if self.suspend => {
                self.progress.say(&format!("stopped; {} when the job is run again", report::from(state)));
                Some(End::Stopped)
            }
            _ => None,
        }
    }

    fn kill(&mut self) -> End {
        self.progress.say("killing the stages");
        self.processes.iter().for_each(Process::kill);
        self.processes.clear();
        End::Killed
    }
}

/// Milliseconds since the Unix epoch that don't jump while the launcher lives.
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
