//! Checks that the kustomize manifests are equal to the chart's objects.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Value, json};
use stagecoach_cluster::chart::{find, parse, render, try_render};
use stagecoach_cluster::tool;

use super::{assert_is_file, assert_namespace_precedes, repository, variable};

const HEADER: &str = "# Made from charts/stagecoach by its tests with STAGECOACH_UPDATE=1: change the chart instead.";

/// The base is the chart's rendered text with its comments, without the lines that only helm reads.
#[test]
fn the_base_is_the_chart() {
    let text = try_render("stagecoach-system", &json!({"crd": {"install": false}})).unwrap();
    let is_of_helm = |line: &str| {
        ["helm.sh/chart:", "app.kubernetes.io/managed-by: Helm", "# Source:"].iter().any(|s| line.contains(s))
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !is_of_helm(line));
    let base: Vec<&str> = std::iter::once(HEADER).chain(lines).collect();
    assert_is_file("manifests/base/operator.yaml", &(base.join("\n") + "\n"));
    assert_same(kustomize("base"), render("stagecoach-system", &Value::Null));
}

#[test]
fn the_namespaced_overlay_is_the_chart_for_one_namespace() {
    assert_same(
        kustomize("overlays/namespaced"),
        render("stagecoach-system", &json!({"watchNamespaces": ["training"]})),
    );
}

#[test]
fn the_overlay_for_development_runs_local_images() {
    let objects = kustomize("overlays/dev");
    let deployment = find(&objects, "Deployment", "stagecoach-operator");
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(deployment["spec"]["replicas"], 1);
    assert_eq!(container["image"], "stagecoach-operator:dev");
    assert_eq!(variable(container, "STAGECOACH_TRAINER_IMAGE"), "stagecoach-trainer:dev");
    assert_eq!(variable(container, "STAGECOACH_LOG_FORMAT"), "text");
    assert!(objects.iter().all(|object| object["kind"] != "PodDisruptionBudget"));
}

/// Returns the objects of a folder of manifests/, as `kubectl apply -k` creates them.
fn kustomize(folder: &str) -> Vec<Value> {
    let path = repository("manifests").join(folder);
    let output = Command::new(tool("kubectl")).arg("kustomize").arg(path).output().unwrap();
    // on standard error, kubectl would warn of a deprecated field
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    parse(&String::from_utf8(output.stdout).unwrap())
}

#[track_caller]
fn assert_same(kustomize: Vec<Value>, chart: Vec<Value>) {
    let (mut kustomize, chart) = (by_name(kustomize), by_name(chart));
    // helm creates a namespace only with --create-namespace
    let namespace = kustomize.remove("Namespace /stagecoach-system").unwrap();
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
    assert_eq!(kustomize.keys().collect::<Vec<_>>(), chart.keys().collect::<Vec<_>>());
    for (name, object) in &chart {
        let difference = difference(&kustomize[name], object);
        assert_eq!(difference, None, "{name}");
    }
}

/// Returns the objects with keys of the form `KIND NAMESPACE/NAME`. Removes fields that only helm reads, and sorts
/// environment variables by name.
fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let named = |mut object: Value| {
        let template = "/spec/template/metadata/labels";
        for labels in ["/metadata/labels", template] {
            if let Some(labels) = object.pointer_mut(labels).and_then(Value::as_object_mut) {
                labels.remove("helm.sh/chart");
                labels.remove("app.kubernetes.io/managed-by");
            }
        }
        if object["metadata"]["annotations"] == json!({"helm.sh/resource-policy": "keep"}) {
            object["metadata"].as_object_mut().unwrap().remove("annotations");
        }
        if let Some(env) = object.pointer_mut("/spec/template/spec/containers/0/env").and_then(Value::as_array_mut) {
            assert_namespace_precedes(env, |variable| variable["value"].to_string().contains("$(POD_NAMESPACE)"));
            env.sort_by_key(|variable| variable["name"].to_string());
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &object["metadata"];
        let key = format!("{} {}/{}", text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]));
        (key, object)
    };
    objects.into_iter().map(named).collect()
}

/// Returns the first difference between two objects, with its path, or `None` if the objects are equal.
fn difference(one: &Value, other: &Value) -> Option<String> {
    let below = |at: String, inner: Option<String>| inner.map(|inner| format!("/{at}{inner}"));
    match (one, other) {
        // a number may be an integer on one side and a float on the other, such as 1 and 1.0
        _ if one == other || (one.is_number() && one.as_f64() == other.as_f64()) => None,
        (Value::Object(a), Value::Object(b)) if a.keys().all(|key| b.contains_key(key)) && a.len() == b.len() => {
            a.iter().find_map(|(key, value)| below(key.clone(), difference(value, &b[key])))
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).enumerate().find_map(|(index, (a, b))| below(index.to_string(), difference(a, b)))
        }
        _ => Some(format!(": {one} and {other}")),
    }
}
