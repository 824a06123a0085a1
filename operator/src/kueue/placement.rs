//! The placement of admitted pods: node labels and tolerations of the assigned ResourceFlavors, the changes that
//! admission checks demand, and the labels and annotations by which Kueue recognises the pods.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use serde::Deserialize;
use serde_json::Value;

use crate::build::kueue::keys::{
    CLUSTER_QUEUE_LABEL, ELASTIC_JOB_ANNOTATION, LOCAL_QUEUE_LABEL, POD_SET_LABEL, SLICE_NAME_ANNOTATION,
    WORKLOAD_ANNOTATION,
};
use crate::build::kueue::{PodSet, PodSetPlacement, PodSetPlacements, PodSetUpdate, QueueAdmission, Workload};

/// The part of a ResourceFlavor that places pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct FlavorSpec {
    node_labels: BTreeMap<String, String>,
    tolerations: Vec<Value>,
}

/// Returns the names of the ResourceFlavors of an admission, without duplicates.
pub(crate) fn flavors_of(workload: &Workload) -> BTreeSet<&String> {
    let assignments = workload.status.admission.iter().flat_map(|admission| &admission.pod_set_assignments);
    assignments.flat_map(|assigned| assigned.flavors.values()).collect()
}

/// Returns the placement that the admission of a Workload gives to a job with the pod sets `sets`. `flavors` has the
/// ResourceFlavors by name.
///
/// # Errors
/// Returns a sentence if two parts of the admission contradict each other, or if an admission check contradicts the
/// job's pod template.
pub(crate) fn placement(
    workload: &Workload,
    flavors: &BTreeMap<String, FlavorSpec>,
    sets: &[PodSet],
) -> Result<PodSetPlacements, String> {
    let Some(QueueAdmission { cluster_queue, pod_set_assignments }) = &workload.status.admission else {
        return Ok(PodSetPlacements::default());
    };
    let name = workload.name_any();
    let mut placement = BTreeMap::new();
    for assigned in pod_set_assignments {
        let mut pods = PodSetPlacement { has_topology: assigned.topology_assignment, ..PodSetPlacement::default() };
        pods.annotations.insert(WORKLOAD_ANNOTATION.into(), name.clone());
        if workload.annotations().contains_key(ELASTIC_JOB_ANNOTATION) {
            let first = workload.annotations().get(SLICE_NAME_ANNOTATION).unwrap_or(&name);
            pods.annotations.insert(SLICE_NAME_ANNOTATION.into(), first.clone());
        }
        pods.labels.insert(POD_SET_LABEL.into(), assigned.name.clone());
        pods.labels.insert(LOCAL_QUEUE_LABEL.into(), workload.spec.queue_name.clone());
        pods.labels.insert(CLUSTER_QUEUE_LABEL.into(), cluster_queue.clone());
        // a value of a label has at most 63 characters; the names of queues may be longer
        pods.labels.retain(|_, value| value.len() <= 63);
        // several resources may share a flavor
        let used: BTreeSet<&String> = assigned.flavors.values().collect();
        for flavor in used.into_iter().filter_map(|flavor| flavors.get(flavor)) {
            add(&mut pods.node_selector, &flavor.node_labels, &name)?;
            pods.tolerations.extend(flavor.tolerations.iter().cloned());
        }
        let set = sets.iter().find(|set| set.name == assigned.name);
        let checks = workload.status.admission_checks.iter();
        let updates = checks.flat_map(|check| check.pod_set_updates.iter().map(|update| (&check.name, update)));
        for (check, update) in updates.filter(|(_, update)| update.name == assigned.name) {
            if let Some(set) = set {
                agree(set, check, update)?;
            }
            add(&mut pods.labels, &update.labels, &name)?;
            add(&mut pods.annotations, &update.annotations, &name)?;
            add(&mut pods.node_selector, &update.node_selector, &name)?;
            pods.tolerations.extend(update.tolerations.iter().cloned());
        }
        placement.insert(assigned.name.clone(), pods);
    }
    Ok(PodSetPlacements(placement))
}

/// Checks that the template does not contradict the changes of an admission check. Kueue's integrations for other kinds
/// of jobs also refuse to start a job whose template contradicts a check.
fn agree(set: &PodSet, check: &str, update: &PodSetUpdate) -> Result<(), String> {
    let parts = [
        (("metadata", "labels"), &update.labels),
        (("metadata", "annotations"), &update.annotations),
        (("spec", "nodeSelector"), &update.node_selector),
    ];
    for (map, changes) in parts {
        for (key, value) in changes {
            if let Some(own) = set.value(map, key).filter(|own| own != value) {
                return Err(format!(
                    "the admission check {check} sets {key} of the pods of {name} to {value}, and spec.template sets \
                     {key} to {own}: change the template, or the check",
                    name = set.name
                ));
            }
        }
    }
    Ok(())
}

/// Adds the entries of `added` to `all`. Returns an error if a key would have two values.
fn add(all: &mut BTreeMap<String, String>, added: &BTreeMap<String, String>, workload: &str) -> Result<(), String> {
    for (key, value) in added {
        let before = all.insert(key.clone(), value.clone());
        if let Some(before) = before.filter(|before| before != value) {
            return Err(format!(
                "the admission of the Workload {workload} sets {key} of its pods to both {before} and {value}: \
                 change the ResourceFlavors or the admission checks"
            ));
        }
    }
    Ok(())
}
