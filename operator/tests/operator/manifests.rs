//! Tests that the operator sets the condition `Accepted` of every job that the API server accepts: to `True`, or to
//! `False` with a message.

use crate::support::{condition_of, jobs, path, shared};
use http::Method;
use serde_json::json;
use stagecoach_cluster::until;

#[allow(dead_code)]
#[path = "../../../crates/api/tests/api/crd/rows.rs"]
mod rows;

#[test]
fn no_manifest_makes_the_operator_log_errors_in_a_loop() {
    const NAMESPACE: &str = "manifests";
    let cluster = shared();
    cluster.create_namespace(NAMESPACE);
    let operator = cluster.operator(cluster.kubeconfig(), &[("STAGECOACH_NAMESPACES", NAMESPACE)]);
    let ours = |row: &rows::Row| row.server.is_none() && row.manifest["spec"].get("managedBy").is_none();
    let mut names = Vec::new();
    for (index, mut row) in rows::rows().into_iter().filter(ours).enumerate() {
        let name = format!("row-{index}");
        row.manifest["metadata"]["name"] = json!(name);
        row.manifest["metadata"]["namespace"] = json!(NAMESPACE);
        // the manifests in the tables have no claim, and some jobs would need more pods than the nodes have room for
        let claim = json!({"persistentVolumeClaim": {"claimName": "training"}});
        rows::put(&mut row.manifest, "spec.storage", Some(claim));
        if row.manifest["spec"]["stages"].as_u64() > Some(4) {
            rows::put(&mut row.manifest, "spec.suspend", Some(json!(true)));
        }
        let created = cluster.plane.client().create(&jobs(NAMESPACE), &row.manifest);
        created.unwrap_or_else(|refusal| panic!("{:?}: {refusal}", row.changed));
        names.push((format!("{NAMESPACE}/{name}"), row));
    }
    assert!(names.len() > 15, "{}", names.len());
    for (name, row) in &names {
        let job = cluster.wait(name, "accepted or refused", |job| condition_of(job, "Accepted").is_some());
        let accepted = condition_of(&job, "Accepted").unwrap();
        match &row.validate {
            None => assert_eq!(accepted["status"], "True", "{:?}: {accepted}", row.changed),
            Some(words) => {
                assert_eq!(accepted["status"], "False", "{:?}", row.changed);
                assert!(rows::says(accepted["message"].as_str().unwrap(), words), "{accepted}");
            }
        }
    }
    // each accepted job has pods, or a condition with the reason why it has none
    for (name, _) in names.iter().filter(|(_, row)| row.validate.is_none()) {
        until(&format!("{name} to settle"), || {
            let job = cluster.job(name)?;
            let phase = job["status"]["phase"].as_str().unwrap_or_default().to_owned();
            let settled = ["Running", "Suspended", "Complete", "Failed"].contains(&phase.as_str());
            let scheduled = condition_of(&job, "Scheduled")
                .is_some_and(|c| !["Creating", "Waiting"].contains(&c["reason"].as_str().unwrap()));
            (settled || scheduled).then_some(())
        });
    }
    // a request may be late on a busy machine, so a few failures are allowed
    let log = operator.log();
    let failed: Vec<&str> = log.lines().filter(|line| line.contains("reconcile failed")).collect();
    assert!(failed.len() < 5, "{failed:#?}");
    // Some jobs ask for nodes that do not exist. With Kubernetes' own gangs, the scheduler tries to place the pods of
    // such a job again and again without a pause, which takes the time of other tests.
    for (name, _) in &names {
        cluster.plane.client().request(Method::DELETE, &path(name), None).unwrap();
    }
}
