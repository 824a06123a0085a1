//! Property test: the state machine against simulated instances that crash, hang, disappear and are rescheduled, under a
//! caller that crashes between its writes and sometimes acts on stale reads. Invariants hold throughout; once faults stop, a
//! job that can finish does, with no trigger but `Decision::wake_at`.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use stagecoach_api::contract::Mesh;
use stagecoach_api::job::{BackoffSpec, RestartSpec};
use stagecoach_lifecycle::*;

const MAX_RESTARTS: u32 = 4;
const TERMINATION_TIMEOUT_SECONDS: u64 = 60;
const REFORM_TIMEOUT_SECONDS: u64 = 100;
/// The checkpoint's step at which training is done.
const FINAL_CHECKPOINT_STEP: u64 = 50;

#[derive(Clone, Debug)]
struct SimulatedProcess {
    instance: StageInstance,
    /// Hangs; exits only when it is killed.
    hung: bool,
    /// On a lost node: can't even be killed.
    unreachable: bool,
    /// Since when its group has not been whole.
    waits_since: Option<UnixMillis>,
    /// A spare that has no stage; its `instance.spare` is its number.
    stands_by: bool,
    /// A spare that has taken a stage's place, which the caller does not observe yet.
    is_hidden: bool,
}

#[derive(Clone, Debug)]
struct Simulation {
    now: UnixMillis,
    /// Whether lost stages are replaced, and the others survive.
    replaces_stages: bool,
    /// Spares beside the stages.
    spares: u32,
    /// Whether the caller observes takeovers late.
    hides_takeovers: bool,
    desired: Desired,
    recorded: JobState,
    /// Incremented with every write, as a resourceVersion is.
    version: u64,
    processes: Vec<SimulatedProcess>,
    /// The newest fence that was taken on the volume.
    fence: u64,
    /// The group that took it: attempt, stage and incarnation of its members.
    group: Vec<(u64, u32, u32)>,
    /// The incarnations that it knows, by stage: its members', or of those that took their places since.
    known: BTreeMap<u32, u32>,
    checkpoint: Option<u64>,
    commits: Vec<u64>,
    invalid_config_happened: bool,
    /// Attempt numbers that were used.
    used_numbers: Vec<u64>,
}

fn policy(replaces_stages: bool, spares: u32) -> Policy {
    Policy {
        restart: RestartSpec {
            max_restarts: MAX_RESTARTS,
            backoff: BackoffSpec { initial_seconds: 1, max_seconds: 20 },
            startup_timeout_seconds: 100,
            reform_timeout_seconds: REFORM_TIMEOUT_SECONDS as u32,
            min_data_parallel: None,
            heartbeat_timeout_seconds: 10,
            stall_timeout_seconds: 100,
            termination_timeout_seconds: TERMINATION_TIMEOUT_SECONDS as u32,
            pod_failure_policy: None,
            exit_codes: vec![],
        },
        grace_seconds: 30,
        scheduling_timeout_seconds: 500,
        active_deadline_seconds: None,
        backoff_jitter_percent: 0,
        replaces_stages,
        spares,
        nodes_can_be_lost: true,
        min_data_parallel: 1,
    }
}

impl Simulation {
    fn new(stages: u32, replaces_stages: bool, spares: u32) -> Self {
        Self {
            replaces_stages,
            spares,
            hides_takeovers: false,
            known: BTreeMap::new(),
            now: UnixMillis::from_seconds(1000),
            desired: Desired { mesh: Mesh::pipeline(stages), revision: 1, suspend: false },
            recorded: JobState::default(),
            version: 0,
            processes: vec![],
            fence: 0,
            group: vec![],
            checkpoint: None,
            commits: vec![],
            invalid_config_happened: false,
            used_numbers: vec![],
        }
    }

