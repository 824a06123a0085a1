//! Constructs the Kubernetes objects of an attempt. Pure: the same job and attempt give the same objects, and pods are made
//! from the attempt's ConfigMap, never from the live spec.

mod names;
mod network_policy;
mod pod;
mod pod_group;
mod service;

use serde_json::{Map, Value, json};
use stagecoach_api::PipelineJob;
use stagecoach_api::contract::WORKSPACE_PATH;
use stagecoach_api::job::{PipelineJobSpec, PodTemplate, TrainerType};

pub use names::labels;
pub(crate) use names::{
    ATTEMPT_LABEL, JOB_LABEL, JOB_UID_LABEL, STAGE_LABEL, attempt_name, is_controlled_by, pod_label_selector,
    pod_match_labels, pod_name, service_name, stage_0_match_labels,
};
pub use network_policy::{StatusReaders, network_policy};
pub(crate) use pod::pod;
pub(crate) use pod_group::{PodGroupApi, pod_group};
pub(crate) use service::service;

/// The job that owns everything that is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// `metadata.name`
    pub name: String,
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.uid`
    pub uid: String,
}

/// Everything that the pods of one attempt are made from: fixed when the attempt starts, stored in its ConfigMap.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Blueprint {
    /// The attempt.
    pub(crate) attempt: u64,
    /// Its stages.
    pub(crate) stages: u32,
    /// Whether the trainer is the built-in one.
    pub(crate) built_in: bool,
    /// The trainer's part of the job, as YAML: what a stage reads.
    pub(crate) job_file: String,
    /// The claim that is the volume; none if the template mounts its own.
    pub(crate) claim: Option<String>,
    /// The API of its PodGroup; None if pods are scheduled one by one.
    pub(crate) pod_group_api: Option<PodGroupApi>,
    /// The pods' template, the trainer's image resolved.
    pub(crate) template: Map<String, Value>,
}

/// Why a job can't be turned into objects.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BuildError(String);

/// The keys of the attempt's ConfigMap.
const JOB_FILE_KEY: &str = "job.yaml";
const BLUEPRINT_KEY: &str = "blueprint.json";

impl Blueprint {
    /// The blueprint of `attempt` of `job`; `image` is the trainer's if the template names none.
    ///
    /// # Errors
    /// A spec that can't be written as YAML.
    pub(crate) fn new(job: &PipelineJob, attempt: u64, stages: u32, image: &str) -> Result<Blueprint, BuildError> {
        let mut own = job.clone();
        // without the pod template except its grace period: the rest of it is used by the operator alone
        own.status = None;
        own.spec.template = job.spec.template.as_ref().and_then(grace_period_only);
        own.spec.stages = stages;
        own.spec.suspend = false;
        let job_file = own.to_yaml().map_err(|e| BuildError(format!("the job can't be written as YAML: {e}")))?;
        let template = job.spec.template.as_ref().map(|template| template.0.clone()).unwrap_or_default();
        let claim = job.spec.storage.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.clone());
        let built_in = job.spec.trainer.kind == TrainerType::BuiltIn;
        let mut blueprint = Blueprint { attempt, stages, built_in, job_file, claim, pod_group_api: None, template };
        pod::resolve_image(&mut blueprint.template, image);
        Ok(blueprint)
    }
}

/// What is missing of a valid job to run in a cluster: on one machine a folder suffices, pods need a shared volume.
pub(crate) fn missing_volume(spec: &PipelineJobSpec) -> Option<String> {
    let is_missing = spec.trainer.kind == TrainerType::BuiltIn && !pod::has_workspace(spec);
    is_missing.then(|| {
        format!(
            "spec.storage.persistentVolumeClaim is missing: the stages' pods share a volume; name a ReadWriteMany claim of \
             this namespace, or mount a volume of spec.template at {WORKSPACE_PATH}"
        )
    })
}

/// The pod template with nothing but the termination grace period, which is all that a stage reads of it.
fn grace_period_only(template: &PodTemplate) -> Option<PodTemplate> {
    let grace = template.0.get("spec")?.get("terminationGracePeriodSeconds")?;
    let spec = json!({ "terminationGracePeriodSeconds": grace });
    Some(PodTemplate(Map::from_iter([("spec".to_owned(), spec)])))
}

/// The attempt's ConfigMap, which stores `blueprint` for every pod that is still to be created.
pub(crate) fn config_map(owner: &Owner, blueprint: &Blueprint) -> Value {
    let kept = json!({
        "attempt": blueprint.attempt,
        "stages": blueprint.stages,
        "builtIn": blueprint.built_in,
        "claim": blueprint.claim,
        "gang": blueprint.pod_group_api.map(PodGroupApi::api_version),
        "template": blueprint.template,
    });
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names::metadata(owner, &attempt_name(owner, blueprint.attempt), Some(blueprint.attempt)),
        "immutable": true,
        "data": { JOB_FILE_KEY: blueprint.job_file, BLUEPRINT_KEY: kept.to_string() },
    })
}

/// The blueprint stored in a ConfigMap.
///
/// # Errors
/// If it is not an attempt's ConfigMap.
pub(crate) fn read_config_map(config_map: &Value) -> Result<Blueprint, BuildError> {
    let name = config_map["metadata"]["name"].as_str().unwrap_or_default();
    let wrong =
        |what: &str| BuildError(format!("the ConfigMap {name} {what}: it was changed by another client, delete it"));
    let text = |key: &str| config_map["data"][key].as_str().ok_or_else(|| wrong(&format!("has no {key}")));
    let kept: Value = serde_json::from_str(text(BLUEPRINT_KEY)?).map_err(|_| wrong("holds no blueprint"))?;
    let template = kept["template"].as_object().cloned().ok_or_else(|| wrong("holds no template"))?;
    Ok(Blueprint {
        attempt: kept["attempt"].as_u64().ok_or_else(|| wrong("names no attempt"))?,
        stages: kept["stages"].as_u64().and_then(|n| n.try_into().ok()).ok_or_else(|| wrong("names no stages"))?,
        built_in: kept["builtIn"].as_bool().ok_or_else(|| wrong("names no trainer"))?,
        job_file: text(JOB_FILE_KEY)?.to_owned(),
        claim: kept["claim"].as_str().map(str::to_owned),
        pod_group_api: kept["gang"].as_str().and_then(PodGroupApi::from_api_version),
        template,
    })
}

#[cfg(test)]
mod tests;
