//! Fuzzes the readers of files that users write, and of files that a volume may have damaged.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use stagecoach_checkpoint::{
    Dtype, FileSystemVolume, Manifest, ModelFiles, TensorView, Volume, newest_published, write_shard,
};
use stagecoach_fuzz::{mutate, mutations, peak_bytes};
use stagecoach_pipeline::{
    Programs, from_csv, interleaved_zero_bubble, lower, one_f_one_b, to_csv, verify, zbv_zero_bubble,
};

use crate::fuzz;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn schedules_and_programs() {
    let schedules = [one_f_one_b(3, 8), interleaved_zero_bubble(2, 2, 4), zbv_zero_bubble(3, 6)];
    let csv: Vec<Vec<u8>> = schedules.iter().map(|schedule| to_csv(schedule).into_bytes()).collect();
    fuzz(3000, &csv, 200, |bytes| {
        let stages = text(bytes).lines().count().clamp(1, 4);
        let Ok(schedule) = from_csv(&text(bytes), stages) else { return false };
        lower(&schedule, true).is_ok_and(|programs| verify(&programs, &Default::default()).is_ok())
    });
    let programs: Vec<Vec<u8>> =
        schedules.iter().map(|schedule| lower(schedule, true).unwrap().to_text().into_bytes()).collect();
    fuzz(3000, &programs, 200, |bytes| {
        Programs::from_text(&text(bytes)).is_ok_and(|programs| verify(&programs, &Default::default()).is_ok())
    });
}

#[test]
fn job_files() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/samples");
    let samples = fs::read_dir(samples).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap());
    let full = include_bytes!("../../../../crates/api/tests/jobs/full.yaml").to_vec();
    let valid: Vec<Vec<u8>> = samples.chain([full]).collect();
    fuzz(2000, &valid, 500, |bytes| {
        let read = stagecoach_api::parse(&text(bytes), "job.yaml");
        assert!(read.as_ref().err().is_none_or(|error| !error.to_string().is_empty()));
        read.is_ok()
    });
    fuzz(
        1000,
        &[b"training.steps=400".to_vec(), b"data.tokenizer={type: Train, train: {vocabSize: 512}}".to_vec()],
        500,
        |bytes| {
            let set = text(bytes);
            let (path, value) = set.split_once('=').unwrap_or((&set, ""));
            stagecoach_api::parse_with(&text(&valid[0]), "job.yaml", &[(path.to_owned(), value.to_owned())]).is_ok()
        },
    );
}

/// Fuzzes the manifest of a checkpoint. The test corrects the digest at the beginning of the manifest, since a reader
/// stops at a wrong digest.
#[test]
fn manifests() {
    let manifest = r#"{"format_version": 1, "step": 100, "fence": 7, "holder": "h", "attempt": 1, "created_at": "", "version": "",
            "identity": {"seed": 42}, "plan": {"partition": [1, 2]}, "progress": {"step": 100}, "job": {}, "environment": {},
            "files": [{"name": "stage-0.model.safetensors", "bytes": 108, "blake3": "ab"}],
            "tensors": [{"name": "x", "file": "stage-0.model.safetensors", "dtype": "F32", "shape": [1, 1],
                          "offset": 104, "bytes": 4, "blake3": "cd"}]}"#;
    let signed = |body: &[u8]| {
        let body = [b"\",", body].concat();
        [b"{\n  \"blake3\": \"", blake3::hash(&body).to_hex().as_bytes(), &body].concat()
    };
    let body = manifest.as_bytes()[1..].to_vec();
    fuzz(4000, std::slice::from_ref(&body), 200, |bytes| Manifest::parse(&signed(bytes)).is_ok());
    fuzz(500, &[signed(&body)], 200, |bytes| Manifest::parse(bytes).is_ok());
}

#[test]
fn safetensors_and_their_index() {
    let folder = tempfile::tempdir().unwrap();
    let volume = FileSystemVolume::new(folder.path());
    let values = [0; 24];
    let view = |shape: &[usize]| TensorView::new(Dtype::F32, shape.to_vec(), &values).unwrap();
    write_shard(&volume, "valid", &[("a.weight".to_owned(), view(&[2, 3])), ("b".to_owned(), view(&[6]))]).unwrap();
    let read = || {
        let Ok(files) = ModelFiles::open(folder.path()) else { return false };
        for name in files.names() {
            drop((files.read(name), files.read_f32(name)));
        }
        true
    };
    let path = |name: &str| folder.path().join(name);
    let shard = fs::read(path("valid")).unwrap();
    fuzz(2000, std::slice::from_ref(&shard), 200, |bytes| {
        fs::write(path("model.safetensors"), bytes).unwrap();
        read()
    });
    fs::write(path("model.safetensors"), &shard).unwrap();
    let index = br#"{"metadata": {"total_size": 48}, "weight_map": {"a.weight": "model.safetensors", "b": "model.safetensors"}}"#;
    fuzz(1000, &[index.to_vec()], 200, |bytes| {
        fs::write(path("model.safetensors.index.json"), bytes).unwrap();
        read()
    });
}

proptest! {
    /// Fuzzes the names of folders in `fences/`, with which groups of stages claim the right to change the checkpoints
    /// on a volume. Another program may have created any folder there.
    #[test]
    fn names_of_fences(changes in prop::collection::vec(mutations(), 1..4)) {
        let folder = tempfile::tempdir().unwrap();
        let volume = FileSystemVolume::new(folder.path());
        volume.make_dir("fences").unwrap();
        for (valid, changes) in ["0007", "0007.fenced", "0007.2.fenced"].iter().zip(&changes) {
            let name = text(&mutate(valid.as_bytes(), changes)).replace(['/', '\0'], "_");
            // creation fails if the name consists of dots or exists already
            drop(volume.make_dir(&format!("fences/{name}")));
        }
        let (found, peak) = peak_bytes(|| newest_published(&volume, "rendezvous,"));
        prop_assert!(found.unwrap().is_none_or(|(_, name)| name.is_none()) && peak < 1 << 20);
    }
}
