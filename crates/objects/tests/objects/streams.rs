//! Tests reads of the bytes of objects.

use stagecoach_objects::{Object, ObjectError};
use stagecoach_test_objects::{StoreFault, TestStore};

use crate::Reader;

const SIZE: u64 = 300_000;

fn contents() -> Vec<u8> {
    (0..SIZE).map(|at| (at * at / 7 % 251) as u8).collect()
}

/// Returns a store with one object, a client, and the object.
fn fixture() -> (TestStore, Reader, Object) {
    let store = TestStore::start();
    store.put("a.bin", contents());
    let reader = Reader::new(&store);
    let object = reader.list("s3://bucket/a.bin").unwrap().remove(0);
    store.take_requests();
    (store, reader, object)
}

#[test]
fn ranges_are_read() {
    let (store, reader, object) = fixture();
    assert!(reader.bytes(&object, 0..SIZE).unwrap() == contents());
    assert_eq!(reader.bytes(&object, 10..20).unwrap(), contents()[10..20]);
    assert_eq!(reader.bytes(&object, SIZE - 3..u64::MAX).unwrap(), contents()[299_997..]);
    assert_eq!(store.take_requests().len(), 3);
    assert!(reader.bytes(&object, SIZE..SIZE + 5).unwrap().is_empty());
    assert!(store.take_requests().is_empty(), "the read of an empty range sends no request");
}

#[test]
fn a_broken_connection_resumes_where_it_broke() {
    let (store, reader, object) = fixture();
    let breaks = (0..20).map(|_| StoreFault::Break(9_000));
    store.faults(breaks.chain([StoreFault::error(503, "SlowDown"), StoreFault::error(500, "InternalError")]));
    assert!(reader.bytes(&object, 0..SIZE).unwrap() == contents());
    let requests = store.take_requests();
    assert_eq!(requests.len(), 23);
    assert_eq!(requests[1].header("range"), Some("bytes=9000-299999"));
    assert!(requests.iter().all(|request| request.header("if-match") == object.etag.as_deref()));
    let log = reader.log.lock().unwrap();
    assert!(
        log.notices[0].contains("broke: ") && log.notices[0].ends_with(": trying again in 1 s"),
        "{log:?}",
        log = log.notices
    );
    assert!(log.notices[20].contains("answered 503 (SlowDown): trying again in "), "{}", log.notices[20]);
}

#[test]
fn waits_end_after_five_minutes_without_a_byte() {
    let (store, reader, object) = fixture();
    store.faults((0..100).map(|_| StoreFault::error(503, "SlowDown")));
    let error = reader.bytes(&object, 0..SIZE).unwrap_err();
    assert!(error.is_temporary() && error.to_string().ends_with("answered 503 (SlowDown): try again later"), "{error}");
    let waited = reader.log.lock().unwrap().waited.as_secs();
    assert!((250..=300).contains(&waited), "{waited}");
}

#[test]
fn an_object_that_changes_is_not_read_on() {
    let is_changed = |error: &ObjectError| matches!(error, ObjectError::Changed { .. }) && !error.is_temporary();
    let (store, reader, object) = fixture();
    store.put("a.bin", vec![0; SIZE as usize]);
    let error = reader.bytes(&object, 0..SIZE).unwrap_err();
    assert!(is_changed(&error) && error.to_string().starts_with("s3://bucket/a.bin has changed or is gone"), "{error}");
    // the client also finds the change if the store ignores the header `if-match`
    store.faults([StoreFault::Ignore("if-match")]);
    assert!(is_changed(&reader.bytes(&object, 0..SIZE).unwrap_err()));
    store.put("a.bin", vec![0; 5]);
    assert!(is_changed(&reader.bytes(&object, 10..SIZE).unwrap_err()));
    store.remove("a.bin");
    assert!(is_changed(&reader.bytes(&object, 0..SIZE).unwrap_err()));
}

#[test]
fn an_object_that_changes_between_two_connections_is_not_mixed() {
    let (store, reader, object) = fixture();
    store.faults([StoreFault::Break(9_000), StoreFault::error(412, "PreconditionFailed")]);
    assert!(matches!(reader.bytes(&object, 0..SIZE).unwrap_err(), ObjectError::Changed { .. }));
}

#[test]
fn an_answer_without_the_range_is_refused() {
    let (store, reader, object) = fixture();
    store.faults([StoreFault::Ignore("range")]);
    let error = reader.bytes(&object, 10..20).unwrap_err();
    assert!(matches!(error, ObjectError::Unreadable { .. }), "{error:?}");
}

#[test]
fn a_store_without_tags_is_read_by_time_and_size() {
    let (store, reader, _) = fixture();
    store.without_tags();
    let object = reader.list("s3://bucket/*").unwrap().remove(0);
    assert!(object.etag.is_none() && reader.client.is_unchanged(&object).unwrap());
    assert!(reader.bytes(&object, 0..SIZE).unwrap() == contents());
    store.put("a.bin", vec![0; 5]);
    assert!(!reader.client.is_unchanged(&object).unwrap());
}
