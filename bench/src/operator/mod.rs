//! Measures the cost of 500 jobs of 4 pods, with two systems in one run on one machine: Stagecoach's operator, and
//! JobSet with the Job controller.

mod answers;
mod cluster;
mod creation;
mod jobset;
mod pods;
mod scale;
mod silence;
mod spot;
mod system;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stagecoach_cluster::merge;

use self::answers::StatusServer;
use self::cluster::Cluster;
pub(crate) use self::creation::measure as measure_creation;
use self::jobset::JOBSET;
pub(crate) use self::scale::measure as measure_scale;
pub(crate) use self::silence::measure as measure_silence;
pub(crate) use self::spot::measure as measure_spot;
use self::system::{PODS_ALONE, STAGECOACH, STAGECOACH_GANG, STAGES, System};
use crate::stats::{line, median, percentile};

const JOBS: usize = 500;
/// The number of jobs that are started and restarted alone, one after the other.
const SINGLES: usize = 20;
/// The number of jobs that have a failing pod at the same time.
const AT_ONCE: usize = 50;
/// The time over which an operator's cost at rest is measured. In this time, Stagecoach's operator polls each job
/// several times.
const AT_REST: Duration = Duration::from_secs(60);
/// The time that a cluster gets to finish all writes after an action.
const SETTLE: Duration = Duration::from_secs(3);

pub(crate) fn measure() -> Value {
    let answers = StatusServer::serve();
    json!({
        "stagecoach": all(STAGECOACH, &answers),
        "jobSet": all(JOBSET, &answers),
        "stagecoachGang": singles(&Cluster::start(STAGECOACH_GANG, &answers)),
        "podsAlone": floor(&Cluster::start(PODS_ALONE, &answers)),
    })
}

/// Measures single jobs and many jobs on a fresh cluster, whose pods do not answer `/status`.
fn all(system: System, answers: &StatusServer) -> Value {
    let cluster = Cluster::start(system, answers);
    let mut report = singles(&cluster);
    merge(&mut report, many(&cluster));
    report
}

/// Measures jobs one by one, on an idle cluster.
fn singles(cluster: &Cluster) -> Value {
    println!("{}: jobs of {STAGES} pods, one by one", cluster.system.name);
    let first = cluster.system.first_attempt;
    let names: Vec<String> = (0..SINGLES).map(|n| format!("single-{n}")).collect();
    let each = |what: &str, one: &dyn Fn(&String) -> f64, attempt: u64| {
        std::thread::sleep(SETTLE);
        let before = cluster.writes();
        let seconds: Vec<f64> = names
            .iter()
            .map(|name| {
                let seconds = one(name);
                cluster.pods.wait_ready(name, attempt, STAGES);
                std::thread::sleep(SETTLE / 10);
                seconds
            })
            .collect();
        std::thread::sleep(SETTLE);
        let writes = per_job(&before, &cluster.writes());
        let beside = format!(
            "p99 {:.0} ms; {:.0} writes by all components",
            percentile(&seconds, 0.99) * 1e3,
            writes.values().sum::<f64>()
        );
        line(what, format!("{:.0} ms", median(&seconds) * 1e3), &beside);
        writes.iter().for_each(|(request, count)| line(&format!("  {request}"), format!("{count:.1}"), ""));
        (seconds, writes)
    };
    let start = each("created -> 4 pods exist", &|name| cluster.started(name), first);
    let restart = each(
        "a pod fails -> 4 new pods exist",
        &|name| cluster.restarted(std::slice::from_ref(name), first)[0],
        first + 1,
    );
    json!({"startSeconds": start.0, "writesPerStart": start.1, "restartSeconds": restart.0, "writesPerRestart": restart.1})
}

