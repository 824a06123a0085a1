//! Tests of a corpus on a hub. The corpus has the same token ids as the same files on the volume, even if the hub has
//! faults.

use std::sync::{Arc, Mutex};

use crate::common::*;
use stagecoach_data::{DataError, FORMATS, OnWait};
use stagecoach_test_hub::{File, Hub, PlannedAnswer, Port};

pub const REPO: &str = "datasets/org/plays";
const TEXTS: [&str; 5] = ["a b", "c a b", "", "d", "b b c a"];

/// Returns a hub with the same texts in each text format, and a volume with the same files.
fn hub_and_volume() -> (Hub, TestVolume) {
    let volume = TestVolume::new(&[]);
    let mut files = Vec::new();
    for format in FORMATS.iter().filter(|format| format.is_text()) {
        for (index, contents) in (example(format.extension).files)(&TEXTS).into_iter().enumerate() {
            let name = format!("data/{index}.{}", format.extension);
            volume.write(&format!("corpus/{name}"), &contents);
            files.push((name, if index % 2 == 0 { File::large(contents) } else { File::small(contents) }));
        }
    }
    let hub = Hub::start();
    hub.put(REPO, "main", files.iter().map(|(name, file)| (name.as_str(), file.clone())));
    (hub, volume)
}

/// Returns a test volume without corpus files. The configuration of its job names the files on `hub` that match
/// `pattern`.
pub fn remote(hub: &Hub, pattern: &str) -> TestVolume {
    remote_with(hub, pattern, &[])
}

fn remote_with(hub: &Hub, pattern: &str, variables: &[(&str, &str)]) -> TestVolume {
    let mut volume = TestVolume::new(&[]);
    volume.config.sources[0].paths = vec![pattern.to_owned()];
    let endpoint = hub.endpoint();
    let all = [("HF_ENDPOINT", endpoint.as_str()), ("HF_HUB_CACHE", "/nowhere")];
    let all = all.iter().chain(variables).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    volume.config.variables = all.collect();
    volume.config.remote_files = Some(volume.folder.path().join("remote-files.json"));
    volume
}

#[test]
fn a_corpus_on_the_hub_has_the_ids_of_the_same_files() {
    let (hub, volume) = hub_and_volume();
    assert_eq!(remote(&hub, "hf://datasets/org/plays/**/*").ids(), volume.ids());
    hub.faults(|faults| {
        faults.requests_per_signature = 2;
        faults.page_size = 2;
        faults.truncate_at = Some(7);
        faults.truncations = 5;
    });
    assert_eq!(remote(&hub, "hf://datasets/org/plays@main/data/*").ids(), volume.ids());
    hub.faults(|faults| faults.ignores_ranges = true);
    assert_eq!(remote(&hub, "hf://datasets/org/plays/**/*").ids(), volume.ids());
}

#[test]
fn a_limit_of_requests_is_waited_out_and_reported() {
    let (hub, volume) = hub_and_volume();
    let limited = || PlannedAnswer::hub(429).with("ratelimit", "\"resolvers\";r=0;t=0");
    hub.faults(|faults| faults.answers = vec![limited()]);
    let reported = Arc::new(Mutex::new(Vec::new()));
    let mut remote = remote(&hub, "hf://datasets/org/plays/**/*");
    let sentences = reported.clone();
    remote.config.on_wait = OnWait::new(move |sentence| sentences.lock().unwrap().push(sentence.to_owned()));
    assert_eq!(remote.ids(), volume.ids());
    let reported = reported.lock().unwrap();
    assert!(reported[0].starts_with("the hub limits requests: waiting 1 s"), "{reported:?}");
}

#[test]
fn a_job_keeps_the_commit_with_which_it_began() {
    let (hub, volume) = hub_and_volume();
    let pattern = "hf://datasets/org/plays/**/*";
    let job = remote(&hub, pattern);
    let prepared = job.prepare().unwrap();
    hub.put(REPO, "main", [("data/0.txt", File::large("d d d d d d"))]);
    hub.take_requests();
    assert_eq!(job.prepare().unwrap(), prepared);
    assert_eq!(hub.take_requests().len(), 0, "what is recorded and tokenised needs no hub");
    std::fs::remove_dir_all(&job.config.cache_root).unwrap();
    assert_eq!(job.ids(), volume.ids(), "the files of the commit are read again");
    assert_ne!(remote(&hub, pattern).ids(), volume.ids(), "a job that begins now reads the branch as it is now");
    let record = job.config.remote_files.as_ref().unwrap();
    std::fs::write(record, "{").unwrap();
    let message = job.error_message();
    assert!(message.starts_with("VOLUME/remote-files.json is not a record of remote files (EOF"), "{message}");
}

