//! `spec.scheduling`, `spec.networkPolicy` and `spec.template`: the parts of the spec that apply only in a cluster.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::object_name::object_name_rules;

/// The scheduling of the pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SchedulingSpec {
    /// The gang scheduler, which starts all pods together or none.
    pub gang: GangScheduling,
    /// The maximum time, in seconds, that a pod may stay unscheduled before the attempt fails. The time in a queue does
    /// not count.
    pub timeout_seconds: u32,
    /// The queue of Kueue that admits the job. Defaults to the queue that the job's label `kueue.x-k8s.io/queue-name`
    /// names, if the job has this label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kueue: Option<KueueSpec>,
}

impl Default for SchedulingSpec {
    fn default() -> Self {
        Self { gang: GangScheduling::Auto, timeout_seconds: 3600, kueue: None }
    }
}

/// The queue of Kueue that admits the job. The job has pods only while Kueue admits it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KueueSpec {
    /// The name of the LocalQueue, in the job's namespace.
    #[schemars(
        length(min = 1, max = 253),
        extend("x-expected" = "name a LocalQueue in the job's namespace", "x-kubernetes-validations" = object_name_rules("LocalQueue"))
    )]
    pub queue_name: String,
    /// The name of the job's WorkloadPriorityClass. The class determines the job's order in the queue and its
    /// preemption. Defaults to the class that the job's label `kueue.x-k8s.io/priority-class` names. Without this
    /// label, the PriorityClass of the pods applies.
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
        /// The job uses Kubernetes' own PodGroup if the cluster serves it, and otherwise no gang scheduler.
        #[default]
        Auto = "Auto",
        /// No gang scheduler. The scheduler places each pod independently.
        None = "None",
        /// Kubernetes' own PodGroup.
        Native = "Native",
        /// Volcano's PodGroup.
        Volcano = "Volcano",
        /// The scheduler-plugins' PodGroup.
        Coscheduling = "Coscheduling",
    }
}

/// The network traffic that is allowed for the job's pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkPolicySpec {
    /// Whether the operator creates a NetworkPolicy for the job's pods.
    pub mode: NetworkPolicyMode,
    /// The networks outside the job to which its pods may connect, on any port, as CIDRs such as `203.0.113.0/24`.
    /// `0.0.0.0/0` and `::/0` include all addresses. If `mode` is None, the field has no effect.
    #[serde(rename = "egressCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Cidr>", length(max = 100))]
    pub egress_cidrs: Vec<String>,
}

/// A network in the form that all versions of Kubernetes accept in a NetworkPolicy. Since 1.36, Kubernetes refuses
/// leading zeros, IPv4-mapped IPv6 addresses, and bits that are set beyond the prefix. The CEL rule of the schema
/// accepts more than `validate::cluster`, because Kubernetes 1.30 has no CEL function `isCIDR`.
pub(crate) struct Cidr {
    pub(crate) address: IpAddr,
    pub(crate) length: u32,
}

impl Cidr {
    pub(crate) fn parse(text: &str) -> Option<Cidr> {
        let (address, digits) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let length: u32 = digits.parse().ok()?;
        let (bits, is_mapped) = match address {
            IpAddr::V4(_) => (Ipv4Addr::BITS, false),
            IpAddr::V6(address) => (Ipv6Addr::BITS, address.to_ipv4_mapped().is_some()),
        };
        let is_valid = length <= bits && length.to_string() == digits && !is_mapped;
        is_valid.then_some(Cidr { address, length })
    }

    /// Returns the network's first address, whose bits beyond the prefix are 0.
    pub(crate) fn first(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(Ipv4Addr::BITS - self.length).unwrap_or(0);
                Ipv4Addr::from_bits(address.to_bits() & mask).into()
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(Ipv6Addr::BITS - self.length).unwrap_or(0);
                Ipv6Addr::from_bits(address.to_bits() & mask).into()
            }
        }
    }
}

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
            // the longest CIDR: six groups of an IPv6 address, an IPv4 address and a prefix length
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
    /// Whether the operator creates a NetworkPolicy for the job's pods.
    #[derive(Default)]
    pub enum NetworkPolicyMode {
        /// The operator creates a policy that allows only traffic with the job's own pods, DNS, the operator, the
        /// scraper of metrics, and `egressCIDRs`.
        #[default]
        Restricted = "Restricted",
        /// The operator creates no policy. The policies of the namespace apply.
        None = "None",
    }
}

/// A PodTemplateSpec, whose fields this crate keeps unchanged. The additional field `stages` overrides the template for
/// single stages.
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
