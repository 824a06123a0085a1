//! Tests that the documentation of the fields contains each field and each rule of the CRD.

use std::collections::BTreeSet;

use stagecoach_api::explain::Field;
use stagecoach_api::job::ChangeEffect;

use super::schema::{root, walk};

fn find(path: &str) -> Field {
    Field::pipeline_job().find(path).unwrap().clone()
}

fn refusal(path: &str) -> String {
    Field::pipeline_job().find(path).unwrap_err().to_string()
}

#[test]
fn every_field_is_found_and_described() {
    let job = Field::pipeline_job();
    let mut explained = BTreeSet::new();
    for field in job.all() {
        assert_eq!(job.find(&field.path).unwrap().path, field.path);
        let is_described = field.description.lines().all(|paragraph| !paragraph.trim().is_empty());
        assert!(is_described && !field.description.is_empty() && !field.kind.is_empty(), "{field:?}");
        assert!(explained.insert(field.path.clone()), "{} is there twice", field.path);
    }
    walk(&root(), "", &mut |path, _| {
        assert!(explained.contains(&path.replace("[]", "").replace("{}", "")), "{path} is not explained");
    });
}

#[test]
fn every_rule_is_reported_at_the_field_that_it_names() {
    let job = Field::pipeline_job();
    let reported: Vec<&String> = job.all().flat_map(|field| &field.refusals).collect();
    let mut messages = 0;
    walk(&root(), "", &mut |path, schema| {
        let rules = schema.get("x-kubernetes-validations").and_then(|rules| rules.as_array());
        for message in rules.into_iter().flatten().filter_map(|rule| rule["message"].as_str()) {
            messages += 1;
            assert!(reported.iter().any(|sentence| sentence.ends_with(message)), "{path}: {message}");
        }
    });
    assert_eq!(reported.len(), messages);
    let of_sum = "layers does not add up to the model's numHiddenLayers: every layer is in exactly one chunk";
    assert!(find("spec.pipeline.partition.layers").refusals.contains(&of_sum.to_owned()));
}

#[test]
fn a_field_has_the_type_that_kubectl_shows() {
    for (path, kind) in [
        ("spec", "Object"),
        ("spec.data.paths", "[]string"),
        ("spec.restart.exitCodes", "[]Object"),
        ("spec.restart.exitCodes.codes", "[]integer"),
        ("spec.template.spec.nodeSelector", "map[string]string"),
        ("spec.template.spec.containers.resources.limits", "map[string]IntOrString"),
        ("spec.training.learningRate.peak", "number"),
        ("spec.pipeline.memoryLimit", "IntOrString"),
        ("status.progress.step", "integer"),
    ] {
        assert_eq!(find(path).kind, kind, "{path}");
    }
}

#[test]
fn a_union_has_its_tag_and_its_rules() {
    let tokenizer = find("spec.data.tokenizer");
    let names: Vec<&str> = tokenizer.fields.iter().map(Field::name).collect();
    assert_eq!(names, ["type", "train", "file"]);
    assert!(tokenizer.fields[0].is_required && !tokenizer.fields[1].is_required);
    assert_eq!(tokenizer.fields[0].choices, ["Train", "File"]);
    assert_eq!(tokenizer.refusals[0], "`type` is Train, but `train` is missing: add `train: {...}`");
}

#[test]
fn a_field_has_its_default_and_its_limits() {
    assert_eq!(find("spec.stages").default.as_deref(), Some("1"));
    let pipeline =
        "{schedule: {type: 1F1B}, partition: {strategy: Auto}, recompute: None, transport: Auto, encryption: None}";
    assert_eq!(find("spec.pipeline").default.as_deref(), Some(pipeline));
    assert_eq!(find("spec.stages").limits, ["1 to 256; a job has 1 to 256 stages"]);
    assert_eq!(find("spec.data.sequenceLength").default, None);
    assert_eq!(find("spec.stages").change, Some(ChangeEffect::Attempt));
    assert_eq!(find("status.phase").change, None);
}

#[test]
fn a_path_may_begin_with_the_resource_and_have_indices() {
    for path in
        ["pj.spec.data.paths", "PipelineJob.spec.data.paths", "pipelinejobs.spec.data.paths[0]", ".spec.data.paths"]
    {
        assert_eq!(find(path).path, "spec.data.paths", "{path}");
    }
    for path in ["", "pipelinejob", "PJ", "."] {
        assert_eq!(find(path).path, "", "{path}");
    }
}

#[test]
fn an_unknown_field_is_reported_with_the_nearest_and_all() {
    let of_data = "`paths`, `sources`, `credentials`, `format`, `chatTemplate`, `chatDate`, `onLongConversation`, \
                   `textField`, `specialTokens`, `onBadRecord`, `sequenceLength`, `packing`, `streaming`, `cache`, `evaluation` or `tokenizer`";
    let of_job = "`apiVersion`, `kind`, `metadata`, `spec` or `status`";
    for (path, expected) in [
        (
            "spec.data.path",
            format!("`spec.data` has no field `path`: did you mean `spec.data.paths`? Expected {of_data}"),
        ),
        ("spec.data.x", format!("`spec.data` has no field `x`: expected {of_data}")),
        ("data.paths", format!("`PipelineJob` has no field `data`: did you mean `spec.data.paths`? Expected {of_job}")),
        ("pj.data.x", format!("`PipelineJob` has no field `data`: did you mean `spec.data`? Expected {of_job}")),
        (
            "evaluation",
            format!("`PipelineJob` has no field `evaluation`: did you mean `spec.data.evaluation`? Expected {of_job}"),
        ),
        ("spec.data.paths.x", "`spec.data.paths` has no field `x`: the schema lists none".into()),
    ] {
        assert_eq!(refusal(path), expected);
    }
}

#[test]
fn a_field_of_kubernetes_is_described_by_kubernetes() {
    for (path, of_pod) in [
        ("spec.template.spec.containers.image", "pod.spec.containers.image"),
        ("spec.template.metadata.labels", "pod.metadata.labels"),
        ("spec.template.stages.metadata.labels", "pod.metadata.labels"),
    ] {
        assert_eq!(
            find(path).description,
            format!("A field of Kubernetes' pod template: `kubectl explain {of_pod}` describes it.")
        );
    }
}
