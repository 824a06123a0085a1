//! The pod sets of a job: the groups of pods with the same template, for which a Workload asks.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use stagecoach_api::contract::{Mesh, RANK_LABEL};

use super::keys::{PREFERRED_TOPOLOGY, REQUIRED_TOPOLOGY, SLICE_REQUIRED_TOPOLOGY, SLICE_SIZE, UNCONSTRAINED_TOPOLOGY};
use crate::build::json::{array, object};
use crate::build::pod::resolve_image;
use crate::build::{PodRole, template_of_stage};

/// The name of the pod set of all stages without an override in `template.stages`.
pub(crate) const STAGES: &str = "stages";
/// The name of the pod set of the spares.
pub(crate) const SPARES: &str = "spares";
/// The maximum number of pod sets that every version of Kueue accepts.
pub(crate) const MAX_POD_SETS: usize = 8;

/// A group of pods with the same template.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodSet {
    pub(crate) name: String,
    /// The stages whose pods, in each replica, are in this set; `None` for the set of the spares.
    stages: Option<Vec<u32>>,
    template: Map<String, Value>,
}

/// Returns the pod sets of a job. Stages with equal templates share a set.
pub(crate) fn pod_sets(pod_template: &Map<String, Value>, mesh: Mesh, spares: u32) -> Vec<PodSet> {
    let common = template_of_stage(pod_template, None);
    let overrides = pod_template.get("stages").and_then(Value::as_array);
    let is_overridden = |stage: &u32| overrides.into_iter().flatten().any(|one| one["stage"] == *stage);
    let (overridden, others): (Vec<u32>, Vec<u32>) = (0..mesh.stages).partition(is_overridden);
    let mut sets = vec![PodSet { name: STAGES.to_owned(), stages: Some(others), template: common.clone() }];
    for stage in overridden {
        let template = template_of_stage(pod_template, Some(stage));
        match sets.iter_mut().find(|set| set.template == template) {
            Some(set) => set.stages.get_or_insert_default().push(stage),
            None => sets.push(PodSet { name: format!("stage-{stage}"), stages: Some(vec![stage]), template }),
        }
    }
    sets.retain(|set| set.stages.as_ref().is_some_and(|stages| !stages.is_empty()));
    if spares > 0 {
        sets.push(PodSet { name: SPARES.to_owned(), stages: None, template: common });
    }
    sets
}

impl PodSet {
    /// Returns the number of pods of the set.
    pub(crate) fn count(&self, data_parallel: u32, spares: u32) -> u32 {
        match &self.stages {
            Some(stages) => u32::try_from(stages.len()).unwrap_or(u32::MAX).saturating_mul(data_parallel),
            None => spares,
        }
    }

    /// Whether the set has the pod of this role.
    pub(crate) fn has(&self, role: PodRole, mesh: Mesh) -> bool {
        match (&self.stages, role) {
            (Some(stages), PodRole::Stage(instance)) => stages.contains(&mesh.stage(instance.rank)),
            (None, PodRole::Spare(_)) => true,
            _ => false,
        }
    }

    /// Returns the template's value for `key` in a map such as `metadata.labels`.
    pub(crate) fn value(&self, (parent, map): (&str, &str), key: &str) -> Option<&str> {
        self.template.get(parent)?.get(map)?.get(key)?.as_str()
    }

    /// Whether the set consists of stages and not of spares.
    pub(crate) fn has_stages(&self) -> bool {
        self.stages.is_some()
    }

    /// Returns the set without its counts, as JSON. `mesh` has the job's number of stages. `is_alone` says whether the
    /// set has all stages, so that the rank of a pod is its index in the set.
    pub(crate) fn to_json(&self, mesh: Mesh, is_alone: bool, image: &str) -> Value {
        let mut set = json!({"name": self.name, "template": pod_template(&self.template, image)});
        if let Some(request) = self.topology_request(mesh, is_alone) {
            set["topologyRequest"] = request;
        }
        set
    }

