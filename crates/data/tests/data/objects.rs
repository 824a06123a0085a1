//! Tests that a corpus in a bucket has the same token ids as its files on the volume, even if the store has faults.

use std::sync::{Arc, Mutex};

use crate::common::*;
use stagecoach_data::{DataError, FORMATS, OnWait};
use stagecoach_test_objects::{StoreFault, TestStore};

const TEXTS: [&str; 5] = ["a b", "c a b", "", "d", "b b c a"];
const ALL: &str = "s3://bucket/data/**/*";

/// Returns a store with the same texts in each text format, and a volume with the same files.
fn store_and_volume() -> (TestStore, TestVolume) {
    let (store, volume) = (TestStore::start(), TestVolume::new(&[]));
    for format in FORMATS.iter().filter(|format| format.is_text()) {
        for (index, contents) in (example(format.extension).files)(&TEXTS).into_iter().enumerate() {
            let name = format!("data/{index}.{}", format.extension);
            volume.write(&format!("corpus/{name}"), &contents);
            store.put(&name, contents);
        }
    }
    (store, volume)
}

/// Returns a volume without corpus files. Its job reads the objects that match `pattern` from `store`.
fn remote(store: &TestStore, pattern: &str) -> TestVolume {
    let mut volume = TestVolume::new(&[]);
    volume.config.sources[0].paths = vec![pattern.to_owned()];
    let variables = [("AWS_ENDPOINT_URL", store.endpoint().as_str()), ("AWS_SKIP_SIGNATURE", "true")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    volume.config.variables = variables.into_iter().collect();
    volume.config.remote_files = Some(volume.folder.path().join("remote-files.json"));
    volume
}

#[test]
fn a_corpus_in_a_bucket_has_the_ids_of_the_same_files() {
    let (store, volume) = store_and_volume();
    store.put("data/", "");
    store.page_size(2);
    assert_eq!(remote(&store, ALL).ids(), volume.ids());
    store.without_tags();
    assert_eq!(remote(&store, ALL).ids(), volume.ids(), "files without a tag are hashed");
}

#[test]
fn a_failure_is_waited_out_and_reported() {
    let (store, volume) = store_and_volume();
    store.faults([StoreFault::error(503, "SlowDown")]);
    let reported = Arc::new(Mutex::new(Vec::new()));
    let mut remote = remote(&store, ALL);
    let sentences = reported.clone();
    remote.config.on_wait = OnWait::new(move |sentence| sentences.lock().unwrap().push(sentence.to_owned()));
    assert_eq!(remote.ids(), volume.ids());
    let reported = reported.lock().unwrap();
    assert!(reported[0].ends_with("answered 503 (SlowDown): trying again in 1 s"), "{reported:?}");
}

#[test]
fn a_job_keeps_the_objects_with_which_it_began() {
    let (store, volume) = store_and_volume();
    let job = remote(&store, ALL);
    let prepared = job.prepare().unwrap();
    store.put("data/new.txt", "d d d d");
    store.take_requests();
    assert_eq!(job.prepare().unwrap(), prepared);
    assert_eq!(store.take_requests().len(), 0, "what is recorded and tokenised needs no store");
    std::fs::remove_dir_all(&job.config.cache_root).unwrap();
    assert_eq!(job.ids(), volume.ids(), "new objects are none of the job's");

    store.put("data/0.txt", "d");
    std::fs::remove_dir_all(&job.config.cache_root).unwrap();
    let error = job.prepare().unwrap_err();
    assert!(matches!(error, DataError::Objects(_)) && !error.is_storage(), "{error:?}");
    assert!(
        error.to_string().starts_with("s3://bucket/data/0.txt has changed or is gone since it was listed"),
        "{error}"
    );
}

#[test]
fn what_can_t_be_read_is_one_sentence() {
    let (store, _) = store_and_volume();
    let cases = [
        ("s3://bucket/none/*.txt", "no object matches s3://bucket/none/*.txt: the bucket holds data/"),
        ("s3://other/*", "no bucket other: check the spelling"),
        ("s3://bucket/a/../b", "\"s3://bucket/a/../b\" is not the URI of objects"),
        ("ftp://bucket/a", "has the scheme ftp://, which is none of hf, s3, gs and az"),
    ];
    for (pattern, sentence) in cases {
        let message = remote(&store, pattern).error_message();
        assert!(message.contains(sentence), "{message}");
    }
}
