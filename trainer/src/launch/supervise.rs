//! The loop: what happens to the stages goes into `lifecycle::decide`, what it decides is carried out. All inputs come
//! through one channel; nothing polls.

use std::net::TcpListener;
use std::path::Path;
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use stagecoach_api::PipelineJob;
use stagecoach_api::contract::{StageEnv, TerminationMessage, env};
use stagecoach_lifecycle::{
    Action, Desired, Doing, Exit, Failure, Member, MemberState, Observed, Outcome, Policy, Report, Seen, decide,
};

use super::folder::{Folder, LaunchError};
use super::process::{self, Program};
use super::record::{Record, now, unique};
use crate::observe::{Event, Progress, Summary};

/// What the loop hears.
#[derive(Debug)]
pub(super) enum Input {
    /// Stage 0 said something.
    Event {
        /// Of which attempt.
        attempt: u64,
        /// What.
        event: Event,
    },
    /// A stage's process has ended.
    Ended {
        /// Of which attempt.
        attempt: u64,
        /// Which stage.
        stage: u32,
    },
    /// Ctrl-C or SIGTERM.
    Interrupt,
}

/// How a run ended.
#[derive(Debug)]
pub enum Ending {
    /// Trained to the end.
    Complete(Box<Summary>),
    /// Stopped as asked.
    Stopped,
    /// Given up; the cause has been told.
    Failed {
        /// The root cause's exit code.
        code: i32,
    },
    /// A second Ctrl-C.
    Killed,
}

struct Stage {
    member: Member,
    child: Child,
}

/// A job that runs here.
pub struct Supervisor<'a> {
    job: &'a PipelineJob,
    workspace: &'a Path,
    folder: &'a Folder,
    program: Program,
    record: Record,
    stages: Vec<Stage>,
    seen: Seen,
    interrupts: u32,
    summary: Option<Summary>,
    progress: Progress,
    sender: Sender<Input>,
    inputs: Receiver<Input>,
}

