//! What must hold in every state.

use stagecoach_lifecycle::*;
use stateright::Property;

use crate::operator::TERMINATION_TIMEOUT;
use crate::steps::{Checked, Step};
use crate::world::{NOW, Pod, World};

/// A promise about a step, noticed when it was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    NoOlderOneCommits,
    ANumberIsUsedOnce,
    OnlyWhatIsRecordedIsCreated,
    NothingIsCreatedAgain,
    WhoIsWantedStays,
    TerminalIsSticky,
    TheBudgetIsKept,
    NobodyGivesUpEarly,
}

pub(crate) const ONE_COMMITS: &str = "no older attempt commits while a newer one holds the fence";
pub(crate) const ONE_LIVES: &str = "no two attempts live, but for what is past its timeout on a lost node";
pub(crate) const NUMBERS: &str = "a number is used once";
pub(crate) const RECORDED: &str = "only what is recorded is created";
pub(crate) const CREATED_ONCE: &str = "nothing is created again";
pub(crate) const STAYS: &str = "who is wanted is not asked to leave";
pub(crate) const TERMINAL: &str = "terminal is sticky";
pub(crate) const BUDGET: &str = "the budget is kept";
pub(crate) const EARLY: &str = "nobody gives up early";
pub(crate) const ENDS: &str = "what comes to rest has ended, or is suspended";

pub(crate) const COMPLETES: &str = "a job completes";
pub(crate) const THREE_ATTEMPTS: &str = "a job takes three attempts";
pub(crate) const GIVES_UP: &str = "a job gives up for want of restarts";
/// What must be possible, so that nothing holds for want of anything happening.
pub(crate) const SOMETIMES: [&str; 3] = [COMPLETES, THREE_ATTEMPTS, GIVES_UP];

pub(crate) fn all() -> Vec<Property<Checked>> {
    vec![
        Property::always(ONE_COMMITS, |_, world: &World| keeps(world, Broken::NoOlderOneCommits)),
        Property::always(ONE_LIVES, |_, world: &World| one_attempt_lives(world)),
        Property::always(NUMBERS, |_, world: &World| keeps(world, Broken::ANumberIsUsedOnce)),
        Property::always(RECORDED, |_, world: &World| keeps(world, Broken::OnlyWhatIsRecordedIsCreated)),
        Property::always(CREATED_ONCE, |_, world: &World| keeps(world, Broken::NothingIsCreatedAgain)),
        Property::always(STAYS, |_, world: &World| keeps(world, Broken::WhoIsWantedStays)),
        Property::always(TERMINAL, |_, world: &World| keeps(world, Broken::TerminalIsSticky)),
        Property::always(BUDGET, |_, world: &World| keeps(world, Broken::TheBudgetIsKept)),
        Property::always(EARLY, |_, world: &World| keeps(world, Broken::NobodyGivesUpEarly)),
        Property::always(ENDS, |model, world| {
            has_ended(world) || model.steps(world).iter().any(|step| !step.is_fault())
        }),
        Property::sometimes(COMPLETES, |_, world: &World| world.job.recorded.outcome() == Some(&Outcome::Complete)),
        Property::sometimes(THREE_ATTEMPTS, |_, world: &World| world.job.recorded.attempt.number >= 3),
        Property::sometimes(GIVES_UP, |_, world: &World| {
            world.job.recorded.outcome() == Some(&Outcome::Failed(FailReason::BudgetExhausted))
        }),
    ]
}

fn keeps(world: &World, promise: Broken) -> bool {
    world.history.broken != Some(promise)
}

fn one_attempt_lives(world: &World) -> bool {
    let alive = || world.pods.iter().filter(|pod| pod.is_alive());
    let newest = alive().map(|pod| pod.name.attempt).max();
    alive().all(|pod| Some(pod.name.attempt) == newest || given_up(pod))
}

/// Whether a pod is on a lost node, and was waited for long enough.
fn given_up(pod: &Pod) -> bool {
    let waited = pod.leaving.is_some_and(|since| NOW >= since.plus_seconds(TERMINATION_TIMEOUT));
    !pod.is_reachable() && waited
}

/// Whether nothing needs to happen any more.
fn has_ended(world: &World) -> bool {
    let nobody = world.pods.iter().all(|pod| !pod.is_alive() || !pod.is_reachable());
    let suspended = world.job.desired.suspend && world.job.recorded.doing == Doing::Idle;
    world.history.broken.is_some() || nobody && (suspended || world.job.recorded.outcome().is_some())
}

impl Step {
    /// Whether a job's end may not depend on it.
    pub(crate) fn is_fault(&self) -> bool {
        !matches!(self, Step::Observe | Step::Write | Step::Move(_) | Step::Wait)
    }
}
