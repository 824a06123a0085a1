//! Models taken out and in: equal bytes, nothing half-written under the final name, nothing unproven.
#![allow(clippy::unwrap_used, clippy::panic)] // also in what is shared by tests

mod common;

use std::sync::Arc;

use common::*;
use stagecoach_checkpoint::testing::*;
use stagecoach_checkpoint::*;

const STEP: u64 = 3;
const FORMS: [Form; 2] = [Form::HuggingFace, Form::SingleFile];

fn checkpoint() -> MemoryVolume {
    let volume = MemoryVolume::new();
    Group::on(&volume).run(STEP).unwrap();
    volume
}

fn weights() -> State {
    state_at(STEP).into_iter().filter(|(name, _)| !name.starts_with("exp_avg")).collect()
}

fn take(from: &dyn Volume, form: Form, out: &dyn Volume) -> Result<Exported, CheckpointError> {
    export(&open(from, STEP).unwrap(), form, out, "model.safetensors", &|_| ())
}

fn read(folder: &std::path::Path) -> State {
    let files = ModelFiles::open(folder).unwrap();
    files.names().map(|name| (name.to_owned(), files.read(name).unwrap())).collect()
}

#[test]
fn a_directory_of_weights_without_the_optimizer() {
    let folder = tempfile::tempdir().unwrap();
    let out = RealVolume::new(folder.path());
    let exported = export(&open(&checkpoint(), STEP).unwrap(), Form::HuggingFace, &out, "out", &|_| ()).unwrap();
    let expected = [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
        "config.json",
    ];
    assert_eq!(exported, Exported { files: expected.map(str::to_owned).to_vec(), tensors: 6, bytes: 3 * 72 });
    let there: Vec<String> = out.list("out").unwrap().into_iter().map(|entry| entry.name).collect();
    assert!(there.len() == 5 && expected.iter().all(|name| there.contains(&(*name).to_owned())), "{there:?}");
    assert!(read(&folder.path().join("out")) == weights());
}

#[test]
fn one_file_is_a_model_directory_too() {
    let folder = tempfile::tempdir().unwrap();
    let out = RealVolume::new(folder.path());
    let exported = take(&checkpoint(), Form::SingleFile, &out).unwrap();
    assert_eq!((exported.files.len(), exported.tensors), (1, 6));
    assert!(read(folder.path()) == weights());
}

#[test]
fn what_is_there_stays() {
    for form in FORMS {
        let out = MemoryVolume::new();
        take(&checkpoint(), form, &out).unwrap();
        let before = snapshot(&out, "");
        let counting = FaultyVolume::counting(Arc::new(out.clone()));
        let said = take(&checkpoint(), form, &counting).unwrap_err().to_string();
        assert!(said.contains("model.safetensors: is there already"), "{said}");
        assert_eq!(counting.trace().len(), 1, "before anything is copied");
        assert!(snapshot(&out, "") == before);
    }
}

#[test]
fn what_comes_meanwhile_stays() {
    let counting = FaultyVolume::counting(Arc::new(MemoryVolume::new()));
    take(&checkpoint(), Form::SingleFile, &counting).unwrap();
    let written = counting.trace().iter().position(|call| call.operation == "sync").unwrap();
    let out = MemoryVolume::new();
    let other = out.clone();
    let comes = Fault::Pause(Box::new(move || other.create("model.safetensors").unwrap().write(b"other").unwrap()));
    let late = FaultyVolume::failing(Arc::new(out.clone()), written, comes);
    assert!(take(&checkpoint(), Form::SingleFile, &late).unwrap_err().to_string().contains("is there already"));
    assert!(snapshot(&out, "") == State::from([("model.safetensors".into(), b"other".to_vec())]));
}

#[test]
fn a_flipped_bit_is_not_exported() {
    for form in FORMS {
        let volume = checkpoint();
        let shard = format!("{}/stage-1.model.safetensors", layout::checkpoint(STEP));
        assert!(volume.edit(&shard, |bytes| *bytes.last_mut().unwrap() ^= 1));
        let out = MemoryVolume::new();
        let refused = take(&volume, form, &out).unwrap_err();
        assert!(matches!(&refused, CheckpointError::Damaged(d) if d.file == shard), "{refused}");
        assert!(out.list("").unwrap().is_empty());
    }
}

