//! A stage's pod: the user's template and what the contract adds to it.

use serde_json::{Map, Value, json};
use stagecoach_api::contract::{
    CONFIG_PATH, CONTAINER_ARGS, CONTAINER_NAME, DEFAULT_TERMINATION_GRACE_SECONDS, HTTP_PORT, MASTER_PORT, StageEnv,
    WORKSPACE_PATH, env,
};
use stagecoach_api::job::PipelineJobSpec;

use super::{Blueprint, JOB_FILE_KEY, Owner, attempt_name, labels, names, pod_name, service_name};

/// The user and group of the trainer's image.
const TRAINER_UID: u64 = 65532;
/// The volumes that the operator adds, unless the template has its own of that name.
const CONFIG_VOLUME: &str = "stagecoach-config";
const WORKSPACE_VOLUME: &str = "workspace";

/// The pod of `stage`.
pub(crate) fn pod(owner: &Owner, blueprint: &Blueprint, stage: u32) -> Value {
    let Blueprint { attempt, template, .. } = blueprint;
    let mut spec = object(template.get("spec"));
    let containers = containers(&spec).into_iter().map(|container| match is_trainer(&container) {
        true => trainer(owner, blueprint, stage, container),
        false => Value::Object(container),
    });
    spec["containers"] = containers.collect();
    // the kubelet must not restart a stage alone: the operator restarts the whole group
    spec.insert("restartPolicy".into(), "Never".into());
    set_default(&mut spec, "automountServiceAccountToken", json!(false));
    set_default(&mut spec, "enableServiceLinks", json!(false));
    set_default(&mut spec, "terminationGracePeriodSeconds", json!(DEFAULT_TERMINATION_GRACE_SECONDS));
    let mut security = object(spec.get("securityContext"));
    set_default(&mut security, "runAsNonRoot", json!(true));
    set_default(&mut security, "runAsUser", json!(TRAINER_UID));
    set_default(&mut security, "runAsGroup", json!(TRAINER_UID));
    set_default(&mut security, "fsGroup", json!(TRAINER_UID));
    set_default(&mut security, "fsGroupChangePolicy", json!("OnRootMismatch"));
    set_default(&mut security, "seccompProfile", json!({ "type": "RuntimeDefault" }));
    spec.insert("securityContext".into(), security.into());
    let mut volumes = array(spec.get("volumes"));
    if blueprint.built_in {
        let config = json!({
            "name": attempt_name(owner, *attempt),
            "items": [{ "key": JOB_FILE_KEY, "path": JOB_FILE_KEY }],
        });
        add_named(&mut volumes, json!({ "name": CONFIG_VOLUME, "configMap": config }));
    }
    if let Some(claim) = &blueprint.claim {
        add_named(&mut volumes, json!({ "name": WORKSPACE_VOLUME, "persistentVolumeClaim": { "claimName": claim } }));
    }
    spec.insert("volumes".into(), volumes.into());

    let template_metadata = object(template.get("metadata"));
    let mut all_labels = object(template_metadata.get("labels"));
    all_labels.extend(labels(owner, Some(*attempt), Some(stage)));
    let mut annotations = object(template_metadata.get("annotations"));
    if let Some(api) = blueprint.pod_group_api {
        let group = attempt_name(owner, *attempt);
        api.add_pod(&group, &mut all_labels, &mut annotations, &mut spec);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(owner, stage, *attempt),
            "namespace": owner.namespace,
            "labels": all_labels,
            "annotations": annotations,
            "ownerReferences": [names::owner_reference(owner)],
        },
        "spec": spec,
    })
}

/// Sets the trainer's image in the template to `image`, unless it names one.
pub(super) fn resolve_image(template: &mut Map<String, Value>, image: &str) {
    let mut spec = object(template.get("spec"));
    let mut all = containers(&spec);
    all.iter_mut().filter(|container| is_trainer(container)).for_each(|c| set_default(c, "image", json!(image)));
    spec.insert("containers".into(), all.into());
    template.insert("spec".into(), spec.into());
}

/// Whether the trainer's container mounts the workspace: from a claim, or a volume of the template.
pub(super) fn has_workspace(spec: &PipelineJobSpec) -> bool {
    let template = spec.template.as_ref().map(|template| object(template.0.get("spec"))).unwrap_or_default();
    let mounts = containers(&template).into_iter().filter(is_trainer).flat_map(|c| array(c.get("volumeMounts")));
    spec.storage.persistent_volume_claim.is_some() || mounts.into_iter().any(|m| m["mountPath"] == WORKSPACE_PATH)
}

