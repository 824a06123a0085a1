//! The hash of a model's weights, independent of how they are distributed over stages.

use serde::{Deserialize, Serialize};

/// BLAKE3 of one tensor's shape and bytes, with its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TensorHash {
    /// Hugging Face's name.
    name: String,
    hash: String,
}

impl TensorHash {
    /// The hash of one tensor.
    pub fn of(name: &str, shape: &[usize], bytes: &[u8]) -> TensorHash {
        let mut hasher = blake3::Hasher::new();
        for dim in shape {
            hasher.update(&(*dim as u64).to_le_bytes());
        }
        let hash = hasher.update(bytes).finalize().to_hex().to_string();
        TensorHash { name: name.to_owned(), hash }
    }

    /// The name of the tensor.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The hash of a model from the hashes of all its tensors, in hex.
    pub fn combine(mut tensors: Vec<TensorHash>) -> String {
        tensors.sort();
        let mut hasher = blake3::Hasher::new();
        for TensorHash { name, hash } in &tensors {
            hasher.update(name.as_bytes()).update(&[0]).update(hash.as_bytes()).update(&[0]);
        }
        hasher.finalize().to_hex().to_string()
    }
}
