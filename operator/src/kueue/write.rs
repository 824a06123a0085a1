//! Writes to Workloads. Each write reads the Workload, changes it, and replaces the version that was read.

use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, Preconditions};
use serde_json::{Value, json};
use stagecoach_api::job::condition_reason;

use super::actions::WorkloadAction;
use crate::apply::{ApplyError, create_owned};
use crate::build::kueue::keys::{LAST_CHECKPOINT_ANNOTATION, POD_SETS_ANNOTATION, PRIORITY_BOOST_ANNOTATION};
use crate::build::kueue::{Demand, PriorityClassName, Workload, condition_type, workload_name};
use crate::build::{self, JobReference};
use crate::clients::Clients;
use crate::json_api::is_rejection;
use crate::observe::BlockingReason;

/// The inputs of the writes to the Workloads of a job.
pub(crate) struct WriteContext<'a> {
    pub(crate) job: &'a JobReference,
    pub(crate) demand: Option<&'a Demand>,
    pub(crate) clients: &'a Clients,
    /// The trainer's image if the pod template names no image.
    pub(crate) image: &'a str,
}

/// Makes one write. Returns the stored Workload; `None` if the write deletes it or changes nothing.
///
/// # Errors
/// Returns `Rejected` if the API server or Kueue's webhook rejects the write, or if the priority class does not exist.
pub(crate) async fn write(context: &WriteContext<'_>, action: &WorkloadAction) -> Result<Option<Workload>, ApplyError> {
    let WriteContext { job, clients, image, .. } = *context;
    match (action, context.demand) {
        (WorkloadAction::Create { number, replaced }, Some(demand)) => {
            let priority = priority(context, demand).await?;
            let workload = demand.workload(job, *number, priority, replaced.as_deref(), image);
            let object: DynamicObject = serde_json::from_value(workload).map_err(kube::Error::SerdeError)?;
            tracing::info!(job = job.name, namespace = job.namespace, "queued as {}", workload_name(job, *number));
            Ok(Some(create_owned::<Workload>(&clients.workloads, job, &object).await?))
        }
        (WorkloadAction::Adopt(workload), _) => {
            let metadata = build::metadata(job, workload.name_any(), None);
            let metadata = serde_json::to_value(metadata).map_err(kube::Error::SerdeError)?;
            update(clients, workload, Part::Spec, |stored| {
                let stored = &mut stored["metadata"];
                for (key, value) in metadata["labels"].as_object().into_iter().flatten() {
                    stored["labels"][key] = value.clone();
                }
                stored["ownerReferences"] = metadata["ownerReferences"].clone();
            })
            .await
        }
        (WorkloadAction::SetCounts(workload), Some(demand)) => {
            let sets = demand.pod_sets_json(image);
            update(clients, workload, Part::Spec, |stored| set_counts(stored, demand, sets)).await
        }
        (WorkloadAction::SetPriority(workload), Some(demand)) => {
            let value = priority(context, demand).await?;
            update(clients, workload, Part::Spec, |stored| {
                if let Some(spec) = stored["spec"].as_object_mut() {
                    spec.shift_remove("priorityClassRef");
                    spec.extend(demand.priority(value).as_object().cloned().unwrap_or_default());
                }
            })
            .await
        }
        (WorkloadAction::Delete(workload), _) => {
            let preconditions = Preconditions { uid: workload.uid(), ..Preconditions::default() };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            clients.workloads.delete(&workload.name_any(), &params).await?;
            Ok(None)
        }
        (WorkloadAction::Evict(workload), _) => {
            // without the hash, the Workload matches no demand, even if the user restores the previous spec
            let obsolete = |stored: &mut Value| stored["metadata"]["annotations"][POD_SETS_ANNOTATION] = "".into();
            update(clients, workload, Part::Spec, obsolete).await?;
            // evict by the status. If this function set `active` to false in the spec, Kueue would delete the job's
            // copy in the worker cluster before the copy had saved a checkpoint.
            update(clients, workload, Part::Status, |stored| {
                let message = "the job no longer asks for these pods";
                set_condition(stored, condition_type::EVICTED, true, "Obsolete", message);
            })
            .await
        }
        (WorkloadAction::Release(workload), _) => update(clients, workload, Part::Status, release).await,
        (WorkloadAction::Finish { workload, reason, message }, _) => {
            update(clients, workload, Part::Status, |stored| {
                set_condition(stored, condition_type::FINISHED, true, reason, message);
            })
            .await
        }
        (WorkloadAction::SetPodsReady { workload, is_ready }, _) => {
            update(clients, workload, Part::Status, |stored| set_pods_ready(stored, *is_ready)).await
        }
        (WorkloadAction::SetReclaimable { workload, counts }, _) => {
            let counts: Vec<Value> = counts.iter().map(|(name, count)| json!({"name": name, "count": count})).collect();
            update(clients, workload, Part::Status, |stored| stored["status"]["reclaimablePods"] = counts.into()).await
        }
        (WorkloadAction::SetBoost { workload, boost, last_checkpoint }, _) => {
            update(clients, workload, Part::Spec, |stored| {
                let annotations = &mut stored["metadata"]["annotations"];
                annotations[PRIORITY_BOOST_ANNOTATION] = boost.to_string().into();
                if let Some(time) = last_checkpoint {
                    annotations[LAST_CHECKPOINT_ANNOTATION] = time.as_str().into();
                }
            })
            .await
        }
        // the remaining actions need the demand of a job with a queue
        (_, None) => Ok(None),
    }
}

