//! Who is not taken in, and what it is told.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use stagecoach_group::{FailureKind, GroupError, Hello, Member, Refusal, Rules, Timing};

use crate::support::{PATIENCE, coordinator, form, hello, join, timing};

fn refused(change: impl FnOnce(&mut Hello)) -> String {
    let (coordinator, address) = coordinator(2, timing());
    let mut stranger = hello(1, 2);
    change(&mut stranger);
    let error = join(&address, stranger, timing()).unwrap_err();
    assert!(matches!(error, GroupError::Refused { .. }), "{error}");
    // The group is not harmed.
    coordinator.release(Vec::new(), Rules::default());
    let one = thread::spawn({
        let address = address.clone();
        move || join(&address, hello(1, 2), timing()).unwrap()
    });
    let stages = [join(&address, hello(0, 2), timing()).unwrap(), one.join().unwrap()];
    form(&stages);
    assert_eq!(coordinator.failure(), None);
    error.to_string()
}

#[test]
fn a_mismatch_names_every_field_that_differs() {
    let told = refused(|hello| {
        hello.version = "0.2.0".to_owned();
        hello.config.insert("seed".to_owned(), "43".to_owned());
        hello.config.insert("packing".to_owned(), "true".to_owned());
        hello.config.remove("model");
    });
    assert_eq!(
        told,
        "stage 1 was refused by stage 0: all stages must run the same job with the same program, but these differ: \
         version is 0.2.0 here and 0.1.0 on stage 0; model is nothing here and Llama on stage 0; \
         packing is true here and nothing on stage 0; seed is 43 here and 42 on stage 0"
    );
}

#[test]
fn another_replica_is_a_mismatch() {
    assert!(refused(|hello| hello.replica = 1).contains("replica is 1 here and 0 on stage 0"));
}

#[test]
fn another_job_is_refused() {
    let told = refused(|hello| hello.job_uid = "job-2".to_owned());
    assert!(told.contains("belongs to job job-2, but the group at this address to job job-1"), "{told}");
}

#[test]
fn an_older_attempt_is_told_to_leave() {
    let told = refused(|hello| hello.attempt = 2);
    assert!(told.contains("attempt 2, and attempt 3 has begun: it should leave"), "{told}");
}

#[test]
fn another_world_and_a_rank_outside_of_it_are_told_both_numbers() {
    let told = refused(|hello| hello.world = 4);
    assert!(told.contains("it counts 4 stages (WORLD_SIZE), but stage 0 counts 2"), "{told}");
    let told = refused(|hello| hello.rank = 2);
    assert!(told.contains("no stage 2 (RANK) in a group of 2"), "{told}");
}

#[test]
fn a_newer_attempt_ends_this_one_and_goes_on_looking() {
    let (coordinator, address) = coordinator(2, timing());
    let newer = Hello { attempt: 4, ..hello(1, 2) };
    let short = Timing { startup: Duration::from_millis(200), ..timing() };
    let error = join(&address, newer, short).unwrap_err();
    let GroupError::NotReached { reason, .. } = &error else { panic!("{error}") };
    assert!(reason.contains("an older attempt still listens there"), "{reason}");
    let failure = coordinator.failure().unwrap();
    assert_eq!((failure.kind, failure.culprit), (FailureKind::Superseded, None));
    assert_eq!(failure.to_string(), "attempt 4 has begun, so attempt 3 is over");
}

#[test]
fn a_second_pod_for_a_rank_ends_the_group() {
    let (coordinator, address) = coordinator(2, timing());
    let (heard, hearing) = channel();
    let first = {
        let address = address.clone();
        let on_preparing = move |progress: &str| drop(heard.send(progress.to_owned()));
        thread::spawn(move || Member::join(&address, hello(1, 2), timing(), on_preparing, |_| {}).unwrap_err())
    };
    hearing.recv_timeout(PATIENCE).unwrap();
    let second = Hello { pod_uid: "pod-9".to_owned(), host: "host-9".to_owned(), ..hello(1, 2) };
    let second = join(&address, second, timing()).unwrap_err();
    assert!(matches!(second, GroupError::Refused { refusal: Refusal::Over { .. }, .. }), "{second}");
    let first = first.join().unwrap();
    for told in [second.to_string(), first.to_string()] {
        let expected = "two pods claim to be stage 1 of attempt 3: pod-1 on host-1, and now pod-9 on host-9";
        assert!(told.contains(expected), "{told}");
    }
    assert_eq!(coordinator.failure().unwrap().kind, FailureKind::SecondPod);
    // Stage 0 learns it when it joins, which it does after it has prepared.
    let zero = join(&address, hello(0, 2), timing()).unwrap_err();
    assert!(matches!(zero, GroupError::Lost(_)), "{zero}");
}
