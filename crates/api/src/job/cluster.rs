//! The parts of the spec that only a cluster has: gang scheduling, network policy, the pods' template.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// How the pods are scheduled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SchedulingSpec {
    /// The gang scheduler, which starts all pods together or none.
    pub gang: GangScheduling,
    /// Seconds that the pods may wait to be scheduled.
    pub timeout_seconds: u32,
}

impl Default for SchedulingSpec {
    fn default() -> Self {
        Self { gang: GangScheduling::Auto, timeout_seconds: 3600 }
    }
}

string_enum! {
    /// The gang scheduler, which starts all pods together or none.
    #[derive(Default)]
    pub enum GangScheduling {
        /// Kubernetes' own PodGroup where it is served, else none.
        #[default]
        Auto = "Auto",
        /// None: each pod is scheduled by itself.
        None = "None",
        /// Kubernetes' own PodGroup.
        Native = "Native",
        /// Volcano's PodGroup.
        Volcano = "Volcano",
        /// The scheduler-plugins' PodGroup.
        Coscheduling = "Coscheduling",
    }
}

/// Which traffic the pods accept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkPolicySpec {
    /// Whether a policy is created.
    pub mode: NetworkPolicyMode,
}

string_enum! {
    /// Whether a network policy is created.
    #[derive(Default)]
    pub enum NetworkPolicyMode {
        /// The job's own pods, DNS, the operator and the scraper.
        #[default]
        Restricted = "Restricted",
        /// No policy: what the namespace allows.
        None = "None",
    }
}

/// A PodTemplateSpec, kept as it was written. Its field `stages` has what single stages have otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodTemplate(pub serde_json::Map<String, serde_json::Value>);

impl JsonSchema for PodTemplate {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PodTemplate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    }
}
