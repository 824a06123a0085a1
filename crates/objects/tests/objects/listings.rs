//! Tests which objects a URI matches.

use stagecoach_objects::ObjectError;
use stagecoach_test_objects::TestStore;

use crate::Reader;

fn store_of(keys: &[&str]) -> (TestStore, Reader) {
    let store = TestStore::start();
    keys.iter().for_each(|key| store.put(key, key.as_bytes()));
    let reader = Reader::new(&store);
    (store, reader)
}

#[test]
fn a_listing_has_pages_and_asks_only_below_the_literal_prefix() {
    let (store, reader) = store_of(&["data/a 1+%20é.txt", "data/a2.txt", "data/deep/a3.txt", "data/b.txt", "other"]);
    store.page_size(1);
    assert_eq!(reader.keys("s3://bucket/data/a*.txt"), ["data/a 1+%20é.txt", "data/a2.txt"]);
    let requests = store.take_requests();
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|request| request.query["prefix"] == "data/a" && request.query["delimiter"] == "/"));
    assert_eq!(
        reader.keys("s3://bucket/data/**/*.txt"),
        ["data/a 1+%20é.txt", "data/a2.txt", "data/b.txt", "data/deep/a3.txt"]
    );
    assert!(store.take_requests().iter().all(|request| !request.query.contains_key("delimiter")));
    assert_eq!(reader.keys("s3://bucket").len(), 5);
}

#[test]
fn a_key_without_wildcards_is_asked_for_alone() {
    let (store, reader) = store_of(&["data/[a].txt", "data/a.txt"]);
    assert_eq!(reader.keys("s3://bucket/data/a.txt"), ["data/a.txt"]);
    assert_eq!(store.take_requests()[0].method, "HEAD");
    assert_eq!(reader.keys("s3://bucket/data/[[]a].txt"), ["data/[a].txt"]);
}

#[test]
fn an_object_has_all_that_identifies_its_contents() {
    let (store, reader) = store_of(&["a.txt"]);
    let [listed, asked] = ["s3://bucket/*", "s3://bucket/a.txt"].map(|uri| reader.list(uri).unwrap().remove(0));
    assert_eq!(listed, asked);
    assert!(listed.size == 5 && listed.modified == 1_767_323_045 && listed.etag.as_ref().unwrap().starts_with('"'));
    assert!(reader.client.is_unchanged(&listed).unwrap());
    store.put("a.txt", "A.TXT");
    assert!(!reader.client.is_unchanged(&listed).unwrap());
    store.remove("a.txt");
    assert!(!reader.client.is_unchanged(&listed).unwrap());
}

#[test]
fn hidden_objects_and_folders_of_consoles_match_only_by_name() {
    let (store, reader) = store_of(&["data/.hidden", "data/a.txt"]);
    store.put("data/", "");
    store.put("data/empty.txt", "");
    assert_eq!(reader.keys("s3://bucket/**"), ["data/a.txt", "data/empty.txt"]);
    assert_eq!(reader.keys("s3://bucket/data/.h*"), ["data/.hidden"]);
}

#[test]
fn a_pattern_without_a_match_names_what_is_there() {
    let (_store, reader) = store_of(&["data/a", "data/b", "data/c", "data/d/e", "top"]);
    let cases = [
        ("s3://bucket/data/*.txt", "its folder data holds data/a, data/b, data/c and 1 more"),
        ("s3://bucket/data/d/x.txt", "its folder data/d holds data/d/e"),
        ("s3://bucket/none/deep/*", "the bucket holds data/, top"),
        ("s3://bucket/data", "the bucket holds data/, top"),
    ];
    for (uri, nearest) in cases {
        let error = reader.list(uri).unwrap_err();
        assert!(matches!(error, ObjectError::NoMatch { .. }) && !error.is_temporary());
        assert_eq!(error.to_string(), format!("no object matches {uri}: {nearest}"));
    }
    let (_store, reader) = store_of(&[]);
    assert_eq!(reader.refused("s3://bucket/*"), "no object matches s3://bucket/*: the bucket is empty");
}
