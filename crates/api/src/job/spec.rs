//! The object itself: names around the spec, and the spec's top level.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    AuditSpec, CheckpointSpec, DataSpec, ElasticSpec, MemoryCheckpointSpec, ModelSpec, NetworkPolicySpec,
    PipelineJobStatus, PipelineSpec, PodTemplate, RestartSpec, SchedulingSpec, StorageSpec, TrainingSpec,
    default_number,
};
use crate::mesh::{MAX_SPARES, MAX_STAGES, Mesh};

/// The API's group and version, as `apiVersion` has it.
pub const API_VERSION: &str = "stagecoach.dev/v1alpha1";
/// The object's kind.
pub const KIND: &str = "PipelineJob";

/// A training job: a pipeline of stages trains a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PipelineJob {
    /// Always `stagecoach.dev/v1alpha1`.
    pub api_version: String,
    /// Always `PipelineJob`.
    pub kind: String,
    /// Names and labels.
    pub metadata: Metadata,
    /// The desired state: model, data, training, and how the job is kept running.
    pub spec: PipelineJobSpec,
    /// The observed state: written by the operator, ignored in a job file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<PipelineJobStatus>,
}

/// The folder, relative to the volume's root, in which all jobs keep the tokens of their texts.
pub const TOKEN_CACHE: &str = "cache";

impl PipelineJob {
    /// A job of this version with a name and a spec, and nothing else.
    pub fn new(name: impl Into<String>, spec: PipelineJobSpec) -> Self {
        Self {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            metadata: Metadata { name: name.into(), ..Metadata::default() },
            spec,
            status: None,
        }
    }

    /// The job's own folder, relative to the volume's root: `storage.path`, or the job's name.
    pub fn folder(&self) -> &str {
        self.spec.storage.path.as_deref().unwrap_or(&self.metadata.name)
    }
}

/// The part of Kubernetes' ObjectMeta that Stagecoach reads; other fields are tolerated and dropped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// The job's name: a DNS-1035 label, from which hostnames are made.
    pub name: String,
    /// The namespace, in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Unique for every object that ever existed; set by the API server, or by the local launcher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Raised by the API server with every change of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// The object's version, for compare-and-swap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

/// The desired state of a PipelineJob: model, data, training, and how the job is kept running.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PipelineJobSpec {
    /// The number of stages of the pipeline, 1 to 256. Each stage is a pod. 1 is training on a single device.
    #[serde(default = "default_number::<1>")]
    #[schemars(range(min = 1, max = MAX_STAGES), extend("x-expected" = "a job has 1 to 256 stages"))]
    pub stages: u32,
    /// The number of replicas of the pipeline. Each has `stages` pods. The replicas share the gradient blocks of a
    /// step, so that there are at most as many replicas as blocks. The number does not change the results.
    #[serde(default = "default_number::<1>")]
    #[schemars(range(min = 1, max = MAX_STAGES), extend("x-expected" = "a job has 1 to 256 replicas of its pipeline"))]
    pub data_parallel: u32,
    /// A range for the number of replicas, which follows the pods that the cluster can run. Absent: the job has
    /// `dataParallel` replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<ElasticSpec>,
    /// The number of spares, 0 to 8: pods that wait, with everything loaded, to replace a lost stage at once. A spare
    /// needs the resources of a stage, such as a GPU. `template.stages` does not apply to it.
    #[serde(default)]
    #[schemars(range(max = MAX_SPARES), extend("x-expected" = "a job has at most 8 spares"))]
    pub spares: u32,
    /// Whether the job is suspended: it saves a checkpoint, and its pods are deleted. With false, the job resumes.
    #[serde(default)]
    pub suspend: bool,
    /// The controller that reconciles this job. With another value than the default, Stagecoach's operator leaves the job
    /// alone. For `kueue.x-k8s.io/multikueue` it makes the Workload, and Kueue runs the job in another cluster.
    #[serde(default = "managed_by")]
    pub managed_by: String,
    /// The trainer: the built-in one, or a container of the template.
    #[serde(default)]
    pub trainer: TrainerSpec,
    /// The model. Absent for a custom trainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelSpec>,
    /// The corpus. Absent for a custom trainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataSpec>,
    /// Length, batch, optimizer and learning rate. Absent for a custom trainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingSpec>,
    /// The division of the work over the stages.
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
    /// The traffic of the pods.
    #[serde(default)]
    pub network_policy: NetworkPolicySpec,
    /// Seconds that the job may take from its first start, including restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<u64>,
    /// Seconds after which a finished job is deleted. Absent: the job is not deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<u64>,
    /// The pods' template: image, resources, volumes, node selection.
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
    /// Stages and replicas, of an elastic job the most replicas.
    pub const fn mesh(&self) -> Mesh {
        Mesh { stages: self.stages, data_parallel: self.data_parallel }
    }

    /// With how few replicas a group trains on: all, where a lost stage ends the attempt.
    pub fn min_data_parallel(&self) -> u32 {
        let all = self.data_parallel.max(1);
        match self.replaces_stages() {
            true => self.given_min_data_parallel().unwrap_or(1).clamp(1, all),
            false => all,
        }
    }

    /// The fewest replicas that the job itself names; `None` if it names no number.
    pub fn given_min_data_parallel(&self) -> Option<u32> {
        self.elastic.as_ref().map(|elastic| elastic.min_data_parallel).or(self.restart.min_data_parallel)
    }

    /// Sets `data_parallel` of an elastic job, which names it only as `elastic.maxDataParallel`.
    pub(crate) fn with_elastic_replicas(mut self) -> Self {
        if let Some(elastic) = self.elastic.as_ref().filter(|_| self.data_parallel == 1) {
            self.data_parallel = elastic.max_data_parallel;
        }
        self
    }

    /// Whether the other stages continue when one is lost. Otherwise the whole group starts again, as a custom
    /// trainer's does.
    pub fn replaces_stages(&self) -> bool {
        self.restart.reform_timeout_seconds > 0 && self.training.is_some()
    }

    /// Whether the group of an attempt with so many replicas may form without one of them at once, led by any stage 0.
    /// With spares one takes the place of a lost stage instead.
    pub fn may_lack_replicas(&self, data_parallel: u32) -> bool {
        self.spares == 0 && self.min_data_parallel() < data_parallel
    }

    /// The checkpoints in memory: none without a second stage, of all replicas, or if none outlives another.
    pub fn memory_checkpoints(&self) -> Option<&MemoryCheckpointSpec> {
        self.checkpoint.memory.as_ref().filter(|_| self.mesh().ranks() > 1 && self.replaces_stages())
    }

    /// The audits: none without a second stage, of all replicas.
    pub fn audit(&self) -> Option<AuditSpec> {
        self.training.as_ref()?.audit.filter(|_| self.mesh().ranks() > 1)
    }

    /// Model, data and training, if the trainer is the built-in one and none is missing (`validate` says which is).
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
