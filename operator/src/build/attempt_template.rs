//! The template from which the pods of an attempt are built, and the ConfigMap that stores the template.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use stagecoach_api::contract::{MAX_STAGES, Mesh};
use stagecoach_api::job::TrainerType;
use stagecoach_api::{PipelineJob, PipelineJobSpec};
use stagecoach_lifecycle::Attempt;

use super::kueue::PodSetPlacements;
use super::{JobReference, PodGroupApi, attempt_name, job_file, names, pod};

/// The keys of the job file and of the template in an attempt's ConfigMap.
pub(super) const JOB_FILE_KEY: &str = "job.yaml";
const TEMPLATE_KEY: &str = "blueprint.json";

/// All data from which the pods of one attempt are built. The template is fixed when the attempt starts, and is stored
/// in the attempt's ConfigMap. A pod that is created later therefore equals the other pods, even after a change of the
/// spec or of the operator.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttemptTemplate {
    /// The attempt's number.
    pub(crate) number: u64,
    /// The attempt's stages and replicas.
    pub(crate) mesh: Mesh,
    /// The number of pods that a gang scheduler starts together. For an elastic job, this is the number of pods of the
    /// minimum number of replicas.
    pub(crate) gang_size: u32,
    /// The revision (a hash of the spec's fields that define an attempt); `None` if an older operator stored the
    /// template.
    pub(crate) revision: Option<u64>,
    /// Whether the trainer is the built-in one.
    pub(crate) built_in: bool,
    /// The job file: the fields of the job that a stage reads.
    pub(crate) job_file: String,
    /// The PersistentVolumeClaim of the workspace; `None` if the pod template mounts its own volume.
    pub(crate) claim: Option<String>,
    /// The Secret with environment variables for the pods that read the corpus; `None` if the job names no Secret.
    pub(crate) credentials: Option<String>,
    /// The API of the attempt's PodGroup; `None` if pods are scheduled one by one.
    pub(crate) pod_group_api: Option<PodGroupApi>,
    /// The nodes on which a stage has computed a wrong result. The attempt's pods must not run on these nodes.
    pub(crate) excluded_nodes: BTreeSet<String>,
    /// The placement by Kueue; `None` for a job without a queue.
    pub(crate) placement: Option<PodSetPlacements>,
    /// The pod template, with the trainer's image resolved.
    pub(crate) pod_template: Map<String, Value>,
}

/// The reason why the objects of an attempt can't be constructed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BuildError(String);

