//! Tests of a job's state as tools that apply jobs from Git see it: kstatus, which Flux uses to wait, and the health
//! script for Argo CD in docs/GITOPS.md, which runs in the Lua that Argo CD embeds.

use std::process::Command;

use serde_json::{Value, json};
use stagecoach_cluster::tool;

use crate::support::{condition_of, has_condition, path, shared};

/// Returns the status that kstatus computes for an object of any kind, according to the rules in its documentation.
fn kstatus(object: &Value) -> &'static str {
    let holds = |kind| condition_of(object, kind).is_some_and(|condition| condition["status"] == "True");
    let ready = condition_of(object, "Ready");
    let observed = &object["status"]["observedGeneration"];
    match () {
        () if !observed.is_null() && *observed != object["metadata"]["generation"] => "InProgress",
        () if holds("Reconciling") => "InProgress",
        () if holds("Stalled") => "Failed",
        () if ready.is_some_and(|ready| ready["status"] != "True") => "InProgress",
        () => "Current",
    }
}

/// Returns the health script in docs/GITOPS.md.
fn script() -> String {
    let page = include_str!("../../../docs/GITOPS.md");
    let (_, script) = page.split_once("resource.customizations.health.stagecoach.dev_PipelineJob: |\n").unwrap();
    script.split_once("```").unwrap().0.to_owned()
}

/// Returns a value in Lua's notation.
fn lua(value: &Value) -> String {
    let items = |items: Vec<String>| format!("{{{}}}", items.join(", "));
    match value {
        Value::Null => "nil".into(),
        Value::Array(all) => items(all.iter().map(lua).collect()),
        Value::Object(fields) => {
            items(fields.iter().map(|(key, value)| format!("[{}] = {}", lua(&json!(key)), lua(value))).collect())
        }
        Value::String(text) => {
            format!("\"{}\"", text.bytes().map(|byte| format!("\\{byte:03}")).collect::<String>())
        }
        other => other.to_string(),
    }
}

/// Returns the status and the message that Argo CD shows.
fn argo(object: &Value) -> (String, String) {
    let seen = json!({
        "metadata": {"generation": object["metadata"]["generation"]},
        "status": {
            "observedGeneration": object["status"]["observedGeneration"], "conditions": object["status"]["conditions"],
        },
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    let run = "local health = check()\nprint(health.status)\nprint(health.message)";
    let text = format!("obj = {}\nlocal function check()\n{}\nend\n{run}\n", lua(&seen), script());
    std::fs::write(file.path(), text).unwrap();
    let output = Command::new(tool("glua")).arg(file.path()).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    let (status, message) = printed.split_once('\n').unwrap();
    (status.into(), message.trim_end().into())
}

#[track_caller]
fn assert_seen(job: &Value, by_kstatus: &str, by_argo: &str, words: &str) {
    assert_eq!(kstatus(job), by_kstatus, "{:#}", job["status"]);
    let (status, message) = argo(job);
    assert_eq!(status, by_argo, "{:#}", job["status"]);
    assert!(message.contains(words), "{message}");
}

#[test]
fn tools_see_each_state_of_a_job_as_it_is() {
    let cluster = shared();
    let name = "gitops";
    cluster.create(name, json!({"suspend": true, "template": {"spec": {"nodeSelector": {"pool": "none"}}}}));
    let job = cluster.wait_phase(name, "Suspended");
    assert_seen(&job, "Current", "Suspended", "the job is suspended");
    // the operator has not seen the newest spec
    let mut newer = job.clone();
    newer["metadata"]["generation"] = json!(99);
    assert_seen(&newer, "InProgress", "Progressing", "has not seen");

    cluster.edit(name, json!({"suspend": false}));
    let waits = |job: &Value| has_condition(job, "Scheduled", "False", "Unschedulable");
    let job = cluster.wait(name, "unschedulable", waits);
    assert_seen(&job, "InProgress", "Progressing", "nodes are available");

    cluster.edit(name, json!({"template": {"spec": {"nodeSelector": null}}}));
    let job = cluster.wait_phase(name, "Running");
    assert_seen(&job, "Current", "Healthy", "all stages are ready");

    let invalid =
        json!({"template": {"spec": {"containers": [{"name": "trainer", "env": [{"name": "RANK", "value": "7"}]}]}}});
    cluster.edit(name, invalid);
    let job = cluster.wait(name, "refused", |job| has_condition(job, "Accepted", "False", "InvalidSpec"));
    assert_seen(&job, "Failed", "Degraded", "RANK is set by Stagecoach");
    assert!(has_condition(&job, "Ready", "False", "InvalidSpec"), "{:#}", job["status"]);
    cluster.edit(name, json!({"template": {"spec": {"containers": null}}}));
    let job = cluster.wait(name, "running again", |job| has_condition(job, "Ready", "True", "Running"));
    assert_seen(&job, "Current", "Healthy", "all stages are ready");

    let attempt = job["status"]["attempt"]["number"].as_u64().unwrap();
    for stage in [0, 1] {
        cluster.kubelet.pod(&format!("{name}-{stage}-{attempt}")).exit(0, "");
    }
    let job = cluster.wait_phase(name, "Complete");
    assert_seen(&job, "Current", "Healthy", "training is complete");
    cluster.plane.client().delete(&path(name));
}

#[test]
fn a_job_that_failed_is_degraded_and_one_that_restarts_is_not() {
    let cluster = shared();
    cluster.create(
        "given-up",
        json!({"restart": {"maxRestarts": 1, "backoff": {"initialSeconds": 600, "maxSeconds": 600}}}),
    );
    cluster.wait_running("given-up", 1);
    cluster.kubelet.pod("given-up-1-1").exit(1, "");
    let again = cluster.wait("given-up", "restarted", |job| job["status"]["attempt"]["number"] == 2);
    assert_ne!(argo(&again).0, "Degraded", "{:#}", again["status"]);
    assert_ne!(kstatus(&again), "Failed", "{:#}", again["status"]);
    cluster.wait_running("given-up", 2);
    cluster.kubelet.pod("given-up-1-2").exit(1, "");
    let job = cluster.wait_phase("given-up", "Failed");
    assert_seen(&job, "Failed", "Degraded", "restart.maxRestarts is used up");
    assert!(has_condition(&job, "Stalled", "True", "BudgetExhausted"), "{:#}", job["status"]);
}
