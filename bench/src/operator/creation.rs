//! Measures the processor time that the API server needs to create a job, without the work of an operator. The jobs of
//! Stagecoach and of JobSet are created in turn on one control plane.

use std::time::Duration;

use serde_json::{Value, json};
use stagecoach_cluster::{Component, until};

use super::answers::StatusServer;
use super::cluster::Cluster;
use super::jobset::JOBSET;
use super::system::STAGECOACH;
use crate::machine::processor_seconds;
use crate::stats::{line, median};

const ROUNDS: usize = 7;
/// The number of jobs of each kind in a round.
const JOBS: usize = 100;

/// Measures JobSets without JobSet's webhooks, because the webhooks run in another process than the API server.
pub(crate) fn measure() -> Value {
    let answers = &StatusServer::serve();
    println!("the API server's part of a creation");
    let cluster = Cluster::without_operator(STAGECOACH, answers, Vec::new());
    (JOBSET.install)(&cluster.plane);
    let server = cluster.plane.process_id(Component::ApiServer).unwrap();
    // the API server takes a while to process new definitions
    until("the API server to be idle", || {
        let before = processor_seconds(server);
        std::thread::sleep(Duration::from_secs(2));
        (processor_seconds(server) - before < 0.1).then_some(())
    });
    let mut kinds = [(STAGECOACH, Vec::new()), (JOBSET, Vec::new())];
    for round in 0..ROUNDS {
        for (system, seconds) in &mut kinds {
            let before = processor_seconds(server);
            (0..JOBS).for_each(|n| system.create(&cluster.plane, &format!("round-{round}-{n}")));
            seconds.push((processor_seconds(server) - before) / JOBS as f64);
        }
    }
    let [stagecoach, job_set] = kinds.map(|(system, seconds)| {
        line(system.name, format!("{:.2} ms", median(&seconds) * 1e3), "processor time a job");
        seconds
    });
    json!({"stagecoachCpuSeconds": stagecoach, "jobSetCpuSeconds": job_set})
}
