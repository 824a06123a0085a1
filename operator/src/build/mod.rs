//! What an attempt consists of, as Kubernetes objects. Pure: the same job and attempt give the same objects, and pods are
//! made from what the attempt's ConfigMap keeps, never from the live spec.

mod gang;
mod names;
mod pod;
mod policy;
mod service;

use serde_json::{Map, Value, json};
use stagecoach_api::PipelineJob;
use stagecoach_api::contract::WORKSPACE_PATH;
use stagecoach_api::job::{PipelineJobSpec, PodTemplate, TrainerType};

pub use gang::{Gang, pod_group};
pub use names::{
    ATTEMPT, JOB, JOB_UID, STAGE, attempt_name, is_controlled_by, labels, pod_name, pod_query, pod_selector,
    service_name, stage_0_selector,
};
pub use pod::pod;
pub use policy::{Readers, network_policy};
pub use service::service;

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

/// Everything that the pods of one attempt are made from: fixed when the attempt starts, kept in its ConfigMap.
#[derive(Clone, Debug, PartialEq)]
pub struct Blueprint {
    /// The attempt.
    pub attempt: u64,
    /// Its stages.
    pub stages: u32,
    /// Whether the trainer is the built-in one.
    pub built_in: bool,
    /// The trainer's part of the job, as YAML: what a stage reads.
    pub job_file: String,
    /// The claim that is the volume; none if the template mounts its own.
    pub claim: Option<String>,
    /// Who schedules all pods or none; nobody if none.
    pub gang: Option<Gang>,
    /// The pods' template, the trainer's image resolved.
    pub template: Map<String, Value>,
}

/// Why a job can't be turned into objects.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(String);

/// The keys of the attempt's ConfigMap.
const JOB_FILE: &str = "job.yaml";
const BLUEPRINT: &str = "blueprint.json";

impl Blueprint {
    /// What `attempt` of `job` will be, with `stages` stages; `image` is the trainer's where the template names none.
    ///
    /// # Errors
    /// A spec that can't be written as YAML.
    pub fn new(job: &PipelineJob, attempt: u64, stages: u32, image: &str) -> Result<Blueprint, BuildError> {
        let mut own = job.clone();
        // only what the trainer reads: the pods' template is here but for the time to leave, the rest is the operator's
        own.status = None;
        own.spec.template = job.spec.template.as_ref().and_then(grace);
        own.spec.stages = stages;
        own.spec.suspend = false;
        let job_file = own.to_yaml().map_err(|e| BuildError(format!("the job can't be written as YAML: {e}")))?;
        let template = job.spec.template.as_ref().map(|template| template.0.clone()).unwrap_or_default();
        let claim = job.spec.storage.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.clone());
        let built_in = job.spec.trainer.kind == TrainerType::BuiltIn;
        let mut blueprint = Blueprint { attempt, stages, built_in, job_file, claim, gang: None, template };
        pod::resolve_image(&mut blueprint.template, image);
        Ok(blueprint)
    }

    /// The image that the trainer's container runs.
    pub fn image(&self) -> Option<&str> {
        pod::trainer_image(&self.template)
    }
}

/// What keeps a valid job from being pods: on one machine a folder is enough, in a cluster the stages share a volume.
pub fn missing(spec: &PipelineJobSpec) -> Option<String> {
    let lacking = spec.trainer.kind == TrainerType::BuiltIn && !pod::has_workspace(spec);
    lacking.then(|| {
        format!(
            "spec.storage.persistentVolumeClaim is missing: the stages' pods share a volume; name a ReadWriteMany claim of \
             this namespace, or mount a volume of spec.template at {WORKSPACE_PATH}"
        )
    })
}

/// What a stage reads of its pod's template: how long it has to save and leave.
fn grace(template: &PodTemplate) -> Option<PodTemplate> {
    let grace = template.0.get("spec")?.get("terminationGracePeriodSeconds")?;
    let spec = json!({ "terminationGracePeriodSeconds": grace });
    Some(PodTemplate(Map::from_iter([("spec".to_owned(), spec)])))
}

/// The attempt's ConfigMap, which keeps `blueprint` for every pod that is yet to be made.
pub fn config_map(owner: &Owner, blueprint: &Blueprint) -> Value {
    let kept = json!({
        "attempt": blueprint.attempt,
        "stages": blueprint.stages,
        "builtIn": blueprint.built_in,
        "claim": blueprint.claim,
        "gang": blueprint.gang.map(Gang::api_version),
        "template": blueprint.template,
    });
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names::metadata(owner, &attempt_name(owner, blueprint.attempt), Some(blueprint.attempt)),
        "immutable": true,
        "data": { JOB_FILE: blueprint.job_file, BLUEPRINT: kept.to_string() },
    })
}

/// The blueprint that a ConfigMap keeps.
///
/// # Errors
/// If it is none of ours.
pub fn read_config_map(config_map: &Value) -> Result<Blueprint, BuildError> {
    let name = config_map["metadata"]["name"].as_str().unwrap_or_default();
    let wrong =
        |what: &str| BuildError(format!("the ConfigMap {name} {what}: it was changed by somebody else, delete it"));
    let text = |key: &str| config_map["data"][key].as_str().ok_or_else(|| wrong(&format!("has no {key}")));
    let kept: Value = serde_json::from_str(text(BLUEPRINT)?).map_err(|_| wrong("holds no blueprint"))?;
    let template = kept["template"].as_object().cloned().ok_or_else(|| wrong("holds no template"))?;
    Ok(Blueprint {
        attempt: kept["attempt"].as_u64().ok_or_else(|| wrong("names no attempt"))?,
        stages: kept["stages"].as_u64().and_then(|n| n.try_into().ok()).ok_or_else(|| wrong("names no stages"))?,
        built_in: kept["builtIn"].as_bool().ok_or_else(|| wrong("names no trainer"))?,
        job_file: text(JOB_FILE)?.to_owned(),
        claim: kept["claim"].as_str().map(str::to_owned),
        gang: kept["gang"].as_str().and_then(Gang::from_api_version),
        template,
    })
}

#[cfg(test)]
mod tests;
