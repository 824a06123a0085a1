//! The operator: one look, one decision, then one write at a time; and how each guard is taken away.

use stagecoach_api::job::{Backoff, Restart};
use stagecoach_lifecycle::*;

use crate::properties::Broken;
use crate::world::{Job, Lagging, NOW, Name, Operator, Pod, Process, Record, World, Write, plain};

pub(crate) const MAX_RESTARTS: u32 = 2;
pub(crate) const TERMINATION_TIMEOUT: u64 = 20;

/// What keeps a promise; each can be taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The record is written only over the version that was read.
    CompareAndSwap,
    /// What was read is written back even where nothing changed in it, if there is something to do: so nobody acts on
    /// an old version.
    ConfirmTheRead,
    /// The same where pods are only deleted.
    ConfirmBeforeDeleting,
    /// The record is written before anything is done.
    RecordFirst,
    /// Nobody is created while members of older attempts are left.
    WaitForOlder,
    /// A new attempt's number is above those of all pods, not only above the recorded one.
    NumberAbovePods,
    /// Pods are listed from the API server itself, not from a cache.
    LiveList,
    /// What was recorded as created is not created again.
    PodsCreated,
    /// Only the holder of the newest fence commits.
    Fence,
    /// Who was asked to leave is waited for so long and no longer.
    TerminationTimeout,
    /// A restart that counts is taken from the budget.
    Budget,
}

fn policy(without: Option<Guard>) -> Policy {
    let never = without == Some(Guard::TerminationTimeout);
    Policy {
        restart: Restart {
            max_restarts: MAX_RESTARTS,
            backoff: Backoff { initial_seconds: 10, max_seconds: 10 },
            startup_timeout_seconds: 30,
            stall_timeout_seconds: 30,
            termination_timeout_seconds: if never { u32::MAX } else { TERMINATION_TIMEOUT as u32 },
            exit_codes: vec![],
        },
        grace: 10,
        scheduling_timeout: 30,
        active_deadline: None,
        nodes_may_vanish: true,
    }
}

/// Reads the job and lists the pods, decides, and plans the writes.
pub(crate) fn observe(world: &mut World, lagging: bool, without: Option<Guard>) {
    let seen = if lagging { world.lagging.take() } else { None };
    let (job, pods, fresh) = match &seen {
        Some(Lagging::Job(job)) => (job.as_ref(), &world.pods, false),
        Some(Lagging::Pods(pods)) => (&world.job, pods, true),
        None => (&world.job, &world.pods, true),
    };
    let observed = Observed {
        desired: job.desired,
        policy: policy(without),
        state: job.recorded.clone(),
        members: pods.iter().map(Pod::member).collect(),
        seen: Seen { checkpoint: Some(world.volume.checkpoint), progressed: Some(Time(0)), ..Seen::default() },
    };
    let decision = decide_without(&observed, without);
    let mut plan = writes(&decision, pods);
    let record = record(job, &decision);
    let confirm = match without {
        Some(Guard::ConfirmTheRead) => false,
        Some(Guard::ConfirmBeforeDeleting) => plan.iter().any(|write| matches!(write, Write::Create { .. })),
        _ => !plan.is_empty(),
    };
    if confirm || record.state != job.recorded {
        let at = if without == Some(Guard::RecordFirst) { plan.len() } else { 0 };
        plan.insert(at, Write::Record(Box::new(record)));
    }
    plan.reverse();
    // Until it has caught up with the cache there is more to look at.
    world.operator = Operator { news: lagging, wake: decision.wake, fresh: fresh || plan.is_empty(), plan };
}

fn decide_without(observed: &Observed, without: Option<Guard>) -> Decision {
    let mut observed = observed.clone();
    match (without, &mut observed.state.doing) {
        (Some(Guard::PodsCreated), Doing::Running { created, .. }) => *created = false,
        (Some(Guard::NumberAbovePods), _) => {
            let number = observed.state.attempt.number;
            observed.members.retain(|member| member.attempt <= number);
        }
        _ => {}
    }
    let mut decision = decide(&observed, NOW);
    match (without, &decision.state.doing) {
        (Some(Guard::WaitForOlder), Doing::Running { not_before, created: false }) if *not_before <= NOW => {
            let Attempt { number, stages, .. } = decision.state.attempt;
            decision.actions.retain(|action| !matches!(action, Action::StartAttempt { .. }));
            decision.actions.push(Action::StartAttempt { number, stages });
        }
        (Some(Guard::Budget), _) => decision.state.budget = observed.state.budget,
        _ => {}
    }
    decision
}