/// The template's containers, the trainer's among them.
fn containers(spec: &Map<String, Value>) -> Vec<Map<String, Value>> {
    let mut all: Vec<_> = array(spec.get("containers")).iter().map(|container| object(Some(container))).collect();
    if !all.iter().any(is_trainer) {
        all.insert(0, Map::from_iter([("name".to_owned(), CONTAINER_NAME.into())]));
    }
    all
}

fn is_trainer(container: &Map<String, Value>) -> bool {
    container.get("name").is_some_and(|name| name == CONTAINER_NAME)
}

/// The trainer's container: environment and paths of the contract, and restricted security by default.
fn trainer(owner: &Owner, blueprint: &Blueprint, stage: u32, mut container: Map<String, Value>) -> Value {
    let mut variables = array(container.get("env"));
    variables.extend(environment(owner, blueprint, stage));
    container.insert("env".into(), variables.into());
    let mut mounts = array(container.get("volumeMounts"));
    let mut ports = array(container.get("ports"));
    if blueprint.built_in {
        if !container.contains_key("args") && !container.contains_key("command") {
            container.insert("args".into(), json!(CONTAINER_ARGS));
        }
        let folder = CONFIG_PATH.rsplit_once('/').map_or(CONFIG_PATH, |(folder, _)| folder);
        add_named(&mut mounts, json!({ "name": CONFIG_VOLUME, "mountPath": folder, "readOnly": true }));
        add_named(&mut ports, json!({ "name": "http", "containerPort": HTTP_PORT }));
        add_named(&mut ports, json!({ "name": "rendezvous", "containerPort": MASTER_PORT }));
        set_default(
            &mut container,
            "readinessProbe",
            json!({ "httpGet": { "path": "/readyz", "port": HTTP_PORT }, "periodSeconds": 2, "timeoutSeconds": 2 }),
        );
    }
    if blueprint.claim.is_some() {
        add_named(&mut mounts, json!({ "name": WORKSPACE_VOLUME, "mountPath": WORKSPACE_PATH }));
    }
    container.insert("volumeMounts".into(), mounts.into());
    container.insert("ports".into(), ports.into());
    let mut security = object(container.get("securityContext"));
    set_default(&mut security, "allowPrivilegeEscalation", json!(false));
    set_default(&mut security, "readOnlyRootFilesystem", json!(true));
    set_default(&mut security, "capabilities", json!({ "drop": ["ALL"] }));
    container.insert("securityContext".into(), security.into());
    container.into()
}

/// The contract's variables. The kubelet fills in the pod's IP address and UID.
fn environment(owner: &Owner, blueprint: &Blueprint, stage: u32) -> Vec<Value> {
    let contract = StageEnv {
        rank: stage,
        world_size: blueprint.stages,
        job: owner.name.clone(),
        job_uid: owner.uid.clone(),
        attempt: blueprint.attempt,
        config: CONFIG_PATH.into(),
        workspace: WORKSPACE_PATH.into(),
        master_addr: service_name(owner),
        master_port: MASTER_PORT,
        pod_ip: String::new(),
        pod_uid: String::new(),
    };
    let field = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
    let variable = |(name, value): (&str, String)| match name {
        env::POD_IP => json!({ "name": name, "valueFrom": field("status.podIP") }),
        env::POD_UID => json!({ "name": name, "valueFrom": field("metadata.uid") }),
        _ => json!({ "name": name, "value": value }),
    };
    contract.to_vars().into_iter().map(variable).collect()
}

fn object(value: Option<&Value>) -> Map<String, Value> {
    value.and_then(Value::as_object).cloned().unwrap_or_default()
}

fn array(value: Option<&Value>) -> Vec<Value> {
    value.and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Sets a field that is not there.
fn set_default(object: &mut Map<String, Value>, field: &str, value: Value) {
    object.entry(field).or_insert(value);
}

/// Adds an item unless there is one of its name.
fn add_named(items: &mut Vec<Value>, item: Value) {
    if !items.iter().any(|other| other["name"] == item["name"]) {
        items.push(item);
    }
}