/// The table has a second column, which the reader does not need. The test accepts one request for each row group, and
/// two more requests for the footer.
#[test]
fn parquet_is_read_by_its_column_in_few_requests() {
    let text = "a b c d ".repeat(64);
    let texts: Vec<Option<&str>> = (0..4000).map(|_| Some(text.as_str())).collect();
    let table = parquet("text", &texts);
    let hub = Hub::start();
    hub.put(REPO, "main", [("t.parquet", File::large(table.clone()))]);
    let local = TestVolume::new(&[("t.parquet", &table)]);
    let job = remote(&hub, "hf://datasets/org/plays/t.parquet");
    job.prepare().unwrap();
    let ranges: Vec<_> = hub.take_requests().into_iter().filter(|request| request.port == Port::Cdn).collect();
    assert!(ranges.len() <= 2002, "{} requests for 2000 row groups of two rows", ranges.len());
    assert_eq!(job.ids(), local.ids());
}

#[test]
fn bytes_that_differ_from_the_listing_are_refused() {
    let (hub, _) = hub_and_volume();
    hub.faults(|faults| faults.flipped_byte = Some(1));
    for name in ["0.txt", "0.jsonl", "0.json"] {
        let job = remote(&hub, &format!("hf://datasets/org/plays/data/{name}"));
        let error = job.prepare().unwrap_err();
        let message = error.to_string();
        assert!(!error.is_storage(), "{message}");
        assert!(matches!(error, DataError::Hub(_)), "{name}: {message}");
        assert!(message.contains("sha256:") && message.contains(name), "{message}");
    }
}

#[test]
fn a_refusal_and_offline_mode_are_errors_of_the_job() {
    let (hub, _) = hub_and_volume();
    hub.faults(|faults| faults.answers = (0..40).map(|_| PlannedAnswer::hub(404)).collect());
    let error = remote(&hub, "hf://datasets/org/plays/data/*").prepare().unwrap_err();
    assert!(!error.is_storage(), "{error}");
    let endpoint = hub.endpoint();
    drop(hub);
    let mut job = TestVolume::new(&[]);
    job.config.sources[0].paths = vec!["hf://datasets/org/plays/*".into()];
    job.config.variables =
        [("HF_ENDPOINT".to_owned(), endpoint), ("HF_HUB_OFFLINE".to_owned(), "1".to_owned())].into_iter().collect();
    let error = job.prepare().unwrap_err();
    assert!(!error.is_storage(), "{error}");
}

#[test]
fn what_cannot_be_read_is_one_sentence_and_leaves_nothing() {
    let (hub, _) = hub_and_volume();
    hub.put("datasets/org/images", "main", [("a/1.png", File::large("x")), ("a/2.png", File::large("y"))]);
    hub.put("datasets/org/gated", "main", [("a.txt", File::large("a"))]);
    hub.gate("datasets/org/gated", "hf_accepted");
    let secret = [("HF_TOKEN", "hf_planted")];
    for (pattern, variables, expected) in [
        ("hf://datasets/org/novels/*", &[][..], "has no dataset org/novels, or it is private: check the spelling"),
        ("hf://datasets/org/plays@v2/*", &[], "v2"),
        ("hf://datasets/org/plays/texts/*.txt", &[], "texts/*.txt"),
        ("hf://datasets/org/gated/*", &[], "the dataset org/gated is gated: accept its conditions at "),
        ("hf://datasets/org/plays/data/*", &secret, "HF_TOKEN"),
        ("hf://datasets/org/images/a/*", &[], "hf://datasets/org/images@"),
        ("hf://datasets/plays", &[], "\"hf://datasets/plays\" is not the URI of files on the hub"),
        ("ftp://host/a.txt", &[], "data.paths: \"ftp://host/a.txt\" has the scheme ftp://"),
    ] {
        let job = remote_with(&hub, pattern, variables);
        let message = job.error_message();
        assert!(message.contains(expected), "{message}");
        assert!(!message.contains("planted"), "{message}");
        let left = std::fs::read_dir(&job.config.cache_root).map_or(0, Iterator::count);
        let record = job.config.remote_files.as_ref().unwrap();
        assert!(left == 0 && !record.exists(), "{pattern}");
    }
}
