//! Tests of `kubectl stagecoach` with jobs that the operator runs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::{io, thread};

use serde_json::json;
use stagecoach_api::contract::{FailureKind, StageStatus, TerminationMessage};
use stagecoach_api::job::{FloatString, ProgressStatus};
use stagecoach_cluster::{run as process, tool, until};

use crate::support::{TestCluster, shared};

/// Returns a script that calls kubectl with a discovery cache in the test's folder.
fn kubectl(cluster: &TestCluster) -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let (program, cache) =
            (cluster.plane.folder().join("plugin-kubectl"), cluster.plane.folder().join("plugin-cache"));
        let real = tool("kubectl");
        let script = format!("#!/bin/sh\nexec '{}' --cache-dir '{}' \"$@\"\n", real.display(), cache.display());
        // let another process write the file: a child that another thread forks inherits the files that this process
        // has open, and a program can't start while its file is open for writing
        let mut write = Command::new("sh");
        let written = process(write.args(["-c", "cat >\"$0\" && chmod 755 \"$0\""]).arg(&program), &script);
        assert!(written.status.success(), "{written:?}");
        program
    };
    MADE.get_or_init(make).clone()
}

/// Returns the output of `kubectl stagecoach ARGUMENTS`, or its error.
fn plugin(cluster: &TestCluster, arguments: &[&str]) -> Result<String, String> {
    let mut screen = Screen::default();
    run(cluster, arguments, &mut screen).map(|()| screen.text())
}

fn run(cluster: &TestCluster, arguments: &[&str], screen: &mut Screen) -> Result<(), String> {
    let kubeconfig: [OsString; 2] = ["--kubeconfig".into(), cluster.plane.kubeconfig().into()];
    let given = arguments.iter().map(OsString::from);
    let all = ["kubectl-stagecoach".into()].into_iter().chain(kubeconfig).chain(given);
    stagecoach_kubectl::run(kubectl(cluster).as_os_str(), all, screen).map_err(|error| format!("{error:#}"))
}

/// The output so far, which can be read while the command runs.
#[derive(Clone, Default)]
struct Screen(Arc<Mutex<Vec<u8>>>);

impl Screen {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_job_that_failed_is_reported_from_cause_to_consequence() {
    let cluster = shared();
    cluster.create("told", json!({"restart": {"maxRestarts": 0}}));
    cluster.wait_running("told", 1);
    let pod = |stage: u32| cluster.kubelet.pod(&format!("told-{stage}-1"));
    let progress = ProgressStatus {
        step: 40,
        steps: Some(100),
        loss: Some(FloatString(2.5)),
        tokens_per_second: Some(FloatString(900.0)),
        imbalance: Some(FloatString(1.25)),
        ..ProgressStatus::default()
    };
    pod(0).set_status(StageStatus { progress, ..StageStatus::default() });
    cluster.wait("told", "at step 40", |job| job["status"]["progress"]["step"] == 40);

    let top = plugin(cluster, &["top", "told"]).unwrap();
    let words: Vec<Vec<&str>> = top.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0][..5], ["NAME", "PHASE", "STEP", "LOSS", "TOKENS/S"], "{top}");
    let running = ["told", "Running", "40/100", "2.5000", "900", "2/2", "-", "0", "-", "1.25x", "-"];
    assert_eq!(words[1], running, "{top}");
    assert!(plugin(cluster, &["top", "--all-namespaces"]).unwrap().contains("\ndefault/told"));
    let why = plugin(cluster, &["why", "told"]).unwrap();
    assert!(why.starts_with("told: no stage of this job has failed. It runs: 40 of 100 steps are trained."), "{why}");

    pod(1).log("one");
    pod(0).log("two");
    pod(1).log("three");
    let logs = plugin(cluster, &["logs", "told"]).unwrap();
    assert_eq!(logs, "stage 1 | one\nstage 0 | two\nstage 1 | three\n");
    assert_eq!(plugin(cluster, &["logs", "told", "--tail", "1"]).unwrap(), "stage 0 | two\nstage 1 | three\n");

    let screen = Screen::default();
    let mut own = screen.clone();
    let following = thread::spawn(move || run(cluster, &["logs", "told", "--follow"], &mut own));
    let shows = |line: &str| until(line, || screen.text().ends_with(line).then_some(()));
    shows("stage 1 | three\n");
    pod(1).log("four");
    shows("stage 1 | four\n");
    pod(0).log("five");
    shows("stage 0 | five\n");

    pod(1).exit(1, &TerminationMessage::new(FailureKind::Error, 1, "ran into a wall").to_json());
    cluster.wait("told", "failed, with its log", |job| {
        job["status"]["phase"] == "Failed" && job["status"]["lastFailure"]["logTail"].is_string()
    });
    let top = plugin(cluster, &["top"]).unwrap();
    let failed: Vec<&str> = top.lines().find(|line| line.starts_with("told ")).unwrap().split_whitespace().collect();
    assert_eq!((failed[1], failed[4]), ("Failed", "-"), "{top}");
    let why = plugin(cluster, &["why", "told"]).unwrap();
    for words in [
        "told: stage 1 failed first, at ",
        "  reason: Error, exit code 1: ran into a wall\n",
        "  log:    the end of the log of pod told-1-1:\n          | one\n          | three\n          | four\n",
        "none was started again: restart.maxRestarts is used up; 0 of 0 restarts are left.\n",
        "  now:    It has failed for good, since restart.maxRestarts is used up: 40 of 100 steps are trained. If you \
         delete the job",
        "  to do:  read the message and the end of the stage's log",
        "AttemptFailed: attempt 1: stage 1: Error: ran into a wall",
    ] {
        assert!(why.contains(words), "no {words:?} in {why}");
    }
    let logs = plugin(cluster, &["logs", "told"]).unwrap();
    assert!(
        logs.starts_with("--- stage 1 failed first: Error ---\nstage 1 | one\nstage 1 | three\nstage 1 | four\n"),
        "{logs}"
    );
    following.join().unwrap().unwrap();
    let lines = screen.text();
    assert_eq!(lines, "stage 1 | one\nstage 0 | two\nstage 1 | three\nstage 1 | four\nstage 0 | five\n", "each once");

    let refused = plugin(cluster, &["checkpoints", "told"]).unwrap_err();
    let problem = "no pod of job told runs, and this command reads the job's volume in a running pod";
    assert!(refused.starts_with(problem), "{refused}");
}

