//! The simulated processes and their transitions: start, form a group, train, replace a stage, exit.

use stagecoach_lifecycle::*;

use super::{FINAL_CHECKPOINT_STEP, REFORM_TIMEOUT_SECONDS, Simulation};

#[derive(Clone, Debug)]
pub(super) struct SimulatedProcess {
    pub(super) instance: StageInstance,
    /// Whether the process hangs. A process that hangs exits only when it is killed.
    pub(super) hung: bool,
    /// Whether the process is on a lost node. Such a process can't even be killed.
    pub(super) unreachable: bool,
    /// The time since which the process has had no complete group; `None` while its group is complete.
    pub(super) waits_since: Option<UnixMillis>,
    /// Whether the process is a spare without a stage. `instance.spare` is then its number.
    pub(super) stands_by: bool,
    /// Whether the process is a spare that has become a stage, which the caller does not observe yet.
    pub(super) is_hidden: bool,
}

/// Returns an instance that has just been created.
pub(super) fn pending(attempt: u64, rank: u32, incarnation: u32, since: UnixMillis) -> StageInstance {
    StageInstance {
        rank,
        attempt,
        incarnation,
        spare: None,
        state: InstanceState::Pending,
        since,
        pod_conditions: vec![],
    }
}

impl SimulatedProcess {
    pub(super) fn new(instance: StageInstance) -> Self {
        Self { instance, hung: false, unreachable: false, waits_since: None, stands_by: false, is_hidden: false }
    }

    pub(super) fn runs(&self) -> bool {
        matches!(self.instance.state, InstanceState::Starting | InstanceState::Ready) && !self.hung
    }

    /// Returns the caller's view of a spare, or of a spare whose promotion the caller does not observe yet.
    pub(super) fn as_spare(&self) -> SpareInstance {
        let StageInstance { attempt, spare, ref state, since, .. } = self.instance;
        let state = if self.is_hidden && self.runs() { InstanceState::Ready } else { state.clone() };
        SpareInstance { number: spare.unwrap(), attempt, state, since }
    }

    pub(super) fn is_alive(&self) -> bool {
        !matches!(self.instance.state, InstanceState::Exited(_))
    }

    pub(super) fn enter(&mut self, state: InstanceState, now: UnixMillis) {
        self.instance.state = state;
        self.instance.since = now;
    }

    pub(super) fn end(&mut self, exit: Exit, now: UnixMillis) {
        self.enter(InstanceState::Exited(exit), now);
    }
}

impl Simulation {
    /// Returns the members of the recorded attempt's group. `None` unless all its stages are alive and can form a
    /// group.
    fn members(&self) -> Option<Vec<(u64, u32, u32)>> {
        let Attempt { number, mesh, .. } = self.recorded.attempt;
        let member = |rank| {
            let runs = self.processes.iter().filter(|process| process.runs() && !process.stands_by);
            let instances = runs
                .map(|process| &process.instance)
                .filter(|instance| (instance.attempt, instance.rank) == (number, rank));
            instances.map(|instance| instance.incarnation).max().map(|incarnation| (number, rank, incarnation))
        };
        (0..mesh.ranks()).map(member).collect()
    }

    /// Lets the instances make their own transitions. Returns whether anything changed.
    pub(super) fn advance_instances(&mut self) -> bool {
        let (now, before) = (self.now, self.processes.clone());
        let attempt = self.recorded.attempt.number;
        for process in self.processes.iter_mut().filter(|process| !process.hung) {
            if process.instance.state == InstanceState::Pending {
                process.enter(InstanceState::Starting, now);
            } else if process.stands_by && process.instance.state == InstanceState::Starting {
                process.enter(InstanceState::Ready, now);
            }
        }
        self.take_lost_places();
        let members = self.members();
        // without replacement of stages, an attempt forms only one group
        let is_new = self.group.first().is_none_or(|member| member.0 < attempt);
        match members {
            Some(members) if members != self.group && (is_new || self.replaces_stages) => {
                self.fence += 1;
                self.group = members;
                self.known = self.group.iter().map(|(_, rank, incarnation)| (*rank, *incarnation)).collect();
                self.of(attempt).for_each(|process| process.waits_since = None);
                let known = self.known.clone();
                for process in self.of(attempt).filter(|process| process.runs() && !process.stands_by) {
                    if known.get(&process.instance.rank) != Some(&process.instance.incarnation) {
                        // another process has replaced this one
                        process.end(Exit::with_code(75), now);
                    } else if process.instance.state == InstanceState::Starting {
                        process.enter(InstanceState::Ready, now);
                    }
                }
            }
            Some(members) if members == self.group => {
                self.commits.push(self.fence);
                self.checkpoint = Some(self.checkpoint.unwrap_or(0) + 10);
                if self.checkpoint >= Some(FINAL_CHECKPOINT_STEP) {
                    self.known.clear();
                    let end = |process: &mut SimulatedProcess| process.end(Exit::with_code(0), now);
                    self.of(attempt).filter(|process| process.is_alive() && !process.stands_by).for_each(end);
                }
                return true;
            }
            _ => {}
        }
        self.end_waiting();
        before.iter().map(|process| &process.instance).ne(self.processes.iter().map(|process| &process.instance))
    }

