//! The processes of stages and spares that the launcher tracks.

use std::collections::{BTreeMap, BTreeSet};

use rustix::process::Pid;
use stagecoach_lifecycle::{InstanceId, InstanceState, SpareInstance, StageInstance, UnixMillis};

use super::stage_process::StageProcess;

/// The processes of the current attempt, including exited ones, and the live processes of earlier attempts.
#[derive(Debug, Default)]
pub(super) struct StageProcesses(Vec<StageProcess>);

impl StageProcesses {
    pub(super) fn push(&mut self, process: StageProcess) {
        self.0.push(process);
    }

    pub(super) fn any_alive(&self) -> bool {
        self.0.iter().any(StageProcess::is_alive)
    }

    /// Returns the stages that `lifecycle` observes: the stages of attempt `current`, and the live stages of earlier
    /// attempts.
    pub(super) fn instances(&self, current: u64) -> Vec<StageInstance> {
        let listed = |process: &&StageProcess| process.is_alive() || process.attempt == current;
        let instance = |process: &StageProcess| {
            let InstanceId { rank, incarnation } = process.instance?;
            Some(StageInstance {
                rank,
                attempt: process.attempt,
                incarnation,
                spare: process.spare,
                state: process.state.clone(),
                since: process.since,
                pod_conditions: Vec::new(),
            })
        };
        self.0.iter().filter(listed).filter_map(instance).collect()
    }

    /// Returns the spares that wait, or that exited before they replaced a stage.
    pub(super) fn spares(&self) -> Vec<SpareInstance> {
        let waiting = self.0.iter().filter(|process| process.instance.is_none());
        let spare = |process: &StageProcess| {
            let (attempt, state, since) = (process.attempt, process.state.clone(), process.since);
            Some(SpareInstance { number: process.spare?, attempt, state, since })
        };
        waiting.filter_map(spare).collect()
    }

    /// Returns the end of the log of a stage's last exited process, or of its last process if none has exited. Returns
    /// an empty text if no process of the stage is known.
    pub(super) fn log_tail(&self, attempt: u64, rank: Option<u32>) -> String {
        let is_of_stage = |instance: InstanceId| Some(instance.rank) == rank;
        let stage_processes = self
            .0
            .iter()
            .rev()
            .filter(|process| process.attempt == attempt && process.instance.is_some_and(is_of_stage));
        // the exited process takes precedence, because a spare may already have replaced the stage
        let process = stage_processes.clone().find(|process| !process.is_alive()).or(stage_processes.clone().next());
        process.map(StageProcess::log_tail).unwrap_or_default()
    }

    /// Whether the list has this instance, running or exited.
    pub(super) fn contains(&self, attempt: u64, instance: InstanceId) -> bool {
        self.0.iter().any(|process| (process.attempt, process.instance) == (attempt, Some(instance)))
    }

    /// Whether the list has a spare of this number, in any state.
    pub(super) fn contains_spare(&self, attempt: u64, number: u32) -> bool {
        self.0.iter().any(|process| (process.attempt, process.spare) == (attempt, Some(number)))
    }

    /// Records that a spare is ready to replace a stage.
    pub(super) fn set_standing_by(&mut self, attempt: u64, number: u32, now: UnixMillis) {
        let starting = |process: &&mut StageProcess| process.state == InstanceState::Starting;
        if let Some(process) = self.waiting_spare(attempt, number).filter(starting) {
            process.set_state(InstanceState::Ready, now);
        }
    }

    /// Records that a spare has replaced a stage.
    pub(super) fn promote(&mut self, attempt: u64, number: u32, instance: InstanceId, now: UnixMillis) {
        if let Some(process) = self.waiting_spare(attempt, number) {
            process.promote(instance);
            if process.state == InstanceState::Ready {
                process.set_state(InstanceState::Starting, now);
            }
        }
    }

    fn waiting_spare(&mut self, attempt: u64, number: u32) -> Option<&mut StageProcess> {
        let is_waiting = |process: &&mut StageProcess| {
            (process.attempt, process.instance, process.spare) == (attempt, None, Some(number))
        };
        self.0.iter_mut().find(is_waiting)
    }