/// Measures all jobs at once, then many failures at once, then the cost at rest.
fn many(cluster: &Cluster) -> Value {
    let first = cluster.system.first_attempt;
    let names: Vec<String> = (0..JOBS).map(|n| format!("job-{n}")).collect();
    let (cpu, plane_cpu, started) = (cluster.cpu(), cluster.plane_cpu(), Instant::now());
    names.iter().for_each(|name| cluster.create(name));
    let applied = started.elapsed().as_secs_f64();
    let all_there = names.iter().map(|name| cluster.pods.wait(name, first, STAGES)).max();
    let all = all_there.map_or(f64::NAN, |at| (at - started).as_secs_f64());
    names.iter().for_each(|name| cluster.pods.wait_ready(name, first, STAGES));
    let ready = started.elapsed().as_secs_f64();
    std::thread::sleep(SETTLE);
    let (cpu, plane_cpu) = (cluster.cpu() - cpu, cluster.plane_cpu() - plane_cpu);
    let pods = JOBS * STAGES;
    let beside =
        format!("the client's {JOBS} requests took {applied:.1} s of this; all pods were ready after {ready:.1} s");
    line(&format!("all {pods} pods exist"), format!("{all:.1} s"), &beside);
    line("the operator's CPU for it", format!("{cpu:.1} s"), &format!("control plane {plane_cpu:.0} s"));
    let at_once = cluster.restarted(&names[..AT_ONCE], first);
    let [half, most, last] = [0.5, 0.99, 1.0].map(|share| percentile(&at_once, share));
    line(
        &format!("{AT_ONCE} failures at once"),
        format!("{last:.1} s"),
        &format!("p50 {half:.1} s, p99 {most:.1} s of each job"),
    );
    let peak = cluster.memory("VmHWM:");
    std::thread::sleep(Duration::from_secs(20));
    let [idle, _] = cluster.cores(AT_REST);
    let rest = cluster.memory("VmRSS:");
    line(
        "memory at the peak",
        format!("{:.0} MiB", peak as f64 / 1024.0),
        &format!("{:.0} MiB and {:.2} % of a core at rest", rest as f64 / 1024.0, idle * 100.0),
    );
    json!({
        "applySeconds": applied,
        "allPodsSeconds": all,
        "allReadySeconds": ready,
        "cpuSeconds": cpu,
        "controlPlaneCpuSeconds": plane_cpu,
        "restart50Seconds": at_once,
        "peakKiB": peak,
        "idleKiB": rest,
        "idleCores": idle,
    })
}

/// Measures a client that creates, one by one, as many pods as all the jobs have together. This cost is the lower bound
/// for every operator.
fn floor(cluster: &Cluster) -> Value {
    println!("{}", cluster.system.name);
    let names: Vec<String> = (0..JOBS * STAGES).map(|n| format!("pod-{n}")).collect();
    let (plane_cpu, started) = (cluster.plane_cpu(), Instant::now());
    names.iter().for_each(|name| cluster.create(name));
    let all = started.elapsed().as_secs_f64();
    names.iter().for_each(|name| cluster.pods.wait_ready(name, cluster.system.first_attempt, 1));
    let ready = started.elapsed().as_secs_f64();
    std::thread::sleep(SETTLE);
    let plane_cpu = cluster.plane_cpu() - plane_cpu;
    let beside = format!("all ready after {ready:.1} s; {plane_cpu:.0} s the control plane's CPU");
    line(&format!("all {} pods exist", names.len()), format!("{all:.1} s"), &beside);
    json!({"allPodsSeconds": all, "allReadySeconds": ready, "controlPlaneCpuSeconds": plane_cpu})
}

/// Returns the number of writes per single job between the counts `from` and `to`, by request. Requests with fewer than
/// 0.1 writes per job are omitted.
fn per_job(from: &BTreeMap<String, f64>, to: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let more = |(request, count): (&String, &f64)| {
        let count = (count - from.get(request).unwrap_or(&0.0)) / SINGLES as f64;
        (count >= 0.1).then(|| (request.clone(), count))
    };
    to.iter().filter_map(more).collect()
}
