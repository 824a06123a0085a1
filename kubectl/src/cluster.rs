//! Requests to the cluster: jobs, their pods, their events.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use stagecoach_api::contract::{
    ATTEMPT_LABEL, INCARNATION_LABEL, JOB_UID_LABEL, REPLICA_LABEL, SPARE_LABEL, STAGE_LABEL,
};

use crate::job::Job;
use crate::kubectl::Kubectl;

/// The full name of the resource. Another group may have a resource of the same short name.
pub(crate) const JOBS: &str = "pipelinejobs.stagecoach.dev";

/// Items of a list.
#[derive(Deserialize)]
pub(crate) struct List<T> {
    pub(crate) items: Vec<T>,
}

/// The role for which a pod was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Stage {
        /// The replica; `None` if the job has only one.
        replica: Option<u32>,
        stage: u32,
    },
    /// A spare, which may have taken the place of a stage.
    Spare(u32),
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Stage { replica: None, stage } => write!(f, "stage {stage}"),
            Role::Stage { replica: Some(replica), stage } => write!(f, "stage {stage} of replica {replica}"),
            Role::Spare(number) => write!(f, "spare {number}"),
        }
    }
}

/// A pod of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) attempt: u64,
    pub(crate) incarnation: u32,
    /// Whether the pod's containers were started, so that the pod has a log.
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
    /// The pod; `None` if the labels do not identify a pod of a job.
    fn read(self) -> Option<Pod> {
        let number = |label: &str| self.metadata.labels.get(label).and_then(|value| value.parse().ok());
        let stage = number(STAGE_LABEL).map(|stage| Role::Stage { replica: number(REPLICA_LABEL), stage });
        let role = stage.or_else(|| number(SPARE_LABEL).map(Role::Spare))?;
        Some(Pod {
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
    /// The time of the event.
    pub(crate) fn at(&self) -> Option<Timestamp> {
        self.event_time.or(self.last_timestamp)
    }
}

/// The job of this name.
///
/// # Errors
/// The error of kubectl.
pub(crate) fn job(kubectl: &Kubectl, name: &str) -> anyhow::Result<Job> {
    kubectl.json(&["get", JOBS, name])
}

/// The job's pods, by role, attempt and incarnation.
///
/// # Errors
/// The error of kubectl.
pub(crate) fn pods(kubectl: &Kubectl, job: &Job) -> anyhow::Result<Vec<Pod>> {
    let selector = format!("{JOB_UID_LABEL}={}", job.metadata.uid.as_deref().unwrap_or_default());
    let found: List<PodObject> = kubectl.json(&["get", "pods", "--selector", &selector])?;
    let mut pods: Vec<Pod> = found.items.into_iter().filter_map(PodObject::read).collect();
    pods.sort_by_key(|pod| (pod.role, pod.attempt, pod.incarnation));
    Ok(pods)
}

/// The events about the job that the cluster still has, oldest first.
///
/// # Errors
/// The error of kubectl.
pub(crate) fn events(kubectl: &Kubectl, job: &Job) -> anyhow::Result<Vec<Event>> {
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
        let expected = Pod {
            name: "a".into(),
            role: Role::Stage { replica: None, stage: 1 },
            attempt: 2,
            incarnation: 3,
            has_started: true,
            is_running: true,
        };
        assert_eq!(stage, Some(expected.clone()));
        let spare = pod(json!({"stagecoach.dev/spare": "0", "stagecoach.dev/attempt": "2"}));
        assert_eq!(spare, Some(Pod { role: Role::Spare(0), incarnation: 0, ..expected }));
        assert_eq!(pod(json!({"stagecoach.dev/stage": "one"})), None);
    }
}
