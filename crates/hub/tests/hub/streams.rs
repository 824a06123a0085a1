//! Tests reads of files over connections that break, stall or deliver wrong bytes.

use std::collections::HashSet;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use stagecoach_hub::{HUB_RETRY_POLICY, HubError};
use stagecoach_remote::RetryPolicy;
use stagecoach_test_hub::{File, Hub, PlannedAnswer, Port};

use crate::{REPO, Reader, Setup, hub_with, noise, ranges, repo};

#[test]
fn files_come_from_the_hub_and_from_the_cdn() {
    let hub = Hub::start();
    let (small, large) = (noise(100), noise(300_000));
    let files = [("a b/#1 %.txt", File::small(&*small)), ("ä.bin", File::large(&*large)), ("empty", File::small(""))];
    hub.put(REPO, "main", files);
    let reader = Reader::new(&hub);
    assert_eq!(reader.text("a b/*").unwrap(), small);
    assert_eq!(reader.text("ä.bin").unwrap(), large);
    assert_eq!(reader.text("empty").unwrap(), b"");
    let (commit, file) = reader.file("ä.bin").unwrap();
    assert_eq!(reader.bytes(&commit, &file, 1000..1005).unwrap(), large[1000..1005]);
    assert_eq!(reader.bytes(&commit, &file, 299_999..400_000).unwrap(), large[299_999..]);
    assert_eq!(reader.bytes(&commit, &file, 300_000..300_001).unwrap(), b"");
}

#[test]
fn only_the_hub_gets_the_token() {
    let hub = hub_with(&noise(100));
    hub.user("hf_secret");
    Reader::with_token(&hub, "hf_secret").text("data/*").unwrap();
    let requests = hub.take_requests();
    assert_eq!(requests.iter().filter(|request| request.port == Port::Cdn).count(), 1);
    assert!(requests.iter().all(|request| request.has_authorization == (request.port == Port::Hub)), "{requests:?}");
}

#[test]
fn one_signature_serves_all_ranges_of_a_file() {
    let bytes = noise(10_000);
    let hub = hub_with(&bytes);
    let reader = Reader::new(&hub);
    let (commit, file) = reader.file("data/*").unwrap();
    hub.take_requests();
    for start in (0..10_000).step_by(1000) {
        assert_eq!(reader.bytes(&commit, &file, start..start + 1000).unwrap().len(), 1000);
    }
    let requests = hub.take_requests();
    assert_eq!(ranges(&requests, |request| request.port == Port::Hub), ["bytes=0-999"]);
    let cdn = requests.iter().filter(|request| request.port == Port::Cdn);
    assert_eq!(cdn.map(|request| request.peer).collect::<HashSet<_>>().len(), 1, "connections");
}

#[test]
fn an_expired_signature_is_renewed() {
    let bytes = noise(10_000);
    let hub = hub_with(&bytes);
    hub.faults(|faults| {
        faults.requests_per_signature = 2;
        faults.truncate_at = Some(900);
    });
    let reader = Reader::new(&hub);
    assert_eq!(reader.text("data/*").unwrap(), bytes);
    let requests = hub.take_requests();
    assert_eq!(ranges(&requests, |request| request.port == Port::Hub).len(), 6);
}

#[test]
fn signatures_that_never_serve_are_an_error() {
    let hub = hub_with(&noise(10_000));
    hub.faults(|faults| faults.requests_per_signature = 0);
    let reader = Reader::new(&hub);
    let error = reader.text("data/*").unwrap_err();
    assert!(matches!(error, HubError::SignatureRefused { status: 403, .. }) && error.is_temporary(), "{error}");
    assert_eq!(ranges(&hub.take_requests(), |request| request.port == Port::Cdn).len(), 2);
    assert!(reader.waits().is_empty());
}

#[test]
fn a_server_may_ignore_ranges() {
    let bytes = noise(300_000);
    let hub = hub_with(&bytes);
    hub.faults(|faults| faults.ignores_ranges = true);
    let reader = Reader::new(&hub);
    let (commit, file) = reader.file("data/*").unwrap();
    assert_eq!(reader.bytes(&commit, &file, 200_000..200_010).unwrap(), bytes[200_000..200_010]);
}

