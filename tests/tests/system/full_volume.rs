//! A volume that fills up while a job trains: the job goes on, with restarts, and what could not be written is written
//! when there is room again.

use std::fs::File;
use std::process::{Command, Stdio};

use stagecoach_tests::filling::{Filling, Full};
use stagecoach_tests::{TestJob, corpus, is_gone, signal, stagecoach, undisturbed, until};

/// Saves once on its way, and again at the end.
fn job() -> TestJob {
    let extra =
        "  checkpoint: {everySteps: 100}\n  restart: {backoff: {initialSeconds: 0}, terminationTimeoutSeconds: 2}\n";
    // links over shared memory are files too, as far as a limit on files goes
    TestJob { name: "filled".into(), steps: 150, transport: "Tcp", extra: extra.into(), ..TestJob::default() }
}

#[test]
fn the_job_goes_on_and_its_record_is_written_when_there_is_room() {
    let expected = undisturbed(&job());
    for full in Full::available() {
        println!("{full:?}");
        let mut run = Filling::start(full, &job());
        run.wait("a checkpoint", |said| said.contains("saved  the checkpoint of step 100"));
        run.fill();
        let stages = run.stages();
        signal(stages[1], libc::SIGKILL);
        until("the group's end", 60, || stages.iter().all(|&pid| is_gone(pid)).then_some(()));
        run.wait("attempt 2 to train", |said| {
            said.split_once("attempt 2").is_some_and(|(_, after)| after.contains(" 105/150"))
        });
        run.free();
        let status = run.finish();
        let said = run.said();
        assert!(status.success(), "{said}");
        let told = [
            "; the job continues, and the launcher's state",
            "state.json is written again",
            "metrics.jsonl: cannot start",
        ];
        for told in told {
            assert_eq!(said.matches(told).count(), 1, "{told:?} in\n{said}");
        }
        assert!(said.contains("going on after step 100"), "{said}");
        let read = |name: &str| -> serde_json::Value {
            serde_json::from_reader(File::open(run.path("filled").join(name)).unwrap()).unwrap()
        };
        let result = read("result.json");
        let hash = |field: &str| result[field].as_str().unwrap().to_owned();
        assert_eq!((hash("lossesHash"), hash("weightsHash")), expected);
        // another process may take a port between its choice and its use
        let taken = said.matches("could not listen at").count();
        assert_eq!(read("state.json")["state"]["attempt"]["number"], 2 + taken, "{said}");
        let metrics = std::fs::read_to_string(run.path("filled/metrics.jsonl")).unwrap();
        assert_eq!(metrics.lines().count(), 150);
    }
}

/// A stage's stderr is its log, on the volume; the launcher's may be a file there too.
#[test]
fn a_stderr_that_takes_nothing_changes_no_exit_code() {
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let workspace = corpus::workspace();
    let file = workspace.path().join("job.yaml");
    std::fs::write(&file, TestJob::default().yaml()).unwrap();
    let words = workspace.path().join("words");
    let mut stage = Command::new(stagecoach());
    stage
        .arg("stage")
        .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1"), ("RANK", "0"), ("WORLD_SIZE", "2")])
        .envs([("STAGECOACH_JOB", "small"), ("STAGECOACH_JOB_UID", "u"), ("STAGECOACH_ATTEMPT", "1")])
        .envs([("POD_IP", "127.0.0.1"), ("POD_UID", "p"), ("STAGECOACH_HTTP_PORT", "0")])
        .envs([("STAGECOACH_CONFIG", &file), ("STAGECOACH_TERMINATION_LOG", &words)])
        .env("STAGECOACH_WORKSPACE", workspace.path());
    let mut run = Command::new(stagecoach());
    run.args(["run", "nowhere.yaml"]);
    let mut list = Command::new(stagecoach());
    list.args(["checkpoint", "list", "nowhere"]);
    for (mut command, code) in [(stage, 78), (run, 78), (list, 1)] {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(full()).spawn().unwrap();
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until("its end", 30, || child.try_wait().unwrap())
        }));
        let _ = child.kill();
        let _ = child.wait();
        assert_eq!(ended.unwrap().code(), Some(code), "{command:?}");
    }
    assert!(std::fs::read_to_string(words).unwrap().contains("WORLD_SIZE is 2"));
}
