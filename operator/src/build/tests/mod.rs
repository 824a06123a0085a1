//! Tests of the constructed objects, together and by kind.

mod attempt_template;
mod other_objects;
mod pods;
mod templates;

use serde::Serialize;
use serde_json::{Value, json};
use stagecoach_api::contract::{Mesh, StageEnv};
use stagecoach_api::job::{CredentialsSpec, Device, PersistentVolumeClaim, PodTemplate, TrainerType};
use stagecoach_api::{PipelineJob, parse_with};
use stagecoach_lifecycle::{Attempt, InstanceId};

use super::*;

const SAMPLE_JOB: &str = include_str!("../../../../manifests/samples/shakespeare.yaml");

const NUMBER_3: Attempt =
    Attempt { number: 3, mesh: Mesh::pipeline(3), revision: 7, admission: 0, admitted_replicas: None };

fn reference() -> JobReference {
    JobReference { name: "shakespeare".into(), namespace: "ml".into(), uid: "u-1".into() }
}

fn job(template: Value) -> PipelineJob {
    let mut job = parse_with(SAMPLE_JOB, "shakespeare.yaml", &[]).unwrap();
    let fields = template.as_object().cloned().unwrap();
    job.spec.template = Some(PodTemplate(fields));
    let claim = PersistentVolumeClaim { claim_name: "training".into() };
    job.spec.storage.persistent_volume_claim = Some(claim);
    job
}

fn attempt(template: Value) -> AttemptTemplate {
    AttemptTemplate::new(&job(template), NUMBER_3, "example.com/trainer@sha256:00", None).unwrap()
}

fn to_value(object: &impl Serialize) -> Value {
    serde_json::to_value(object).unwrap()
}

/// Returns the environment that a pod's trainer reads. `127.0.0.1` stands for the values that the kubelet sets.
fn environment(pod: &Value) -> StageEnv {
    let variables = trainer(pod)["env"].as_array().unwrap().iter();
    let pairs = variables
        .map(|variable| (variable["name"].as_str().unwrap(), variable["value"].as_str().unwrap_or("127.0.0.1")));
    StageEnv::from_vars(pairs).unwrap()
}

fn pod(attempt: &AttemptTemplate, stage: u32) -> Value {
    pod_as(attempt, PodRole::Stage(InstanceId { rank: stage, incarnation: 0 }))
}

fn pod_as(attempt: &AttemptTemplate, role: PodRole) -> Value {
    to_value(&super::pod(&reference(), attempt, role))
}

fn config_map(attempt: &AttemptTemplate) -> Value {
    to_value(&build(&reference(), attempt, None).config_map)
}

fn read(config_map: &Value) -> Result<AttemptTemplate, BuildError> {
    AttemptTemplate::from_config_map(&serde_json::from_value(config_map.clone()).unwrap())
}

fn trainer(pod: &Value) -> &Value {
    pod["spec"]["containers"].as_array().unwrap().iter().find(|c| c["name"] == "trainer").unwrap()
}

fn custom_job() -> PipelineJob {
    let mut job = job(
        json!({"spec": {"containers": [{"name": "trainer", "image": "torch:2", "command": ["python", "train.py"]}]}}),
    );
    job.spec.trainer.kind = TrainerType::Custom;
    (job.spec.model, job.spec.data, job.spec.training) = (None, None, None);
    job
}

/// The golden file has each field that the operator sends to the API server.
#[test]
fn the_objects_of_an_attempt_equal_the_golden_ones() {
    let readers = [serde_json::from_value(json!({"podSelector": {}})).unwrap()];
    let peers = PolicyPeers { readers: &readers, ..PolicyPeers::default() };
    let objects = |job: &PipelineJob, api: Option<PodGroupApi>, peers: Option<PolicyPeers<'_>>| {
        let attempt = AttemptTemplate::new(
            job,
            Attempt { mesh: Mesh::pipeline(2), ..NUMBER_3 },
            "example.com/trainer@sha256:00",
            api,
        )
        .unwrap();
        let AttemptObjects { service, network_policy, config_map, pod_group } = build(&reference(), &attempt, peers);
        let pods: Vec<_> = (0..attempt.mesh.ranks()).map(|rank| pod(&attempt, rank)).collect();
        json!({"service": service, "networkPolicy": network_policy, "configMap": config_map,
               "podGroup": pod_group, "pods": pods})
    };
    let found = json!({
        "built-in": objects(&job(json!({})), Some(PodGroupApi::ALL[0]), Some(peers)),
        "custom": objects(&custom_job(), Some(PodGroupApi::Volcano), None),
        "coscheduling": objects(&custom_job(), Some(PodGroupApi::Coscheduling), None)["pods"][0]["metadata"],
    });
    let golden: Value = serde_json::from_str(include_str!("golden.json")).unwrap();
    for (case, objects) in golden.as_object().unwrap() {
        for (kind, object) in objects.as_object().unwrap() {
            assert_eq!(found[case][kind], *object, "{kind} of {case}");
        }
    }
    assert_eq!(found, golden);
}
