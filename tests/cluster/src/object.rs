//! Functions that change and read objects as plain JSON.

use serde_json::{Value, json};

/// Returns a PipelineJob that is valid in a cluster: a small Llama with two stages, on the PersistentVolumeClaim
/// `training`. `spec` is merged into the job's spec.
pub fn pipeline_job(name: &str, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "stagecoach.dev/v1alpha1", "kind": "PipelineJob", "metadata": {"name": name},
        "spec": {
            "stages": 2,
            "model": {"type": "Llama", "llama": {
                "hiddenSize": 64, "numHiddenLayers": 4, "numAttentionHeads": 4, "intermediateSize": 128}},
            "data": {"paths": ["corpus/a.txt"], "sequenceLength": 64, "tokenizer": {"type": "Train", "train": {"vocabSize": 300}}},
            "training": {"steps": 100, "globalBatchSize": 8, "microbatches": 2, "learningRate": {"peak": 1e-3}},
            "storage": {"persistentVolumeClaim": {"claimName": "training"}},
        },
    });
    merge(&mut object["spec"], spec);
    object
}

/// Merges changes into an object as a merge patch does: null removes a field, and a list replaces a list.
pub fn merge(into: &mut Value, changes: Value) {
    match (into, changes) {
        (Value::Object(into), Value::Object(changes)) => {
            for (key, change) in changes {
                match change {
                    Value::Null => drop(into.remove(&key)),
                    change => merge(into.entry(key).or_insert(Value::Null), change),
                }
            }
        }
        (into, changes) => *into = changes,
    }
}

/// Returns the condition of type `kind` in an object's status, or `None` if there is no such condition.
pub fn condition_of(object: &Value, kind: &str) -> Option<Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind).cloned()
}
