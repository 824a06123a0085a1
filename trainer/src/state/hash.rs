//! The hash of a model's weights: independent of who holds which tensor.

use serde::{Deserialize, Serialize};

use super::Named;

/// BLAKE3 of one tensor's shape and bytes, under its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TensorHash {
    /// Hugging Face's name.
    pub name: String,
    hash: String,
}

impl TensorHash {
    /// Of a tensor.
    pub fn of(tensor: &Named) -> TensorHash {
        let mut hasher = blake3::Hasher::new();
        for dim in tensor.shape() {
            hasher.update(&(*dim as u64).to_le_bytes());
        }
        let hash = hasher.update(tensor.bytes()).finalize().to_hex().to_string();
        TensorHash { name: tensor.name.clone(), hash }
    }

    /// Of a whole model: its tensors sorted by name.
    pub fn combine(mut tensors: Vec<TensorHash>) -> String {
        tensors.sort();
        let mut hasher = blake3::Hasher::new();
        for TensorHash { name, hash } in &tensors {
            hasher.update(name.as_bytes()).update(&[0]).update(hash.as_bytes()).update(&[0]);
        }
        hasher.finalize().to_hex().to_string()
    }
}
