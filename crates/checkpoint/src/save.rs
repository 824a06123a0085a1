//! Saving: every stage writes into the fence, stage 0 commits by one rename.
//!
//! 1. Stage 0: [`Save::begin`]; all hear of it.
//! 2. Every stage: [`Save::write_stage`]; its [`StageFiles`] go to stage 0.
//! 3. Stage 0, once all have answered: [`Save::commit`], or nothing if one failed. A failed save is left where it is:
//!    the next `begin` clears it, so none may be begun before every stage has answered.

use std::collections::BTreeMap;
use std::io::ErrorKind;

use safetensors::View;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{CheckpointError, on};
use crate::fence::{Fence, is_taken, sync};
use crate::identity::differences;
use crate::layout::{self, CHECKPOINTS, INDEX, MANIFEST};
use crate::load::read_file;
use crate::manifest::{About, FORMAT_VERSION, FileEntry, Manifest};
use crate::shard::{ShardFile, write_file, write_shard};
use crate::volume::{Volume, make_own_dir};

/// A checkpoint in the making; the same on every stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Save {
    fence: Fence,
    step: u64,
}

/// What one stage wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageFiles {
    /// Its weights; none if it has no parameters.
    pub weights: Option<ShardFile>,
    /// Its optimizer state; none if it has no parameters.
    pub optimizer: Option<ShardFile>,
}

impl Fence {
    /// The save of `step` under this fence. Nothing is touched yet.
    pub fn save(&self, step: u64) -> Save {
        Save { fence: self.clone(), step }
    }
}

impl Save {
    /// Stage 0 makes room, after clearing what an earlier save left. False if a checkpoint of this step and identity is
    /// already committed: then there is nothing to do.
    ///
    /// # Errors
    /// `FencedOff`; `Occupied` if the step is another identity's; or if the volume refuses.
    pub fn begin(&self, volume: &dyn Volume, identity: &Value) -> Result<bool, CheckpointError> {
        if let Some(bytes) = self.at_target(volume)? {
            self.same_identity(volume, &bytes, identity)?;
            sync(volume, CHECKPOINTS)?;
            self.fence.check(volume)?; // it may be a newer group's
            return Ok(false);
        }
        self.fence.clear(volume)?;
        let folder = self.folder();
        make_own_dir(volume, &folder).map_err(|e| self.fence.explain(volume, on(volume, "create", &folder)(e)))?;
        Ok(true)
    }

    /// Writes stage `rank`'s tensors, durably, hashing on the way. A stage without any writes nothing.
    ///
    /// # Errors
    /// `FencedOff`, or if the volume refuses.
    pub fn write_stage<W: View, O: View>(
        &self,
        volume: &dyn Volume,
        rank: usize,
        weights: &[(String, W)],
        optimizer: &[(String, O)],
    ) -> Result<StageFiles, CheckpointError> {
        let folder = self.folder();
        let write = || {
            let files = StageFiles {
                weights: shard(volume, format!("{folder}/{}", layout::weights_file(rank)), weights)?,
                optimizer: shard(volume, format!("{folder}/{}", layout::optimizer_file(rank)), optimizer)?,
            };
            if files.weights.is_some() || files.optimizer.is_some() {
                sync(volume, &folder)?;
            }
            Ok(files)
        };
        write().map_err(|e| self.fence.explain(volume, e))
    }

    /// Stage 0 adds the small files (`config.json`, tokenizer; name and content), the index and the manifest, and
    /// publishes the folder by one rename.
    ///
    /// # Errors
    /// `FencedOff`; `Occupied`; what a stage wrote and isn't there any more; or if the volume refuses. What was committed
    /// before is untouched in any case.
    pub fn commit(
        &self,
        volume: &dyn Volume,
        about: About,
        stages: &[StageFiles],
        small_files: &[(String, Vec<u8>)],
    ) -> Result<Manifest, CheckpointError> {
        self.try_commit(volume, about, stages, small_files).map_err(|e| self.fence.explain(volume, e))
    }

