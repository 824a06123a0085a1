//! The demand of a job: the pods for which the job asks its queue, according to its spec, labels and annotations.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use kube::ResourceExt;
use serde_json::{Value, json};
use stagecoach_api::contract::Mesh;
use stagecoach_api::job::PipelineJobSpec;

use super::keys::{
    DATA_PARALLEL_ANNOTATION, ELASTIC_JOB_ANNOTATION, KUEUE_JOB_UID_LABEL, POD_SETS_ANNOTATION, PREBUILT_WORKLOAD,
    PRIORITY_CLASS_LABEL, QUEUE_NAME_LABEL, SLICE_NAME_ANNOTATION, SLICE_REPLACEMENT_ANNOTATION, STAGES_ANNOTATION,
};
use super::pod_sets::{MAX_POD_SETS, PodSet, SPARES, pod_sets};
use super::workload::{KUEUE_API_VERSION, Workload};
use crate::build::{self, JobReference};

/// The pods for which a job asks its queue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Demand {
    /// The LocalQueue; empty for a job with a prebuilt Workload.
    pub(crate) queue_name: String,
    /// The class that decides the priority.
    pub(crate) priority_class: Option<PriorityClassName>,
    /// Whether the job changes its number of pods through Workload slices.
    pub(crate) is_elastic: bool,
    /// The name of a Workload that another controller has created for this job.
    pub(crate) prebuilt: Option<String>,
    /// The stages and replicas for which the job asks.
    pub(crate) mesh: Mesh,
    /// The range of the number of replicas of an elastic job; `None` for any other job.
    pub(crate) range: Option<RangeInclusive<u32>>,
    /// The fewest replicas with which the job may be admitted.
    pub(crate) min_data_parallel: u32,
    pub(crate) spares: u32,
    pub(crate) pod_sets: Vec<PodSet>,
}

/// The name of the class that decides a priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PriorityClassName {
    /// The name of a WorkloadPriorityClass of Kueue.
    Workload(String),
    /// The name of the PriorityClass of the pods.
    Pod(String),
}

impl PriorityClassName {
    pub(crate) fn kind_and_name(&self) -> (&'static str, &str) {
        match self {
            PriorityClassName::Workload(name) => ("WorkloadPriorityClass", name),
            PriorityClassName::Pod(name) => ("PriorityClass", name),
        }
    }

    fn group(&self) -> &'static str {
        match self {
            PriorityClassName::Workload(_) => "kueue.x-k8s.io",
            PriorityClassName::Pod(_) => "scheduling.k8s.io",
        }
    }
}

impl Demand {
    /// Returns the demand of a job; `None` for a job without a queue.
    pub(crate) fn new(
        labels: &BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
        spec: &PipelineJobSpec,
    ) -> Option<Demand> {
        let kueue = spec.scheduling.kueue.as_ref();
        let prebuilt = labels.get(PREBUILT_WORKLOAD).or_else(|| annotations.get(PREBUILT_WORKLOAD)).cloned();
        let queue_name = kueue.map(|kueue| &kueue.queue_name).or_else(|| labels.get(QUEUE_NAME_LABEL));
        if queue_name.is_none() && prebuilt.is_none() {
            return None;
        }
        let template = spec.template.as_ref().map(|template| template.0.clone()).unwrap_or_default();
        let of_pods = template.get("spec").and_then(|spec| spec.get("priorityClassName")).and_then(Value::as_str);
        let of_queue = kueue.and_then(|kueue| kueue.priority_class_name.as_ref());
        let priority_class = of_queue
            .or_else(|| labels.get(PRIORITY_CLASS_LABEL))
            .map(|name| PriorityClassName::Workload(name.clone()))
            .or_else(|| of_pods.map(|name| PriorityClassName::Pod(name.to_owned())));
        let mesh = spec.mesh();
        let range = spec.elastic.as_ref().map(|elastic| elastic.min_data_parallel..=elastic.max_data_parallel);
        // Kueue may admit fewer replicas than the job asks for only if the spec names the minimum
        let given = spec.given_min_data_parallel();
        let min_data_parallel = given.map_or(mesh.data_parallel, |_| spec.min_data_parallel());
        Some(Demand {
            queue_name: queue_name.cloned().unwrap_or_default(),
            priority_class,
            is_elastic: range.is_some() || annotations.get(ELASTIC_JOB_ANNOTATION).is_some_and(|value| value == "true"),
            prebuilt,
            mesh,
            range,
            min_data_parallel,
            spares: spec.spares,
            pod_sets: pod_sets(&template, mesh, spec.spares),
        })
    }

