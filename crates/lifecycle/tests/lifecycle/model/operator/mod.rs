//! The model's operator: it makes one observation and one decision, and then one write at a time.

mod guards;
mod writes;

use stagecoach_api::job::{BackoffSpec, RestartSpec};
use stagecoach_lifecycle::*;

pub(crate) use self::guards::Guard;
use self::guards::decide_without;
pub(crate) use self::writes::write;
use super::cluster_state::{
    ClusterState, JobObject, ModelOperator, ModelQueue, NOW, Name, Record, SPARE, StaleCache, Write,
};
use super::model_pod::{ModelPod, Shown};
use super::pods::is_heard_to_train_without;
use super::time::canonical;

/// The restart budget. The budget is smaller with spares, because a failure then leads to many more states.
pub(crate) const fn max_restarts(spares: u32) -> u32 {
    if spares > 0 { 1 } else { 2 }
}

pub(crate) const TERMINATION_TIMEOUT_SECONDS: u64 = 20;

fn policy(cluster: &ClusterState, disabled_guard: Option<Guard>) -> FailurePolicy {
    let ClusterState { replaces_stages, spares, min_data_parallel, .. } = *cluster;
    let never = disabled_guard == Some(Guard::TerminationTimeout);
    let needs_all = disabled_guard == Some(Guard::OneReplicaCompletes);
    FailurePolicy {
        restart: RestartSpec {
            max_restarts: max_restarts(spares),
            backoff: BackoffSpec { initial_seconds: 10, max_seconds: 10 },
            startup_timeout_seconds: 30,
            reform_timeout_seconds: u32::from(replaces_stages),
            heartbeat_timeout_seconds: 10,
            stall_timeout_seconds: 30,
            termination_timeout_seconds: if never { u32::MAX } else { TERMINATION_TIMEOUT_SECONDS as u32 },
            ..RestartSpec::default()
        },
        grace_seconds: 10,
        scheduling_timeout_seconds: 30,
        active_deadline_seconds: None,
        backoff_jitter_percent: 0,
        replaces_stages,
        spares,
        nodes_can_be_lost: true,
        min_data_parallel: if needs_all { u32::MAX } else { min_data_parallel },
        is_elastic: cluster.admitted_replicas.is_some(),
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
        desired: Desired {
            admission: cluster.queue.admission(),
            admitted_replicas: cluster.admitted_replicas,
            ..job.desired
        },
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
    if releases(cluster, &decision, disabled_guard) {
        plan.push(Write::Release);
    }
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
    // after a stale read, the operator must still observe the newer version
    cluster.operator = ModelOperator {
        has_unobserved_change: stale_cache,
        wake_at: decision.wake_at,
        job_is_current: job_is_current || plan.is_empty(),
        plan,
    };
}

/// Whether the operator returns the reservation of an evicted job to the queue.
fn releases(cluster: &ClusterState, decision: &Decision, disabled_guard: Option<Guard>) -> bool {
    let is_over = matches!(decision.state.attempt_phase, AttemptPhase::Idle | AttemptPhase::Finished(_));
    let is_drained = is_over && !decision.instances_remain;
    matches!(cluster.queue, ModelQueue::Evicted(_)) && (is_drained || disabled_guard == Some(Guard::ReleaseLast))
}

/// Returns the stage of an attempt whose end the other stages report.
fn reported_loss(cluster: &ClusterState, attempt: u64) -> Option<LostInstance> {
    let pod = cluster.of(attempt).find(|pod| pod.unnoticed.is_some())?;
    let (rank, incarnation) = pod.place()?;
    // with spares, `decide` waits for a promotion, so the time since the loss must advance
    let since = if cluster.spares > 0 { pod.at } else { NOW };
    Some(LostInstance { rank, incarnation, since, has_ended: true })
}

/// Whether a counted failure turns out not to count: a process that was reported as ended exits in response to a
/// termination request.
fn is_given_back(before: &JobState, instances: &[StageInstance]) -> bool {
    let drained = InstanceState::Exited(Exit::with_code(143));
    before.outcome().is_none()
        && before.last_failure.as_ref().is_some_and(|failure| {
            let was_drained = |instance: &StageInstance| {
                let place = (instance.attempt, Some(instance.rank), instance.incarnation);
                place == (failure.attempt, failure.rank, failure.incarnation) && instance.state == drained
            };
            instances.iter().any(was_drained)
        })
}

/// Whether one instance of each stage of an attempt is in this state.
fn a_replica_is(state: &InstanceState, recorded: &JobState, instances: &[StageInstance]) -> bool {
    let is_in_state = |rank| {
        let place = (recorded.attempt.number, rank, recorded.incarnation(rank));
        let mut instances = instances.iter();
        instances.any(|other| (other.attempt, other.rank, other.incarnation) == place && other.state == *state)
    };
    let stages = recorded.attempt.mesh.stages;
    let ranks_of = |stage| (stage..recorded.attempt.mesh.ranks()).step_by(stages as usize);
    stages > 0 && (0..stages).all(|stage| ranks_of(stage).any(is_in_state))
}

/// Returns the record to write.
fn record(job: &JobObject, decision: &Decision, instances: &[StageInstance], others_train: bool) -> Record {
    let state = canonical(decision.state.clone());
    let starts_attempt = state.attempt.number > job.recorded.attempt.number;
    let replaces = !starts_attempt && state.incarnations != job.recorded.incarnations;
    let failure = decision.state.last_failure.as_ref();
    Record {
        starts_attempt,
        resets_budget: state.checkpoint_step > job.recorded.checkpoint_step,
        returns_restart_to_budget: is_given_back(&job.recorded, instances),
        counted: (starts_attempt || replaces)
            && failure.is_some_and(|failure| {
                // An instance that stopped waiting for a replacement failed because of an earlier failure, which was
                // counted. Its failure does not count either while the other replicas train.
                let was_counted = failure.reason == FailureReason::PeerLost
                    && (others_train || !job.recorded.replaced_without_progress.is_empty());
                failure.reason.counts_against_budget() && !was_counted
            }),
        is_done: false,
        state,
    }
}

/// Returns the writes that perform the actions on the observed pods.
fn writes(decision: &Decision, pods: &[ModelPod]) -> Vec<Write> {
    let mut writes = Vec::new();
    for action in &decision.actions {
        match *action {
            AttemptAction::StartAttempt { number: attempt, mesh, instances } => {
                let names = (0..instances).map(|rank| Name { attempt, rank, incarnation: 0 });
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
            // the kubelet kills the processes
            AttemptAction::KillInstances { .. } => {}
        }
    }
    writes
}
