//! Decides the next writes to the Workloads of a job, from the demand, the Workloads and the state of the job. Each
//! write is idempotent and follows only from observed objects, so that a crash between two writes is harmless.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use stagecoach_lifecycle::UnixMillis;

use super::boost::boost;
use super::queue_state::holder;
use crate::build::JobReference;
use crate::build::kueue::keys::{LAST_CHECKPOINT_ANNOTATION, PRIORITY_BOOST_ANNOTATION, SLICE_REPLACEMENT_ANNOTATION};
use crate::build::kueue::{Demand, Workload, condition_type, next_workload_number};

/// A write to a Workload of the job.
#[derive(Clone, Debug)]
pub(crate) enum WorkloadAction {
    /// Creates the Workload with this number. With `replaced`, the new Workload is a Workload slice with other counts,
    /// which replaces the Workload `replaced`.
    Create { number: u64, replaced: Option<Arc<Workload>> },
    /// Makes the job the owner of a Workload that another controller has created for the job.
    Adopt(Arc<Workload>),
    /// Sets the Workload's pod counts to the counts of the demand.
    SetCounts(Arc<Workload>),
    /// Sets the Workload's priority class to the class of the demand.
    SetPriority(Arc<Workload>),
    /// Deletes a Workload that the job does not need.
    Delete(Arc<Workload>),
    /// Evicts a Workload that the job does not need, so that the copy of the job in another cluster saves and stops.
    Evict(Arc<Workload>),
    /// Releases the reservation of an evicted Workload.
    Release(Arc<Workload>),
    /// Finishes a Workload, with a reason that Kueue defines.
    Finish { workload: Arc<Workload>, reason: &'static str, message: String },
    /// Reports to Kueue whether all pods are ready.
    SetPodsReady { workload: Arc<Workload>, is_ready: bool },
    /// Releases a part of the reservation: for each pod set, the number of pods that the job does not need.
    SetReclaimable { workload: Arc<Workload>, counts: BTreeMap<String, u32> },
    /// Sets the annotations by which Kueue chooses among the jobs that it may preempt.
    SetBoost { workload: Arc<Workload>, boost: u32, last_checkpoint: Option<String> },
}

/// The part of a job's state on which the Workloads depend.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueInputs {
    /// Whether the user has suspended the job.
    pub(crate) is_suspended: bool,
    /// Whether the job is complete, and its outcome in words; `None` for a job that has not ended.
    pub(crate) outcome: Option<(bool, String)>,
    /// Whether the job has no attempt, and none of its pods may still use resources.
    pub(crate) has_stopped: bool,
    /// Whether more pods than the queue has admitted might still use resources. An example is the pods of an earlier
    /// and larger mesh.
    pub(crate) exceeds_grant: bool,
    /// Whether Kueue has Workload slices turned off, so that the operator treats an elastic job like any other job.
    pub(crate) slices_are_off: bool,
    /// Whether the job trains.
    pub(crate) is_running: bool,
    /// The time of the newest checkpoint, in RFC 3339.
    pub(crate) last_checkpoint: Option<String>,
    /// The start of the time for which the job has trained without saving a checkpoint.
    pub(crate) at_risk_since: UnixMillis,
    /// The current time.
    pub(crate) now: UnixMillis,
}

/// Returns the next writes. `demand` is `None` for a job without a queue. `workloads` are in the order of their
/// creation.
pub(crate) fn actions(
    job: &JobReference,
    demand: Option<&Demand>,
    workloads: &[Arc<Workload>],
    inputs: &QueueInputs,
) -> Vec<WorkloadAction> {
    let unfinished: Vec<&Arc<Workload>> = workloads.iter().filter(|workload| workload.is_unfinished()).collect();
    let all = |action: fn(Arc<Workload>) -> WorkloadAction| {
        unfinished.iter().map(|workload| action(Arc::clone(workload))).collect::<Vec<_>>()
    };
    if let Some((succeeded, message)) = &inputs.outcome {
        let finish = |workload: &&Arc<Workload>| WorkloadAction::Finish {
            workload: Arc::clone(workload),
            reason: if *succeeded { "Succeeded" } else { "Failed" },
            message: message.clone(),
        };
        return if inputs.has_stopped { unfinished.iter().map(finish).collect() } else { Vec::new() };
    }
    let Some(demand) = demand else { return all(WorkloadAction::Delete) };
    if demand.prebuilt.is_some() {
        return of_prebuilt(job, demand, &unfinished, inputs);
    }
    if inputs.is_suspended || demand.problem().is_some() {
        return if inputs.has_stopped { all(WorkloadAction::Delete) } else { Vec::new() };
    }
    let number = next_workload_number(job, workloads);
    match holder(workloads) {
        Some(holder) if demand.matches(holder) => of_holder(demand, holder, &unfinished, number, inputs),
        Some(holder) if inputs.has_stopped => vec![WorkloadAction::Delete(Arc::clone(holder))],
        Some(_) => Vec::new(),
        None => of_waiting(demand, &unfinished, number, inputs),
    }
}

