//! Reading a model directory as Hugging Face's tools write it, checkpoints included: an index, and the shards it names.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde::Deserialize;

use crate::error::{CheckpointError, io};
use crate::layout::INDEX;

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

    #[test]
    fn every_tensor_is_read_from_the_shard_that_the_index_names() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = ([1.0f32, 2.0], [3.0f32]);
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let (a, b) = (bytes(&a), bytes(&b));
        for (file, name, shape, data) in
            [("1.safetensors", "x.weight", vec![2], &a), ("2.safetensors", "y.weight", vec![1, 1], &b)]
        {
            let view = TensorView::new(Dtype::F32, shape, data).unwrap();
            fs::write(folder.path().join(file), safetensors::serialize([(name, view)], None).unwrap()).unwrap();
        }
        let index = r#"{"weight_map": {"x.weight": "1.safetensors", "y.weight": "2.safetensors"}}"#;
        fs::write(folder.path().join(INDEX), index).unwrap();
        let mut seen = BTreeMap::new();
        read_shards::<CheckpointError>(folder.path(), |name, view| {
            seen.insert(name.to_owned(), (view.shape().to_vec(), view.data().to_vec()));
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, BTreeMap::from([("x.weight".into(), (vec![2], a)), ("y.weight".into(), (vec![1, 1], b))]));
    }

    #[test]
    fn what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let read = || read_shards::<CheckpointError>(folder.path(), |_, _| Ok(())).unwrap_err().to_string();
        assert!(read().contains(INDEX));
        fs::write(folder.path().join(INDEX), r#"{"weight_map": {"x.weight": "1.safetensors"}}"#).unwrap();
        assert!(read().contains("1.safetensors"));
        let empty: [(&str, TensorView); 0] = [];
        fs::write(folder.path().join("1.safetensors"), safetensors::serialize(empty, None).unwrap()).unwrap();
        assert!(read().contains("lacks x.weight"));
    }
}
