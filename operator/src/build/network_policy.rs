//! The NetworkPolicy of a job's pods.

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use stagecoach_api::contract::HTTP_PORT;

use super::JobReference;
use super::names::{metadata, pod_match_labels};

/// The peers that may read the pods' status: the operator, and the scraper if there is one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusReaders(pub Vec<NetworkPolicyPeer>);

/// Allows only traffic among the job's pods, DNS, and `readers` to the status port.
pub fn network_policy(job: &JobReference, readers: &StatusReaders) -> NetworkPolicy {
    let own_pods = LabelSelector { match_labels: Some(pod_match_labels(job)), ..LabelSelector::default() };
    let own = vec![NetworkPolicyPeer { pod_selector: Some(own_pods.clone()), ..NetworkPolicyPeer::default() }];
    let mut ingress = vec![NetworkPolicyIngressRule { from: Some(own.clone()), ports: None }];
    if !readers.0.is_empty() {
        let ports = Some(vec![port("TCP", HTTP_PORT)]);
        ingress.push(NetworkPolicyIngressRule { from: Some(readers.0.clone()), ports });
    }
    let egress = vec![
        NetworkPolicyEgressRule { to: Some(own), ports: None },
        NetworkPolicyEgressRule { to: None, ports: Some(vec![port("UDP", 53), port("TCP", 53)]) },
    ];
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

fn port(protocol: &str, number: u16) -> NetworkPolicyPort {
    let port = Some(IntOrString::Int(number.into()));
    NetworkPolicyPort { port, protocol: Some(protocol.to_owned()), end_port: None }
}
