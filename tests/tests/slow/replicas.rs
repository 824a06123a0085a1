//! Replicas of the pipeline: any number of replicas gives the same bits, even if the number changes during training or
//! a replica loses stages.

use std::path::Path;

use stagecoach_tests::block_io::{self, IoBlock};
use stagecoach_tests::faulty::{FAULT_VARIABLE, RECORDS_VARIABLE};
use stagecoach_tests::phases::Phase;
use stagecoach_tests::{
    Launched, TestJob, corpus, each, ends_undisturbed, fences, saved, says, signal, undisturbed, until,
};

/// Returns a job that saves every 4 steps and has four gradient blocks of two microbatches. A gradient block is the
/// unit of work that replicas share.
fn job() -> TestJob {
    let extra = "  checkpoint: {everySteps: 4, keepLast: 3}\n  restart: {backoff: {initialSeconds: 0}, terminationTimeoutSeconds: 2}\n";
    TestJob {
        name: "shared".into(),
        global_batch_size: 8,
        microbatches: 8,
        gradient_blocks: 4,
        decay_steps: Some(60),
        extra: extra.into(),
        ..TestJob::default()
    }
}

fn folder(workspace: &Path) -> std::path::PathBuf {
    workspace.join("shared")
}

/// Starts a job without an end, and waits for its first checkpoint.
fn begin(workspace: &Path, job: &TestJob) -> Launched {
    let launched = Launched::start(workspace, &job.endless(), &[]);
    until("a checkpoint", || (saved(&folder(workspace)) > 0).then_some(()));
    launched
}

/// Stops the job, resumes it for a few more steps, and asserts that its results equal those of an undisturbed run, bit
/// for bit.
fn end(launched: Launched, workspace: &Path, job: &TestJob, what: &str) {
    launched.interrupt(workspace);
    println!("{what}");
    ends_undisturbed(workspace, job);
}

#[test]
fn the_number_of_replicas_may_change_half_way() {
    each("jobs", &[(false, "BFloat16"), (true, "Float32")], |_, &(tied, precision)| {
        let job = TestJob { tied, precision, ..job() };
        let workspace = corpus::workspace();
        let workspace = workspace.path();
        // with three replicas, one replica has two of the four gradient blocks, and each of the others has one
        for (stages, data_parallel, schedule, virtual_stages) in
            [(1, 4, "1F1B", 1), (2, 3, "InterleavedZeroBubble", 1), (3, 1, "1F1B", 1), (2, 2, "ZBVZeroBubble", 2)]
        {
            let step = saved(&folder(workspace)) + 6;
            let part = TestJob { stages, data_parallel, schedule, virtual_stages, ..job.clone() };
            let mut launched = Launched::start(workspace, &part.endless(), &[]);
            launched.wait_for_step(step);
            launched.interrupt(workspace);
        }
        let rest = job.ending_after(saved(&folder(workspace)));
        let last = TestJob { stages: 1, data_parallel: 2, ..rest.clone() };
        let outcome = Launched::start(workspace, &last, &[]).finish(workspace);
        assert_eq!(outcome.hashes(), undisturbed(&rest), "tied: {tied}, {precision}");
    });
}

#[test]
fn a_stage_of_any_replica_may_be_killed() {
    each("checkpoints", &["", MEMORY], |_, memory| {
        // with `minDataParallel: 2`, all other stages wait for the replacement of the lost stage
        let mut job = with_checkpoint(may_lose_replicas(2, 2), memory);
        job.extra = job.extra.replace("restart: {", "restart: {minDataParallel: 2, ");
        let workspace = corpus::workspace();
        let workspace = workspace.path();
        let mut launched = begin(workspace, &job);
        for rank in [3, 0, 1] {
            let before = launched.wait_for_stages(4);
            signal(before[rank], libc::SIGKILL);
            let is_replaced = |now: &Vec<u32>| now.len() == 4 && now[rank] != before[rank];
            let now = until("the stage to be replaced", || Some(launched.stages()).filter(is_replaced));
            assert!((0..4).all(|other| (now[other] == before[other]) == (other != rank)), "{before:?} became {now:?}");
            let step = launched.steps() + 5;
            launched.wait_for_step(step);
        }
        end(launched, workspace, &job, &format!("memory: {memory:?}"));
    });
}

