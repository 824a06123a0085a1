//! Tests export and import of models: the output has the same weights as the input, an incomplete output never has the
//! final name, and every byte is verified before its use.

use std::sync::Arc;

use crate::common::*;
use stagecoach_checkpoint::*;
use stagecoach_test_volumes::*;

const STEP: u64 = 3;
const FORMATS: [ExportFormat; 2] = [ExportFormat::HuggingFace, ExportFormat::SingleFile];

fn checkpoint() -> MemoryVolume {
    let volume = MemoryVolume::new();
    TestGroup::new(&volume).run(STEP).unwrap();
    volume
}

fn weights() -> TrainerState {
    state_at(STEP).into_iter().filter(|(name, _)| !name.starts_with("exp_avg")).collect()
}

fn export_as(from: &dyn Volume, format: ExportFormat, out: &dyn Volume) -> Result<ExportSummary, CheckpointError> {
    export(&open(from, STEP).unwrap(), &ExportOptions::new(format), out, "model.safetensors", &|_| ())
}

fn read(folder: &std::path::Path) -> TrainerState {
    let files = ModelFiles::open(folder).unwrap();
    files.names().map(|name| (name.to_owned(), files.read(name).unwrap())).collect()
}

#[test]
fn a_directory_of_weights_without_the_optimizer() {
    let folder = tempfile::tempdir().unwrap();
    let out = FileSystemVolume::new(folder.path());
    let options = ExportOptions { max_shard_bytes: 72, ..ExportOptions::new(ExportFormat::HuggingFace) };
    let checkpoint = checkpoint();
    let export_to = |name, options| export(&open(&checkpoint, STEP).unwrap(), &options, &out, name, &|_| ()).unwrap();
    let exported = export_to("out", options);
    let expected = [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
        "config.json",
    ];
    assert_eq!((exported.tensors, exported.bytes), (6, 3 * 72));
    assert_eq!(exported.files, expected);
    let there: Vec<String> = out.list("out").unwrap().into_iter().map(|entry| entry.name).collect();
    assert!(there.len() == 5 && expected.iter().all(|name| there.contains(&(*name).to_owned())), "{there:?}");
    assert!(read(&folder.path().join("out")) == weights());
    // a tensor above the limit gets a separate file
    let each = export_to("each", ExportOptions { max_shard_bytes: 1, ..options });
    assert_eq!((each.files.len(), each.bytes), (6 + 2, 3 * 72));
    assert!(read(&folder.path().join("each")) == weights());
    let together = export_to("together", ExportOptions::new(ExportFormat::HuggingFace));
    assert_eq!(together.files, ["model.safetensors", "config.json"]);
    assert!(read(&folder.path().join("together")) == weights());
}

#[test]
fn bf16_weights_are_rounded_and_named_in_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let out = FileSystemVolume::new(folder.path());
    let checkpoint = checkpoint();
    let rounded = ExportOptions { weights: ExportDtype::BFloat16, ..ExportOptions::new(ExportFormat::HuggingFace) };
    let exported = export(&open(&checkpoint, STEP).unwrap(), &rounded, &out, "out", &|_| ()).unwrap();
    assert_eq!((exported.tensors, exported.bytes), (6, 3 * 72 / 2));
    let files = ModelFiles::open(&folder.path().join("out")).unwrap();
    for (name, values) in weights() {
        assert_eq!(files.tensor(&name).unwrap().dtype, Dtype::BF16, "{name}");
        for (found, value) in files.read_f32(&name).unwrap().as_chunks().0.iter().zip(values.as_chunks().0) {
            let (found, value) = (f32::from_le_bytes(*found), f32::from_le_bytes(*value));
            assert!((found - value).abs() <= value.abs() / 256.0, "{name}: {found} for {value}");
        }
    }
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("out/config.json")).unwrap()).unwrap();
    assert_eq!(config["torch_dtype"], "bfloat16");
}

#[test]
fn a_single_file_export_is_a_model_directory() {
    let folder = tempfile::tempdir().unwrap();
    let out = FileSystemVolume::new(folder.path());
    let exported = export_as(&checkpoint(), ExportFormat::SingleFile, &out).unwrap();
    assert_eq!((exported.files.len(), exported.tensors), (1, 6));
    assert!(read(folder.path()) == weights());
}

