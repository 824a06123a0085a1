//! Links over the stand-in for NCCL, a test library that uses the memory of the host. These links run the same code as
//! links between GPUs. The tests in `parity` show that the results over these links are the same, bit for bit, for any
//! number of stages and any schedule.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use stagecoach_checkpoint::Manifest;
use stagecoach_tests::fixture::records;
use stagecoach_tests::{
    Launched, Outcome, TestJob, checkpoints, corpus, ends_undisturbed, nccl, run_command, signal, stagecoach,
    undisturbed,
};

fn job() -> TestJob {
    let extra = "  checkpoint: {everySteps: 4, keepLast: 2}\n  restart: {backoff: {initialSeconds: 0}, \
                 terminationTimeoutSeconds: 2}\n";
    TestJob {
        name: "small".into(),
        transport: "Nccl",
        tied: true,
        decay_steps: Some(60),
        extra: extra.into(),
        ..TestJob::default()
    }
}

#[test]
fn a_killed_stage_is_replaced_and_the_others_stay() {
    for rank in 0..3 {
        let workspace = corpus::workspace();
        let mut launched = Launched::start(workspace.path(), &job().endless(), &[]);
        launched.wait_for_step(5);
        let before = launched.wait_for_stages(3);
        signal(before[rank], libc::SIGKILL);
        launched.wait_for_restart(workspace.path());
        let now = launched.wait_for_stages(3);
        (0..3).for_each(|stage| assert_eq!(now[stage] != before[stage], stage == rank, "{before:?} became {now:?}"));
        launched.interrupt(workspace.path());
        ends_undisturbed(workspace.path(), &job());
    }
}

/// Runs a job whose stage 1 has one fault. Stops the job after step 20.
fn with_fault(workspace: &Path, fault: &str, restart: &str) -> Outcome {
    let fault = format!("1:{fault}:{}", workspace.join("struck").display());
    let extra = job().extra.replace("restart: {", &format!("restart: {{{restart}, "));
    let job = TestJob { extra, ..job() }.endless();
    let mut launched = Launched::start_with(workspace, &job, &[], &[("NCCL_STAND_IN_FAULT", &fault)]);
    launched.wait_for_step(20);
    assert!(workspace.join("struck").exists(), "there was no fault");
    launched.interrupt(workspace)
}

/// Returns the output of the stages.
fn logs(workspace: &Path) -> String {
    let log = |stage| std::fs::read_to_string(workspace.join(format!("small/logs/stage-{stage}.log"))).unwrap();
    (0..3).map(log).collect()
}

/// No process ends: all stages leave the group, discard the results of the step, and form the next group.
#[test]
fn an_error_of_nccl_ends_the_group_and_the_next_one_continues() {
    let workspace = corpus::workspace();
    with_fault(workspace.path(), "error:60", "maxRestarts: 1");
    let logs = logs(workspace.path());
    assert!(logs.contains("unhandled system error"), "{logs}");
    ends_undisturbed(workspace.path(), &job());
}

/// At the end of a step, the stages vote on whether its results count. The fault is in the last message of a step, so
/// that no later message reveals it, and the receiver computes with values that never arrived.
#[test]
fn an_error_of_the_last_message_is_known_before_the_vote() {
    let workspace = corpus::workspace();
    let extra = job().extra.replace("everySteps: 4", "everySteps: 1");
    let job = TestJob { tied: false, extra, ..job() };
    // in each step, the last stage has four receives and four sends, so operation 40 is the last one of step 5
    let fault = format!("2:error:40:{}", workspace.path().join("struck").display());
    let mut launched = Launched::start_with(workspace.path(), &job.endless(), &[], &[("NCCL_STAND_IN_FAULT", &fault)]);
    launched.wait_for_step(7);
    assert!(workspace.path().join("struck").exists(), "there was no fault");
    let outcome = launched.interrupt(workspace.path());
    assert!(!outcome.stdout.contains("skip"), "{}", outcome.stdout);
    assert!(logs(workspace.path()).contains("step 5 is abandoned"), "{}", logs(workspace.path()));
    ends_undisturbed(workspace.path(), &job);
}

/// A message never arrives, and nothing reports an error: no step finishes, and the group ends after the stall timeout.
#[test]
fn a_message_that_never_arrives_ends_the_group() {
    let workspace = corpus::workspace();
    let outcome = with_fault(workspace.path(), "hang:60", "stallTimeoutSeconds: 3");
    assert!(outcome.stdout.matches("\nstart  steps").count() >= 2, "{}", outcome.stdout);
    ends_undisturbed(workspace.path(), &job());
}

