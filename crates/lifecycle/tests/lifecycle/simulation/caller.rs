//! The simulated caller of the state machine. It observes the processes, records the decision and applies the actions.
//! The simulation checks the recorded states and the creation of processes.

use std::collections::BTreeSet;

use stagecoach_api::job::{BackoffSpec, RestartSpec};
use stagecoach_lifecycle::*;

use super::process::{SimulatedProcess, pending};
use super::{MAX_RESTARTS, REFORM_TIMEOUT_SECONDS, Simulation, TERMINATION_TIMEOUT_SECONDS};

fn policy(replaces_stages: bool, spares: u32) -> FailurePolicy {
    FailurePolicy {
        restart: RestartSpec {
            max_restarts: MAX_RESTARTS,
            backoff: BackoffSpec { initial_seconds: 1, max_seconds: 20 },
            startup_timeout_seconds: 100,
            reform_timeout_seconds: REFORM_TIMEOUT_SECONDS as u32,
            heartbeat_timeout_seconds: 10,
            stall_timeout_seconds: 100,
            termination_timeout_seconds: TERMINATION_TIMEOUT_SECONDS as u32,
            ..RestartSpec::default()
        },
        grace_seconds: 30,
        scheduling_timeout_seconds: 500,
        active_deadline_seconds: None,
        backoff_jitter_percent: 0,
        replaces_stages,
        spares,
        nodes_can_be_lost: true,
        min_data_parallel: 1,
        is_elastic: false,
    }
}

impl Simulation {
    pub(super) fn observe(&self) -> Observed {
        let is_spare = |process: &SimulatedProcess| process.stands_by || process.is_hidden;
        let shown_as = |spare: bool| self.processes.iter().filter(move |process| is_spare(process) == spare);
        Observed {
            desired: self.desired,
            policy: policy(self.replaces_stages, self.spares),
            state: self.recorded.clone(),
            instances: shown_as(false).map(|process| process.instance.clone()).collect(),
            spares: shown_as(true).map(SimulatedProcess::as_spare).collect(),
            refusal: None,
            progress: ObservedProgress {
                checkpoint_step: self.checkpoint,
                last_step_at: Some(UnixMillis(0)),
                ..ObservedProgress::default()
            },
        }
    }

    /// Records a decision and applies its first `act` actions. The other actions are not applied, as if the caller had
    /// crashed. Does nothing if another decision was recorded after `version`.
    pub(super) fn record_and_apply(&mut self, version: u64, decision: &Decision, act: usize) {
        if version != self.version {
            return;
        }
        if decision.state != self.recorded {
            self.check_invariants(&decision.state);
            let json = serde_json::to_string(&decision.state).unwrap();
            self.recorded = serde_json::from_str(&json).unwrap();
            assert_eq!(self.recorded, decision.state);
            self.version += 1;
        }
        for action in decision.actions.iter().take(act) {
            self.apply(action);
        }
    }

    /// Checks the state `next`, which is recorded next, against the recorded state and the processes. Records the
    /// number of a new attempt as used.
    fn check_invariants(&mut self, next: &JobState) {
        assert_eq!(self.recorded.outcome(), None, "a terminal state is final: {next:?}");
        assert!(next.attempt.number >= self.recorded.attempt.number, "attempt numbers never decrease");
        if next.attempt.number > self.recorded.attempt.number {
            assert!(!self.used_numbers.contains(&next.attempt.number), "a number is used once");
            assert!(self.processes.iter().all(|process| process.instance.attempt < next.attempt.number));
            self.used_numbers.push(next.attempt.number);
        }
        assert!(next.budget.counted_since_checkpoint <= MAX_RESTARTS, "the budget is respected");
        assert!(next.budget.counted <= next.budget.total);
        match next.outcome() {
            Some(JobOutcome::Failed(JobFailureReason::BudgetExhausted)) => {
                assert_eq!(next.budget.counted_since_checkpoint, MAX_RESTARTS)
            }
            Some(JobOutcome::Failed(JobFailureReason::InvalidConfig)) => assert!(self.invalid_config_happened),
            Some(JobOutcome::Failed(reason)) => panic!("{reason:?} without a cause"),
            Some(JobOutcome::Complete) | None => {}
        }
    }

