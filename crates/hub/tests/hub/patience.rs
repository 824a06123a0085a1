//! Tests that the client waits for a server that temporarily refuses requests, and reports a server that keeps
//! refusing.

use stagecoach_hub::HubError;
use stagecoach_test_hub::PlannedAnswer;

use crate::{Reader, hub_with, noise};

#[test]
fn a_limit_of_requests_is_waited_out() {
    let hub = hub_with(&noise(100));
    let cases = [
        ("ratelimit", "\"resolvers\";r=0;t=55", 56),
        ("ratelimit", "\"api\";r=0;t=7", 8),
        ("retry-after", "120", 120),
        ("retry-after", "Fri, 02 Jan 2026 03:05:00 GMT", 0),
        ("x-nothing", "x", 0),
    ];
    for (name, value, seconds) in cases {
        hub.faults(|faults| faults.answers = vec![PlannedAnswer::hub(429).with(name, value)]);
        let reader = Reader::new(&hub);
        reader.text("data/*").unwrap();
        assert_eq!(reader.notices(), [format!("the hub limits requests: waiting {seconds} s")]);
        // the jitter makes the wait a little longer than the hub's time
        let wait = reader.waits()[0];
        assert!((seconds..=seconds + 2).contains(&wait), "{value}: {wait}");
    }
}

#[test]
fn a_limit_of_requests_is_no_failure() {
    let hub = hub_with(&noise(100));
    let limit = PlannedAnswer::hub(429).with("ratelimit", "\"api\";r=0;t=55");
    hub.faults(|faults| faults.answers = vec![limit.clone(); 20]);
    let reader = Reader::new(&hub);
    reader.text("data/*").unwrap();
    assert_eq!(reader.waits().len(), 20);

    hub.faults(|faults| faults.answers = vec![limit; 100]);
    let error = Reader::new(&hub).text("data/*").unwrap_err();
    assert!(matches!(error, HubError::RateLimited { .. }) && error.is_temporary(), "{error}");
    assert!(error.to_string().contains(" still limits requests after 35"), "{error}");
}

#[test]
fn a_limit_of_files_is_waited_out_too() {
    let hub = hub_with(&noise(100));
    let reader = Reader::new(&hub);
    let (commit, file) = reader.file("data/*").unwrap();
    let limit = |answer: PlannedAnswer| answer.with("ratelimit", "\"resolvers\";r=0;t=9");
    hub.faults(|faults| {
        faults.answers = [vec![limit(PlannedAnswer::hub(429)); 8], vec![limit(PlannedAnswer::cdn(429)); 8]].concat()
    });
    assert_eq!(reader.bytes(&commit, &file, 0..100).unwrap().len(), 100);
    assert_eq!(reader.notices(), vec!["the hub limits requests: waiting 10 s"; 16]);
}

#[test]
fn outages_are_waited_out_for_a_time() {
    let hub = hub_with(&noise(100));
    for status in [408, 500, 502, 503, 504] {
        hub.faults(|faults| faults.answers = vec![PlannedAnswer::hub(status); 6]);
        let reader = Reader::new(&hub);
        reader.text("data/*").unwrap();
        assert_eq!(reader.waits().len(), 6);
        let last = &reader.notices()[5];
        assert!(last.contains(&format!(" answered {status}: attempt 7 of 7 in ")), "{last}");
    }
    for answer in [PlannedAnswer::hub(503), PlannedAnswer::cdn(503)] {
        hub.faults(|faults| faults.answers = vec![answer; 7]);
        let error = Reader::new(&hub).text("data/*").unwrap_err();
        assert!(matches!(error, HubError::Unavailable { status: 503, .. }) && error.is_temporary(), "{error}");
        assert!(!error.to_string().contains("Signature"), "{error}");
    }
}

#[test]
fn other_refusals_are_final() {
    let hub = hub_with(&noise(100));
    let words = "Your token has no access to public gated repositories.";
    hub.faults(|faults| faults.answers = vec![PlannedAnswer::hub(403).with("x-error-message", words)]);
    let error = Reader::with_token(&hub, "hf_token").text("data/*").unwrap_err();
    let expected = "refuses access to the dataset org/plays: Your token has no access to public gated repositories: \
                    check that the token from HF_TOKEN may read it";
    assert!(error.to_string().ends_with(expected) && !error.is_temporary(), "{error}");

    hub.faults(|faults| faults.answers = vec![PlannedAnswer::hub(400)]);
    let reader = Reader::new(&hub);
    let error = reader.text("data/*").unwrap_err();
    assert!(error.to_string().contains("it answers 400") && !error.is_temporary(), "{error}");
    assert!(reader.waits().is_empty());
}

#[test]
fn redirects_in_circles_end() {
    let hub = hub_with(&noise(100));
    hub.faults(|faults| faults.answers = vec![PlannedAnswer::hub(307).with("location", "/api/again"); 50]);
    let error = Reader::new(&hub).text("data/*").unwrap_err();
    assert!(error.to_string().contains("it redirects in circles"), "{error}");
    assert_eq!(hub.take_requests().len(), 11);
}