    /// Returns the name and the template of the set. The images are omitted, because a change of an image needs no new
    /// admission.
    pub(crate) fn identity(&self) -> Value {
        let mut template = pod_template(&self.template, "");
        for field in ["containers", "initContainers"] {
            let containers = template["spec"].get_mut(field).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
                container.shift_remove("image");
            }
        }
        json!({"name": self.name, "template": template})
    }

    /// Returns the topology request of the set, from the template's annotations; `None` without such annotations. Kueue
    /// itself reads the same annotations from the other kinds of jobs that it supports.
    fn topology_request(&self, mesh: Mesh, is_alone: bool) -> Option<Value> {
        let annotations = self.template.get("metadata").and_then(|metadata| metadata.get("annotations"));
        let annotation = |key: &str| annotations?.get(key)?.as_str().map(str::to_owned);
        let required = annotation(REQUIRED_TOPOLOGY);
        let preferred = annotation(PREFERRED_TOPOLOGY);
        let unconstrained = annotation(UNCONSTRAINED_TOPOLOGY).and_then(|value| value.parse::<bool>().ok());
        let slice = annotation(SLICE_REQUIRED_TOPOLOGY);
        if required.is_none() && preferred.is_none() && unconstrained.is_none() && slice.is_none() {
            return None;
        }
        let mut request = Map::new();
        let fields = [("required", required.map(Value::from)), ("preferred", preferred.map(Value::from))];
        request.extend(fields.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?))));
        if let Some(unconstrained) = unconstrained {
            request.insert("unconstrained".into(), unconstrained.into());
        }
        if self.has_stages() {
            if let Some(slice) = slice {
                // by default, a slice has all stages of one replica in this set, so that Kueue keeps these stages
                // together
                let of_replica = self.count(1, 0);
                let size = annotation(SLICE_SIZE).and_then(|size| size.parse().ok()).unwrap_or(of_replica);
                request.insert("podSetSliceRequiredTopology".into(), slice.into());
                request.insert("podSetSliceSize".into(), size.into());
            }
            if is_alone && mesh.stages > 0 {
                request.insert("podIndexLabel".into(), RANK_LABEL.into());
            }
        }
        Some(request.into())
    }
}

/// Returns the fields of a pod template that a Workload needs. Kueue reads resources, placement and priority. Other
/// fields of the containers, such as their commands, are omitted, because a change of them needs no new admission.
/// `image` is the trainer's image if the template names none.
fn pod_template(template: &Map<String, Value>, image: &str) -> Value {
    let mut template = template.clone();
    resolve_image(&mut template, image);
    let spec = object(template.get("spec"));
    let containers = |field: &str| -> Vec<Value> { array(spec.get(field)).iter().map(container).collect() };
    let mut all = Map::new();
    all.insert("containers".into(), containers("containers").into());
    let init_containers = containers("initContainers");
    if !init_containers.is_empty() {
        all.insert("initContainers".into(), init_containers.into());
    }
    const KEPT: [&str; 8] = [
        "affinity",
        "nodeSelector",
        "overhead",
        "priorityClassName",
        "resourceClaims",
        "resources",
        "runtimeClassName",
        "tolerations",
    ];
    all.extend(KEPT.iter().filter_map(|field| Some(((*field).to_owned(), spec.get(*field)?.clone()))));
    all.insert("restartPolicy".into(), "Never".into());
    let metadata = template.get("metadata").and_then(Value::as_object);
    let metadata: BTreeMap<&str, &Value> =
        ["labels", "annotations"].into_iter().filter_map(|field| Some((field, metadata?.get(field)?))).collect();
    json!({"metadata": metadata, "spec": all})
}

fn container(container: &Value) -> Value {
    let mut kept = Map::new();
    for field in ["name", "image", "resources", "restartPolicy"] {
        if let Some(value) = container.get(field) {
            kept.insert(field.into(), value.clone());
        }
    }
    kept.into()
}
