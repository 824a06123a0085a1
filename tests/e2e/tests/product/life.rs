//! A job from `kubectl apply` to its end.

use std::collections::BTreeSet;

use serde_json::json;
use stagecoach_e2e::{E2eJob, Product, on_this_machine};

use super::plugin;

#[test]
#[ignore = "needs a node: make e2e"]
fn a_job_trains_as_it_does_on_a_laptop() {
    let product = Product::take();
    // the job must train long enough for the rows of the table to change
    let job = E2eJob::apply(&product, "hamlet", json!({"training": {"steps": 900}}));
    job.wait_running(1);
    let mut rows: BTreeSet<Vec<String>> = BTreeSet::new();
    job.wait("seen with several steps and checkpoints", |_| {
        let table = product.kubectl(&["get", "pj", "hamlet"]);
        let (head, row) = table.split_once('\n').unwrap();
        let columns: Vec<&str> = head.split_whitespace().collect();
        assert_eq!(
            columns,
            [
                "NAME",
                "PHASE",
                "STAGES",
                "REPLICAS",
                "TRAINING",
                "READY",
                "STEP",
                "LOSS",
                "CHECKPOINT",
                "RESTARTS",
                "AGE"
            ]
        );
        let cells: Vec<String> = row.split_whitespace().map(str::to_owned).collect();
        // the row has fewer cells before the first checkpoint
        if cells.len() == columns.len() && cells[1] == "Running" {
            rows.insert(cells[6..9].to_vec());
        }
        let different = |column: usize| rows.iter().map(|row| &row[column]).collect::<BTreeSet<_>>().len() > 1;
        (0..3).all(different)
    });
    let log = product.kubectl(&["logs", &job.pod(0)]);
    assert!(log.lines().any(|line| line.contains("step") && line.contains("loss")), "{log}");
    assert!(product.kubectl(&["describe", "pj", "hamlet"]).contains("AttemptStarted"));
    plugin::shows(&product, &job);
    drop(job);

    let job = E2eJob::apply(&product, "undisturbed", json!({}));
    assert_eq!(job.complete(), *on_this_machine(product.node.folder()));
    assert_eq!(job.get()["status"]["restarts"]["total"], 0);
    plugin::proves(&product, &job);
}

#[test]
#[ignore = "needs a node: make e2e"]
fn a_suspended_job_continues_where_it_was() {
    let product = Product::take();
    let job = E2eJob::apply(&product, "suspended", json!({}));
    job.wait_step(30);
    job.edit(json!({"suspend": true}));
    job.wait_phase("Suspended");
    let saved = job.step();
    assert!(job.pods().is_empty());
    job.edit(json!({"suspend": false}));
    job.wait_running(2);
    job.wait_step(saved + 1);
    assert_eq!(job.complete(), *on_this_machine(product.node.folder()));
    assert_eq!(job.get()["status"]["restarts"]["total"], 0);
}
