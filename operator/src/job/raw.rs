//! A PipelineJob of the API. Spec and status stay unparsed JSON: the watch stores all jobs of the cluster, and each is
//! parsed only when it is reconciled.

use std::borrow::Cow;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use stagecoach_api::job::{API_VERSION, KIND};

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
    /// The spec, as JSON.
    pub(crate) fn spec(&self) -> &str {
        self.spec.get()
    }

    /// The status, as JSON.
    pub(crate) fn status(&self) -> &str {
        self.status.get()
    }

    /// A copy with another status.
    ///
    /// # Errors
    /// If the status can't be written as JSON.
    pub(crate) fn with_status(&self, status: &impl Serialize) -> serde_json::Result<RawPipelineJob> {
        Ok(RawPipelineJob { status: serde_json::value::to_raw_value(status)?, ..self.clone() })
    }
}

impl Resource for RawPipelineJob {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        API_VERSION.split_once('/').unwrap_or_default().0.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        API_VERSION.split_once('/').unwrap_or_default().1.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pipelinejobs".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
