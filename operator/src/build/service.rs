//! The Service of stage 0 of the first replica.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use stagecoach_api::contract::{HTTP_PORT, MASTER_PORT, Mesh};

use super::JobReference;
use super::names::{metadata, service_name, stage_0_match_labels};

/// Returns the Service of stage 0 of the first replica of `attempt`. The operator creates the Service before the pods,
/// so that no resolver caches a negative DNS answer. The Service sets `publishNotReadyAddresses`, because the stages of
/// a custom trainer may become ready only after they have reached stage 0 through the Service.
pub(crate) fn service(job: &JobReference, attempt: u64, mesh: Mesh) -> Service {
    Service {
        metadata: metadata(job, service_name(job), None),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(stage_0_match_labels(job, attempt, mesh)),
            ports: Some(vec![port("rendezvous", MASTER_PORT), port("http", HTTP_PORT)]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn port(name: &str, number: u16) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: number.into(),
        target_port: Some(IntOrString::Int(number.into())),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    }
}
