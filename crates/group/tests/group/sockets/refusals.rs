//! Tests stages that the leader refuses, and the error messages of these stages.

use std::thread;

use stagecoach_group::{GroupError, Hello, StepRules};

use super::support::{TEST_TIMEOUT, coordinator, form, hello, join, join_on_thread, timeouts};

fn refused(change: impl FnOnce(&mut Hello)) -> String {
    let (coordinator, address) = coordinator(2, timeouts());
    let mut joining = hello(1, 2);
    change(&mut joining);
    let error = join(&address, joining, timeouts()).unwrap_err();
    assert!(matches!(error, GroupError::Refused { .. }), "{error}");
    // the refusal does not affect the group
    coordinator.release(Vec::new(), StepRules::default());
    let one = thread::spawn({
        let address = address.clone();
        move || join(&address, hello(1, 2), timeouts()).unwrap()
    });
    let stages = [join(&address, hello(0, 2), timeouts()).unwrap(), one.join().unwrap()];
    form(&stages);
    assert_eq!(coordinator.failure(), None);
    error.to_string()
}

#[test]
fn a_mismatch_names_every_field_that_differs() {
    let message = refused(|hello| {
        hello.version = "0.2.0".to_owned();
        hello.config.insert("seed".to_owned(), "43".to_owned());
        hello.config.insert("packing".to_owned(), "true".to_owned());
        hello.config.remove("model");
    });
    assert_eq!(
        message,
        "stage 1 was refused by the leader: all stages must run the same job with the same program, but these differ: \
         version is 0.2.0 here and 0.1.0 on the leader; model is nothing here and Llama on the leader; \
         packing is true here and nothing on the leader; seed is 43 here and 42 on the leader"
    );
}

#[test]
fn another_job_is_refused() {
    let message = refused(|hello| hello.job_uid = "job-2".to_owned());
    assert!(message.contains("belongs to job job-2, but the group at this address to job job-1"), "{message}");
}

#[test]
fn another_attempt_is_refused() {
    for attempt in [2, 4] {
        let message = refused(|hello| hello.attempt = attempt);
        let expected = format!("it belongs to attempt {attempt}, and this group to attempt 3: it should exit");
        assert!(message.contains(&expected), "{message}");
    }
}

#[test]
fn another_world_size_and_a_rank_outside_of_it_are_refused() {
    let message = refused(|hello| hello.world_size = 4);
    assert!(message.contains("it was started with 4 stages (WORLD_SIZE), but the leader with 2"), "{message}");
    let message = refused(|hello| hello.rank = 2);
    assert!(message.contains("no stage 2 (RANK) in a group of 2"), "{message}");
}

#[test]
fn a_second_pod_for_a_rank_ends_the_group() {
    let (coordinator, address) = coordinator(2, timeouts());
    let (first, reports) = join_on_thread(&address, hello(1, 2), timeouts());
    reports.recv_timeout(TEST_TIMEOUT).unwrap();
    let second = Hello { pod_uid: "pod-9".to_owned(), host: "host-9".to_owned(), ..hello(1, 2) };
    let second = join(&address, second, timeouts()).unwrap_err();
    assert!(matches!(second, GroupError::GroupFailed(_)), "{second}");
    let first = first.join().unwrap().unwrap_err();
    for message in [second.to_string(), first.to_string()] {
        let expected = "two pods claim to be stage 1 of attempt 3: pod-1 on host-1, and now pod-9 on host-9";
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(coordinator.failure().unwrap().root_cause_rank, Some(1));
    // stage 0 joins after it has prepared, and then receives the failure
    let zero = join(&address, hello(0, 2), timeouts()).unwrap_err();
    assert!(matches!(zero, GroupError::GroupFailed(_)), "{zero}");
}
