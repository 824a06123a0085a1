//! Tests that the CRD has the form that Kubernetes requires, and everything that kubectl shows.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stagecoach_api::crd::{custom_resource_definition, manifest};
use stagecoach_api::job::ModelType;
use stagecoach_pipeline::SCHEDULES;

use super::rows::job;
use super::schema::{properties, root, under, walk};

#[test]
fn the_manifest_is_what_is_generated() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../manifests/crd/pipelinejobs.yaml");
    let checked_in = std::fs::read_to_string(path).unwrap_or_default();
    let generated = manifest().unwrap();
    assert!(
        checked_in == generated,
        "manifests/crd/pipelinejobs.yaml is not what the types give: run `make manifests`"
    );
    let read: Value = serde_saphyr::from_str(&generated).unwrap();
    assert_eq!(read, custom_resource_definition());
    // `kubectl apply` writes the CRD into an annotation in this form
    let applied = serde_json::to_string(&read).unwrap();
    assert!(applied.len() < 256 << 10, "the CRD has {} bytes, too many for an annotation", applied.len());
}

#[test]
fn the_schema_is_structural() {
    const FORBIDDEN: [&str; 10] =
        ["$ref", "$defs", "definitions", "title", "nullable", "anyOf", "oneOf", "allOf", "not", "const"];
    let root = root();
    let mut count = 0;
    walk(&root, "", &mut |path, schema| {
        count += 1;
        let has = |key: &str| schema.get(key).is_some();
        for key in FORBIDDEN {
            assert!(!has(key), "{path} has {key}");
        }
        match schema["type"].as_str() {
            // the operator merges these fields into the pod spec of the template
            Some("object") if path == "spec.template.stages[].spec" => {
                assert_eq!(schema["x-kubernetes-preserve-unknown-fields"], true)
            }
            Some("object") => {
                assert!(has("properties") ^ has("additionalProperties"), "{path} says nothing of its fields")
            }
            Some("array") => assert!(has("items"), "{path} says nothing of its items"),
            Some("integer") => assert!(["int32", "int64"].contains(&schema["format"].as_str().unwrap()), "{path}"),
            Some("number") => assert_eq!(schema["format"], "double", "{path}"),
            Some("string" | "boolean") => {}
            _ => assert_eq!(schema["x-kubernetes-int-or-string"], true, "{path} has no type"),
        }
        assert!(schema["additionalProperties"] != false && schema["additionalProperties"] != true, "{path}");
    });
    assert!(count > 900, "{count}");
}

#[test]
fn explain_has_a_sentence_for_every_field_of_ours() {
    walk(&root(), "", &mut |path, schema| {
        let is_kubernetes = |path: &str| {
            let own = path.strip_prefix("spec.template.stages").map(|below| !below.starts_with("[].metadata."));
            path.starts_with("spec.template.") && own != Some(true)
        };
        let is_described_item = [
            "data.sources[]",
            "weightSchedule[]",
            "evaluation.sets[]",
            "exitCodes[]",
            "rules[]",
            "onPodConditions[]",
            "onReasons[]",
            "conditions[]",
        ];
        let is_ours = !is_kubernetes(path) && !path.starts_with("metadata") && !path.ends_with("[]");
        assert_eq!(
            schema.get("description").is_some(),
            is_ours || is_described_item.iter().any(|item| path.ends_with(item)),
            "{path}"
        );
    });
}

#[test]
fn every_column_and_scale_path_is_a_field() {
    let crd = custom_resource_definition();
    let version = &crd["spec"]["versions"][0];
    let mut fields = BTreeMap::new();
    let root = root();
    walk(&root, "", &mut |path, schema| drop(fields.insert(format!(".{path}"), schema["type"].clone())));
    fields.insert(".metadata.creationTimestamp".into(), json!("date"));
    let columns = version["additionalPrinterColumns"].as_array().unwrap();
    for column in columns {
        assert_eq!(fields.get(column["jsonPath"].as_str().unwrap()), Some(&column["type"]), "{column}");
    }
    let names: Vec<_> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["Phase", "Stages", "Replicas", "Training", "Ready", "Step", "Loss", "Checkpoint", "Restarts", "Age"]
    );
    for (path, kind) in
        [("specReplicasPath", "integer"), ("statusReplicasPath", "integer"), ("labelSelectorPath", "string")]
    {
        let path = version["subresources"]["scale"][path].as_str().unwrap();
        assert_eq!(fields.get(path), Some(&json!(kind)), "{path}");
    }
}

