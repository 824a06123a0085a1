//! Kills a stage with SIGKILL during training. The job recovers in one of two ways. Either the remaining stages form
//! the next group with a replacement, or all stages exit and the next attempt starts all stages. In both cases the
//! final bits must be those of an undisturbed run.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use stagecoach_tests::{Ended, Hashes, TestJob, saved, signal, undisturbed, until_within};

use super::gpu_run::{GpuRun, attempt_in};
use crate::recovery::kill_to_first_step;
use crate::stats::line;

fn job(run: &GpuRun, transport: &'static str, restart: &str) -> TestJob {
    let extra = format!("  checkpoint: {{everySteps: 4, keepLast: 2}}\n  restart: {{{restart}}}\n");
    TestJob {
        name: "killed".into(),
        stages: 2,
        transport,
        device: run.device(),
        precision: "BFloat16",
        decay_steps: Some(60),
        extra,
        ..TestJob::default()
    }
}

/// A function that runs a job with the given transport in the given workspace, kills a stage, and returns the
/// measurements.
type Kill = fn(&GpuRun, &'static str, &Path) -> Value;

pub(super) fn measure(run: &GpuRun) -> Value {
    let mut all = Vec::new();
    for transport in ["Nccl", "Tcp"] {
        for (who, kill) in [("next group", next_group as Kill), ("next attempt", next_attempt)] {
            let what = format!("a killed stage, {transport}, {who}");
            if !run.has_time_for(&what, 25) {
                continue;
            }
            let own = run.workspace(&format!("{transport}-{}", who.replace(' ', "-")));
            let mut reported = attempt_in(&own, || kill(run, transport, &own)).unwrap_or_else(|failure| {
                // the failure counts as an error only if the job had trained and the run still has time
                let has_trained = std::fs::metadata(own.join("killed/metrics.jsonl")).is_ok_and(|file| file.len() > 0);
                let is_stuck = has_trained && run.at_most(1) > 0;
                let reported = if is_stuck { "DID NOT RECOVER" } else { "FAILED" };
                line(&what, reported.into(), failure.lines().next().unwrap_or_default());
                if is_stuck {
                    run.wrong(format!("{what}: {failure}"));
                }
                json!({ "failure": failure })
            });
            reported["transport"] = transport.into();
            reported["goneOnBy"] = who.into();
            all.push(reported);
        }
    }
    all.into()
}

/// Kills each of the two stages once. The launcher replaces the killed stage while the other stage keeps running.
fn next_group(run: &GpuRun, transport: &'static str, own: &Path) -> Value {
    let job = job(run, transport, "backoff: {initialSeconds: 0}");
    let mut launched = run.launch(own, &job.endless());
    launched.wait_for_step(10);
    let seconds = [1, 0].map(|stage| {
        let seconds = kill_to_first_step(&launched, own, stage, run.at_most(60));
        launched.wait_for_stages(job.stages);
        line(
            &format!("stage {stage} killed, {transport}"),
            format!("{seconds:.2} s"),
            "to the first step of the next group",
        );
        json!({ "stage": stage, "secondsToNextStep": seconds })
    });
    let interrupted = launched.interrupt(own);
    let printed: Vec<&str> = interrupted.stdout.lines().filter(|line| line.contains(" restarts left; ")).collect();
    let rest = job.ending_after(saved(&own.join("killed")));
    let outcome = run.finish(run.launch(own, &rest), own, 120);
    compare(run, &format!("{transport}, next group"), &rest, own);
    json!({ "kills": seconds, "said": printed, "launcherCodes": [interrupted.status.code(), outcome.status.code()] })
}

/// Kills a stage of a job whose `reformTimeoutSeconds` is 0: every stage exits, and the next attempt starts all stages.
fn next_attempt(run: &GpuRun, transport: &'static str, own: &Path) -> Value {
    let job = job(run, transport, "reformTimeoutSeconds: 0");
    let folder = own.join("killed");
    let mut group = run.start_group(own, &job.endless(), 1);
    until_within("a checkpoint", run.at_most(60), || (!group.is_whole() || saved(&folder) >= 8).then_some(()));
    assert!(group.is_whole(), "a stage left before it was killed: {}", group.finish_before(run.deadline(60))[0].log);
    signal(group.pids()[1], libc::SIGKILL);
    let killed = Instant::now();
    let codes = |ended: &[Ended]| ended.iter().map(|ended| ended.code).collect::<Vec<_>>();
    let left = group.finish_before(run.deadline(60));
    let seconds = killed.elapsed().as_secs_f64();
    line(&format!("stage 1 killed, {transport}"), format!("{seconds:.2} s"), "until all have left");
    let rest = job.ending_after(saved(&folder));
    let ended = run.start_group(own, &rest, 2).finish_before(run.deadline(120));
    compare(run, &format!("{transport}, next attempt"), &rest, own);
    json!({ "secondsUntilAllHaveLeft": seconds, "codes": codes(&left), "said": left[0].termination_message["message"],
            "codesOfNextAttempt": codes(&ended) })
}

/// Compares the bits of the job with the bits of an undisturbed run. Records an error if they differ.
///
/// # Panics
/// If the job has no result.
fn compare(run: &GpuRun, what: &str, job: &TestJob, own: &Path) {
    let is_same = Hashes::read(&own.join("killed")) == undisturbed(job);
    line(what, if is_same { "same bits" } else { "OTHER BITS" }.into(), "as without the kill");
    if !is_same {
        run.wrong(format!("{what}: the bits after the kill differ from the bits of an undisturbed run"));
    }
}