#[test]
fn a_truncated_body_continues_where_it_broke() {
    let bytes = noise(10_000);
    let hub = hub_with(&bytes);
    hub.faults(|faults| faults.truncate_at = Some(1000));
    let reader = Reader::new(&hub);
    assert_eq!(reader.text("data/*").unwrap(), bytes);
    let requests = hub.take_requests();
    let starts: Vec<_> = (0..10).map(|part| format!("bytes={}-9999", part * 1000)).collect();
    assert_eq!(ranges(&requests, |request| request.port == Port::Cdn), starts);
    assert_eq!(reader.waits(), [0; 9]);
}

#[test]
fn bodies_that_never_get_on_are_an_error() {
    let hub = hub_with(&noise(10_000));
    // if the server ignores ranges, each attempt receives the same bytes before the connection breaks
    for ignores_ranges in [false, true] {
        hub.faults(|faults| {
            faults.truncate_at = Some(if ignores_ranges { 1000 } else { 0 });
            faults.ignores_ranges = ignores_ranges;
        });
        let reader = Reader::new(&hub);
        let error = reader.text("data/*").unwrap_err();
        assert!(matches!(error, HubError::Interrupted { .. }) && error.is_temporary(), "{error}");
        assert_eq!(reader.waits().len(), 6);
    }
}

#[test]
fn a_body_that_stops_is_asked_for_again() {
    let bytes = noise(10_000);
    let hub = hub_with(&bytes);
    hub.faults(|faults| (faults.stall_at, faults.stalls) = (Some(5000), 1));
    let policy = Some(RetryPolicy { silence: Duration::from_millis(300), ..HUB_RETRY_POLICY });
    let reader = Setup { policy, ..Setup::default() }.client(&hub.endpoint());
    let (sender, receiver) = mpsc::channel();
    let reading = thread::spawn(move || {
        sender.send(reader.text("data/*").unwrap()).unwrap();
        reader
    });
    assert_eq!(stagecoach_test_wait::until("the rest of the body", || receiver.try_recv().ok()), bytes);
    let reader = reading.join().unwrap();
    assert!(reader.notices()[0].contains("the server sent no data within the timeout"), "{:?}", reader.notices());
    let requests = hub.take_requests();
    assert_eq!(ranges(&requests, |request| request.port == Port::Cdn)[1], "bytes=5000-9999");
}

#[test]
fn a_flipped_byte_is_an_error_at_the_end() {
    let hub = Hub::start();
    let bytes = noise(300_000);
    hub.put(REPO, "main", [("large", File::large(&*bytes)), ("small", File::small(&bytes[..100]))]);
    hub.faults(|faults| faults.flipped_byte = Some(50));
    let reader = Reader::new(&hub);
    for path in ["large", "small"] {
        let error = reader.text(path).unwrap_err();
        let (commit, file) = reader.file(path).unwrap();
        let beginning =
            format!("{path} of the dataset org/plays at commit {commit} is damaged: the bytes from 127.0.0.1:");
        assert!(error.to_string().starts_with(&beginning), "{error}");
        assert!(error.to_string().contains(&file.digest.to_string()) && !error.is_temporary(), "{error}");
        // a part of a file can't be verified, because the hub lists digests of whole files only
        assert_eq!(reader.bytes(&commit, &file, 50..51).unwrap(), [bytes[50] ^ 1]);
    }
}

#[test]
fn a_download_that_contradicts_the_listing_is_refused() {
    let hub = hub_with(&noise(100));
    let cases = [
        ("x-repo-commit", "0".repeat(40)),
        ("x-linked-etag", format!("\"{}\"", "0".repeat(64))),
        ("x-linked-size", "99".to_owned()),
    ];
    for (name, value) in cases {
        hub.faults(|faults| faults.headers = vec![(name, value)]);
        let error = Reader::new(&hub).text("data/*").unwrap_err();
        assert!(matches!(error, HubError::Contradicts { .. }) && !error.is_temporary(), "{name}: {error}");
    }
    // the tag of a mirror is not a digest, and is not compared
    hub.faults(|faults| faults.headers = vec![("x-linked-etag", "W/\"5f2a-1234\"".to_owned())]);
    Reader::new(&hub).text("data/*").unwrap();
}