    /// Whether a later incarnation of the same stage has replaced this instance and trains.
    pub(super) fn is_replaced(&self, attempt: u64, InstanceId { rank, incarnation }: InstanceId) -> bool {
        self.0.iter().filter(|process| process.attempt == attempt && process.state == InstanceState::Ready).any(
            |process| {
                process.instance.is_some_and(|instance| instance.rank == rank && instance.incarnation > incarnation)
            },
        )
    }

    /// Kills the spares with these numbers, even the spares that have replaced a stage, and removes them from the list.
    /// Returns whether the list had any of these spares.
    pub(super) fn kill_spares(&mut self, attempt: u64, numbers: &BTreeSet<u32>) -> bool {
        let before = self.0.len();
        let is_removed = |process: &StageProcess| {
            process.attempt == attempt && process.spare.is_some_and(|number| numbers.contains(&number))
        };
        self.0.retain(|process| !is_removed(process));
        self.0.len() < before
    }

    /// Terminates the processes of an attempt. Returns whether any process received its first request to terminate.
    pub(super) fn terminate(&mut self, attempt: u64, now: UnixMillis) -> bool {
        let attempt_processes = self.0.iter_mut().filter(|process| process.attempt == attempt);
        attempt_processes.filter_map(|process| process.terminate(now).then_some(())).count() > 0
    }

    /// Kills the processes of an attempt that are terminating.
    pub(super) fn kill_terminating(&self, attempt: u64) {
        let terminating =
            |process: &&StageProcess| process.attempt == attempt && process.state == InstanceState::Terminating;
        self.0.iter().filter(terminating).for_each(StageProcess::kill);
    }

    /// Kills all processes and clears the list.
    pub(super) fn kill_all(&mut self) {
        self.0.iter().for_each(StageProcess::kill);
        self.0.clear();
    }

    /// Removes the exited processes of an attempt from the list. Returns whether the list had any.
    pub(super) fn forget_exited(&mut self, attempt: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|process| process.is_alive() || process.attempt != attempt);
        self.0.len() < before
    }

    /// Removes the replaced processes of an attempt from the list, and kills the ones that still run. `kept` maps each
    /// rank to its current incarnation. Returns whether the list had any replaced process.
    pub(super) fn kill_replaced(&mut self, attempt: u64, kept: &BTreeMap<u32, u32>) -> bool {
        let before = self.0.len();
        let is_replaced = |process: &StageProcess| {
            let is_older =
                |instance: InstanceId| kept.get(&instance.rank).is_some_and(|kept| instance.incarnation < *kept);
            process.attempt == attempt && process.instance.is_some_and(is_older)
        };
        self.0.retain(|process| !is_replaced(process));
        self.0.len() < before
    }

    /// Removes all exited processes from the list.
    pub(super) fn forget_all_exited(&mut self) {
        self.0.retain(StageProcess::is_alive);
    }

    /// Records a process's exit status.
    pub(super) fn reap(&mut self, pid: Pid, now: UnixMillis) {
        let exited = |process: &&mut StageProcess| process.is_alive() && process.pid() == pid;
        self.0.iter_mut().filter(exited).for_each(|process| process.reap(now));
    }

    /// Marks the starting processes of an attempt as ready if they belong to the group, the stages that train together.
    /// `group` has the incarnation of each rank, and `None` for a rank that the group lacks.
    pub(super) fn set_ready(&mut self, attempt: u64, group: &[Option<u32>], now: UnixMillis) {
        let is_member = |instance: InstanceId| {
            group.get(instance.rank as usize).is_none_or(|incarnation| *incarnation == Some(instance.incarnation))
        };
        let starting = |process: &&mut StageProcess| {
            process.attempt == attempt
                && process.instance.is_some_and(is_member)
                && process.state == InstanceState::Starting
        };
        self.0.iter_mut().filter(starting).for_each(|process| process.set_state(InstanceState::Ready, now));
    }
}
