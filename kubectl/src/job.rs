//! A PipelineJob as the API server stores it. The plugin parses only the fields that it shows, so a field that this
//! version of the plugin does not know causes no error.

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;
use stagecoach_api::PipelineJobStatus;
use stagecoach_api::contract::WORKSPACE_PATH;
use stagecoach_api::job::{JobPhase, Metadata, RestartSpec};
use stagecoach_lifecycle::JobState;

/// A PipelineJob.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct StoredJob {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) spec: Spec,
    /// The unparsed status. A status that can't be parsed therefore does not hide the other jobs of a list.
    #[serde(default)]
    status: Option<Value>,
}

/// The fields of the spec that the plugin reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Spec {
    pub(crate) stages: Option<u32>,
    storage: Storage,
    restart: Restart,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Storage {
    path: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Restart {
    max_restarts: Option<u32>,
}

impl StoredJob {
    /// Returns the status, or the default status if the operator has not written one.
    ///
    /// # Errors
    /// Returns an error if the operator has written the status in a form that this plugin can't parse.
    pub(crate) fn status(&self) -> anyhow::Result<PipelineJobStatus> {
        let status: serde_json::Result<Option<PipelineJobStatus>> =
            self.status.as_ref().map(Deserialize::deserialize).transpose();
        Ok(self.read("status", status)?.unwrap_or_default())
    }

    /// Returns the job's state, which the operator stores in `status.record`; `None` before the job's first attempt.
    ///
    /// # Errors
    /// Returns the same errors as [`StoredJob::status`].
    pub(crate) fn state(&self, status: &PipelineJobStatus) -> anyhow::Result<Option<JobState>> {
        self.read("status.record", status.record.as_deref().map(serde_json::from_str).transpose())
    }

    fn read<T>(&self, what: &str, read: serde_json::Result<T>) -> anyhow::Result<T> {
        read.with_context(|| {
            format!(
                "{what} of job {} can't be read: it was written by another version of the operator; use the \
                 kubectl-stagecoach of that version",
                self.metadata.name
            )
        })
    }

    /// Returns `restart.maxRestarts`, or its default.
    pub(crate) fn max_restarts(&self) -> u32 {
        self.spec.restart.max_restarts.unwrap_or_else(|| RestartSpec::default().max_restarts)
    }

    /// Returns the path of the job's folder in the job's pods.
    pub(crate) fn folder(&self) -> String {
        format!("{WORKSPACE_PATH}/{}", self.spec.storage.path.as_deref().unwrap_or(&self.metadata.name))
    }
}

/// Whether the job's phase is Running, in which its stages train or start to train.
pub(crate) fn is_training(status: &PipelineJobStatus) -> bool {
    status.phase == Some(JobPhase::Running)
}

/// Whether the job has ended or is suspended, so that its pods write no new log lines.
pub(crate) fn is_over(status: &PipelineJobStatus) -> bool {
    status.phase.is_some_and(|phase| phase.has_ended() || phase == JobPhase::Suspended)
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a job of three stages, with this status.
    pub(crate) fn job(status: Value) -> StoredJob {
        let spec = json!({"stages": 3, "restart": {"maxRestarts": 10, "new": 1}, "storage": {"new": 1}, "new": 1});
        let metadata = json!({"name": "small", "namespace": "default", "uid": "u", "labels": {"a": "b"}, "new": 1});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn what_another_version_has_is_ignored_or_reported() {
        let found = job(json!({"phase": "Running", "new": 1}));
        assert_eq!((found.status().unwrap().phase, found.max_restarts()), (Some(JobPhase::Running), 10));
        assert_eq!(found.folder(), "/workspace/small");
        let error = format!("{:#}", job(json!({"phase": "Dreaming"})).status().unwrap_err());
        assert!(error.starts_with("status of job small can't be read: it was written by another version"), "{error}");
        assert_eq!(job(Value::Null).status().unwrap(), PipelineJobStatus::default());
    }
}
