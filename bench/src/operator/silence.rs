//! Measures how fast a repeatedly failing job restarts: alone, beside many jobs whose pods answer `/status`, and beside
//! many jobs whose pods do not answer.

use std::time::Duration;

use serde_json::{Value, json};
use stagecoach_cluster::merge;

use super::answers::StatusServer;
use super::cluster::Cluster;
use super::system::{STAGECOACH, STAGES};
use super::{AT_REST, JOBS, SETTLE};
use crate::stats::{line, median, percentile};

/// The number of restarts of the measured job in each of the three cases.
const RESTARTS: usize = 100;
/// The number of times that the pods of the other jobs first answer and then stop answering.
const TURNS: usize = 2;
/// The time between such a change and the next measurement. A request that was in progress at the change, and its
/// retry, end within this time.
const TURN: Duration = Duration::from_secs(30);

/// A job that is restarted again and again, because a pod of each attempt fails.
pub(super) struct Repeated<'c> {
    cluster: &'c Cluster,
    attempt: u64,
}

impl Repeated<'_> {
    const NAME: &'static str = "repeated";

    /// Creates the job, with a restart budget that never runs out.
    pub(super) fn start(cluster: &Cluster) -> Repeated<'_> {
        let mut job = (cluster.system.job)(Repeated::NAME);
        merge(&mut job["spec"], json!({"restart": {"maxRestarts": 1_000_000}}));
        let created = cluster.plane.client().create(cluster.system.jobs, &job);
        created.unwrap_or_else(|refusal| panic!("{refusal}"));
        let attempt = cluster.system.first_attempt;
        cluster.pods.wait_ready(Repeated::NAME, attempt, STAGES);
        Repeated { cluster, attempt }
    }

    /// Returns the seconds of `count` restarts, one after the other. A restart lasts from a pod's failure until all new
    /// pods exist.
    pub(super) fn restarts(&mut self, what: &str, count: usize) -> Vec<f64> {
        let one = |_| {
            std::thread::sleep(SETTLE / 10);
            let seconds = self.cluster.restarted(&[Repeated::NAME.to_owned()], self.attempt)[0];
            self.attempt += 1;
            self.cluster.pods.wait_ready(Repeated::NAME, self.attempt, STAGES);
            seconds
        };
        let seconds: Vec<f64> = (0..count).map(one).collect();
        let p99 = format!("p99 {:.0} ms of {count}", percentile(&seconds, 0.99) * 1e3);
        line(what, format!("{:.0} ms", median(&seconds) * 1e3), &p99);
        seconds
    }
}

pub(crate) fn measure() -> Value {
    let answers = StatusServer::serve();
    answers.set(true);
    let cluster = Cluster::start(STAGECOACH, &answers);
    let mut repeated = Repeated::start(&cluster);
    let alone = repeated.restarts("a pod fails, no job beside", RESTARTS);
    let names: Vec<String> = (0..JOBS).map(|n| format!("job-{n}")).collect();
    names.iter().for_each(|name| cluster.create(name));
    names.iter().for_each(|name| cluster.pods.wait_ready(name, STAGECOACH.first_attempt, STAGES));
    let (mut answering, mut silent) = (Vec::new(), Vec::new());
    let (mut answering_rest, mut silent_rest) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let turns = [(true, &mut answering, &mut answering_rest), (false, &mut silent, &mut silent_rest)];
        for (answer, seconds, rest) in turns {
            answers.set(answer);
            std::thread::sleep(TURN);
            let others = if answer { "answer" } else { "are silent" };
            seconds.extend(repeated.restarts(&format!("beside {JOBS} jobs that {others}"), RESTARTS / TURNS));
            std::thread::sleep(SETTLE);
            let [operator, plane] = cluster.cores(AT_REST);
            let beside = format!("control plane {:.1} %", plane * 100.0);
            line("  at rest", format!("{:.2} %", operator * 100.0), &beside);
            rest.push(json!({"operatorCores": operator, "controlPlaneCores": plane}));
        }
    }
    json!({
        "jobs": JOBS, "podsOfAJob": STAGES,
        "aloneSeconds": alone,
        "answering": {"seconds": answering, "atRest": answering_rest},
        "silent": {"seconds": silent, "atRest": silent_rest},
        "KiB": cluster.memory("VmRSS:"),
    })
}
