//! The operator: one observation, one decision, then one write at a time; and how each guard is disabled.

use stagecoach_api::job::{BackoffSpec, RestartSpec};
use stagecoach_lifecycle::*;

use super::cluster_state::{
    ClusterState, JobObject, ModelOperator, ModelPod, ModelProcess, NOW, Name, Record, StaleCache, Write, canonical,
};
use super::properties::BrokenInvariant;

pub(crate) const MAX_RESTARTS: u32 = 2;
pub(crate) const TERMINATION_TIMEOUT_SECONDS: u64 = 20;

/// What maintains an invariant; each can be disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// The record replaces only the version that was read.
    CompareAndSwap,
    /// The record is written back even if unchanged before any action, so that no action follows from a stale version.
    ConfirmTheRead,
    /// The same where pods are only deleted.
    ConfirmBeforeDeleting,
    /// The record is written before any action.
    RecordFirst,
    /// No pod is created while instances of older attempts remain.
    WaitForOlder,
    /// A new attempt's number is above those of all pods, not only above the recorded one.
    NumberAbovePods,
    /// Pods are listed by a consistent read, not from a cache.
    LiveList,
    /// Pods recorded as created are not created again.
    PodsCreated,
    /// Only the holder of the newest fence commits.
    Fence,
    /// Terminating pods are waited for until a timeout.
    TerminationTimeout,
    /// A restart that counts is taken from the budget.
    Budget,
    /// What is created in place of a lost stage is another incarnation.
    Incarnations,
}

fn policy(disabled_guard: Option<Guard>, replaces_stages: bool) -> Policy {
    let never = disabled_guard == Some(Guard::TerminationTimeout);
    Policy {
        restart: RestartSpec {
            max_restarts: MAX_RESTARTS,
            backoff: BackoffSpec { initial_seconds: 10, max_seconds: 10 },
            startup_timeout_seconds: 30,
            reform_timeout_seconds: u32::from(replaces_stages),
            heartbeat_timeout_seconds: 10,
            stall_timeout_seconds: 30,
            termination_timeout_seconds: if never { u32::MAX } else { TERMINATION_TIMEOUT_SECONDS as u32 },
            pod_failure_policy: None,
            exit_codes: vec![],
        },
        grace_seconds: 10,
        scheduling_timeout_seconds: 30,
        active_deadline_seconds: None,
        backoff_jitter_percent: 0,
        replaces_stages,
        nodes_can_be_lost: true,
    }
}

/// Reads the job and lists the pods, decides, and plans the writes.
pub(crate) fn observe(cluster: &mut ClusterState, stale_cache: bool, disabled_guard: Option<Guard>) {
    let seen = if stale_cache { cluster.stale_cache.take() } else { None };
    let (job, pods, job_is_current) = match &seen {
        Some(StaleCache::Job(job)) => (job.as_ref(), &cluster.pods, false),
        Some(StaleCache::Pods(pods)) => (&cluster.job, pods, true),
        None => (&cluster.job, &cluster.pods, true),
    };
    let observed = Observed {
        desired: job.desired,
        policy: policy(disabled_guard, cluster.replaces_stages),
        state: job.recorded.clone(),
        instances: pods.iter().map(ModelPod::instance).collect(),
        refusal: None,
        progress: ObservedProgress {
            checkpoint_step: Some(cluster.volume.checkpoint),
            last_step_at: Some(UnixMillis(0)),
            lost: reported_loss(cluster, job.recorded.attempt.number),
            ..ObservedProgress::default()
        },
    };
    let decision = decide_without(&observed, disabled_guard);
    let mut plan = writes(&decision, pods);
    let record = record(job, &decision);
    let confirm = match disabled_guard {
        Some(Guard::ConfirmTheRead) => false,
        Some(Guard::ConfirmBeforeDeleting) => plan.iter().any(|write| matches!(write, Write::Create { .. })),
        _ => !plan.is_empty(),
    };
    if confirm || record.state != job.recorded {
        let at = if disabled_guard == Some(Guard::RecordFirst) { plan.len() } else { 0 };
        plan.insert(at, Write::Record(Box::new(record)));
    }
    plan.reverse();
    // After a stale read the newer version is still to be observed.
    cluster.operator = ModelOperator {
        has_unobserved_change: stale_cache,
        wake_at: decision.wake_at,
        job_is_current: job_is_current || plan.is_empty(),
        plan,
    };
}

