//! Reads and writes `manifest.json`, which lists the contents of a committed checkpoint and their hashes.
//!
//! The file begins with the BLAKE3 digest of all bytes that follow the digest, so that a flipped bit in the manifest
//! itself is also detected. Files of every format version begin this way.

use std::collections::BTreeSet;

use ::safetensors::Dtype;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::paths;

/// The format version that this crate writes, and the newest version that it reads.
pub const FORMAT_VERSION: u32 = 1;

const DIGEST_PREFIX: &str = "{\n  \"blake3\": \"";
const DIGEST_CHARS: usize = 64;

/// Metadata from the trainer. This crate compares `identity`, and only stores the other fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointMetadata {
    /// The number of the job's attempt that wrote the checkpoint.
    pub attempt: u64,
    /// The settings that determine the result of a run. A run resumes only from a checkpoint with the same settings.
    pub identity: Value,
    /// The partition and schedule. A resumed run may use another plan.
    pub plan: Value,
    /// The trainer's version, the instruction set, the device and the number of threads. Results may differ in single
    /// bits between environments.
    pub environment: Value,
    /// The numbers of sequences and tokens seen, and other counters.
    pub progress: Value,
    /// The job's spec.
    pub job: Value,
}

/// The manifest of a committed checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Manifest {
    /// The format version of the file, at most [`FORMAT_VERSION`]. New fields may be added without a new version.
    pub format_version: u32,
    /// The number of completed steps.
    pub step: u64,
    /// The number of the [`crate::Fence`] under which the checkpoint was written.
    pub fence: u64,
    /// The random name of the group (the processes of one attempt to run the job) that held the fence.
    pub holder: String,
    /// Metadata from the trainer.
    #[serde(flatten)]
    pub metadata: CheckpointMetadata,
    /// Every file in the folder except the manifest.
    pub files: Vec<FileEntry>,
    /// Every tensor of weights and optimizer state.
    pub tensors: Vec<TensorEntry>,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FileEntry {
    /// The name of the file in the folder.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The BLAKE3 hash of the content, in hexadecimal.
    pub blake3: String,
}

/// A tensor of a checkpoint. The entry has the location and hash of the tensor's bytes, so that a reader can read and
/// verify a part of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TensorEntry {
    /// The name of the tensor, which is unique among all stages.
    pub name: String,
    /// The file that holds the tensor.
    pub file: String,
    /// The element type, as safetensors spells it.
    pub dtype: Dtype,
    /// The dimensions.
    pub shape: Vec<usize>,
    /// The offset of the first byte from the start of the file.
    pub offset: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// The BLAKE3 hash of the bytes, in hexadecimal.
    pub blake3: String,
}

/// The reason why a manifest can't be used. The message continues a sentence that begins with the file's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ManifestError(String);

