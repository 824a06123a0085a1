//! The trainer's own tests of its kernels on a GPU, and what it times there. A rehearsal lists them.

use std::process::Command;

use serde_json::{Value, json};

use super::gpu_run::{GpuRun, shortened};
use crate::stats::line;

/// Names the binary of the trainer's unit tests.
const KERNEL_TESTS: &str = "STAGECOACH_KERNEL_TESTS";
const TESTS: &str = "kernels::tests::gpu::";
const TIMES: &str = "kernels::tests::determinism::";

pub(super) fn measure_tests(run: &GpuRun) -> Value {
    let Some((passed, stdout)) = run_tests(run, TESTS, &[]) else { return list(run, TESTS) };
    let result = stdout.lines().rfind(|line| line.starts_with("test result")).unwrap_or("no result");
    line("kernels", if passed { "pass" } else { "FAIL" }.into(), result);
    if !passed {
        run.wrong("a test of the kernels failed".into());
    }
    json!({ "passed": passed, "result": result, "said": (!passed).then_some(&stdout) })
}

/// The cost of a fixed order of sums.
pub(super) fn measure_determinism(run: &GpuRun) -> Value {
    const FASTEST: &str = "a GPU computes by training.kernels: Fastest alone (Portable takes the CPU, or is refused), \
                           which is deterministic there: nothing that is faster can be chosen";
    let arguments = ["--nocapture", "--test-threads=1"];
    let mut report = match run_tests(run, TIMES, &arguments) {
        Some((passed, stdout)) => {
            assert!(passed, "{}", shortened(&stdout));
            times(&stdout)
        }
        None => list(run, TIMES),
    };
    report["fastest"] = FASTEST.into();
    report
}

/// The JSON output of the tests.
fn times(stdout: &str) -> Value {
    let object = |line: &str| serde_json::from_str(&line[line.find('{')?..]).ok();
    let times: Vec<Value> = stdout.lines().filter_map(object).collect();
    for time in &times {
        let ratio = time["ratio"].as_f64().unwrap_or(f64::NAN);
        line(time["what"].as_str().unwrap_or_default(), format!("{ratio:.3}"), "deterministic over not deterministic");
    }
    json!({ "times": times })
}

fn tests() -> Command {
    let binary = std::env::var_os(KERNEL_TESTS);
    Command::new(binary.unwrap_or_else(|| panic!("{KERNEL_TESTS} names no binary: see scripts/gpu.sh")))
}

/// Runs the tests whose names begin so, which need a GPU; None in a rehearsal.
fn run_tests(run: &GpuRun, prefix: &str, arguments: &[&str]) -> Option<(bool, String)> {
    run.gpu()?;
    let (passed, stdout, stderr) = run.execute(tests().args([prefix, "--ignored"]).args(arguments), 120);
    Some((passed, stdout + &stderr))
}

/// # Panics
/// If there are none.
fn list(run: &GpuRun, prefix: &str) -> Value {
    let (_, stdout, _) = run.execute(tests().args([prefix, "--ignored", "--list"]), 30);
    let names: Vec<&str> = stdout.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    assert!(!names.is_empty(), "there is no test {prefix}");
    for name in &names {
        run.not_measured(name, "there is no GPU");
    }
    json!({ "listed": names })
}
