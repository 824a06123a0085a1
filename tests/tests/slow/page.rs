//! The live page, which shows the data of a job's folder: for a running job that recovers from failures, for a long run
//! that has ended, and for stage 0 in a pod.

mod browser;
mod planner;
mod terminal;

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use stagecoach_tests::page_reader::PageAddress;
use stagecoach_tests::{Group, Launched, TestJob, corpus, signal, spawn, stagecoach, until};

fn job() -> TestJob {
    let extra = "  checkpoint: {everySteps: 5}\n".to_owned();
    TestJob { name: "page".into(), decay_steps: Some(60), extra, ..TestJob::default() }.endless()
}

/// Waits for the page's address in a run's output, and returns it.
fn printed(file: &Path) -> PageAddress {
    until("the page's address", || PageAddress::find(&std::fs::read_to_string(file).ok()?))
}

/// A command that serves a page. Dropping this value ends the command.
struct Serving(Child);

impl Serving {
    /// Starts `stagecoach page`.
    fn start(folder: &Path, log: &Path) -> (Serving, PageAddress) {
        Serving::run(Command::new(stagecoach()).arg("page").arg(folder), log)
    }

    fn run(command: &mut Command, log: &Path) -> (Serving, PageAddress) {
        let stdout = std::fs::File::create(log).unwrap();
        let child = spawn(command.stdout(stdout).stderr(Stdio::null())).unwrap();
        (Serving(child), printed(log))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the value of the entry `name` in the list of numbers (`figures`) of the page.
fn figure(figures: &str, name: &str) -> Option<String> {
    let (_, rest) = figures.split_once(&format!("<dt>{name}</dt><dd>"))?;
    Some(rest.split_once("</dd>")?.0.to_owned())
}

/// Returns the loss of a step in `metrics.jsonl`.
fn recorded_loss(folder: &Path, step: u64) -> Option<f64> {
    let lines = std::fs::read_to_string(folder.join("metrics.jsonl")).ok()?;
    let mut records = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    records.find(|record| record["step"] == step)?["loss"].as_f64()
}

#[test]
fn a_run_prints_the_address_of_a_page_that_follows_it_through_a_recovery() {
    let workspace = corpus::workspace();
    let folder = workspace.path().join("page");
    let mut launched = Launched::start(workspace.path(), &job(), &[]);
    let page = printed(&workspace.path().join("stdout"));
    let mut follower = page.follow("");
    // at two steps, the page shows the loss that metrics.jsonl records
    for least in [3, 12] {
        let (step, loss) = follower.until("a step", |parts| {
            let figures = parts.get("figures")?;
            let step: u64 = figure(figures, "step")?.replace(',', "").parse().ok()?;
            (step >= least).then(|| (step, figure(figures, "loss").unwrap()))
        });
        let recorded = until("the step's line", || recorded_loss(&folder, step));
        assert_eq!(loss, format!("{recorded:.4}"), "step {step}");
    }
    follower
        .until("a checkpoint", |parts| parts.get("checkpoints")?.contains("manifest and sizes match").then_some(()));
    follower.until("a timeline", |parts| parts.get("timeline")?.contains("simulated with the").then_some(()));
    follower.until("memory", |parts| parts.get("memory")?.contains("MiB").then_some(()));
    assert!(follower.parts["recoveries"].contains("No stage has failed"), "{:#?}", follower.parts);

    signal(launched.stages()[1], libc::SIGKILL);
    launched.wait_for_restart(workspace.path());
    for words in [
        "stage 1: Killed, exit code 137 (SIGKILL)",
        "started again ",
        "joined and loaded ",
        "first step ",
        "Training resumed from the checkpoint of step ",
    ] {
        follower.until(words, |parts| parts.get("recoveries")?.contains(words).then_some(()));
    }
    // the page still shows the first failure after a second one
    signal(launched.wait_for_stages(3)[2], libc::SIGKILL);
    follower.until("both failures", |parts| {
        let reported = parts.get("recoveries")?;
        Some(()).filter(|()| reported.contains("stage 1: Killed") && reported.contains("stage 2: Killed"))
    });
    launched.interrupt(workspace.path());
}

#[test]
fn without_the_token_a_run_shows_nothing_but_health() {
    let workspace = corpus::workspace();
    let launched = Launched::start(workspace.path(), &job(), &[]);
    let page = printed(&workspace.path().join("stdout"));
    for path in ["/", "/page.js", "/events", "/0123456789abcdef0123456789abcdef/"] {
        let (head, body) = page.get(path);
        assert!(head.starts_with("HTTP/1.1 404") && body.lines().count() == 1, "{head}\n{body}");
        assert!(body.contains("open the complete address"), "{body}");
    }
    assert_eq!(page.get("/healthz").1, "ok\n");
    let (head, body) = page.get(&page.path);
    assert!(head.starts_with("HTTP/1.1 200") && body.contains("<h1>page</h1>"), "{head}\n{body}");
    assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self';"), "{head}");
    // neither the list of this machine's processes nor the job's files contain the token
    let arguments = std::fs::read_to_string(format!("/proc/{}/cmdline", launched.child.id())).unwrap();
    let token = page.path.trim_matches('/');
    assert!(!arguments.contains(token));
    let files = std::fs::read_dir(workspace.path().join("page")).unwrap().flatten();
    for file in files.filter(|file| file.path().is_file()) {
        assert!(!String::from_utf8_lossy(&std::fs::read(file.path()).unwrap_or_default()).contains(token), "{file:?}");
    }
}

/// Writes a folder with the metrics of a run of `steps` steps.
fn long_run(folder: &Path, steps: u64) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("lock"), "1\n").unwrap();
    let lines = (1..=steps).map(|step| {
        let loss = 3.0 + 5.0 * (-(step as f64) / 8000.0).exp() + 0.1 * (step as f64 * 0.7).sin();
        let held_out = if step % 100 == 0 { format!(",\"evaluationLoss\":{}", loss + 0.05) } else { String::new() };
        format!(
            "{{\"step\":{step},\"loss\":{loss}{held_out},\"gradientNorm\":1.0,\"learningRate\":0.001,\"tokens\":4096,\
             \"tokensPerSecond\":6400.0,\"seconds\":0.64,\"bubble\":[0.2,0.2],\"bytesSent\":1,\"peakBytes\":[1000000,2000000]}}\n"
        )
    });
    std::fs::write(folder.join("metrics.jsonl"), lines.collect::<String>()).unwrap();
}