    /// Returns the demand of an elastic job after an admission for `admitted`. The job asks for one replica more than
    /// `admitted` has, or for the same number if the job can't grow. Without an admission, the job asks for its minimum
    /// number of replicas. The demand of any other job stays the same.
    pub(crate) fn after_admission(self, admitted: Option<Mesh>, may_grow: bool) -> Demand {
        let Some(range) = self.range.clone() else { return self };
        let (min, max) = range.into_inner();
        let admitted = admitted.filter(|admitted| admitted.stages == self.mesh.stages);
        // another controller decides the counts of a prebuilt Workload
        let step = u32::from(may_grow && self.prebuilt.is_none());
        let data_parallel = admitted.map_or(min, |admitted| (admitted.data_parallel + step).clamp(min, max));
        Demand { mesh: Mesh { data_parallel, ..self.mesh }, ..self }
    }

    /// Returns the reason why Kueue can't admit the job; `None` if Kueue can admit it.
    pub(crate) fn problem(&self) -> Option<String> {
        let sets = self.pod_sets.len();
        (sets > MAX_POD_SETS).then(|| {
            format!(
                "spec.template.stages gives {sets} different kinds of pods, and Kueue admits at most {MAX_POD_SETS}: use \
                 fewer different overrides"
            )
        })
    }

    /// Returns the number of pods of a set.
    pub(crate) fn count(&self, set: &PodSet) -> u32 {
        set.count(self.mesh.data_parallel, self.spares)
    }

    /// Whether `workload` asks for the pods of this demand, in the queue of this demand. The counts of the pods may
    /// differ. A demand with a prebuilt Workload matches any Workload.
    pub(crate) fn matches(&self, workload: &Workload) -> bool {
        let annotation = |key: &str| workload.annotations().get(key).map(String::as_str);
        self.prebuilt.is_some()
            || workload.spec.queue_name == self.queue_name
                && annotation(POD_SETS_ANNOTATION) == Some(&self.hash())
                && (annotation(ELASTIC_JOB_ANNOTATION) == Some("true")) == self.is_elastic
    }

    /// Whether `workload` has the counts of this demand.
    pub(crate) fn has_counts(&self, workload: &Workload) -> bool {
        let wanted = self.pod_sets.iter().map(|set| (set.name.as_str(), self.count(set), self.min_count(set)));
        let stored = workload.spec.pod_sets.iter().map(|set| (set.name.as_str(), set.count, set.min_count));
        wanted.eq(stored) && workload.mesh() == Some(self.mesh)
    }

    /// Returns the stages and replicas that the admission of `workload` allows this job. Returns `None` if `workload`
    /// has fewer pods than the demand, or if the admission is below the job's minimum.
    pub(crate) fn granted_mesh(&self, workload: &Workload) -> Option<Mesh> {
        let mut replicas = self.mesh.data_parallel;
        for set in self.pod_sets.iter().filter(|set| set.has_stages()) {
            let stored = workload.spec.pod_sets.iter().find(|stored| stored.name == set.name)?;
            if stored.count < self.count(set) {
                return None;
            }
            let available = workload.admitted_count(stored).saturating_sub(workload.reclaimable_count(stored));
            replicas = replicas.min(available.checked_div(set.count(1, 0)).unwrap_or(0));
        }
        let is_enough = replicas > 0 && replicas >= self.min_data_parallel.min(self.mesh.data_parallel);
        is_enough.then_some(Mesh { data_parallel: replicas, ..self.mesh })
    }

    /// Returns the stages and replicas of an attempt that starts with the admission of `granted`. An attempt of an
    /// elastic job has ranks for the job's maximum number of replicas, because the attempt can grow while it runs.
    pub(crate) fn attempt_mesh(&self, granted: Mesh) -> Mesh {
        Mesh { data_parallel: self.range.as_ref().map_or(granted.data_parallel, |range| *range.end()), ..granted }
    }

    /// Whether `workload` asks for at least as many spares as this demand.
    pub(crate) fn has_enough_spares(&self, workload: &Workload) -> bool {
        let stored = workload.spec.pod_sets.iter().find(|stored| stored.name == SPARES);
        stored.map_or(0, |stored| stored.count) >= self.spares
    }

    /// Returns the number of admitted spares, up to the number that the job asks for.
    pub(crate) fn granted_spares(&self, workload: &Workload) -> u32 {
        let stored = workload.spec.pod_sets.iter().find(|stored| stored.name == SPARES);
        stored.map_or(0, |stored| workload.admitted_count(stored).min(self.spares))
    }

