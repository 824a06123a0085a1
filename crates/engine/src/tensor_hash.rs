//! The hash of a model's weights. The hash does not depend on the distribution of the weights over stages.

use serde::{Deserialize, Serialize};

/// The BLAKE3 hash of one tensor's shape and bytes, with the tensor's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TensorHash {
    /// The tensor's name, as in Hugging Face's model.
    name: String,
    hash: String,
}

impl TensorHash {
    /// Computes the hash of one tensor.
    pub fn of(name: &str, shape: &[usize], bytes: &[u8]) -> TensorHash {
        let mut hasher = blake3::Hasher::new();
        for dim in shape {
            hasher.update(&(*dim as u64).to_le_bytes());
        }
        let hash = hasher.update(bytes).finalize().to_hex().to_string();
        TensorHash { name: name.to_owned(), hash }
    }

    /// Returns the name of the tensor.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Computes the hash of a model from the hashes of all its tensors, in hex.
    pub fn combine(mut tensors: Vec<TensorHash>) -> String {
        tensors.sort();
        let mut hasher = blake3::Hasher::new();
        for TensorHash { name, hash } in &tensors {
            hasher.update(name.as_bytes()).update(&[0]).update(hash.as_bytes()).update(&[0]);
        }
        hasher.finalize().to_hex().to_string()
    }
}