const MEMORY: &str = ", memory: {everySteps: 1}";

/// Returns the job with `field` added to `checkpoint`. An empty `field` changes nothing.
fn with_checkpoint(job: TestJob, field: &str) -> TestJob {
    TestJob { extra: job.extra.replace("keepLast: 3", &format!("keepLast: 3{field}")), ..job }
}

/// Continues the stopped launcher, which replaces the lost stages. Ends the job after all stages have trained again.
fn wake_and_end(mut launched: Launched, ranks: usize, workspace: &Path, job: &TestJob) {
    signal(launched.child.id(), libc::SIGCONT);
    launched.wait_for_stages(ranks);
    launched.wait_for_step(launched.steps() + 5);
    end(launched, workspace, job, "");
}

/// Returns a job that can train with a single replica.
fn may_lose_replicas(stages: usize, data_parallel: usize) -> TestJob {
    TestJob { stages, data_parallel, ..job() }
}

/// Kills ranks while the launcher is stopped, so that the launcher does not replace them.
fn lose_for_good(launched: &Launched, lost: &[usize], ranks: usize) {
    let stages = launched.wait_for_stages(ranks);
    signal(launched.child.id(), libc::SIGSTOP);
    lost.iter().for_each(|&rank| signal(stages[rank], libc::SIGKILL));
}

#[test]
fn a_job_continues_without_a_lost_replica_until_it_is_back() {
    let cases: [(usize, usize, &[usize], &str); 8] = [
        (2, 2, &[3], ""),
        (1, 3, &[1], ""),
        (2, 2, &[2], MEMORY),
        (2, 3, &[3], MEMORY),
        // the lost stage is the leader (the stage that forms the groups), or another stage of the leader's replica
        (1, 3, &[0], ""),
        (2, 2, &[0], MEMORY),
        (2, 2, &[1], MEMORY),
        // one stage of each replica is lost, and the remaining stages form one replica
        (2, 2, &[0, 3], MEMORY),
    ];
    each("losses", &cases, |_, &(stages, data_parallel, lost, memory)| {
        let job = with_checkpoint(may_lose_replicas(stages, data_parallel), memory);
        let workspace = corpus::workspace();
        let workspace = workspace.path();
        let mut launched = begin(workspace, &job);
        lose_for_good(&launched, lost, stages * data_parallel);
        // the lost stage may have taken part in the first of these steps; the remaining replicas train the other steps
        // alone
        launched.wait_for_step(launched.steps() + 10);
        signal(launched.child.id(), libc::SIGCONT);
        let printed = || std::fs::read_to_string(workspace.join("stdout")).unwrap();
        until("the replica to be taken back", || printed().contains("a lost replica is back").then_some(()));
        launched.wait_for_stages(stages * data_parallel);
        let state = || std::fs::read(folder(workspace).join("state.json")).unwrap();
        let training = || serde_json::from_slice::<serde_json::Value>(&state()).unwrap()["trainingReplicas"].as_u64();
        until("all replicas to train", || (training() == Some(data_parallel as u64)).then_some(()));
        launched.wait_for_step(launched.steps() + 5);
        let outcome = launched.interrupt(workspace);
        let fewer = data_parallel - 1;
        says(&outcome, &format!("training with {fewer} of {data_parallel} replicas until the missing replicas return"));
        if !memory.is_empty() {
            // the job repeated no finished step, neither at the loss of the replica nor at its return
            assert_eq!(outcome.stdout.matches(", which was in memory").count(), 2, "{}", outcome.stdout);
        }
        println!("{stages} x {data_parallel} without {lost:?}{memory}");
        ends_undisturbed(workspace, &job);
    });
}

