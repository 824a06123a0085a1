//! Parses the hub's listing of a commit's files.

use serde::Deserialize;

use crate::digest::Digest;
use crate::file::HubFile;

/// The hub's answer about a revision.
#[derive(Deserialize)]
pub(crate) struct Revision {
    pub(crate) sha: String,
}

/// An entry of a folder, as the API lists it.
#[derive(Deserialize)]
pub(crate) struct Entry {
    #[serde(rename = "type")]
    kind: String,
    pub(crate) path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

impl Entry {
    /// Converts the entry to a file; `None` if the entry is not a file.
    ///
    /// # Errors
    /// The error describes the problem if the entry is not valid.
    pub(crate) fn into_file(self) -> Result<Option<HubFile>, String> {
        if self.kind != "file" {
            return Ok(None);
        }
        if self.path.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
            return Err(format!("it lists a file \"{}\"", self.path.escape_debug()));
        }
        let (oid, size) = match &self.lfs {
            Some(lfs) => (lfs.oid.trim_start_matches("sha256:"), lfs.size),
            None => (self.oid.as_str(), self.size),
        };
        match Digest::from_hex(oid) {
            Some(digest) => Ok(Some(HubFile { size, digest, path: self.path })),
            None => Err(format!("it lists {} with the digest \"{}\"", self.path, oid.escape_debug())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(json: &str) -> Result<Option<HubFile>, String> {
        serde_json::from_str::<Entry>(json).unwrap().into_file()
    }

    #[test]
    fn large_files_have_the_digest_of_their_bytes() {
        let (sha256, sha1) = ("a".repeat(64), "b".repeat(40));
        let large = format!(
            r#"{{"type":"file","oid":"{sha1}","size":130,"path":"a","lfs":{{"oid":"{sha256}","size":9,"pointerSize":130}},
            "xetHash":"x"}}"#
        );
        let expected = HubFile { path: "a".into(), size: 9, digest: Digest::Sha256(sha256) };
        assert_eq!(file(&large), Ok(Some(expected)));
        let small = format!(r#"{{"type":"file","oid":"{sha1}","size":7,"path":"d/b"}}"#);
        assert_eq!(file(&small), Ok(Some(HubFile { path: "d/b".into(), size: 7, digest: Digest::GitBlob(sha1) })));
        assert_eq!(file(r#"{"type":"directory","oid":"","size":0,"path":"d"}"#), Ok(None));
    }

    #[test]
    fn odd_entries_are_refused() {
        assert!(file(r#"{"type":"file","oid":"x","size":7,"path":"a"}"#).unwrap_err().contains("the digest \"x\""));
        for path in ["../a", "/a", "a//b", "a/.."] {
            assert!(file(&format!(r#"{{"type":"file","oid":"{}","path":"{path}"}}"#, "b".repeat(40))).is_err());
        }
    }
}
