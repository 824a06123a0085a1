//! Renders the Helm chart with the real helm, and reads the objects of the result.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::plane::ControlPlane;
use crate::process::run;
use crate::tools::tool;

/// The name of the rendered release. With this name, the chart's objects and the operator's service account are named
/// `stagecoach-operator`.
pub const RELEASE: &str = "stagecoach";

/// The kinds of the objects that an operator outside the cluster needs: the CRD, the service account and its rights.
pub const OPERATOR_KINDS: [&str; 6] =
    ["CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];

/// Returns the chart's folder.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/stagecoach")
}

/// Returns the objects, with their namespaces, that `helm install --namespace release_namespace` creates with `values`
/// (null for the defaults). The CRD is among them.
///
/// # Panics
/// If helm refuses the values.
#[track_caller]
pub fn render(release_namespace: &str, values: &Value) -> Vec<Value> {
    parse(&try_render(release_namespace, values).unwrap_or_else(|error| panic!("helm template: {error}")))
}

/// Like [`render`]. Also applies the objects whose kinds are in `kinds`.
#[track_caller]
pub fn apply(plane: &ControlPlane, release_namespace: &str, values: &Value, kinds: &[&str]) -> Vec<Value> {
    let objects = render(release_namespace, values);
    let applied: Vec<&Value> =
        objects.iter().filter(|object| kinds.iter().any(|kind| object["kind"] == *kind)).collect();
    plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": applied}).to_string());
    objects
}

/// Like [`render`], but returns the text that helm writes.
///
/// # Errors
/// If helm refuses the values. The error is helm's standard error.
pub fn try_render(release_namespace: &str, values: &Value) -> Result<String, String> {
    let chart = folder();
    let arguments =
        ["template", RELEASE, &chart.display().to_string(), "--namespace", release_namespace, "--values", "-"];
    let values = if values.is_null() { String::new() } else { values.to_string() };
    let output = helm(&arguments, &values);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// Runs helm with the standard input `input`, without the settings and plugins of the user who runs the test.
pub fn helm(arguments: &[&str], input: &str) -> Output {
    let homes = ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"].map(|home| (home, "/nonexistent"));
    run(Command::new(tool("helm")).args(arguments).envs(homes), input)
}

/// Returns the objects of a YAML stream.
pub fn parse(yaml: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap_or_else(|e| panic!("{e}\n{yaml}"));
    all.into_iter().filter(Value::is_object).collect()
}

/// Returns the only object of `kind` with the name `name`.
///
/// # Panics
/// If there is no such object, or more than one.
#[track_caller]
pub fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found: Vec<&Value> = objects.iter().filter(|o| o["kind"] == kind && o["metadata"]["name"] == name).collect();
    match found[..] {
        [one] => one,
        _ => panic!("{} objects are a {kind} {name}", found.len()),
    }
}
