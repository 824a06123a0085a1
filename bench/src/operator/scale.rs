//! Measures the cost of many thousand finished jobs beside running jobs: at rest, and after a restart of the API
//! server, which ends every watch. `STAGECOACH_FINISHED` and `STAGECOACH_RUNNING` set the numbers of jobs.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stagecoach_cluster::{Component, merge, pipeline_job, until_within};

use super::SETTLE;
use super::answers::StatusServer;
use super::cluster::Cluster;
use super::pods::PODS;
use super::system::{STAGECOACH, STAGES, System};
use crate::stats::line;

/// The time of the measurement at rest. It is longer than the five minutes after which the operator reconciles an
/// unfinished job again.
const AT_REST: Duration = Duration::from_secs(330);
/// The number of clients that create jobs at the same time.
const CLIENTS: usize = 4;
/// The time within which an action must reach all jobs, in seconds.
const PATIENCE_SECONDS: u64 = 600;

pub(crate) fn measure() -> Value {
    let (finished, running) = (count("STAGECOACH_FINISHED", 10_000), count("STAGECOACH_RUNNING", 1_000));
    println!("{running} jobs of {STAGES} pods beside {finished} that are over");
    let answers = StatusServer::serve();
    answers.set(true);
    let audit = Audit::new();
    let mut cluster = Cluster::without_operator(STAGECOACH, &answers, audit.flags());
    let complete = Complete::make(&mut cluster);
    make_all(finished, |n| complete.copy(&cluster, &format!("over-{n}")));
    let listed = audit.lists();
    cluster.start_operator();
    make_all(running, |n| cluster.create(&format!("job-{n}")));
    for n in 0..running {
        cluster.pods.wait_ready(&format!("job-{n}"), STAGECOACH.first_attempt, STAGES);
    }
    let start_lists = audit.lists() - listed;
    until_within("all jobs to run", PATIENCE_SECONDS, || (phases(&cluster, "Running") == running).then_some(()));
    assert_eq!(phases(&cluster, "Complete"), finished + 1, "a job that was over has begun again");
    std::thread::sleep(10 * SETTLE);
    let (listed, peak) = (audit.lists(), cluster.memory("VmHWM:"));
    let [cores, plane_cores] = cluster.cores(AT_REST);
    let lists = audit.lists() - listed;
    let kib = cluster.memory("VmRSS:");
    let mib = |kib: u64| format!("{:.0} MiB", kib as f64 / 1024.0);
    let at_rest = format!("control plane {:.1} %; {lists} lists in {} s", plane_cores * 100.0, AT_REST.as_secs());
    line("at rest", format!("{:.2} %", cores * 100.0), &at_rest);
    line("memory", mib(kib), &format!("{} at the peak", mib(peak)));

    let (listed, cpu, started) = (audit.lists(), cluster.cpu(), Instant::now());
    cluster.plane.restart_api_server();
    std::thread::sleep(Duration::from_secs(60));
    let (again, again_cpu) = (audit.lists() - listed, cluster.cpu() - cpu);
    line("the API server restarts: lists", again.to_string(), &format!("{again_cpu:.1} s of CPU within a minute"));
    println!("  {:.0} s", started.elapsed().as_secs_f64());
    json!({
        "finishedJobs": finished, "runningJobs": running, "podsOfARunningJob": STAGES,
        "startLists": start_lists,
        "atRest": {"seconds": AT_REST.as_secs(), "operatorCores": cores, "controlPlaneCores": plane_cores, "lists": lists},
        "KiB": kib, "peakKiB": peak,
        "serverRestart": {"lists": again, "cpuSeconds": again_cpu},
    })
}

fn count(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

fn make_all(count: usize, make: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let make = &make;
            scope.spawn(move || (client..count).step_by(CLIENTS).for_each(make));
        }
    });
}

