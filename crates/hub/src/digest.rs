//! The digests that the hub lists for the bytes of files.

use std::fmt::{self, Display};

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// The digest of a file's bytes, in lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Digest {
    /// The SHA-256 of the bytes. The hub lists this digest for large files.
    Sha256(String),
    /// The SHA-1 of a git blob: of "blob SIZE\0" and the bytes. The hub lists this digest for files within git.
    GitBlob(String),
}

impl Digest {
    /// Parses the text that `Display` writes; `None` if the text is not a digest.
    pub fn parse(text: &str) -> Option<Digest> {
        let digest = text.split_once(':').and_then(|(_, hex)| Digest::from_hex(hex));
        digest.filter(|digest| digest.to_string() == text)
    }

    /// Returns the digest with these hexadecimal digits; `None` if they are not a digest. The number of digits
    /// determines the kind of digest.
    pub(crate) fn from_hex(hex: &str) -> Option<Digest> {
        let is_hex = hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        match hex.len() {
            64 if is_hex => Some(Digest::Sha256(hex.to_owned())),
            40 if is_hex => Some(Digest::GitBlob(hex.to_owned())),
            _ => None,
        }
    }
}

impl Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Digest::Sha256(hex) => write!(formatter, "sha256:{hex}"),
            Digest::GitBlob(hex) => write!(formatter, "git-blob:{hex}"),
        }
    }
}

/// The state of a digest while it is computed.
pub(crate) enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Hasher {
    /// Returns a hasher for a file of `size` bytes, which computes the same kind of digest as `expected`.
    pub(crate) fn like(expected: &Digest, size: u64) -> Hasher {
        match expected {
            Digest::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Digest::GitBlob(_) => Hasher::GitBlob(Sha1::new_with_prefix(format!("blob {size}\0"))),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::GitBlob(hasher) => hasher.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Digest {
        match self {
            Hasher::Sha256(hasher) => Digest::Sha256(format!("{:x}", hasher.finalize())),
            Hasher::GitBlob(hasher) => Digest::GitBlob(format!("{:x}", hasher.finalize())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(expected: &str, bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::like(&Digest::from_hex(expected).unwrap(), bytes.len() as u64);
        bytes.chunks(3).for_each(|chunk| hasher.update(chunk));
        hasher.finish()
    }

    #[test]
    fn digests_are_those_of_git_and_of_sha256sum() {
        // the commands for these digests: printf 'hello\n' | git hash-object --stdin; printf 'hello\n' | sha256sum
        for hex in [
            "ce013625030ba8dba906f756967f9e9ca394464a",
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
        ] {
            assert_eq!(digest(hex, b"hello\n"), Digest::from_hex(hex).unwrap());
        }
    }

    #[test]
    fn other_texts_are_no_digests() {
        for text in ["", "ce01", &"g".repeat(40), &"A".repeat(64)] {
            assert_eq!(Digest::from_hex(text), None);
        }
        assert_eq!(Digest::Sha256("ab".into()).to_string(), "sha256:ab");
    }
}