/// What is to be recorded.
fn record(job: &Job, decision: &Decision) -> Record {
    let state = plain(decision.state.clone());
    let raised = state.attempt.number > job.recorded.attempt.number;
    let failure = decision.state.last_failure.as_ref();
    Record {
        raised,
        refilled: state.checkpoint > job.recorded.checkpoint,
        counted: raised && failure.is_some_and(|failure| failure.reason.counts()),
        state,
    }
}

/// The actions as writes, for the pods that were seen.
fn writes(decision: &Decision, pods: &[Pod]) -> Vec<Write> {
    let mut writes = Vec::new();
    for action in &decision.actions {
        match *action {
            Action::StartAttempt { number: attempt, stages } => {
                let names = (0..stages).map(|stage| Name { attempt, stage });
                writes.extend(names.map(|name| Write::Create { name, stages }));
            }
            Action::DeleteMembers { attempt, .. } => {
                let asked = pods.iter().filter(|pod| pod.name.attempt == attempt && pod.leaving.is_none());
                writes.extend(asked.map(|pod| Write::Delete(pod.name)));
            }
            // The kubelet does it.
            Action::KillMembers { .. } => {}
        }
    }
    writes
}

/// Does the next write of the plan. `unseen`: the watch's cache keeps the version that this one replaces.
pub(crate) fn write(world: &mut World, unseen: bool, without: Option<Guard>) {
    let Some(next) = world.operator.plan.pop() else { return };
    match next {
        Write::Record(_) if !world.operator.fresh && without != Some(Guard::CompareAndSwap) => {
            world.operator.plan.clear();
            world.operator.news = true;
        }
        Write::Record(record) => {
            if record.state != world.job.recorded && !matches!(world.lagging, Some(Lagging::Pods(_))) {
                world.lagging = unseen.then(|| Lagging::Job(Box::new(world.job.clone())));
            }
            write_record(world, *record);
        }
        Write::Create { name, stages } => create(world, name, stages),
        Write::Delete(name) => delete(world, name),
    }
    if world.operator.plan.is_empty() {
        world.operator.fresh = true;
    }
}

fn write_record(world: &mut World, Record { state, raised, refilled, counted }: Record) {
    let (before, history) = (&world.job.recorded, &mut world.history);
    if state == *before {
        return;
    }
    let number = state.attempt.number;
    let mut broken = None;
    if before.outcome().is_some() {
        broken = Some(Broken::TerminalIsSticky);
    }
    let used = number <= history.highest || world.pods.iter().any(|pod| pod.name.attempt >= number);
    if number < before.attempt.number || raised && used {
        broken = broken.or(Some(Broken::ANumberIsUsedOnce));
    }
    history.highest = history.highest.max(number);
    if matches!(state.doing, Doing::Running { created: true, .. }) {
        history.created = number;
    }
    if refilled {
        history.counted = 0;
    }
    history.counted += u32::from(counted);
    if history.counted > MAX_RESTARTS {
        broken = broken.or(Some(Broken::TheBudgetIsKept));
    }
    let given_up = matches!(state.outcome(), Some(Outcome::Failed(_)));
    let spent = state.outcome() == Some(&Outcome::Failed(FailReason::BudgetExhausted));
    if given_up && !(spent && history.counted == MAX_RESTARTS) {
        broken = broken.or(Some(Broken::NobodyGivesUpEarly));
    }
    world.job.recorded = state;
    world.operator.news = true;
    broken.into_iter().for_each(|promise| world.break_promise(promise));
}

/// AlreadyExists is as good as done.
fn create(world: &mut World, name: Name, stages: u32) {
    if world.pod(name).is_some() {
        return;
    }
    if name.attempt > world.history.highest.max(world.history.forgotten) {
        world.break_promise(Broken::OnlyWhatIsRecordedIsCreated);
    }
    if name.attempt == world.history.created || name.attempt < world.history.highest {
        world.break_promise(Broken::NothingIsCreatedAgain);
    }
    let pod = Pod { name, stages, process: Process::Pending, at: NOW, fenced: false, leaving: None, cut: None };
    world.pods.push(pod);
    world.pods.sort_unstable_by_key(|pod| pod.name);
    world.operator.news = true;
}

fn delete(world: &mut World, name: Name) {
    let State { doing, attempt, .. } = &world.job.recorded;
    if matches!(doing, Doing::Running { .. }) && attempt.number == name.attempt {
        world.break_promise(Broken::WhoIsWantedStays);
    }
    if world.pod(name).is_some() {
        world.change(name, |pod| {
            pod.leaving.get_or_insert(NOW);
        });
    }
}
