//! A run sends its metrics and traces to an OpenTelemetry collector. A collector that does not answer does not affect
//! the run.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use stagecoach_tests::{Launched, Outcome, TestJob, checkpoints, corpus, signal, spawn, undisturbed, until};

/// A real collector on this machine that writes the received data to a file. Dropping this value kills the collector.
struct Collector {
    child: Child,
    port: u16,
    output: PathBuf,
}

impl Collector {
    fn start(folder: &Path) -> Collector {
        let tools = std::env::var("STAGECOACH_CLUSTER_TOOLS")
            .expect("STAGECOACH_CLUSTER_TOOLS is not set, expected the folder of otelcol: run `make collector`");
        // the port was free a moment ago; the collector can't report a port that it chooses itself
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = format!(
            "receivers: {{otlp: {{protocols: {{http: {{endpoint: \"127.0.0.1:{port}\"}}}}}}}}
exporters: {{debug: {{verbosity: detailed}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    metrics: {{receivers: [otlp], exporters: [debug]}}
    traces: {{receivers: [otlp], exporters: [debug]}}
"
        );
        let (file, output) = (folder.join("collector.yaml"), folder.join("collector.log"));
        std::fs::write(&file, config).unwrap();
        let log = std::fs::File::create(&output).unwrap();
        let mut command = Command::new(Path::new(&tools).join("otelcol"));
        command.arg("--config").arg(&file).stdout(Stdio::null()).stderr(log);
        let collector = Collector { child: spawn(&mut command).unwrap(), port, output };
        until("the collector", || collector.wrote().contains("Everything is ready").then_some(()));
        collector
    }

    fn wrote(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap()
    }

    /// Returns the spans received so far, in no particular order.
    fn spans(&self) -> Vec<Span> {
        let wrote = self.wrote();
        wrote.split("\nSpan #").skip(1).map(Span::read).collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The fields and attributes of a span, by name.
#[derive(Clone, Debug)]
struct Span(BTreeMap<String, String>);

impl Span {
    fn read(text: &str) -> Span {
        let field = |line: &str| {
            let (key, value) = line.trim().trim_start_matches("-> ").split_once(':')?;
            Some((key.trim().to_owned(), value.trim().to_owned()))
        };
        // a span ends at the first line that is neither indented nor `Attributes:`
        let own = text.lines().skip(1).take_while(|line| line.starts_with(' ') || *line == "Attributes:");
        Span(own.filter_map(field).collect())
    }

    fn get(&self, key: &str) -> &str {
        self.0.get(key).unwrap_or_else(|| panic!("no {key} in {self:?}"))
    }

    fn is(&self, name: &str) -> bool {
        self.get("Name") == name
    }

    fn step(&self) -> Option<&str> {
        self.0.get("step").map(String::as_str)
    }
}

/// Runs `job`, which sends its metrics and traces to the collector at `endpoint`. Calls `disturb` while the job runs,
/// and then waits until the job ends.
fn run(job: &TestJob, endpoint: &str, disturb: impl FnOnce(&mut Launched, &Path)) -> Outcome {
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    let file = workspace.join("job.yaml");
    std::fs::write(&file, job.yaml()).unwrap();
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "86400000"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=tests"),
    ];
    let folder = workspace.join(&job.name);
    let program = stagecoach_tests::stagecoach();
    let mut launched = Launched::start_program(&program, workspace, &file, folder, &[], &environment);
    disturb(&mut launched, workspace);
    launched.finish(workspace)
}

#[test]
#[ignore = "needs a collector: make collector"]
fn a_collector_gets_metrics_and_traces() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let extra = "  checkpoint: {everySteps: 50}\n  restart: {backoff: {initialSeconds: 0}}\n";
    let job = TestJob { name: "job".into(), steps: 600, extra: extra.into(), ..TestJob::default() };
    let outcome = run(&job, &format!("http://127.0.0.1:{}", collector.port), |launched, workspace| {
        until("a checkpoint", || (!checkpoints(&workspace.join("job")).is_empty()).then_some(()));
        signal(launched.wait_for_stages(3)[1], libc::SIGKILL);
        launched.wait_for_restart(workspace);
    });
    assert_eq!(outcome.hashes(), undisturbed(&job));
    let spans = collector.spans();
    let of_last_step: Vec<&Span> =
        spans.iter().filter(|span| span.is("step") && span.step() == Some("Int(600)")).collect();
    let by_stage: BTreeMap<&str, &Span> = of_last_step.iter().map(|span| (span.get("stage"), *span)).collect();
    assert_eq!(by_stage.len(), 3, "a span of each stage: {of_last_step:?}");
    let root = by_stage["Int(0)"];
    assert_eq!(root.get("Parent ID"), "");
    for stage in ["Int(1)", "Int(2)"] {
        assert_eq!(by_stage[stage].get("Trace ID"), root.get("Trace ID"), "stages share a step's trace");
        assert_eq!(by_stage[stage].get("Parent ID"), root.get("ID"));
    }
    let actions: Vec<&Span> = spans
        .iter()
        .filter(|span| span.get("Trace ID") == root.get("Trace ID") && span.0.contains_key("action"))
        .collect();
    let kinds: BTreeSet<(&str, &str)> = actions.iter().map(|span| (span.get("stage"), span.get("Name"))).collect();
    let expected = ["Int(0)", "Int(1)", "Int(2)"].into_iter();
    let expected: BTreeSet<_> = expected.flat_map(|stage| ["F", "B", "EXCHANGE"].map(|kind| (stage, kind))).collect();
    assert_eq!(kinds, expected);
    for action in actions {
        assert_eq!(action.get("Parent ID"), by_stage[action.get("stage")].get("ID"));
    }
    // each stage sends a span every time it trains a step; a step counts once here even if it was trained twice
    let steps: BTreeSet<&str> = spans.iter().filter(|span| span.is("step")).filter_map(Span::step).collect();
    assert!(steps.len() as u64 >= job.steps - 1, "{} steps", steps.len());
    assert!(spans.iter().any(|span| span.is("checkpoint") && span.step() == Some("Int(600)")));
    let recovered: BTreeSet<&str> =
        spans.iter().filter(|span| span.is("recovery")).map(|span| span.get("stage")).collect();
    assert_eq!(recovered, BTreeSet::from(["Int(0)", "Int(1)", "Int(2)"]));
    assert!(["joined", "loaded", "first_step"].iter().all(|phase| spans.iter().any(|span| span.is(phase))));

    let wrote = collector.wrote();
    for (name, value) in [("stagecoach_step", "600.000000"), ("stagecoach_checkpoint_step", "600.000000")] {
        let mut of_name = wrote.split("\n     -> Name: ").filter(|text| text.starts_with(&format!("{name}\n")));
        assert!(of_name.any(|text| text.contains(&format!("Value: {value}"))), "{name}");
    }
    for text in ["service.name: Str(stagecoach-trainer)", "stagecoach.stage: Str(2)", "team: Str(tests)"] {
        assert!(wrote.contains(text), "{text}");
    }
}

#[test]
fn a_collector_that_is_away_changes_nothing() {
    let job = TestJob { name: "job".into(), ..TestJob::default() };
    let undisturbed = undisturbed(&job);
    let refused = run(&job, "http://127.0.0.1:1", |_, _| {});
    assert_eq!(refused.hashes(), undisturbed);
    // this collector accepts connections and never answers, and the exporter's timeout is a day; before a stage exits,
    // it nevertheless waits for the collector at most one second
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    assert_eq!(run(&job, &endpoint, |_, _| {}).hashes(), undisturbed);
    let misspelt = run(&job, "collector:4317", |_, _| {});
    assert_eq!(misspelt.hashes(), undisturbed);
}
