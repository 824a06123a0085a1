//! The NetworkPolicy of a job's pods.

use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use stagecoach_api::contract::HTTP_PORT;

use super::JobReference;
use super::names::{metadata, pod_match_labels};

/// The peers outside the job with which the job's pods may exchange traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PolicyPeers<'a> {
    /// The peers that may read the pods' status: the operator, and the metrics scraper if one exists.
    pub readers: &'a [NetworkPolicyPeer],
    /// The peers of the cluster's DNS. If this list is empty, port 53 of any peer is allowed.
    pub dns: &'a [NetworkPolicyPeer],
    /// The CIDRs to which the pods may connect on any port.
    pub egress_cidrs: &'a [String],
}

/// Returns a NetworkPolicy that allows only traffic among the job's pods, to DNS and `peers.egress_cidrs`, and from
/// `peers.readers` to the status port.
pub fn network_policy(job: &JobReference, peers: PolicyPeers<'_>) -> NetworkPolicy {
    let own_pods = LabelSelector { match_labels: Some(pod_match_labels(job)), ..LabelSelector::default() };
    let own = vec![NetworkPolicyPeer { pod_selector: Some(own_pods.clone()), ..NetworkPolicyPeer::default() }];
    let mut ingress = vec![NetworkPolicyIngressRule { from: Some(own.clone()), ports: None }];
    if !peers.readers.is_empty() {
        let ports = Some(vec![port("TCP", HTTP_PORT)]);
        ingress.push(NetworkPolicyIngressRule { from: Some(peers.readers.to_vec()), ports });
    }
    let mut egress = vec![
        NetworkPolicyEgressRule { to: Some(own), ports: None },
        NetworkPolicyEgressRule {
            to: Some(peers.dns.to_vec()).filter(|dns| !dns.is_empty()),
            ports: Some(vec![port("UDP", 53), port("TCP", 53)]),
        },
    ];
    if !peers.egress_cidrs.is_empty() {
        let to = peers.egress_cidrs.iter().map(|cidr| addresses(cidr)).collect();
        egress.push(NetworkPolicyEgressRule { to: Some(to), ports: None });
    }
    NetworkPolicy {
        metadata: metadata(job, job.name.clone(), None),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(own_pods),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ingress: Some(ingress),
            egress: Some(egress),
        }),
    }
}

fn addresses(cidr: &str) -> NetworkPolicyPeer {
    let block = IPBlock { cidr: cidr.to_owned(), except: None };
    NetworkPolicyPeer { ip_block: Some(block), ..NetworkPolicyPeer::default() }
}

fn port(protocol: &str, number: u16) -> NetworkPolicyPort {
    let port = Some(IntOrString::Int(number.into()));
    NetworkPolicyPort { port, protocol: Some(protocol.to_owned()), end_port: None }
}
