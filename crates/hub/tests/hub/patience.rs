//! Servers that refuse for a time.

use stagecoach_hub::HubError;

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
        hub.faults(|faults| faults.limits = vec![(name, value.to_owned())]);
        let reader = Reader::new(&hub);
        reader.text("data/*").unwrap();
        assert_eq!(reader.notices(), [format!("the hub limits requests: waiting {seconds} s")]);
        // a little more, so that not all who wait come back at once
        let wait = reader.waits()[0];
        assert!((seconds..=seconds + 2).contains(&wait), "{value}: {wait}");
    }
}

#[test]
fn a_limit_of_requests_is_no_failure() {
    let hub = hub_with(&noise(100));
    let limit = ("ratelimit", "\"api\";r=0;t=55".to_owned());
    hub.faults(|faults| faults.limits = vec![limit.clone(); 20]);
    let reader = Reader::new(&hub);
    reader.text("data/*").unwrap();
    assert_eq!(reader.waits().len(), 20);

    hub.faults(|faults| faults.limits = vec![limit; 100]);
    let error = Reader::new(&hub).text("data/*").unwrap_err();
    assert!(matches!(error, HubError::RateLimited { .. }) && error.is_temporary(), "{error}");
    assert!(error.to_string().contains(" limits requests, and 35"), "{error}");
}

#[test]
fn a_limit_of_files_is_waited_out_too() {
    let hub = hub_with(&noise(100));
    let reader = Reader::new(&hub);
    let (commit, file) = reader.file("data/*").unwrap();
    hub.faults(|faults| faults.limits = vec![("ratelimit", "\"resolvers\";r=0;t=9".to_owned()); 8]);
    assert_eq!(reader.bytes(&commit, &file, 0..100).unwrap().len(), 100);
    assert_eq!(reader.notices(), vec!["the hub limits requests: waiting 10 s"; 8]);
}

#[test]
fn outages_are_waited_out_for_a_time() {
    let hub = hub_with(&noise(100));
    hub.faults(|faults| faults.unavailable = 6);
    let reader = Reader::new(&hub);
    reader.text("data/*").unwrap();
    assert_eq!(reader.waits().len(), 6);
    assert!(reader.notices()[5].contains(" answered 503: ") && reader.notices()[5].contains(": attempt 7 of 7 in "));

    hub.faults(|faults| faults.unavailable = 7);
    let error = Reader::new(&hub).text("data/*").unwrap_err();
    assert!(matches!(error, HubError::Unavailable { status: 503, .. }) && error.is_temporary(), "{error}");
}