    /// Lets terminating instances exit. Instances that lost a peer exit too, at once or after they have waited long
    /// enough for a replacement.
    fn end_waiting(&mut self) {
        let now = self.now;
        for index in 0..self.processes.len() {
            let StageInstance { attempt, rank, ref state, .. } = self.processes[index].instance;
            let asked = *state == InstanceState::Terminating;
            let is_peer = |other: &&SimulatedProcess| other.instance.attempt == attempt && !other.stands_by;
            let peers = || self.processes.iter().filter(is_peer);
            let lives = |rank: u32| peers().any(|other| other.instance.rank == rank && other.is_alive());
            let lost = peers().any(|other| other.instance.rank != rank && !lives(other.instance.rank));
            let process = &mut self.processes[index];
            let waits_since = *process.waits_since.get_or_insert(now);
            let gives_up = match self.replaces_stages {
                _ if process.stands_by => false,
                true => now >= waits_since.plus_seconds(REFORM_TIMEOUT_SECONDS),
                false => lost,
            };
            if process.is_alive() && !process.hung && (gives_up || asked) {
                process.end(Exit::with_code(if gives_up { 75 } else { 143 }), now);
            }
        }
    }

    /// Promotes spares to the stages that the group has lost, while a member of the group remains.
    pub(super) fn take_lost_places(&mut self) {
        let number = self.recorded.attempt.number;
        for (rank, incarnation) in self.known.clone() {
            let running = |process: &&SimulatedProcess| {
                process.instance.attempt == number && process.runs() && !process.stands_by
            };
            let is_lost = !self.processes.iter().filter(running).any(|process| process.instance.rank == rank);
            let a_member_remains = self
                .processes
                .iter()
                .filter(running)
                .any(|process| self.known.get(&process.instance.rank) == Some(&process.instance.incarnation));
            let is_current = self.group.first().is_some_and(|member| member.0 == number);
            if is_current && is_lost && a_member_remains {
                self.promote(rank, incarnation + 1);
            }
        }
    }

    /// Promotes the first ready spare to a stage. Returns whether a spare was promoted.
    pub(super) fn promote(&mut self, rank: u32, incarnation: u32) -> bool {
        let (now, number, is_hidden) = (self.now, self.recorded.attempt.number, self.hides_promotions);
        let claimed = |process: &mut SimulatedProcess| {
            let place = (process.instance.rank, process.instance.incarnation);
            (place == (rank, incarnation) && process.is_alive()).then_some(process.hung)
        };
        let claimed_by_hung = self.of(number).find_map(claimed);
        let stands_by = |process: &&mut SimulatedProcess| {
            process.stands_by && process.runs() && process.instance.state == InstanceState::Ready
        };
        let Some(spare) = self.of(number).find(stands_by) else { return false };
        // The simulation leaves out the case in which a process with this incarnation hung before it joined the group,
        // so that the group has no record of the process.
        if claimed_by_hung == Some(true) {
            return false;
        }
        assert_eq!(claimed_by_hung, None, "incarnation {incarnation} of rank {rank} is claimed twice");
        spare.instance = StageInstance { rank, incarnation, ..spare.instance.clone() };
        spare.enter(InstanceState::Starting, now);
        (spare.stands_by, spare.is_hidden, spare.waits_since) = (false, is_hidden, Some(now));
        self.known.insert(rank, incarnation);
        true
    }

    pub(super) fn show_promotions(&mut self) {
        self.processes.iter_mut().for_each(|process| process.is_hidden = false);
    }
}
