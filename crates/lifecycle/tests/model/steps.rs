//! What may happen next, and what it does: the model that is checked.

use stagecoach_lifecycle::*;
use stateright::{Model, Property};

use crate::operator::{self, Guard, TERMINATION_TIMEOUT};
use crate::pods::{self, Move};
use crate::properties;
use crate::world::{Faults, HORIZON, History, Job, Lagging, NOW, Name, Operator, Process, Volume, World, Write, plain};

/// A world to be explored.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    pub(crate) stages: u32,
    pub(crate) faults: Faults,
    pub(crate) without: Option<Guard>,
}

/// One thing that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The operator looks, because there is news.
    Observe,
    /// The operator does its next write.
    Write,
    /// A pod, a group, or a node does something.
    Move(Move),
    /// Time passes until the operator is to wake, as long as nobody is about to do something.
    Wait,
    /// The same while someone is: pods or the operator are slow.
    WaitForTheSlow,
    /// The operator writes the status; a cache keeps the version before.
    WriteUnseen,
    /// A cache of the pods stops here.
    CacheOfPodsStops,
    /// The operator looks and sees what the cache kept.
    ObserveLagging,
    /// The operator dies, and another one starts.
    Crash,
    /// A process ends with a code.
    Fail(Name, i32),
    /// Someone else deletes a pod.
    Evict(Name),
    /// A pod's node is cut off.
    Cut(Name),
    /// A process on a node that is cut off ends, and nobody is told.
    DieUnseen(Name),
    /// The user changes the spec.
    Change(Desired),
    /// The status is lost.
    LoseStatus,
}

impl Checked {
    /// All that may happen in a state.
    pub(crate) fn steps(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        if world.history.broken.is_some() {
            return steps;
        }
        let resting = world.operator.plan.is_empty();
        if !resting {
            steps.push(Step::Write);
        } else if world.operator.news {
            steps.push(Step::Observe);
        }
        let moves = pods::moves(world, self.without);
        let prompt = moves.iter().any(|(_, prompt)| *prompt);
        steps.extend(moves.into_iter().map(|(happens, _)| Step::Move(happens)));
        if resting && may_wait(world) {
            if !prompt && !world.operator.news {
                steps.push(Step::Wait);
            } else if world.left.failures > 0 {
                steps.push(Step::WaitForTheSlow);
            }
        }
        self.faults_of_the_operator(world, &mut steps);
        self.faults_of_others(world, &mut steps);
        steps
    }

    fn faults_of_the_operator(&self, world: &World, steps: &mut Vec<Step>) {
        let Operator { plan, .. } = &world.operator;
        if !plan.is_empty() && world.left.crashes > 0 {
            steps.push(Step::Crash);
        }
        if world.left.lags > 0 {
            if self.without == Some(Guard::LiveList) {
                steps.push(Step::CacheOfPodsStops);
            } else if matches!(plan.last(), Some(Write::Record(_))) && world.operator.fresh {
                steps.push(Step::WriteUnseen);
            }
        }
        if plan.is_empty() && world.lagging.is_some() {
            steps.push(Step::ObserveLagging);
        }
    }

    fn faults_of_others(&self, world: &World, steps: &mut Vec<Step>) {
        let Faults { failures, cuts, changes, losses, .. } = world.left;
        if world.job.recorded.outcome().is_some() {
            return;
        }
        for pod in world.pods.iter().filter(|pod| pod.is_alive()) {
            let runs = pod.process != Process::Pending;
            if pod.is_reachable() {
                if failures > 0 && runs {
                    steps.extend([1, 75, 137].map(|code| Step::Fail(pod.name, code)));
                }
                if failures > 0 && pod.leaving.is_none() {
                    steps.push(Step::Evict(pod.name));
                }
                if cuts > 0 {
                    steps.push(Step::Cut(pod.name));
                }
            } else if runs {
                steps.push(Step::DieUnseen(pod.name));
            }
        }
        if changes > 0 {
            let desired = world.job.desired;
            steps.push(Step::Change(Desired { suspend: !desired.suspend, ..desired }));
            steps.push(Step::Change(Desired { stages: 3 - desired.stages, ..desired }));
        }
        if losses > 0 && world.job.recorded != State::default() {
            steps.push(Step::LoseStatus);
        }
    }
}

/// Whether time may pass until the operator is to wake. A node that can be reached has killed and removed who was
/// asked to leave before an operator's timeout ends; and nobody waits for years.
fn may_wait(world: &World) -> bool {
    let reachable = world.pods.iter().filter(|pod| pod.is_alive() && pod.is_reachable());
    let leaving = reachable.filter_map(|pod| pod.leaving);
    let latest = leaving.map(|since| since.plus_seconds(TERMINATION_TIMEOUT)).min();
    let wake = world.operator.wake.filter(|wake| *wake <= NOW.plus_seconds(HORIZON));
    wake.is_some_and(|wake| latest.is_none_or(|latest| wake < latest))
}

/// Sees to it that a plan made from a job that has changed is not recorded.
fn job_changed(world: &mut World) {
    world.operator.fresh = world.operator.plan.is_empty();
    world.operator.news = true;
}

impl Model for Checked {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            job: Job {
                desired: Desired { stages: self.stages, revision: 1, suspend: false },
                recorded: State::default(),
            },
            pods: vec![],
            volume: Volume { holder: 0, checkpoint: 0 },
            operator: Operator { news: true, wake: None, plan: vec![], fresh: true },
            lagging: None,
            left: self.faults.clone(),
            history: History::default(),
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        steps.extend(self.steps(world));
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        let left = &mut next.left;
        match step {
            Step::Observe => operator::observe(&mut next, false, self.without),
            Step::ObserveLagging => operator::observe(&mut next, true, self.without),
            Step::Write => operator::write(&mut next, false, self.without),
            Step::WriteUnseen => {
                left.lags -= 1;
                operator::write(&mut next, true, self.without);
            }
            Step::CacheOfPodsStops => {
                left.lags -= 1;
                next.lagging = Some(Lagging::Pods(next.pods.clone()));
            }
            Step::Move(happens) => pods::make(&mut next, happens),
            Step::Wait | Step::WaitForTheSlow => {
                left.failures -= u8::from(step == Step::WaitForTheSlow);
                let wake = next.operator.wake.take()?;
                next.pass(Time(wake.0.saturating_sub(NOW.0)));
                next.operator.news = true;
            }
            Step::Crash => {
                left.crashes -= 1;
                next.operator = Operator { news: true, wake: None, plan: vec![], fresh: true };
            }
            Step::Fail(name, code) => {
                left.failures -= 1;
                next.change(name, |pod| pod.enter(Process::Ended(code)));
            }
            Step::Evict(name) => {
                left.failures -= 1;
                next.change(name, |pod| pod.leaving = Some(NOW));
            }
            Step::Cut(name) => {
                left.cuts -= 1;
                next.change(name, |pod| pod.cut = Some(pod.process));
            }
            Step::DieUnseen(name) => next.change(name, |pod| pod.enter(Process::Ended(137))),
            Step::Change(desired) => {
                left.changes -= 1;
                next.job.desired = desired;
                job_changed(&mut next);
            }
            Step::LoseStatus => {
                left.losses -= 1;
                next.job.recorded = plain(State::default());
                next.history = History { forgotten: next.history.highest, ..History::default() };
                job_changed(&mut next);
            }
        }
        next.merge();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