#[test]
fn a_replay_runs_in_a_job_of_its_own_that_goes_with_it() {
    let cluster = shared();
    let spec = json!({
        "storage": {"persistentVolumeClaim": {"claimName": "training"}, "path": "runs/proven"},
        "template": {"spec": {"priorityClassName": "system-node-critical"}},
    });
    cluster.create("proven", spec);
    cluster.wait_running("proven", 1);
    let screen = Screen::default();
    let mut own = screen.clone();
    let replaying = thread::spawn(move || {
        let ended = run(cluster, &["replay", "proven", "--", "--step", "3"], &mut own);
        eprintln!("the plugin has ended: {ended:?}");
        ended
    });
    let jobs = || cluster.plane.client().list("/apis/stagecoach.dev/v1alpha1/namespaces/default/pipelinejobs");
    let name = |job: &serde_json::Value| job["metadata"]["name"].as_str().unwrap().to_owned();
    let is_made = |job: &serde_json::Value| name(job).starts_with("proven-replay-");
    let made = until("its job", || jobs().into_iter().find(|job| is_made(job)));
    let pod = cluster.kubelet.pod(&format!("{}-0-1", name(&made)));
    pod.view();
    let object = cluster.pods(&name(&made)).remove(0);
    let container = &object["spec"]["containers"][0];
    assert_eq!(container["args"], json!(["replay", "/workspace/runs/proven", "--step", "3"]));
    assert_eq!((&container["command"], &container["image"]), (&json!(["stagecoach"]), &json!("example.com/trainer:1")));
    let mounts = container["volumeMounts"].as_array().unwrap();
    assert!(mounts.iter().any(|mount| mount["mountPath"] == "/workspace"), "{mounts:?}");
    assert_eq!(object["spec"]["priorityClassName"], "system-node-critical");
    pod.log("step 3: equal");
    until("its log", || (screen.text() == "step 3: equal\n").then_some(()));
    pod.log("step 4 differs");
    pod.exit(74, "");
    let refused = replaying.join().unwrap().unwrap_err();
    assert_eq!(refused, format!("stagecoach ended with exit code 74 in the pod of job {}", name(&made)));
    assert_eq!(screen.text(), "step 3: equal\nstep 4 differs\n");
    until("its job to go", || (!jobs().iter().any(is_made)).then_some(()));
    let proven = cluster.wait_phase("proven", "Running");
    assert_eq!(proven["status"]["attempt"]["number"], 1);
}

#[test]
fn what_does_not_exist_is_reported_in_kubectls_words() {
    let cluster = shared();
    let refused = plugin(cluster, &["why", "nobody"]).unwrap_err();
    let reported = "kubectl get: Error from server (NotFound): pipelinejobs.stagecoach.dev \"nobody\" not found";
    assert_eq!(refused, reported);
    assert_eq!(plugin(cluster, &["top", "-n", "kube-system"]).unwrap(), "there is no job in this namespace\n");
}