    fn apply(&mut self, action: &AttemptAction) {
        match *action {
            AttemptAction::StartAttempt { number, instances, .. } => {
                (0..instances).for_each(|rank| self.create(number, rank, 0));
            }
            AttemptAction::ReplaceStages { attempt, ref incarnations } => {
                incarnations.iter().for_each(|(rank, incarnation)| self.create(attempt, *rank, *incarnation));
            }
            AttemptAction::RemoveReplaced { attempt, ref incarnations } => self.processes.retain(|process| {
                let SimulatedProcess { instance, .. } = process;
                let kept = incarnations.get(&instance.rank).copied().unwrap_or(0);
                instance.attempt != attempt || instance.incarnation >= kept || process.is_hidden
            }),
            AttemptAction::DeleteInstances { attempt, .. } => {
                self.processes.retain(|process| process.instance.attempt != attempt || process.is_alive());
                let now = self.now;
                for process in self.of(attempt).filter(|process| process.instance.state != InstanceState::Terminating) {
                    process.enter(InstanceState::Terminating, now);
                }
            }
            AttemptAction::StartSpares { attempt, ref numbers } => self.create_spares(attempt, numbers),
            AttemptAction::RemoveSpares { attempt, ref numbers } => self.processes.retain(|process| {
                let StageInstance { attempt: of, spare, .. } = process.instance;
                of != attempt || spare.is_none_or(|number| !numbers.contains(&number))
            }),
            AttemptAction::KillInstances { attempt } => {
                let now = self.now;
                for process in self.of(attempt).filter(|process| !process.unreachable) {
                    if process.instance.state == InstanceState::Terminating {
                        process.end(Exit { signal: Some(9), ..Exit::default() }, now);
                    }
                }
            }
        }
    }

    fn create_spares(&mut self, attempt: u64, numbers: &BTreeSet<u32>) {
        self.check_creation(attempt);
        for number in numbers {
            let exists = self.of(attempt).any(|process| process.instance.spare == Some(*number));
            if !exists {
                let spare = StageInstance { spare: Some(*number), ..pending(attempt, u32::MAX, 0, self.now) };
                self.processes.push(SimulatedProcess { stands_by: true, ..SimulatedProcess::new(spare) });
            }
        }
    }

    fn check_creation(&self, attempt: u64) {
        assert_eq!(attempt, self.recorded.attempt.number, "only the recorded attempt is started");
        assert_eq!(self.recorded.outcome(), None, "nothing starts after the end");
        for SimulatedProcess { instance, .. } in &self.processes {
            let waited = self.now >= instance.since.plus_seconds(TERMINATION_TIMEOUT_SECONDS);
            let exited_or_timed_out = match instance.state {
                InstanceState::Exited(_) => true,
                InstanceState::Terminating => waited,
                _ => false,
            };
            assert!(
                instance.attempt == attempt || exited_or_timed_out,
                "two attempts: {instance:?} lives when {attempt} starts"
            );
        }
    }

    fn create(&mut self, attempt: u64, rank: u32, incarnation: u32) {
        self.check_creation(attempt);
        let has_rank = |process: &&mut SimulatedProcess| process.instance.rank == rank;
        let has_group = self.group.first().is_some_and(|member| member.0 == attempt);
        let known = self.known.get(&rank).copied().filter(|_| has_group).unwrap_or(0);
        let (mut exists, mut lives) = (false, false);
        for process in self.of(attempt).filter(has_rank) {
            let took_place = process.instance.spare.is_some();
            exists |= process.instance.incarnation == incarnation;
            assert!(
                !took_place || process.instance.incarnation != incarnation,
                "a spare has incarnation {incarnation}"
            );
            // A living process does not count if a spare has taken over its stage: the process is this spare
            // (`took_place`), or its incarnation is lower than the incarnation that the group knows. The fence, which
            // gives one group the right to commit checkpoints, stops all but one of these processes.
            lives |= process.is_alive() && !took_place && process.instance.incarnation >= known;
        }
        if !exists {
            assert!(!lives, "rank {rank} of attempt {attempt} is started while it lives");
            self.processes.push(SimulatedProcess::new(pending(attempt, rank, incarnation, self.now)));
        }
    }
}
