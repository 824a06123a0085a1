//! Builds the pod of a stage or of a spare: the user's pod template with the operator's additions.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, KeyToPath, PersistentVolumeClaimVolumeSource, Pod, PodSecurityContext, SeccompProfile,
    Volume,
};
use kube::api::{ApiResource, NotUsed, Object};
use serde_json::{Map, Value};
use stagecoach_api::contract::{
    CONTAINER_NAME, DEFAULT_TERMINATION_GRACE_SECONDS, GPU_RESOURCE, WORKSPACE_PATH, keep_off_nodes,
};
use stagecoach_api::job::{Device, PipelineJobSpec, TrainerType};
use stagecoach_lifecycle::InstanceId;

use super::attempt_template::JOB_FILE_KEY;
use super::container::trainer_container;
use super::json::{add_named, array, merged, object, set_default, string_map, with_defaults};
use super::{AttemptTemplate, JobReference, PodRole, attempt_name, labels, names};

/// The user ID and the group ID of the trainer's image.
const TRAINER_UID: i64 = 65532;
/// Annotations that each pod gets, unless the template sets them. An autoscaler must not move a stage, because the move
/// interrupts the whole job.
const NO_EVICTION_ANNOTATIONS: [(&str, &str); 2] =
    [("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"), ("karpenter.sh/do-not-disrupt", "true")];
/// The names of the volumes that the operator adds, unless the template has a volume of the same name.
pub(super) const CONFIG_VOLUME: &str = "stagecoach-config";
pub(super) const WORKSPACE_VOLUME: &str = "workspace";

/// A pod of an attempt. The spec stays the JSON that the user wrote, and only the operator's additions are typed. A
/// typed `PodSpec` would drop each field that this version of k8s-openapi does not have, and the CRD may have the
/// fields of a newer Kubernetes.
pub(crate) type StagePod = Object<Map<String, Value>, NotUsed>;

/// Returns the pod of `attempt` for `role`.
pub(crate) fn pod(job: &JobReference, attempt: &AttemptTemplate, role: PodRole) -> StagePod {
    let template = &template_of(attempt, role);
    let mut spec = object(template.get("spec"));
    let containers = containers(&spec).into_iter().map(|container| match is_trainer(&container) {
        true => trainer_container(job, attempt, role, container),
        false => Value::Object(container),
    });
    spec.insert("containers".into(), containers.collect());
    // the operator decides whether a stage restarts, and which other stages restart with it
    spec.insert("restartPolicy".into(), "Never".into());
    keep_off_nodes(&attempt.excluded_nodes, &mut spec);
    set_default(&mut spec, "automountServiceAccountToken", false);
    set_default(&mut spec, "enableServiceLinks", false);
    set_default(&mut spec, "terminationGracePeriodSeconds", DEFAULT_TERMINATION_GRACE_SECONDS);
    spec.insert("securityContext".into(), with_defaults(spec.get("securityContext"), &security_context()));
    let mut all_volumes = array(spec.get("volumes"));
    add_named(&mut all_volumes, &volumes(job, attempt));
    spec.insert("volumes".into(), all_volumes.into());

    let template_metadata = object(template.get("metadata"));
    let mut all_labels = string_map(template_metadata.get("labels"));
    all_labels.extend(labels(job, Some(attempt.number)));
    all_labels.extend(role.labels(attempt.mesh));
    let mut annotations: BTreeMap<_, _> =
        NO_EVICTION_ANNOTATIONS.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    annotations.extend(string_map(template_metadata.get("annotations")));
    if let Some(api) = attempt.pod_group_api {
        api.choose_scheduler(&mut spec);
        // keep spares out of the gang: the stages must start even if the cluster has no room for a spare
        if let PodRole::Stage(_) = role {
            api.add_pod(attempt_name(job, attempt.number), &mut all_labels, &mut annotations, &mut spec);
        }
    }
    if let Some(placement) = &attempt.placement {
        placement.add_pod(attempt, role, &mut all_labels, &mut annotations, &mut spec);
    }
    let name = role.pod_name(job, attempt.number, attempt.mesh);
    let mut pod = StagePod::new(&name, &ApiResource::erase::<Pod>(&()), spec);
    pod.metadata = names::metadata(job, name, None);
    pod.metadata.labels = Some(all_labels);
    pod.metadata.annotations = Some(annotations);
    pod
}

