//! The state machine in a small world of members that crash, hang, vanish and are moved about, under a caller that dies
//! between its writes and sometimes acts on old news. Whatever happens, the promises below hold; and once the world is
//! quiet, a job that can finish does, woken by nothing but `Decision::wake`.

#![allow(clippy::unwrap_used, clippy::panic)]

use proptest::prelude::*;
use stagecoach_api::job::{Backoff, Restart};
use stagecoach_lifecycle::*;

const MAX_RESTARTS: u32 = 4;
const TERMINATION_TIMEOUT: u64 = 60;
/// The checkpoint's step at which training is done.
const GOAL: u64 = 50;

#[derive(Clone, Debug)]
struct Process {
    member: Member,
    /// Does nothing any more; leaves when it is killed.
    hung: bool,
    /// On a machine that is gone: can't even be killed.
    unreachable: bool,
}

#[derive(Clone, Debug)]
struct World {
    now: Time,
    desired: Desired,
    recorded: State,
    /// Raised with every write, as a resourceVersion is.
    version: u64,
    processes: Vec<Process>,
    /// The attempt that holds the volume's fence.
    fence: u64,
    checkpoint: Option<u64>,
    commits: Vec<u64>,
    invalid_config_happened: bool,
    /// Numbers that were raised.
    raised: Vec<u64>,
}

fn policy() -> Policy {
    Policy {
        restart: Restart {
            max_restarts: MAX_RESTARTS,
            backoff: Backoff { initial_seconds: 1, max_seconds: 20 },
            startup_timeout_seconds: 100,
            stall_timeout_seconds: 100,
            termination_timeout_seconds: TERMINATION_TIMEOUT as u32,
            exit_codes: vec![],
        },
        grace: 30,
        scheduling_timeout: 500,
        active_deadline: None,
        nodes_may_vanish: true,
    }
}

impl World {
    fn new(stages: u32) -> Self {
        Self {
            now: Time::from_seconds(1000),
            desired: Desired { stages, revision: 1, suspend: false },
            recorded: State::default(),
            version: 0,
            processes: vec![],
            fence: 0,
            checkpoint: None,
            commits: vec![],
            invalid_config_happened: false,
            raised: vec![],
        }
    }

    fn observe(&self) -> Observed {
        Observed {
            desired: self.desired,
            policy: policy(),
            state: self.recorded.clone(),
            members: self.processes.iter().map(|process| process.member.clone()).collect(),
            seen: Seen { checkpoint: self.checkpoint, progressed: Some(Time(0)), ..Seen::default() },
        }
    }

    /// Records and acts as a caller must; `act` says how many actions it lives to do.
    fn carry_out(&mut self, version: u64, decision: &Decision, act: usize) {
        if version != self.version {
            return;
        }
        if decision.state != self.recorded {
            self.check_step(&decision.state);
            let json = serde_json::to_string(&decision.state).unwrap();
            self.recorded = serde_json::from_str(&json).unwrap();
            assert_eq!(self.recorded, decision.state);
            self.version += 1;
        }
        for action in decision.actions.iter().take(act) {
            self.perform(action);
        }
    }

    /// The promises about what is recorded.
    fn check_step(&mut self, next: &State) {
        assert_eq!(self.recorded.outcome(), None, "terminal is sticky: {next:?}");
        assert!(next.attempt.number >= self.recorded.attempt.number, "numbers never go back");
        if next.attempt.number > self.recorded.attempt.number {
            assert!(!self.raised.contains(&next.attempt.number), "a number is used once");
            assert!(self.processes.iter().all(|process| process.member.attempt < next.attempt.number));
            self.raised.push(next.attempt.number);
        }
        assert!(next.budget.spent <= MAX_RESTARTS, "the budget is kept");
        assert!(next.budget.counted <= next.budget.total);
        match next.outcome() {
            Some(Outcome::Failed(FailReason::BudgetExhausted)) => assert_eq!(next.budget.spent, MAX_RESTARTS),
            Some(Outcome::Failed(FailReason::InvalidConfig)) => assert!(self.invalid_config_happened),
            Some(Outcome::Failed(reason)) => panic!("{reason:?} without a cause"),
            Some(Outcome::Complete) | None => {}
        }
    }

