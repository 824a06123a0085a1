//! Runs the tests and the timings of the crate `kernels` on a GPU. In a rehearsal (a run without a GPU), this module
//! only lists the tests.

use std::process::Command;

use serde_json::{Value, json};

use super::gpu_run::{GpuRun, shortened};
use crate::stats::line;

/// The environment variable with the path of the binary of the unit tests of the crate `kernels`.
const KERNEL_TESTS: &str = "STAGECOACH_KERNEL_TESTS";
const TESTS: &str = "tests::gpu::";
/// The arguments of the tests. The tests run on one thread, because the backward pass of flash attention sets a flag of
/// the whole process.
const ARGUMENTS: [&str; 2] = ["--nocapture", "--test-threads=1"];
const OPERATIONS: &str = "tests::speed::";
const TIMES: &str = "tests::determinism::";

pub(super) fn measure_tests(run: &GpuRun) -> Value {
    let Some((passed, stdout)) = run_tests(run, TESTS) else { return list(run, TESTS) };
    let result = stdout.lines().rfind(|line| line.starts_with("test result")).unwrap_or("no result");
    line("kernels", if passed { "pass" } else { "FAIL" }.into(), result);
    if !passed {
        run.wrong("a test of the kernels failed".into());
        run.keep_output("tests of the kernels", &stdout);
    }
    json!({ "passed": passed, "result": result, "said": (!passed).then(|| shortened(&stdout)) })
}

/// Measures the cost of a fixed order of sums.
pub(super) fn measure_determinism(run: &GpuRun) -> Value {
    const FASTEST: &str = "on a GPU, training.kernels is always Fastest (with Portable, the job uses the CPU or is \
                           refused). Fastest is deterministic on GPUs, and there is no faster setting";
    let mut report = times(run, TIMES, |time| {
        let ratio = time["ratio"].as_f64().unwrap_or(f64::NAN);
        (format!("{ratio:.3}"), "time with a fixed order of sums / time without".into())
    });
    report["fastest"] = FASTEST.into();
    report
}

/// Measures the time of each operation of a step, and the rate that the operation reaches.
pub(super) fn measure_operations(run: &GpuRun) -> Value {
    times(run, OPERATIONS, |time| {
        let rate = match (time["teraflops"].as_f64(), time["gigabytesPerSecond"].as_f64()) {
            (Some(teraflops), _) => format!("{teraflops:.0} TFLOP/s"),
            (None, Some(gigabytes)) => format!("{gigabytes:.0} GB/s"),
            (None, None) => String::new(),
        };
        (format!("{:.3} ms", time["milliseconds"].as_f64().unwrap_or(f64::NAN)), rate)
    })
}

/// Returns the JSON output of the tests whose names begin with `prefix`. Prints each object with the value and the
/// remark that `described` returns for it.
fn times(run: &GpuRun, prefix: &str, described: impl Fn(&Value) -> (String, String)) -> Value {
    let Some((passed, stdout)) = run_tests(run, prefix) else { return list(run, prefix) };
    let object = |line: &str| serde_json::from_str(&line[line.find('{')?..]).ok();
    let times: Vec<Value> = stdout.lines().filter_map(object).collect();
    for time in &times {
        let (value, remark) = described(time);
        line(time["what"].as_str().unwrap_or_default(), value, &remark);
    }
    if !passed {
        run.keep_output(prefix, &stdout);
    }
    json!({ "times": times, "failure": (!passed).then(|| shortened(&stdout)) })
}

fn tests() -> Command {
    let binary = std::env::var_os(KERNEL_TESTS);
    Command::new(binary.unwrap_or_else(|| panic!("{KERNEL_TESTS} names no binary: see scripts/gpu.sh")))
}

/// Runs the tests whose names begin with `prefix`, which need a GPU. Returns whether they passed, and their output;
/// `None` in a rehearsal.
fn run_tests(run: &GpuRun, prefix: &str) -> Option<(bool, String)> {
    run.gpu()?;
    let (passed, stdout, stderr) = run.execute(tests().args([prefix, "--ignored"]).args(ARGUMENTS), 120);
    Some((passed, stdout + &stderr))
}

/// Lists the tests whose names begin with `prefix`, and records them as not measured.
///
/// # Panics
/// If no test's name begins with `prefix`.
fn list(run: &GpuRun, prefix: &str) -> Value {
    let (_, stdout, _) = run.execute(tests().args([prefix, "--ignored", "--list"]), 30);
    let names: Vec<&str> = stdout.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    assert!(!names.is_empty(), "there is no test {prefix}");
    for name in &names {
        run.not_measured(name, "there is no GPU");
    }
    json!({ "listed": names })
}
