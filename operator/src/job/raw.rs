//! A PipelineJob of the API. Spec and status stay unparsed JSON, because the watch stores all jobs of the cluster, and
//! the operator parses a job only when it reconciles the job.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use stagecoach_api::job::{API_VERSION, KIND};

use crate::json_api::namespaced_resource;

/// A PipelineJob of the API.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RawPipelineJob {
    #[serde(skip_deserializing, default = "api_version")]
    api_version: &'static str,
    #[serde(skip_deserializing, default = "kind")]
    kind: &'static str,
    pub(crate) metadata: ObjectMeta,
    /// The spec, unparsed and maybe invalid.
    #[serde(default)]
    spec: Box<RawValue>,
    /// The status, unparsed and maybe invalid.
    #[serde(default)]
    status: Box<RawValue>,
}

fn api_version() -> &'static str {
    API_VERSION
}

fn kind() -> &'static str {
    KIND
}

impl RawPipelineJob {
    /// Returns the spec, as JSON.
    pub(crate) fn spec(&self) -> &str {
        self.spec.get()
    }

    /// Returns the status, as JSON.
    pub(crate) fn status(&self) -> &str {
        self.status.get()
    }

    /// Returns a copy with this status.
    ///
    /// # Errors
    /// Returns an error if the status can't be written as JSON.
    pub(crate) fn with_status(&self, status: &impl Serialize) -> serde_json::Result<RawPipelineJob> {
        Ok(RawPipelineJob { status: serde_json::value::to_raw_value(status)?, ..self.clone() })
    }
}

namespaced_resource!(RawPipelineJob, API_VERSION, KIND, "pipelinejobs");