    fn min_count(&self, set: &PodSet) -> Option<u32> {
        // Kueue accepts a minimum for only one pod set, and no minimum together with Workload slices
        let is_alone = self.has_one_set_of_stages() && set.has_stages();
        let may_be_fewer = self.min_data_parallel < self.mesh.data_parallel && !self.is_elastic;
        (is_alone && may_be_fewer).then(|| set.count(self.min_data_parallel, 0))
    }

    fn has_one_set_of_stages(&self) -> bool {
        self.pod_sets.iter().filter(|set| set.has_stages()).count() == 1
    }

    /// Returns a hash of the pod sets without their counts. A demand with another hash needs a new admission.
    pub(crate) fn hash(&self) -> String {
        let sets: Value = self.pod_sets.iter().map(PodSet::identity).collect();
        blake3::hash(sets.to_string().as_bytes()).to_hex()[..16].to_owned()
    }

    /// Returns the pod sets of a Workload, in the JSON form of Kueue's API.
    pub(crate) fn pod_sets_json(&self, image: &str) -> Vec<Value> {
        let is_alone = self.has_one_set_of_stages();
        let set = |set: &PodSet| {
            let mut json = set.to_json(self.mesh, is_alone, image);
            json["count"] = self.count(set).into();
            if let Some(min_count) = self.min_count(set) {
                json["minCount"] = min_count.into();
            }
            json
        };
        self.pod_sets.iter().map(set).collect()
    }

    /// Returns the annotations that store this demand's numbers of stages and replicas in a Workload.
    pub(crate) fn count_annotations(&self) -> [(&'static str, String); 2] {
        [
            (STAGES_ANNOTATION, self.mesh.stages.to_string()),
            (DATA_PARALLEL_ANNOTATION, self.mesh.data_parallel.to_string()),
        ]
    }

    /// Returns `spec.priorityClassRef` and `spec.priority` of a Workload. `value` is the value of the class.
    pub(crate) fn priority(&self, value: i32) -> Value {
        match &self.priority_class {
            Some(class) => {
                let (kind, name) = class.kind_and_name();
                json!({"priorityClassRef": {"group": class.group(), "kind": kind, "name": name}, "priority": value})
            }
            None => json!({"priority": value}),
        }
    }

    /// Returns the Workload with this number for this demand. `priority` is the value of the job's priority class.
    /// `replaced` is the Workload slice that the new Workload replaces. `image` is the trainer's image if the template
    /// names no image.
    pub(crate) fn workload(
        &self,
        job: &JobReference,
        number: u64,
        priority: i32,
        replaced: Option<&Workload>,
        image: &str,
    ) -> Value {
        let name = workload_name(job, number);
        let metadata = build::metadata(job, name.clone(), None);
        let mut metadata = serde_json::to_value(&metadata).unwrap_or_default();
        metadata["labels"][KUEUE_JOB_UID_LABEL] = job.uid.as_str().into();
        let mut annotations = BTreeMap::from(self.count_annotations());
        annotations.insert(POD_SETS_ANNOTATION, self.hash());
        if self.is_elastic {
            annotations.insert(ELASTIC_JOB_ANNOTATION, "true".into());
            let first = replaced.and_then(|replaced| replaced.annotations().get(SLICE_NAME_ANNOTATION)).cloned();
            annotations.insert(SLICE_NAME_ANNOTATION, first.unwrap_or(name));
            if let Some(replaced) = replaced {
                let replaced = format!("{}/{}", job.namespace, replaced.name_any());
                annotations.insert(SLICE_REPLACEMENT_ANNOTATION, replaced);
            }
        }
        metadata["annotations"] = json!(annotations);
        let mut spec = self.priority(priority);
        spec["queueName"] = self.queue_name.as_str().into();
        spec["podSets"] = self.pod_sets_json(image).into();
        json!({"apiVersion": KUEUE_API_VERSION, "kind": "Workload", "metadata": metadata, "spec": spec})
    }
}

/// Returns the name of the Workload with this number. A part of the UID distinguishes the Workloads of two jobs of the
/// same name.
pub(crate) fn workload_name(job: &JobReference, number: u64) -> String {
    let uid = job.uid.get(..5).unwrap_or(&job.uid);
    format!("{}-{uid}-{number}", job.name)
}

/// Returns the number in the name of a Workload of this job; `None` if the name has another form.
pub(crate) fn workload_number(job: &JobReference, workload: &Workload) -> Option<u64> {
    let name = workload.name_any();
    let number = name.rsplit('-').next()?.parse().ok()?;
    (workload_name(job, number) == name).then_some(number)
}

/// Returns the number of a job's next Workload.
pub(crate) fn next_workload_number(job: &JobReference, workloads: &[Arc<Workload>]) -> u64 {
    1 + workloads.iter().filter_map(|workload| workload_number(job, workload)).max().unwrap_or(0)
}