#[test]
fn export_never_overwrites() {
    for format in FORMATS {
        let out = MemoryVolume::new();
        export_as(&checkpoint(), format, &out).unwrap();
        let before = snapshot(&out, "");
        let counting = FaultyVolume::counting(Arc::new(out.clone()));
        let message = export_as(&checkpoint(), format, &counting).unwrap_err().to_string();
        assert!(message.contains("model.safetensors: already exists"), "{message}");
        assert_eq!(counting.trace().len(), 1, "before anything is copied");
        assert!(snapshot(&out, "") == before);
    }
}

#[test]
fn export_never_overwrites_a_concurrent_file() {
    let counting = FaultyVolume::counting(Arc::new(MemoryVolume::new()));
    export_as(&checkpoint(), ExportFormat::SingleFile, &counting).unwrap();
    let written = counting.trace().iter().position(|call| call.operation == "sync").unwrap();
    let out = MemoryVolume::new();
    let other = out.clone();
    let create_first = move || other.create("model.safetensors").unwrap().write(b"other").unwrap();
    let late = FaultyVolume::interrupted(Arc::new(out.clone()), written, create_first);
    assert!(
        export_as(&checkpoint(), ExportFormat::SingleFile, &late).unwrap_err().to_string().contains("already exists")
    );
    assert!(snapshot(&out, "") == TrainerState::from([("model.safetensors".into(), b"other".to_vec())]));
}

#[test]
fn a_flipped_bit_is_not_exported() {
    for format in FORMATS {
        let volume = checkpoint();
        let shard = format!("{}/stage-1.model.safetensors", paths::checkpoint_path(STEP));
        assert!(volume.edit(&shard, |bytes| *bytes.last_mut().unwrap() ^= 1));
        let out = MemoryVolume::new();
        let refused = export_as(&volume, format, &out).unwrap_err();
        assert!(matches!(&refused, CheckpointError::Damaged(d) if d.file == shard), "{refused}");
        assert!(out.list("").unwrap().is_empty());
    }
}

#[test]
fn after_any_fault_the_output_is_complete_or_absent() {
    for format in FORMATS {
        let whole = MemoryVolume::new();
        let counting = FaultyVolume::counting(Arc::new(whole.clone()));
        export_as(&checkpoint(), format, &counting).unwrap();
        for at in 0..counting.trace().len() {
            for fault in
                [VolumeFault::CrashBefore, VolumeFault::CrashAfter, VolumeFault::CrashDuring, VolumeFault::Fail(ENOSPC)]
            {
                let failed_once = matches!(fault, VolumeFault::Fail(_));
                let out = MemoryVolume::new();
                export_as(&checkpoint(), format, &FaultyVolume::failing(Arc::new(out.clone()), at, fault)).unwrap_err();
                let there: Vec<String> = out.list("").unwrap().into_iter().map(|entry| entry.name).collect();
                match there.iter().any(|name| name == "model.safetensors") {
                    true => assert!(snapshot(&out, "") == snapshot(&whole, ""), "call {at}"),
                    false => assert!(!failed_once || there.is_empty(), "call {at} left {there:?}"),
                }
            }
        }
    }
}

#[test]
fn import_is_step_0_with_no_jobs_identity() {
    let folder = tempfile::tempdir().unwrap();
    export_as(&checkpoint(), ExportFormat::SingleFile, &FileSystemVolume::new(folder.path())).unwrap();
    let model = ModelFiles::open(folder.path()).unwrap();
    let names: Vec<String> = model.names().map(str::to_owned).collect();
    let volume = MemoryVolume::new();
    let small = [("config.json".to_owned(), b"{}".to_vec())];
    import(&volume, &model, &names, metadata(), &small).unwrap();
    let found = open_newest(&volume, VerifyLevel::Contents, &[]).unwrap().checkpoint.unwrap();
    assert_eq!(found.manifest().step, 0);
    assert!(!differences(&identity(), &found.manifest().metadata.identity).is_empty());
    assert_eq!(found.manifest().files.len(), 3); // the weights, the index and `config.json`
    for (name, bytes) in weights() {
        assert_eq!(found.read(found.tensor(&name).unwrap()).unwrap(), bytes);
    }
    let message = import(&volume, &model, &names, metadata(), &small).unwrap_err().to_string();
    assert!(message.contains("has checkpoints already, up to step 0"), "{message}");
}

