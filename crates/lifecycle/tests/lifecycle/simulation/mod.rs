//! A property test of the state machine with simulated instances that crash, hang, disappear and are rescheduled. The
//! caller crashes between its writes, and sometimes acts on stale reads. The invariants always hold. Once the faults
//! stop, every job that can finish does finish, with `Decision::wake_at` as the only trigger.

mod caller;
mod faults;
mod process;

use std::collections::BTreeMap;

use proptest::prelude::*;
use stagecoach_api::contract::Mesh;
use stagecoach_lifecycle::*;

use self::process::SimulatedProcess;

const MAX_RESTARTS: u32 = 4;
const TERMINATION_TIMEOUT_SECONDS: u64 = 60;
const REFORM_TIMEOUT_SECONDS: u64 = 100;
/// The step of the checkpoint at which training is done.
const FINAL_CHECKPOINT_STEP: u64 = 50;

#[derive(Clone, Debug)]
struct Simulation {
    now: UnixMillis,
    /// Whether lost stages are replaced while the other stages survive.
    replaces_stages: bool,
    /// The number of spares beside the stages.
    spares: u32,
    /// Whether the caller observes promotions late.
    hides_promotions: bool,
    desired: Desired,
    recorded: JobState,
    /// Incremented with every write, like a resourceVersion.
    version: u64,
    processes: Vec<SimulatedProcess>,
    /// The number of the newest fence on the volume. Only the group that took this fence may commit checkpoints.
    fence: u64,
    /// The group that took the newest fence: attempt, rank and incarnation of each member.
    group: Vec<(u64, u32, u32)>,
    /// The incarnation of each rank in the group. If a spare has replaced a member since, this is the spare's
    /// incarnation.
    known: BTreeMap<u32, u32>,
    checkpoint: Option<u64>,
    commits: Vec<u64>,
    invalid_config_happened: bool,
    /// The attempt numbers that were used.
    used_numbers: Vec<u64>,
}

impl Simulation {
    fn new(stages: u32, replaces_stages: bool, spares: u32) -> Self {
        Self {
            replaces_stages,
            spares,
            hides_promotions: false,
            known: BTreeMap::new(),
            now: UnixMillis::from_seconds(1000),
            desired: Desired {
                mesh: Mesh::pipeline(stages),
                revision: 1,
                suspend: false,
                admission: Admission::NotRequired,
                admitted_replicas: None,
            },
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

    fn of(&mut self, attempt: u64) -> impl Iterator<Item = &mut SimulatedProcess> {
        self.processes.iter_mut().filter(move |process| process.instance.attempt == attempt)
    }
}

/// Returns the state as the caller observes it.
fn seen(simulation: &Simulation) -> (JobState, Vec<StageInstance>, Vec<SpareInstance>) {
    let Observed { state, instances, spares, .. } = simulation.observe();
    (state, instances, spares)
}

/// Runs the simulation with faults, and then without faults until the job has ended.
fn run(stages: u32, replaces_stages: bool, spares: u32, faults: &[(u8, u8, u8)]) -> Simulation {
    let mut simulation = Simulation::new(stages, replaces_stages, spares);
    let mut stale_observation = (0, simulation.observe());
    for (kind, pick, caller) in faults {
        simulation.inject_fault(*kind, *pick);
        // the caller does nothing, crashes between two actions, acts on a stale observation, or works correctly
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
    simulation.hides_promotions = false;
    simulation.show_promotions();
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
        // commits of an older group never follow commits of a newer one
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
    // The script lets the instances make transitions in four rounds, in which the group forms and commits checkpoints.
    // Then the second of three stages dies. The caller makes no errors.
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
    // as in the test above, with one more round, so that the spare is ready before the second of three stages dies
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
