//! Checkpoints in memory: each stage also keeps a copy of its neighbour's state in memory. A job that loses one stage
//! at a time repeats no finished step, and ends with the same state, bit for bit, as the undisturbed run.

use std::path::Path;

use stagecoach_tests::fixture::recorded_steps;
use stagecoach_tests::{
    Launched, Outcome, TestJob, corpus, ends_undisturbed, recorded_state, saved, says, signal, until,
};

/// Returns a job that saves nothing on the volume before its end.
fn plain() -> TestJob {
    let extra = "  checkpoint: {everySteps: 0}\n  restart: {backoff: {initialSeconds: 0}}\n".into();
    TestJob { name: "remembered".into(), decay_steps: Some(60), extra, ..TestJob::default() }
}

/// Returns the job with checkpoints in memory after every `interval` steps.
fn with_memory(job: &TestJob, interval: &str) -> TestJob {
    let memory = format!("everySteps: 0, memory: {{everySteps: {interval}}}");
    TestJob { extra: job.extra.replace("everySteps: 0", &memory), ..job.clone() }
}

/// Returns the steps that a run reported, in order.
fn reported(outcome: &Outcome) -> Vec<u64> {
    let step = |line: &str| line.strip_prefix("step ")?.trim_start().split('/').next()?.parse().ok();
    outcome.stdout.lines().filter_map(step).collect()
}

/// Returns the number of stages that the launcher has replaced so far.
fn replaced(workspace: &Path) -> u64 {
    recorded_state(&workspace.join("remembered"))["budget"]["replaced"].as_u64().unwrap()
}

/// Runs the job and then stops it. For each entry of `kills`, kills the stages of this entry together, and lets the job
/// train new steps before the next entry.
fn killed(workspace: &Path, job: &TestJob, kills: &[&[usize]]) -> Outcome {
    let mut launched = Launched::start(workspace, &job.endless(), &[]);
    let mut step = 5;
    for ranks in kills {
        launched.wait_for_step(step);
        kill(&launched, ranks);
        step = launched.steps() + 7;
    }
    launched.wait_for_step(step);
    launched.interrupt(workspace)
}

/// Kills these stages together and waits for their replacements. Asserts that all other stages keep their processes.
fn kill(launched: &Launched, ranks: &[usize]) {
    let before = launched.stages();
    ranks.iter().for_each(|&rank| signal(before[rank], libc::SIGKILL));
    let now = until("the killed stages to be replaced", || {
        let now = launched.stages();
        (now.len() == before.len() && ranks.iter().all(|&rank| now[rank] != before[rank])).then_some(now)
    });
    for rank in (0..before.len()).filter(|rank| !ranks.contains(rank)) {
        assert_eq!(now[rank], before[rank], "stage {rank}");
    }
}

/// Asserts that the job recorded every step, and reported no step twice.
fn no_step_twice(workspace: &Path, outcome: &Outcome) {
    let recorded = recorded_steps(&workspace.join("remembered"));
    assert!(recorded.len() > 10, "{}", outcome.stdout);
    assert!(recorded.iter().copied().eq(1..=recorded.len() as u64), "{recorded:?}");
    let reported = reported(outcome);
    assert!(reported.is_sorted_by(|step, next| step < next), "{}", outcome.stdout);
    // a leader that is killed after it has recorded a step, and before it reports the step, leaves out only this step
    for step in recorded.iter().filter(|step| !reported.contains(step)) {
        says(outcome, &format!("resuming after step {step}, which was in memory"));
    }
}

#[test]
fn one_lost_stage_at_a_time_costs_no_finished_step() {
    let jobs = [
        plain(),
        TestJob { stages: 2, tied: true, precision: "BFloat16", transport: "Tcp", ..plain() },
        TestJob { stages: 2, schedule: "ZBVZeroBubble", virtual_stages: 2, tied: true, ..plain() },
    ];
    for job in jobs {
        let workspace = corpus::workspace();
        let kills: [&[usize]; 4] = [&[0], &[1], &[job.stages - 1], &[0]];
        let outcome = killed(workspace.path(), &with_memory(&job, "1"), &kills);
        no_step_twice(workspace.path(), &outcome);
        assert_eq!(outcome.stdout.matches("which was in memory").count(), kills.len(), "{}", outcome.stdout);
        assert_eq!(replaced(workspace.path()), kills.len() as u64);
        ends_undisturbed(workspace.path(), &job);
    }
}

#[test]
fn neighbours_lost_together_resume_from_the_volume() {
    let saving = |every: &str| TestJob { extra: plain().extra.replace("everySteps: 0", every), ..plain() };
    let workspace = corpus::workspace();
    let memory = saving("everySteps: 4, memory: {everySteps: 1}");
    let mut launched = Launched::start(workspace.path(), &memory.endless(), &[]);
    let saved =
        until("a checkpoint on the volume", || Some(saved(&workspace.path().join("remembered"))).filter(|&s| s > 0));
    kill(&launched, &[0, 1]);
    launched.wait_for_restart(workspace.path());
    launched.wait_for_step(saved + 10);
    let outcome = launched.interrupt(workspace.path());
    says(&outcome, "whose checkpoint was loaded");
    ends_undisturbed(workspace.path(), &saving("everySteps: 4"));
}

#[test]
fn a_stage_lost_while_another_is_replaced_costs_no_finished_step() {
    let workspace = corpus::workspace();
    let mut launched =
        Launched::start(workspace.path(), &with_memory(&TestJob { stages: 4, ..plain() }, "1").endless(), &[]);
    for first in 0..4 {
        launched.wait_for_step(launched.steps() + 5);
        let before = launched.stages();
        signal(before[first], libc::SIGKILL);
        // the second stage is killed when a new process has replaced the first one, before the group has formed again
        until("a replacement", || {
            launched
                .stages()
                .get(first)
                .is_some_and(|&pid| pid != before[first] && launched.stages().len() == 4)
                .then_some(())
        });
        kill(&launched, &[(first + 2) % 4]);
    }
    launched.wait_for_restart(workspace.path());
    let outcome = launched.interrupt(workspace.path());
    no_step_twice(workspace.path(), &outcome);
    ends_undisturbed(workspace.path(), &TestJob { stages: 4, ..plain() });
}

#[test]
fn longer_intervals_lose_the_steps_in_between() {
    for interval in ["3", "Auto"] {
        let workspace = corpus::workspace();
        let outcome = killed(workspace.path(), &with_memory(&plain(), interval), &[&[1], &[2], &[0]]);
        assert_eq!(outcome.stdout.matches("which was in memory").count(), 3, "{}", outcome.stdout);
        ends_undisturbed(workspace.path(), &plain());
    }
}