    fn observe(&self) -> Observed {
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

    /// Records and applies as a caller must; it crashes after `act` actions.
    fn record_and_apply(&mut self, version: u64, decision: &Decision, act: usize) {
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

    /// The invariants of the stored state.
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
            AttemptAction::StartAttempt { number, mesh } => {
                (0..mesh.ranks()).for_each(|rank| self.create(number, rank, 0));
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
                        process.end(Exit::with_signal(9), now);
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
        let of_stage = |process: &&mut SimulatedProcess| process.instance.rank == rank;
        let has_group = self.group.first().is_some_and(|member| member.0 == attempt);
        let known = self.known.get(&rank).copied().filter(|_| has_group).unwrap_or(0);
        let (mut exists, mut lives) = (false, false);
        for process in self.of(attempt).filter(of_stage) {
            let took_place = process.instance.spare.is_some();
            exists |= process.instance.incarnation == incarnation;
            assert!(
                !took_place || process.instance.incarnation != incarnation,
                "a spare has incarnation {incarnation}"
            );
            // whose place was taken although it lives, it leaves to the fence
            lives |= process.is_alive() && !took_place && process.instance.incarnation >= known;
        }
        if !exists {
            assert!(!lives, "rank {rank} of attempt {attempt} is started while it lives");
            self.processes.push(SimulatedProcess::new(pending(attempt, rank, incarnation, self.now)));
        }
    }

    fn of(&mut self, attempt: u64) -> impl Iterator<Item = &mut SimulatedProcess> {
        self.processes.iter_mut().filter(move |process| process.instance.attempt == attempt)
    }

    /// The members of the recorded attempt, if all its stages live and can form a group.
    fn members(&self) -> Option<Vec<(u64, u32, u32)>> {
        let Attempt { number, mesh, .. } = self.recorded.attempt;
        let member = |rank| {
            let runs = self.processes.iter().filter(|process| process.runs() && !process.stands_by);
            let of_stage = runs.map(|process| &process.instance).filter(|of| (of.attempt, of.rank) == (number, rank));
            of_stage.map(|instance| instance.incarnation).max().map(|incarnation| (number, rank, incarnation))
        };
        (0..mesh.ranks()).map(member).collect()
    }

    /// What instances do by themselves. Returns whether anything changed.
    fn advance_instances(&mut self) -> bool {
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
        // without replacements a group forms once
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
                        // another one has its place
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
        // Terminating instances exit, and so do those that lost a peer: at once, or when they have waited for another long enough.
        for index in 0..self.processes.len() {
            let StageInstance { attempt, rank, ref state, .. } = self.processes[index].instance;
            let asked = *state == InstanceState::Terminating;
            let is_peer = |other: &&SimulatedProcess| other.instance.attempt == attempt && !other.stands_by;
            let of_attempt = || self.processes.iter().filter(is_peer);
            let lives = |of: u32| of_attempt().any(|other| other.instance.rank == of && other.is_alive());
            let lost = of_attempt().any(|other| other.instance.rank != rank && !lives(other.instance.rank));
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
        before.iter().map(|process| &process.instance).ne(self.processes.iter().map(|process| &process.instance))
    }

    /// Spares take the places of the stages that the group has lost, while somebody is left to give them away.
    fn take_lost_places(&mut self) {
        let number = self.recorded.attempt.number;
        for (rank, incarnation) in self.known.clone() {
            let running = |process: &&SimulatedProcess| {
                process.instance.attempt == number && process.runs() && !process.stands_by
            };
            let is_lost = !self.processes.iter().filter(running).any(|process| process.instance.rank == rank);
            let somebody_gives = self
                .processes
                .iter()
                .filter(running)
                .any(|process| self.known.get(&process.instance.rank) == Some(&process.instance.incarnation));
            let of_group = self.group.first().is_some_and(|member| member.0 == number);
            if of_group && is_lost && somebody_gives {
                self.take_place(rank, incarnation + 1);
            }
        }
    }

    /// The first spare that stands by takes a stage's place.
    fn take_place(&mut self, rank: u32, incarnation: u32) -> bool {
        let (now, number, is_hidden) = (self.now, self.recorded.attempt.number, self.hides_takeovers);
        let claimed = |process: &mut SimulatedProcess| {
            let place = (process.instance.rank, process.instance.incarnation);
            (place == (rank, incarnation) && process.is_alive()).then_some(process.hung)
        };
        let claimed_by_hung = self.of(number).find_map(claimed);
        let stands_by = |process: &&mut SimulatedProcess| {
            process.stands_by && process.runs() && process.instance.state == InstanceState::Ready
        };
        let Some(spare) = self.of(number).find(stands_by) else { return false };
        // not simulated: one that hung before it had joined, so that its group knows nothing of it
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

    fn show_takeovers(&mut self) {
        self.processes.iter_mut().for_each(|process| process.is_hidden = false);
    }

    /// Injects a random fault.
    fn inject_fault(&mut self, kind: u8, pick: u8) {
        let now = self.now;
        let alive: Vec<_> = (0..self.processes.len()).filter(|index| self.processes[*index].is_alive()).collect();
        let victim = (!alive.is_empty()).then(|| alive[pick as usize % alive.len()]);
        let spare = alive.iter().copied().find(|index| self.processes[*index].stands_by);
        match (kind % 20, victim) {
            (0..=2, Some(victim)) => {
                let code = [1, 74, 75, 137, 143, 3][pick as usize % 6];
                self.processes[victim].end(Exit::with_code(code), now);
            }
            (3, Some(victim)) if pick > 240 => {
                self.invalid_config_happened = true;
                self.processes[victim].end(Exit::with_code(78), now);
            }
            (4, Some(victim)) => self.processes[victim].hung = true,
            (5, Some(victim)) => {
                self.processes[victim].hung = true;
                self.processes[victim].unreachable = true;
            }
            (6, Some(victim)) => {
                self.processes.remove(victim);
            }
            (7, Some(victim)) if self.processes[victim].instance.state != InstanceState::Terminating => {
                self.processes[victim].enter(InstanceState::Terminating, now);
            }
            (8, _) => self.desired.suspend = !self.desired.suspend,
            (9, _) => self.desired.mesh = Mesh::pipeline(1 + u32::from(pick) % 3),
            (10, _) => self.desired.revision += 1,
            (11, _) => self.now = self.now.plus_seconds(pick.into()),
            (16, _) if spare.is_some() => {
                spare.into_iter().for_each(|index| self.processes[index].end(Exit::with_code(1), now));
            }
            (17, _) => self.hides_takeovers = !self.hides_takeovers,
            // the others lose a stage 0 that lives
            (18, _) if self.group.first().is_some_and(|member| member.0 == self.recorded.attempt.number) => {
                let incarnation = self.known.get(&0).map_or(0, |known| known + 1);
                self.take_place(0, incarnation);
            }
            (19, _) => {
                self.take_lost_places();
                let took = |process: &&mut SimulatedProcess| process.instance.spare.is_some() && !process.stands_by;
                let living = self.processes.iter_mut().filter(|process| process.is_alive());
                living.filter(took).for_each(|process| process.end(Exit::with_code(1), now));
            }
            _ => {
                self.advance_instances();
            }
        }
    }
}

/// An instance that was just created.
fn pending(attempt: u64, rank: u32, incarnation: u32, since: UnixMillis) -> StageInstance {
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
    fn new(instance: StageInstance) -> Self {
        Self { instance, hung: false, unreachable: false, waits_since: None, stands_by: false, is_hidden: false }
    }

    fn runs(&self) -> bool {
        matches!(self.instance.state, InstanceState::Starting | InstanceState::Ready) && !self.hung
    }

    /// What the caller sees of a spare, or of one whose takeover it does not see.
    fn as_spare(&self) -> SpareInstance {
        let StageInstance { attempt, spare, ref state, since, .. } = self.instance;
        let state = if self.is_hidden && self.runs() { InstanceState::Ready } else { state.clone() };
        SpareInstance { number: spare.unwrap(), attempt, state, since }
    }

    fn is_alive(&self) -> bool {
        !matches!(self.instance.state, InstanceState::Exited(_))
    }

    fn enter(&mut self, state: InstanceState, now: UnixMillis) {
        self.instance.state = state;
        self.instance.since = now;
    }

    fn end(&mut self, exit: Exit, now: UnixMillis) {
        self.enter(InstanceState::Exited(exit), now);
    }
}

/// What the caller sees.
fn seen(simulation: &Simulation) -> (JobState, Vec<StageInstance>, Vec<SpareInstance>) {
    let Observed { state, instances, spares, .. } = simulation.observe();
    (state, instances, spares)
}

/// Runs with faults, then without, until the job has ended.
fn run(stages: u32, replaces_stages: bool, spares: u32, faults: &[(u8, u8, u8)]) -> Simulation {
    let mut simulation = Simulation::new(stages, replaces_stages, spares);
    let mut stale_observation = (0, simulation.observe());
    for (kind, pick, caller) in faults {
        simulation.inject_fault(*kind, *pick);
        // The caller does nothing, crashes half-way, acts on a stale observation, or works correctly.
        match caller % 8 {
            0 => {}
            1 => {
                let decision = decide(&simulation.observe(), simulation.now);
                simulation.record_and_apply(simulation.version, &decision, 0);
            }
            2 => {
                let decision = decide(&simulation.observe(), simulation.now);
                simulation.record_and_apply(simulation.version, &decision, 1);
            }
            3 => {
                let decision = decide(&stale_observation.1, simulation.now);
                simulation.record_and_apply(stale_observation.0, &decision, 0);
            }
            _ => {
                let decision = decide(&simulation.observe(), simulation.now);
                simulation.record_and_apply(simulation.version, &decision, usize::MAX);
            }
        }
        if caller % 16 >= 8 {
            stale_observation = (simulation.version, simulation.observe());
        }
        simulation.now = simulation.now.plus_seconds(u64::from(caller % 3));
    }

    simulation.desired.suspend = false;
    simulation.hides_takeovers = false;
    simulation.show_takeovers();
    for _ in 0..200 {
        let happened = simulation.advance_instances();
        let decision = decide(&simulation.observe(), simulation.now);
        let before = seen(&simulation);
        simulation.record_and_apply(simulation.version, &decision, usize::MAX);
        let alive = simulation.processes.iter().any(|process| process.is_alive() && !process.unreachable);
        if simulation.recorded.outcome().is_some() && !alive {
            break;
        }
        if !happened && before == seen(&simulation) {
            let wake_at = decision.wake_at.filter(|wake_at| *wake_at > simulation.now);
            simulation.now = wake_at.unwrap_or_else(|| {
                panic!("no deadline is left, so the job would never end: {simulation:#?}\n{decision:#?}")
            });
        }
    }
    simulation
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_and_the_job_ends_under_random_faults(
        stages in 1..4_u32,
        replaces_stages: bool,
        spares in 0..3_u32,
        faults in proptest::collection::vec(any::<(u8, u8, u8)>(), 0..60),
    ) {
        let simulation = run(stages, replaces_stages, spares, &faults);
        prop_assert!(simulation.recorded.outcome().is_some(), "no end: {:#?}", simulation);
        if simulation.recorded.outcome() == Some(&JobOutcome::Complete) {
            prop_assert!(simulation.checkpoint >= Some(FINAL_CHECKPOINT_STEP));
        }
        // Commits of an older group never follow those of a newer one.
        prop_assert!(simulation.commits.is_sorted(), "{:?}", simulation.commits);
    }
}

#[test]
fn an_undisturbed_job_takes_one_attempt() {
    for replaces_stages in [false, true] {
        let simulation = run(3, replaces_stages, 0, &[]);
        assert_eq!(simulation.recorded.outcome(), Some(&JobOutcome::Complete));
        assert_eq!(
            (simulation.used_numbers.as_slice(), simulation.recorded.budget),
            ([1].as_slice(), RestartBudget::default())
        );
    }
}

#[test]
fn a_lost_stage_costs_an_attempt_only_where_it_is_not_replaced() {
    // two rounds until the group is formed, a commit, then the death of the second of three, and the operator at work
    let script = [(15, 0, 4), (15, 0, 4), (15, 0, 4), (15, 0, 4), (0, 1, 4)];
    for (replaces_stages, attempts, replaced) in [(false, vec![1, 2], 0), (true, vec![1], 1)] {
        let simulation = run(3, replaces_stages, 0, &script);
        assert_eq!(simulation.recorded.outcome(), Some(&JobOutcome::Complete));
        assert_eq!((simulation.used_numbers, simulation.recorded.budget.replaced), (attempts, replaced));
        assert_eq!(simulation.fence, 2, "either way another group is formed");
    }
}

#[test]
fn a_spare_takes_a_lost_stages_place() {
    // as above; then the spare is ready before the second of three dies
    let advances = [(15, 0, 4); 5];
    for (spares, incarnation) in [(0, 1), (1, 1), (2, 1)] {
        let script = [advances.as_slice(), &[(0, 1, 4)]].concat();
        let simulation = run(3, true, spares, &script);
        assert_eq!(simulation.recorded.outcome(), Some(&JobOutcome::Complete));
        let JobState { budget, ref incarnations, .. } = simulation.recorded;
        assert_eq!((simulation.used_numbers, budget.replaced), (vec![1], 1));
        assert_eq!(incarnations.values().copied().collect::<Vec<_>>(), [incarnation], "{spares} spares");
        let took = simulation.processes.iter().any(|process| {
            let StageInstance { rank, spare, .. } = process.instance;
            rank < 3 && spare.is_some()
        });
        assert_eq!(took, spares > 0);
    }
}
