//! Replays a published trace of spot capacity on simulated nodes, for an elastic job, jobs of a fixed size, and JobSets
//! that restart from checkpoints. The API server, the scheduler and the operators are real, and decide which pods run
//! where. The trainer is simulated: the steps of each job are computed from its ready pods.

mod contender;
mod figure;
mod trainer;

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use self::contender::{CONTENDERS, SpotJob};
use self::trainer::{ReadyPod, SimulatedTrainer};
use super::answers::StatusServer;
use super::cluster::Cluster;
use super::pods::PODS;
use crate::stats::line;

/// The number of pods of a replica. Each pod occupies one node.
const STAGES: u32 = 2;
/// The largest number of replicas for which the trace has nodes.
const REPLICAS: u32 = 8;
/// The real time for which each point of the trace is replayed.
const POINT: Duration = Duration::from_secs(5);
/// The real time between two observations of the pods (looks).
const LOOK: Duration = Duration::from_millis(250);

/// A trace: the number of nodes that were available, at equal intervals.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Trace {
    source: String,
    gap_seconds: u32,
    nodes: Vec<usize>,
}

/// The steps of a contender, and the number of its replicas that trained, at each look.
struct Replay {
    contender: &'static SpotJob,
    steps: Vec<f64>,
    replicas: Vec<u32>,
}

/// Replays the trace for all contenders at the same time, each on a separate cluster. Writes the figure to `results`.
pub(crate) fn measure(results: &Path) -> Value {
    let trace: Trace = serde_json::from_str(include_str!("trace.json")).unwrap();
    let hours = trace.nodes.len() as f64 * f64::from(trace.gap_seconds) / 3600.0;
    let node_hours: f64 = trace.nodes.iter().map(|nodes| *nodes as f64).sum::<f64>() / trace.nodes.len() as f64 * hours;
    println!("{hours:.0} hours of spot capacity, {node_hours:.0} node-hours of up to {} nodes", STAGES * REPLICAS);
    let answers = StatusServer::serve();
    answers.set(true);
    let replays: Vec<Replay> = std::thread::scope(|scope| {
        let replay = |(number, contender)| {
            let (trace, answers) = (&trace, &answers);
            scope.spawn(move || replay(contender, number, trace, answers))
        };
        let replays: Vec<_> = CONTENDERS.iter().enumerate().map(replay).collect();
        replays.into_iter().map(|replay| replay.join().unwrap()).collect()
    });
    // with n replicas, a step takes 1/n of the time that it takes with one replica
    let possible: f64 =
        trace.nodes.iter().map(|nodes| (*nodes as u32 / STAGES).min(REPLICAS)).map(f64::from).sum::<f64>()
            * f64::from(trace.gap_seconds)
            / trainer::STEP_SECONDS;
    let mut report = serde_json::Map::new();
    for Replay { contender, steps, replicas } in &replays {
        let done = steps.last().copied().unwrap_or_default();
        let beside = format!("{done:.0} steps, {:.0} % of the capacity", 100.0 * done / possible);
        line(contender.name, format!("{:.1} steps a node-hour", done / node_hours), &beside);
        let training = replicas.iter().filter(|replicas| **replicas > 0).count() as f64 / replicas.len().max(1) as f64;
        let measured = json!({
            "steps": done.round(), "stepsPerNodeHour": done / node_hours, "shareOfCapacity": done / possible,
            "shareOfTimeTraining": training,
        });
        report.insert(contender.name.into(), measured);
    }
    std::fs::write(results.join("spot.svg"), figure::draw(&trace, &replays)).unwrap();
    json!({
        "trace": {"source": trace.source, "hours": hours, "nodeHours": node_hours},
        "secondsOfTraceASecond": f64::from(trace.gap_seconds) / POINT.as_secs_f64(),
        "model": trainer::parameters(),
        "contenders": report,
    })
}

fn replay(contender: &'static SpotJob, number: usize, trace: &Trace, answers: &StatusServer) -> Replay {
    let mut cluster = Cluster::without_nodes(contender.system(), answers, number);
    cluster.start_operator();
    cluster.create("spot");
    let mut trainer = SimulatedTrainer::new(contender.policy);
    let (mut steps, mut replicas) = (Vec::new(), Vec::new());
    let started = Instant::now();
    let scale = f64::from(trace.gap_seconds) / POINT.as_secs_f64();
    let mut nodes = 0;
    for (point, wanted) in (1..).zip(&trace.nodes) {
        set_nodes(&cluster, nodes, *wanted);
        nodes = *wanted;
        while started.elapsed() < POINT * point {
            trainer.observe(started.elapsed().as_secs_f64() * scale, &pods(&cluster, contender));
            steps.push(trainer.steps());
            replicas.push(trainer.replicas());
            std::thread::sleep(LOOK);
        }
    }
    Replay { contender, steps, replicas }
}

/// Adds nodes, or removes the newest nodes as a handler of spot notices does: it cordons the node, deletes its pods,
/// and then deletes the node.
fn set_nodes(cluster: &Cluster, before: usize, after: usize) {
    (before..after).for_each(|node| cluster.add_node(node, 1));
    let client = cluster.plane.client();
    let name = |node: usize| format!("node-{node}");
    for node in after..before {
        let cordon = client.patch(&format!("/api/v1/nodes/{}", name(node)), &json!({"spec": {"unschedulable": true}}));
        cordon.unwrap_or_else(|refusal| panic!("{refusal}"));
    }
    let lost: Vec<String> = (after..before).map(name).collect();
    let is_lost =
        |pod: &Value| pod["spec"]["nodeName"].as_str().is_some_and(|node| lost.iter().any(|lost| lost == node));
    for pod in client.list(PODS).iter().filter(|pod| !lost.is_empty() && is_lost(pod)) {
        client.delete(&format!("{PODS}/{}", pod["metadata"]["name"].as_str().unwrap_or_default()));
    }
    lost.iter().for_each(|node| client.delete(&format!("/api/v1/nodes/{node}")));
}

/// Returns the ready pods of the newest attempt.
fn pods(cluster: &Cluster, contender: &SpotJob) -> Vec<ReadyPod> {
    let labels = contender.system().labels;
    let pods = cluster.plane.client().list(PODS);
    let attempt = |pod: &Value| -> Option<u64> { pod["metadata"]["labels"][labels.attempt].as_str()?.parse().ok() };
    let newest = pods.iter().filter_map(attempt).max();
    let is_ready = |pod: &&Value| {
        let conditions = pod["status"]["conditions"].as_array();
        let ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        pod["metadata"]["deletionTimestamp"].is_null() && conditions.is_some_and(|all| all.iter().any(ready))
    };
    let current = pods.iter().filter(|pod| attempt(pod) == newest).filter(is_ready);
    current
        .map(|pod| {
            let index: u32 =
                pod["metadata"]["labels"][contender.index].as_str().unwrap_or_default().parse().unwrap_or(0);
            ReadyPod { uid: pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned(), stage: index % STAGES }
        })
        .collect()
}
