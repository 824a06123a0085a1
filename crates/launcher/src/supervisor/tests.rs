//! Tests of the launcher with shell scripts as stages: real processes and signals, no training.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use stagecoach_api::contract::{StageEnv, env};

use super::*;

/// Returns the smallest valid job, with no wait before restarts, and with the fields in `set`.
pub(crate) fn job(set: &[(&str, &str)]) -> PipelineJob {
    const TEXT: &str = include_str!("../../../../crates/api/tests/jobs/minimal.yaml");
    // the timeout is 0, because the stages are scripts that never form a group again; a test may set another timeout
    let set = [&[("restart.backoff.initialSeconds", "0"), ("restart.reformTimeoutSeconds", "0")][..], set].concat();
    let set: Vec<_> = set.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
    stagecoach_api::parse_with(TEXT, "minimal.yaml", &set).unwrap()
}

/// Records the output, and requests a stop when the output contains one of the `stop_at` texts.
#[derive(Clone)]
struct OutputListener {
    output: Arc<Mutex<String>>,
    stop_at: Vec<&'static str>,
    sender: Sender<SupervisorMessage>,
}

impl Write for OutputListener {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        self.output.lock().unwrap().push_str(&text);
        for _ in self.stop_at.iter().filter(|trigger| text.contains(**trigger)) {
            self.sender.send(SupervisorMessage::StopRequested).unwrap();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct SupervisorRun {
    outcome: RunOutcome,
    stored: LauncherState,
    output: String,
    folder: JobFolder,
    workspace: tempfile::TempDir,
}

/// The beginning of every script. It defines functions, and writes the stage's environment and pid to files in the
/// workspace.
const PRELUDE: &str = r#"
stage=$STAGECOACH_STAGE attempt=$STAGECOACH_ATTEMPT
env > "$STAGECOACH_WORKSPACE/env-$attempt-$stage"
echo $$ > "$STAGECOACH_WORKSPACE/pid-$attempt-$stage"
termination_message() { printf '{"kind":"%s","stage":%s,"message":"%s"}' "$1" "$stage" "$2" > "$STAGECOACH_TERMINATION_LOG"; }
event() { if [ $stage = 0 ]; then echo "$1"; fi; }
# Waits until both stages have written their pid.
both() { for other in 0 1; do while [ ! -s "$STAGECOACH_WORKSPACE/pid-$attempt-$other" ]; do sleep 0.01; done; done; }
started() {
  both
  event '{"event":"started","stages":2,"schedule":"1F1B","partition":[2,2],"microbatches":4,"firstStep":1,"steps":20,"parameters":1,"tokens":1,"vocabSize":1,"expectedBubble":0.2,"unigramEntropy":null}'
}
step() { event '{"event":"step","step":'$1',"loss":2.5,"gradientNorm":1.0,"learningRate":1e-3,"tokens":8,"tokensPerSecond":8.0,"seconds":1.0,"bubble":[0.1],"bytesSent":1}'; }
finished() { event '{"event":"finished","steps":20,"loss":2.5,"evaluationLoss":null,"unigramEntropy":null,"lossesHash":"aa","weightsHash":"bb","skipped":0,"model":"tiny/model"}'; }
"#;

fn run_script(script: &str, set: &[(&str, &str)], stop_at: &[&'static str]) -> SupervisorRun {
    let workspace = tempfile::tempdir().unwrap();
    let job = job(set);
    let folder = JobFolder::open(&workspace.path().join(job.folder()), None).unwrap();
    folder.start_run().unwrap();
    let file = workspace.path().join("stage.sh");
    std::fs::write(&file, format!("{PRELUDE}{script}")).unwrap();
    let executable = StageExecutable { path: PathBuf::from("/bin/sh"), arguments: vec![file.into()] };
    let mut stored = LauncherState::load(&folder).unwrap();
    let (sender, receiver) = channel();
    let listener = OutputListener { output: Arc::default(), stop_at: stop_at.to_vec(), sender: sender.clone() };
    let mut display = ProgressDisplay::lines(Box::new(listener.clone()));
    let config = LaunchConfig {
        job: &job,
        workspace: workspace.path(),
        folder: &folder,
        executable: &executable,
        count_gpus: || 0,
    };
    let outcome = Supervisor::new(config, &mut stored, &mut display, sender).run(&receiver).unwrap();
    let output = listener.output.lock().unwrap().clone();
    SupervisorRun { outcome, stored, output, folder, workspace }
}

impl SupervisorRun {
    fn read_file(&self, name: &str) -> String {
        std::fs::read_to_string(self.workspace.path().join(name)).unwrap()
    }

    /// Whether a stage's process has exited.
    fn has_exited(&self, attempt: u64, stage: u32) -> bool {
        let pid = self.read_file(&format!("pid-{attempt}-{stage}"));
        !std::path::Path::new("/proc").join(pid.trim()).exists()
    }

    fn assert_printed(&self, text: &str) {
        assert!(self.output.contains(text), "no {text:?} in\n{}", self.output);
    }
}

#[test]
fn a_job_that_works_completes_and_its_stages_get_the_contract() {
    let run =
        run_script("echo 'no event'; echo error >&2; started; step 1; finished; termination_message Done ''", &[], &[]);
    let RunOutcome::Complete(Some(summary)) = &run.outcome else { panic!("{:?}\n{}", run.outcome, run.output) };
    assert_eq!((summary.steps, summary.losses_hash.as_str()), (20, "aa"));
    run.assert_printed("step    1/20  loss 2.5000");
    for stage in 0..2 {
        let text = run.read_file(&format!("env-1-{stage}"));
        let vars = || text.lines().filter_map(|line| line.split_once('='));
        let read = StageEnv::from_vars(vars()).unwrap();
        assert_eq!((read.rank, read.mesh.ranks(), read.attempt), (stage, 2, 1));
        assert_eq!((read.master_addr.as_str(), read.pod_ip.as_str()), ("127.0.0.1", "127.0.0.1"));
        assert!(read.job == "tiny" && read.job_uid == run.stored.job_uid);
        for name in env::ALL.into_iter().filter(|name| *name != env::SPARE) {
            assert!(vars().any(|(known, _)| known == name), "{name} is not set");
        }
        assert!(vars().any(|var| var == ("STAGECOACH_EVENTS", "json")));
        let log = std::fs::read_to_string(run.folder.log(&format!("stage-{stage}"))).unwrap();
        assert!(log.contains("error") && log.contains("no event"), "{log}");
    }
    let uid = |stage: u32| {
        run.read_file(&format!("env-1-{stage}")).lines().find(|line| line.starts_with("POD_UID")).map(str::to_owned)
    };
    assert_ne!(uid(0), uid(1));
    // the file has the final state
    assert_eq!(LauncherState::load(&run.folder).unwrap().state.attempt, run.stored.state.attempt);
}

#[test]
fn the_root_cause_is_reported_and_not_the_stages_that_lost_it() {
    let script = "
        if [ $attempt = 2 ]; then started; finished; exit 0; fi
        if [ $stage = 0 ]; then started; step 1; termination_message PeerLost 'lost stage 1'; exit 75; fi
        echo 'something about memory' >&2; sleep 0.3; termination_message OutOfMemory 'memory ran out'; exit 1";
    let run = run_script(script, &[], &[]);
    assert!(matches!(run.outcome, RunOutcome::Complete(Some(_))), "{:?}\n{}", run.outcome, run.output);
    run.assert_printed("stage 1 failed (OutOfMemory, exit code 1): memory ran out\n  | something about memory\n");
    run.assert_printed(
        "restarting in 0.0s: attempt 2, 9 of 10 restarts left; training starts at step 0, since there is no checkpoint",
    );
    assert!(!run.output.contains("lost stage 1"), "{}", run.output);
    let state = &run.stored.state;
    assert_eq!((state.attempt.number, state.budget.total), (2, 1));
    assert_eq!(state.last_failure.as_ref().and_then(|failure| failure.rank), Some(1));
}

#[test]
fn a_stage_killed_by_a_signal_ends_the_attempt() {
    // stage 0 would run for ever: the failed attempt is terminated before the next one starts
    let script = "
        if [ $attempt = 2 ]; then finished; exit 0; fi
        if [ $stage = 1 ]; then both; kill -KILL $$; fi
        started; exec sleep 1000";
    let run = run_script(script, &[], &[]);
    assert!(matches!(run.outcome, RunOutcome::Complete(Some(_))), "{:?}\n{}", run.outcome, run.output);
    run.assert_printed("stage 1 failed (Killed, exit code 137)");
    assert!(run.has_exited(1, 0) && run.has_exited(1, 1));
}

#[test]
fn a_stage_that_died_or_does_not_answer_is_replaced_while_the_other_waits() {
    let lost = r#"{"event":"stageLost","stage":1,"incarnation":0,"message":"stage 1 has sent no heartbeat for 3 s"}"#;
    let dies = "both; echo why >&2; kill -KILL $$".to_owned();
    for (happens, reason) in [(dies, "Killed, exit code 137"), ("both; exec sleep 1000".to_owned(), "Stalled")] {
        // stage 0 waits for the replacement
        let script = format!(
            "
            pids=$STAGECOACH_WORKSPACE/pids-$stage; echo $$ >> $pids
            if [ $stage-$STAGECOACH_INCARNATION = 1-0 ]; then {happens}; fi
            started
            if [ $stage = 0 ]; then echo '{lost}'; while [ ! -s $STAGECOACH_WORKSPACE/replaced ]; do sleep 0.01; done; fi
            echo $STAGECOACH_INCARNATION > $STAGECOACH_WORKSPACE/replaced
            finished"
        );
        let run = run_script(&script, &[("restart.reformTimeoutSeconds", "60")], &[]);
        assert!(matches!(run.outcome, RunOutcome::Complete(Some(_))), "{:?}\n{}", run.outcome, run.output);
        run.assert_printed(&format!("stage 1 failed ({reason})"));
        run.assert_printed("starting stage 1 again in 0.0s; the others wait for it; 9 of 10 restarts left");
        let started = |stage: u32| run.read_file(&format!("pids-{stage}")).lines().count();
        assert_eq!((started(0), started(1), run.stored.state.attempt.number), (1, 2, 1), "{}", run.output);
        let log = std::fs::read_to_string(run.folder.log("stage-1")).unwrap();
        assert!(log.contains("--- attempt 1 ---") && log.contains("--- attempt 1, incarnation 1 ---"), "{log}");
    }
}

#[test]
fn a_back_off_is_waited_for() {
    let script = "if [ $attempt = 3 ]; then exit 0; fi; exit 1";
    let started = Instant::now();
    let run = run_script(script, &[("restart.backoff.initialSeconds", "1")], &[]);
    assert_eq!(run.outcome, RunOutcome::Complete(None), "{}", run.output);
    run.assert_printed("restarting in 1.0s: attempt 3");
    assert!(started.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_used_up_budget_returns_the_root_causes_exit_code() {
    let run = run_script("started; exit 3", &[("restart.maxRestarts", "2")], &[]);
    assert_eq!(run.outcome, RunOutcome::Failed(3), "{}", run.output);
    assert_eq!((run.stored.state.attempt.number, run.stored.state.budget.counted_since_checkpoint), (3, 2));
    run.assert_printed("giving up: restart.maxRestarts is used up");
}

#[test]
fn an_invalid_job_is_not_tried_again() {
    let script = "if [ $stage = 0 ]; then both; termination_message InvalidConfig 'the corpus is empty'; exit 78; fi; exec sleep 1000";
    let run = run_script(script, &[], &[]);
    assert_eq!((&run.outcome, run.stored.state.attempt.number), (&RunOutcome::Failed(78), 1), "{}", run.output);
    run.assert_printed("stage 0 failed (InvalidConfig, exit code 78): the corpus is empty\ngiving up: ");
    assert!(run.has_exited(1, 1));
}

#[test]
fn a_stop_request_lets_the_stages_exit() {
    let script = "trap 'termination_message Drained bye; exit 143' TERM; started; while :; do sleep 0.02; done";
    let run = run_script(script, &[], &["start "]);
    assert_eq!(run.outcome, RunOutcome::Stopped, "{}", run.output);
    run.assert_printed("stopping: ");
    run.assert_printed("stopped; in the next run training starts at step 0, since there is no checkpoint");
    assert_eq!((&run.stored.state.attempt_phase, run.stored.state.budget.total), (&AttemptPhase::Idle, 0));
}

#[test]
fn a_stop_request_during_a_back_off_prevents_the_restart() {
    let run = run_script("exit 1", &[("restart.backoff.initialSeconds", "300")], &["attempt 3, "]);
    assert_eq!((run.outcome, run.stored.state.attempt.number), (RunOutcome::Stopped, 3));
}

#[test]
fn a_second_stop_request_kills_the_stages() {
    let run = run_script("trap '' TERM; started; exec sleep 1000", &[], &["start ", "stopping"]);
    assert_eq!(run.outcome, RunOutcome::Killed, "{}", run.output);
    assert!(run.has_exited(1, 0) && run.has_exited(1, 1));
}

#[test]
fn a_stage_that_does_not_exit_is_killed_after_its_grace_period() {
    let grace = ("template", "{spec: {terminationGracePeriodSeconds: 1}}");
    let run = run_script("trap '' TERM; started; exec sleep 1000", &[grace], &["start "]);
    assert_eq!(run.outcome, RunOutcome::Stopped, "{}", run.output);
    assert!(run.has_exited(1, 0) && run.has_exited(1, 1));
}

#[test]
fn a_state_that_cannot_be_saved_is_saved_later() {
    // a folder at the path of `state.json` makes the save fail, because a file can't replace a folder
    let block = "
        state=$STAGECOACH_WORKSPACE/tiny/state.json
        if [ $attempt = 1 ] && [ $stage = 0 ]; then until mkdir $state 2>/dev/null; do rm -f $state; done; fi
        if [ $attempt = 1 ]; then until [ -d $state ]; do sleep 0.01; done; fi";
    let script = "
        if [ $attempt = 3 ] && [ $stage = 0 ]; then rmdir $state; fi
        if [ $attempt = 3 ]; then started; finished; exit 0; fi
        both; exit 1";
    let run = run_script(&format!("{block}{script}"), &[], &[]);
    assert!(matches!(run.outcome, RunOutcome::Complete(Some(_))), "{:?}\n{}", run.outcome, run.output);
    for sentence in ["state.json: Is a directory (os error 21); the job continues", "state.json can be written again"] {
        assert_eq!(run.output.matches(sentence).count(), 1, "{sentence:?} in\n{}", run.output);
    }
    assert_eq!(LauncherState::load(&run.folder).unwrap().state.attempt.number, 3);

    // in this run, the last save fails too
    let run = run_script(&format!("{block}\nstarted; finished"), &[], &[]);
    assert!(matches!(run.outcome, RunOutcome::Complete(Some(_))), "{:?}\n{}", run.outcome, run.output);
    run.assert_printed("the job continues, and the launcher's state is kept in memory until it can be written");
}
