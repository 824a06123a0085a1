//! The trainer's container: the environment variables and paths of `stagecoach_api::contract`, the contract between the
//! operator and a trainer, and a restricted security context by default.

use k8s_openapi::api::core::v1::{
    Capabilities, ContainerPort, EnvFromSource, EnvVar, EnvVarSource, HTTPGetAction, ObjectFieldSelector, Probe,
    SecretEnvSource, SecurityContext, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Map, Value};
use stagecoach_api::contract::{CONFIG_PATH, CONTAINER_ARGS, HTTP_PORT, MASTER_PORT, StageEnv, WORKSPACE_PATH, env};
use stagecoach_lifecycle::InstanceId;

use super::json::{add_named, array, set_default, to_json, with_defaults};
use super::names::service_name;
use super::pod::{CONFIG_VOLUME, WORKSPACE_VOLUME};
use super::{AttemptTemplate, JobReference, PodRole};

/// Turns the template's container `container` into the trainer of a pod with this role.
pub(super) fn trainer_container(
    job: &JobReference,
    attempt: &AttemptTemplate,
    role: PodRole,
    mut container: Map<String, Value>,
) -> Value {
    let mut variables = array(container.get("env"));
    variables.extend(environment(job, attempt, role).iter().map(to_json));
    container.insert("env".into(), variables.into());
    if let Some(secret) = attempt.credentials.as_ref().filter(|_| reads_corpus(attempt, role)) {
        let mut sources = array(container.get("envFrom"));
        sources.push(to_json(&all_keys_of(secret)));
        container.insert("envFrom".into(), sources.into());
    }
    let mut mounts = array(container.get("volumeMounts"));
    let mut ports = array(container.get("ports"));
    if attempt.built_in {
        if !container.contains_key("args") && !container.contains_key("command") {
            set_default(&mut container, "args", CONTAINER_ARGS);
        }
        let folder = CONFIG_PATH.rsplit_once('/').map_or(CONFIG_PATH, |(folder, _)| folder);
        add_named(&mut mounts, &[VolumeMount { read_only: Some(true), ..mount(CONFIG_VOLUME, folder) }]);
        add_named(&mut ports, &[port("http", HTTP_PORT), port("rendezvous", MASTER_PORT)]);
        set_default(&mut container, "readinessProbe", readiness_probe());
    }
    if attempt.claim.is_some() {
        add_named(&mut mounts, &[mount(WORKSPACE_VOLUME, WORKSPACE_PATH)]);
    }
    container.insert("volumeMounts".into(), mounts.into());
    container.insert("ports".into(), ports.into());
    let security = with_defaults(container.get("securityContext"), &security_context());
    container.insert("securityContext".into(), security);
    container.into()
}

/// Whether the trainer in the pod may have to read the corpus. Only the leader of a group (the connected stages of an
/// attempt) reads the corpus. The leader is stage 0 of some replica, and a spare may replace such a stage 0.
fn reads_corpus(attempt: &AttemptTemplate, role: PodRole) -> bool {
    match role {
        PodRole::Stage(InstanceId { rank, .. }) => attempt.mesh.stage(rank) == 0,
        PodRole::Spare(_) => true,
    }
}

/// Returns a source that sets all keys of a Secret as environment variables. Variables of `env` take precedence.
fn all_keys_of(secret: &str) -> EnvFromSource {
    let secret = SecretEnvSource { name: secret.to_owned(), optional: None };
    EnvFromSource { secret_ref: Some(secret), ..EnvFromSource::default() }
}

fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount { name: volume.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

fn port(name: &str, number: u16) -> ContainerPort {
    ContainerPort { name: Some(name.to_owned()), container_port: number.into(), ..ContainerPort::default() }
}

fn readiness_probe() -> Probe {
    let port = IntOrString::Int(HTTP_PORT.into());
    Probe {
        http_get: Some(HTTPGetAction { path: Some("/readyz".to_owned()), port, ..HTTPGetAction::default() }),
        period_seconds: Some(2),
        timeout_seconds: Some(2),
        ..Probe::default()
    }
}

fn security_context() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
        ..SecurityContext::default()
    }
}

/// Returns the environment variables of the contract. The kubelet sets the values of the pod's IP address and UID.
fn environment(job: &JobReference, attempt: &AttemptTemplate, role: PodRole) -> Vec<EnvVar> {
    let (rank, incarnation, spare) = match role {
        PodRole::Stage(InstanceId { rank, incarnation }) => (rank, incarnation, None),
        PodRole::Spare(number) => (0, 0, Some(number)),
    };
    let contract = StageEnv {
        rank,
        mesh: attempt.mesh,
        job: job.name.clone(),
        job_uid: job.uid.clone(),
        attempt: attempt.number,
        incarnation,
        spare,
        config: CONFIG_PATH.into(),
        workspace: WORKSPACE_PATH.into(),
        master_addr: service_name(job),
        master_port: MASTER_PORT,
        pod_ip: String::new(),
        pod_uid: String::new(),
    };
    let field = |path: &str| EnvVarSource {
        field_ref: Some(ObjectFieldSelector { field_path: path.to_owned(), api_version: None }),
        ..EnvVarSource::default()
    };
    let variable = |(name, value): (&str, String)| {
        let (value, value_from) = match name {
            env::POD_IP => (None, Some(field("status.podIP"))),
            env::POD_UID => (None, Some(field("metadata.uid"))),
            _ => (Some(value), None),
        };
        EnvVar { name: name.to_owned(), value, value_from }
    };
    contract.to_vars().into_iter().map(variable).collect()
}
