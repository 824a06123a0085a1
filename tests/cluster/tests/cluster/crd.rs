//! Tests of the CustomResourceDefinition on a real API server. The API server accepts or refuses the manifests and
//! changes in the tables of `crates/api` as those tables say, and its messages contain the text in the tables.

use http::Method;
use serde_json::{Value, json};
use stagecoach_cluster::{ApiRefusal, Client, ControlPlane, until};

#[allow(dead_code)]
#[path = "../../../../crates/api/tests/api/crd/generated.rs"]
mod generated;
#[allow(dead_code)]
#[path = "../../../../crates/api/tests/api/crd/rows.rs"]
mod rows;
#[allow(dead_code)]
#[path = "../../../../crates/api/tests/api/crd/schema.rs"]
mod schema;

const CRD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../manifests/crd/pipelinejobs.yaml");
const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../manifests/samples");
const STORAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../manifests/storage");
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const JOBS: &str = "/apis/stagecoach.dev/v1alpha1/namespaces/default/pipelinejobs";

#[test]
fn the_api_server_takes_and_refuses_what_the_tables_say() {
    let plane = ControlPlane::start();
    let output = plane.kubectl(&["apply", "--validate=strict", "-f", CRD]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // on standard error, kubectl would print the API server's warning of an unknown format or keyword
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    wait_until_served(plane.client());

    assert_all(rows(plane.client()));
    assert_all(transitions(plane.client()));
    samples(&plane);
    scaling(&plane);
    reading(&plane);
}

/// An older CRD, without the present rules and bounds, accepts an object that breaks them. After the CRD is updated,
/// the operator and a user can still change this object.
#[test]
fn an_object_that_breaks_every_rule_can_be_reported_on() {
    let plane = ControlPlane::start();
    let client = plane.client();
    let mut crd: Value = serde_saphyr::from_str(&std::fs::read_to_string(CRD).unwrap()).unwrap();
    let real = crd.clone();
    without_rules(&mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
    client.create(CRDS, &crd).unwrap();
    wait_until_served(client);

    let mut old = rows::job("minimal");
    rows::put(&mut old, "spec.training.microbatches", Some(json!(3)));
    rows::put(&mut old, "spec.data.paths[0]", Some(json!("/absolute")));
    rows::put(&mut old, "spec.pipeline.virtualStages", Some(json!(0)));
    client.create(JOBS, &old).unwrap();

    let path = format!("{CRDS}/pipelinejobs.stagecoach.dev");
    client.patch(&path, &json!({"spec": real["spec"]})).unwrap();
    // the new rules are in force once the API server refuses another such job
    rows::put(&mut old, "metadata.name", Some(json!("newer")));
    until("the rules to be in force", || client.create(&format!("{JOBS}?dryRun=All"), &old).err());

    let status = json!({"status": {"phase": "Failed", "attempt": {"number": 1, "stages": 2, "podsCreated": true}}});
    client.patch(&format!("{JOBS}/tiny/status"), &status).unwrap();
    client.patch(&format!("{JOBS}/tiny"), &json!({"spec": {"suspend": true}})).unwrap();
    client.patch(&format!("{JOBS}/tiny/status"), &json!({"status": {"phase": "Suspended"}})).unwrap();
}

fn without_rules(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for key in ["x-kubernetes-validations", "minimum", "maximum"] {
                fields.remove(key);
            }
            fields.values_mut().for_each(without_rules);
        }
        Value::Array(items) => items.iter_mut().for_each(without_rules),
        _ => {}
    }
}

fn wait_until_served(client: &Client) {
    until("the CRD to be served", || client.get(JOBS));
}

fn assert_all(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
}

/// Compares an answer with a table's entry. Returns the difference, or `None` if they agree.
fn difference(row: &str, expected: Option<&String>, answer: &Result<Value, ApiRefusal>) -> Option<String> {
    match (expected, answer) {
        (None, Ok(_)) => None,
        (Some(words), Err(refusal)) if rows::says(&refusal.message, words) => None,
        (Some(words), Err(refusal)) => Some(format!("{row}: expected `{words}`, found `{}`", refusal.message)),
        (Some(words), Ok(_)) => Some(format!("{row}: expected `{words}`, but it was accepted")),
        (None, Err(refusal)) => Some(format!("{row}: {refusal}")),
    }
}

/// Creates every manifest in a dry run. For a manifest with a status, writes the status to an existing job instead.
/// Returns the differences.
fn rows(client: &Client) -> Vec<String> {
    let mut existing = rows::job("minimal");
    existing["metadata"]["name"] = json!("existing");
    client.create(JOBS, &existing).unwrap();
    let all: Vec<rows::Row> = rows::rows().into_iter().chain(generated::rows()).collect();
    assert!(all.len() > 700, "{}", all.len());
    let check = |row: rows::Row| {
        let answer = match row.manifest.get("status") {
            Some(status) => client.patch(&format!("{JOBS}/existing/status?dryRun=All"), &json!({"status": status})),
            None => client.create(&format!("{JOBS}?dryRun=All"), &row.manifest),
        };
        difference(&format!("{:?}", row.changed), row.server.as_ref(), &answer)
    };
    all.into_iter().filter_map(check).collect()
}

