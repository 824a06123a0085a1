//! Tests reads from a cache that other clients of the hub have filled.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use stagecoach_hub::HubError;
use stagecoach_test_hub::{File, Hub};
use tempfile::TempDir;

use crate::{REPO, Reader, Setup, repo};

const TEXT: &[u8] = b"To be, or not to be";
const PATH: &str = "data/deep/hamlet.txt";

/// A hub with a small and a large file, and a cache that contains the large file.
struct Fixture {
    hub: Hub,
    commit: String,
    cache: TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        let hub = Hub::start();
        let commit = hub.put(REPO, "main", [(PATH, File::large(TEXT)), ("README.md", File::small("plays"))]);
        let fixture = Fixture { hub, commit, cache: tempfile::tempdir().unwrap() };
        let digest = Reader::new(&fixture.hub).file(PATH).unwrap().1.digest.to_string();
        fixture.write(&format!("blobs/{}", digest.trim_start_matches("sha256:")), TEXT);
        let snapshot = fixture.repo().join("snapshots").join(&fixture.commit).join(PATH);
        fs::create_dir_all(snapshot.parent().unwrap()).unwrap();
        symlink(fixture.blob(), snapshot).unwrap();
        fixture.write("refs/main", fixture.commit.as_bytes());
        fixture.write("refs/refs/pr/1", fixture.commit.as_bytes());
        fixture.hub.take_requests();
        fixture
    }

    fn repo(&self) -> PathBuf {
        self.cache.path().join("datasets--org--plays")
    }

    fn blob(&self) -> PathBuf {
        fs::read_dir(self.repo().join("blobs")).unwrap().next().unwrap().unwrap().path()
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.repo().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn reader(&self, offline: bool) -> Reader {
        let cache = Some(self.cache.path().to_owned());
        Setup { cache, offline, ..Setup::default() }.client(&self.hub.endpoint())
    }
}

#[test]
fn bytes_in_the_cache_are_not_downloaded() {
    let fixture = Fixture::new();
    let reader = fixture.reader(false);
    assert_eq!(reader.text(PATH).unwrap(), TEXT);
    let (commit, file) = reader.file(PATH).unwrap();
    assert_eq!(reader.bytes(&commit, &file, 3..5).unwrap(), TEXT[3..5]);
    assert!(fixture.hub.take_requests().iter().all(|request| request.path.starts_with("/api/")));
    assert_eq!(reader.text("README.md").unwrap(), b"plays");
}

#[test]
fn another_size_in_the_cache_is_another_file() {
    let fixture = Fixture::new();
    fs::write(fixture.blob(), &TEXT[..7]).unwrap();
    assert_eq!(fixture.reader(false).text(PATH).unwrap(), TEXT);
}

#[test]
fn damage_in_the_cache_is_found() {
    let fixture = Fixture::new();
    fs::write(fixture.blob(), TEXT.to_ascii_uppercase()).unwrap();
    for offline in [false, true] {
        let error = fixture.reader(offline).text(PATH).unwrap_err();
        let place = fixture.repo().join("snapshots").join(&fixture.commit).join(PATH);
        assert!(matches!(&error, HubError::Differs { place: at, .. } if Path::new(at) == place), "{error}");
        assert!(error.to_string().ends_with("remove the file from the cache"), "{error}");
    }
}

#[test]
fn the_cache_is_enough_offline() {
    let fixture = Fixture::new();
    let reader = fixture.reader(true);
    assert_eq!(reader.text("**/*.txt").unwrap(), TEXT);
    for revision in ["main", "refs/pr/1", &fixture.commit] {
        assert_eq!(reader.client.commit(&repo(), revision).unwrap(), fixture.commit);
    }
    let online = Reader::new(&fixture.hub);
    let (commit, file) = online.file(PATH).unwrap();
    assert_eq!(reader.client.files(&repo(), &commit, "").unwrap(), [file]);
}

#[test]
fn a_file_that_is_no_link_has_a_digest_too() {
    let fixture = Fixture::new();
    fixture.write(&format!("snapshots/{}/{PATH}2", fixture.commit), TEXT);
    let files = fixture.reader(true).client.files(&repo(), &fixture.commit, "").unwrap();
    assert_eq!(files[0].digest, files[1].digest);
}

#[test]
fn what_is_missing_offline_is_named() {
    let fixture = Fixture::new();
    let reader = fixture.reader(true);
    let cache = fixture.cache.path().display();
    let error = reader.client.commit(&repo(), "v2").unwrap_err();
    let beginning =
        format!("revision \"v2\" of the dataset org/plays is not in the cache {cache}, and HF_HUB_OFFLINE is set: ");
    assert!(error.to_string().starts_with(&beginning), "{error}");
    fixture.write("outside", fixture.commit.as_bytes());
    assert!(reader.client.commit(&repo(), "../outside").is_err());
    let error = reader.client.files(&repo(), "0123", "*").unwrap_err();
    assert!(matches!(error, HubError::NotCached { .. }) && !error.is_temporary(), "{error}");
    let (commit, file) = Reader::new(&fixture.hub).file("README.md").unwrap();
    fixture.hub.take_requests();
    let error = reader.bytes(&commit, &file, 0..1).unwrap_err();
    assert!(error.to_string().starts_with(&format!("README.md of the dataset org/plays at commit {commit} is not")));
    assert!(fixture.hub.take_requests().is_empty());
}
