//! Requests to the cluster for jobs, their pods and their events.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use stagecoach_api::contract::{
    ATTEMPT_LABEL, INCARNATION_LABEL, JOB_UID_LABEL, REPLICA_LABEL, SPARE_LABEL, STAGE_LABEL,
};

use crate::job::StoredJob;
use crate::kubectl::Kubectl;

/// The full resource name of PipelineJobs. Another API group may have a resource of the same short name.
pub(crate) const JOBS: &str = "pipelinejobs.stagecoach.dev";

/// A list that the API server returns.
#[derive(Deserialize)]
pub(crate) struct List<T> {
    pub(crate) items: Vec<T>,
}

/// The role for which a pod was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PodRole {
    Stage {
        /// The replica; `None` if the job has only one replica.
        replica: Option<u32>,
        stage: u32,
    },
    /// The spare pod with this number. A spare may have replaced a lost stage.
    Spare(u32),
}

impl fmt::Display for PodRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PodRole::Stage { replica: None, stage } => write!(f, "stage {stage}"),
            PodRole::Stage { replica: Some(replica), stage } => write!(f, "stage {stage} of replica {replica}"),
            PodRole::Spare(number) => write!(f, "spare {number}"),
        }
    }
}

/// A pod of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobPod {
    pub(crate) name: String,
    pub(crate) role: PodRole,
    pub(crate) attempt: u64,
    /// The number of the pod among the pods of its stage in the attempt. A pod that replaces another pod has a higher
    /// number.
    pub(crate) incarnation: u32,
    /// Whether the pod's phase is later than Pending, so that the pod may have a log.
    pub(crate) has_started: bool,
    pub(crate) is_running: bool,
}

#[derive(Deserialize)]
struct PodObject {
    metadata: PodMetadata,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Deserialize)]
struct PodMetadata {
    name: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: String,
}

impl PodObject {
    /// Returns the pod; `None` if the labels do not identify a pod of a job.
    fn read(self) -> Option<JobPod> {
        let number = |label: &str| self.metadata.labels.get(label).and_then(|value| value.parse().ok());
        let stage = number(STAGE_LABEL).map(|stage| PodRole::Stage { replica: number(REPLICA_LABEL), stage });
        let role = stage.or_else(|| number(SPARE_LABEL).map(PodRole::Spare))?;
        Some(JobPod {
            role,
            attempt: number(ATTEMPT_LABEL)?.into(),
            incarnation: number(INCARNATION_LABEL).unwrap_or(0),
            has_started: ["Running", "Succeeded", "Failed"].contains(&self.status.phase.as_str()),
            is_running: self.status.phase == "Running",
            name: self.metadata.name,
        })
    }
}

/// An event about a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Event {
    pub(crate) reason: String,
    pub(crate) message: String,
    event_time: Option<Timestamp>,
    last_timestamp: Option<Timestamp>,
}

impl Event {
    /// Returns the time of the event.
    pub(crate) fn at(&self) -> Option<Timestamp> {
        self.event_time.or(self.last_timestamp)
    }
}

/// Returns the job with this name.
///
/// # Errors
/// Returns the error of kubectl.
pub(crate) fn job(kubectl: &Kubectl, name: &str) -> anyhow::Result<StoredJob> {
    kubectl.json(&["get", JOBS, name])
}

/// Returns the job's pods, sorted by role, attempt and incarnation.
///
/// # Errors
/// Returns the error of kubectl.
pub(crate) fn pods(kubectl: &Kubectl, job: &StoredJob) -> anyhow::Result<Vec<JobPod>> {
    let selector = format!("{JOB_UID_LABEL}={}", job.metadata.uid.as_deref().unwrap_or_default());
    let found: List<PodObject> = kubectl.json(&["get", "pods", "--selector", &selector])?;
    let mut pods: Vec<JobPod> = found.items.into_iter().filter_map(PodObject::read).collect();
    pods.sort_by_key(|pod| (pod.role, pod.attempt, pod.incarnation));
    Ok(pods)
}

/// Returns the events about the job that the cluster still has, oldest first.
///
/// # Errors
/// Returns the error of kubectl.
pub(crate) fn events(kubectl: &Kubectl, job: &StoredJob) -> anyhow::Result<Vec<Event>> {
    let selector = format!("involvedObject.uid={}", job.metadata.uid.as_deref().unwrap_or_default());
    let mut found: List<Event> = kubectl.json(&["get", "events", "--field-selector", &selector])?;
    found.items.sort_by_key(Event::at);
    Ok(found.items)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_known_by_its_labels() {
        let pod = |labels: serde_json::Value| {
            let object = json!({"metadata": {"name": "a", "labels": labels}, "status": {"phase": "Running"}});
            serde_json::from_value::<PodObject>(object).unwrap().read()
        };
        let stage =
            pod(json!({"stagecoach.dev/stage": "1", "stagecoach.dev/attempt": "2", "stagecoach.dev/incarnation": "3"}));
        let expected = JobPod {
            name: "a".into(),
            role: PodRole::Stage { replica: None, stage: 1 },
            attempt: 2,
            incarnation: 3,
            has_started: true,
            is_running: true,
        };
        assert_eq!(stage, Some(expected.clone()));
        let spare = pod(json!({"stagecoach.dev/spare": "0", "stagecoach.dev/attempt": "2"}));
        assert_eq!(spare, Some(JobPod { role: PodRole::Spare(0), incarnation: 0, ..expected }));
        assert_eq!(pod(json!({"stagecoach.dev/stage": "one"})), None);
    }
}
