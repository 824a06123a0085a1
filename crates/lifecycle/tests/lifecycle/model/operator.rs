//! The operator: one observation, one decision, then one write at a time; and how each guard is disabled.

use stagecoach_api::contract::Mesh;
use stagecoach_api::job::{BackoffSpec, RestartSpec};
use stagecoach_lifecycle::*;

use super::cluster_state::{
    ClusterState, JobObject, ModelOperator, ModelPod, ModelProcess, NOW, Name, Record, SPARE, Shown, StaleCache, Write,
    canonical,
};
use super::pods::is_heard_to_train_without;
use super::properties::BrokenInvariant;

/// Restarts that count. With spares, where one failure has many more consequences, fewer.
pub(crate) const fn max_restarts(spares: u32) -> u32 {
    if spares > 0 { 1 } else { 2 }
}

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
    /// Its incarnation is none that a spare may have taken unobserved.
    SpareIncarnations,
    /// A takeover counts as the replacement that it is.
    TakeoverCounts,
    /// No pod is created while spares of older attempts remain.
    WaitForSpares,
    /// Spares of a complete job are removed.
    RemoveSpares,
    /// No spare is created while a stage waits to be scheduled.
    StagesFirst,
    /// After a takeover nothing is created but what is being replaced otherwise.
    NothingToCreate,
    /// A group forms only with `restart.minDataParallel` replicas.
    EnoughReplicas,
    /// Where replicas may be missing, a job is complete when the first one is done.
    OneReplicaCompletes,
    /// What waits for a replica that a complete job was without is removed.
    RemoveWaiting,
}

