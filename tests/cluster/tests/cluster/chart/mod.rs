//! Tests of the chart with helm, kustomize and a real API server: its rendered objects, the values that it refuses, and
//! the rights that it grants.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stagecoach_cluster::chart::{self, find, helm, render, try_render};

mod admission;
mod environment;
mod kustomize;
mod rights;
mod server;
mod values;

/// The environment variable with which a test writes the expected file instead of comparing with it.
const UPDATE: &str = "STAGECOACH_UPDATE";

/// Returns the path of a file or folder of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Compares `text` with a file of the repository, or writes the file if [`UPDATE`] is set.
#[track_caller]
fn assert_is_file(path: &str, text: &str) {
    if std::env::var_os(UPDATE).is_some() {
        return std::fs::write(repository(path), text).unwrap();
    }
    let kept = read(path);
    let differs = kept.lines().zip(text.lines()).position(|(kept, now)| kept != now);
    let line = differs.unwrap_or_else(|| kept.lines().count().min(text.lines().count()));
    let at = |text: &str| text.lines().nth(line).unwrap_or("nothing").to_owned();
    assert!(
        kept == text,
        "{path}, line {}: was `{}`, is `{}`: if that is meant, run this test with {UPDATE}=1",
        line + 1,
        at(&kept),
        at(text)
    );
}

/// Returns values that set every option of the chart to something other than its default.
fn everything() -> Value {
    let peer = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}});
    json!({
        "crd": {"install": false},
        "fullnameOverride": "trains",
        "replicas": 3,
        "workers": 32,
        "logFormat": "text",
        "logLevel": "info,kube=debug",
        "image": {"digest": format!("sha256:{}", "a".repeat(64)), "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "trainerImage": {"repository": "registry.example/trainer", "tag": "cuda"},
        "serviceAccount": {"name": "conductor", "annotations": {"example.com/owner": "us"}},
        "podLabels": {"team": "ml"},
        "podAnnotations": {"example.com/note": "read me"},
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "control", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["control"]}]}],
        }}},
        "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        "env": [{"name": "STAGECOACH_LISTEN", "value": "[::]:8080"}],
        "scrapers": [peer],
        "dns": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "dns"}}}],
        "admissionPolicy": {
            "exceptNamespaces": ["sandbox"],
            "allow": {
                "hostNamespaces": true, "volumes": ["hostPath"], "privileged": true, "root": true,
                "capabilities": ["IPC_LOCK"], "unconfined": true,
            },
            "serviceAccounts": ["default", "trainer"],
            "images": ["registry.example/"],
        },
        "networkPolicy": {"apiServer": {"ports": [6443], "to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]}},
        "monitoring": {
            "podMonitor": {"enabled": true, "interval": "15s", "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": true, "labels": {"release": "prometheus"}},
            "dashboard": {"enabled": true},
        },
    })
}

fn narrow() -> Value {
    json!({"crd": {"install": false}, "watchNamespaces": ["team-a", "team-b"], "monitoring": {"podMonitor": {"enabled": true}}})
}

fn single() -> Value {
    json!({"crd": {"install": false}, "replicas": 1, "leaderElection": false, "rbac": {"userRoles": false}})
}

#[test]
fn it_renders_what_it_did() {
    for (name, values) in [("everything", everything()), ("narrow", narrow()), ("single", single())] {
        let text = try_render("stagecoach-system", &values).unwrap();
        assert_is_file(&format!("tests/cluster/tests/snapshots/{name}.yaml"), &text);
    }
}

#[test]
fn lint_finds_no_problem() {
    let chart = chart::folder().display().to_string();
    for values in [Value::Null, everything(), narrow(), single()] {
        let input = if values.is_null() { String::new() } else { values.to_string() };
        let output = helm(&["lint", "--strict", "--quiet", "--values", "-", &chart], &input);
        let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && !printed.contains("[WARNING]"), "{printed}");
    }
}

#[test]
fn the_crd_is_the_generated_one_and_stays() {
    let generated = read("manifests/crd/pipelinejobs.yaml");
    // `make manifests` copies this file
    assert_is_file("charts/stagecoach/files/pipelinejobs.yaml", &generated);
    let mut expected = chart::parse(&generated).remove(0);
    expected["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
    let objects = render("stagecoach-system", &Value::Null);
    assert_eq!(find(&objects, "CustomResourceDefinition", "pipelinejobs.stagecoach.dev"), &expected);
    let without = render("stagecoach-system", &single());
    assert!(without.iter().all(|object| object["kind"] != "CustomResourceDefinition"));
}

#[test]
fn images_are_named_by_tag_or_digest() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let [ours, trainers] = ["operator", "trainer"].map(|image| format!("ghcr.io/stagecoach-dev/stagecoach-{image}"));
    // the crates, the chart and the image have the same version in a release
    let released = |image: &str| format!("{image}:{}", env!("CARGO_PKG_VERSION"));
    let rows = [
        (json!({}), released(&ours), released(&trainers)),
        (json!({"image": {"tag": "v2"}}), format!("{ours}:v2"), released(&trainers)),
        (json!({"image": {"tag": "v2", "digest": digest}}), format!("{ours}@{digest}"), released(&trainers)),
        (json!({"trainerImage": {"tag": "cuda"}}), released(&ours), format!("{trainers}:cuda")),
        (json!({"trainerImage": {"repository": "own"}}), released(&ours), released("own")),
        (
            json!({"image": {"tag": "v2"}, "trainerImage": {"repository": "own", "digest": digest}}),
            format!("{ours}:v2"),
            format!("own@{digest}"),
        ),
    ];
    for (values, operator, trainer) in rows {
        let objects = render("stagecoach-system", &values);
        let container =
            &find(&objects, "Deployment", "stagecoach-operator")["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], operator, "{values}");
        assert_eq!(variable(container, "STAGECOACH_TRAINER_IMAGE"), trainer, "{values}");
    }
}

fn variable<'a>(container: &'a Value, name: &str) -> &'a str {
    let all = container["env"].as_array().unwrap();
    let found = all.iter().find(|variable| variable["name"] == name).and_then(|variable| variable["value"].as_str());
    found.unwrap_or_else(|| panic!("{name} is not set"))
}

