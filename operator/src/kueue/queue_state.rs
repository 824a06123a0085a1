//! The answer of the queue: whether the job may run, with how many pods, and the condition that reports the answer.

use std::sync::Arc;

use kube::ResourceExt;
use stagecoach_api::job::condition_reason as reason;
use stagecoach_lifecycle::Admission;

use crate::build::kueue::{Demand, Workload, condition_type};
use crate::job::Grant;

/// The answer of the queue of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueState {
    /// Whether the job may run, and with how many pods.
    pub(crate) grant: Grant,
    /// The Workload under which the job runs; `None` for a job that is not admitted or has no queue.
    pub(crate) holder: Option<Arc<Workload>>,
    /// The condition `Admitted`; `None` for a job without a queue.
    pub(crate) condition: Option<QueueCondition>,
}

/// The status, the reason and the message of the condition `Admitted`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueCondition {
    pub(crate) is_admitted: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl QueueState {
    /// Returns the state of a waiting job, with the reason for the wait.
    pub(crate) fn waiting(reason: &str, message: impl Into<String>) -> QueueState {
        let condition = QueueCondition { is_admitted: false, reason: reason.to_owned(), message: message.into() };
        let grant = Grant { admission: Admission::Waiting, ..Grant::default() };
        QueueState { grant, condition: Some(condition), ..QueueState::default() }
    }

    /// Returns the answer of the queue to `demand`, according to the job's Workloads. `slices_are_off` says whether
    /// Kueue has Workload slices turned off.
    pub(crate) fn new(demand: &Demand, workloads: &[Arc<Workload>], slices_are_off: bool) -> QueueState {
        let holder = holder(workloads);
        let matching = holder.filter(|holder| demand.matches(holder));
        let Some(holder) = matching else { return without_admission(demand, workloads, holder) };
        let granted = demand.granted_mesh(holder);
        // while a slice with other counts waits, the job runs with the admitted counts
        let has_slices = demand.is_elastic && demand.prebuilt.is_none() && !slices_are_off;
        let kept = || holder.admitted_mesh().filter(|_| has_slices);
        let Some(mesh) = granted.or_else(kept) else {
            let name = holder.name_any();
            let hint = match demand.is_elastic {
                true => {
                    "the feature gate ElasticJobsViaWorkloadSlices of Kueue is off, so the job does not run while it \
                     waits"
                }
                false => "with the annotation kueue.x-k8s.io/elastic-job, a job keeps running while it waits",
            };
            let message = format!(
                "the job asks for {}, and the Workload {name} is admitted for fewer pods: the job saves, stops and \
                 is queued again; {hint}",
                demand.mesh
            );
            return QueueState::waiting(reason::REQUEUED, message);
        };
        let queue = holder.status.admission.as_ref().map(|admission| admission.cluster_queue.as_str());
        let mut message =
            format!("the ClusterQueue {} admits the Workload {}", queue.unwrap_or_default(), holder.name_any());
        let lacks_spares = !demand.has_enough_spares(holder);
        if mesh != demand.mesh {
            message += &format!(" for {mesh}; the job asks for {}", demand.mesh);
        } else if lacks_spares {
            message += &format!(" with {} spares; the job asks for {}", demand.granted_spares(holder), demand.spares);
        }
        if mesh != demand.mesh || lacks_spares {
            let newer = workloads.iter().rfind(|other| other.is_unfinished() && !Arc::ptr_eq(other, holder));
            if let Some(why) = newer.and_then(|newer| not_reserved(newer)) {
                message += &format!(": {why}");
            }
        }
        QueueState {
            grant: Grant {
                admission: Admission::Admitted(holder.admission_id()),
                mesh: Some(demand.attempt_mesh(mesh)),
                replicas: demand.range.is_some().then_some(mesh.data_parallel),
                spares: Some(demand.granted_spares(holder)),
            },
            holder: Some(Arc::clone(holder)),
            condition: Some(QueueCondition { is_admitted: true, reason: reason::ADMITTED.into(), message }),
        }
    }
}

/// Returns the newest admitted Workload. An admitted slice is newer than the Workload that it replaces.
pub(crate) fn holder(workloads: &[Arc<Workload>]) -> Option<&Arc<Workload>> {
    workloads.iter().rfind(|workload| workload.is_admitted())
}

/// Returns the state of a job without a usable admission. `other` is an admitted Workload that does not match the
/// demand.
fn without_admission(demand: &Demand, workloads: &[Arc<Workload>], other: Option<&Arc<Workload>>) -> QueueState {
    if let Some(problem) = demand.problem() {
        return QueueState::waiting(reason::TOO_MANY_POD_SETS, problem);
    }
    if let Some(other) = other {
        let message = format!(
            "the Workload {} is admitted for other pods or another queue than the job asks for: the job saves, stops \
             and is queued again",
            other.name_any()
        );
        return QueueState::waiting(reason::REQUEUED, message);
    }
    let Some(workload) = workloads.iter().rfind(|workload| workload.is_unfinished()) else {
        return match &demand.prebuilt {
            Some(name) => QueueState::waiting(reason::QUEUED, format!("the Workload {name} does not exist yet")),
            None => QueueState::waiting(reason::QUEUED, format!("the job enters the queue {}", demand.queue_name)),
        };
    };
    let name = workload.name_any();
    if workload.is_evicted()
        && let Some(evicted) = workload.condition(condition_type::EVICTED)
    {
        let message = format!("the Workload {name} is evicted: {}", evicted.message);
        return QueueState::waiting(&evicted.reason, message);
    }
    let why = not_reserved(workload).unwrap_or_else(|| "it waits for its admission checks".into());
    QueueState::waiting(
        reason::QUEUED,
        format!("the Workload {name} waits in the queue {}: {why}", workload.spec.queue_name),
    )
}

/// Returns the reason why no quota is reserved for a Workload; `None` if quota is reserved.
fn not_reserved(workload: &Workload) -> Option<String> {
    if workload.has_reservation() {
        return None;
    }
    let message = workload.condition(condition_type::QUOTA_RESERVED).map(|reserved| reserved.message.clone());
    Some(message.filter(|message| !message.is_empty()).unwrap_or_else(|| "Kueue has not answered yet".into()))
}