/// Returns the writes for a job whose Workload `holder` is admitted. The number of admitted pods may differ from the
/// number that the job now demands.
fn of_holder(
    demand: &Demand,
    holder: &Arc<Workload>,
    unfinished: &[&Arc<Workload>],
    number: u64,
    inputs: &QueueInputs,
) -> Vec<WorkloadAction> {
    let others = unfinished.iter().copied().filter(|other| !Arc::ptr_eq(other, holder));
    let (replaced, others): (Vec<_>, Vec<_>) = others.partition(|other| replaces(holder, other));
    let mut actions: Vec<_> = replaced.into_iter().map(|other| finish_replaced(holder, other)).collect();
    let uses_slices = demand.is_elastic && !inputs.slices_are_off;
    if demand.granted_mesh(holder).is_some() && (!uses_slices || demand.has_enough_spares(holder)) {
        actions.extend(others.into_iter().map(|other| WorkloadAction::Delete(Arc::clone(other))));
        actions.extend(surplus(demand, holder, inputs));
    } else if uses_slices {
        let (fitting, obsolete): (Vec<_>, Vec<_>) = others.into_iter().partition(|other| demand.matches(other));
        actions.extend(obsolete.into_iter().map(|other| WorkloadAction::Delete(Arc::clone(other))));
        match fitting.last() {
            None => actions.push(WorkloadAction::Create { number, replaced: Some(Arc::clone(holder)) }),
            Some(slice) if demand.has_counts(slice) => {}
            Some(slice) if slice.has_reservation() => actions.push(WorkloadAction::Delete(Arc::clone(slice))),
            Some(slice) => actions.push(WorkloadAction::SetCounts(Arc::clone(slice))),
        }
    } else if inputs.has_stopped {
        // the Workload can't grow while it has a reservation
        return vec![WorkloadAction::Delete(Arc::clone(holder))];
    }
    actions.extend(set_priority(demand, holder));
    actions.extend(reports(holder, inputs));
    actions
}

/// Whether the slice `holder` replaces `other`.
fn replaces(holder: &Workload, other: &Workload) -> bool {
    let replaced = holder.annotations().get(SLICE_REPLACEMENT_ANNOTATION).and_then(|key| key.rsplit('/').next());
    replaced.is_some() && replaced == other.metadata.name.as_deref()
}

/// Returns the write that finishes a Workload that the admitted slice replaces. If slices are enabled, Kueue makes the
/// same write.
fn finish_replaced(holder: &Workload, other: &Arc<Workload>) -> WorkloadAction {
    let message = format!("Replaced by the workload slice {}", holder.name_any());
    WorkloadAction::Finish { workload: Arc::clone(other), reason: "WorkloadSliceReplaced", message }
}

/// Returns the write that releases the quota of pods that the demand does not include, after these pods have stopped.
fn surplus(demand: &Demand, holder: &Arc<Workload>, inputs: &QueueInputs) -> Option<WorkloadAction> {
    if demand.is_elastic && !inputs.slices_are_off && !demand.has_counts(holder) {
        return (!inputs.exceeds_grant).then(|| WorkloadAction::SetCounts(Arc::clone(holder)));
    }
    let mesh = demand.granted_mesh(holder).filter(|_| !inputs.exceeds_grant)?;
    let mut counts = BTreeMap::new();
    for stored in &holder.spec.pod_sets {
        let set = demand.pod_sets.iter().find(|set| set.name == stored.name);
        let wanted = set.map_or(0, |set| set.count(mesh.data_parallel, demand.granted_spares(holder)));
        let surplus = holder.admitted_count(stored).saturating_sub(wanted);
        // while the reservation lasts, Kueue rejects a number below the stored number
        let count = surplus.max(holder.reclaimable_count(stored)).min(stored.count);
        if count > 0 {
            counts.insert(stored.name.clone(), count);
        }
    }
    let is_new = counts.iter().any(|(name, count)| {
        holder.status.reclaimable_pods.iter().all(|given| (&given.name, given.count) != (name, *count))
    });
    is_new.then(|| WorkloadAction::SetReclaimable { workload: Arc::clone(holder), counts })
}

