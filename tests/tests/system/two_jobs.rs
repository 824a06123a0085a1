//! Two jobs with one folder: the second job is refused with the name of the first, and the first job is not affected.

use std::collections::BTreeSet;
use std::path::Path;

use stagecoach_tests::{Ended, Group, TestJob, corpus, fences, saved, until};

fn job(name: &str) -> TestJob {
    let extra = "  checkpoint: {everySteps: 4}\n  storage: {path: shared}\n".to_owned();
    let job = TestJob { name: name.into(), stages: 1, decay_steps: Some(100), extra, ..TestJob::default() };
    job.endless()
}

fn held(workspace: &Path) -> BTreeSet<String> {
    fences(&workspace.join("shared"))
}

fn training(workspace: &Path) -> Group {
    let mut first = Group::start(workspace, &job("one"), "one-uid", 1);
    until("a checkpoint", || (first.is_whole() && saved(&workspace.join("shared")) > 0).then_some(()));
    first
}

fn is_refused(ended: &Ended, words: &str) {
    let message = ended.termination_message["message"].as_str().unwrap_or_default();
    assert_eq!((ended.code, &ended.termination_message["kind"]), (Some(78), &"InvalidConfig".into()), "{}", ended.log);
    assert!(message.contains(words) && !message.contains("--fresh"), "{message}");
}

#[test]
fn a_job_in_the_folder_of_one_that_trains_is_refused_and_costs_it_nothing() {
    let workspace = corpus::workspace();
    let mut first = training(workspace.path());
    let fences = held(workspace.path());
    let mut second = Group::start(workspace.path(), &job("two"), "two-uid", 1);
    is_refused(&second.finish()[0], "the job one (UID one-uid) trains in");
    // a user creates the job again under the same name, with another seed
    let other = job("one").yaml().replace("    steps:", "    seed: 7\n    steps:");
    let mut copy = Group::start_yaml(workspace.path(), &job("one"), &other, "copy-uid", 1);
    is_refused(&copy.finish()[0], "training.seed is 7 here");
    assert_eq!(held(workspace.path()), fences);
    let before = saved(&workspace.path().join("shared"));
    until("another checkpoint", || {
        (first.is_whole() && saved(&workspace.path().join("shared")) > before).then_some(())
    });
}

#[test]
fn a_job_that_lost_its_folder_to_another_says_to_which() {
    let workspace = corpus::workspace();
    let mut first = training(workspace.path());
    let fences = held(workspace.path());
    // the stages of a suspended job do not answer
    first.stop();
    let mut second = Group::start(workspace.path(), &job("two"), "two-uid", 1);
    until("the second job's fence", || {
        let now = held(workspace.path());
        (second.is_whole() && !now.is_empty() && now.is_disjoint(&fences)).then_some(())
    });
    first.resume();
    is_refused(&first.finish()[0], "the job two (UID two-uid) holds the right");
    assert!(second.is_whole());
}