#[test]
fn a_range_of_another_file_is_refused() {
    let hub = hub_with(&noise(100));
    let answers = [
        PlannedAnswer::cdn(206).with("content-range", "bytes 0-99/101"),
        PlannedAnswer::cdn(206).with("content-range", "bytes 1-99/100"),
        PlannedAnswer::cdn(206),
        PlannedAnswer::cdn(200).with("content-length", "101"),
        PlannedAnswer::cdn(416),
    ];
    for answer in answers {
        hub.faults(|faults| faults.answers = vec![answer.clone()]);
        let error = Reader::new(&hub).text("data/*").unwrap_err();
        let is_refused = matches!(error, HubError::Contradicts { .. } | HubError::Protocol { .. });
        assert!(is_refused && !error.is_temporary(), "{answer:?}: {error}");
    }
}

#[test]
fn a_branch_may_move_while_it_is_read() {
    let hub = Hub::start();
    let first = hub.put(REPO, "main", [("a", File::large("one"))]);
    let reader = Reader::new(&hub);
    let (commit, file) = reader.file("a").unwrap();
    let second = hub.put(REPO, "main", [("a", File::large("two"))]);
    assert_eq!(reader.bytes(&commit, &file, 0..3).unwrap(), b"one");
    assert_eq!((commit, reader.client.commit(&repo(), "main").unwrap()), (first, second));
}

#[test]
fn a_renamed_repository_is_followed() {
    for absolute_redirects in [false, true] {
        let hub = Hub::start();
        hub.put("datasets/old/name", "main", [("a", File::small("one")), ("b", File::large("two"))]);
        hub.rename("datasets/old/name", REPO);
        hub.hide(REPO, "hf_owner");
        hub.faults(|faults| faults.absolute_redirects = absolute_redirects);
        let reader = Reader::with_token(&hub, "hf_owner");
        let old = crate::named("datasets/old/name");
        let commit = reader.client.commit(&old, "main").unwrap();
        for file in reader.client.files(&old, &commit, "").unwrap() {
            let mut reader = reader.client.open(&old, &commit, &file, 0..file.size);
            assert_eq!(std::io::read_to_string(&mut reader).unwrap().len(), 3);
        }
    }
}

#[test]
fn a_file_may_be_larger_than_this_machine() {
    let hub = Hub::start();
    let fill = |offset, buffer: &mut [u8]| {
        (offset..).zip(buffer).for_each(|(at, byte): (u64, _)| *byte = (at >> 24) as u8);
    };
    hub.put(REPO, "main", [("a", File::generated(28 << 30, &"a".repeat(64), fill))]);
    let reader = Reader::new(&hub);
    let (commit, file) = reader.file("a").unwrap();
    assert_eq!(reader.bytes(&commit, &file, (5 << 24) - 1..(5 << 24) + 1).unwrap(), [4, 5]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_are_right_or_there_is_an_error(
        size in 1_usize..200_000,
        (from, to) in (0.0..=1.0_f64, 0.0..=1.0_f64),
        truncate_at in proptest::option::of(0_u64..100_000),
        truncations in 0_u32..12,
        requests_per_signature in 1_u32..4,
        ignores_ranges: bool,
    ) {
        let bytes = noise(size);
        let hub = hub_with(&bytes);
        hub.faults(|faults| {
            (faults.truncate_at, faults.truncations) = (truncate_at, truncations);
            (faults.requests_per_signature, faults.ignores_ranges) = (requests_per_signature, ignores_ranges);
        });
        let reader = Reader::new(&hub);
        let (commit, file) = reader.file("data/*").unwrap();
        let at = |part: f64| (part * size as f64) as u64;
        let range = at(from.min(to))..at(from.max(to));
        match reader.bytes(&commit, &file, range.clone()) {
            Ok(found) => prop_assert!(found == bytes[range.start as usize..range.end as usize]),
            // if the server ignores ranges, each body may break before the first new byte
            Err(error) => prop_assert!(error.is_temporary() && truncate_at.is_some(), "{error}"),
        }
    }
}
