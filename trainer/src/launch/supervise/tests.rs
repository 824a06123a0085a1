//! The launcher with shell scripts for stages: real processes, real signals, no training.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use stagecoach_api::contract::env;

use super::*;

/// A small valid job, with fields set.
pub(in crate::launch) fn job(set: &[(&str, &str)]) -> PipelineJob {
    const TEXT: &str = "
apiVersion: stagecoach.dev/v1alpha1
kind: PipelineJob
metadata: {name: small}
spec:
  stages: 2
  model: {type: Llama, llama: {hiddenSize: 64, numHiddenLayers: 4, numAttentionHeads: 4, intermediateSize: 128}}
  data: {paths: [a.txt], sequenceLength: 64, tokenizer: {type: Train, train: {vocabSize: 512}}}
  training: {steps: 20, globalBatchSize: 8, microbatches: 4, learningRate: {peak: 1e-3}}
  restart: {backoff: {initialSeconds: 0}}
";
    let set: Vec<_> = set.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
    stagecoach_api::parse_with(TEXT, "small.yaml", &set).unwrap()
}

/// Keeps what is said, and stops the run when it hears a word.
#[derive(Clone)]
struct Listener {
    said: Arc<Mutex<String>>,
    stop_at: Vec<&'static str>,
    outbox: Sender<Message>,
}

