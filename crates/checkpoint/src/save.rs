//! Saves checkpoints. A group is the set of processes of one attempt to run the job. Every stage of the group writes
//! into the folder of the group's [`Fence`], and the leader of the group commits the checkpoint by one rename.
//!
//! 1. The leader calls [`PendingCheckpoint::begin`] and broadcasts the result to all members of the group.
//! 2. Every stage calls [`PendingCheckpoint::write_stage`] and sends its [`StageFiles`] to the leader.
//! 3. When all members have answered, the leader calls [`PendingCheckpoint::commit`], unless a stage failed. The files
//!    of a failed save stay until the next `begin` removes them. The leader must therefore not call `begin` again
//!    before all members have answered.

use std::collections::BTreeMap;
use std::io::ErrorKind;

use ::safetensors::View;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::CheckpointError;
use crate::fence::Fence;
use crate::identity::differences;
use crate::manifest::{CheckpointMetadata, FORMAT_VERSION, FileEntry, Manifest};
use crate::paths::{self, CHECKPOINTS_DIR, MANIFEST_FILE, WEIGHTS_INDEX_FILE};
use crate::safetensors::{CancelCheck, WrittenShard, write_file, write_shard_cancellable};
use crate::volume::{Volume, io_error_on, make_dir_idempotent, read_file, sync_dir, target_exists};

/// A checkpoint that is being written. The value is the same on every stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingCheckpoint {
    fence: Fence,
    step: u64,
}

/// The files that one stage wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageFiles {
    /// The file of weights, or `None` if the stage has no parameters.
    pub weights: Option<WrittenShard>,
    /// The file of optimizer state, or `None` if the stage has no parameters.
    pub optimizer: Option<WrittenShard>,
}

impl Fence {
    /// Returns the pending checkpoint of `step` under this fence. This call does not access the volume.
    pub fn pending_checkpoint(&self, step: u64) -> PendingCheckpoint {
        PendingCheckpoint { fence: self.clone(), step }
    }
}

impl PendingCheckpoint {
    /// Removes the files of an unfinished save, and creates the checkpoint's folder. Only the leader calls this
    /// function. Returns false if a checkpoint of this step is already committed with the same `identity` (the settings
    /// that determine a run's result), so that there is nothing to save.
    ///
    /// # Errors
    /// Returns [`CheckpointError::FencedOff`] if the group has lost the fence. Returns
    /// [`CheckpointError::IdentityConflict`] if the committed checkpoint has another identity, or another error if the
    /// volume fails.
    pub fn begin(&self, volume: &dyn Volume, identity: &Value) -> Result<bool, CheckpointError> {
        if let Some(bytes) = self.committed_manifest(volume)? {
            self.check_same_identity(volume, &bytes, identity)?;
            sync_dir(volume, CHECKPOINTS_DIR)?;
            self.fence.check(volume)?; // a newer group may have committed the checkpoint
            return Ok(false);
        }
        self.fence.remove_unfinished(volume)?;
        let folder = self.folder();
        make_dir_idempotent(volume, &folder)
            .map_err(|e| self.fence.or_fenced_off(volume, io_error_on(volume, "create", &folder)(e)))?;
        Ok(true)
    }

    /// Writes, syncs and hashes the tensors of stage `rank`. A stage without tensors writes nothing.
    ///
    /// # Errors
    /// Returns [`CheckpointError::FencedOff`] if the group has lost the fence, or another error if the volume fails.
    pub fn write_stage<W: View, O: View>(
        &self,
        volume: &dyn Volume,
        rank: usize,
        weights: &[(String, W)],
        optimizer: &[(String, O)],
    ) -> Result<StageFiles, CheckpointError> {
        self.write_stage_cancellable(volume, rank, weights, optimizer, &|| Ok(()))
    }

    /// Like [`PendingCheckpoint::write_stage`], but calls `check_cancelled` before each write. An error of
    /// `check_cancelled` cancels the remaining writes.
    ///
    /// # Errors
    /// Returns the errors of [`PendingCheckpoint::write_stage`] and of `check_cancelled`.
    pub fn write_stage_cancellable<W: View, O: View>(
        &self,
        volume: &dyn Volume,
        rank: usize,
        weights: &[(String, W)],
        optimizer: &[(String, O)],
        check_cancelled: CancelCheck,
    ) -> Result<StageFiles, CheckpointError> {
        let folder = self.folder();
        let write = || {
            let files = StageFiles {
                weights: shard(volume, format!("{folder}/{}", paths::weights_file(rank)), weights, check_cancelled)?,
                optimizer: shard(
                    volume,
                    format!("{folder}/{}", paths::optimizer_file(rank)),
                    optimizer,
                    check_cancelled,
                )?,
            };
            if files.weights.is_some() || files.optimizer.is_some() {
                sync_dir(volume, &folder)?;
            }
            Ok(files)
        };
        write().map_err(|e| self.fence.or_fenced_off(volume, e))
    }

    /// Commits the checkpoint's folder by one rename. Only the leader calls this function. Before the rename, the call
    /// adds `small_files` (name and content, such as `config.json` and the tokenizer), the index of weights and the
    /// manifest.
    ///
    /// # Errors
    /// Returns [`CheckpointError::FencedOff`] if the group has lost the fence. Returns
    /// [`CheckpointError::IdentityConflict`] if a checkpoint of another identity exists, or another error if a stage's
    /// file is missing or the volume fails. Committed checkpoints are never changed.
    pub fn commit(
        &self,
        volume: &dyn Volume,
        metadata: CheckpointMetadata,
        stages: &[StageFiles],
        small_files: &[(String, Vec<u8>)],
    ) -> Result<Manifest, CheckpointError> {
        self.try_commit(volume, metadata, stages, small_files).map_err(|e| self.fence.or_fenced_off(volume, e))
    }