#[test]
fn a_communicator_that_does_not_connect_is_reported_with_what_to_set() {
    let workspace = corpus::workspace();
    with_fault(workspace.path(), "init:1", "startupTimeoutSeconds: 16");
    let logs = logs(workspace.path());
    // either stage may time out first
    let described = ["stage 1 with stage 0", "stage 0 with stage 1"]
        .map(|ends| format!("NCCL does not connect {ends} at 127.0.0.1: no connection before the deadline"));
    assert!(described.iter().any(|described| logs.contains(described)), "{logs}");
    let remedy =
        "NCCL_SOCKET_IFNAME is not set, and the connections of the stages themselves go over lo: if NCCL uses another";
    assert!(logs.contains(remedy), "{logs}");
    ends_undisturbed(workspace.path(), &job());
}

/// The GPU continues to train while a thread copies the state to the host. The checkpoint would differ if the host used
/// the copy before it was complete, or if an update of the weights did not wait for the copy.
#[test]
fn what_is_saved_beside_training_is_the_state_after_its_step() {
    let saved_by = |transport, mode| {
        let workspace = corpus::workspace();
        let extra =
            format!("  checkpoint: {{everySteps: 1, keepLast: 100, mode: {mode}, memory: {{everySteps: 1}}}}\n");
        let job = TestJob { transport, steps: 40, decay_steps: Some(40), extra, ..job() };
        let outcome = Launched::start(workspace.path(), &job, &[]).finish(workspace.path());
        assert!(outcome.status.success(), "{}", outcome.stdout);
        let folder = workspace.path().join("small");
        checkpoints(&folder).into_iter().map(|step| (step, tensors(&folder, step))).collect::<BTreeMap<_, _>>()
    };
    let (expected, saved) = (saved_by("Tcp", "Sync"), saved_by("Nccl", "Async"));
    // while the job still writes a checkpoint, it defers the next one
    assert!(saved.len() >= 5, "{:?}", saved.keys());
    for (step, tensors) in &saved {
        assert_eq!(tensors, &expected[step], "step {step}");
    }
}

/// Returns the BLAKE3 hash of each tensor in a checkpoint.
fn tensors(folder: &Path, step: u64) -> BTreeMap<String, String> {
    let path = folder.join(format!("checkpoints/step-{step:08}/manifest.json"));
    let manifest: Manifest = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    manifest.tensors.into_iter().map(|tensor| (tensor.name, tensor.blake3)).collect()
}

/// The stage does not report the failure as a lost peer: it reports the reason, and its process ends.
#[test]
fn memory_that_can_t_be_pinned_ends_the_stage_with_its_reason() {
    let workspace = corpus::workspace();
    let outcome = with_fault(workspace.path(), "pin:1", "reformTimeoutSeconds: 0");
    let described =
        "cuMemHostRegister: an error of the stand-in for the CUDA driver: 4096 bytes of the host can't be pinned";
    assert!(outcome.stdout.contains(described) && logs(workspace.path()).contains(described), "{}", outcome.stdout);
    ends_undisturbed(workspace.path(), &job());
}

