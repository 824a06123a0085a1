//! The PipelineJob object, its metadata, and the top level of its spec.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    AuditSpec, CheckpointSpec, DataSpec, ElasticSpec, MemoryCheckpointSpec, ModelSpec, NetworkPolicySpec,
    PipelineJobStatus, PipelineSpec, PodTemplate, RestartSpec, SchedulingSpec, StorageSpec, TrainingSpec,
    default_number,
};
use crate::mesh::{MAX_SPARES, MAX_STAGES, Mesh};

/// The value of `apiVersion`: the API's group and version.
pub const API_VERSION: &str = "stagecoach.dev/v1alpha1";
/// The value of `kind`.
pub const KIND: &str = "PipelineJob";

/// A training job: a pipeline of stages that trains a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PipelineJob {
    /// The version of the API, which is always `stagecoach.dev/v1alpha1`.
    pub api_version: String,
    /// The kind of the object, which is always `PipelineJob`.
    pub kind: String,
    /// The metadata, such as the name and the labels.
    pub metadata: Metadata,
    /// The desired state: the model, the data, the training, and the operation of the job.
    pub spec: PipelineJobSpec,
    /// The observed state. The operator writes it, and `stagecoach` ignores it in a job file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<PipelineJobStatus>,
}

/// The folder of the token cache, which all jobs share, relative to the volume's root.
pub const TOKEN_CACHE: &str = "cache";

impl PipelineJob {
    /// Creates a job of this version with a name and a spec.
    pub fn new(name: impl Into<String>, spec: PipelineJobSpec) -> Self {
        Self {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: Metadata { name: name.into(), ..Metadata::default() },
            spec,
            status: None,
        }
    }

    /// Returns the job's folder, relative to the volume's root: `storage.path`, or the job's name.
    pub fn folder(&self) -> &str {
        self.spec.storage.path.as_deref().unwrap_or(&self.metadata.name)
    }
}

/// The part of Kubernetes' ObjectMeta that Stagecoach reads. Other fields are accepted and dropped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// The job's name, a DNS-1035 label. The hostnames of the pods begin with it.
    pub name: String,
    /// The namespace of the job in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The labels of the job.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The annotations of the job.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// An identifier that no other object ever has. The API server or the local launcher sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The generation of the spec. The API server increases it with every change of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// The version of the object. The API server refuses an update with an outdated version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

/// The desired state of a PipelineJob: the model, the data, the training, and the operation of the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PipelineJobSpec {
    /// The number of stages of the pipeline, 1 to 256. Each stage runs in one pod. If 1, each replica trains on a
    /// single device.
    #[serde(default = "default_number::<1>")]
    #[schemars(range(min = 1, max = MAX_STAGES), extend("x-expected" = "a job has 1 to 256 stages"))]
    pub stages: u32,
    /// The number of replicas of the pipeline. Each replica has `stages` pods. The replicas share the gradient blocks
    /// of a step, so there must be at least as many blocks as replicas. The number of replicas does not change the
    /// results.
    #[serde(default = "default_number::<1>")]
    #[schemars(range(min = 1, max = MAX_STAGES), extend("x-expected" = "a job has 1 to 256 replicas of its pipeline"))]
    pub data_parallel: u32,
    /// The range of the number of replicas of an elastic job. An elastic job trains with as many replicas as the
    /// cluster can run. If unset, the job has `dataParallel` replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<ElasticSpec>,
    /// The number of spares, 0 to 8. A spare is a pod that has loaded its libraries and the plan, and waits to replace
    /// a lost stage. A spare needs the resources of a stage, such as a GPU. `template.stages` does not apply to spares.
    #[serde(default)]
    #[schemars(range(max = MAX_SPARES), extend("x-expected" = "a job has at most 8 spares"))]
    pub spares: u32,
    /// Whether the job is suspended. A suspended job saves a checkpoint, and the operator deletes its pods. If the
    /// value becomes false, the job resumes.
    #[serde(default)]
    pub suspend: bool,
    /// The controller that reconciles this job. If the value is not the default, Stagecoach's operator does not run the
    /// job. If the value is `kueue.x-k8s.io/multikueue`, the operator creates the Workload, and Kueue runs the job in
    /// another cluster.
    #[serde(default = "managed_by")]
    pub managed_by: String,
    /// The trainer: the built-in trainer, or a container of the template.
    #[serde(default)]
    pub trainer: TrainerSpec,
    /// The model to train. The built-in trainer requires the field, and a custom trainer does not allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelSpec>,
    /// The corpus and the tokenizer. The built-in trainer requires the field, and a custom trainer does not allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataSpec>,
    /// The length of training, the batch, the optimizer and the learning rate. The built-in trainer requires the field,
    /// and a custom trainer does not allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingSpec>,
    /// The schedule, the partition and the transport of the pipeline.
    #[serde(default)]
    pub pipeline: PipelineSpec,
    /// The interval, the mode and the retention of checkpoints.
    #[serde(default)]
    pub checkpoint: CheckpointSpec,
    /// The location of checkpoints and results.
    #[serde(default)]
    pub storage: StorageSpec,
    /// The restarts after failures.
    #[serde(default)]
    pub restart: RestartSpec,
    /// The scheduling of the pods.
    #[serde(default)]
    pub scheduling: SchedulingSpec,
    /// The network traffic that is allowed for the pods.
    #[serde(default)]
    pub network_policy: NetworkPolicySpec,
    /// The maximum time, in seconds, that the job may take before it fails. The time begins with the first attempt and
    /// includes restarts. It begins again when the job continues after a suspension. If unset, the time is not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<u64>,
    /// The time, in seconds, after which the operator deletes a finished job. If unset, the operator does not delete
    /// the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<u64>,
    /// The template of the pods: their image, resources, volumes and node selection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplate>,
}