#[test]
fn an_import_that_fails_commits_nothing() {
    let folder = tempfile::tempdir().unwrap();
    export_as(&checkpoint(), ExportFormat::SingleFile, &FileSystemVolume::new(folder.path())).unwrap();
    let model = ModelFiles::open(folder.path()).unwrap();
    let names: Vec<String> = model.names().map(str::to_owned).chain(["more".to_owned()]).collect();
    let volume = MemoryVolume::new();
    let message = import(&volume, &model, &names, metadata(), &[]).unwrap_err().to_string();
    assert!(message.ends_with("has no tensor more"), "{message}");
    // the file is truncated after it was opened
    let file = std::fs::File::options().write(true).open(folder.path().join("model.safetensors")).unwrap();
    file.set_len(600).unwrap();
    let refused = import(&volume, &model, &names[..6], metadata(), &[]).unwrap_err();
    assert!(matches!(&refused, CheckpointError::Io { path, .. } if path.ends_with("model.safetensors")), "{refused}");
    assert!(list(&volume).unwrap().steps.is_empty());
    assert_eq!(volume.files("fences"), [""; 0]);
}

#[test]
fn a_file_that_is_removed_while_it_is_verified_is_damaged() {
    let volume = MemoryVolume::new();
    let save = Fence::acquire(&volume).unwrap().pending_checkpoint(STEP);
    save.begin(&volume, &identity()).unwrap();
    // the verification reads this file in two parts
    let large = ("large.bin".to_owned(), vec![7; (1 << 20) + 1]);
    save.commit(&volume, metadata(), &[], &[large]).unwrap();
    let mut damage = Vec::new();
    let intact = verify(&volume.nfs_client(), STEP, &mut |event| match event {
        VerifyEvent::BytesRead(_) => {
            let _ = volume.remove_file(&format!("{}/large.bin", paths::checkpoint_path(STEP)));
        }
        VerifyEvent::FileChecked(file, reason) => {
            damage.extend(reason.map(|reason| format!("{} {reason}", file.name)));
        }
        _ => unreachable!(),
    });
    assert!(!intact.unwrap());
    assert_eq!(damage, ["large.bin was removed while it was open"]);
}

#[test]
fn verification_continues_after_the_first_damage() {
    let volume = checkpoint();
    let at = |file: &str| format!("{}/{file}", paths::checkpoint_path(STEP));
    let verify_all = |volume: &dyn Volume| {
        let mut damage = Vec::new();
        let mut read = 0;
        let intact = verify(volume, STEP, &mut |event| match event {
            VerifyEvent::BytesRead(bytes) => read += bytes,
            VerifyEvent::FileChecked(file, reason) => {
                damage.extend(reason.map(|reason| format!("{} {reason}", file.name)))
            }
            _ => unreachable!(),
        })
        .unwrap();
        assert_eq!(intact, damage.is_empty());
        (damage, read)
    };
    let (damage, read) = verify_all(&volume);
    assert_eq!((damage.len(), read), (0, read_manifest(&volume, STEP).unwrap().bytes()));
    assert!(volume.edit(&at("stage-0.model.safetensors"), |bytes| *bytes.last_mut().unwrap() ^= 1));
    assert!(volume.edit(&at("stage-1.model.safetensors"), |bytes| bytes.truncate(20)));
    volume.remove_file(&at("config.json")).unwrap();
    let (damage, _) = verify_all(&volume);
    assert_eq!(damage[0], "stage-0.model.safetensors does not hold the bytes that were written");
    assert!(damage[1].starts_with("stage-1.model.safetensors has 20 bytes"));
    assert_eq!(damage[2], "config.json is missing");
    assert!(volume.edit(&at("manifest.json"), |bytes| bytes.truncate(70)));
    assert!(matches!(verify(&volume, STEP, &mut |_| ()), Err(CheckpointError::Damaged(_))));
}