/// Returns the writes for a job that is not admitted.
fn of_waiting(
    demand: &Demand,
    unfinished: &[&Arc<Workload>],
    number: u64,
    inputs: &QueueInputs,
) -> Vec<WorkloadAction> {
    let mut actions = Vec::new();
    // keep the oldest Workload, which has the best place in the queue
    let mut has_kept = false;
    for workload in unfinished {
        if has_kept || !demand.matches(workload) {
            let may_leave = inputs.has_stopped || !workload.has_reservation();
            actions.extend(may_leave.then(|| WorkloadAction::Delete(Arc::clone(workload))));
            continue;
        }
        has_kept = true;
        if workload.is_evicted() && workload.has_reservation() {
            actions.extend(inputs.has_stopped.then(|| release(workload)));
        } else if !demand.has_counts(workload) {
            // Kueue rejects a change of a Workload that has a reservation but no admission
            let change = if workload.has_reservation() { WorkloadAction::Delete } else { WorkloadAction::SetCounts };
            actions.push(change(Arc::clone(workload)));
        } else {
            actions.extend(set_priority(demand, workload));
            actions.extend(pods_ready(workload, false));
        }
    }
    // create no second Workload: until the first Workload is deleted, both Workloads would count against the quota
    if unfinished.is_empty() {
        actions.push(WorkloadAction::Create { number, replaced: None });
    }
    actions
}

/// Returns the write that releases a reservation. If the Workload has a boost, returns the write that removes the boost
/// first, because a queued Workload with a boost would preempt other jobs.
pub(super) fn release(workload: &Arc<Workload>) -> WorkloadAction {
    let workload = Arc::clone(workload);
    match stored_boost(&workload) {
        0 => WorkloadAction::Release(workload),
        _ => WorkloadAction::SetBoost { workload, boost: 0, last_checkpoint: None },
    }
}

/// Returns the writes to a Workload that another controller has created. That controller decides the counts and the end
/// of the Workload.
fn of_prebuilt(
    job: &JobReference,
    demand: &Demand,
    unfinished: &[&Arc<Workload>],
    inputs: &QueueInputs,
) -> Vec<WorkloadAction> {
    let name = demand.prebuilt.as_deref().unwrap_or_default();
    let Some(workload) = unfinished.iter().find(|workload| workload.name_any() == name) else { return Vec::new() };
    if !crate::build::is_controlled_by(&workload.metadata, &job.uid) {
        return vec![WorkloadAction::Adopt(Arc::clone(workload))];
    }
    if workload.is_evicted() && workload.has_reservation() {
        return if inputs.has_stopped { vec![release(workload)] } else { Vec::new() };
    }
    if workload.is_admitted() { reports(workload, inputs) } else { Vec::new() }
}

/// Returns the writes that report to Kueue whether the pods of an admitted job are ready, and that update the priority
/// boost of its Workload.
fn reports(holder: &Arc<Workload>, inputs: &QueueInputs) -> Vec<WorkloadAction> {
    let mut actions: Vec<WorkloadAction> = pods_ready(holder, inputs.is_running).into_iter().collect();
    if inputs.is_running {
        let boost = boost(inputs.at_risk_since, inputs.now);
        let last_checkpoint = inputs.last_checkpoint.clone();
        let is_first = last_checkpoint.is_some() && !holder.annotations().contains_key(LAST_CHECKPOINT_ANNOTATION);
        if is_first || stored_boost(holder) != boost {
            actions.push(WorkloadAction::SetBoost { workload: Arc::clone(holder), boost, last_checkpoint });
        }
    }
    actions
}

fn stored_boost(workload: &Workload) -> u32 {
    workload.annotations().get(PRIORITY_BOOST_ANNOTATION).and_then(|boost| boost.parse().ok()).unwrap_or(0)
}

pub(super) fn pods_ready(workload: &Arc<Workload>, is_ready: bool) -> Option<WorkloadAction> {
    let stored = workload.condition(condition_type::PODS_READY).map(|condition| condition.status == "True");
    // a Workload that was never admitted has no condition `PodsReady`
    let is_new = if is_ready {
        stored != Some(true)
    } else {
        stored == Some(true) || stored.is_none() && workload.is_admitted()
    };
    is_new.then(|| WorkloadAction::SetPodsReady { workload: Arc::clone(workload), is_ready })
}

/// Returns the write that sets the priority class of the demand, if the Workload has another class. While quota is
/// reserved, Kueue accepts only the change from one WorkloadPriorityClass to another.
pub(super) fn set_priority(demand: &Demand, workload: &Arc<Workload>) -> Option<WorkloadAction> {
    let stored = workload.spec.priority_class_ref.as_ref().map(|class| (class.kind.as_str(), class.name.as_str()));
    let wanted = demand.priority_class.as_ref().map(|class| class.kind_and_name());
    let may_change = !workload.has_reservation()
        || matches!((stored, wanted), (Some((kind, _)), Some((other, _))) if kind == other && kind != "PriorityClass");
    (stored != wanted && may_change).then(|| WorkloadAction::SetPriority(Arc::clone(workload)))
}
