//! Tests the files of a save, and the inputs that a save rejects.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::*;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use stagecoach_checkpoint::*;
use stagecoach_test_volumes::MemoryVolume;

const NONE: [(String, TensorView<'static>); 0] = [];

#[test]
fn a_checkpoint_is_a_hugging_face_directory() {
    let folder = tempfile::tempdir().unwrap();
    let volume = FileSystemVolume::create(&folder.path().join("a/job")).unwrap();
    let mut group = TestGroup::with_volumes(std::array::from_fn(|_| Arc::new(volume.clone()) as Arc<dyn Volume>));
    group.run(4).unwrap();
    assert_eq!(check(&volume), [4, 3]);
    let at = folder.path().join("a/job/checkpoints/step-00000004");

    let files = ModelFiles::open(&at).unwrap();
    let weights: TrainerState = files.names().map(|name| (name.to_owned(), files.read(name).unwrap())).collect();
    let expected: TrainerState = state_at(4).into_iter().filter(|(name, _)| !name.starts_with("exp_avg")).collect();
    assert!(weights == expected);

    let index: Value =
        serde_json::from_slice(&std::fs::read(at.join("model.safetensors.index.json")).unwrap()).unwrap();
    assert_eq!(index["metadata"]["total_size"], 3 * 72);
    assert_eq!(index["weight_map"]["layers.1.w"], "stage-1.model.safetensors");

    let manifest: Value = serde_json::from_slice(&std::fs::read(at.join("manifest.json")).unwrap()).unwrap();
    for file in manifest["files"].as_array().unwrap() {
        let bytes = std::fs::read(at.join(file["name"].as_str().unwrap())).unwrap();
        assert_eq!(file["bytes"], bytes.len());
        assert_eq!(file["blake3"], blake3::hash(&bytes).to_hex().as_str());
    }
    let bytes = std::fs::read(at.join("stage-0.optimizer.safetensors")).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
    assert_eq!(SafeTensors::deserialize(&bytes).unwrap().tensor("exp_avg.layers.0.w").unwrap().shape(), [2, 8]);

    // a new group resumes, and removes the older fence
    assert!(group.run(6).unwrap() == state_at(6));
    assert_eq!(std::fs::read_dir(folder.path().join("a/job/fences")).unwrap().count(), 1);
}

#[test]
fn a_stage_without_parameters_writes_nothing() {
    let volume = MemoryVolume::new();
    let fence = Fence::acquire(&volume).unwrap();
    let save = fence.pending_checkpoint(1);
    assert!(save.begin(&volume, &identity()).unwrap());
    let empty = save.write_stage(&volume, 1, &NONE, &NONE).unwrap();
    assert_eq!(empty, StageFiles { weights: None, optimizer: None });
    let state = state_at(1);
    let (weights, _) = views(&state, 0);
    let stages = [save.write_stage(&volume, 0, &weights, &NONE).unwrap(), empty];
    save.commit(&volume, metadata(), &stages, &[]).unwrap();
    assert_eq!(
        volume.files("checkpoints/step-00000001").iter().map(|f| f.rsplit('/').next().unwrap()).collect::<Vec<_>>(),
        ["manifest.json", "model.safetensors.index.json", "stage-0.model.safetensors"]
    );
    open(&volume, 1).unwrap().verify().unwrap();
}

#[test]
fn a_committed_step_is_not_saved_again_nor_overwritten_by_another_identity() {
    let volume = MemoryVolume::new();
    TestGroup::new(&volume).run(2).unwrap();
    let before = snapshot(&volume, "checkpoints");
    let fence = Fence::acquire(&volume).unwrap();
    assert!(!fence.pending_checkpoint(2).begin(&volume, &identity()).unwrap());
    let other = json!({"model": {"hiddenSize": 16}, "seed": 42});
    let message = fence.pending_checkpoint(2).begin(&volume, &other).unwrap_err().to_string();
    assert!(message.contains("model.hiddenSize is 16 here and 8 in the checkpoint"), "{message}");

    // the checkpoint appeared after `begin`
    volume.rename("checkpoints/step-00000002", "aside").unwrap();
    let save = fence.pending_checkpoint(2);
    assert!(save.begin(&volume, &other).unwrap());
    let stage = save.write_stage(&volume, 0, &views(&state_at(2), 0).0, &NONE).unwrap();
    volume.rename("aside", "checkpoints/step-00000002").unwrap();
    let metadata = CheckpointMetadata { identity: other, ..metadata() };
    let refused = save.commit(&volume, metadata, &[stage], &[]).unwrap_err();
    assert!(matches!(refused, CheckpointError::IdentityConflict { .. }), "{refused}");
    assert!(snapshot(&volume, "checkpoints") == before);
}

#[test]
fn large_tensors_are_hashed_like_small_ones() {
    let volume = MemoryVolume::new();
    let bytes: Vec<u8> = (0..5u32 << 18).flat_map(|i| i.wrapping_mul(0x9E37_79B9).to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, vec![5, 1 << 18], &bytes).unwrap();
    let small = TensorView::new(Dtype::U8, vec![3], &bytes[..3]).unwrap();
    let shard = write_shard(&volume, "x.safetensors", &[("b".into(), small), ("a".into(), view)]).unwrap();
    let content = &snapshot(&volume, "")["x.safetensors"];
    assert_eq!(shard.file.blake3, blake3::hash(content).to_hex().as_str());
    for (tensor, bytes) in shard.tensors.iter().zip([&bytes[..], &bytes[..3]]) {
        assert_eq!(tensor.blake3, blake3::hash(bytes).to_hex().as_str());
        assert_eq!(&content[tensor.offset as usize..][..tensor.bytes as usize], bytes);
    }
}

#[test]
fn next_save_removes_a_failed_saves_files() {
    let volume = MemoryVolume::new();
    let fence = Fence::acquire(&volume).unwrap();
    let state = state_at(1);
    let (weights, moments) = views(&state, 0);
    fence.pending_checkpoint(1).begin(&volume, &identity()).unwrap();
    fence.pending_checkpoint(1).write_stage(&volume, 0, &weights, &moments).unwrap();
    assert_eq!(volume.files("fences").len(), 2);
    assert!(fence.pending_checkpoint(2).begin(&volume, &identity()).unwrap());
    assert!(volume.files("fences").is_empty());
}

#[test]
fn a_cancelled_save_ends_at_its_next_write() {
    let volume = MemoryVolume::new();
    let fence = Fence::acquire(&volume).unwrap();
    let bytes = vec![1; 4 << 20];
    let weights = [("a".to_owned(), TensorView::new(Dtype::U8, vec![bytes.len()], &bytes).unwrap())];
    let save = fence.pending_checkpoint(1);
    assert!(save.begin(&volume, &identity()).unwrap());
    let checks = AtomicUsize::new(0);
    // the first write is the header
    let check_cancelled = || match checks.fetch_add(1, Ordering::Relaxed) {
        0..3 => Ok(()),
        _ => Err(std::io::Error::other("the group is over")),
    };
    let error = save.write_stage_cancellable(&volume, 0, &weights, &NONE, &check_cancelled).unwrap_err().to_string();
    assert!(error.ends_with("the group is over"), "{error}");
    assert_eq!(checks.into_inner(), 4);
}

#[test]
fn inconsistent_checkpoints_are_rejected() {
    let volume = MemoryVolume::new();
    let fence = Fence::acquire(&volume).unwrap();
    let state = state_at(1);
    let (weights, _) = views(&state, 0);
    let twice = [weights[0].clone(), weights[0].clone()];
    let save = fence.pending_checkpoint(1);
    save.begin(&volume, &identity()).unwrap();
    assert!(save.write_stage(&volume, 0, &twice, &NONE).unwrap_err().to_string().contains("twice"));

    save.begin(&volume, &identity()).unwrap();
    let stages = [0, 1].map(|rank| save.write_stage(&volume, rank, &weights, &NONE).unwrap());
    let message = save.commit(&volume, metadata(), &stages, &[]).unwrap_err().to_string();
    assert!(message.contains("lists the tensor layers.0.norm twice"), "{message}");

    // `begin` was called again while a stage was still writing
    save.begin(&volume, &identity()).unwrap();
    assert!(save.commit(&volume, metadata(), &stages, &[]).is_err());
    assert_eq!(list(&volume).unwrap().steps, [0; 0]);
}

#[test]
fn unreadable_folders_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let missing = FileSystemVolume::new(&folder.path().join("nowhere"));
    let message = Fence::acquire(&missing).unwrap_err().to_string();
    assert!(message.starts_with("could not create ") && message.contains("nowhere/fences"), "{message}");
    std::fs::write(folder.path().join("checkpoints"), b"").unwrap();
    let message = list(&FileSystemVolume::new(folder.path())).unwrap_err().to_string();
    assert!(message.starts_with("could not list "), "{message}");
    assert!(FileSystemVolume::create(&folder.path().join("checkpoints/x")).is_err());
}

#[test]
fn direct_io_round_trips() {
    let folder = tempfile::tempdir().unwrap();
    let volume = FileSystemVolume::new(folder.path());
    // the size of the writer's buffers
    let buffer = 1 << 20;
    for bytes in [0, 1, 4095, 4096, buffer - 1, buffer, buffer + 1, 2 * buffer, 2 * buffer + 5000] {
        let content: Vec<u8> = (0..bytes).map(|at| (at * 31 + at / 251) as u8).collect();
        let name = format!("{bytes}.bin");
        let mut file = volume.create(&name).unwrap();
        // the chunks are not aligned to the writer's buffers
        content.chunks(1_000_003).for_each(|chunk| file.write(chunk).unwrap());
        file.sync().unwrap();
        assert!(std::fs::read(folder.path().join(name)).unwrap() == content, "{bytes} bytes");
    }
}
