//! Compares this client with Hugging Face's Python clients on the same hub. `make datasets` runs these tests with a
//! Python that has Hugging Face's datasets.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;
use stagecoach_hub::{HubFile, Repo};
use stagecoach_test_hub::{File, Hub};
use tempfile::TempDir;

use crate::{Reader, Setup, named};

/// The results of the Python clients for a data set.
#[derive(Deserialize)]
struct Found {
    /// The SHA-256 of the bytes of each file, by path.
    digests: BTreeMap<String, String>,
    matching: Vec<String>,
    texts: Vec<String>,
}

/// A hub with two data sets, and the results of the Python clients on this hub.
struct Scene {
    hub: Hub,
    found: BTreeMap<String, Found>,
    /// `HF_HOME` of the Python clients.
    home: TempDir,
}

impl Scene {
    fn new() -> Scene {
        let (hub, home) = (Hub::start(), tempfile::tempdir().unwrap());
        run(home.path(), &["make", home.path().to_str().unwrap()], "");
        let file = |name: &str| fs::read(home.path().join(name)).unwrap();
        let readme = || ("README.md", File::small("# A data set\n"));
        hub.put("datasets/org/lines", "main", [readme(), ("deep/lines.jsonl", File::small(file("lines.jsonl")))]);
        hub.put("datasets/org/table", "main", [readme(), ("data/table.parquet", File::large(file("table.parquet")))]);
        hub.faults(|faults| faults.page_size = 2);
        let found = serde_json::from_slice(&run(home.path(), &["read"], &hub.endpoint())).unwrap();
        Scene { hub, found, home }
    }
}

fn run(home: &Path, arguments: &[&str], endpoint: &str) -> Vec<u8> {
    let python = std::env::var("STAGECOACH_DATASETS").expect("the Python with datasets: see `make datasets`");
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/hugging_face/hub_reader.py");
    let mut command = Command::new(python);
    command.arg(script).args(arguments).env("HF_HOME", home).env("HF_ENDPOINT", endpoint).env("NO_PROXY", "127.0.0.1");
    let output = command.env("HF_HUB_DISABLE_TELEMETRY", "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn read(reader: &Reader, repo: &Repo, commit: &str, file: &HubFile) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut reader.client.open(repo, commit, file, 0..file.size), &mut bytes).unwrap();
    bytes
}

#[test]
#[ignore = "needs a Python with datasets: make datasets"]
fn python_clients_read_the_same() {
    let Scene { hub, found, home } = Scene::new();
    let cache = Some(home.path().join("hub"));
    let online = Reader::new(&hub);
    // no hub listens at this address: the offline client reads the files that huggingface_hub has downloaded
    let offline = Setup { cache, offline: true, ..Setup::default() }.client("http://127.0.0.1:1");
    let mut texts = Vec::new();
    for (id, pattern) in [("org/lines", "**/*.jsonl"), ("org/table", "data/*.parquet")] {
        let (repo, found) = (named(&format!("datasets/{id}")), &found[id]);
        for reader in [&online, &offline] {
            let commit = reader.client.commit(&repo, "main").unwrap();
            let files = reader.client.files(&repo, &commit, "").unwrap();
            let digest = |file: &HubFile| sha256(&read(reader, &repo, &commit, file));
            let digests = files.iter().map(|file| (file.path.clone(), digest(file))).collect();
            assert_eq!(found.digests, digests, "{id}");

            let matching = reader.client.files(&repo, &commit, pattern).unwrap();
            let paths: Vec<_> = matching.iter().map(|file| format!("datasets/{id}/{}", file.path)).collect();
            assert_eq!(found.matching, paths, "{id}");
            if id == "org/lines" {
                texts = lines(&read(reader, &repo, &commit, &matching[0]));
            }
        }
        assert!(texts.len() == 1000 && found.texts == texts, "{id}");
    }
}

fn lines(bytes: &[u8]) -> Vec<String> {
    let text = |line: &[u8]| serde_json::from_slice::<Value>(line).unwrap()["text"].as_str().unwrap().to_owned();
    bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(text).collect()
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    format!("{:x}", sha2::Sha256::digest(bytes))
}
