//! A volume fills up while a job trains. The job continues, even after a stage restarts. As soon as the volume has
//! space again, the job writes the files that it could not write before.

use std::fs::File;
use std::process::{Command, Stdio};

use stagecoach_tests::fill_volume::{FillableRun, FullVolumeCause};
use stagecoach_tests::fixture::{copy, records};
use stagecoach_tests::{
    Launched, TestJob, corpus, is_gone, recorded_state, saved, signal, spawn, stagecoach, stages, undisturbed, until,
};

/// Returns a job that saves only at its end or when it is stopped, since removing a failed save would free space again.
fn job() -> TestJob {
    let extra =
        "  checkpoint: {everySteps: 0}\n  restart: {backoff: {initialSeconds: 0}, terminationTimeoutSeconds: 2}\n";
    TestJob {
        name: "filled".into(),
        steps: 10,
        decay_steps: Some(60),
        // RLIMIT_FSIZE, one of the causes of a full volume, would apply to shared memory too
        transport: "Tcp",
        extra: extra.into(),
        ..TestJob::default()
    }
}

#[test]
fn the_job_continues_and_its_record_is_written_when_there_is_room() {
    let workspace = corpus::workspace();
    let folder = workspace.path().join("filled");
    Launched::start(workspace.path(), &job(), &[]).finish(workspace.path()).hashes();
    // without `state.json`, the launcher counts the attempts of each run from 1
    std::fs::remove_file(folder.join("state.json")).unwrap();
    for full in FullVolumeCause::available() {
        println!("{full:?}");
        let mut run = FillableRun::start(full, workspace.path(), &job().endless());
        run.wait("training", |printed| printed.contains("\nstep "));
        run.fill();
        let stages = run.stages();
        signal(stages[1], libc::SIGKILL);
        until("the process to exit", || is_gone(stages[1]).then_some(()));
        run.wait("the group to train again", |printed| {
            let again = printed.split_once("starting stage 1 again").map(|(_, after)| after);
            again.is_some_and(|after| after.matches("\nstep ").count() > 5)
        });
        run.free();
        run.wait("the state to be written", |printed| printed.contains("state.json can be written again"));
        let (status, printed) = (run.interrupt(), run.printed());
        assert_eq!(status.code(), Some(143), "{printed}");
        let reported = [
            "; the job continues, and the launcher's state",
            "state.json can be written again",
            "metrics.jsonl: cannot start",
        ];
        for reported in reported {
            assert_eq!(printed.matches(reported).count(), 1, "{reported:?} in\n{printed}");
        }
        assert_eq!(printed.matches("resuming after step 10,").count(), 2, "{printed}");
        let state = recorded_state(&run.path("filled"));
        assert_eq!((&state["attempt"]["number"], &state["budget"]["replaced"]), (&1.into(), &1.into()), "{printed}");

        // a tmpfs disappears with the launcher's mount namespace, so the job resumes from a copy of the job's folder
        let workspace = corpus::workspace();
        let folder = workspace.path().join("filled");
        copy(&run.path("filled"), &folder);
        assert!(saved(&folder) > job().steps);
        let rest = job().ending_after(saved(&folder));
        let outcome = Launched::start(workspace.path(), &rest, &[]).finish(workspace.path());
        assert_eq!(outcome.hashes(), undisturbed(&rest));
        assert_eq!(records(&folder).len() as u64, rest.steps);
    }
}

/// A tmpfs over /dev/shm in a mount namespace of the launcher limits the shared memory. Where the test can't mount a
/// tmpfs, only the trainer's tests of links check this behaviour.
#[test]
fn stages_without_room_for_shared_memory_say_so_once_and_train() {
    let Some(options) = FullVolumeCause::available().into_iter().find_map(FullVolumeCause::unshare_options) else {
        return;
    };
    let workspace = corpus::workspace();
    let file = workspace.path().join("job.yaml");
    let job = TestJob { transport: "Auto", ..job() };
    std::fs::write(&file, job.endless().yaml()).unwrap();
    let stdout = workspace.path().join("stdout");
    let script = "mount -t tmpfs -o size=4k none /dev/shm && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(options).args(["sh", "-c", script, "sh"]).arg(stagecoach()).arg("run").arg(&file);
    command.arg("--workspace").arg(workspace.path()).stdin(Stdio::null());
    let mut child = spawn(command.stdout(File::create(&stdout).unwrap()).stderr(Stdio::null())).unwrap();
    let printed = || std::fs::read_to_string(&stdout).unwrap();
    let trained = std::panic::catch_unwind(|| {
        until("training", || printed().contains("\nstep ").then_some(()));
        // after the kill, the group forms again within the same attempt
        signal(stages(child.id())[1], libc::SIGKILL);
        let again = |printed: String| printed.split_once("starting stage 1 again")?.1.contains("\nstep ").then_some(());
        until("the group to train again", || again(printed()));
    });
    signal(child.id(), if trained.is_ok() { libc::SIGINT } else { libc::SIGKILL });
    let status = until("the process to exit", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(143), "{}", printed());
    let reported = "stages 0, 1, 2 use TCP to the other stages on the same host, because shared memory can't be \
                    created in /dev/shm";
    assert_eq!(printed().matches(reported).count(), 1, "{}", printed());
}

/// A stage's stderr is its log on the volume, and the launcher's stderr may be a file on the volume too. This test
/// checks that a full stderr does not change an exit code.
#[test]
fn a_stderr_that_takes_nothing_changes_no_exit_code() {
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let workspace = corpus::workspace();
    let file = workspace.path().join("job.yaml");
    std::fs::write(&file, TestJob::default().yaml()).unwrap();
    let termination_message = workspace.path().join("termination-message");
    let mut stage = Command::new(stagecoach());
    stage
        .arg("stage")
        .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1"), ("RANK", "0"), ("WORLD_SIZE", "2")])
        .envs([("STAGECOACH_JOB", "small"), ("STAGECOACH_JOB_UID", "u"), ("STAGECOACH_ATTEMPT", "1")])
        .envs([("POD_IP", "127.0.0.1"), ("POD_UID", "p"), ("STAGECOACH_HTTP_PORT", "0")])
        .envs([("STAGECOACH_CONFIG", &file), ("STAGECOACH_TERMINATION_LOG", &termination_message)])
        .env("STAGECOACH_WORKSPACE", workspace.path());
    let mut run = Command::new(stagecoach());
    run.args(["run", "nowhere.yaml"]);
    let mut list = Command::new(stagecoach());
    list.args(["checkpoint", "list", "nowhere"]);
    for (mut command, code) in [(stage, 78), (run, 78), (list, 1)] {
        let mut child = spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(full())).unwrap();
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until("the process to exit", || child.try_wait().unwrap())
        }));
        let _ = child.kill();
        let _ = child.wait();
        assert_eq!(ended.unwrap().code(), Some(code), "{command:?}");
    }
    assert!(std::fs::read_to_string(termination_message).unwrap().contains("WORLD_SIZE is 2"));
}