#[test]
fn every_word_is_spelled_as_in_the_types() {
    let schedules: Vec<&str> = SCHEDULES.iter().map(|schedule| schedule.name).chain(["Csv", "Auto"]).collect();
    let phases =
        ["Pending", "Starting", "Running", "Draining", "Suspended", "Restarting", "Complete", "Failed"].as_slice();
    let reasons = [
        "Error",
        "InvalidConfig",
        "Data",
        "Storage",
        "NonFinite",
        "Mismatch",
        "WrongResult",
        "OutOfMemory",
        "Killed",
        "Stalled",
        "StartupTimeout",
        "PeerLost",
        "Unknown",
        "Drained",
        "Preempted",
        "Evicted",
        "NodeLost",
        "Unschedulable",
    ]
    .as_slice();
    let model_types: Vec<&str> = ModelType::ALL.iter().map(|model_type| model_type.as_str()).collect();
    let expected = BTreeMap::from([
        ("spec.trainer.type", ["BuiltIn", "Custom"].as_slice()),
        ("spec.model.type", &["Llama", "Pretrained"]),
        ("spec.model.llama.modelType", &model_types),
        ("spec.data.sources[].onExhausted", &["Repeat", "Stop"]),
        ("spec.data.format", &["Text", "PromptCompletion", "Chat"]),
        ("spec.data.sources[].format", &["Text", "PromptCompletion", "Chat"]),
        ("spec.data.evaluation.sets[].format", &["Text", "PromptCompletion", "Chat"]),
        ("spec.data.onLongConversation", &["Fail", "Truncate", "Skip"]),
        ("spec.data.specialTokens", &["Text", "Parse"]),
        ("spec.data.onBadRecord", &["Fail", "Skip"]),
        ("spec.data.streaming.mode", &["Auto", "Always", "Never"]),
        ("spec.data.tokenizer.type", &["Train", "File"]),
        ("spec.training.precision", &["Float32", "BFloat16"]),
        ("spec.training.device", &["Auto", "Cpu", "Cuda"]),
        ("spec.training.kernels", &["Fastest", "Portable"]),
        ("spec.training.audit.onDifference", &["Report", "Restart"]),
        ("spec.training.optimizer.type", &["AdamW"]),
        ("spec.training.learningRate.schedule", &["Cosine", "Linear", "Constant", "WSD"]),
        ("spec.pipeline.schedule.type", &schedules),
        ("spec.pipeline.partition.strategy", &["Auto", "Explicit"]),
        ("spec.pipeline.recompute", &["None", "Selective", "Full"]),
        ("spec.pipeline.transport", &["Auto", "Tcp", "Shm", "Nccl"]),
        ("spec.pipeline.encryption", &["None", "Required"]),
        ("spec.checkpoint.mode", &["Async", "Sync"]),
        ("spec.restart.podFailurePolicy.rules[].action", &["FailJob", "Ignore", "Count"]),
        ("spec.restart.podFailurePolicy.rules[].onExitCodes.operator", &["In", "NotIn"]),
        ("spec.restart.podFailurePolicy.rules[].onPodConditions[].status", &["True", "False", "Unknown"]),
        ("spec.restart.podFailurePolicy.rules[].onReasons[]", reasons),
        ("spec.restart.exitCodes[].action", &["Fail", "Restart", "RestartUncounted"]),
        ("spec.scheduling.gang", &["Auto", "None", "Native", "Volcano", "Coscheduling"]),
        ("spec.networkPolicy.mode", &["Restricted", "None"]),
        ("status.phase", phases),
        ("status.conditions[].status", &["True", "False", "Unknown"]),
    ]);
    let mut found = BTreeMap::new();
    walk(&root(), "", &mut |path, schema| {
        if let Some(words) = schema.get("enum") {
            found.insert(path.to_owned(), words.clone());
        }
    });
    let expected: BTreeMap<_, _> = expected.into_iter().map(|(path, words)| (path.to_owned(), json!(words))).collect();
    assert_eq!(found, expected);
}

/// `full.yaml` has every field of the types except the fields in `not_chosen` and `not_given`. Therefore this test
/// finds each field that exists only in the types or only in the schema.
#[test]
fn the_types_and_the_schema_have_the_same_fields() {
    // serde writes the fields under the names that the types define.
    let full = stagecoach_api::parse(include_str!("../../jobs/full.yaml"), "full.yaml").unwrap();
    let full = serde_json::to_value(&full).unwrap();
    let mut missing = Vec::new();
    lacking(&root(), &full, "", &mut missing);
    // `lacking` checks only the first item of a list. In full.yaml, the first rule of `podFailurePolicy` has exit
    // codes.
    let rule = "spec.restart.podFailurePolicy.rules[]";
    let (conditions, reasons) = (format!("{rule}.onPodConditions"), format!("{rule}.onReasons"));
    let not_chosen = [
        "spec.model.pretrained",
        "spec.data.sources",
        "spec.data.evaluation.paths",
        "spec.data.tokenizer.train",
        "spec.training.steps",
        "spec.training.freeze",
        "spec.elastic",
        &conditions,
        &reasons,
    ];
    let not_given =
        ["status.completionTime", "status.conditions[].observedGeneration", "status.record", "status.trainingReplicas"];
    missing.retain(|path| !not_chosen.contains(&path.as_str()) && !not_given.contains(&path.as_str()));
    assert_eq!(missing, Vec::<String>::new(), "not in full.yaml");
    let unknown: Vec<_> = super::schema::violated_constraints(&root(), &full)
        .into_iter()
        .filter(|(path, _)| path != "metadata")
        .collect();
    assert_eq!(unknown, [], "not in the schema");
    assert_eq!(super::schema::violated_constraints(&root(), &job("full")), []);
}

/// Adds to `missing` the fields of a schema that a value does not have.
fn lacking(schema: &Value, value: &Value, path: &str, missing: &mut Vec<String>) {
    for (name, below) in properties(schema) {
        let at = under(path, name);
        match value.get(name) {
            Some(value) if at != "spec.template" => lacking(below, value, &at, missing),
            Some(_) => {}
            None => missing.push(at),
        }
    }
    if let (Some(items), Some(item)) = (schema.get("items"), value.get(0)) {
        lacking(items, item, &format!("{path}[]"), missing);
    }
}