/// Returns the template of one pod. The template of a stage includes the stage's override, if `stages` has one. A spare
/// may become any stage, so its template includes no override.
fn template_of(attempt: &AttemptTemplate, role: PodRole) -> Map<String, Value> {
    let stage = match role {
        PodRole::Stage(InstanceId { rank, .. }) => Some(attempt.mesh.stage(rank)),
        PodRole::Spare(_) => None,
    };
    template_of_stage(&attempt.pod_template, stage)
}

/// Returns the pod template with the override of a stage, or without any override if `stage` is `None`.
pub(crate) fn template_of_stage(pod_template: &Map<String, Value>, stage: Option<u32>) -> Map<String, Value> {
    let mut all = pod_template.clone();
    let overrides = array(all.shift_remove("stages").as_ref());
    let own = stage.and_then(|stage| overrides.iter().find(|one| one["stage"] == stage));
    for part in ["metadata", "spec"] {
        if let Some(change) = own.and_then(|own| own.get(part)) {
            let changed = merged(all.get(part).unwrap_or(&Value::Null), change);
            all.insert(part.to_owned(), changed);
        }
    }
    all
}

/// Returns the default security context of a pod. Fields that the template sets take precedence.
fn security_context() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(TRAINER_UID),
        run_as_group: Some(TRAINER_UID),
        fs_group: Some(TRAINER_UID),
        fs_group_change_policy: Some("OnRootMismatch".to_owned()),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..PodSecurityContext::default()
    }
}

/// Returns the volumes that the attempt adds to the volumes of the template.
fn volumes(job: &JobReference, attempt: &AttemptTemplate) -> Vec<Volume> {
    let mut volumes = Vec::new();
    if attempt.built_in {
        let job_file = KeyToPath { key: JOB_FILE_KEY.to_owned(), path: JOB_FILE_KEY.to_owned(), mode: None };
        let config_map = ConfigMapVolumeSource {
            name: attempt_name(job, attempt.number),
            items: Some(vec![job_file]),
            ..ConfigMapVolumeSource::default()
        };
        volumes.push(Volume { name: CONFIG_VOLUME.to_owned(), config_map: Some(config_map), ..Volume::default() });
    }
    if let Some(claim_name) = attempt.claim.clone() {
        let claim = PersistentVolumeClaimVolumeSource { claim_name, read_only: None };
        volumes.push(Volume {
            name: WORKSPACE_VOLUME.to_owned(),
            persistent_volume_claim: Some(claim),
            ..Volume::default()
        });
    }
    volumes
}

/// Sets the trainer's image in the template to `image`, unless the template names an image.
pub(super) fn resolve_image(template: &mut Map<String, Value>, image: &str) {
    let mut spec = object(template.get("spec"));
    let mut all = containers(&spec);
    all.iter_mut().filter(|container| is_trainer(container)).for_each(|c| set_default(c, "image", image));
    spec.insert("containers".into(), all.into());
    template.insert("spec".into(), spec.into());
}

/// Returns a message if the job has no volume that its pods can share in a cluster; `None` otherwise. Such a job is
/// valid on one machine, where a folder suffices.
pub(crate) fn missing_volume(spec: &PipelineJobSpec) -> Option<String> {
    let is_missing = spec.trainer.kind == TrainerType::BuiltIn && !has_workspace(spec);
    is_missing.then(|| {
        format!(
            "spec.storage.persistentVolumeClaim is missing: the stages' pods share a volume; name a ReadWriteMany \
             claim of this namespace, or mount a volume of spec.template at {WORKSPACE_PATH}"
        )
    })
}