/// The stage of an attempt whose end the other stages report.
fn reported_loss(cluster: &ClusterState, attempt: u64) -> Option<LostInstance> {
    let pod = cluster.of(attempt).find(|pod| pod.unnoticed.is_some())?;
    let Name { stage, incarnation, .. } = pod.name;
    Some(LostInstance { stage, incarnation, since: NOW, has_ended: true })
}

fn decide_without(observed: &Observed, disabled_guard: Option<Guard>) -> Decision {
    let mut observed = observed.clone();
    match (disabled_guard, &mut observed.state.attempt_phase) {
        (Some(Guard::PodsCreated), AttemptPhase::Running { all_created, .. }) => *all_created = false,
        (Some(Guard::NumberAbovePods), _) => {
            let number = observed.state.attempt.number;
            observed.instances.retain(|instance| instance.attempt <= number);
        }
        _ => {}
    }
    let mut decision = decide(&observed, NOW);
    match (disabled_guard, &decision.state.attempt_phase) {
        (Some(Guard::WaitForOlder), AttemptPhase::Running { not_before, all_created: false }) if *not_before <= NOW => {
            let Attempt { number, stages, .. } = decision.state.attempt;
            decision.actions.retain(|action| !matches!(action, AttemptAction::StartAttempt { .. }));
            decision.actions.push(AttemptAction::StartAttempt { number, stages });
        }
        (Some(Guard::Budget), _) => decision.state.budget = observed.state.budget,
        (Some(Guard::Incarnations), _) => {
            let replaced = |action: &AttemptAction| matches!(action, AttemptAction::ReplaceStages { .. });
            if let Some(at) = decision.actions.iter().position(replaced) {
                let Attempt { number, stages, .. } = decision.state.attempt;
                decision.actions[at] = AttemptAction::StartAttempt { number, stages };
                decision.actions.retain(|action| !matches!(action, AttemptAction::RemoveReplaced { .. }));
            }
        }
        _ => {}
    }
    decision
}

/// The record to be written.
fn record(job: &JobObject, decision: &Decision) -> Record {
    let state = canonical(decision.state.clone());
    let starts_attempt = state.attempt.number > job.recorded.attempt.number;
    let replaces = !starts_attempt && state.incarnations != job.recorded.incarnations;
    let failure = decision.state.last_failure.as_ref();
    Record {
        starts_attempt,
        resets_budget: state.checkpoint_step > job.recorded.checkpoint_step,
        counted: (starts_attempt || replaces)
            && failure.is_some_and(|failure| {
                // what gave up waiting for a replacement ends for the failure that was counted
                let was_counted =
                    failure.reason == FailureReason::PeerLost && !job.recorded.replaced_without_progress.is_empty();
                failure.reason.counts_against_budget() && !was_counted
            }),
        state,
    }
}

/// The actions as writes, for the observed pods.
fn writes(decision: &Decision, pods: &[ModelPod]) -> Vec<Write> {
    let mut writes = Vec::new();
    for action in &decision.actions {
        match *action {
            AttemptAction::StartAttempt { number: attempt, stages } => {
                let names = (0..stages).map(|stage| Name { attempt, stage, incarnation: 0 });
                writes.extend(names.map(|name| Write::Create { name, stages }));
            }
            AttemptAction::ReplaceStages { attempt, ref incarnations } => {
                let stages = decision.state.attempt.stages;
                let names = incarnations.iter().map(|(&stage, &incarnation)| Name { attempt, stage, incarnation });
                writes.extend(names.map(|name| Write::Create { name, stages }));
            }
            AttemptAction::RemoveReplaced { attempt, ref incarnations } => {
                let is_replaced = |pod: &&ModelPod| {
                    let kept = incarnations.get(&pod.name.stage);
                    pod.name.attempt == attempt && kept.is_some_and(|kept| pod.name.incarnation < *kept)
                };
                let replaced = pods.iter().filter(is_replaced).filter(|pod| pod.deleted_at.is_none());
                writes.extend(replaced.map(|pod| Write::Delete(pod.name)));
            }
            AttemptAction::DeleteInstances { attempt, .. } => {
                let asked = pods.iter().filter(|pod| pod.name.attempt == attempt && pod.deleted_at.is_none());
                writes.extend(asked.map(|pod| Write::Delete(pod.name)));
            }
            // Done by the kubelet.
            AttemptAction::KillInstances { .. } => {}
        }
    }
    writes
}