fn policy(cluster: &ClusterState, disabled_guard: Option<Guard>) -> Policy {
    let ClusterState { replaces_stages, spares, min_data_parallel, .. } = *cluster;
    let never = disabled_guard == Some(Guard::TerminationTimeout);
    let needs_all = disabled_guard == Some(Guard::OneReplicaCompletes);
    Policy {
        restart: RestartSpec {
            max_restarts: max_restarts(spares),
            backoff: BackoffSpec { initial_seconds: 10, max_seconds: 10 },
            startup_timeout_seconds: 30,
            reform_timeout_seconds: u32::from(replaces_stages),
            min_data_parallel: None,
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
        spares,
        nodes_can_be_lost: true,
        min_data_parallel: if needs_all { u32::MAX } else { min_data_parallel },
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
    let (mut instances, mut spares) = (Vec::new(), Vec::new());
    for pod in pods {
        match pod.shown() {
            Shown::Stage(instance) => instances.push(instance),
            Shown::Spare(spare) => spares.push(spare),
        }
    }
    let observed = Observed {
        desired: job.desired,
        policy: policy(cluster, disabled_guard),
        state: job.recorded.clone(),
        instances,
        spares,
        refusal: None,
        progress: ObservedProgress {
            checkpoint_step: Some(cluster.volume.checkpoint),
            last_step_at: Some(if is_heard_to_train_without(cluster, job.recorded.attempt.number) {
                NOW
            } else {
                UnixMillis(0)
            }),
            lost: reported_loss(cluster, job.recorded.attempt.number),
            ..ObservedProgress::default()
        },
    };
    let decision = decide_without(&observed, disabled_guard);
    let mut plan = writes(&decision, pods);
    let done = InstanceState::Exited(Exit::with_code(0));
    let is_done = cluster.may_lack_replicas() && a_replica_is(&done, &job.recorded, &observed.instances);
    let others_train =
        cluster.may_lack_replicas() && a_replica_is(&InstanceState::Ready, &job.recorded, &observed.instances);
    let record = Record { is_done, ..record(job, &decision, &observed.instances, others_train) };
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
    let (rank, incarnation) = pod.place()?;
    // with spares, for which is waited, a time that passes
    let since = if cluster.spares > 0 { pod.at } else { NOW };
    Some(LostInstance { rank, incarnation, since, has_ended: true })
}

fn decide_without(observed: &Observed, disabled_guard: Option<Guard>) -> Decision {
    let mut observed = observed.clone();
    match (disabled_guard, &mut observed.state.attempt_phase) {
        (Some(Guard::PodsCreated), AttemptPhase::Running { all_created, .. }) => *all_created = false,
        (Some(Guard::NumberAbovePods), _) => {
            let number = observed.state.attempt.number;
            observed.instances.retain(|instance| instance.attempt <= number);
        }
        (Some(Guard::WaitForSpares), _) => {
            let number = observed.state.attempt.number;
            observed.spares.retain(|spare| spare.attempt == number);
        }
        _ => {}
    }
    let mut decision = decide(&observed, NOW);
    match (disabled_guard, &decision.state.attempt_phase) {
        (Some(Guard::WaitForOlder), AttemptPhase::Running { not_before, all_created: false }) if *not_before <= NOW => {
            let Attempt { number, mesh, .. } = decision.state.attempt;
            decision.actions.retain(|action| !matches!(action, AttemptAction::StartAttempt { .. }));
            decision.actions.push(AttemptAction::StartAttempt { number, mesh });
        }
        (Some(Guard::Budget), _) => decision.state.budget = observed.state.budget,
        (Some(Guard::TakeoverCounts), _) if is_takeover(&observed.state, &decision.state) => {
            decision.state.budget = observed.state.budget;
        }
        (Some(Guard::NothingToCreate), AttemptPhase::Running { not_before, .. })
            if is_takeover(&observed.state, &decision.state) =>
        {
            decision.state.attempt_phase = AttemptPhase::Running { not_before: *not_before, all_created: false };
            let Attempt { number, mesh, .. } = decision.state.attempt;
            decision.actions.push(AttemptAction::StartAttempt { number, mesh });
        }
        (Some(Guard::RemoveWaiting), AttemptPhase::Finished(JobOutcome::Complete)) => {
            decision.actions.retain(|action| !matches!(action, AttemptAction::RemoveReplaced { .. }));
        }
        (Some(Guard::RemoveSpares), AttemptPhase::Finished(_)) => {
            decision.actions.retain(|action| !matches!(action, AttemptAction::RemoveSpares { .. }));
        }
        (Some(Guard::StagesFirst), AttemptPhase::Running { all_created: true, .. }) => {
            observed
                .instances
                .iter_mut()
                .filter(|instance| instance.state == InstanceState::Pending)
                .for_each(|instance| instance.state = InstanceState::Starting);
            let starts_spares = |action: &AttemptAction| matches!(action, AttemptAction::StartSpares { .. });
            if !decision.actions.iter().any(starts_spares) {
                let unguarded = decide(&observed, NOW);
                if unguarded.state == decision.state {
                    decision.actions.extend(unguarded.actions.into_iter().filter(starts_spares));
                }
            }
        }
        (Some(Guard::SpareIncarnations), _) if decision.state.attempt == observed.state.attempt => {
            let next = |rank: u32| observed.state.incarnation(rank) + 1;
            let replaced: Vec<u32> = decision.state.starting.difference(&observed.state.starting).copied().collect();
            for rank in replaced {
                decision.state.incarnations.insert(rank, next(rank));
                for action in &mut decision.actions {
                    if let AttemptAction::ReplaceStages { incarnations, .. }
                    | AttemptAction::RemoveReplaced { incarnations, .. } = action
                    {
                        incarnations.entry(rank).and_modify(|incarnation| *incarnation = next(rank));
                    }
                }
            }
        }
        (Some(Guard::Incarnations), _) => {
            let replaced = |action: &AttemptAction| matches!(action, AttemptAction::ReplaceStages { .. });
            if let Some(at) = decision.actions.iter().position(replaced) {
                let Attempt { number, mesh, .. } = decision.state.attempt;
                decision.actions[at] = AttemptAction::StartAttempt { number, mesh };
                decision.actions.retain(|action| !matches!(action, AttemptAction::RemoveReplaced { .. }));
            }
        }
        _ => {}
    }
    decision
}

/// Whether a takeover was recorded, and nothing is replaced but by it.
fn is_takeover(before: &JobState, after: &JobState) -> bool {
    after.budget.replaced > before.budget.replaced && after.starting.is_subset(&before.starting)
}

/// Whether a failure that was counted turns out not to count: what was believed to have ended exits, having been asked to.
fn is_given_back(before: &JobState, instances: &[StageInstance]) -> bool {
    let drained = InstanceState::Exited(Exit::with_code(143));
    before.outcome().is_none()
        && before.last_failure.as_ref().is_some_and(|failure| {
            let is_it = |instance: &StageInstance| {
                let place = (instance.attempt, Some(instance.rank), instance.incarnation);
                place == (failure.attempt, failure.rank, failure.incarnation) && instance.state == drained
            };
            instances.iter().any(is_it)
        })
}

/// Whether as many instances of an attempt as make a replica are in this state.
fn a_replica_is(state: &InstanceState, recorded: &JobState, instances: &[StageInstance]) -> bool {
    let is_in_state = |rank| {
        let place = (recorded.attempt.number, rank, recorded.incarnation(rank));
        let mut instances = instances.iter();
        instances.any(|other| (other.attempt, other.rank, other.incarnation) == place && other.state == *state)
    };
    let stages = recorded.attempt.mesh.stages;
    let of_stage = |stage| (stage..recorded.attempt.mesh.ranks()).step_by(stages as usize);
    stages > 0 && (0..stages).all(|stage| of_stage(stage).any(is_in_state))
}

/// The record to be written.
fn record(job: &JobObject, decision: &Decision, instances: &[StageInstance], others_train: bool) -> Record {
    let state = canonical(decision.state.clone());
    let starts_attempt = state.attempt.number > job.recorded.attempt.number;
    let replaces = !starts_attempt && state.incarnations != job.recorded.incarnations;
    let failure = decision.state.last_failure.as_ref();
    Record {
        starts_attempt,
        resets_budget: state.checkpoint_step > job.recorded.checkpoint_step,
        gives_back: is_given_back(&job.recorded, instances),
        counted: (starts_attempt || replaces)
            && failure.is_some_and(|failure| {
                // what gave up waiting for a replacement ends for the failure that was counted, or beside a group that goes on
                let was_counted = failure.reason == FailureReason::PeerLost
                    && (others_train || !job.recorded.replaced_without_progress.is_empty());
                failure.reason.counts_against_budget() && !was_counted
            }),
        is_done: false,
        state,
    }
}

/// The actions as writes, for the observed pods.
fn writes(decision: &Decision, pods: &[ModelPod]) -> Vec<Write> {
    let mut writes = Vec::new();
    for action in &decision.actions {
        match *action {
            AttemptAction::StartAttempt { number: attempt, mesh } => {
                let names = (0..mesh.ranks()).map(|rank| Name { attempt, rank, incarnation: 0 });
                writes.extend(names.map(|name| Write::Create { name, mesh }));
            }
            AttemptAction::ReplaceStages { attempt, ref incarnations } => {
                let mesh = decision.state.attempt.mesh;
                let names = incarnations.iter().map(|(&rank, &incarnation)| Name { attempt, rank, incarnation });
                writes.extend(names.map(|name| Write::Create { name, mesh }));
            }
            AttemptAction::RemoveReplaced { attempt, ref incarnations } => {
                let is_replaced = |pod: &&ModelPod| match pod.shown() {
                    Shown::Stage(instance) if instance.attempt == attempt => {
                        incarnations.get(&instance.rank).is_some_and(|kept| instance.incarnation < *kept)
                    }
                    _ => false,
                };
                let replaced = pods.iter().filter(is_replaced).filter(|pod| pod.deleted_at.is_none());
                writes.extend(replaced.map(|pod| Write::Delete(pod.name)));
            }
            AttemptAction::DeleteInstances { attempt, .. } => {
                let asked = pods.iter().filter(|pod| pod.name.attempt == attempt && pod.deleted_at.is_none());
                writes.extend(asked.map(|pod| Write::Delete(pod.name)));
            }
            AttemptAction::StartSpares { attempt, ref numbers } => {
                let mesh = decision.state.attempt.mesh;
                let names = numbers.iter().map(|&incarnation| Name { attempt, rank: SPARE, incarnation });
                writes.extend(names.map(|name| Write::Create { name, mesh }));
            }
            AttemptAction::RemoveSpares { attempt, ref numbers } => {
                let is_removed = |pod: &&ModelPod| {
                    let Name { attempt: of, rank, incarnation } = pod.name;
                    (of, rank) == (attempt, SPARE) && numbers.contains(&incarnation) && pod.deleted_at.is_none()
                };
                writes.extend(pods.iter().filter(is_removed).map(|pod| Write::Delete(pod.name)));
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
        Write::Create { name, mesh } => create(cluster, name, mesh),
        Write::Delete(name) => delete(cluster, name),
    }
    if cluster.operator.plan.is_empty() {
        cluster.operator.job_is_current = true;
    }
}

fn write_record(cluster: &mut ClusterState, record: Record) {
    let Record { state, starts_attempt, resets_budget, gives_back, counted, is_done } = record;
    let max_restarts = max_restarts(cluster.spares);
    let (before, history) = (&cluster.job.recorded, &mut cluster.history);
    if state == *before {
        return;
    }
    let number = state.attempt.number;
    let mut broken = None;
    if starts_attempt && is_done {
        broken = Some(BrokenInvariant::NothingFollowsTheEnd);
    }
    if before.outcome().is_some() {
        broken = Some(BrokenInvariant::TerminalStateIsFinal);
    }
    let used = number <= history.highest || cluster.pods.iter().any(|pod| pod.name.attempt >= number);
    if number < before.attempt.number || starts_attempt && used {
        broken = broken.or(Some(BrokenInvariant::AttemptNumbersAreUnique));
    }
    history.highest = history.highest.max(number);
    if matches!(state.attempt_phase, AttemptPhase::Running { all_created: true, .. }) {
        let name = |rank| Name { attempt: number, rank, incarnation: state.incarnation(rank) };
        history.created = (0..state.attempt.mesh.ranks()).map(name).collect();
    }
    if resets_budget {
        history.counted = 0;
    }
    history.counted = history.counted.saturating_sub(gives_back.into()) + u32::from(counted);
    if history.counted > max_restarts {
        broken = broken.or(Some(BrokenInvariant::BudgetIsRespected));
    }
    let given_up = matches!(state.outcome(), Some(JobOutcome::Failed(_)));
    let counted_since_checkpoint = state.outcome() == Some(&JobOutcome::Failed(JobFailureReason::BudgetExhausted));
    if given_up && !(counted_since_checkpoint && history.counted == max_restarts) {
        broken = broken.or(Some(BrokenInvariant::NoEarlyFailure));
    }
    cluster.job.recorded = state;
    cluster.operator.has_unobserved_change = true;
    broken.into_iter().for_each(|invariant| cluster.report_violation(invariant));
}

/// `AlreadyExists` counts as created.
fn create(cluster: &mut ClusterState, name: Name, mesh: Mesh) {
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
        mesh,
        process: ModelProcess::Pending,
        takes: None,
        takeover_shows: false,
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
    let place = cluster.pod(name).and_then(ModelPod::place);
    let is_recorded = place.is_some_and(|(rank, incarnation)| recorded.incarnation(rank) == incarnation);
    let is_current = recorded.attempt.number == name.attempt && is_recorded;
    if matches!(recorded.attempt_phase, AttemptPhase::Running { .. }) && is_current {
        cluster.report_violation(BrokenInvariant::CurrentPodsAreKept);
    }
    if cluster.pod(name).is_some() {
        cluster.change(name, |pod| {
            pod.deleted_at.get_or_insert(NOW);
        });
    }
}