/// Whether slices are enabled in Kueue. Kueue does not report this setting. Without slices, Kueue rejects smaller
/// counts of a Workload with a reservation, so this function tries such a change in a dry run.
pub(crate) async fn slices_are_enabled(clients: &Clients, holder: &Workload) -> kube::Result<bool> {
    let Some(mut stored) = current(clients, holder).await? else { return Ok(true) };
    for set in stored["spec"]["podSets"].as_array_mut().into_iter().flatten() {
        set["count"] = set["count"].as_u64().unwrap_or(1).saturating_sub(1).into();
    }
    clients.workloads.would_replace(&holder.name_any(), &stored).await
}

/// The part of a Workload that a request replaces.
#[derive(Clone, Copy)]
enum Part {
    /// The metadata and the spec.
    Spec,
    Status,
}

/// Changes a part of a Workload, unless another Workload has the name now. Returns the stored Workload; `None` if
/// nothing was changed.
async fn update(
    clients: &Clients,
    workload: &Workload,
    part: Part,
    change: impl FnOnce(&mut Value),
) -> Result<Option<Workload>, ApplyError> {
    let name = workload.name_any();
    let Some(stored) = current(clients, workload).await? else { return Ok(None) };
    let mut changed = stored.clone();
    change(&mut changed);
    if changed == stored {
        return Ok(None);
    }
    let replaced = match part {
        Part::Spec => clients.workloads.replace(&name, &changed).await,
        Part::Status => clients.workloads.replace_status(&name, &changed).await,
    };
    let stored = replaced.map_err(|error| refused(&name, error))?;
    Ok(Some(serde_json::from_value(stored).map_err(kube::Error::SerdeError)?))
}

async fn current(clients: &Clients, workload: &Workload) -> kube::Result<Option<Value>> {
    let stored = clients.workloads.get(&workload.name_any()).await?;
    Ok(stored.filter(|stored| stored["metadata"]["uid"].as_str() == workload.metadata.uid.as_deref()))
}

/// Converts an error of the API. A user or an administrator must resolve a rejection. The operator retries after any
/// other error.
fn refused(name: &str, error: kube::Error) -> ApplyError {
    match error {
        kube::Error::Api(status) if is_rejection(&status) => ApplyError::Rejected(BlockingReason {
            reason: status.reason.clone(),
            message: format!("the Workload {name} can't be changed: {}", status.message),
        }),
        other => other.into(),
    }
}

/// Sets the counts of `demand`. While quota is reserved, Kueue accepts only smaller counts, and no other change of the
/// pod sets.
fn set_counts(stored: &mut Value, demand: &Demand, sets: Vec<Value>) {
    let reserved =
        condition(stored, condition_type::QUOTA_RESERVED).is_some_and(|reserved| reserved["status"] == "True");
    match stored["spec"]["podSets"].as_array_mut().filter(|_| reserved) {
        None => stored["spec"]["podSets"] = sets.into(),
        Some(stored) => {
            for set in stored {
                let wanted = sets.iter().find(|wanted| wanted["name"] == set["name"]);
                set["count"] = wanted.map_or(0.into(), |wanted| wanted["count"].clone());
            }
        }
    }
    for (key, value) in demand.count_annotations() {
        stored["metadata"]["annotations"][key] = value.into();
    }
}

