//! The CustomResourceDefinition, generated from the types of `job`. `structural` turns schemars' schema into a
//! structural one, with Kubernetes' pod template as `spec.template`. `rules` adds the rules that a schema can't
//! express.

mod bounds;
mod rules;
mod structural;

pub(crate) use bounds::{Bound, Bounds};
pub(crate) use structural::{EXPECTED, MODEL_PATH, SOURCE_PATH, SPEC_SCHEMA, VOLUME_PATH};

use serde_json::{Value, json};

use crate::job::{API_VERSION, KIND};

/// Returns the whole CustomResourceDefinition in the form that an API server expects.
pub fn custom_resource_definition() -> Value {
    let (group, version) = API_VERSION.split_once('/').unwrap_or_default();
    let mut schema = structural::schema();
    rules::insert(&mut schema);
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("pipelinejobs.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": format!("{KIND}List"),
                "plural": "pipelinejobs",
                "singular": "pipelinejob",
                "shortNames": ["pj"],
                "categories": ["all"],
            },
            "versions": [{
                "name": version,
                "served": true,
                "storage": true,
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.stages",
                        "statusReplicasPath": ".status.stagesPerReplica",
                        "labelSelectorPath": ".status.selector",
                    },
                },
                "additionalPrinterColumns": columns(),
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

/// Returns the CustomResourceDefinition as YAML, with a comment that names its source.
///
/// # Errors
/// The schema has a number that YAML can't represent.
pub fn manifest() -> Result<String, serde_saphyr::SerializeError> {
    let yaml = serde_saphyr::to_string(&custom_resource_definition())?;
    Ok(format!("# Made from the types in crates/api by `make manifests`: change those instead.\n{yaml}"))
}

/// Returns the schema with everything that `explain` prints about a field.
pub(crate) fn documented_schema() -> Value {
    let mut schema = structural::documented();
    rules::insert(&mut schema);
    schema
}

/// Returns the columns that `kubectl get pipelinejobs` prints after the name.
fn columns() -> Vec<Value> {
    [
        ("Phase", "string", ".status.phase", "A summary of the job's state."),
        ("Stages", "integer", ".spec.stages", "The desired number of stages of each replica."),
        ("Replicas", "integer", ".spec.dataParallel", "The desired number of replicas of the pipeline."),
        ("Training", "integer", ".status.trainingReplicas", "The number of replicas that train."),
        ("Ready", "integer", ".status.readyStages", "The number of stages that are ready, over all replicas."),
        ("Step", "integer", ".status.progress.step", "The number of finished steps."),
        ("Loss", "string", ".status.progress.loss", "The training loss of the last step, in nats per token."),
        ("Checkpoint", "integer", ".status.checkpoint.step", "The step of the newest committed checkpoint."),
        ("Restarts", "integer", ".status.restarts.total", "The number of restarts so far."),
        ("Age", "date", ".metadata.creationTimestamp", "The time since the job was created."),
    ]
    .into_iter()
    .map(|(name, kind, path, description)| {
        json!({"name": name, "type": kind, "jsonPath": path, "description": description})
    })
    .collect()
}
