//! The parts of the spec that only a cluster has: gang scheduling, network policy, the pods' template.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::object_name::object_name_rules;

/// The scheduling of the pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SchedulingSpec {
    /// The gang scheduler, which starts all pods together or none.
    pub gang: GangScheduling,
    /// Seconds after which a pod that is not scheduled fails the attempt. The time in a queue does not count.
    pub timeout_seconds: u32,
    /// The queue of Kueue that admits the job. Absent: the label `kueue.x-k8s.io/queue-name` of the job names the queue,
    /// if the job has this label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kueue: Option<KueueSpec>,
}

impl Default for SchedulingSpec {
    fn default() -> Self {
        Self { gang: GangScheduling::Auto, timeout_seconds: 3600, kueue: None }
    }
}

/// The queue of Kueue that admits the job. The job has pods only while it is admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KueueSpec {
    /// The LocalQueue, in the namespace of the job.
    #[schemars(
        length(min = 1, max = 253),
        extend("x-expected" = "name a LocalQueue in the job's namespace", "x-kubernetes-validations" = object_name_rules("LocalQueue"))
    )]
    pub queue_name: String,
    /// The WorkloadPriorityClass, which decides the order in the queue and who preempts whom. Absent: the label
    /// `kueue.x-k8s.io/priority-class` of the job names it, else the PriorityClass of the pods counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        extend("x-expected" = "name a WorkloadPriorityClass", "x-kubernetes-validations" = object_name_rules("WorkloadPriorityClass"))
    )]
    pub priority_class_name: Option<String>,
}

string_enum! {
    /// The gang scheduler, which starts all pods together or none.
    #[derive(Default)]
    pub enum GangScheduling {
        /// Kubernetes' own PodGroup if the cluster serves it; otherwise None.
        #[default]
        Auto = "Auto",
        /// No gang scheduler: each pod is scheduled on its own.
        None = "None",
        /// Kubernetes' own PodGroup.
        Native = "Native",
        /// Volcano's PodGroup.
        Volcano = "Volcano",
        /// The scheduler-plugins' PodGroup.
        Coscheduling = "Coscheduling",
    }
}

/// The traffic of the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkPolicySpec {
    /// Whether a policy is created.
    pub mode: NetworkPolicyMode,
    /// Addresses outside the job to which its pods may connect, on any port: CIDRs such as `203.0.113.0/24`.
    /// `0.0.0.0/0` and `::/0` are all addresses. Without effect with mode None.
    #[serde(rename = "egressCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Cidr>", length(max = 100))]
    pub egress_cidrs: Vec<String>,
}

/// The schema of a CIDR. Its rule is also in `validate::cluster`, which knows more: Kubernetes 1.30 has no `isCIDR`.
struct Cidr;

impl JsonSchema for Cidr {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Cidr".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        const V4: &str = "[0-9]{1,3}([.][0-9]{1,3}){3}/(3[0-2]|[12]?[0-9])";
        const V6: &str = "[0-9a-fA-F]*:[0-9a-fA-F:.]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9])";
        json_schema!({
            "type": "string",
            "minLength": 1,
            // the longest: six groups of an IPv6 address and an IPv4 address
            "maxLength": 49,
            "x-expected": "give a CIDR, such as 203.0.113.0/24",
            "x-kubernetes-validations": [{
                "rule": format!("self.matches('^({V4}|{V6})$')"),
                "message": "is no CIDR: write an address and the length of its prefix, such as 203.0.113.0/24 or 2001:db8::/32",
            }],
        })
    }
}

string_enum! {
    /// Whether a network policy is created.
    #[derive(Default)]
    pub enum NetworkPolicyMode {
        /// A policy that allows the job's own pods, DNS, the operator, the scraper of metrics, and `egressCIDRs`.
        #[default]
        Restricted = "Restricted",
        /// No policy: the policies of the namespace apply.
        None = "None",
    }
}

/// A PodTemplateSpec, which is passed on unchanged. Its additional field `stages` overrides it for single stages.
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
