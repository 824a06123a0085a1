//! A model directory as Hugging Face's tools open it: `config.json`, tokenizer, one shard a stage, and the index.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
pub use safetensors::tensor::TensorView;
use serde::{Deserialize, Serialize};

use crate::error::{CheckpointError, io};
use crate::files::{sync_folder, write_durably};

const INDEX: &str = "model.safetensors.index.json";

/// A folder that is being written under another name until [`ModelFolder::commit`].
#[derive(Clone, Debug)]
pub struct ModelFolder {
    aside: PathBuf,
    target: PathBuf,
}

/// One stage's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// The file's name in the folder.
    pub file: String,
    /// Its tensors.
    pub tensors: Vec<String>,
    /// Bytes of their values.
    pub bytes: u64,
}

impl ModelFolder {
    /// `name` in the job's folder. Nothing is touched yet.
    pub fn new(job: &Path, name: &str) -> ModelFolder {
        ModelFolder { aside: job.join(format!("{name}.partial")), target: job.join(name) }
    }

    /// Stage 0 makes the folder, after clearing what a dead attempt may have left.
    ///
    /// # Errors
    /// If the volume refuses.
    pub fn begin(&self) -> Result<(), CheckpointError> {
        if self.aside.exists() {
            fs::remove_dir_all(&self.aside).map_err(io("clear", &self.aside))?;
        }
        fs::create_dir_all(&self.aside).map_err(io("create", &self.aside))
    }

    /// Writes stage `rank`'s tensors, durably.
    ///
    /// # Errors
    /// If the volume refuses.
    pub fn write_shard(&self, rank: usize, tensors: &[(String, TensorView)]) -> Result<Shard, CheckpointError> {
        let file = format!("stage-{rank}.model.safetensors");
        let path = self.aside.join(&file);
        // what Hugging Face's loaders ask for
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let bytes = safetensors::serialize(tensors.iter().map(|(name, view)| (name, view)), Some(metadata))
            .map_err(|e| CheckpointError::Content { path: path.clone(), problem: format!("cannot be encoded: {e}") })?;
        write_durably(&path, &bytes)?;
        let bytes = tensors.iter().map(|(_, view)| view.data().len() as u64).sum();
        Ok(Shard { file, tensors: tensors.iter().map(|(name, _)| name.clone()).collect(), bytes })
    }

    /// Writes a small JSON file, durably.
    ///
    /// # Errors
    /// If the volume refuses.
    pub fn write_json(&self, name: &str, value: &serde_json::Value) -> Result<(), CheckpointError> {
        write_durably(&self.aside.join(name), format!("{value:#}\n").as_bytes())
    }

    /// Copies a file in, durably.
    ///
    /// # Errors
    /// If either side refuses.
    pub fn copy_file(&self, name: &str, from: &Path) -> Result<(), CheckpointError> {
        let bytes = fs::read(from).map_err(io("read", from))?;
        write_durably(&self.aside.join(name), &bytes)
    }

    /// Writes the index over `shards` and publishes the folder by one rename. An older one of that name is replaced.
    ///
    /// # Errors
    /// If the volume refuses; then the older one is untouched.
    pub fn commit(&self, shards: &[Shard]) -> Result<(), CheckpointError> {
        let weights: BTreeMap<&str, &str> =
            shards.iter().flat_map(|s| s.tensors.iter().map(|t| (t.as_str(), s.file.as_str()))).collect();
        let total: u64 = shards.iter().map(|shard| shard.bytes).sum();
        self.write_json(INDEX, &serde_json::json!({ "metadata": { "total_size": total }, "weight_map": weights }))?;
        sync_folder(&self.aside)?;
        let old = self.target.with_extension("replaced");
        if self.target.exists() {
            let _ = fs::remove_dir_all(&old);
            fs::rename(&self.target, &old).map_err(io("set aside", &self.target))?;
        }
        fs::rename(&self.aside, &self.target).map_err(io("publish", &self.target))?;
        let _ = fs::remove_dir_all(&old);
        self.target.parent().map_or(Ok(()), sync_folder)
    }
}

/// Calls `each` with every tensor of the model directory `folder`, a shard at a time.
///
/// # Errors
/// A file that is missing or isn't what the index says, by name.
pub fn read_shards<E: From<CheckpointError>>(
    folder: &Path,
    mut each: impl FnMut(&str, TensorView) -> Result<(), E>,
) -> Result<(), E> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let path = folder.join(INDEX);
    let text = fs::read(&path).map_err(io("read", &path))?;
    let index: Index = serde_json::from_slice(&text).map_err(|e| CheckpointError::Content {
        path: path.clone(),
        problem: format!("is no index of weights: {e}"),
    })?;
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, file) in &index.weight_map {
        files.entry(file).or_default().push(tensor);
    }
    for (file, tensors) in files {
        let path = folder.join(file);
        let bytes = fs::read(&path).map_err(io("read", &path))?;
        let broken = |problem: String| CheckpointError::Content { path: path.clone(), problem };
        let shard = SafeTensors::deserialize(&bytes).map_err(|e| broken(format!("is no safetensors file: {e}")))?;
        for tensor in tensors {
            let view =
                shard.tensor(tensor).map_err(|_| broken(format!("lacks {tensor}, which the index puts there")))?;
            each(tensor, view)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::Dtype;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn a_folder_appears_whole_and_reads_back() {
        let job = tempfile::tempdir().unwrap();
        let folder = ModelFolder::new(job.path(), "model");
        let (a, b) = (bytes(&[1.0, 2.0]), bytes(&[3.0]));
        for _ in 0..2 {
            folder.begin().unwrap();
            let first = TensorView::new(Dtype::F32, vec![2], &a).unwrap();
            let second = TensorView::new(Dtype::F32, vec![1, 1], &b).unwrap();
            let shards = [
                folder.write_shard(0, &[("x.weight".into(), first)]).unwrap(),
                folder.write_shard(2, &[("y.weight".into(), second)]).unwrap(),
            ];
            folder.write_json("config.json", &serde_json::json!({"model_type": "llama"})).unwrap();
            folder.commit(&shards).unwrap();
        }
        let mut seen = BTreeMap::new();
        read_shards::<CheckpointError>(&job.path().join("model"), |name, view| {
            seen.insert(name.to_owned(), (view.shape().to_vec(), view.data().to_vec()));
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, BTreeMap::from([("x.weight".into(), (vec![2], a)), ("y.weight".into(), (vec![1, 1], b))]));
        let left: Vec<_> = fs::read_dir(job.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["model"]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let job = tempfile::tempdir().unwrap();
        let read = |at: &Path| read_shards::<CheckpointError>(at, |_, _| Ok(())).unwrap_err().to_string();
        assert!(read(job.path()).contains("model.safetensors.index.json"));
        let folder = ModelFolder::new(job.path(), "model");
        folder.begin().unwrap();
        let shard = Shard { file: "stage-0.model.safetensors".into(), tensors: vec!["x".into()], bytes: 0 };
        folder.commit(&[shard]).unwrap();
        assert!(read(&job.path().join("model")).contains("stage-0.model.safetensors"));
    }
}