impl Write for Listener {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        self.said.lock().unwrap().push_str(&text);
        for _ in self.stop_at.iter().filter(|word| text.contains(**word)) {
            self.outbox.send(Message::Stop).unwrap();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Ran {
    end: End,
    record: Record,
    said: String,
    folder: JobFolder,
    _workspace: tempfile::TempDir,
}

/// What every script starts with: shorthands, its pid and its environment left in the workspace.
const PRELUDE: &str = r#"
stage=$STAGECOACH_STAGE attempt=$STAGECOACH_ATTEMPT
env > "$STAGECOACH_WORKSPACE/env-$attempt-$stage"
echo $$ > "$STAGECOACH_WORKSPACE/pid-$attempt-$stage"
words() { printf '{"kind":"%s","stage":%s,"message":"%s"}' "$1" "$stage" "$2" > "$STAGECOACH_TERMINATION_LOG"; }
event() { if [ $stage = 0 ]; then echo "$1"; fi; }
# Until both stages have come this far: a signal that follows finds both.
both() { for other in 0 1; do while [ ! -s "$STAGECOACH_WORKSPACE/pid-$attempt-$other" ]; do sleep 0.01; done; done; }
started() {
  both
  event '{"event":"started","stages":2,"schedule":"1F1B","partition":[2,2],"microbatches":4,"firstStep":1,"steps":20,"parameters":1,"tokens":1,"vocabSize":1,"expectedBubble":0.2,"unigramEntropy":null}'
}
step() { event '{"event":"step","step":'$1',"loss":2.5,"gradientNorm":1.0,"learningRate":1e-3,"tokens":8,"tokensPerSecond":8.0,"seconds":1.0,"bubble":[0.1],"bytesSent":1}'; }
finished() { event '{"event":"finished","steps":20,"loss":2.5,"evaluationLoss":null,"unigramEntropy":null,"lossesHash":"aa","weightsHash":"bb","skipped":0,"model":"small/model"}'; }
"#;

fn run(script: &str, set: &[(&str, &str)], stop_at: &[&'static str]) -> Ran {
    let workspace = tempfile::tempdir().unwrap();
    let job = job(set);
    let folder = JobFolder::open(&workspace.path().join(job.folder()), None).unwrap();
    folder.begin().unwrap();
    let file = workspace.path().join("stage.sh");
    std::fs::write(&file, format!("{PRELUDE}{script}")).unwrap();
    let program = Program { path: PathBuf::from("/bin/sh"), arguments: vec![file.into()] };
    let mut record = Record::open(&folder).unwrap();
    let (outbox, inbox) = channel();
    let listener = Listener { said: Arc::default(), stop_at: stop_at.to_vec(), outbox: outbox.clone() };
    let mut progress = Progress::plain(Box::new(listener.clone()));
    let launch =
        Launch { job: &job, workspace: workspace.path(), folder: &folder, program: &program, master_port: None };
    let end = Supervisor::new(launch, &mut record, &mut progress, outbox).run(&inbox).unwrap();
    let said = listener.said.lock().unwrap().clone();
    Ran { end, record, said, folder, _workspace: workspace }
}

impl Ran {
    fn left(&self, name: &str) -> String {
        std::fs::read_to_string(self._workspace.path().join(name)).unwrap()
    }

    /// Whether a stage's process is gone.
    fn is_gone(&self, attempt: u64, stage: u32) -> bool {
        let pid = self.left(&format!("pid-{attempt}-{stage}"));
        !std::path::Path::new("/proc").join(pid.trim()).exists()
    }

    fn says(&self, words: &str) {
        assert!(self.said.contains(words), "no {words:?} in\n{}", self.said);
    }
}

#[test]
fn a_job_that_works_completes_and_its_stages_get_the_contract() {
    let ran = run("echo 'no event'; echo complaint >&2; started; step 1; finished; words Done ''", &[], &[]);
    let End::Complete(Some(summary)) = &ran.end else { panic!("{:?}\n{}", ran.end, ran.said) };
    assert_eq!((summary.steps, summary.losses_hash.as_str()), (20, "aa"));
    ran.says("step    1/20  loss 2.5000");
    for stage in 0..2 {
        let text = ran.left(&format!("env-1-{stage}"));
        let vars = || text.lines().filter_map(|line| line.split_once('='));
        let read = StageEnv::from_vars(vars()).unwrap();
        assert_eq!((read.rank, read.world_size, read.attempt), (stage, 2, 1));
        assert_eq!((read.master_addr.as_str(), read.pod_ip.as_str()), ("127.0.0.1", "127.0.0.1"));
        assert!(read.job == "small" && read.job_uid == ran.record.job_uid && read.master_port > 0);
        for name in env::ALL {
            assert!(vars().any(|(known, _)| known == name), "{name} is not set");
        }
        assert!(vars().any(|var| var == ("STAGECOACH_EVENTS", "json")));
        let log = std::fs::read_to_string(ran.folder.log(stage)).unwrap();
        assert!(log.contains("complaint") && log.contains("no event"), "{log}");
    }
    let uid = |stage: u32| {
        ran.left(&format!("env-1-{stage}")).lines().find(|line| line.starts_with("POD_UID")).map(str::to_owned)
    };
    assert_ne!(uid(0), uid(1));
    // What is recorded is what was returned.
    assert_eq!(Record::open(&ran.folder).unwrap().state.attempt, ran.record.state.attempt);
}

#[test]
fn the_culprit_is_named_not_those_who_left_for_its_sake() {
    let script = "
        if [ $attempt = 2 ]; then started; finished; exit 0; fi
        if [ $stage = 0 ]; then started; step 1; words PeerLost 'lost stage 1'; exit 75; fi
        echo 'something about memory' >&2; sleep 0.3; words OutOfMemory 'memory ran out'; exit 1";
    let ran = run(script, &[], &[]);
    assert!(matches!(ran.end, End::Complete(Some(_))), "{:?}\n{}", ran.end, ran.said);
    ran.says("stage 1 failed (OutOfMemory, exit code 1): memory ran out\n  | something about memory\n");
    ran.says(
        "restarting in 0.0s: attempt 2, 9 of 10 restarts left; without checkpoints training starts again at step 0",
    );
    assert!(!ran.said.contains("lost stage 1"), "{}", ran.said);
    let state = &ran.record.state;
    assert_eq!((state.attempt.number, state.budget.total), (2, 1));
    assert_eq!(state.last_failure.as_ref().and_then(|failure| failure.stage), Some(1));
}

#[test]
fn a_stage_killed_by_a_signal_takes_the_others_with_it() {
    // Stage 0 would stay for ever: the failed attempt is told to go before the next one starts.
    let script = "
        if [ $attempt = 2 ]; then finished; exit 0; fi
        if [ $stage = 1 ]; then both; kill -KILL $$; fi
        started; exec sleep 1000";
    let ran = run(script, &[], &[]);
    assert!(matches!(ran.end, End::Complete(Some(_))), "{:?}\n{}", ran.end, ran.said);
    ran.says("stage 1 failed (Killed, exit code 137)");
    assert!(ran.is_gone(1, 0) && ran.is_gone(1, 1));
}

#[test]
fn a_back_off_is_waited_for() {
    let script = "if [ $attempt = 2 ]; then exit 0; fi; exit 1";
    let begun = Instant::now();
    let ran = run(script, &[("restart.backoff.initialSeconds", "1")], &[]);
    assert_eq!(ran.end, End::Complete(None), "{}", ran.said);
    ran.says("restarting in 1.0s");
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[test]
fn the_budget_ends_and_the_causes_code_is_returned() {
    let ran = run("started; exit 3", &[("restart.maxRestarts", "2")], &[]);
    assert_eq!(ran.end, End::Failed(3), "{}", ran.said);
    assert_eq!((ran.record.state.attempt.number, ran.record.state.budget.counted_since_checkpoint), (3, 2));
    ran.says("giving up: no restart is left of spec.restart.maxRestarts, which is 2");
}

#[test]
fn an_invalid_job_is_not_tried_again() {
    let script =
        "if [ $stage = 0 ]; then both; words InvalidConfig 'the corpus is empty'; exit 78; fi; exec sleep 1000";
    let ran = run(script, &[], &[]);
    assert_eq!((&ran.end, ran.record.state.attempt.number), (&End::Failed(78), 1), "{}", ran.said);
    ran.says("stage 0 failed (InvalidConfig, exit code 78): the corpus is empty\ngiving up: ");
    assert!(ran.is_gone(1, 1));
}

#[test]
fn asked_to_stop_it_lets_the_stages_leave() {
    let script = "trap 'words Drained bye; exit 143' TERM; started; while :; do sleep 0.02; done";
    let ran = run(script, &[], &["start "]);
    assert_eq!(ran.end, End::Stopped, "{}", ran.said);
    ran.says("stopping: ");
    ran.says("stopped; without checkpoints training starts again at step 0 when the job is run again");
    assert_eq!((&ran.record.state.attempt_phase, ran.record.state.budget.total), (&AttemptPhase::Idle, 0));
}

#[test]
fn asked_to_stop_during_a_back_off_it_does_not_start_again() {
    let ran = run("exit 1", &[("restart.backoff.initialSeconds", "300")], &["restarting in"]);
    assert_eq!((ran.end, ran.record.state.attempt.number), (End::Stopped, 2));
}

#[test]
fn asked_twice_it_kills() {
    let ran = run("trap '' TERM; started; exec sleep 1000", &[], &["start ", "stopping"]);
    assert_eq!(ran.end, End::Killed, "{}", ran.said);
    assert!(ran.is_gone(1, 0) && ran.is_gone(1, 1));
}

#[test]
fn a_stage_that_does_not_leave_is_killed_after_its_grace() {
    let grace = ("template", "{spec: {terminationGracePeriodSeconds: 1}}");
    let ran = run("trap '' TERM; started; exec sleep 1000", &[grace], &["start "]);
    assert_eq!(ran.end, End::Stopped, "{}", ran.said);
    assert!(ran.is_gone(1, 0) && ran.is_gone(1, 1));
}

#[test]
fn a_record_that_cannot_be_written_costs_nothing_and_is_written_when_it_can_be() {
    // nothing is renamed over a folder
    let block = "
        record=$STAGECOACH_WORKSPACE/small/state.json
        if [ $attempt = 1 ] && [ $stage = 0 ]; then until mkdir $record 2>/dev/null; do rm -f $record; done; fi
        if [ $attempt = 1 ]; then until [ -d $record ]; do sleep 0.01; done; fi";
    let script = "
        if [ $attempt = 3 ] && [ $stage = 0 ]; then rmdir $record; fi
        if [ $attempt = 3 ]; then started; finished; exit 0; fi
        both; exit 1";
    let ran = run(&format!("{block}{script}"), &[], &[]);
    assert!(matches!(ran.end, End::Complete(Some(_))), "{:?}\n{}", ran.end, ran.said);
    for told in ["state.json: Is a directory (os error 21); the job goes on", "state.json is written again"] {
        assert_eq!(ran.said.matches(told).count(), 1, "{told:?} in\n{}", ran.said);
    }
    assert_eq!(Record::open(&ran.folder).unwrap().state.attempt.number, 3);

    // not even at the end
    let ran = run(&format!("{block}\nstarted; finished"), &[], &[]);
    assert!(matches!(ran.end, End::Complete(Some(_))), "{:?}\n{}", ran.end, ran.said);
    ran.says("the job goes on, and its record is kept in memory until it can be written");
}
