//! Defines the names of temporary files, and keys. A key is the name of a folder for files that are derived from some
//! contents. The key consists of the first digits of the contents' hash.

use std::hash::{BuildHasher, Hasher, RandomState};

const SUFFIX: &str = ".partial";

/// The suffix that earlier versions appended to a file of the token cache.
const OLDER_SUFFIX: &str = ".unfinished";

/// The number of random hexadecimal digits in a temporary name.
const RANDOM_DIGITS: usize = 16;

/// The number of hexadecimal digits in a key.
const KEY_DIGITS: usize = 32;

/// Returns the key of contents with this hash: the first hexadecimal digits of `hash`. A folder with this name holds
/// the files that derive from the contents.
pub fn key(hash: &str) -> String {
    hash.chars().take(KEY_DIGITS).collect()
}

/// Whether `name` has the form of a [`key`].
pub fn is_cache_key(name: &str) -> bool {
    name.len() == KEY_DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns 64 random bits as 16 hexadecimal digits.
pub fn random_hex() -> String {
    // the standard library's hashers have random keys, so that no random number generator is needed
    format!("{:0RANDOM_DIGITS$x}", RandomState::new().build_hasher().finish())
}

/// Returns a unique temporary name for the file `target`. The name contains random digits instead of the process id.
/// Processes in different pods share a volume, and each of them has process id 1 in its pod.
pub fn temporary_name(target: &str) -> String {
    format!("{target}.{}{SUFFIX}", random_hex())
}

/// Returns the target of a temporary file, or `None` if `name` is not a temporary name. A process that is killed during
/// a write leaves a temporary file. The function also recognises temporary names of earlier versions, some with a
/// process id.
pub fn target_of_temporary_file(name: &str) -> Option<&str> {
    let is_random = |unique: &str| unique.len() == RANDOM_DIGITS && unique.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_process_id = |unique: &str| !unique.is_empty() && unique.bytes().all(|byte| byte.is_ascii_digit());
    let stem = name.strip_suffix(SUFFIX).or_else(|| name.strip_suffix(OLDER_SUFFIX))?;
    let (target, unique) = stem.rsplit_once('.')?;
    (is_random(unique) || is_process_id(unique)).then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_are_unique_and_recognised() {
        let [one, other] = [(); 2].map(|()| temporary_name("state.json"));
        assert_ne!(one, other);
        for name in [&*one, "state.json.17.partial", "state.json.0123456789abcdef.unfinished"] {
            assert_eq!(target_of_temporary_file(name), Some("state.json"), "{name}");
        }
        for other in [
            "state.json",
            "state.json.partial",
            "state.json.x.partial",
            "state.json..partial",
            "state.json.0123456789abcdeg.partial",
            "state.json.0123456789abcdef0.partial",
            ".partial",
        ] {
            assert_eq!(target_of_temporary_file(other), None, "{other}");
        }
    }
}