/// The remaining replica of an elastic job trains alone during the stabilization window, although the lost replica is
/// ready again.
#[test]
fn an_elastic_job_takes_a_replica_back_after_the_window() {
    let mut job = with_checkpoint(may_lose_replicas(2, 2), MEMORY);
    job.extra += "\n  elastic: {minDataParallel: 1, maxDataParallel: 2, stabilizationWindowSeconds: 2}";
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    let mut launched = begin(workspace, &job);
    let before = launched.wait_for_stages(4);
    signal(before[3], libc::SIGKILL);
    let printed = || std::fs::read_to_string(workspace.join("stdout")).unwrap();
    until("the replica to be left out", || printed().contains("training with 1 of 2 replicas").then_some(()));
    let replaced = launched.wait_for_stages(4);
    assert_ne!(replaced[3], before[3]);
    until("the replica to be taken back", || printed().contains("a lost replica is back").then_some(()));
    let step = launched.steps() + 5;
    launched.wait_for_step(step);
    end(launched, workspace, &job, "elastic");
}

#[test]
fn a_job_ends_without_a_lost_replica() {
    each("losses", &[2, 0], |_, &lost| {
        let job = TestJob { steps: 100, ..may_lose_replicas(2, 2) };
        let workspace = corpus::workspace();
        let workspace = workspace.path();
        let mut launched = Launched::start(workspace, &job, &[]);
        until("a checkpoint", || (saved(&folder(workspace)) > 0).then_some(()));
        lose_for_good(&launched, &[lost], 4);
        launched.wait_for_step(job.steps);
        signal(launched.child.id(), libc::SIGCONT);
        assert_eq!(launched.finish(workspace).hashes(), undisturbed(&job), "without {lost:?}");
    });
}

/// Three leaders are lost: the first leader, its successor, and the leader of a group that has not started. The
/// launcher is stopped, so no stage is replaced.
#[test]
fn leadership_is_passed_on_more_than_once() {
    let job = with_checkpoint(may_lose_replicas(1, 4), MEMORY);
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    let mut launched = begin(workspace, &job);
    let stages = launched.wait_for_stages(4);
    lose_for_good(&launched, &[0], 4);
    launched.wait_for_step(launched.steps() + 5);
    // no stage detects that replica 2 is stopped: the group that replica 1 starts without replica 3 therefore waits for
    // replica 2
    let newest_fence = || fences(&folder(workspace)).pop_last();
    let before = newest_fence();
    signal(stages[2], libc::SIGSTOP);
    signal(stages[3], libc::SIGKILL);
    until("the next group to begin", || (newest_fence() > before).then_some(()));
    signal(stages[1], libc::SIGKILL);
    signal(stages[2], libc::SIGCONT);
    launched.wait_for_step(launched.steps() + 5);
    assert!(log(workspace, 2).contains("stage 0 of replica 2 leads the next group"), "{}", log(workspace, 2));
    wake_and_end(launched, 4, workspace, &job);
}

/// Only one replica trains, since the other replica has lost a stage. Then the leader is lost too. Stage 0 of the other
/// replica, which waited, becomes the leader and forms a replica with the remaining stage.
#[test]
fn a_stage_that_waits_beside_the_last_replica_succeeds_its_leader() {
    let job = with_checkpoint(may_lose_replicas(2, 2), MEMORY);
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    let mut launched = begin(workspace, &job);
    let stages = launched.wait_for_stages(4);
    lose_for_good(&launched, &[3], 4);
    launched.wait_for_step(launched.steps() + 5);
    signal(stages[0], libc::SIGKILL);
    launched.wait_for_step(launched.steps() + 5);
    assert!(log(workspace, 2).contains("stage 0 of replica 1 leads the next group"), "{}", log(workspace, 2));
    wake_and_end(launched, 4, workspace, &job);
}

/// The test kills the leader when the group has saved and forms the next group, which includes the returned replica.
#[test]
fn a_leader_may_be_lost_while_the_group_forms_again() {
    each("checkpoints", &["", MEMORY], |_, memory| {
        let job = with_checkpoint(may_lose_replicas(1, 3), memory);
        let workspace = corpus::workspace();
        let workspace = workspace.path();
        let mut launched = begin(workspace, &job);
        let stages = launched.wait_for_stages(3);
        lose_for_good(&launched, &[1], 3);
        launched.wait_for_step(launched.steps() + 5);
        signal(launched.child.id(), libc::SIGCONT);
        let printed = || std::fs::read_to_string(workspace.join("stdout")).unwrap();
        until("the replica to be taken back", || printed().contains("a lost replica is back").then_some(()));
        signal(stages[0], libc::SIGKILL);
        launched.wait_for_stages(3);
        launched.wait_for_step(launched.steps() + 10);
        end(launched, workspace, &job, &format!("memory: {memory:?}"));
    });
}