/// Releases the reservation of an evicted Workload, as Kueue's integrations for other jobs do. After a preemption or
/// the failure of a node, the Workload returns to the queue at once. After any other eviction, Kueue decides when the
/// Workload returns.
fn release(stored: &mut Value) {
    let evicted = condition(stored, condition_type::EVICTED).filter(|evicted| evicted["status"] == "True").cloned();
    let Some(evicted) = evicted else { return };
    let reason = evicted["reason"].as_str().unwrap_or_default();
    let message = evicted["message"].as_str().unwrap_or_default();
    let returns_at_once = ["Preempted", "NodeFailures"].contains(&reason);
    set_condition(stored, condition_type::REQUEUED, returns_at_once, reason, message);
    set_condition(stored, condition_type::QUOTA_RESERVED, false, "Pending", message);
    set_condition(stored, condition_type::ADMITTED, false, "NoReservation", "The workload has no reservation");
    if let Some(status) = stored["status"].as_object_mut() {
        status.shift_remove("admission");
        // the counts of reclaimable pods refer to the reservation
        status.shift_remove("reclaimablePods");
    }
}

/// Sets `PodsReady`, with the reasons that Kueue's integrations for other kinds of jobs use.
fn set_pods_ready(stored: &mut Value, is_ready: bool) {
    let before = condition(stored, condition_type::PODS_READY).cloned().unwrap_or_default();
    let recovers = before["reason"] == "WaitForRecovery" || before["reason"] == "Recovered";
    let (reason, message) = match is_ready {
        true if recovers => ("Recovered", "All pods reached readiness and the workload is running"),
        true => ("Started", "All pods reached readiness and the workload is running"),
        false if before["status"] == "True" || before["reason"] == "WaitForRecovery" => {
            ("WaitForRecovery", "At least one pod has failed, waiting for recovery")
        }
        false => ("WaitForStart", "Not all pods are ready or succeeded"),
    };
    set_condition(stored, condition_type::PODS_READY, is_ready, reason, message);
}

fn condition<'v>(stored: &'v Value, kind: &str) -> Option<&'v Value> {
    stored["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Sets a condition of a Workload. The time of the transition changes only with the status.
fn set_condition(stored: &mut Value, kind: &str, is_true: bool, reason: &str, message: &str) {
    let status = if is_true { "True" } else { "False" };
    let before = condition(stored, kind).filter(|before| before["status"] == status);
    let now = || json!(Time(jiff::Timestamp::now()));
    let since = before.map_or_else(now, |before| before["lastTransitionTime"].clone());
    let generation = stored["metadata"]["generation"].clone();
    // Kubernetes limits the message of a condition to 32 KiB
    let message: String = message.chars().take(8000).collect();
    let new = json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "observedGeneration": generation, "lastTransitionTime": since,
    });
    let conditions = &mut stored["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    match conditions.iter_mut().find(|condition| condition["type"] == kind) {
        Some(condition) => *condition = new,
        None => conditions.push(new),
    }
}

/// Returns the value of the priority class of a demand; 0 without a class, as in Kueue.
async fn priority(context: &WriteContext<'_>, demand: &Demand) -> Result<i32, ApplyError> {
    let value = match &demand.priority_class {
        None => return Ok(0),
        Some(PriorityClassName::Pod(name)) => {
            Api::<PriorityClass>::all(context.clients.client.clone()).get_opt(name).await?.and_then(|class| class.value)
        }
        Some(PriorityClassName::Workload(name)) => {
            let class = context.clients.of_kueue("WorkloadPriorityClass").get_opt(name).await?;
            class.and_then(|class| i32::try_from(class.data["value"].as_i64()?).ok())
        }
    };
    value.ok_or_else(|| {
        let (kind, name) = demand.priority_class.as_ref().map(PriorityClassName::kind_and_name).unwrap_or_default();
        ApplyError::Rejected(BlockingReason {
            reason: condition_reason::PRIORITY_CLASS_MISSING.into(),
            message: format!("the {kind} {name} does not exist: create it, or name another"),
        })
    })
}