/// Returns the number of jobs in a phase, by the status that the operator writes.
fn phases(cluster: &Cluster, phase: &str) -> usize {
    let jobs = cluster.plane.client().list(STAGECOACH.jobs);
    jobs.iter().filter(|job| job["status"]["phase"] == phase).count()
}

/// A complete job of one stage, with the operator's last status, and the job's pod, with the node's last status.
struct Complete {
    job: Value,
    pod: Value,
}

impl Complete {
    const NAME: &'static str = "prototype";

    /// Runs the job, and stops the operator afterwards.
    fn make(cluster: &mut Cluster) -> Complete {
        cluster.start_operator();
        let mut job = pipeline_job(Complete::NAME, json!({"stages": 1, "scheduling": {"gang": "None"}}));
        let ends = json!({"template": {"metadata": {"labels": {"stagecoach.test/ends": "true"}}}});
        merge(&mut job["spec"], ends);
        let System { jobs, .. } = cluster.system;
        let client = cluster.plane.client();
        client.create(jobs, &job).unwrap_or_else(|refusal| panic!("{refusal}"));
        let path = format!("{jobs}/{}", Complete::NAME);
        let job = until_within("a job to be complete", PATIENCE_SECONDS, || {
            client.get(&path).filter(|job| job["status"]["phase"] == "Complete")
        });
        let pod = client.get(&format!("{PODS}/{}-0-1", Complete::NAME)).unwrap();
        std::thread::sleep(SETTLE);
        cluster.kill_operator();
        Complete { job, pod }
    }

    /// Creates a copy of the job, with its status and its pod, while no operator runs.
    fn copy(&self, cluster: &Cluster, name: &str) {
        let (client, jobs) = (cluster.plane.client(), cluster.system.jobs);
        let refused = |refusal| panic!("{name}: {refusal}");
        let job = json!({"apiVersion": self.job["apiVersion"], "kind": self.job["kind"], "metadata": {"name": name},
            "spec": self.job["spec"]});
        let created = client.create(jobs, &job).unwrap_or_else(refused);
        let [uid, first_uid] = [&created, &self.job].map(|job| job["metadata"]["uid"].as_str().unwrap());
        let own = |value: &Value| -> Value {
            let text = value.to_string().replace(first_uid, uid).replace(Complete::NAME, name);
            serde_json::from_str(&text).unwrap()
        };
        let status = json!({"status": own(&self.job["status"])});
        client.patch(&format!("{jobs}/{name}/status"), &status).unwrap_or_else(refused);
        let mut pod = own(&self.pod);
        for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
            pod["metadata"].as_object_mut().unwrap().remove(field);
        }
        client.create(PODS, &pod).unwrap_or_else(refused);
        let pod_name = pod["metadata"]["name"].as_str().unwrap();
        client.patch(&format!("{PODS}/{pod_name}/status"), &json!({"status": pod["status"]})).unwrap_or_else(refused);
    }
}

/// The API server's audit log, with the list requests of the operator and of this program.
struct Audit {
    folder: PathBuf,
}

impl Audit {
    fn new() -> Audit {
        let folder = std::env::temp_dir().join(format!("stagecoach-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "verbs": ["list"], "users": ["admin"]}, {"level": "None"}]});
        std::fs::write(folder.join("policy.yaml"), policy.to_string()).unwrap();
        Audit { folder }
    }

    fn flags(&self) -> Vec<(Component, String)> {
        let at = |name: &str| self.folder.join(name).display().to_string();
        [format!("--audit-policy-file={}", at("policy.yaml")), format!("--audit-log-path={}", at("audit.log"))]
            .map(|flag| (Component::ApiServer, flag))
            .to_vec()
    }

    /// Returns the number of list requests so far. The pages of one list count as one request.
    fn lists(&self) -> usize {
        let text = std::fs::read_to_string(self.folder.join("audit.log")).unwrap_or_default();
        text.lines().filter(|line| !line.contains("continue=")).count()
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