/// The times of a timeline come from CUDA events on the device, since the host queues actions before the device
/// executes them. With the host's clock, the timeline would lack the actions that the device has not yet executed.
#[test]
fn a_timeline_is_that_of_the_device() {
    let workspace = corpus::workspace();
    let job = TestJob { steps: 10, data_parallel: 2, gradient_blocks: 2, ..job() };
    let outcome = Launched::start(workspace.path(), &job, &[]).finish(workspace.path());
    assert_eq!(outcome.hashes(), undisturbed(&job));
    let last = records(&workspace.path().join("small")).pop().unwrap();
    let stages = last["timeline"]["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 3);
    for stage in stages {
        let actions: Vec<&str> = stage["actions"].as_array().unwrap().iter().filter_map(|name| name.as_str()).collect();
        let spans: Vec<(f64, f64)> = serde_json::from_value(stage["seconds"].clone()).unwrap();
        assert_eq!(actions.len(), spans.len());
        let is_of_replicas = |name: &str| name.contains("GATHER") || name.ends_with("REDUCE");
        let (of_replicas, own): (Vec<_>, Vec<_>) =
            actions.iter().zip(&spans).partition(|(name, _)| is_of_replicas(name));
        let own: Vec<f64> = own.into_iter().flat_map(|(_, (begin, end))| [*begin, *end]).collect();
        assert!(own.is_sorted(), "{stage}");
        // an action between replicas takes time, except a GATHER of weights, which may have ended before the step
        // started
        let takes_time = |(name, (begin, end)): &(&&str, &(f64, f64))| begin < end || name.contains("GATHER");
        assert!(of_replicas.len() >= 2 && of_replicas.iter().all(takes_time), "{stage}");
    }
}

/// NCCL refuses two processes of one host on one GPU. The launcher therefore gives stages that share a GPU different
/// values of `NCCL_HOSTID`, unless the user has set the variable.
#[test]
fn stages_that_share_a_gpu_are_of_hosts_of_their_own() {
    let workspace = corpus::workspace();
    let job = TestJob { steps: 3, ..job() };
    let outcome = Launched::start(workspace.path(), &job, &[]).finish(workspace.path());
    assert_eq!(outcome.hashes(), undisturbed(&job));
    let workspace = corpus::workspace();
    let launched = Launched::start_with(workspace.path(), &job, &[], &[("NCCL_HOSTID", "one")]);
    let outcome = launched.finish(workspace.path());
    assert_eq!(outcome.status.code(), Some(78), "{}", outcome.stdout);
    let described = "invalid usage; NCCL does not support two processes of one host on the same GPU: give each stage \
                     a GPU of its own";
    assert!(logs(workspace.path()).contains(described), "{}", logs(workspace.path()));
}

#[test]
fn what_a_machine_lacks_for_nccl_is_one_sentence() {
    let workspace = corpus::workspace();
    let file = workspace.path().join("job.yaml");
    std::fs::write(&file, job().yaml()).unwrap();
    let path = nccl::loader_path();
    let rows: [(&[(&str, &str)], &str); 4] = [
        (&[], "there is no usable NVIDIA driver: libcuda.so.1 can't be loaded: "),
        (
            &[(nccl::LOADER_PATH, &path), ("NCCL_STAND_IN_DEVICES", "0")],
            "the NVIDIA driver has 0 devices, but device 0 was requested",
        ),
        (
            &[(nccl::LOADER_PATH, &path), ("NCCL_STAND_IN_BUSY", "1")],
            "the GPU is not available: another process uses it exclusively",
        ),
        (
            &[(nccl::LOADER_PATH, &path), ("NCCL_STAND_IN_VERSION", "21703")],
            "libnccl.so.2 is NCCL 2.17.3: 2.18 or newer is needed",
        ),
    ];
    for (environment, sentence) in rows {
        let mut run = Command::new(stagecoach());
        run.arg("run").arg(&file).arg("--workspace").arg(workspace.path()).envs(environment.iter().copied());
        let (code, printed) = run_command(&mut run);
        assert_eq!(code, Some(78), "{printed}");
        assert!(printed.contains(&format!("can't use NCCL: {sentence}")), "{printed}");
        assert!(printed.contains("; set Auto or Tcp, or give the stage a GPU"), "{printed}");
    }
}

/// On a GPU with one queue for all streams, sends wait for their receivers, so that each message delays all later work
/// of its stage. Every schedule still trains, with the same bits.
#[test]
fn messages_hold_up_no_stage_whose_gpu_has_one_queue() {
    let layout = |schedule, stages, virtual_stages, data_parallel| {
        let extra = "  checkpoint: {everySteps: 0}\n".into();
        TestJob { schedule, stages, virtual_stages, data_parallel, gradient_blocks: 2, steps: 6, extra, ..job() }
    };
    let layouts = [
        layout("GPipe", 3, 1, 1),
        layout("1F1B", 3, 1, 1),
        layout("1F1B", 2, 1, 2),
        layout("Interleaved1F1B", 2, 2, 1),
        layout("InterleavedZeroBubble", 2, 3, 1),
        layout("ZBVZeroBubble", 2, 2, 2),
    ];
    for job in layouts {
        let workspace = corpus::workspace();
        let launched = Launched::start_with(workspace.path(), &job, &[], &[("NCCL_STAND_IN_ONE_QUEUE", "1")]);
        let outcome = launched.finish(workspace.path());
        assert!(outcome.status.success(), "{}: {}{}", job.schedule, outcome.stdout, logs(workspace.path()));
        assert_eq!(outcome.hashes(), undisturbed(&job), "{}", job.schedule);
    }
}