    fn perform(&mut self, action: &Action) {
        match *action {
            Action::StartAttempt { number, stages } => {
                assert_eq!(number, self.recorded.attempt.number, "only what is recorded is started");
                assert_eq!(self.recorded.outcome(), None, "nothing starts after the end");
                for stage in 0..stages {
                    self.create(number, stage);
                }
            }
            Action::DeleteMembers { attempt, .. } => {
                self.processes.retain(|process| process.member.attempt != attempt || process.is_alive());
                let now = self.now;
                for process in self.of(attempt).filter(|process| process.member.state != MemberState::Terminating) {
                    process.enter(MemberState::Terminating, now);
                }
            }
            Action::KillMembers { attempt } => {
                let now = self.now;
                for process in self.of(attempt).filter(|process| !process.unreachable) {
                    if process.member.state == MemberState::Terminating {
                        process.end(Exit::with_signal(9), now);
                    }
                }
            }
        }
    }

    fn create(&mut self, attempt: u64, stage: u32) {
        for Process { member, .. } in &self.processes {
            let waited = self.now >= member.at.plus_seconds(TERMINATION_TIMEOUT);
            let gone_or_given_up = match member.state {
                MemberState::Exited(_) => true,
                MemberState::Terminating => waited,
                _ => false,
            };
            assert!(
                member.attempt == attempt || gone_or_given_up,
                "two attempts: {member:?} lives when {attempt} starts"
            );
        }
        if self.of(attempt).all(|process| process.member.stage != stage) {
            let member = Member { stage, attempt, state: MemberState::Pending, at: self.now };
            self.processes.push(Process { member, hung: false, unreachable: false });
        }
    }

    fn of(&mut self, attempt: u64) -> impl Iterator<Item = &mut Process> {
        self.processes.iter_mut().filter(move |process| process.member.attempt == attempt)
    }

    /// Whether all of an attempt's members are there and in a state.
    fn all(&self, attempt: u64, state: &MemberState) -> bool {
        let members = self.processes.iter().map(|process| &process.member).filter(|member| member.attempt == attempt);
        let stages = if attempt == self.recorded.attempt.number { self.recorded.attempt.stages } else { u32::MAX };
        members.clone().count() == stages as usize && members.clone().all(|member| member.state == *state)
    }

    /// What members do by themselves. True if something happened.
    fn live(&mut self) -> bool {
        let (now, before) = (self.now, self.processes.clone());
        let attempt = self.recorded.attempt.number;
        for process in self.processes.iter_mut().filter(|process| !process.hung) {
            if process.member.state == MemberState::Pending {
                process.enter(MemberState::Starting, now);
            }
        }
        let stuck = self.of(attempt).any(|process| process.hung);
        if self.all(attempt, &MemberState::Starting) && !stuck && attempt > self.fence {
            self.fence = attempt;
            self.of(attempt).for_each(|process| process.enter(MemberState::Ready, now));
        } else if self.all(attempt, &MemberState::Ready) && !stuck {
            assert_eq!(attempt, self.fence, "only the holder of the fence commits");
            self.commits.push(attempt);
            self.checkpoint = Some(self.checkpoint.unwrap_or(0) + 10);
            if self.checkpoint >= Some(GOAL) {
                self.of(attempt).for_each(|process| process.end(Exit::with_code(0), now));
            }
            return true;
        }
        // Who was asked to leave does, and those who lost a peer do.
        for index in 0..self.processes.len() {
            let process = &self.processes[index];
            let attempt = process.member.attempt;
            let lost = self.processes.iter().any(|other| other.member.attempt == attempt && !other.is_alive());
            let asked = process.member.state == MemberState::Terminating;
            if process.is_alive() && !process.hung && (lost || asked) {
                self.processes[index].end(Exit::with_code(if lost { 75 } else { 143 }), now);
            }
        }
        before.iter().map(|process| &process.member).ne(self.processes.iter().map(|process| &process.member))
    }