    fn try_commit(
        &self,
        volume: &dyn Volume,
        metadata: CheckpointMetadata,
        stages: &[StageFiles],
        small_files: &[(String, Vec<u8>)],
    ) -> Result<Manifest, CheckpointError> {
        let folder = self.folder();
        let mut manifest = Manifest {
            format_version: FORMAT_VERSION,
            step: self.step,
            fence: self.fence.number(),
            holder: self.fence.holder().to_owned(),
            metadata,
            files: Vec::new(),
            tensors: Vec::new(),
        };
        for shard in stages.iter().flat_map(|s| s.weights.iter().chain(&s.optimizer)) {
            self.check_stage_file(volume, &shard.file)?;
            manifest.files.push(shard.file.clone());
            manifest.tensors.extend(shard.tensors.iter().cloned());
        }
        for (name, bytes) in small_files {
            manifest.files.push(write_file(volume, &format!("{folder}/{name}"), bytes)?);
        }
        manifest.files.push(write_file(
            volume,
            &format!("{folder}/{WEIGHTS_INDEX_FILE}"),
            weights_index_json(stages).as_bytes(),
        )?);

        let path = format!("{folder}/{MANIFEST_FILE}");
        let wrong = |problem: String| CheckpointError::Content { path: volume.display(&path), problem };
        manifest.check().map_err(wrong)?;
        let bytes = manifest.to_bytes().map_err(|e| wrong(e.to_string()))?;
        write_file(volume, &path, &bytes)?;
        sync_dir(volume, &folder)?;

        self.fence.check(volume)?;
        let target = paths::checkpoint_path(self.step);
        if let Err(error) = volume.rename(&folder, &target) {
            let taken = target_exists(&error);
            let there =
                if taken || error.kind() == ErrorKind::NotFound { self.committed_manifest(volume)? } else { None };
            match there {
                // NFS repeated a rename that had already succeeded
                Some(there) if there == bytes => {}
                Some(there) if taken => self.check_same_identity(volume, &there, &manifest.metadata.identity)?,
                _ => return Err(io_error_on(volume, "commit", &folder)(error)),
            }
        }
        sync_dir(volume, CHECKPOINTS_DIR)?;
        sync_dir(volume, &self.fence.work_dir())?;
        Ok(manifest)
    }

    fn folder(&self) -> String {
        format!("{}/{}", self.fence.work_dir(), paths::step_dir_name(self.step))
    }

    /// Returns the manifest of the committed checkpoint of this step, or `None` if the step is not committed.
    fn committed_manifest(&self, volume: &dyn Volume) -> Result<Option<Vec<u8>>, CheckpointError> {
        let path = format!("{}/{MANIFEST_FILE}", paths::checkpoint_path(self.step));
        match read_file(volume, &path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(io_error_on(volume, "read", &path)(e)),
        }
    }

    fn check_same_identity(
        &self,
        volume: &dyn Volume,
        manifest: &[u8],
        identity: &Value,
    ) -> Result<(), CheckpointError> {
        let path = volume.display(&paths::checkpoint_path(self.step));
        let existing = Manifest::parse(manifest).map_err(|problem| CheckpointError::Content {
            path: path.clone(),
            problem: format!(
                "is in the way of a new checkpoint, and its {MANIFEST_FILE} {problem}; a restart sets that \
                 checkpoint aside"
            ),
        })?;
        let differences = differences(identity, &existing.metadata.identity);
        if differences.is_empty() { Ok(()) } else { Err(CheckpointError::IdentityConflict { path, differences }) }
    }

    fn check_stage_file(&self, volume: &dyn Volume, file: &FileEntry) -> Result<(), CheckpointError> {
        let path = format!("{}/{}", self.folder(), file.name);
        let size = volume.open(&path).and_then(|f| f.size()).map_err(io_error_on(volume, "find", &path))?;
        if size == file.bytes {
            return Ok(());
        }
        let problem = format!("has {size} bytes, and its stage wrote {}", file.bytes);
        Err(CheckpointError::Content { path: volume.display(&path), problem })
    }
}

fn shard<V: View>(
    volume: &dyn Volume,
    path: String,
    tensors: &[(String, V)],
    check_cancelled: CancelCheck,
) -> Result<Option<WrittenShard>, CheckpointError> {
    if tensors.is_empty() {
        Ok(None)
    } else {
        write_shard_cancellable(volume, &path, tensors, check_cancelled).map(Some)
    }
}

/// Returns Hugging Face's index of the weights of all stages.
pub(crate) fn weights_index_json(stages: &[StageFiles]) -> String {
    let tensors = || stages.iter().filter_map(|s| s.weights.as_ref()).flat_map(|w| &w.tensors);
    let map: BTreeMap<&str, &str> = tensors().map(|t| (t.name.as_str(), t.file.as_str())).collect();
    let total: u64 = tensors().map(|t| t.bytes).sum();
    format!("{:#}\n", serde_json::json!({ "metadata": { "total_size": total }, "weight_map": map }))
}