/// Returns a message if an otherwise valid job trains on GPUs but requests none; `None` otherwise. A pod gets only the
/// GPUs that it requests.
pub(crate) fn missing_gpu(spec: &PipelineJobSpec) -> Option<String> {
    let wants_gpu = spec.training.as_ref().is_some_and(|training| training.device == Device::Cuda);
    let asks = |container: &Map<String, Value>| {
        let resources = object(container.get("resources"));
        let is_extended = |list: &str| object(resources.get(list)).keys().any(|name| name.contains('/'));
        is_extended("limits") || is_extended("requests") || !array(resources.get("claims")).is_empty()
    };
    let is_missing = wants_gpu && !trainer_containers(spec).iter().any(asks);
    is_missing.then(|| {
        format!(
            "spec.training.device is Cuda, and no container {CONTAINER_NAME} of spec.template asks for a GPU: add \
             `resources: {{limits: {{{GPU_RESOURCE}: 1}}}}`, or a claim, or set device to Auto"
        )
    })
}

/// Returns a message if the pods of a valid job request more GPUs than the one that a stage uses; `None` otherwise. A
/// job with a custom trainer gets no message, because its trainer may use all GPUs.
pub(crate) fn surplus_gpus(spec: &PipelineJobSpec) -> Option<String> {
    let uses_gpu = spec.trainer.kind == TrainerType::BuiltIn
        && spec.training.as_ref().is_some_and(|training| training.device != Device::Cpu);
    if !uses_gpu {
        return None;
    }
    let count = |container: &Map<String, Value>| {
        let resources = object(container.get("resources"));
        let gpus_in = |list: &str| {
            let quantity = object(resources.get(list)).remove(GPU_RESOURCE)?;
            quantity.as_u64().or_else(|| quantity.as_str()?.parse().ok())
        };
        gpus_in("limits").or_else(|| gpus_in("requests"))
    };
    let most = trainer_containers(spec).iter().filter_map(count).max().filter(|&most| most > 1)?;
    Some(format!(
        "container {CONTAINER_NAME} of spec.template asks for {most} GPUs ({GPU_RESOURCE}), and a stage uses only \
         one, so that the other GPUs stay idle: ask for 1, and use more GPUs with more stages or replicas"
    ))
}

/// Returns the trainer's containers in the template and in the template's overrides for single stages.
fn trainer_containers(spec: &PipelineJobSpec) -> Vec<Map<String, Value>> {
    let pods = spec.template.iter().flat_map(|template| {
        let overrides = array(template.0.get("stages"));
        [object(template.0.get("spec"))].into_iter().chain(overrides.into_iter().map(|one| object(one.get("spec"))))
    });
    pods.flat_map(|pod| containers(&pod)).filter(is_trainer).collect()
}

/// Whether the trainer's container mounts the workspace, from a claim or from a volume of the template.
fn has_workspace(spec: &PipelineJobSpec) -> bool {
    let template = spec.template.as_ref().map(|template| object(template.0.get("spec"))).unwrap_or_default();
    let mounts = containers(&template).into_iter().filter(is_trainer).flat_map(|c| array(c.get("volumeMounts")));
    spec.storage.persistent_volume_claim.is_some() || mounts.into_iter().any(|m| m["mountPath"] == WORKSPACE_PATH)
}

/// Returns the PersistentVolumeClaim that holds the workspace of a job with the built-in trainer, and the path of the
/// workspace in this claim; `""` is the root of the claim. Returns `None` if the workspace is not on a claim, or if the
/// trainer is not the built-in one.
pub(crate) fn workspace_claim(spec: &PipelineJobSpec) -> Option<(String, String)> {
    if spec.trainer.kind != TrainerType::BuiltIn {
        return None;
    }
    if let Some(claim) = &spec.storage.persistent_volume_claim {
        return Some((claim.claim_name.clone(), String::new()));
    }
    let template = object(spec.template.as_ref()?.0.get("spec"));
    let mut mounts = containers(&template).into_iter().filter(is_trainer).flat_map(|c| array(c.get("volumeMounts")));
    let mount = mounts.find(|mount| mount["mountPath"] == WORKSPACE_PATH)?;
    let volumes = array(template.get("volumes"));
    let volume = volumes.iter().find(|volume| volume["name"] == mount["name"])?;
    let claim = volume["persistentVolumeClaim"]["claimName"].as_str()?;
    Some((claim.to_owned(), mount["subPath"].as_str().unwrap_or_default().to_owned()))
}

/// Returns the template's containers. Adds the trainer's container if the template has none.
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