    /// What goes wrong, by the dice.
    fn trouble(&mut self, kind: u8, pick: u8) {
        let now = self.now;
        let alive: Vec<_> = (0..self.processes.len()).filter(|index| self.processes[*index].is_alive()).collect();
        let victim = (!alive.is_empty()).then(|| alive[pick as usize % alive.len()]);
        match (kind % 16, victim) {
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
            (7, Some(victim)) if self.processes[victim].member.state != MemberState::Terminating => {
                self.processes[victim].enter(MemberState::Terminating, now);
            }
            (8, _) => self.desired.suspend = !self.desired.suspend,
            (9, _) => self.desired.stages = 1 + u32::from(pick) % 3,
            (10, _) => self.desired.revision += 1,
            (11, _) => self.now = self.now.plus_seconds(pick.into()),
            _ => {
                self.live();
            }
        }
    }
}

impl Process {
    fn is_alive(&self) -> bool {
        !matches!(self.member.state, MemberState::Exited(_))
    }

    fn enter(&mut self, state: MemberState, now: Time) {
        self.member.state = state;
        self.member.at = now;
    }

    fn end(&mut self, exit: Exit, now: Time) {
        self.enter(MemberState::Exited(exit), now);
    }
}

/// Trouble, then quiet; the job's end.
fn run(stages: u32, troubles: &[(u8, u8, u8)]) -> World {
    let mut world = World::new(stages);
    let mut news = (0, world.observe());
    for (kind, pick, caller) in troubles {
        world.trouble(*kind, *pick);
        // The caller sleeps, dies half-way, acts on old news, or does its duty.
        match caller % 8 {
            0 => {}
            1 => {
                let decision = decide(&world.observe(), world.now);
                world.carry_out(world.version, &decision, 0);
            }
            2 => {
                let decision = decide(&world.observe(), world.now);
                world.carry_out(world.version, &decision, 1);
            }
            3 => {
                let decision = decide(&news.1, world.now);
                world.carry_out(news.0, &decision, 0);
            }
            _ => {
                let decision = decide(&world.observe(), world.now);
                world.carry_out(world.version, &decision, usize::MAX);
            }
        }
        if caller % 16 >= 8 {
            news = (world.version, world.observe());
        }
        world.now = world.now.plus_seconds(u64::from(caller % 3));
    }

    world.desired.suspend = false;
    for _ in 0..200 {
        let happened = world.live();
        let decision = decide(&world.observe(), world.now);
        let before = (world.recorded.clone(), world.observe().members);
        world.carry_out(world.version, &decision, usize::MAX);
        let alive = world.processes.iter().any(|process| process.is_alive() && !process.unreachable);
        if world.recorded.outcome().is_some() && !alive {
            break;
        }
        if !happened && before == (world.recorded.clone(), world.observe().members) {
            let wake = decision.wake.filter(|wake| *wake > world.now);
            world.now = wake.unwrap_or_else(|| panic!("nothing will ever happen again: {world:#?}\n{decision:#?}"));
        }
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_promises_hold_and_the_job_ends(
        stages in 1..4_u32,
        troubles in proptest::collection::vec(any::<(u8, u8, u8)>(), 0..60),
    ) {
        let world = run(stages, &troubles);
        prop_assert!(world.recorded.outcome().is_some(), "no end: {:#?}", world);
        if world.recorded.outcome() == Some(&Outcome::Complete) {
            prop_assert!(world.checkpoint >= Some(GOAL));
        }
        // Commits of an older attempt never follow those of a newer one.
        prop_assert!(world.commits.is_sorted(), "{:?}", world.commits);
    }
}

#[test]
fn an_undisturbed_job_takes_one_attempt() {
    let world = run(3, &[]);
    assert_eq!(world.recorded.outcome(), Some(&Outcome::Complete));
    assert_eq!((world.raised.as_slice(), world.recorded.budget), ([1].as_slice(), Budget::default()));
}