#[test]
fn fifty_thousand_steps_are_a_page_of_bounded_bytes_also_zoomed() {
    let workspace = tempfile::tempdir().unwrap();
    let folder = workspace.path().join("long");
    long_run(&folder, 50_000);
    let (_serving, page) = Serving::start(&folder, &workspace.path().join("address"));
    for query in ["", "?from=20000&to=20100", "?from=49990", "?from=1&to=3&width=1600", "?from=x&to=99999999999"] {
        let (head, body) = page.get(&format!("{}{query}", page.path));
        assert!(head.starts_with("HTTP/1.1 200"), "{query}: {head}");
        assert!(body.len() < 200_000 && body.contains("50,000"), "{} bytes for {query:?}", body.len());
    }
    let mut follower = page.follow("?from=20000&to=20100&width=640");
    let chart = follower.until("the chart", |parts| {
        parts.get("recoveries")?;
        parts.get("loss").cloned()
    });
    assert!(chart.contains("data-first=\"20000\" data-last=\"20100\"") && chart.contains("0 0 640 "), "{chart}");
    assert!(follower.bytes < 200_000, "{} bytes", follower.bytes);
    // one more step updates only some parts of the page, and sends fewer bytes than the first load
    let before = follower.bytes;
    let mut metrics = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    metrics += "{\"step\":50001,\"loss\":1.25}\n";
    std::fs::write(folder.join("metrics.jsonl"), metrics).unwrap();
    follower.until("the step", |parts| parts.get("figures")?.contains("1.2500").then_some(()));
    assert!(follower.bytes - before < 50_000, "{} bytes", follower.bytes - before);
}

#[test]
fn a_pods_stage_0_serves_the_page_on_its_loopback_with_its_recoveries() {
    let workspace = corpus::workspace();
    let job = TestJob { stages: 1, ..job() };
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let variables = [("STAGECOACH_HTTP_PORT", free.as_str())];
    let _group = Group::start_program(&stagecoach(), &variables, workspace.path(), &job, "uid", 1);
    let page = printed(&workspace.path().join("uid-1/stage-0.log"));
    let mut follower = page.follow("");
    follower.until("a step", |parts| parts.get("standing")?.contains("It runs: ").then_some(()));
    follower.until("the loss", |parts| figure(parts.get("figures")?, "loss"));
    let (head, _) = page.get("/");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    // the status must not contain the token, since everyone who may read the job can see the status
    let status = PageAddress { host: format!("127.0.0.1:{free}"), path: String::new() }.get("/status").1;
    assert!(!status.contains(page.path.trim_matches('/')), "{status}");
}

#[test]
fn a_folder_that_is_no_jobs_and_a_port_that_is_taken_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let printed = |arguments: &[&str]| {
        let output = Command::new(stagecoach()).arg("page").args(arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let path = folder.path().to_str().unwrap();
    assert!(
        printed(&[&format!("{path}/nowhere")]).contains("nowhere does not exist: expected one such as workspace/NAME")
    );
    assert!(printed(&[path]).contains("is no job's folder"));
    long_run(folder.path(), 1);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let reported = printed(&[path, "--page-port", &port]);
    assert!(reported.contains(&format!("could not serve the page at port {port} of 127.0.0.1")), "{reported}");
    assert_eq!(reported.lines().count(), 1, "{reported}");
}