/// Asserts that the variable POD_NAMESPACE precedes the first variable for which `is_user` is true.
pub(crate) fn assert_namespace_precedes(env: &[Value], is_user: impl Fn(&Value) -> bool) {
    let namespace = env.iter().position(|variable| variable["name"] == "POD_NAMESPACE").unwrap();
    let user = env.iter().position(is_user).unwrap();
    assert!(namespace < user, "POD_NAMESPACE must come first: Kubernetes expands only earlier variables");
}

#[test]
fn every_rule_has_its_reason() {
    for path in ["charts/stagecoach/templates/_rules.tpl", "manifests/base/operator.yaml"] {
        let text = read(path);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let rules: Vec<usize> = (0..lines.len()).filter(|line| lines[*line].starts_with("- apiGroups")).collect();
        assert!(rules.len() >= 10, "{path}");
        for rule in rules {
            // one comment above the roles for users gives the reason for the first rule of each role
            let is_of_people = lines[rule + 1].contains("pipelinejobs") && lines[rule - 1] == "rules:";
            assert!(
                is_of_people || lines[rule - 1].starts_with("# "),
                "{path}: {:?} has no reason",
                &lines[rule..rule + 3]
            );
        }
    }
    for object in render("stagecoach-system", &Value::Null).iter().filter(|object| object["rules"].is_array()) {
        assert!(!object["rules"].to_string().contains('*'), "{object}");
    }
}

/// Returns the names of all metrics in the tables of docs/REFERENCE.md. Tests of the operator and of the trainer
/// compare these tables with the metrics that each program registers.
fn exported() -> BTreeSet<&'static str> {
    let text = include_str!("../../../../../docs/REFERENCE.md");
    let (_, tables) = text.split_once("\n## Metrics\n").unwrap();
    let (tables, _) = tables.split_once("\n## ").unwrap();
    let cells = tables.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
    let names = cells.flat_map(|(cell, _)| cell.split('`').filter(|name| name.starts_with("stagecoach_")));
    names.map(|name| name.split('{').next().unwrap()).collect()
}

fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    dashboard["panels"].as_array().into_iter().flatten()
}

/// The metrics that neither a panel nor an alert uses, since another metric shows the same rate.
const SEEN_ELSEWHERE: [&str; 2] = ["stagecoach_tokens_total", "stagecoach_memory_checkpoint_sent_bytes_total"];

#[test]
fn alerts_and_dashboard_ask_for_what_is_exported() {
    let objects = render("stagecoach-system", &everything());
    let rules = &find(&objects, "PrometheusRule", "trains")["spec"]["groups"][0]["rules"];
    let dashboard = find(&objects, "ConfigMap", "trains-dashboard")["data"]["stagecoach.json"].as_str().unwrap();
    let dashboard: Value = serde_json::from_str(dashboard).unwrap();
    let asked = format!("{rules}{dashboard}");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words =
        asked.split(|c| !is_name(c)).filter(|w| w.starts_with("stagecoach_") && !w.starts_with("stagecoach_dev_"));
    let asked: BTreeSet<&str> = words.map(|word| word.trim_end_matches("_bucket").trim_end_matches("_count")).collect();
    let exported = exported();
    let unknown: Vec<_> = asked.difference(&exported).collect();
    assert!(unknown.is_empty(), "{unknown:?} are not exported");
    let unseen: Vec<&str> = exported.difference(&asked).copied().collect();
    assert_eq!(
        unseen.iter().collect::<BTreeSet<_>>(),
        SEEN_ELSEWHERE.iter().collect(),
        "no panel or alert uses these metrics"
    );
    let ids: BTreeSet<u64> = panels(&dashboard).filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels(&dashboard).count(), "panels have different ids");
    for rule in rules.as_array().unwrap() {
        let texts = ["/alert", "/expr", "/labels/severity", "/annotations/summary", "/annotations/description"];
        assert!(texts.iter().all(|text| rule.pointer(text).is_some_and(Value::is_string)), "{rule}");
    }
}

#[test]
fn notes_say_what_comes_next() {
    let notes = |values: Value| {
        let chart = chart::folder().display().to_string();
        let arguments = ["install", "stagecoach", &chart, "--namespace", "trains", "--dry-run=client", "--values", "-"];
        let output = helm(&arguments, &values.to_string());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).split_once("NOTES:").unwrap().1.to_owned()
    };
    let of_all = notes(json!({"crd": {"install": false}}));
    assert!(of_all.contains("in every namespace") && of_all.contains("let no pod read metrics yet"), "{of_all}");
    assert!(of_all.contains("--namespace trains rollout status deployment/stagecoach-operator"), "{of_all}");
    let of_two = notes(narrow());
    assert!(of_two.contains("in team-a, team-b.") && !of_two.contains("With one replica"), "{of_two}");
    assert!(notes(single()).contains("With one replica"));
}