    fn try_commit(
        &self,
        volume: &dyn Volume,
        about: About,
        stages: &[StageFiles],
        small_files: &[(String, Vec<u8>)],
    ) -> Result<Manifest, CheckpointError> {
        let folder = self.folder();
        let mut manifest = Manifest {
            format_version: FORMAT_VERSION,
            step: self.step,
            fence: self.fence.number(),
            holder: self.fence.holder().to_owned(),
            about,
            files: Vec::new(),
            tensors: Vec::new(),
        };
        for shard in stages.iter().flat_map(|s| s.weights.iter().chain(&s.optimizer)) {
            self.is_there(volume, &shard.file)?;
            manifest.files.push(shard.file.clone());
            manifest.tensors.extend(shard.tensors.iter().cloned());
        }
        for (name, bytes) in small_files {
            manifest.files.push(write_file(volume, &format!("{folder}/{name}"), bytes)?);
        }
        manifest.files.push(write_file(volume, &format!("{folder}/{INDEX}"), index(stages).as_bytes())?);

        let path = format!("{folder}/{MANIFEST}");
        let wrong = |problem: String| CheckpointError::Content { path: volume.display(&path), problem };
        manifest.check().map_err(wrong)?;
        let bytes = manifest.to_bytes().map_err(|e| wrong(e.to_string()))?;
        write_file(volume, &path, &bytes)?;
        sync(volume, &folder)?;

        let target = layout::checkpoint(self.step);
        if let Err(error) = volume.rename(&folder, &target) {
            let taken = is_taken(&error);
            let there = if taken || error.kind() == ErrorKind::NotFound { self.at_target(volume)? } else { None };
            match there {
                // NFS sent a rename twice that had succeeded
                Some(there) if there == bytes => {}
                Some(there) if taken => self.same_identity(volume, &there, &manifest.about.identity)?,
                _ => return Err(on(volume, "commit", &folder)(error)),
            }
        }
        sync(volume, CHECKPOINTS)?;
        sync(volume, &self.fence.work())?;
        Ok(manifest)
    }

    fn folder(&self) -> String {
        format!("{}/{}", self.fence.work(), layout::step_name(self.step))
    }

    /// The manifest of what is committed as this step.
    fn at_target(&self, volume: &dyn Volume) -> Result<Option<Vec<u8>>, CheckpointError> {
        let path = format!("{}/{MANIFEST}", layout::checkpoint(self.step));
        match read_file(volume, &path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(on(volume, "read", &path)(e)),
        }
    }

    fn same_identity(&self, volume: &dyn Volume, manifest: &[u8], identity: &Value) -> Result<(), CheckpointError> {
        let path = volume.display(&layout::checkpoint(self.step));
        let theirs = Manifest::parse(manifest).map_err(|problem| CheckpointError::Content {
            path: path.clone(),
            problem: format!(
                "is in the way of a new checkpoint, and its {MANIFEST} {problem}; a restart sets it aside"
            ),
        })?;
        let differences = differences(identity, &theirs.about.identity);
        if differences.is_empty() { Ok(()) } else { Err(CheckpointError::Occupied { path, differences }) }
    }

    fn is_there(&self, volume: &dyn Volume, file: &FileEntry) -> Result<(), CheckpointError> {
        let path = format!("{}/{}", self.folder(), file.name);
        let size = volume.open(&path).and_then(|f| f.size()).map_err(on(volume, "find", &path))?;
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
) -> Result<Option<ShardFile>, CheckpointError> {
    if tensors.is_empty() { Ok(None) } else { write_shard(volume, &path, tensors).map(Some) }
}

/// Hugging Face's index over the stages' weights.
pub(crate) fn index(stages: &[StageFiles]) -> String {
    let tensors = || stages.iter().filter_map(|s| s.weights.as_ref()).flat_map(|w| &w.tensors);
    let map: BTreeMap<&str, &str> = tensors().map(|t| (t.name.as_str(), t.file.as_str())).collect();
    let total: u64 = tensors().map(|t| t.bytes).sum();
    format!("{:#}\n", serde_json::json!({ "metadata": { "total_size": total }, "weight_map": map }))
}