#[test]
fn whatever_call_fails_the_final_name_is_whole_or_free() {
    for form in FORMS {
        let whole = MemoryVolume::new();
        let counting = FaultyVolume::counting(Arc::new(whole.clone()));
        take(&checkpoint(), form, &counting).unwrap();
        for at in 0..counting.trace().len() {
            for fault in [Fault::CrashBefore, Fault::CrashAfter, Fault::CrashWithin, Fault::Error(ENOSPC)] {
                let failed_once = matches!(fault, Fault::Error(_));
                let out = MemoryVolume::new();
                take(&checkpoint(), form, &FaultyVolume::failing(Arc::new(out.clone()), at, fault)).unwrap_err();
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
fn what_is_imported_is_step_0_and_nobodys_own() {
    let folder = tempfile::tempdir().unwrap();
    take(&checkpoint(), Form::SingleFile, &RealVolume::new(folder.path())).unwrap();
    let model = ModelFiles::open(folder.path()).unwrap();
    let names: Vec<String> = model.names().map(str::to_owned).collect();
    let volume = MemoryVolume::new();
    let small = [("config.json".to_owned(), b"{}".to_vec())];
    import(&volume, &model, &names, about(), &small).unwrap();
    let found = newest(&volume, Depth::Contents, &[]).unwrap().loaded.unwrap();
    assert_eq!(found.manifest().step, 0);
    assert!(!differences(&identity(), &found.manifest().about.identity).is_empty());
    assert_eq!(found.manifest().files.len(), 3); // the weights, the index, config.json
    for (name, bytes) in weights() {
        assert_eq!(found.read(found.tensor(&name).unwrap()).unwrap(), bytes);
    }
    let said = import(&volume, &model, &names, about(), &small).unwrap_err().to_string();
    assert!(said.contains("has checkpoints already, up to step 0"), "{said}");
}

#[test]
fn an_import_that_fails_commits_nothing() {
    let folder = tempfile::tempdir().unwrap();
    take(&checkpoint(), Form::SingleFile, &RealVolume::new(folder.path())).unwrap();
    let model = ModelFiles::open(folder.path()).unwrap();
    let names: Vec<String> = model.names().map(str::to_owned).chain(["more".to_owned()]).collect();
    let volume = MemoryVolume::new();
    let said = import(&volume, &model, &names, about(), &[]).unwrap_err().to_string();
    assert!(said.ends_with("has no tensor more"), "{said}");
    // its bytes go while it is read
    let file = std::fs::File::options().write(true).open(folder.path().join("model.safetensors")).unwrap();
    file.set_len(600).unwrap();
    let refused = import(&volume, &model, &names[..6], about(), &[]).unwrap_err();
    assert!(matches!(&refused, CheckpointError::Io { path, .. } if path.ends_with("model.safetensors")), "{refused}");
    assert!(list(&volume).unwrap().steps.is_empty());
    assert_eq!(volume.files("fences"), [""; 0]);
}

#[test]
fn verifying_goes_on_after_the_first_damage() {
    let volume = checkpoint();
    let at = |file: &str| format!("{}/{file}", layout::checkpoint(STEP));
    let damaged = |volume: &dyn Volume| {
        let mut told = Vec::new();
        let mut read = 0;
        let intact = verify(volume, STEP, &mut |event| match event {
            Verifying::Read(bytes) => read += bytes,
            Verifying::File(file, reason) => told.extend(reason.map(|reason| format!("{} {reason}", file.name))),
        })
        .unwrap();
        assert_eq!(intact, told.is_empty());
        (told, read)
    };
    let (told, read) = damaged(&volume);
    assert_eq!((told.len(), read), (0, manifest(&volume, STEP).unwrap().bytes()));
    assert!(volume.edit(&at("stage-0.model.safetensors"), |bytes| *bytes.last_mut().unwrap() ^= 1));
    assert!(volume.edit(&at("stage-1.model.safetensors"), |bytes| bytes.truncate(20)));
    volume.remove_file(&at("config.json")).unwrap();
    let (told, _) = damaged(&volume);
    assert_eq!(told[0], "stage-0.model.safetensors holds other bytes than were written");
    assert!(told[1].starts_with("stage-1.model.safetensors has 20 bytes"));
    assert_eq!(told[2], "config.json is missing");
    assert!(volume.edit(&at("manifest.json"), |bytes| bytes.truncate(70)));
    assert!(matches!(verify(&volume, STEP, &mut |_| ()), Err(CheckpointError::Damaged(_))));
}