/// Makes the next write of the plan. `unseen`: the watch's cache keeps the version that this one replaces.
pub(crate) fn write(cluster: &mut ClusterState, unseen: bool, disabled_guard: Option<Guard>) {
    let Some(next) = cluster.operator.plan.pop() else { return };
    match next {
        Write::Record(_) if !cluster.operator.job_is_current && disabled_guard != Some(Guard::CompareAndSwap) => {
            cluster.operator.plan.clear();
            cluster.operator.has_unobserved_change = true;
        }
        Write::Record(record) => {
            if record.state != cluster.job.recorded && !matches!(cluster.stale_cache, Some(StaleCache::Pods(_))) {
                cluster.stale_cache = unseen.then(|| StaleCache::Job(Box::new(cluster.job.clone())));
            }
            write_record(cluster, *record);
        }
        Write::Create { name, stages } => create(cluster, name, stages),
        Write::Delete(name) => delete(cluster, name),
    }
    if cluster.operator.plan.is_empty() {
        cluster.operator.job_is_current = true;
    }
}

fn write_record(cluster: &mut ClusterState, Record { state, starts_attempt, resets_budget, counted }: Record) {
    let (before, history) = (&cluster.job.recorded, &mut cluster.history);
    if state == *before {
        return;
    }
    let number = state.attempt.number;
    let mut broken = None;
    if before.outcome().is_some() {
        broken = Some(BrokenInvariant::TerminalStateIsFinal);
    }
    let used = number <= history.highest || cluster.pods.iter().any(|pod| pod.name.attempt >= number);
    if number < before.attempt.number || starts_attempt && used {
        broken = broken.or(Some(BrokenInvariant::AttemptNumbersAreUnique));
    }
    history.highest = history.highest.max(number);
    if matches!(state.attempt_phase, AttemptPhase::Running { all_created: true, .. }) {
        let name = |stage| Name { attempt: number, stage, incarnation: state.incarnation(stage) };
        history.created = (0..state.attempt.stages).map(name).collect();
    }
    if resets_budget {
        history.counted = 0;
    }
    history.counted += u32::from(counted);
    if history.counted > MAX_RESTARTS {
        broken = broken.or(Some(BrokenInvariant::BudgetIsRespected));
    }
    let given_up = matches!(state.outcome(), Some(JobOutcome::Failed(_)));
    let counted_since_checkpoint = state.outcome() == Some(&JobOutcome::Failed(JobFailureReason::BudgetExhausted));
    if given_up && !(counted_since_checkpoint && history.counted == MAX_RESTARTS) {
        broken = broken.or(Some(BrokenInvariant::NoEarlyFailure));
    }
    cluster.job.recorded = state;
    cluster.operator.has_unobserved_change = true;
    broken.into_iter().for_each(|invariant| cluster.report_violation(invariant));
}

/// `AlreadyExists` counts as created.
fn create(cluster: &mut ClusterState, name: Name, stages: u32) {
    if cluster.pod(name).is_some() {
        return;
    }
    if name.attempt > cluster.history.highest.max(cluster.history.highest_before_loss) {
        cluster.report_violation(BrokenInvariant::OnlyRecordedAttemptsAreCreated);
    }
    if cluster.history.created.contains(&name) || name.attempt < cluster.history.highest {
        cluster.report_violation(BrokenInvariant::PodsAreCreatedOnce);
    }
    let pod = ModelPod {
        name,
        stages,
        process: ModelProcess::Pending,
        at: NOW,
        fenced: false,
        is_survivor: false,
        deleted_at: None,
        partitioned: None,
        unnoticed: None,
    };
    cluster.pods.push(pod);
    cluster.pods.sort_unstable_by_key(|pod| pod.name);
    cluster.operator.has_unobserved_change = true;
}

fn delete(cluster: &mut ClusterState, name: Name) {
    let recorded = &cluster.job.recorded;
    let is_current = recorded.attempt.number == name.attempt && recorded.incarnation(name.stage) == name.incarnation;
    if matches!(recorded.attempt_phase, AttemptPhase::Running { .. }) && is_current {
        cluster.report_violation(BrokenInvariant::CurrentPodsAreKept);
    }
    if cluster.pod(name).is_some() {
        cluster.change(name, |pod| {
            pod.deleted_at.get_or_insert(NOW);
        });
    }
}