/// The leader receives SIGTERM during the save before the group forms again with a returned replica. The leader then
/// does not wait for any other stage.
#[test]
fn a_leader_may_be_stopped_while_the_group_forms_again() {
    let job = may_lose_replicas(1, 3);
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    let records = workspace.join("records");
    std::fs::create_dir(&records).unwrap();
    let file = workspace.join("shared.yaml");
    std::fs::write(&file, job.endless().yaml()).unwrap();
    let block = IoBlock::new(0, Phase::LastSave).unwrap().to_string();
    let environment = [(FAULT_VARIABLE, block.as_str()), (RECORDS_VARIABLE, records.to_str().unwrap())];
    let faulty = Path::new(env!("CARGO_BIN_EXE_faulty"));
    block_io::arm(&records);
    let mut launched = Launched::start_program(faulty, workspace, &file, folder(workspace), &[], &environment);
    until("a checkpoint", || (saved(&folder(workspace)) > 0).then_some(()));
    lose_for_good(&launched, &[1], 3);
    launched.wait_for_step(launched.steps() + 5);
    signal(launched.child.id(), libc::SIGCONT);
    block_io::held(&records, || true);
    let stages = launched.wait_for_stages(3);
    signal(stages[1], libc::SIGSTOP);
    signal(stages[0], libc::SIGTERM);
    block_io::release(&records);
    until("the leader's end", || (launched.stages().first() != Some(&stages[0])).then_some(()));
    signal(stages[1], libc::SIGCONT);
    launched.interrupt(workspace);
    ends_undisturbed(workspace, &job);
}

/// A leader that sends no heartbeats may still live, so no other stage takes over from it. Either the launcher replaces
/// the leader, or the leader wakes up before it is replaced, and continues.
#[test]
fn a_leader_that_was_suspended_leads_again_or_is_replaced() {
    each("launchers", &[false, true], |_, &launcher_sleeps| {
        let mut job = may_lose_replicas(2, 2);
        job.extra = job.extra.replace("restart: {", "restart: {heartbeatTimeoutSeconds: 2, ");
        let workspace = corpus::workspace();
        let workspace = workspace.path();
        let mut launched = begin(workspace, &job);
        let stages = launched.wait_for_stages(4);
        if launcher_sleeps {
            signal(launched.child.id(), libc::SIGSTOP);
        }
        signal(stages[0], libc::SIGSTOP);
        let logs = || (1..4).all(|rank| log(workspace, rank).contains("stage 0 of replica 0 has sent no heartbeat"));
        until("the others to lose the leader", || logs().then_some(()));
        if launcher_sleeps {
            signal(stages[0], libc::SIGCONT);
        }
        launched.wait_for_step(launched.steps() + 10);
        signal(launched.child.id(), libc::SIGCONT);
        let now = launched.wait_for_stages(4);
        assert!(launcher_sleeps || now[0] != stages[0], "{stages:?} became {now:?}");
        launched.wait_for_step(launched.steps() + 5);
        end(launched, workspace, &job, &format!("the launcher sleeps: {launcher_sleeps}"));
    });
}

fn log(workspace: &Path, rank: usize) -> String {
    std::fs::read_to_string(folder(workspace).join(format!("logs/stage-{rank}.log"))).unwrap_or_default()
}

/// Without `training.gradientBlocks`, the job has the number of gradient blocks that its first attempt needs, and keeps
/// that number.
#[test]
fn a_job_keeps_the_blocks_that_it_began_with() {
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    let start = |steps: u64, data_parallel: usize| {
        let job = TestJob { stages: 1, data_parallel, steps, ..job() };
        Launched::start(workspace, &job, &["--set", "training.gradientBlocks=null"]).finish(workspace)
    };
    start(10, 2).hashes();
    let refused = start(20, 4);
    says(&refused, "spec.dataParallel is 4, and this job began with 2 gradient blocks: set it to 2 at most");
    let one = start(20, 1).hashes();
    let with_two = TestJob { stages: 1, steps: 20, gradient_blocks: 2, ..job() };
    assert_eq!(one, undisturbed(&with_two));
}
