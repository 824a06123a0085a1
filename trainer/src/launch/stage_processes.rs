//! The stages' processes of all attempts that have not been forgotten.

use std::collections::BTreeMap;

use stagecoach_lifecycle::{InstanceState, StageInstance, UnixMillis};

use super::stage_process::StageProcess;

/// The processes of the current attempt, exited ones among them, and those of earlier attempts that are still alive.
#[derive(Debug, Default)]
pub(super) struct StageProcesses(Vec<StageProcess>);

impl StageProcesses {
    pub(super) fn push(&mut self, process: StageProcess) {
        self.0.push(process);
    }

    pub(super) fn any_alive(&self) -> bool {
        self.0.iter().any(StageProcess::is_alive)
    }

    /// As `lifecycle` observes them, in attempt `current`.
    pub(super) fn instances(&self, current: u64) -> Vec<StageInstance> {
        let listed = |process: &&StageProcess| process.is_alive() || process.attempt == current;
        let instance = |process: &StageProcess| StageInstance {
            stage: process.stage,
            attempt: process.attempt,
            incarnation: process.incarnation,
            state: process.state.clone(),
            since: process.since,
            pod_conditions: Vec::new(),
        };
        self.0.iter().filter(listed).map(instance).collect()
    }

    /// The end of the log of a stage's last process; empty if it is unknown.
    pub(super) fn log_tail(&self, attempt: u64, stage: Option<u32>) -> String {
        let process = self.0.iter().rfind(|process| process.attempt == attempt && Some(process.stage) == stage);
        process.map(StageProcess::log_tail).unwrap_or_default()
    }

    /// Whether there is one, exited or not.
    pub(super) fn contains(&self, attempt: u64, stage: u32, incarnation: u32) -> bool {
        self.0.iter().any(|process| process.is(attempt, stage, incarnation))
    }

    /// Terminates those of an attempt. Whether there were any that had not been told before.
    pub(super) fn terminate(&mut self, attempt: u64, now: UnixMillis) -> bool {
        let of_attempt = self.0.iter_mut().filter(|process| process.attempt == attempt);
        of_attempt.filter_map(|process| process.terminate(now).then_some(())).count() > 0
    }

    /// Kills those of an attempt that have been told to terminate.
    pub(super) fn kill_terminating(&self, attempt: u64) {
        let terminating =
            |process: &&StageProcess| process.attempt == attempt && process.state == InstanceState::Terminating;
        self.0.iter().filter(terminating).for_each(StageProcess::kill);
    }

    /// Kills and forgets all.
    pub(super) fn kill_all(&mut self) {
        self.0.iter().for_each(StageProcess::kill);
        self.0.clear();
    }

    /// Forgets those of an attempt that have exited. Whether there were any.
    pub(super) fn forget_exited(&mut self, attempt: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|process| process.is_alive() || process.attempt != attempt);
        self.0.len() < before
    }

    /// Forgets those of an attempt that were replaced: `kept` is the incarnation of each stage that is kept. One that still runs is
    /// killed. Whether there were any.
    pub(super) fn forget_replaced(&mut self, attempt: u64, kept: &BTreeMap<u32, u32>) -> bool {
        let before = self.0.len();
        let is_replaced = |process: &StageProcess| {
            process.attempt == attempt && kept.get(&process.stage).is_some_and(|kept| process.incarnation < *kept)
        };
        self.0.retain(|process| !is_replaced(process));
        self.0.len() < before
    }

    /// Forgets all that have exited.
    pub(super) fn forget_all_exited(&mut self) {
        self.0.retain(StageProcess::is_alive);
    }

    /// Takes a stage's exit status.
    pub(super) fn reap(&mut self, attempt: u64, stage: u32, incarnation: u32, now: UnixMillis) {
        let exited = |process: &&mut StageProcess| process.is(attempt, stage, incarnation);
        self.0.iter_mut().filter(exited).for_each(|process| process.reap(now));
    }

    /// Those of an attempt that were starting are ready.
    pub(super) fn set_ready(&mut self, attempt: u64, now: UnixMillis) {
        let starting =
            |process: &&mut StageProcess| process.attempt == attempt && process.state == InstanceState::Starting;
        self.0.iter_mut().filter(starting).for_each(|process| process.set_state(InstanceState::Ready, now));
    }
}