impl<'a> Supervisor<'a> {
    /// Ready to run `job`, whose folder is held by a lock.
    ///
    /// # Errors
    /// If signals can't be had.
    pub fn new(job: &'a PipelineJob, workspace: &'a Path, folder: &'a Folder) -> Result<Supervisor<'a>, LaunchError> {
        let (sender, inputs) = channel();
        let failed = |source| LaunchError::System { doing: "handle signals", source };
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
        let interrupts = sender.clone();
        std::thread::spawn(move || signals.forever().for_each(|_| drop(interrupts.send(Input::Interrupt))));
        Ok(Supervisor {
            job,
            workspace,
            folder,
            program: Program::this()?,
            record: Record::open(folder),
            stages: Vec::new(),
            seen: Seen::default(),
            interrupts: 0,
            summary: None,
            progress: Progress::on_stdout(),
            sender,
            inputs,
        })
    }

    /// Restarts of this run so far.
    pub fn restarts(&self) -> u32 {
        self.record.state.budget.total
    }

    /// Runs the job to its end.
    ///
    /// # Errors
    /// What keeps the launcher itself from going on; its stages die with it.
    pub fn run(&mut self) -> Result<Ending, LaunchError> {
        loop {
            let observed = self.observe();
            let decision = decide(&observed, now());
            if decision.state != self.record.state {
                let before = std::mem::replace(&mut self.record.state, decision.state);
                self.record.write(self.folder)?;
                self.tell(&before.last_failure);
                if self.record.state.attempt.number != before.attempt.number {
                    self.seen = Seen::default();
                }
            }
            for action in decision.actions {
                self.act(&action)?;
            }
            if let Some(ending) = self.ending() {
                self.progress.clear();
                return Ok(ending);
            }
            let patience = decision.wake.map(|wake| Duration::from_millis(wake.0.saturating_sub(now().0)));
            let heard = match patience {
                Some(patience) => self.inputs.recv_timeout(patience),
                None => self.inputs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            if let Ok(input) = heard {
                self.hear(input);
            }
            while let Ok(input) = self.inputs.try_recv() {
                self.hear(input);
            }
            if self.interrupts > 1 {
                self.stages.iter().for_each(|stage| process::signal(&stage.child, libc::SIGKILL));
                self.progress.clear();
                return Ok(Ending::Killed);
            }
        }
    }

    fn observe(&self) -> Observed {
        Observed {
            desired: Desired { stages: self.job.spec.stages, revision: 0, suspend: self.interrupts > 0 },
            policy: Policy::for_processes(&self.job.spec),
            state: self.record.state.clone(),
            members: self.stages.iter().map(|stage| stage.member.clone()).collect(),
            seen: self.seen,
        }
    }

    fn ending(&mut self) -> Option<Ending> {
        match (&self.record.state.doing, self.record.state.last_failure.as_ref()) {
            (Doing::Finished(Outcome::Complete), _) => Some(match self.summary.take() {
                Some(summary) => Ending::Complete(Box::new(summary)),
                None => Ending::Failed { code: 1 },
            }),
            (Doing::Finished(Outcome::Failed(_)), failure) if self.stages.iter().all(|s| is_over(&s.member)) => {
                Some(Ending::Failed { code: failure.and_then(|f| f.code).unwrap_or(1) })
            }
            (Doing::Idle, _) if self.interrupts > 0 && self.stages.iter().all(|s| is_over(&s.member)) => {
                Some(Ending::Stopped)
            }
            _ => None,
        }
    }

    fn hear(&mut self, input: Input) {
        match input {
            Input::Interrupt => {
                self.interrupts += 1;
                if self.interrupts == 1 {
                    self.progress.say("asking the stages to stop at the next step; Ctrl-C again leaves at once");
                }
            }
            Input::Ended { attempt, stage } => self.reap(attempt, stage),
            Input::Event { attempt, event } if attempt == self.record.state.attempt.number => {
                match &event {
                    Event::Preparing { .. } => self.seen.prepared = Some(now()),
                    Event::Started(_) => {
                        for stage in self.stages.iter_mut().filter(|s| s.member.state == MemberState::Starting) {
                            stage.member.state = MemberState::Ready;
                        }
                    }
                    Event::Step(record) => {
                        (self.seen.step, self.seen.progressed) = (Some(record.step), Some(now()));
                    }
                    Event::Finished(summary) => self.summary = Some(summary.clone()),
                    Event::Note { .. } => {}
                }
                self.progress.event(&event);
            }
            Input::Event { .. } => {}
        }
    }

    fn reap(&mut self, attempt: u64, stage: u32) {
        use std::os::unix::process::ExitStatusExt;
        let found = self.stages.iter_mut().find(|s| s.member.attempt == attempt && s.member.stage == stage);
        let Some(Stage { member, child }) = found else { return };
        let status = child.wait().ok();
        let words = std::fs::read_to_string(self.folder.last_words(stage)).ok();
        let report = words.and_then(|text| TerminationMessage::from_json(&text)).map(|words| Report::from(&words));
        member.state = MemberState::Exited(Exit {
            code: status.and_then(|s| s.code()),
            signal: status.and_then(|s| s.signal()),
            external: None,
            report,
        });
        member.at = now();
        // of an older attempt only the living count
        let current = self.record.state.attempt.number;
        self.stages.retain(|s| s.member.attempt == current || !is_over(&s.member));
    }

    fn act(&mut self, action: &Action) -> Result<(), LaunchError> {
        match *action {
            Action::StartAttempt { number, stages } => self.start(number, stages),
            Action::DeleteMembers { attempt, .. } => {
                for stage in self.stages.iter_mut().filter(|s| s.member.attempt == attempt && !is_over(&s.member)) {
                    process::signal(&stage.child, libc::SIGTERM);
                    stage.member.state = MemberState::Terminating;
                    stage.member.at = now();
                }
                self.stages.retain(|s| s.member.attempt != attempt || !is_over(&s.member));
                Ok(())
            }
            Action::KillMembers { attempt } => {
                for stage in self.stages.iter().filter(|s| s.member.attempt == attempt && !is_over(&s.member)) {
                    process::signal(&stage.child, libc::SIGKILL);
                }
                Ok(())
            }
        }
    }

    fn start(&mut self, attempt: u64, stages: u32) -> Result<(), LaunchError> {
        let port = master_port()?;
        for rank in 0..stages {
            let present = |s: &Stage| s.member.attempt == attempt && s.member.stage == rank;
            if self.stages.iter().any(present) {
                continue;
            }
            let path = |path: &Path| path.to_string_lossy().into_owned();
            let env = StageEnv {
                rank,
                world_size: stages,
                job: self.job.metadata.name.clone(),
                job_uid: self.record.job_uid.clone(),
                attempt,
                config: path(&self.folder.job()),
                workspace: path(self.workspace),
                master_addr: "127.0.0.1".into(),
                master_port: port,
                pod_ip: "127.0.0.1".into(),
                pod_uid: unique(),
            };
            let threads = self.job.spec.training.as_ref().map_or(1, |t| t.threads);
            let child = process::start(&self.program, &env, self.folder, threads, &self.sender)?;
            process::watch(&child, attempt, rank, &self.sender);
            let member = Member { stage: rank, attempt, state: MemberState::Starting, at: now() };
            self.stages.push(Stage { member, child });
        }
        Ok(())
    }

    /// Tells of a failure that is new since `before`, and what follows from it.
    fn tell(&mut self, before: &Option<Failure>) {
        let state = &self.record.state;
        let Some(failure) = state.last_failure.as_ref().filter(|failure| Some(*failure) != before.as_ref()) else { return };
        let who = failure.stage.map_or_else(|| "the group".to_owned(), |stage| format!("stage {stage}"));
        let mut sentences = vec![format!("{who} failed ({}): {}", failure.label(), failure.message)];
        if let Some(tail) = failure.stage.and_then(|stage| log_tail(&self.folder.log(stage), failure)) {
            sentences.push(tail);
        }
        sentences.push(match &state.doing {
            Doing::Finished(Outcome::Failed(reason)) => format!("giving up: {reason:?}"),
            Doing::Running { not_before, .. } => {
                let wait = not_before.0.saturating_sub(now().0).div_ceil(1000);
                format!(
                    "starting attempt {} in {wait} s; without checkpoints, training starts again at step 0",
                    state.attempt.number
                )
            }
            _ => "stopping".into(),
        });
        let restarts = state.budget.total;
        for sentence in sentences {
            self.progress.say(&sentence);
        }
        self.progress.restarted(restarts);
    }
}

fn is_over(member: &Member) -> bool {
    matches!(member.state, MemberState::Exited(_))
}

/// Where stage 0 will listen: the user's MASTER_PORT, or a port that is free now.
fn master_port() -> Result<u16, LaunchError> {
    if let Some(port) = std::env::var(env::MASTER_PORT).ok().and_then(|port| port.parse().ok()) {
        return Ok(port);
    }
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|source| LaunchError::System { doing: "find a free port", source })
}

/// The end of a stage's log, unless it only repeats what is known.
fn log_tail(path: &Path, failure: &Failure) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let this_attempt = text.rsplit("--- attempt ").next()?.split_once("---\n").map(|(_, rest)| rest)?;
    let lines: Vec<&str> = this_attempt.lines().filter(|line| !line.contains(failure.message.as_str())).collect();
    let tail = lines[lines.len().saturating_sub(5)..].join("\n    ");
    (!tail.is_empty()).then(|| format!("  the end of {}:\n    {tail}", path.display()))
}