impl Manifest {
    /// Returns the size of all files except the manifest, in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Serialises the manifest.
    ///
    /// # Errors
    /// Returns an error if a value has no JSON form.
    pub fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut body = String::from("\"");
        // each field, file and tensor takes one line, so that the manifest is readable, and stays small even with
        // thousands of tensors
        if let Value::Object(fields) = serde_json::to_value(self)? {
            for (key, value) in &fields {
                let value = match value {
                    Value::Array(items) if !items.is_empty() => {
                        let items: Vec<String> = items.iter().map(|item| format!("    {item}")).collect();
                        format!("[\n{}\n  ]", items.join(",\n"))
                    }
                    other => other.to_string(),
                };
                body.push_str(&format!(",\n  \"{key}\": {value}"));
            }
        }
        body.push_str("\n}\n");
        let digest = blake3::hash(body.as_bytes()).to_hex();
        Ok(format!("{DIGEST_PREFIX}{digest}{body}").into_bytes())
    }

    /// Parses and validates a manifest.
    ///
    /// # Errors
    /// Returns an error if the bytes do not match their digest, a newer version wrote them, or the entries contradict
    /// each other.
    pub fn parse(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        Manifest::read(bytes).map_err(ManifestError)
    }

    fn read(bytes: &[u8]) -> Result<Manifest, String> {
        #[derive(Deserialize)]
        struct Version {
            format_version: u32,
        }
        let (digest, body) = bytes
            .strip_prefix(DIGEST_PREFIX.as_bytes())
            .and_then(|rest| rest.split_at_checked(DIGEST_CHARS))
            .ok_or("does not begin with its BLAKE3 digest, as every manifest does")?;
        if digest != blake3::hash(body).to_hex().as_bytes() {
            return Err("does not match its own BLAKE3: bits have changed since it was written".into());
        }
        let wrong = |e: serde_json::Error| format!("cannot be read: {e}");
        let Version { format_version } = serde_json::from_slice(bytes).map_err(wrong)?;
        if format_version > FORMAT_VERSION {
            return Err(format!(
                "has format version {format_version}, and this stagecoach reads up to {FORMAT_VERSION}: use the \
                 newer stagecoach that wrote it"
            ));
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(wrong)?;
        manifest.check().map(|()| manifest)
    }

    /// Checks that the file and tensor entries are consistent.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut files = std::collections::BTreeMap::new();
        for file in &self.files {
            if !paths::is_plain_file_name(&file.name) || file.name == paths::MANIFEST_FILE {
                return Err(format!("lists {:?}, which is not a valid name of a checkpoint file", file.name));
            }
            if files.insert(file.name.as_str(), file.bytes).is_some() {
                return Err(format!("lists the file {} twice", file.name));
            }
        }
        let mut names = BTreeSet::new();
        for tensor in &self.tensors {
            if !names.insert(tensor.name.as_str()) {
                return Err(format!("lists the tensor {} twice", tensor.name));
            }
            let end = tensor.offset.checked_add(tensor.bytes);
            let Some(&bytes) = files.get(tensor.file.as_str()) else {
                return Err(format!("places the tensor {} in {}, which it does not list", tensor.name, tensor.file));
            };
            if end.is_none_or(|end| end > bytes) {
                return Err(format!("places the tensor {} beyond the end of {}", tensor.name, tensor.file));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn manifest() -> Manifest {
        let file = FileEntry { name: "stage-0.model.safetensors".into(), bytes: 108, blake3: "ab".into() };
        let tensor = TensorEntry {
            name: "x".into(),
            file: file.name.clone(),
            dtype: Dtype::F32,
            shape: vec![1],
            offset: 104,
            bytes: 4,
            blake3: "cd".into(),
        };
        let metadata = CheckpointMetadata {
            attempt: 3,
            identity: json!({"peak": 3e-4, "seed": 42}),
            ..CheckpointMetadata::default()
        };
        Manifest {
            format_version: FORMAT_VERSION,
            step: 100,
            fence: 7,
            holder: "h".into(),
            metadata,
            files: vec![file],
            tensors: vec![tensor],
        }
    }

    /// Returns the bytes of a changed manifest, with a valid digest.
    fn rewritten(change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> Vec<u8> {
        let mut value = serde_json::to_value(manifest()).unwrap();
        change(value.as_object_mut().unwrap());
        let body = format!("\",{}", value.to_string().strip_prefix('{').unwrap());
        format!("{DIGEST_PREFIX}{}{body}", blake3::hash(body.as_bytes()).to_hex()).into_bytes()
    }

    #[test]
    fn manifest_round_trips_as_plain_json() {
        let bytes = manifest().to_bytes().unwrap();
        assert_eq!(Manifest::parse(&bytes).unwrap(), manifest());
        let json: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["identity"]["peak"], 3e-4);
        assert_eq!(json["tensors"][0]["dtype"], "F32");
    }

    #[test]
    fn newer_versions_are_rejected_and_unknown_fields_are_ignored() {
        let parsed = Manifest::parse(&rewritten(|m| drop(m.insert("mood".into(), json!("fine")))));
        assert_eq!(parsed.unwrap(), manifest());
        let newer = Manifest::parse(&rewritten(|m| {
            m.insert("format_version".into(), json!(FORMAT_VERSION + 1));
            m.remove("tensors");
        }));
        assert!(newer.unwrap_err().to_string().contains("format version 2"));
    }

    #[test]
    fn invalid_manifests_are_rejected() {
        let refused = |change: &dyn Fn(&mut Manifest)| {
            let mut m = manifest();
            change(&mut m);
            Manifest::parse(&m.to_bytes().unwrap()).unwrap_err().to_string()
        };
        assert!(refused(&|m| m.files[0].name = "../../passwd".into()).contains("not a valid name"));
        assert!(refused(&|m| m.tensors[0].bytes = 5).contains("beyond the end"));
        assert!(refused(&|m| m.tensors[0].offset = u64::MAX).contains("beyond the end"));
        assert!(refused(&|m| m.tensors[0].file = "x".into()).contains("in x, which it does not list"));
        assert!(refused(&|m| m.tensors.push(m.tensors[0].clone())).contains("twice"));
    }

    proptest! {
        #[test]
        fn every_bit_flip_and_truncation_is_detected(at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let bytes = manifest().to_bytes().unwrap();
            let at = at.index(bytes.len());
            let mut flipped = bytes.clone();
            flipped[at] ^= 1u8 << bit;
            prop_assert!(Manifest::parse(&flipped).is_err());
            prop_assert!(Manifest::parse(&bytes[..at]).is_err());
        }
    }
}