/// The parts of a spec that the built-in trainer needs.
#[derive(Clone, Copy, Debug)]
pub struct BuiltIn<'a> {
    /// `spec.model`
    pub model: &'a ModelSpec,
    /// `spec.data`
    pub data: &'a DataSpec,
    /// `spec.training`
    pub training: &'a TrainingSpec,
}

impl PipelineJobSpec {
    /// Returns the numbers of stages and replicas. For an elastic job, the number of replicas is
    /// `elastic.maxDataParallel`.
    pub const fn mesh(&self) -> Mesh {
        Mesh { stages: self.stages, data_parallel: self.data_parallel }
    }

    /// Returns the smallest number of replicas with which the group (the stages that train together) continues. Returns
    /// the number of all replicas if a lost stage ends the attempt.
    pub fn min_data_parallel(&self) -> u32 {
        let all = self.data_parallel.max(1);
        match self.replaces_stages() {
            true => self.given_min_data_parallel().unwrap_or(1).clamp(1, all),
            false => all,
        }
    }

    /// Returns the smallest number of replicas as the spec gives it: in `elastic` or in `restart`. `None` if the spec
    /// gives no number.
    pub fn given_min_data_parallel(&self) -> Option<u32> {
        self.elastic.as_ref().map(|elastic| elastic.min_data_parallel).or(self.restart.min_data_parallel)
    }

    /// Sets `data_parallel` of an elastic job to `elastic.maxDataParallel`, because such a job gives the number only
    /// there.
    pub(crate) fn with_elastic_replicas(mut self) -> Self {
        if let Some(elastic) = self.elastic.as_ref().filter(|_| self.data_parallel == 1) {
            self.data_parallel = elastic.max_data_parallel;
        }
        self
    }

    /// Whether the other stages continue after a stage is lost. Otherwise the whole group restarts. With a custom
    /// trainer, the whole group always restarts.
    pub fn replaces_stages(&self) -> bool {
        self.restart.reform_timeout_seconds > 0 && self.training.is_some()
    }

    /// Whether the group may form again at once without a lost replica, in an attempt with `data_parallel` replicas.
    /// Stage 0 of any replica may lead the new group. In a job with spares, a spare replaces a lost stage instead.
    pub fn may_lack_replicas(&self, data_parallel: u32) -> bool {
        self.spares == 0 && self.min_data_parallel() < data_parallel
    }

    /// Returns the settings of checkpoints in memory. `None` if the spec has no such settings, if the job has only one
    /// process, or if a lost stage ends the whole group.
    pub fn memory_checkpoints(&self) -> Option<&MemoryCheckpointSpec> {
        self.checkpoint.memory.as_ref().filter(|_| self.mesh().ranks() > 1 && self.replaces_stages())
    }

    /// Returns the settings of audits. `None` if the spec has no such settings, or if the job has only one process.
    pub fn audit(&self) -> Option<AuditSpec> {
        self.training.as_ref()?.audit.filter(|_| self.mesh().ranks() > 1)
    }

    /// Returns the model, data and training of a job with the built-in trainer. Returns `None` for a custom trainer,
    /// and if one of these three parts is missing, which `validate` reports.
    pub fn built_in(&self) -> Option<BuiltIn<'_>> {
        match self.trainer.kind {
            TrainerType::BuiltIn => Some(BuiltIn {
                model: self.model.as_ref()?,
                data: self.data.as_ref()?,
                training: self.training.as_ref()?,
            }),
            TrainerType::Custom => None,
        }
    }
}

fn managed_by() -> String {
    "stagecoach.dev/operator".into()
}

/// The trainer that the stages run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrainerSpec {
    /// The type of the trainer.
    #[serde(rename = "type")]
    pub kind: TrainerType,
}

string_enum! {
    /// The trainer that the stages run.
    #[derive(Default)]
    pub enum TrainerType {
        /// Stagecoach's own trainer.
        #[default]
        BuiltIn = "BuiltIn",
        /// The command of the template's `trainer` container, such as a script for torchrun.
        Custom = "Custom",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_may_train_with_one_replica_unless_a_lost_stage_ends_it() {
        let text = include_str!("../../../../manifests/samples/shakespeare.yaml");
        let spec = crate::parse_with(text, "shakespeare.yaml", &[("dataParallel".into(), "4".into())]).unwrap().spec;
        let least = |change: fn(&mut PipelineJobSpec)| {
            let mut spec = spec.clone();
            change(&mut spec);
            (spec.min_data_parallel(), spec.may_lack_replicas(4))
        };
        assert_eq!(least(|_| {}), (1, true));
        assert_eq!(least(|spec| spec.restart.min_data_parallel = Some(3)), (3, true));
        assert_eq!(least(|spec| spec.restart.min_data_parallel = Some(9)), (4, false));
        assert_eq!(least(|spec| spec.spares = 1), (1, false));
        assert_eq!(least(|spec| spec.restart.reform_timeout_seconds = 0), (4, false));
        assert_eq!(least(|spec| spec.training = None), (4, false));
    }
}