impl AttemptTemplate {
    /// Returns the template of `attempt` of `job`. `image` is the trainer's image if the pod template names no image.
    ///
    /// # Errors
    /// Returns an error if the spec can't be written as JSON.
    pub(crate) fn new(
        job: &PipelineJob,
        attempt: Attempt,
        image: &str,
        pod_group_api: Option<PodGroupApi>,
    ) -> Result<AttemptTemplate, BuildError> {
        let mut pod_template = job.spec.template.as_ref().map(|template| template.0.clone()).unwrap_or_default();
        pod::resolve_image(&mut pod_template, image);
        Ok(AttemptTemplate {
            number: attempt.number,
            mesh: attempt.mesh,
            gang_size: gang_size(&job.spec, attempt.mesh),
            revision: Some(attempt.revision),
            built_in: job.spec.trainer.kind == TrainerType::BuiltIn,
            job_file: job_file::new(job, attempt.mesh)
                .map_err(|e| BuildError(format!("the job can't be written as JSON: {e}")))?,
            claim: job.spec.storage.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.clone()),
            credentials: job.spec.data.as_ref().and_then(|data| Some(data.credentials.as_ref()?.secret_name.clone())),
            pod_group_api,
            excluded_nodes: BTreeSet::new(),
            placement: None,
            pod_template,
        })
    }

    /// Returns this template with the job file of `earlier`, the template of an attempt with the same image. The
    /// trainer of this image has already read the job file, so the stages can certainly parse the file. The fields that
    /// may differ between two attempts keep their values from this template. If the revisions of the two attempts
    /// differ, the template keeps its own job file.
    pub(crate) fn with_job_file_of(self, earlier: &AttemptTemplate) -> AttemptTemplate {
        let same = self.revision.is_some() && self.revision == earlier.revision;
        let kept = same.then(|| job_file::carried_over(&earlier.job_file, &self.job_file)).flatten();
        AttemptTemplate { job_file: kept.unwrap_or(self.job_file), ..self }
    }

    /// Returns the attempt's ConfigMap, which stores this template.
    pub(crate) fn to_config_map(&self, job: &JobReference) -> ConfigMap {
        let mut template = json!({
            "attempt": self.number,
            "stages": self.mesh.stages,
            "revision": self.revision,
            "builtIn": self.built_in,
            "claim": self.claim,
            "gang": self.pod_group_api.map(PodGroupApi::api_version),
            "template": self.pod_template,
        });
        if let Some(mesh) = self.mesh.if_replicated() {
            template["dataParallel"] = mesh.data_parallel.into();
        }
        if self.gang_size != self.mesh.ranks() {
            template["gangSize"] = self.gang_size.into();
        }
        if let Some(secret) = &self.credentials {
            template["credentials"] = secret.as_str().into();
        }
        if !self.excluded_nodes.is_empty() {
            template["excludedNodes"] = json!(self.excluded_nodes);
        }
        if let Some(placement) = &self.placement {
            template["placement"] = json!(placement);
        }
        ConfigMap {
            metadata: names::metadata(job, attempt_name(job, self.number), Some(self.number)),
            immutable: Some(true),
            data: Some(BTreeMap::from([
                (JOB_FILE_KEY.to_owned(), self.job_file.clone()),
                (TEMPLATE_KEY.to_owned(), template.to_string()),
            ])),
            binary_data: None,
        }
    }

    /// Returns the template that a ConfigMap stores.
    ///
    /// # Errors
    /// Returns an error if `config_map` is not the ConfigMap of an attempt.
    pub(crate) fn from_config_map(config_map: &ConfigMap) -> Result<AttemptTemplate, BuildError> {
        let name = config_map.name_any();
        let wrong = |what: &str| {
            BuildError(format!("the ConfigMap {name} {what}: another client has changed it; delete the ConfigMap"))
        };
        let text = |key: &str| {
            let text = config_map.data.as_ref().and_then(|data| data.get(key));
            text.ok_or_else(|| wrong(&format!("has no {key}")))
        };
        let stored: Value =
            serde_json::from_str(text(TEMPLATE_KEY)?).map_err(|_| wrong("holds no attempt template"))?;
        let pod_template = stored["template"].as_object().cloned().ok_or_else(|| wrong("holds no template"))?;
        // limit the ranks: a user can write a ConfigMap, and the operator must not build an unlimited number of pods
        // from it
        let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        // the field is not stored for a single replica
        let data_parallel = number(&stored["dataParallel"]).unwrap_or(1);
        let mesh = number(&stored["stages"]).map(|stages| Mesh { stages, data_parallel });
        let mesh = mesh.filter(|mesh| (1..=MAX_STAGES).contains(&mesh.ranks()));
        let mesh = mesh.ok_or_else(|| wrong("has no valid number of stages"))?;
        let placement = match &stored["placement"] {
            Value::Null => None,
            placement => Some(PodSetPlacements::deserialize(placement).map_err(|_| wrong("holds no placement"))?),
        };
        let nodes = stored["excludedNodes"].as_array().into_iter().flatten();
        Ok(AttemptTemplate {
            number: stored["attempt"].as_u64().ok_or_else(|| wrong("names no attempt"))?,
            mesh,
            // the field is stored only for an elastic job
            gang_size: number(&stored["gangSize"]).unwrap_or_else(|| mesh.ranks()),
            revision: stored["revision"].as_u64(),
            built_in: stored["builtIn"].as_bool().ok_or_else(|| wrong("names no trainer"))?,
            job_file: text(JOB_FILE_KEY)?.clone(),
            claim: stored["claim"].as_str().map(str::to_owned),
            credentials: stored["credentials"].as_str().map(str::to_owned),
            pod_group_api: stored["gang"].as_str().and_then(PodGroupApi::from_api_version),
            placement,
            excluded_nodes: nodes.filter_map(|node| node.as_str().map(str::to_owned)).collect(),
            pod_template,
        })
    }
}

/// Returns the smallest number of pods with which an attempt can train.
fn gang_size(spec: &PipelineJobSpec, mesh: Mesh) -> u32 {
    let replicas = if spec.elastic.is_some() { spec.min_data_parallel() } else { mesh.data_parallel };
    Mesh { data_parallel: replicas.min(mesh.data_parallel), ..mesh }.ranks()
}