/// For each transition, creates a job, writes its status, and changes the job. Returns the differences.
fn transitions(client: &Client) -> Vec<String> {
    let check = |(index, transition): (usize, rows::Transition)| {
        let name = format!("transition-{index}");
        let mut job = rows::job("minimal");
        job["metadata"]["name"] = json!(name);
        transition.before.iter().for_each(|(path, value)| rows::put(&mut job, path, Some(value.clone())));
        client.create(JOBS, &job).unwrap();
        let path = format!("{JOBS}/{name}");
        if let Some(status) = &transition.status {
            client.patch(&format!("{path}/status"), &json!({"status": status})).unwrap();
        }
        let mut changed = client.get(&path).unwrap();
        transition.set.iter().for_each(|(path, value)| rows::put(&mut changed, path, Some(value.clone())));
        // some rules do not apply to a write of the status; a request that changes the spec can't bypass these rules by
        // also containing a status
        changed["status"] = json!({"phase": "Failed"});
        let answer = client.replace(&path, &changed);
        let wrong = difference(&format!("{:?}", transition.set), transition.refused.as_ref(), &answer);
        // the operator can write a status whether or not the API server refused the change
        client.patch(&format!("{path}/status"), &json!({"status": {"phase": "Running"}})).unwrap();
        wrong
    };
    rows::transitions().into_iter().enumerate().filter_map(check).collect()
}

/// Checks that the API server accepts the sample jobs, also with kubectl's strict validation.
fn samples(plane: &ControlPlane) {
    let output = plane.kubectl(&["create", "--dry-run=server", "--validate=strict", "-f", SAMPLES]);
    let created = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(created.lines().count(), std::fs::read_dir(SAMPLES).unwrap().count(), "{created}");
    // the API server accepts the samples' volumes too
    assert!(plane.kubectl(&["create", "namespace", "training"]).status.success());
    let output = plane.kubectl(&["create", "--dry-run=server", "--validate=strict", "-f", STORAGE]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn scaling(plane: &ControlPlane) {
    let scale = |replicas: &str| plane.kubectl(&["scale", "pj/existing", "--replicas", replicas]);
    assert!(scale("5").status.success());
    assert_eq!(plane.get(&format!("{JOBS}/existing")).unwrap()["spec"]["stages"], 5);
    let refused = scale("257");
    assert!(!refused.status.success());
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("should be less than or equal to 256"), "{message}");

    let status = json!({"status": {"stages": 10, "stagesPerReplica": 5, "selector": "stagecoach.dev/job=existing"}});
    plane.client().patch(&format!("{JOBS}/existing/status"), &status).unwrap();
    let scale = plane.client().request(Method::GET, &format!("{JOBS}/existing/scale"), None).unwrap();
    assert_eq!(scale["status"], json!({"replicas": 5, "selector": "stagecoach.dev/job=existing"}));
}

/// Checks the columns of `kubectl get` and the text of `kubectl explain`.
fn reading(plane: &ControlPlane) {
    let status = json!({"status": {
        "phase": "Running", "readyStages": 4, "trainingReplicas": 1, "progress": {"step": 120, "loss": "3.2071"}, "checkpoint": {"step": 100}, "restarts": {"total": 1},
    }});
    plane.client().patch(&format!("{JOBS}/existing/status"), &status).unwrap();
    let shown = |arguments: &[&str]| String::from_utf8_lossy(&plane.kubectl(arguments).stdout).into_owned();
    let table = shown(&["get", "pj", "existing"]);
    let cells: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        cells[0],
        ["NAME", "PHASE", "STAGES", "REPLICAS", "TRAINING", "READY", "STEP", "LOSS", "CHECKPOINT", "RESTARTS", "AGE"]
    );
    assert_eq!(cells[1][..10], ["existing", "Running", "5", "1", "1", "4", "120", "3.2071", "100", "1"]);
    assert!(shown(&["get", "all"]).contains("pipelinejob.stagecoach.dev/existing"));

    let spec = shown(&["explain", "pipelinejob.spec"]);
    assert!(spec.contains("The number of stages of the pipeline, 1 to 256."), "{spec}");
    let schedule = shown(&["explain", "pj.spec.pipeline.schedule.type"]);
    assert!(schedule.contains("Interleaved1F1B: 1F1B over several chunks a stage."), "{schedule}");
}
